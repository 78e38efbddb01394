"""Counts of runs for the web UI: how the runs of a crawler ended, and what live runs are doing."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any

from sqlalchemy import func, null, select, union_all

from crawler_lifecycle.domain.coverage import Coverage
from crawler_lifecycle.domain.ended_by import EndedBy
from crawler_lifecycle.domain.run import RunStatus, pages_per_minute
from crawler_lifecycle.domain.waiting import Wait
from crawler_lifecycle.ports.runs import BriefRun, Ends, LiveRuns, WaitingRuns
from crawler_lifecycle.store.base.rows import Row, made, seen
from crawler_lifecycle.store.base.unit import StorePart

from .lists import WAITING, first_after, last_before, wait_column
from .tables import LIVE_RUNS, run_history

#: The columns of a ``BriefRun``.
BRIEF = [run_history.c[name] for name in BriefRun.__dataclass_fields__]


def brief_run(row: Row) -> BriefRun:
    """Return the run of a row with the columns ``BRIEF``."""
    return made(BriefRun, row, fields=Coverage.of(row["fields"]))


class RunCounts(StorePart):
    """The counting methods of ``RunReader``."""

    def ends_of(self, crawler: str, since: datetime, outcomes: int) -> Ends:
        """Count the completed and failed runs of the crawler that were created since ``since``.

        Returns these counts and the most frequent ``outcomes`` of failed runs. Later runs have
        higher numbers, so an index of the numbers is enough to count the runs. The creation time is
        read only for runs created within two hours of ``since``, because the clocks of hosts may
        differ.
        """
        r = run_history.c
        mine = [r.crawler == crawler, *seen(run_history, leads=True)]
        with self._db.reading() as conn:
            last = last_before(conn, since)
            first = first_after(conn, since)

            def count(status: RunStatus) -> int:
                among = select(func.count(r.run_id)).where(*mine, r.status == status)
                near = among.where(r.run_id > last, r.run_id < first, r.created_at >= since)
                return sum(
                    conn.execute(
                        union_all(_hinted(among.where(r.run_id >= first)), _hinted(near))
                    ).scalars()
                )

            failed = [*mine, r.status == RunStatus.FAILED, r.run_id > last, r.created_at >= since]
            runs = func.count().label("runs")
            same = (r.outcome, r.ended_by)
            groups = (
                select(*same, runs, func.max(r.run_id).label("newest"))
                .where(*failed)
                .group_by(*same)
            )
            # A crawler can report any text as its outcome, so rare outcomes are left out.
            found = conn.execute(_hinted(groups).order_by(runs.desc()).limit(1_000)).all()
            stopped = sum(row.runs for row in found if row.ended_by == EndedBy.PERSON)
            told = [row for row in found if row.ended_by != EndedBy.PERSON][:outcomes]
            # No run has the number 0. With an empty list, SQLite would scan the table.
            rows = conn.execute(
                select(*BRIEF).where(r.run_id.in_([0, *(row.newest for row in told)]))
            ).mappings()
            newest = {row["run_id"]: brief_run(row) for row in rows}
            failures = [(row.runs, newest[row.newest]) for row in told]
            return Ends(count(RunStatus.COMPLETED), count(RunStatus.FAILED), stopped, failures)

    def live_now(self, most: int) -> LiveRuns:
        """Count live runs by status and by what they are waiting for.

        At most ``most`` runs of each status are read.
        """
        r = run_history.c
        by_status = Counter[str]()
        waits = Counter[tuple[str, str | None]]()
        oldest: dict[tuple[str, str | None], int] = {}
        mine = seen(run_history, leads=True)
        with self._db.reading() as conn:
            for status in LIVE_RUNS:
                wait = wait_column() if status in WAITING else null()
                some = select(wait.label("wait"), r.pool, r.run_id).where(r.status == status, *mine)
                each = some.limit(most).subquery("page").c
                columns = (each.wait, each.pool, func.count(), func.min(each.run_id))
                for kind, pool, runs, first in conn.execute(
                    select(*columns).group_by(each.wait, each.pool)
                ):
                    key = kind, pool if kind == Wait.POOL else None
                    by_status[status] += runs
                    waits[key] += runs if kind is not None else 0
                    oldest[key] = min(first, oldest.get(key, first))
            running = select(r.pages, r["items"], r.started_at, r.last_progress_at).where(
                r.status == RunStatus.PROCESSING, r.attempt == 1, *mine
            )
            rows = conn.execute(running.limit(most)).all()
        pace = [
            sum(pages_per_minute(row[n], row[2], row[3]) or 0.0 for row in rows) for n in (0, 1)
        ]
        found = [
            WaitingRuns(Wait(kind), pool, runs, oldest[kind, pool])
            for (kind, pool), runs in waits.items()
            if runs
        ]
        return LiveRuns(by_status, found, *pace)


def _hinted(query: Any) -> Any:
    return query.with_hint(run_history, "IGNORE INDEX (ix_run_history_created_at)", "mysql")
