"""Ports of graphs: their rows, their steps, the inputs and results of steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from crawler_lifecycle.domain.graph.engine import StepEnd
from crawler_lifecycle.domain.graph.spec import GraphOptions, GraphState, StepKind, StepState
from crawler_lifecycle.domain.run import StopIntent

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GraphFence:
    """A writer's claim on a graph: its write counts only while the graph is at this attempt of this owner."""

    graph_id: int
    attempt: int
    owner_run_id: str


@dataclass(frozen=True, slots=True)
class NewGraph:
    """A graph as its sender describes it. Its steps follow in pages."""

    key: str
    """Its id for people and programs, unique: ``Workflow(id=…)``, ``/v1/graphs/{key}``, workflow ``graph/<key>``."""
    fingerprint: str
    """Of the whole spec (``domain.graph.spec.fingerprint``)."""
    pages: int
    name: str | None = None
    options: GraphOptions = field(default_factory=GraphOptions)
    requested_by: str | None = None
    parent: str | None = None
    """The workflow that is notified of the end."""
    tags: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class GraphRow:
    """One row of ``graph`` as readers see it."""

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
    """The counts of an ended graph; for a live one they are counted when it is read."""
    stop: StopIntent | None = None
    waiting_for: str | None = None
    cause: str | None = None
    """One sentence: the reason of its end."""
    requested_by: str | None = None
    parent: str | None = None
    tags: Sequence[str] = ()
    started_at: datetime | None = None
    """The time when its first step began."""
    ended_at: datetime | None = None
    pruned_at: datetime | None = None
    """The time when its steps and results were removed, long after its end."""
    unreadable: str | None = None


@dataclass(frozen=True, slots=True)
class StepRow:
    """One row of ``graph_step`` as readers see it."""

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
    """``attempt``, ``at``, ``error`` of each execution that failed; the last 20."""
    result_bytes: int | None = None
    """Size of its recorded result; ``None``: it recorded none."""
    snoozed: int = 0


@dataclass(frozen=True, slots=True)
class StepOutline:
    """The fields of a step that are needed to compute the progress of its graph."""

    path: str
    kind: StepKind
    state: StepState
    ending: bool
    job: Mapping[str, Any]
    """For a step that holds others; empty elsewhere."""
    started_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class StepWork:
    """A step with the fields for its execution."""

    number: int
    path: str
    kind: StepKind
    job: Mapping[str, Any]
    deps: Sequence[int]
    attempt: int
    """The attempt of the execution that begins, or would begin."""
    tries: int
    """The counted tries (see ``max_attempts``), this one included."""
    max_attempts: int
    backoff_s: float
    timeout_s: float
    graft: bool = False
    snoozed: int = 0
    run_id: int | None = None
    """``crawl``, ``manager``: the run or manager of a former attempt, which is to be resumed; and its ended attempt."""
    run_attempt: int = 0
    batch: int | None = None
    """The call to which it was given: it begins only while its row names that call."""


@dataclass(frozen=True, slots=True)
class Given:
    """A step as its dependents see it."""

    number: int
    path: str
    kind: StepKind
    state: StepState
    graft: bool = False
    result_bytes: int | None = None
    """Size of its recorded result; ``None``: it recorded none. A crawl records ``run_id``, ``status``, ``outcome``,
    ``pages``, ``items``, ``errors`` and ``archive`` when it ends."""


@dataclass(frozen=True, slots=True)
class Done:
    """The result of one execution of a function, for the record."""

    end: StepEnd
    result: Sequence[bytes] | None = None
    """The recorded value, compressed (``domain.values.packed``); ``None``: nothing was recorded."""
    result_bytes: int = 0
    """Size before compression."""
    error: str | None = None
