"""Statistics of items in one pass: for each field how many items have it, distinct values, and lengths."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from .item_table import NAME_MAX, VALUE, visible
from .items import as_text

#: Fields that are followed, and hashes that are kept of each: up to so many distinct values the number is exact.
FIELDS_MAX, HASHES = 200, 256
#: Names of further fields that are counted, and items that are looked at together.
LEFT_OUT_MAX, BATCH = 100_000, 500
_HALF = 2**63


@dataclass(frozen=True, slots=True)
class FieldStats:
    """A field: how many items have something in it, and its values as texts."""

    name: str
    filled: int
    coverage: float
    """The share of all items, 0 to 1."""
    distinct: int
    """Different values; beyond 256 an estimate (some 6 % off)."""
    shortest: int
    """Characters of the shortest value; ``longest``: of the longest."""
    longest: int


@dataclass(frozen=True, slots=True)
class ItemStats:
    """All items of a run, or of one file."""

    items: int
    fields: list[FieldStats]
    """Those that most items have come first."""
    fields_left_out: int = 0
    notes: list[str] = field(default_factory=list)
    """Sentences about what could not be read."""


def item_stats(items: Iterable[Any]) -> ItemStats:
    """The statistics of these items."""
    fields: dict[str, _Field] = {}
    left_out: set[int] = set()
    source, count = iter(items), 0
    # In batches the interpreter's own loops do the work: five times as fast as value by value.
    while batch := [item if isinstance(item, dict) else {VALUE: item} for item in islice(source, BATCH)]:
        count += len(batch)
        for name in dict.fromkeys(chain.from_iterable(batch)):
            if (field := fields.get(name)) is None and len(fields) < FIELDS_MAX:
                field = fields[name] = _Field()
            if field is not None:
                field.add([item[name] for item in batch if name in item])
            elif len(left_out) < LEFT_OUT_MAX:
                left_out.add(hash(name))
    most = sorted(fields.items(), key=lambda one: -one[1].filled)
    stats = [field.stats(visible(name, NAME_MAX), count) for name, field in most if field.filled]
    return ItemStats(count, stats, len(left_out))


class _Field:
    """One field as it is kept: the smallest hashes of its values (k minimum values, Bar-Yossef et al. 2002)."""

    def __init__(self) -> None:
        self.filled, self.shortest, self.longest = 0, 2**63, 0
        self._hashes: set[int] = set()
        self._limit = _HALF

    def add(self, values: list[Any]) -> None:
        some: list[Any] = list(filter(None, values))
        if len(some) < len(values):  # zero and false are values, what is empty is none
            some += [value for value in values if not value and isinstance(value, int | float)]
        kinds = set(map(type, some))
        if kinds and kinds != {str}:
            some = list(map(str if kinds <= {int, float, bool} else as_text, some))
        if not some:
            return
        self.filled += len(some)
        lengths = list(map(len, some))
        self.shortest, self.longest = min(self.shortest, *lengths), max(self.longest, *lengths)
        limit = self._limit
        self._hashes.update([hashed for hashed in map(hash, set(some)) if hashed < limit])
        if len(self._hashes) > 2 * HASHES:
            self._hashes = set(sorted(self._hashes)[:HASHES])
            self._limit = max(self._hashes)

    def stats(self, name: str, items: int) -> FieldStats:
        least = sorted(self._hashes)[:HASHES]
        exact = self._limit == _HALF and len(self._hashes) <= HASHES
        distinct = len(self._hashes) if exact else round((HASHES - 1) * 2 * _HALF / (least[-1] + _HALF))
        coverage = round(self.filled / items, 4)
        return FieldStats(name, self.filled, coverage, min(distinct, self.filled), self.shortest, self.longest)
