"""Adoption: the insertion of runs that a restored database lacks, with their numbers and uids."""

from __future__ import annotations

from collections.abc import Sequence, Set
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, insert, select

from crawler_lifecycle.domain.audits.adoption import FORGOTTEN
from crawler_lifecycle.domain.due_ids import schedule_of
from crawler_lifecycle.domain.ended_by import EndedBy
from crawler_lifecycle.domain.errors import NotInThisState
from crawler_lifecycle.domain.names import REQUEST_ID_MAX, TASKS_PER_RUN_MAX
from crawler_lifecycle.domain.run import RunStatus, Stage
from crawler_lifecycle.domain.task import TaskStatus
from crawler_lifecycle.ports.runs import LostRun, RunRow, TaskRecord
from crawler_lifecycle.store.base.bulk import insert_mappings, rows_in
from crawler_lifecycle.store.base.unit import stop_values

from .additions import insert_tags
from .caps import join_caps
from .initiation import new_run
from .rows import request_hash, run_row, work_hash
from .search_documents import write_words
from .tables import run_history, status_transition, task_history
from .unit import RunPart, Unit, read_run

#: The fix for runs that cannot be adopted.
_END_IT = "end this one: crawlctl audit --end-unknown"


class AdoptionStore(RunPart):
    """The insertion of runs that are still executing but no longer have rows in the database."""

    def adopt_run(self, lost: LostRun) -> RunRow:
        """Insert a lost run again, with its number and uid, and with its tasks.

        The next poll finds their states.

        A task without any trace becomes LOST. A second call inserts missing tasks and returns the
        existing row. Raises ``NotInThisState`` if the number of the run or of one of its tasks now
        belongs to another run or task. Raises the same error if the tasks cannot be added to the
        existing row, because the run has ended or a task has a later attempt.
        """
        r = run_history.c
        number = lost.run.run_id
        with self._db.writing() as conn:
            there = conn.execute(select(r.run_uid).where(r.run_id == number)).scalar_one_or_none()
            if there is not None:
                if not lost.run.owns(there):
                    raise NotInThisState(
                        f"the number {number} belongs to another run now; {_END_IT}"
                    )
                return self._complete(conn, lost)
            _check_free(conn, lost.tasks)
            now = self._clock()
            conn.execute(insert(run_history).values(**_row(conn, lost, now)))
            unit = Unit(conn, read_run(conn, number, lock=True), now, told=self._told)
            insert_tags(unit, lost.request.tags)
            self._insert_tasks(unit, lost, lost.tasks, set())
            write_words(conn, unit.run)
            evidence = {"adopted": True, "tasks": len(lost.tasks), "owner": lost.owner.workflow_id}
            unit.note_transition(None, RunStatus(unit.run["status"]), "sweep", evidence)
            unit.announce()
        self._report(unit)
        return run_row(unit.run)

    def _complete(self, conn: Connection, lost: LostRun) -> RunRow:
        """Insert the missing tasks of an existing run, and return its row."""
        t = task_history.c
        run = read_run(conn, lost.run.run_id, lock=True)
        there = {
            tuple(r)
            for r in conn.execute(
                select(t.task_index, t.attempt).where(t.run_id == lost.run.run_id)
            )
        }
        known = {index for index, _ in there}
        more = [
            task
            for task in lost.tasks
            if task.index not in known and run_attempt_of(task) <= run["attempt"]
        ]
        if not more:
            # After the copy was made, a resume or a retry may have begun a later attempt.
            for task in lost.tasks:
                if (task.index, task.attempt) not in there:
                    what = f"attempt {task.attempt} of task {task.index} of run {run['run_id']}"
                    raise NotInThisState(f"the restored database lacks {what}; {_END_IT}")
            return run_row(run)
        unit = Unit(conn, run, self._clock(), told=self._told)
        if unit.status.terminal:
            fix = (
                f"resume it first (crawlctl resume {unit.run_id}), or end these tasks: crawlctl "
                "audit --end-unknown"
            )
            raise NotInThisState(
                f"run {unit.run_id} of these tasks is {unit.status} in the restored database; {fix}"
            )
        _check_free(conn, more)
        self._insert_tasks(unit, lost, more, known)
        unit.update_run(multi=lost.multi)
        write_words(conn, unit.run)
        unit.changed = True
        unit.announce()
        return run_row(unit.run)

    @staticmethod
    def _insert_tasks(
        unit: Unit, lost: LostRun, tasks: Sequence[TaskRecord], known: Set[int]
    ) -> None:
        """Insert these tasks. All other tasks in the run's records that are not ``known`` are
        inserted as LOST.
        """
        known = known | {task.index for task in tasks}
        counted = (
            lost.total,
            *(_tasks_counted(task) for task in tasks),
            *(index + 1 for index in known),
        )
        gone = [index for index in range(max(counted) if lost.multi else 1) if index not in known]
        insert_mappings(unit.conn, task_history, [_task(lost, task, unit.now) for task in tasks])
        insert_mappings(
            unit.conn, task_history, [_forgotten(lost, index, unit.now) for index in gone]
        )
        join_caps(unit, [task.args for task in tasks])
        t = task_history.c
        added = select(t.run_id, t.task_id, t.attempt, t.status.label("to_status")).where(
            t.run_id == unit.run_id
        )
        told = {"committed_at": unit.now, "source": "sweep", "evidence": {"adopted": True}}
        changes = [{**row, **told} for row in rows_in(unit.conn, added, t.task_index, gone)]
        insert_mappings(unit.conn, status_transition, changes)


def _tasks_counted(task: TaskRecord) -> int:
    """Return the number of tasks that the run had when this task was deployed, according to its
    record; 0 if that is unreadable.
    """
    said = task.record.get("tasks")
    return min(said, TASKS_PER_RUN_MAX) if type(said) is int and said > 0 else 0


def _check_free(conn: Connection, tasks: Sequence[TaskRecord]) -> None:
    t = task_history.c
    taken = rows_in(
        conn, select(t.task_id, t.run_id).limit(1), t.task_id, [task.task_id for task in tasks]
    )
    if taken:
        raise NotInThisState(
            (
                f"the number {taken[0]['task_id']} of one of its tasks belongs to a task of run "
                f"{taken[0]['run_id']} now; "
            )
            + _END_IT
        )


def _row(conn: Connection, lost: LostRun, now: datetime) -> dict[str, Any]:
    request_id = lost.request_id
    r = run_history.c
    if (
        conn.execute(select(r.run_id).where(r.request_id == request_id)).scalar_one_or_none()
        is not None
    ):
        # If the request was repeated after the restore, another run has this request id.
        request_id = f"{request_id[: REQUEST_ID_MAX - 9]}/{lost.run.uid[:8]}"
    stop = lost.stop
    status = RunStatus.PROCESSING if stop is None else RunStatus.STOPPING
    return new_run(lost.request, request_id, now) | {
        "run_id": lost.run.run_id,
        "run_uid": lost.run.uid,
        "request_hash": request_hash(lost.request, None),
        "work_hash": work_hash(lost.request, None),
        "schedule": schedule_of(lost.request_id),
        "multi": lost.multi,
        "status": status.value,
        "stage": Stage.RECONCILIATION.value,
        "attempt": lost.attempt,
        "requeued_attempt": lost.attempt,
        "claim_resumed": lost.attempt > 1,
        "owner_workflow_id": lost.owner.workflow_id,
        "owner_run_id": lost.owner.first_run_id,
        **({} if stop is None else stop_values(stop)),
    }


def _task(lost: LostRun, one: TaskRecord, now: datetime) -> dict[str, Any]:
    """Return the row of a task that is known to have been deployed.

    The next poll finds its state or its end.
    """
    return {
        "task_id": one.task_id,
        "run_id": lost.run.run_id,
        "attempt": one.attempt,
        "run_attempt": lost.attempt,
        "task_index": one.index,
        "status": TaskStatus.PENDING.value,
        "status_since": now,
        "args": dict(one.args) if lost.multi else {},
        "cluster": lost.cluster,
        "cluster_name": one.name,
        "cluster_uid": one.uid,
        "cluster_place": one.place,
        "ever_seen": True,
        "deployed_at": now,
    }


def run_attempt_of(task: TaskRecord) -> int:
    """Return the attempt of the run for which the task was deployed, according to its record."""
    said = task.record.get("attempt")
    return said if type(said) is int and 0 < said <= task.attempt else task.attempt


def _forgotten(lost: LostRun, index: int, now: datetime) -> dict[str, Any]:
    return {
        "run_id": lost.run.run_id,
        "attempt": lost.attempt,
        "run_attempt": lost.attempt,
        "task_index": index,
        "status": TaskStatus.LOST.value,
        "status_since": now,
        "outcome": "lost",
        "ended_by": EndedBy.CLUSTER.value,
        "cause": FORGOTTEN,
        "args": {},
        "ever_seen": False,
        "ended_at": now,
    }
