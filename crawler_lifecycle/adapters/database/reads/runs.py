"""Queries of runs, their timelines and deliveries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlalchemy import func, select

from crawler_lifecycle.adapters.database.schema.rows import (
    listed_run,
    load_request,
    transition_row,
    whole_run,
)
from crawler_lifecycle.adapters.database.schema.tables import (
    cancellation_log,
    history_property,
    run_history,
    status_transition,
    task_history,
)
from crawler_lifecycle.adapters.database.writes.unit_of_work import StorePart, current_tasks, missing
from crawler_lifecycle.domain.bounds import ID_MAX
from crawler_lifecycle.domain.run import RunRequest
from crawler_lifecycle.ports import Resumption, RunRow, TransitionRow

from .run_lists import RunFilters, newest_runs

#: Different notes on resumption that are told of one run.
_NOTES_MAX = 10


class SqlRuns(StorePart):
    """``RunReader``. Each is one transaction; all raise only ``StoreUnavailable``, and ``RowUnreadable``.

    Lists of runs, tasks and records go on over a row that another hand spoilt, and mark it.
    """

    def get_run(self, run_id: int) -> RunRow | None:
        if not 0 < run_id <= ID_MAX:  # no row has it, and SQLite's driver does not even take a larger one
            return None
        rows = self._rows(select(run_history).where(run_history.c.run_id == run_id))
        return whole_run(rows[0]) if rows else None

    def find_run(self, request_id: str) -> RunRow | None:
        rows = self._rows(select(run_history).where(run_history.c.request_id == request_id))
        return whole_run(rows[0]) if rows else None

    def request_of(self, run_id: int) -> RunRequest:
        """The stored request of a run, for its own workflow. Raises ``RowMissing``."""
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
    ) -> list[RunRow]:
        """The newest runs first; ``before_run_id`` is the last one of the page before."""
        wanted = {"stage": stage, "crawler": crawler, "trigger": trigger, "outcome": outcome, "flow_id": flow_id}
        wanted["parent"] = parent
        filters = RunFilters(
            equal={name: str(value) for name, value in wanted.items() if value is not None},
            statuses=[str(one) for one in status],
            tags=list(tags),
            before_run_id=before_run_id,
            created_from=created_from,
            created_until=created_until,
        )
        with self._db.reading() as conn:
            return [listed_run(row) for row in newest_runs(conn, filters, limit)]

    def resumption(self, run_id: int) -> list[Resumption]:
        """What the run's tasks say about going on with saved state, the commonest first."""
        t = task_history.c
        count = func.count().label("tasks")
        said = current_tasks(run_id, t.resumed, t.resume_note, count).where(t.resume_note.is_not(None))
        rows = self._rows(said.group_by(t.resumed, t.resume_note).order_by(count.desc(), t.resume_note))
        return [Resumption(row["resumed"], row["resume_note"], row["tasks"]) for row in rows[:_NOTES_MAX]]

    def transitions(self, run_id: int, after_seq: int = 0, limit: int = 500) -> list[TransitionRow]:
        s = status_transition.c
        query = select(status_transition).where(s.run_id == run_id, s.seq > after_seq).order_by(s.seq).limit(limit)
        return [transition_row(row) for row in self._rows(query)]

    def cancellations(self, run_id: int) -> list[Mapping[str, object]]:
        return self._of_run(cancellation_log, run_id)

    def properties(self, run_id: int) -> list[Mapping[str, object]]:
        return self._of_run(history_property, run_id)
