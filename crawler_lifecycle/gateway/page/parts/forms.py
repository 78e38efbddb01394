"""What a browser sends: forms and the query of an address, read as strictly as the API reads JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar
from urllib.parse import parse_qsl

from fastapi import Request
from pydantic import BaseModel, ValidationError

from crawler_lifecycle.web.problems import ERRORS_MAX, FieldError, Problem, field_error

#: Fields of one form: a selection of 500 and some more.
FIELDS_MAX = 2000
_KIND = "application/x-www-form-urlencoded"

T = TypeVar("T", bound=BaseModel)

Pairs = Sequence[tuple[str, str]]


async def form(request: Request) -> list[tuple[str, str]]:
    """The fields of a form, in its order. Raises ``Problem`` 400, 415 or 422."""
    kind = request.headers.get("content-type", "nothing")
    if kind.partition(";")[0].strip().lower() != _KIND:
        raise Problem(415, "unsupported_type", f"Content-Type: {kind[:100]} is not taken; send {_KIND}")
    try:
        text = (await request.body()).decode("ascii")
        return parse_qsl(text, keep_blank_values=True, max_num_fields=FIELDS_MAX, errors="strict")
    except UnicodeDecodeError:
        raise Problem(400, "bad_request", "body: no valid UTF-8; send the form as the page has it") from None
    except ValueError:
        raise Problem(422, "invalid_request", f"body: more than {FIELDS_MAX} fields; select fewer") from None


def read(kind: type[T], pairs: Pairs) -> T:
    """The fields as a ``kind``; empty ones are left out. Raises ``Problem`` 422 that names each wrong field.

    A field comes once, or as often as it likes where ``kind`` has a list.
    """
    lists = {name for name, field in kind.model_fields.items() if "list" in str(field.annotation)}
    values: dict[str, object] = {}
    for name, value in pairs:
        if value == "":
            continue
        if name in lists:
            entry = values.setdefault(name, [])
            assert isinstance(entry, list)
            entry.append(value)
        elif name in values:
            error = FieldError(field=name, value=repr(value)[:120], message="given twice; give it once")
            raise Problem(422, "invalid_request", f"{name}: {error.message}", errors=[error])
        else:
            values[name] = value
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        names = list(kind.model_fields)
        found = [field_error(item, known=names) for item in error.errors(include_url=False)[:ERRORS_MAX]]
        detail = "; ".join(f"{one.field}: {one.message}" for one in found)
        raise Problem(422, "invalid_request", detail, errors=found) from None
