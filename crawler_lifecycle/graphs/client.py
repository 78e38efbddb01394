"""``Platform`` over HTTP, which uses the gateway's routes below ``/v1/graphs``, and the routes for
run files.

The address comes from the same sources as for ``crawlctl``: ``LIFECYCLE_GATEWAY__URL``, then the
file that ``LIFECYCLE_CONFIG`` names, then the ``crawlctl dev`` stack of this folder or a folder
above. Each ``POST`` has an idempotency key, so a repeated request takes effect only once.
"""

from __future__ import annotations

import json
import logging
import math
import time
import uuid
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from crawler_lifecycle import dev_json
from crawler_lifecycle.dev_json import user
from crawler_lifecycle.domain.code import Code
from crawler_lifecycle.domain.errors import (
    DuplicateRequest,
    InvalidRequest,
    LifecycleError,
    NotDelivered,
    NotInThisState,
)
from crawler_lifecycle.domain.item_code import codes_by_folder
from crawler_lifecycle.domain.loopback import leads_here
from crawler_lifecycle.domain.run_data import PIECE, RunFile
from crawler_lifecycle.domain.values import of_json
from crawler_lifecycle.features.graphs.domain.pages import encode_pages, fingerprint
from crawler_lifecycle.features.graphs.domain.spec import GraphSpec

from .platform import Document, PlatformUnavailable, with_above

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 30.0
#: The maximum wait for a graph's end in one request, and the pauses between tries while the gateway
#: is unavailable, in seconds.
WAIT_S = 30.0
PAUSES_S = (0.5, 1.0, 2.0, 4.0)
#: The maximum number of paths in one request. For more paths, all steps are requested and filtered
#: here.
PATHS_MAX = 50
PAGE_SIZE = 500

_ERRORS: Mapping[str, type[LifecycleError]] = {
    "idempotency_mismatch": DuplicateRequest,
    "not_in_this_state": NotInThisState,
}


class Gateway:
    """A platform that uses a gateway. Without ``url``, the platform uses the gateway that
    ``crawlctl`` would call.

    Raises ``PlatformUnavailable`` if no gateway is known or the address is wrong.
    """

    def __init__(self, url: str | None = None, token: str | None = None) -> None:
        stack = None
        if url is None:
            url, token, stack = found()
        elif token is None:
            token = _setting("token")
        address = urlsplit(url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise PlatformUnavailable(
                f"{url!r} is not a gateway's address; give one such as http://127.0.0.1:8500"
            )
        self.url = url.rstrip("/")
        # Plain HTTP needs no certificates, and loading them takes time. A proxy cannot reach this
        # machine's loopback.
        allowed = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.Client(
            headers={"User-Agent": "crawler-lifecycle-graphs"} | allowed,
            timeout=REQUEST_TIMEOUT_S + WAIT_S,
            verify=address.scheme == "https",
            trust_env=not leads_here(url),
            limits=httpx.Limits(keepalive_expiry=2.0),
        )
        if stack is not None:
            stack.guard(self._http)
        weakref.finalize(self, self._http.close)

    def send(self, key: str, spec: GraphSpec, *, name: str | None, tags: Sequence[str]) -> bool:
        own = {"name": name, "tags": list(tags), "requested_by": user()}
        try:
            return self._sent(key, spec, own, start=True)
        # Another sender's start of the same graph was refused, and the draft was removed.
        except KeyError:
            return self._sent(key, spec, own, start=True)

    def _sent(self, key: str, spec: GraphSpec, own: Document, *, start: bool) -> bool:
        """Send a graph as a draft. Return whether the draft is new. Raises ``KeyError`` if the
        draft was removed.
        """
        pages = encode_pages(spec)
        whose = fingerprint(spec)
        body = {
            "id": key,
            "fingerprint": whose,
            "pages": len(pages),
            "options": asdict(spec.options),
            **own,
        }
        if self._call("POST", "/v1/graphs", body)["state"] != "draft":
            return False
        for number, page in enumerate(pages):
            self._call("PUT", f"{_graph(key)}/pages/{number}", page, fingerprint=whose)
        if start:
            self._call("POST", f"{_graph(key)}/start", fingerprint=whose)
        return True

    def status(self, key: str) -> Document | None:
        try:
            return self._call("GET", f"{_graph(key)}/status")
        except KeyError:
            return None

    def find(self, *, states: Collection[str], keys: Collection[str], limit: int) -> list[Document]:
        pages = self._pages(
            "/v1/graphs", {"state": sorted(states), "id": list(keys)}, min(limit, PAGE_SIZE)
        )
        return list(islice((row for page in pages for row in page["graphs"]), limit))

    def jobs(self, key: str, paths: Sequence[str] | None) -> list[Document]:
        pages = self._about(key, "steps", paths)
        wanted = _wanted(paths)
        return [step for page in pages for step in page["steps"] if wanted(step["path"])]

    def recorded(self, key: str, paths: Sequence[str] | None) -> dict[str, Any]:
        pages = self._about(key, "results", paths)
        wanted = _wanted(paths)
        return {
            path: of_json(value)
            for page in pages
            for path, value in page["results"].items()
            if wanted(path)
        }

    def context(self, key: str, path: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] | None = of_json(
                self._call("GET", f"{_graph(key)}/context", path=path)["context"]
            )
        except KeyError:
            return None
        return found

    def cancel(self, key: str, paths: Sequence[str] | None, reason: str | None) -> int:
        return self._command(
            key, "cancel", {"names": paths, "reason": reason, "requested_by": user()}
        )

    def retry(self, key: str, paths: Sequence[str] | None, *, cascade: bool, fresh: bool) -> int:
        body = {"names": paths, "cascade": cascade, "fresh": fresh, "requested_by": user()}
        return self._command(key, "retry", body)

    def append(self, key: str, spec: GraphSpec) -> int:
        pages = encode_pages(spec)
        if len(pages) == 1:
            return self._command(key, "append", pages[0])
        draft = uuid.uuid4().hex
        self._sent(draft, spec, {}, start=False)
        return self._command(key, "append", b"", draft=draft)

    def graft(self, key: str, path: str, attempt: int, spec: GraphSpec) -> None:
        raise InvalidRequest(
            f"step {path!r}: only the function that runs as this step may graft; append instead"
        )

    def cancelled(self, key: str, path: str, attempt: int) -> bool:
        return any(job["path"] == path and (job["attempt"], job["state"]) != (attempt, "executing")
                   for job in self.jobs(key, [path]))  # fmt: skip

    def crawls(self, key: str, paths: Sequence[str]) -> list[Document]:
        found = next(filter(None, (self.jobs(key, [path]) for path in paths)), [])
        return [job for job in found if job["kind"] == "crawl"]

    def run_files(self, run_id: int) -> list[RunFile]:
        found = self._call("GET", f"/v1/runs/{run_id}/files")
        if found["left_out"]:
            raise InvalidRequest(
                f"run {run_id}: it has too many files to list here; download its archive"
            )
        if found.get("items_missing") and found["files"]:
            raise NotDelivered(f"run {run_id}: {found['note']}")
        return [RunFile(run_id, file["name"], file["bytes"]) for file in found["files"]]

    def read_file(self, file: RunFile, offset: int) -> bytes:
        if offset >= file.bytes:
            return b""
        part = {"Range": f"bytes={offset}-{min(offset + PIECE, file.bytes) - 1}"}
        answer = self._answer("GET", f"/v1/runs/{file.run_id}/file", None, part, name=file.name)
        if answer.status_code != 206:
            self._document(answer)
            raise PlatformUnavailable(
                f"the gateway at {self.url} ignores Range; its build is too old: update it"
            )
        return answer.content

    def run_codes(self, run_id: int) -> dict[str, Code]:
        return codes_by_folder(self._call("GET", f"/v1/runs/{run_id}/codes")["codes"])

    def wait(self, key: str, timeout_s: float | None) -> Document:
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = WAIT_S if until is None else max(0.0, min(WAIT_S, until - time.monotonic()))
            status = self._call("GET", f"{_graph(key)}/status", wait=math.ceil(left))
            if status["state"] not in ("executing", "draft"):
                return status
            if until is not None and time.monotonic() >= until:
                raise TimeoutError(
                    f"graph {key!r} has not ended within {timeout_s:g} s; it continues"
                )

    # --- transport --------------------------------------------------------------------------------

    def _command(self, key: str, name: str, body: Document | bytes, **params: str) -> int:
        return int(self._call("POST", f"{_graph(key)}/{name}", body, **params)["count"])

    def _about(self, key: str, what: str, paths: Sequence[str] | None) -> list[Document]:
        """Return all pages about these steps, or none if the graph does not exist."""
        named = {"path": list(paths)} if paths is not None and len(paths) <= PATHS_MAX else {}
        try:
            return list(self._pages(f"{_graph(key)}/{what}", named))
        except KeyError:
            return []

    def _pages(
        self, path: str, params: Mapping[str, Any], size: int = PAGE_SIZE
    ) -> Iterator[Document]:
        more: dict[str, Any] = {}
        while True:
            page = self._call("GET", path, **params, page_size=size, **more)
            yield page
            if not page.get("next_page_token"):
                return
            more = {"page_token": page["next_page_token"]}

    def _call(
        self, method: str, path: str, body: Document | bytes | None = None, /, **params: Any
    ) -> Document:
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        headers = {} if data is None else {"Content-Type": "application/json"}
        if method == "POST":
            headers["Idempotency-Key"] = uuid.uuid4().hex  # retries of this call have the same key
        return self._document(self._answer(method, path, data, headers, **params))

    def _answer(
        self, method: str, path: str, data: bytes | None, headers: Document, /, **params: Any
    ) -> httpx.Response:
        query = {name: value for name, value in params.items() if value not in (None, [])}
        for pause in (*PAUSES_S, None):
            try:
                answer = self._http.request(
                    method, self.url + path, params=query, content=data, headers=headers
                )
            except dev_json.OtherStack as error:
                raise PlatformUnavailable(str(error)) from None
            except httpx.TransportError as why:
                if pause is None:
                    fix = "start it, or set LIFECYCLE_GATEWAY__URL"
                    raise PlatformUnavailable(
                        f"the gateway at {self.url} cannot be reached: {why}; {fix}"
                    ) from None
            else:
                if answer.status_code not in (429, 502, 503, 504) or pause is None:
                    return answer
            time.sleep(pause)
        raise AssertionError  # unreachable, because the last try returns or raises

    def _document(self, answer: httpx.Response) -> Document:
        """Return the JSON document of a response. For a problem document, raise the corresponding
        error of ``Platform``.
        """
        try:
            found = answer.json() if answer.content else {}
        except ValueError:
            found = None
        if answer.is_success and isinstance(found, dict):
            return found
        if answer.is_success:
            raise PlatformUnavailable(
                f"{self.url} is not a gateway of crawler-lifecycle; check LIFECYCLE_GATEWAY__URL"
            )
        problem = found if isinstance(found, dict) else {}
        status = answer.status_code
        what = f"{answer.request.method} {answer.request.url.path}: HTTP {status}"
        text = str(problem.get("detail") or problem.get("title") or what)
        if status == 404:
            raise KeyError(text)
        refused = 400 <= status < 500 and status not in (401, 403, 408, 429)
        raise _ERRORS.get(
            str(problem.get("code")), InvalidRequest if refused else PlatformUnavailable
        )(text)


def _setting(name: str) -> str | None:
    try:
        return dev_json.gateway_setting(name)
    except dev_json.ConfigUnreadable as error:
        raise PlatformUnavailable(f"{error}; set it to a TOML file, or unset it") from None


def found() -> tuple[str, str | None, dev_json.Stack | None]:
    """Return the address and token of the gateway that ``crawlctl`` would call, and its stack if
    the address comes from a stack.

    Raises ``PlatformUnavailable``.
    """
    if url := _setting("url"):
        return url, _setting("token"), None
    stack = dev_json.nearest(log.warning)
    if stack is not None and stack.known.get("gateway"):
        # The gateway of ``crawlctl dev`` needs no token.
        return str(stack.known["gateway"]), None, stack
    fix = "set LIFECYCLE_GATEWAY__URL, or start crawlctl dev in this folder or one above it"
    raise PlatformUnavailable(f"no gateway is known; {fix}")


def _graph(key: str) -> str:
    return f"/v1/graphs/{quote(key, safe='')}"


def _wanted(paths: Sequence[str] | None) -> Callable[[str], bool]:
    """Return a predicate that is true for the paths of these steps and of steps in these graphs."""
    chosen = None if paths is None else set(paths)
    return lambda path: chosen is None or not chosen.isdisjoint(with_above(path))
