"""Queries for runs and their histories, and for runs whose workflow needs a start, a signal or a
wake-up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from itertools import starmap
from operator import attrgetter
from typing import Unpack

from sqlalchemy import ColumnElement, Connection, Subquery, and_, func, or_, select

from crawler_lifecycle.domain.bounds import ID_MAX
from crawler_lifecycle.domain.clocks import not_ahead
from crawler_lifecycle.domain.code import Code
from crawler_lifecycle.domain.projects import only
from crawler_lifecycle.domain.run import RunRequest, RunStatus
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.waiting import POLLS
from crawler_lifecycle.domain.wake_ups import WakeUpState
from crawler_lifecycle.ports.runs import (
    CRAWLERS_MAX,
    BriefRun,
    Resumption,
    RunRow,
    ShortRun,
    TransitionRow,
)
from crawler_lifecycle.store.base.rows import seen
from crawler_lifecycle.store.base.search import Reach, counted, distinct
from crawler_lifecycle.store.base.unit import StorePart

from .codes import codes_of_runs, digest_of, with_codes
from .counts import BRIEF, RunCounts, brief_run
from .lists import (
    ATTENTION,
    RunFilters,
    RunQuery,
    newest_runs,
    page_of,
    runs_by_id,
    times_of,
)
from .live_counters import COUNTERS
from .newest import newest_of_all, newest_of_each, of_project
from .rows import load_request, run_row, whole_run
from .search import VALUES, found
from .tables import (
    LIVE_RUNS,
    cancellation_log,
    history_property,
    run_history,
    status_transition,
    task_history,
)
from .unit import RunPart, current_tasks, missing

#: The maximum number of notes about resuming that are returned for one run.
_NOTES_MAX = 10


class RunReader(RunCounts, RunPart):
    """Queries for runs and their other records.

    Unless its docstring states otherwise, a method raises only ``StoreUnavailable`` and
    ``RowUnreadable``.
    """

    def get_run(self, run_id: int) -> RunRow | None:
        # No row has such a number, and SQLite's driver does not accept larger numbers.
        if not 0 < run_id <= ID_MAX:
            return None
        return self._one(run_history.c.run_id == run_id)

    def find_run(self, request_id: str) -> RunRow | None:
        return self._one(run_history.c.request_id == request_id)

    def _one(self, here: ColumnElement[bool]) -> RunRow | None:
        query = select(run_history).where(here, *seen(run_history))
        with self._db.reading() as conn:
            row = conn.execute(query).mappings().one_or_none()
            return None if row is None else with_codes(conn, [whole_run(row)])[0]

    def request_of(self, run_id: int) -> RunRequest:
        """Return the stored request of a run for the run's own workflow, omitting the task list.

        Raises ``RowMissing``.
        """
        r = run_history.c
        rows = self._rows(select(r.run_id, r.request).where(r.run_id == run_id))
        if not rows:
            raise missing(run_id)
        return load_request(rows[0])

    def list_runs(
        self, before_run_id: int | None = None, limit: int = 50, **wanted: Unpack[RunQuery]
    ) -> list[RunRow]:
        """Return runs of the caller's project that meet all given filters, newest first."""
        with self._db.reading() as conn:
            filters = self._filters(conn, before_run_id, **wanted)
            rows = newest_runs(conn, filters, limit)
            return with_codes(conn, [run_row(row) for row in rows])

    def search_runs(
        self,
        search: str | None,
        sort: str | None = None,
        before_run_id: int | None = None,
        offset: int = 0,
        limit: int = 50,
        **wanted: Unpack[RunQuery],
    ) -> tuple[list[RunRow], Reach]:
        """Return the runs of ``list_runs`` that contain the text ``search``, or all its runs in the
        order of ``sort`` (one of ``SORTS``; a leading ``-`` reverses the order), starting at
        ``offset``. The second value shows how far the search reached.
        """
        with self._db.reading() as conn:
            filters = self._filters(conn, before_run_id, **wanted)
            run_ids, reach = found(conn, filters, search, sort, (offset, limit), self._clock())
            rows = {row.run_id: row for row in with_codes(conn, runs_by_id(conn, run_ids))}
        return [rows[run_id] for run_id in run_ids if run_id in rows], reach

    def count_found(self, most: int, **wanted: Unpack[RunQuery]) -> int:
        """Return the number of runs that ``list_runs`` finds with these filters, at most
        ``most``.
        """
        with self._db.reading() as conn:
            filters = self._filters(conn, **wanted)
            return counted(conn, page_of(filters, times_of(conn, filters), most), most)

    def known_values(self, most: int) -> dict[str, list[str]]:
        """Return the distinct values of runs for each filter, at most ``most`` per filter.

        A caller with access to one project gets no pools or flows.
        """
        # The other columns have no index by project.
        names = ("crawler", "outcome", "tag", *(("pool", "flow_id") if only() is None else ()))
        with self._db.reading() as conn:
            return {name: sorted(distinct(conn, VALUES[name], most)) for name in names}

    def _filters(
        self, conn: Connection, before_run_id: int | None = None, **wanted: Unpack[RunQuery]
    ) -> RunFilters:
        created_from = wanted.get("created_from")
        if wanted.get("attention") and created_from is None:
            created_from = self._clock() - ATTENTION
        columns = {*run_history.c.keys()} - {"status"}
        return RunFilters(
            equal={
                name: str(value)
                for name, value in wanted.items()
                if name in columns and value is not None
            },
            statuses=[str(status) for status in wanted.get("status", ())],
            tags=list(wanted.get("tags", ())),
            before_run_id=before_run_id,
            created_from=created_from,
            created_until=wanted.get("created_until"),
            waits=wanted.get("waits"),
            attention=wanted.get("attention", False),
            digest=digest_of(conn, wanted.get("code")),
        )

    def count_runs(self, status: Sequence[str], most: int) -> int:
        """Return the number of runs that have one of these statuses, at most ``most``."""
        r = run_history.c
        found = 0
        for fromkey in dict.fromkeys(map(str, status)):
            found += len(
                self._rows(
                    select(r.run_id)
                    .where(r.status == fromkey, *seen(run_history, leads=True))
                    .limit(most - found)
                )
            )
        return found

    def newest_runs(self, most: int) -> list[ShortRun]:
        """Return the newest run of each crawler that has runs, for at most ``most`` crawlers, the
        oldest run first. A crawler of several projects has one for each.
        """
        with self._db.reading() as conn:
            return _runs_of(conn, newest_of_all(conn), most)

    def recent_runs(self, crawlers: Collection[str], each: int) -> list[ShortRun]:
        """Return the newest ``each`` runs of each of these crawlers, newest first, with one
        statement.

        Raises ``ValueError`` for more than ``CRAWLERS_MAX`` crawlers.
        """
        wanted = set(crawlers)
        if len(wanted) > CRAWLERS_MAX:
            raise ValueError(
                f"crawlers: {len(wanted)} crawlers are not allowed; give at most {CRAWLERS_MAX}"
            )
        if not wanted:
            return []
        page = newest_of_each([of_project(crawler=crawler) for crawler in wanted], each)
        with self._db.reading() as conn:
            return _runs_of(conn, page, each * len(wanted))[::-1]

    def brief_runs(
        self, limit: int, *, crawler: str | None = None, before_id: int | None = None
    ) -> list[BriefRun]:
        """Return the newest runs, or those of this crawler and with lower numbers, newest first."""
        filters = RunFilters({"crawler": crawler} if crawler else {}, before_run_id=before_id)
        with self._db.reading() as conn:
            return [brief_run(row) for row in newest_runs(conn, filters, limit, *BRIEF)]

    def codes_of(self, run_ids: Sequence[int]) -> dict[int, list[Code]]:
        """Return the codes of each of these runs of the caller's project that has any."""
        with self._db.reading() as conn:
            return codes_of_runs(conn, run_ids)

    def run_marks(self, run_ids: Sequence[int]) -> dict[int, tuple[object, ...]]:
        """Return for each of these runs (at most 500) a value that changes when its row is written.

        The last part of this value is true if no other change is expected, because the run is
        executing and no poll is overdue.
        """
        r = run_history.c
        in_time = or_(r.next_look_at.is_(None), r.next_look_at >= self._clock())
        at_rest = or_(r.waiting_for.is_(None), r.waiting_for.startswith(POLLS))
        calm = and_(r.status == RunStatus.PROCESSING, at_rest, in_time)
        # Reports from crawlers change only counters. The time of the last counters does not advance
        # after a poll with a clock that is ahead.
        counted = (r.last_progress_at, *(r[name] for name in COUNTERS))
        query = select(r.run_id, r.updated_at, r.verified_at, *counted, calm).where(
            r.run_id.in_(run_ids)
        )
        return {row["run_id"]: tuple(row.values()) for row in self._rows(query)}

    def resumption(self, run_id: int) -> list[Resumption]:
        """Return at most ten notes from the run's tasks about resuming from saved state, the most
        frequent first.
        """
        t = task_history.c
        count = func.count().label("tasks")
        said = current_tasks(run_id, t.resumed, t.resume_note, count).where(
            t.resume_note.is_not(None)
        )
        rows = self._rows(
            said.group_by(t.resumed, t.resume_note).order_by(count.desc(), t.resume_note)
        )
        return [
            Resumption(row["resumed"], row["resume_note"], row["tasks"])
            for row in rows[:_NOTES_MAX]
        ]

    def transitions(self, run_id: int, after_seq: int = 0, limit: int = 500) -> list[TransitionRow]:
        s = status_transition.c
        query = (
            select(status_transition)
            .where(s.run_id == run_id, s.seq > after_seq)
            .order_by(s.seq)
            .limit(limit)
        )
        return self._made(TransitionRow, query)

    def cancellations(self, run_id: int) -> list[Mapping[str, object]]:
        return self._of_run(cancellation_log, run_id)

    def properties(self, run_id: int) -> list[Mapping[str, object]]:
        return self._of_run(history_property, run_id)


def _runs_of(conn: Connection, page: Subquery, most: int) -> list[ShortRun]:
    """Return the runs with the ids of ``page``, at most ``most``, oldest first."""
    r = run_history.c
    columns = [r[name] for name in ShortRun.__dataclass_fields__]
    query = select(*columns).join(page, page.c.run_id == r.run_id).limit(most)
    return sorted(starmap(ShortRun, conn.execute(query)), key=attrgetter("run_id"))


class SweepStore(StorePart):
    """Queries for runs whose workflow does not know about an accepted start or a recorded stop."""

    def unowned_runs(self, older_than: datetime) -> list[RunRow]:
        """Return runs that were reserved or resumed before ``older_than`` and are not claimed.

        These runs were accepted, so their workflows must be started.
        """
        r = run_history.c
        old = and_(
            r.created_at < older_than, or_(r.attempt_at.is_(None), r.attempt_at < older_than)
        )
        query = select(run_history).where(
            r.owner_run_id.is_(None), r.status == RunStatus.INITIALIZING, old
        )
        return [run_row(row) for row in self._rows(query.order_by(r.created_at).limit(100))]

    def unheard_stops(self, older_than: datetime, limit: int = 100) -> list[RunRow]:
        """Return live runs with a stop from before ``older_than`` on which no workflow has acted
        yet.
        """
        r = run_history.c
        unheard = (
            r.stop_acted_at.is_(None),
            r.status.in_(LIVE_RUNS),
            r.stop_requested_at.is_not(None),
        )
        # The time of a stop comes from the database. If the database's clock is ahead of ours, the
        # row contains our time.
        old = or_(r.stop_requested_at < older_than, r.updated_at < older_than)
        query = select(run_history).where(*unheard, old).order_by(r.stop_requested_at).limit(limit)
        return [run_row(row) for row in self._rows(query)]


class WakeUpStore(StorePart):
    """The rows of runs that are polled without their workflows."""

    def wake_target(self, run_id: int) -> WakeUpState | None:
        """Return the owner and the polls of a run; ``None`` if the run is unknown."""
        found = self._targets(run_history.c.run_id == run_id)
        return found[0] if found else None

    def unverified(self, before: datetime, limit: int = 10_000) -> list[WakeUpState]:
        """Return live runs with an owner whose next poll was due before ``before``, regardless of
        who polls them.
        """
        r = run_history.c
        late = (r.next_look_at < before, r.status.in_(LIVE_RUNS), r.owner_run_id.is_not(None))
        found = self._targets(*late, limit=limit)
        return [state for state in found if state.due_at and state.due_at < before]

    def _targets(self, *conditions: ColumnElement[bool], limit: int = 1) -> list[WakeUpState]:
        r = run_history.c
        now = self._clock()
        columns = (r.run_id, r.run_uid, r.attempt, r.owner_workflow_id, r.owner_run_id, r.status)
        query = select(*columns, r.verified_at, r.next_look_at, r.look_gap_ms).where(*conditions)
        return [
            WakeUpState(
                RunRef(row["run_id"], row["run_uid"]),
                row["attempt"],
                row["owner_workflow_id"],
                row["owner_run_id"],
                ended=RunStatus(row["status"]).terminal,
                # If this time were in the future, no change would cause a poll before that time.
                verified_at=not_ahead(row["verified_at"], now),
                next_look_at=row["next_look_at"],
                look_gap_ms=row["look_gap_ms"],
            )
            for row in self._rows(query.order_by(r.next_look_at, r.run_id).limit(limit))
        ]
