"""Cycles of managers, which begin with facts and end with a decision.

Ended runs are read from ``run_history``, not from signals. A decision is one transaction. Each
decision is compared with the rows, so a decision from a faulty or late process changes nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import and_, bindparam, func, not_, or_, select, update

from crawler_lifecycle.domain.errors import InvalidRequest, Overtaken
from crawler_lifecycle.store.base.bulk import insert_mappings, rows_in
from crawler_lifecycle.store.base.rows import Row, made
from crawler_lifecycle.store.runs.lists import live_runs, runs_by_id
from crawler_lifecycle.store.runs.tables import OVER_RUNS, run_history

from ..domain.manager import (
    TRIES,
    AddedJob,
    Decision,
    Facts,
    HookReport,
    Job,
    JobState,
    PickedJob,
    job_of_request,
    new_numbers,
)
from ..ports import ManagerCommit, ManagerFence
from .items import item_row, moment, set_items
from .queries import BY_STATE, HOLDING, known, runs_of, with_run
from .rows import dump_job, ended_row, job_metadata, job_outcome
from .tables import manager_item
from .unit import ManagerPart, ManagerUnit

_WAITING = (JobState.BUFFERED, JobState.DELAYED, JobState.QUEUED)
_BY_NUMBER = (manager_item, "FORCE INDEX (uq_manager_item_manager_id_seq_retry)", "mysql")
_RESUMED = (run_history, "FORCE INDEX (ix_run_history_parent_attempt_run_id)", "mysql")


class ManagerDecisions(ManagerPart):
    """The methods of ``ManagerStore`` for the facts and the decision of a cycle."""

    def facts(self, fence: ManagerFence, ends: int) -> Facts:
        """Return the facts for the beginning of a cycle, with at most ``ends`` ended jobs, by the
        start of their runs.

        A job whose run was resumed by a person holds a slot again.
        """
        with self._unit(fence.manager_id, fence) as unit:
            _reopen(unit)
            row = unit.row
            i = manager_item.c
            found = _ended(unit, ends + 1)
            ended = found[:ends]
            more = len(found) > ends
            runs = runs_of(unit.conn, ended)
            gone = {job["item_id"] for job in ended}
            live = [
                job
                for job in _in(unit, HOLDING, i.item_id, i.spider, i.cap_key)
                if job.item_id not in gone
            ]
            delayed = _in(unit, [JobState.DELAYED.value], i.spider) if row["jobs_delayed"] else []
            return made(
                Facts,
                row,
                now=unit.now.timestamp(),
                ended=[ended_row(job, runs.get(job["run_id"])) for job in ended],
                live=len(live),
                live_by_spider=dict(Counter(job.spider for job in live)),
                live_by_key=dict(Counter(job.cap_key for job in live if job.cap_key is not None)),
                delayed=row["jobs_delayed"],
                delayed_by_spider=dict(Counter(job.spider for job in delayed)),
                queued=row["jobs_queued"],
                buffered=row["jobs_buffered"],
                last_pick=row["last_pick_at"].timestamp()
                if row["last_pick_at"] is not None
                else None,
                more_ended=more,
            )

    def commit_decision(self, fence: ManagerFence, decision: Decision) -> ManagerCommit:
        """Apply a decision in one transaction, with the event ``manager.changed``.

        The decision is compared with the rows. An end is handled once for each attempt of its run,
        numbers have no gaps, a picked job must be waiting, and an added job with a known identity
        is left out. Picks are dropped after a stop, during a pause, above a cap that a person set,
        and when a person resumed runs after the facts were read. Jobs of dropped picks wait again.
        If ``over`` is true, the ``error`` of the row becomes the error of the decision. Raises
        ``InvalidRequest`` if the decision is invalid, and ``Overtaken`` if another decision was
        committed after its facts were read.
        """
        with self._unit(fence.manager_id, fence) as unit:
            resumed = _reopen(unit) if decision.picked else 0
            resumed += _hook(unit, decision.hooked)
            hooks_failed(unit, [hook.item_id for hook in decision.failed if not hook.later])
            rows = _rows_of(unit, [pick.item_id for pick in decision.picked if pick.item_id >= 0])
            seqs = {item_id: row["seq"] for item_id, row in rows.items()}
            numbers = new_numbers(decision, unit.row["next_seq"], seqs)
            picked, dropped = _allowed(unit, decision.picked, resumed)
            dropped += _add(
                unit, decision.added, {pick.item_id: pick for pick in picked if pick.item_id < 0}
            )
            _delay(unit, decision.delayed)
            _pick(unit, rows, picked)
            used = numbers & {
                *(pick.seq for pick in picked),
                *(new_job.seq for new_job in decision.added),
            }
            unit.set(next_seq=max(used, default=unit.row["next_seq"] - 1) + 1)
            _set_attributes(unit, decision)
            row = unit.row
            stopped = unit.stop is not None
            return ManagerCommit(
                row["jobs_starting"], unit.live, dropped, stopped, row["hook_errors"]
            )


# --- facts ----------------------------------------------------------------------------------------


def _in(unit: ManagerUnit, states: Sequence[str], *columns: Any) -> Sequence[Any]:
    """Return columns of all jobs in these states.

    The number of these jobs is small, because managers have limits.
    """
    i = manager_item.c
    query = select(*columns).where(i.manager_id == unit.manager_id, i.state.in_(states))
    return unit.conn.execute(query.with_hint(*BY_STATE)).all()


def _reopen(unit: ManagerUnit) -> int:
    """Give slots back to ended jobs whose runs a person has resumed. Returns the number of these
    jobs.

    A job keeps the slot until the hooks for the next end of its run were called.
    """
    r = run_history.c
    i = manager_item.c
    if unit.row["jobs_pruned_at"] is not None:
        _adopt(unit)
    joined = run_history.join(manager_item, i.run_id == r.run_id)
    query = (
        select(i.item_id)
        .select_from(joined)
        .where(r.parent == unit.parent, r.attempt > 1)
        .where(
            i.manager_id == unit.manager_id,
            i.state == JobState.ENDED,
            r.attempt > i.handled_attempt,
        )
    )
    again = unit.conn.execute(query.with_hint(*_RESUMED)).scalars().all()
    set_items(unit, again, JobState.STARTED)
    unit.moved(JobState.ENDED, JobState.STARTED, len(again))
    return len(again)


def _adopt(unit: ManagerUnit) -> None:
    """Insert new jobs for resumed runs whose jobs were pruned.

    A new job has no identity, so the job is never equal to any existing job.
    """
    r = run_history.c
    i = manager_item.c
    alone = not_(select(i.item_id).where(i.run_id == r.run_id).exists())
    found = live_runs(unit.conn, unit.parent, f"manager/{unit.id}/%", r.attempt > 1, alone)
    runs = {job_of_request(run.request_id): run for run in runs_by_id(unit.conn, found)}
    taken = _numbers(unit, [key[1] for key in runs if key is not None])
    rows = []
    for key, run in runs.items():
        if key is None or key[1:] in taken:  # the run has a job, in which it will be recorded
            continue
        facts = job_metadata(run)
        job = Job(run.crawler, facts["spider_args"], facts["job_settings"], facts["tags"])
        rows.append(
            item_row(
                unit,
                job,
                None,
                JobState.ENDED,
                None,
                seq=key[1],
                retry=key[2],
                run_id=run.run_id,
                handled_attempt=run.attempt - 1,
            )
        )
    insert_mappings(unit.conn, manager_item, rows)
    unit.moved(None, JobState.ENDED, len(rows))


def _ended(unit: ManagerUnit, limit: int) -> Sequence[Row]:
    """Return jobs whose run has ended or can never start, and whose hooks were not called for this
    end.
    """
    r = run_history.c
    i = manager_item.c
    over = and_(r.status.in_(OVER_RUNS), r.attempt > i.handled_attempt)
    never = and_(i.run_id.is_(None), i.error.is_not(None))
    query = with_run(i.manager_id == unit.manager_id, i.state == JobState.STARTED, or_(over, never))
    query = query.order_by(
        i.hook_tries, func.coalesce(r.started_at, r.created_at), i.item_id
    ).limit(limit)
    return unit.conn.execute(query.with_hint(*BY_STATE)).mappings().all()


# --- decisions ------------------------------------------------------------------------------------


def _rows_of(unit: ManagerUnit, item_ids: Sequence[int]) -> dict[int, Row]:
    """Return these jobs of the manager, with facts about their runs.

    Raises ``InvalidRequest`` for an unknown or repeated job.
    """
    i = manager_item.c
    query = with_run(i.manager_id == unit.manager_id).with_hint(
        manager_item, "FORCE INDEX (PRIMARY)", "mysql"
    )
    found: dict[int, Row] = {
        row["item_id"]: row for row in rows_in(unit.conn, query, i.item_id, item_ids)
    }
    if len(found) != len(item_ids):
        odd = next((id_ for id_ in item_ids if id_ not in found), None)
        what = "a job occurs twice" if odd is None else f"job {odd} does not exist"
        raise InvalidRequest(f"item_id: {what} in a decision of manager {unit.manager_id}")
    return found


def _overtaken(unit: ManagerUnit, what: str) -> Overtaken:
    return Overtaken(
        f"Manager {unit.manager_id}: {what} since the facts were read; the next cycle decides again"
    )


def _set_attributes(unit: ManagerUnit, decision: Decision) -> None:
    """Record the attributes of the manager that the class reports."""
    row = unit.row
    flow_tags = list(dict.fromkeys([*row["flow_tags"], *decision.flow_tags]))
    unit.set(flow_tags=flow_tags, tags=sorted({*row["tags"], *flow_tags}), stats=decision.stats)
    unit.set(close_reason=decision.close_reason, waiting_for=decision.waiting, tries=0)
    unit.count(hook_errors=decision.hook_errors)
    if decision.state is not None:
        unit.set(state=decision.state)
    if decision.over:
        unit.set(is_over=True, error=decision.error)


def _hook(unit: ManagerUnit, hooked: Sequence[HookReport]) -> int:
    """Record that the hooks for these ended jobs were called, once for each attempt of a run.

    Returns the number of jobs that keep their slot, because a person has resumed their run.
    """
    rows = _rows_of(unit, [hook.item_id for hook in hooked])
    runs = runs_of(unit.conn, list(rows.values()))
    alike: dict[tuple[int, str, JobState], list[int]] = defaultdict(list)
    for hook in hooked:
        row = rows[hook.item_id]
        attempt = row["run_attempt"] or 1
        live = row["run_status"] not in (None, *OVER_RUNS)
        if row["state"] != JobState.STARTED or hook.attempt <= row["handled_attempt"]:
            raise _overtaken(unit, f"job {hook.item_id} has handled attempt {hook.attempt}")
        if hook.attempt > attempt or (live and hook.attempt == attempt):
            raise InvalidRequest(f"attempt: {hook.attempt} of job {hook.item_id} has not ended")
        # The job of a run that was resumed in the meantime keeps its slot. The hooks are called
        # again for the next end.
        state = JobState.STARTED if hook.attempt < attempt or live else JobState.ENDED
        alike[hook.attempt, job_outcome(row, runs.get(row["run_id"])), state].append(hook.item_id)
    for (attempt, outcome, state), item_ids in alike.items():
        set_items(unit, item_ids, state, handled_attempt=attempt, outcome=outcome, hook_tries=0)
        if state is JobState.ENDED:
            unit.moved(JobState.STARTED, JobState.ENDED, len(item_ids))
    bad = sum(hook.bad for hook in hooked)
    given_up = sum(row["hook_tries"] >= TRIES for row in rows.values())
    unit.count(bad=bad, good=len(hooked) - bad, hook_errors=given_up)
    return sum(len(ids) for (_, _, state), ids in alike.items() if state is JobState.STARTED)


def hooks_failed(unit: ManagerUnit, item_ids: Sequence[int]) -> dict[int, int]:
    """Record a failed try of the hooks for these jobs. Returns the number of tries for each job."""
    tries = {item_id: row["hook_tries"] + 1 for item_id, row in _rows_of(unit, item_ids).items()}
    for item_id, number in tries.items():
        unit.conn.execute(
            update(manager_item).where(manager_item.c.item_id == item_id).values(hook_tries=number)
        )
    return tries


def _allowed(
    unit: ManagerUnit, picked: Sequence[PickedJob], resumed: int
) -> tuple[Sequence[PickedJob], int]:
    """Return the picks that may take a slot now, and the number of dropped picks.

    The last picks are dropped.

    ``resumed`` is the number of jobs that hold a slot again. The class did not know about these
    jobs, so the class must decide again.
    """
    row = unit.row
    free = len(picked)
    if resumed or row["stop_requested_at"] is not None or row["paused"] or unit.status.terminal:
        free = 0
    elif row["cap"] is not None:
        free = max(min(free, row["cap"] - unit.live), 0)
    return picked[:free], len(picked) - free


def _add(unit: ManagerUnit, added: Sequence[AddedJob], picks: Mapping[int, PickedJob]) -> int:
    """Insert new jobs: jobs that were picked at once as STARTING, others as QUEUED.

    Returns the number of picked jobs that were dropped, because their identity or number is already
    known.
    """
    there = known(
        unit.conn, unit.manager_id, (new_job.job.identity for new_job in added if new_job.unique)
    )
    numbers = _numbers(unit, [new_job.seq for new_job in added if new_job.seq is not None])
    rows = []
    dropped = 0
    for new_job in added:
        pick = picks.get(new_job.ref)
        identity = new_job.job.identity if new_job.unique else None
        number = (new_job.seq, new_job.retry)
        if identity in there or number in numbers:
            dropped += pick is not None
            continue
        if identity is not None:
            there.add(identity)
        if new_job.seq is not None:
            numbers.add((new_job.seq, new_job.retry))
        more = {
            "retry": new_job.retry,
            "retry_of": new_job.retry_of,
            "not_before": moment(new_job.not_before),
        }
        if pick is None:
            rows.append(
                item_row(
                    unit, new_job.job, identity, JobState.QUEUED, None, seq=new_job.seq, **more
                )
            )
        else:
            more |= {"seq": pick.seq, "cap_key": pick.cap_key}
            rows.append(item_row(unit, pick.job, identity, JobState.STARTING, None, **more))
            unit.count(**{"retried" if new_job.retry else "scheduled": 1})
        unit.moved(None, JobState.QUEUED if pick is None else JobState.STARTING, 1)
    insert_mappings(unit.conn, manager_item, rows)
    return dropped


def _numbers(unit: ManagerUnit, seqs: Sequence[int]) -> set[tuple[int | None, int]]:
    """Return the numbers among these that jobs of the manager have, each with its retry."""
    i = manager_item.c
    query = select(i.seq, i.retry).where(i.manager_id == unit.manager_id).with_hint(*_BY_NUMBER)
    return {(row["seq"], row["retry"]) for row in rows_in(unit.conn, query, i.seq, seqs)}


def _delay(unit: ManagerUnit, item_ids: Sequence[int]) -> None:
    rows = _rows_of(unit, item_ids)
    if any(row["state"] != JobState.BUFFERED for row in rows.values()):
        raise _overtaken(unit, "a job to delay is no longer buffered")
    set_items(unit, item_ids, JobState.DELAYED)
    unit.moved(JobState.BUFFERED, JobState.DELAYED, len(item_ids))


_PICK = (
    update(manager_item)
    .where(manager_item.c.item_id == bindparam("id_"))
    .values(
        state=JobState.STARTING.value,
        seq=bindparam("seq_"),
        spider=bindparam("spider_"),
        cap_key=bindparam("cap_key_"),
        params=bindparam("params_"),
        updated_at=bindparam("at_"),
    )
)


def _pick(unit: ManagerUnit, rows: Mapping[int, Row], picked: Sequence[PickedJob]) -> None:
    """Set picked waiting jobs to STARTING, with their numbers.

    Added jobs were inserted as STARTING.
    """
    values = []
    for pick in picked:
        if pick.item_id < 0:
            continue
        row = rows[pick.item_id]
        if row["state"] not in _WAITING:
            raise _overtaken(unit, f"job {pick.item_id} is no longer waiting")
        unit.moved(JobState(row["state"]), JobState.STARTING, 1)
        unit.count(**{"retried" if row["retry"] else "scheduled": 1})
        values.append(
            {
                "id_": pick.item_id,
                "seq_": pick.seq,
                "spider_": pick.job.spider,
                "cap_key_": pick.cap_key,
                "params_": dump_job(pick.job),
                "at_": unit.now,
            }
        )
    if values:
        unit.conn.execute(_PICK, values)
    if picked:
        unit.row["last_pick_at"] = unit.now
