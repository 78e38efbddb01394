"""The choice of the steps that start now, and the reasons why the other steps wait.

Steps are picked by priority and number, within resources and caps. Functions are grouped into
calls, each of which one process carries out.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fractions import Fraction

from .checks import amounts, shown
from .kinds import STEP_RULES, asks_for
from .propagation import GIVEN, Gate, Propagation
from .rows import Batch, PickedSteps, Step
from .spec import GraphOptions, StepState

#: The minimum and maximum numbers of calls for one pool that are made in advance and that no worker
#: has taken yet.
LEAST = 4
MOST = 200
#: The number of calls among which ready steps are divided at first, and the maximum number of steps
#: in one call.
SPREAD = 32
BATCH_STEPS = 200
#: Seconds until the next pick while steps wait for workers to take calls. The second value applies
#: if calls had already waited before this pick. The graph is not notified when a worker takes a
#: call.
TAKEN_S = 1.0
BUSY_S = 15.0

#: A value that stands for the whole graph in place of a step's number.
WHOLE = -1
_TIMED = (StepState.SCHEDULED, StepState.RETRYABLE)
#: The user of a slot in a graph with a cap (``max_parallel``): a call, or a step outside of a call.
_Holder = tuple[str, int]


class Capacity:
    """The free resources, and the free slots of graphs with a cap (``max_parallel``)."""

    def __init__(self, spread: Propagation, options: GraphOptions) -> None:
        self._spread = spread
        self._graph_cap = options.max_parallel
        steps = spread.steps
        self._capped = any(step.max_parallel for step in steps) or options.max_parallel is not None
        needing = [step for step in steps if step.resources]
        self.free: dict[str, Fraction] = amounts(options.pools)
        for resources in {step.resources for step in needing}:
            for resource in _exact(resources):
                for name, need in resource.items():
                    # Without a declared amount, the largest need of any step is used.
                    if name not in options.pools:
                        self.free[name] = max(self.free.get(name, need), need)
        self.holders: dict[int, set[_Holder]] = {}
        for step in steps if self._capped or needing else ():
            if executes(step):
                self.take(step, step.alternative)

    def take(self, step: Step, alternative: int | None) -> None:
        """Count the resources and slots of a step that is executing or about to execute as used."""
        if alternative is not None and alternative < len(step.resources):
            for name, need in _exact(step.resources)[alternative].items():
                self.free[name] -= need
        # The steps of a call execute one after the other, so they use one slot together.
        holder = ("step", step.number) if step.batch is None else ("batch", step.batch)
        for graph, _ in self._caps(step):
            self.holders.setdefault(graph, set()).add(holder)

    def full(self, step: Step, batch: int | None = None) -> int | None:
        """Return a graph that contains this step and has no free slot (``WHOLE`` for the whole
        graph), or ``None`` if all these graphs have a free slot.

        ``batch`` is the call of the step, which may already use a slot.
        """
        holder = ("batch", batch) if batch is not None else ("step", step.number)
        for graph, cap in self._caps(step):
            taken = self.holders.get(graph, set())
            if holder not in taken and len(taken) >= cap:
                return graph
        return None

    def cap(self, graph: int) -> int | None:
        """Return the number of slots of a graph (or of the ``WHOLE`` graph), or ``None`` if the
        graph has no cap.
        """
        return self._graph_cap if graph == WHOLE else self._spread.steps[graph].max_parallel

    def alternative(self, step: Step) -> int | None:
        """Return the index of the first alternative of resources that is free, or ``None``."""
        for n, resource in enumerate(_exact(step.resources)):
            if all(self.free[name] >= need for name, need in resource.items()):
                return n
        return None

    def _caps(self, step: Step) -> Iterable[tuple[int, int]]:
        if not self._capped:
            return
        for graph in self._spread.around(step.number):
            cap = self._spread.steps[graph].max_parallel
            if cap is not None:
                yield graph, cap
        if self._graph_cap is not None:
            yield WHOLE, self._graph_cap


@functools.lru_cache(maxsize=1024)
def _exact(resources: tuple[tuple[tuple[str, str], ...], ...]) -> Sequence[Mapping[str, Fraction]]:
    """Return the alternatives of resources with exact numbers."""
    return [amounts(dict(resource)) for resource in resources]


def executes(step: Step) -> bool:
    """Return whether the step is executing, is about to execute, or may still be executing.

    Such a step counts towards ``max_parallel``; a sub-graph or an approval never does.
    """
    if not STEP_RULES[step.kind].takes_slot:
        return False
    return (
        step.state is StepState.EXECUTING
        or step.ending
        or (step.batch is not None and not step.state.final)
    )


@dataclass
class _Filling:
    """A call that still receives steps."""

    number: int
    steps: list[int] = field(default_factory=list)


@dataclass
class _Pool:
    """The planned calls for one pool of workers: their number, the steps in each, and the calls
    that waited before.
    """

    left: int = 2 * LEAST
    size: int = 1
    waiting: int = 0


@dataclass
class Picking:
    """One pick. ``run`` reserves slots and resources for the steps that it picks, and may be called
    only once.
    """

    spread: Propagation
    options: GraphOptions
    now: datetime
    next_batch: int
    batches_left: int
    begin_left: int
    answered: int = 0
    """The number of calls that have returned since the last pick."""
    ended: int = 0
    """The number of steps that have ended since the last pick."""
    key: str = ""
    """The id of the graph, for messages."""
    _filling: dict[tuple[str | None, int], _Filling] = field(default_factory=dict)
    _batches: list[Batch] = field(default_factory=list)
    _begin: list[int] = field(default_factory=list)
    _busy: list[bool] = field(default_factory=list)
    """For each step that waits until workers take calls of its pool: True if calls already waited
    before this pick.
    """

    def run(self) -> PickedSteps:
        """Return the steps that start now."""
        again_at = self._due()
        steps = self.spread.steps
        ready = [step for step in steps if step.state is StepState.AVAILABLE and step.batch is None]
        if ready:
            ready.sort(key=lambda step: (step.priority, step.number))
            self._capacity = Capacity(self.spread, self.options)
            self._pools = _pools(steps, self.answered, self.ended)
            for step in ready:
                if (begin := STEP_RULES[step.kind].begin) is not None:
                    begin(self, step.number)
            for (queue, _), filling in self._filling.items():
                self._close(queue, filling)
        if self._busy:
            soon = self.now + timedelta(seconds=BUSY_S if all(self._busy) else TAKEN_S)
            again_at = soon if again_at is None else min(again_at, soon)
        late_at = (step.not_before for step in steps if step.state is StepState.EXECUTING)
        again_at = min(filter(None, (again_at, *late_at)), default=None)
        return PickedSteps(self._batches, self._begin, again_at)

    def _due(self) -> datetime | None:
        """Make steps available whose waiting time has elapsed.

        Return the time at which the next step becomes available.
        """
        again_at: datetime | None = None
        for step in self.spread.steps:
            if step.state in _TIMED:
                if step.not_before is None or step.not_before <= self.now:
                    step.not_before = None
                    self.spread.set(step.number, StepState.AVAILABLE)
                elif again_at is None or step.not_before < again_at:
                    again_at = step.not_before
        return again_at

    def call(self, number: int) -> None:
        step = self.spread.steps[number]
        pool = self._pools.setdefault(step.queue, _Pool())
        key = (step.queue, turn(step))
        alone = step.long or bool(step.resources)
        filling = None if alone else self._filling.get(key)
        if filling is not None and len(filling.steps) >= pool.size:
            self._close(step.queue, self._filling.pop(key))
            filling = None
        if filling is None and (pool.left <= 0 or self.batches_left <= 0):
            self._busy += [pool.waiting > 0] if pool.left <= 0 else []
            return
        batch = self.next_batch if filling is None else filling.number
        if not self._reserve(step, batch):
            return
        if filling is None:
            filling = _Filling(batch)
            self.next_batch += 1
            self.batches_left -= 1
            pool.left -= 1
        filling.steps.append(number)
        if alone:
            self._batches.append(Batch(batch, (number,), step.queue, step.long))
        else:
            self._filling[key] = filling

    def start(self, number: int) -> None:
        step = self.spread.steps[number]
        if self.begin_left <= 0 or not self._reserve(step, None):
            return
        self.begin_left -= 1
        self._execute(step)
        self._begin.append(number)

    def ask(self, number: int, what: str, verb: str) -> None:
        step = self.spread.steps[number]
        step.not_before = (
            None if step.limit_s is None else self.now + timedelta(seconds=step.limit_s)
        )
        self._execute(step, asks_for(what, _at(" until", step), verb, self.key, step.path))

    def _execute(self, step: Step, reason: str | None = None) -> None:
        step.attempt += 1
        step.tries += 1
        self.spread.set(step.number, StepState.EXECUTING, reason=reason)

    def _reserve(self, step: Step, batch: int | None) -> bool:
        """Reserve resources and slots for a step. Return whether enough of them were free."""
        alternative = self._capacity.alternative(step) if step.resources else None
        if (step.resources and alternative is None) or self._capacity.full(step, batch) is not None:
            return False
        step.batch = batch
        step.alternative = alternative
        self.spread.changed.add(step.number)
        self._capacity.take(step, alternative)
        return True

    def _close(self, queue: str | None, filling: _Filling) -> None:
        """Close a call, after adding the chains of steps that follow its steps.

        A step is added if it is the only dependent of each of its open dependencies, and all of
        these are in the call. A fan-out is not added, because several calls should carry it out.
        """
        steps = filling.steps
        inside: dict[int, int] = {}
        for number in steps:  # the list grows while it is read
            if len(steps) >= BATCH_STEPS:
                break
            dependents = self.spread.dependents[number]
            if len(dependents) == 1 and not self.spread.steps[number].graft:
                follower = dependents[0]
                inside[follower] = inside.get(follower, 0) + 1
                all_here = inside[follower] == self.spread.left[follower] and self._follows(
                    follower, queue
                )
                if all_here and self._reserve(self.spread.steps[follower], filling.number):
                    steps.append(follower)
        self._batches.append(Batch(filling.number, tuple(steps), queue))

    def _follows(self, number: int, queue: str | None) -> bool:
        step = self.spread.steps[number]
        parent = step.parent
        return (
            STEP_RULES[step.kind].called
            and step.state is StepState.SUSPENDED
            and step.batch is None
            and step.queue == queue
            and not (step.long or step.resources or step.not_before)
            and (
                parent is None
                or self.spread.steps[parent].graft
                or self.spread.gate[parent] is Gate.OPEN
            )
        )


def turn(step: Step) -> int:
    """Return the priority of a step's call among calls of all graphs, from 1 (first) to 5."""
    return min(5, 1 + step.priority // 2)


def _pools(steps: Iterable[Step], answered: int, ended: int) -> dict[str | None, _Pool]:
    """Return how many calls may be made for each pool, and how many steps each call gets.

    A graph does not know how many slots the workers of a pool have for it. The graph only knows how
    many calls these workers took: calls that are executing, and calls that returned since the last
    pick. The same number of calls may wait, or twice as many if no call is waiting now. A call gets
    twice the average number of steps that recently ended per call, but at most its share of the
    steps that are ready or in calls. If functions are slow, this leaves enough steps for calls that
    other workers take.
    """
    counts = Counter[str | None]()
    calls = dict[str | None, dict[int, bool]]()
    for step in steps:
        if not STEP_RULES[step.kind].called:
            continue
        if step.state in GIVEN and not step.long and not step.resources:
            counts[step.queue] += 1
        if step.batch is not None:
            taken = calls.setdefault(step.queue, {})
            taken[step.batch] = (
                taken.get(step.batch, False) or step.state is StepState.EXECUTING or step.ending
            )
    pools = {}
    for queue in {*counts, *calls}:
        taken = calls.get(queue, {})
        known = sum(taken.values()) + answered
        waiting = len(taken) - sum(taken.values())
        most = min(MOST, max(LEAST, known) * (1 if waiting else 2))
        share = (
            min(-(-counts[queue] // most), -(-2 * ended // known))
            if known
            else -(-counts[queue] // SPREAD)
        )
        pools[queue] = _Pool(most - waiting, max(1, min(BATCH_STEPS, share)), waiting)
    return pools


# --- what an unfinished step waits for ------------------------------------------------------------

#: The maximum number of names that a sentence lists. All further names are only counted.
_SHOWN = 3


def waiting(spread: Propagation, capacity: Capacity, number: int) -> str | None:
    """Return what this step is waiting for, or ``None`` if the step is executing, or if the step
    and all steps in it have ended. For an executing step, return the recorded reason if there is
    one, for example the reason why a crawl waits.
    """
    step = spread.steps[number]
    if step.unreadable is not None:
        return step.unreadable
    if step.ending:
        return "it was cancelled, and is waiting for proof that none of its work is still running"
    if step.state is StepState.EXECUTING and not spread.children[number]:
        return step.reason
    if step.state.final or step.state is StepState.EXECUTING:
        return _inside(spread, number)
    if step.state in (StepState.SCHEDULED, StepState.RETRYABLE):
        what = "its next try" if step.state is StepState.RETRYABLE else "its time"
        return f"it is waiting for {what}{_at(' at', step)}"
    if step.state is StepState.AVAILABLE:
        return _capacity(spread, capacity, step)
    return _dependencies(spread, number)


def _at(word: str, step: Step) -> str:
    return (
        step.not_before.astimezone(UTC).strftime(f"{word} %Y-%m-%d %H:%M:%S UTC")
        if step.not_before
        else ""
    )


def _inside(spread: Propagation, number: int) -> str | None:
    open_ = [
        child
        for child in spread.children[number]
        if spread.end[child] is None or not spread.calm[child]
    ]
    return f"it is waiting for steps in it: {_names(spread, open_)}" if open_ else None


def _dependencies(spread: Propagation, number: int) -> str:
    held = next(
        (gated for gated in (number, *spread.gated_by(number)) if spread.left[gated]), number
    )
    whose = "it" if held == number else f"its graph {shown(spread.steps[held].path)}"
    step = spread.steps[held]
    if step.unreadable is not None:
        return f"{whose} cannot be read"
    waits = [
        d for d in step.deps if not (spread.lets_through(held, spread.end[d]) and spread.calm[d])
    ]
    texts = [_names(spread, waits)] if waits else []
    if step.missing:
        texts.append(
            f"{_listed([shown(path) for path in step.missing])}, which has not been appended yet"
        )
    if not texts:
        return "it is waiting for the graphs around it"
    return f"{whose} is waiting for {' and for '.join(texts)}"


def _capacity(spread: Propagation, capacity: Capacity, step: Step) -> str:
    if step.batch is not None:
        whose = (
            "with the role user-code" if step.queue is None else f"of the pool {shown(step.queue)}"
        )
        return f"it is waiting for a free worker {whose}"
    full = capacity.full(step)
    if full is not None:
        where = "the graph" if full == WHOLE else shown(spread.steps[full].path)
        return f"it is waiting for one of the {capacity.cap(full)} slots of {where}"
    if step.resources and capacity.alternative(step) is None:
        needs = [
            " and ".join(
                f"{need} of {name} ({capacity.free[name]} free)" for name, need in resource.items()
            )
            for resource in _exact(step.resources)
        ]
        return f"it is waiting for {' or '.join(needs)}"
    return (
        "it is waiting for a worker"
        if STEP_RULES[step.kind].called
        else "it is waiting to be started"
    )


def _names(spread: Propagation, numbers: Sequence[int]) -> str:
    return _listed([f"{shown(spread.steps[n].path)} ({spread.steps[n].state})" for n in numbers])


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
