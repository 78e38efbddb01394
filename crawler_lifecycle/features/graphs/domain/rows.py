"""The data types of the engine for its state, input and output, and the progress of a graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from .kinds import CONTAINING
from .render import NamedStep
from .spec import GraphState, StepKind, StepState

#: A sub-graph takes the first of these states that one of its steps has, or else ``COMPLETED``.
_WORST_FIRST = (StepState.DISCARDED, StepState.CANCELLED)


@dataclass(slots=True)
class Step:
    """One step in the engine: the row of ``graph_step`` without its job."""

    number: int
    path: str
    kind: StepKind
    parent: int | None
    """The number of the graph or grafting step around it."""
    deps: tuple[int, ...] = ()
    missing: tuple[str, ...] = ()
    """Paths of dependencies that have not been appended yet (``check_deps=False``)."""
    ignore_cancelled: bool = False
    ignore_discarded: bool = False
    graft: bool = False
    long: bool = False
    """True for a function that may take longer than ``SHORT_S``."""
    limit_s: float | None = None
    """Seconds after which the graph itself ends the step (``StepRules.limit``)."""
    priority: int = 0
    queue: str | None = None
    resources: tuple[tuple[tuple[str, str], ...], ...] = ()
    alternative: int | None = None
    """The index of the alternative set of resources that the step uses from its pick to its end."""
    max_parallel: int | None = None
    max_attempts: int = 1
    state: StepState = StepState.SUSPENDED
    attempt: int = 0
    """The number of executions of this step that have begun, over all attempts of the graph."""
    tries: int = 0
    """The number of tries that count against ``max_attempts``. A retry by a person resets it to
    0.
    """
    not_before: datetime | None = None
    """The time before which the step does not start. For a waiting approval, the time at which the
    wait ends.
    """
    batch: int | None = None
    """The number of the only call that may begin the step, until the step ends or the call has
    returned. The number becomes ``None`` again if the step is cancelled, or has to wait again,
    before the call has begun it.
    """
    run_id: int | None = None
    """The run of a crawl, or the number of a manager. A retry resumes this run or manager.
    """
    run_attempt: int = 0
    """The attempt of the run or manager whose end was handled last. Only the end of a later attempt
    counts.
    """
    ending: bool = False
    """True if the step was cancelled and may still be running."""
    outcome: str | None = None
    reason: str | None = None
    """One sentence about what the step is waiting for, who cancelled the step and why, or how the
    step failed.
    """
    unreadable: str | None = None
    """The error in its row, which a manual edit caused. Until the row is repaired, the step counts
    as ``EXECUTING``, and only its call is cleared in the row.
    """


@dataclass(frozen=True, slots=True)
class Batch:
    """The steps of one call, which runs them one after the other. All are functions of one pool. A
    step may depend on earlier steps of the same call, so a chain of steps needs only one call.
    """

    number: int
    steps: tuple[int, ...]
    queue: str | None = None
    long: bool = False


@dataclass(frozen=True, slots=True)
class PickedSteps:
    """The steps that start now."""

    batches: Sequence[Batch] = ()
    begin: Sequence[int] = ()
    """The numbers of crawls and managers."""
    again_at: datetime | None = None
    """The next time at which a scheduled step becomes available or the wait of an approval ends, if
    any.
    """


@dataclass(frozen=True, slots=True)
class StepEnd:
    """The end of one execution of a step."""

    number: int
    attempt: int
    state: StepState
    """The new state of the step is one of these:

    - A final state.
    - ``RETRYABLE``, with ``not_before``.
    - ``SCHEDULED``, with ``not_before``: a ``Snooze``, which does not count as a try.
    - ``AVAILABLE``: the function was not called, and this does not count as a try.
    - ``EXECUTING``: the step has not ended, and ``reason`` shows what it waits for.
    """
    outcome: str | None = None
    reason: str | None = None
    not_before: datetime | None = None
    run_attempt: int = 0
    """The attempt of the crawl or manager that has ended. The step keeps this number."""
    record: Mapping[str, Any] | None = None
    """The value that the dependents of a crawl or approval receive. This value is stored together
    with the end.
    """


# --- results --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StepFacts:
    """The facts about a step that decide what its dependents and readers of its result receive."""

    number: int
    path: str
    kind: StepKind
    state: StepState
    graft: bool = False
    attached: bool = False
    """True for a graft that has attached a graph. The results in that graph replace its own."""
    result_bytes: int | None = None
    """The size of the step's recorded result in bytes, or ``None`` if there is no such result. A
    crawl records ``run_id``, ``status``, ``outcome``, ``pages``, ``items``, ``errors`` and
    ``archive`` when it ends.
    """

    @property
    def recorded(self) -> bool:
        """Return whether the step gives its recorded result."""
        return self.result_bytes is not None and not self.attached

    @property
    def instead(self) -> bytes | None:
        """Return the JSON that the step gives instead of a recorded result, or ``None`` if the step
        gives nothing.
        """
        if self.kind in CONTAINING or self.attached:
            return b"{}"
        if self.state is not StepState.COMPLETED:
            return None
        return b"{}" if self.graft else b"null"


# --- progress -------------------------------------------------------------------------------------


class Row(NamedStep, Protocol):
    """The fields of a step's row that ``status_document`` reads."""

    @property
    def state(self) -> StepState | str: ...
    @property
    def ending(self) -> bool: ...
    @property
    def started_at(self) -> datetime | None: ...
    @property
    def ended_at(self) -> datetime | None: ...


@dataclass
class _Level:
    name: str | None = None
    open: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    starts: list[datetime] = field(default_factory=list)
    ends: list[datetime] = field(default_factory=list)
    subs: dict[str, _Level] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        worst = next((state for state in _WORST_FIRST if self.counts[state]), StepState.COMPLETED)
        return {
            "name": self.name,
            "state": GraphState.EXECUTING.value if self.open else worst.value,
            "total": self.counts.total(),
            "counts": {
                str(state.value): self.counts[state] for state in StepState if self.counts[state]
            },
            "started_at": min(self.starts, default=None),
            "stopped_at": None if self.open else max(self.ends, default=None),
            "subs": {name: level.document() for name, level in self.subs.items()},
        }


def status_document(name: str | None, rows: Iterable[Row]) -> dict[str, Any]:
    """Return the progress of a graph as a document.

    The document contains ``name``, ``state`` (as in ``GraphState``), ``total`` (number of steps),
    ``counts`` (steps by state), ``started_at`` and ``stopped_at``. ``subs`` contains the same
    fields for each sub-graph, by name.
    """
    whole = _Level(name)
    for row in rows:
        *above, last = row.path.split("/")
        levels = [whole]
        for parent in above:
            levels.append(levels[-1].subs.setdefault(parent, _Level()))
        if row.kind in CONTAINING:
            levels.append(levels[-1].subs.setdefault(last, _Level()))
            levels[-1].name = row.job.get("name")
        state = StepState(row.state)
        for level in levels:
            level.open = level.open or row.ending or not state.final
            if row.kind not in CONTAINING:
                level.counts[state] += 1
                level.starts += [row.started_at] if row.started_at else []
                level.ends += [row.ended_at] if row.ended_at else []
    return whole.document()
