"""Checks of a graph: the fields of each step, and the links between steps.

Every error names the step, the value and the fix.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from fractions import Fraction
from graphlib import CycleError, TopologicalSorter
from typing import Any

from crawler_lifecycle.domain.bounds import (
    Bound,
    check_number,
    check_text,
    check_time,
    refusal,
    travels,
)
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.names import graph_workflow_id

from .kinds import CONTAINING, STEP_RULES, check_objects
from .spec import (
    CONTEXT_BYTES,
    DEPS_MAX,
    DEPTH_MAX,
    JOB_BYTES,
    NAME_MAX,
    PATH_MAX,
    STEPS_MAX,
    GraphOptions,
    GraphSpec,
    StepKind,
    StepSpec,
)

#: The bounds of the number fields of a step.
NUMBERS: Mapping[str, Bound] = {
    "timeout_s": Bound(0, 7 * 86_400, "seconds", above=True),
    "max_attempts": Bound(1, 1000, whole=True),
    "backoff_s": Bound(0, 86_400, "seconds"),
    "priority": Bound(0, 9, whole=True, fix=", where 0 is first and 9 is last"),
    "max_parallel": Bound(1, STEPS_MAX, whole=True, or_none=True, fix=", or leave it out for all"),
}
#: The maximum numbers of alternatives of a step, of names in an alternative, and of characters in a
#: name.
ALTERNATIVES_MAX = 5
RESOURCES_MAX = 10
RESOURCE_NAME_MAX = 100

_DEFAULTS = {field.name: field.default for field in fields(StepSpec)}
_QUEUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,49}", re.ASCII)
_FRACTION = re.compile(r"[0-9]{1,9}(?:/[0-9]{1,9}|\.[0-9]{1,9})?", re.ASCII)
#: The maximum number of names that an error lists. All further names are only counted.
_SHOWN = 100


def check(spec: GraphSpec) -> None:
    """Raise ``InvalidRequest`` with the step, the value and the fix unless the graph can be run."""
    check_options(spec.options)
    check_json("context", spec.context, CONTEXT_BYTES)
    check_objects("graph", {"context": dict(spec.context)}, ("context",))
    for step in spec.steps:
        check_step(step)
    check_pools(spec.steps, spec.options)
    link(spec.steps, check_deps=spec.options.check_deps)


def check_options(options: GraphOptions) -> None:
    """Raise ``InvalidRequest`` for invalid options of a graph."""
    check_number("max_parallel", options.max_parallel, NUMBERS["max_parallel"])
    _check_amounts("pools", options.pools, 10 * RESOURCES_MAX)


def check_name(name: object, where: str = "name") -> None:
    """Raise ``InvalidRequest`` unless this may be the name of a step."""
    check_text(where, name, NAME_MAX, needed=True)
    if "/" in str(name):  # in a path, a slash separates a graph from its steps
        raise refusal(where, name, "leave out the /")


def check_key(key: str) -> None:
    """Raise ``InvalidRequest`` unless this may be the id of a graph.

    The id is a part of web addresses.
    """
    check_name(key, "id")
    if key != key.strip():  # some databases ignore spaces at the end of an id
        raise refusal("id", key, "remove the white space at its beginning and end")
    if not travels(graph_workflow_id(key)):
        fix = "give a shorter id: the workflow's id is this id with the prefix graph/"
        raise refusal("id", key, fix)
    if key in (".", ".."):
        raise InvalidRequest(f"id: {key!r} is not allowed; an address cannot end with it")


def check_step(step: StepSpec) -> None:
    """Raise ``InvalidRequest`` unless all fields of the step are within their bounds."""
    _check_path(step.path)
    where = f"step {shown(step.path)}"
    for field, bound in NUMBERS.items():
        check_number(f"{where}: {field}", getattr(step, field), bound)
    check_time(f"{where}: not_before", step.not_before)
    if step.queue is not None and not _QUEUE.fullmatch(step.queue):
        raise refusal(
            f"{where}: queue",
            step.queue,
            "give 1 to 50 letters, digits, dots, dashes and underscores",
        )
    for option, fix in STEP_RULES[step.kind].refuses.items():
        if getattr(step, option) != _DEFAULTS[option]:
            raise refusal(f"{where}: {option}", getattr(step, option), fix)
    for dep in step.deps:
        check_name(dep, f"{where}: deps")
    if len(step.resources) > ALTERNATIVES_MAX:
        raise refusal(
            f"{where}: resources",
            len(step.resources),
            f"give at most {ALTERNATIVES_MAX} alternatives",
        )
    for resource in step.resources:
        _check_amounts(f"{where}: resources", resource, RESOURCES_MAX)
    check_json(f"{where}: job", step.job, JOB_BYTES)
    check_job(where, step.kind, step.job)


def check_pools(steps: Iterable[StepSpec], options: GraphOptions, prefix: str = "") -> None:
    """Raise ``InvalidRequest`` for a step that needs more of a pool than the graph has, because
    such a step could never start.
    """
    pools = amounts(options.pools)
    for step in steps:
        for name, need in (
            (name, need) for resource in step.resources for name, need in amounts(resource).items()
        ):
            if need > pools.get(name, need):
                fix = f"give at most {pools[name]}, or start a graph whose pools have more"
                text = (
                    f"{need} of {shown(name)} is more than its graph has (pools: "
                    f"{pools[name]}); {fix}"
                )
                raise InvalidRequest(f"step {shown(prefix + step.path)}: resources: {text}")


def check_json(where: str, value: object, most: int) -> int:
    """Return the size of a mapping as JSON, in bytes.

    Raises ``InvalidRequest`` for a size above ``most``, and for a value that JSON cannot represent
    exactly.
    """
    fix = "give a JSON object: keys as strings, no NaN, and no value that contains itself"
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        size = len(text.encode())
        if size > most:
            raise InvalidRequest(
                f"{where}: {size} bytes are too many; give at most {most}, and the rest by "
                "reference"
            )
        same = isinstance(value, dict) and json.loads(text) == value
    except InvalidRequest:
        raise
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise InvalidRequest(f"{where}: this is not JSON ({error}); {fix}") from None
    if not same:
        raise InvalidRequest(f"{where}: JSON would change this value; {fix}")
    return size


@dataclass(frozen=True, slots=True)
class Link:
    """The links of a step: its path, its number, its parent, and the numbers of its
    dependencies.
    """

    path: str
    number: int
    parent: int | None
    deps: tuple[int, ...]
    missing: tuple[str, ...]
    """Paths of dependencies that do not exist yet."""


def link(
    steps: Sequence[StepSpec],
    known: Mapping[str, int] | None = None,
    *,
    below: str | None = None,
    check_deps: bool = True,
    may_hold: Callable[[int], bool] = lambda number: False,
) -> list[Link]:
    """Number the steps, and find their parents and dependencies.

    ``known`` are the existing steps, and ``may_hold`` returns whether an existing step may contain
    new steps. ``below`` is the path of the grafting step, and all paths are below it. If
    ``check_deps`` is true, every dependency must exist.

    Raises ``InvalidRequest`` for too many steps or dependencies, a path that already exists, a
    parent that does not exist or cannot contain steps, a step that depends on itself or on a
    missing step, and a cycle.
    """
    numbers = dict(known or {})
    first = len(numbers)
    if first + len(steps) > STEPS_MAX:
        fix = "put several items into one step, or start a graph for each part"
        raise InvalidRequest(
            f"steps: {first + len(steps)} are too many for one graph; at most {STEPS_MAX}: {fix}"
        )
    prefix = "" if below is None else below + "/"
    paths = [prefix + step.path for step in steps]

    def holds(number: int) -> bool:
        return steps[number - first].kind in CONTAINING if number >= first else may_hold(number)

    parents = []
    for number, path in enumerate(paths, first):
        if path in numbers:
            raise InvalidRequest(
                f"step {shown(path)}: this name already exists; use each name only once per level"
            )
        if prefix:
            _check_path(path)
        above, _, _ = path.rpartition("/")
        parents.append(numbers.get(above))
        if above and parents[-1] is None:
            raise InvalidRequest(
                f"step {shown(path)}: graph {shown(above)} does not precede it; send the graph "
                "before the step"
            )
        if above and above != below and not holds(numbers[above]):
            late = "accepts no new steps: it has ended or is not a graph; append the step elsewhere"
            text = (
                "is not a graph; only a graph can contain other steps"
                if numbers[above] >= first
                else late
            )
            raise InvalidRequest(f"step {shown(path)}: {shown(above)} {text}")
        numbers[path] = number
    found = [
        _link(*parts, numbers, check_deps) for parts in zip(paths, steps, parents, strict=True)
    ]
    total = sum(len(entry.deps) + len(entry.missing) for entry in found)
    if total > DEPS_MAX:
        raise InvalidRequest(
            f"deps: {total} are too many; give at most {DEPS_MAX}: depend on a group of steps "
            "instead"
        )
    check_cycle(
        [[dep - first for dep in entry.deps if dep >= first] for entry in found], lambda n: paths[n]
    )
    return found


def _link(
    path: str, step: StepSpec, parent: int | None, numbers: Mapping[str, int], check_deps: bool
) -> Link:
    level = path[: path.rfind("/") + 1]
    deps = []
    missing = []
    for name in dict.fromkeys(step.deps):
        found = numbers.get(level + name)
        if level + name == path:
            raise InvalidRequest(
                f"step {shown(path)}: it depends on itself; leave out that dependency"
            )
        if found is not None:
            deps.append(found)
        elif check_deps:
            raise InvalidRequest(
                f"step {shown(path)}: deps: there is no step {shown(name)} in its level; "
                "add it, or build the graph with check_deps=False to append it later"
            )
        else:
            missing.append(level + name)
    return Link(path, numbers[path], parent, tuple(deps), tuple(missing))


def check_cycle(deps: Sequence[Sequence[int]], path: Callable[[int], str]) -> None:
    """Raise ``InvalidRequest`` with the steps of a cycle.

    Dependencies on the graphs around a step need no check: a step depends only on steps of its own
    level.
    """
    try:
        TopologicalSorter(dict(enumerate(deps))).prepare()
        return
    except CycleError as error:
        cycle: list[int] = error.args[1][:0:-1]  # each step waits for the next one in the list
    first = cycle.index(min(cycle))
    names = [shown(path(n)) for n in (*cycle[first:], *cycle[: first + 1])]
    if len(names) > _SHOWN:
        names[_SHOWN // 2 : -_SHOWN // 2] = [f"({len(names) - _SHOWN} more)"]
    raise InvalidRequest(
        f"deps: {' waits for '.join(names)}: none of these steps could ever start; remove one "
        "dependency"
    )


def amounts(one: Mapping[str, str]) -> dict[str, Fraction]:
    """Return the resources of a step, or the pools of a graph, as exact numbers."""
    return {name: Fraction(amount) for name, amount in one.items()}


def shown(path: str) -> str:
    """Return a name or a path as messages show it, in quotes and truncated if it is too long."""
    return json.dumps(
        path if len(path) <= 2 * NAME_MAX else path[: 2 * NAME_MAX] + "…", ensure_ascii=False
    )


def _check_path(path: object) -> None:
    names = path.split("/") if isinstance(path, str) else [path]
    for name in names:
        check_name(name, "step" if len(names) == 1 else f"step {str(path)[:NAME_MAX]!r}")
    if len(str(path)) > PATH_MAX:
        raise refusal(
            "step",
            path,
            f"its path, including the graphs around it, has at most {PATH_MAX} characters",
        )
    if len(names) > DEPTH_MAX:
        raise refusal("step", path, f"graphs may be {DEPTH_MAX} levels deep; build fewer levels")


def _check_amounts(where: str, one: object, most: int) -> None:
    if not isinstance(one, Mapping) or len(one) > most:
        raise refusal(where, one, f"give at most {most} resources with their amounts")
    for name, amount in one.items():
        if not travels(name, RESOURCE_NAME_MAX):
            raise refusal(where, name, f"name a resource by 1 to {RESOURCE_NAME_MAX} characters")
        fits = isinstance(amount, str) and _FRACTION.fullmatch(amount) is not None
        if not fits or not _fraction(amount):
            raise refusal(
                f"{where}: {name}",
                amount,
                'give an amount above 0 as a string, such as "2", "0.5" or "1/3"',
            )


def _fraction(amount: str) -> Fraction | None:
    try:
        return Fraction(amount) or None
    except ZeroDivisionError:
        return None


def check_begin(
    path: str, kind: StepKind, job: Mapping[str, Any], timeout_s: object, backoff_s: object
) -> None:
    """Raise ``InvalidRequest`` unless a step can be executed with its row, which may have been
    edited by hand.
    """
    where = f"step {shown(path)}"
    check_number(f"{where}: timeout_s", timeout_s, NUMBERS["timeout_s"])
    check_number(f"{where}: backoff_s", backoff_s, NUMBERS["backoff_s"])
    check_job(where, kind, job)


def check_job(where: str, kind: StepKind, job: Mapping[str, Any]) -> None:
    """Raise ``InvalidRequest`` unless a step of this kind may have this job."""
    STEP_RULES[kind].check(where, job)
