"""The database of tests that need just any: SQLite, or MariaDB where ``LIFECYCLE_TEST_DATABASE`` is ``mariadb``."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from crawler_lifecycle.adapters.database import engine
from tests.support.mariadb import MariaDb, running_mariadb

#: Seconds in which, on any machine, those before us in the queue are through.
PATIENT_S = 120
VARIABLE = "LIFECYCLE_TEST_DATABASE"

_open = ExitStack()
_servers: list[MariaDb] = []


def _server() -> MariaDb:
    """One server for all tests of this process, ended with it."""
    if not _servers:
        _servers.append(_open.enter_context(running_mariadb()))
        atexit.register(_open.close)
    return _servers[0]


def wait_patiently(patch: pytest.MonkeyPatch) -> None:
    """Databases that are opened from now on wait for locks, connections and answers as long as a slow machine takes.

    For tests of several writers: how long one waits in production is not what they are about.
    """
    for limit in ("BUSY_TIMEOUT_S", "CONNECT_TIMEOUT_S", "LOCK_WAIT_S"):
        patch.setattr(engine, limit, PATIENT_S)
    defaults = engine.open_engine.__kwdefaults__
    assert defaults is not None
    patch.setitem(defaults, "answer_timeout_s", 2 * PATIENT_S)


@contextmanager
def fresh_database(folder: Path, name: str = "lab.db") -> Iterator[str]:
    """The URL of an empty database without tables, gone afterwards or with ``folder``."""
    kind = os.environ.get(VARIABLE, "sqlite")
    if kind not in ("sqlite", "mariadb"):
        raise ValueError(f"{VARIABLE}: {kind!r} is not allowed; give sqlite or mariadb")
    if kind == "sqlite":
        yield f"sqlite:///{folder / name}"
        return
    with _server().database() as url:
        yield url
