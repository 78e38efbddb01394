"""Forms in the way that scrapyd accepts them: fields in the address and in the body, each with one
or more values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from mmap import mmap
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from starlette.requests import Request

from crawler_lifecycle.web.problems import Problem
from crawler_lifecycle.web.turns import in_turn

#: The maximum number of fields in one request.
FIELDS_MAX = 1000
#: The maximum size in bytes of the head of one part in a multipart form.
_PART_HEAD_MAX = 1024

URLENCODED = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
_BOUNDARY = re.compile(r"""boundary=(?:"([^"]{1,100})"|([^\s;,"]{1,100}))""", re.IGNORECASE)
_NAME = re.compile(
    rb"""^content-disposition:[ \t]*form-data;(?:[^\r\n]*;)?[ \t]*name="([^"\r\n]*)\"""",
    re.I | re.M,
)


class Part(NamedTuple):
    """A field of a form: where its value is in the body."""

    name: bytes
    start: int
    end: int


def refused(text: str) -> Problem:
    """Return the problem for a request that can never work."""
    return Problem(422, "invalid_request", text)


class Form:
    """The fields of one request.

    If a field is given twice, the first value counts, as with scrapyd.
    """

    def __init__(self, fields: Mapping[str, list[bytes]]) -> None:
        self._fields = dict(fields)

    def all(self, name: str) -> list[str]:
        """Remove a field and return all its values. Raises ``Problem``."""
        return [_text(name, value) for value in self._fields.pop(name, [])]

    def get(self, name: str) -> str | None:
        """Remove a field and return its value, or ``None`` if it is missing. Raises ``Problem``."""
        values = self._fields.pop(name, None)
        return None if values is None else _text(name, values[0])

    def need(self, name: str) -> str:
        """Remove a required field and return its value. Raises ``Problem``."""
        found = self.get(name)
        if found is None:
            raise refused(f"'{name}' parameter is required; send it as a field in a form")
        return found

    def number(self, name: str) -> float:
        """Remove a field and return its number, or 0 if it is missing. Raises ``Problem``."""
        text = self.get(name)
        try:
            value = 0.0 if text is None else float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise refused(f"{name} is invalid: {shown(text)}; give a number")
        return value

    def rest(self) -> dict[str, str]:
        """Remove all other fields and return their values. Raises ``Problem``."""
        return {name: self.get(name) or "" for name in list(self._fields)}


def shown(text: object) -> str:
    """Return a value as an answer shows it."""
    return repr(text if not isinstance(text, str) else text[:100])


async def read_form(request: Request) -> Form:
    """Read the fields of a request.

    Fields of the body override those of the address. Raises ``Problem``.
    """
    fields = urlencoded(request.scope["query_string"])
    body = await request.body()
    if body and request.method == "POST":
        given = request.headers.get("content-type", "")
        kind = given.partition(";")[0].strip().lower()
        if kind == URLENCODED:
            fields |= await in_turn(len(body), urlencoded, body)
        elif kind == MULTIPART:
            parts = await in_turn(len(body), lambda: list(multipart_parts(body, given)))
            fields |= gathered((part.name, body[part.start : part.end]) for part in parts)
        else:
            raise refused(f"Content-Type: {shown(given)} is not accepted; send {URLENCODED}")
    return Form(fields)


def urlencoded(raw: bytes) -> dict[str, list[bytes]]:
    """Return the fields of an address or of a form. Raises ``Problem``."""
    parts = urlencoded_parts(raw)
    return gathered((part.name, unescaped(raw[part.start : part.end])) for part in parts)


def unescaped(value: bytes) -> bytes:
    """Return the bytes of a percent-encoded name or value."""
    return unquote_to_bytes(value.replace(b"+", b" "))


def multipart_parts(body: bytes | mmap, content_type: str) -> Iterator[Part]:
    """Yield the parts of a multipart form. Raises ``Problem``."""
    found = _BOUNDARY.search(content_type)
    if found is None:
        raise refused("Content-Type: has no boundary; use a library to write the form")
    mark = b"--" + (found[1] or found[2]).encode("latin-1")

    def find_mark(begin: int) -> int:
        at = body.find(b"\r\n" + mark, begin)
        if at < 0:
            raise refused("body: the form has no end; use a library to write it")
        return at

    at = 0 if body[: len(mark)] == mark else find_mark(0) + 2
    count = 0
    while body[at : at + len(mark) + 2] != mark + b"--":
        count += 1
        if count > FIELDS_MAX:
            raise _too_many()
        end = find_mark(at)
        head = body.find(b"\r\n\r\n", at, end)
        name = None if head < 0 else _NAME.search(body[at : min(head, at + _PART_HEAD_MAX)])
        if name is None:
            raise refused("body: a part of the form has no name; use a library to write the form")
        yield Part(name[1], head + 4, end)
        at = end + 2


def urlencoded_parts(body: bytes | mmap) -> Iterator[Part]:
    """Yield the fields of a form whose values are percent-encoded. Raises ``Problem``."""
    at = 0
    count = 0
    while at < len(body):
        count += 1
        if count > FIELDS_MAX:
            raise _too_many()
        found = body.find(b"&", at)
        end = len(body) if found < 0 else found
        equals = body.find(b"=", at, end)
        stop = end if equals < 0 else equals
        if end > at:
            name = unescaped(body[at : min(stop, at + _PART_HEAD_MAX)])
            yield Part(name, min(stop + 1, end), end)
        at = end + 1


def gathered(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, list[bytes]]:
    """Return the values of each field. Raises ``Problem``."""
    fields: dict[str, list[bytes]] = {}
    for name, value in pairs:
        fields.setdefault(_text("the name of a field", name), []).append(value)
    return fields


def _text(name: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise refused(
            f"{shown(name)[1:-1]} is invalid: {shown(value[:100])} is not UTF-8; send it as UTF-8"
        ) from None


def _too_many() -> Problem:
    return refused(f"form: more than {FIELDS_MAX} fields; send fewer")
