"""The list of a subject as a page or as CSV, from the database or from rows that are in memory."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel
from starlette.responses import Response

from crawler_lifecycle.gateway.api.paging import Paging, SearchParameters
from crawler_lifecycle.gateway.cursors import PAGE_MAX, decode, encode
from crawler_lifecycle.subjects import Column
from crawler_lifecycle.web.problems import refused

from .choosing import Chooser
from .formats import cell_order, cell_text, number
from .forms import read
from .rendering import answer, columns
from .tabs import tab_path

T = TypeVar("T", bound=BaseModel)

#: The maximum number of rows that can be selected at once.
SELECTED_MAX = 500
#: The maximum number of rows in a CSV file.
CSV_MAX = 5000
#: The maximum number of rows that are searched and sorted if they are not in memory.
WINDOW = 2_000
#: Spreadsheets execute text that begins like this as a formula. A number is not a formula.
_FORMULA = re.compile(r"[=+\-@\t\r](?!\d+(\.\d+)?$)")


@dataclass(frozen=True, slots=True)
class RowPage:
    """The rows of a page of a list."""

    rows: Sequence[Any]
    """The documents that the columns read."""
    token: str | None = None
    """The token of the next page, if there is one."""
    note: str | None = None
    """A sentence about the rows that a search did not cover."""
    total: Callable[[], str] | None = None
    """Counts the rows on all pages. Without it, the rows of the page are counted."""


Find = Callable[[Any], RowPage]
"""Returns the rows that match the filters. It can block."""


class HeldFilters(SearchParameters):
    """Filters of a list whose rows are in memory when they are searched and sorted."""


def filters_of(request: Request, kind: type[T]) -> T:
    """Convert the query of a list's address to a ``kind``. Raises ``Problem`` 422."""
    given = request.query_params.multi_items()
    for name, value in given:
        if name == "format" and value != "csv":
            raise refused("format", "only csv exists; omit format to get a page", value)
    return read(kind, [pair for pair in given if pair[0] != "format"])


def list_page(
    request: Request,
    chooser: Chooser,
    filters: Paging,
    find: Find,
    *,
    now: datetime,
    template: str = "",
    tab: str = "",
    acts: Sequence[str] = (),
    known: Mapping[str, Sequence[str]] | None = None,
    **values: Any,
) -> Response:
    """Return the list as a page, or with ``format=csv`` as CSV.

    ``acts`` has the actions that the caller may apply to selected rows, ``known`` the existing
    values of filters, and ``values`` further values for the ``template``. With ``tab``, the list is
    the tab of a subject with this title, and ``values`` are those of the subject's head. This call
    blocks.
    """
    if tab:
        chooser = replace(chooser, path=tab_path(values["tabs"], tab))
    if "format" in request.query_params:
        return _csv(chooser, everything(find, filters, CSV_MAX).rows)
    selected = getattr(filters, "all", False)
    found = everything(find, filters, SELECTED_MAX) if selected else find(filters)
    seen = number(len(found.rows)) + "+" * bool(found.token)
    own: dict[str, Any] = {
        "rows": found.rows,
        "note": found.note,
        "total": found.total() if found.total else seen,
        "acts": acts,
        "selected": selected,
        "can_select_all": "all" in type(filters).model_fields,
    }
    shown = chooser.shown(filters, known or {}, found.token)
    template = template or ("list_tab.html" if tab else "list.html")
    return answer(request, template, now=now, tab=tab, **own, **shown, **values)


def everything(find: Find, filters: Paging, most: int) -> RowPage:
    """Return the matching rows, at most ``most`` of them. The token shows whether there are
    more."""
    first = find(filters.model_copy(update={"page_size": min(PAGE_MAX, most)}))
    rows = [*first.rows]
    token = first.token
    while token is not None and len(rows) < most:
        update = {"page_size": min(PAGE_MAX, most - len(rows)), "page_token": token}
        part = find(filters.model_copy(update=update))
        token = part.token
        rows += part.rows
    return replace(first, rows=rows, token=token)


def held(chooser: Chooser, rows: Sequence[Any]) -> Find:
    """Return the function that searches, sorts and pages these rows by their cells."""
    given = {_name(column): column for column in columns(chooser.subject.columns)}

    def find(filters: HeldFilters) -> RowPage:
        text = (filters.search or "").casefold()
        found = [
            row
            for row in rows
            if any(text in cell_text(column.cell(row)).casefold() for column in given.values())
        ]
        if filters.sort is not None:
            name = filters.sort.removeprefix("-")
            if name not in chooser.sorts:
                raise refused("sort", f"choose from {', '.join(chooser.sorts)}", filters.sort)
            found = _sorted(found, given[name], reverse=filters.sort.startswith("-"))
        return page_of(found, filters)

    return find


def windowed(chooser: Chooser, find: Find) -> Find:
    """Return the function that searches and sorts the first ``WINDOW`` rows of ``find``, because no
    index finds a part of a text. Without a search and an order, it returns the pages of ``find``.
    """

    def within(filters: HeldFilters) -> RowPage:
        if filters.search is None and filters.sort is None:
            return find(filters)
        plain = {"search": None, "sort": None, "page_token": None}
        window = everything(find, filters.model_copy(update=plain), WINDOW)
        page = held(chooser, window.rows)(filters)
        if window.token is None:
            return page
        first = "newest" if chooser.newest_first else "first"
        among = f"{first} {WINDOW:,} {chooser.subject.plural} that match the other filters"
        return replace(page, note=f"Only the {among} were searched and sorted.")

    return within


def page_of(rows: Sequence[Any], filters: Paging) -> RowPage:
    """Return the page of these rows that the filters name."""
    start = decode("held", filters.page_token) or 0
    end = start + filters.page_size
    token = encode("held", end) if len(rows) > end else None
    return RowPage(rows[start:end], token, total=lambda: number(len(rows)))


def held_sorts(given: Sequence[Column]) -> dict[str, str]:
    """Return the orders of a list whose rows are all in memory: the title of each column."""
    return {_name(column): column.title for column in columns(given) if column.title}


def _name(column: Column) -> str:
    return column.title.lower().replace(" ", "_")


def _sorted(rows: Sequence[Any], column: Column, *, reverse: bool) -> list[Any]:
    keyed = [(cell_order(column.cell(row)), row) for row in rows]
    full = [pair for pair in keyed if pair[0][0] < 2]
    empty = [row for key, row in keyed if key[0] == 2]
    full.sort(key=lambda pair: pair[0], reverse=reverse)
    return [row for _, row in full] + empty


def _csv(chooser: Chooser, rows: Sequence[Any]) -> Response:
    shown = columns(chooser.subject.columns)
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow([column.title for column in shown])
    for row in rows:
        texts = [cell_text(column.cell(row)) for column in shown]
        writer.writerow([f"'{text}" if _FORMULA.match(text) else text for text in texts])
    headers = {
        "Content-Disposition": f'attachment; filename="{chooser.subject.plural}.csv"',
        "Cache-Control": "private, no-cache",
    }
    return Response(file.getvalue().encode(), 200, headers, "text/csv; charset=utf-8")
