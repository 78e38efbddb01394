"""Merge patches (RFC 7386) and strategic ones, as far as the API is asked for them."""

from __future__ import annotations

import copy
from typing import Any

from tests.support.kube_api.problems import Problem

STRATEGIC = "application/strategic-merge-patch+json"
MERGE = ("application/merge-patch+json", STRATEGIC)
#: A strategic patch takes these values out of the list that the rest of the key names.
DELETE = "$deleteFromPrimitiveList/"


def apply(content_type: str, target: dict[str, Any], patch: Any) -> dict[str, Any]:
    """The patched object; the target stays as it is. A strategic patch is a merge for objects without keyed lists."""
    if content_type not in MERGE:
        text = f"the body of the request was in an unknown format - accepted media types include: {MERGE[0]}"
        raise Problem(415, text)
    merged: dict[str, Any] = _merge(target, patch, strategic=content_type == STRATEGIC)
    return merged


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
