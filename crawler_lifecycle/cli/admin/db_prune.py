"""``crawlctl db prune``: removes rows of runs that ended long ago, as far as nobody needs them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, TypeVar

from cyclopts import Parameter

from crawler_lifecycle.cli import output
from crawler_lifecycle.cli.admin.services import DATABASE_CURE, database_errors
from crawler_lifecycle.cli.output import emit, show_rows
from crawler_lifecycle.cli.problems import CommandFailed, Exit
from crawler_lifecycle.cli.session import load_settings, long_ago, say
from crawler_lifecycle.domain.errors import StoreUnavailable
from crawler_lifecycle.domain.retention import GOES, NEVER, Stays
from crawler_lifecycle.subjects import Column, Document, count, of

if TYPE_CHECKING:
    from crawler_lifecycle.store import Pruner

DEFAULT_AGE = "90d"
#: Pauses before a chunk is tried again that the database did not take, in seconds.
AGAIN_S = (1.0, 2.0, 4.0, 8.0)
#: After a chunk others have the database for as long as the chunk took, in seconds: at least, and at most.
LEAST_PAUSE_S, LONGEST_PAUSE_S = 0.01, 1.0
#: How long is between two lines about the progress, in seconds.
TOLD_EVERY_S = 10.0

T = TypeVar("T")

TABLES = (
    Column("Table", of("table")),
    Column("Rows", count("rows"), right=True),
    Column("What", of("what")),
    Column("Why", of("why")),
)


def prune(
    *,
    older_than: Annotated[str, Parameter(help="runs that ended longer ago; at least 7d")] = DEFAULT_AGE,
    yes: Annotated[bool, Parameter(negative=(), help="do it; without this it is only told")] = False,
    url: Annotated[str | None, Parameter(help="the database; default LIFECYCLE_DATABASE__URL")] = None,
) -> int:
    """Remove what runs that ended long ago left in the database and nobody needs; the record stays.

    Removed are run.changed events with their pushes, kept ends of logs, what looks left staged, and closed findings of
    audits. Runs, tasks, the ledger and what a resume or an export needs are never touched. Without --yes nothing is
    changed. It may be called at any time, also twice at once, and stopped at any time; the next call goes on.
    """
    from crawler_lifecycle.domain.retention import DATABASE

    age_s, before = long_ago(older_than, output.now(), DATABASE)
    pruner = _pruner(url or load_settings().database.url)
    work = _Pruning(pruner, before, yes=yes)
    try:
        work.all_tables()
    finally:
        pruner.close()
    _show(work, age_s)
    _tell(work, older_than)
    return Exit.DONE


def _pruner(url: str) -> Pruner:
    from crawler_lifecycle.store import open_pruner, read_schema

    with database_errors():
        found = read_schema(url)
    if found.problem is not None:
        raise CommandFailed(Exit.NOT_IN_THIS_STATE, found.problem)
    return open_pruner(url)


@dataclass
class _Table:
    """The rows found in one table, and what became of them."""

    goes: int = 0
    removed: int = 0
    stays: Counter[Stays] = field(default_factory=Counter)


class _Pruning:
    """One call of the command."""

    def __init__(self, pruner: Pruner, before: datetime, *, yes: bool) -> None:
        self._pruner = pruner
        self._told_at = time.monotonic()
        self.before = before
        self.yes = yes
        self.tables: Mapping[str, _Table] = {name: _Table() for name in GOES}

    @property
    def removed(self) -> int:
        return sum(table.removed for table in self.tables.values())

    @property
    def goes(self) -> int:
        return sum(table.goes for table in self.tables.values())

    def all_tables(self) -> None:
        """Go through all tables, and remove what may go when that is wanted."""
        for name in self._pruner.tables:
            self._table(name)

    def _table(self, name: str) -> None:
        after, table, sent = (0, 0), self.tables[name], self.tables["outbox_delivery"]
        while True:
            place = after
            chunk = self._tried(lambda: self._pruner.look(name, self.before, place))  # noqa: B023
            table.goes += len(chunk.goes)
            table.stays += chunk.stays
            sent.goes += chunk.sent
            sent.stays += chunk.sent_stays
            if self.yes and chunk.goes:
                began = time.monotonic()
                leaving = chunk.goes
                for touched, rows in self._tried(
                    lambda: self._pruner.remove(name, leaving, self.before)  # noqa: B023
                ).items():
                    self.tables[touched].removed += rows
                self._rest(time.monotonic() - began)
            if chunk.next is None:
                return
            after = chunk.next

    def _rest(self, took_s: float) -> None:
        """Leave the database to others: who waits for a SQLite file polls, and needs time between two transactions."""
        if time.monotonic() - self._told_at >= TOLD_EVERY_S:
            say(f"{self.removed:,} rows …")
            self._told_at = time.monotonic()
        time.sleep(min(max(took_s, LEAST_PAUSE_S), LONGEST_PAUSE_S))

    def _tried(self, step: Callable[[], T]) -> T:
        """The step, again and again while the database does not take it. Each is one transaction, all or nothing."""
        for pause in (*AGAIN_S, None):
            try:
                return step()
            except StoreUnavailable as error:
                if pause is None:
                    raise self._failed(error) from None
                time.sleep(pause)
        raise AssertionError("the last try returns or raises")

    def _failed(self, error: Exception) -> CommandFailed:
        cure = DATABASE_CURE
        if self.removed:
            cure += f". {self.removed:,} rows were removed before; the same call once more goes on"
        return CommandFailed(Exit.UNREACHABLE, "the database cannot be used", str(error), cure)


# --- for people ----------------------------------------------------------------------------------------------------


def _show(work: _Pruning, age_s: float) -> None:
    documents: list[Document] = []
    for name, table in work.tables.items():
        rows, what = (table.removed, "removed") if work.yes else (table.goes, "would go")
        documents.append({"table": name, "rows": rows, "what": what, "why": GOES[name]})
        kept = [{"table": name, "rows": rows, "what": "stays", "why": str(why)} for why, rows in table.stays.items()]
        documents += sorted(kept, key=lambda one: str(one["why"]))
    # Counting them would read them all.
    documents += [{"table": name, "rows": None, "what": "stays", "why": why} for name, why in NEVER.items()]
    document = {
        "older_than_s": age_s,
        "before": work.before.isoformat().replace("+00:00", "Z"),
        "changed": work.yes,
        "goes": work.goes,
        "removed": work.removed,
        "tables": documents,
    }
    emit(
        document,
        names=[name for name, table in work.tables.items() if table.goes],
        table=lambda: show_rows(documents, TABLES, empty=""),
        rows=documents,
    )


def _tell(work: _Pruning, older_than: str) -> None:
    if work.yes:
        say(f"removed {work.removed:,} rows")
        return
    say(f"{work.goes:,} rows would go; nothing was changed")
    if work.goes:
        age = "" if older_than == DEFAULT_AGE else f" --older-than {older_than}"
        say(f"next: crawlctl db prune{age} --yes")
