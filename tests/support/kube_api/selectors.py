"""Label and field selectors, as the API reads them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from tests.support.kube_api.problems import Problem

Match = Callable[[Mapping[str, Any]], bool]

_KEY = r"[A-Za-z0-9][-A-Za-z0-9_.]*(?:/[A-Za-z0-9][-A-Za-z0-9_.]*)?"
_PARTS = re.compile(r"(?:[^,(]|\([^)]*\))+")
_SET = re.compile(rf"({_KEY})\s+(in|notin)\s+\(([^)]*)\)")
_EQUAL = re.compile(rf"({_KEY})\s*(=|==|!=)\s*([-A-Za-z0-9_.]*)")
_THERE = re.compile(rf"(!?)\s*({_KEY})")

_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")

#: Fields for selectors, in addition to name and namespace.
_FIELDS = {
    "pods": (
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.serviceAccountName",
        "status.phase",
        "status.podIP",
    ),
    "jobs": ("status.successful",),
    "events": (
        *(
            "involvedObject.kind",
            "involvedObject.name",
            "involvedObject.namespace",
            "involvedObject.uid",
        ),
        *("reason", "type", "reportingComponent", "source"),
    ),
    "namespaces": ("status.phase",),
}


def labels(selector: str | None) -> Match:
    """Parse a label selector. Raises ``Problem`` (400) for an invalid one."""
    tests = [_label(part.strip()) for part in _PARTS.findall(selector or "") if part.strip()]
    return lambda found: all(test(found["metadata"].get("labels") or {}) for test in tests)


def _label(part: str) -> Match:
    if found := _SET.fullmatch(part):
        key, operator, inside = found.groups()
        values = {value.strip() for value in inside.split(",")}
        if wrong := [value for value in values if not _VALUE.fullmatch(value)]:
            raise Problem(400, f"unable to parse requirement: {wrong[0]!r} is no value of a label")
        return (
            (lambda has: has.get(key) in values)
            if operator == "in"
            else (lambda has: has.get(key) not in values)
        )
    if found := _EQUAL.fullmatch(part):
        key, operator, value = found.groups()
        return (
            (lambda has: has.get(key) != value)
            if operator == "!="
            else (lambda has: has.get(key) == value)
        )
    if found := _THERE.fullmatch(part):
        absent, key = found.groups()
        return lambda has: (key in has) != bool(absent)
    raise Problem(400, f"unable to parse requirement: {part}")


def fields(selector: str | None, plural: str) -> Match:
    """Parse a field selector. Raises ``Problem`` (400) for a field that cannot be selected."""
    tests: list[tuple[tuple[str, ...], str, bool]] = []
    for part in filter(None, (selector or "").split(",")):
        key, operator, value = re.fullmatch(r"([^=!]+)(==|!=|=)(.*)", part).groups()  # type: ignore[union-attr]
        if key not in ("metadata.name", "metadata.namespace", *_FIELDS.get(plural, ())):
            raise Problem(400, f"field label not supported: {key}")
        tests.append((tuple(key.split(".")), value, operator == "!="))

    def match(found: Mapping[str, Any]) -> bool:
        return all((_at(found, path) == value) != negated for path, value, negated in tests)

    return match


def _at(found: Any, path: tuple[str, ...]) -> str:
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return "" if found is None else str(found)
