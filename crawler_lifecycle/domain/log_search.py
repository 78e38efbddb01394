"""Searches in a log of any size: the lines with a text or a level, and the lines around one line.

A log is read forwards in windows, so that its size costs no memory. Lines have numbers from 1 on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from .last_words import ERROR_MARKS, Read, is_loud

#: The bytes that are read at once. A longer line is searched in pieces of this size.
WINDOW = 1024 * 1024
#: The most bytes of lines before, and of lines after, the line in an answer.
AROUND_MAX = 2 * 1024 * 1024
#: The most characters of a text that is searched.
TEXT_MAX = 200
#: The most bytes of one found line that are returned.
LINE_MAX = 4096
_WARNING_MARKS = (b"warn", b"wrn")


class LineLevel(StrEnum):
    """The least level of lines that are searched."""

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
    """A search: lines with this text, in which the case of ASCII letters does not count, and at
    least of this level.

    ``None`` as ``text`` or ``level`` excludes no line.
    """

    text: str | None = None
    level: LineLevel | None = None

    @property
    def marks(self) -> tuple[bytes, ...]:
        """Return bytes in lower case, of which each line that fits contains at least one."""
        if self.text:
            return (self.text.encode().lower(),)
        return ERROR_MARKS if self.level is LineLevel.ERROR else (*ERROR_MARKS, *_WARNING_MARKS)

    def fits(self, line: bytes) -> bool:
        """Return whether a line that contains a mark has the level."""
        return self.level is None or is_loud(
            line.decode("utf-8", "replace"), warnings=self.level is LineLevel.WARNING
        )


def search(
    read: Read,
    size: int,
    query: LogQuery,
    first: FoundLine,
    most: int,
    over: Callable[[], bool] = lambda: False,
) -> tuple[list[FoundLine], FoundLine | None]:
    """Return at most ``most`` lines that fit, from the line ``first`` on, and the line at which the
    search has to continue.

    The second value is ``None`` when the whole log was searched. ``over`` is asked before each
    window whether the search has to stop.
    """
    found: list[FoundLine] = []
    number = first.number
    at = first.at
    rest = b""
    while at < size and not over():
        data = rest + read(at, min(WINDOW, size - at))
        if len(data) == len(rest):
            break  # the log was shortened meanwhile
        begin = at - len(rest)
        at = begin + len(data)
        last = data.rfind(b"\n") + 1 or (len(data) if len(data) > WINDOW else 0)
        whole = data if at >= size else data[:last]
        rest = data[len(whole) :]
        counted = 0
        for start, end in _candidates(whole, query.marks):
            line = whole[start:end]
            if not query.fits(line):
                continue
            if len(found) == most:
                return found, FoundLine(number + whole.count(b"\n", counted, start), begin + start)
            number += whole.count(b"\n", counted, start)
            counted = start
            found.append(FoundLine(number, begin + start, line[:LINE_MAX]))
        number += whole.count(b"\n", counted)
    return found, None if at >= size else FoundLine(number, at - len(rest))


def _candidates(data: bytes, marks: tuple[bytes, ...]) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each line that contains one of the marks, in order."""
    low = data.lower()
    positions = {mark: low.find(mark) for mark in marks}
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
    """Return the line that contains the offset, without its bytes."""
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
    """Return the line with this number, or else the last line of the log, without its bytes."""
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
    """Return the position of the line end with this count, from 1 on."""
    at = -1
    for _ in range(count):
        at = data.index(b"\n", at + 1)
    return at


def lines_around(read: Read, size: int, line: FoundLine, before: int, after: int) -> FoundLine:
    """Return the lines around this one as one piece: its first line, and the bytes of all lines."""
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
    """Return the position at which the last lines of these begin. ``data`` ends with a line end."""
    at = len(data)
    for _ in range(lines):
        at = data.rfind(b"\n", 0, max(at - 1, 0)) + 1
        if at == 0:
            return 0
    return at
