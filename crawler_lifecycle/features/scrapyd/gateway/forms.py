"""Forms in the way that scrapyd accepts them: fields in the address and in the body, each with one
or more values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from urllib.parse import parse_qsl

from starlette.requests import Request

from crawler_lifecycle.web.problems import Problem
from crawler_lifecycle.web.turns import in_turn

#: The maximum number of fields in one request.
FIELDS_MAX = 1000
#: The maximum size in bytes of the head of one part in a multipart form.
_PART_HEAD_MAX = 1024

_URLENCODED = "application/x-www-form-urlencoded"
_MULTIPART = "multipart/form-data"
_BOUNDARY = re.compile(r"""boundary=(?:"([^"]{1,100})"|([^\s;,"]{1,100}))""", re.IGNORECASE)
_NAME = re.compile(
    rb"""^content-disposition:[ \t]*form-data;(?:[^\r\n]*;)?[ \t]*name="([^"\r\n]*)\"""",
    re.I | re.M,
)


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
            raise refused(f"'{name}' parameter is required; send it as a field of a form")
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
    fields = _urlencoded(request.scope["query_string"])
    body = await request.body()
    if body and request.method == "POST":
        given = request.headers.get("content-type", "")
        kind = given.partition(";")[0].strip().lower()
        if kind == _URLENCODED:
            fields |= await in_turn(len(body), _urlencoded, body)
        elif kind == _MULTIPART:
            fields |= await in_turn(len(body), _multipart, body, given)
        else:
            raise refused(f"Content-Type: {shown(given)} is not accepted; send {_URLENCODED}")
    return Form(fields)


def _urlencoded(raw: bytes) -> dict[str, list[bytes]]:
    # Latin-1 keeps each byte, so that an error about invalid UTF-8 can name the field later.
    try:
        pairs = parse_qsl(
            raw.decode("latin-1"),
            keep_blank_values=True,
            encoding="latin-1",
            max_num_fields=FIELDS_MAX,
        )
    except ValueError:
        raise _too_many() from None
    return _gathered((name.encode("latin-1"), value.encode("latin-1")) for name, value in pairs)


def _multipart(body: bytes, content_type: str) -> dict[str, list[bytes]]:
    found = _BOUNDARY.search(content_type)
    if found is None:
        raise refused("Content-Type: has no boundary; use a library to write the form")
    boundary = (found[1] or found[2]).encode("latin-1")
    _, *parts = (b"\r\n" + body).split(b"\r\n--" + boundary, FIELDS_MAX + 1)
    if not parts or not parts[-1].startswith(b"--"):
        raise (
            _too_many()
            if len(parts) > FIELDS_MAX
            else refused("body: the form has no end; use a library to write it")
        )
    pairs = []
    for part in parts[:-1]:
        head, _, value = part.partition(b"\r\n\r\n")
        name = _NAME.search(head[:_PART_HEAD_MAX])
        if name is None:
            raise refused("body: a part of the form has no name; use a library to write the form")
        pairs.append((name[1], value))
    return _gathered(pairs)


def _gathered(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, list[bytes]]:
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
