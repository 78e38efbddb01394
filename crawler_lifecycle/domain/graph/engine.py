"""What becomes of a graph: a pure engine over integers.

A step is a number: its place in the order in which steps were added. Unmet dependencies are counted and never searched
for again, so that a graph costs O(edges) in all. The engine knows no clock and no database: it is made of rows, told
what happened, and says which rows have changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from crawler_lifecycle.domain.graph.spec import GraphOptions, GraphState, StepKind, StepSpec, StepState


@dataclass(slots=True)
class Step:
    """One step as the engine keeps it: the row of ``graph_step`` without its job."""

    number: int
    path: str
    kind: StepKind
    parent: int | None
    """Number of the graph, or the grafter, that it is in."""
    deps: tuple[int, ...] = ()
    missing: tuple[str, ...] = ()
    """Dependencies that are not there yet (``check_deps=False``)."""
    ignore_cancelled: bool = False
    ignore_discarded: bool = False
    graft: bool = False
    long: bool = False
    """Whether it may take more than ``SHORT_S``."""
    priority: int = 0
    queue: str | None = None
    resources: tuple[tuple[tuple[str, str], ...], ...] = ()
    max_parallel: int | None = None
    max_attempts: int = 1
    state: StepState = StepState.SUSPENDED
    attempt: int = 0
    """Of this step: executions that have begun, over all attempts of the graph."""
    tries: int = 0
    """Of those, the ones that count against ``max_attempts``; a retry by a person begins anew."""
    not_before: datetime | None = None
    batch: int | None = None
    """The call that it was given to, while it has not answered."""
    run_id: int | None = None
    """``crawl``: its run; ``manager``: the number of its manager. A retry resumes that one."""
    run_attempt: int = 0
    """The attempt of that run (manager) whose end was taken in last: only the end of a later one counts."""
    ending: bool = False
    """Cancelled, and it is not proved yet that nothing of it runs."""
    outcome: str | None = None
    reason: str | None = None
    """One sentence: what it waits for, who cancelled it and why, how it failed."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Steps that one call runs, one after the other: functions of one pool. A step after the first may depend on those
    before it and on nothing else that is open, so that a chain needs one call and not one for each step."""

    number: int
    steps: tuple[int, ...]
    queue: str | None = None
    long: bool = False


@dataclass(frozen=True, slots=True)
class Picked:
    """What is to be started now."""

    batches: Sequence[Batch] = ()
    begin: Sequence[int] = ()
    """Crawls and managers."""
    again_at: datetime | None = None
    """When a step becomes available by itself; ``None``: none does."""


@dataclass(frozen=True, slots=True)
class StepEnd:
    """How an execution of a step ended, as seen by whoever proved it."""

    number: int
    attempt: int
    state: StepState
    """A final one; ``RETRYABLE``, or ``SCHEDULED`` (a ``Snooze``: no try) with ``not_before``; or ``AVAILABLE``: it was
    begun and not called, and nothing of the attempt counts."""
    outcome: str | None = None
    reason: str | None = None
    not_before: datetime | None = None
    run_attempt: int = 0
    """``crawl``, ``manager``: the attempt of the run that has ended; the step keeps it."""


@dataclass
class Graph:
    """The states of a graph, and the rules by which they change. ``changed`` collects the numbers of changed steps.

    Made of rows, it takes in the ends that calls have recorded in them meanwhile: their dependents become free, or are
    cancelled.
    """

    options: GraphOptions
    steps: list[Step]
    next_batch: int = 1
    changed: set[int] = field(default_factory=set)
    added: list[tuple[Step, StepSpec]] = field(default_factory=list)
    """What ``add`` has appended, to be stored."""

    def ended(self, ends: Iterable[StepEnd]) -> None:
        """Take ends in: dependents become free, or are cancelled. One that is late (another attempt, final already)
        changes nothing, but that a cancelled step is not ``ending`` any more."""
        raise NotImplementedError

    def released(self, batches: Collection[int]) -> None:
        """These calls have answered or died: what they did not begin waits again, what they began and did not end
        begins again as the next attempt, unless it has ``max_attempts + LOST_MAX`` tries."""
        raise NotImplementedError

    def pick(self, now: datetime, *, batches: int, begin: int) -> Picked:
        """What starts now, by priority and number, within ``max_parallel``, resources and these numbers of calls and
        of crawls. Reserves while it picks: ``batch`` is set, and crawls and managers are ``EXECUTING``."""
        raise NotImplementedError

    def cancel(self, numbers: Collection[int] | None, reason: str) -> int:
        """Cancel these (``None``: all), what is in them, and what depends on them. How many had not ended. One that
        executes is ``CANCELLED`` with ``ending``."""
        raise NotImplementedError

    def retry(self, numbers: Collection[int] | None, *, cascade: bool, fresh: bool = False) -> int:
        """Let these (``None``: all that were discarded, cancelled, or wait for their next try) begin anew; how many.
        Completed ones only when they are named. ``cascade``: with the dependents that were cancelled because of them.
        ``fresh``: crawls get a new run (``run_id`` and ``run_attempt`` are forgotten).
        Raises ``InvalidRequest`` for one that executes still (``ending``)."""
        raise NotImplementedError

    def add(self, specs: Sequence[StepSpec], below: int | None = None) -> list[Step]:
        """Append steps to the graph, or (``below``) graft them under the step that grafts. Raises ``InvalidRequest``
        naming step, value and cure, and changes nothing then."""
        raise NotImplementedError

    @property
    def state(self) -> GraphState:
        raise NotImplementedError

    def counts(self) -> dict[StepState, int]:
        """Steps by state, those of the kind ``graph`` left out."""
        raise NotImplementedError

    def waiting(self, number: int) -> str | None:
        """One sentence: what an unfinished step waits for."""
        raise NotImplementedError
