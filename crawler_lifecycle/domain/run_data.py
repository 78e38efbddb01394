"""Files and items of runs for user code.

Processes that execute user code have no credentials. They read files piece by piece from a
``DataSource``, and this module parses the bytes.
"""

from __future__ import annotations

import binascii
import io
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any, BinaryIO, Protocol, TypedDict, cast

from crawler_lifecycle.runner.item_files import feeds, items_of, task_of
from crawler_lifecycle.runner.item_reader import SkippedData

from .bounds import INT_MAX, refusal
from .code import Code
from .item_code import CODE, VERSION, codes_by_folder, with_code

#: The maximum number of bytes that one call can read from a file.
PIECE = 1024 * 1024
#: The maximum number of field names that a caller may request.
FIELDS_MAX = 1000


@dataclass(frozen=True, slots=True)
class RunFile:
    """A file that a run produced."""

    run_id: int
    name: str
    """The path in the archive: ``task-0/items.jsonl``."""
    bytes: int


class DataSource(Protocol):
    """A reader of the files of runs.

    Raises ``NotDelivered`` or ``ClusterUnavailable`` if files cannot be read now, and
    ``InvalidRequest`` for a request that is not allowed.
    """

    def run_files(self, run_id: int) -> Sequence[RunFile]:
        """Return the supporting files of all tries that count (``domain/tries.py``)."""

    def read_file(self, file: RunFile, offset: int) -> bytes:
        """Return at most ``PIECE`` bytes, starting at this offset. At the end of the file, return
        no bytes.
        """

    def run_codes(self, run_id: int) -> Mapping[str, Code]:
        """Return the known codes of the run's tries, by the folders of their files."""


class AskedFiles:
    """A ``DataSource`` that sends questions to a worker
    (``activities.run_files.FileQuestions``).
    """

    def __init__(self, ask: Callable[..., Any]) -> None:
        self._ask = ask

    def run_files(self, run_id: int) -> list[RunFile]:
        return [RunFile(run_id, name, size) for name, size in self._ask("files", run_id=run_id)]

    def read_file(self, file: RunFile, offset: int) -> bytes:
        return binascii.a2b_base64(
            self._ask("read", run_id=file.run_id, file=file.name, offset=offset)
        )

    def run_codes(self, run_id: int) -> dict[str, Code]:
        return codes_by_folder(self._ask("codes", run_id=run_id))


class HeldFiles:
    """A ``DataSource`` in memory, for tests."""

    def __init__(self) -> None:
        self._runs: dict[int, dict[str, bytes]] = {}

    def leave(
        self, run_id: int, items: Iterable[Any] | None, files: Mapping[str, bytes] | None = None
    ) -> None:
        """Set a run's items, and its other files by name."""
        lines = (
            None if items is None else "".join(f"{json.dumps(item)}\n" for item in items).encode()
        )
        self._runs[run_id] = {
            **({} if lines is None else {"task-0/items.jsonl": lines}),
            **(files or {}),
        }

    def run_files(self, run_id: int) -> list[RunFile]:
        return [RunFile(run_id, name, len(data)) for name, data in self._runs[run_id].items()]

    def read_file(self, file: RunFile, offset: int) -> bytes:
        return self._runs[file.run_id][file.name][offset : offset + PIECE]

    def run_codes(self, run_id: int) -> dict[str, Code]:
        return {}


class Which(TypedDict, total=False):
    """The options of ``Items``, which select the items to read."""

    task: int | None
    """Read only items from the task with this index."""
    offset: int
    limit: int | None
    fields: Collection[str] | None
    """Read only these fields of each item."""
    code: bool
    """Add the code of the task that wrote the item (``item_code``)."""


class Items:
    """The items of runs, one after another. You can iterate over this object several times.
    ``skipped`` contains sentences about data that the last iteration could not read, such as ``3
    lines were not JSON``.
    """

    def __init__(
        self,
        source: DataSource,
        runs: Sequence[int],
        *,
        task: int | None = None,
        offset: int = 0,
        limit: int | None = None,
        fields: Collection[str] | None = None,
        code: bool = False,
    ) -> None:
        """Check the options, which ``Which`` describes.

        Raises ``InvalidRequest``.
        """
        for name, value in (("task", task), ("offset", offset), ("limit", limit)):
            if value is not None and (type(value) is not int or not 0 <= value <= INT_MAX):
                raise refusal(name, value, "give a whole number that is not negative")
        if fields is not None and (isinstance(fields, str) or len(fields) > FIELDS_MAX):
            raise refusal("fields", fields, f"give a list of at most {FIELDS_MAX} names")
        self._source = source
        self._runs = runs
        self._task = task
        self._offset = offset
        self._limit = limit
        self._fields = [CODE, VERSION, *fields] if code and fields is not None else fields
        self._code = code
        self._skipped = SkippedData()

    @property
    def skipped(self) -> list[str]:
        return self._skipped.sentences()

    def __iter__(self) -> Iterator[Any]:
        self._skipped = SkippedData()
        end = None if self._limit is None else self._offset + self._limit
        items = chain.from_iterable(map(self._of_run, self._runs))
        for item in islice(items, self._offset, end):
            cut = self._fields is not None and isinstance(item, dict)
            yield {name: item[name] for name in self._fields or () if name in item} if cut else item

    def _of_run(self, run_id: int) -> Iterator[Any]:
        files = {file.name: file for file in self._source.run_files(run_id)}
        found = feeds(files, partial(self._first, files))
        wanted = [feed for feed in found if self._task in (None, task_of(feed.name))]
        pieces = _Pieces(self._source, files)
        items = items_of(wanted, pieces.read, self._skipped)
        if not self._code:
            return items
        return with_code(items, self._source.run_codes(run_id), lambda: pieces.name)

    def _first(self, files: Mapping[str, RunFile], name: str) -> bytes:
        return self._source.read_file(files[name], 0)


class _Pieces:
    """Reads files piece by piece. ``name`` is the file that is being read."""

    def __init__(self, source: DataSource, files: Mapping[str, RunFile]) -> None:
        self._source = source
        self._files = files
        self.name = ""

    def read(self, name: str) -> Iterator[bytes]:
        self.name = name
        offset = 0
        while piece := self._source.read_file(self._files[name], offset):
            offset += len(piece)
            yield piece


def open_file(source: DataSource, runs: Sequence[int], name: str) -> BinaryIO:
    """Open the file of this name for reading.

    Raises ``InvalidRequest`` unless exactly one run has it.
    """
    found = [file for run_id in runs for file in source.run_files(run_id) if file.name == name]
    if len(found) != 1:
        fix = (
            "files() lists the files"
            if not found
            else "several runs have this file; name the step of one run"
        )
        raise refusal("name", name, fix)
    return cast(
        BinaryIO,
        io.BufferedReader(FarFile(partial(source.read_file, found[0]), found[0].bytes), PIECE),
    )


class FarFile(io.RawIOBase):
    """A remote file as a Python file object. ``read`` returns bytes, starting at an offset, and
    decides how many bytes.
    """

    def __init__(self, read: Callable[[int], bytes], size: int) -> None:
        self._read = read
        self._size = size
        self._offset = 0
        self._piece = b""
        self._begin = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        offset += {io.SEEK_SET: 0, io.SEEK_CUR: self._offset, io.SEEK_END: self._size}[whence]
        if offset < 0:
            raise ValueError(f"seek to {offset}: a file begins at 0")
        self._offset = offset
        return offset

    def readinto(self, buffer: Any) -> int:
        at = self._offset - self._begin
        if not 0 <= at < len(self._piece):
            self._piece, self._begin, at = self._read(self._offset), self._offset, 0
        most = min(len(buffer), len(self._piece) - at)
        buffer[:most] = self._piece[at : at + most]
        self._offset += most
        return most
