"""The encoding of inputs and results of graph steps: JSON with some additional Python types.

A datetime, date, time, timedelta, Decimal, UUID or bytes object becomes a dictionary with one key,
such as ``{"$date": "2026-11-22"}``. If a user's dictionary has this form, its key gets another
``$``. Tuples are decoded as lists.

``UndecodedPayload`` stands for a value that cannot be decoded.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

#: The maximum size of one encoded value in bytes (a worker's settings can set a lower limit), and
#: the maximum size of each compressed part.
RESULT_MAX = 64 * 1024 * 1024
RESULT_PART = 1024 * 1024
#: The maximum nesting of lists and dictionaries.
DEPTH_MAX = 100
#: The maximum size of an integer in bits. Python refuses to read integers with more digits than its
#: limit (4,300).
_BITS_MAX = 14_000
_CHUNK = 256 * 1024


class NoValue(ValueError):
    """A value cannot be encoded or decoded. The message names its position and the fix."""


_TO_TEXT: dict[type, tuple[str, Callable[[Any], object]]] = {
    datetime: ("$datetime", datetime.isoformat),
    date: ("$date", date.isoformat),
    time: ("$time", time.isoformat),
    timedelta: ("$timedelta", lambda value: [value.days, value.seconds, value.microseconds]),
    Decimal: ("$decimal", str),
    UUID: ("$uuid", str),
    bytes: ("$bytes", lambda value: base64.b64encode(value).decode()),
}
_OF_TEXT: dict[str, Callable[[Any], object]] = {
    "$datetime": datetime.fromisoformat,
    "$date": date.fromisoformat,
    "$time": time.fromisoformat,
    "$timedelta": lambda parts: timedelta(*parts),
    "$decimal": Decimal,
    "$uuid": UUID,
    "$bytes": lambda text: base64.b64decode(text, validate=True),
}
_FIXES = {
    set: "give a sorted list",
    frozenset: "give a sorted list",
    complex: "give a list of two numbers",
    bytearray: "give bytes(…)",
}


def to_json(value: object, name: str = "value", limit: int = RESULT_MAX) -> Any:
    """Encode a value as plain JSON: dictionaries, lists, strings, numbers, ``True``, ``False`` and
    ``None``.

    Raises ``NoValue`` with the position, which begins with ``name``. ``limit`` is the maximum size
    in bytes, by a low estimate. This limit applies even to a value that contains the same list a
    great many times.
    """
    return _Tree(name, limit).plain(value, ())


def of_json(tree: object) -> Any:
    """Decode a value that ``to_json`` encoded. Raises ``NoValue`` if the document is not such a
    value."""
    if isinstance(tree, list):
        return [of_json(branch) for branch in tree]
    if isinstance(tree, Mapping):
        return _untagged({key: of_json(branch) for key, branch in tree.items()})
    return tree


def encode(value: object, name: str = "value", limit: int = RESULT_MAX) -> bytes:
    """Encode a value as one line of ASCII. Raises ``NoValue`` if the value cannot be encoded or the
    line has more than ``limit`` bytes.
    """
    data = json.dumps(to_json(value, name, limit), allow_nan=False, separators=(",", ":")).encode()
    if len(data) > limit:
        raise NoValue(
            f"{name}: {len(data)} bytes are more than {limit}; store it elsewhere and give its "
            "location"
        )
    return data


def decode(data: bytes) -> Any:
    """Decode a value that ``encode`` encoded. Raises ``NoValue`` if the bytes are not such a
    value."""
    try:
        return json.loads(data, object_hook=_untagged, parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        raise NoValue(f"this version cannot read the value: {error}") from None


def packed(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Compress bytes into parts of at most ``RESULT_PART`` bytes, as the database stores them."""
    squeeze = zlib.compressobj(1)
    ready = bytearray()
    for chunk in chunks:
        ready += squeeze.compress(chunk)
        while len(ready) > RESULT_PART:
            yield bytes(ready[:RESULT_PART])
            del ready[:RESULT_PART]
    ready += squeeze.flush()
    for start in range(0, len(ready), RESULT_PART):
        yield bytes(ready[start : start + RESULT_PART])


def unpacked(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Decompress the parts that ``packed`` returned.

    Raises ``NoValue`` if parts are missing or damaged.
    """
    unsqueeze = zlib.decompressobj()
    try:
        for part in parts:
            while part:
                yield unsqueeze.decompress(part, _CHUNK)
                part = unsqueeze.unconsumed_tail
        yield unsqueeze.flush()
    except zlib.error as error:
        raise NoValue(f"a stored part of it is damaged: {error}") from None
    if not unsqueeze.eof:
        raise NoValue("a stored part of it is missing")


class _Tree:
    """The encoder for one value."""

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._limit = limit
        self._left = limit
        self._open: set[int] = set()

    def plain(self, value: object, path: tuple[str | int, ...]) -> Any:
        self._left -= 2
        if self._left < 0:
            raise NoValue(
                f"{self._name}: more than {self._limit} bytes; store it elsewhere and give its "
                "location"
            )
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            return self._text(value, path)
        if isinstance(value, int):
            if value.bit_length() > _BITS_MAX:
                raise self._no(path, "an integer with more than 4,000 digits; give it as text")
            return int(value)
        if isinstance(value, float):
            if value - value != 0:
                raise self._no(path, f"{float(value)} is not a number in JSON; give None")
            return float(value)
        if isinstance(value, list | tuple | Mapping):
            return self._container(value, path)
        return self._tagged(value, path)

    def _container(
        self, value: list[Any] | tuple[Any, ...] | Mapping[Any, Any], path: tuple[str | int, ...]
    ) -> Any:
        if id(value) in self._open:
            raise self._no(path, "it contains itself; give a value without a cycle")
        if len(path) >= DEPTH_MAX:
            raise self._no(
                path[:10],
                f"more than {DEPTH_MAX} levels of lists and dictionaries; give fewer levels",
            )
        self._open.add(id(value))
        found: Any
        if isinstance(value, Mapping):
            found = {
                self._key(key, path): self.plain(inner, (*path, key))
                for key, inner in value.items()
            }
            if len(found) == 1 and next(iter(found)).startswith("$"):
                found = {f"${key}": inner for key, inner in found.items()}
        else:
            found = [self.plain(inner, (*path, number)) for number, inner in enumerate(value)]
        self._open.discard(id(value))
        return found

    def _tagged(self, value: object, path: tuple[str | int, ...]) -> dict[str, object]:
        kind = next((kind for kind in _TO_TEXT if isinstance(value, kind)), None)
        if kind is None:
            fix = next(
                (fix for kind, fix in _FIXES.items() if isinstance(value, kind)),
                "give a dictionary or a string",
            )
            name = type(value).__name__
            raise self._no(
                path,
                f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name} cannot be encoded; {fix}",
            )
        if isinstance(value, Decimal) and not value.is_finite():
            raise self._no(path, f"{value} is not a number; give None")
        if isinstance(value, time) and value.tzinfo is not None and value.utcoffset() is None:
            raise self._no(
                path, "a time of a named zone has no offset without a date; give a datetime"
            )
        tag, to_text = _TO_TEXT[kind]
        text = to_text(value)
        self._left -= len(text) if isinstance(text, str) else 8
        return {tag: text}

    def _key(self, key: object, path: tuple[str | int, ...]) -> str:
        if not isinstance(key, str):
            raise self._no(path, f"the key {key!r:.60} is not a string; give str(key)")
        return self._text(key, path)

    def _text(self, value: str, path: tuple[str | int, ...]) -> str:
        self._left -= len(value)
        try:
            value.encode()
        except UnicodeEncodeError:
            fix = "give value.encode(errors='replace').decode()"
            raise self._no(
                path, f"{value[:60]!r} has a lone surrogate and is not valid text; {fix}"
            ) from None
        return str.__str__(value)

    def _no(self, path: tuple[str | int, ...], what: str) -> NoValue:
        position = "".join(f"[{part!r:.60}]" for part in path)
        return NoValue(f"{self._name}{position}: {what}")


def _untagged(found: dict[str, Any]) -> Any:
    """Return the value that a decoded dictionary represents."""
    if len(found) != 1:
        return found
    ((key, value),) = found.items()
    if not key.startswith("$"):
        return found
    if key.startswith("$$"):
        return {key[1:]: value}
    try:
        return _OF_TEXT[key](value)
    except (KeyError, TypeError, ValueError, ArithmeticError):
        known = ", ".join(_OF_TEXT)
        raise NoValue(
            f"{{{key!r:.40}: {value!r:.60}}} is not a value; a single key that begins with $ must "
            "name a type "
            f"({known}); put another $ before any other such key"
        ) from None


def _refused(text: str) -> object:
    raise NoValue(f"{text} is not a number in JSON")


@dataclass(frozen=True, slots=True)
class UndecodedPayload:
    """A stand-in for a payload that cannot be read."""

    why: str
    locked: bool = False
    """True if the payload is encrypted and this process does not have the key."""

    def __str__(self) -> str:
        return self.why
