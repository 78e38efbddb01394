"""Ports of graphs: their rows, their steps, what steps get and what they give."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, TypeVar

from crawler_lifecycle.domain.graph.engine import Graph, StepEnd
from crawler_lifecycle.domain.graph.spec import GraphOptions, GraphSpec, GraphState, StepKind, StepState
from crawler_lifecycle.domain.run import StopIntent
from crawler_lifecycle.ports.values import Owner, RunRow

from .managers import ManagerRow

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GraphFence:
    """What a writer must still be for its write to count."""

    graph_id: int
    attempt: int
    owner_run_id: str


@dataclass(frozen=True, slots=True)
class NewGraph:
    """What whoever sends a graph says about it. Its steps follow in pages."""

    key: str
    """Its id for people and programs, unique: ``Workflow(id=…)``, ``/v1/graphs/{key}``, workflow ``graph/<key>``."""
    fingerprint: str
    """Of the whole spec (``domain.graph.spec.fingerprint``)."""
    pages: int
    name: str | None = None
    options: GraphOptions = field(default_factory=GraphOptions)
    requested_by: str | None = None
    parent: str | None = None
    """The workflow that is told of the end."""
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
    """Of a graph that has ended; of a live one they are counted when it is read."""
    stop: StopIntent | None = None
    waiting_for: str | None = None
    cause: str | None = None
    """One sentence: why it ended as it did."""
    requested_by: str | None = None
    parent: str | None = None
    tags: Sequence[str] = ()
    started_at: datetime | None = None
    """When its first step began."""
    ended_at: datetime | None = None
    pruned_at: datetime | None = None
    """When its steps and results were removed, long after its end."""
    unreadable: str | None = None


@dataclass(frozen=True, slots=True)
class StepRow:
    """One row of ``graph_step`` as readers see it."""

    number: int
    path: str
    kind: str
    state: StepState | str
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
    unreadable: str | None = None


@dataclass(frozen=True, slots=True)
class StepOutline:
    """What is needed of a step to say how far its graph has come."""

    path: str
    kind: StepKind
    state: StepState
    ending: bool
    job: Mapping[str, Any]
    """Of a step that holds others; empty elsewhere."""
    started_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class StepWork:
    """A step as whoever executes it needs it."""

    number: int
    path: str
    kind: StepKind
    job: Mapping[str, Any]
    deps: Sequence[int]
    attempt: int
    """Of the execution that begins, or would."""
    tries: int
    """Of those that count against ``max_attempts``, this one included."""
    max_attempts: int
    backoff_s: float
    timeout_s: float
    graft: bool = False
    snoozed: int = 0
    run_id: int | None = None
    """``crawl``, ``manager``: what a former attempt began, which is to be resumed; and its attempt that has ended."""
    run_attempt: int = 0
    batch: int | None = None
    """The call that it was given to: it begins only while its row names that one."""
    unreadable: str | None = None
    """What is wrong with ``job``, which another hand has spoilt: it can never be executed."""


@dataclass(frozen=True, slots=True)
class Given:
    """A step as those see it that depend on it."""

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
    """What one execution of a function led to, for the record."""

    end: StepEnd
    result: Sequence[bytes] | None = None
    """The recorded value, compressed (``domain.values.packed``); ``None``: nothing was recorded."""
    result_bytes: int = 0
    """Size before compression."""
    error: str | None = None


class GraphReader(Protocol):
    """Graphs and their steps, for people."""

    def get_graph(self, graph_id: int) -> GraphRow | None: ...

    def find_graph(self, key: str) -> GraphRow | None: ...

    def list_graphs(
        self,
        before_id: int | None = None,
        limit: int = 50,
        *,
        states: Collection[GraphState] = (),
        name: str | None = None,
    ) -> list[GraphRow]:
        """Newest first, drafts left out unless they are asked for."""
        ...

    def untold_graphs(self, until: datetime, silent_until: datetime, limit: int = 1000) -> list[GraphRow]:
        """Graphs that execute: those that were last written by ``until`` and that no workflow has taken up, or that
        are to stop; then those that were last written by ``silent_until``, whose workflow may be gone."""
        ...

    def count_graphs(self) -> int:
        """How many graphs execute."""
        ...

    def list_steps(
        self,
        graph_id: int,
        after: int = -1,
        limit: int = 500,
        *,
        states: Collection[StepState] = (),
        paths: Collection[str] = (),
    ) -> list[StepRow]:
        """Steps in their order, behind this number."""
        ...

    def outline(self, graph_id: int) -> list[StepOutline]:
        """All steps in their order. Raises ``RowUnreadable``."""
        ...

    def load(self, graph_id: int) -> Graph:
        """The engine with all steps as they are now, to read from: as ``GraphStore.change`` has it. Raises
        ``RunNotFound``."""
        ...

    def result(self, graph_id: int, number: int) -> Iterator[bytes]:
        """The parts of a recorded result; none when there is none."""
        ...

    def given(self, graph_id: int, numbers: Sequence[int]) -> list[Given]:
        """These steps and all that are in them, by number: what a step gets that depends on these."""
        ...

    def results(self, graph_id: int, numbers: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """The parts of what these steps recorded, each with its number: in the order of ``numbers``, one step after the
        other, read in pages."""
        ...

    def context(self, graph_id: int, number: int | None) -> list[bytes]:
        """The contexts that hold for a step, from the outermost graph inwards, each encoded."""
        ...

    def graph_output(self, graph_id: int) -> str:
        """What functions of a graph printed last; empty when that was nothing."""
        ...


class GraphStore(GraphReader, Protocol):
    """The same, as workflow, workers and commands change them. Methods with a fence raise ``Fenced`` and write nothing
    when the graph's attempt or owner is another one."""

    def reserve_graph(self, new: NewGraph) -> tuple[GraphRow, bool]:
        """Insert it as a draft, or answer the row of this key, and whether it is new. Raises ``DuplicateRequest`` when
        that has another fingerprint."""
        ...

    def add_graph_page(self, graph_id: int, page: int, data: bytes) -> None:
        """Keep one page of a draft (``spec.encode_page``). Again the same: nothing more. Raises ``DuplicateRequest``
        when another one is there, ``NotInThisState`` when it is no draft."""
        ...

    def make_graph(self, graph_id: int) -> GraphRow:
        """Make a whole draft a graph that executes, in one transaction: read its pages, check the whole, insert its
        steps. Again: the same. Raises ``InvalidRequest`` (a missing page, what ``spec.check`` refuses)."""
        ...

    def claim_graph(self, graph_id: int, owner: Owner) -> GraphRow:
        """Own the graph, as it was made or reopened. Again, or after its end: the row as it is. A new owner takes it
        over as the next attempt: what former calls had begun and not ended begins again. Raises ``RunIsLive``,
        ``Fenced``, ``RunNotFound`` as ``claim_manager`` does, ``NotInThisState`` for a draft."""
        ...

    def change(self, fence: GraphFence, how: Callable[[Graph], T]) -> T:
        """Load the graph under the lock of its row, let ``how`` change it, and write what has changed, with the event
        ``graph.changed``: one transaction. Whatever ``how`` raises undoes all of it. A step whose row cannot be read
        stands still (``Step.unreadable``); raises ``RowUnreadable`` when nobody knows where it belongs."""
        ...

    def command(self, graph_id: int, request_id: str, how: Callable[[Graph], int]) -> int:
        """The same for a command of a person, once for each ``request_id``: again, the same answer. A graph that had
        ended and has open steps afterwards executes again: without an owner, and without its former stop. Raises
        ``RowUnreadable`` for any of its steps, ``RunNotFound``; ``NotInThisState`` for a draft, a graph whose steps
        were pruned, and one that is stopping."""
        ...

    def begin_graft(self, graph_id: int, number: int, attempt: int, spec: GraphSpec, digest: str) -> None:
        """Attach steps to the step that grafts, once; the context of ``spec`` is kept as ``context`` in its job, as
        that of a sub-graph is. Again the same, by a later attempt, too: nothing more. Raises ``Fenced`` when this
        attempt does not execute, ``DuplicateRequest`` for other steps, ``InvalidRequest``."""
        ...

    def batch(self, fence: GraphFence, batch: int) -> list[StepWork]:
        """The steps of a call that have not ended, in their order."""
        ...

    def record(self, fence: GraphFence, done: Sequence[Done], begin: Sequence[StepWork] = ()) -> set[int]:
        """In one transaction: the ends with their results, and the beginning of these steps in their attempts; the
        numbers of those that began. One that did so already in this very attempt is among them: the answer of the
        first call was lost. Left out is what does not begin: it was cancelled, its row names another call or none
        (``Step.batch``), a dependency is not completed, a later attempt of it began, or a stop is on record.

        An end whose attempt does not execute any more changes nothing but ``ending``. The state ``AVAILABLE`` as an
        end: it was not called after all, and nothing of this attempt counts.
        """
        ...

    def cancelled(self, fence: GraphFence, numbers: Collection[int]) -> set[int]:
        """Those of these that must not go on: all, when the graph was taken over meanwhile. Raises ``RunNotFound``."""
        ...

    def run_begun(self, fence: GraphFence, number: int, run_id: int | None, error: str | None = None) -> bool:
        """The run of a crawl, or the manager, exists (``run_attempt`` stays: only a later end counts); or it can never
        be begun: then the step is discarded (``deploy_failed``). ``False``: the step was cancelled meanwhile; it keeps
        the run and is ``ending``. Again: nothing more."""
        ...

    def runs_ended(self, fence: GraphFence) -> list[StepEnd]:
        """Ends of crawls and managers of executing or ending steps, as the database has them now: of attempts above the
        step's ``run_attempt``. A step that was cancelled before ``run_begun`` was called for it has ended as well. A
        crawl whose archive is on its way executes still, unless it was cancelled, for ``DELIVERY_S`` at most."""
        ...

    def to_begin(self, fence: GraphFence, limit: int = 100) -> list[StepWork]:
        """Crawls and managers that were picked and for whose present attempt ``run_begun`` was not called."""
        ...

    def live_graph_runs(
        self, graph_id: int, after_run_id: int = 0, limit: int = 100, *, ending: bool = False
    ) -> list[RunRow]:
        """Runs of the graph (``parent``) that have not ended, by id; ``ending``: those whose step was cancelled."""
        ...

    def live_graph_managers(self, graph_id: int, *, ending: bool = False) -> list[ManagerRow]:
        """The same of managers, all at once: those of executing or ending steps."""
        ...

    def record_graph_stop(self, graph_id: int, intent: StopIntent) -> GraphRow:
        """Put a stop on record and cancel every step that has not ended (``Graph.cancel``), in one transaction: nothing
        more starts. Again: the stricter of both holds. After its end: nothing changes."""
        ...

    def end_graph(self, fence: GraphFence, cause: str | None) -> GraphRow:
        """Set the end by the states of its steps, with the event ``graph.ended``. Again: the same. Raises
        ``NotInThisState`` while a step is open or ending, or a run of it lives."""
        ...

    def keep_graph_output(self, graph_id: int, text: str) -> None:
        """Append what its functions printed; the last ``OUTPUT_BYTES`` of all of it stay."""
        ...
