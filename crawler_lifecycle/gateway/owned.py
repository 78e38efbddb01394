"""The common part of the readers for managers and graphs: they return a page of objects, or a
single one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar, Generic, TypeVar

from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.clock import Clock
from crawler_lifecycle.domain.projects import narrowed
from crawler_lifecycle.gateway.api.lists import ResultPage, counted, page_of
from crawler_lifecycle.gateway.api.paging import SearchParameters
from crawler_lifecycle.gateway.runs.blocked import BlockedRuns
from crawler_lifecycle.store.base.owned import OwnedPart
from crawler_lifecycle.subjects import Subject

F = TypeVar("F", bound=SearchParameters)
P = TypeVar("P", bound=ResultPage)
A = TypeVar("A")


@dataclass(eq=False)
class OwnedViews(ABC, Generic[F, P, A]):
    """Reads managers or graphs.

    ``F`` is the class of a list's filters, ``P`` of its page, and ``A`` of the full response.
    """

    store: OwnedPart[Any, Any]
    blocked: BlockedRuns
    clock: Clock

    subject: ClassVar[Subject]
    #: The class ``P``, the class of the objects on that page, and the class ``A``.
    pages: ClassVar[type[Any]]
    brief: ClassVar[type[Any]]
    whole: ClassVar[type[Any]]

    @abstractmethod
    def found(self, key: Any) -> Any:
        """Return the row. Raises ``Problem`` 404. This call blocks."""

    @abstractmethod
    def named(self, filters: F) -> Sequence[Any] | None:
        """Return the rows that the filters name, or ``None`` if the filters name no rows but
        describe them.
        """

    def page(self, filters: F) -> P:
        """Return the rows that match the filters, newest first. Raises ``InvalidRequest``. This
        call blocks.
        """
        filters.check()
        store = self.store
        wanted = self._wanted(filters)
        more = dict[str, Any](next_page_token=None)
        with narrowed(filters.project):
            rows = self.named(filters)
            if rows is None:
                newest = partial(store.newest, **wanted)
                search = partial(store.search, **wanted)
                rows, more = page_of(
                    self.subject.plural, filters, newest, search, attrgetter(store.listed.key.name)
                )
        answers = [
            self.brief.of(row, self.blocked.listed_workflow(row.workflow_id)) for row in rows
        ]
        page: P = self.pages(**{self.subject.plural: answers}, **more)
        return page

    def counted(self, filters: F, page: P) -> tuple[int, bool]:
        """Return the number of rows that match the filters, and whether it is exact. This call
        blocks.
        """
        here = len(getattr(page, self.subject.plural))
        with narrowed(filters.project):
            return counted(
                filters, page, here, partial(self.store.count_listed, **self._wanted(filters))
            )

    async def one(self, key: int | str) -> A:
        """Return one object. Raises ``Problem`` 404."""
        row = await run_in_threadpool(self.found, key)
        answer: A = self.whole.of(
            row, await self.blocked.of_workflow(row.workflow_id, is_open=row.ended_at is None)
        )
        return answer

    def _wanted(self, filters: F) -> dict[str, Any]:
        given = vars(filters)
        return {"states": given[self.store.state.name], "name": given["name"]}
