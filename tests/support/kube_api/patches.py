"""Merge patches (RFC 7386), JSON patches (RFC 6902) and strategic ones, as far as the API is asked for them."""

from __future__ import annotations

import copy
from typing import Any

from tests.support.kube_api.problems import Problem

STRATEGIC = "application/strategic-merge-patch+json"
MERGE = ("application/merge-patch+json", STRATEGIC)
#: A strategic patch takes these values out of the list that the rest of the key names.
DELETE = "$deleteFromPrimitiveList/"
JSON = "application/json-patch+json"


def apply(content_type: str, target: dict[str, Any], patch: Any) -> dict[str, Any]:
    """The patched object; the target stays as it is. A strategic patch is a merge for objects without keyed lists."""
    if content_type in MERGE:
        if not isinstance(patch, dict):
            raise Problem(400, "error decoding patch: it is no object")
        merged = _merge(target, patch, strategic=content_type == STRATEGIC)
        return merged if isinstance(merged, dict) else {}
    if content_type == JSON:
        return _json(copy.deepcopy(target), patch)
    raise Problem(415, f"the body of the request was in an unknown format - accepted media types include: {MERGE[0]}")


def _merge(target: Any, patch: Any, *, strategic: bool) -> Any:
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if strategic and key.startswith(DELETE):
            name = key.removeprefix(DELETE)
            left = [one for one in merged.pop(name, []) if one not in value]
            merged |= {name: left} if left else {}
        elif value is None:
            merged.pop(key, None)
        elif strategic and key == "finalizers":  # a set: what is there stays, behind what is new
            merged[key] = [*(one for one in value if one not in merged.get(key, [])), *merged.get(key, [])]
        else:
            merged[key] = _merge(merged.get(key), value, strategic=strategic)
    return merged


def _json(target: dict[str, Any], patch: list[dict[str, Any]]) -> dict[str, Any]:
    for step in patch:
        *way, last = [part.replace("~1", "/").replace("~0", "~") for part in step["path"].split("/")[1:]]
        try:
            place: Any = target
            for part in way:
                place = place[int(part)] if isinstance(place, list) else place[part]
            _do(step, place, last)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            text = "the server rejected our request due to an error in our request"
            raise Problem(422, text, "Invalid", {}) from error
    return target


def _do(step: dict[str, Any], place: Any, last: str) -> None:
    at: Any = last
    if isinstance(place, list):
        at = len(place) if last == "-" else int(last)
    match step["op"]:
        case "test":
            if place[at] != step["value"]:
                raise ValueError(last)
        case "remove":
            del place[at]
        case "replace":
            del place[at]  # which must be there
            _do({**step, "op": "add"}, place, last)
        case "add" if isinstance(place, list):
            place.insert(at, step["value"])
        case "add":
            place[at] = step["value"]
        case other:
            raise ValueError(other)
