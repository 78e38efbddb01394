"""Checks of the headers Host and Origin: which web pages may call our HTTP ports.

A page that somebody visits can send requests to every port of their machine, and by a name of its own that it lets
point to 127.0.0.1 (DNS rebinding) it can read the answers, too. What it cannot do is lie about the two headers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from crawler_lifecycle.domain.loopback import is_loopback

if TYPE_CHECKING:
    from .problems import Problem

#: A check of the head; returns what is wrong, or ``None``.
Check = Callable[[Scope, Headers], "Problem | None"]

#: The health checks, which a cluster calls by address.
PROBES = ("/healthz", "/readyz")
_LOCAL = "127.0.0.1 or localhost"


def own_page_only(scope: Scope, headers: Headers) -> Problem | None:
    """For a service that lets everybody of this machine in: by a name of this machine, and no page but its own."""
    host = headers.get("host", "")
    return _foreign_page(scope, headers) if is_loopback(host) else _foreign_host(host, _LOCAL)


def named_hosts(hosts: tuple[str, ...]) -> Check:
    """A check for a service that asks for tokens: one of these host names (none given: any), and no foreign page.

    A host may be given with its port or without; without, every port fits. Probes are answered under any name: they
    come to an address, and tell nobody anything.
    """
    known = {host.lower() for host in hosts}

    def check(scope: Scope, headers: Headers) -> Problem | None:
        host = headers.get("host", "").lower()
        probe = scope["path"] in PROBES
        if known and not probe and host not in known and re.sub(r":[0-9]+$", "", host) not in known:
            return _foreign_host(host, ", ".join(sorted(known)))
        # A proxy in front may have added TLS, so the scheme of the page is not ours to know.
        return _foreign_page(scope, headers, any_scheme=True)

    return check


def programs_only(listens: str) -> Check:
    """A check for a service that no page calls, which listens at this address: on loopback by its names only."""
    here = is_loopback(listens)

    def check(scope: Scope, headers: Headers) -> Problem | None:
        host = headers.get("host", "")
        if here and not is_loopback(host):
            return _foreign_host(host, _LOCAL)
        if "origin" in headers:
            return _foreign("foreign_origin", "Origin: not allowed; this service is called by programs, not by pages")
        return None

    return check


class Gate:
    """ASGI middleware: such a check alone, for small services that do without ``serving.Guard``."""

    def __init__(self, app: ASGIApp, check: Check) -> None:
        self._app = app
        self._check = check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = self._check(scope, Headers(scope=scope)) if scope["type"] == "http" else None
        await (self._app if problem is None else problem.response())(scope, receive, send)


def _foreign_page(scope: Scope, headers: Headers, *, any_scheme: bool = False) -> Problem | None:
    """Refuse every page but our own, whatever token it got hold of: another port is another origin."""
    origin = headers.get("origin")
    if origin is None:
        return None
    host = headers.get("host", "")
    scheme, _, page = origin.lower().partition("://")
    if page == host.lower() and (any_scheme or scheme == scope["scheme"]):
        return None
    detail = f"Origin: {origin[:100]} is not allowed; call from {host[:100]} or a program"
    return _foreign("foreign_origin", detail)


def _foreign_host(host: str, cure: str) -> Problem:
    return _foreign("foreign_host", f"Host: {host[:100] or 'missing'} is not allowed; use {cure}")


# Problems come with FastAPI, which a worker does without until it refuses somebody.


def _foreign(code: str, detail: str) -> Problem:
    from .problems import Problem

    return Problem(403, code, detail)
