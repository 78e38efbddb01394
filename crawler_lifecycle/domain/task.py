"""A task: its statuses, the observations of tasks, and the rules that turn an end into a status, an
outcome and a cause.
"""

from __future__ import annotations

import signal as _signals
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from .blocked import BlockReport
from .clocks import surely_before
from .code import Code
from .coverage import Coverage
from .ended_by import EndedBy
from .ends import BANNED, DISK_FULL, FINAL, FINISHED, PLAIN, RUNNER, SUCCESSES, Reading
from .polling_schedule import LATE_TOLERANCE_SECONDS
from .quick import quick_dataclass
from .retries import NEVER
from .run import StopIntent

#: The size of the part of a task's log that is kept, in bytes. MariaDB and MySQL store this part in
#: pages of 16 KiB with headers, and a part of this size fits into one page.
LOG_TAIL_BYTES = 16_000


def tail(text: str, limit: int = LOG_TAIL_BYTES) -> str:
    """Return the last ``limit`` bytes of a log, omitting a partial character at the beginning."""
    return text.encode("utf-8", "replace")[-limit:].decode("utf-8", "ignore")


def log_tail(data: bytes) -> str:
    """Return the tail of a crawler's output, which can be any bytes, as a string that every
    database can store.
    """
    return tail(data[-LOG_TAIL_BYTES:].decode("utf-8", "replace").replace("\0", ""))


class TaskStatus(StrEnum):
    """Status of a task."""

    QUEUED = "QUEUED"
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    LOST = "LOST"

    @property
    def terminal(self) -> bool:
        return self in TERMINAL

    @property
    def active(self) -> bool:
        return self in ACTIVE


ACTIVE = (TaskStatus.PENDING, TaskStatus.RUNNING, TaskStatus.STOPPING)
ALIVE = (TaskStatus.QUEUED, *ACTIVE)
TERMINAL = (TaskStatus.SUCCEEDED, TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.LOST)

_RANK = {TaskStatus.QUEUED: 0, TaskStatus.PENDING: 1, TaskStatus.RUNNING: 2, TaskStatus.STOPPING: 3}


def task_may_become(current: TaskStatus, new: TaskStatus) -> bool:
    """Return whether a task may change from ``current`` to ``new``. A status only changes forward,
    and never after an end.
    """
    return not current.terminal and _RANK.get(new, 4) > _RANK[current]


class Phase(StrEnum):
    """The state of a task as a poll found it on the cluster."""

    ABSENT = "absent"
    """The task is not on the cluster, but its deployment may still be under way. This does not mean
    that it has ended.
    """
    WAITING = "waiting"
    """The task exists and waits for capacity, an image or a slot."""
    EXECUTING = "executing"
    ENDED = "ended"
    GONE = "gone"
    """The task is proved to be gone, without evidence of its outcome."""


@quick_dataclass(frozen=True, slots=True)
class Counters:
    """Numbers that a crawler counted. ``None`` means unknown, not zero."""

    pages: int | None = None
    items: int | None = None
    errors: int | None = None
    bytes: int | None = None


#: Reasons for ends before the crawler's program began: two from Kubernetes, and our own reason for
#: a failed init container.
INIT_FAILED = "InitContainerFailed"
START_FAILURES = ("StartError", "ContainerCannotRun", INIT_FAILED)
#: The pod failed although its crawler ended with exit 0. This is a success only if the crawler's
#: summary reports a success.
POD_FAILED = "PodFailed"


@quick_dataclass(frozen=True, slots=True)
class End:
    """The evidence of an end. Both kinds of clusters use Kubernetes terms."""

    exit_code: int | None = None
    """The crawler's own exit code, or the runner's exit code if only that is known."""
    signal: int | None = None
    reason: str | None = None
    """The reason in Kubernetes: Completed, Error, OOMKilled, Evicted, ContainerCannotRun,
    DeadlineExceeded …
    """
    message: str | None = None
    finished_at: datetime | None = None
    finish_reason: str | None = None
    """The reason in the crawler's summary, or ``None`` if there was no summary."""
    runner: bool = True
    """True if our runner started the crawler. A missing summary is then a sign of a failure."""
    disruption: str | None = None
    """``evicted`` or ``interrupted`` if the cluster ended the task and neither this service nor the
    crawler requested the end; ``lost`` if the cluster only reports that the task no longer exists.
    """
    memory_limit: str | None = None
    by_itself: bool = False
    """True if a runner on another machine reports that it received no stop signal. The clocks of
    two machines alone cannot always show whether a stop came before the end.
    """
    stopped: bool | None = None
    """True or false if the evidence itself shows whether our stop ended the task. If it is
    ``None``, the times of the stop and of the end are compared.
    """
    if_not_stopped: str | None = None
    """A note about a task that was deleted around the time when we requested its end. The text is
    used if our stop came after the end, because then the deletion came from outside.
    """
    verdict: int | None = None
    """Our runner's exit code (``runner/contract.py``), if it differs from the crawler's own exit
    code."""
    told: bool = False
    """True if our runner forwarded a stop signal before the crawler's end."""


@quick_dataclass(frozen=True, slots=True)
class Observation:
    """The state of one task, as one complete poll found it."""

    index: int
    attempt: int
    phase: Phase
    observed_at: datetime
    name: str | None = None
    uid: str | None = None
    node: str | None = None
    reason: str | None = None
    """A note for people: the reason why the task is waiting, or the problem of an executing
    task."""
    changed_at: datetime | None = None
    """The time of the last change of phase, by the cluster's clock."""
    started_at: datetime | None = None
    counters: Counters = field(default_factory=Counters)
    progress_at: datetime | None = None
    """The time at which the crawler last wrote its counters."""
    quiet: timedelta | None = None
    """The time since the executing task last wrote anything, or ``None`` if the task never wrote
    anything or the time is unknown.
    """
    peak_memory: int | None = None
    resumed: bool | None = None
    """For a task in a resumed run, whether it continued from saved state. ``None`` for a first
    attempt, or if unknown.
    """
    resume_note: str | None = None
    """A note about the resume, such as the reason why the task could not continue from saved state.
    """
    blocked: tuple[BlockReport, ...] | None = None
    """The refused requests that the crawler reports, new and old ones."""
    fields: Coverage | None = None
    """The fields in which the task's items have values, if the task has ended and its runner
    reports these fields.
    """
    end: End | None = None
    code: Code | None = None
    """The code that the task executes, as far as this poll can know it."""
    code_wait: str | None = None
    """The reason for which an executing task still waits for its code."""


@dataclass(frozen=True, slots=True)
class TaskState:
    """The state of one task according to the database."""

    task_id: int
    index: int
    attempt: int
    status: TaskStatus
    since: datetime
    """The time at which the task entered this status, if known."""
    uid: str | None = None
    ever_seen: bool = False
    """True if at least one poll has found the task on the cluster."""
    counters: Counters = field(default_factory=Counters)
    offered_until: datetime | None = None
    """The time until which a deployment call can still create the task, by any machine's clock.
    Before that time, the absence of the task proves nothing.
    """
    reason: str | None = None
    """A note for people: the reason why the task is waiting."""
    missed_at: datetime | None = None
    """The time of the first poll in the latest series of polls that did not find the task, or
    ``None`` if the last poll found the task.
    """
    run_attempt: int = 1
    """The attempt of the run to which this try belongs."""
    place: str | None = None
    """The namespace in which the task was created, or ``None`` if the task was not created or the
    cluster has no namespaces.
    """


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a task: its status, its outcome and its cause."""

    status: TaskStatus
    outcome: str
    cause: str
    retryable: bool = False
    """True if another try can succeed, because no evidence shows that the next try would end in the
    same way.
    """
    ended_by: EndedBy = EndedBy.CRAWLER


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one task's status."""

    task_id: int
    before: TaskStatus
    after: TaskStatus
    cluster_time: datetime | None
    outcome: str | None = None
    cause: str | None = None
    correction: str | None = None
    """The kind of the correction, or ``None`` if the change is normal lag."""
    ended_by: EndedBy | None = None
    """``None`` if the change is not an end."""


def signal_name(number: int | None) -> str:
    """Return the name of a signal, such as ``SIGKILL`` for 9, or its number if this platform has no
    name for it.
    """
    if number is None:
        return "no signal"
    try:
        return _signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def told_exit(
    code: int | None, runners: int | None, crawlers: int | None, told: bool
) -> tuple[int | None, int | None]:
    """Return ``exit_code`` and ``verdict`` of an end, from the exit code of a process that our
    runner started.

    ``runners``, ``crawlers`` and ``told`` are the values ``exit``, ``own_exit`` and
    ``told_to_stop`` of its summary, if there is one. If the crawler's own code is unknown, the
    runner may have chosen the code.
    """
    if runners != code or crawlers is None:
        return code, code if code in _VERDICTS else None
    return crawlers, code if code != crawlers or (told and code in _STOPPED) else None


def _how(end: End) -> str:
    signal = signal_name(end.signal) if end.signal is not None else ""
    code = f"exit {end.exit_code}" if end.exit_code is not None else ""
    return ", ".join(filter(None, (signal, code))) or "exit code unknown"


_LIMIT_WORDS = {
    "start_timeout": "It did not start in time (start_timeout_s)",
    "timed_out": "It ran longer than run_timeout_s allows",
    "cancelled (stalled)": "It showed no sign of life for stall_timeout_s",
}


def stop_counts(end: End, stop: StopIntent | None) -> StopIntent | None:
    """Return the stop, or ``None`` if the stop did not cause the end because the end came first.
    Kubernetes truncates its times to whole seconds, so a stop within the same second counts as the
    cause. If the crawler received no stop signal (``by_itself``), the stop counts only if it
    certainly came before the end.
    """
    if stop is None or end.stopped is not None:
        return stop if end.stopped else None
    if end.finished_at is None:
        return stop
    if end.by_itself:
        return stop if surely_before(stop.requested_at, end.finished_at) else None
    asked = (
        stop.requested_at
        if end.finished_at.microsecond
        else stop.requested_at.replace(microsecond=0)
    )
    return None if end.finished_at < asked else stop


def _unasked(end: End) -> End:
    """Return the evidence of an end that our stop did not cause. If the task was deleted, the
    deletion came from outside.
    """
    if end.if_not_stopped is None or end.disruption is not None:
        return end
    return replace(end, disruption="interrupted", message=end.if_not_stopped)


def read_end(end: End, stop: StopIntent | None = None, ends: Reading | None = None) -> Ending:
    """Return the status, the outcome and the cause of an end.

    The first matching rule of the table in docs/lifecycle.md, "Outcomes of tasks", applies. Any
    evidence leads to a result. ``stop`` is the recorded stop of the run. ``ends`` defines how the
    crawler's exit codes and finish reasons are interpreted, and is ``None`` if the crawler's
    catalogue entry is not available.
    """
    stop = stop_counts(end, stop)
    how = _how(end)
    said = end.finish_reason
    if said == "finished" and end.exit_code == 0:
        # The crawler finished before a request to end it could have any effect, so no times are
        # compared.
        return Ending(
            TaskStatus.SUCCEEDED, "finished", f"The crawler finished, exit 0{_beside(end)}"
        )
    end = end if stop is not None else _unasked(end)
    if stop is not None and end.disruption is not None and end.exit_code is None and end.message:
        how = f"{how}: {end.message}"  # the message explains why the exit code is unknown
    failed = TaskStatus.FAILED
    if stop is not None and stop.limit is None:
        by = f" by {stop.requested_by}" if stop.requested_by else ""
        outcome, forced = (
            ("cancel_timeout", ", then forced") if stop.escalated else ("cancelled", "")
        )
        cause = f"Stop requested{by}{forced}, {how}"
        return Ending(TaskStatus.CANCELLED, outcome, cause, ended_by=EndedBy.PERSON)
    if stop is not None and stop.limit is not None:
        cause = f"{_LIMIT_WORDS.get(stop.limit, stop.limit)}, {how}"
        again = stop.limit != "timed_out"
        return Ending(failed, stop.limit, cause, again, stop.ended_by)
    if end.reason == "OOMKilled":
        limit = f" (limit {end.memory_limit})" if end.memory_limit else ""
        return Ending(
            failed, "killed by oom", f"Out of memory{limit}, {how}", ended_by=EndedBy.LIMIT
        )
    if end.disruption is not None:
        what = end.message or end.reason or end.disruption
        status = TaskStatus.LOST if end.disruption == "lost" else failed
        return Ending(
            status, end.disruption, f"Ended from outside: {what}, {how}", True, EndedBy.CLUSTER
        )
    if end.reason == "DeadlineExceeded":
        what = f" ({end.message})" if end.message else ""
        cause = f"The cluster's own deadline for it passed{what}, {how}"
        return Ending(failed, "timed_out", cause, ended_by=EndedBy.CLUSTER)
    if end.told and end.verdict in _STOPPED:
        cause = f"Somebody else stopped the crawler, {how}"
        return Ending(failed, "interrupted", cause, True, EndedBy.CLUSTER)
    return _read_own_end(end, how, ends or (RUNNER if end.verdict is not None else PLAIN))


def _beside(end: End) -> str:
    """Return a phrase about a problem that occurred although the crawler itself succeeded, or an
    empty string."""
    if end.reason == "OOMKilled":
        return ", although the kernel killed one of its processes for memory"
    if end.disruption is not None:
        return (
            ", although it was being ended from "
            f"outside{f' ({end.message})' if end.message else ''}"
        )
    if end.reason == POD_FAILED:
        return f", although its pod failed{f' ({end.message})' if end.message else ''}"
    return ""


#: Our runner's verdicts after it forwarded a stop (whether or not the crawler then stopped
#: properly), and all its verdicts.
_STOPPED = (11, 13)
_VERDICTS = (0, 1, 3, 4, *_STOPPED)


def _read_own_end(end: End, how: str, ends: Reading) -> Ending:
    """Return the ending by the lower half of the table, which applies to ends without a stop or a
    disruption.
    """
    # The word ``shutdown`` does not prove that the crawler was stopped from outside.
    said = None if end.finish_reason == "shutdown" else end.finish_reason
    # Our runner's verdict is not the crawler's exit code.
    code = end.exit_code if end.verdict is None else end.verdict
    meaning = (ends if end.verdict is None else RUNNER).codes.get(code or 0)
    detail = f": {end.message}" if end.message else ""
    if meaning == DISK_FULL or end.reason == "Evicted":
        full = meaning == DISK_FULL
        what = "The disk is full" if full else f"It used more local storage than it may{detail}"
        by = EndedBy.CRAWLER if full else EndedBy.LIMIT
        return Ending(TaskStatus.FAILED, DISK_FULL, f"{what}, {how}", ended_by=by)
    if end.reason in START_FAILURES:
        return Ending(TaskStatus.FAILED, "failed", f"It could not be started, {how}{detail}")
    if code == 0 and said is None:
        return _read_zero(end, detail)
    if meaning in SUCCESSES:
        said = said or meaning
    if (code == 0 or meaning in SUCCESSES) and not ends.fails(said):
        cause = f"The crawler ended itself with {said!r}, {how}{_beside(end)}"
        return Ending(TaskStatus.SUCCEEDED, str(said), cause)
    if meaning == BANNED:
        return Ending(
            TaskStatus.FAILED, BANNED, f"The site banned the crawler, {how}", retryable=True
        )
    if end.signal is not None:
        return Ending(
            TaskStatus.FAILED,
            said or "failed",
            f"Killed by {how}, which we did not send",
            retryable=True,
        )
    named = f" with {said!r}" if said and said != "failed" else ""
    final = " for good (never retried)" if meaning == FINAL else ""
    cause = f"The crawler failed{named}{final}, {how}{detail}"
    return Ending(
        TaskStatus.FAILED, said or "failed", cause, retryable=not final and said not in NEVER
    )


def _read_zero(end: End, detail: str) -> Ending:
    """Return the ending for exit 0 without a reported reason. It is a success only if our runner
    did not start the crawler.
    """
    if end.reason == POD_FAILED:
        cause = f"The pod failed although the crawler ended with exit 0{detail}"
    elif end.finish_reason:
        cause = f"The crawler reports that it was stopped, but nobody stopped it (exit 0){detail}"
    elif end.runner:
        cause = f"It ended without a summary (exit 0){detail}"
    else:
        return Ending(TaskStatus.SUCCEEDED, FINISHED, "exit 0")
    return Ending(TaskStatus.FAILED, "failed", cause, retryable=True)


def reconcile(
    task: TaskState,
    seen: Observation,
    stop: StopIntent | None,
    *,
    due_at: datetime,
    resumed: bool = False,
    ends: Reading | None = None,
) -> Change | None:
    """Return the change of one task that follows from one observation, or ``None`` if nothing
    changes.

    The function is pure and idempotent: after the change is applied, the same observation gives
    ``None``. After a task has ended on the cluster, observations in any order lead to the same end.
    ``due_at`` is the time by which a poll should have found a change. ``resumed`` is true for the
    first poll after a resume. For ``ends``, see ``read_end``.
    """
    if task.status.terminal or seen.phase is Phase.ABSENT:
        return None
    foreign = task.uid is not None and seen.uid is not None and seen.uid != task.uid
    if foreign or seen.phase is Phase.GONE:
        if foreign:
            kind = "not_ours"
            cause = f"Another object ({seen.uid}) has the name of our object ({task.uid})"
        elif task.ever_seen or seen.started_at is not None or seen.changed_at is not None:
            kind = "vanished"
            cause = "It vanished from the cluster and left no trace of its end"
        else:
            kind = "never_existed"
            cause = "It was recorded as deployed but never existed on the cluster"
        if stop is not None and not foreign:
            return _stopped_without_trace(task, seen, stop)
        # The times of another object with the same name prove nothing about our object's end.
        when = None if foreign else seen.changed_at
        return Change(
            task.task_id, task.status, TaskStatus.LOST, when, "lost", cause, kind, EndedBy.CLUSTER
        )
    if seen.phase is Phase.ENDED:
        end = seen.end or End()
        ending = read_end(end, stop, ends)
        found = _correction(end, seen, stop, due_at, resumed)
        when = end.finished_at or seen.changed_at
        how = (ending.outcome, ending.cause, found, ending.ended_by)
        return Change(task.task_id, task.status, ending.status, when, *how)
    after = TaskStatus.PENDING if seen.phase is Phase.WAITING else TaskStatus.RUNNING
    if not task_may_become(task.status, after):
        return None
    return Change(task.task_id, task.status, after, seen.changed_at)


def _stopped_without_trace(task: TaskState, seen: Observation, stop: StopIntent) -> Change:
    """Return the change for a task that is gone after our own stop. This end is neither a loss nor
    a correction.
    """
    status = TaskStatus.CANCELLED
    cause = "Stopped and gone"
    outcome = "cancel_timeout" if stop.escalated else "cancelled"
    if stop.limit is not None:
        status = TaskStatus.FAILED
        outcome = stop.limit
        cause = f"{_LIMIT_WORDS.get(stop.limit, stop.limit)}; stopped and gone"
    return Change(
        task.task_id, task.status, status, seen.changed_at, outcome, cause, ended_by=stop.ended_by
    )


def _correction(
    end: End, seen: Observation, stop: StopIntent | None, due_at: datetime, resumed: bool
) -> str | None:
    """Return the kind of correction if this end shows that the recorded status was wrong, and
    otherwise ``None``.
    """
    asked = stop_counts(end, stop) is not None
    end = end if asked else _unasked(end)
    # If the cluster ended the task, the crawler's own word ``shutdown`` does not change that.
    by_force = end.signal is not None and end.finish_reason is None
    taken_away = end.disruption is not None and end.finish_reason in (None, "shutdown")
    if (by_force or taken_away) and not asked and end.reason != "OOMKilled":
        return "vanished" if end.disruption == "lost" else "killed"
    if seen.observed_at <= due_at + timedelta(seconds=LATE_TOLERANCE_SECONDS):
        return None
    return "repair" if resumed else "late"
