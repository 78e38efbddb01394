"""Odd values of objects: bounded or left out where an object is decoded, so that it hides neither itself nor others.

An API server accepts any int64 for a grace and sends times of the years 0 and 10000; another one may send other odd
values. Fields of the identity are not repaired: an object without them is refused.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any, TypeVar

import msgspec

from crawler_lifecycle.domain import bounds

Number = Annotated[int, msgspec.Meta(ge=-bounds.ID_MAX, le=bounds.ID_MAX)]
#: Seconds of a grace, about three years: no clock counts as far as some.
GRACE_MAX_S = 10**8
Grace = Annotated[int, msgspec.Meta(ge=0, le=GRACE_MAX_S)]
#: A kubelet writes the beginning of the epoch for an unknown time, and Go the year 1.
NO_TIME = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST = datetime(2000, 1, 1, tzinfo=UTC)
#: The most values of one object that are repaired before it is refused.
MENDED_MAX = 1000
#: A step on the path to a value, as ``msgspec`` writes it: the name of a field, or an index of a list.
_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
_BOUND = re.compile(r"Expected `int` [<>]= (-?\d+)")
T = TypeVar("T")


def known_time(at: datetime | None) -> datetime | None:
    """The time, unless it is a placeholder or far from any time of ours."""
    return bounds.believable(at) if at is not None and at >= _FIRST else None


def mended(kind: type[T], data: bytes | msgspec.Raw) -> T:
    """The object, each odd value of it repaired. Raises ``MsgspecError``."""
    said = msgspec.json.decode(data)
    for _ in range(MENDED_MAX):
        try:
            return msgspec.convert(said, kind)
        except msgspec.ValidationError as error:
            _mend(said, error)
    raise msgspec.ValidationError(f"more than {MENDED_MAX} values of it are none")


def _mend(said: Any, odd: msgspec.ValidationError) -> None:
    """Bound or leave out the value that the error names. Raises it where an object cannot be without that."""
    words, at, place = str(odd).rpartition(" - at `$")
    *way, last = [name or int(number) for name, number in _STEP.findall(at and place)] or [None]
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
    """``500m``, ``2`` or ``64Mi`` as a number; ``None`` for a text that is no quantity of Kubernetes."""
    from kubernetes.utils.quantity import parse_quantity  # takes long to load

    try:
        value: Decimal = parse_quantity(quantity)
    except (ValueError, ArithmeticError):  # no number, or a number that no Decimal can hold
        return None
    return value if value.is_finite() else None
