"""Logins of browsers: a signed cookie that names a token of the file and never holds it.

Nothing is stored: the signature proves the login, so several gateways with one key share it. A revoked or expired token
ends its logins, because each request finds it in the file by its hash.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from starlette.datastructures import Headers
from starlette.requests import cookie_parser

from crawler_lifecycle.domain.loopback import is_loopback
from crawler_lifecycle.web.tries import Tries

from .tokens import Caller, TokenFile, digest

COOKIE = "crawl_login"
#: How long a login lasts at most.
LASTS = timedelta(hours=12)
#: Logins that were ended and are remembered until they would have ended by themselves.
ENDED_MAX = 10_000
_COOKIE_MAX = 1024
_PURPOSE = b"crawler-lifecycle login 1\n"


@dataclass(frozen=True, slots=True)
class _Reference:
    """The content of a cookie: the token's name and hash, when the login ends, and its own name."""

    name: str
    sha256: str
    ends: int
    login: str


class Logins:
    """Begins, finds and ends logins by the tokens of a file. Without a ``key`` logins end with the process."""

    def __init__(self, callers: TokenFile, key: bytes | None = None) -> None:
        self._callers = callers
        self._key = key or secrets.token_bytes(32)
        self._ended: dict[str, int] = {}
        self.tries = Tries()

    def begin(self, token: str, now: datetime) -> tuple[Caller, str] | None:
        """The caller of this token, and its cookie; ``None`` for a token that is unknown or has expired."""
        caller, expired = self._callers.find(token, now)
        if caller is None or expired:
            return None
        ends = int((now + LASTS).timestamp())
        body = json.dumps([caller.name, digest(token), ends, secrets.token_hex(8)]).encode()
        return caller, f"{_text(body)}.{_text(self._sign(body))}"

    def find(self, cookie: str, now: datetime) -> Caller | None:
        """The caller of a cookie, as the file now has it."""
        found = self._read(cookie)
        if found is None or found.ends <= now.timestamp() or found.login in self._ended:
            return None
        caller, expired = self._callers.find_hash(found.sha256, now)
        if caller is None or expired or caller.name != found.name:
            return None
        return replace(caller, login=found.login)

    def end(self, cookie: str, now: datetime) -> None:
        """End a login, and its streams: this process accepts no cookie of it any more."""
        found = self._read(cookie)
        if found is None:
            return
        if len(self._ended) >= ENDED_MAX:
            self._ended = {login: ends for login, ends in self._ended.items() if ends > now.timestamp()}
        self._ended[found.login] = found.ends

    def _read(self, cookie: str) -> _Reference | None:
        body, _, signature = cookie.partition(".")
        if len(cookie) > _COOKIE_MAX or not cookie.isascii():
            return None
        try:
            raw, shown = _bytes(body), _bytes(signature)
        except (binascii.Error, ValueError):
            return None
        return _Reference(*json.loads(raw)) if hmac.compare_digest(self._sign(raw), shown) else None

    def _sign(self, body: bytes) -> bytes:
        return hmac.digest(self._key, _PURPOSE + body, hashlib.sha256)


def cookie_name(host: str) -> str:
    """Return the name of the login cookie for this host. Off loopback no other host can set a cookie of that name, as a
    neighbour below the same domain could, to make somebody work under its own login.
    """
    return COOKIE if is_loopback(host) else f"__Host-{COOKIE}"


def cookie_of(headers: Headers) -> str | None:
    """The login that a browser sent."""
    return cookie_parser(headers.get("cookie", "")).get(cookie_name(headers.get("host", "")))


def from_own_page(headers: Headers, *, writes: bool) -> bool:
    """Return whether a browser says that a page of ours, or the person at its address bar, sent this request.

    ``Origin`` of another host was refused before. Without ``Sec-Fetch-Site`` (plain HTTP off loopback) the cookie's own
    ``SameSite=Strict`` has to do.
    """
    site = headers.get("sec-fetch-site")
    if writes:
        return "origin" in headers and site in (None, "same-origin")
    return site in (None, "same-origin", "none")


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text.encode() + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
