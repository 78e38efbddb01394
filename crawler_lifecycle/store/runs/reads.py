"""Queries of runs, of their timelines, and of runs that wait for a start, a signal or a look."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from operator import attrgetter

from sqlalchemy import func, or_, select

from crawler_lifecycle.domain.bounds import ID_MAX
from crawler_lifecycle.domain.run import RunRequest, RunStatus
from crawler_lifecycle.domain.wake_ups import WakeUpState
from crawler_lifecycle.ports.runs import CRAWLERS_MAX, ROWS_MAX, RecentRun, Resumption, RunRow, TransitionRow
from crawler_lifecycle.store.base.rows import Row, made
from crawler_lifecycle.store.base.unit import StorePart, stop_of

from .lists import ATTENTION, RunFilters, newest_of_each, newest_runs
from .rows import load_request, run_row, whole_run
from .tables import LIVE_RUNS, cancellation_log, history_property, run_history, status_transition, task_history
from .unit import RunPart, current_tasks, missing

#: Columns that change while a run lives, and its keys.
_FIXED = ("request", "request_id", "crawler", "trigger", "multi", "flow_id", "parent", "created_at")
_SHOWN = {*RunRow.__dataclass_fields__, *(c.name for c in run_history.c if c.name.startswith("stop_"))}
_MOVING = [column for column in run_history.c if column.name in _SHOWN and column.name not in _FIXED]
#: Columns of both under the same name: most rows are compared by them without building an object.
_PLAIN = [column.name for column in _MOVING if column.name in RunRow.__dataclass_fields__]
_plain = attrgetter(*_PLAIN)
#: The most different notes about resumption that are shown for one run.
_NOTES_MAX = 10


class RunReader(RunPart):
    """Runs, and their other records. All methods raise only ``StoreUnavailable`` and ``RowUnreadable``."""

    def get_run(self, run_id: int) -> RunRow | None:
        if not 0 < run_id <= ID_MAX:  # no row has this number, and SQLite's driver does not accept larger ones
            return None
        rows = self._rows(select(run_history).where(run_history.c.run_id == run_id))
        return whole_run(rows[0]) if rows else None

    def find_run(self, request_id: str) -> RunRow | None:
        rows = self._rows(select(run_history).where(run_history.c.request_id == request_id))
        return whole_run(rows[0]) if rows else None

    def request_of(self, run_id: int) -> RunRequest:
        """The stored request of a run, without its task list, for its own workflow. Raises ``RowMissing``."""
        r = run_history.c
        rows = self._rows(select(r.run_id, r.request).where(r.run_id == run_id))
        if not rows:
            raise missing(run_id)
        return load_request(rows[0])

    def list_runs(
        self,
        *,
        before_run_id: int | None = None,
        limit: int = 50,
        status: Sequence[str] = (),
        stage: str | None = None,
        crawler: str | None = None,
        trigger: str | None = None,
        outcome: str | None = None,
        flow_id: str | None = None,
        parent: str | None = None,
        tags: Sequence[str] = (),
        created_from: datetime | None = None,
        created_until: datetime | None = None,
        attention: bool = False,
    ) -> list[RunRow]:
        """Runs, newest first, that fit every given filter and have all of the tags. ``created_from`` is included,
        ``created_until`` is not. ``attention``: only those of the last 30 days, or from ``created_from`` on, that
        failed and that no person ended, or that have the outcome ``coverage``, and after which no run of the same work
        (crawler, arguments, settings, tasks) or of the same schedule completed."""
        wanted = {"stage": stage, "crawler": crawler, "trigger": trigger, "outcome": outcome, "flow_id": flow_id}
        wanted["parent"] = parent
        if attention and created_from is None:
            created_from = self._clock() - ATTENTION
        filters = RunFilters(
            equal={name: str(value) for name, value in wanted.items() if value is not None},
            statuses=[str(one) for one in status],
            tags=list(tags),
            before_run_id=before_run_id,
            created_from=created_from,
            created_until=created_until,
            attention=attention,
        )
        with self._db.reading() as conn:
            return [run_row(row) for row in newest_runs(conn, filters, limit)]

    def count_runs(self, status: Sequence[str], most: int) -> int:
        """The number of runs that have one of these statuses; counting ends at ``most``."""
        r, found = run_history.c, 0
        for one in dict.fromkeys(map(str, status)):
            found += len(self._rows(select(r.run_id).where(r.status == one).limit(most - found)))
        return found

    def changed_runs(self, known: Collection[RunRow]) -> list[RunRow]:
        """Rows among these, at most ``ROWS_MAX``, that have changed since they were read, as they are now.

        One statement, which reads nothing of a row that cannot change: for lists that stay on a screen. A run that is
        no longer there is left out; a manual edit of a request is not seen.
        """
        before = {row.run_id: row for row in known}
        if len(before) > ROWS_MAX:
            raise ValueError(f"{len(before)} rows are compared at once; give at most {ROWS_MAX}")
        if not before:
            return []
        # With few runs a server may otherwise read all of them.
        query = select(*_MOVING).where(run_history.c.run_id.in_(sorted(before)))
        rows = self._rows(query.with_hint(run_history, "FORCE INDEX (PRIMARY)", "mysql"))
        return [now for row in rows if (now := _changed(before[row["run_id"]], row)) is not None]

    def recent_runs(self, crawlers: Collection[str], each: int) -> list[RecentRun]:
        """The newest ``each`` runs of each of these crawlers, at most ``CRAWLERS_MAX``, newest first. One statement."""
        wanted = sorted(set(crawlers))
        if len(wanted) > CRAWLERS_MAX:
            raise ValueError(f"{len(wanted)} crawlers are asked for at once; give at most {CRAWLERS_MAX}")
        with self._db.reading() as conn:
            return [made(RecentRun, row) for row in newest_of_each(conn, wanted, each)]

    def resumption(self, run_id: int) -> list[Resumption]:
        """Notes of the run's tasks about going on with saved state: at most ten, the commonest first."""
        t = task_history.c
        count = func.count().label("tasks")
        said = current_tasks(run_id, t.resumed, t.resume_note, count).where(t.resume_note.is_not(None))
        rows = self._rows(said.group_by(t.resumed, t.resume_note).order_by(count.desc(), t.resume_note))
        return [Resumption(row["resumed"], row["resume_note"], row["tasks"]) for row in rows[:_NOTES_MAX]]

    def transitions(self, run_id: int, after_seq: int = 0, limit: int = 500) -> list[TransitionRow]:
        s = status_transition.c
        query = select(status_transition).where(s.run_id == run_id, s.seq > after_seq).order_by(s.seq).limit(limit)
        return [made(TransitionRow, row) for row in self._rows(query)]

    def cancellations(self, run_id: int) -> list[Mapping[str, object]]:
        return self._of_run(cancellation_log, run_id)

    def properties(self, run_id: int) -> list[Mapping[str, object]]:
        return self._of_run(history_property, run_id)


def _changed(before: RunRow, row: Row) -> RunRow | None:
    """The present row; ``None`` when it is unchanged, or another run has the number now."""
    same = _plain(before) == tuple(map(row.__getitem__, _PLAIN))
    if row["run_uid"] != before.run_uid or (same and before.stop == stop_of(row)):
        return None
    now = run_row({**{name: getattr(before, name) for name in _FIXED}, **row})
    return None if now == before else now


class SweepStore(StorePart):
    """Runs that were accepted, or got a stop, and whose workflow does not know it."""

    def unowned_runs(self, older_than: datetime, limit: int = 100) -> list[RunRow]:
        """Runs that were reserved or resumed but not claimed: they were accepted, so they must be started."""
        r = run_history.c
        query = (
            select(run_history)
            .where(
                r.owner_run_id.is_(None),
                r.status == RunStatus.INITIALIZING,
                r.created_at < older_than,
                or_(r.attempt_at.is_(None), r.attempt_at < older_than),
            )
            .order_by(r.created_at)
            .limit(limit)
        )
        return [run_row(row) for row in self._rows(query)]

    def unheard_stops(self, older_than: datetime, limit: int = 100) -> list[RunRow]:
        """Runs whose recorded stop no workflow has acted on yet."""
        r = run_history.c
        query = (
            select(run_history)
            .where(r.stop_acted_at.is_(None), r.status.in_(LIVE_RUNS), r.stop_requested_at < older_than)
            .order_by(r.stop_requested_at)
            .limit(limit)
        )
        return [run_row(row) for row in self._rows(query)]


class WakeUpStore(StorePart):
    """Runs whose workflow is to be woken."""

    def wake_targets(self, run_ids: Sequence[int]) -> list[WakeUpState]:
        """Workflows to wake for these runs, at most 500, and the time of the last look. Unknown runs are left out."""
        r = run_history.c
        if not run_ids:
            return []
        query = select(r.run_id, r.owner_workflow_id, r.status, r.verified_at)
        rows = self._rows(query.where(r.run_id.in_(sorted(set(run_ids)))).order_by(r.run_id))
        return [
            WakeUpState(
                row["run_id"],
                row["owner_workflow_id"],
                ended=RunStatus(row["status"]).terminal,
                verified_at=row["verified_at"],
            )
            for row in rows
        ]
