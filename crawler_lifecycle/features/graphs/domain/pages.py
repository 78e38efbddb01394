"""The form in which graphs are sent: a step as JSON, a graph as pages of JSON, and its fingerprint.

Input is not trusted. An unknown or missing field, or a wrong type, is refused, and the error names
the step.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, fields
from datetime import datetime
from typing import Any

from crawler_lifecycle.domain.bounds import refusal
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.unknown import advise

from .checks import check_json, check_step, shown
from .spec import (
    CONTEXT_BYTES,
    STEPS_MAX,
    GraphOptions,
    GraphSpec,
    StepKind,
    StepSpec,
)

#: The maximum number of bytes in one page, and the maximum number of pages of one graph.
PAGE_BYTES = 2 * 1024 * 1024
PAGES_MAX = 100

_FIELDS = {field.name: field for field in fields(StepSpec)}
_DEFAULTS = {"job": {}} | {
    name: field.default for name, field in _FIELDS.items() if field.default is not MISSING
}
#: Fields whose type is checked first, each with the allowed type and the fix.
_KINDS: Mapping[str, tuple[Any, str]] = {
    "ignore_cancelled": (bool, "give true or false"),
    "ignore_discarded": (bool, "give true or false"),
    "graft": (bool, "give true or false"),
    "job": (dict, "give an object"),
    "queue": (str | None, "give a string"),
}


def step_to_json(step: StepSpec) -> dict[str, Any]:
    """Return the step as JSON, omitting fields that have their default values."""
    found: dict[str, Any] = {}
    for name in _FIELDS:
        value = getattr(step, name)
        if name not in _DEFAULTS or value != _DEFAULTS[name]:
            found[name] = value
    found["kind"] = step.kind.value
    if step.deps:
        found["deps"] = list(step.deps)
    if step.resources:
        found["resources"] = [dict(resource) for resource in step.resources]
    if step.not_before is not None:
        found["not_before"] = step.not_before.isoformat()
    return found


def step_from_json(value: object) -> StepSpec:
    """Read a step from JSON. Raises ``InvalidRequest`` with the step, the field, the value and the
    fix.
    """
    if not isinstance(value, dict):
        raise refusal("step", value, "give an object with path, kind and job")
    where = f"step {shown(value['path'])}" if isinstance(value.get("path"), str) else "step"
    for name in value:
        if name not in _FIELDS:
            raise refusal(
                f"{where}: {name}",
                value[name],
                f"this field does not exist; {advise(name, _FIELDS)}",
            )
    for name in ("path", "kind"):
        if name not in value:
            raise InvalidRequest(f"{where}: {name} is missing; give it")
    known = dict(value)
    if not isinstance(value["kind"], str) or value["kind"] not in {kind.value for kind in StepKind}:
        raise refusal(f"{where}: kind", value["kind"], f"give one of {', '.join(StepKind)}")
    known["kind"] = StepKind(value["kind"])
    for name, (kind, fix) in _KINDS.items():
        if name in value and not isinstance(value[name], kind):
            raise refusal(f"{where}: {name}", value[name], fix)
    if "deps" in value:
        known["deps"] = tuple(_list(f"{where}: deps", value["deps"], str, "give a list of strings"))
    if "resources" in value:
        known["resources"] = tuple(
            _list(f"{where}: resources", value["resources"], dict, "give a list of objects")
        )
    if value.get("not_before") is not None:
        known["not_before"] = _time(f"{where}: not_before", value["not_before"])
    step = StepSpec(**known)
    check_step(step)
    return step


def encode_pages(spec: GraphSpec) -> list[bytes]:
    """Return the graph as pages of at most ``PAGE_BYTES``, in order, and excluding its options.

    Raises ``InvalidRequest`` for an invalid step or context, and for a graph that is too large.
    """
    check_json("context", spec.context, CONTEXT_BYTES)
    pages: list[bytes] = []
    head = b'{"context":' + _dump(spec.context) + b',"steps":['
    now: list[bytes] = []
    size = len(head)
    for step in spec.steps:
        check_step(step)
        one = _dump(step_to_json(step))
        if len(one) + 20 > PAGE_BYTES:
            fix = "depend on a group of steps instead of on each of them"
            raise InvalidRequest(
                f"step {shown(step.path)}: {len(one)} bytes are too many for one step; {fix}"
            )
        if size + len(one) + 3 > PAGE_BYTES:
            pages.append(head + b",".join(now) + b"]}")
            head = b'{"steps":['
            now = []
            size = len(head)
        now.append(one)
        size += len(one) + 1
    pages.append(head + b",".join(now) + b"]}")
    if len(pages) > PAGES_MAX:
        fix = "store large arguments elsewhere and give their location"
        raise InvalidRequest(
            f"steps: {len(pages)} pages of {PAGE_BYTES} bytes are more than {PAGES_MAX}: {fix}"
        )
    return pages


def decode_pages(pages: Iterable[bytes], options: GraphOptions) -> GraphSpec:
    """Read a graph from its pages.

    Each step is checked; ``checks.check`` checks the links between steps.

    Raises ``InvalidRequest`` with the page or the step.
    """
    context: Mapping[str, Any] = {}
    steps: list[StepSpec] = []
    for number, data in enumerate(pages):
        page = _page(number, data)
        if number == 0:
            context = page.get("context", {})
        steps += map(step_from_json, page["steps"])
        if len(steps) > STEPS_MAX:
            break  # ``checks.check`` refuses a graph with this many steps
    return GraphSpec(steps, options, context)


def decode_page(number: int, data: bytes) -> list[StepSpec]:
    """Read the steps of one page of a draft.

    Raises ``InvalidRequest`` with the page or the step.
    """
    return [step_from_json(step) for step in _page(number, data)["steps"]]


def fingerprint(spec: GraphSpec) -> str:
    """Return a hash of the graph: of its steps in order, its options and its context."""
    found = hashlib.sha256()
    for value in (asdict(spec.options), spec.context, *map(step_to_json, spec.steps)):
        found.update(_dump(value, sort_keys=True) + b"\n")
    return found.hexdigest()


def _page(number: int, data: bytes) -> dict[str, Any]:
    where = f"page {number}"
    if len(data) > PAGE_BYTES:
        raise InvalidRequest(
            f"{where}: {len(data)} bytes are too many; give at most {PAGE_BYTES} and more pages"
        )
    try:
        page = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"{where}: this is not JSON ({error}); send the bytes of encode_pages"
        ) from None
    allowed = {"steps", "context"} if number == 0 else {"steps"}
    if (
        not isinstance(page, dict)
        or not page.keys() <= allowed
        or not isinstance(page.get("steps"), list)
    ):
        raise InvalidRequest(f"{where}: an object with {' and '.join(sorted(allowed))} is needed")
    if number == 0:
        check_json("context", page.get("context", {}), CONTEXT_BYTES)
    return page


def _dump(value: object, **how: Any) -> bytes:
    return json.dumps(
        value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), **how
    ).encode()


def _list(where: str, value: object, kind: type, fix: str) -> list[Any]:
    if not isinstance(value, list) or not all(isinstance(inner, kind) for inner in value):
        raise refusal(where, value, fix)
    return value


def _time(where: str, value: object) -> datetime:
    try:
        return datetime.fromisoformat(str(value)[:100])
    except ValueError:
        raise refusal(
            where, value, "give a time with a time zone, such as 2026-03-01T12:00:00Z"
        ) from None
