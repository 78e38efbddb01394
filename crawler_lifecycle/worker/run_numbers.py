"""Run ids: raises the counter above every id that anything outside of the database still uses.

A database that was restored from a copy, or made anew, would give numbers out again. What lies under them keeps its
uid, so nothing is ever taken for another run's; but two runs of one number are hard to tell apart for people, and names
on the cluster are taken. So whoever upgrades the schema and every worker that starts asks what it can reach, and brings
the counter forward. Numbers never go back, and gaps mean nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from crawler_lifecycle.activities.abreast import Abreast
from crawler_lifecycle.background import DONE, Loop
from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.ports.protocols import KnowsRuns
from crawler_lifecycle.store.retention.run_numbers import RunNumberStore

log = logging.getLogger(__name__)

#: Seconds for which a worker puts off its first work so that numbers are right before it gives one out.
FIRST_S = 10.0
#: Seconds for a source where there is no limit.
FOR_EVER_S = 365 * 86_400.0
#: Seconds between two tries of a source that did not answer.
AGAIN_S = 60.0


@dataclass
class Known:
    """Answers of the sources: the highest number of each, and why some said nothing."""

    highest: dict[str, int] = field(default_factory=dict)
    troubles: dict[str, str] = field(default_factory=dict)

    @property
    def above(self) -> int:
        """The highest number of all."""
        return max(self.highest.values(), default=0)

    def words(self, newest: int) -> list[str]:
        """Sources that know numbers above ``newest``, for people."""
        return [f"{name} knows run {number}" for name, number in sorted(self.highest.items()) if number > newest]


def ask(sources: Mapping[str, KnowsRuns], newest: int, limit_s: float | None = None) -> Known:
    """Ask all sources at once for numbers above ``newest``. Raises nothing.

    One that has not answered after ``limit_s`` is left behind and counts as one that did not.
    """
    known = Known(troubles=dict.fromkeys(sources, f"no answer within {limit_s or FOR_EVER_S:g} s"))
    asking = Abreast[str, int](lambda name: sources[name].highest_run(newest), slow_s=limit_s or FOR_EVER_S)
    for name, answer in asking.over(sources):
        if isinstance(answer, int):
            known.highest[name] = answer
            del known.troubles[name]
        elif isinstance(answer, LifecycleError):
            known.troubles[name] = str(answer)
        else:  # whatever the error is, it says nothing about the other sources and must not stop them
            log.error("numbers of %s", name, exc_info=answer)
            known.troubles[name] = f"{type(answer).__name__}: {answer}"
    return known


def bring_forward(store: RunNumberStore, sources: Mapping[str, KnowsRuns], limit_s: float | None = None) -> Known:
    """Ask all sources, and let new runs begin above what they know. Raises ``StoreUnavailable``."""
    newest = store.newest_run_id()
    known = ask(sources, newest, limit_s)
    if store.begin_run_ids_above(known.above):
        log.warning(
            "new runs get numbers above %d: the newest run of the database is %d, and %s; was the database restored? "
            "docs/operations.md says what to do",
            *(known.above, newest, ", ".join(known.words(newest))),
        )
    return known


class Numbers:
    """Brings the counter forward once after the start of a worker; again only while a source has not answered."""

    def __init__(self, store: RunNumberStore, sources: Mapping[str, KnowsRuns], again_s: float = AGAIN_S) -> None:
        self._store = store
        self._left = dict(sources)
        self._troubles: dict[str, str] = {}
        self._loop = Loop(
            "asking what bears numbers of runs",
            again_s,
            meanwhile="new runs may get a number that is taken",
            retry_s=(again_s, again_s),
        )
        self.first = asyncio.Event()
        """Set when every source was asked once."""

    def state(self) -> Mapping[str, object]:
        """The present state, for a probe: which sources have not answered yet, and why."""
        return {"complete": not self._left, "unanswered": {name: self._troubles.get(name) for name in self._left}}

    async def run(self) -> None:
        """Until every source has answered, or it is cancelled. Raises nothing."""
        await self._loop.run(self._next)

    async def _next(self) -> float:
        try:
            await asyncio.to_thread(self._turn)
        finally:
            self.first.set()
        return DONE

    def _turn(self) -> None:
        """Raises ``LifecycleError`` while a source has not answered."""
        try:
            known = bring_forward(self._store, self._left)
        except LifecycleError as error:
            known = Known(troubles=dict.fromkeys(self._left, f"the database: {error}"))
        self._troubles = known.troubles
        self._left = {name: source for name, source in self._left.items() if name in known.troubles}
        if self._left:
            raise LifecycleError("; ".join(f"{name}: {text}" for name, text in known.troubles.items()))
