"""The gateway's OpenAPI document: roles, possible problems, examples, and what each field means."""

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

Every operation except `healthz` and `readyz` needs `Authorization: Bearer TOKEN`. The `security` of an operation names
the role that it needs (`read` < `operate` < `admin`). An open gateway needs no token; it listens on loopback only.
Errors are problem documents (RFC 9457) with stable codes.
"""

_SECURITY = """\
A token of the gateway's tokens file. A crawler may call `addTasks` and `getStop` for its own run with its own token
(`CRAWL_TOKEN`). The runner of a task may call `uploadFiles` for its own task with its token (`CRAWL_UPLOAD_TOKEN`).
"""

_HOOK = {"url": "https://hooks.example.com/crawls", "secrets": ["env:CRAWL_HOOK"]}
_CRAWL = {"path": "shops", "kind": "crawl", "job": {"crawler": "plain"}}

#: Example bodies for each operation, by name: a description and the body. `crawlctl dev` accepts all of them.
EXAMPLES: Mapping[str, Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "startRun": {
        "plain": ("One process, with all defaults", {"crawler": "plain"}),
        "arguments": (
            "With arguments, tags, and the name of the person",
            {"crawler": "plain", "args": {"max_pages": "10"}, "tags": ["nightly"], "requested_by": "ada@example.com"},
        ),
        "tasks": (
            "Several tasks, two at once",
            {
                "crawler": "plain",
                "tasks": [{"args": {"max_pages": "3"}}, {"args": {"max_pages": "4"}}, {"args": {"max_pages": "5"}}],
                "max_parallel_tasks": 2,
            },
        ),
    },
    "stopRun": {
        "graceful": ("The crawler finishes the requests it has begun", {"reason": "wrong site"}),
        "force": ("At once", {"force": True, "reason": "it ignores the stop"}),
    },
    "resumeRun": {
        "rest": ("The tasks that did not succeed", {}),
        "everything": ("All tasks of a COMPLETED run again", {"rerun": True}),
    },
    "addTasks": {"two": ("Two more tasks", {"tasks": [{"args": {"max_pages": "2"}}, {"args": {}}]})},
    "uploadFiles": {
        "part": ("The first part", {"part": 0, "bytes": 8388608, "md5": "ljbXaAaYAZ4Bqjt9vL2OPg=="}),
        "end": ("The end", {"part": None, "bytes": 212, "md5": "ljbXaAaYAZ4Bqjt9vL2OPg=="}),
    },
    "startManager": {
        "items": (
            "One run of a crawler for each job that is added",
            {"crawler": "plain", "flow_id": "shops-2026-11-20", "options": {"max_running": 20, "retries": 3}},
        ),
        "class": (
            "A class of a plans worker",
            {"plan": "shops.managers:ShopsManager", "argv": ["--max-running-jobs", "20"], "tags": ["nightly"]},
        ),
    },
    "addJobs": {
        "page": (
            "The last two jobs",
            {"jobs": [{"spider_args": {"max_pages": 2}}, {"spider_args": {"max_pages": 3}}], "seal": True},
        )
    },
    "stopManager": {
        "graceful": ("Stop its runs too", {"reason": "wrong list"}),
        "leave": ("Let its runs continue", {"leave": True}),
    },
    "resumeManager": {
        "rest": ("The jobs that have not begun", {}),
        "redo": ("Also the runs that its stop ended", {"redo": True}),
    },
    "capManager": {"ten": ("At most ten runs at once", {"cap": 10})},
    "putSchedule": {
        "nightly": (
            "A run each night at 02:30, Berlin time",
            {"run": {"crawler": "services"}, "cron": "30 2 * * *", "time_zone": "Europe/Berlin"},
        ),
        "hourly": (
            "A run each hour; if one still executes, the next one waits",
            {"run": {"crawler": "services"}, "every_s": 3600, "overlap": "queue"},
        ),
    },
    "pauseSchedule": {"reason": ("With a reason", {"reason": "a migration"})},
    "triggerSchedule": {"by": ("With a name", {"requested_by": "ann"})},
    "backfillSchedule": {
        "night": ("The firings of one night", {"after": "2026-11-21T22:00:00Z", "until": "2026-11-22T06:00:00Z"})
    },
    "putWebhook": {
        "ends": (
            "The end of each failed run of two crawlers",
            _HOOK | {"events": ["run.ended"], "crawlers": ["services", "operations"], "statuses": ["FAILED"]},
        ),
        "rotating": (
            "All events of runs, while the secret is changed",
            _HOOK | {"secrets": ["env:CRAWL_HOOK", "env:CRAWL_HOOK_NEXT"], "events": ["run.*", "correction.made"]},
        ),
    },
    "pauseWebhook": {"reason": ("With a reason", {"reason": "a migration"})},
    "resumeWebhook": {"skip": ("Without the events of the pause", {"skip": True})},
    "testWebhook": {"by": ("With a name", {"requested_by": "ann"})},
    "startGraph": {
        "small": (
            "A small graph with all its steps",
            {
                "id": "nightly-2026-11-22",
                "steps": [
                    {"path": "books", "kind": "crawl", "job": {"crawler": "plain"}},
                    {"path": "prices", "kind": "crawl", "job": {"crawler": "plain"}, "deps": ["books"]},
                ],
            },
        ),
        "large": (
            "A draft; its pages follow",
            {"id": "wide-2026-11-22", "pages": 3, "fingerprint": "9f86d081884c7d65" * 4},
        ),
    },
    "addGraphPage": {"page": ("The steps of one page", {"steps": [_CRAWL]})},
    "appendSteps": {"one": ("One more step", {"steps": [_CRAWL | {"deps": ["books"]}]})},
    "cancelSteps": {
        "some": ("One step, and the steps that depend on it", {"names": ["prices"], "reason": "wrong day"}),
        "all": ("All steps that have not ended", {}),
    },
    "retrySteps": {
        "failed": ("All failed steps, and the steps that depend on them", {}),
        "anew": ("One step, with a new run", {"names": ["prices"], "fresh": True}),
    },
    "stopGraph": {"graceful": ("Stop its runs too", {"reason": "wrong list"}), "force": ("At once", {"force": True})},
    "audit": {
        "tell": ("Only report", {}),
        "repair": ("Report, and repair the findings that are due", {"repair": True}),
    },
    "resendExport": {"event": ("Only the event", {"event": True, "files": False})},
}


#: The problems that operations may answer with: when, and an example.
_PROBLEMS: Mapping[str, tuple[str, Problem]] = {
    "BadRequest": (
        "Head or body cannot be read",
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
            409, "not_in_this_state", "run 7 is PROCESSING and its workflow works on it; stop it or wait for its end"
        ),
    ),
    "Invalid": (
        "A field or parameter is not valid",
        Problem(422, "invalid_request", "page_size: '0' is not allowed; give 1 to 200"),
    ),
    "TooMany": (
        "Too many requests with this token",
        too_many("rate_limited", "More than 20 requests that change something a second with this token; wait 1 s", 1.0),
    ),
    "Unavailable": (
        "The database, Temporal or another service does not answer; try again",
        unavailable("store_unavailable", "the database cannot be reached"),
    ),
}
_IF_NONE_MATCH = {
    "name": "If-None-Match",
    "in": "header",
    "required": False,
    "description": "The `ETag` of an earlier answer. If the answer is still the same: 304 without a body",
    "schema": {"type": "string"},
}

_HEADERS = {
    "ETag": {"description": "Send it back as If-None-Match", "schema": {"type": "string"}},
    "WWW-Authenticate": {"description": "How to present a token (RFC 6750)", "schema": {"type": "string"}},
    "Retry-After": {"description": "Seconds to wait", "schema": {"type": "integer", "minimum": 1}},
}


#: The key for the schema of a server-sent event. OpenAPI 3.2 calls it ``itemSchema``; 3.1 does not allow that name.
ITEM_SCHEMA = "x-itemSchema"

_STREAM_EVENT = {
    "title": "StreamEvent",
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "The event's number. With it as Last-Event-ID, the stream continues"},
        "event": {"type": "string", "examples": ["hello", "run.changed", "manager.changed", "graph.changed"]},
        "data": {"type": "string", "contentMediaType": "application/json"},
        "retry": {"type": "integer", "description": "Milliseconds to wait before the next connection"},
    },
    "required": ["id", "event", "data"],
}


@cache  # read when somebody asks for the document, and not at each start
def meanings() -> Mapping[str, Mapping[str, str]]:
    """Return what fields and parameters mean: schema or operation -> name -> text. ``any``: where these say nothing."""
    tables = tomllib.loads(Path(__file__).with_name("fields.toml").read_text(encoding="utf-8"))
    return {name: said for names, said in tables.items() for name in names.split()}


def describe(document: dict[str, Any]) -> None:
    """Add security, problems and examples to every operation of the document, and a meaning to each field."""
    document["info"]["description"] = _ABOUT
    components = document["components"]
    components["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer", "description": _SECURITY}}
    components["responses"] = {name: _response(*expected) for name, expected in _PROBLEMS.items()}
    components["schemas"]["ProblemDocument"]["properties"]["code"]["examples"] = sorted(CODES)
    components["schemas"]["StreamEvent"] = _STREAM_EVENT
    events = document["paths"]["/v1/events"]["get"]["responses"]["200"]["content"]["text/event-stream"]
    events[ITEM_SCHEMA] = {"$ref": "#/components/schemas/StreamEvent"}
    for path, item in document["paths"].items():
        for operation in item.values():
            _describe(operation, path, ACCESS[operation["operationId"]])
    for where, name, field in fields(document):
        if said := meanings().get(where, {}).get(name) or meanings()["any"].get(name):
            field.setdefault("description", said)


def fields(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield each field and parameter: the name of its schema or operation, its own name, and its description.

    A schema without a name inside of an operation has the operation's.
    """
    for title, schema in document["components"]["schemas"].items():
        yield from ((title, name, field) for name, field in schema.get("properties", {}).items())
    for operation in (one for item in document["paths"].values() for one in item.values()):
        where = operation["operationId"]
        yield from ((where, one["name"], one) for one in operation.get("parameters", ()) if "name" in one)
        for content in operation.get("requestBody", {}).get("content", {}).values():
            schema = content["schema"]
            title = schema.get("title", where)
            yield from ((title, name, field) for name, field in schema.get("properties", {}).items())


def _describe(operation: dict[str, Any], path: str, access: Access) -> None:
    names = []
    if access.role is None:
        operation["security"] = []
    else:
        operation["security"] = [{"bearer": [access.role.value]}]
        names += ["BadRequest", "Unauthorised", "Forbidden", "Invalid", "TooMany", "Unavailable"]
        if any(one in path for one in ("{run_id}", "{manager_id}", "/graphs/{id}")):
            names.append("NotFound")
            names += ["Conflict"] if access.writes else []
    responses = operation["responses"]
    if "304" in responses:
        operation.setdefault("parameters", []).append(_IF_NONE_MATCH)
        for status in ("200", "304"):
            responses[status]["headers"] = {"ETag": _HEADERS["ETag"]}
    for name in names:
        responses.setdefault(str(_PROBLEMS[name][1].status), {"$ref": f"#/components/responses/{name}"})
    for content in operation.get("requestBody", {}).get("content", {}).values():
        named = EXAMPLES[operation["operationId"]].items()
        content["examples"] = {name: {"summary": summary, "value": value} for name, (summary, value) in named}


def _response(meaning: str, example: Problem) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/ProblemDocument"}
    content = {MEDIA_TYPE: {"schema": schema, "example": json.loads(bytes(example.response().body))}}
    found = {"description": meaning, "content": content}
    if example.headers:
        found["headers"] = {name: _HEADERS[name] for name in example.headers}
    return found
