"""The API server's errors, with its own messages."""

from __future__ import annotations

from typing import Any

REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Expired",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


class Problem(Exception):
    """A response of kind Status."""

    def __init__(
        self,
        status: int,
        message: str,
        reason: str | None = None,
        details: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}
        self.body: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": metadata or {},
            "status": "Failure",
            "message": message,
            "reason": reason or REASONS.get(status, ""),
            **({"details": details} if details else {}),
            "code": status,
        }


def not_found(resource: str, group: str, name: str) -> Problem:
    full = f"{resource}.{group}" if group else resource
    return Problem(404, f'{full} "{name}" not found', details=_details(resource, group, name))


def already_exists(resource: str, group: str, name: str) -> Problem:
    full = f"{resource}.{group}" if group else resource
    return Problem(
        409, f'{full} "{name}" already exists', "AlreadyExists", _details(resource, group, name)
    )


def conflict(resource: str, group: str, name: str, why: str, plural: str | None = None) -> Problem:
    full = f"{resource}.{group}" if group else resource
    text = f'Operation cannot be fulfilled on {full} "{name}": {why}'
    return Problem(409, text, "Conflict", _details(plural or resource, group, name))


def forbidden(
    resource: str, group: str, name: str, why: str, causes: list[dict[str, str]] | None = None
) -> Problem:
    full = f"{resource}.{group}" if group else resource
    details = _details(resource, group, name)
    if causes:
        details["causes"] = causes
    named = f' "{name}"' if name else ""
    return Problem(403, f"{full}{named} is forbidden: {why}", "Forbidden", details)


def invalid(
    kind: str, group: str, name: str, field: str, why: str, cause: str = "FieldValueInvalid"
) -> Problem:
    full = f"{kind}.{group}" if group else kind
    details = {
        "name": name,
        "kind": kind,
        "causes": [{"reason": cause, "message": why, "field": field}],
    }
    if group:
        details["group"] = group
    return Problem(422, f'{full} "{name}" is invalid: {field}: {why}', "Invalid", details)


def _details(resource: str, group: str, name: str) -> dict[str, Any]:
    return {
        **({"name": name} if name else {}),
        **({"group": group} if group else {}),
        "kind": resource,
    }
