"""Polls: findings are staged first and applied later. Counters are written immediately."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, func, insert, or_, select

from crawler_lifecycle import redaction
from crawler_lifecycle.domain.audits.corrections import CorrectionKind
from crawler_lifecycle.domain.audits.overdue import verification_due
from crawler_lifecycle.domain.blocked import BlockReport, TaskReport
from crawler_lifecycle.domain.clocks import not_ahead
from crawler_lifecycle.domain.ends import BANNED
from crawler_lifecycle.domain.errors import Overtaken
from crawler_lifecycle.domain.run import RunStatus, Stage
from crawler_lifecycle.domain.stall import Reading, quiet_time
from crawler_lifecycle.domain.task import ALIVE, Counters, Observation, Phase, TaskStatus
from crawler_lifecycle.domain.waiting import CODE_WAIT, POLLS, stretch_words
from crawler_lifecycle.domain.wake_ups import Tasks
from crawler_lifecycle.ports.polls import (
    Details,
    FoundState,
    Poll,
    PollReport,
    RecordedState,
    Revision,
    Start,
    TaskFinding,
)
from crawler_lifecycle.ports.runs import Fence, TaskCounts
from crawler_lifecycle.store.base.bulk import CHUNK, delete_rows, rows_in
from crawler_lifecycle.store.base.rows import Row, made
from crawler_lifecycle.store.base.unit import stop_of
from crawler_lifecycle.store.notes import UPGRADE, process_note

from .caps import hear_reports
from .codes import CODE, code_after, record_codes
from .live_counters import COUNTERS, count_sums, grown, moved
from .moves import Move, apply_staged, forget_staged, stage_moves, update_tasks
from .rows import counters_of, dump_details, dump_finding, evidence, load_finding, task_state
from .staged import (
    awaiting_details,
    detail_columns,
    forget_findings,
    forget_written,
    is_foreign,
    shortened,
    stage,
    staged_rows,
)
from .tables import task_finding, task_history, task_log, task_observation, task_stats
from .unit import (
    RunPart,
    Unit,
    begin_run,
    check_fence,
    checked_counts,
    count_tasks,
    current_tasks,
    read_run,
)

log = logging.getLogger(__name__)

#: The maximum number of tasks in a poll of selected tasks. Clusters list up to this many by name.
FEW = 50

_MS = timedelta(milliseconds=1)
_SEEN = (Phase.WAITING, Phase.EXECUTING, Phase.ENDED)
#: Columns of a task that a poll can change while its status stays the same.
_OBSERVED = (
    "cluster_name",
    "cluster_uid",
    "node",
    "reason",
    "started_at",
    "ever_seen",
    "absent_since",
    "missed_at",
)
_OBSERVED_ALL = (
    *_OBSERVED,
    "last_progress_at",
    *COUNTERS,
    "peak_memory",
    "fields",
    "resumed",
    "resume_note",
    *CODE,
)


class PollStore(RunPart):
    """The records of polls. Findings are staged, and then applied in one transaction."""

    def rollback_possible(self) -> bool:
        """Return whether an upgrade can still be rolled back.

        After a rollback, the previous build would replay the histories of workflows.
        """
        note = process_note.c
        upgrades = select(note.name).where(note.kind == UPGRADE, note.ends_at > self._clock())
        return bool(self._rows(upgrades))

    def found_state(self, fence: Fence, few: Tasks = None) -> FoundState:
        """Return the live tasks of the run, and the other data with which a poll is compared.

        If ``few`` contains at most ``FEW`` tasks and more than ``FEW`` tasks are alive, return only
        the tasks ``few``.
        """
        with self._db.reading() as conn:
            run = read_run(conn, fence.run_id, owned=True)
            check_fence(run, fence)
            complete = few is None or len(few) > FEW or count_tasks(conn, fence.run_id).alive <= FEW
            tasks = [
                task_state(row) for row in _unsettled(conn, fence.run_id, None if complete else few)
            ]
            due_at = verification_due(run["next_look_at"], run["verified_at"], run["look_gap_ms"])
            resuming = run["claim_resumed"] and run["requeued_attempt"] != run["attempt"]
            return made(
                FoundState,
                run,
                tasks=tasks,
                next_look_at=due_at,
                stop=stop_of(run),
                counters=counters_of(run),
                revision=_revision(run),
                complete=complete,
                resuming=resuming,
                poll_minutes=run["request"].get("poll_minutes"),
            )

    def record_poll(
        self,
        fence: Fence,
        poll: Poll,
        findings: Sequence[TaskFinding],
        next_look_at: datetime | None,
        ordered_at: datetime | None = None,
        revision: Revision | None = None,
        gap: timedelta | None = None,
        stretch: float | None = None,
    ) -> PollReport:
        """Stage the findings, and write ``verified_at``, ``next_look_at``, counters and
        ``last_progress_at``.

        ``next_look_at`` is ``None`` for an additional poll, which does not change the time of the
        planned poll. ``ordered_at`` is the time when this try of the poll was ordered; all such
        times come from one clock. ``revision`` is the revision of the state with which the poll was
        compared. ``gap`` is the interval before the planned poll, which is ``stretch`` times as
        long as the run's polling schedule requires (``None`` to keep the factor). The findings
        replace earlier staged findings about the same tasks.

        After the end of the run, nothing is written. Raises ``Fenced``. Raises ``Overtaken`` if a
        poll, a stop or a change of a task was recorded since the state was read. Raises the same
        error if a poll that was ordered later is already recorded, because the worker of this poll
        was frozen in the meantime.
        """
        with self._unit(fence) as unit:
            if not unit.status.terminal:
                _check_order(unit, ordered_at, revision)
                gap_ms = None if gap is None else gap // _MS
                plan = {
                    "next_look_at": next_look_at,
                    "look_ordered_at": ordered_at,
                    "look_gap_ms": gap_ms,
                }
                _note_wait(unit, poll, stretch)
                _write(unit, poll, findings, plan)
            return _report(unit)

    def record_at_once(
        self,
        fence: Fence,
        poll: Poll,
        findings: Sequence[TaskFinding],
        source: str,
        state: FoundState,
        started: Start | None,
    ) -> PollReport:
        """Record an additional poll, apply its findings, and record the start of the run, in one
        transaction.

        The poll was compared with ``state``. A poll of some tasks does not verify the run.
        ``started`` is true if a task, and therefore the run, has started. The report contains the
        counts after the changes. Details of ended tasks follow in separate transactions
        (``save_details``, ``apply_details``). After the end of the run, nothing is written. Raises
        ``Fenced`` and ``Overtaken`` as ``record_poll`` does.
        """
        with self._unit(fence) as unit:
            if unit.status.terminal:
                return _report(unit)
            _check_order(unit, None, state.revision)
            _write(unit, poll, findings, {}, complete=state.complete)
            found = _staged(unit)
            _apply(unit, source)
            forget_findings(unit)
            if started is not None and unit.status is RunStatus.INITIALIZING:
                begin_run(unit, started)
                found += 1
            if state.complete:
                _note_wait(unit, poll)
            return replace(
                _report(unit), changed=found, details=awaiting_details(unit.conn, unit.run_id)
            )

    def recorded_state(self, run_id: int) -> RecordedState:
        """Return the recorded state of a run for its workflow. Raises ``RowMissing``."""
        with self._db.reading() as conn:
            run = read_run(conn, run_id, owned=True)
            counts = count_tasks(conn, run_id)
            missing = awaiting_details(conn, run_id)
            started = run["stage"] not in (Stage.INITIATION, Stage.DEPLOYMENT)
            return RecordedState(counts, started, run["started_at"], stop_of(run), missing)

    def record_poll_error(
        self, fence: Fence, error: str, ordered_at: datetime | None = None
    ) -> None:
        """Record the error of the last poll, and the time since which polls have failed.

        A successful poll removes both.

        Nothing is written after the end of the run, or if a poll that was ordered later is
        recorded.
        """
        with self._unit(fence) as unit:
            if not unit.status.terminal and not _is_overtaken(unit, ordered_at):
                unit.update_run(
                    look_error=error, look_error_since=unit.run["look_error_since"] or unit.now
                )

    def staged(self, fence: Fence, after_index: int = -1, limit: int = CHUNK) -> list[TaskFinding]:
        """Return staged findings of tasks with an index above ``after_index``, by index."""
        o = task_observation.c
        with self._db.reading() as conn:
            check_fence(read_run(conn, fence.run_id, owned=True), fence)
            rows = conn.execute(
                select(o.task_id, o.finding)
                .where(o.run_id == fence.run_id, o.task_index > after_index, o.finding.is_not(None))
                .order_by(o.task_index)
                .limit(limit)
            ).mappings()
            return [load_finding(row) for row in rows]

    def save_details(self, fence: Fence, details: Sequence[Details]) -> None:
        """Stage debugging information about tasks until ``apply_details``.

        A staged log is kept if the new information has no log, because a node removes the log with
        the container. Late information about ended tasks whose details are already written is
        ignored.
        """
        t = task_history.c
        o = task_observation.c
        with self._unit(fence) as unit:
            parts = {
                detail.task_id: {"details": dump_details(detail)}
                for detail in map(shortened, details)
            }
            query = select(t.task_id).join(task_observation, o.task_id == t.task_id, isouter=True)
            query = query.where(
                t.run_id == unit.run_id, or_(t.status.in_(ALIVE), o.finding.is_not(None))
            )
            alive = [row["task_id"] for row in rows_in(unit.conn, query, t.task_id, parts)]
            stage(unit, {task_id: parts[task_id] for task_id in alive})

    def apply_details(self, fence: Fence) -> int:
        """Write staged findings and details into ``task_history``, ``task_log`` and ``task_stats``.

        Returns the number of tasks. A repeated call writes the same values again.
        """
        with self._unit(fence) as unit:
            total = 0
            for rows in staged_rows(unit):
                details = [detail_columns(row) for row in rows]
                names = [
                    name
                    for name in details[0]
                    if name not in ("task_id", "error", "compressed", "stats")
                ]
                values = [{n: d[n] for n in ("task_id", "error", *names)} for d in details]
                update_tasks(unit, values, replace=("error",), fill=names)
                unit.reworded = unit.reworded or any(d["error"] for d in details)
                for table, name in ((task_log, "compressed"), (task_stats, "stats")):
                    new = [{"task_id": d["task_id"], name: d[name]} for d in details if d[name]]
                    if new:
                        delete_rows(
                            unit.conn, table.c.task_id, "PRIMARY", [row["task_id"] for row in new]
                        )
                        unit.conn.execute(insert(table), new)
                forget_written(unit, rows)
                total += len(rows)
            # The sums must include these counters now. Otherwise the next poll would interpret them
            # as progress.
            if total:
                unit.update_run(**count_sums(unit))
            return total

    def apply_findings(
        self,
        fence: Fence,
        source: str,
        observed_at: datetime | None = None,
        *,
        details_follow: bool = False,
    ) -> TaskCounts:
        """Apply the staged changes by compare-and-set, with transitions, corrections and one event
        ``run.changed``.

        If ``details_follow`` is true, the details of ended tasks are fetched afterwards. If
        ``observed_at`` is given, the changes are applied only if the last recorded poll was made at
        that time. Otherwise nothing is applied, because the findings of the later poll are applied
        by the caller of that poll. Returns the counts of tasks.
        """
        with self._unit(fence) as unit:
            if observed_at is not None and observed_at != unit.run["verified_at"]:
                log.warning(
                    "refused to apply the poll of %s to run %s, attempt %s: the recorded poll "
                    "is of %s",
                    observed_at.isoformat(),
                    unit.run_id,
                    unit.attempt,
                    unit.run["verified_at"],
                )
                return unit.counts()
            _apply(unit, source)
            if details_follow:
                forget_findings(unit)
            else:
                forget_staged(unit)
            return unit.counts()


def _hear(unit: Unit, poll: Poll, findings: Sequence[TaskFinding]) -> None:
    """Record what the crawlers report about other things than their tasks."""
    refusals = [
        TaskReport(seen.index, seen.attempt, blocked)
        for seen in poll.observations
        for blocked in seen.blocked or ()
    ]
    starts = []
    for finding in findings:
        seen = finding.observation
        if finding.change.outcome == BANNED and not seen.blocked:
            refusals.append(TaskReport(seen.index, seen.attempt, BlockReport()))
        elif finding.change.after is TaskStatus.SUCCEEDED and seen.started_at is not None:
            starts.append(seen.started_at)
    hear_reports(unit, refusals, max(starts, default=None))


def _write(
    unit: Unit,
    poll: Poll,
    findings: Sequence[TaskFinding],
    plan: Mapping[str, Any],
    *,
    complete: bool = True,
) -> None:
    """Stage the findings, and write the other results of a poll for the tasks and the run.

    Only a ``complete`` poll verifies the run. ``plan`` contains further columns of the run; columns
    with ``None`` are not changed.
    """
    _hear(unit, poll, findings)
    few = (
        None
        if complete
        else frozenset(
            (observation.index, observation.attempt) for observation in poll.observations
        )
    )
    tasks = {
        (row["task_index"], row["attempt"]): row for row in _unsettled(unit.conn, unit.run_id, few)
    }
    seen = [(tasks[key], o) for o in poll.observations if (key := (o.index, o.attempt)) in tasks]
    staged = {f.change.task_id: {"finding": dump_finding(f)} for f in findings}
    forgotten: dict[int, dict[str, Any]] = {task["task_id"]: {"finding": None} for task, _ in seen}
    stage(unit, forgotten | staged)
    # The time when a poll last confirmed the recorded status of each task is the time of the last
    # poll that found the task.
    now = unit.dated if findings else unit.now
    polled = _last_poll(unit.run, now)
    last = {
        task["task_id"]: not_ahead(task["absent_since"], now) or polled for task in tasks.values()
    }
    moves = [_move(finding, last.get(finding.change.task_id)) for finding in findings]
    stage_moves(unit, {*forgotten, *staged}, moves)
    news = [row for task, o in seen if (row := _observed(task, o, unit)) is not None]
    update_tasks(unit, news, replace=_OBSERVED_ALL)
    record_codes(unit, tasks.values(), news)
    sums = count_sums(unit)
    progress = moved(unit.run, sums)
    if not complete:
        latest = poll.observed_at if progress else unit.run["last_progress_at"]
        unit.update_run(**sums, look_revision=unit.next_revision, last_progress_at=latest)
        return
    unit.update_run(
        **sums,
        **{name: unit.run[name] if value is None else value for name, value in plan.items()},
        verified_at=poll.observed_at,
        look_revision=unit.next_revision,
        look_error=None,
        look_error_since=None,
        last_progress_at=poll.observed_at if progress else unit.run["last_progress_at"],
        quiet_ms=_quiet_after(unit.run, poll, [o for _, o in seen], sums, progress=progress) // _MS
        or None,
    )


def _quiet_after(
    run: Row, poll: Poll, seen: Sequence[Observation], sums: Mapping[str, Any], *, progress: bool
) -> timedelta:
    """Return the time without progress that the polls so far, including this poll, have
    confirmed.
    """
    counted = any(sums.values())
    active = [observation for observation in seen if observation.phase is Phase.EXECUTING]
    quiet_each = [observation.quiet for observation in active]
    silent = (
        None
        if None in quiet_each
        else min((quiet for quiet in quiet_each if quiet is not None), default=None)
    )
    readable = (
        any(observation.counters != Counters() for observation in active)
        if counted
        else silent is not None
    )
    reading = Reading(poll.observed_at, readable, progress or _moved_between(run), counted, silent)
    failing = run["look_error"] is not None
    return quiet_time(_quiet(run), run["verified_at"], run["next_look_at"], failing, reading)


def _apply(unit: Unit, source: str) -> None:
    """Apply the staged findings, and keep them staged."""
    end = ("exit_code", "exit_signal")
    filled = ("started_at", "deployed_at", "cluster_name", "cluster_uid", "node", *end)
    apply_staged(unit, source, replace=("reason",), fill=filled)


def _note_wait(unit: Unit, poll: Poll, stretch: float | None = None) -> None:
    """Record the reason why a started run waits after a poll: the code of a task, or stretched
    polls.

    A reason why tasks are QUEUED stays.
    """
    if unit.status is not RunStatus.PROCESSING:
        return
    known: str = unit.run["waiting_for"] or ""
    ours = not known or known.startswith((POLLS, CODE_WAIT))
    waits = next((seen for seen in poll.observations if seen.code_wait), None)
    if waits is not None and (ours or not unit.counts().queued):
        unit.update_run(waiting_for=f"{CODE_WAIT}task {waits.index}: {_code_wait(waits)}")
    elif known.startswith(CODE_WAIT) or (ours and stretch is not None):
        unit.update_run(waiting_for=stretch_words(stretch or 1.0))


def _code_wait(seen: Observation) -> str | None:
    """Return the reason for which a task waits for its code, without secrets, or ``None``."""
    return seen.code_wait and redaction.printable(redaction.current().text(seen.code_wait))


def _revision(run: Row) -> Revision:
    return run["look_revision"] or 0, run["verified_at"]


def _check_order(unit: Unit, ordered_at: datetime | None, revision: Revision | None) -> None:
    """Raise ``Overtaken`` when this poll would undo newer findings."""
    if revision is not None and revision != _revision(unit.run):
        raise Overtaken(
            f"Run {unit.run_id}: something was recorded since the state was read; poll again"
        )
    if _is_overtaken(unit, ordered_at):
        text = (
            f"A poll of run {unit.run_id}, attempt {unit.attempt}, that was ordered at "
            f"{ordered_at} may no longer "
            f"write: a poll that was ordered at {unit.run['look_ordered_at']} is recorded"
        )
        log.warning("refused a late write: %s", text)
        raise Overtaken(text)


def _is_overtaken(unit: Unit, ordered_at: datetime | None) -> bool:
    last = unit.run["look_ordered_at"]
    return ordered_at is not None and last is not None and ordered_at < last


def _staged(unit: Unit) -> int:
    """Return the number of staged changes."""
    staged = select(func.count()).where(task_finding.c.run_id == unit.run_id)
    return int(unit.conn.execute(staged).scalar_one())


def _report(unit: Unit) -> PollReport:
    counts = checked_counts(unit.conn, unit.run)
    changed = _staged(unit)
    quiet = _quiet(unit.run)
    return made(
        PollReport,
        unit.run,
        changed=changed,
        quiet=quiet,
        active=counts.active,
        queued=counts.queued,
        stop=unit.stop,
    )


def _moved_between(run: Row) -> bool:
    """Return whether counters were written after the last recorded poll, and showed progress."""
    progress = run["last_progress_at"]
    polled = run["verified_at"]
    return progress is not None and polled is not None and bool(progress > polled)


def _quiet(run: Row) -> timedelta:
    return (run["quiet_ms"] or 0) * _MS


def _unsettled(conn: Connection, run_id: int, few: Tasks = None) -> Sequence[Row]:
    t = task_history.c
    query = current_tasks(run_id, task_history).where(t.status.in_(ALIVE)).order_by(t.task_index)
    if few is not None:
        query = query.where(t.task_index.in_(sorted(index for index, _ in few)))
    return conn.execute(query).mappings().all()


def _observed(task: Row, seen: Observation, unit: Unit) -> dict[str, Any] | None:
    """Return the columns of a task after this observation; ``None`` if they are unchanged."""
    ours = task["cluster_uid"] is None or seen.uid is None or seen.uid == task["cluster_uid"]
    if seen.phase is Phase.ABSENT:
        return _missed(task, seen, unit)
    if seen.phase not in _SEEN or not ours:
        return None
    counted = {name: getattr(seen.counters, name) for name in COUNTERS}
    # Live counters may have been written during the poll, so the counters of an executing task must
    # not decrease. Those of an ended task are final.
    later = grown if seen.phase is Phase.EXECUTING else _reported
    # Until a try reports that it started from the beginning, it keeps the counters of the tries
    # that it may continue.
    anew = seen.resumed is False and task["resumed"] is not False
    known = dict.fromkeys(COUNTERS) if anew else task
    new: dict[str, Any] = {name: later(known[name], value) for name, value in counted.items()}
    peaks = [peak for peak in (task["peak_memory"], seen.peak_memory) if peak is not None]
    new |= {
        "cluster_name": task["cluster_name"] or seen.name,
        "cluster_uid": task["cluster_uid"] or seen.uid,
        "node": seen.node or task["node"],
        # The reason for an end is written with the end. Until then, this column explains why the
        # task waits.
        "reason": task["reason"] if seen.phase is Phase.ENDED else _reason(seen),
        "started_at": task["started_at"] or seen.started_at,
        "ever_seen": True,
        "absent_since": None,
        "missed_at": None,
        "last_progress_at": (seen.progress_at or unit.now)
        if moved(task, new)
        else task["last_progress_at"],
        "peak_memory": max(peaks, default=None),
        "fields": task["fields"] if seen.fields is None else asdict(seen.fields),
        "resumed": task["resumed"] if seen.resumed is None else seen.resumed,
        "resume_note": seen.resume_note or task["resume_note"],
        **code_after(task, seen.code),
    }
    return (
        None
        if all(task[name] == value for name, value in new.items())
        else {"task_id": task["task_id"], **new}
    )


def _reason(seen: Observation) -> str | None:
    why = _code_wait(seen)
    parts = [seen.reason, why and f"it is waiting for its code: {why}"]
    return "; ".join(part for part in parts if part) or None


def _last_poll(run: Row, now: datetime) -> datetime | None:
    """Return the time of the last recorded poll.

    If its worker's clock was ahead, return the time when Temporal ordered the poll.
    """
    polled: datetime | None = run["verified_at"]
    return polled and (not_ahead(polled, now) or not_ahead(run["look_ordered_at"], now))


def _reported(known: Any, read: int | None) -> Any:
    return known if read is None else read


def _missed(task: Row, seen: Observation, unit: Unit) -> dict[str, Any] | None:
    """Return the times and the reason for a deployed task that the poll did not find; ``None`` if
    they are unchanged, or if the task was never seen.
    """
    if not (task["ever_seen"] or task["cluster_uid"]):
        return None
    same = {name: task[name] for name in _OBSERVED_ALL}
    new = {**same, "reason": seen.reason or task["reason"]}
    # A time in the future would delay the proof that the task is gone.
    if not_ahead(task["missed_at"], unit.now) is None:
        since = (
            (task["absent_since"] or _last_poll(unit.run, unit.dated) or unit.dated)
            if task["ever_seen"]
            else None
        )
        new |= {"absent_since": since, "missed_at": seen.observed_at}
    return None if new == same else {"task_id": task["task_id"], **new}


def _move(finding: TaskFinding, vouched_at: datetime | None) -> Move:
    change = finding.change
    seen = finding.observation
    ours = None if is_foreign(finding) else seen
    end = ours.end if ours else None
    started = ours.started_at if ours else None
    if started is None and change.after is TaskStatus.RUNNING:
        started = change.cluster_time
    return Move(
        change.task_id,
        change.before,
        change.after,
        cluster_time=change.cluster_time,
        outcome=change.outcome,
        ended_by=change.ended_by,
        cause=change.cause,
        correction=change.correction,
        # A task that never existed was never seen, so its recorded status was wrong from the
        # beginning.
        vouched_at=None if change.correction == CorrectionKind.NEVER_EXISTED else vouched_at,
        evidence=evidence(seen),
        values={
            "reason": end.reason if end else _reason(seen),
            "started_at": started,
            "deployed_at": started if change.before is TaskStatus.QUEUED else None,
            "cluster_name": ours.name if ours else None,
            "cluster_uid": ours.uid if ours else None,
            "node": ours.node if ours else None,
            "exit_code": end.exit_code if end else None,
            "exit_signal": end.signal if end else None,
        },
    )
