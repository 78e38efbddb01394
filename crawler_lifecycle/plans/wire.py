"""JSON lines between a worker and a process with users' code; both sides use this module.

Worker to host: ``{"call": name, ...}`` and, while a call is under way, the answer to a question: ``{"answer": ...}`` or
``{"refused": text, "error": its name}``. Host to worker: questions ``{"ask": name, "args": {...}}``, where it is
``{"at": name, "item": id}``, what it has done so far ``{"did": ...}``, and the end of the call: ``{"reply": ...}``,
``{"wrong": text}`` for what the user's class did wrong, or ``{"broken": text}`` for any other exception. Standard
library only: every host pays for this import.
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
from crawler_lifecycle.domain.managers.manager import Ended, Facts, Job, Live, Waiting

W = TypeVar("W", Live, Waiting)

#: Bytes of one message of a host: a decision with a thousand picks, or a page with its frame.
MESSAGE_MAX = 4 * 1024 * 1024
#: Characters of a text about an error.
TEXT_MAX = 4000


#: The most bytes of the description of a value, and of a chunk of one.
HEAD_MAX, _CHUNK = 64 * 1024, 1024 * 1024


class FrameError(Exception):
    """A file with an unexpected content."""


def encode(message: Mapping[str, Any]) -> bytes:
    """One line. Raises ``ValueError`` and ``TypeError`` for what is no JSON."""
    return json.dumps(message, default=_plain, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def _plain(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} is no JSON")


def held(kind: type[W], data: Mapping[str, Any]) -> W:
    """The ``Live`` or ``Waiting`` that ``encode`` was given."""
    return kind(**{**data, "job": Job(**data["job"])})


def facts(data: Mapping[str, Any]) -> Facts:
    """The ``Facts`` that ``encode`` was given."""
    ended = [Ended(**{**one, "live": held(Live, one["live"])}) for one in data["ended"]]
    return Facts(**{**data, "ended": ended})


class Pipes:
    """The two pipes to the worker."""

    def __init__(self, reading: int, writing: int) -> None:
        self._read, self._write = os.fdopen(reading, "rb"), os.fdopen(writing, "wb")
        self._me, self._asking = os.getpid(), threading.Lock()
        self.open = False
        """True while a call is under way: questions are answered then, and at no other time."""

    def receive(self) -> dict[str, Any] | None:
        """The next message; ``None`` when the worker is gone."""
        line = self._read.readline()
        return json.loads(line) if line else None

    def send(self, message: Mapping[str, Any]) -> None:
        """Raises ``ValueError`` and ``TypeError`` for values that are no JSON, and then sends nothing."""
        self._write.write(encode(message))
        self._write.flush()

    def reply(self, message: Mapping[str, Any]) -> None:
        """End the call. A thread of the user that asks a question has its answer before."""
        with self._asking:
            self.send(message)
            self.open = False

    def ask(self, name: str, **arguments: Any) -> Any:
        """Return what the worker answers, from any thread. Raises what it refused as the error that it is, and
        ``ValueError`` where nobody would answer."""
        if os.getpid() != self._me:
            raise ValueError(f"{name}: only the process that was called may ask; ask there, and hand the answer on")
        with self._asking:
            if not self.open:
                raise ValueError(f"{name}: the call is over; let no thread outlive it")
            self.send({"ask": name, "args": arguments})
            answer = self.receive()
        if answer is None:
            os._exit(0)  # the worker has died
        if "refused" in answer:
            raise getattr(errors, answer["error"])(answer["refused"])
        return answer["answer"]

    def forget(self) -> None:
        """In a fork of this process: it must not answer for the original."""
        for file in (self._read, self._write):
            with contextlib.suppress(OSError):
                os.close(file.fileno())


def write_frames(file: int, frames: Iterable[tuple[Mapping[str, Any], Iterable[bytes]]], limit: int) -> int:
    """Replace the content of this open file by values of any size, each after its description. Returns the number of
    bytes. Raises ``OverflowError`` beyond ``limit``.
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
    """The values that ``write_frames`` has written: the description of each, as JSON, and its chunks; each is read to
    its end before the next. The file is not trusted: raises ``FrameError``.
    """
    with _at_its_beginning(file, "rb") as found:
        while found.tell() < size:
            head = found.readline(HEAD_MAX)
            if not head.endswith(b"\n"):
                raise FrameError("a frame without a head")
            yield head, _chunks(found, size)


def _at_its_beginning(file: int, mode: str) -> IO[bytes]:
    """The open file, which both sides share, without anything that was read from it before."""
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
            raise FrameError("a frame that ends too early")
