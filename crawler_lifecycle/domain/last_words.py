"""Last words: the line in a crawler's log that explains why the crawler failed, and the offset of
this line. It is the last line with which a logger, a language or a shell reports an error. Stack
traces and statistics can follow this line. A record with a lower level than error is not an error,
whatever its text. The functions are pure and accept any input.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .task import LOG_TAIL_BYTES, Change, End, TaskStatus

#: The maximum length of a shortened line. If a line is longer, its beginning and its end are kept,
#: with a hash of the whole line between them.
ERROR_MAX = 300
_BEGIN = 200
_END = 80
#: Only this many characters at the end of a line are read.
_LINE_MAX = 16 * 1024
#: The number of bytes of a log that are searched at once, and the maximum number of bytes, counted
#: from the end, that are searched for an error.
_WINDOW = 1024 * 1024
SEARCH_MAX = 32 * 1024 * 1024
#: The number of bytes that are kept before and after the last error in a log, if the error is not
#: near the end.
_BEFORE = 4000
_AFTER = 2000

#: Escape sequences for a terminal, such as colours.
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
#: Lines that our own runner prints.
_OURS = re.compile(r'\[runner\] |\{"crawl_(progress|stats)"')
#: The frame of ``|`` and ``+`` that Python draws around groups of exceptions.
_GROUP = re.compile(r"^\s+(?:[|+] |\+-[-+]*(?: \d+ -+)?$)")
#: Meaningless characters at both ends of a line.
_NOISE = " \ufffd"
_TRACEBACK = "Traceback (most recent call last):"
#: Patterns of lines that report an error. The group ``told`` is the part to keep.
_ERROR_LINES = (
    # Python, Node, Java, C#: shop.errors.PriceError: …, Error [ERR_X]: …, Caused by: …, Exception
    # in thread "main" …
    re.compile(
        r"(?:Uncaught |Caused by: |Exception in thread \".*?\" |Unhandled exception\. )?"
        r"(?P<told>(?:[\w$]+\.)*[\w$]*(?:Error|Exception|Interrupt|Timeout)(?: \[\w+\])?(?:: .*)?)$"
    ),
    # messages of Go, Rust, git and many other programs
    re.compile(
        r"(?P<told>(?:panic|fatal|error|(?:fatal|PHP Fatal|Fatal Python) error|thread '.*' "
        r"panicked at)[: ].+)$"
    ),
    # messages of shells
    re.compile(
        r"(?P<told>(?:\S+: ){1,3}(?:.*command not found(?:: \S+)?|\S+: not found"
        r"|.*: (?:No such file or directory|Permission denied)))$"
    ),
)
_LOUD = "CRITICAL|CRIT|DPANIC|EMERGENCY|ERROR|ERR|FATAL|PANIC|SEVERE"
_QUIET = "DEBUG|DBG|INFO|INF|NOTICE|TRACE|TRC|VERBOSE|WARNING|WARN|WRN"
#: The level of a record, as loggers in Python, Node, Go, Java and Rust write it. The first level in
#: a line counts.
_LEVEL = re.compile(
    rf"(?<![^\s\[|<(:=\"])({_LOUD}|{_QUIET})(?![^\s\]|>):=/!,\"])"
    rf"|\[((?i:{_LOUD}|{_QUIET}))\s*\]"
    rf"|\b(?:level|lvl|severity)=\"?((?i:{_LOUD}|{_QUIET}))\b"
    rf"|^((?i:{_QUIET})):(?=\s)"
    r"|^([EFIWD])\d{4} [\d:.]+ +\d+ [^\]]*\]"  # klog of Go
)
#: Characters between a level and its message.
_AFTER_LEVEL = re.compile(r"[\s\]|>):=/!,\"-]*(?:\(\d+\):?\s+)?")
#: The level is searched for in this many characters at the beginning of a line, because dates and
#: names of loggers can precede it.
_HEAD = 120
_LOUD_WORDS = frozenset({*_LOUD.split("|"), "ALERT", "EMERG", "E", "F"})
_WARNINGS = frozenset({"WARNING", "WARN", "WRN", "W"})
#: Byte strings in lower case. Each line that reports an error contains at least one of them.
ERROR_MARKS = tuple(
    mark.encode()
    for mark in (
        *("alert", "crit", "emerg", "err", "exception", "fatal", "interrupt", "panic", "sever"),
        *("timeout", "traceback", "not found", "no such file", "permission denied"),
        *("level", "lvl", '"@l', ".go:", ".cc:"),
    )
)
#: Keys in JSON records, the lowest level of an error in Node's loggers, and the highest level of an
#: error in syslog.
_LEVEL_KEYS = ("level", "severity", "levelname", "lvl", "log.level", "logLevel", "@level", "@l")
_TEXT_KEYS = ("msg", "message", "@m", "event")
_CAUSE_KEYS = ("err", "error", "exception", "exc_info")
_NODE_ERROR = 50
_SYSLOG_ERROR = 3
_NODE_WARNING = 40
_SYSLOG_WARNING = 4

#: Returns at most this number of bytes from a log, starting at this position.
Read = Callable[[int, int], bytes]
_Lines = list[tuple[int, str]]


@dataclass(frozen=True, slots=True)
class Words:
    """A line that reports an error."""

    text: str
    at: int
    """The offset of the line, in bytes from the beginning of the log."""
    sure: bool = True
    """False if the line belongs to a record with a lower level, after which the crawler
    continued."""


def is_loud(line: str, *, warnings: bool = False) -> bool:
    """Return whether a line in a log reports an error or, if ``warnings`` is true, a warning. A
    line without a level is judged by its form, such as the form of the last line of a stack trace.
    """
    line = printable(_ANSI.sub("", line[:_LINE_MAX])).rstrip()
    record = _level(line)
    if record is None:
        return line.endswith(_TRACEBACK) or any(rule.match(line) for rule in _ERROR_LINES)
    quiet, _, word = record
    return not quiet or (warnings and word in _WARNINGS)


def error_of(change: Change, end: End | None, log: str | None) -> str | None:
    """Return the line that explains why a task failed: the runner's message, or the last error in
    the task's log. The line may contain secrets. Return ``None`` if the task did not fail, or if
    the task was ended from outside, so that its log does not contain the reason.
    """
    if end is None or change.after is not TaskStatus.FAILED:
        return None
    if change.outcome not in ("failed", "banned", end.finish_reason):
        return None
    return end.message or last_words(log or "", any_line=end.signal is None and bool(end.exit_code))


def last_words(log: str, *, any_line: bool = True) -> str | None:
    """Return the whole line that explains why a crawler failed, or ``None`` if there is no such
    line.

    If no line reports an error and ``any_line`` is true, return the last line that is not blank.
    """
    lines = list(_lines(log.encode("utf-8", "replace")))
    found = _found(lines)
    if found is not None:
        return found.text
    # If no line reports an error, the last line is a guess, unless the crawler's logger gave it a
    # lower level.
    guess = lines[-1][1] if any_line and lines and _level(lines[-1][1]) is None else ""
    return guess.strip(_NOISE) or None


def last_error(read: Read, size: int, most: int = SEARCH_MAX) -> Words | None:
    """Return the last error in a log with this size. The last ``most`` bytes are searched backwards
    from the end.
    """
    doubtful = None
    end = size
    while end > max(0, size - most):
        begin = max(0, end - _WINDOW)
        # A trace that begins in this window ends in the window after it. The first line may be cut;
        # the next window contains the complete line.
        part = read(begin, min(end + _LINE_MAX, size) - begin)
        low = part.lower()
        if not any(mark in low for mark in ERROR_MARKS):
            end = begin
            continue
        lines = [(begin + at, line) for at, line in _lines(part) if at or not begin]
        found = _found(lines, ended=end == size)
        if found is not None and found.sure:
            return found
        doubtful, end = doubtful or found, begin
    return doubtful


def kept_log(read: Read, size: int, *, failed: bool) -> bytes:
    """Return the part of a log that is kept, at most ``LOG_TAIL_BYTES``. This part is the end of
    the log. If the crawler failed, the lines around the last error precede the end.
    """
    begin = max(0, size - LOG_TAIL_BYTES)
    end = read(begin, LOG_TAIL_BYTES)
    found = last_error(read, size) if begin and failed else None
    if found is None or found.at >= begin:
        return end
    first = max(0, found.at - _BEFORE)
    around = read(first, _BEFORE + _AFTER)
    left_out = (
        b"\n[runner] Lines of the log are left out here; above are those around its last error\n"
    )
    return around + left_out + end[len(around) + len(left_out) :]


def _found(lines: _Lines, *, ended: bool = True) -> Words | None:
    """Return the last line that reports an error.

    ``ended`` is true if the log ends after these lines.
    """
    sure = doubtful = None
    quiet = frames = False
    last_record = -1
    for n, (_, line) in enumerate(lines):
        record = _level(line)
        if record is not None:
            last_record = n
            frames = False
            quiet, told, _ = record
        elif line.endswith(_TRACEBACK):
            frames = True
            continue
        elif frames and not line.startswith(" "):
            frames = False
            told = line
        else:
            match = next((match for rule in _ERROR_LINES if (match := rule.match(line))), None)
            told = match["told"] if match else ""
        if told and not quiet:
            sure = (n, told)
        elif told and record is None:
            doubtful = (n, told)
    # Lines after a record with a lower level usually belong to that record. At the end of the log,
    # such lines come from a crash instead.
    if ended and doubtful is not None and doubtful[0] > last_record:
        sure = doubtful
    best = sure or doubtful
    if best is None:
        return None
    n, told = best
    if told.endswith(":") and n + 1 < len(lines):
        told = f"{told} {lines[n + 1][1].strip()}"  # the message begins on the next line
    return Words(told.strip(_NOISE), lines[n][0], best is sure)


def _level(line: str) -> tuple[bool, str, str] | None:
    """Return whether the level of a record is below an error, the record's message, and the word
    for the level. Return ``None`` if the line is not a record.
    """
    if line.startswith("{"):
        return _json_level(line)
    match = _LEVEL.search(line, 0, _HEAD)
    if match is None or _ERROR_LINES[0].match(line):
        return None
    word = next(filter(None, match.groups())).upper()
    rest = line[match.end() :]
    message = rest[_AFTER_LEVEL.match(rest).end() :]  # type: ignore[union-attr]
    return word not in _LOUD_WORDS, message, word


def _json_level(line: str) -> tuple[bool, str, str] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    level = next((record[key] for key in _LEVEL_KEYS if record.get(key)), None)
    if isinstance(level, int | float):
        loud = level <= _SYSLOG_ERROR or level >= _NODE_ERROR
    elif level:
        loud = str(level).upper() in _LOUD_WORDS
    else:
        return None
    said = []
    for keys in (_TEXT_KEYS, _CAUSE_KEYS):
        text = next((record[key] for key in keys if record.get(key)), "")
        text = text.get("message", "") if isinstance(text, dict) else text
        # The last line of a Python trace is the error.
        said.append(str(text).strip().rpartition("\n")[2])
    word = "WARN" if level in (_NODE_WARNING, _SYSLOG_WARNING) else str(level).upper()
    return not loud, printable(": ".join(filter(None, said))), word


def short(line: str) -> str:
    """Return the line, cut to ``ERROR_MAX`` characters. Two lines that differ before the cut differ
    after the cut too.
    """
    if len(line) <= ERROR_MAX:
        return line
    mark = hashlib.sha256(line.encode("utf-8", "replace")).hexdigest()[:6]
    return f"{line[:_BEGIN].rstrip()} …{mark}… {line[-_END:].lstrip()}"


def printable(text: str) -> str:
    """Return the text with each character that is not printable replaced by a space."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def _lines(log: bytes) -> Iterator[tuple[int, str]]:
    """Yield the offset of each line, and the text that a terminal shows for the line. Blank lines
    and lines written by our runner are left out.
    """
    at = 0
    for raw in log.split(b"\n"):
        text = raw[-_LINE_MAX:].decode("utf-8", "replace")
        # A progress bar overwrites itself, so only the text after its last carriage return is
        # visible.
        over = [part for part in _ANSI.sub("", text.replace("\0", "")).split("\r") if part.strip()]
        line = printable(_GROUP.sub("", over[-1])).rstrip() if over else ""
        if line.strip() and not _OURS.match(line):
            yield at, line
        at += len(raw) + 1
