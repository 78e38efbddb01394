"""A watch: one line of JSON for each change, until the server ends it.

A failure raises an error.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import urllib3

from . import errors
from .deadlines import Call
from .errors import ApiRequest, unreadable
from .objects import decode_event
from .transport import BROKEN

if TYPE_CHECKING:
    from urllib3.response import BaseHTTPResponse

#: The longest line in bytes. An object has at most 1.5 MiB in etcd, but its JSON is longer.
LINE_MAX = 16 * 1024 * 1024


class WatchEvent(msgspec.Struct, frozen=True):
    """One change.

    ``type`` is ADDED, MODIFIED, DELETED (with the last state of the object) or BOOKMARK (no
    change).
    """

    type: str
    object: msgspec.Raw
    """The object's JSON for ``objects.decode``. In a bookmark it contains only the version."""
    resource_version: str
    """The version from which a later watch can continue."""


class _Version(msgspec.Struct):
    resourceVersion: str


class _VersionedObject(msgspec.Struct):
    metadata: _Version


_VERSIONED = msgspec.json.Decoder(_VersionedObject)
_KINDS = frozenset({"ADDED", "MODIFIED", "DELETED", "BOOKMARK"})


@dataclass(eq=False)
class Watch:
    """An open stream of changes: iterate over it, and close it.

    It ends when the server or ``close`` ends it.

    The iteration raises ``Expired`` when the position of the watch has expired (then list the
    objects again), ``NoAnswer`` when the stream was interrupted or silent for too long,
    ``Unreadable`` for a line that is not an event, and each ``ApiError`` that the server sends in
    the stream.
    """

    asked: ApiRequest
    response: BaseHTTPResponse
    call: Call
    ended: Callable[[Call], None]

    def __post_init__(self) -> None:
        self._events = self._read()
        self._closed = False

    def __iter__(self) -> Iterator[WatchEvent]:
        return self

    def __next__(self) -> WatchEvent:
        try:
            return next(self._events)
        except ValueError:
            if not self._closed:
                raise
            raise StopIteration from None  # another thread is closing it at this moment

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the watch, from any thread; repeated calls do no harm.

        A waiting reader sees the end at once.
        """
        self._closed = True
        self.call.cut()
        try:
            self._events.close()
        except ValueError:  # the thread that reads the stream sees its end, and closes it
            return
        self._finish()

    def _finish(self) -> None:
        self.ended(self.call)
        self.response.close()

    def _read(self) -> Generator[WatchEvent, None, None]:
        try:
            for line in self._lines():
                yield self._event(line)
        finally:
            self._finish()

    def _lines(self) -> Iterator[bytes]:
        rest = b""
        for part in self._parts():
            *lines, rest = (rest + part).split(b"\n")
            yield from filter(None, lines)
            if len(rest) > LINE_MAX:
                raise unreadable(self.asked, f"an event has more than {LINE_MAX} bytes")
        if self._closed:
            return
        if self.call.overdue:
            raise errors.no_answer(self.asked, "the stream did not end within its time limit")
        if rest:
            raise errors.no_answer(self.asked, "the stream was interrupted inside an event")

    def _parts(self) -> Iterator[bytes]:
        response = self.response
        try:
            if response.chunked:
                yield from response.read_chunked()
            else:
                while part := response.read1(64 * 1024):
                    yield part
        except BROKEN as error:
            if self._closed or self.call.overdue:
                return  # we closed the stream; ``_lines`` decides whether this is an error
            silent = isinstance(error, urllib3.exceptions.ReadTimeoutError)
            what = (
                "the stream was silent for too long"
                if silent
                else f"the stream was interrupted: {error}"
            )
            raise errors.no_answer(self.asked, what) from error

    def _event(self, line: bytes) -> WatchEvent:
        kind, data = decode_event(line, self.asked)
        if kind == "ERROR":
            body = errors.decode_status(data)
            code = body.code or (410 if body.reason in ("Expired", "Gone") else 500)
            raise errors.from_status(self.asked, code, body)
        if kind not in _KINDS:
            raise unreadable(self.asked, f"an event has the unknown type {kind[:60]!r}")
        try:
            version = _VERSIONED.decode(data).metadata.resourceVersion
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise unreadable(
                self.asked, f"an event's object has no resourceVersion: {error}"
            ) from error
        return WatchEvent(kind, data, version)
