"""Opaque page tokens: a kind and positions."""

from __future__ import annotations

import base64
import binascii
import re

from crawler_lifecycle.domain.bounds import ID_MAX
from crawler_lifecycle.web.problems import refused

PAGE_MAX = 200


def decode(kind: str, token: str | None) -> int | None:
    """The position that a token of this list stands for. Raises ``Problem`` 422."""
    places = decode_places(kind, token, 1)
    return None if places is None else places[0]


def decode_places(kind: str, token: str | None, count: int) -> tuple[int, ...] | None:
    """The positions that a token stands for, in a list that is made of several. Raises ``Problem`` 422."""
    if token is None:
        return None
    try:
        text = base64.urlsafe_b64decode(token.encode() + b"=" * (-len(token) % 4)).decode()
    except (binascii.Error, ValueError):
        text = ""
    numbers = r"\.".join(["([0-9]{1,19})"] * count)
    found = re.fullmatch(f"{kind}:{numbers}", text, re.ASCII)
    places = tuple(map(int, found.groups())) if found else ()
    if not places or max(places) > ID_MAX:
        cure = "take next_page_token of the page before, or leave it out"
        raise refused("page_token", f"is no token of this list; {cure}", token)
    return places


def encode(kind: str, *places: int) -> str:
    """The token of a position, or of one position in each of several lists."""
    text = f"{kind}:{'.'.join(str(place) for place in places)}"
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
