"""The entry point of the scheduler service: reads the settings and listens."""

from __future__ import annotations

import functools
import logging
import sys
import threading
from typing import Protocol, cast

from crawler_lifecycle import redaction, task_tokens
from crawler_lifecycle.adapters.catalogue import YamlCatalogue
from crawler_lifecycle.background import Loop
from crawler_lifecycle.clusters.kind import TaskEnvironment, kind_of
from crawler_lifecycle.domain.bounds import DAY_S
from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.domain.loopback import is_loopback
from crawler_lifecycle.observability import logs
from crawler_lifecycle.ports.runs import Deployment, QueuedTask
from crawler_lifecycle.settings import Settings
from crawler_lifecycle.task_tokens import Purpose, TaskClaim
from crawler_lifecycle.web.listening import Unservable, bind, run

from .app import create_app, secrets_of

logger = logging.getLogger(__name__)

_TOKEN_MIN = 20
#: Seconds from the start to the first cleanup.
FIRST_S = 60.0
#: Seconds between two cleanups.
EVERY_S = 3600.0
#: The first pause after an error and the longest pause, in seconds.
RETRY_S = (60.0, EVERY_S)


def serve(settings: Settings) -> int:
    """Serve until SIGTERM, and return the exit code.

    An error at the start is printed to standard error as one line.
    """
    logs.configure("scheduler", settings)
    try:
        catalogue = YamlCatalogue(settings.catalogue, settings.extra_catalogue, settings.owned)
        redaction.learn(secrets_of(catalogue.all()))
        kind = kind_of(settings.cluster)
        environment = _child_tasks(settings)
        deployer = kind.deployer(environment)
        app = create_app(
            deployer,
            catalogue,
            token=_token(settings),
            listens=settings.scheduler.host,
            owned=settings.owned,
            reaches_gateway=environment is not None,
        )
        bound = bind(settings.scheduler.host, settings.scheduler.port, "LIFECYCLE_SCHEDULER")
    except (LifecycleError, Unservable) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if kind.clears_itself:
        start_cleaning(cast(Removing, deployer), settings.cluster.keep_days)
    return run("scheduler service", app, bound, settings.headers)


def _token(settings: Settings) -> str | None:
    """Return the token that callers must send; ``None`` if no token is needed.

    Raises ``Unservable`` if the token is too short, or if there is no token and the host is not
    loopback.
    """
    token = settings.scheduler.token.get_secret_value() if settings.scheduler.token else None
    if token is not None and len(token) < _TOKEN_MIN:
        raise Unservable(
            f"LIFECYCLE_SCHEDULER__TOKEN: {len(token)} characters are too few; use {_TOKEN_MIN} or "
            "more, and the same "
            "token for workers and gateway: openssl rand -hex 32"
        )
    if token is None and not is_loopback(settings.scheduler.host):
        raise Unservable(
            f"LIFECYCLE_SCHEDULER__HOST: {settings.scheduler.host!r} can be reached from other "
            "machines; set "
            "LIFECYCLE_SCHEDULER__TOKEN here, for workers and for the gateway (openssl rand -hex "
            "32), or set the host "
            "to 127.0.0.1"
        )
    return token


class Removing(Protocol):
    """A cluster that keeps files of ended runs until they are removed."""

    def remove_old(self, keep_s: float) -> list[int]: ...


def clean(cluster: Removing, keep_days: float) -> None:
    """Remove files of runs that ended more than ``keep_days`` ago, and log the removal.

    Raises ``ClusterUnavailable``.
    """
    removed = cluster.remove_old(keep_days * DAY_S)
    if removed:
        shown = ", ".join(map(str, removed[:20])) + (", …" if len(removed) > 20 else "")
        logger.info(
            "removed the files of %d runs that ended more than %g days ago: %s",
            len(removed),
            keep_days,
            shown,
        )


def start_cleaning(
    cluster: Removing, keep_days: float, *, first_s: float = FIRST_S, every_s: float = EVERY_S
) -> threading.Event | None:
    """Clean up regularly in a new thread until the returned event is set; ``None`` if files are
    kept forever.
    """
    if keep_days <= 0:
        return None
    done = threading.Event()
    loop = Loop("the removal of old runs", every_s, first_s=first_s, retry_s=RETRY_S)
    work = functools.partial(loop.run_in_thread, lambda: clean(cluster, keep_days), done)
    threading.Thread(target=work, name="housekeeping", daemon=True).start()
    return done


def _child_tasks(settings: Settings) -> TaskEnvironment | None:
    """Return a function that returns the gateway's variables for a task; ``None`` if no key is set.

    These are the gateway's address, the crawler's token, and the address and the token for leases.
    If tasks upload to object storage, the variables also include the address and the token for the
    upload. Raises ``Unservable`` if a setting is missing or wrong.
    """
    gateway = settings.gateway
    uploads = settings.cluster.files_url is not None and kind_of(settings.cluster).uploads
    if gateway.task_key is None:
        if uploads:
            raise Unservable(
                "LIFECYCLE_GATEWAY__TASK_KEY: not set, so tasks could not ask the gateway where to "
                "upload their files "
                "(LIFECYCLE_CLUSTER__FILES_URL); set it here and for the gateway: openssl rand "
                "-hex 32"
            )
        return None
    key = gateway.task_key.get_secret_value().encode()
    url = gateway.url
    if len(key) < task_tokens.KEY_MIN:
        raise Unservable(
            f"LIFECYCLE_GATEWAY__TASK_KEY: {len(key)} bytes are too few; use {task_tokens.KEY_MIN} "
            "or more, and the "
            "same key for the gateway: openssl rand -hex 32"
        )
    if url is None:
        raise Unservable(
            "LIFECYCLE_GATEWAY__URL: not set, so crawlers could not use the tokens that "
            "LIFECYCLE_GATEWAY__TASK_KEY "
            "signs; set it to the address at which crawlers reach the gateway"
        )
    return functools.partial(_task_environment, url.rstrip("/"), key, uploads)


def _task_environment(
    url: str, key: bytes, uploads: bool, deployment: Deployment, task: QueuedTask
) -> dict[str, str]:
    run = deployment.run
    own = f"{url}/v1/runs/{run.run_id}/tasks/{task.index}/attempts/{task.attempt}"

    def signed(purpose: Purpose) -> str:
        return task_tokens.sign_task(key, TaskClaim(purpose, run, task.index, task.attempt))

    found = {
        "CRAWL_GATEWAY_URL": url,
        "CRAWL_TOKEN": task_tokens.sign(key, run),
        "CRAWL_LEASES_URL": f"{own}/leases",
        "CRAWL_LEASES_TOKEN": signed(Purpose.LEASES),
    }
    if deployment.code is not None:
        found["CRAWL_CODE_URL"] = f"{own}/code"
        found["CRAWL_CODE_TOKEN"] = signed(Purpose.CODE)
    if uploads:
        found["CRAWL_UPLOAD_URL"] = f"{own}/files"
        found["CRAWL_UPLOAD_TOKEN"] = signed(Purpose.FILES)
    return found
