"""Opaque page tokens: a kind and positions."""

from __future__ import annotations

import base64
import binascii
import re

from crawler_lifecycle.domain.bounds import ID_MAX
from crawler_lifecycle.web.problems import FieldError, Problem

PAGE_MAX = 200


def decode(kind: str, token: str | None) -> int | None:
    """The place that a token of this list stands for. Raises ``Problem`` 422."""
    places = decode_places(kind, token, 1)
    return None if places is None else places[0]


def decode_places(kind: str, token: str | None, count: int) -> tuple[int, ...] | None:
    """The places that a token stands for, of a list that is made of several. Raises ``Problem`` 422."""
    if token is None:
        return None
    try:
        text = base64.urlsafe_b64decode(token.encode() + b"=" * (-len(token) % 4)).decode()
    except (binascii.Error, ValueError):
        text = ""
    numbers = r"\.".join(["([0-9]{1,19})"] * count)
    found = re.fullmatch(f"{kind}:{numbers}", text, re.ASCII)
    places = tuple(int(group) for group in found.groups()) if found else ()
    if not places or max(places) > ID_MAX:
        message = "is no token of this list; take next_page_token of the page before, or leave it out"
        error = FieldError(field="page_token", value=repr(token)[:120], message=message)
        raise Problem(422, "invalid_request", f"page_token: {message}", errors=[error])
    return places


def encode(kind: str, *places: int) -> str:
    """The token of a place, or of one place in each of several lists."""
    text = f"{kind}:{'.'.join(str(place) for place in places)}"
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
