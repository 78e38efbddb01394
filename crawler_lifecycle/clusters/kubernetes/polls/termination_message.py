"""Messages from the runner: its summary in a container's termination message, and the lines that it
prints.

The runner writes its summary (JSON, at most 4 KiB) into the file that Kubernetes returns as the
container's message. A pod has 12 KiB for all its containers, so the message may be cut; then the
fields before the cut count. Without a summary, the message may be the end of the log
(``FallbackToLogsOnError``) or a message from the node about the container.

We cannot read a file inside a pod. So the runner also prints a line ``{"crawl_progress": {…}}``
every 30 s and at the end, and ``{"crawl_stats": {…}}`` before the last one. The crawler may print
other text around these lines, even on the same line. We trust none of this text: values of the
wrong type are left out.
"""

from __future__ import annotations

import contextlib
import json
import re
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Annotated, Any

import msgspec

from crawler_lifecycle.domain import bounds
from crawler_lifecycle.domain.blocked import BlockReport, read_blocked
from crawler_lifecycle.domain.coverage import FIELDS_MAX, Coverage, named
from crawler_lifecycle.domain.last_words import last_words, printable
from crawler_lifecycle.domain.task import Counters

#: The maximum number of characters that we keep of a message that our runner did not write.
FOREIGN_MAX = 500
#: Matches the machine-readable lines that our runner writes to a log.
_OURS = re.compile('"crawl_(progress|stats)"')

_Count = Annotated[int, msgspec.Meta(ge=0, le=bounds.COUNT_MAX)]
_Exit = Annotated[int, msgspec.Meta(ge=-bounds.INT_MAX, le=bounds.INT_MAX)]
_Signal = Annotated[int, msgspec.Meta(ge=1, le=bounds.SIGNAL_MAX)]


class _Coverage(msgspec.Struct, frozen=True, gc=False):
    """A complete ``Coverage`` whose types are valid."""

    items: Annotated[int, msgspec.Meta(ge=0, le=bounds.COUNT_MAX)]
    shares: dict[str, Annotated[float, msgspec.Meta(ge=0, le=1)]]
    note: str | None = None


class _RunnerMessage(msgspec.Struct, frozen=True, gc=False):
    """The fields that we read from a runner's report.

    A value of the wrong type is left out.
    """

    runner: str | None = None
    finish_reason: str | None = None
    finished_at: str | None = None
    updated_at: str | None = None
    told_to_stop: bool | None = None
    exit: _Exit | None = None
    own_exit: _Exit | None = None
    signal: _Signal | None = None
    message: str | None = None
    pages: _Count | None = None
    items: _Count | None = None
    errors: _Count | None = None
    bytes: _Count | None = None
    quiet_s: _Count | None = None
    resumed: bool | None = None
    resume_note: str | None = None
    code_wait: str | None = None
    peak_memory: _Count | None = None
    blocked: Any = None
    fields: _Coverage | None = None


_DECODER = msgspec.json.Decoder(_RunnerMessage)
_FIELDS = msgspec.structs.fields(_RunnerMessage)
_TEXT = str | None


class Progress(msgspec.Struct, frozen=True, gc=False):
    """The counters and the state that a runner reports in a log line or in its summary."""

    counters: Counters = Counters()
    at: datetime | None = None
    """The time when the crawler last wrote its counters."""
    quiet: timedelta | None = None
    """The time since the crawler's processes last wrote anything, when the line was printed;
    ``None`` if unknown.
    """
    resumed: bool | None = None
    resume_note: str | None = None
    blocked: tuple[BlockReport, ...] | None = None
    code_wait: str | None = None
    """The reason for which the crawler's code has not arrived yet."""


class Summary(msgspec.Struct, frozen=True, gc=False):
    """The content of a termination message. Missing fields are ``None``."""

    runner: bool = False
    """True when our runner wrote the message."""
    finish_reason: str | None = None
    exit: int | None = None
    """The exit code with which the runner was about to end."""
    own_exit: int | None = None
    """The exit code of a command, before the runner translated it."""
    told: bool | None = None
    """True when the runner had received a stop before the crawler ended."""
    signal: int | None = None
    """The signal that ended the crawler, the runner's child process."""
    message: str | None = None
    """The runner's message, or the last lines of any other text."""
    progress: Progress = Progress()
    peak_memory: int | None = None
    fields: Coverage | None = None


def read_summary(text: str | None) -> Summary:
    """Read a container's termination message.

    Raises nothing: text from another program is used only as a message.
    """
    if not text or not text.strip():
        return Summary()
    said = _said(text)
    if said is None or said.runner is None:
        return _foreign(text)
    return Summary(
        runner=True,
        finish_reason=clean(said.finish_reason, bounds.TEXT_MAX),
        exit=said.exit,
        own_exit=said.own_exit,
        signal=said.signal,
        told=said.told_to_stop,
        message=clean(said.message, bounds.TEXT_MAX),
        progress=_progress(said, said.finished_at),
        peak_memory=said.peak_memory,
        fields=_coverage(said.fields),
    )


@lru_cache(256)  # the pods of a run have the same messages
def clean(text: str | None, limit: int = FOREIGN_MAX) -> str | None:
    """Return the text as one line of at most ``limit`` characters, without a final full stop;
    ``None`` if empty.
    """
    if not text:
        return None
    words = " ".join(printable(text[: 4 * limit]).split())
    if len(words) > limit:
        return words[: limit - 2].rstrip() + " …"
    return words.removesuffix(".") or None


@lru_cache(64)  # pods of a run that fail in the same way have the same text
def _foreign(text: str) -> Summary:
    """Return the newest progress in a log tail, and the line with the error or, if there is none,
    the last lines.
    """
    progress = last_progress(text.encode("utf-8", "replace"))
    lines = [line for line in text.splitlines() if line.strip() and not _OURS.search(line)]
    words = clean(last_words(text, any_line=False) or "\n".join(lines)[-FOREIGN_MAX:])
    return Summary(
        message=words,
        progress=msgspec.structs.replace(progress or Progress(), quiet=None, code_wait=None),
    )


def _said(text: str) -> _RunnerMessage | None:
    if not text.lstrip().startswith("{"):
        return None
    # Part of the JSON is invalid or was cut.
    with contextlib.suppress(msgspec.MsgspecError, ValueError, RecursionError):
        return _DECODER.decode(text)
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return _valid(_before_the_cut(text)) if text.startswith('{"runner": ') else None
    return _valid(said) if isinstance(said, dict) else None


def _valid(said: dict[str, object]) -> _RunnerMessage:
    """Read each field separately, so that an invalid field does not hide the others."""
    good: dict[str, Any] = {}
    for field in _FIELDS:
        value = said.get(field.name)
        with contextlib.suppress(msgspec.ValidationError, UnicodeEncodeError):
            good[field.name] = (
                value
                if field.type == _TEXT and isinstance(value, str)
                else msgspec.convert(value, field.type)
            )
    fields = Coverage.of(said.get("fields"))
    return _RunnerMessage(
        **good | {"fields": fields and _Coverage(fields.items, dict(fields.shares), fields.note)}
    )


def _before_the_cut(text: str) -> dict[str, object]:
    """Return the complete fields of a cut summary. A field is complete if another field follows
    it.
    """
    decoder = json.JSONDecoder()
    position = 1
    said: dict[str, object] = {}
    with contextlib.suppress(ValueError, RecursionError):
        while True:
            name, position = decoder.raw_decode(text, position)
            value, position = decoder.raw_decode(text, position + len(": "))
            if not text.startswith(",", position):
                break
            said[str(name)] = value
            position += len(", ")
    return said


_PROGRESS = "crawl_progress"
_STATISTICS = "crawl_stats"


def last_progress(log: bytes) -> Progress | None:
    """Return the newest progress in this part of a log; ``None`` when there is none, which does not
    mean that the counters are zero.
    """
    found = _last(log, _PROGRESS)
    return None if found is None else _progress(said := _valid(found[2]), said.updated_at)


def split_statistics(log: bytes) -> tuple[bytes, dict[str, int | float] | None]:
    """Return the log without its newest line of statistics, and these statistics or ``None``."""
    found = _last(log, _STATISTICS)
    if found is None:
        return log, None
    begin, end, said = found
    return log[:begin] + log[end:], bounds.statistics(said)


def reported(progress: Progress, *, later: bool) -> dict[str, Any]:
    """Return the fields of an observation that its crawler reports: the counters and, if ``later``
    is true, whether the crawl was resumed.

    A first attempt has nothing to resume.
    """
    return {
        "counters": progress.counters,
        "progress_at": progress.at,
        "quiet": progress.quiet,
        "blocked": progress.blocked,
        "code_wait": progress.code_wait,
        "resumed": progress.resumed if later else None,
        "resume_note": progress.resume_note if later else None,
    }


def _last(log: bytes, kind: str) -> tuple[int, int, dict[str, object]] | None:
    """Return the beginning, the end and the content of the newest line of this kind."""
    mark = f'{{"{kind}": {{'.encode()
    before = len(log)
    while (begin := log.rfind(mark, 0, before)) >= 0:
        line = log[begin:].partition(b"\n")
        said = _body(line[0], kind)
        if said is not None:
            return begin, begin + len(line[0]) + len(line[1]), said
        before = begin
    return None


def _body(line: bytes, kind: str) -> dict[str, object] | None:
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):
        return None
    said = body.get(kind) if isinstance(body, dict) else None
    return said if isinstance(said, dict) else None


def _coverage(said: _Coverage | None) -> Coverage | None:
    usual = said is not None and said.items and not said.note
    if usual and said is not None and len(said.shares) <= FIELDS_MAX and named(tuple(said.shares)):
        return Coverage(said.items, said.shares)
    return Coverage.of(said and {"items": said.items, "shares": said.shares, "note": said.note})


def _progress(said: _RunnerMessage, at: str | None) -> Progress:
    return Progress(
        Counters(said.pages, said.items, said.errors, said.bytes),
        bounds.moment(at),
        None if said.quiet_s is None else timedelta(seconds=min(said.quiet_s, bounds.YEAR_S)),
        said.resumed,
        bounds.words(said.resume_note, bounds.NOTE_MAX),
        read_blocked(said.blocked),
        bounds.words(said.code_wait, bounds.NOTE_MAX),
    )
