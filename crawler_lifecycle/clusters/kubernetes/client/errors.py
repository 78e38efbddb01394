"""Errors of the Kubernetes API, with the server's message and a human-readable text.

Each error is a ``ClusterUnavailable``, so a caller that does not handle it changes no status.
"""

from __future__ import annotations

import re
from dataclasses import KW_ONLY, InitVar, dataclass
from urllib.parse import unquote

import msgspec

from crawler_lifecycle.clock import utc_now
from crawler_lifecycle.domain.errors import ClusterUnavailable
from crawler_lifecycle.runner.inject.crawl_runner_retry_after import seconds_to_wait

#: The longest wait in seconds that we accept from a server, because a request to stop a task must
#: not wait forever.
RETRY_AFTER_MAX_S = 60.0
#: The maximum number of characters that an error quotes from the server's message.
WORDS_MAX = 1000

#: A part of the API server's message about a missing permission. Messages about a quota have a
#: similar beginning.
_NO_RIGHT = re.compile(r'cannot \S+ (?:resource|path) "[^"]*"')
_PATH = re.compile(
    r"/(?:api/v1|apis/(?P<group>[^/]+)/[^/]+)"
    r"(?:/namespaces/(?P<namespace>[^/]+)(?=/))?"
    r"/(?P<resource>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>[^/]+))?"
)
_VERBS = {"GET": "get", "POST": "create", "PATCH": "patch", "PUT": "replace", "DELETE": "delete"}


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """A request, as error messages describe it."""

    method: str
    path: str
    watching: bool = False

    @property
    def writes(self) -> bool:
        return self.method != "GET"

    @property
    def gesture(self) -> str:
        """The request in words, such as "list pods in namespace crawls"."""
        found = _PATH.fullmatch(self.path)
        if found is None:
            return f"{self.method} {self.path}"
        part = {name: unquote(value) for name, value in found.groupdict().items() if value}
        verb = _VERBS.get(self.method, self.method.lower())
        name = part.get("name")
        if name is None and verb == "get":
            verb = "watch" if self.watching else "list"
        what = part["resource"] + (f"/{part['sub']}" if "sub" in part else "")
        where = f" in namespace {part['namespace']}" if "namespace" in part else ""
        return f"{verb} {what}{f' {name}' if name else ''}{where}"


@dataclass(eq=False, repr=False)
class ApiError(ClusterUnavailable):
    """A failed request to the Kubernetes API, with a human-readable text."""

    text: InitVar[str]
    _: KW_ONLY
    status: int | None = None
    """The HTTP status; ``None`` if there was no response."""
    reason: str = ""
    """The API's code, such as ``AlreadyExists``."""
    words: str = ""
    """The server's own message."""
    causes: tuple[str, ...] = ()
    """The codes in the response's details, such as ``NamespaceTerminating``."""
    retry_after_s: float | None = None
    effect_unknown: bool = False
    """True for a write that may have had an effect despite the error."""

    def __post_init__(self, text: str) -> None:
        super().__init__(text)


class NoAnswer(ApiError):
    """There was no complete response: no connection, no response in time, or an interrupted
    connection."""

    retry_within_s = 2.0
    """The longest pause before a loop tries again."""


class NoConnection(NoAnswer):
    """The request was not sent, because no connection could be made. The server has not seen the
    request.
    """

    retry_within_s = 0.5


class Unreadable(ApiError):
    """A response that cannot be used: it is incomplete, not JSON, not the expected object, or too
    long.
    """


class TooLarge(Unreadable):
    """A response that exceeds the size that we accept. For a list, request fewer objects at a
    time."""


class TooLate(ApiError):
    """A request that was not sent, because its time limit had expired."""


class CredentialsRejected(ApiError):
    """401: the server rejected our credentials, even after we reloaded them."""


class RequestRefused(ApiError):
    """403, 422, 400, 405 or 413: the server refused the request."""


class NotFound(ApiError):
    """404: the object does not exist."""


class Conflict(ApiError):
    """409, or 422 for a patch: the name is in use, or the object has a different uid."""


class PositionExpired(ApiError):
    """410: the position of a watch or list has expired. The caller must begin with a list."""


class TooManyRequests(ApiError):
    """429: too many requests.

    ``retry_after_s`` is set when the server stated how long to wait.
    """


class _Cause(msgspec.Struct):
    reason: str | None = None
    field: str | None = None
    message: str | None = None


class _Details(msgspec.Struct):
    causes: list[_Cause] | None = None
    retryAfterSeconds: float | None = None


class Status(msgspec.Struct):
    """The API's error object, with only the fields that we use."""

    kind: str | None = None
    message: str | None = None
    reason: str | None = None
    code: int | None = None
    details: _Details | None = None


_STATUS = msgspec.json.Decoder(Status)

_REFUSED = (RequestRefused, "the Kubernetes API refused this: {}")
#: HTTP status -> the class of the error, and its text.
_KNOWN: dict[int, tuple[type[ApiError], str]] = {
    **dict.fromkeys((400, 405, 413, 422), _REFUSED),
    401: (CredentialsRejected, "the Kubernetes API rejected our credentials: {}"),
    403: (RequestRefused, "the Kubernetes API does not allow us to {}"),
    404: (NotFound, "the Kubernetes API found no such object: {}"),
    409: (Conflict, "the Kubernetes API reported a conflict: {}"),
    410: (PositionExpired, "the position in the list or watch has expired: {}"),
    429: (TooManyRequests, "the Kubernetes API asks us to slow down: {}"),
}
_FAILED = (ApiError, "the Kubernetes API cannot {} now")
_UNKNOWN = (ApiError, "the Kubernetes API gave an unexpected response: {}")


def decode_status(data: bytes | msgspec.Raw) -> Status:
    """Return the API's error object.

    If the body is something else, such as a proxy's page, the beginning of the body becomes the
    message.
    """
    try:
        return _STATUS.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        text = bytes(memoryview(data)[:WORDS_MAX]).decode(errors="replace")
        return Status(message=" ".join(text.split()))


def from_status(
    asked: ApiRequest, status: int, body: Status, retry_after_s: float | None = None
) -> ApiError:
    """Return the error for a response with a status other than 2xx, or for an error inside the
    stream of a watch.
    """
    words = (body.message or body.reason or "no reason given")[:WORDS_MAX]
    details = body.details or _Details()
    if retry_after_s is None and details.retryAfterSeconds:
        retry_after_s = _bounded(details.retryAfterSeconds)
    kind, said = _KNOWN.get(status, _FAILED if status >= 500 else _UNKNOWN)
    if status == 422 and any(cause.field == "metadata.uid" for cause in details.causes or ()):
        kind = Conflict  # the server treats a different uid as a change of an immutable field
    if status == 403 and _NO_RIGHT.search(words):
        said = "the Kubernetes API refused us: this process needs permission to {}"
    if status == 429 and retry_after_s:
        said = f"the Kubernetes API asks us to wait {retry_after_s:g} s: {{}}"
    return kind(
        f"{said.format(asked.gesture)} ({status}): {words}",
        status=status,
        reason=body.reason or "",
        words=words,
        causes=tuple(cause.reason for cause in details.causes or () if cause.reason),
        retry_after_s=retry_after_s,
        effect_unknown=asked.writes and status >= 500,
    )


def no_answer(asked: ApiRequest, what: str, *, sent: bool = True) -> NoAnswer:
    """Return the error for a response that did not arrive.

    ``sent``: the request may have reached the server.
    """
    kind = NoAnswer if sent else NoConnection
    return kind(
        f"the Kubernetes API did not respond: {asked.gesture}: {what}",
        effect_unknown=sent and asked.writes,
    )


def unreadable(
    asked: ApiRequest | None, what: str, kind: type[Unreadable] = Unreadable
) -> Unreadable:
    """Return the error for a response that cannot be used."""
    subject = f": {asked.gesture}" if asked else ""
    text = f"the response from the Kubernetes API cannot be used{subject}: {what}"
    return kind(text, effect_unknown=asked is not None and asked.writes)


def retry_after(value: str | None) -> float | None:
    """Return the seconds in a ``Retry-After`` header, at most ``RETRY_AFTER_MAX_S``; ``None``
    without a valid value.
    """
    return _bounded(seconds_to_wait(value, utc_now()) or 0.0)


def _bounded(seconds: float) -> float | None:
    # this comparison is also false for NaN
    return min(seconds, RETRY_AFTER_MAX_S) if seconds > 0 else None
