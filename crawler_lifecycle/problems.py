"""What our HTTP services share: problem documents (RFC 9457), strict JSON bodies, a guard, and standing on a port.

FastAPI's own body parsing is not used: it coerces (``"yes"`` becomes true), accepts NaN, lets the last of two equal
keys win and recurses as deeply as a caller likes. ``JsonBody`` refuses all of that and names field, value and cure.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import json
import logging
import re
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import uvicorn
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .domain.errors import InvalidRequest, LifecycleError, NotInThisState, RunNotFound

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
DEPTH_MAX = 20
#: What a request that is being served gets after SIGTERM.
GRACE_S = 10
#: Connections at once; more get an answer that tells them to come back, instead of memory.
CONNECTIONS_MAX = 1000
ERRORS_MAX = 20

T = TypeVar("T")


class FieldError(BaseModel):
    """One thing that is wrong with a request."""

    field: str
    message: str
    value: str | None = None


class ProblemDocument(BaseModel):
    """Body of every answer with a status from 400 on."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    run_id: int | None = None
    errors: list[FieldError] = []


class Problem(Exception):
    """An answer that is a problem document. ``code`` is stable, ``detail`` is for people and says what to do."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        errors: Sequence[FieldError] = (),
        headers: Mapping[str, str] | None = None,
        run_id: int | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.errors = list(errors)
        self.headers = dict(headers or {})
        self.run_id = run_id

    def response(self) -> Response:
        """The problem as an HTTP answer."""
        body: dict[str, object] = {
            "type": f"urn:problem-type:crawler-lifecycle:{self.code}",
            "title": self.code.replace("_", " ").capitalize(),
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
        }
        if self.run_id is not None:
            body["run_id"] = self.run_id
        if self.errors:
            body["errors"] = [error.model_dump(exclude_none=True) for error in self.errors]
        return JSONResponse(body, self.status, headers=self.headers, media_type=MEDIA_TYPE)


def unavailable(code: str, detail: str, *, run_id: int | None = None) -> Problem:
    """503 with ``Retry-After``: the same request may work later."""
    return Problem(503, code, detail, headers={"Retry-After": "5"}, run_id=run_id)


def snake(code: str) -> str:
    """``RunNotFound`` as ``run_not_found``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", code).lower()


def of_error(error: LifecycleError) -> Problem:
    """The problem that an error of the domain is, when a route has nothing more exact to say."""
    code = snake(error.code)
    if isinstance(error, RunNotFound):
        return Problem(404, code, str(error))
    if isinstance(error, InvalidRequest):
        return Problem(422, code, str(error), errors=[_field_error(str(error))])
    if isinstance(error, NotInThisState):
        return Problem(409, code, str(error))
    if error.retryable:
        return unavailable(code, str(error))
    return Problem(409, code, str(error))


def _field_error(text: str) -> FieldError:
    """The texts of ``InvalidRequest`` begin with the field."""
    found = re.match(r"([\w.\[\]\-]+): ", text)
    return FieldError(field=found[1], message=text[found.end() :]) if found else FieldError(field="body", message=text)


# --- handlers ---------------------------------------------------------------------------------------------------------

_CODES = {400: "bad_request", 404: "not_found", 405: "method_not_allowed", 413: "too_large", 415: "unsupported_type"}


def _on_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return error.response()


def _on_domain(request: Request, error: Exception) -> Response:
    assert isinstance(error, LifecycleError)
    return of_error(error).response()


def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _CODES.get(error.status_code, f"status_{error.status_code}")
    detail = str(error.detail)
    if error.status_code == 404:
        detail = f"{request.url.path}: no such resource; see /openapi.json for what there is"
    if error.status_code == 405:
        detail = f"{request.method} is not allowed on {request.url.path}; see the header Allow"
    return Problem(error.status_code, code, detail, headers=error.headers).response()


def _on_parameters(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    found = [field_error(item, skip=1) for item in error.errors()[:ERRORS_MAX]]
    return Problem(422, "invalid_request", _sentence(found), errors=found).response()


def _sentence(errors: Sequence[FieldError]) -> str:
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{errors[0].field}: {errors[0].message}{more}"


def install(app: FastAPI) -> None:
    """Make every error of the app a problem document, and describe that in its OpenAPI document."""
    app.add_exception_handler(Problem, _on_problem)
    app.add_exception_handler(LifecycleError, _on_domain)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(RequestValidationError, _on_parameters)

    def openapi() -> dict[str, Any]:
        if not app.openapi_schema:
            app.openapi_schema = _openapi(app)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


# --- bodies -----------------------------------------------------------------------------------------------------------


class JsonBody(Generic[T]):
    """A FastAPI dependency that reads the request's body as a ``T``, strictly.

    ``optional`` allows an empty body, which then is read as ``{}``. Give ``openapi()`` to the route's
    ``openapi_extra``, so that the body is documented. Raises ``Problem``: 400, 415 or 422.
    """

    def __init__(self, kind: type[T], *, optional: bool = False) -> None:
        self.kind = kind
        self.optional = optional
        self._adapter = TypeAdapter(kind)
        self._names = list(getattr(kind, "model_fields", {}))

    async def __call__(self, request: Request) -> T:
        raw = await request.body()
        if not raw and self.optional:
            raw = b"{}"
        else:
            content_type = request.headers.get("content-type", "nothing")
            if content_type.partition(";")[0].strip().lower() != "application/json":
                detail = f"Content-Type: {content_type[:100]} is not taken; send application/json"
                raise Problem(415, "unsupported_type", detail)
        check_json(raw)
        return self.read(raw)

    def read(self, raw: bytes) -> T:
        """Validate JSON text that ``check_json`` has accepted."""
        try:
            return self._adapter.validate_json(raw, strict=True)
        except ValidationError as error:
            if error.errors()[0]["type"] == "json_invalid":  # half a surrogate pair passes Python's parser
                raise Problem(400, "invalid_json", f"body: {error.errors()[0]['msg']}; send valid Unicode") from None
            found = [field_error(item, known=self._names) for item in error.errors(include_url=False)[:ERRORS_MAX]]
            raise Problem(422, "invalid_request", _sentence(found), errors=found) from None

    def openapi(self) -> dict[str, Any]:
        """What FastAPI shall say about the body."""
        schema = self._adapter.json_schema(ref_template="#/components/schemas/{model}")
        definitions = schema.pop("$defs", {})
        content = {"application/json": {"schema": schema}}
        return {"requestBody": {"required": not self.optional, "content": content}, _DEFINITIONS: definitions}


_DEFINITIONS = "x-definitions"


def _openapi(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    problem = ProblemDocument.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(problem.pop("$defs"))
    schemas["ProblemDocument"] = problem
    reference = {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}
    for path in document["paths"].values():
        for operation in path.values():
            schemas.update(operation.pop(_DEFINITIONS, {}))
            operation["responses"].pop("422", None)
            operation["responses"]["default"] = {"description": "Any error", "content": {MEDIA_TYPE: reference}}
    schemas.pop("HTTPValidationError", None)
    schemas.pop("ValidationError", None)
    return document


def field_error(item: Mapping[str, Any], *, skip: int = 0, known: Sequence[str] = ()) -> FieldError:
    """One of pydantic's errors in our words: field, value, cure."""
    path = tuple(item["loc"])[skip:]
    cause = item.get("ctx", {}).get("error")
    if isinstance(cause, InvalidRequest):
        return _field_error(str(cause))
    field = ""
    for part in path:
        field += f"[{part}]" if isinstance(part, int) else f".{part}" if field else str(part)
    field = field or "body"
    kind, value = item["type"], repr(item.get("input"))
    value = value if len(value) <= 120 else f"{value[:119]}…"
    if kind == "missing":
        return FieldError(field=field, message="missing; give it")
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        cure = f"known are {', '.join(known)}" if known and len(path) == 1 else "leave it out"
        return FieldError(field=field, value=value, message=f"unknown field; {cure}")
    message = str(item["msg"])
    return FieldError(field=field, value=value, message=f"{value} is not allowed; {message[:1].lower()}{message[1:]}")


def check_json(raw: bytes) -> None:
    """Refuse what is no JSON of a sane shape: syntax, NaN, a key given twice, more than ``DEPTH_MAX`` levels."""
    try:
        plain = json.loads(raw.decode(), parse_constant=_no_constant, object_pairs_hook=_no_twins)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise Problem(400, "invalid_json", f"body: no valid JSON at {where}: {error.msg}; send one object") from None
    except UnicodeDecodeError:
        raise Problem(400, "invalid_json", "body: no valid UTF-8; send JSON as UTF-8") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:  # a number with more digits than Python converts
        raise Problem(400, "invalid_json", f"body: {error}") from None
    level, depth = [plain], 0
    while level:
        depth += 1
        if depth > DEPTH_MAX:
            raise _too_deep()
        level = [
            child
            for node in level
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
        ]


def _too_deep() -> Problem:
    return Problem(422, "invalid_request", f"body: nested more than {DEPTH_MAX} levels deep; send something flatter")


def _no_constant(name: str) -> object:
    raise Problem(400, "invalid_json", f"body: {name} is no JSON; give finite numbers only")


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    plain = dict(pairs)
    if len(plain) != len(pairs):
        seen: set[str] = set()
        twin = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise Problem(400, "invalid_json", f"body: the key {twin[:100]!r} appears twice; send it once")
    return plain


# --- the guard --------------------------------------------------------------------------------------------------------

HeaderCheck = Callable[[Headers], Problem | None]


class Guard:
    """ASGI middleware: checks headers, limits size and duration of bodies, and turns crashes into problem documents.

    The body is read completely before the app sees the request, so that a slow sender costs a coroutine and no thread.
    """

    def __init__(
        self, app: ASGIApp, *, body_max: int, check: HeaderCheck | None = None, body_timeout_s: float = 20.0
    ) -> None:
        self._app = app
        self._body_max = body_max
        self._check = check
        self._timeout_s = body_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            headers = Headers(scope=scope)
            problem = self._check(headers) if self._check else None
            if problem is not None:
                raise problem
            body = await self._body(headers, receive)
            if body is None:
                return
            await self._app(scope, _replay(body, receive), watched)
        except Problem as problem:
            await problem.response()(scope, receive, send)
        except Exception:
            logger.exception("%s %s failed", scope["method"], scope["path"])
            if not started:
                crash = Problem(500, "internal_error", "This is a bug in the service; its log has the details")
                await crash.response()(scope, receive, send)

    async def _body(self, headers: Headers, receive: Receive) -> bytes | None:
        """The whole body; ``None`` when the client left."""
        limit = self._body_max
        too_large = Problem(413, "too_large", f"body: more than {limit} bytes; send less at once")
        announced = headers.get("content-length", "0")
        if not announced.isdecimal() or int(announced[:20]) > limit:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    body += message.get("body", b"")
                    if len(body) > limit:
                        raise too_large
                    if not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError:
            detail = f"body: not complete after {self._timeout_s:g} s; send it faster"
            raise Problem(408, "too_slow", detail, headers={"Connection": "close"}) from None


def _replay(body: bytes, receive: Receive) -> Receive:
    sent = False

    async def replayed() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


def is_loopback(host: str) -> bool:
    """Whether a host name or address, with or without a port, can only mean this machine."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0] if "." in host else host
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name.partition(":")[0].lower() == "localhost"


def loopback_only(headers: Headers) -> Problem | None:
    """Refuse what a browser was tricked into sending: a foreign name for our address, or a foreign page's request.

    Without this any web page could drive a service on loopback (DNS rebinding, cross-site requests).
    """
    hosts = headers.getlist("host")
    if len(hosts) != 1 or not is_loopback(hosts[0]):
        shown = ", ".join(hosts)[:100] or "missing"
        return Problem(403, "foreign_host", f"Host: {shown} is not allowed; use 127.0.0.1 or localhost")
    origin = headers.get("origin")
    if origin is not None:
        scheme, _, host = origin.lower().partition("://")
        if scheme not in ("http", "https") or not is_loopback(host):
            return Problem(403, "foreign_origin", f"Origin: {origin[:100]} is not allowed; only pages of this machine")
    return None


def no_browser(headers: Headers) -> Problem | None:
    """Refuse every request that a web page sent, for services that only programs call."""
    if "origin" in headers:
        return Problem(403, "foreign_origin", "Origin: not allowed; this service is called by programs, not by pages")
    return None


# --- the port ---------------------------------------------------------------------------------------------------------


class Unservable(Exception):
    """The service cannot start; the text says why and what to do."""


def bind(host: str, port: int, setting: str) -> socket.socket:
    """A listening socket. Raises ``Unservable`` that names the address, the reason and the setting to change."""
    address = f"{host}:{port}"
    try:
        family, kind, proto, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise Unservable(f"{address}: {error.strerror}; set {setting}__HOST to an address of this machine") from None
    bound = socket.socket(family, kind, proto)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(where)
        bound.listen(2048)
    except OSError as error:
        bound.close()
        if error.errno == errno.EADDRINUSE:
            cure = f"end the program that listens there, or set {setting}__PORT to another port"
            raise Unservable(f"{address}: the address is taken; {cure}") from None
        cure = f"set {setting}__HOST and {setting}__PORT to an address that this user may listen on"
        raise Unservable(f"{address}: cannot listen ({error.strerror}); {cure}") from None
    bound.set_inheritable(False)
    return bound


def run(name: str, app: FastAPI, bound: socket.socket) -> int:
    """Serve until SIGTERM or SIGINT; the exit code. Requests being served get ``GRACE_S`` seconds."""
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
        limit_concurrency=CONNECTIONS_MAX,
    )
    server = uvicorn.Server(config)
    address, port = bound.getsockname()[:2]
    where = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    # uvicorn raises the signal again after its shutdown; being asked to end and ending is no failure.
    former = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        print(f"{name} listens on http://{where}", file=sys.stderr, flush=True)
        server.run(sockets=[bound])
    finally:
        bound.close()
        for number, handler in former.items():
            signal.signal(number, handler)
    return 0 if server.started else 1
