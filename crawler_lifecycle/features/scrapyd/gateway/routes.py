"""Routes of scrapyd's API (docs/scrapyd.md).

They are not in the OpenAPI document, which describes only our own API.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import Message, Scope

from crawler_lifecycle.gateway.api.paging import LINES_MAX
from crawler_lifecycle.gateway.converter import Converter
from crawler_lifecycle.gateway.parts import Gateway
from crawler_lifecycle.gateway.runs.commands import check_kept
from crawler_lifecycle.gateway.runs.output import HEADERS, TEXT
from crawler_lifecycle.gateway.streams.logs import find_task
from crawler_lifecycle.gateway.streams.responses import StreamedResponse
from crawler_lifecycle.web.problems import MEDIA_TYPE

from .deploys import Deploys
from .forms import Form, read_form
from .jobs import Answer, Jobs, in_its_words
from .projects import Projects

#: The node name in responses. It is the same for every gateway, so that callers do not see the
#: names of machines.
NODE = "crawler-lifecycle"
READS = ("daemonstatus", "listprojects", "listversions", "listspiders", "listjobs", "status")
WRITES = ("schedule", "cancel")
DELETES = ("delversion", "delproject")
PATHS = frozenset(f"/{call}.json" for call in (*READS, *WRITES, *DELETES, "addversion"))
#: The error statuses for which scrapyd answers with HTTP 200.
_ITS_OWN = frozenset({400, 404, 405, 409, 415, 421, 422})


def add_scrapyd(app: FastAPI, gateway: Gateway) -> None:
    """Add the routes of scrapyd's API, if the gateway offers it."""
    if gateway.scrapyd is None:
        return
    reader = gateway.reader
    packages = gateway.store.packages
    projects = Projects(gateway.scrapyd, gateway.crawlers, packages)
    jobs = Jobs(projects, gateway.commands, gateway.crawlers, gateway.store.runs)
    deploys = Deploys(projects, gateway.deployments)

    def add(call: str, method: str, answer: Callable[[Form], Awaitable[Answer]]) -> None:
        async def answered(request: Request) -> Response:
            return _response({**await answer(await read_form(request)), "status": "ok"})

        app.add_api_route(
            f"/{call}.json",
            answered,
            methods=["GET", "HEAD"] if method == "GET" else [method],
            operation_id=f"scrapyd{call.capitalize()}",
            include_in_schema=False,
        )

    for call in READS:
        add(call, "GET", getattr(jobs, call))
    for call in WRITES:
        add(call, "POST", getattr(jobs, call))
    for call in DELETES:
        add(call, "POST", getattr(deploys, call))

    @app.post("/addversion.json", operation_id="scrapydAddversion", include_in_schema=False)
    async def addversion(request: Request) -> Response:
        return _response({**await deploys.addversion(request), "status": "ok"})

    @app.get(
        "/logs/{project}/{spider}/{job:path}.log",
        operation_id="scrapydLog",
        response_class=PlainTextResponse,
        include_in_schema=False,
    )
    async def log(project: str, spider: str, job: str) -> StreamedResponse:
        row = await jobs.run_of(project, spider, job)
        task = await run_in_threadpool(find_task, gateway.store.tasks, check_kept(row).ref, None)
        end = await reader.read(task, LINES_MAX, follow=False)
        return reader.answer(end.chunks, TEXT, HEADERS)


def _response(answer: Answer) -> Response:
    return Response(_document(answer), media_type="application/json")


def _document(answer: Answer) -> bytes:
    return json.dumps({**answer, "node_name": NODE}).encode() + b"\n"


class Dialect(Converter):
    """ASGI middleware around all others, which converts errors on paths of scrapyd's API to
    scrapyd's form.

    Clients read ``message`` in a response with HTTP 200. The statuses 401, 403, 429 and 5xx stay as
    they are.
    """

    def holds(self, scope: Scope, headers: MutableHeaders) -> bool:
        return scope["path"] in PATHS and headers.get("content-type") == MEDIA_TYPE

    def convert(self, scope: Scope, start: Message, problem: dict[str, Any]) -> bytes:
        detail = in_its_words(str(problem["detail"]))
        MutableHeaders(scope=start)["content-type"] = "application/json"
        if start["status"] in _ITS_OWN:
            start["status"] = 200
        return _document({"status": "error", "message": detail})


def add_dialect(app: FastAPI, gateway: Gateway) -> None:
    """Add the conversion of errors, if the gateway offers scrapyd's API."""
    if gateway.scrapyd is not None:
        app.add_middleware(Dialect)
