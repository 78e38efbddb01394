"""Last words: the one line near the end of a crawler's log that says why the crawler failed.

It is the last line that a language, a shell or a logger writes for an error. Stack traces and statistics may follow it.
Without such a line it is the last line that is not blank. The functions are pure and accept any text.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

from .task import Change, End, TaskStatus

#: The most characters of a short line. A longer line keeps its beginning and its end, with a hash of the whole between.
ERROR_MAX = 300
_BEGIN, _END = 200, 80
#: The last characters of a line, and the last lines of a log, that are read.
_LINE_MAX, _LINES_MAX = 16 * 1024, 2000

#: Colours and other escape sequences of a terminal.
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
#: Lines that our own runner prints.
_OURS = re.compile(r'\[runner\] |\{"crawl_(progress|stats)"')
#: The frame of ``|`` and ``+`` that Python draws around groups of exceptions.
_GROUP = re.compile(r"^\s+(?:[|+] |\+-[-+]*(?: \d+ -+)?$)")
_TRACEBACK = "Traceback (most recent call last):"
#: Patterns of lines that report an error. The group ``told`` is the part that is kept.
_ERROR_LINES = (
    # Python, Node, Java, C#: shop.errors.PriceError: …, Error [ERR_X]: …, Caused by: …, Exception in thread "main" …
    re.compile(
        r"(?:Uncaught |Caused by: |Exception in thread \".*?\" |Unhandled exception\. )?"
        r"(?P<told>(?:[\w$]+\.)*[\w$]*(?:Error|Exception|Interrupt|Timeout)(?: \[\w+\])?(?:: .*)?)$"
    ),
    # messages of Go, Rust, git and many other programs
    re.compile(
        r"(?P<told>(?:panic|fatal|error|(?:fatal|PHP Fatal|Fatal Python) error|thread '.*' panicked at)[: ].+)$"
    ),
    # messages of shells
    re.compile(
        r"(?P<told>(?:\S+: ){1,3}(?:.*command not found(?:: \S+)?|\S+: not found"
        r"|.*: (?:No such file or directory|Permission denied)))$"
    ),
    # lines of loggers, such as Scrapy's; without their time, because equal errors should give equal lines
    re.compile(
        r"(?!.{0,100}\b(?:DEBUG|INFO|WARN(?:ING)?)\b)(?:.{0,100}?[\s\[])?"
        r"(?:CRITICAL|ERROR|FATAL)\]?[:\s]\s*(?P<told>\S.*)$"
    ),
)


def error_of(change: Change, end: End | None, log: str | None) -> str | None:
    """Return the line that says why a task failed: its runner's message, or the last words of its log.

    The line may contain secrets. ``None``: the task did not fail, or somebody else ended it, so its log does not say
    why.
    """
    if end is None or change.after is not TaskStatus.FAILED:
        return None
    if change.outcome not in ("failed", "banned", end.finish_reason):
        return None
    return end.message or last_words(log or "", any_line=end.signal is None and bool(end.exit_code))


def last_words(log: str, *, any_line: bool = True) -> str | None:
    """Return the whole line that says why a crawler failed; ``None``: no line does.

    ``any_line``: without a line that reports an error, return the last line that is not blank.
    """
    lines = list(_lines(log))
    found_at, told, frames = -1, "", False
    for n, line in enumerate(lines):
        if line.endswith(_TRACEBACK):
            frames = True
        elif frames and not line.startswith(" "):
            found_at, told, frames = n, line, False
        elif found := next((found for rule in _ERROR_LINES if (found := rule.match(line))), None):
            found_at, told = n, found["told"]
    if found_at < 0 and any_line and lines:
        told = lines[-1]
    elif told.endswith(":") and found_at + 1 < len(lines):
        told = f"{told} {lines[found_at + 1].strip()}"  # the message begins on the next line
    return told.strip(" \ufffd") or None


def short(line: str) -> str:
    """Return the line cut to ``ERROR_MAX`` characters. Different lines stay different."""
    if len(line) <= ERROR_MAX:
        return line
    mark = hashlib.sha256(line.encode("utf-8", "replace")).hexdigest()[:6]
    return f"{line[:_BEGIN].rstrip()} …{mark}… {line[-_END:].lstrip()}"


def printable(text: str) -> str:
    """Return the text with a space in place of each character that is not printable."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def _lines(log: str) -> Iterator[str]:
    """Yield the lines as a terminal shows them, without blank lines and the lines of our own runner."""
    for raw in log.replace("\0", "").split("\n")[-_LINES_MAX:]:
        # A progress bar overwrites itself: only the text after its last carriage return is visible.
        over = [part for part in _ANSI.sub("", raw[-_LINE_MAX:]).split("\r") if part.strip()]
        line = printable(_GROUP.sub("", over[-1])).rstrip() if over else ""
        if line.strip() and not _OURS.match(line):
            yield line
