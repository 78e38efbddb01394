"""Browser sessions: a signed cookie that contains the name and the hash of a token, but never the
token itself.

The gateway stores no sessions, because the signature proves that a session is genuine. Several
gateways with the same key accept the same sessions. A revoked or expired token ends its sessions,
because each request looks up the hash in the tokens file. When a person logs out, the database
records it, and all gateways read that record.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import math
import secrets
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import cookie_parser

from crawler_lifecycle.domain.loopback import is_loopback
from crawler_lifecycle.store.notes import LOGIN, NoteStore
from crawler_lifecycle.web.tries import Tries

from .oidc import PREFIX, Oidc
from .tokens import Caller, TokenFile, digest

COOKIE = "crawl_login"
#: The longest lifetime of a session.
LASTS = timedelta(hours=12)
_COOKIE_MAX = 4096
_PURPOSE = "login"


@dataclass(frozen=True, slots=True)
class _Reference:
    """The content of a cookie: the name and the hash of the token, the time at which the session
    ends (a timestamp), and the session's id.

    For a person from the issuer, the cookie contains a reference to the person's rights instead of
    the hash.
    """

    name: str
    sha256: str
    ends: int
    login: str


class Logins:
    """Begins, finds and ends sessions.

    Without a ``key``, sessions end with the process. Gateways use ``notes`` to inform each other
    about ended sessions; without it, a logout takes effect in this process only.
    """

    def __init__(
        self,
        callers: TokenFile,
        key: bytes | None = None,
        oidc: Oidc | None = None,
        notes: NoteStore | None = None,
    ) -> None:
        self._callers = callers
        self._notes = notes
        self.oidc = oidc
        self._key = key or secrets.token_bytes(32)
        self._ended: dict[str, datetime] = {}
        """The sessions that were ended, each with the time at which it would have expired."""
        self._untold: dict[str, datetime] = {}
        """The ended sessions that other gateways do not know about yet."""
        self.tries = Tries()

    def begin(self, token: str, now: datetime) -> tuple[Caller, str] | None:
        """Return the caller of this token and a new cookie, or ``None`` if the token is unknown or
        has expired.
        """
        caller, expired = self._callers.find(token, now)
        if caller is None or expired:
            return None
        return caller, self.begin_for(caller, digest(token), now)[0]

    def begin_for(
        self, caller: Caller, held: str, now: datetime, until: float = math.inf
    ) -> tuple[str, int]:
        """Return a new cookie for this caller, and its lifetime in seconds.

        The session ends with the issuer's token (``until``) at the latest.
        """
        ends = int(min((now + LASTS).timestamp(), until))
        return self.seal(_PURPOSE, [caller.name, held, ends, secrets.token_hex(8)]), ends - int(
            now.timestamp()
        )

    def find(self, cookie: str, now: datetime) -> Caller | None:
        """Return the caller of a cookie, with the rights that the tokens file gives it now, or
        ``None`` if the cookie is not valid.
        """
        found = self._read(cookie)
        if found is None or found.ends <= now.timestamp() or found.login in self._ended:
            return None
        oidc = self.oidc if found.name.startswith(PREFIX) else None
        whose = (
            (oidc.granted(found.name, found.sha256), False)
            if oidc
            else self._callers.find_hash(found.sha256, now)
        )
        caller, expired = whose
        if caller is None or expired or caller.name != found.name:
            return None
        return replace(caller, login=found.login)

    def end(self, cookie: str, now: datetime) -> None:
        """End a session and its streams, so that this process no longer accepts its cookie.

        ``share`` informs the other gateways.
        """
        found = self._read(cookie)
        if found is None or found.ends <= now.timestamp():
            return
        self._ended = {login: ends_at for login, ends_at in self._ended.items() if ends_at > now}
        self._untold[found.login] = self._ended[found.login] = datetime.fromtimestamp(
            found.ends, UTC
        )

    async def share(self) -> None:
        """Inform other gateways about the sessions that ended here, and read which sessions ended
        there.

        Raises the errors of the store.
        """
        if self._notes is None:
            return
        for login, ends_at in list(self._untold.items()):
            await run_in_threadpool(self._notes.leave_note, LOGIN, login, "", ends_at)
            self._untold.pop(login, None)
        notes = await run_in_threadpool(self._notes.live_notes, LOGIN)
        self._ended |= {note["name"]: note["ends_at"] for note in notes}

    def _read(self, cookie: str) -> _Reference | None:
        found = self.unseal(_PURPOSE, cookie)
        return None if found is None else _Reference(*found)

    def seal(self, purpose: str, values: list[Any]) -> str:
        """Return signed values for a cookie.

        Everyone can read them, but nobody can change them.
        """
        body = json.dumps(values).encode()
        return f"{_text(body)}.{_text(self._sign(purpose, body))}"

    def unseal(self, purpose: str, cookie: str) -> list[Any] | None:
        """Return the values of a cookie that was signed for this purpose, or ``None`` for any other
        text.
        """
        body, _, signature = cookie.partition(".")
        if len(cookie) > _COOKIE_MAX or not cookie.isascii():
            return None
        try:
            raw = _bytes(body)
            shown = _bytes(signature)
        except (binascii.Error, ValueError):
            return None
        return (
            list(json.loads(raw)) if hmac.compare_digest(self._sign(purpose, raw), shown) else None
        )

    def _sign(self, purpose: str, body: bytes) -> bytes:
        return hmac.digest(
            self._key, f"crawler-lifecycle {purpose} 1\n".encode() + body, hashlib.sha256
        )


def cookie_name(host: str, name: str) -> str:
    """Return the name of the session cookie, or of another cookie, for this host.

    Except on loopback, the name begins with ``__Host-``, because browsers do not let another host
    of the same domain set such a cookie. Otherwise, that host could make a person use somebody
    else's session.
    """
    return name if is_loopback(host) else f"__Host-{name}"


def cookie_of(headers: Headers, name: str = COOKIE) -> str | None:
    """Return the session cookie or another cookie, if the browser sent it."""
    return cookie_parser(headers.get("cookie", "")).get(cookie_name(headers.get("host", ""), name))


def from_own_page(headers: Headers, *, writes: bool) -> bool:
    """Return whether one of our own pages sent this request.

    A read request can also come from the browser's address bar. A foreign ``Origin`` has already
    been refused. If the browser sends no ``Sec-Fetch-Site`` (over plain HTTP, except on loopback),
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
