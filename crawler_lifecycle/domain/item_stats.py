"""Statistics about items, computed in one pass: for each field, the number of values, the number of
distinct values, and the lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from types import NoneType
from typing import Any

from .item_table import NAME_MAX, VALUE, visible
from .items import as_text

#: The maximum number of fields with statistics, and the number of hashes kept for each field. The
#: count of distinct values is exact up to this number.
FIELDS_MAX = 200
HASHES = 256
#: The maximum length of the name of a field with statistics, and the maximum number of other fields
#: that are counted.
FIELD_NAME_MAX = 1_000
LEFT_OUT_MAX = 100_000
#: The maximum number of items in a batch, and the numbers of fields and bytes after which a batch
#: ends.
BATCH = 1_000
BATCH_FIELDS = 50_000
BATCH_BYTES = 2 * 1024 * 1024
_HALF = 2**63
_EMPTY = {None, ""}


@dataclass(frozen=True, slots=True)
class FieldStats:
    """A field: the number of items that have a value in the field, and these values as strings."""

    name: str
    filled: int
    coverage: float
    """The share of all items that have a value in the field, from 0 to 1."""
    distinct: int
    """The number of different values. A number above 256 is an estimate, with an error of about 6
    %."""
    shortest: int
    """The length of the shortest value in characters. ``longest`` is the length of the longest
    value."""
    longest: int


@dataclass(frozen=True, slots=True)
class ItemStats:
    """The statistics of all items of a run, or of one file."""

    items: int
    fields: list[FieldStats]
    """The fields, sorted by the number of items that have a value in the field, with the largest
    number first."""
    fields_left_out: int = 0
    notes: list[str] = field(default_factory=list)
    """Sentences about data that could not be read."""


def item_stats(items: Iterable[Any], read: Callable[[], int] = lambda: 0) -> ItemStats:
    """Return the statistics of these items. ``read`` returns the number of bytes that have been
    read for these items so far, which limits the size of a batch.
    """
    fields: dict[str, _Field] = {}
    left_out: set[int] = set()
    source = iter(items)
    count = 0
    # The interpreter processes batches ten times as fast as single values.
    while batch := _batch(source, read):
        count += len(batch)
        for name in dict.fromkeys(chain.from_iterable(batch)):
            if name in fields:
                continue
            if len(fields) < FIELDS_MAX and len(name) <= FIELD_NAME_MAX:
                fields[name] = _Field()
            elif len(left_out) < LEFT_OUT_MAX:
                left_out.add(hash(name))
        for name, followed in fields.items():
            followed.add([item[name] for item in batch if name in item])
    most = sorted(fields.items(), key=lambda one: -one[1].filled)
    stats = [field.stats(visible(name, NAME_MAX), count) for name, field in most if field.filled]
    return ItemStats(count, stats, len(left_out))


def _batch(source: Iterator[Any], read: Callable[[], int]) -> list[dict[str, Any]]:
    """Return the next items, each as a dictionary of fields."""
    batch: list[dict[str, Any]] = []
    end = read() + BATCH_BYTES
    count = 0
    for item in islice(source, BATCH):
        batch.append(item if isinstance(item, dict) else {VALUE: item})
        count += len(batch[-1])
        if count >= BATCH_FIELDS or read() >= end:
            break
    return batch


class _Field:
    """The statistics of one field, with the smallest hashes of its values (k minimum values,
    Bar-Yossef et al. 2002).
    """

    def __init__(self) -> None:
        self.filled = 0
        self.shortest = 2**63
        self.longest = 0
        self._hashes: set[int] = set()
        self._limit = _HALF

    def add(self, values: Sequence[Any]) -> None:
        kinds = set(map(type, values)) - {NoneType}
        if not kinds <= {str, int, float}:
            values = [
                value if type(value) in (str, int, float) else _text(value) for value in values
            ]
        different = set(values)
        self.filled += len(values) - sum(values.count(empty) for empty in _EMPTY & different)
        different -= _EMPTY
        if not different:
            return
        numbers = (
            different
            if kinds <= {int, float}
            else {value for value in different if type(value) is not str}
        )
        texts = different - numbers
        # A number is hashed inside a tuple, because the hash of a number is the number itself.
        hashes = chain(map(hash, texts), map(hash, zip(numbers, strict=True)))
        if kinds == {int} and min(numbers) > 0:
            numbers = {min(numbers), max(numbers)}  # All lengths are between these two.
        lengths = set(map(len, chain(texts, map(str, numbers))))
        self.shortest, self.longest = min(self.shortest, *lengths), max(self.longest, *lengths)
        limit = self._limit
        self._hashes.update([hashed for hashed in hashes if hashed < limit])
        if len(self._hashes) > 2 * HASHES:
            self._hashes = set(sorted(self._hashes)[:HASHES])
            self._limit = max(self._hashes)

    def stats(self, name: str, items: int) -> FieldStats:
        least = sorted(self._hashes)[:HASHES]
        exact = self._limit == _HALF and len(self._hashes) <= HASHES
        distinct = (
            len(self._hashes) if exact else round((HASHES - 1) * 2 * _HALF / (least[-1] + _HALF))
        )
        coverage = round(self.filled / items, 4)
        return FieldStats(
            name, self.filled, coverage, min(distinct, self.filled), self.shortest, self.longest
        )


def _text(value: Any) -> str | None:
    """Return the value as a string, or ``None`` for null and for an empty list or object."""
    return as_text(value) if value or value is False else None
