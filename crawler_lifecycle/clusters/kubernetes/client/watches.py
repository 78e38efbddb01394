"""A watch: one line of JSON for each change until the server ends it. A failure is an error and never an end."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING

import msgspec
import urllib3

from . import errors
from .deadlines import Call
from .errors import Asked, unreadable
from .objects import decode_event

if TYPE_CHECKING:
    from urllib3.response import BaseHTTPResponse

#: Longest line, in bytes: an object has at most 1.5 MiB in etcd, and grows by what JSON adds.
LINE_MAX = 16 * 1024 * 1024


class WatchEvent(msgspec.Struct, frozen=True):
    """One change. ``type`` is ADDED, MODIFIED, DELETED (the object as it was last) or BOOKMARK (no change at all)."""

    type: str
    object: msgspec.Raw
    """The object's JSON; see ``objects.decode``. A bookmark's object holds only its version."""
    resource_version: str
    """The version from which a later watch continues."""


class _Version(msgspec.Struct):
    resourceVersion: str


class _Versioned(msgspec.Struct):
    metadata: _Version


_VERSIONED = msgspec.json.Decoder(_Versioned)
_KINDS = frozenset({"ADDED", "MODIFIED", "DELETED", "BOOKMARK"})


class Watch:
    """An open stream of changes: iterate, and close. It ends when the server says so or when it is closed.

    Iterating raises ``Expired`` when its position has expired (list again), ``NoAnswer`` when the stream broke off or
    fell silent, ``Unreadable`` for anything but an event, and other ``ApiError``s that the server sends in the stream.
    """

    def __init__(self, asked: Asked, response: BaseHTTPResponse, call: Call, ended: Callable[[Call], None]) -> None:
        self._asked, self._response, self._call, self._ended = asked, response, call, ended
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
        """End it, from any thread, once or more often; a waiting reader sees the end at once."""
        self._closed = True
        self._call.cut()
        try:
            self._events.close()
        except ValueError:  # another thread reads it, sees the end, and closes it
            return
        self._finish()

    def _finish(self) -> None:
        self._ended(self._call)
        self._response.close()

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
                raise unreadable(self._asked, f"an event has more than {LINE_MAX} bytes")
        if self._closed:
            return
        if self._call.overdue:
            raise errors.no_answer(self._asked, "the stream outlived the limit that it was given", effect_unknown=False)
        if rest:
            raise errors.no_answer(self._asked, "the stream broke off within an event", effect_unknown=False)

    def _parts(self) -> Iterator[bytes]:
        response = self._response
        try:
            if response.chunked:
                yield from response.read_chunked()
            else:
                while part := response.read1(64 * 1024):
                    yield part
        except (urllib3.exceptions.HTTPError, http.client.HTTPException, OSError, ValueError) as error:
            if self._closed or self._call.overdue:
                return  # we closed it; the reader of the lines reports what that means
            silent = isinstance(error, urllib3.exceptions.ReadTimeoutError)
            what = "the stream fell silent" if silent else f"the stream broke off: {error}"
            raise errors.no_answer(self._asked, what, effect_unknown=False) from error

    def _event(self, line: bytes) -> WatchEvent:
        kind, data = decode_event(line, self._asked)
        if kind == "ERROR":
            told = errors.decode_status(data)
            code = told.code or (410 if told.reason in ("Expired", "Gone") else 500)
            raise errors.from_status(self._asked, code, told)
        if kind not in _KINDS:
            raise unreadable(self._asked, f"an event is of the unknown type {kind[:60]!r}")
        try:
            version = _VERSIONED.decode(data).metadata.resourceVersion
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise unreadable(self._asked, f"an event's object has no resourceVersion: {error}") from error
        return WatchEvent(kind, data, version)
