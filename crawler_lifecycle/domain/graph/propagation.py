"""The spread of an end: counters of what each step waits for, kept while states change and never counted anew.

Each step has a *gate*: open when its dependencies and those of the graphs around it let it through, doomed when one of
them never will. And each has *facts* for those that depend on it or hold it: how it ended, once it and everything in it
has, and whether it is proved that nothing of it runs. A change of facts costs one visit of each edge.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

from .checks import shown
from .rows import Step
from .spec import StepKind, StepState

#: States of a step that nobody executes and that has not ended.
UNSTARTED = frozenset((StepState.SUSPENDED, StepState.SCHEDULED, StepState.AVAILABLE, StepState.RETRYABLE))
#: States in which a step may belong to a call.
_GIVEN = (StepState.AVAILABLE, StepState.EXECUTING)
_FINAL = frozenset(state for state in StepState if state.final)
_RANK = {StepState.COMPLETED: 0, StepState.CANCELLED: 1, StepState.DISCARDED: 2}
#: Outcomes of steps that were cancelled because of another one, and by a person.
UPSTREAM, FAIL_FAST, CANCELLED = "upstream", "fail_fast", "cancelled"


class Gate(Enum):
    """The gate before a step: whether it may start, as far as others are concerned."""

    OPEN = 0
    SHUT = 1
    DOOMED = 2


class Propagation:
    """The counters of one graph, by the number of the step."""

    def __init__(self, steps: list[Step], changed: set[int], *, fail_fast: bool) -> None:
        self.steps = steps
        self.changed = changed
        self.fail_fast = fail_fast
        self.dependents: list[list[int]] = []
        self.children: list[list[int]] = []
        self.left: list[int] = []
        """Dependencies that do not let it through yet, missing ones included."""
        self.bad: list[int] = []
        """The ones of them that never will, as things stand."""
        self.culprit: list[int] = []
        """One of those."""
        self.open: list[int] = []
        """Steps in it that have not ended."""
        self.busy: list[int] = []
        """Steps in it of which something may run still, though they are cancelled."""
        self.gate: list[Gate] = []
        self.end: list[StepState | None] = []
        """The way in which it ended, with everything in it."""
        self.calm: list[bool] = []
        self.discarded = 0
        """Steps that failed for good."""
        self._queue: list[int] = []
        self._queued: list[bool] = []
        self._back: list[int] = []
        self.grow()

    # --- what others read ---

    def holds(self, number: int) -> bool:
        """Say whether it is a graph with steps in it, whose state is theirs."""
        return self.steps[number].kind is StepKind.GRAPH and bool(self.children[number])

    def units(self) -> Iterable[Step]:
        """Steps with a state of their own: all but graphs with steps in them."""
        return (step for step in self.steps if not self.holds(step.number))

    def inside(self, numbers: Iterable[int]) -> list[int]:
        """These and everything in them, each once."""
        found = list(dict.fromkeys(numbers))
        seen = set(found)
        for number in found:  # grows while it is read
            for child in self.children[number]:
                if child not in seen:
                    seen.add(child)
                    found.append(child)
        return found

    def around(self, number: int) -> Iterable[int]:
        """Return what it is in, from the inside outwards."""
        parent = self.steps[number].parent
        while parent is not None:
            yield parent
            parent = self.steps[parent].parent

    def gated_by(self, number: int) -> Iterable[int]:
        """The graphs around it whose dependencies hold it back as well. Those around a step that grafts hold nothing
        back that it has grafted: it has run."""
        for graph in self.around(number):
            if self.steps[graph].graft:
                return
            yield graph

    def lets_through(self, dependent: int, end: StepState | None) -> bool:
        """Say whether a dependency that ended so counts as completed for this step."""
        step = self.steps[dependent]
        return (
            end is StepState.COMPLETED
            or (end is StepState.CANCELLED and step.ignore_cancelled)
            or (end is StepState.DISCARDED and step.ignore_discarded)
        )

    # --- changes ---

    def grow(self, resolved: Iterable[tuple[int, int]] = ()) -> None:
        """Take in the steps that were added since the last call, as their rows are. ``resolved``: which steps that were
        there miss which new one no longer."""
        first, count = len(self.left), len(self.steps)
        new = count - first
        for lists in (self.dependents, self.children):
            lists.extend([] for _ in range(new))
        for numbers in (self.left, self.bad, self.culprit, self.open, self.busy):
            numbers.extend([0] * new)
        self.gate.extend([Gate.SHUT] * new)
        self.end.extend([None] * new)
        self.calm.extend([True] * new)
        self._queued.extend([False] * new)
        for dependent, dep in resolved:
            self.dependents[dep].append(dependent)
        for step in self.steps[first:]:
            number = step.number
            self.left[number] = len(step.deps) + len(step.missing)
            for dep in step.deps:
                self.dependents[dep].append(number)
                if dep < first:  # its end is no news any more
                    self._tell(dep, number, None, True, self.end[dep], self.calm[dep])
            if step.parent is not None:
                self.children[step.parent].append(number)
                self.open[step.parent] += 1
            self.discarded += step.state is StepState.DISCARDED and step.kind is not StepKind.GRAPH
        # First the facts, from the inside outwards, then the gates, inwards; only then is anything judged.
        for number in range(count - 1, first - 1, -1):
            self._spread(number)
        for number in range(first, count):
            self._regate(number)
        self.touch(range(first, count))
        self.settle()

    def touch(self, numbers: Iterable[int]) -> None:
        """Look at these when things settle."""
        for number in numbers:
            if not self._queued[number]:
                self._queued[number] = True
                self._queue.append(number)

    def settle(self) -> None:
        """Let every change have its effects."""
        while self._queue or self._back:
            for number in self._queue:  # grows while it is read
                self._queued[number] = False
                self._look(number)
            self._queue.clear()
            # Only now: an empty graph that is retried shuts a gate and opens it again at once.
            back, self._back = self._back, []
            for number in back:
                step = self.steps[number]
                if step.state in UNSTARTED and self.gate[number] is Gate.SHUT and not self._waits_well(step):
                    self.set(number, StepState.SUSPENDED)

    def reset(self, units: Sequence[int]) -> None:
        """Let these wait again, and everything around them be unfinished."""
        for number in units:
            self.discarded -= self.steps[number].state is StepState.DISCARDED
            self.set(number, StepState.SUSPENDED)
        around = {one for number in units for one in self.around(number)}
        for number in around:
            if self.steps[number].kind is StepKind.GRAPH:
                self.set(number, StepState.SUSPENDED)
        again = sorted(around.union(units))
        # First the facts, from the inside outwards, then the gates, inwards: what is judged from old ones would be
        # cancelled once more.
        for number in reversed(again):
            self._spread(number)
        for number in again:
            self._regate(number)
        self.touch(again)
        self.settle()

    def set(self, number: int, state: StepState, outcome: str | None = None, reason: str | None = None) -> None:
        """Give a step this state. One that is neither ready nor executing any more is taken from its call."""
        step = self.steps[number]
        if state not in _GIVEN and not step.ending:
            self.take_back(step)
        step.state, step.outcome, step.reason = state, outcome, reason
        self.changed.add(number)

    def take_back(self, step: Step) -> None:
        """No call has it, and it holds no resources any more."""
        if step.batch is not None:
            step.batch = None
            self.changed.add(step.number)
            self.touch(self.dependents[step.number])  # which may come next in that call
        step.alternative = None

    def discard(self, number: int, outcome: str | None, reason: str | None) -> None:
        """It failed for good."""
        self.set(number, StepState.DISCARDED, outcome, reason)
        self.discarded += 1
        self.touch([number])
        if self.fail_fast and self.discarded == 1:
            self.touch(step.number for step in self.steps if step.state in UNSTARTED)

    # --- one step ---

    def _look(self, number: int) -> None:
        self._regate(number)
        if self.holds(number):
            self._judge_graph(number)
        elif self.steps[number].state in UNSTARTED:
            self._judge(number)
        self._spread(number)

    def _regate(self, number: int) -> None:
        parent = self.steps[number].parent
        above = Gate.OPEN if parent is None or self.steps[parent].graft else self.gate[parent]
        gate = Gate.SHUT if self.left[number] and above is Gate.OPEN else above
        if self.bad[number]:
            gate = Gate.DOOMED
        if gate is not self.gate[number]:
            self.gate[number] = gate
            if self.steps[number].kind is StepKind.GRAPH:
                self.touch(self.children[number])

    def _judge(self, number: int) -> None:
        step, gate = self.steps[number], self.gate[number]
        if gate is Gate.DOOMED:
            self.set(number, StepState.CANCELLED, UPSTREAM, self._why_doomed(number))
        elif self.fail_fast and self.discarded:
            self.set(number, StepState.CANCELLED, FAIL_FAST, "the graph fails fast, and a step of it was discarded")
        elif gate is Gate.SHUT:
            if not self._waits_well(step):
                self._back.append(number)
        elif step.state is StepState.SUSPENDED:
            if step.kind is StepKind.GRAPH:
                self.set(number, StepState.COMPLETED)
            else:
                self.set(number, StepState.SCHEDULED if step.not_before else StepState.AVAILABLE)

    def _waits_well(self, step: Step) -> bool:
        """Say whether a step behind a gate that is shut stands as it should: suspended, and in no call but one that
        works off first what it waits for."""
        if step.state is not StepState.SUSPENDED or step.batch is None:
            return step.state is StepState.SUSPENDED
        above = step.parent is None or self.steps[step.parent].graft or self.gate[step.parent] is Gate.OPEN
        before = [dep for dep in step.deps if self.steps[dep].batch == step.batch]
        return above and self.left[step.number] == sum(self.end[dep] is None for dep in before)

    def _judge_graph(self, number: int) -> None:
        if not self.holds(number):
            return
        if self.open[number]:
            state = StepState.EXECUTING if self.gate[number] is Gate.OPEN else StepState.SUSPENDED
        else:
            state = self._worst(number, StepState.COMPLETED)
        if state is not self.steps[number].state:
            self.set(number, state)

    def _worst(self, number: int, end: StepState) -> StepState:
        for child in self.children[number]:
            other = self.end[child]
            if other is not None and _RANK[other] > _RANK[end]:
                end = other
        return end

    def _spread(self, number: int) -> None:
        step = self.steps[number]
        end = step.state if step.state in _FINAL and not self.open[number] else None
        if end is not None and step.graft:
            end = self._worst(number, end)
        calm = not step.ending and not self.busy[number]
        was, was_calm = self.end[number], self.calm[number]
        if end is was and calm is was_calm:
            return
        self.end[number], self.calm[number] = end, calm
        for dependent in self.dependents[number]:
            self._tell(number, dependent, was, was_calm, end, calm)
        self.touch(self.dependents[number])
        if step.parent is not None:
            self.open[step.parent] += (was is not None) - (end is not None)
            self.busy[step.parent] += was_calm - calm
            self.touch([step.parent])

    def _tell(
        self, number: int, dependent: int, was: StepState | None, was_calm: bool, end: StepState | None, calm: bool
    ) -> None:
        """Count the facts of a dependency at one step."""
        before, after = self.lets_through(dependent, was), self.lets_through(dependent, end)
        self.left[dependent] += (before and was_calm) - (after and calm)
        bad = end is not None and not after
        self.bad[dependent] += bad - (was is not None and not before)
        if bad and self.bad[dependent] == 1:
            self.culprit[dependent] = number

    def _why_doomed(self, number: int) -> str:
        doomed = next(one for one in (number, *self.around(number)) if self.bad[one])
        culprit = self.culprit[doomed]
        end = self.end[culprit]
        if end is None or self.lets_through(doomed, end):
            ends = ((dep, self.end[dep]) for dep in self.steps[doomed].deps)
            culprit, end = next((dep, e) for dep, e in ends if e is not None and not self.lets_through(doomed, e))
        whose = "" if doomed == number else f" of {shown(self.steps[doomed].path)}"
        inner = culprit
        while (within := next((one for one in self.children[inner] if self.end[one] is end), None)) is not None:
            inner = within
        because = "" if inner == culprit else f", because {shown(self.steps[inner].path)} was"
        return f"the dependency {shown(self.steps[culprit].path)}{whose} was {end}{because}"
