"""The reader of items, which turns the bytes of a file into items.

The runner uses it to count items, and all other components use it to show them.

Crawlers write these files, so they may contain any bytes. Data that cannot be read is skipped and
counted, and a sentence reports its position. The result depends only on the bytes, never on how
they are split, because the reader may follow a growing file. The reader's memory does not grow with
the file. This module uses only the standard library.
"""

from __future__ import annotations

import codecs
import csv
import hashlib
import io
import json
import re
import zlib
from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple
from xml.etree.ElementTree import ParseError, XMLPullParser

#: The maximum number of characters in an item. A longer item is skipped and counted.
ITEM_MAX = 8 * 1024 * 1024
csv.field_size_limit(ITEM_MAX)  # of this process
#: The maximum number of values in an item: its fields, and everything in them at any depth. This
#: limits the memory and time for an item. An item with more values is skipped and counted. A
#: polygon of 30,000 points fits.
VALUES_MAX = 100_000
#: The maximum number of item keys that are remembered for a task. They take up to 64 MiB.
KEYS_MAX = 4 * 1024 * 1024
#: The number of bytes that are unpacked and decoded at a time.
_PART = 64 * 1024
#: A longer string is decoded value by value.
_LONG = 2 * _PART
#: A separator between lines of JSON that are decoded together, and strings which show that a line
#: may contain this separator.
_MARK = "\x1e"
_MARK_IN_TEXT = ("\x1e", "\\u001")
#: The number of characters of indentation and of a file's beginning that are checked.
_INDENT_MAX = 100
_HEAD_MAX = 100
#: A JSON error this close to the end of the data may be an incomplete literal, number or escape.
_NEAR = 16
#: The maximum number of characters of CSV that are read in vain because of quotation marks that are
#: never closed. After that, each line counts as a record.
_IN_VAIN_MAX = 4 * ITEM_MAX
#: A quotation mark that stays open for more lines than this is an ordinary character, if each of
#: the lines is a complete record.
_MANY = 3
#: The maximum number of lines that are read to find the delimiter.
_HEAD_MAX = 20
#: The maximum number of positions that are reported for each reason.
_PLACES_MAX = 3
#: Reasons for skipped or repaired data, and the phrase for each, which follows a number.
NO_JSON = "no_json"
TOO_LONG = "too_long"
TOO_WIDE = "too_wide"
TORN = "torn"
UNREADABLE = "unreadable"
MENDED = "mended"
TOO_MANY = "too_many"
_SENTENCES = {
    NO_JSON: "lines were not JSON",
    TOO_LONG: f"items were longer than {ITEM_MAX:,} characters",
    TOO_WIDE: f"items had more than {VALUES_MAX:,} values",
    TORN: "last lines were incomplete: they are being written, or their crawler died",
    UNREADABLE: "files could not be read to their end",
    MENDED: "lines were not UTF-8; they were read as Windows-1252, or with replacement characters",
    TOO_MANY: f"items came after {KEYS_MAX:,} different keys: duplicates among them count twice",
}
#: Encoding -> the first bytes of text in this encoding: its byte order mark, or else two Latin
#: characters. UTF-32 comes first, because its mark begins with the mark of UTF-16.
_BEGINS = {
    "utf-32": rb"\xff\xfe\0\0|\0\0\xfe\xff",
    "utf-16": rb"\xff\xfe|\xfe\xff",
    "utf-16-le": rb"([^\0]\0){2}",
    "utf-16-be": rb"(\0[^\0]){2}",
}
#: Matches a beginning that is long enough to determine the encoding.
_TELLS_ENCODING = re.compile(rb"[\x01-\x7f]{2}|[\0-\xff]{4}")
#: The first bytes of a gzip file.
GZIP = b"\x1f\x8b"
_BETWEEN = re.compile(r"[\s,\ufeff]*")
#: The beginning of a list of items in a file of JSON lines: a list of objects, or a list whose
#: first line contains only the bracket.
_LIST = re.compile(r"\[(?:[ \t\r]*\n|\s*[{\]])")
_MAYBE_LIST = re.compile(r"\[\s*\Z")
_AFTER = re.compile(r"[\s,\]]|\Z")
#: The beginning of JSON in a file that is named like CSV.
_JSON_HEAD = re.compile(r'\{\s*(?:["}]|\Z)|\[\s*(?:[\[{\]]|\Z)')
#: The usual delimiters. Any other character, except for those of ``_NO_DELIMITER``, is accepted as
#: a delimiter if both the header and the first record contain it.
_DELIMITERS = ",\t;|"
_NO_DELIMITER = re.compile(r"[\w\s.\"'()\[\]-]", re.ASCII)
#: A note about a value in a list, whose line may contain further values.
_LOST = "the rest of this line is left out"
_QUOTED = re.compile(r'"[^"]*"')


class Feed(NamedTuple):
    """A file with items, and the properties of the file that are declared."""

    name: str
    format: str = ""
    """One of ``FORMATS``; if empty, the name and the content show it."""
    delimiter: str = ""
    """One character; if empty, the header shows it."""
    quote: str = ""
    """``none`` means that a quotation mark in CSV is an ordinary character."""
    key: tuple[str, ...] = ()
    """The fields that identify an item. If several items of a task have the same key, only the
    first one counts.
    """


class SkippedData(Counter[str]):
    """Counts of data that was skipped or repaired, for each reason, and the first positions."""

    def __init__(self) -> None:
        super().__init__()
        self._places = defaultdict[str, list[str]](list)

    def note(self, name: str, reason: str, place: str, why: str = "") -> None:
        """Count one occurrence in the file with this name, and keep its position if only few
        positions are kept so far.
        """
        self[reason] += 1
        if self[reason] <= _PLACES_MAX:
            self._places[reason].append(": ".join(filter(None, (name, place, why))))

    def sentences(self, note: str | None = None) -> list[str]:
        """Return sentences with the first positions.

        The first sentence in the run's ``note`` precedes these sentences, unless one of them is
        about the same problem.
        """
        told = [
            f"{self[reason]:,} {text} ({'; '.join(self._places[reason])})"
            for reason, text in _SENTENCES.items()
            if self[reason]
        ]
        first = (note or "").partition("; ")[0]
        about = first.partition(" (")[0]
        return told if not first or any(own.startswith(about) for own in told) else [first, *told]


class Keys:
    """The keys of the items seen so far, as hashes of eight bytes.

    ``known`` contains the hashes of items from earlier attempts. ``fresh`` receives the hash of
    each new key. The chance that two of ``KEYS_MAX`` keys have the same hash is one in two million.
    """

    def __init__(self, known: Iterable[int] = (), fresh: array[int] | None = None) -> None:
        self._slots = array("Q", bytes(8 * 1024))
        self._count = 0
        self._fresh = fresh
        for key in known:
            self._add(key)

    def is_first(self, feed: Feed, skipped: SkippedData, item: Any) -> bool:
        """Return whether this is the first item with its key.

        This is always true if a field of the key is empty.
        """
        texts = [_key_text(item.get(name)) for name in feed.key] if isinstance(item, dict) else [""]
        if not all(texts):
            return True
        key = (
            int.from_bytes(hashlib.blake2b(ascii(texts).encode(), digest_size=8).digest(), "little")
            or 1
        )
        full = self._count >= KEYS_MAX
        if not self._add(key):
            return False
        if full:
            skipped.note(feed.name, TOO_MANY, "")
        elif self._fresh is not None:
            self._fresh.append(key)
        return True

    def _add(self, key: int) -> bool:
        """Return whether the key is new, and remember the key if there is room."""
        slots = self._slots
        place = key % len(slots)
        while slots[place]:
            if slots[place] == key:
                return False
            place = (place + 1) % len(slots)
        if self._count < KEYS_MAX:
            slots[place] = key
            self._count += 1
            if self._count > len(slots) // 2:
                self._slots = array("Q", bytes(16 * len(slots)))
                self._count = 0
                for known in filter(None, slots):
                    self._add(known)
        return True


def _key_text(value: Any) -> str:
    """Return a string, number or boolean as a string, and an empty string for anything else."""
    if isinstance(value, str) and type(value) is not str:  # the digits of a number
        value = _decoder.decode(value)
    return str(value) if isinstance(value, (str, int, float)) else ""


class TooWide(ValueError):
    """An item has more values than ``VALUES_MAX``."""


class ItemDecoder(json.JSONDecoder):
    """A decoder of items. Raises ``TooWide``.

    Python's C decoder blocks all other threads until it has finished, and does not count values. So
    the C decoder gets only short strings; a long string is decoded value by value. Numbers are
    converted by Python code only where necessary, because a call for each number takes a third of
    the time.
    """

    def raw_decode(self, s: str, idx: int = 0) -> tuple[Any, int]:
        try:
            return self.scan_once(s, idx) if len(s) - idx <= _LONG else _Scanner(self)(s, idx)  # type: ignore[attr-defined]
        except StopIteration as stop:
            raise json.JSONDecodeError("Expecting value", s, stop.value) from None
        except (json.JSONDecodeError, TooWide):
            raise
        except ValueError:
            return _long_numbers.raw_decode(s, idx)


class _Scanner:
    """Decodes one item, and counts its values."""

    def __init__(self, decoder: Any) -> None:
        self._decoder = decoder
        self._count = -1  # do not count the item itself
        self._names: dict[str, str] = {}

    def __call__(self, text: str, at: int) -> tuple[Any, int]:
        self._count += 1
        if self._count > VALUES_MAX:
            raise TooWide(f"an item has more than {VALUES_MAX:,} values")
        decoder = self._decoder
        found: tuple[Any, int]
        if text.startswith("[", at):
            found = decoder.parse_array((text, at + 1), self)
        elif text.startswith("{", at):
            hooks = decoder.object_hook, decoder.object_pairs_hook
            found = decoder.parse_object((text, at + 1), decoder.strict, self, *hooks, self._names)
        else:
            found = decoder.scan_once(text, at)
        return found


#: A function that gets the reason and the position of skipped or repaired data, and optionally a
#: further message.
Note = Callable[..., None]
_AS_USUAL: dict[str, Any] = {"strict": False, "parse_constant": lambda _: None}
_decoder = ItemDecoder(**_AS_USUAL)
#: A decoder for data that contains a number of more than 4,300 digits, which Python refuses to
#: convert: such a number stays a string.
_long_numbers = ItemDecoder(**_AS_USUAL, parse_int=lambda n: n if n[4300:] else int(n))


def read_items(
    feed: Feed, pieces: Iterable[bytes], skipped: SkippedData, decoder: ItemDecoder = _decoder
) -> Iterator[Any]:
    """Yield the items of a file.

    ``pieces`` are its bytes. ``skipped`` counts data that could not be read.
    """
    return chain.from_iterable(follow(feed, filter(None, pieces), skipped, decoder))


def follow(
    feed: Feed, pieces: Iterable[bytes], skipped: SkippedData, decoder: ItemDecoder = _decoder
) -> Iterator[Sequence[Any]]:
    """Yield the items of a growing file in batches, and an empty batch for each empty piece."""
    note = partial(skipped.note, feed.name)
    texts = _decoded(_unpacked(iter(pieces), note))
    try:
        head = yield from _begin(texts, "", _shows_its_kind, ())
        parser = _parser(feed, head.lstrip()[:_HEAD_MAX].partition("\n")[0], note, decoder)
        for text in chain(filter(None, [head]), texts):
            if text:
                yield from filter(None, parser.take(text, last=False))
            else:
                yield ()
        yield from filter(None, parser.take("", last=True))
    except _Unreadable as error:
        note(UNREADABLE, str(error))


def _begin(
    parts: Iterator[Any], begin: Any, suffices: Callable[[Any], Any], pause: Any
) -> Generator[Any, None, Any]:
    """Return the first parts, joined, once they are long enough.

    Yield a pause for each empty part.
    """
    for part in parts:
        begin += part
        if suffices(begin):
            break
        if not part:
            yield pause
    return begin


def _shows_its_kind(head: str) -> bool:
    begin = head.lstrip()
    return "\n" in begin or len(begin) >= _HEAD_MAX or len(head) > _PART


class _Unreadable(Exception):
    """The rest of a file cannot be read."""


def _unpacked(pieces: Iterator[bytes], note: Note) -> Iterator[bytes]:
    """Yield the bytes in short parts, and unpack gzip. The parts are short because a small gzip
    file may contain very much data.
    """
    begin = yield from _begin(
        pieces, b"", lambda begin: len(begin) > 1 or not GZIP.startswith(begin), b""
    )
    pieces = chain(filter(None, [begin]), pieces)
    if not begin.startswith(GZIP):
        for piece in pieces:
            yield from (piece[at : at + _PART] for at in range(0, len(piece) or 1, _PART))
        return
    unpack = zlib.decompressobj(31)
    position = 0
    for piece in pieces:
        position += len(piece)
        if not piece:
            yield b""
        more = bool(piece)
        while more:
            if unpack.eof:  # another gzip member may follow
                piece = piece.lstrip(b"\0")
                if not piece:
                    break
                unpack = zlib.decompressobj(31)
            try:
                part = unpack.decompress(piece, _PART)
            except zlib.error as error:
                raise _Unreadable(f"byte {position - len(piece):,}: {error}") from None
            piece = unpack.unused_data if unpack.eof else unpack.unconsumed_tail
            more = bool(piece) or len(part) == _PART
            if part:
                yield part
    if not unpack.eof:
        note(TORN, f"byte {position:,}: the end of the gzip file is missing")


def _decoded(parts: Iterator[bytes]) -> Iterator[str]:
    """Yield the text.

    Bytes that are not UTF-8 become lone surrogates, which ``_mended`` replaces later.
    """
    begin = yield from _begin(parts, b"", _TELLS_ENCODING.match, "")
    encoding = next(
        (name for name, begins in _BEGINS.items() if re.match(begins, begin)), "utf-8-sig"
    )
    errors = "surrogateescape" if encoding == "utf-8-sig" else "replace"
    decode = codecs.getincrementaldecoder(encoding)(errors).decode
    for part in chain(filter(None, [begin]), parts):
        text = decode(part)
        if text or not part:
            yield text
    yield from filter(None, [decode(b"", True)])


def _parser(feed: Feed, head: str, note: Note, decoder: ItemDecoder) -> Any:
    """Return the parser for a file whose first line begins like this."""
    kind = _KINDS.get(feed.format) or kind_of(feed.name) or ("jsonl" if head[:1] in "{[" else "csv")
    if kind == "csv" and not feed.format and _JSON_HEAD.match(head):
        kind = "jsonl"
    if kind == "xml" or (not feed.format and head.startswith("<" if kind != "csv" else "<?xml")):
        return _Xml(feed, note)
    return _Csv(feed, note) if kind == "csv" else _Json(feed, note, decoder)


#: Suffix of a file name, ignoring ``.gz`` -> the kind of content.
_KINDS = {
    **dict.fromkeys(("jsonl", "jsonlines", "ndjson", "jl", "geojsonl", "ndgeojson"), "jsonl"),
    "json": "json",
    **dict.fromkeys(("csv", "tsv"), "csv"),
    "xml": "xml",
}
#: The formats of feeds. If a feed exists in several formats, the first one in this order counts.
FORMATS = tuple(_KINDS)


def kind_of(name: str) -> str:
    """Return the kind of a file by its name, or ``""``: ``jsonl``, ``json``, ``csv`` or ``xml``."""
    return _KINDS.get(suffix_of(name), "")


def suffix_of(name: str) -> str:
    """Return the last suffix of a name in lower case, ignoring ``.gz``."""
    small = name.lower()
    _, dot, suffix = (small[:-3] if small.endswith(".gz") else small).rpartition(".")
    return suffix if dot else ""


class _Json:
    """Consecutive JSON values of one or more lines each, with or without lists around them.

    In a file of JSON lines, a list whose first element is not an object is an item. Other lists are
    lists of items. After a value that cannot be read, the next one begins at a later line with no
    deeper indentation.
    """

    def __init__(self, feed: Feed, note: Note, decoder: Any) -> None:
        self._noted = note
        self._decoder = decoder
        self._lists = (_KINDS.get(feed.format) or kind_of(feed.name)) == "json"
        self._text = ""
        self._line = 1
        self._place = 0
        self._in_list = False
        self._needed = 0
        """The minimum number of characters with which the next value can be complete."""
        self._skip: re.Pattern[str] | None = None
        """While data is skipped, the beginning of the line at which reading resumes."""

    def take(self, more: str, *, last: bool) -> Iterator[Sequence[Any]]:
        self._text += more
        text = self._text
        if len(text) < self._needed and not last:
            return
        self._needed = 0
        decoder = self._decoder
        odd = not text.isascii() and _mended(text) is not text
        if not odd and self._find(last=last):
            yield self._objects()
        while self._find(last=last):
            place = self._place
            try:
                value, end = decoder.raw_decode(text, place)
            except (ValueError, RecursionError) as error:
                if self._waits(error, last=last):
                    break
                continue
            if text[place] not in "{[":
                if end == len(text) and not last:  # a number may continue
                    break
                if not _AFTER.match(text, end):
                    self._leave_out(NO_JSON, "no JSON")
                    continue
            self._place = end
            if end - place > ITEM_MAX:
                self._note(TOO_LONG, place)
                continue
            if odd:
                raw = text[place:end]
                mended = _mended(raw)
                if mended is not raw:
                    self._note(MENDED, place)
                    value = decoder.decode(mended)
            yield (value,)
        begin = max(0, self._place - _INDENT_MAX)
        self._line += text.count("\n", 0, begin)
        self._text = text[begin:]
        self._place -= begin

    def _objects(self) -> list[Any]:
        """If each of the objects that begin here has its own line, return the objects and move past
        them.

        Otherwise return no objects.

        One call of the decoder reads all of them. The marks between the lines prove that each line
        is a complete object.
        """
        text = self._text
        place = self._place
        end = text.rfind("\n{", place)
        lines = text[place:end].rstrip() if place < end <= place + _LONG else ""
        breaks = lines.count("\n")
        if (
            lines[:1] != "{"
            or lines.count("\n{") != breaks
            or any(mark in lines for mark in _MARK_IN_TEXT)
        ):
            return []
        mark = f'"{_MARK}",' if lines[-1] == "," else f',"{_MARK}",'
        whole = "[" + lines.rstrip(",").replace("\n", mark) + "]"
        try:
            found, read = self._decoder.scan_once(whole, 0)
        except (ValueError, RecursionError, StopIteration):
            return []
        if read != len(whole) or len(found) != 2 * breaks + 1 or found[1::2].count(_MARK) != breaks:
            return []
        self._place = end
        objects: list[Any] = found[::2]
        return objects

    def _find(self, *, last: bool) -> bool:
        """Move to the next value, and return whether there is a next value."""
        text = self._text
        if self._skip is not None and not self._skipped(last=last):
            return False
        while True:
            found = _BETWEEN.match(text, self._place)
            self._place = place = found.end() if found else len(text)
            if place == len(text):
                return False
            if text[place] == "]" and self._in_list:
                self._in_list = False
            elif (
                text[place] == "["
                and not self._in_list
                and (self._lists or _LIST.match(text, place))
            ):
                self._in_list = True
            else:
                rest = len(text) - place
                return (
                    last
                    or rest > ITEM_MAX
                    or text[place] != "["
                    or not _MAYBE_LIST.match(text, place)
                )
            self._place += 1

    def _skipped(self, *, last: bool) -> bool:
        """Move to the line where reading continues, and return whether there is such a line."""
        text = self._text
        skip = self._skip
        end = text.find("\n", self._place)
        while end >= 0 and (last or len(text) - end > _INDENT_MAX + 1):
            if skip is not None and skip.match(text, end + 1):
                self._skip = None
                self._place = end + 1
                return True
            end = text.find("\n", end + 1)
        self._place = len(text) if end < 0 else end
        return False

    def _waits(self, error: Exception, *, last: bool) -> bool:
        """Return whether the value may continue in later data. If it cannot, skip the value."""
        text = self._text
        size = len(self._text) - self._place
        is_open = isinstance(error, json.JSONDecodeError) and (
            error.msg.startswith("Unterminated") or len(text) - error.pos <= _NEAR
        )
        if is_open and size <= ITEM_MAX and not last:
            self._needed = min(2 * size, ITEM_MAX + 1) if size > _LONG else 0
            return True
        if isinstance(error, TooWide):
            self._leave_out(TOO_WIDE)
        elif is_open and size > ITEM_MAX:
            self._leave_out(TOO_LONG)
        elif (
            is_open
            and (not text.endswith("\n") or "\n" in text[self._place :].rstrip())
            and _is_cut(error, text)
        ):
            self._leave_out(TORN)
        else:
            deep = isinstance(error, RecursionError)
            self._leave_out(
                NO_JSON, "too many levels" if deep else str(error).partition(": line ")[0]
            )
        return False

    def _leave_out(self, reason: str, why: str = "") -> None:
        """Skip the value that begins here."""
        text = self._text
        place = self._place
        self._note(reason, place, ", ".join(filter(None, [why, _LOST if self._in_list else ""])))
        column = min(place - text.rfind("\n", 0, place) - 1, _INDENT_MAX)
        alone = re.compile(r"[{\[][ \t\r]*\n").match(text, place)
        begin = r"[{\[\]]" if alone else r"[^ \t\r\n]"
        self._skip = re.compile(rf"[ \t]{{0,{column}}}{begin}")

    def _note(self, reason: str, place: int, why: str = "") -> None:
        line = self._line + self._text.count("\n", 0, place)
        self._noted(reason, f"line {line:,}", why)


def _is_cut(error: Any, text: str) -> bool:
    """Return whether only the end of the text is missing."""
    rest = text[error.pos :].strip()
    return (
        error.msg.startswith("Unterminated")
        or not rest
        or bool(re.compile(r"[-+.\w\\]+\Z").match(rest))
    )


class _Csv:
    """Records in CSV. The first record contains the names of the fields.

    A record is read according to RFC 4180. If the record breaks these rules, its first line is a
    record of its own, and the quotation marks in that line are ordinary characters: they may stand
    for inches, or a program may not have escaped them by writing them twice.
    """

    def __init__(self, feed: Feed, note: Note) -> None:
        self._feed = feed
        self._noted = note
        self._delimiter = feed.delimiter
        self._text = ""
        self._line = 0
        self._too_long = False
        self._head: list[str] = []
        """The first lines, kept until the delimiter is known."""
        self._names: list[str] = []
        self._open: list[str] = []
        """The lines of a record whose quotation mark is not closed yet."""
        self._size = self._cells = self._in_vain = 0

    def take(self, more: str, *, last: bool) -> Iterator[Sequence[Any]]:
        self._text += more
        text = self._text
        if not last and len(text) <= ITEM_MAX and "\n" not in more and "\r" not in more:
            return
        odd = not text.isascii() and _mended(text) is not text
        self._text = ""
        items: list[Any] = []
        for line in io.StringIO(text, newline=""):
            if not last and (line[-1] not in "\r\n" or (line[-1] == "\r" and text.endswith(line))):
                # The line, or its line ending of two characters, may continue.
                self._text = line if len(line) <= ITEM_MAX else self._cut()
                break
            self._line += 1
            if len(line) > ITEM_MAX or self._too_long:
                self._cut()
                self._too_long = False
                continue
            if odd:
                mended = _mended(line)
                if mended is not line:
                    self._note(MENDED)
                    line = mended
            row = (
                self._whole(line)
                if self._names and not self._open and len(line) <= VALUES_MAX
                else None
            )
            if row is None:
                yield items
                items = []
                yield from self._lines(line)
            elif row:
                items.append(self._item(row))
        yield items
        if last:
            yield from self._lines(None)

    def _cut(self) -> str:
        """Skip the rest of a line that is too long."""
        if not self._too_long:
            self._note(TOO_LONG)
        self._too_long = True
        return ""

    def _note(self, reason: str, why: str = "") -> None:
        self._noted(reason, f"line {self._line:,}", why)

    def _lines(self, line: str | None) -> Iterator[Sequence[Any]]:
        """Process one more line; ``None`` means the end of the file."""
        todo: deque[str] = deque()
        if not self._delimiter:
            self._head += [line] if line else []
            if (
                line is not None
                and len(self._head) < _HEAD_MAX
                and len(_first_records(self._head)) < 2
            ):
                return
            self._delimiter = delimiter_of(self._head, self._feed.name)
            todo.extend(self._head)
        elif line is not None:
            todo.append(line)
        last = line is None
        while todo or (last and self._open):
            row = self._row(todo)
            if not row:
                continue
            if len(row) > VALUES_MAX:
                self._note(TOO_WIDE)
                if not self._names:
                    raise _Unreadable(f"line 1: more than {VALUES_MAX:,} names of columns")
            elif self._names:
                yield (self._item(row),)
            else:
                self._names = _distinct(row)

    def _row(self, todo: deque[str]) -> list[str] | None:
        """Return the next record; ``None`` if the record is incomplete or skipped."""
        if not todo:
            return self._given_up(todo, TORN)
        line = todo.popleft()
        if len(line) > VALUES_MAX and line.count(self._delimiter) > VALUES_MAX:
            return [""] * (VALUES_MAX + 1)
        is_open = bool(self._open)
        if not is_open and (whole := self._whole(line)) is not None:
            return whole
        self._open.append(line)
        self._size += len(line)
        self._cells += line.count(self._delimiter)
        if self._size > ITEM_MAX or self._cells > VALUES_MAX:
            return self._given_up(todo, TOO_LONG if self._size > ITEM_MAX else TOO_WIDE)
        if is_open and line.count('"') % 2 == 0:  # still open
            return None
        try:
            row = next(csv.reader(self._open, delimiter=self._delimiter, strict=True), [])
        except csv.Error as error:
            if "unexpected end" not in str(error) or self._in_vain > _IN_VAIN_MAX:
                return self._given_up(todo)
            self._in_vain += self._size if is_open else 0
            return None
        if len(self._open) > 1 and len(row) != len(self._names) and self._fits(self._open[0]):
            return self._given_up(todo)
        self._open = []
        self._size = self._cells = 0
        return row

    def _whole(self, line: str) -> list[str] | None:
        """Return the values of a line that is a complete record; ``None`` if a quotation mark in
        the line is not closed.
        """
        if '"' not in line or self._feed.quote == "none":
            bare = line.rstrip("\r\n")
            return bare.split(self._delimiter) if bare else []
        try:
            return next(csv.reader((line,), delimiter=self._delimiter, strict=True), [])
        except csv.Error:
            return None

    def _given_up(self, todo: deque[str], reason: str = "") -> list[str] | None:
        """Return the first line of the open record as a record of its own, unless the line seems to
        be part of a longer record.
        """
        lines = self._open
        self._in_vain += self._size if len(lines) > 1 else 0
        self._open = []
        self._size = self._cells = 0
        row = self._alone(lines[0])
        if reason:
            ended = (
                lines[-1].endswith(("\n", "\r"))
                or len(lines) > _MANY
                or not any(cell[:1] == '"' for cell in row)
            )
            if not ended or not all(map(self._fits, (lines[:-1] or lines)[:_MANY])):
                self._note(reason, "an unclosed quotation mark")
                return None
        todo.extendleft(reversed(lines[1:]))
        return row

    def _fits(self, line: str) -> bool:
        """Return whether this line alone has as many values as there are field names."""
        return len(self._names) > 1 and len(self._alone(line)) == len(self._names)

    def _alone(self, line: str) -> list[str]:
        """Return the values of a line.

        Quotation marks are ordinary characters, except those around a value.
        """
        line = line.rstrip("\r\n") + self._delimiter
        row: list[str] = []
        place = 0
        quoted = True
        while place < len(line):
            end = -1
            if quoted and line.startswith('"', place):
                end = line.find('"' + self._delimiter, place + 1)
                quoted = end > 0
            if end > 0:
                row.append(line[place + 1 : end].replace('""', '"'))
                place = end + 2
            else:
                end = line.find(self._delimiter, place)
                row.append(line[place:end])
                place = end + 1
        return row

    def _item(self, row: list[str]) -> dict[str, str]:
        item = {name: value for name, value in zip(self._names, row) if value}  # noqa: B905
        for column in range(len(self._names), len(row)):
            if row[column]:
                item[f"(column {column + 1})"] = row[column]
        return item


def delimiter_of(lines: list[str], name: str) -> str:
    """Return the delimiter of a file according to its first lines: the header, and the record after
    it.
    """
    records = _first_records(lines)
    first = records if len(records) == 2 else [*lines, "", ""][:2]
    head, follows = (_QUOTED.sub("", text).rstrip("\r\n") for text in first)
    best = max(_DELIMITERS, key=head[:10_000].count)
    if suffix_of(name) == "tsv" and "\t" in head:
        return "\t"
    if best in head:
        return best
    others = {char for char in head if char.isascii() and not _NO_DELIMITER.match(char)}
    fits = sorted(char for char in others if char in follows or head.count(char) > 1)
    return max(
        fits,
        key=lambda char: (head.count(char) == follows.count(char), head.count(char)),
        default=best,
    )


def _first_records(lines: list[str]) -> list[str]:
    """Return the first two complete records in these lines.

    In this search, each quotation mark is closed by the next quotation mark.
    """
    found = [""]
    for line in lines:
        found[-1] += line
        if found[-1].count('"') % 2 == 0:
            found.append("")
    return found[:-1][:2]


def _distinct(names: Iterable[str]) -> list[str]:
    """Return the names of columns.

    An empty or repeated name gets the number of its column.
    """
    found: dict[str, None] = {}
    for n, name in enumerate(names):
        own = name.strip()
        found[own if own and own not in found else f"{own} (column {n + 1})".strip()] = None
    return list(found)


class _Xml:
    """Items of XML, as written by Scrapy's exporter: the elements below the root.

    Entities are not expanded.
    """

    def __init__(self, feed: Feed, note: Note) -> None:
        self._feed = feed
        self._noted = note
        self._parser: Any = XMLPullParser(("start", "end"))
        self._root: Any = None
        self._depth = self._size = self._values = 0
        self._head = ""

    def take(self, more: str, *, last: bool) -> Iterator[Sequence[Any]]:
        self._size += len(more)
        if self._root is None:
            self._head += more
            if "<!DOCTYPE" in self._head:
                raise _Unreadable("document types are not supported")
        try:
            self._parser.feed(_mended(more))
            for event, element in self._parser.read_events():
                if event == "start":
                    self._begins(element)
                    continue
                self._depth -= 1
                if self._depth == 1:
                    yield ({field.tag: _xml_value(field) for field in element},)
                    self._root.clear()
                    self._size = self._values = 0
        except (ParseError, RecursionError) as error:
            raise _Unreadable(f"no XML: {error}") from None
        if self._size > ITEM_MAX:
            raise _Unreadable(f"an item has more than {ITEM_MAX:,} characters")
        if last and self._depth:
            self._noted(TORN, "the end of the root is missing")

    def _begins(self, element: Any) -> None:
        if self._root is None:
            self._root = element
            if element.tag != "items" and not self._feed.format:
                raise _Unreadable(f"the root is <{element.tag[:50]}>, not <items>")
        self._depth += 1
        self._values += 1
        if self._values > VALUES_MAX:
            raise _Unreadable(f"an item has more than {VALUES_MAX:,} values")


def _xml_value(element: Any) -> Any:
    if not len(element):
        text = element.text or ""
        return "" if text.isspace() and "\n" in text else text  # the whitespace in an empty list
    if all(child.tag == "value" for child in element):
        return [_xml_value(child) for child in element]
    return {child.tag: _xml_value(child) for child in element}


def _mended(text: str) -> str:
    """Return the text with its lone surrogates, which stand for bytes that are not UTF-8, replaced
    by characters.
    """
    try:
        text.encode()
        return text
    except UnicodeEncodeError:
        data = text.encode("utf-8", "surrogateescape")
    mended = data.decode("utf-8", "replace")
    # In a Windows-1252 text, nearly all characters outside ASCII are invalid UTF-8. In a damaged
    # file, few are.
    if mended.count("\ufffd") * 2 > len(mended) - len(mended.encode("ascii", "ignore")):
        return data.decode("cp1252", "replace")
    return mended
