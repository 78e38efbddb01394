"""The robots.txt of the sites that one crawler process visits, which one task of all runs fetches,
and the rights that their responses reserve.

The gateway answers with the file that another task has fetched, or lets this process fetch it. Then
the requests for the site's files take turns like all others. It uses only the standard library.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import http.client
import json
import queue
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit

from crawl_runner_leases import SiteLeases

#: The maximum size of a file that is kept, in bytes. The rest is not read.
FILE_MAX = 512 * 1024
#: Seconds for one file, for the wait until the site allows its request, and for another task that
#: fetches the files.
FETCH_S = 10.0
TURN_S = 30.0
WAIT_S = 20.0
#: The maximum number of origins of this process, of threads, and of redirects. A site that does not
#: answer occupies a thread for up to ``FETCH_S`` seconds, and a closed one for ``TURN_S``.
ORIGINS_MAX = 1000
_THREADS = 32
_REDIRECTS = 5
#: Seconds for which a request for robots.txt waits for the file that a task fetches for all, and
#: between two reports of the rights that an origin reserves.
KNOWN_S = 15.0
_RESERVED_S = 3600.0
_AGENT = "crawler-lifecycle"
_AGENT_MAX = 500
_POLICY_MAX = 1000
_FAILURES = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    queue.Empty,
    http.client.HTTPException,
)


class RobotsFile(NamedTuple):
    """A robots.txt with the status of its response."""

    status: int
    body: bytes


class SharedRobots:
    """The files of the origins that this process visits. Threads may share it."""

    def __init__(self, leases: SiteLeases, agent: str | None = None) -> None:
        self._leases = leases
        self.agent = agent or _AGENT
        """The ``User-Agent`` of its requests."""
        self._visited: set[tuple[str, str]] = set()
        self._known: dict[str, RobotsFile | None] = {}
        self._waiting: dict[str, list[Callable[[RobotsFile | None], object]]] = {}
        self._reserved: dict[str, float] = {}
        """When the rights that an origin reserves were reported."""
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()

    def visit(self, scheme: str, authority: str) -> None:
        """Note that a request to this origin follows. ``authority`` is a host with its port."""
        if (scheme, authority) not in self._visited and len(self._visited) < ORIGINS_MAX:
            self._visited.add((scheme, authority))
            self.when_known(scheme, authority, lambda _: None)

    def when_known(
        self, scheme: str, authority: str, function: Callable[[RobotsFile | None], object]
    ) -> None:
        """Call ``function`` in any thread with the robots.txt; with ``None`` if it is unknown, as
        after ``ORIGINS_MAX`` others.
        """
        origin = _origin(scheme, authority)
        with self._lock:
            waits = origin not in self._known
            if waits and origin not in self._waiting:
                waits = len(self._waiting) + len(self._known) < ORIGINS_MAX
                if waits:
                    self._begin(origin)
            if waits:
                self._waiting[origin].append(function)
        if not waits:
            function(self._known.get(origin))

    def note(self, scheme: str, authority: str, header: Callable[[str], str | None]) -> None:
        """Report it if a response reserves the rights of text and data mining. ``header`` returns
        one of its headers.
        """
        if (header("tdm-reservation") or "").strip() != "1":
            return
        origin = _origin(scheme, authority)
        now = time.monotonic()
        with self._lock:
            reported = self._reserved.get(origin, -_RESERVED_S)
            if now - reported < _RESERVED_S or len(self._reserved) >= ORIGINS_MAX:
                return
            self._reserved[origin] = now
        policy = header("tdm-policy")
        body = {"origin": origin, "reserved": {"policy": policy and policy[:_POLICY_MAX]}}
        self._jobs.put(lambda: self._share(body))

    def _begin(self, origin: str) -> None:
        self._waiting[origin] = []
        self._jobs.put(functools.partial(self._know, origin))
        started = len(self._waiting) + len(self._known)
        if started <= _THREADS:
            threading.Thread(target=self._work, name="crawl-robots", daemon=True).start()

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            with contextlib.suppress(*_FAILURES):
                job()

    def _know(self, origin: str) -> None:
        answer: Any = {}
        # Without robots.txt, the crawl continues as if this module did not exist.
        with contextlib.suppress(*_FAILURES):
            answer = self._learn(origin)
        self._publish(origin, answer)
        if answer.get("fetched") and answer.get("status") is not None:
            self._fetch(origin, "/.well-known/tdmrep.json", "tdm")

    def _learn(self, origin: str) -> Any:
        """Return the answer of the gateway, after this process has fetched the robots.txt if it
        has to.
        """
        until = time.monotonic() + WAIT_S
        while True:
            answer = self._share({"origin": origin})
            if answer["fetch"]:
                answer = self._fetch(origin, "/robots.txt", "robots")
                return {**answer, "fetched": True}
            if answer["wait_s"] is None or time.monotonic() > until:
                return answer
            time.sleep(answer["wait_s"])

    def _publish(self, origin: str, answer: Any) -> None:
        """Call the functions that wait for the robots.txt of an origin."""
        found = None
        if answer.get("status") is not None:
            found = RobotsFile(answer["status"], base64.b64decode(answer["body"]))
        if answer.get("delayed"):
            self._leases.ask_anew(urlsplit(origin).hostname or "")
        with self._lock:
            self._known[origin] = found
            functions = self._waiting.pop(origin)
        for function in functions:
            function(found)

    def _share(self, body: dict[str, Any]) -> Any:
        status, answer = self._leases.post("/robots", body)
        if status != 200:
            raise ValueError(f"the gateway answers with status {status}")
        return json.loads(answer)

    def _fetch(self, origin: str, path: str, name: str) -> Any:
        """Fetch a file for all, and return what the gateway answers."""
        url = origin + path
        response = self._request(url)
        for _ in range(_REDIRECTS):
            target = redirect_target(url, response.status, response.location)
            # One host has to be the other one or above it: the rules of a site are never the data
            # of another server.
            hosts = [urlsplit(place or "").hostname or "" for place in (url, target)]
            above, below = sorted(hosts, key=len)
            if target is None or not f".{below}".endswith(f".{above}"):
                break
            url = target
            response = self._request(url)
        status = response.status
        file = {
            # The gateway knows no other statuses.
            "status": status if status is not None and 100 <= status < 600 else None,
            "body": base64.b64encode(response.body).decode(),
        }
        return self._share({"origin": origin, "agent": self.agent[:_AGENT_MAX], name: file})

    def _request(self, url: str) -> _Response:
        """Request a page in the turn of its host."""
        host = urlsplit(url).hostname or ""
        lane = self._turn(host)
        status: int | None = None
        try:
            response = _fetched(url, self.agent)
            status = response.status
            return response
        finally:
            self._leases.end(host, lane, status)

    def _turn(self, host: str) -> int | None:
        """Wait until a request may begin, and return its lane. Raises ``TimeoutError``."""
        until = time.monotonic() + TURN_S
        while True:
            turns: queue.SimpleQueue[tuple[int | None, float]] = queue.SimpleQueue()

            def begin(
                lane: int | None,
                latest: float,
                turns: queue.SimpleQueue[tuple[int | None, float]] = turns,
            ) -> None:
                turns.put((lane, latest))

            self._leases.begin(host, begin)
            try:
                lane, latest = turns.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                if self._leases.cancel(host, begin):
                    raise TimeoutError(host) from None
                lane, latest = turns.get(timeout=1.0)
            if time.monotonic() <= latest:
                return lane
            self._leases.abandon(host, lane)


def _origin(scheme: str, authority: str) -> str:
    return f"{scheme}://{authority.rpartition('@')[2].lower()}"


class _Response(NamedTuple):
    """A response: its status, or ``None`` without one, the first part of its body, and where it
    redirects to.
    """

    status: int | None
    body: bytes = b""
    location: str | None = None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirects, because each one waits for a turn of its own."""

    def redirect_request(self, *args: Any) -> None:
        return None


def redirect_target(url: str, status: int | None, location: str | None) -> str | None:
    """Return the URL to which a response redirects; ``None`` if it does not."""
    if status not in (301, 302, 303, 307, 308) or not location:
        return None
    try:
        target = urljoin(url, location)
        parts = urlsplit(target)
    except ValueError:
        return None
    return target if parts.scheme in ("http", "https") and parts.hostname else None


def _fetched(url: str, agent: str) -> _Response:
    """Request a page."""
    opener = urllib.request.build_opener(_NoRedirects)
    headers = {"User-Agent": agent, "Accept-Encoding": "identity"}
    until = time.monotonic() + FETCH_S
    try:
        request = urllib.request.Request(url, headers=headers)  # noqa: S310
        with opener.open(request, timeout=FETCH_S) as response:
            body = bytearray()
            while len(body) < FILE_MAX and time.monotonic() < until:
                part = response.read1(FILE_MAX - len(body))
                if not part:
                    break
                body += part
            return _Response(response.status, bytes(body))
    except urllib.error.HTTPError as error:
        error.close()
        return _Response(error.code, location=error.headers.get("Location"))
    except (OSError, ValueError, http.client.HTTPException):
        return _Response(None)
