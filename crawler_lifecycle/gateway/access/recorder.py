"""The recorder of the access log, which has one row for each request that changes something or is
refused.

No request waits for its row. Rows are written twice per second, and wait in memory while the
database is unavailable.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import get_args
from urllib.parse import unquote

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from crawler_lifecycle.background import Loop
from crawler_lifecycle.clock import Clock
from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.domain.projects import ALL, NONE
from crawler_lifecycle.ports.access import AccessRow, Kind
from crawler_lifecycle.store.access import AccessStore
from crawler_lifecycle.web.problems import MEDIA_TYPE
from crawler_lifecycle.web.tries import address_of

from .tokens import PREFIX, Caller

logger = logging.getLogger(__name__)

#: Seconds between two writes.
EVERY_S = 0.5
#: Seconds that the last write of a process can take.
LAST_S = 5.0
#: The maximum number of rows in one write.
AT_ONCE = 500
#: The maximum number of rows that wait for the database. Further rows are lost, but the log still
#: has a line for each request.
WAITING_MAX = 10_000
#: Identical requests within this many seconds share one row if they failed or came from a crawler.
WINDOW_S = 10.0
#: The maximum number of different rows within this time for unknown callers. All further rows are
#: combined into one, so that no caller can hide what another caller did.
STRANGERS_MAX = 10
#: The same maximum for known callers.
KNOWN_MAX = 500
#: The same maximum for each caller.
EACH_MAX = 50
#: The operation in a row that combines different requests.
OTHERS = "others"
#: The operation of requests that match no route.
UNKNOWN = "unknown"

#: A token of a caller, of a crawler, of a runner or of an issuer.
_TOKEN = re.compile(
    rf"{PREFIX}[\w-]{{43}}|\b(?:task|files|leases|code)\.\d+-[0-9a-f]{{32}}\.[\w.-]+|eyJ[\w.-]{{20,}}",
    re.ASCII,
)
#: Operations that need no role. A token of any role can repeat them, and nothing limits their rate.
_LOGINS = frozenset({"logIn", "logOut", "endSignIn"})
_REFUSED = frozenset({401, 403, 429})
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
#: The path of one object in the API or in the web UI. The web UI also has forms at paths such as
#: ``/runs/new``.
_ABOUT = re.compile(rf"(?:/v1|(?!/\w+/new$))/({'|'.join(get_args(Kind))})s/([^/?#]+)")


@dataclass(slots=True)
class Call:
    """The request that is being served, as far as its details are known."""

    caller: Caller | None = None
    admitted: bool = False
    """True if the caller was admitted; false for wrong tokens, and for operations that need no
    token.
    """
    about: list[tuple[str | None, str | None, str | None, bool]] = field(default_factory=list)
    """For each object of the request: its kind, its number, the label of the button, and whether
    the action was carried out.
    """


_CALL: ContextVar[Call | None] = ContextVar("call", default=None)


def present_call() -> Call:
    """Return the request that is being served.

    Routes add only details that neither the path nor ``Location`` contains.
    """
    return _CALL.get() or Call()


@dataclass(eq=False)
class Recorder:
    """The rows that wait for the database, and the rows that combine equal requests."""

    store: AccessStore
    clock: Clock
    monotonic: Callable[[], float] = time.monotonic
    _waiting: deque[AccessRow] = field(default_factory=deque)
    _counted: dict[bool, dict[tuple[object, ...], AccessRow]] = field(
        default_factory=lambda: {False: {}, True: {}}
    )
    _began: float = 0.0
    _lost: int = 0
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def note(self, row: AccessRow) -> None:
        """Add a row, which is written soon."""
        if len(self._waiting) < WAITING_MAX:
            self._waiting.append(row)
            return
        self._lost += 1
        if self._lost % 1000 == 1:
            logger.error(
                "the access log has lost %d rows, because the database is unavailable; this log "
                "still shows the requests",
                self._lost,
            )

    def count(self, row: AccessRow, *, known: bool) -> None:
        """Add a row of a kind that can be very frequent.

        Equal rows are combined into one, which is written ``WINDOW_S`` later.
        """
        self.end_window()
        counted = self._counted[known]
        own = sum(key[:2] == _key(row)[:2] for key in counted) if _key(row) not in counted else 0
        if own >= EACH_MAX or (
            _key(row) not in counted and len(counted) >= (KNOWN_MAX if known else STRANGERS_MAX)
        ):
            row = replace(
                row,
                caller=None,
                caller_project=NONE,
                operation=OTHERS,
                address=None,
                outcome=OTHERS,
            )
        if before := counted.get(_key(row)):
            same = row.subject == before.subject
            row = replace(
                before, requests=before.requests + 1, subject=row.subject if same else None
            )
        counted[_key(row)] = row

    def end_window(self, *, now: bool = False) -> None:
        """Pass on the combined rows if their time is over, or immediately with ``now``."""
        if now or self.monotonic() - self._began >= WINDOW_S:
            self._began = self.monotonic()
            for counted in self._counted.values():
                for row in counted.values():
                    self.note(row)
                counted.clear()

    async def run(self) -> None:
        """Write rows until the task is cancelled."""
        await Loop(
            "writing the access log", EVERY_S, meanwhile="rows are kept in memory", retry_s=(1, 10)
        ).run(self.flush)

    async def flush(self) -> None:
        """Write all waiting rows. Raises the errors of the store."""
        self.end_window()
        while self._waiting:
            # A cancelled task must not leave a write whose result nobody knows.
            await asyncio.shield(asyncio.create_task(self._write()))

    async def close(self) -> None:
        """Write the last rows of this process. If that fails, log how many are lost."""
        self.end_window(now=True)
        try:
            async with asyncio.timeout(LAST_S):
                await self.flush()
        except (LifecycleError, TimeoutError) as error:
            logger.error("the access log lost its last %d rows: %s", len(self._waiting), error)

    async def _write(self) -> None:
        async with self._writing:
            rows = list(islice(self._waiting, AT_ONCE))
            if rows:
                await run_in_threadpool(self.store.record_access, rows)
            for _ in rows:
                self._waiting.popleft()


def _key(row: AccessRow) -> tuple[object, ...]:
    return (
        row.caller,
        row.caller_project,
        row.operation,
        row.address,
        row.status,
        row.outcome,
        row.kind,
        row.verb,
    )


@dataclass(eq=False)
class Recording:
    """ASGI middleware that passes each request to the recorder.

    It wraps the middleware that checks callers.
    """

    app: ASGIApp
    recorder: Recorder
    operation: Callable[[str, str], str | None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call()
        status = None
        code = ""
        headers = Headers()

        async def watched(message: Message) -> None:
            nonlocal status, code, headers
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = Headers(raw=message["headers"])
            elif not code and message.get("body") and headers.get("content-type") == MEDIA_TYPE:
                code = str(json.loads(message["body"])["code"])
            await send(message)

        token = _CALL.set(call)
        try:
            await self.app(scope, receive, watched)
        finally:
            _CALL.reset(token)
            if scope["type"] == "http":
                self._record(scope, call, status, code, headers.get("location", ""))

    def _record(self, scope: Scope, call: Call, status: int | None, code: str, place: str) -> None:
        caller = call.caller
        refused = status in _REFUSED
        # Uploads and leases of tasks are not recorded.
        operation = self.operation(scope["method"], scope["path"]) or UNKNOWN
        reads = scope["method"] in _READS and operation not in _LOGINS
        if not refused and (reads or not call.admitted or (caller and caller.claim)):
            return
        name, project = (
            (caller.name, caller.project) if caller else (None, ALL if call.admitted else NONE)
        )
        if caller is not None and caller.role is None:
            # A crawler can access only its own run, whatever the project of that run. For another
            # run, the project is not read.
            project = NONE if status == 403 else ALL
        outcome = code or (
            "no_answer" if status is None else "done" if status < 400 else str(status)
        )
        address = address_of(scope.get("client")) or None
        row = AccessRow(self.recorder.clock(), name, project, operation, address, status, outcome)
        if not refused and call.about:  # the response of a page shows the result for each object
            for kind, subject, verb, done in call.about:
                one = replace(row, kind=kind, subject=subject, verb=verb)
                if done:
                    self.recorder.note(one)
                else:
                    self.recorder.count(replace(one, outcome="not_done"), known=True)
            return
        # ``Location`` names the object that was created, but after a login it names the page from
        # which the browser came.
        if operation not in _LOGINS and (
            found := _ABOUT.match(unquote(place)) or _ABOUT.match(scope["path"])
        ):
            # Somebody could send a token where a name belongs.
            row = replace(row, kind=found[1], subject=_TOKEN.sub("…", found[2]))
        # Everyone can cause any number of failures, and a crawler acts without a person.
        if (
            (status or 0) >= 400
            or operation in _LOGINS
            or (caller is not None and caller.role is None)
        ):
            self.recorder.count(row, known=call.admitted)
        else:
            self.recorder.note(row)
