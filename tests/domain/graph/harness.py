"""Workers, runs and people around an engine, driven by a tape of numbers, compared with a
brute-force model.

Rows are stored like in the database: each change builds the engine from them, and writes back what
it reports as changed. Function calls write their rows without the engine, as ``GraphStore.record``
does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.features.graphs.domain.commands import ApproveStep
from crawler_lifecycle.features.graphs.domain.engine import Graph, Step, StepEnd, may_begin_again
from crawler_lifecycle.features.graphs.domain.spec import (
    GraphOptions,
    GraphState,
    StepKind,
    StepSpec,
    StepState,
)
from tests.domain.graph.model import Model, Node

T = TypeVar("T")
S = StepState
START = datetime(2026, 3, 1, tzinfo=UTC)
CALL = {"call": "shop.steps:work"}
NO_SLOT = (StepKind.GRAPH, StepKind.APPROVAL)


class Tape:
    """Numbers that make decisions; when none is left, the first choice is used."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers: Iterator[int] = iter(numbers)

    def below(self, most: int) -> int:
        return next(self._numbers, 0) % most if most > 1 else 0

    def one(self, of: Sequence[T]) -> T:
        return of[self.below(len(of))]

    def often(self, in_ten: int) -> bool:
        """True this number of times in ten; false on an empty tape."""
        return self.below(10) >= 10 - in_ten


def a_level(
    tape: Tape, size: int, depth: int = 0, above: str = "", graft: bool = False
) -> list[StepSpec]:
    """Return the steps of one level with their contents, parents first."""
    kinds = [StepKind.FUNCTION] * 4 + [StepKind.CRAWL, StepKind.MANAGER, StepKind.APPROVAL]
    kinds += [StepKind.GRAPH] * (3 if depth < 3 else 0)
    found: list[StepSpec] = []
    names: list[str] = []
    for n in range(size):
        kind = tape.one(kinds)
        name = f"{'abc'[min(depth, 2)]}{n}"
        deps = tuple(other for other in names if tape.often(4))
        if not depth and not graft and tape.often(1):
            deps += (f"late{tape.below(3)}",)
        spec = StepSpec(
            above + name,
            kind,
            CALL,
            deps=deps,
            ignore_cancelled=tape.often(2),
            ignore_discarded=tape.often(2),
            graft=kind is StepKind.FUNCTION and tape.often(3),
            timeout_s=100 if tape.often(2) else 5,
            priority=tape.below(10),
            not_before=START + timedelta(seconds=tape.below(5))
            if kind is not StepKind.GRAPH and tape.often(1)
            else None,
            resources=({"db": "1/3"}, {"api": "1"})
            if kind not in NO_SLOT and tape.often(1)
            else (),
            max_parallel=1 + tape.below(3) if kind is StepKind.GRAPH and tape.often(3) else None,
        )
        names.append(name)
        found.append(spec)
        if kind is StepKind.GRAPH:
            found += a_level(tape, tape.below(4), depth + 1, f"{above}{name}/")
    return found


def copies(rows: Sequence[Step]) -> list[Step]:
    """Return copies of the rows; the values of their fields are immutable."""
    return [copy(row) for row in rows]


@dataclass
class Call:
    """A call of functions, as its worker knows it."""

    number: int
    steps: list[int]
    running: int | None = None


@dataclass
class Harness:
    tape: Tape
    options: GraphOptions
    rows: list[Step] = field(default_factory=list)
    next_batch: int = 1
    now: datetime = START
    calls: dict[int, Call] = field(default_factory=dict)
    answered: set[int] = field(default_factory=set)
    runs: set[int] = field(default_factory=set)
    """Crawls and managers that run."""
    ends: list[StepEnd] = field(default_factory=list)
    executed: dict[int, int] = field(default_factory=dict)
    """Executions that are going on, by step."""
    lost: int = 0
    known: Graph | None = None
    """The engine as the last change has left it."""

    def __post_init__(self) -> None:
        self.model = Model(self.options.fail_fast)

    # --- the engine over the rows ---

    def change(self, how: Callable[[Graph], T]) -> T:
        """One transaction."""
        graph = self._engine()
        self.model.settle()
        answer = how(graph)
        for number in sorted(graph.changed):
            if number < len(self.rows):
                self.rows[number] = graph.steps[number]
        assert [step.number for step, _ in graph.added] == list(
            range(len(self.rows), len(graph.steps))
        )
        self.rows += graph.steps[len(self.rows) :]
        self.next_batch = graph.next_batch
        self.compare(graph)
        self.rows, self.known = copies(self.rows), graph
        return answer

    def _engine(self) -> Graph:
        """Return the engine of the last change, updated with the rows that differ since; it equals
        one built from all rows.
        """
        new = Graph(self.options, copies(self.rows), next_batch=self.next_batch)
        known, self.known = self.known, None
        if known is None:
            return new
        differ = [
            copy(row) for row, step in zip(self.rows, known.steps, strict=True) if row != step
        ]
        moved = known.moved({row.number for row in self.rows if row.batch is not None})
        assert all(row.state is S.EXECUTING or row.ending or row.number in moved for row in differ)
        assert known.seen(differ)
        assert (known.steps, known.changed, known.next_batch) == (
            new.steps,
            new.changed,
            new.next_batch,
        )
        assert _counters(known) == _counters(new)
        return known

    def compare(self, graph: Graph) -> None:
        """Check that rows, engine and model agree, and that a new engine finds nothing to do."""
        assert self.rows == graph.steps, "changed rows that the engine does not name"
        again = Graph(self.options, copies(self.rows))
        assert not again.changed
        assert _counters(again) == _counters(graph)
        assert set(self.model.nodes) == {row.path for row in self.rows}
        for row in self.rows:
            node = self.model.nodes[row.path]
            shown = self.model.shown(row.path)
            assert row.state is shown, f"{row.path}: {row.state}, the model says {shown}"
            assert row.ending == node.ending, row.path
            if not self.model.holds(node):
                both = {"upstream", "fail_fast"} if self.options.fail_fast else {node.outcome}
                assert row.outcome == node.outcome or {row.outcome, node.outcome} <= both, (
                    row.path,
                    row.outcome,
                )
                node.outcome = row.outcome
            if not row.state.final and row.state is not S.EXECUTING:
                assert graph.waiting(row.number), row.path
        assert graph.state.value == self.model.state

    def node(self, number: int) -> Node:
        return self.model.nodes[self.rows[number].path]

    # --- what happens ---

    def add(self, specs: list[StepSpec], below: int | None = None) -> bool:
        """Append or graft. Return whether that was allowed."""

        def how(graph: Graph) -> bool:
            before = copies(graph.steps)
            try:
                graph.add(specs, below)
            except InvalidRequest:
                assert graph.steps == before
                return False
            self.model.add(specs, self.rows[below].path if below is not None else "")
            return True

        return self.change(how)

    def advance(self) -> bool:
        """Do what the workflow's activity does. Return whether anything started."""
        answered, self.answered = self.answered, set()
        # Some are reported twice.
        ends, self.ends = self.ends, self.ends[:1] if self.tape.often(1) else []

        def how(graph: Graph) -> bool:
            graph.released(answered)
            for number in {n for n, row in enumerate(self.rows) if row.batch in answered}:
                self._release(number)
            graph.ended(ends)
            for end in ends:
                self._end_in_model(end, self.rows[end.number])
            self.model.settle()
            return self._pick(graph)

        return self.change(how)

    def _release(self, number: int) -> None:
        node, row = self.node(number), self.rows[number]
        node.ending = False
        if row.state is S.EXECUTING:
            node.state = (
                S.SUSPENDED if may_begin_again(row.tries, row.max_attempts) else S.DISCARDED
            )
            node.outcome = None if node.state is S.SUSPENDED else "lost"
            self.model.settle()

    def _pick(self, graph: Graph) -> bool:
        picked = graph.pick(
            self.now, batches=self.tape.below(4) or 500, begin=self.tape.below(3) or 100
        )
        for node in self.model.nodes.values():
            row = next(step for step in graph.steps if step.path == node.path)
            if node.state in (S.SCHEDULED, S.RETRYABLE) and row.not_before is None:
                node.state, node.timed, node.outcome = S.AVAILABLE, False, None
        for batch in picked.batches:
            assert batch.steps
            assert batch.number not in self.calls
            self.calls[batch.number] = Call(batch.number, list(batch.steps))
            first = graph.steps[batch.steps[0]]
            assert first.state is S.AVAILABLE
            for number in batch.steps:
                step = graph.steps[number]
                assert (step.queue, step.long, step.batch) == (
                    batch.queue,
                    batch.long,
                    batch.number,
                )
        for number in picked.begin:
            assert self.model.gate(graph.steps[number].path) == "open"
            self._executes(number)
            self.runs.add(number)
            begun = self.model.nodes[graph.steps[number].path]
            begun.state, begun.outcome = S.EXECUTING, None
        for step in graph.steps:
            asked = self.model.nodes[step.path]
            if (
                step.kind is StepKind.APPROVAL
                and step.state is S.EXECUTING
                and asked.state is S.AVAILABLE
            ):
                assert self.model.gate(step.path) == "open"
                asked.state, asked.outcome = S.EXECUTING, None
        self._check_room(graph)
        return bool(picked.batches or picked.begin)

    def _check_room(self, graph: Graph) -> None:
        """Check that no more steps execute, or are about to, than resources and limits allow."""
        holding = [
            s
            for s in graph.steps
            if s.state is S.EXECUTING or s.ending or (s.batch and not s.state.final)
        ]
        holding = [s for s in holding if s.kind not in NO_SLOT]
        needs = [
            dict(s.resources[s.alternative])
            for s in holding
            if s.resources and s.alternative is not None
        ]
        assert all(
            s.alternative is not None for s in holding if s.resources and s.state is S.EXECUTING
        )
        assert sum("db" in need for need in needs) <= 3
        assert sum("api" in need for need in needs) <= 1
        for graph_step in graph.steps:
            if graph_step.max_parallel:
                inner = [s for s in holding if s.path.startswith(graph_step.path + "/")]
                places = {s.batch or -1 - s.number for s in inner}
                assert len(places) <= graph_step.max_parallel

    def _executes(self, number: int) -> None:
        assert number not in self.executed, f"{self.rows[number].path} executes twice"
        self.executed[number] = 1

    def work(self) -> None:
        """Advance a call by one step, or let it die."""
        if not self.calls:
            return
        call = self.calls[self.tape.one(sorted(self.calls))]
        if self.tape.often(1):
            self._die(call)
        elif call.running is not None:
            self._graft_or_end(call)
        elif call.steps and not self.tape.often(1):
            self._begin(call)
        else:
            self._answer(call)

    def _begin(self, call: Call) -> None:
        number = call.steps.pop(0)
        row = self.rows[number]
        deps = [self.rows[dep] for dep in row.deps]
        lets = [self.model.accepts(self.node(number), dep.state) and not dep.ending for dep in deps]
        may = (
            row.state in (S.SUSPENDED, S.AVAILABLE, S.EXECUTING)
            and row.batch == call.number
            and all(lets)
        )
        if not may or (
            row.state is S.EXECUTING and not may_begin_again(row.tries, row.max_attempts)
        ):
            return
        node = self.node(number)
        if row.state is not S.EXECUTING:
            assert self.model.gate(row.path) == "open", f"{row.path} starts before its dependencies"
        self._executes(number)
        row.state, row.outcome, row.reason = S.EXECUTING, None, None
        row.attempt += 1
        row.tries += 1
        node.state, node.outcome = S.EXECUTING, None
        call.running = number

    def _graft_or_end(self, call: Call) -> None:
        number = call.running
        assert number is not None
        row = self.rows[number]
        grafted = any(other.parent == number for other in self.rows)
        if row.graft and row.state is S.EXECUTING and not grafted and self.tape.often(6):
            assert self.add(a_level(self.tape, self.tape.below(4), graft=True), number)
            return
        call.running = None
        del self.executed[number]
        end = self._an_end(number)
        self._end_in_model(end, row)
        if row.state is not S.EXECUTING:
            row.ending = False
        else:
            row.state, row.outcome, row.not_before = end.state, end.outcome, end.not_before
            row.tries -= end.state in (S.SCHEDULED, S.AVAILABLE)
        row.batch = row.alternative = None

    def _an_end(self, number: int) -> StepEnd:
        states = [S.COMPLETED] * 5 + [
            S.DISCARDED,
            S.DISCARDED,
            S.CANCELLED,
            S.RETRYABLE,
            S.SCHEDULED,
            S.AVAILABLE,
        ]
        state = self.tape.one(states)
        later = self.now + timedelta(seconds=self.tape.below(4))
        row = self.rows[number]
        not_before = later if state in (S.RETRYABLE, S.SCHEDULED) else None
        return StepEnd(
            number,
            row.attempt,
            state,
            None if state is S.COMPLETED else "said",
            not_before=not_before,
        )

    def _end_in_model(self, end: StepEnd, row: Step) -> None:
        node = self.node(end.number)
        if row.attempt != end.attempt:
            return
        if node.ending:
            node.ending = False
        elif node.state is S.EXECUTING:
            node.state, node.outcome, node.timed = (
                end.state,
                end.outcome,
                end.not_before is not None,
            )

    def _answer(self, call: Call) -> None:
        del self.calls[call.number]
        self.answered.add(call.number)

    def _die(self, call: Call) -> None:
        """Let its worker die: the call is tried again from its rows, or abandoned."""
        self.lost += 1
        if call.running is not None:
            del self.executed[call.running]
            call.running = None
        if self.tape.often(5):
            self._answer(call)
            return
        mine = [row for row in self.rows if row.batch == call.number]
        call.steps = [
            row.number for row in mine if row.state in (S.SUSPENDED, S.AVAILABLE, S.EXECUTING)
        ]

    def end_run(self) -> None:
        if self.runs:
            number = self.tape.one(sorted(self.runs))
            self.runs.discard(number)
            del self.executed[number]
            end = self._an_end(number)
            self.ends.append(end)

    def asked(self) -> list[Step]:
        """Return the approvals that wait for a decision."""
        return [
            row for row in self.rows if row.kind is StepKind.APPROVAL and row.state is S.EXECUTING
        ]

    def decide(self) -> bool:
        """Approve or reject a step that waits for it. Return whether there is one."""
        asked = self.asked()
        if asked:
            row, approved = self.tape.one(asked), not self.tape.often(3)
            order, node = ApproveStep(step=row.path, approved=approved), self.node(row.number)
            end = (S.COMPLETED, "approved") if approved else (S.DISCARDED, "rejected")

            def how(graph: Graph) -> None:
                assert order.apply(graph) == 1
                assert order.apply(graph) == 0, "said again, it changes nothing"
                node.state, node.outcome = end
                self.model.settle()

            self.change(how)
        return bool(asked)

    def take_over(self) -> None:
        """Change the owner: all calls of the previous one are dead."""
        for call in list(self.calls.values()):
            if call.running is not None:
                del self.executed[call.running]
            self._answer(call)

    def some(self) -> list[int] | None:
        if self.tape.often(1) or not self.rows:
            return None
        return sorted({self.tape.below(len(self.rows)) for _ in range(1 + self.tape.below(2))})

    def cancel(self) -> None:
        chosen = self.some()

        def how(graph: Graph) -> None:
            paths = None if chosen is None else [self.rows[n].path for n in chosen]
            assert graph.cancel(chosen, "a person said so") == self.model.cancel(paths)

        self.change(how)

    def retry(self) -> None:
        chosen, cascade = self.some(), self.tape.often(5)

        def how(graph: Graph) -> None:
            nodes = self.model.chosen(
                None if chosen is None else [self.rows[n].path for n in chosen]
            )
            before = copies(graph.steps)
            if self.model.refused(nodes):
                try:
                    graph.retry(chosen, cascade=cascade)
                except InvalidRequest:
                    assert graph.steps == before
                    return
                raise AssertionError("the model refuses this retry")
            count = graph.retry(chosen, cascade=cascade)
            assert count == self.model.retry(self.model.cascaded(nodes) if cascade else nodes)

        self.change(how)

    def append(self) -> None:
        name = f"late{self.tape.below(4)}"
        above = self.tape.one(
            ["", *(row.path + "/" for row in self.rows if row.kind is StepKind.GRAPH)]
        )
        same = [
            row.path.rpartition("/")[2]
            for row in self.rows
            if row.path.rpartition("/")[0] == above[:-1]
        ]
        deps = tuple(other for other in same if self.tape.often(3))
        kind = self.tape.one([StepKind.FUNCTION, StepKind.CRAWL, StepKind.GRAPH])
        self.add([StepSpec(above + name, kind, CALL, deps=deps)])

    # --- how it goes on ---

    def play(self, events: int) -> None:
        what = [self.work] * 20 + [self.advance] * 8 + [self.end_run] * 4 + [self.retry] * 3
        what += [self.cancel, self.append, self.take_over, self.decide, self.decide]
        for _ in range(events):
            self.now += timedelta(seconds=self.tape.below(2))
            self.tape.one(what)()

    def finish(self) -> None:
        """Let everything succeed: the graph ends, or names what it waits for."""
        for _ in range(400):
            self.tape = Tape([])
            self.now += timedelta(seconds=10)
            for call in list(self.calls.values()):
                while call.running is not None or call.steps:
                    if call.running is None:
                        self._begin(call)
                    else:
                        self._graft_or_end(call)
                self._answer(call)
            while self.runs:
                self.end_run()
            busy = self.decide() or bool(self.answered or self.ends)
            if not self.advance() and not busy and not self.calls and not self.asked():
                break
        graph = Graph(self.options, copies(self.rows))
        if graph.state is GraphState.EXECUTING:
            open_ = [step for step in graph.steps if not step.state.final or step.ending]
            assert any(step.missing for step in open_), [
                (s.path, s.state, graph.waiting(s.number)) for s in open_
            ]
            for step in open_:
                assert graph.waiting(step.number), step.path
        assert not self.executed


def _counters(graph: Graph) -> object:
    spread = graph._spread
    alive = [not step.state.final for step in graph.steps]
    left = [number for number, ok in zip(spread.left, alive, strict=True) if ok]
    return left, spread.bad, spread.gate, spread.end, spread.calm, spread.discarded
