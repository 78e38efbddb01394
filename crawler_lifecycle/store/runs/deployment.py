"""Deployment: offers of tasks to the scheduler service, its answers, and the starts of runs."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, and_, case, func, insert, literal, null, or_, select, update

from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.bounds import OFFER_BYTES_MAX
from crawler_lifecycle.domain.ended_by import EndedBy
from crawler_lifecycle.domain.pools import Pools
from crawler_lifecycle.domain.run import EndedTasks, RunStatus, Stage, StopIntent
from crawler_lifecycle.domain.task import ACTIVE, TaskStatus
from crawler_lifecycle.domain.waiting import NO_ROOM
from crawler_lifecycle.ports.polls import Start
from crawler_lifecycle.ports.runs import DeployedTask, Fence, QueuedTask, TaskCounts
from crawler_lifecycle.store.base.bulk import change_in, rows_in
from crawler_lifecycle.store.base.pools import with_stored
from crawler_lifecycle.store.base.rows import Row, made

from .additions import first_attempt
from .caps import allowed, leave_caps, leave_lines, waits_for_cap
from .completion import ended_groups
from .live_counters import COUNTERS
from .moves import Move, move_tasks, update_tasks
from .pools import leave_line, note_refused, priority_of, take_slots, wait_of
from .retries import count_resting, first_wait
from .tables import task_history
from .unit import RunPart, Unit, begin_run, current_tasks, enter_stage

#: The columns of an offered task that are read.
_OFFERED = [
    *(
        task_history.c[name]
        for name in ("task_id", "task_index", "args", "offered_until", "attempt", "run_attempt")
    ),
    *(task_history.c[name] for name in ("retry", "memory", "avoid_node")),
]
#: The columns that a task of a resumed run keeps. The task's counters continue from the earlier
#: try.
_KEPT = ("run_id", "task_index", "args", "memory", *COUNTERS)
_NOT_SUCCEEDED = (TaskStatus.FAILED.value, TaskStatus.CANCELLED.value, TaskStatus.LOST.value)


class DeploymentStore(RunPart):
    """The records of offers to the scheduler service, of its answers, and of the starts of runs."""

    def offer_tasks(
        self,
        fence: Fence,
        limit: int,
        max_parallel: int | None,
        until: datetime,
        place: str | None = None,
        next_look_at: datetime | None = None,
        now: datetime | None = None,
    ) -> tuple[list[QueuedTask], StopIntent | None]:
        """Mark the next QUEUED tasks as offered, and return them, the lowest index first, with the
        recorded stop.

        The following deployment call creates nothing after ``until``, even if the clocks of the
        hosts differ. ``place`` is the namespace in which the call creates tasks. The result has at
        least one task, and at most as many as fit into one call (``bounds.OFFER_BYTES_MAX``).
        Together with the active tasks, there are never more than ``max_parallel``. After a stop or
        the end of the run, no tasks are offered.

        The run enters the stage deployment. From then on tasks may be on the cluster, so the first
        poll is planned for ``next_look_at``, unless a poll is already planned.

        If an earlier offer of the task has a later ``until``, that time is kept. ``now`` determines
        which tries may begin (``RetryStore.retry_ended``). Raises ``Fenced``.
        """
        t = task_history.c
        last = case(
            (t.offered_until > until, t.offered_until), else_=literal(until, t.offered_until.type)
        )
        with self._unit(fence) as unit:
            now = now or unit.now
            if unit.stop is not None or unit.status.terminal:
                return [], unit.stop
            enter_stage(unit, Stage.DEPLOYMENT)
            if unit.run["next_look_at"] is None:
                unit.update_run(next_look_at=next_look_at)
            rows = _of_one_call(_offerable(unit, limit, now))
            pools = with_stored(unit.conn, self._pools)
            rows = self._given(unit, pools, rows, max_parallel, now)
            values: dict[str, Any] = {"offered_until": last, "cluster_place": place}
            if pools.counted:
                pool = pools.serving(unit.run["pool"], unit.run["project"])
                values |= {"pool": pool, "priority": priority_of(unit)}
            _set_queued(unit, [row["task_id"] for row in rows], **values)
            return [
                made(QueuedTask, row, index=row["task_index"]) for row in _taken_over(unit, rows)
            ], None

    def _given(
        self,
        unit: Unit,
        pools: Pools,
        rows: Sequence[Row],
        max_parallel: int | None,
        now: datetime,
    ) -> Sequence[Row]:
        """Return as many of the first rows as ``max_parallel``, the window, the caps and the slots
        of the pool allow.

        Active tasks count, and so do tasks that an earlier call may create or have created, because
        they already hold a slot.
        """
        new = [row for row in rows if not _is_offered(unit, row)]
        gives = _gives(unit, pools)
        queued = room = len(new)
        if gives or max_parallel is not None or pools.window is not None:
            counts = unit.counts()
            offered = _count_offered(unit) if new else 0
            room = _room(unit, pools.window, counts, offered, max_parallel)
            queued = counts.queued - offered
        first = new[:room]
        most = allowed(unit, len(first))
        if not first:
            leave_lines(unit)
        elif gives and most:
            wanted = most
            if most == len(first):  # otherwise the run waits for its cap, and not for its pool
                resting = count_resting(unit.conn, unit.run_id, now).tasks
                wanted = max(min(queued - resting, room), most)
            got = take_slots(unit, pools, wanted, most)
            if got < most:
                leave_caps(unit)  # the run waits for its pool
            most = got
        else:
            leave_line(unit)  # the pools may have changed during the wait
        chosen = {row["task_id"] for row in first[:most]}
        return [row for row in rows if _is_offered(unit, row) or row["task_id"] in chosen]

    def queue_of(self, pool: str, project: str) -> str | None:
        """Return the Kueue queue of the pool that serves such runs; ``None`` if the store assigns
        its slots.
        """
        with self._db.reading() as conn:
            pools = with_stored(conn, self._pools)
        return pools.of(pools.serving(pool, project)).queue

    def waits_for_slot(self, run_id: int) -> bool:
        """Return whether the run is waiting for slots of its pool or of a cap."""
        with self._db.reading() as conn:
            return self._waits(conn, run_id)

    def _waits(self, conn: Connection, run_id: int) -> bool:
        in_pool = wait_of(conn, run_id) is not None and with_stored(conn, self._pools).counted
        return in_pool or waits_for_cap(conn, run_id)

    def record_deployed(
        self,
        fence: Fence,
        cluster: str,
        offered: Sequence[QueuedTask],
        answers: Sequence[DeployedTask],
        at: datetime,
        until: datetime | None = None,
    ) -> TaskCounts:
        """Record the answers of the scheduler service. Returns the counts of tasks.

        Created or existing tasks become PENDING. Deferred tasks stay QUEUED with the reason.
        Refused tasks become FAILED. ``offered`` and ``until`` identify the offer that was answered.
        An answer applies only to the offered try: before a late answer, a poll may have recorded
        the end of this try, and the next try may be QUEUED. A deferral does not apply to a task
        that was offered again meanwhile. If an earlier call may still create a deferred task, the
        offer of that call stays valid.
        """
        with self._unit(fence) as unit:
            t = task_history.c
            tries = {task.index: task.attempt for task in offered}
            columns = (t.task_index, t.attempt, t.task_id, t.offered_until)
            queued = unit.conn.execute(
                current_tasks(unit.run_id, *columns).where(
                    t.status == TaskStatus.QUEUED,
                    t.run_attempt == unit.attempt,
                    t.task_index.between(min(tries, default=0), max(tries, default=0)),
                )
            )
            rows = [row for row in queued if row.attempt == tries.get(row.task_index)]
            ids: dict[int, int] = {row.task_index: row.task_id for row in rows}
            mine = [(ids[answer.index], answer) for answer in answers if answer.index in ids]
            taken = [
                _taken(task_id, a, cluster, at)
                for task_id, a in mine
                if a.state in ("created", "existing")
            ]
            values = ("cluster", "cluster_name", "cluster_uid", "deployed_at", "reason")
            move_tasks(unit, taken, "deploy", replace=values)
            if taken:
                starting = unit.status is RunStatus.INITIALIZING
                if not self._waits(unit.conn, unit.run_id):
                    unit.update_run(
                        waiting_for=names.WAITING_FOR_START
                        if starting
                        else first_wait(unit, unit.now)
                    )
            refused = [_refused(task_id, a.reason) for task_id, a in mine if a.state == "refused"]
            move_tasks(unit, refused, "deploy", replace=("reason",))
            # A task that was offered again may now be created. Only the answer to the later call
            # counts.
            again = {
                row.task_id for row in rows if until is not None and row.offered_until != until
            }
            put_off = [
                (task_id, a)
                for task_id, a in mine
                if a.state == "deferred" and task_id not in again
            ]
            deferred = [
                {"task_id": task_id, "reason": answer.reason} for task_id, answer in put_off
            ]
            update_tasks(unit, deferred, replace=("reason",), nulls=("offered_until",))
            # The task does not exist yet. An earlier call without an answer may create it until the
            # call expires.
            coming = {
                task.task_id: task.offered_until
                for task in offered
                if task.offered_until is not None
            }
            _set_back(
                unit,
                {
                    i: end
                    for i, _ in put_off
                    if (end := coming.get(i)) is not None and end >= unit.now
                },
            )
            pools = with_stored(unit.conn, self._pools) if put_off else self._pools
            if put_off and _gives(unit, pools):
                note_refused(unit, pools, len(put_off))
            return unit.counts()

    def refuse_queued(
        self,
        fence: Fence,
        reason: str,
        offered: Sequence[QueuedTask] = (),
        until: datetime | None = None,
    ) -> TaskCounts:
        """Set QUEUED tasks to FAILED (``deploy_failed``) with this reason.

        Returns the counts of tasks.

        ``offered`` and ``until`` identify an offer that was refused as a whole, so it created no
        task. A task may have been created by an earlier call without an answer. Such a task stays
        QUEUED, and counts as offered by that call. The task is refused later, after a poll that
        follows the end of that call and does not find the task.

        A second call changes nothing.
        """
        with self._unit(fence) as unit:
            t = task_history.c
            earlier = {task.task_id: task.offered_until for task in offered}
            queued = unit.conn.execute(
                current_tasks(unit.run_id, t.task_id, t.offered_until, t.ever_seen).where(
                    t.status == TaskStatus.QUEUED
                )
            )
            refused = []
            set_back = {}
            for row in queued:
                this_one = row.task_id in earlier and row.offered_until == until
                before = earlier[row.task_id] if this_one else row.offered_until
                if before is None or (_looked_after(unit, before) and not row.ever_seen):
                    refused.append(_refused(row.task_id, reason))
                elif before != row.offered_until:
                    set_back[row.task_id] = before
            move_tasks(unit, refused, "deploy", replace=("reason",))
            _set_back(unit, set_back)
            return unit.counts()

    def withdraw_offer(self, fence: Fence, offered: Sequence[QueuedTask], until: datetime) -> None:
        """Withdraw an offer whose call created nothing.

        An earlier offer of its tasks becomes valid again.
        """
        with self._unit(fence) as unit:
            t = task_history.c
            earlier = {task.task_id: task.offered_until for task in offered}
            offer = select(t.task_id).where(t.status == TaskStatus.QUEUED, t.offered_until == until)
            task_ids = [row["task_id"] for row in rows_in(unit.conn, offer, t.task_id, earlier)]
            _set_back(unit, {task_id: earlier[task_id] for task_id in task_ids})

    def note_waiting(self, fence: Fence, waiting_for: str | None) -> None:
        """Record the reason why the run waits; ``None`` if it no longer waits.

        A reason is ignored if the run has ended, or if it has started and has no QUEUED task. Such
        a reason would come from a late retry, and nothing would remove the reason.
        """
        with self._unit(fence) as unit:
            waits = unit.status is RunStatus.INITIALIZING or unit.counts().queued > 0
            if not unit.status.terminal and (waits or waiting_for is None):
                unit.update_run(waiting_for=waiting_for)

    def mark_started(
        self, fence: Fence, started_at: datetime | None, next_look_at: datetime | None = None
    ) -> RunStatus:
        """Record the start of the run: INITIALIZING becomes PROCESSING, and the stage becomes
        reconciliation.

        A later status is kept. Returns the resulting status.
        """
        with self._unit(fence) as unit:
            if unit.status.terminal:
                return unit.status
            begin_run(unit, Start(started_at, next_look_at))
            return unit.status

    def requeue_ended(self, fence: Fence, include_succeeded: bool) -> TaskCounts:
        """Insert new QUEUED rows of this attempt for indexes that are FAILED, CANCELLED or LOST.

        Returns the counts.

        If ``include_succeeded`` is true, also insert rows for indexes that are SUCCEEDED. Existing
        QUEUED rows become rows of this attempt, except those whose tasks may still be created by a
        call of an earlier attempt. ``offer_tasks`` takes over these rows after the end of that
        call. No row is inserted after a stop, or by a second call.
        """
        with self._unit(fence) as unit:
            _adopt_queued(unit)
            if (
                unit.stop is None
                and not unit.status.terminal
                and unit.run["requeued_attempt"] != unit.attempt
            ):
                statuses = (
                    (*_NOT_SUCCEEDED, TaskStatus.SUCCEEDED.value)
                    if include_succeeded
                    else _NOT_SUCCEEDED
                )
                _new_rows(unit, statuses, anew=include_succeeded)
                unit.update_run(requeued_attempt=unit.attempt)
            return unit.counts()

    def places(self, run_id: int) -> list[str]:
        """Return the recorded namespaces in which tasks of the run execute or can still be
        created.
        """
        t = task_history.c
        alive = or_(
            t.status.in_(ACTIVE), and_(t.status == TaskStatus.QUEUED, t.offered_until.is_not(None))
        )
        query = (
            current_tasks(run_id, t.cluster_place)
            .where(alive, t.cluster_place.is_not(None))
            .distinct()
        )
        return sorted(row["cluster_place"] for row in self._rows(query))

    def ended_groups(self, run_id: int) -> list[EndedTasks]:
        with self._db.reading() as conn:
            return ended_groups(conn, run_id)


def _gives(unit: Unit, pools: Pools) -> bool:
    """Return whether the store, and not Kueue, assigns the slots of this run's pool."""
    name = pools.serving(unit.run["pool"], unit.run["project"])
    return pools.counted and pools.of(name).queue is None


def _room(
    unit: Unit, window: int | None, counts: TaskCounts, offered: int, max_parallel: int | None
) -> int:
    """Return how many further tasks ``max_parallel`` and the window allow."""
    room = counts.queued
    if max_parallel is not None:
        room = max(0, max_parallel - counts.active - offered)
    if window is not None:
        room = min(room, max(0, _window(unit, counts, window) - offered))
    return room


def _taken_over(unit: Unit, rows: Sequence[Row]) -> Sequence[Row]:
    """Return the rows as tasks of this attempt of the run.

    Offers of earlier attempts have expired.
    """
    late = {row["task_id"] for row in rows if row["run_attempt"] != unit.attempt}
    if not late:
        return rows
    now = {"attempt": first_attempt(unit), "run_attempt": unit.attempt}
    _set_queued(unit, sorted(late), **now)
    return [
        {**row, **now, "offered_until": None} if row["task_id"] in late else row for row in rows
    ]


def _set_queued(unit: Unit, task_ids: Sequence[int], **values: Any) -> None:
    """Set columns of these tasks, except tasks that are not QUEUED."""
    t = task_history.c
    queued = update(task_history).where(t.status == TaskStatus.QUEUED).values(**values)
    change_in(unit.conn, queued, t.task_id, task_ids)


def _set_back(unit: Unit, ends: Mapping[int, datetime | None]) -> None:
    """Set ``offered_until`` of these tasks to the end of the previous call that offered them
    (``None`` if there was none).

    Few calls are unanswered at the same time, so few statements are needed.
    """
    by_end = defaultdict[datetime | None, list[int]](list)
    for task_id, end in ends.items():
        by_end[end].append(task_id)
    for end, task_ids in by_end.items():
        _set_queued(unit, task_ids, offered_until=end)


def _looked_after(unit: Unit, moment: datetime) -> bool:
    polled_at: datetime | None = unit.run["verified_at"]
    return polled_at is not None and moment < min(polled_at, unit.now)


def _offerable(unit: Unit, limit: int, now: datetime) -> Sequence[Row]:
    """Return QUEUED tasks by index.

    A task is left out while a call of an earlier attempt of the run may still create it, and before
    the time of its next try.
    """
    t = task_history.c
    return (
        unit.conn.execute(
            current_tasks(unit.run_id, *_OFFERED)
            .where(
                t.status == TaskStatus.QUEUED,
                or_(
                    t.run_attempt == unit.attempt,
                    t.offered_until.is_(None),
                    t.offered_until < unit.now,
                ),
                or_(t.not_before.is_(None), t.not_before <= now),
            )
            .order_by(t.task_index)
            .limit(limit)
        )
        .mappings()
        .all()
    )


def _of_one_call(rows: Sequence[Row]) -> Sequence[Row]:
    """Return as many of the first rows as fit into one call, but at least one.

    Rows that are not sent must not be offered.
    """
    size = 0
    for number, row in enumerate(rows):
        size += len(json.dumps(row["args"], default=str))
        if size > OFFER_BYTES_MAX and number:
            return rows[:number]
    return rows


def _is_offered(unit: Unit, row: Row) -> bool:
    """Return whether a call may still create this task, or may have created the task although
    neither an answer nor a later poll has confirmed this.
    """
    return row["offered_until"] is not None and not _looked_after(unit, row["offered_until"])


def _window(unit: Unit, counts: TaskCounts, least: int) -> int:
    """Return how many further tasks of the run may wait on the cluster.

    As many tasks may wait as have a node, so that a run grows fast, but only ``least`` while the
    cluster is full. In that case, no tasks are added before half of the waiting tasks have started.
    Kubernetes tries new pods before pods that repeatedly did not fit, so a steady flow of new pods
    would keep those of other runs waiting.
    """
    t = task_history.c
    waits = current_tasks(
        unit.run_id, func.count(), func.count(case((t.reason.contains(NO_ROOM), 1)))
    )
    waiting, full = unit.conn.execute(
        waits.where(t.status == TaskStatus.PENDING, t.node.is_(None))
    ).one()
    if full and waiting > least // 2:
        return 0
    return (least if full else max(least, counts.active - waiting)) - int(waiting)


def _count_offered(unit: Unit) -> int:
    t = task_history.c
    told = min(unit.run["verified_at"] or datetime.min.replace(tzinfo=UTC), unit.now)
    offered = current_tasks(unit.run_id, func.count()).where(
        t.status == TaskStatus.QUEUED, t.offered_until >= told
    )
    return int(unit.conn.execute(offered).scalar_one())


def _taken(task_id: int, answer: DeployedTask, cluster: str, at: datetime) -> Move:
    return Move(
        task_id,
        TaskStatus.QUEUED,
        TaskStatus.PENDING,
        None,
        evidence={"state": answer.state, "name": answer.name, "uid": answer.uid},
        values={
            "cluster": cluster,
            "cluster_name": answer.name,
            "cluster_uid": answer.uid,
            "deployed_at": at,
            "reason": answer.reason,
        },
    )


def _refused(task_id: int, reason: str | None) -> Move:
    return Move(
        task_id,
        TaskStatus.QUEUED,
        TaskStatus.FAILED,
        None,
        outcome="deploy_failed",
        ended_by=EndedBy.SERVICE,
        cause=reason or "The scheduler service refused the task and gave no reason",
        evidence={"state": "refused", "reason": reason},
        values={"reason": reason},
    )


def _adopt_queued(unit: Unit) -> None:
    t = task_history.c
    queued = current_tasks(unit.run_id, t.task_id).where(
        t.status == TaskStatus.QUEUED,
        t.run_attempt < unit.attempt,
        or_(t.offered_until.is_(None), t.offered_until < unit.now),
    )
    task_ids = unit.conn.execute(queued.with_for_update()).scalars().all()
    if task_ids:
        _set_queued(
            unit,
            task_ids,
            attempt=first_attempt(unit),
            run_attempt=unit.attempt,
            retry=0,
            offered_until=None,
            not_before=None,
        )


def _new_rows(unit: Unit, statuses: Sequence[str], *, anew: bool) -> None:
    """Insert a new row for each old row in one of these statuses, and set ``superseded_by`` of the
    old row.

    If ``anew`` is true, the new tries start from the beginning.
    """
    t = task_history.c
    attempt = first_attempt(unit)
    again = (t.run_attempt < unit.attempt, t.status.in_(statuses))
    values: dict[str, Any] = {
        name: null() if anew and name in COUNTERS else t[name] for name in _KEPT
    }
    values |= {
        "attempt": literal(attempt),
        "run_attempt": literal(unit.attempt),
        "status": literal("QUEUED"),
        "status_since": literal(unit.now, t.status_since.type),
        "ever_seen": literal(False),
        "resumed": literal(False) if anew else null(),
    }
    old = current_tasks(unit.run_id, *values.values())
    unit.conn.execute(
        insert(task_history).from_select([*values], old.where(*again).order_by(t.task_index))
    )
    new = task_history.alias("new")
    pairs = unit.conn.execute(
        current_tasks(unit.run_id, t.task_id, new.c.task_id.label("superseded_by"))
        .where(*again)
        .where(new.c.run_id == t.run_id, new.c.task_index == t.task_index, new.c.attempt == attempt)
    )
    done = update_tasks(unit, [dict(pair) for pair in pairs.mappings()], replace=("superseded_by",))
    unit.changed = unit.changed or done > 0
