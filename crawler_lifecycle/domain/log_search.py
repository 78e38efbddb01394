"""Searches in a log of any size: the lines that contain a text or have a level, and the lines
around one line.

A log is read forwards in windows, so memory use does not depend on its size. Line numbers start at
1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from .last_words import ERROR_MARKS, Read, is_loud

#: The number of bytes that are read at once. A line with more bytes is searched in pieces of this
#: size.
WINDOW = 1024 * 1024
#: The maximum number of bytes before a line, and after the line, in an answer.
AROUND_MAX = 2 * 1024 * 1024
#: The maximum length of a search text, in characters.
TEXT_MAX = 200
#: The maximum number of bytes that are returned of one matching line.
LINE_MAX = 4096
_WARNING_MARKS = (b"warn", b"wrn")


class LineLevel(StrEnum):
    """The lowest level of the lines that a search returns."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class FoundLine:
    """One line of a log."""

    number: int
    at: int
    """The offset of the line, in bytes from the beginning of the log."""
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class LogQuery:
    """A search for lines that contain this text and have at least this level. The case of ASCII
    letters is ignored. If ``text`` or ``level`` is ``None``, it excludes no line.
    """

    text: str | None = None
    level: LineLevel | None = None

    @property
    def mark(self) -> bytes:
        """The text as bytes in lower case. Each matching line contains it."""
        return (self.text or "").encode().lower()

    @property
    def marks(self) -> tuple[bytes, ...]:
        """Byte strings in lower case. Each matching line contains at least one of them.

        Few lines of most logs contain a mark of a level, but any number of them a text.
        """
        if self.level is None:
            return (self.mark,)
        return ERROR_MARKS if self.level is LineLevel.ERROR else (*ERROR_MARKS, *_WARNING_MARKS)

    def fits(self, line: bytes) -> bool:
        """Return whether a line that contains one of the marks matches."""
        return self.level is None or (
            self.mark in line.lower()
            and is_loud(line.decode("utf-8", "replace"), warnings=self.level is LineLevel.WARNING)
        )


def search(
    read: Read,
    size: int,
    query: LogQuery,
    first: FoundLine,
    most: int,
    over: Callable[[], bool] = lambda: False,
) -> tuple[list[FoundLine], FoundLine | None]:
    """Return at most ``most`` matching lines, starting at the line ``first``, and the line at which
    the search has to continue.

    The second value is ``None`` if the search reached the end. ``over`` returns whether the search
    has to stop. It is called after each window, once the search has passed a line, so that every
    search advances.
    """
    found: list[FoundLine] = []
    number = first.number
    at = first.at
    rest = b""
    while at < size:
        data = rest + read(at, min(WINDOW, size - at))
        if len(data) == len(rest):
            break  # the log was truncated in the meantime
        begin = at - len(rest)
        at = begin + len(data)
        last = data.rfind(b"\n") + 1 or (len(data) if len(data) > WINDOW else 0)
        whole = data if at >= size else data[:last]
        rest = data[len(whole) :]
        counted = 0
        for start, end in _candidates(whole, query):
            line = whole[start:end]
            if not query.fits(line):
                continue
            if len(found) == most:
                return found, FoundLine(number + whole.count(b"\n", counted, start), begin + start)
            number += whole.count(b"\n", counted, start)
            counted = start
            found.append(FoundLine(number, begin + start, line[:LINE_MAX]))
        number += whole.count(b"\n", counted)
        if number > first.number and over():
            break
    return found, None if at >= size else FoundLine(number, at - len(rest))


def _candidates(data: bytes, query: LogQuery) -> Iterator[tuple[int, int]]:
    """Yield the start and end offset of each line that contains one of the marks, in order. Without
    the text in the data, there is none."""
    low = data.lower()
    if query.mark not in low:
        return
    positions = {mark: low.find(mark) for mark in query.marks}
    end = -1
    while found := [at for at in positions.values() if at >= 0]:
        at = min(found)
        start = data.rfind(b"\n", 0, at) + 1
        end = data.find(b"\n", at)
        end = len(data) if end < 0 else end
        yield start, end
        for mark, position in positions.items():
            if 0 <= position <= end:
                positions[mark] = low.find(mark, end + 1)


def line_at(read: Read, at: int) -> FoundLine:
    """Return the line that contains the offset, omitting the line's bytes."""
    number = 1
    begin = 0
    position = 0
    while position < at:
        data = read(position, min(WINDOW, at - position))
        if not data:
            break
        number += data.count(b"\n")
        begin = position + data.rfind(b"\n") + 1 if b"\n" in data else begin
        position += len(data)
    return FoundLine(number, begin)


def line_of(read: Read, size: int, number: int) -> FoundLine:
    """Return the line with this number or, if there is none, the last line of the log. The line's
    bytes are omitted."""
    passed = 1
    position = 0
    begin = 0
    while passed < number and position < size:
        data = read(position, min(WINDOW, size - position))
        if not data:
            break
        lines = data.count(b"\n")
        if passed + lines >= number:
            return FoundLine(number, position + _nth(data, number - passed) + 1)
        passed += lines
        begin = position + data.rfind(b"\n") + 1 if lines else begin
        position += len(data)
    return FoundLine(passed, begin)


def _nth(data: bytes, count: int) -> int:
    """Return the position of the ``count``-th line break, counted from 1."""
    at = -1
    for _ in range(count):
        at = data.index(b"\n", at + 1)
    return at


def lines_around(read: Read, size: int, line: FoundLine, before: int, after: int) -> FoundLine:
    """Return the lines around this one as one block: the number and offset of its first line, and
    the content of all its lines."""
    begin = max(0, line.at - AROUND_MAX)
    earlier = read(begin, line.at - begin)
    start = _back(earlier, before)
    if start == 0 and begin:  # the first line may have been cut
        start = earlier.find(b"\n") + 1
    kept = earlier[start:]
    later = read(line.at, min(AROUND_MAX, size - line.at))
    end = -1
    for _ in range(after + 1):
        end = later.find(b"\n", end + 1)
        if end < 0:
            break
    text = later if end < 0 else later[: end + 1]
    return FoundLine(line.number - kept.count(b"\n"), line.at - len(kept), kept + text)


def _back(data: bytes, lines: int) -> int:
    """Return the position at which the last ``lines`` lines of ``data`` begin. ``data`` ends with a
    line end."""
    at = len(data)
    for _ in range(lines):
        at = data.rfind(b"\n", 0, max(at - 1, 0)) + 1
        if at == 0:
            return 0
    return at
