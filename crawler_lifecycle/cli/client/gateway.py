"""A client for the gateway's HTTP API. Each error contains an exit code, a cause and a next
step.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any
from urllib.parse import quote, unquote, urlsplit

import httpx

from crawler_lifecycle.cli.problems import CommandFailed, Exit, WrongUsage
from crawler_lifecycle.dev_json import OtherStack, Stack

Document = dict[str, Any]

PAGE_SIZE = 200
#: The longest pause in the download of an archive, in seconds. The gateway reads archives from a
#: disk or a bucket, which takes time.
ARCHIVE_SILENCE_S = 120.0
#: The longest pause in an upload, in seconds. The gateway inspects the code before it answers.
UPLOAD_S = 180.0
_BLOCK = 2**18
#: An interrupted download fails after this many tries that received no new byte.
TRIES_MAX = 3
#: HTTP status -> exit code. A status that is not listed is an error in the gateway.
_EXITS = {
    **dict.fromkeys((400, 413, 422), Exit.USAGE),
    **dict.fromkeys((401, 403), Exit.NOT_AUTHORISED),
    404: Exit.NOT_FOUND,
    409: Exit.NOT_IN_THIS_STATE,
    **dict.fromkeys((429, 502, 503, 504), Exit.UNREACHABLE),
}

_UNKNOWN_CALLER = (
    "set LIFECYCLE_GATEWAY__TOKEN or give --token-file FILE; crawlctl gateway token new makes a "
    "token, which the "
    "operator of the gateway must add"
)
_WRONG_ROLE = (
    "use a token with a higher role (read < operate < admin); crawlctl gateway token new makes one"
)
NO_GATEWAY = (
    "start a gateway on this machine (crawlctl dev), or name one with --gateway or "
    "LIFECYCLE_GATEWAY__URL"
)
_LATER = "try again in a moment; crawlctl dev starts a gateway on this machine"


class Gateway:
    """One connection to a gateway. Every method raises ``CommandFailed``.

    If the address comes from the file of a ``stack``, only that stack is called.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout_s: float = 30.0,
        stack: Stack | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        address = urlsplit(self.url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise WrongUsage(
                f"{url!r} is not a gateway address", "give one such as http://127.0.0.1:8500"
            )
        self._timeout_s = timeout_s
        self._seen: dict[str, tuple[str, Document]] = {}
        self.accepted = False
        """True if the last response had status 202, which means that the gateway carries out the
        request. False if there was nothing to do.
        """
        # Plain HTTP needs no certificates, which take 20 ms to load. A proxy cannot reach the
        # loopback address of this machine.
        self._http = httpx.Client(
            base_url=self.url,
            timeout=timeout_s,
            # The gateway, or a proxy before it, closes idle connections after some seconds. A call
            # must not use a connection that is about to close.
            limits=httpx.Limits(keepalive_expiry=2.0),
            headers={"User-Agent": "crawlctl"}
            | ({"Authorization": f"Bearer {token}"} if token else {}),
            verify=address.scheme == "https",
            trust_env=address.hostname not in ("127.0.0.1", "localhost", "::1"),
        )
        if stack is not None:
            stack.guard(self._http)

    def __enter__(self) -> Gateway:
        return self

    def __exit__(self, *error: object) -> None:
        self._http.close()

    # --- runs -------------------------------------------------------------------------------------

    def start(self, request: Mapping[str, object], request_id: str, what: str = "run") -> Document:
        """Start a run or a manager.

        A second call with the same ``request_id`` returns the same run or manager.
        """
        # A header allows only ASCII. An id with other characters is sent in the body.
        headers = {"Idempotency-Key": request_id} if request_id.isascii() else {}
        body = dict(request) if headers else {**request, "request_id": request_id}
        try:
            return self._send("POST", f"/v1/{what}s", json=body, headers=headers)
        except CommandFailed as failure:
            if failure.code is Exit.UNREACHABLE:
                failure.next_step = (
                    f"try again with --request-id {request_id}: it starts the {what} at most once"
                )
            raise

    def runs(self, *, limit: int | None = None, **filters: Any) -> list[Document]:
        """Return at most ``limit`` runs, newest first.

        The names of the filters are those of the API's parameters.
        """
        return self.rows("/v1/runs", limit=limit, **filters)

    def run(self, run_id: int) -> Document:
        """Return the full document of a run."""
        return self._send("GET", f"/v1/runs/{run_id}")

    def crawler(self, name: str) -> Document:
        """Return one entry from the catalogue."""
        for row in self.rows("/v1/crawlers"):
            if row.get("name") == name:
                return row
        raise CommandFailed(
            Exit.NOT_FOUND, f"there is no crawler {name!r}", None, "crawlctl crawler list"
        )

    def poll(self, path: str, **params: Any) -> Document:
        """Return a polled document.

        The gateway does not send an unchanged document again (``ETag``).

        The result is the same object until the document changes.
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
        """Return at most ``limit`` tasks of a run."""
        return self.rows(f"/v1/runs/{run_id}/tasks", limit=limit, **filters)

    def logs(
        self,
        run_id: int,
        task_id: int | None = None,
        *,
        tail: int | None = None,
        **choice: Any,
    ) -> str:
        """Return at most the last ``tail`` lines of a task's log, or the lines that the route's
        other parameters select. The default is the log of the main task.
        """
        return self.text(f"/v1/runs/{run_id}/logs", task=task_id, tail=tail, **choice)

    def follow_logs(self, run_id: int, task_id: int | None, *, tail: int | None) -> Iterator[str]:
        """Yield parts of a task's log as the log grows, until the task has ended."""
        params = _given({"task": task_id, "tail": tail, "follow": "true"})
        with self._streamed(f"/v1/runs/{run_id}/logs", params) as answer:
            yield from answer.iter_text()

    def archive(self, run_id: int, attempt: int) -> Iterator[bytes]:
        """Yield the bytes of an attempt's archive."""
        with self._streamed(
            f"/v1/runs/{run_id}/archive", {"attempt": attempt}, silence_s=ARCHIVE_SILENCE_S
        ) as answer:
            yield from answer.iter_bytes()

    def file(self, run_id: int, name: str) -> Generator[bytes]:
        """Yield the bytes of a run's file.

        If the connection is interrupted, the download continues at the same byte.
        """
        at = tries = 0
        while True:
            begun = at
            headers = {"Range": f"bytes={at}-"} if at else {}
            try:
                with self._streamed(
                    f"/v1/runs/{run_id}/file", {"name": name}, 60.0, headers
                ) as answer:
                    if at and answer.status_code != httpx.codes.PARTIAL_CONTENT:
                        raise CommandFailed(
                            Exit.ERROR,
                            f"{name} is incomplete after {at:,} bytes",
                            "the gateway cannot send the rest of a file",
                            "try again",
                        )
                    for piece in answer.iter_bytes():
                        at += len(piece)
                        yield piece
                return
            except CommandFailed as failure:
                tries = 0 if at > begun else tries + 1
                if failure.code is not Exit.UNREACHABLE or not at or tries > TRIES_MAX:
                    raise
            time.sleep(tries)

    def stop(self, run_id: int, *, force: bool = False, **body: str | None) -> Document:
        """Ask a run to end. Return the run's state. A run that has already ended does not change.

        ``body`` contains further fields of the API's request.
        """
        return self.post(f"/v1/runs/{run_id}/stop", {"force": force, **body})

    def resume(self, run_id: int, **body: Any) -> Document:
        """Resume a run that has ended. ``body`` contains the fields of the API's request."""
        return self.post(f"/v1/runs/{run_id}/resume", _given(body))

    # --- managers and graphs ----------------------------------------------------------------------

    def get(self, path: str, /, **params: Any) -> Document:
        """Return the JSON document at this path."""
        return self._send("GET", path, params=_given(params))

    def text(self, path: str, /, **params: Any) -> str:
        """Return the text at this path."""
        return self._request("GET", path, params=_given(params)).text

    def rows(
        self,
        path: str,
        /,
        *,
        limit: int | None = None,
        last: Document | None = None,
        **filters: Any,
    ) -> list[Document]:
        """Return at most ``limit`` rows from all pages of a list.

        The last part of the path is the name of the field with the rows.

        All other fields of the last page are added to ``last``.
        """
        found: list[Document] = []
        params: dict[str, Any] = _given(filters) | {
            "page_size": PAGE_SIZE if limit is None else min(limit, PAGE_SIZE)
        }
        while True:
            page = self._send("GET", path, params=params)
            found += page.pop(path.rpartition("/")[2], [])
            token = page.pop("next_page_token", None)
            if last is not None:
                # Only the first page contains the total.
                last |= {name: value for name, value in page.items() if value is not None}
            if not token or (limit is not None and len(found) >= limit):
                return found[:limit]
            params["page_token"] = token

    def post(
        self, path: str, body: Mapping[str, Any] | None = None, key: str | None = None
    ) -> Document:
        """Send a POST request, omitting fields that are ``None``.

        A second call with the same ``key`` does nothing.
        """
        options = (
            {}
            if body is None
            else {"json": {name: value for name, value in body.items() if value is not None}}
        )
        return self._send("POST", path, headers={"Idempotency-Key": key} if key else {}, **options)

    def put(self, path: str, body: Mapping[str, Any]) -> Document:
        """Replace the document at this path."""
        return self._send("PUT", path, json=dict(body))

    def patch(self, path: str, body: Mapping[str, Any]) -> Document:
        """Change these fields of the document at this path."""
        return self._send("PATCH", path, json=dict(body))

    def upload(self, path: str, file: IO[bytes], **params: Any) -> Document:
        """Replace what is at this path by the bytes of a file."""
        options: dict[str, Any] = {"params": _given(params), "timeout": UPLOAD_S}
        return self._send("PUT", path, content=iter(lambda: file.read(_BLOCK), b""), **options)

    def delete(self, path: str, **params: Any) -> Document:
        """Delete the document at this path."""
        return self._send("DELETE", path, params=_given(params))

    def send_graph(self, body: Mapping[str, object], pages: Sequence[bytes]) -> Document:
        """Create a graph, send its pages, and start the graph.

        A second call with the same graph returns the existing graph.
        """
        found = self.post("/v1/graphs", body)
        if found.get("state") != "draft":
            return found
        path = f"/v1/graphs/{quote(found['id'], safe='')}"
        options: dict[str, Any] = {"headers": {"Content-Type": "application/json"}}
        options["params"] = whose = {"fingerprint": body["fingerprint"]}
        puts = [(f"{path}/pages/{number}", page) for number, page in enumerate(pages)]
        notes = [self._send("PUT", to, content=page, **options).get("note") for to, page in puts]
        started = self._send("POST", f"{path}/start", params=whose)
        notes.append(started.get("note"))
        return {**started, "note": " ".join(filter(None, dict.fromkeys(notes))) or None}

    # --- audits -----------------------------------------------------------------------------------

    def audit_report(self, audit_id: str) -> Document | None:
        """Return the report of this audit; ``None`` while the audit is running."""
        try:
            found: Document | None = self.get("/v1/audit", audit_id=audit_id).get("report")
        except CommandFailed as failure:
            if failure.code is Exit.NOT_FOUND:
                return None
            raise
        return found

    # --- transport --------------------------------------------------------------------------------

    def _send(self, method: str, path: str, **options: Any) -> Document:
        return self._document(self._request(method, path, **options), method, path)

    def _document(self, answer: httpx.Response, method: str, path: str) -> Document:
        try:
            document = answer.json() if answer.content else {}
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise CommandFailed(
                Exit.ERROR,
                f"{self.url} is not a gateway of crawler-lifecycle",
                f"the response to {method} {path} is of type "
                f"{answer.headers.get('content-type', 'unknown')}",
                "check --gateway",
            )
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
        """Yield a response whose body is read in chunks.

        ``silence_s`` limits the pause between two chunks.
        """
        timeout = httpx.Timeout(self._timeout_s, read=silence_s)
        asked = self._http.stream(
            "GET", path, params=dict(params), headers=headers, timeout=timeout
        )
        with self._transport(), asked as answer:
            if not answer.is_success:
                answer.read()
                raise refusal(answer, "GET", path)
            yield answer

    @contextmanager
    def _transport(self) -> Iterator[None]:
        try:
            yield
        except OtherStack as error:
            raise CommandFailed(Exit.NOT_IN_THIS_STATE, str(error)) from None
        except httpx.TimeoutException:
            raise CommandFailed(
                Exit.UNREACHABLE,
                f"the gateway at {self.url} does not respond",
                f"no response within {self._timeout_s:g} s",
                NO_GATEWAY,
            ) from None
        except (httpx.TransportError, httpx.DecodingError) as error:
            what = f"the gateway at {self.url} cannot be reached"
            if isinstance(error, httpx.RemoteProtocolError | httpx.ReadError | httpx.DecodingError):
                what = f"the connection to the gateway at {self.url} broke"
            raise CommandFailed(Exit.UNREACHABLE, what, str(error), NO_GATEWAY) from None


def _given(params: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if value}


# --- errors ---------------------------------------------------------------------------------------


def refusal(answer: httpx.Response, method: str, path: str) -> CommandFailed:
    """Return the error that the problem document in a response describes.

    The response's body must have been read.
    """
    try:
        problem = json.loads(answer.content)
    except ValueError:
        problem = None
    if not isinstance(problem, dict):
        problem = {}
    code = _EXITS.get(answer.status_code, Exit.ERROR)
    what = str(
        problem.get("detail")
        or problem.get("title")
        or f"{method} {path}: HTTP {answer.status_code}"
    )
    name = problem.get("code")
    others = [
        f"{e.get('field')}: {e.get('message')}"
        for e in problem.get("errors") or ()
        if isinstance(e, dict)
    ][1:]
    why = "; ".join(([f"{name} (HTTP {answer.status_code})"] if name else []) + others) or None
    return CommandFailed(code, what, why, _next_step(code, name, path, answer))


def _next_step(code: Exit, name: object, path: str, answer: httpx.Response) -> str | None:
    subject, number = (*path.split("/")[2:4], None, None)[:2]
    noun = str(subject).removesuffix("s")
    if noun in ("manager", "graph", "schedule", "webhook") and (
        found := _next_of(noun, code, name, number)
    ):
        return found
    if code is Exit.NOT_FOUND and noun == "run" and number:
        return "crawlctl list" if name == "run_not_found" else f"crawlctl tasks {number}"
    if code is Exit.NOT_IN_THIS_STATE and noun == "run" and number:
        return (
            f"crawlctl resume {number} --rerun"
            if name == "already_completed"
            else f"crawlctl describe {number}"
        )
    if code is Exit.USAGE and path == "/v1/runs" and answer.request.method == "POST":
        return "crawlctl crawler list, crawlctl start --help"
    if code is Exit.NOT_AUTHORISED:
        return _UNKNOWN_CALLER if answer.status_code == 401 else _WRONG_ROLE
    if code is Exit.UNREACHABLE:
        wait = answer.headers.get("retry-after", "")
        return f"try again in {wait} s" if wait.isdecimal() else _LATER
    return None


def _next_of(noun: str, code: Exit, name: object, number: str | None) -> str | None:
    """Return the next step after an error about a manager, a graph, a schedule or a webhook."""
    if name in ("unknown_class", "user_code_unusable"):
        return "crawlctl manager plan"
    if name == f"{noun}_not_found":
        return f"crawlctl {noun} list"
    if name == "unknown_crawler":
        return "crawlctl crawler list"
    if code in (Exit.NOT_FOUND, Exit.NOT_IN_THIS_STATE) and number:
        return f"crawlctl {noun} describe {shlex.quote(unquote(number))}" + (
            " --steps all" if noun == "graph" else ""
        )
    return None
