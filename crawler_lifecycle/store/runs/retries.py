"""Retries: the rows of further tries, which the retry policy orders after tasks end
(``domain/retries.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, func, select

from crawler_lifecycle.domain.audits.audit import ClusterTask
from crawler_lifecycle.domain.bounds import NOTE_MAX
from crawler_lifecycle.domain.resources import parse_memory
from crawler_lifecycle.domain.retries import EndedTry, NextTry
from crawler_lifecycle.domain.task import TaskStatus
from crawler_lifecycle.domain.waiting import RETRY, retry_wait
from crawler_lifecycle.ports.polls import TaskChanged
from crawler_lifecycle.ports.runs import Fence, Resting, RetriedTasks
from crawler_lifecycle.store.base.bulk import CHUNK, insert_mappings, put_row, rows_in
from crawler_lifecycle.store.base.rows import Row

from .live_counters import COUNTERS
from .moves import update_tasks
from .tables import crawler_memory, status_transition, task_history
from .unit import BY_RUN, RunPart, Unit, current_tasks

#: A function that returns the next try after a task has ended, or the reason why there is no
#: further try. Its second argument is the number of tries so far.
Decide = Callable[[EndedTry, int], NextTry | str]

#: The maximum number of ended tasks that one transaction decides about.
PAGE = CHUNK

_ENDED = [
    *(
        task_history.c[name]
        for name in (
            "task_id",
            "task_index",
            "attempt",
            "outcome",
            "ended_by",
            "cause",
            "exit_code",
        )
    ),
    *(task_history.c[name] for name in ("args", "retry", "memory", "node", *COUNTERS)),
]
_NOT_SUCCEEDED = (TaskStatus.FAILED.value, TaskStatus.LOST.value)


class RetryStore(RunPart):
    """The records of further tries."""

    def retry_ended(
        self,
        fence: Fence,
        decide: Decide,
        most: int,
        *,
        remember: bool = False,
        now: datetime | None = None,
    ) -> RetriedTasks:
        """Decide for each of the next ``PAGE`` tasks that ended without success whether it is
        retried, and insert a QUEUED row for each further try. The decision about a task is made
        only once. The caller repeats the call while tasks are ``left``.

        ``most`` is the number of tries that the policy allows for a task. If ``remember`` is true,
        the memory limit of a try that follows ``oom`` is stored for later runs of the crawler.
        After a stop or the end of the run, no decisions are made. ``now`` is the time at which
        waits begin, and must come from the same clock as the time passed to ``offer_tasks``. Raises
        ``Fenced``.
        """
        with self._unit(fence) as unit:
            left, now = 0, now or unit.now
            if unit.stop is None and not unit.status.terminal and (ended := _undecided(unit)):
                _decide(unit, now, ended, decide, _used(unit), most, remember=remember)
                left = int(unit.conn.execute(_undecided_of(unit, func.count())).scalar_one())
            counts = unit.counts()
            resting = count_resting(unit.conn, unit.run_id, now)
            if resting.tasks:
                unit.update_run(waiting_for=first_wait(unit, now))
            ended_so = sum(counts.by_status.get(status, 0) for status in _NOT_SUCCEEDED) - left
            return RetriedTasks(counts, ended_so, resting, left)

    def take_up(self, fence: Fence, seen: Sequence[ClusterTask]) -> None:
        """Insert missing rows for retries that execute on the cluster. Rows are missing if the
        database was restored from a copy that is older than the decision to retry. A second call
        changes nothing. Raises ``Fenced``.
        """
        last = {task.index: task for task in sorted(seen, key=lambda task: task.attempt)}
        t = task_history.c
        ended = (*_NOT_SUCCEEDED, TaskStatus.CANCELLED.value)
        with self._unit(fence) as unit:
            query = current_tasks(unit.run_id, *_ENDED, t.cluster, t.cluster_place).where(
                t.status.in_(ended)
            )
            rows = [] if unit.status.terminal else rows_in(unit.conn, query, t.task_index, last)
            there = [
                (row, last[row["task_index"]])
                for row in rows
                if row["attempt"] < last[row["task_index"]].attempt
            ]
            same = ("task_index", "args", "memory", "cluster", "cluster_place", *COUNTERS)
            new = [
                {name: row[name] for name in same}
                | {
                    "attempt": task.attempt,
                    "retry": row["retry"] + task.attempt - row["attempt"],
                    "cluster_uid": task.uid,
                }
                for row, task in there
            ]
            told = [
                {"taken_up": True, "uid": task.uid, "after": row["outcome"]} for row, task in there
            ]
            if new:
                _supersede(
                    unit, [row for row, _ in there], new, TaskStatus.PENDING, told, ever_seen=True
                )

    def resting(self, run_id: int, now: datetime | None = None) -> Resting:
        """Return the QUEUED tasks of the run whose start time has not been reached."""
        with self._db.reading() as conn:
            return count_resting(conn, run_id, now or self._clock())

    def memory_of(self, project: str, crawler: str) -> str | None:
        """Return the memory that an earlier run of the crawler needed; ``None`` if none is
        stored.
        """
        m = crawler_memory.c
        rows = self._rows(select(m.memory).where(m.project == project, m.crawler == crawler))
        return str(rows[0]["memory"]) if rows else None


def _undecided_of(unit: Unit, *columns: Any) -> Select[Any]:
    t = task_history.c
    return current_tasks(unit.run_id, *columns).where(
        t.status.in_(_NOT_SUCCEEDED), t.retry_note.is_(None)
    )


def _undecided(unit: Unit) -> Sequence[Row]:
    t = task_history.c
    return (
        unit.conn.execute(_undecided_of(unit, *_ENDED).order_by(t.task_index).limit(PAGE))
        .mappings()
        .all()
    )


def _used(unit: Unit) -> int:
    """Return how many tries in this attempt of the run the retry policy has ordered."""
    t = task_history.c
    mine = (t.run_id == unit.run_id, t.run_attempt == unit.attempt, t.retry > 0)
    query = select(func.count()).select_from(task_history).where(*mine).with_hint(*BY_RUN)
    return int(unit.conn.execute(query).scalar_one())


def _decide(
    unit: Unit,
    now: datetime,
    ended: Sequence[Row],
    decide: Decide,
    used: int,
    most: int,
    *,
    remember: bool,
) -> None:
    """Record the decisions about these ended tasks. ``used`` is the number of earlier tries."""
    again: list[tuple[Row, NextTry]] = []
    notes = []
    for row in ended:
        key = f"{unit.ref}/{row['task_index']}/{row['attempt']}"
        of = EndedTry(
            row["outcome"], row["exit_code"], row["retry"], key, row["ended_by"], row["memory"]
        )
        decision = decide(of, used + len(again))
        if isinstance(decision, NextTry):
            again.append((row, decision))
        else:
            notes.append({"task_id": row["task_id"], "retry_note": decision[:NOTE_MAX]})
    update_tasks(unit, notes, replace=("retry_note",))
    if again:
        _try_again(unit, now, again, most)
        if remember and (grown := [new.memory for _, new in again if new.memory is not None]):
            _remember(unit, grown)


def _remember(unit: Unit, grown: Sequence[str]) -> None:
    """Store the maximum memory of these tries and the earlier tries of this run."""
    m = crawler_memory.c
    whose = {"project": unit.run["project"], "crawler": unit.run["crawler"]}
    mine = (m.project == whose["project"], m.crawler == whose["crawler"], m.run_id == unit.run_id)
    before = unit.conn.execute(select(m.memory).where(*mine)).scalars()
    most_of_all = max([*before, *grown], key=lambda text: parse_memory(text) or 0)
    put_row(unit.conn, crawler_memory, whose, {"memory": most_of_all, "run_id": unit.run_id})


def _try_again(unit: Unit, now: datetime, again: Sequence[tuple[Row, NextTry]], most: int) -> None:
    new = list[dict[str, object]]()
    told = list[dict[str, object]]()
    for row, retry in again:
        not_before = now + timedelta(seconds=retry.wait_s)
        rest = {
            "not_before": not_before,
            "memory": retry.memory or row["memory"],
            "avoid_node": row["node"],
        }
        reason = f"{RETRY}({row['retry'] + 1} of {most}): {row['cause'] or row['outcome']}"[:1000]
        rest |= {name: row[name] + 1 for name in ("attempt", "retry")} | {
            name: row[name] for name in COUNTERS
        }
        new.append(
            {"task_index": row["task_index"], "args": dict(row["args"]), **rest, "reason": reason}
        )
        tell = {
            "retry": row["retry"] + 1,
            "of": most,
            "after": row["outcome"],
            "not_before": not_before.isoformat(),
        }
        told.append(tell | ({"memory": retry.memory} if retry.memory else {}))
    _supersede(unit, [row for row, _ in again], new, TaskStatus.QUEUED, told, ever_seen=False)


def _supersede(
    unit: Unit,
    rows: Sequence[Row],
    new: Sequence[Mapping[str, Any]],
    status: TaskStatus,
    told: Sequence[Mapping[str, object]],
    *,
    ever_seen: bool,
) -> None:
    """Insert a ``new`` row with this status for each of these rows of ended tasks.

    The transitions of the new rows contain ``told``.
    """
    t = task_history.c
    source = "retry"
    same: dict[str, Any] = {
        "run_id": unit.run_id,
        "run_attempt": unit.attempt,
        "status": status.value,
    }
    insert_mappings(
        unit.conn, task_history, new, **same, status_since=unit.now, ever_seen=ever_seen
    )
    by_index = {row["task_index"]: (row, *more) for row, *more in zip(rows, new, told, strict=True)}
    query = current_tasks(unit.run_id, t.task_id, t.task_index)
    inserted = unit.conn.execute(query.where(t.status == status, t.task_index.in_(by_index))).all()
    pairs = []
    changes = []
    for task_id, index in inserted:
        row, values, evidence = by_index[index]
        pairs.append({"task_id": row["task_id"], "superseded_by": task_id})
        changes.append({"task_id": task_id, "attempt": values["attempt"], "evidence": evidence})
    update_tasks(unit, pairs, replace=("superseded_by",))
    same = {
        "run_id": unit.run_id,
        "to_status": status.value,
        "committed_at": unit.now,
        "source": source,
    }
    insert_mappings(unit.conn, status_transition, changes, **same)
    unit.told_changes += [TaskChanged(status, source, None)] * len(changes)
    unit.changed = True


def _waits(run_id: int, now: datetime, *columns: ColumnElement[Any]) -> Select[Any]:
    """Return a query for QUEUED tasks whose start time has not been reached."""
    t = task_history.c
    return current_tasks(run_id, *columns).where(t.status == TaskStatus.QUEUED, t.not_before > now)


def count_resting(conn: Connection, run_id: int, now: datetime) -> Resting:
    """Return the number of QUEUED tasks whose start time has not been reached, and the seconds
    until the first of these times.
    """
    tasks, first = conn.execute(
        _waits(run_id, now, func.count(), func.min(task_history.c.not_before))
    ).one()
    return Resting(tasks, None if first is None else (first - now).total_seconds())


def first_wait(unit: Unit, now: datetime) -> str | None:
    """Return the reason for the wait of the task that is retried next; ``None`` if no task is
    waiting for its start time.
    """
    t = task_history.c
    query = _waits(unit.run_id, now, t.not_before, t.reason).order_by(t.not_before).limit(1)
    row = unit.conn.execute(query).one_or_none()
    return None if row is None else retry_wait(row.not_before, row.reason or "")
