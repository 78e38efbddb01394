"""Daily copies of the stack's database, on which no status depends."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from crawler_lifecycle import sqlite_files
from crawler_lifecycle.cli.problems import CommandFailed, Exit
from crawler_lifecycle.domain.errors import NotInThisState
from crawler_lifecycle.settings import sqlite_url

KEPT = 3
#: The time limit for the search for damage at the start, in seconds. The search reads about 100 MiB
#: per second.
CHECK_S = 5.0
_NAMES = "lifecycle-*.db"


def make(file: Path, *, say: Callable[[str], None]) -> None:
    """Make today's copy of a database unless that copy exists, and remove all but the newest
    copies.

    Errors are only reported.
    """
    today = file.with_name("copies") / f"lifecycle-{datetime.now(UTC):%Y-%m-%d}.db"
    if today.exists():
        return
    try:
        today.parent.mkdir(exist_ok=True)
        sqlite_files.copy(file, today)
        for old in sorted(today.parent.glob(_NAMES))[:-KEPT]:
            old.unlink()
    except (OSError, NotInThisState) as error:
        say(f"today's copy could not be made: {error}")


def check(file: Path) -> None:
    """If the database is damaged, raise ``CommandFailed``, which names the newest intact copy."""
    if (found := sqlite_files.damage(file, CHECK_S)) is None:
        return
    copies = sorted(file.with_name("copies").glob(_NAMES), reverse=True)
    whole = next((copy for copy in copies if sqlite_files.damage(copy) is None), None)
    restore = shlex.join(
        ("crawlctl", "db", "restore", str(whole or "FILE"), "--url", sqlite_url(file))
    )
    raise CommandFailed(
        Exit.NOT_IN_THIS_STATE,
        f"{file} is damaged: {found}",
        f"its newest intact copy is {whole or 'missing'}",
        f"{restore}; then crawlctl dev, which adopts running tasks",
    )
