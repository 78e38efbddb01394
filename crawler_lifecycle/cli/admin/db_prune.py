"""``crawlctl db prune``: removes rows of runs that ended long ago, if the rows are no longer
needed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

from crawler_lifecycle.cli import output
from crawler_lifecycle.cli.output import emit, show_rows
from crawler_lifecycle.cli.problems import CommandFailed, Exit
from crawler_lifecycle.cli.session import command, load_settings, long_ago, say
from crawler_lifecycle.domain.errors import StoreUnavailable
from crawler_lifecycle.domain.retention import GOES, NEVER, Stays
from crawler_lifecycle.subjects import Column, Document, count

from .services import DATABASE_FIX, usable_schema

if TYPE_CHECKING:
    from crawler_lifecycle.store.retention.pruning import Pruner

DEFAULT_AGE = "90d"
#: The table of the access log.
ACCESS_AGE = "365d"
#: Seconds before each retry of a chunk that the database refused.
AGAIN_S = (1.0, 2.0, 4.0, 8.0)
#: Shortest and longest pause after a chunk, in seconds. Within these limits, the pause is as long
#: as the chunk took.
LEAST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 1.0
#: Seconds between two progress messages.
PROGRESS_EVERY_S = 10.0

#: The tables that ``--logs-older-than`` applies to: they contain nearly all data of a run, but are
#: needed for a shorter time than any other table.
LARGE = ("task_log", "task_stats")

T = TypeVar("T")

TABLES = (
    Column("Table", "table"),
    Column("Rows", count("rows"), right=True),
    Column("What", "what"),
    Column("Why", "why"),
)


def prune(
    *,
    older_than: str = DEFAULT_AGE,
    logs_older_than: str | None = None,
    access_older_than: str = ACCESS_AGE,
    yes: bool = False,
    url: str | None = None,
) -> None:
    """Remove details of runs that ended long ago from the database. The records of the runs stay.

    The command removes run.changed events with their pushes, the stored last lines of logs,
    temporary rows from polls, and closed findings from audits. Rows in the access log have their
    own age limit. It never changes runs, tasks, the record of status changes, or rows that a resume
    or an export needs. Without --yes nothing is changed. The command can be called at any time,
    even twice at once. It can be stopped at any time; the next call continues the work.

    Parameters
    ----------
    older_than
        time since the runs ended; at least 7d
    logs_older_than
        the same for logs and statistics of tasks; default: the value of --older-than
    access_older_than
        age of rows in the access log; at least 7d
    yes
        remove the rows; without --yes they are only counted
    url
        the database; default: LIFECYCLE_DATABASE__URL
    """
    from crawler_lifecycle.domain.retention import ACCESS, DATABASE
    from crawler_lifecycle.store.retention.pruning import open_pruner

    age_s, before = long_ago(older_than, output.now(), DATABASE)
    _, logs_before = long_ago(
        logs_older_than or older_than, output.now(), DATABASE, "--logs-older-than"
    )
    _, access_before = long_ago(access_older_than, output.now(), ACCESS, "--access-older-than")
    usable_schema(url)
    with closing(open_pruner(url or load_settings().database.url)) as pruner:
        own = {**dict.fromkeys(LARGE, logs_before), "access_log": access_before}
        work = Pruning(pruner, before, own, yes=yes)
        work.all_tables()
    _show(work, age_s)
    _summarise(work, older_than, logs_older_than, access_older_than)


@dataclass
class _Table:
    """Counts of rows in one table: rows that can be removed, rows that were removed, and rows that
    stay.
    """

    goes: int = 0
    removed: int = 0
    stays: Counter[Stays] = field(default_factory=Counter)


@dataclass
class Pruning:
    """One call of ``crawlctl db prune``."""

    pruner: Pruner
    before: datetime
    of: Mapping[str, datetime]
    yes: bool
    tables: Mapping[str, _Table] = field(default_factory=lambda: {name: _Table() for name in GOES})
    printed_at: float = field(default_factory=time.monotonic)

    @property
    def removed(self) -> int:
        return sum(table.removed for table in self.tables.values())

    @property
    def goes(self) -> int:
        return sum(table.goes for table in self.tables.values())

    def all_tables(self) -> None:
        """Read all tables. If ``yes`` is true, remove the rows that are no longer needed."""
        for name in self.pruner.tables:
            self._table(name)

    def _table(self, name: str) -> None:
        after = (0, 0)
        table = self.tables[name]
        sent = self.tables["outbox_delivery"]
        before = self.of.get(name, self.before)
        while True:
            start = after
            chunk = self._tried(lambda: self.pruner.poll(name, before, start))  # noqa: B023
            table.goes += len(chunk.goes)
            table.stays += chunk.stays
            sent.goes += chunk.sent
            sent.stays += chunk.sent_stays
            if self.yes and chunk.goes:
                began = time.monotonic()
                leaving = chunk.goes
                for touched, rows in self._tried(
                    lambda: self.pruner.remove(name, leaving, before)  # noqa: B023
                ).items():
                    self.tables[touched].removed += rows
                self._rest(time.monotonic() - began)
            if chunk.next is None:
                return
            after = chunk.next

    def _rest(self, took_s: float) -> None:
        """Pause, because processes that are waiting for a SQLite file poll it and need time between
        two transactions.
        """
        if time.monotonic() - self.printed_at >= PROGRESS_EVERY_S:
            say(f"{self.removed:,} rows …")
            self.printed_at = time.monotonic()
        time.sleep(min(max(took_s, LEAST_PAUSE_S), LONGEST_PAUSE_S))

    def _tried(self, step: Callable[[], T]) -> T:
        """Return the result of a step.

        While the database is unavailable, retry the step. Retries are safe, because the step is a
        single transaction.
        """
        for pause in (*AGAIN_S, None):
            try:
                return step()
            except StoreUnavailable as error:
                if pause is None:
                    raise self._failed(error) from None
                time.sleep(pause)
        raise AssertionError("the last try returns a result or raises an error")

    def _failed(self, error: Exception) -> CommandFailed:
        fix = DATABASE_FIX
        if self.removed:
            fix += f". {self.removed:,} rows were already removed; repeat the command to continue"
        return CommandFailed(Exit.UNREACHABLE, "the database cannot be used", str(error), fix)


# --- for people -----------------------------------------------------------------------------------


def _show(work: Pruning, age_s: float) -> None:
    documents: list[Document] = []
    for name, table in work.tables.items():
        rows, what = (table.removed, "removed") if work.yes else (table.goes, "would go")
        documents.append({"table": name, "rows": rows, "what": what, "why": GOES[name]})
        kept = [
            {"table": name, "rows": rows, "what": "stays", "why": str(why)}
            for why, rows in table.stays.items()
        ]
        documents += sorted(kept, key=lambda one: str(one["why"]))
    # These rows are not counted, because a count would read all of them.
    documents += [
        {"table": name, "rows": None, "what": "stays", "why": why} for name, why in NEVER.items()
    ]
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


def _summarise(
    work: Pruning, older_than: str, logs_older_than: str | None, access_older_than: str
) -> None:
    if work.yes:
        say(f"removed {work.removed:,} rows")
        return
    say(f"{work.goes:,} rows would be removed; nothing was changed")
    if work.goes:
        ages = {
            "older_than": None if older_than == DEFAULT_AGE else older_than,
            "logs_older_than": logs_older_than,
            "access_older_than": None if access_older_than == ACCESS_AGE else access_older_than,
        }
        say(f"next: {command('db prune', **ages, yes=True)}")
