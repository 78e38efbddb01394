"""Retention of files: the state of a run's files, and the record of their removal.

Exports, resumes and removals of a run never overlap, because each of them locks the row of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from sqlalchemy import Connection, and_, func, insert, select, update

from crawler_lifecycle.domain.names import PROPERTY_FILES_REMOVED
from crawler_lifecycle.domain.retention import RetainedRun, RetentionState, stand_of
from crawler_lifecycle.store.base.bulk import rows_in
from crawler_lifecycle.store.base.rows import made
from crawler_lifecycle.store.runs.tables import (
    export_record,
    history_property,
    run_history,
    task_history,
)
from crawler_lifecycle.store.runs.unit import BY_RUN, RunPart, Unit

_BEGUN = "begun"
_DONE = "done"


class FileRetentionStore(RunPart):
    """The records about the removal of runs' files."""

    def kept_runs(self, run_ids: Sequence[int]) -> list[RetainedRun]:
        """Return the existing runs ordered by id, with all facts for the decision about their
        files.
        """
        with self._db.reading() as conn:
            return _kept(conn, run_ids)

    def give_up_files(
        self,
        run_id: int,
        before: datetime,
        put_aside: Callable[[], None],
        *,
        incomplete: bool = False,
    ) -> tuple[RetentionState, int, int]:
        """Release the files of a run for removal if its state is ``RetentionState.OLD``.

        Released files are no longer read.

        ``put_aside`` is called while no resume and no export of the run can begin. If it raises an
        error, nothing changes. Returns the state of the run, its current attempt, and the highest
        attempt of its tasks. The files of all attempts up to this highest attempt are released.
        Raises ``RunNotFound``.
        """
        with self._unit(run_id, of_deleted=True) as unit:
            (run,) = _kept(unit.conn, [run_id])
            stand, _ = stand_of(run, before, incomplete=incomplete)
            if stand is not RetentionState.OLD:
                return stand, run.attempt, 0
            begin_removal(unit)
            # This precedes the commit, so that a resume waits for the locked row and then finds no
            # saved state.
            put_aside()
            return stand, run.attempt, _last_attempt(unit.conn, run_id)

    def note_files_removed(self, run_id: int, attempt: int) -> None:
        """Record that the released files of the run's attempts up to ``attempt`` were removed."""
        p = history_property.c
        with self._unit(run_id, of_deleted=True) as unit:
            key = (p.run_id == run_id, p.attempt == attempt, p.name == PROPERTY_FILES_REMOVED)
            unit.conn.execute(
                update(history_property).where(*key).values(value=f"{_DONE} {unit.now.isoformat()}")
            )


def _last_attempt(conn: Connection, run_id: int) -> int:
    """Return the highest attempt of the run's tasks; 0 if it has no tasks."""
    t = task_history.c
    highest = select(func.max(t.attempt)).where(t.run_id == run_id).with_hint(*BY_RUN)
    return int(conn.execute(highest).scalar_one() or 0)


def begin_removal(unit: Unit) -> None:
    """Release the files of the run's current attempt for removal, unless they are already
    released.
    """
    (run,) = _kept(unit.conn, [unit.run_id])
    if not run.given_up:
        unit.conn.execute(
            insert(history_property).values(
                run_id=run.run_id,
                attempt=run.attempt,
                name=PROPERTY_FILES_REMOVED,
                value=f"{_BEGUN} {unit.now.isoformat()}",
            )
        )


def _kept(conn: Connection, run_ids: Sequence[int]) -> list[RetainedRun]:
    r = run_history.c
    x = export_record.c
    p = history_property.c
    query = (
        select(
            run_history,
            x.status.label("export"),
            x.error.label("export_note"),
            x.at.label("exported_at"),
            p.value,
        )
        .outerjoin(export_record, and_(x.run_id == r.run_id, x.attempt == r.attempt))
        .outerjoin(
            history_property,
            and_(p.run_id == r.run_id, p.attempt == r.attempt, p.name == PROPERTY_FILES_REMOVED),
        )
        .order_by(r.run_id)
    )
    return [
        made(
            RetainedRun,
            row,
            given_up=row["value"] is not None,
            removed=(row["value"] or "").startswith(_DONE),
        )
        for row in rows_in(conn, query, r.run_id, run_ids)
    ]
