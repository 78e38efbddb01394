"""Logins of browsers: a signed cookie that contains the name and the hash of a token, but never the token.

The gateway stores no logins: the signature proves them. Several gateways with the same key accept the same logins. A
revoked or expired token ends its logins, because each request searches the tokens file for the hash.
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
#: The longest time of a login.
LASTS = timedelta(hours=12)
#: The number of ended logins above which the expired ones are removed from memory.
ENDED_MAX = 10_000
_COOKIE_MAX = 1024
_PURPOSE = b"crawler-lifecycle login 1\n"


@dataclass(frozen=True, slots=True)
class _Reference:
    """The content of a cookie: name and hash of the token, the end of the login as a timestamp, and the login's id."""

    name: str
    sha256: str
    ends: int
    login: str


class Logins:
    """Begins, finds and ends logins with tokens of the tokens file. Without a ``key``, they end with the process."""

    def __init__(self, callers: TokenFile, key: bytes | None = None) -> None:
        self._callers = callers
        self._key = key or secrets.token_bytes(32)
        self._ended: dict[str, int] = {}
        self.tries = Tries()

    def begin(self, token: str, now: datetime) -> tuple[Caller, str] | None:
        """Return the caller of this token and a new cookie; ``None`` for a token that is unknown or has expired."""
        caller, expired = self._callers.find(token, now)
        if caller is None or expired:
            return None
        ends = int((now + LASTS).timestamp())
        body = json.dumps([caller.name, digest(token), ends, secrets.token_hex(8)]).encode()
        return caller, f"{_text(body)}.{_text(self._sign(body))}"

    def find(self, cookie: str, now: datetime) -> Caller | None:
        """Return the caller of a cookie, as it is now in the tokens file; ``None`` if the cookie is not valid."""
        found = self._read(cookie)
        if found is None or found.ends <= now.timestamp() or found.login in self._ended:
            return None
        caller, expired = self._callers.find_hash(found.sha256, now)
        if caller is None or expired or caller.name != found.name:
            return None
        return replace(caller, login=found.login)

    def end(self, cookie: str, now: datetime) -> None:
        """End a login and its streams: this process does not accept its cookie any more."""
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
    """Return the name of the login cookie for this host.

    Except on loopback, it begins with ``__Host-``. Browsers do not let another host of the same domain set such a
    cookie. Otherwise that host could make a person work with a foreign login.
    """
    return COOKIE if is_loopback(host) else f"__Host-{COOKIE}"


def cookie_of(headers: Headers) -> str | None:
    """Return the login cookie that a browser sent, if any."""
    return cookie_parser(headers.get("cookie", "")).get(cookie_name(headers.get("host", "")))


def from_own_page(headers: Headers, *, writes: bool) -> bool:
    """Return whether one of our own pages sent this request. A read may also come from the browser's address bar.

    A foreign ``Origin`` was refused before. If the browser sends no ``Sec-Fetch-Site`` (plain HTTP, not on loopback),
    only the cookie's ``SameSite=Strict`` protects us.
    """
    site = headers.get("sec-fetch-site")
    if writes:
        return "origin" in headers and site in (None, "same-origin")
    return site in (None, "same-origin", "none")


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return base64.b64decode(text.encode() + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)
