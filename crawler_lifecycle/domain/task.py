"""A task: its statuses, observations of it, and the table from an end to status, outcome and cause."""

from __future__ import annotations

import signal as _signals
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from .clocks import surely_before
from .coverage import Coverage
from .ladder import LATE_TOLERANCE_SECONDS
from .run import StopIntent

LOG_TAIL_BYTES = 16 * 1024


def tail(text: str, limit: int = LOG_TAIL_BYTES) -> str:
    """The last bytes of a log, cut at a character."""
    return text.encode("utf-8", "replace")[-limit:].decode("utf-8", "ignore")


def log_tail(data: bytes) -> str:
    """The same of any bytes that a crawler wrote, as text that can be stored."""
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
    """Return whether a task may change from ``current`` to ``new``: only forwards, and never after an end."""
    return not current.terminal and _RANK.get(new, 4) > _RANK[current]


class Phase(StrEnum):
    """The state that a look saw under a task's name."""

    ABSENT = "absent"
    """Nothing there. Not a verdict: the deployment may still be on its way."""
    WAITING = "waiting"
    """It exists and waits for capacity, an image, a slot."""
    EXECUTING = "executing"
    ENDED = "ended"
    GONE = "gone"
    """Proved to be gone without evidence of how it ended."""


@dataclass(frozen=True, slots=True)
class Counters:
    """Numbers that a crawler counted; ``None`` is unknown, which is not zero."""

    pages: int | None = None
    items: int | None = None
    errors: int | None = None
    bytes: int | None = None


#: Reasons of an end by which the crawler's program never began: Kubernetes' own, and ours for init containers.
INIT_FAILED = "InitContainerFailed"
START_FAILURES = ("StartError", "ContainerCannotRun", INIT_FAILED)
#: The pod failed although the crawler in it ended with exit 0: only the crawler's own word makes that a success.
POD_FAILED = "PodFailed"


@dataclass(frozen=True, slots=True)
class End:
    """The evidence of an end, in Kubernetes' words for both kinds of cluster."""

    exit_code: int | None = None
    signal: int | None = None
    reason: str | None = None
    """Kubernetes' reason: Completed, Error, OOMKilled, Evicted, ContainerCannotRun, DeadlineExceeded …"""
    message: str | None = None
    finished_at: datetime | None = None
    finish_reason: str | None = None
    """The reason in the crawler's summary; ``None`` when there was no summary."""
    runner: bool = True
    """True when our runner was around the crawler (its silence then means something)."""
    disruption: str | None = None
    """``evicted`` or ``interrupted`` when the cluster ended it and neither we nor the crawler asked."""
    memory_limit: str | None = None
    by_itself: bool = False
    """True when a runner on another machine says that it got no stop signal. It decides where clocks cannot."""
    stopped: bool | None = None
    """True when our stop ended it, as far as the evidence itself shows that, whatever the clocks of two machines
    say.
    """
    if_not_stopped: str | None = None
    """A text about its deletion before it ended, when we had requested that too: somebody else deleted it if our stop
    came after the end.
    """


@dataclass(frozen=True, slots=True)
class Observation:
    """The report of one complete look about one task."""

    index: int
    attempt: int
    phase: Phase
    observed_at: datetime
    name: str | None = None
    uid: str | None = None
    node: str | None = None
    reason: str | None = None
    """The reason why it waits, or the problem while it executes, as a text for people."""
    changed_at: datetime | None = None
    """The cluster's own time of the last change of phase."""
    started_at: datetime | None = None
    counters: Counters = field(default_factory=Counters)
    progress_at: datetime | None = None
    """The time at which the crawler last wrote its counters."""
    quiet: timedelta | None = None
    """Seconds for which it has written nothing while it executes; ``None``: it never wrote, or this is unknown."""
    peak_memory: int | None = None
    resumed: bool | None = None
    """True when a task of a later attempt continued from saved state; ``None``: a first attempt, or unknown."""
    resume_note: str | None = None
    """The same in words: why it could not, where it could not."""
    fields: Coverage | None = None
    """The fields that its items fill, where it has ended and its runner says so."""
    end: End | None = None


@dataclass(frozen=True, slots=True)
class TaskState:
    """The state of one task, as the database believes it to be."""

    task_id: int
    index: int
    attempt: int
    status: TaskStatus
    since: datetime
    """The time at which this status became true, as far as we know."""
    uid: str | None = None
    ever_seen: bool = False
    """True when any look ever saw it on the cluster."""
    counters: Counters = field(default_factory=Counters)
    offered_until: datetime | None = None
    """A deployment call is on its way until then, by anybody's clock; before that, its absence proves nothing."""
    reason: str | None = None
    """The reason why it waits, in words for a person."""
    missed_at: datetime | None = None
    """The time of the first of the looks in a row that did not find it; ``None``: the last look found it."""
    place: str | None = None
    """The namespace in which it was created, as the cluster names it; ``None``: not created, or the cluster has only
    one.
    """


@dataclass(frozen=True, slots=True)
class Ending:
    """The way in which a task ended."""

    status: TaskStatus
    outcome: str
    cause: str
    retryable: bool = False
    """True when the same task may succeed on another try: no evidence says that it would end in the same way."""


@dataclass(frozen=True, slots=True)
class Change:
    """One status of one task that turned out to be different."""

    task_id: int
    before: TaskStatus
    after: TaskStatus
    cluster_time: datetime | None
    outcome: str | None = None
    cause: str | None = None
    correction: str | None = None
    """Kind of the correction, when the recorded status was untrue and not merely due."""


def signal_name(number: int | None) -> str:
    """``SIGKILL`` for 9; the number where the platform has no name for it."""
    if number is None:
        return "no signal"
    try:
        return _signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def own_exit(code: int | None, finish_reason: str | None, crawlers: int | None) -> int | None:
    """The exit code of a command that had finished: its runner changes a 0 after a stop into 11.

    The finish reason gives the meaning, so the crawler's own code can be reported.
    """
    return 0 if (code, finish_reason, crawlers) == (11, "shutdown", 0) else code


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
    """The stop, unless the cluster dates the end before it: then the stop did not cause that end.

    Kubernetes cuts its times to whole seconds, so an end belongs to a stop within the same second. If a node dates the
    end of a crawler without a stop signal, a stop at about that time came too late.
    """
    if stop is None or end.stopped is not None:
        return stop if end.stopped else None
    if end.finished_at is None:
        return stop
    if end.by_itself:
        return stop if surely_before(stop.requested_at, end.finished_at) else None
    asked = stop.requested_at if end.finished_at.microsecond else stop.requested_at.replace(microsecond=0)
    return None if end.finished_at < asked else stop


def _unasked(end: End) -> End:
    """The evidence of an end that our own stop did not cause: somebody else deleted the task."""
    if end.if_not_stopped is None or end.disruption is not None:
        return end
    return replace(end, disruption="interrupted", message=end.if_not_stopped)


def read_end(end: End, stop: StopIntent | None = None) -> Ending:
    """Status, outcome and cause of an end: the first line that fits (docs/lifecycle.md, "How an end is read").

    Total: every evidence has an answer. ``stop`` is the intent recorded for the run, if there is one.
    """
    stop = stop_counts(end, stop)
    how = _how(end)
    said = end.finish_reason
    if said == "finished" and end.exit_code == 0:
        # All requests to end it came too late, a person's and the cluster's: no clock is needed.
        return Ending(TaskStatus.SUCCEEDED, "finished", f"The crawler finished, exit 0{_beside(end)}")
    end = end if stop is not None else _unasked(end)
    if stop is not None and end.disruption is not None and end.exit_code is None and end.message:
        how = f"{how}: {end.message}"  # the stop was asked for, and the cluster says why nobody saw the end
    if stop is not None and stop.limit is None:
        by = f" by {stop.requested_by}" if stop.requested_by else ""
        if stop.escalated:
            return Ending(TaskStatus.CANCELLED, "cancel_timeout", f"Stop asked{by}, then forced, {how}")
        return Ending(TaskStatus.CANCELLED, "cancelled", f"Stop asked{by}, {how}")
    if stop is not None and stop.limit is not None:
        cause = f"{_LIMIT_WORDS.get(stop.limit, stop.limit)}, {how}"
        return Ending(TaskStatus.FAILED, stop.limit, cause, retryable=stop.limit != "timed_out")
    if end.reason == "OOMKilled":
        limit = f" (limit {end.memory_limit})" if end.memory_limit else ""
        return Ending(TaskStatus.FAILED, "killed by oom", f"Out of memory{limit}, {how}")
    if end.disruption is not None:
        what = end.message or end.reason or end.disruption
        return Ending(TaskStatus.FAILED, end.disruption, f"Ended from outside: {what}, {how}", retryable=True)
    if end.reason == "DeadlineExceeded":
        what = f" ({end.message})" if end.message else ""
        return Ending(TaskStatus.FAILED, "timed_out", f"The cluster's own deadline for it passed{what}, {how}")
    if said == "shutdown":
        cause = f"The crawler was told to shut down, not by us, {how}"
        return Ending(TaskStatus.FAILED, "interrupted", cause, retryable=True)
    return _read_own_end(end, how)


def _beside(end: End) -> str:
    """The problem beside a crawler that says that it finished, in words; empty when there was none."""
    if end.reason == "OOMKilled":
        return ", although the kernel killed a process of it for memory"
    if end.disruption is not None:
        return f", although it was being ended from outside{f' ({end.message})' if end.message else ''}"
    if end.reason == POD_FAILED:
        return f", although its pod failed{f' ({end.message})' if end.message else ''}"
    return ""


#: What our exit codes mean (docs/crawlers.md): status, outcome, words, and whether another try may end better.
_CODES: Mapping[int | None, tuple[TaskStatus, str, str, bool]] = {
    **dict.fromkeys((11, 13, 143), (TaskStatus.FAILED, "interrupted", "It was told to stop, not by us, {how}", True)),
    14: (TaskStatus.SUCCEEDED, "size_limit", "The crawler's own size limit was reached, {how}", False),
    15: (TaskStatus.SUCCEEDED, "time_limit", "The crawler's own time limit was reached, {how}", False),
    18: (TaskStatus.FAILED, "banned", "The site banned the crawler, {how}", True),
    4: (TaskStatus.FAILED, "failed", "The crawler reported bad configuration (never retried), {how}{detail}", False),
    17: (TaskStatus.FAILED, "failed", "The crawler reported a fatal error (never retried), {how}{detail}", False),
}


def _read_own_end(end: End, how: str) -> Ending:
    """The lower half of the table: ends without a request and without a disruption."""
    said, code = end.finish_reason, end.exit_code
    detail = f": {end.message}" if end.message else ""
    if said == "memusage_exceeded":
        return Ending(TaskStatus.FAILED, said, f"The crawler reached its own memory limit, {how}")
    if code == 3 or end.reason == "Evicted":
        what = "The disk is full" if code == 3 else f"It used more local storage than it may{detail}"
        return Ending(TaskStatus.FAILED, "diskusage_exceeded", f"{what}, {how}")
    if end.reason in START_FAILURES:
        return Ending(TaskStatus.FAILED, "failed", f"It could not be started, {how}{detail}")
    if code == 0:
        return _read_zero(end, detail)
    if code in _CODES:
        status, outcome, words, retryable = _CODES[code]
        limit = status is TaskStatus.SUCCEEDED
        return Ending(status, (said if limit else None) or outcome, words.format(how=how, detail=detail), retryable)
    if end.signal is not None:
        return Ending(TaskStatus.FAILED, said or "failed", f"Killed by {how}, which we did not send", retryable=True)
    named = f" with {said!r}" if said and said != "failed" else ""
    return Ending(TaskStatus.FAILED, said or "failed", f"The crawler failed{named}, {how}{detail}", retryable=True)


def _read_zero(end: End, detail: str) -> Ending:
    """Exit 0 is a success only where the crawler says how it ended, or where it has no runner of ours."""
    said = end.finish_reason
    if said:
        return Ending(TaskStatus.SUCCEEDED, said, f"The crawler ended itself with {said!r}, exit 0{_beside(end)}")
    if end.reason == POD_FAILED:
        cause = f"The pod failed although the crawler ended with exit 0{detail}"
    elif end.runner:
        cause = f"It ended without telling how (exit 0, no summary){detail}"
    else:
        return Ending(TaskStatus.SUCCEEDED, "finished", "exit 0")
    return Ending(TaskStatus.FAILED, "failed", cause, retryable=True)


def reconcile(
    task: TaskState, seen: Observation, stop: StopIntent | None, *, due_at: datetime, resumed: bool = False
) -> Change | None:
    """The change that one observation makes to one task, or ``None``.

    Pure, monotone and idempotent: applying the change and reconciling the same observation again gives ``None``, and
    once a task has ended on the cluster every order of observations leads to the same end. ``due_at`` is the moment by
    which a look should have found a change; ``resumed`` says that this is the first look of a resumed run.
    """
    if task.status.terminal or seen.phase is Phase.ABSENT:
        return None
    foreign = task.uid is not None and seen.uid is not None and seen.uid != task.uid
    if foreign or seen.phase is Phase.GONE:
        if foreign:
            kind, cause = "not_ours", f"Another object ({seen.uid}) is under the name of ours ({task.uid})"
        elif task.ever_seen or seen.started_at is not None or seen.changed_at is not None:
            kind, cause = "vanished", "It vanished from the cluster and left no trace of its end"
        else:
            kind, cause = "never_existed", "It was recorded as deployed but never existed on the cluster"
        if stop is not None and not foreign:
            return _stopped_without_trace(task, seen, stop)
        # The history of another object of the same name does not show when ours ended.
        when = None if foreign else seen.changed_at
        return Change(task.task_id, task.status, TaskStatus.LOST, when, "lost", cause, kind)
    if seen.phase is Phase.ENDED:
        end = seen.end or End()
        ending = read_end(end, stop)
        found = _correction(end, seen, stop, due_at, resumed)
        when = end.finished_at or seen.changed_at
        return Change(task.task_id, task.status, ending.status, when, ending.outcome, ending.cause, found)
    after = TaskStatus.PENDING if seen.phase is Phase.WAITING else TaskStatus.RUNNING
    if not task_may_become(task.status, after):
        return None
    return Change(task.task_id, task.status, after, seen.changed_at)


def _stopped_without_trace(task: TaskState, seen: Observation, stop: StopIntent) -> Change:
    """Gone after our own stop: this was requested, so it is no loss and no correction."""
    if stop.limit is None:
        outcome = "cancel_timeout" if stop.escalated else "cancelled"
        return Change(task.task_id, task.status, TaskStatus.CANCELLED, seen.changed_at, outcome, "Stopped and gone")
    cause = f"{_LIMIT_WORDS.get(stop.limit, stop.limit)}; stopped and gone"
    return Change(task.task_id, task.status, TaskStatus.FAILED, seen.changed_at, stop.limit, cause)


def _correction(end: End, seen: Observation, stop: StopIntent | None, due_at: datetime, resumed: bool) -> str | None:
    """The kind of correction, when this end shows that a status was untrue; else ``None``."""
    asked = stop_counts(end, stop) is not None
    end = end if asked else _unasked(end)
    # A crawler that reports a stop signal was still ended from outside when the cluster removed it.
    by_force = end.signal is not None and end.finish_reason is None
    taken_away = end.disruption is not None and end.finish_reason in (None, "shutdown")
    if (by_force or taken_away) and not asked and end.reason != "OOMKilled":
        return "killed"
    if seen.observed_at <= due_at + timedelta(seconds=LATE_TOLERANCE_SECONDS):
        return None
    return "repair" if resumed else "late"
