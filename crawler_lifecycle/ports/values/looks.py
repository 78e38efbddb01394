"""What one look finds, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from crawler_lifecycle.domain.run import StopIntent
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import Change, Counters, Observation, TaskState


@dataclass(frozen=True, slots=True)
class ObserverHealth:
    """Whether an observer sees now, and how it stands."""

    up: bool
    problem: str | None = None
    """Why it sees nothing."""
    watched: int = 0
    """Tasks it has its eyes on."""
    place: int = 0
    """How many observers of the same cluster were there before it. They wake first; later ones leave them a moment."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What the crawler of one task that executes has counted so far, read between looks."""

    run: RunRef
    attempt: int
    index: int
    counters: Counters
    at: datetime | None = None
    """When the crawler last wrote its counters, as far as it says so."""


@dataclass(frozen=True, slots=True)
class Look:
    """One complete reading of the cluster for one run. An incomplete reading is an error, not a look."""

    observed_at: datetime
    seconds: float
    observations: Sequence[Observation]
    again_s: float | None = None
    """Seconds after which the cluster wants to be looked at again, when something is not yet proved."""


@dataclass(frozen=True, slots=True)
class Details:
    """Debugging information about one task, read from the cluster."""

    task_id: int
    log_tail: str | None = None
    counters: Counters = field(default_factory=Counters)
    peak_memory: int | None = None
    statistics: Mapping[str, int | float] | None = None
    """What the crawler's own statistics were at its end, within their bounds; ``None``: nobody told."""


@dataclass(frozen=True, slots=True)
class LookReport:
    """What a look changed or will change, after the store has staged its findings."""

    changed: int
    active: int
    queued: int
    stop: StopIntent | None = None
    """The stop intent now on record, which may have come past the workflow (through the gateway)."""
    quiet: timedelta = timedelta(0)
    """For how long looks vouch that nothing moved (``domain.stall``)."""
    pages: int | None = None
    items: int | None = None
    errors: int | None = None


@dataclass(frozen=True, slots=True)
class FoundState:
    """The state of a run against which a look is compared, read in one transaction."""

    tasks: Sequence[TaskState]
    stop: StopIntent | None
    next_look_at: datetime | None
    last_progress_at: datetime | None
    counters: Counters


@dataclass(frozen=True, slots=True)
class TaskFinding:
    """One change that a look found, with the observation that proves it, staged until ``sync_statuses``."""

    change: Change
    observation: Observation
