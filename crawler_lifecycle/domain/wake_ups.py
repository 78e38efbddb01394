"""Runs that changed, and the signals to their workflows.

A run has at most one poll and one signal at a time. A change that is noticed while the run is being
polled leads to one more poll. So even a thousand changes per second lead to no more polls than the
minimum time between two polls allows. No rule here compares the clocks of two machines.

``now`` is a clock in seconds that only moves forward. The classes are not thread-safe.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime

from crawler_lifecycle.domain.audits.overdue import verification_due

from .run_ref import RunRef

#: The minimum time between two polls of a run, in seconds. A slow poll is followed by a wait of at
#: least twice its duration.
REST_S = 0.2
#: The minimum time between two signals to a run, in seconds.
SIGNAL_GAP_S = 1.0
#: The first and the longest wait after failed tries, in seconds. The wait doubles after each failed
#: try.
RETRY_S = 0.5
RETRY_MAX_S = 30.0
#: Seconds between two failing polls of a run while polls of other runs succeed again.
AGAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class WakeUpState:
    """The fields in a run's row that are needed for a poll without the run's workflow."""

    run: RunRef
    attempt: int
    workflow_id: str | None
    """The workflow id of the run's owner, or ``None`` while no workflow owns the run."""
    owner_run_id: str | None
    ended: bool
    verified_at: datetime | None
    next_look_at: datetime | None = None
    look_gap_ms: int | None = None

    @property
    def due_at(self) -> datetime | None:
        """The time by which the run should be polled."""
        return verification_due(self.next_look_at, self.verified_at, self.look_gap_ms)


#: Tasks by index and attempt, or ``None`` for any task of the run.
Tasks = frozenset[tuple[int, int]] | None
_NO_TASK: Tasks = frozenset()


@dataclass(frozen=True, slots=True)
class Change:
    """Changes of one run that were noticed since its last poll."""

    at: datetime | None = None
    """The time at or before which the newest change happened, or ``None`` if only a poll is
    overdue."""
    tasks: Tasks = _NO_TASK
    """The tasks that changed."""

    def joined(self, other: Change) -> Change:
        """Return both changes as one."""
        at = max((at for at in (self.at, other.at) if at is not None), default=None)
        tasks = None if self.tasks is None or other.tasks is None else self.tasks | other.tasks
        return Change(at, tasks)


@dataclass(slots=True)
class _Run:
    due_at: float = math.inf
    """The time from which the run may be polled, or infinity if there is no new change."""
    change: Change = Change()
    busy: bool = False
    rests_until: float = -math.inf
    failures: int = 0
    failed_at: float = -math.inf

    def idle(self, now: float) -> bool:
        """Return whether nothing about the run has to be remembered."""
        return self.due_at == math.inf and not self.busy and self.rests_until <= now


class Changes:
    """The changed runs that are not polled yet."""

    def __init__(self) -> None:
        self._runs: dict[int, _Run] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def noticed(self, run_id: int, change: Change, now: float, delay: float = 0.0) -> bool:
        """Store a change, and return whether the change leads to a separate poll. ``delay`` is the
        number of seconds for which the poll waits, because another observer may be faster.
        """
        run = self._runs.setdefault(run_id, _Run())
        if change.at is None and run.busy:  # an overdue poll is already under way
            return False
        run.change = run.change.joined(change)
        fresh = run.due_at == math.inf
        if fresh:
            run.due_at = max(now + delay, run.rests_until)
        return fresh

    def take(self, now: float, limit: int) -> list[tuple[int, Change]]:
        """Return the runs to poll now with their changes, starting with the run that has waited
        longest.

        The caller reports each poll with ``polled`` or ``failed``. Runs whose minimum time between
        polls has elapsed are removed, unless they changed again.
        """
        self._runs = {run_id: run for run_id, run in self._runs.items() if not run.idle(now)}
        due = sorted(
            (run.due_at, n) for n, run in self._runs.items() if run.due_at <= now and not run.busy
        )
        taken = []
        for _, run_id in due[:limit]:
            run = self._runs[run_id]
            taken.append((run_id, run.change))
            run.busy = True
            run.due_at = math.inf
            run.change = Change()
        return taken

    def next_at(self) -> float:
        """Return the next time at which ``take`` returns a run, or infinity if there is no such
        time."""
        return min((run.due_at for run in self._runs.values() if not run.busy), default=math.inf)

    def polled(
        self, run_id: int, now: float, seconds: float = 0.0, again_s: float | None = None
    ) -> None:
        """Record that a poll has ended and took ``seconds``. If ``again_s`` is given, another poll
        is needed after this many seconds.
        """
        run = self._runs[run_id]
        run.busy = False
        run.failures = 0
        run.rests_until = now + max(REST_S, 2 * seconds)
        if again_s is not None:
            run.change = run.change.joined(Change(tasks=None))
            run.due_at = min(run.due_at, now + again_s)
        run.due_at = max(run.due_at, run.rests_until)

    def failed(self, run_id: int, change: Change, now: float) -> bool:
        """Record that a poll failed, and return whether this is the first failure in a series. The
        next poll follows after a wait that doubles each time.
        """
        run = self._runs[run_id]
        run.busy, run.change = False, run.change.joined(change)
        run.due_at = now + min(RETRY_S * 2.0 ** min(run.failures, 20), RETRY_MAX_S)
        run.failures += 1
        run.failed_at = now
        return run.failures == 1

    def retry_now(self, now: float) -> None:
        """Make failed polls due now, because the cause of their failures may no longer exist. A run
        whose polls always fail is polled at most once in ``AGAIN_S`` seconds.
        """
        for run in self._runs.values():
            if run.failures and not run.busy:
                run.due_at = min(run.due_at, max(now, run.failed_at + AGAIN_S))


@dataclass(frozen=True, slots=True)
class Signal:
    """A signal to the workflow of a run."""

    run_id: int
    workflow_id: str
    recorded: bool
    """True if a poll was recorded, so that the workflow only has to count tasks. Otherwise the
    workflow has to poll.
    """


class Signals:
    """The signals that are not delivered yet, at most one for each run."""

    def __init__(self) -> None:
        self._waiting: dict[int, Signal] = {}
        self._sent: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, signal: Signal) -> None:
        """Add a signal.

        It replaces a signal that is already waiting, but a requested poll stays requested.
        """
        known = self._waiting.pop(signal.run_id, None)
        recorded = signal.recorded and (known is None or known.recorded)
        self._waiting[signal.run_id] = Signal(signal.run_id, signal.workflow_id, recorded)

    def due(self, now: float, limit: int) -> list[Signal]:
        """Return the signals to send now, starting with the signal that has waited longest.

        The caller reports each delivery with ``sent``.
        """
        self._sent = {run_id: at for run_id, at in self._sent.items() if now - at < SIGNAL_GAP_S}
        return [signal for run_id, signal in self._waiting.items() if run_id not in self._sent][
            :limit
        ]

    def next_at(self) -> float:
        """Return the next time at which ``due`` returns a signal, or infinity if there is no such
        time."""
        return min(
            (self._sent.get(run_id, -math.inf) + SIGNAL_GAP_S for run_id in self._waiting),
            default=math.inf,
        )

    def sent(self, signal: Signal, now: float) -> None:
        """Record that the server has accepted the signal, or that the workflow is closed."""
        self._sent[signal.run_id] = now
        if self._waiting.get(signal.run_id) is signal:
            del self._waiting[signal.run_id]
