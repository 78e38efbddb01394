"""Repair of invalid values in objects, so that one bad value does not make an object or a whole
list unreadable.

A value is clamped or dropped while its object is decoded. An API server accepts any int64 as a
grace period, and sends times in the years 0 and 10000. Other servers may send other invalid values.
An object without an identity is refused.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, TypeVar

import msgspec

from crawler_lifecycle.domain import bounds

Number = Annotated[int, msgspec.Meta(ge=-bounds.ID_MAX, le=bounds.ID_MAX)]
#: The longest grace period that we accept, in seconds (about three years): larger values exceed the
#: range of times.
GRACE_MAX_S = 10**8
Grace = Annotated[int, msgspec.Meta(ge=0, le=GRACE_MAX_S)]
#: The time that a kubelet writes for "unknown". Go programs write the year 1 instead.
NO_TIME = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST = datetime(2000, 1, 1, tzinfo=UTC)
#: The maximum number of repaired values in an object before it is refused.
MENDED_MAX = 1000
#: One step of a path in a ``msgspec`` error: the name of a field, or an index of a list.
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
#: The key of a map, which can contain any characters. If a value in a map is invalid, the whole map
#: is left out.
_MAP = re.compile(r"(\.(?:labels|annotations))[.[].*")
_BOUND = re.compile(r"Expected `int` [<>]= (-?\d+)")
T = TypeVar("T")


def known_time(at: datetime | None) -> datetime | None:
    """Return the time; ``None`` for a placeholder, or for a time that is too far from now."""
    return None if at is None or at < _FIRST else bounds.believable(at)


def mended(kind: type[T], data: bytes | msgspec.Raw) -> T:
    """Decode the object, and repair each invalid value. Raises ``MsgspecError``."""
    said = msgspec.json.decode(data)
    for _ in range(MENDED_MAX):
        try:
            return msgspec.convert(said, kind)
        except msgspec.ValidationError as error:
            _mend(said, error)
    raise msgspec.ValidationError(f"more than {MENDED_MAX} of its values are invalid")


def _mend(said: Any, odd: msgspec.ValidationError) -> None:
    """Clamp or drop the value that the error names.

    Re-raise the error if the value is required.
    """
    words, at, path = str(odd).rpartition(" - at `$")
    path = _MAP.sub(r"\1", path)
    *way, last = [name or int(number) for name, number in _STEP.findall(at and path)] or [None]
    for step in way:
        said = said[step]
    if last is None or (isinstance(last, str) and words.startswith("Object missing")):
        raise odd
    if (bound := _BOUND.match(words)) is not None:
        said[last] = int(bound[1])
    elif words.startswith(("Expected `datetime", "Invalid RFC3339")):
        said[last] = NO_TIME.isoformat()
    else:
        del said[last]


def amount(quantity: str) -> Decimal | None:
    """Return a Kubernetes quantity, such as ``500m`` or ``64Mi``, as a number; ``None`` for any
    other string.
    """
    from kubernetes.utils.quantity import parse_quantity  # this module is slow to load

    try:
        value: Decimal = parse_quantity(quantity)
    except (ValueError, ArithmeticError):  # not a number, or too large for a Decimal
        return None
    return value if value.is_finite() else None
