"""The routes below ``/v1/graphs`` that ``graphs.client`` calls, with a graph in memory."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from crawler_lifecycle.domain.errors import DuplicateRequest, InvalidRequest, NotInThisState
from crawler_lifecycle.domain.values import to_json
from crawler_lifecycle.features.graphs.domain.pages import decode_pages, fingerprint
from crawler_lifecycle.features.graphs.domain.spec import GraphOptions
from crawler_lifecycle.graphs.testing import Memory

Answer = dict[str, Any] | list[Any] | None


class FakeGateway:
    """Answers calls. ``first`` may replace the first answer by a status with a body and headers."""

    def __init__(self, memory: Memory) -> None:
        self.memory, self.drafts = memory, dict[str, dict[str, Any]]()
        self.first: Callable[[str, str, Any], tuple[int, Answer, dict[str, str]] | None] = (
            lambda *_: None
        )
        self.headers: list[dict[str, str]] = []

    def call(self, method: str, path: str, query: dict[str, list[str]], body: bytes) -> Answer:
        _, _, _, *rest = path.split("/")
        if not rest:
            return self.drafted(json.loads(body)) if method == "POST" else self.listed(query)
        key, what, number = [*map(unquote, rest), "", ""][:3]
        found: dict[str, Callable[[], Answer]] = {
            "pages": lambda: self.drafts[key]["data"].__setitem__(int(number), body),
            "start": lambda: self.started(key),
            "status": lambda: self.status(key, query),
            "steps": lambda: page(
                "steps", self.memory.jobs(self.known(key), query.get("path")), query
            ),
            "results": lambda: self.results(key, query),
            "context": lambda: {
                "context": to_json(self.memory.context(self.known(key), query.get("path", [""])[0]))
            },
            "append": lambda: {
                "count": self.memory.append(key, decode_pages([body], GraphOptions()))
            },
        }
        if what in found:
            return found[what]()
        given = json.loads(body)
        if what == "cancel":
            return {"count": self.memory.cancel(key, given["names"], given["reason"])}
        count = self.memory.retry(
            key, given["names"], cascade=given["cascade"], fresh=given["fresh"]
        )
        return {"count": count}

    def known(self, key: str) -> str:
        if self.memory.status(key) is None:
            raise KeyError(f"there is no graph {key}")
        return key

    def drafted(self, new: dict[str, Any]) -> Answer:
        known = self.drafts.get(new["id"])
        if known is not None and known["fingerprint"] != new["fingerprint"]:
            raise DuplicateRequest(f"id {new['id']!r}: another graph has this id")
        self.drafts.setdefault(new["id"], new | {"data": {}})
        return {"id": new["id"], "state": "draft" if known is None else "executing"}

    def started(self, key: str) -> Answer:
        draft = self.drafts[key]
        spec = decode_pages(
            [draft["data"][n] for n in range(draft["pages"])], GraphOptions(**draft["options"])
        )
        assert fingerprint(spec) == draft["fingerprint"]
        self.memory.send(key, spec, name=draft["name"], tags=draft["tags"])
        return {"id": key, "state": "executing"}

    def status(self, key: str, query: dict[str, list[str]]) -> Answer:
        self.known(key)
        for _ in range(int(float(query.get("wait", ["0"])[0]) > 0)):
            self.memory.turn(key)
        return self.memory.status(key)

    def results(self, key: str, query: dict[str, list[str]]) -> Answer:
        found = self.memory.recorded(self.known(key), query.get("path"))
        rows = page("results", [(path, to_json(value)) for path, value in found.items()], query)
        return rows | {"results": dict(rows["results"])}

    def listed(self, query: dict[str, list[str]]) -> Answer:
        found = self.memory.find(
            states=query.get("state", ()), keys=query.get("id", ()), limit=1000
        )
        return page("graphs", found, query)


def page(name: str, rows: list[Any], query: dict[str, list[str]]) -> dict[str, Any]:
    start, size = int(query.get("page_token", ["0"])[0]), int(query["page_size"][0])
    more = str(start + size) if len(rows) > start + size else None
    return {name: rows[start : start + size], "next_page_token": more}


_STATUSES = {KeyError: 404, DuplicateRequest: 422, NotInThisState: 409, InvalidRequest: 422}
_CODES = {DuplicateRequest: "idempotency_mismatch", NotInThisState: "not_in_this_state"}


@contextmanager
def serving(gateway: FakeGateway) -> Iterator[str]:
    """Serve, and return the address."""

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            gateway.headers.append(dict(self.headers))
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            instead = gateway.first(self.command, parts.path, body)
            status, answer, headers = instead or (200, {}, {})
            if instead is None:
                try:
                    answer = (
                        gateway.call(self.command, parts.path, parse_qs(parts.query), body) or {}
                    )
                except (KeyError, ValueError, DuplicateRequest, NotInThisState) as error:
                    kind = next(one for one in _STATUSES if isinstance(error, one))
                    status, answer = (
                        _STATUSES[kind],
                        {"detail": str(error.args[0]), "code": _CODES.get(kind)},
                    )
            data = json.dumps(answer, default=lambda value: value.isoformat()).encode()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = handle_any

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
