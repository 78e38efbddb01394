"""The client of the scheduler service over HTTP (docs/scheduler.md)."""

from __future__ import annotations

import dataclasses
import json
import time
from datetime import UTC, datetime
from typing import Any

import httpx
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from crawler_lifecycle.domain import bounds
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.domain.errors import (
    CallTooLarge,
    DeploymentExpired,
    DeploymentRefused,
    MeantElsewhere,
    SchedulerUnavailable,
)
from crawler_lifecycle.ports.runs import DeployedTask, Deployment, QueuedTask
from crawler_lifecycle.runner.inject.crawl_runner_retry_after import seconds_to_wait

#: The maximum size of a response, in bytes. A response about 500 tasks with long reasons needs a
#: tenth of this.
ANSWER_MAX = 8 * 1024 * 1024
#: Client errors that are temporary and not caused by the request.
TRANSIENT_4XX = frozenset({408, 409, 421, 425, 429})
#: Client errors about an overlong URL or headers. Such errors prove nothing about the deployment.
OURS_4XX = frozenset({414, 431})
#: The longest wait that a service may request, in seconds, so that a stop is not delayed for long.
RETRY_AFTER_MAX_S = 60
#: Seconds for which an idle connection is kept. This is shorter than servers' idle timeout, which
#: often is 5 s, because otherwise a server might close the connection just as a call is sent.
KEPT_S = 2.0
PROBLEM = "application/problem+json"

_STATES = ("created", "existing", "deferred", "refused")


class _Task(BaseModel):
    """The service's response about one task.

    Fields of later versions are ignored; the fields that we need are checked strictly.
    """

    model_config = ConfigDict(strict=True)

    index: int
    state: str
    # A longer name is refused, because a cut name could be the name of another object.
    name: str | None = Field(default=None, max_length=bounds.NAME_MAX)
    uid: str | None = Field(default=None, max_length=bounds.UID_MAX)
    reason: str | None = None


class _Answer(BaseModel):
    tasks: list[_Task]


class _Crawlers(BaseModel):
    crawlers: list[Any]
    problem: str | None = None


_DEFINITION = TypeAdapter(CrawlerDefinition)


class HttpSchedulerClient:
    """The port ``SchedulerClient``.

    Anything but a valid response, from a refused connection to a proxy's HTML page with status 200,
    raises ``SchedulerUnavailable``. This error proves nothing about the deployment, which is
    therefore retried with the same key.
    """

    def __init__(
        self,
        url: str,
        timeout_s: float = 20.0,
        *,
        token: str | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.problem: str | None = None
        self._url = url.rstrip("/")
        # Error messages are stored and shown to callers, so they use the URL without a password.
        address = httpx.URL(self._url)
        self._at = str(address.copy_with(userinfo=b""))
        self._timeout_s = timeout_s
        self._http = httpx.Client(
            timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, 5.0)),
            limits=httpx.Limits(
                max_connections=32, max_keepalive_connections=32, keepalive_expiry=KEPT_S
            ),
            follow_redirects=False,
            headers={"Authorization": f"Bearer {token}"} if token else None,
            transport=transport,
            # Loading certificates takes 20 ms. Plain HTTP does not need them.
            verify=address.scheme == "https",
            # The URL of the service is configured, so proxies from the environment must not be
            # used.
            trust_env=False,
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def deploy(self, deployment: Deployment) -> list[DeployedTask]:
        """Deploy the tasks. Return one result for each task.

        Raises ``DeploymentRefused``, ``DeploymentExpired`` or ``SchedulerUnavailable``. After its
        subclass ``CallTooLarge``, a call with fewer tasks may succeed.
        """
        kind = "scheduled" if deployment.scheduled else "onetime"
        try:
            body = self._call("POST", f"/v1/deployments/{kind}", wire(deployment))
        except CallTooLarge as error:
            which = f"{len(deployment.tasks)} tasks"
            if len(deployment.tasks) == 1:
                which = f"task {deployment.tasks[0].index} alone"
            fix = (
                "raise the limit of the service or of its proxy, or pass the arguments as a file "
                "to fetch"
            )
            raise CallTooLarge(f"{error}, for {which}; {fix}") from None
        try:
            answers = _Answer.model_validate_json(body).tasks
        except ValidationError as error:
            raise SchedulerUnavailable(_unreadable(self._at, error)) from None
        asked = {task.index for task in deployment.tasks}
        if {a.index for a in answers} != asked or len(answers) != len(asked):
            raise SchedulerUnavailable(
                f"scheduler service at {self._at} responded for the wrong number of tasks: "
                f"{len(answers)} "
                f"instead of {len(asked)}"
            )
        unknown = next((a.state for a in answers if a.state not in _STATES), None)
        if unknown is not None:
            raise SchedulerUnavailable(
                f"scheduler service at {self._at} responded with the unknown state {unknown!r}"
            )
        return [
            DeployedTask(a.index, a.state, a.name, a.uid, bounds.words(a.reason)) for a in answers
        ]

    def crawlers(self) -> list[CrawlerDefinition]:
        """Return the crawlers that the service knows. Raises ``SchedulerUnavailable``."""
        try:
            body = self._call("GET", "/v1/crawlers")
            found = _Crawlers.model_validate_json(body)
            self.problem = found.problem and bounds.words(found.problem)
            return [_DEFINITION.validate_python(entry) for entry in found.crawlers]
        except ValidationError as error:
            raise SchedulerUnavailable(_unreadable(self._at, error)) from None
        except (DeploymentRefused, DeploymentExpired) as error:
            raise SchedulerUnavailable(str(error)) from error

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
        deadline = time.monotonic() + self._timeout_s
        try:
            with self._http.stream(method, self._url + path, json=body) as response:
                content = bytearray()
                for chunk in response.iter_bytes():
                    content += chunk
                    if len(content) > ANSWER_MAX:
                        raise SchedulerUnavailable(
                            f"scheduler service at {self._at}: the response is larger than "
                            f"{ANSWER_MAX} bytes"
                        )
                    # httpx limits only each read. A server that sends byte by byte would never
                    # reach that limit.
                    if time.monotonic() > deadline:
                        raise SchedulerUnavailable(
                            f"scheduler service at {self._at}: slower than {self._timeout_s} s"
                        )
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            text = str(error) or type(error).__name__
            raise SchedulerUnavailable(
                f"scheduler service at {self._at} cannot be reached: {text}"
            ) from error
        self._check(response, bytes(content))
        return bytes(content)

    def _check(self, response: httpx.Response, content: bytes) -> None:
        status = response.status_code
        if status in (200, 201):
            return
        detail = _detail(content)
        if status == 410:
            raise DeploymentExpired(
                detail or "the deployment call expired before the service could carry it out"
            )
        if status == 401:
            # While a token is being changed, the two sides may differ temporarily. That must not
            # end runs.
            fix = "set LIFECYCLE_SCHEDULER__TOKEN for our processes to the token of the service"
            raise SchedulerUnavailable(
                f"scheduler service at {self._at} refuses our token (401); {fix}"
            )
        # A wrong URL, an old version or a proxy can also cause client errors. Only a problem
        # document proves that the service itself refuses permanently.
        is_problem = (
            response.headers.get("content-type", "").partition(";")[0].strip().lower() == PROBLEM
        )
        if status == 413:
            size = len(response.request.content)
            raise CallTooLarge(
                f"scheduler service at {self._at} does not accept a call of {size} bytes (413)"
            )
        if status == 421 and is_problem:
            raise MeantElsewhere(
                detail or f"scheduler service at {self._at} uses another namespace (421)"
            )
        if is_problem and 400 <= status < 500 and status not in TRANSIENT_4XX | OURS_4XX:
            raise DeploymentRefused(
                detail or f"scheduler service at {self._at} refused with status {status}"
            )
        suffix = f": {detail}" if detail else ""
        unavailable = SchedulerUnavailable(
            f"scheduler service at {self._at} returned {status}{suffix}"
        )
        seconds = seconds_to_wait(response.headers.get("Retry-After"), datetime.now(UTC))
        unavailable.retry_after_s = None if seconds is None else min(seconds, RETRY_AFTER_MAX_S)
        raise unavailable


def wire(deployment: Deployment) -> dict[str, Any]:
    """Return the JSON body of a deployment call."""
    body = {
        "run_id": deployment.run_id,
        "run_uid": deployment.run.uid,
        "attempt": deployment.attempt,
        "crawler": deployment.crawler,
        "args": dict(deployment.args),
        "settings": dict(deployment.settings),
        "tasks": [_task(task) for task in deployment.tasks],
        "resources": dataclasses.asdict(deployment.resources),
        "limits": dataclasses.asdict(deployment.limits),
        "expires_at": deployment.expires_at.isoformat(),
        "priority": deployment.priority,
        "pool": deployment.pool,
        "queue": deployment.queue,
        "resume": deployment.resume,
    }
    if deployment.scheduled and deployment.due_at is not None:
        body["due_at"] = deployment.due_at.isoformat()
    if deployment.place is not None:
        body["place"] = deployment.place
    if deployment.record:
        body["record"] = dict(deployment.record)
    if deployment.code is not None:
        named = dataclasses.asdict(deployment.code)
        body["code"] = {name: value for name, value in named.items() if value is not None}
    if deployment.entry is not None:
        body["entry"] = dict(deployment.entry)
    return body


def _task(task: QueuedTask) -> dict[str, Any]:
    body = {
        "task_id": task.task_id,
        "index": task.index,
        "args": dict(task.args),
        "attempt": task.attempt,
    }
    again = {
        name: getattr(task, name) for name in ("retry", "memory", "avoid_node", "node_selector")
    }
    return body | {name: value for name, value in again.items() if value}


def _unreadable(url: str, error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return (
        f"scheduler service at {url} gave a response that violates its contract: {where}: "
        f"{first['msg']}"
    )


def _detail(content: bytes) -> str | None:
    """Return the shortened detail of a problem document, or ``None`` if the body is not a problem
    document.
    """
    try:
        problem = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(problem, dict):
        return None
    detail = problem.get("detail") or problem.get("title")
    return detail[:2000] if isinstance(detail, str) else None
