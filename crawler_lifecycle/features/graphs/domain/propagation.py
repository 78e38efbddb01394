"""The effects of a step's end on other steps, which are released or cancelled, and on the states of
graphs.

Each step has a *gate*. The gate is open when the dependencies of the step, and of the graphs around
the step, let the step start. The gate is doomed when one of these dependencies ended in a way that
permanently prevents the start.

Each step also has *facts* for its dependents and for the graph around it: its end, once the step
and all steps in it have ended, and whether it is certain that none of its work is still running.
``settle`` derives all this from the states of the steps, in one pass in the order of dependencies.
It skips steps without a change.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum

from .checks import shown
from .kinds import CONTAINING
from .rows import Step
from .spec import StepState

#: States of a step that is not executing and has not ended.
UNSTARTED = frozenset(
    (StepState.SUSPENDED, StepState.SCHEDULED, StepState.AVAILABLE, StepState.RETRYABLE)
)
#: States in which a call may contain the step.
GIVEN = (StepState.AVAILABLE, StepState.EXECUTING)
_RANK = {StepState.COMPLETED: 0, StepState.CANCELLED: 1, StepState.DISCARDED: 2}
#: Outcomes of steps that were cancelled because of a dependency, because the graph fails fast, or
#: by a person.
UPSTREAM = "upstream"
FAIL_FAST = "fail_fast"
CANCELLED = "cancelled"


class Gate(Enum):
    """The gate of a step, which shows whether other steps let it start."""

    OPEN = 0
    SHUT = 1
    DOOMED = 2


class Propagation:
    """The facts of one graph as of the last ``settle``.

    Lists have one entry for each step, by its number.
    """

    def __init__(self, steps: list[Step], changed: set[int], *, fail_fast: bool) -> None:
        self.steps = steps
        self.changed = changed
        self.fail_fast = fail_fast
        self.discarded: Step | None = None
        """The first discarded step, if the graph fails fast."""
        self.grow()

    def grow(self) -> None:
        """Rebuild all lists after steps or dependencies were added."""
        count = len(self.steps)
        self.dependents: list[list[int]] = [[] for _ in range(count)]
        self.children: list[list[int]] = [[] for _ in range(count)]
        self.left = [0] * count
        """The number of dependencies that do not let the step start yet, including missing
        dependencies.
        """
        self.bad = [False] * count
        """True if a dependency ended in a way that permanently prevents the start of the step."""
        self.gate = [Gate.SHUT] * count
        self.end: list[StepState | None] = [None] * count
        """The final state of the step and all steps in it, or ``None`` if one of them has not
        ended.
        """
        self.calm = [True] * count
        """True if it is certain that none of the step's work is still running."""
        for step in self.steps:
            for dep in step.deps:
                self.dependents[dep].append(step.number)
            if step.parent is not None:
                self.children[step.parent].append(step.number)
        self._order = self._ordered()
        self._news = bytearray(b"\1" * (2 * count))
        """For each entry of ``_order``, whether anything that the entry depends on has changed."""
        self.settle()

    def _ordered(self) -> list[int]:
        """Return the order in which ``settle`` visits the steps. Each step is visited twice.

        ``number`` comes after the graph around the step and its dependencies, and ``~number`` after
        all steps in it.
        """
        waits = [len(step.deps) + (step.parent is not None) for step in self.steps]
        # Index ``~number`` counts from the end.
        waits += [1 + len(children) for children in reversed(self.children)]
        found = [number for number in range(len(self.steps)) if not waits[number]]
        for index in found:  # the list grows while it is read
            if index >= 0:
                behind = [*self.children[index], ~index]
            else:
                parent = self.steps[~index].parent
                behind = (
                    self.dependents[~index]
                    if parent is None
                    else [*self.dependents[~index], ~parent]
                )
            for other in behind:
                waits[other] -= 1
                if not waits[other]:
                    found.append(other)
        return found

    # --- queries for other modules ---

    def holds(self, number: int) -> bool:
        """Return whether the step is a graph with steps in it.

        Such a graph takes its state from them.
        """
        return self.steps[number].kind in CONTAINING and bool(self.children[number])

    def units(self) -> Iterable[Step]:
        """Yield the steps with a state of their own: all except graphs with steps in them."""
        return (step for step in self.steps if not self.holds(step.number))

    def inside(self, numbers: Iterable[int]) -> list[int]:
        """Return these steps and all steps in them, each once."""
        found = list(dict.fromkeys(numbers))
        seen = set(found)
        for number in found:  # the list grows while it is read
            for child in self.children[number]:
                if child not in seen:
                    seen.add(child)
                    found.append(child)
        return found

    def around(self, number: int) -> Iterable[int]:
        """Yield the graphs around a step, innermost first."""
        parent = self.steps[number].parent
        while parent is not None:
            yield parent
            parent = self.steps[parent].parent

    def gated_by(self, number: int) -> Iterable[int]:
        """Yield the graphs around a step whose dependencies the step waits for too. A grafted step
        does not wait for those of the graphs around its grafting step, because that step has
        already run.
        """
        for graph in self.around(number):
            if self.steps[graph].graft:
                return
            yield graph

    def lets_through(self, dependent: int, end: StepState | None) -> bool:
        """Return whether a dependency with this end counts as completed for the step
        ``dependent``.
        """
        step = self.steps[dependent]
        return (
            end is StepState.COMPLETED
            or (end is StepState.CANCELLED and step.ignore_cancelled)
            or (end is StepState.DISCARDED and step.ignore_discarded)
        )

    # --- changes ---

    def settle(self) -> None:
        """Apply the effects of all changed states, and recompute the affected facts."""
        if self.fail_fast:
            self.discarded = next(
                (step for step in self.units() if step.state is StepState.DISCARDED), None
            )
            self.touch(
                step.number for step in self.steps if self.discarded and step.state in UNSTARTED
            )
        for index in self._order:
            if self._news[index]:
                if index >= 0:
                    self._enter(index)
                else:
                    self._leave(~index)
                self._news[index] = False

    def touch(self, numbers: Iterable[int]) -> None:
        """Mark steps for the next ``settle``."""
        for number in numbers:
            self._news[number] = self._news[~number] = True

    def set(
        self, number: int, state: StepState, outcome: str | None = None, reason: str | None = None
    ) -> None:
        """Set the state of a step.

        Remove the step from its call unless the step is ready, executing or ending.
        """
        step = self.steps[number]
        if state not in GIVEN and not step.ending:
            self.take_back(step)
        step.state = state
        step.outcome = outcome
        step.reason = reason
        self.changed.add(number)
        self.touch([number])

    def take_back(self, step: Step) -> None:
        """Remove a step from its call and release the step's resources."""
        if step.batch is not None:
            step.batch = None
            self.changed.add(step.number)
            self.touch(self.dependents[step.number])  # the same call may contain its dependents
        step.alternative = None

    # --- one step ---

    def _enter(self, number: int) -> None:
        """Compute the gate of a step, and apply it if the step has not started."""
        step = self.steps[number]
        left = len(step.missing)
        bad = False
        for dep in step.deps:
            end = self.end[dep]
            through = end is not None and self.lets_through(number, end)
            left += not (through and self.calm[dep])
            bad = bad or (end is not None and not through)
        above = (
            Gate.OPEN
            if step.parent is None or self.steps[step.parent].graft
            else self.gate[step.parent]
        )
        gate = Gate.DOOMED if bad else Gate.SHUT if left and above is Gate.OPEN else above
        self.left[number] = left
        self.bad[number] = bad
        if gate is not self.gate[number]:
            self.gate[number] = gate
            self.touch(self.children[number])
        if step.state in UNSTARTED and not self.holds(number):
            self._judge(number)

    def _judge(self, number: int) -> None:
        step = self.steps[number]
        gate = self.gate[number]
        if gate is Gate.DOOMED:
            self.set(number, StepState.CANCELLED, UPSTREAM, self._why_doomed(number))
        elif self.discarded is not None:
            why = f"the graph fails fast, and {shown(self.discarded.path)} was discarded"
            self.set(number, StepState.CANCELLED, FAIL_FAST, why)
        elif gate is Gate.SHUT:
            if not self._waits_well(step):
                self.set(number, StepState.SUSPENDED)
        elif step.state is StepState.SUSPENDED:
            if step.kind in CONTAINING:
                self.set(number, StepState.COMPLETED)
            else:
                self.set(number, StepState.SCHEDULED if step.not_before else StepState.AVAILABLE)

    def _waits_well(self, step: Step) -> bool:
        """Return whether a step with a closed gate may keep its state.

        Such a step must be suspended. It may belong to a call only if the call first executes the
        steps that the step waits for.
        """
        if step.state is not StepState.SUSPENDED or step.batch is None:
            return step.state is StepState.SUSPENDED
        above = (
            step.parent is None
            or self.steps[step.parent].graft
            or self.gate[step.parent] is Gate.OPEN
        )
        before = [dep for dep in step.deps if self.steps[dep].batch == step.batch]
        return above and self.left[step.number] == sum(self.end[dep] is None for dep in before)

    def _leave(self, number: int) -> None:
        """Compute the facts of a step after all steps in it.

        A graph takes its state from the steps in it.
        """
        step = self.steps[number]
        children = self.children[number]
        ends = [self.end[child] for child in children]
        if self.holds(number):
            waits = StepState.EXECUTING if self.gate[number] is Gate.OPEN else StepState.SUSPENDED
            state = _worst(ends) or waits
            if state is not step.state:
                self.set(number, state)
        end = _worst([step.state if step.state in _RANK else None, *ends])
        calm = not step.ending and all(self.calm[child] for child in children)
        if end is not self.end[number] or calm is not self.calm[number]:
            self.end[number] = end
            self.calm[number] = calm
            self.touch(
                self.dependents[number]
                if step.parent is None
                else [*self.dependents[number], step.parent]
            )

    def _why_doomed(self, number: int) -> str:
        doomed = next(step for step in (number, *self.around(number)) if self.bad[step])
        ends = ((dep, self.end[dep]) for dep in self.steps[doomed].deps)
        culprit, end = next(
            (dep, e) for dep, e in ends if e is not None and not self.lets_through(doomed, e)
        )
        whose = "" if doomed == number else f" of {shown(self.steps[doomed].path)}"
        inner = culprit
        while (
            within := next(
                (child for child in self.children[inner] if self.end[child] is end), None
            )
        ) is not None:
            inner = within
        because = "" if inner == culprit else f", because {shown(self.steps[inner].path)} was"
        return f"the dependency {shown(self.steps[culprit].path)}{whose} was {end}{because}"


def _worst(ends: Sequence[StepState | None]) -> StepState | None:
    """Return the worst of these final states, or ``None`` if a final state is still missing."""
    worst: StepState = StepState.COMPLETED
    for end in ends:
        if end is None:
            return None
        if _RANK[end] > _RANK[worst]:
            worst = end
    return worst
