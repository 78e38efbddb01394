"""The engine of a graph: it receives events and commands, and changes the states of the steps.

A step is identified by its number, which is its position in the order of addition. A change visits
each step at most once, with its dependencies (``propagation.py``). The engine uses no clock and no
database. The engine is built from rows, and reports the changed rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from crawler_lifecycle.domain.errors import InvalidRequest

from .checks import Link, check_cycle, check_pools, link, shown
from .kinds import CONTAINING, STEP_RULES
from .picking import Capacity, Picking, executes, waiting
from .propagation import CANCELLED, FAIL_FAST, UPSTREAM, Propagation
from .rows import Batch, PickedSteps, Step, StepEnd
from .spec import (
    LOST_MAX,
    SHORT_S,
    GraphOptions,
    GraphSpec,
    GraphState,
    StepSpec,
    StepState,
)

__all__ = ["Batch", "Graph", "PickedSteps", "Step", "StepEnd", "after_failure", "may_begin_again"]

#: A retry restarts all steps in the first states, and steps in the second states only if they are
#: named.
_FAILED = (StepState.DISCARDED, StepState.CANCELLED, StepState.RETRYABLE)
_NAMED = (StepState.COMPLETED, StepState.SCHEDULED)
#: The fields of a step that the facts of other steps depend on, and that never change while the
#: step is in a graph.
_PLACE = (
    "path",
    "kind",
    "parent",
    "deps",
    "missing",
    "graft",
    "ignore_cancelled",
    "ignore_discarded",
)
#: The longest wait between two tries, in seconds.
BACKOFF_MAX_S = 3600.0


@dataclass
class Graph:
    """The states of a graph, and the rules by which they change.

    ``changed`` collects the numbers of changed steps.

    When a function finishes, its call records this in the step's row. When a graph is built from
    rows, it first processes these completions, which release or cancel dependent steps.
    """

    options: GraphOptions
    steps: list[Step] = field(repr=False)
    next_batch: int = 1
    changed: set[int] = field(default_factory=set, repr=False)
    added: list[tuple[Step, StepSpec]] = field(default_factory=list, repr=False)
    """Steps that ``add`` has appended and that the caller has to store."""
    records: dict[int, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    """Results of ended crawls and approvals that the caller has to store, by step number."""
    key: str = ""
    """The id of the graph, for messages."""

    def __post_init__(self) -> None:
        self._spread = Propagation(self.steps, self.changed, fail_fast=self.options.fail_fast)
        self._capacity: Capacity | None = None

    @staticmethod
    def of(spec: GraphSpec) -> Graph:
        """Return a new graph. Raises ``InvalidRequest`` for invalid links between steps.

        ``checks.check`` also checks the fields of each step.
        """
        graph = Graph(spec.options, [])
        graph.add(spec.steps)
        return graph

    # --- what happened ---

    def moved(self, given: Collection[int]) -> list[int]:
        """Return the steps that calls and runs may have changed: steps that are executing or may
        still be running, and steps in calls except those in ``given``.
        """
        open_ = (step for step in self.steps if step.batch is not None or executes(step))
        return [
            s.number
            for s in open_
            if s.ending or s.state is StepState.EXECUTING or s.number not in given
        ]

    def seen(self, rows: Iterable[Step]) -> bool:
        """Begin the next change. These rows may have changed since the last change, and no other
        rows have. Afterwards the graph is as if it had been built from all rows. Returns ``False``
        if the position of a row is different; the graph must then be discarded.
        """
        self.changed.clear()
        self.added.clear()
        self.records.clear()
        for row in rows:
            step = self.steps[row.number]
            if any(getattr(row, name) != getattr(step, name) for name in _PLACE):
                return False
            if row.batch != step.batch:
                self._spread.touch(self._spread.dependents[row.number])
            self.steps[row.number] = row
            self._spread.touch([row.number])
        self._settle()
        return True

    def ended(self, ends: Iterable[StepEnd]) -> None:
        """Handle executions that have ended, which releases or cancels the dependents of their
        steps.

        A late end (of a different attempt, or of a step in a final state) has no effect. The end of
        a cancelled step only clears the step's ``ending``.
        """
        for end in ends:
            step = self.steps[end.number]
            if step.attempt != end.attempt or not (
                step.ending or step.state is StepState.EXECUTING
            ):
                continue
            if end.state is StepState.EXECUTING:
                if step.reason != end.reason:
                    step.reason = end.reason
                    self.changed.add(step.number)
                continue
            self._spread.take_back(step)
            step.run_attempt = max(step.run_attempt, end.run_attempt)
            self._end(step, end)
            if step.state.final and end.record is not None:
                self.records[step.number] = end.record
        self._settle()

    def _end(self, step: Step, end: StepEnd) -> None:
        self.changed.add(step.number)
        if step.ending:
            step.ending = False
            self._spread.touch([step.number])
            return
        if not end.state.final and end.state is not StepState.RETRYABLE:
            step.tries = max(0, step.tries - 1)
        step.not_before = end.not_before
        self._spread.set(step.number, end.state, end.outcome, end.reason)

    def released(self, batches: Collection[int]) -> None:
        """Handle the end of calls that returned or died.

        A step that was not begun by its call waits again. A step that was begun and has not ended
        begins again as the next attempt, or is discarded after ``max_attempts + LOST_MAX`` tries.
        The same applies to a function that executes without a call, for example after a manual edit
        of its row.
        """
        given = frozenset(batches)
        for step in self.steps:
            nowhere = (
                step.batch is None
                and step.state is StepState.EXECUTING
                and STEP_RULES[step.kind].called
            )
            if step.batch not in given and not (nowhere and step.unreadable is None):
                continue
            self._spread.take_back(step)
            if step.unreadable is not None:
                continue
            step.ending = False
            self._spread.touch([step.number])
            self.changed.add(step.number)
            if step.state is StepState.EXECUTING:
                if may_begin_again(step.tries, step.max_attempts):
                    self._spread.set(step.number, StepState.SUSPENDED)
                else:
                    reason = (
                        f"its worker died {LOST_MAX} times while it executed, or the call did "
                        "not record its end"
                    )
                    self._spread.set(step.number, StepState.DISCARDED, "lost", reason)
        self._settle()

    def pick(
        self, now: datetime, *, batches: int, begin: int, answered: int = 0, ended: int = 0
    ) -> PickedSteps:
        """Pick the steps that start now, by priority and number, within ``max_parallel`` and the
        resources.

        ``batches`` limits the new calls, and ``begin`` the crawls and managers. ``answered`` and
        ``ended`` are the numbers of calls that have returned, and of steps that have ended, since
        the last pick. A picked function gets the ``batch`` of its call. A picked crawl or manager
        becomes ``EXECUTING``.
        """
        self._end_late(now)
        picking = Picking(
            self._spread,
            self.options,
            now,
            self.next_batch,
            batches,
            begin,
            answered,
            ended,
            self.key,
        )
        picked = picking.run()
        self.next_batch = picking.next_batch
        self._capacity = None
        return picked

    def _end_late(self, now: datetime) -> None:
        """Discard the steps whose time limit has expired."""
        late = [
            StepEnd(
                step.number,
                step.attempt,
                StepState.DISCARDED,
                "timed_out",
                f"no decision was made within {step.limit_s:g} s",
            )
            for step in self.steps
            if step.state is StepState.EXECUTING and step.limit_s is not None
            if step.not_before is not None and step.not_before <= now
        ]
        if late:
            self.ended(late)

    # --- commands ---

    def cancel(self, numbers: Collection[int] | None, reason: str) -> int:
        """Cancel these steps, the steps in them, and their dependents; ``None`` means all steps.

        An executing step becomes ``CANCELLED`` with ``ending``. Returns how many of the steps and
        the steps in them had not ended, excluding their dependents.
        """
        chosen = range(len(self.steps)) if numbers is None else self._spread.inside(numbers)
        count = 0
        for number in chosen:
            step = self.steps[number]
            if self._spread.holds(number) or step.state.final:
                continue
            step.ending = step.state is StepState.EXECUTING and STEP_RULES[step.kind].takes_slot
            self._spread.set(number, StepState.CANCELLED, CANCELLED, reason)
            count += step.kind not in CONTAINING
        self._settle()
        return count

    def numbers(self, paths: Collection[str]) -> list[int]:
        """Return the numbers of the steps with these paths.

        Raises ``InvalidRequest`` for an unknown path.
        """
        known = {step.path: step.number for step in self.steps}
        for path in paths:
            if path not in known:
                raise InvalidRequest(
                    f"step {shown(path)}: there is no such step in this graph; list its steps"
                )
        return [known[path] for path in paths]

    def add(self, specs: Sequence[StepSpec], below: int | None = None) -> list[Step]:
        """Append steps to the graph, or graft them below the step with the number ``below``.

        Raises ``InvalidRequest`` with the step, the value and the fix; the graph is then unchanged.
        """
        prefix = None
        if below is not None:
            grafter = self.steps[below]
            if not grafter.graft or grafter.state is not StepState.EXECUTING:
                raise InvalidRequest(
                    f"step {shown(grafter.path)}: only an executing step with graft=True may "
                    "graft steps"
                )
            prefix = grafter.path
        check_pools(specs, self.options, "" if prefix is None else f"{prefix}/")
        first = len(self.steps)
        links = link(
            specs,
            {step.path: step.number for step in self.steps},
            below=prefix,
            check_deps=self.options.check_deps,
            may_hold=lambda n: self.steps[n].kind in CONTAINING and not self.steps[n].state.final,
        )
        self._check_found(links)
        new = [
            Step(
                number=link.number,
                path=link.path,
                kind=spec.kind,
                parent=link.parent if link.parent is not None else below,
                deps=link.deps,
                missing=link.missing,
                ignore_cancelled=spec.ignore_cancelled,
                ignore_discarded=spec.ignore_discarded,
                graft=spec.graft,
                long=STEP_RULES[spec.kind].called and spec.timeout_s > SHORT_S,
                limit_s=STEP_RULES[spec.kind].limit(spec.job),
                priority=spec.priority,
                queue=spec.queue,
                resources=tuple(tuple(sorted(r.items())) for r in spec.resources),
                max_parallel=spec.max_parallel,
                max_attempts=spec.max_attempts,
                not_before=spec.not_before,
            )
            for link, spec in zip(links, specs, strict=True)
        ]
        self.steps += new
        self.changed.update(range(first, len(self.steps)))
        self.added += zip(new, specs, strict=True)
        self._find({step.path: step.number for step in new}, first)
        self._capacity = None
        self._spread.grow()
        return new

    def _check_found(self, links: Sequence[Link]) -> None:
        """Raise ``InvalidRequest`` if new steps close a cycle with older steps that wait for
        them.
        """
        new = {link.path: link.number for link in links}
        if any(path in new for step in self.steps for path in step.missing):
            deps = [
                [*step.deps, *(new[path] for path in step.missing if path in new)]
                for step in self.steps
            ]
            paths = [step.path for step in self.steps] + [link.path for link in links]
            check_cycle([*deps, *(link.deps for link in links)], lambda n: paths[n])

    def _find(self, new: dict[str, int], first: int) -> None:
        """Replace the missing dependencies of older steps that are among the new steps. ``first``
        is the first new number.
        """
        for step in self.steps[:first]:
            here = [path for path in step.missing if path in new]
            if here:
                step.missing = tuple(path for path in step.missing if path not in new)
                step.deps += tuple(new[path] for path in here)
                self.changed.add(step.number)

    def retry(self, numbers: Collection[int] | None, *, cascade: bool, fresh: bool = False) -> int:
        """Restart these steps and the steps in them. Return their number.

        If ``numbers`` is ``None``, restart all steps that were discarded or cancelled, or are
        waiting for their next try. Completed and scheduled steps are restarted only if they are
        named. If ``cascade`` is true, the dependents that were cancelled because of these steps are
        restarted too. If ``fresh`` is true, crawls get a new run; otherwise their existing run is
        resumed.

        Raises ``InvalidRequest`` for a step that may still be executing (``ending``), and for a
        step that could not start because of another step that is not retried.
        """
        chosen = self._retried(numbers)
        for number in chosen:
            if self.steps[number].ending:
                raise InvalidRequest(
                    f"step {shown(self.steps[number].path)}: it was cancelled and may still run; "
                    "retry it after it has ended"
                )
        self._check_retried(chosen)
        if cascade:
            chosen = self._cascaded(chosen)
        self._begin_anew(chosen, fresh=fresh)
        return sum(self.steps[number].kind not in CONTAINING for number in chosen)

    def _retried(self, numbers: Collection[int] | None) -> list[int]:
        named = frozenset(numbers or ())
        found = []
        for number in range(len(self.steps)) if numbers is None else self._spread.inside(numbers):
            if self._spread.holds(number):
                continue
            state = self.steps[number].state
            # If a step with grafted steps is named, only the steps in it are retried.
            also = _NAMED if number in named and not self._spread.children[number] else ()
            if state in _FAILED or state in also:
                found.append(number)
        return found

    def _check_retried(self, chosen: Sequence[int]) -> None:
        """Raise ``InvalidRequest`` if one of these steps would immediately be cancelled again."""
        trial = Graph(self.options, [replace(step) for step in self.steps])
        trial._begin_anew(chosen)
        for step in (trial.steps[number] for number in chosen):
            if step.state is StepState.CANCELLED:
                raise InvalidRequest(
                    f"step {shown(step.path)}: {step.reason}; retry that step as well"
                )

    def _begin_anew(self, chosen: Sequence[int], *, fresh: bool = False) -> None:
        for number in chosen:
            step = self.steps[number]
            step.tries = 0
            step.not_before = None
            # A manager keeps its name, and is always resumed.
            if fresh and STEP_RULES[step.kind].brings_items:
                step.run_id = None
                step.run_attempt = 0
            self._spread.set(number, StepState.SUSPENDED)
        self._settle()

    def _cascaded(self, chosen: Sequence[int]) -> list[int]:
        """Return these steps and the steps that were cancelled because of them."""
        spread = self._spread
        found = dict.fromkeys(chosen)
        if self.options.fail_fast and any(
            self.steps[number].state is StepState.DISCARDED for number in chosen
        ):
            found.update(
                dict.fromkeys(step.number for step in spread.units() if step.outcome == FAIL_FAST)
            )
        seen: set[int] = set()
        taken: set[int] = set()
        ways = list(found)
        for number in ways:  # the list grows while it is read
            if number in seen:
                continue
            seen.add(number)
            ways += spread.around(number)
            dependents = [
                dependent for dependent in spread.dependents[number] if dependent not in taken
            ]
            taken.update(dependents)
            for inner in spread.inside(dependents):
                step = self.steps[inner]
                if (
                    step.state is StepState.CANCELLED
                    and step.outcome == UPSTREAM
                    and not spread.holds(inner)
                ):
                    found[inner] = None
                    ways.append(inner)
        return sorted(found)

    def _settle(self) -> None:
        self._capacity = None
        self._spread.settle()

    # --- queries -----

    @property
    def state(self) -> GraphState:
        """The state that follows from the steps (see ``GraphState``); it is never ``DRAFT``."""
        states = set()
        for step in self._spread.units():
            if step.ending or not step.state.final:
                return GraphState.EXECUTING
            states.add(step.state)
        for state in (StepState.DISCARDED, StepState.CANCELLED):
            if state in states:
                return GraphState(state.value)
        return GraphState.COMPLETED

    def waiting(self, number: int) -> str | None:
        """Return a sentence about what an unfinished step is waiting for, or ``None`` if it is
        executing or has ended.
        """
        if self._capacity is None:
            self._capacity = Capacity(self._spread, self.options)
        return waiting(self._spread, self._capacity, number)

    def waits(self, *, called: bool) -> str | None:
        """Return a sentence about what the graph is waiting for, or ``None`` if a step is
        executing.

        If a row is unreadable, the sentence is about this row, because it needs a manual repair.
        Otherwise the sentence is about the first step that could start next. If ``called`` is true,
        a step that belongs to a call counts as executing.
        """
        unreadable = next((step for step in self.steps if step.unreadable), None)
        if unreadable is not None:
            return f"step {shown(unreadable.path)}: {unreadable.unreadable}"
        working = [
            step for step in self.steps if step.kind not in CONTAINING and not step.state.final
        ]
        if any(
            (step.state is StepState.EXECUTING and not step.reason)
            or (called and step.batch is not None)
            for step in working
        ):
            return None
        first = min(working, key=lambda step: step.state is StepState.SUSPENDED, default=None)
        reason = None if first is None else self.waiting(first.number)
        return reason if first is None or reason is None else f"step {shown(first.path)}: {reason}"

    def counts(self) -> dict[StepState, int]:
        """Return the number of steps in each state, excluding sub-graphs and unreadable steps."""
        counted = (
            step for step in self.steps if step.kind not in CONTAINING and step.unreadable is None
        )
        return dict(Counter(step.state for step in counted))


def may_begin_again(tries: int, max_attempts: int) -> bool:
    """Return whether a step begins again after its worker was lost.

    The number of tries is limited, because the step itself may have killed the worker.
    """
    return tries < max_attempts + LOST_MAX


def after_failure(
    tries: int, max_attempts: int, backoff_s: float, now: datetime
) -> tuple[StepState, datetime | None]:
    """Return the state of a failed step: ``RETRYABLE`` with the time of the next try, or
    ``DISCARDED`` after the last.

    ``tries`` is the number of tries, including the failed one. Each wait is twice as long as the
    wait before it.
    """
    if tries >= max_attempts:
        return StepState.DISCARDED, None
    wait = min(BACKOFF_MAX_S, backoff_s * 2.0 ** min(max(tries, 1) - 1, 40))
    return StepState.RETRYABLE, now + timedelta(seconds=wait)
