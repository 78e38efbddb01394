"""Checks of the headers Host and Origin, which decide which web pages may call our HTTP ports.

A web page can send requests to every port of the machine on which it is open. If its own host name
points to 127.0.0.1 (DNS rebinding), the page can also read the responses. But a page cannot change
these two headers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from crawler_lifecycle.domain.loopback import is_loopback

if TYPE_CHECKING:
    from .problems import Problem

#: A check of a request's headers, which returns the problem or ``None``.
Check = Callable[[Scope, Headers], "Problem | None"]

#: The paths of health checks. A cluster calls them by address.
PROBES = ("/healthz", "/readyz")
_LOCAL = "127.0.0.1 or localhost"


def own_page_only(scope: Scope, headers: Headers) -> Problem | None:
    """Check a request to a service without tokens. The host must be this machine, and a page must
    be our own.
    """
    host = headers.get("host", "")
    return _foreign_page(scope, headers) if is_loopback(host) else _foreign_host(host, _LOCAL)


def named_hosts(hosts: tuple[str, ...]) -> Check:
    """Return a check for a service with tokens. It refuses foreign pages, and host names that are
    not in ``hosts``.

    If ``hosts`` is empty, every host name is allowed. A host name without a port allows every port.
    Health checks can use any host name, because a cluster calls them by address, and their
    responses contain no secret.
    """
    known = {host.lower() for host in hosts}

    def check(scope: Scope, headers: Headers) -> Problem | None:
        host = headers.get("host", "").lower()
        probe = scope["path"] in PROBES
        if known and not probe and host not in known and re.sub(r":[0-9]+$", "", host) not in known:
            return _foreign_host(host, ", ".join(sorted(known)))
        # A proxy in front may add TLS, so the scheme of the page may differ from the scheme that we
        # see.
        return _foreign_page(scope, headers, any_scheme=True)

    return check


def programs_only(listens: str) -> Check:
    """Return a check for a service that no web page calls.

    If the service listens on loopback, the host must be loopback too.
    """
    here = is_loopback(listens)

    def check(scope: Scope, headers: Headers) -> Problem | None:
        host = headers.get("host", "")
        if here and not is_loopback(host):
            return _foreign_host(host, _LOCAL)
        if "origin" in headers:
            return _foreign(
                "foreign_origin",
                "Origin: not allowed; this service is called by programs, not by pages",
            )
        return None

    return check


@dataclass(eq=False)
class Gate:
    """ASGI middleware that performs only one such check, for small services without
    ``serving.Guard``.
    """

    app: ASGIApp
    check: Check

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = self.check(scope, Headers(scope=scope)) if scope["type"] == "http" else None
        await (self.app if problem is None else problem.response())(scope, receive, send)


def _foreign_page(scope: Scope, headers: Headers, *, any_scheme: bool = False) -> Problem | None:
    """Return a problem for every foreign page, even if it has a valid token.

    Another port is another origin.
    """
    origin = headers.get("origin")
    if origin is None:
        return None
    host = headers.get("host", "")
    scheme, _, page = origin.lower().partition("://")
    if page == host.lower() and (any_scheme or scheme == scope["scheme"]):
        return None
    detail = f"Origin: {origin[:100]} is not allowed; call from {host[:100]} or a program"
    return _foreign("foreign_origin", detail)


def _foreign_host(host: str, fix: str) -> Problem:
    return _foreign("foreign_host", f"Host: {host[:100] or 'missing'} is not allowed; use {fix}")


# Importing ``problems`` loads FastAPI, which a worker needs only when it refuses a request.


def _foreign(code: str, detail: str) -> Problem:
    from .problems import Problem

    return Problem(403, code, detail)
