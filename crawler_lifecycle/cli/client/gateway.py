"""The client of the gateway's HTTP API: calls, and the exit code, cause and next step of each refusal."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import httpx

from crawler_lifecycle.cli.problems import CommandFailed, Exit

Document = dict[str, Any]

PAGE_SIZE = 200
#: An archive comes from a disk or a bucket; when nothing comes for so long, nothing will.
ARCHIVE_SILENCE_S = 120.0
#: Tries without a single byte after which a file that broke off is given up.
TRIES_MAX = 3
#: Status of an answer -> what it means for the command. Everything else is an error of the service.
_EXITS = {
    **dict.fromkeys((400, 413, 422), Exit.USAGE),
    **dict.fromkeys((401, 403), Exit.NOT_AUTHORISED),
    404: Exit.NOT_FOUND,
    409: Exit.NOT_IN_THIS_STATE,
    **dict.fromkeys((429, 502, 503, 504), Exit.UNREACHABLE),
}

_UNKNOWN_CALLER = (
    "set LIFECYCLE_GATEWAY__TOKEN or give --token-file FILE; crawlctl gateway token new makes a token, and whoever "
    "runs the gateway enters it there"
)
_WRONG_ROLE = "use a token with a higher role (read < operate < admin); crawlctl gateway token new makes one"
_LATER = "try again in a moment; crawlctl dev starts a gateway on this machine"


class Gateway:
    """One connection to a gateway. Every method raises ``CommandFailed``."""

    def __init__(self, url: str, *, token: str | None = None, timeout_s: float = 30.0) -> None:
        self.url = url.rstrip("/")
        address = urlsplit(self.url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise CommandFailed(
                Exit.USAGE, f"{url!r} is no address of a gateway", None, "give one such as http://127.0.0.1:8500"
            )
        self._timeout_s = timeout_s
        self._seen: dict[str, tuple[str, Document]] = {}
        self.accepted = False
        """Return whether the last answer was that something is done now; else it was so already."""
        # Loading certificates takes 20 ms that plain HTTP does not need, and no proxy leads to this machine.
        self._http = httpx.Client(
            base_url=self.url,
            timeout=timeout_s,
            # The gateway keeps an idle connection for 5 s: a call must not go out just as it closes.
            limits=httpx.Limits(keepalive_expiry=2.0),
            headers={"User-Agent": "crawlctl"} | ({"Authorization": f"Bearer {token}"} if token else {}),
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

    def start(self, request: Mapping[str, object], request_id: str, what: str = "run") -> Document:
        """Start a run or a manager; the same ``request_id`` again finds it."""
        # A header takes plain ASCII only; the same id in the body means the same.
        headers = {"Idempotency-Key": request_id} if request_id.isascii() else {}
        body = dict(request) if headers else {**request, "request_id": request_id}
        try:
            return self._send("POST", f"/v1/{what}s", json=body, headers=headers)
        except CommandFailed as failure:
            if failure.code is Exit.UNREACHABLE:
                failure.next_step = f"try again with --request-id {request_id}: it starts the {what} at most once"
            raise

    def runs(self, *, limit: int | None = None, **filters: Any) -> list[Document]:
        """Runs, newest first, at most ``limit``. Filters as the API spells them; several values mean any of them."""
        return self.rows("/v1/runs", limit=limit, **filters)

    def run(self, run_id: int) -> Document:
        """One run with everything that is known about it."""
        return self._send("GET", f"/v1/runs/{run_id}")

    def poll(self, path: str, **params: Any) -> Document:
        """A document that is asked for again and again: where the gateway names its version, it is sent only once.

        As long as it stays the same, the very same object is answered.
        """
        key = f"{path}?{sorted(params.items())}"
        version, known = self._seen.get(key, ("", {}))
        headers = {"If-None-Match": version} if version else {}
        answer = self._request("GET", path, params=params, headers=headers)
        if answer.status_code == httpx.codes.NOT_MODIFIED:
            return known
        document = self._document(answer, "GET", path)
        if document != known:
            known = document
        self._seen[key] = (answer.headers.get("etag", ""), known)
        return known

    def tasks(self, run_id: int, *, limit: int | None = None, **filters: Any) -> list[Document]:
        """The tasks of a run."""
        return self.rows(f"/v1/runs/{run_id}/tasks", limit=limit, **filters)

    def logs(self, run_id: int, task_id: int | None = None, *, tail: int | None = None) -> str:
        """The end of a task's log (default: the main task's), at most ``tail`` lines of it."""
        return self.text(f"/v1/runs/{run_id}/logs", task=task_id, tail=tail)

    def follow_logs(self, run_id: int, task_id: int | None = None, *, tail: int | None = None) -> Iterator[str]:
        """A task's log as it grows, in pieces of any length, until the task has ended."""
        params = _given({"task": task_id, "tail": tail, "follow": "true"})
        with self._streamed(f"/v1/runs/{run_id}/logs", params) as answer:
            yield from answer.iter_text()

    def archive(self, run_id: int, attempt: int) -> Iterator[bytes]:
        """The bytes of an attempt's archive."""
        with self._streamed(f"/v1/runs/{run_id}/archive", {"attempt": attempt}, silence_s=ARCHIVE_SILENCE_S) as answer:
            yield from answer.iter_bytes()

    def file(self, run_id: int, name: str) -> Generator[bytes]:
        """The bytes of one of them. Where the connection breaks, it goes on from there."""
        at = tries = 0
        while True:
            begun, headers = at, {"Range": f"bytes={at}-"} if at else {}
            try:
                with self._streamed(f"/v1/runs/{run_id}/file", {"name": name}, 60.0, headers) as answer:
                    if at and answer.status_code != httpx.codes.PARTIAL_CONTENT:
                        why = "it gives no parts of files"
                        raise CommandFailed(Exit.ERROR, f"{name} broke off at byte {at:,}", why, "try again")
                    for piece in answer.iter_bytes():
                        at += len(piece)
                        yield piece
                return
            except CommandFailed as failure:
                tries = 0 if at > begun else tries + 1
                if failure.code is not Exit.UNREACHABLE or not at or tries > TRIES_MAX:
                    raise
            time.sleep(tries)

    def stop(
        self, run_id: int, *, force: bool = False, reason: str | None = None, request_id: str | None = None,
        requested_by: str | None = None,
    ) -> Document:  # fmt: skip
        """Ask a run to end; on a finished run nothing happens and its state is the answer."""
        body = {"force": force, "reason": reason, "request_id": request_id, "requested_by": requested_by}
        return self.post(f"/v1/runs/{run_id}/stop", body)

    def resume(self, run_id: int, *, rerun: bool = False, requested_by: str | None = None) -> Document:
        """Go on with a run that has ended."""
        return self.post(f"/v1/runs/{run_id}/resume", {"rerun": rerun, "requested_by": requested_by})

    # --- managers and graphs --------------------------------------------------------------------------------------

    def get(self, path: str, /, **params: Any) -> Document:
        """The document at this path."""
        return self._send("GET", path, params=_given(params))

    def text(self, path: str, /, **params: Any) -> str:
        """The same of what is a text."""
        return self._request("GET", path, params=_given(params)).text

    def rows(
        self, path: str, /, *, limit: int | None = None, last: Document | None = None, **filters: Any
    ) -> list[Document]:
        """The rows of a list, at most ``limit``; they have the name that the path ends with.

        ``last`` gets what else stands in the last page.
        """
        found: list[Document] = []
        params: dict[str, Any] = _given(filters) | {"page_size": PAGE_SIZE if limit is None else min(limit, PAGE_SIZE)}
        while True:
            page = self._send("GET", path, params=params)
            found += page.pop(path.rpartition("/")[2], [])
            token = page.pop("next_page_token", None)
            if last is not None:
                last |= page
            if not token or (limit is not None and len(found) >= limit):
                return found[:limit]
            params["page_token"] = token

    def post(self, path: str, body: Mapping[str, Any] | None = None, key: str | None = None) -> Document:
        """Have something done; ``None`` in the body is left out. The same ``key`` again changes nothing."""
        options = {} if body is None else {"json": {name: one for name, one in body.items() if one is not None}}
        return self._send("POST", path, headers={"Idempotency-Key": key} if key else {}, **options)

    def put(self, path: str, body: Mapping[str, Any]) -> Document:
        """Have the document at this path be that."""
        return self._send("PUT", path, json=dict(body))

    def delete(self, path: str, **params: Any) -> Document:
        """Have the document at this path removed."""
        return self._send("DELETE", path, params=_given(params))

    def send_graph(self, body: Mapping[str, object], pages: Sequence[bytes]) -> Document:
        """Announce a graph, send its pages, and start it; the same graph again finds it."""
        found = self.post("/v1/graphs", body)
        if found.get("state") != "draft":
            return found
        path = f"/v1/graphs/{quote(found['id'], safe='')}"
        headers = {"Content-Type": "application/json"}
        puts = [(f"{path}/pages/{number}", page) for number, page in enumerate(pages)]
        notes = [self._send("PUT", to, content=page, headers=headers).get("note") for to, page in puts]
        started = self.post(f"{path}/start")
        notes.append(started.get("note"))
        return {**started, "note": " ".join(filter(None, dict.fromkeys(notes))) or None}

    # --- audits ---------------------------------------------------------------------------------------------------

    def audit(self, *, repair: bool, unknown: str = "leave") -> Document:
        """Have an audit made: its id, and its report unless it takes longer."""
        return self._send("POST", "/v1/audit", json={"repair": repair, "unknown": unknown})

    def audit_report(self, audit_id: str) -> Document | None:
        """The report of this audit; ``None`` as long as it is going on."""
        try:
            found: Document | None = self._send("GET", "/v1/audit", params={"audit_id": audit_id}).get("report")
        except CommandFailed as failure:
            if failure.code is Exit.NOT_FOUND:
                return None
            raise
        return found

    # --- transport -----------------------------------------------------------------------------------------------

    def _send(self, method: str, path: str, **options: Any) -> Document:
        return self._document(self._request(method, path, **options), method, path)

    def _document(self, answer: httpx.Response, method: str, path: str) -> Document:
        try:
            document = answer.json() if answer.content else {}
        except ValueError:
            document = None
        if not isinstance(document, dict):
            why = f"{method} {path} was answered with {answer.headers.get('content-type', 'something unnamed')}"
            raise CommandFailed(Exit.ERROR, f"{self.url} is no gateway of ours", why, "check --gateway")
        return document

    def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        with self._transport():
            answer = self._http.request(method, path, **options)
        self.accepted = answer.status_code == httpx.codes.ACCEPTED
        if answer.is_success or answer.status_code == httpx.codes.NOT_MODIFIED:
            return answer
        raise refusal(answer, method, path)

    @contextmanager
    def _streamed(
        self,
        path: str,
        params: Mapping[str, Any],
        silence_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[httpx.Response]:
        """An answer whose body is read while it comes; ``silence_s`` limits pauses."""
        timeout = httpx.Timeout(self._timeout_s, read=silence_s)
        asked = self._http.stream("GET", path, params=dict(params), headers=headers, timeout=timeout)
        with self._transport(), asked as answer:
            if not answer.is_success:
                answer.read()
                raise refusal(answer, "GET", path)
            yield answer

    @contextmanager
    def _transport(self) -> Iterator[None]:
        try:
            yield
        except httpx.TimeoutException:
            why = f"no answer within {self._timeout_s:g} s"
            raise CommandFailed(Exit.UNREACHABLE, f"the gateway at {self.url} is silent", why, unreachable()) from None
        except (httpx.TransportError, httpx.DecodingError) as error:
            what = f"the gateway at {self.url} cannot be reached"
            if isinstance(error, httpx.RemoteProtocolError | httpx.ReadError | httpx.DecodingError):
                what = f"the connection to the gateway at {self.url} broke"
            raise CommandFailed(Exit.UNREACHABLE, what, str(error), unreachable()) from None


def _given(params: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if value}


# --- errors -----------------------------------------------------------------------------------------------------------


def unreachable() -> str:
    """The cure for a gateway that does not answer."""
    return "crawlctl dev (starts one on this machine), or name yours with --gateway or LIFECYCLE_GATEWAY__URL"


def refusal(answer: httpx.Response, method: str, path: str) -> CommandFailed:
    """The problem document of an answer as an error for people. The answer's body must have been read."""
    try:
        problem = json.loads(answer.content)
    except ValueError:
        problem = None
    if not isinstance(problem, dict):
        problem = {}
    code = _EXITS.get(answer.status_code, Exit.ERROR)
    what = str(problem.get("detail") or problem.get("title") or f"{method} {path}: HTTP {answer.status_code}")
    name = problem.get("code")
    others = [f"{e.get('field')}: {e.get('message')}" for e in problem.get("errors") or () if isinstance(e, dict)][1:]
    why = "; ".join(([f"{name} (HTTP {answer.status_code})"] if name else []) + others) or None
    return CommandFailed(code, what, why, _next_step(code, name, path, answer))


def _next_step(code: Exit, name: object, path: str, answer: httpx.Response) -> str | None:
    subject, number = (*path.split("/")[2:4], None, None)[:2]
    noun = str(subject).removesuffix("s")
    if noun in ("manager", "graph", "schedule", "webhook") and (found := _next_of(noun, code, name, number)):
        return found
    if code is Exit.NOT_FOUND and noun == "run" and number:
        return "crawlctl list" if name == "run_not_found" else f"crawlctl tasks {number}"
    if code is Exit.NOT_IN_THIS_STATE and noun == "run" and number:
        return f"crawlctl resume {number} --rerun" if name == "already_completed" else f"crawlctl describe {number}"
    if code is Exit.USAGE and path == "/v1/runs" and answer.request.method == "POST":
        return "crawlctl crawler list, crawlctl start --help"
    if code is Exit.NOT_AUTHORISED:
        return _UNKNOWN_CALLER if answer.status_code == 401 else _WRONG_ROLE
    if code is Exit.UNREACHABLE:
        wait = answer.headers.get("retry-after", "")
        return f"try again in {wait} s" if wait.isdecimal() else _LATER
    return None


def _next_of(noun: str, code: Exit, name: object, number: str | None) -> str | None:
    """The same about a manager, a graph, a schedule or a webhook."""
    if name in ("unknown_plan", "plan_unusable"):
        return "crawlctl doctor, which tells what plans workers serve" if noun == "graph" else "crawlctl manager plan"
    if name == f"{noun}_not_found":
        return f"crawlctl {noun} list"
    if name == "unknown_crawler":
        return "crawlctl crawler list"
    if code in (Exit.NOT_FOUND, Exit.NOT_IN_THIS_STATE) and number:
        return f"crawlctl {noun} describe {shlex.quote(unquote(number))}" + (" --steps all" if noun == "graph" else "")
    return None
