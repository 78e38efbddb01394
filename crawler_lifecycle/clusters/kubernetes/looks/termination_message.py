"""Messages of the runner: its summary in the termination message of a container, and the lines that it prints.

The runner writes its summary (JSON, at most 4 KiB) into the file that Kubernetes shows as the container's message. A
pod has 12 KiB for all its containers, so it may be cut: then the words before the cut count. Where the runner could not
write, the message is the end of the log (``FallbackToLogsOnError``), or what the node says of the container.

Nobody can read a file inside a pod, so our runner also prints a line ``{"crawl_progress": {…}}`` every 30 s and at the
end, and before that last one ``{"crawl_stats": {…}}``. Other output of the crawler may surround these lines, also on
the same line. Nothing of this is trusted: a value of another type than the runner writes is left out.
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from crawler_lifecycle.domain import bounds
from crawler_lifecycle.domain.coverage import Coverage
from crawler_lifecycle.domain.last_words import last_words
from crawler_lifecycle.domain.task import Counters, Observation

#: Characters of a foreign message that are kept.
FOREIGN_MAX = 500
#: Lines of a log that our runner printed for programs.
_OURS = re.compile('"crawl_(progress|stats)"')


@dataclass(frozen=True, slots=True)
class Progress:
    """The counters and the state that a runner reports, in a line of a log or in its summary."""

    counters: Counters = field(default_factory=Counters)
    at: datetime | None = None
    """The time when the crawler last wrote its counters."""
    quiet: timedelta | None = None
    """Seconds for which the crawler had written no counters when the line was printed, if it ever wrote any."""
    resumed: bool | None = None
    resume_note: str | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """The content of the message; all fields are ``None`` where it has none."""

    runner: bool = False
    """True when our runner wrote it."""
    finish_reason: str | None = None
    exit: int | None = None
    """The exit code that the runner was about to end with."""
    own_exit: int | None = None
    """The exit code of a command, before the runner translated it."""
    told: bool | None = None
    """True when the crawler had received a stop before it ended."""
    signal: int | None = None
    """The signal that ended the crawler below the runner."""
    message: str | None = None
    """In words: the runner's, or the last lines of the foreign text."""
    progress: Progress = field(default_factory=Progress)
    peak_memory: int | None = None
    fields: Coverage | None = None


def read_summary(text: str | None) -> Summary:
    """Read a container's termination message. Never fails: foreign text is a message and nothing more."""
    if not text or not text.strip():
        return Summary()
    said = _object(text)
    if said is None or not isinstance(said.get("runner"), str):
        return _foreign(text)
    told = said.get("told_to_stop")
    return Summary(
        runner=True,
        finish_reason=_text(said, "finish_reason"),
        exit=bounds.exit_code(said.get("exit")),
        own_exit=bounds.exit_code(said.get("own_exit")),
        signal=bounds.exit_signal(said.get("signal")),
        told=told if isinstance(told, bool) else None,
        message=_text(said, "message"),
        progress=_progress(said, "finished_at"),
        peak_memory=bounds.count(said.get("peak_memory")),
        fields=Coverage.of(said.get("fields")),
    )


def clean(text: str | None, limit: int = FOREIGN_MAX) -> str | None:
    """One line of at most ``limit`` characters, without its last full stop; ``None`` for an empty one."""
    if not text:
        return None
    text = text[: 4 * limit]
    words = " ".join((text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)).split())
    if len(words) > limit:
        return words[: limit - 2].rstrip() + " …"
    return words.removesuffix(".") or None


def _foreign(text: str) -> Summary:
    """A log tail: the newest progress in it counts, and for a person the line that says why, or else the last words."""
    progress = last_progress(text.encode("utf-8", "replace"))
    lines = [line for line in text.splitlines() if line.strip() and not _OURS.search(line)]
    words = clean(last_words(text, any_line=False) or "\n".join(lines)[-FOREIGN_MAX:])
    return Summary(message=words, progress=replace(progress, quiet=None) if progress is not None else Progress())


def _object(text: str) -> dict[str, object] | None:
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        return _before_the_cut(text) if text.startswith('{"runner": ') else None
    return said if isinstance(said, dict) else None


def _before_the_cut(text: str) -> dict[str, object]:
    """The words of a summary that are surely whole: something follows each of them."""
    decoder, place = json.JSONDecoder(), 1
    said: dict[str, object] = {}
    with contextlib.suppress(ValueError, RecursionError):
        while True:
            name, place = decoder.raw_decode(text, place)
            value, place = decoder.raw_decode(text, place + len(": "))
            if not text.startswith(",", place):
                break
            said[str(name)] = value
            place += len(", ")
    return said


def _text(said: dict[str, object], name: str) -> str | None:
    value = said.get(name)
    return clean(value, bounds.TEXT_MAX) if isinstance(value, str) else None


_PROGRESS, _STATISTICS = "crawl_progress", "crawl_stats"


def last_progress(log: bytes) -> Progress | None:
    """The newest progress in this piece of log; ``None`` when there is none, which does not mean zero."""
    found = _last(log, _PROGRESS)
    return None if found is None else _progress(found[2], "updated_at")


def split_statistics(log: bytes) -> tuple[bytes, dict[str, int | float] | None]:
    """The log without its newest line of statistics, and these statistics; ``None`` when there is none."""
    found = _last(log, _STATISTICS)
    if found is None:
        return log, None
    begin, end, said = found
    return log[:begin] + log[end:], bounds.statistics(said)


def with_progress(seen: Observation, progress: Progress) -> Observation:
    """The observation with the counters of its crawler."""
    later = seen.attempt > 1  # a first attempt has nothing to resume
    return replace(
        seen,
        counters=progress.counters,
        progress_at=progress.at,
        quiet=progress.quiet,
        resumed=progress.resumed if later else None,
        resume_note=progress.resume_note if later else None,
    )


def _last(log: bytes, kind: str) -> tuple[int, int, dict[str, object]] | None:
    """Find the newest line of this kind: return its beginning, its end, and its content."""
    mark, before = f'{{"{kind}": {{'.encode(), len(log)
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


def _progress(said: dict[str, object], at: str) -> Progress:
    resumed, quiet_s = said.get("resumed"), bounds.count(said.get("quiet_s"))
    return Progress(
        Counters(*(bounds.count(said.get(name)) for name in ("pages", "items", "errors", "bytes"))),
        bounds.moment(said.get(at)),
        None if quiet_s is None else timedelta(seconds=min(quiet_s, bounds.YEAR_S)),
        resumed if isinstance(resumed, bool) else None,
        bounds.words(said.get("resume_note"), bounds.NOTE_MAX),
    )
