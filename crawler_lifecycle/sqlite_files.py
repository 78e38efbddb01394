"""Files of SQLite databases: connections, damage, copies.

Every program of ours opens such a file through ``connect``, or with ``driver``. Two SQLite libraries in one process
would remove each other's locks on a file.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import secrets
import sqlite3 as driver
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

#: Suffixes of further files that SQLite may have for a database.
BESIDE = ("-journal", "-wal", "-shm")
#: Instructions of SQLite between two looks at the clock, and pages in one step of a copy.
_INSTRUCTIONS, _PAGES = 100_000, 1_000
#: Bytes that SQLite locks while a connection is open: their position in the file, and their number.
_LOCKED_AT, _LOCKED = 0x40000002, 510


class Damaged(Exception):
    """The file is no whole database. The text says what SQLite found."""


def connect(file: Path | str, mode: str = "rwc", **options: Any) -> driver.Connection:
    """Open a database file.

    ``mode`` is ``ro``, ``rw``, or ``rwc`` to create a missing file. ``options`` are those of ``sqlite3.connect``.
    """
    return driver.connect(f"{Path(file).absolute().as_uri()}?mode={mode}", uri=True, **options)


def damage(file: Path, limit_s: float = math.inf) -> str | None:
    """Return what is damaged in a file; ``None`` if nothing is, or if nothing was found within ``limit_s`` seconds.

    It reads the whole file. A file that cannot be opened or is locked counts as undamaged.
    """
    until = time.monotonic() + limit_s
    try:
        with closing(connect(file, "rw")) as database:
            database.set_progress_handler(lambda: time.monotonic() > until, _INSTRUCTIONS)
            # It also compares indexes with tables: damage may be pages that are only old.
            found = str(database.execute("PRAGMA integrity_check(1)").fetchone()[0])
    except driver.OperationalError:
        return None
    except driver.DatabaseError as error:
        return str(error)
    return None if found == "ok" else found.splitlines()[-1]


def copy(source: Path, target: Path) -> None:
    """Write a whole copy of a database into the new file ``target``. Others may write meanwhile.

    The copy has the state of one moment, and is one file. Raises ``Damaged`` if the source is damaged,
    ``FileExistsError``, and errors of ``driver``.
    """
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        with closing(connect(source, "ro")) as database, closing(connect(draft)) as new:
            # An open transaction keeps this moment. Without it, each commit of others would begin the copy anew.
            database.execute("BEGIN")
            database.execute("SELECT 1 FROM sqlite_master").fetchone()
            database.backup(new, pages=_PAGES)
            new.execute("PRAGMA journal_mode = DELETE")
        if (found := damage(draft)) is not None:
            raise Damaged(found)
        os.link(draft, target)
    except driver.OperationalError:
        raise
    except driver.DatabaseError as error:
        raise Damaged(str(error)) from None
    finally:
        draft.unlink(missing_ok=True)


def set_aside(file: Path, word: str) -> Path:
    """Rename a database and the files beside it. Return its new name, which contains ``word`` and the time.

    A journal without its database, after a crash here, is renamed too: SQLite would apply it to the next file.
    """
    aside = file.with_name(f"{file.name}.{word}-{datetime.now(UTC):%Y%m%dT%H%M%S%f}")
    # The journals come last, because a broken file without its journal might look usable.
    for suffix in ("", *BESIDE):
        with contextlib.suppress(FileNotFoundError):
            file.with_name(file.name + suffix).rename(aside.with_name(aside.name + suffix))
    return aside


@contextmanager
def unused(file: Path) -> Iterator[bool]:
    """Keep other processes from opening a database in WAL mode. Yields whether no process has it open.

    This process must have no connection to the file: closing it here would remove the locks of that connection.
    """
    if not file.exists():
        yield True
        return
    with file.open("r+b") as raw:
        try:
            fcntl.lockf(raw, fcntl.LOCK_EX | fcntl.LOCK_NB, _LOCKED, _LOCKED_AT)
        except OSError:
            yield False
        else:
            yield True
