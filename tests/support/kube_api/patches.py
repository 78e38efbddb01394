"""Strategic merge patches, as far as our requests need them."""

from __future__ import annotations

import copy
from typing import Any

from tests.support.kube_api.problems import Problem

STRATEGIC = "application/strategic-merge-patch+json"
#: A strategic patch removes these values from the list that the rest of the key names.
DELETE = "$deleteFromPrimitiveList/"


def apply(content_type: str, target: dict[str, Any], patch: Any) -> dict[str, Any]:
    """Return the patched object; the target is unchanged.

    For objects without keyed lists, this is a plain merge.
    """
    if content_type != STRATEGIC:
        raise Problem(
            415, f"the body of the request was in an unknown format - this fake takes {STRATEGIC}"
        )
    merged: dict[str, Any] = _merge(target, patch)
    return merged


def _merge(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if key.startswith(DELETE):
            name = key.removeprefix(DELETE)
            left = [one for one in merged.pop(name, []) if one not in value]
            merged |= {name: left} if left else {}
        elif value is None:
            merged.pop(key, None)
        elif key == "finalizers":  # a set: existing values stay, behind the new ones
            merged[key] = [
                *(one for one in value if one not in merged.get(key, [])),
                *merged.get(key, []),
            ]
        else:
            merged[key] = _merge(merged.get(key), value)
    return merged
