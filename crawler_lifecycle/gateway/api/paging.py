"""Query parameters of the API, and the pages of lists with their tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)
from pydantic_core import PydanticCustomError

from crawler_lifecycle.domain.audits.corrections import CorrectionKind
from crawler_lifecycle.domain.bounds import ID_MAX, INT_MAX, storable
from crawler_lifecycle.domain.code import full_prefix
from crawler_lifecycle.domain.ended_by import EndedBy
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.log_search import TEXT_MAX, LineLevel, LogQuery
from crawler_lifecycle.domain.run import RunStatus, Stage, Trigger
from crawler_lifecycle.domain.status_words import RUN_WORDS
from crawler_lifecycle.domain.waiting import Wait
from crawler_lifecycle.gateway.cursors import PAGE_MAX, decode, encode
from crawler_lifecycle.ports.polls import CorrectionRow
from crawler_lifecycle.store.runs.corrections import CorrectionStore
from crawler_lifecycle.store.runs.search import SORTS

Row = TypeVar("Row")
#: The maximum number of characters of a file name in an address. Names in an archive can be longer.
NAME_MAX = 1024

Id = Annotated[int, Field(ge=1, le=ID_MAX)]
FileName = Annotated[str, Field(min_length=1, max_length=NAME_MAX)]


def _written(value: object) -> object:
    """Raise ``ValueError`` for a bare number.

    Pydantic would read it as seconds since 1970, but here it is a mistake.
    """
    if isinstance(value, str) and not re.match(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ]", value):
        raise ValueError("give a time with an offset, such as 2026-11-20T12:00:00Z")
    return value


Moment = Annotated[AwareDatetime, BeforeValidator(_written), AfterValidator(storable)]


class Choice(BaseModel):
    """Query parameters.

    Unknown ones are refused, because a misspelled filter would select everything.
    """

    model_config = ConfigDict(extra="forbid")


class Paging(Choice):
    """Parameters of every list."""

    page_size: int = Field(default=50, ge=1, le=PAGE_MAX)
    page_token: str | None = None

    def read(
        self,
        kind: str,
        find: Callable[[int | None, int], Sequence[Row]],
        place: Callable[[Row], int],
    ) -> tuple[list[Row], str | None]:
        """Return the rows of this page, and the token of the next one.

        ``find`` returns at most the given number of rows after a position, and ``place`` the
        position of a row. Raises ``Problem`` 422 for the token of another list.
        """
        rows = find(decode(kind, self.page_token), self.page_size + 1)
        return cut(kind, rows, self.page_size, place)

    def read_by_offset(
        self, kind: str, find: Callable[[int, int], Sequence[Row]]
    ) -> tuple[list[Row], str | None]:
        """Return the same as ``read`` for rows whose positions are their numbers in the list."""
        offset = decode(kind, self.page_token) or 0
        rows = find(offset, self.page_size + 1)
        return cut(kind, rows, self.page_size, lambda _: offset + self.page_size)


class OfProject(Paging):
    """Parameters of a list of objects that have a project.

    Only a caller with all projects may name a project other than its own.
    """

    project: str | None = None


def _trimmed(value: object) -> object:
    return (value.strip() or None) if isinstance(value, str) else value


def order(sorts: Collection[str]) -> AfterValidator:
    """Return a check that a list can be sorted in this order."""

    def check(value: str) -> str:
        if value.removeprefix("-") not in sorts:
            raise ValueError(
                f"choose from {', '.join(sorts)}; with a leading -, the largest comes first"
            )
        return value

    return AfterValidator(check)


def one_of(words: Mapping[str, str]) -> BeforeValidator:
    """Return a validator that accepts these words in upper or lower case, and returns the value
    that a word stands for.
    """
    known = {word.casefold(): meaning for word, meaning in words.items()}

    def check(value: object) -> str:
        meaning = known.get(str(value).casefold())
        if meaning is None:
            raise PydanticCustomError("word", f"choose from {', '.join(words)}")
        return meaning

    return BeforeValidator(check, json_schema_input_type=Literal[tuple(words)])


SearchText = Annotated[Annotated[str, Field(max_length=200)] | None, BeforeValidator(_trimmed)]


class SearchParameters(OfProject):
    """Parameters of a list that can be searched and sorted."""

    search: SearchText = None
    sort: str | None = None

    def check(self) -> None:
        """Raise ``InvalidRequest`` for filters that cannot be combined."""


class RunFilters(SearchParameters):
    """Filters of ``GET /v1/runs``.

    ``status`` and ``tag`` can be given several times. A run must have one of the statuses, and all
    of the tags.
    """

    sort: Annotated[str, order(SORTS)] | None = None
    status: Annotated[
        list[Annotated[str, one_of({word: word for word in (*RunStatus, *RUN_WORDS)})]],
        Field(default_factory=list),
    ]
    stage: Stage | None = None
    crawler: str | None = None
    pool: str | None = None
    trigger: Trigger | None = None
    outcome: str | None = None
    ended_by: EndedBy | None = None
    flow_id: str | None = None
    parent: str | None = None
    tag: Annotated[list[str], Field(default_factory=list, max_length=10)]
    created_from: Moment | None = None
    created_until: Moment | None = None
    code: str | None = None
    waits: Wait | None = None
    attention: bool = False

    def check(self) -> None:
        """Raise ``InvalidRequest`` for an empty time span, and for filters that no run can match
        together.
        """
        if self.code is not None:
            full_prefix(self.code)
        if (
            self.attention
            and self.status
            and not {RunStatus.FAILED, RunStatus.COMPLETED} & set(self.status)
        ):
            raise InvalidRequest(
                f"attention: only ended runs need it, but status is {', '.join(self.status)}; "
                "omit status"
            )
        if self.created_from and self.created_until and self.created_from >= self.created_until:
            raise InvalidRequest(
                f"created_until: {self.created_until.isoformat()} is not after created_from; "
                "give a later time, or omit one of them"
            )


class TaskFilters(Paging):
    """Filters of ``GET /v1/runs/{run_id}/tasks``."""

    superseded: bool = False


class CorrectionFilters(Paging):
    """Filters of ``GET /v1/corrections``."""

    since: Moment | None = None
    kind: CorrectionKind | None = None


class CorrectionsOfRunFilters(Paging):
    """Filters of ``GET /v1/runs/{run_id}/corrections``."""

    kind: CorrectionKind | None = None


class SummaryChoice(Choice):
    """Parameters of ``GET /v1/corrections/summary``. The default of ``since`` is seven days ago."""

    since: Moment | None = None


#: The maximum number of log lines in one response, not counting lines that are followed later.
LINES_MAX = 10_000
#: The default number of lines before and after a line.
AROUND = 200


class FilesChoice(Choice):
    """Parameters of ``GET /v1/runs/{run_id}/files``: a task's id; the default is all tasks."""

    task: Id | None = None


class LogChoice(FilesChoice):
    """Parameters of ``GET /v1/runs/{run_id}/logs``: a task's id (default: the main task), and the
    lines that are requested: the last lines, those around a line, or those that match a search."""

    tail: int = Field(default=1000, ge=0, le=LINES_MAX)
    follow: bool = False
    around: Literal["error", "line"] | None = None
    line: Id | None = None
    before: int = Field(default=AROUND, ge=0, le=LINES_MAX)
    after: int = Field(default=AROUND, ge=0, le=LINES_MAX)
    q: str | None = Field(default=None, min_length=1, max_length=TEXT_MAX)
    level: LineLevel | None = None

    @property
    def query(self) -> LogQuery | None:
        """Return the search, or ``None`` if nothing is searched for."""
        return LogQuery(self.q, self.level) if self.q or self.level else None

    @model_validator(mode="after")
    def check(self) -> Self:
        """Refuse parameters that contradict each other."""
        if self.around and (self.query or self.follow):
            raise InvalidRequest("around: omit it, or omit q, level and follow")
        if self.follow and self.query:
            raise InvalidRequest("follow: omit it, or omit q and level")
        if self.around == "line" and self.line is None:
            raise InvalidRequest("line: give the number of a line")
        if self.line is not None and self.around != "line" and self.query is None:
            raise InvalidRequest("line: give around=line, q or level with it, or omit it")
        if self.q and ("\n" in self.q or "\r" in self.q):
            raise InvalidRequest(
                "q: this text contains a line break, so no line can match; give part of one line"
            )
        return self


class FileChoice(Choice):
    """Parameters of ``GET /v1/runs/{run_id}/file``.

    They name the file as the list of files does, or give its path and a task's id (default: the
    main task).
    """

    path: str | None = Field(default=None, min_length=1, max_length=512)
    name: FileName | None = None
    task: Id | None = None

    @model_validator(mode="after")
    def check(self) -> Self:
        """Refuse a request with no file name or with two."""
        if (self.path is None) == (self.name is None) or (
            self.name is not None and self.task is not None
        ):
            raise ValueError(
                "name: give only name, or path; with path, also task unless it is the main task"
            )
        return self


class NameChoice(Choice):
    """Parameters of the web page of a file: its name in the list of files."""

    name: FileName


class ItemsChoice(Choice):
    """Parameters of ``GET /v1/runs/{run_id}/items/stats``: a file's name or a task's id (default:
    all items).

    ``contains`` selects items with this text in ``field`` or in any field, ignoring case. ``field``
    alone selects items that have this field. ``code`` adds the code of each item.
    """

    name: FileName | None = None
    task: Id | None = None
    field: str | None = Field(default=None, max_length=NAME_MAX)
    contains: str | None = Field(default=None, max_length=NAME_MAX)
    offset: int = Field(default=0, ge=0, le=ID_MAX)
    code: bool = False

    @model_validator(mode="after")
    def check(self) -> Self:
        """Raise ``ValueError`` if both a name and a task are given.

        An empty string, which forms send, counts as ``None``.
        """
        if self.name is not None and self.task is not None:
            raise ValueError("name: not allowed with task; give one of them")
        self.field, self.contains = self.field or None, self.contains or None
        return self


class ItemPage(ItemsChoice):
    """Parameters of ``GET /v1/runs/{run_id}/items``: a selection of items, and the maximum number
    of items on a page.
    """

    limit: int = Field(default=200, ge=1, le=1_000)


class FeedChoice(ItemsChoice):
    """Parameters of ``GET /v1/runs/{run_id}/items/feed``: a selection of items, the format, and
    field names.
    """

    format: Literal["jsonl", "csv"] = "jsonl"
    limit: Id | None = None
    fields: str | None = Field(default=None, min_length=1, max_length=4_096)


class ArchiveChoice(Choice):
    """Parameters of ``GET /v1/runs/{run_id}/archive``.

    Without an attempt, the newest archive is returned.
    """

    attempt: int | None = Field(default=None, ge=1, le=INT_MAX)


def cut(
    kind: str, rows: Sequence[Row], size: int, place: Callable[[Row], int]
) -> tuple[list[Row], str | None]:
    """Return a page of ``size`` rows, and the token of the next page if ``rows`` has more rows than
    that.
    """
    page = list(rows[:size])
    return page, encode(kind, place(page[-1])) if len(rows) > size else None


def id_before(corrections: CorrectionStore, since: datetime) -> int:
    """Return the last id before the corrections since ``since``.

    Ids grow with time, so bisection finds this id without reading all earlier rows.
    """

    def first_after(after: int) -> CorrectionRow | None:
        found = corrections.list_corrections(after_id=after, limit=1)
        return found[0] if found else None

    low = 0
    step = 1
    while (row := first_after(low + step)) is not None and row.created_at < since:
        low, step = row.id, step * 2
    high = low + step
    while low < high:
        middle = (low + high) // 2
        row = first_after(middle)
        if row is not None and row.created_at < since:
            low = row.id
        else:
            high = middle
    return low
