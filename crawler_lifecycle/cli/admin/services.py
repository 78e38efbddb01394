"""Verbs that run a service in the foreground, and verbs for the database."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from cyclopts import App

from crawler_lifecycle import dev_json
from crawler_lifecycle.cli.machine import living
from crawler_lifecycle.cli.output import emit
from crawler_lifecycle.cli.problems import CommandFailed, Exit, WrongUsage
from crawler_lifecycle.cli.session import load_settings, say, stack_of_dev
from crawler_lifecycle.domain.projects import DEFAULT

if TYPE_CHECKING:
    from crawler_lifecycle.settings import Settings
    from crawler_lifecycle.store.migrations.schema_version import Schema

DATABASE_FIX = "check LIFECYCLE_DATABASE__URL, and that the database exists and accepts this user"


def hide() -> None:
    """Hide the environment and memory of this process from other processes of the same user, such
    as local crawlers.
    """
    from crawler_lifecycle.runner import child

    if not child.hide_environment():
        say(
            "this system cannot hide a process's environment and memory from other processes of "
            "the same user"
        )


def keep_files_private() -> None:
    """Make all new files of this process accessible only to their owner: databases, sockets, logs,
    archives.
    """
    os.umask(0o077)


def join(service: str) -> None:
    """Use the settings of the nearest ``crawlctl dev``, if no setting names a different system.

    Otherwise, a second gateway would use its own database instead of the stack's database. Raises
    ``CommandFailed`` if that stack is not running, because its Temporal server and database are not
    available.
    """
    if dev_json.is_told(os.environ):
        return
    stack = stack_of_dev()
    if stack is None:
        return
    if "temporal" not in living(stack.known):
        raise CommandFailed(
            Exit.NOT_IN_THIS_STATE,
            f"{service}: {stack.file} names a stack that is not running",
            "its database and Temporal server are not available",
            f"crawlctl dev --state-dir {stack.file.parent}, or set LIFECYCLE_DATABASE__URL and "
            "TEMPORAL_ADDRESS (docs/settings.md)",
        )
    given = settings_beside(stack)
    if service == "worker":
        given["LIFECYCLE_WORKER__HEALTH_PORT"] = "0"  # the stack's own worker uses the default port
    os.environ.update({name: value for name, value in given.items() if not os.environ.get(name)})
    known = stack.known
    say(f"{service}: joins the stack of {stack.file} (Temporal {known.get('temporal')})")


def settings_beside(stack: dev_json.Stack) -> dict[str, str]:
    """Return the settings for a process next to this stack, including those that are not in its
    ``dev.json``.
    """
    folder = stack.file.parent
    found = stack.variables()
    # This empty file replaces the profile in the home directory, which could add TLS or a key.
    if (profile := folder / "temporal.toml").is_file():
        found["TEMPORAL_CONFIG_FILE"] = str(profile)
    if (key := folder / "task.key").is_file() and stack.known.get("cluster") == "local":
        found["LIFECYCLE_GATEWAY__TASK_KEY"] = key.read_text()
    return found


def _service(name: str) -> Settings:
    """Prepare this process as one of our services, and return its settings. Call ``_loaded`` after
    the imports.
    """
    # imported objects are never garbage; a search through them takes a tenth of the startup time
    gc.disable()
    hide()
    keep_files_private()
    join(name)
    return load_settings()


def _loaded() -> None:
    """Enable garbage collection, except for objects that the imports created."""
    gc.freeze()
    gc.enable()


def worker(*roles: str) -> int:
    """Run a worker until SIGTERM or Ctrl-C.

    Parameters
    ----------
    roles
        Roles: workflows, cluster, control, export, audit, user-code, webhooks; default: all of
        them. The role observer only notices changes on the cluster. The role cluster does this too,
        unless LIFECYCLE_WORKER__WAKE_UPS is false.
    """
    settings = _service("worker")
    from crawler_lifecycle.worker.process import serve

    _loaded()
    return serve(settings, roles)


gateway_app = App(name="gateway", help="Run the gateway (HTTP API) until SIGTERM or Ctrl-C.")
token_app = App(name="token", help="Tokens for clients of the gateway.")
gateway_app.command(token_app)


@gateway_app.default
def gateway() -> int:
    """Run the gateway until SIGTERM or Ctrl-C."""
    settings = _service("gateway")
    from crawler_lifecycle.gateway.serve import serve

    _loaded()
    return serve(settings)


@token_app.command(name="new")
def new_token(
    *,
    name: str,
    role: Literal["read", "operate", "admin"],
    project: str = DEFAULT,
) -> None:
    """Create a token, and the TOML lines that the gateway needs to accept it.

    Give the token to its user, because the token is not stored. Add the lines to the file that
    LIFECYCLE_GATEWAY__CALLERS_FILE names. The gateway reads the changed file without a restart.

    Parameters
    ----------
    name
        name of its user, for the gateway's log
    role
        role of the token
    project
        the only project that it can see and change; '*' means all
    """
    from crawler_lifecycle.gateway.access import tokens

    try:
        token, lines = tokens.new_token(name, role, project)
    except ValueError as error:
        raise WrongUsage(str(error)) from None
    document = {"name": name, "role": role, "project": project, "token": token, "toml": lines}

    def table() -> None:
        print(token, flush=True)
        say("add these lines to the file that LIFECYCLE_GATEWAY__CALLERS_FILE names:\n")
        print(lines, end="")

    emit(document, names=[token], table=table)


def scheduler() -> int:
    """Run the scheduler service until SIGTERM or Ctrl-C."""
    settings = _service("scheduler")
    from crawler_lifecycle.scheduler.serve import serve

    _loaded()
    return serve(settings)


def db_upgrade(
    *,
    url: str | None = None,
    recreate: bool = False,
) -> None:
    """Upgrade the database's schema to this version, if the schema is older.

    Then raise the counter of run ids above every id that workflows or the cluster still use,
    because a restored or new database would use these ids again. With --url, only the schema is
    upgraded.

    Parameters
    ----------
    url
        database; default: LIFECYCLE_DATABASE__URL
    recreate
        DELETE all records of a database that cannot be upgraded, and create it again
    """
    from crawler_lifecycle.store.migrations import schema_version

    keep_files_private()
    ours = url is None
    url = url or load_settings().database.url
    with database_errors():
        before = schema_version.read_schema(url)
        (schema_version.recreate if recreate else schema_version.upgrade)(url)
    head = schema_version.head_version()
    if recreate:
        say(f"database recreated at {head}; its previous records were deleted")
    elif before.newer or before.version == head:
        say(
            f"database at {before}; nothing to do"
            if before.newer
            else f"database already at {head}"
        )
    else:
        say(f"database {before.version or 'empty'} -> {head}")
    if ours:
        _bring_numbers_forward(load_settings())


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
        say(f"the counter of run ids was not raised: {error}; a worker raises it when it starts")
        return
    if known.above > newest:
        say(
            f"new runs get ids above {known.above}: the newest run in the database is "
            f"{newest}, and "
            f"{', '.join(known.words(newest))}; was it restored? next: crawlctl audit"
        )
    for name, text in sorted(known.troubles.items()):
        say(
            f"the run ids that {name} uses cannot be read ({text}); a worker tries again when it "
            f"starts"
        )


def db_current(*, url: str | None = None) -> None:
    """Show the schema version of the database."""
    from crawler_lifecycle.store.migrations.schema_version import head_version

    found = _schema(url)
    word = found.version or "empty"
    document = {"schema": found.version, "needed": head_version()}
    emit(document, names=[word], table=lambda: print(word))


def db_check(*, url: str | None = None) -> None:
    """Fail (exit code 4) unless this version supports the schema of the database."""
    say(f"database at {usable_schema(url)}")


@contextmanager
def database_errors() -> Iterator[None]:
    """Convert database errors in the block to ``CommandFailed``."""
    from crawler_lifecycle.domain.errors import InvalidRequest, LifecycleError, NotInThisState
    from crawler_lifecycle.store.engine import StoreDamaged

    try:
        yield
    except InvalidRequest as error:
        raise WrongUsage(
            "no usable database", "set LIFECYCLE_DATABASE__URL", why=str(error)
        ) from None
    except (NotInThisState, StoreDamaged) as error:
        raise CommandFailed(Exit.NOT_IN_THIS_STATE, str(error)) from None
    except LifecycleError as error:
        raise CommandFailed(
            Exit.UNREACHABLE, "the database cannot be used", str(error), DATABASE_FIX
        ) from None


def _schema(url: str | None) -> Schema:
    from crawler_lifecycle.store.migrations.schema_version import read_schema

    with database_errors():
        return read_schema(url or load_settings().database.url)


def usable_schema(url: str | None) -> Schema:
    """Return the schema of a database. Raises ``CommandFailed`` unless this version supports it."""
    found = _schema(url)
    if found.problem is not None:
        raise CommandFailed(Exit.NOT_IN_THIS_STATE, found.problem)
    return found
