"""Rules about items: which items match a filter, and how values become text.

``runner/item_reader.py`` reads the items.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

#: The maximum depth of nested lists that is written if a value is nested too deeply for Python.
_DEPTH_MAX = 50
# ``json.dumps`` would create a new encoder for each value.
_encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


def matching(field: str | None, contains: str | None) -> Callable[[Any], bool]:
    """Return a function that checks whether an item has this text in the field, or in any field.
    Case is ignored. If there is no text, the function checks whether the field has a value.
    """
    wanted = (contains or "").casefold()

    def fits(item: Any) -> bool:
        fields = item if isinstance(item, dict) else {None: item}
        values = fields.values() if field is None else (fields.get(field),)
        return any(value is not None and wanted in as_text(value).casefold() for value in values)

    return fits if field is not None or wanted else lambda _: True


def as_text(value: Any) -> str:
    """Return a value as text: a string unchanged, an empty string for null, and JSON for any other
    value.
    """
    return value if isinstance(value, str) else "" if value is None else plain(value)


def plain(value: Any) -> str:
    """Return the value as standard JSON, with null for NaN and infinity, and ``…`` for lists that
    are nested too deeply.
    """
    try:
        return _encoder.encode(value)
    except (ValueError, RecursionError):
        return json.dumps(_bounded(value, 0), ensure_ascii=False)


def _bounded(value: Any, depth: int) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if not isinstance(value, dict | list):
        return value
    if depth == _DEPTH_MAX:
        return "…"
    if isinstance(value, list):
        return [_bounded(inner, depth + 1) for inner in value]
    return {name: _bounded(inner, depth + 1) for name, inner in value.items()}
