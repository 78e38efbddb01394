"""One HTTP request to the Kubernetes API.

It returns bytes, or raises an error that names the request and the failure.

A request is never repeated, with one exception: after a 401 it is sent once more, with newly read
credentials.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import msgspec
import urllib3

from crawler_lifecycle.clock import utc_now
from crawler_lifecycle.domain.errors import InvalidRequest

from . import credentials, errors
from .deadlines import Call, Calls
from .errors import ApiError, ApiRequest, CredentialsRejected

if TYPE_CHECKING:
    from urllib3.response import BaseHTTPResponse

#: The longest response in bytes. A page of 500 pods takes about two million. A single object always
#: fits: the cluster's store accepts objects of up to 1.5 MiB, and JSON needs at most six bytes for
#: each byte.
ANSWER_MAX = 64 * 1024 * 1024
#: A whole response may take this many times as long as the longest allowed silence.
WHOLE = 3

JSON = "application/json"
_READ = 256 * 1024
#: Errors for a connection that could not be made or was interrupted, and for a response that is not
#: valid HTTP.
BROKEN = (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError, ValueError)


@dataclass(frozen=True, slots=True)
class _Request:
    """A request, and its time limits in seconds."""

    asked: ApiRequest
    target: str
    headers: dict[str, str]
    payload: bytes | None
    silence_s: float
    whole_s: float
    left_s: Callable[[], float] | None = None


class Wire:
    """The connections of one client; thread-safe.

    Every method except ``close`` and ``ended`` raises ``ApiError``.
    """

    def __init__(
        self, identity: credentials.Access, connect_timeout_s: float, read_timeout_s: float
    ) -> None:
        self._access = identity
        self._connect_s = connect_timeout_s
        self._read_s = read_timeout_s
        self.whole_s = WHOLE * read_timeout_s
        """The time limit for a whole response, in seconds."""
        self._calls = Calls()
        self.answer_max = ANSWER_MAX
        self._agent = {"User-Agent": f"crawler-lifecycle/{_version()}"}
        self.skew_s: float | None = None
        """The server's clock minus ours at the last response, in seconds. Servers send whole
        seconds only.
        """

    def close(self) -> None:
        """End all calls, and close the connections."""
        self._calls.close()
        self._access.close()

    def call(
        self,
        asked: ApiRequest,
        query: Mapping[str, object],
        *,
        body: Any = None,
        content: str = JSON,
        accept: str = JSON,
        until: float | None = None,
        left_s: Callable[[], float] | None = None,
    ) -> bytes:
        """Send a request, and return the whole response, which must be complete by ``until``
        (monotonic).

        ``left_s`` returns the seconds in which the server must carry out the request; this number
        is sent to the server. ``left_s`` is called before each send, once credentials and
        connection are ready. Raises ``TooLate`` if no time is left.
        """
        whole_s = self.whole_s
        if until is not None:
            whole_s = min(whole_s, until - time.monotonic())
            if whole_s <= 0:
                raise errors.no_answer(asked, "the pages of the list took too long")
        headers = {"Accept": accept}
        payload = None
        if body is not None:
            headers["Content-Type"] = content
            payload = msgspec.json.encode(body)
        sent = _Request(
            asked, _target(asked.path, query), headers, payload, self._read_s, whole_s, left_s
        )
        call, response = self._answered(sent)
        return self._body(asked, call, response)

    def stream(
        self, asked: ApiRequest, query: Mapping[str, object], silence_s: float, whole_s: float
    ) -> tuple[Call, BaseHTTPResponse]:
        """Begin a response that is read as it arrives. The reader must close the response and call
        ``ended``.
        """
        return self._answered(
            _Request(asked, _target(asked.path, query), {"Accept": JSON}, None, silence_s, whole_s)
        )

    def ended(self, call: Call) -> None:
        self._calls.end(call)

    def _answered(self, sent: _Request) -> tuple[Call, BaseHTTPResponse]:
        """Send the request, and return a response with status 2xx whose body is unread.

        The caller ends the call.
        """
        for renewed in (False, True):
            asked_at = time.monotonic()
            who, authorization = self._who(sent.asked)
            call, response = self._send(sent, who, authorization)
            if 200 <= response.status < 300:
                return call, response
            status = errors.decode_status(self._body(sent.asked, call, response, limit=1024 * 1024))
            wait_s = errors.retry_after(response.headers.get("Retry-After"))
            error = errors.from_status(sent.asked, response.status, status, wait_s)
            if not isinstance(error, CredentialsRejected):
                raise error
            if renewed or not self._renewed(error, who, authorization, asked_at):
                text = (
                    f"{error}; the credentials of {self._access.source.words} were read again "
                    "and are still refused"
                )
                raise CredentialsRejected(
                    text, status=401, reason=error.reason, words=error.words
                ) from None
        raise AssertionError("unreachable")

    def _who(self, asked: ApiRequest) -> tuple[credentials.Identity, str | None]:
        try:
            return self._access.current()
        except Exception as error:  # a plugin or the loader may raise any error
            text = (
                f"{asked.gesture}: the credentials of {self._access.source.words} cannot be "
                f"read: {error}"
            )
            raise CredentialsRejected(text) from error

    def _renewed(
        self, error: ApiError, who: credentials.Identity, authorization: str | None, asked_at: float
    ) -> bool:
        try:
            return self._access.renew(who, authorization, asked_at)
        except InvalidRequest as again:
            raise CredentialsRejected(
                f"{error}; the credentials cannot be read again: {again}", status=401
            ) from error

    def _send(
        self, sent: _Request, who: credentials.Identity, authorization: str | None
    ) -> tuple[Call, BaseHTTPResponse]:
        call = self._calls.begin(sent.whole_s, sent.left_s)
        try:
            response = who.pools.urlopen(
                sent.asked.method,
                who.host + sent.target,
                redirect=False,
                retries=False,
                preload_content=False,
                body=sent.payload,
                headers=sent.headers
                | ({"Authorization": authorization} if authorization else {})
                | self._agent,
                timeout=urllib3.Timeout(
                    connect=self._connect_s, read=min(sent.silence_s, sent.whole_s)
                ),
            )
        except BROKEN as error:
            self._calls.end(call)
            raise errors.no_answer(sent.asked, self._cause(call, error), sent=call.sent) from error
        except BaseException:
            self._calls.end(call)
            raise
        self._calls.sent()
        self._note_clock(response.headers.get("Date"))
        return call, response

    def _body(
        self, asked: ApiRequest, call: Call, response: BaseHTTPResponse, limit: int | None = None
    ) -> bytes:
        parts = []
        size = 0
        most = limit or self.answer_max
        try:
            for part in response.stream(_READ):
                parts.append(part)
                size += len(part)
                if size > most:
                    raise errors.unreadable(
                        asked, f"it has more than {most} bytes", errors.TooLarge
                    )
            # We cut a response without a length: the cut looks like the end of the response.
            if call.overdue:
                raise errors.no_answer(asked, self._cause(call, None))
        except BROKEN as error:
            raise errors.no_answer(asked, self._cause(call, error)) from error
        finally:
            self._calls.end(call)
            if response.closed:  # the response was read to its end
                response.release_conn()
            else:
                response.close()
        return b"".join(parts)

    def _cause(self, call: Call, error: Exception | None) -> str:
        where = self._access.host
        # Check the clock too: the thread that ends overdue calls may be late.
        if call.overdue or time.monotonic() >= call.until:
            return f"no complete response from {where} in time"
        if call.over:
            return "we closed the connection"
        match error:
            # This must come first, because the next class is its parent.
            case urllib3.exceptions.NewConnectionError():
                return f"no connection to {where}: {_short(error)}"
            case urllib3.exceptions.ConnectTimeoutError():
                return f"no connection to {where} within {self._connect_s:g} s"
            case urllib3.exceptions.ReadTimeoutError():
                return f"no data came from {where} in time"
            case urllib3.exceptions.SSLError():
                return f"TLS with {where} failed: {_short(error)}"
            case _:
                return f"the connection to {where} was interrupted: {_short(error)}"

    def _note_clock(self, date: str | None) -> None:
        try:
            self.skew_s = (parsedate_to_datetime(date or "") - utc_now()).total_seconds() + 0.5
        except (ValueError, TypeError):
            return  # without a valid date, keep the difference that was computed last


def _target(path: str, query: Mapping[str, object]) -> str:
    given = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in query.items()
        if value is not None
    }
    return f"{path}?{urlencode(given)}" if given else path


def _short(error: Exception | None) -> str:
    """Return the text of the innermost error, without the memory addresses of urllib3's objects."""
    while error is not None and isinstance(inner := getattr(error, "reason", None), Exception):
        error = inner
    return str(error).split(": ", 1)[-1] if "object at 0x" in str(error) else str(error)


def _version() -> str:
    try:
        return version("crawler-lifecycle")
    except PackageNotFoundError:  # a source tree that is not installed
        return "0"
