"""Last words: the one line in the end of a crawler's log that says why it failed. Pure, and total for any text.

The last line that a language, a shell or a logger writes for an error counts, wherever it stands in that end: stack
traces, statistics and farewells follow it. Without such a line it is the last line that is not blank.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator

from .task import Change, End, TaskStatus

#: Characters of what is told; of a longer line its beginning and its end, and between them a mark of the whole.
ERROR_MAX = 300
_BEGIN, _END = 200, 80
#: Characters of a line that are looked into, and lines.
_LINE_MAX, _LINES_MAX = 16 * 1024, 2000

#: Colours and other commands to a terminal.
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
#: Lines that our runner prints, for people and for programs.
_OURS = re.compile(r'\[runner\] |\{"crawl_(progress|stats)"')
#: The frame that Python draws around groups of exceptions.
_GROUP = re.compile(r"^\s+(?:[|+] |\+-[-+]*(?: \d+ -+)?$)")
_TRACEBACK = "Traceback (most recent call last):"
#: Lines that tell of an error, and the part that does.
_TELLING = (
    # Python, Node, Java, C#: shop.errors.PriceError: …, Error [ERR_X]: …, Caused by: …, Exception in thread "main" …
    re.compile(
        r"(?:Uncaught |Caused by: |Exception in thread \".*?\" |Unhandled exception\. )?"
        r"(?P<told>(?:[\w$]+\.)*[\w$]*(?:Error|Exception|Interrupt|Timeout)(?: \[\w+\])?(?:: .*)?)$"
    ),
    # Go, Rust, git and many others
    re.compile(
        r"(?P<told>(?:panic|fatal|error|(?:fatal|PHP Fatal|Fatal Python) error|thread '.*' panicked at)[: ].+)$"
    ),
    # shells
    re.compile(
        r"(?P<told>(?:\S+: ){1,3}(?:.*command not found(?:: \S+)?|\S+: not found"
        r"|.*: (?:No such file or directory|Permission denied)))$"
    ),
    # loggers, Scrapy's among them; their time would make the same trouble look different
    re.compile(
        r"(?!.{0,100}\b(?:DEBUG|INFO|WARN(?:ING)?)\b)(?:.{0,100}?[\s\[])?"
        r"(?:CRITICAL|ERROR|FATAL)\]?[:\s]\s*(?P<told>\S.*)$"
    ),
)


def error_of(change: Change, end: End | None, log: str | None) -> str | None:
    """The line that says why a task failed by itself: its runner's word, else that of its log. It is not redacted.

    ``None`` for one that did not fail, or was ended by others: what it printed before says nothing of that.
    """
    if end is None or change.after is not TaskStatus.FAILED:
        return None
    if change.outcome not in ("failed", "banned", end.finish_reason):
        return None
    return end.message or last_words(log or "", any_line=end.signal is None and bool(end.exit_code))


def last_words(log: str, *, any_line: bool = True) -> str | None:
    """The whole line that says why; ``None`` where none does.

    ``any_line``: the last line that is not blank, where no line tells of an error.
    """
    lines = list(_lines(log))
    place, told, frames = -1, "", False
    for n, line in enumerate(lines):
        if line.endswith(_TRACEBACK):
            frames = True
        elif frames and not line.startswith(" "):
            place, told, frames = n, line, False
        elif found := next((found for rule in _TELLING if (found := rule.match(line))), None):
            place, told = n, found["told"]
    if place < 0 and any_line and lines:
        told = lines[-1]
    elif told.endswith(":") and place + 1 < len(lines):
        told = f"{told} {lines[place + 1].strip()}"  # the words begin on the next line
    return told.strip(" \ufffd") or None


def short(line: str) -> str:
    """The line within ``ERROR_MAX`` characters. Of two long lines that differ, the short ones differ too."""
    if len(line) <= ERROR_MAX:
        return line
    mark = hashlib.sha256(line.encode("utf-8", "replace")).hexdigest()[:6]
    return f"{line[:_BEGIN].rstrip()} …{mark}… {line[-_END:].lstrip()}"


def printable(text: str) -> str:
    """The text with a space for everything that is no visible character."""
    return text if text.isprintable() else "".join(c if c.isprintable() else " " for c in text)


def _lines(log: str) -> Iterator[str]:
    """The lines as a terminal shows them, without what is ours, blank, or no character."""
    for raw in log.replace("\0", "").split("\n")[-_LINES_MAX:]:
        # A progress bar draws over itself.
        over = [part for part in _ANSI.sub("", raw[-_LINE_MAX:]).split("\r") if part.strip()]
        line = printable(_GROUP.sub("", over[-1])).rstrip() if over else ""
        if line.strip() and not _OURS.match(line):
            yield line
