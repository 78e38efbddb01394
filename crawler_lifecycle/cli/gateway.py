"""The gateway's HTTP API, as commands use it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import httpx

from crawler_lifecycle.cli.problems import CommandFailed, Exit

Document = dict[str, Any]

#: Status of an answer -> what it means for the command. Everything else is an error of the service.
_EXITS = {
    400: Exit.USAGE,
    401: Exit.NOT_AUTHORISED,
    403: Exit.NOT_AUTHORISED,
    404: Exit.NOT_FOUND,
    409: Exit.NOT_IN_THIS_STATE,
    413: Exit.USAGE,
    422: Exit.USAGE,
    429: Exit.UNREACHABLE,
    502: Exit.UNREACHABLE,
    503: Exit.UNREACHABLE,
    504: Exit.UNREACHABLE,
}

_NEXT = {
    Exit.NOT_AUTHORISED: "ask whoever runs the gateway for a token with the right role",
    Exit.UNREACHABLE: "try again in a moment; crawlctl dev starts a gateway on this machine",
}

PAGE_SIZE = 200


class Gateway:
    """One connection to a gateway. Every method raises ``CommandFailed``."""

    def __init__(self, url: str, *, timeout_s: float = 30.0) -> None:
        self.url = url.rstrip("/")
        address = urlsplit(self.url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise CommandFailed(
                Exit.USAGE, f"{url!r} is no address of a gateway", None, "give one such as http://127.0.0.1:8500"
            )
        self._timeout_s = timeout_s
        # Loading certificates takes 20 ms that plain HTTP does not need, and no proxy leads to this machine.
        self._http = httpx.Client(
            base_url=self.url,
            timeout=timeout_s,
            verify=address.scheme == "https",
            trust_env=address.hostname not in ("127.0.0.1", "localhost", "::1"),
        )

    def __enter__(self) -> Gateway:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    # --- runs ----------------------------------------------------------------------------------------------------

    def start(self, request: Mapping[str, object], request_id: str) -> Document:
        """Start a run; the same ``request_id`` again finds it."""
        # A header takes plain ASCII only; the same id in the body means the same.
        headers = {"Idempotency-Key": request_id} if request_id.isascii() else {}
        body = dict(request) if headers else {**request, "request_id": request_id}
        try:
            return self._send("POST", "/v1/runs", json=body, headers=headers)
        except CommandFailed as failure:
            if failure.code is Exit.UNREACHABLE:
                failure.next_step = f"try again with --request-id {request_id}: it starts the run at most once"
            raise

    def runs(self, *, limit: int | None = None, **filters: str | Sequence[str] | None) -> list[Document]:
        """Runs, newest first, at most ``limit``. Filters as the API spells them; several values mean any of them."""
        chosen = {name: value for name, value in filters.items() if value}
        return self._pages("/v1/runs", "runs", chosen, limit)

    def run(self, run_id: int) -> Document:
        """One run with everything that is known about it."""
        return self._send("GET", f"/v1/runs/{run_id}")

    def tasks(self, run_id: int, *, limit: int | None = None) -> list[Document]:
        """The tasks of a run."""
        return self._pages(f"/v1/runs/{run_id}/tasks", "tasks", {}, limit)

    def timeline(self, run_id: int, *, limit: int | None = None) -> list[Document]:
        """Every change of status, oldest first."""
        return self._pages(f"/v1/runs/{run_id}/timeline", "timeline", {}, limit)

    def corrections(self, run_id: int | None = None, *, limit: int | None = None) -> list[Document]:
        """Recorded statuses that were untrue, of one run or of all."""
        path = "/v1/corrections" if run_id is None else f"/v1/runs/{run_id}/corrections"
        return self._pages(path, "corrections", {}, limit)

    def logs(self, run_id: int, task_id: int | None = None) -> str:
        """The kept end of a task's log (default: the main task's)."""
        answer = self._request("GET", f"/v1/runs/{run_id}/logs", params={} if task_id is None else {"task": task_id})
        if "json" not in answer.headers.get("content-type", ""):
            return answer.text
        return str(answer.json().get("log_tail") or "")

    def stop(
        self, run_id: int, *, force: bool = False, reason: str | None = None, request_id: str | None = None,
        requested_by: str | None = None,
    ) -> Document:  # fmt: skip
        """Ask a run to end; on a finished run nothing happens and its state is the answer."""
        body = {"force": force, "reason": reason, "request_id": request_id, "requested_by": requested_by}
        given = {name: value for name, value in body.items() if value is not None}
        return self._send("POST", f"/v1/runs/{run_id}/stop", json=given)

    def resume(self, run_id: int, *, rerun: bool = False, requested_by: str | None = None) -> Document:
        """Go on with a run that has ended."""
        body: dict[str, object] = {"rerun": rerun}
        if requested_by is not None:
            body["requested_by"] = requested_by
        return self._send("POST", f"/v1/runs/{run_id}/resume", json=body)

    def look(self, run_id: int) -> Document:
        """Have the cluster asked about a run now."""
        return self._send("POST", f"/v1/runs/{run_id}/look")

    # --- crawlers ------------------------------------------------------------------------------------------------

    def crawlers(self) -> list[Document]:
        """What can be run."""
        found: list[Document] = self._send("GET", "/v1/crawlers").get("crawlers", [])
        return found

    # --- transport -----------------------------------------------------------------------------------------------

    def _pages(
        self, path: str, name: str, filters: Mapping[str, str | Sequence[str]], limit: int | None
    ) -> list[Document]:
        found: list[Document] = []
        for page in self._each_page(path, filters, PAGE_SIZE if limit is None else min(limit, PAGE_SIZE)):
            found += page.get(name, [])
            if limit is not None and len(found) >= limit:
                return found[:limit]
        return found

    def _each_page(self, path: str, filters: Mapping[str, str | Sequence[str]], size: int) -> Iterator[Document]:
        params: dict[str, Any] = {**filters, "page_size": size}
        while True:
            page = self._send("GET", path, params=params)
            yield page
            token = page.get("next_page_token")
            if not token:
                return
            params["page_token"] = token

    def _send(self, method: str, path: str, **options: Any) -> Document:
        answer = self._request(method, path, **options)
        try:
            document = answer.json() if answer.content else {}
        except ValueError:
            document = None
        if not isinstance(document, dict):
            why = f"{method} {path} was answered with {answer.headers.get('content-type', 'something unnamed')}"
            raise CommandFailed(Exit.ERROR, f"{self.url} is no gateway of ours", why, "check --gateway")
        return document

    def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            answer = self._http.request(method, path, **options)
        except httpx.TimeoutException:
            why = f"no answer within {self._timeout_s:g} s"
            raise CommandFailed(Exit.UNREACHABLE, f"the gateway at {self.url} is silent", why, _unreachable()) from None
        except httpx.TransportError as error:
            raise CommandFailed(
                Exit.UNREACHABLE, f"the gateway at {self.url} cannot be reached", str(error), _unreachable()
            ) from None
        if answer.is_success:
            return answer
        raise _failure(answer, method, path)


def _unreachable() -> str:
    return "crawlctl dev (starts one on this machine), or name yours with --gateway or LIFECYCLE_GATEWAY__URL"


def _failure(answer: httpx.Response, method: str, path: str) -> CommandFailed:
    """The problem document of an answer as an error for people."""
    try:
        problem = answer.json()
    except ValueError:
        problem = None
    if not isinstance(problem, dict):
        problem = {}
    code = _EXITS.get(answer.status_code, Exit.ERROR)
    what = str(problem.get("detail") or problem.get("title") or f"{method} {path}: HTTP {answer.status_code}")
    name = problem.get("code")
    others = [f"{e.get('field')}: {e.get('message')}" for e in problem.get("errors") or () if isinstance(e, dict)][1:]
    why = "; ".join(([f"{name} (HTTP {answer.status_code})"] if name else []) + others) or None
    return CommandFailed(code, what, why, _next_step(code, name, path))


def _next_step(code: Exit, name: object, path: str) -> str | None:
    words = path.split("/")
    run_id = words[3] if len(words) > 3 and words[2] == "runs" else None
    if code is Exit.NOT_FOUND and run_id:
        return "crawlctl list" if name == "run_not_found" else f"crawlctl tasks {run_id}"
    if code is Exit.NOT_IN_THIS_STATE and run_id:
        if name == "already_completed":
            return f"crawlctl resume {run_id} --rerun"
        return f"crawlctl describe {run_id}"
    if code is Exit.USAGE and path == "/v1/runs":
        return "crawlctl crawler list, crawlctl start --help"
    return _NEXT.get(code)
