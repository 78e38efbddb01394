"""Counts of runs for the web UI: how the runs of a crawler ended, and what live runs are doing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from datetime import datetime
from typing import Any

from sqlalchemy import and_, case, func, literal, null, select, union_all

from crawler_lifecycle.domain.coverage import Coverage
from crawler_lifecycle.domain.ended_by import EndedBy
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.domain.waiting import Wait
from crawler_lifecycle.ports.runs import BriefRun, Ends, LiveRuns
from crawler_lifecycle.store.base.bulk import chunks
from crawler_lifecycle.store.base.rows import Row, made, seen
from crawler_lifecycle.store.base.unit import StorePart

from .lists import WAITING, first_after, good_runs, last_before, wait_column
from .newest import newest_of_each, of_project
from .tables import LIVE_RUNS, OVER_RUNS, run_history

#: The columns of a ``BriefRun``.
BRIEF = [run_history.c[name] for name in BriefRun.__dataclass_fields__]

#: The number of newest runs of a crawler among which the good ones are counted. More would not
#: change a percentage without decimals, and a crawler may have thousands of runs per day.
SHARE_OF = 100


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
            # A crawler can report any string as its outcome, so rare outcomes are left out.
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

    def live_runs(self, most: int) -> list[LiveRuns]:
        """Count live runs by crawler and by what they are waiting for.

        At most ``most`` runs of each status are read.
        """
        r = run_history.c
        found = list[LiveRuns]()
        with self._db.reading() as conn:
            for status in LIVE_RUNS:
                wait = wait_column() if status in WAITING else null()
                some = select(wait.label("wait"), r.pool, r.crawler)
                some = some.where(r.status == status, *seen(run_history, leads=True))
                each = some.limit(most).subquery("page").c
                same = (each.crawler, each.wait, each.pool)
                for crawler, kind, pool, runs in conn.execute(
                    select(*same, func.count()).group_by(*same)
                ):
                    found.append(LiveRuns(crawler, kind and Wait(kind), pool, runs))
        return found

    def runs_since(self, since: datetime) -> Counter[str]:
        """Count the runs created since ``since`` as ``completed``, ``stopped`` by a person,
        ``failed`` or ``open``.

        As in ``ends_of``, most are counted by their numbers in an index.
        """
        r = run_history.c
        words = {RunStatus.COMPLETED.value: "completed", RunStatus.FAILED.value: "failed"}
        found = Counter[str]()
        with self._db.reading() as conn:
            last = last_before(conn, since)
            first = first_after(conn, since)
            far = [r.run_id >= first, *seen(run_history, leads=True)]
            near = [r.run_id > last, r.run_id < first, r.created_at >= since, *seen(run_history)]
            by_person = [r.status == RunStatus.FAILED, r.ended_by == EndedBy.PERSON]
            kinds = {word: [r.status == status] for status, word in words.items()}
            counted = [("stopped", by_person), *kinds.items()]
            counted += [("open", [r.status == status]) for status in LIVE_RUNS]
            parts = [
                _hinted(select(literal(word), func.count(r.run_id)).where(*kind, *those))
                for word, kind in counted
                for those in (far, near)
            ]
            for word, runs in conn.execute(union_all(*parts)):
                found[word] += runs
        found["failed"] -= found["stopped"]
        return +found

    def good_shares(self, crawlers: Collection[str], since: datetime) -> dict[str, float]:
        """Return for each of these crawlers the share of its runs since ``since``
        that were good, among its newest ``SHARE_OF`` runs.

        Runs that a person stopped do not count. A crawler without other runs has no share.
        """
        r = run_history.c
        good = func.sum(case((good_runs(run_history), 1), else_=0))
        by_person = func.coalesce(r.ended_by, "") == EndedBy.PERSON
        stopped = and_(r.status == RunStatus.FAILED, by_person)
        ended = select(r.crawler, good, func.count()).group_by(r.crawler)
        ended = ended.where(r.created_at >= since, r.status.in_(OVER_RUNS), ~stopped)
        shares: dict[str, float] = {}
        for part in chunks(list(crawlers)):
            page = newest_of_each([of_project(crawler=crawler) for crawler in part], SHARE_OF)
            with self._db.reading() as conn:
                for crawler, many, runs in conn.execute(
                    ended.join(page, page.c.run_id == r.run_id)
                ):
                    shares[crawler] = int(many) / runs
        return shares


def _hinted(query: Any) -> Any:
    return query.with_hint(run_history, "IGNORE INDEX (ix_run_history_created_at)", "mysql")
