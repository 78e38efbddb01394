"""Routes of the login: a person sends a token once, and gets a cookie with a signed reference to the token."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

from fastapi import FastAPI, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import RedirectResponse, Response

from crawler_lifecycle.domain.loopback import is_loopback
from crawler_lifecycle.gateway.access.logins import LASTS, Logins, cookie_name, cookie_of
from crawler_lifecycle.gateway.access.recorder import present_call
from crawler_lifecycle.gateway.page.parts.forms import form, read
from crawler_lifecycle.gateway.page.parts.rendering import answer
from crawler_lifecycle.web.tries import address_of

logger = logging.getLogger(__name__)

_WRONG = "This token is unknown or has expired. Copy it again, or ask for a new one."


class LoginForm(BaseModel):
    """The fields of the login form."""

    model_config = ConfigDict(extra="forbid")

    token: str = Field(max_length=500)
    next: str = Field(default="/", max_length=4000)


def add_login(app: FastAPI, logins: Logins | None, clock: Callable[[], datetime]) -> None:
    """Add login and logout. Without ``logins``, the gateway is open and needs no login."""

    @app.get("/login", operation_id="showLogin", include_in_schema=False)
    async def show_login(request: Request, next: str = "/") -> Response:
        """Show the form that asks for a token."""
        return answer(request, "login.html", is_open=logins is None, problem=None, next=_ours(next))

    @app.post("/login", operation_id="logIn", include_in_schema=False)
    async def log_in(request: Request) -> Response:
        """Begin a login, and redirect to the page from which the browser came."""
        given = read(LoginForm, await form(request))
        if logins is None:
            return RedirectResponse(_ours(given.next), 303)
        begun = logins.begin(given.token.strip(), clock())
        if begun is None:
            logins.tries.wrong(address_of(request.scope.get("client")))
            logger.warning("a login with an unknown or expired token was refused")
            return answer(request, "login.html", status=401, is_open=False, problem=_WRONG, next=_ours(given.next))
        caller, cookie = begun
        logger.info("%s logged in", caller.name)
        call = present_call()
        call.caller, call.admitted = caller, True
        done = RedirectResponse(_ours(given.next), 303)
        done.set_cookie(value=cookie, max_age=int(LASTS.total_seconds()), **_attributes(request))
        return done

    @app.post("/logout", operation_id="logOut", include_in_schema=False)
    async def log_out(request: Request) -> Response:
        """End a login and its streams."""
        cookie = cookie_of(request.headers)
        if logins is not None and cookie is not None:
            logins.end(cookie, clock())
        done = RedirectResponse("/login", 303)
        done.delete_cookie(**_attributes(request))
        done.headers["Clear-Site-Data"] = '"cache"'  # so that Back shows no page of this login
        return done


def _attributes(request: Request) -> dict[str, Any]:
    host = request.headers.get("host", "")
    own = {"key": cookie_name(host), "secure": not is_loopback(host)}
    return {"path": "/", **own, "httponly": True, "samesite": "strict"}


def _ours(address: str) -> str:
    """Return the address if it is on this gateway, else the first page. A login never leads to another host."""
    return address if re.fullmatch(r"/(?![/\\])[\x21-\x7e]*", address) else "/"
