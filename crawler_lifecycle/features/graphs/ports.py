"""The values of graphs: their rows and steps, and the inputs and results of steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from crawler_lifecycle.domain.names import graph_workflow_id
from crawler_lifecycle.domain.projects import DEFAULT
from crawler_lifecycle.domain.run import StopIntent

from .domain.engine import StepEnd
from .domain.spec import GraphOptions, GraphState, StepKind, StepState

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GraphFence:
    """A writer's permission to change a graph.

    A write counts only while the graph has this attempt and this owner.
    """

    graph_id: int
    attempt: int
    owner_run_id: str


@dataclass(frozen=True, slots=True)
class NewGraph:
    """A graph as its sender describes it. The steps are sent together with this description, or
    afterwards in ``pages``.
    """

    key: str
    """The unique id for people and programs: ``Workflow(id=…)``, ``/v1/graphs/{key}``, workflow
    ``graph/<key>``.
    """
    fingerprint: str
    """The fingerprint of the whole spec (``domain.graph.pages.fingerprint``)."""
    pages: int = 1
    name: str | None = None
    options: GraphOptions = field(default_factory=GraphOptions)
    requested_by: str | None = None
    parent: str | None = None
    """The workflow that is notified when the graph ends."""
    project: str | None = None
    """``None`` means the project of the caller, or of an existing graph."""
    tags: Sequence[str] = ()

    def begun_as(self, row: GraphRow) -> bool:
        """Return whether ``row`` is this graph and was started."""
        same = row.fingerprint == self.fingerprint and self.project in (None, row.project)
        return same and row.state is not GraphState.DRAFT


@dataclass(frozen=True, slots=True)
class GraphRow:
    """One row of the table ``graph``, excluding columns that only the store needs."""

    graph_id: int
    graph_uid: str
    key: str
    name: str | None
    fingerprint: str
    options: GraphOptions
    state: GraphState
    attempt: int
    created_at: datetime
    updated_at: datetime
    pages: int = 1
    owner_run_id: str | None = None
    counts: Mapping[StepState, int] = field(default_factory=dict)
    """The number of steps in each state. The counts of an ended graph are stored; the steps of a
    live graph are counted when it is read.
    """
    stop: StopIntent | None = None
    waiting_for: str | None = None
    cause: str | None = None
    """The reason for the graph's end, in one sentence."""
    requested_by: str | None = None
    parent: str | None = None
    project: str = DEFAULT
    tags: Sequence[str] = ()
    started_at: datetime | None = None
    """The time when the first step of the graph began."""
    ended_at: datetime | None = None
    pruned_at: datetime | None = None
    """The time when the steps and results of the graph were removed, long after its end."""
    unreadable: str | None = None
    """The error in this row, and the fix."""

    @property
    def workflow_id(self) -> str:
        return graph_workflow_id(self.key)


@dataclass(frozen=True, slots=True)
class StepRow:
    """One row of the table ``graph_step``, excluding columns that only the store needs."""

    number: int
    path: str
    kind: str
    state: StepState
    job: Mapping[str, Any]
    deps: Sequence[str] = ()
    attempt: int = 0
    tries: int = 0
    max_attempts: int = 1
    outcome: str | None = None
    reason: str | None = None
    ending: bool = False
    run_id: int | None = None
    not_before: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    errors: Sequence[Mapping[str, Any]] = ()
    """``attempt``, ``at`` and ``error`` of the last 20 executions that failed."""
    result_bytes: int | None = None
    """The size of the step's recorded result in bytes, or ``None`` if there is no such result."""
    snoozed: int = 0


@dataclass(frozen=True, slots=True)
class StepOutline:
    """The fields of a step from which the progress of its graph is computed."""

    path: str
    kind: str
    state: StepState
    ending: bool
    job: Mapping[str, Any]
    """The job of a step that contains other steps; empty for other steps."""
    started_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class StepWork:
    """A step with the fields that its execution needs."""

    number: int
    path: str
    kind: StepKind
    job: Mapping[str, Any]
    deps: Sequence[int]
    attempt: int
    """The attempt of the execution that is about to begin."""
    tries: int
    """The number of tries that count towards ``max_attempts``, including this one."""
    max_attempts: int
    backoff_s: float
    timeout_s: float
    graft: bool = False
    snoozed: int = 0
    run_id: int | None = None
    """The run or manager of an earlier attempt of this step, which is resumed now (kinds ``crawl``
    and ``manager``).
    """
    run_attempt: int = 0
    """The attempt of that run or manager that has ended."""
    batch: int | None = None
    """The call that executes the step. The step begins only while its row names this call."""


@dataclass(frozen=True, slots=True)
class ExecutionEnd:
    """The end of one execution of a step, with the result to record."""

    end: StepEnd
    result: Sequence[bytes] | None = None
    """The recorded value, compressed (``domain.values.packed``), or ``None`` if nothing was
    recorded.
    """
    result_bytes: int = 0
    """The size of the result before compression, in bytes."""
    error: str | None = None
