"""The form of a graph: steps with path, kind, job, dependencies and options, as they are sent, stored and run.

A graph is flat: a sub-graph, a group and a fan-out are steps of the kind ``graph``, and steps in them have a path that
begins with theirs. So a graph of any size can be cut into pages, and its path identifies a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar

#: The most steps of one graph, grafted and appended ones included.
STEPS_MAX = 20_000
#: The most dependencies of all steps together; a group counts as one dependency for its steps.
DEPS_MAX = 200_000
#: Characters of a name and of a path, and levels of graphs within graphs.
NAME_MAX, PATH_MAX, DEPTH_MAX = 200, 1000, 20
#: Bytes of JSON of a job, and of the context of a graph.
JOB_BYTES, CONTEXT_BYTES = 1024 * 1024, 1024 * 1024
#: The default time limit of a function, in seconds; a function with a longer limit runs in a workflow of its own.
SHORT_S = 60.0
#: Seconds for which a step waits for the archive of its ended run. The archive is tried for a day.
DELIVERY_S = 24 * 3600.0
#: Executions that may be lost with their worker, in addition to ``max_attempts``, before a step is given up.
LOST_MAX = 10


class StepKind(StrEnum):
    """The kind of a step."""

    FUNCTION = "function"
    """A function or a worker, called in a process of the role ``plans``."""
    CRAWL = "crawl"
    MANAGER = "manager"
    GRAPH = "graph"
    """Holds other steps: a sub-graph, a group, a fan-out. It ends with the last of them, or at once when it is
    empty.
    """


class StepState(StrEnum):
    """States of a step (Oban's words)."""

    SUSPENDED = "suspended"
    """Waits for its dependencies."""
    SCHEDULED = "scheduled"
    """Waits for its own time: ``not_before``, or a ``Snooze``."""
    AVAILABLE = "available"
    """It only waits for capacity."""
    EXECUTING = "executing"
    RETRYABLE = "retryable"
    """Failed, and waits for its next try."""
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    DISCARDED = "discarded"
    """Failed for good."""

    @property
    def final(self) -> bool:
        return self in (StepState.COMPLETED, StepState.CANCELLED, StepState.DISCARDED)


class GraphState(StrEnum):
    """States of a graph. By its steps: executing while one is not final, or may still run (``ending``); else discarded
    before cancelled before completed."""

    DRAFT = "draft"
    """Its pages are being sent; nothing runs."""
    EXECUTING = "executing"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    DISCARDED = "discarded"

    @property
    def final(self) -> bool:
        return self not in (GraphState.DRAFT, GraphState.EXECUTING)


@dataclass(frozen=True, slots=True)
class StepSpec:
    """One step."""

    path: str
    """Its name after the names of the graphs that it is in: ``fetch/users``."""
    kind: StepKind
    job: Mapping[str, Any] = field(default_factory=dict)
    """The work of the step. ``function``: ``call`` (``module:qualname``), ``style`` (``plain``: called with ``args`` by
    name; ``worker``: ``process(job)`` of a class; ``cascade``: called with the context; ``item``: with ``item`` and the
    context), ``args``, ``item``, ``record`` (whether what it returns is kept), ``meta``, ``label`` (what pictures
    show). ``crawl``: the fields of a ``RunRequest``. ``manager``: those of a ``NewManager``. ``graph``: ``context``,
    ``name``. Args, items, meta and contexts are as ``domain.values.to_json`` makes them."""
    deps: tuple[str, ...] = ()
    """Names of steps of the same level."""
    ignore_cancelled: bool = False
    """True when a cancelled dependency counts as completed."""
    ignore_discarded: bool = False
    graft: bool = False
    """True when it may attach steps below its own path while it runs; its dependents wait for those too."""
    timeout_s: float = SHORT_S
    max_attempts: int = 1
    backoff_s: float = 1.0
    """Seconds before the second try; each later one waits twice as long, an hour at most."""
    priority: int = 0
    """0 is first, 9 last."""
    not_before: datetime | None = None
    queue: str | None = None
    """A pool of plans workers; ``None``: the common pool."""
    resources: tuple[Mapping[str, str], ...] = ()
    """Alternatives: name -> amount, as an exact fraction (``"1/3"``)."""
    max_parallel: int | None = None
    """``graph``: the most of its steps that may execute at once."""


@dataclass(frozen=True, slots=True)
class GraphOptions:
    """Options of a whole graph."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    check_deps: bool = True
    """True when every dependency must be there from the beginning; else one may be appended later."""
    fail_fast: bool = False
    """True when nothing more starts once a step was discarded."""
    max_parallel: int | None = None
    pools: Mapping[str, str] = field(default_factory=dict)
    """Resource -> its amount; at least the largest need of one step."""


@dataclass(frozen=True, slots=True)
class GraphSpec:
    """A whole graph."""

    steps: Sequence[StepSpec]
    options: GraphOptions = GraphOptions()
    context: Mapping[str, Any] = field(default_factory=dict)
    """For all cascades; the context of a sub-graph is laid over it."""
