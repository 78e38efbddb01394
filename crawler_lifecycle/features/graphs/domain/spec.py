"""The definition of a graph: steps with path, kind, job, dependencies and options, as they are
sent, stored and run.

A graph is a flat list of steps. A sub-graph, a group and a fan-out are steps of the kind ``graph``;
the paths of the steps in them begin with their path. The path identifies a step, and a list of any
size can be cut into pages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar

#: The maximum number of steps in one graph, including grafted and appended steps.
STEPS_MAX = 20_000
#: The maximum number of dependencies of all steps together. A dependency on a group counts once,
#: whatever its size.
DEPS_MAX = 200_000
#: The maximum numbers of characters in a name and in a path, and of levels of nested graphs.
NAME_MAX = 200
PATH_MAX = 1000
DEPTH_MAX = 20
#: The maximum numbers of bytes of JSON for a job, and for the context of a graph.
JOB_BYTES = 1024 * 1024
CONTEXT_BYTES = 1024 * 1024
#: The default time limit of a function, in seconds. A function with a longer limit runs in its own
#: workflow.
SHORT_S = 60.0
#: The number of executions, beyond ``max_attempts``, whose workers may die before the step is
#: discarded.
LOST_MAX = 10


class StepKind(StrEnum):
    """The kind of a step."""

    FUNCTION = "function"
    """A function or a worker, called in a process with the role ``user-code``."""
    CRAWL = "crawl"
    MANAGER = "manager"
    GRAPH = "graph"
    """Contains other steps: a sub-graph, a group or a fan-out. A step of this kind ends with the
    last of these steps, or at once if there are none.
    """
    APPROVAL = "approval"
    """Waits until a person approves or rejects it."""


class StepState(StrEnum):
    """States of a step, with the names that Oban uses."""

    SUSPENDED = "suspended"
    """Waits for its dependencies."""
    SCHEDULED = "scheduled"
    """Waits until a time: its ``not_before`` or the end of a ``Snooze``."""
    AVAILABLE = "available"
    """May start, and waits for capacity."""
    EXECUTING = "executing"
    RETRYABLE = "retryable"
    """Failed, and waits for its next try."""
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    DISCARDED = "discarded"
    """Failed permanently."""

    @property
    def final(self) -> bool:
        return self in (StepState.COMPLETED, StepState.CANCELLED, StepState.DISCARDED)


class GraphState(StrEnum):
    """States of a graph, which follow from its steps.

    The graph is executing while a step is not in a final state or may still be running
    (``ending``). After that, it is discarded if a step was discarded, or else cancelled if a step
    was cancelled, or else completed.
    """

    DRAFT = "draft"
    """The sender is still sending pages, and nothing is running."""
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
    """The names of the graphs around it and its own name, joined by slashes: ``fetch/users``."""
    kind: StepKind
    job: Mapping[str, Any] = field(default_factory=dict)
    """The work of the step. The keys of this mapping depend on the kind of the step:

    - ``function``: ``call`` (``module:qualname``), ``style``, ``args``, ``item``, ``record``
      (whether its result is kept), ``meta``, and ``label`` (its name in pictures).
    - ``crawl``: the fields of a ``RunRequest``.
    - ``manager``: the fields of a ``NewManager``.
    - ``graph``: ``context`` and ``name``.
    - ``approval``: ``timeout_s``.

    ``style`` defines how the function is called: ``plain`` with ``args`` by name, ``worker`` as
    ``process(job)`` of a class, ``cascade`` with the context, and ``item`` with ``item`` and the
    context.

    ``domain.values.to_json`` encodes args, items, meta and contexts.
    """
    deps: tuple[str, ...] = ()
    """Names of steps of the same level."""
    ignore_cancelled: bool = False
    """True if a cancelled dependency counts as completed."""
    ignore_discarded: bool = False
    graft: bool = False
    """True if the step may add steps below its own path while it is running. The step's dependents
    wait for these steps too.
    """
    timeout_s: float = SHORT_S
    max_attempts: int = 1
    backoff_s: float = 1.0
    """Seconds to wait before the second try. Each later wait is twice as long, up to an hour."""
    priority: int = 0
    """0 to 9; a step with a lower number starts first."""
    not_before: datetime | None = None
    queue: str | None = None
    """The pool of user-code workers that execute the step, or ``None`` for the common pool."""
    resources: tuple[Mapping[str, str], ...] = ()
    """Alternative sets of resources, of which the step needs one. Each set contains the amounts by
    resource name, as exact fractions (``"1/3"``).
    """
    max_parallel: int | None = None
    """The maximum number of steps of a graph (``graph``) that may execute at once."""


@dataclass(frozen=True, slots=True)
class GraphOptions:
    """Options of a whole graph."""

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    check_deps: bool = True
    """True if every dependency must exist from the beginning. Otherwise they may be appended later.
    """
    fail_fast: bool = False
    """True if no further step starts after a step was discarded."""
    max_parallel: int | None = None
    pools: Mapping[str, str] = field(default_factory=dict)
    """The amount of each resource, which must be at least the largest need of one step."""


@dataclass(frozen=True, slots=True)
class GraphSpec:
    """A whole graph."""

    steps: Sequence[StepSpec]
    options: GraphOptions = GraphOptions()
    context: Mapping[str, Any] = field(default_factory=dict)
    """The context of all cascades. The context of a sub-graph overrides its keys."""
