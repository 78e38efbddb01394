"""Page tokens. Each contains the kind of a list and one or more positions."""

from __future__ import annotations

import base64
import binascii
import re

from crawler_lifecycle.domain.bounds import ID_MAX
from crawler_lifecycle.web.problems import refused

PAGE_MAX = 200


def decode(kind: str, token: str | None) -> int | None:
    """Return the position in a page token of this list. Raises ``Problem`` 422."""
    positions = decode_positions(kind, token, 1)
    return None if positions is None else positions[0]


def decode_positions(kind: str, token: str | None, count: int) -> tuple[int, ...] | None:
    """Return the positions in a page token of a list that is merged from several lists.

    Raises ``Problem`` 422.
    """
    if token is None:
        return None
    try:
        text = base64.urlsafe_b64decode(token.encode() + b"=" * (-len(token) % 4)).decode()
    except (binascii.Error, ValueError):
        text = ""
    numbers = r"\.".join(["([0-9]{1,19})"] * count)
    found = re.fullmatch(f"{kind}:{numbers}", text, re.ASCII)
    positions = tuple(map(int, found.groups())) if found else ()
    if not positions or max(positions) > ID_MAX:
        fix = "use the next_page_token of the previous page, or omit it"
        raise refused("page_token", f"is not a token of this list; {fix}", token)
    return positions


def encode(kind: str, *positions: int) -> str:
    """Return the page token for a position, or for one position in each of several lists."""
    text = f"{kind}:{'.'.join(str(position) for position in positions)}"
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
