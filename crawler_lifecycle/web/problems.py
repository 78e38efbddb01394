"""Problem documents (RFC 9457) and strict JSON bodies for all our HTTP services.

FastAPI's own parsing of bodies is not used. It converts types (``"yes"`` becomes true), accepts
NaN, takes the last of two equal keys, and limits neither the nesting nor the number of values.
``JsonBody`` refuses all of that, and names the field, the value and the fix. It checks its limits
before validation.
"""

from __future__ import annotations

import functools
import json
import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute, iter_route_contexts
from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import compile_path

from crawler_lifecycle.domain.bounds import VALUES_MAX, check_values, shown
from crawler_lifecycle.domain.errors import (
    InvalidRequest,
    LifecycleError,
    OtherPlace,
    QuotaReached,
    RowUnreadable,
    RunNotFound,
)
from crawler_lifecycle.domain.unknown import advise, names_at

from .problem_codes import TYPE_PREFIX, title
from .turns import in_turn

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
#: The maximum number of levels of a body.
DEPTH_MAX = 20
#: The maximum number of names in one of its objects.
NAMES_MAX = 5_000
#: The maximum number of errors in a response.
ERRORS_MAX = 20

T = TypeVar("T")


class FieldError(BaseModel):
    """One error in a request."""

    field: str
    message: str
    value: str | None = None


class ProblemDocument(BaseModel):
    """The body of every response with a status of 400 or more."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    run_id: int | None = None
    errors: list[FieldError] = []


class Problem(Exception):
    """An error for which the response is a problem document.

    ``code`` is stable and is one of ``problem_codes.CODES``. ``detail`` is for people, and explains
    what to do.
    """

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
        """Return the problem as an HTTP response."""
        body = {
            "type": TYPE_PREFIX + self.code,
            "title": title(self.code),
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
        }
        if self.run_id is not None:
            body["run_id"] = self.run_id
        if self.errors:
            body["errors"] = [error.model_dump(exclude_none=True) for error in self.errors]
        return JSONResponse(body, self.status, headers=self.headers, media_type=MEDIA_TYPE)


def refused(field: str, message: str, value: object = None) -> Problem:
    """Return a 422 problem about the value of one field or header."""
    error = FieldError(
        field=field[:100], message=message, value=None if value is None else shown(value)
    )
    return Problem(422, "invalid_request", f"{field[:100]}: {message}", errors=[error])


def unavailable(
    code: str, detail: str, *, run_id: int | None = None, retry_after_s: float | None = None
) -> Problem:
    """Return a 503 problem: the same request may succeed later.

    ``Retry-After`` is ``retry_after_s``, but at least 5 s.
    """
    seconds = max(5, math.ceil(retry_after_s or 0))
    return Problem(503, code, detail, headers={"Retry-After": str(seconds)}, run_id=run_id)


def snake(code: str) -> str:
    """Convert a name such as ``RunNotFound`` to ``run_not_found``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", code).lower()


def camel(name: str) -> str:
    """Convert a name such as ``start_run`` to ``startRun``."""
    return re.sub(r"_([a-z])", lambda found: found[1].upper(), name)


#: Domain errors with a status of their own. An unreadable row needs a manual repair, and retries do
#: not help.
_STATUSES: Mapping[type[LifecycleError], int] = {
    RunNotFound: 404,
    OtherPlace: 421,
    RowUnreadable: 500,
}


def of_error(error: LifecycleError | Problem) -> Problem:
    """Return the problem for a domain error, or the argument itself if it is already a problem."""
    if isinstance(error, Problem):
        return error
    code = snake(error.code)
    if isinstance(error, InvalidRequest):
        errors = [_field_error(text) for text in error.texts[:ERRORS_MAX]]
        return Problem(422, code, str(error), errors=errors)
    if isinstance(error, QuotaReached):
        # A quota of 0 never has room, so there is no time to wait for.
        again = (
            {}
            if error.retry_after_s is None
            else {"Retry-After": str(math.ceil(error.retry_after_s))}
        )
        return Problem(429 if again else 409, code, str(error), headers=again)
    status = next((status for kind, status in _STATUSES.items() if isinstance(error, kind)), None)
    if status is None and error.retryable:
        return unavailable(code, str(error), retry_after_s=error.retry_after_s)
    return Problem(status or 409, code, str(error))


def _field_error(text: str) -> FieldError:
    """Split the message of an ``InvalidRequest`` into the name of the field, with which it begins,
    and the rest.
    """
    found = re.match(r"([\w.\[\]\-]+): ", text)
    return (
        FieldError(field=found[1], message=text[found.end() :])
        if found
        else FieldError(field="body", message=text)
    )


# --- handlers -------------------------------------------------------------------------------------

_CODES = {
    400: "bad_request",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    415: "unsupported_type",
}


def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, LifecycleError | Problem)
    if isinstance(error, RowUnreadable):
        logger.error("%s", error)
    return of_error(error).response()


def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _CODES.get(error.status_code, "http_error")
    detail = str(error.detail)
    if error.status_code == 404:
        detail = f"{request.url.path}: no such resource; /openapi.json lists all paths"
    headers = dict(error.headers or {})
    if error.status_code == 405:
        # Starlette names the methods of only one route, but a path can have several routes.
        headers["Allow"] = ", ".join(sorted(_methods(request.app, request.url.path)))
        detail = f"{request.method} is not allowed on {request.url.path}; see the Allow header"
    return Problem(error.status_code, code, detail, headers=headers).response()


def _methods(app: FastAPI, path: str) -> set[str]:
    found: set[str] = set()
    for route in iter_route_contexts(app.routes):
        if route.path is not None and compile_path(route.path)[0].match(path):
            found |= route.methods or set()
    return found


def _on_parameters(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return invalid(error.errors(), {}, skip=1).response()


class _DocumentedRoute(APIRoute):
    """A route whose OpenAPI entry describes the body that its ``JsonBody`` reads.

    Unless it is given, the id of its operation is derived from the name of the function:
    ``startRun`` for ``start_run``.
    """

    def __init__(
        self, path: str, endpoint: Callable[..., Any], operation_id: str | None = None, **more: Any
    ) -> None:
        super().__init__(
            path, endpoint, operation_id=operation_id or camel(endpoint.__name__), **more
        )
        for dependency in self.dependant.dependencies:
            if isinstance(dependency.call, JsonBody):
                self.openapi_extra = dependency.call.openapi


def service(
    title: str,
    version: str,
    describe: Callable[[dict[str, Any]], None] = lambda document: None,
    **options: Any,
) -> FastAPI:
    """Return an app without routes.

    It responds to each error with a problem document, and its OpenAPI document shows this.
    ``describe`` can add facts about this app to the OpenAPI document. ``options`` are passed on to
    ``FastAPI``.
    """
    app = FastAPI(
        title=title,
        version=version,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        **options,
    )
    app.router.route_class = _DocumentedRoute
    for kind in (Problem, LifecycleError):
        app.add_exception_handler(kind, _on_error)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(RequestValidationError, _on_parameters)

    def openapi() -> dict[str, Any]:
        if not app.openapi_schema:
            document = _openapi(app)
            describe(document)
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
    return app


# --- bodies ---------------------------------------------------------------------------------------


class JsonBody(Generic[T]):
    """A FastAPI dependency that reads the request's body as a ``T``, strictly.

    ``optional`` allows an empty body and reads it as ``{}``. Raises ``Problem`` with 400, 415 or
    422. The routes of a ``service`` describe this body in the OpenAPI document.
    """

    def __init__(self, kind: type[T], *, optional: bool = False) -> None:
        self.kind = kind
        self.optional = optional
        self._adapter = TypeAdapter(kind)

    async def __call__(self, request: Request) -> T:
        raw = await request.body()
        if not raw and self.optional:
            raw = b"{}"
        else:
            content_type = request.headers.get("content-type", "nothing")
            if content_type.partition(";")[0].strip().lower() != "application/json":
                detail = (
                    f"Content-Type: {content_type[:100]} is not accepted; send application/json"
                )
                raise Problem(415, "unsupported_type", detail)
        return await in_turn(len(raw), self.read, raw)

    def read(self, raw: bytes) -> T:
        """Read JSON text. Raises ``Problem`` with 400 or 422."""
        check_json(raw)
        try:
            return self._adapter.validate_json(raw, strict=True)
        except ValidationError as error:
            # Building all errors would be expensive, and only the first ones are shown.
            if error.error_count() > NAMES_MAX:
                raise refused(
                    "body", f"{error.error_count()} values are not valid; see /openapi.json"
                ) from None
            errors = error.errors(include_url=False)
            # Python's parser accepts half of a surrogate pair.
            if errors[0]["type"] == "json_invalid":
                raise Problem(
                    400, "invalid_json", f"body: {errors[0]['msg']}; send valid Unicode"
                ) from None
            raise invalid(errors, self._schema) from None

    @functools.cached_property
    def _schema(self) -> dict[str, Any]:
        return self._adapter.json_schema()

    @functools.cached_property
    def openapi(self) -> dict[str, Any]:
        """Return the description of the body for the OpenAPI document."""
        schema = self._adapter.json_schema(ref_template="#/components/schemas/{model}")
        definitions = schema.pop("$defs", {}) | {schema["title"]: schema}
        content = {
            "application/json": {"schema": {"$ref": f"#/components/schemas/{schema['title']}"}}
        }
        return {
            "requestBody": {"required": not self.optional, "content": content},
            _DEFINITIONS: definitions,
        }


_DEFINITIONS = "x-definitions"


def _openapi(app: FastAPI) -> dict[str, Any]:
    document = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    problem = ProblemDocument.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(problem.pop("$defs"))
    schemas["ProblemDocument"] = problem
    reference = {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}
    for path in document["paths"].values():
        for operation in path.values():
            schemas.update(operation.pop(_DEFINITIONS, {}))
            operation["responses"].pop("422", None)
            operation["responses"]["default"] = {
                "description": "Any error",
                "content": {MEDIA_TYPE: reference},
            }
    schemas.pop("HTTPValidationError", None)
    schemas.pop("ValidationError", None)
    return document


def invalid(
    errors: Sequence[Mapping[str, Any]], schema: Mapping[str, Any], *, skip: int = 0
) -> Problem:
    """Return a 422 problem with pydantic's first errors: field, value and fix.

    ``schema`` contains the known fields. The first ``skip`` parts of each path do not belong to the
    caller's body.
    """
    found = [_converted(item, schema, skip) for item in errors[:ERRORS_MAX]]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return Problem(
        422, "invalid_request", f"{found[0].field}: {found[0].message}{more}", errors=found
    )


def _converted(item: Mapping[str, Any], schema: Mapping[str, Any], skip: int) -> FieldError:
    path = tuple(item["loc"])[skip:]
    cause = item.get("ctx", {}).get("error")
    if isinstance(cause, InvalidRequest):
        return _field_error(str(cause))
    field = ""
    for part in path:
        field += f"[{part}]" if isinstance(part, int) else f".{part}" if field else str(part)
    # The key of a map itself is wrong.
    field = field.removesuffix(".[key]")[:100] or "body"
    kind = item["type"]
    value = shown(item.get("input"))
    if kind == "missing":
        return FieldError(field=field, message="missing; give it")
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        meant = advise(path[-1], names_at(schema, path[:-1]))
        return FieldError(field=field, value=value, message=f"unknown field; {meant}")
    message = str(item["msg"]).removeprefix("Value error, ")
    return FieldError(
        field=field,
        value=value,
        message=f"{value} is not allowed; {message[:1].lower()}{message[1:]}",
    )


def check_json(raw: bytes) -> Any:
    """Return the parsed value.

    Raises ``Problem`` for broken JSON, for NaN, for a duplicate key, and for more names or levels
    than allowed. Raises ``InvalidRequest`` for too many values.
    """
    check_values("body", raw, VALUES_MAX)
    try:
        plain = json.loads(raw.decode(), parse_constant=_no_constant, object_pairs_hook=_no_twins)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise Problem(
            400, "invalid_json", f"body: not valid JSON at {where}: {error.msg}; send one object"
        ) from None
    except UnicodeDecodeError:
        raise Problem(400, "invalid_json", "body: not valid UTF-8; send JSON as UTF-8") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:  # the number has more digits than Python converts
        raise Problem(400, "invalid_json", f"body: {error}") from None
    level = [plain]
    depth = 0
    while level:
        depth += 1
        if depth > DEPTH_MAX:
            raise _too_deep()
        level = [
            child
            for node in level
            if isinstance(node, _NESTED)
            for child in (node.values() if isinstance(node, dict) else node)
        ]
    return plain


#: A comparison with this tuple is faster than with ``dict | list``.
_NESTED = (dict, list)


def _too_deep() -> Problem:
    return Problem(
        422, "invalid_request", f"body: nested more than {DEPTH_MAX} levels deep; send fewer levels"
    )


def _no_constant(name: str) -> object:
    raise Problem(400, "invalid_json", f"body: {name} is not JSON; give finite numbers only")


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > NAMES_MAX:
        raise refused(
            "body",
            f"an object of {len(pairs)} names is too large; an object can have at most {NAMES_MAX}",
        )
    plain = dict(pairs)
    if len(plain) != len(pairs):
        seen: set[str] = set()
        twin = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise Problem(
            400, "invalid_json", f"body: the key {twin[:100]!r} appears twice; send it once"
        )
    return plain
