"""The gateway's OpenAPI document: roles, possible problems, examples, and the meaning of each
field.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from crawler_lifecycle.gateway.access.operations import ACCESS, Access, forbidden
from crawler_lifecycle.web.problem_codes import CODES
from crawler_lifecycle.web.problems import MEDIA_TYPE, Problem, unavailable
from crawler_lifecycle.web.serving import unauthorised
from crawler_lifecycle.web.tries import too_many

_ABOUT = """\
Start, stop, resume and watch crawls.

Every operation except `healthz` and `readyz` needs `Authorization: Bearer TOKEN`. The `security` of
an operation names the role that it needs (`read` < `operate` < `admin`). An open gateway needs no
token, but listens on loopback only. Errors are problem documents (RFC 9457) with stable codes.
"""

_SECURITY = """\
A token of the gateway's tokens file. A crawler may call `addTasks` and `getStop` for its own run
with its own token (`CRAWL_TOKEN`). A task may call `uploadFiles`, `leaseSites` and `shareRobots`
for itself with its tokens (`CRAWL_UPLOAD_TOKEN` and `CRAWL_LEASES_TOKEN`).
"""

#: The problems that operations can return. For each: when it occurs, and an example.
_PROBLEMS: Mapping[str, tuple[str, Problem]] = {
    "BadRequest": (
        "The head or body cannot be read",
        Problem(400, "invalid_json", "body: the key 'crawler' appears twice; send it once"),
    ),
    "Unauthorised": (
        "No token, or one that is unknown or expired",
        unauthorised("unauthenticated", "Authorization: missing; send Authorization: Bearer TOKEN"),
    ),
    "Forbidden": (
        "The token's role is not sufficient, or the host or the origin is not allowed",
        forbidden("stopRun needs the role operate; the token of 'dashboard' has read", "operate"),
    ),
    "NotFound": (
        "This run, task, manager, graph, step, log or archive does not exist",
        Problem(404, "run_not_found", "run 4711 does not exist; GET /v1/runs lists all runs"),
    ),
    "Conflict": (
        "The state of the run, manager or graph does not allow this",
        Problem(
            409,
            "not_in_this_state",
            "run 7 is PROCESSING and its workflow is working on it; stop it or wait for its end",
        ),
    ),
    "Invalid": (
        "A field or parameter is not valid",
        Problem(422, "invalid_request", "page_size: '0' is not allowed; give 1 to 200"),
    ),
    "TooMany": (
        "Too many requests with this token",
        too_many(
            "rate_limited",
            "More than 20 write requests per second with this token; wait 1 s",
            1.0,
        ),
    ),
    "Unavailable": (
        "The database, Temporal or another service does not answer; try again",
        unavailable("store_unavailable", "the database cannot be reached"),
    ),
}
#: The key for the schema of a server-sent event. OpenAPI 3.2 calls it ``itemSchema``; 3.1 does not
#: allow that name.
ITEM_SCHEMA = "x-itemSchema"


@cache
def parts() -> Mapping[str, Any]:
    """Return parts of the document: examples by operation and name (`crawlctl dev` accepts all of
    them), headers and schemas.
    """
    found: Mapping[str, Any] = json.loads(
        Path(__file__).with_name("parts.json").read_text(encoding="utf-8")
    )
    return found


@cache  # The file is read when somebody asks for the document, and not at each start.
def meanings() -> Mapping[str, Mapping[str, str]]:
    """Return the meanings of fields and parameters.

    They map a schema or operation to its meanings by name. The meanings under ``any`` apply where
    the schema or operation has none.
    """
    tables = tomllib.loads(Path(__file__).with_name("fields.toml").read_text(encoding="utf-8"))
    return {name: said for names, said in tables.items() for name in names.split()}


def describe(document: dict[str, Any]) -> None:
    """Add a tag, security, problems and examples to each operation in the document, and a meaning
    to each field.
    """
    document["info"]["description"] = _ABOUT
    components = document["components"]
    components["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer", "description": _SECURITY}
    }
    components["responses"] = {name: _response(*expected) for name, expected in _PROBLEMS.items()}
    components["schemas"]["ProblemDocument"]["properties"]["code"]["examples"] = sorted(CODES)
    components["schemas"] |= parts()["schemas"]
    events = document["paths"]["/v1/events"]["get"]["responses"]["200"]["content"][
        "text/event-stream"
    ]
    events[ITEM_SCHEMA] = {"$ref": "#/components/schemas/StreamEvent"}
    for path, item in document["paths"].items():
        for operation in item.values():
            _describe(operation, path, ACCESS[operation["operationId"]])
    for where, name, field in fields(document):
        if said := meanings().get(where, {}).get(name) or meanings()["any"].get(name):
            field.setdefault("description", said)


def fields(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield each field and parameter: the name of its schema or operation, its own name, and its
    description.

    A nameless schema inside an operation gets the name of the operation.
    """
    for title, schema in document["components"]["schemas"].items():
        yield from ((title, name, field) for name, field in schema.get("properties", {}).items())
    for operation in (method for item in document["paths"].values() for method in item.values()):
        where = operation["operationId"]
        yield from (
            (where, parameter["name"], parameter)
            for parameter in operation.get("parameters", ())
            if "name" in parameter
        )
        for content in operation.get("requestBody", {}).get("content", {}).values():
            yield from (
                (where, name, field)
                for name, field in content["schema"].get("properties", {}).items()
            )


def _describe(operation: dict[str, Any], path: str, access: Access) -> None:
    names = []
    operation["tags"] = [path.split("/")[2] if path.startswith("/v1/") else "service"]
    if access.role is None:
        operation["security"] = []
    else:
        operation["security"] = [{"bearer": [access.role.value]}]
        names += ["BadRequest", "Unauthorised", "Forbidden", "Invalid", "TooMany", "Unavailable"]
        if any(
            placeholder in path
            for placeholder in (
                "{run_id}",
                "{manager_id}",
                "{incident_id}",
                "{canary_id}",
                "/graphs/{id}",
            )
        ):
            names.append("NotFound")
            names += ["Conflict"] if access.writes else []
    responses = operation["responses"]
    if "304" in responses:
        operation.setdefault("parameters", []).append(parts()["If-None-Match"])
        for status in ("200", "304"):
            responses[status]["headers"] = {"ETag": parts()["headers"]["ETag"]}
    for name in names:
        responses.setdefault(
            str(_PROBLEMS[name][1].status), {"$ref": f"#/components/responses/{name}"}
        )
    for content in operation.get("requestBody", {}).get("content", {}).values():
        content["examples"] = parts()["examples"][operation["operationId"]]


def _response(meaning: str, example: Problem) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/ProblemDocument"}
    content = {
        MEDIA_TYPE: {"schema": schema, "example": json.loads(bytes(example.response().body))}
    }
    found = {"description": meaning, "content": content}
    if example.headers:
        found["headers"] = {name: parts()["headers"][name] for name in example.headers}
    return found
