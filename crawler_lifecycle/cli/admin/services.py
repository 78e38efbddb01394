"""Verbs that run a service in the foreground, and verbs of the database."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from crawler_lifecycle import dev_json
from crawler_lifecycle.cli.machine import start_time
from crawler_lifecycle.cli.output import emit
from crawler_lifecycle.cli.problems import CommandFailed, Exit
from crawler_lifecycle.cli.session import load_settings, say

if TYPE_CHECKING:
    from crawler_lifecycle.settings import Settings

DATABASE_CURE = "check LIFECYCLE_DATABASE__URL, and that the database is there and lets this user in"


def hide() -> None:
    """Keep the secrets of our environment from what runs as the same user: crawlers of the local cluster may."""
    from crawler_lifecycle.runner import child

    if not child.hide_environment():
        say("this system cannot hide environment and memory of a process from others of the same user")


def keep_files_private() -> None:
    """Let only the owner read what this process makes from now on: databases, sockets, logs, archives in a folder."""
    os.umask(0o077)


def join(service: str) -> None:
    """Give this process the settings of the nearest stack, where nothing else names a system for it.

    Without this, a second gateway would serve a database of its own beside the one that everybody looks at.
    Raises ``CommandFailed`` when that stack does not run: its Temporal server and database would not be found.
    """
    if dev_json.is_told(os.environ):
        return
    stack = dev_json.nearest(say)
    if stack is None:
        return
    if not _runs(stack.known):
        raise CommandFailed(
            Exit.NOT_IN_THIS_STATE,
            f"{service}: {stack.file} names a stack that does not run",
            "its database and Temporal server would be missing, and others belong to another system",
            f"crawlctl dev --state-dir {stack.file.parent}, or name the parts: LIFECYCLE_DATABASE__URL, "
            "TEMPORAL_ADDRESS (docs/settings.md)",
        )
    given = stack.variables() | _kept_beside(stack)
    if service == "worker":
        given["LIFECYCLE_WORKER__HEALTH_PORT"] = "0"  # the usual one is the stack's own worker's
    os.environ.update({name: value for name, value in given.items() if not os.environ.get(name)})
    known = stack.known
    say(f"{service}: joins the stack of {stack.file} (Temporal {known.get('temporal')})")


def _runs(known: Mapping[str, object]) -> bool:
    pids, started = known.get("processes"), known.get("started")
    pid = pids.get("temporal") if isinstance(pids, dict) else None
    then = started.get("temporal") if isinstance(started, dict) else None
    return isinstance(pid, int) and then is not None and start_time(pid) == then


def _kept_beside(stack: dev_json.Stack) -> dict[str, str]:
    """The settings that the stack's parts have and its file does not tell."""
    folder, found = stack.file.parent, dict[str, str]()
    # An empty file: a profile in the home directory could add TLS or a key.
    if (profile := folder / "temporal.toml").is_file():
        found["TEMPORAL_CONFIG_FILE"] = str(profile)
    if (key := folder / "task.key").is_file() and stack.known.get("cluster") == "local":
        found["LIFECYCLE_GATEWAY__TASK_KEY"] = key.read_text()
    return found


def _service(name: str) -> Settings:
    """Make this process one of our services; its settings."""
    hide()
    keep_files_private()
    join(name)
    return load_settings()


def worker(*roles: str) -> int:
    """Run a worker until SIGTERM or Ctrl-C.

    Parameters
    ----------
    roles
        What it serves: workflows, cluster, control, export, audit, plans, webhooks; all of them when none is given. The
        role observer only notices changes on the cluster, which cluster does as well unless
        LIFECYCLE_WORKER__WAKE_UPS is false.
    """
    settings = _service("worker")
    from crawler_lifecycle.worker.process import serve

    return serve(settings, roles)


gateway_app = App(name="gateway", help="Run the gateway (HTTP API) until SIGTERM or Ctrl-C.")
token_app = App(name="token", help="Tokens of the gateway's callers.")
gateway_app.command(token_app)


@gateway_app.default
def gateway() -> int:
    """Run the gateway until SIGTERM or Ctrl-C."""
    settings = _service("gateway")
    from crawler_lifecycle.gateway.serve import serve

    return serve(settings)


@token_app.command(name="new")
def new_token(
    *,
    name: Annotated[str, Parameter(help="who will use it; shown in the gateway's log")],
    role: Annotated[Literal["read", "operate", "admin"], Parameter(help="what it may do")],
) -> int:
    """Make a token, and the lines of TOML that let it in.

    The token goes to its user and is written nowhere; the lines go into the file of LIFECYCLE_GATEWAY__TOKENS_FILE,
    which the gateway reads again by itself.
    """
    from crawler_lifecycle.gateway.access import tokens

    try:
        token, lines = tokens.new_token(name, role)
    except ValueError as error:
        raise CommandFailed(Exit.USAGE, str(error)) from None
    document = {"name": name, "role": role, "token": token, "toml": lines}

    def table() -> None:
        print(token, flush=True)
        say("its lines for the file of LIFECYCLE_GATEWAY__TOKENS_FILE:\n")
        print(lines, end="")

    emit(document, names=[token], table=table)
    return Exit.DONE


def scheduler() -> int:
    """Run the scheduler service until SIGTERM or Ctrl-C."""
    settings = _service("scheduler")
    from crawler_lifecycle.scheduler.serve import serve

    return serve(settings)


def db_upgrade(
    *, url: Annotated[str | None, Parameter(help="database; default: LIFECYCLE_DATABASE__URL")] = None
) -> int:
    """Bring the database's schema to this version; nothing happens when it has it.

    Then new runs get numbers above every one that workflows and the cluster of the settings still bear: a database
    that was restored or made anew would give them out again. With --url only the schema is looked at.
    """
    from crawler_lifecycle.store import head_version, read_schema, upgrade

    keep_files_private()
    settings = None if url is not None else load_settings()
    url = url or load_settings().database.url
    with database_errors():
        before = read_schema(url)
        upgrade(url)
    head = head_version()
    if before.newer or before.version == head:
        say(f"database at {before}; nothing to do" if before.newer else f"database at {head} already")
    else:
        say(f"database {before.version or 'empty'} -> {head}")
    if settings is not None:
        _bring_numbers_forward(settings)
    return Exit.DONE


def _bring_numbers_forward(settings: Settings) -> None:
    from crawler_lifecycle.compose import build_store
    from crawler_lifecycle.domain.errors import LifecycleError
    from crawler_lifecycle.worker.run_numbers import bring_forward

    from .run_numbers import LIMIT_S, sources

    try:
        store = build_store(settings).run_numbers
        newest = store.newest_run_id()
        known = bring_forward(store, sources(settings), LIMIT_S)
    except LifecycleError as error:
        say(f"numbers of runs were not brought forward: {error}; a worker does it when it starts")
        return
    if known.above > newest:
        say(
            f"new runs get numbers above {known.above}: the newest run of the database is {newest}, and "
            f"{', '.join(known.words(newest))}; was it restored? next: crawlctl audit"
        )
    for name, text in sorted(known.troubles.items()):
        say(f"numbers that {name} may still bear are not known ({text}); a worker asks again when it starts")


def db_current(*, url: str | None = None) -> int:
    """Show the schema version of the database."""
    from crawler_lifecycle.store import head_version, read_schema

    with database_errors():
        found = read_schema(url or load_settings().database.url)
    word = found.version or "empty"
    document = {"schema": found.version, "needed": head_version()}
    emit(document, names=[word], table=lambda: print(word))
    return Exit.DONE


def db_check(*, url: str | None = None) -> int:
    """Fail (exit 4) unless this version works on the schema of the database."""
    from crawler_lifecycle.store import read_schema

    with database_errors():
        found = read_schema(url or load_settings().database.url)
    if found.problem is not None:
        raise CommandFailed(Exit.NOT_IN_THIS_STATE, found.problem)
    say(f"database at {found}")
    return Exit.DONE


@contextmanager
def database_errors() -> Iterator[None]:
    """Raise ``CommandFailed`` for an error of the database."""
    from crawler_lifecycle.domain.errors import InvalidRequest, LifecycleError, NotInThisState

    try:
        yield
    except InvalidRequest as error:
        raise CommandFailed(Exit.USAGE, "no database is known", str(error), "set LIFECYCLE_DATABASE__URL") from None
    except NotInThisState as error:
        raise CommandFailed(Exit.NOT_IN_THIS_STATE, str(error)) from None
    except LifecycleError as error:
        raise CommandFailed(Exit.UNREACHABLE, "the database cannot be used", str(error), DATABASE_CURE) from None
