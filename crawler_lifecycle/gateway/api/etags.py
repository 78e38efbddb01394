"""ETags: validators (RFC 9110, section 8.8.3) and 304.

The validator is made of everything the answer would say, except how long ago something was: that changes with every
tick of the clock and can be told from the times beside it. So whatever changes in the database changes the validator,
whichever table it is in, and so does a run that becomes stale although nothing was written.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from fastapi import Request
from pydantic import BaseModel
from starlette.responses import Response

#: For a route's ``responses``.
NOT_MODIFIED: dict[int | str, dict[str, Any]] = {304: {"description": "What If-None-Match names is still the answer"}}

#: What is left out of a validator, in pydantic's notation, wherever it occurs.
RELATIVE: Mapping[str, Any] = {
    "verified_ago_s": True,
    "waiting": True,
    "until": True,
    "overdue": {"text"},
    "runs": {"__all__": {"verified_ago_s", "waiting"}},
}

_TAG = re.compile(r'(?:W/)?"([^"]*)"')


def conditional(request: Request, answer: BaseModel) -> Response:
    """The answer as JSON with its validator, or 304 without a body when the client has it already.

    The validator is weak: two answers under it differ in the times that it leaves out.
    """
    tag = validator(answer)
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    if names(request.headers.get("if-none-match", ""), tag):
        return Response(status_code=304, headers=headers)
    return Response(answer.model_dump_json(), media_type="application/json", headers=headers)


def names(known: str, tag: str) -> bool:
    """Whether a header ``If-None-Match`` names this validator."""
    return known.strip() == "*" or _TAG.findall(tag)[0] in _TAG.findall(known)


def validator(answer: BaseModel) -> str:
    """The answer's ``ETag``."""
    content = f"{type(answer).__qualname__}:{answer.model_dump_json(exclude=RELATIVE)}"
    return f'W/"{hashlib.blake2b(content.encode(), digest_size=16).hexdigest()}"'
