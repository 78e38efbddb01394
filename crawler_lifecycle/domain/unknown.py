"""Advice about names of fields that do not exist, with the name that was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from typing import Any


def advise(name: object, known: Collection[str]) -> str:
    """Return the advice for a name that does not exist: the most similar valid name or, if no name
    is similar, all valid names.
    """
    alike = {_bare(each): each for each in known}
    # The time for a comparison depends on the number of characters. The truncated name is still
    # longer than all valid names.
    for close in difflib.get_close_matches(_bare(str(name)[:60]), alike, 1, cutoff=0.75):
        return f"did you mean {alike[close]}?"
    return f"known are {', '.join(known)}" if known else "leave it out"


def _bare(name: str) -> str:
    return name.replace("_", "").replace("-", "").casefold()


def names_at(
    schema: Mapping[str, Any], path: Sequence[str | int], whole: Mapping[str, Any] | None = None
) -> list[str]:
    """Return the names of the fields that an object has at a path.

    ``schema`` is a JSON schema.
    """
    whole = schema if whole is None else whole
    if "$ref" in schema:
        return names_at(whole["$defs"][schema["$ref"].rpartition("/")[2]], path, whole)
    if "anyOf" in schema:
        return [name for kind in schema["anyOf"] for name in names_at(kind, path, whole)]
    fields = schema.get("properties", {})
    if not path:
        return list(fields)
    inner = schema.get("items") if isinstance(path[0], int) else fields.get(path[0])
    return names_at(inner, path[1:], whole) if isinstance(inner, dict) else []
