"""Errors of the Kubernetes API: the server's own message, and words for people.

Every one of them is a ``ClusterUnavailable``: a caller that does not handle it specially changes nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

import msgspec
from urllib3.exceptions import InvalidHeader
from urllib3.util import Retry

from crawler_lifecycle.domain.errors import ClusterUnavailable

#: The longest wait that a server may ask for, in seconds: a stop must get through some time.
RETRY_AFTER_MAX_S = 60.0
#: The most characters of the server's own message that are repeated.
WORDS_MAX = 1000

#: The beginning of the API server's message about a missing right (messages about quota begin alike and continue
#: differently).
_NO_RIGHT = re.compile(r'cannot \S+ (?:resource|path) "[^"]*"')
_PATH = re.compile(
    r"/(?:api/v1|apis/(?P<group>[^/]+)/[^/]+)"
    r"(?:/namespaces/(?P<namespace>[^/]+)(?=/))?"
    r"/(?P<resource>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>[^/]+))?"
)
_VERBS = {"GET": "get", "POST": "create", "PATCH": "patch", "PUT": "replace", "DELETE": "delete"}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, as error messages describe it."""

    method: str
    path: str
    watching: bool = False

    @property
    def writes(self) -> bool:
        return self.method != "GET"

    @property
    def gesture(self) -> str:
        """The request in words: "list pods in namespace crawls"."""
        found = _PATH.fullmatch(self.path)
        if found is None:
            return f"{self.method} {self.path}"
        part = {name: unquote(value) for name, value in found.groupdict().items() if value}
        verb = _VERBS.get(self.method, self.method.lower())
        name = part.get("name")
        if name is None and verb == "get":
            verb = "watch" if self.watching else "list"
        what = part["resource"] + (f"/{part['sub']}" if "sub" in part else "")
        place = f" in namespace {part['namespace']}" if "namespace" in part else ""
        return f"{verb} {what}{f' {name}' if name else ''}{place}"


class ApiError(ClusterUnavailable):
    """The Kubernetes API did not do what was asked. The text is for people.

    ``status`` is the HTTP status (``None``: no answer came), ``reason`` the API's machine word (``AlreadyExists``),
    ``words`` the server's own text, ``causes`` the machine words of its details (``NamespaceTerminating``).
    ``effect_unknown``: it was a write, and may have taken effect all the same.
    """

    def __init__(
        self,
        text: str,
        *,
        status: int | None = None,
        reason: str = "",
        words: str = "",
        causes: tuple[str, ...] = (),
        retry_after_s: float | None = None,
        effect_unknown: bool = False,
    ) -> None:
        super().__init__(text)
        self.status = status
        self.reason = reason
        self.words = words
        self.causes = causes
        self.retry_after_s = retry_after_s
        self.effect_unknown = effect_unknown


class NoAnswer(ApiError):
    """Nothing came: no connection, silence, or the connection broke off in the middle."""


class Unreadable(ApiError):
    """An answer came but cannot be used: cut, no JSON, another document, or too long."""


class TooLarge(Unreadable):
    """The answer has more bytes than we read; for a list, request fewer objects at once."""


class TooLate(ApiError):
    """Not sent: the time in which it had to take effect was over."""


class Unauthorised(ApiError):
    """401: the server does not know who we are. The credentials were read again before this was raised."""


class Refused(ApiError):
    """403 and 422 (and 400, 405, 413): the server understood, and will not do this."""


class NotFound(ApiError):
    """404."""


class Conflict(ApiError):
    """The name is taken, or the object is not the one that was meant: 409, or 422 to a patch that names another uid."""


class Expired(ApiError):
    """410: the position of a watch or list has expired; begin with a list."""


class Throttled(ApiError):
    """429: too many requests; ``retry_after_s`` when the server said how long to wait."""


class _Cause(msgspec.Struct):
    reason: str | None = None
    field: str | None = None
    message: str | None = None


class _Details(msgspec.Struct):
    causes: list[_Cause] | None = None
    retryAfterSeconds: float | None = None


class Status(msgspec.Struct):
    """The fields of the API's own error object that errors use."""

    kind: str | None = None
    message: str | None = None
    reason: str | None = None
    code: int | None = None
    details: _Details | None = None


_STATUS = msgspec.json.Decoder(Status)

_REFUSED = (Refused, "the Kubernetes API refuses this: {}")
#: Status -> the class of the error, and its words.
_KNOWN: dict[int, tuple[type[ApiError], str]] = {
    **dict.fromkeys((400, 405, 413, 422), _REFUSED),
    401: (Unauthorised, "the Kubernetes API does not know us when we {}"),
    403: (Refused, "the Kubernetes API does not allow us to {}"),
    404: (NotFound, "nothing there to {}"),
    409: (Conflict, "the Kubernetes API sees a conflict: {}"),
    410: (Expired, "the Kubernetes API no longer knows where to go on: {}"),
    429: (Throttled, "the Kubernetes API asks us to slow down: {}"),
}
_FAILED = (ApiError, "the Kubernetes API cannot {} now")
_UNKNOWN = (ApiError, "the Kubernetes API gives no known answer: {}")


def decode_status(data: bytes | msgspec.Raw) -> Status:
    """The API's error object; for any other body (a proxy's page, a cut one) its beginning is the message."""
    try:
        return _STATUS.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        text = bytes(memoryview(data)[:WORDS_MAX]).decode(errors="replace")
        return Status(message=" ".join(text.split()))


def from_status(asked: Asked, status: int, told: Status, retry_after_s: float | None = None) -> ApiError:
    """The error for an answer with a status other than 2xx, by its body; a watch sends such a body within its
    stream.
    """
    words = (told.message or told.reason or "no reason given")[:WORDS_MAX]
    details = told.details or _Details()
    if retry_after_s is None and details.retryAfterSeconds:
        retry_after_s = _bounded(details.retryAfterSeconds)
    kind, said = _KNOWN.get(status, _FAILED if status >= 500 else _UNKNOWN)
    if status == 422 and any(cause.field == "metadata.uid" for cause in details.causes or ()):
        kind = Conflict  # to the server a uid is a field like others, which may not change
    if status == 403 and _NO_RIGHT.search(words):
        said = "the Kubernetes API refuses us: needs permission to {}"
    if status == 429 and retry_after_s:
        said = f"the Kubernetes API asks us to wait {retry_after_s:g} s: {{}}"
    return kind(
        f"{said.format(asked.gesture)} ({status}): {words}",
        status=status,
        reason=told.reason or "",
        words=words,
        causes=tuple(cause.reason for cause in details.causes or () if cause.reason),
        retry_after_s=retry_after_s,
        effect_unknown=asked.writes and status >= 500,
    )


def no_answer(asked: Asked, what: str, *, effect_unknown: bool) -> NoAnswer:
    """The error for an answer that did not arrive."""
    return NoAnswer(
        f"the Kubernetes API did not answer: {asked.gesture}: {what}", effect_unknown=effect_unknown and asked.writes
    )


def unreadable(asked: Asked | None, what: str, kind: type[Unreadable] = Unreadable) -> Unreadable:
    """The error for an answer that cannot be used."""
    subject = f": {asked.gesture}" if asked else ""
    text = f"the answer of the Kubernetes API cannot be used{subject}: {what}"
    return kind(text, effect_unknown=asked is not None and asked.writes)


def retry_after(value: str | None) -> float | None:
    """Seconds to wait by a ``Retry-After`` header, a number or a date. ``None``: no usable value."""
    try:
        return _bounded(Retry().parse_retry_after(value)) if value else None
    except (InvalidHeader, ValueError, OverflowError):
        return None


def _bounded(seconds: float) -> float | None:
    return min(seconds, RETRY_AFTER_MAX_S) if seconds > 0 else None  # which NaN is not
