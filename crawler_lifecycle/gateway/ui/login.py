"""The login routes.

A person sends a token once, and gets a cookie with a signed reference to the token. Alternatively,
the person signs in through the issuer, by an authorization code with PKCE; another signed cookie
binds that code to one browser.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import logging
import re
import secrets
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

from fastapi import FastAPI, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import RedirectResponse, Response

from crawler_lifecycle.clock import Clock
from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.domain.loopback import is_loopback
from crawler_lifecycle.gateway.access.logins import COOKIE, LASTS, Logins, cookie_name, cookie_of
from crawler_lifecycle.gateway.access.oidc import Oidc
from crawler_lifecycle.gateway.access.recorder import present_call
from crawler_lifecycle.gateway.ui.parts.forms import form, read
from crawler_lifecycle.gateway.ui.parts.rendering import answer, html
from crawler_lifecycle.web.problems import Problem, of_error
from crawler_lifecycle.web.serving import unauthorised
from crawler_lifecycle.web.tries import address_of

logger = logging.getLogger(__name__)

#: The cookie of a login that was begun at the issuer. Browsers send it when the issuer redirects
#: them back.
WAY_COOKIE = "crawl_sign_in"
#: Its lifetime in seconds.
WAY_S = 600
_WAY = "sign-in"
_BACK = "/login/oidc/back"
_WRONG = "This token is unknown or has expired. Copy it again, or ask for a new one."


class LoginForm(BaseModel):
    """The fields of the login form."""

    model_config = ConfigDict(extra="forbid")

    token: str = Field(max_length=500)
    next: str = Field(default="/", max_length=4000)


def add_login(app: FastAPI, logins: Logins | None, clock: Clock) -> None:
    """Add login and logout.

    Without ``logins``, the gateway is open and needs no login.
    """
    if logins is not None and logins.oidc is not None:
        _add_sign_in(app, logins, logins.oidc, clock)

    @app.get("/login")
    async def show_login(request: Request, next: str = "/") -> Response:
        """Show the form that asks for a token."""
        return _show(request, logins, next)

    @app.post("/login")
    async def log_in(request: Request) -> Response:
        """Begin a session, and redirect to the page from which the browser came."""
        given = read(LoginForm, await form(request))
        if logins is None:
            return RedirectResponse(_ours(given.next), 303)
        begun = logins.begin(given.token.strip(), clock())
        if begun is None:
            logins.tries.wrong(address_of(request.scope.get("client")))
            logger.warning("a login with an unknown or expired token was refused")
            return _show(request, logins, given.next, _WRONG, 401)
        caller, cookie = begun
        logger.info("%s logged in", caller.name)
        call = present_call()
        call.caller = caller
        call.admitted = True
        done = RedirectResponse(_ours(given.next), 303)
        done.set_cookie(value=cookie, max_age=int(LASTS.total_seconds()), **_attributes(request))
        return done

    @app.post("/logout")
    async def log_out(request: Request) -> Response:
        """End a session and its streams."""
        cookie = cookie_of(request.headers)
        if logins is not None and cookie is not None:
            logins.end(cookie, clock())
            # The next read of the tokens informs the other gateways.
            with contextlib.suppress(LifecycleError):
                await logins.share()
        done = RedirectResponse("/login", 303)
        done.delete_cookie(**_attributes(request))
        # The Back button must not show pages of this session.
        done.headers["Clear-Site-Data"] = '"cache"'
        return done


def _add_sign_in(app: FastAPI, logins: Logins, oidc: Oidc, clock: Clock) -> None:
    """Add the login through the issuer."""

    @app.get("/login/oidc")
    async def sign_in(request: Request, next: str = "/") -> Response:
        """Redirect to the issuer. Raises ``IssuerUnavailable`` if it does not answer."""
        await oidc.read()
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        challenge = (
            base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest())
            .decode()
            .rstrip("=")
        )
        asked = {
            "response_type": "code",
            "client_id": oidc.client_id,
            "redirect_uri": oidc.page + _BACK,
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        to = oidc.document["authorization_endpoint"]
        done = RedirectResponse(
            f"{to}{'&' if '?' in to else '?'}{urlencode(asked | {'scope': oidc.scopes})}", 303
        )
        kept = logins.seal(_WAY, [state, nonce, verifier, _ours(next), clock().timestamp() + WAY_S])
        done.set_cookie(value=kept, max_age=WAY_S, **_attributes(request, WAY_COOKIE, strict=False))
        return done

    @app.get(_BACK)
    async def end_sign_in(request: Request, state: str = "", code: str = "") -> Response:
        """Log in the person whom the issuer has sent back."""
        call = present_call()
        said = request.query_params
        kept = logins.unseal(_WAY, cookie_of(request.headers, WAY_COOKIE) or "")
        known, nonce, verifier, place, ends = kept or ("", "", "", "/", 0)
        try:
            if ends <= clock().timestamp() or not secrets.compare_digest(
                known.encode(), state.encode()
            ):
                raise unauthorised(
                    "unauthenticated",
                    f"This login was not started in this browser; start again at {oidc.page}",
                )
            await oidc.read()
            unnamed = (
                ""
                if oidc.document.get("authorization_response_iss_parameter_supported")
                else oidc.issuer
            )
            if said.get("iss", unnamed) != oidc.issuer:
                raise unauthorised(
                    "unauthenticated",
                    f"The response did not come from {oidc.issuer}; start the login again here",
                )
            answered: Mapping[str, Any] = (
                said
                if "error" in said
                else await oidc.provider.redeem(
                    oidc.document, code=code, code_verifier=verifier, redirect_uri=oidc.page + _BACK
                )
            )
            if "error" in answered:
                words = f"{answered['error']!s:.100}: {answered.get('error_description')!s:.200}"
                raise unauthorised(
                    "unauthenticated", f"{oidc.issuer} reports {words}; ask its operator"
                )
            await oidc.prepare(token := str(answered.get("id_token")))
            caller, held, until = oidc.person(token, nonce)
        except (Problem, LifecycleError) as error:
            problem = of_error(error)
            logger.warning("a login through the issuer was refused: %s", problem.detail)
            done = _show(
                request, logins, place, f"You are not logged in: {problem.detail}", problem.status
            )
        else:
            cookie, seconds = logins.begin_for(caller, held, clock(), until)
            # A redirect would be part of the navigation from the issuer, during which browsers do
            # not send the session cookie.
            done = Response(html("go_on.html", path=place, target=place), media_type="text/html")
            done.set_cookie(value=cookie, max_age=seconds, **_attributes(request))
            logger.info("%s logged in", caller.name)
            call.caller = caller
            call.admitted = True
        done.delete_cookie(**_attributes(request, WAY_COOKIE, strict=False))
        return done


def _show(
    request: Request, logins: Logins | None, next: str, problem: str = "", status: int = 200
) -> Response:
    """Return the login page, with the reason why the login failed."""
    issuer = None if logins is None or logins.oidc is None else urlsplit(logins.oidc.issuer).netloc
    return answer(
        request,
        "login.html",
        status=status,
        is_open=logins is None,
        problem=problem,
        next=_ours(next),
        issuer=issuer,
        **({"caller": None} if problem else {}),
    )


def _attributes(request: Request, name: str = COOKIE, *, strict: bool = True) -> dict[str, Any]:
    """Return the attributes of a cookie.

    Without ``strict``, browsers also send it when they follow links on other sites.
    """
    host = request.headers.get("host", "")
    own = {"key": cookie_name(host, name), "secure": not is_loopback(host)}
    return {"path": "/", **own, "httponly": True, "samesite": "strict" if strict else "lax"}


def _ours(address: str) -> str:
    """Return the address if it is on this gateway, and otherwise the home page.

    A login never redirects to another host. A longer address does not fit into a cookie.
    """
    return address if re.fullmatch(r"/(?![/\\])[\x21-\x7e]{0,2000}", address) else "/"
