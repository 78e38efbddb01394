"""JSON lines between a worker and a host process with users' code. Both sides use this module.

The worker sends calls ``{"call": name, ...}``. During a call, the worker also sends answers to
questions: ``{"answer": ...}`` or ``{"refused": text, "error": code}``. The host sends questions
``{"ask": name, "args": {...}}``, its position ``{"at": name, "item": id}``, its work so far
``{"did": ...}``, and the end of the call. The end is ``{"reply": ...}``, ``{"wrong": text}`` for an
error of the user's class, or ``{"broken": text}`` for any other exception. This module imports only
the standard library and ``domain``, because every host imports it.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, is_dataclass
from datetime import datetime
from typing import IO, Any, TypeVar

from crawler_lifecycle.domain import errors
from crawler_lifecycle.features.managers.domain.manager import EndedJob, Facts, Job, Live, Waiting

W = TypeVar("W", Live, Waiting)
#: A message between a worker and its process, or a part of such a message.
Message = Mapping[str, Any]

#: The maximum number of bytes in one message of a host, enough for a decision with a thousand
#: picks, or for a page.
MESSAGE_MAX = 4 * 1024 * 1024
#: The maximum number of characters in an error text, and in a name.
TEXT_MAX = 4000
NAME_MAX = 200


#: The maximum number of bytes in a frame's head, and in one chunk of its value.
HEAD_MAX = 64 * 1024
_CHUNK = 1024 * 1024


class FrameError(Exception):
    """Raised for a file that does not contain valid frames."""


def encode(message: Message) -> bytes:
    """Return a message as one line.

    Raises ``ValueError`` or ``TypeError`` for a value that is not JSON.
    """
    return (
        json.dumps(message, default=_plain, allow_nan=False, separators=(",", ":")).encode() + b"\n"
    )


def _plain(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} is not a JSON type")


def restored(kind: type[W], data: Message) -> W:
    """Return the ``Live`` or ``Waiting`` that ``encode`` has written."""
    return kind(**{**data, "job": Job(**data["job"])})


def facts(data: Message) -> Facts:
    """Return the ``Facts`` that ``encode`` has written."""
    ended = [EndedJob(**{**end, "live": restored(Live, end["live"])}) for end in data["ended"]]
    return Facts(**{**data, "ended": ended})


class Pipes:
    """The two pipes between this host process and its worker."""

    def __init__(self, reading: int, writing: int) -> None:
        self._read = os.fdopen(reading, "rb")
        self._write = os.fdopen(writing, "wb")
        self._me = os.getpid()
        self._asking = threading.Lock()
        self.open = False
        """True during a call. The worker answers questions only then."""

    def receive(self) -> dict[str, Any] | None:
        """Return the next message, or ``None`` if the worker has ended."""
        line = self._read.readline()
        return json.loads(line) if line else None

    def send(self, message: Message) -> None:
        """Send a message.

        For a value that is not JSON, send nothing and raise ``ValueError`` or ``TypeError``.
        """
        self._write.write(encode(message))
        self._write.flush()

    def reply(self, message: Message) -> None:
        """Send the end of the call after any question from another thread has been answered."""
        with self._asking:
            self.send(message)
            self.open = False

    def ask(self, name: str, /, **arguments: Any) -> Any:
        """Ask the worker a question and return its answer. Any thread may ask.

        Raises the error in the worker's answer, and ``ValueError`` outside of a call or in a forked
        process.
        """
        if os.getpid() != self._me:
            raise ValueError(
                f"{name}: a child process cannot ask; ask in the process that was called"
            )
        with self._asking:
            if not self.open:
                raise ValueError(f"{name}: the call is over; end all threads before you return")
            self.send({"ask": name, "args": arguments})
            answer = self.receive()
        if answer is None:
            os._exit(0)  # the worker has died
        if "refused" in answer:
            raise getattr(errors, answer["error"])(answer["refused"])
        return answer["answer"]

    def forget(self) -> None:
        """Close the pipes in a forked process, which must not answer for the original process."""
        for file in (self._read, self._write):
            with contextlib.suppress(OSError):
                os.close(file.fileno())


def write_frames(file: int, frames: Iterable[tuple[Message, Iterable[bytes]]], limit: int) -> int:
    """Replace the content of an open file with frames, and return the new size of the file in
    bytes.

    A frame is a head (a JSON line that describes the value) and the chunks of the value, which may
    have any size. Raises ``OverflowError`` above ``limit`` bytes.
    """
    size = 0
    os.ftruncate(file, 0)
    with _at_its_beginning(file, "wb") as out:
        for head, chunks in frames:
            size += out.write(encode(head))
            for chunk in filter(None, chunks):
                size += out.write(len(chunk).to_bytes(4)) + out.write(chunk)
                if size > limit:
                    raise OverflowError(f"more than {limit} bytes")
            size += out.write(bytes(4))
    return size


def read_frames(file: int, size: int) -> Iterator[tuple[bytes, Iterator[bytes]]]:
    """Yield the frames that ``write_frames`` has written: the head as JSON, and the chunks of the
    value.

    Read all chunks of a frame before the next frame. The file may have any content; invalid content
    raises ``FrameError``.
    """
    with _at_its_beginning(file, "rb") as found:
        while found.tell() < size:
            head = found.readline(HEAD_MAX)
            if not head.endswith(b"\n"):
                raise FrameError("a frame has no head")
            yield head, _chunks(found, size)


def _at_its_beginning(file: int, mode: str) -> IO[bytes]:
    """Return a new file object at the beginning of an open file that both sides share, with an
    empty buffer.
    """
    os.lseek(file, 0, os.SEEK_SET)
    return os.fdopen(os.dup(file), mode)


def _chunks(file: IO[bytes], size: int) -> Iterator[bytes]:
    while length := int.from_bytes(file.read(4)):
        left = min(length, size - file.tell())
        while left > 0 and (chunk := file.read(min(left, _CHUNK))):
            left -= len(chunk)
            length -= len(chunk)
            yield chunk
        if length:
            raise FrameError("a frame ends too early")
