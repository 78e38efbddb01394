"""Pages of lists that can be searched and sorted, and notes for people about their length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Self, TypeVar

from pydantic import BaseModel, Field

from crawler_lifecycle.domain.projects import narrowed
from crawler_lifecycle.gateway.cursors import decode, encode
from crawler_lifecycle.store.base.named import NamedPart
from crawler_lifecycle.store.base.search import Reach
from crawler_lifecycle.subjects import TOTAL_MAX

from .paging import OfProject, SearchParameters, cut

Row = TypeVar("Row")


class ResultPage(BaseModel):
    """A page of a list."""

    next_page_token: str | None
    fits: int | None = None
    """The number of matching rows among the rows that were searched or sorted, if the request
    searches or sorts.
    """
    fits_more: bool = Field(default=False, exclude=True)
    """True if more rows may match."""
    note: str | None = None
    """A sentence about the rows that were not searched or sorted; null if there are none."""
    total: int | None = None
    """On the first page only: the number of rows that match all filters, over all pages."""
    total_exact: bool | None = None
    """False if there may be more rows than `total`, because at most 10,001 rows are counted, and a
    search may not cover all rows.
    """

    def with_total(
        self, filters: SearchParameters, count: Callable[[Any, Any], tuple[int, bool]]
    ) -> Self:
        """Return the page. If it is the first one, add the total number of rows."""
        if filters.page_token is None:
            self.total, self.total_exact = count(filters, self)
        return self


#: Searches or sorts rows. The arguments are the text, the order, the row before the page, the first
#: position, and the number of rows.
Search = Callable[[str | None, str | None, int | None, int, int], tuple[Sequence[Row], Reach]]


def page_of(
    plural: str,
    filters: SearchParameters,
    newest: Callable[[int | None, int], Sequence[Row]],
    search: Search[Row],
    number: Callable[[Row], int],
) -> tuple[list[Row], dict[str, Any]]:
    """Return the rows of a page, and the other fields of its response.

    ``number`` returns the number of a row, by which the next page continues. Raises ``Problem`` 422
    for the page token of another list.
    """
    kind = plural.removesuffix("s")
    size = filters.page_size + 1
    more = dict[str, Any]()
    offset = decode("sorted", filters.page_token) or 0 if filters.sort else 0
    before = None if filters.sort else decode(kind, filters.page_token)
    if filters.search is None and filters.sort is None:
        rows = newest(before, size)
    else:
        rows, reach = search(filters.search, filters.sort, before, offset, size)
        note = _reach_words(reach, plural, filters)
        more = {"fits": reach.fits, "fits_more": note is not None or not reach.whole, "note": note}
    page, token = cut(kind, rows, filters.page_size, number)
    if filters.sort and token:
        token = encode("sorted", offset + filters.page_size)
    return page, {"next_page_token": token, **more}


def _reach_words(reach: Reach, plural: str, filters: SearchParameters) -> str | None:
    """Return a sentence about the rows that a search or an order did not cover."""
    window = f"the newest {reach.window:,} {plural} that match the other filters"
    if reach.note is not None or reach.whole or not (reach.left or filters.sort):
        return reach.note
    if filters.sort is not None:
        return f"Only {window} were {'searched and ' if filters.search is not None else ''}sorted."
    *most, last = reach.left
    named = f"{', '.join(most)} and {last}" if most else last
    return f"{named.capitalize()} were searched only in {window}."


def named_page(
    store: NamedPart[Any], filters: OfProject, of: Callable[[Any], BaseModel]
) -> dict[str, Any]:
    """Return the fields of a page of schedules or webhooks, in the order of their creation.

    ``of`` converts a row to its response. This call blocks.
    """
    noun = store.table.name
    with narrowed(filters.project):
        page, token = filters.read(
            noun, lambda after, size: store.page(after or 0, size), attrgetter(f"{noun}_id")
        )
    return {f"{noun}s": [of(row) for row in page], "next_page_token": token}


def counted(
    filters: SearchParameters, page: ResultPage, here: int, count: Callable[[int], int]
) -> tuple[int, bool]:
    """Return the number of rows that match the filters, and whether it is exact.

    ``here`` is the number of rows on this page. This call blocks.
    """
    # On a later page, the search has counted only the rows from the first row of that page onwards.
    part = page.fits_more or (filters.page_token is not None and filters.sort is None)
    if filters.search is not None and part:
        return max(page.fits or 0, here), False
    if page.next_page_token is None and filters.page_token is None:
        return here, True
    found = count(TOTAL_MAX + 1) if filters.search is None else page.fits or 0
    return found, found <= TOTAL_MAX
