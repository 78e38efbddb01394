"""What an unfinished step waits for, in one sentence for people."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC

from .checks import shown
from .picking import WHOLE, Room, alternatives
from .propagation import Propagation
from .rows import Step
from .spec import StepKind, StepState

#: Names that a sentence lists before it only counts them.
_SHOWN = 3


def waiting(spread: Propagation, room: Room, number: int) -> str | None:
    """What this step waits for; ``None`` when it executes, or has ended with everything in it. Of a crawl whose run
    has ended, what its end says."""
    step = spread.steps[number]
    if step.unreadable is not None:
        return step.unreadable
    if step.ending:
        return "it was cancelled, and waits for the proof that nothing of it runs"
    if step.state is StepState.EXECUTING and not spread.children[number]:
        return step.reason
    if step.state.final or step.state is StepState.EXECUTING:
        return _inside(spread, number)
    if step.state in (StepState.SCHEDULED, StepState.RETRYABLE):
        what = "its next try" if step.state is StepState.RETRYABLE else "its time"
        at = step.not_before.astimezone(UTC).strftime(" at %Y-%m-%d %H:%M:%S UTC") if step.not_before else ""
        return f"it waits for {what}{at}"
    if step.state is StepState.AVAILABLE:
        return _room(spread, room, step)
    return _dependencies(spread, number)


def _inside(spread: Propagation, number: int) -> str | None:
    open_ = [child for child in spread.children[number] if spread.end[child] is None or not spread.calm[child]]
    return f"it waits for steps in it: {_names(spread, open_)}" if open_ else None


def _dependencies(spread: Propagation, number: int) -> str:
    held = next((one for one in (number, *spread.gated_by(number)) if spread.left[one]), number)
    whose = "it" if held == number else f"its graph {shown(spread.steps[held].path)}"
    step = spread.steps[held]
    if step.unreadable is not None:
        return f"{whose} cannot be read"
    waits = [d for d in step.deps if not (spread.lets_through(held, spread.end[d]) and spread.calm[d])]
    texts = [_names(spread, waits)] if waits else []
    if step.missing:
        texts.append(f"{_listed([shown(path) for path in step.missing])}, which nobody has appended yet")
    if not texts:
        return "it waits for the graphs around it"
    return f"{whose} waits for {' and for '.join(texts)}"


def _room(spread: Propagation, room: Room, step: Step) -> str:
    if step.batch is not None:
        whose = "role plans" if step.queue is None else f"pool {shown(step.queue)}"
        return f"it was given to the workers of the {whose}, and waits for one that is free"
    full = room.full(step)
    if full is not None:
        where = "the graph" if full == WHOLE else shown(spread.steps[full].path)
        return f"it waits for one of the {room.cap(full)} places of {where}"
    if step.resources and room.alternative(step) is None:
        needs = [
            " and ".join(f"{need} of {name} ({room.free[name]} free)" for name, need in one.items())
            for one in alternatives(step)
        ]
        return f"it waits for {' or '.join(needs)}"
    return "it waits for a worker" if step.kind is StepKind.FUNCTION else "it waits to be started"


def _names(spread: Propagation, numbers: Sequence[int]) -> str:
    return _listed([f"{shown(spread.steps[n].path)} ({spread.steps[n].state})" for n in numbers])


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
