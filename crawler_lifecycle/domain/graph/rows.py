"""The rows of the engine: its state, its input and its output; and the progress of a graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from .render import Named
from .spec import GraphState, StepKind, StepState

#: The precedence of the steps' ends in the state of the graph around them.
_WORST_FIRST = (StepState.DISCARDED, StepState.CANCELLED)


@dataclass(slots=True)
class Step:
    """One step as the engine keeps it: the row of ``graph_step`` without its job."""

    number: int
    path: str
    kind: StepKind
    parent: int | None
    """Number of the graph, or the grafting step, around it."""
    deps: tuple[int, ...] = ()
    missing: tuple[str, ...] = ()
    """Dependencies that are not there yet (``check_deps=False``)."""
    ignore_cancelled: bool = False
    ignore_discarded: bool = False
    graft: bool = False
    long: bool = False
    """True when it may take more than ``SHORT_S``."""
    priority: int = 0
    queue: str | None = None
    resources: tuple[tuple[tuple[str, str], ...], ...] = ()
    alternative: int | None = None
    """The number of its alternative of resources, held from the pick to its end."""
    max_parallel: int | None = None
    max_attempts: int = 1
    state: StepState = StepState.SUSPENDED
    attempt: int = 0
    """Of this step: executions that have begun, over all attempts of the graph."""
    tries: int = 0
    """The tries that count against ``max_attempts``; a retry by a person starts the count again."""
    not_before: datetime | None = None
    batch: int | None = None
    """The call that it was given to, and that alone may begin it, until the step ends or the call has answered. It is
    taken back when the step is cancelled, or has to wait again, before it was begun."""
    run_id: int | None = None
    """``crawl``: its run; ``manager``: the number of its manager. A retry resumes that one."""
    run_attempt: int = 0
    """The attempt of the run (manager) whose end was handled last: only the end of a later one counts."""
    ending: bool = False
    """True if it was cancelled and may still run."""
    outcome: str | None = None
    reason: str | None = None
    """One sentence: what it waits for, who cancelled it and why, how it failed."""
    unreadable: str | None = None
    """The error that a manual edit left in its row. Until it is repaired the step stays ``EXECUTING``, and only its
    call is cleared in the row.
    """


@dataclass(frozen=True, slots=True)
class Batch:
    """Steps that one call runs, one after the other: functions of one pool. A step after the first may depend on open
    steps of the same call only, so that a chain needs one call and not one for each step.
    """

    number: int
    steps: tuple[int, ...]
    queue: str | None = None
    long: bool = False


@dataclass(frozen=True, slots=True)
class Picked:
    """Everything that is to be started now."""

    batches: Sequence[Batch] = ()
    begin: Sequence[int] = ()
    """Crawls and managers."""
    again_at: datetime | None = None
    """The time at which a step becomes available by itself; ``None``: no step does."""


@dataclass(frozen=True, slots=True)
class StepEnd:
    """The end of an execution of a step, as the prover of the end saw it."""

    number: int
    attempt: int
    state: StepState
    """A final one; ``RETRYABLE``, or ``SCHEDULED`` (a ``Snooze``: no try) with ``not_before``; or ``AVAILABLE``: it was
    begun and not called, and nothing of the attempt counts. ``EXECUTING``: it has not ended, and ``reason`` says what
    it waits for."""
    outcome: str | None = None
    reason: str | None = None
    not_before: datetime | None = None
    run_attempt: int = 0
    """``crawl``, ``manager``: the attempt of the run that has ended; the step keeps it."""
    record: Mapping[str, Any] | None = None
    """``crawl``: the value for its dependents. It is written with the end, and stays."""


# --- progress ---------------------------------------------------------------------------------------------------------


class Row(Named, Protocol):
    """The fields that are needed of the row of a step."""

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
            "counts": {str(state.value): self.counts[state] for state in StepState if self.counts[state]},
            "started_at": min(self.starts, default=None),
            "stopped_at": None if self.open else max(self.ends, default=None),
            "subs": {name: level.document() for name, level in self.subs.items()},
        }


def status_document(name: str | None, rows: Iterable[Row]) -> dict[str, Any]:
    """``name``, ``state`` (executing while a step is not final, or may run still; else discarded before cancelled
    before completed), ``total`` and ``counts`` of jobs, ``started_at``, ``stopped_at``; ``subs``: the same by name."""
    whole = _Level(name)
    for row in rows:
        *above, last = row.path.split("/")
        levels = [whole]
        for one in above:
            levels.append(levels[-1].subs.setdefault(one, _Level()))
        if row.kind == StepKind.GRAPH:
            levels.append(levels[-1].subs.setdefault(last, _Level()))
            levels[-1].name = row.job.get("name")
        state = StepState(row.state)
        for level in levels:
            level.open = level.open or row.ending or not state.final
            if row.kind != StepKind.GRAPH:
                level.counts[state] += 1
                level.starts += [row.started_at] if row.started_at else []
                level.ends += [row.ended_at] if row.ended_at else []
    return whole.document()
