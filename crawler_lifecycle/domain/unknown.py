"""Advice about names that do not exist, with the name that was probably meant."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

#: The maximum number of names that are compared with an unknown one. More would take too long.
_COMPARED_MAX = 5000
#: The maximum number of names in an error message, and how many it contains if there are more,
#: because nobody reads hundreds of them.
_LISTED_MAX = 20
_SHOWN = 3


def similar(name: object, known: Iterable[str]) -> str | None:
    """Return the valid name that was probably meant, or ``None`` if no name is similar."""
    alike = {_bare(each): each for each in itertools.islice(known, _COMPARED_MAX)}
    # The time for a comparison depends on the number of characters. The truncated name is still
    # longer than all valid names.
    wanted = _bare(str(name)[:60])
    letters = sorted(wanted)
    swapped = [each for each in alike if sorted(each) == letters]
    # Swapped digits are a common mistake, but difflib prefers one wrong digit.
    for group in (swapped, alike):
        for close in difflib.get_close_matches(wanted, group, 1, cutoff=0.75):
            return alike[close]
    return None


def suggest(name: object, known: Collection[str]) -> str:
    """Return the advice for a name that does not exist: the most similar valid name or, if no name
    is similar, the first valid names.
    """
    close = similar(name, known)
    if close is not None:
        return f"did you mean {close}?"
    most = _LISTED_MAX if len(known) <= _LISTED_MAX else _SHOWN
    listed = ", ".join(itertools.islice(known, most)) or "none"
    left = len(known) - most
    return f"known: {listed} and {left} more" if left > 0 else f"known: {listed}"


def advise(name: object, known: Collection[str]) -> str:
    """Return the advice for a field that does not exist, as ``suggest`` does."""
    return suggest(name, known) if known else "leave it out"


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
