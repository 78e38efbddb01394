"""The state of a graph's workflow, which is one value that continue-as-new passes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta

from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.bounds import ID_MAX
from crawler_lifecycle.features.managers.workflows.manager_state import (
    NAME,
    ManagerInbox,
    OwnedState,
)
from crawler_lifecycle.workflows.requests import read_update
from crawler_lifecycle.workflows.state import FLOW, PARENT, STATUS, Attributes, ReceivedSignal

from ..activities.graphs import AdvanceResult, GraphOpened
from ..domain.commands import SIGNALLED, GraphResult, GraphSnapshot, StepCommand
from ..domain.spec import GraphState, StepState
from ..ports import GraphFence

#: The maximum time between two advances of a graph, in seconds. An advance (``advance_graph``)
#: reads the rows, handles ends and picks steps.
LEVEL_S = 300.0
#: The minimum time between the starts of two advances while more ends are expected soon:
#: ``GAP_S`` seconds, and ``GAP_FACTOR`` times the duration of the last advance. This keeps a large
#: graph from being read all the time. If no more ends are expected soon, there is no minimum,
#: because even a short timer on a Temporal server fires up to a second late.
GAP_S = 0.2
GAP_FACTOR = 3.0
#: The maximum number of returned calls that are remembered until the next advance. Later returns
#: only wake the workflow.
ANSWERED_MAX = 1_000
#: The maximum number of waiting commands that arrived as signals.
COMMANDS_MAX = 100
#: Functions are killed if they have not ended this many seconds after a stop.
STOP_S = 60.0


@dataclass
class GraphInbox(ManagerInbox):
    """The signals, stops and returned calls that reached the graph and have not been handled
    yet."""

    answered: list[int] = field(default_factory=list)
    """The numbers of function calls that have returned."""
    commands: list[StepCommand] = field(default_factory=list)
    """Commands that arrived as signals and have not been carried out yet."""

    def signal(self, signal: ReceivedSignal) -> None:
        """Accept one signal."""
        if signal.name in SIGNALLED:
            self._take_command(signal)
            return
        if signal.name != names.SIGNAL_BATCH_ENDED:
            super().signal(signal)
            return
        number = signal.payload()
        new = type(number) is int and 0 < number <= ID_MAX and number not in self.answered
        if new and len(self.answered) < ANSWERED_MAX:
            self.answered.append(number)
        else:
            self.woken = True

    def _take_command(self, signal: ReceivedSignal) -> None:
        """Accept a command. A signal has no response, so a note explains why a command is
        dropped."""
        name = signal.name
        if len(self.commands) >= COMMANDS_MAX:
            self.note(f"signal {name!r} dropped: {COMMANDS_MAX} commands wait already")
            return
        try:
            command = read_update(SIGNALLED[name], signal.payload())
        except Exception as error:  # whatever is wrong with the payload
            self.note(f"signal {name!r} dropped: {error}")
            return
        self.commands = [*self.commands, replace(command, at=signal.at)]


@dataclass
class GraphWork(OwnedState):
    """The state of a graph as its workflow knows it."""

    graph_id: int = 0
    key: str = ""
    name: str | None = None
    state: GraphState = GraphState.EXECUTING
    counts: dict[str, int] = field(default_factory=dict)
    seen: int = 0
    """The highest number of a call of functions that was started."""
    apart: list[int] = field(default_factory=list)
    """The numbers of calls that have their own workflow and have not returned."""
    advanced_at: datetime | None = None
    """The time at which the last advance began. This advance took ``took_s`` seconds."""
    took_s: float = 0.0
    checked_at: datetime | None = None
    """The time at which the workflows in ``apart`` were last checked."""
    wanted: int = 0
    """The number of requests to begin runs. ``begun`` is the number of the last request that was
    carried out.
    """
    begun: int = 0
    ending: int = 0
    """The number of cancelled crawls and managers that may still be running."""
    stopping: str | None = None
    """A description of the last pass that stopped crawls and managers."""
    stop_at: datetime | None = None
    """The time at which a stop was recorded."""
    unrecorded: bool = False
    """True while a stop that could not be recorded is carried out."""
    killed: bool = False
    """True after calls of functions were cancelled because of the stop."""
    ended: bool = False
    """True after the end was recorded."""
    inbox: GraphInbox = field(default_factory=GraphInbox)

    @property
    def fence(self) -> GraphFence:
        return GraphFence(self.graph_id, self.attempt, self.owner_run_id)

    @property
    def ended_steps(self) -> int:
        """The number of steps that had ended at the last advance."""
        return sum(self.counts.get(state, 0) for state in StepState if state.final)

    def adopt(self, opened: GraphOpened) -> None:
        """Copy the row of the graph that this workflow now owns."""
        if self.ended and opened.state is GraphState.EXECUTING:  # a command reopened it
            self.inbox.stop = None
            self.inbox.changed = False
            self.stop_at = None
            self.killed = False
            self.next_at = None
            self.parent_told = False
        self.key = opened.key
        self.name = opened.name
        self.attempt = opened.attempt
        self.parent = opened.parent
        self.state = opened.state
        self.cause = opened.cause
        self.ended = self.inbox.closed = opened.state is not GraphState.EXECUTING
        self.inbox.recorded(opened.stop, False)

    def took(self, advanced: AdvanceResult, answered: Sequence[int], now: datetime) -> None:
        """Apply the result of an advance. ``answered`` are the calls that the advance has
        handled.
        """
        handled = set(answered)
        self.inbox.answered = [number for number in self.inbox.answered if number not in handled]
        self.apart = [number for number in self.apart if number not in handled]
        self.state = advanced.state
        self.counts = advanced.counts
        self.cause = advanced.cause
        self.wanted += advanced.begin
        self.ending = advanced.ending
        self.took_s = advanced.seconds
        self.stopping = self.stopping if advanced.ending else None
        self.waiting = self.stopping or advanced.waiting
        self.seen = max([self.seen, *(batch.number for batch in advanced.batches)])
        self.inbox.recorded(advanced.stop, False)
        at = now + timedelta(seconds=LEVEL_S)
        if self.stop_at is not None and not self.killed:
            at = min(at, max(now, self.stop_at + timedelta(seconds=STOP_S)))
        self.next_at = at if advanced.again_at is None else min(at, max(advanced.again_at, now))

    def is_late(self, now: datetime) -> bool:
        """Return whether functions have to be killed because they did not end after a stop."""
        if self.stop_at is None or self.killed:
            return False
        # The server's timers have whole milliseconds.
        return now - self.stop_at >= timedelta(seconds=STOP_S - 0.002)

    def gap_left(self, now: datetime) -> float:
        if self.advanced_at is None:
            return 0.0
        return max(GAP_S, GAP_FACTOR * self.took_s) - (now - self.advanced_at).total_seconds()

    def why(self) -> str | None:
        """Return a sentence about why the graph ended, if there is one."""
        return self.cause if self.inbox.stop is None else self.inbox.stop.stopped

    def result(self) -> GraphResult:
        """Return the workflow's result."""
        return GraphResult(self.graph_id, self.key, self.name, self.attempt, self.state, self.cause)

    def snapshot(self, calls: int) -> GraphSnapshot:
        """Return the response to the query ``status``."""
        return GraphSnapshot(
            **asdict(self.result()),
            counts=self.counts,
            calls=calls,
            stop=self.inbox.stop,
            waiting=self.waiting,
            notes=self.inbox.told(),
        )

    def search_attributes(self) -> Attributes:
        """Return the search attributes of the graph."""
        return [
            (NAME, self.name or self.key),
            (FLOW, self.key),
            (STATUS, str(self.state)),
            (PARENT, self.parent),
        ]

    def details(self) -> str:
        """Return a description of the graph in Markdown, for the Temporal UI."""
        counts = ", ".join(f"{n} {state}" for state, n in self.counts.items()) or "no step seen yet"
        rows = [
            f"### Graph {self.graph_id}: {self.name or self.key}, attempt {self.attempt}",
            f"- **{self.state}**{f': {self.cause}' if self.cause else ''}",
            f"- {counts}",
        ]
        rows += [f"- waiting: {self.waiting}"] if self.waiting and not self.ended else []
        return self.inbox.described(rows)
