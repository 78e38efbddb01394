"""SQLite database files: connections, damage, copies.

All our programs open such files with ``connect`` and ``driver``, because two SQLite libraries in
one process would remove each other's locks on a file.
"""

from __future__ import annotations

import fcntl
import math
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from crawler_lifecycle.domain.errors import NotInThisState

driver = sqlite3
#: Suffixes of a database and of its further SQLite files. The journals are renamed last, because a
#: broken file without its journal might seem usable.
_FILES = ("", "-journal", "-wal", "-shm")
#: Suffix of the mark next to a restored database for which nothing has been adopted yet.
RESTORED = ".restored"
#: The number of SQLite instructions between two checks of the time limit.
_INSTRUCTIONS = 100_000
#: The bytes that each open connection locks in WAL mode: their number, and their offset in the
#: file.
_LOCKED = 510, 0x40000002


def connect(file: Path | str, mode: str = "rwc", **options: Any) -> sqlite3.Connection:
    """Open a database file.

    ``mode`` is ``ro``, ``rw`` or ``rwc``; ``rwc`` creates a missing file. ``options`` are passed to
    ``sqlite3.connect``.
    """
    uri = f"{Path(file).absolute().as_uri()}?mode={mode}"
    connection: sqlite3.Connection = driver.connect(uri, uri=True, **options)
    return connection


def damage(file: Path, limit_s: float = math.inf) -> str | None:
    """Return a description of the damage in a file; ``None`` if no damage was found within
    ``limit_s`` seconds.

    This reads the whole file. A file that cannot be opened or is locked counts as undamaged.
    """
    until = time.monotonic() + limit_s
    try:
        with closing(connect(file, "rw")) as database:
            database.set_progress_handler(lambda: time.monotonic() > until, _INSTRUCTIONS)
            database.text_factory = bytes  # names in damaged pages may not be valid UTF-8
            # In addition, this compares indexes with tables, because damage may consist of valid
            # but outdated pages.
            whole = database.execute("PRAGMA integrity_check(1)").fetchone() == (b"ok",)
    except driver.OperationalError:
        return None
    except driver.DatabaseError as error:
        return str(error)
    # Python cannot decode SQLite's error message, which quotes the damaged schema.
    except UnicodeDecodeError:
        return "its schema is not text"
    return None if whole else "its pages are inconsistent"


def copy(source: Path, target: Path) -> None:
    """Write a complete copy of a database to the new file ``target``. Other processes may write to
    the database in the meantime.

    The copy is a consistent snapshot in a single file. Raises ``NotInThisState`` if ``target``
    exists, if the source is damaged, or if a file cannot be used.
    """
    draft = target.with_name(f"{target.name}.draft")
    try:
        draft.unlink(missing_ok=True)
        with closing(connect(source, "rw")) as database, closing(connect(draft)) as new:
            # copy in one step: with several steps, each commit by another process would restart the
            # copy
            database.backup(new)
            new.execute("PRAGMA journal_mode = DELETE")
        if (found := damage(draft)) is not None:
            raise driver.DatabaseError(found)
        os.link(draft, target)
    except (OSError, driver.Error) as error:
        raise NotInThisState(f"{source} was not copied into {target}: {error}") from None
    finally:
        draft.unlink(missing_ok=True)


def set_aside(file: Path, word: str) -> Path:
    """Rename a database and the files next to it.

    Return its new name, which contains ``word`` and the time.

    A journal whose database is missing, because an earlier call crashed, is renamed, too: SQLite
    would apply this journal to the next file.
    """
    aside = file.with_name(f"{file.name}.{word}-{datetime.now(UTC):%Y%m%dT%H%M%S%f}")
    for suffix in _FILES:
        with suppress(FileNotFoundError):
            file.with_name(file.name + suffix).rename(aside.with_name(aside.name + suffix))
    return aside


@contextmanager
def unused(file: Path) -> Iterator[None]:
    """Keep other processes from opening a database in WAL mode.

    Raises ``NotInThisState`` if a process has the database open.

    This process must have no connection to the file, because closing the file here would remove the
    connection's locks.
    """
    if not file.exists():
        yield
        return
    with file.open("r+b") as raw:
        try:
            fcntl.lockf(raw, fcntl.LOCK_EX | fcntl.LOCK_NB, *_LOCKED)
        except OSError:
            raise NotInThisState(
                f"{file} is in use: end crawlctl dev, or each gateway and worker"
            ) from None
        yield
