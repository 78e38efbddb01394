"""Run ids: raises the database's counter above every id that is still in use outside the database.

A database that was restored from a copy, or newly created, would use ids again. Uids still
distinguish the runs, but people would confuse two runs with the same id, and the names of objects
on the cluster would already be in use. Therefore each upgrade of the schema and each start of a
worker asks the cluster and the other sources for their highest id, and raises the counter. The
counter never decreases. Gaps between ids have no meaning.
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

#: The maximum number of seconds that a worker waits for the sources before it accepts work and may
#: assign a run id.
FIRST_S = 10.0
#: The time limit of a source in seconds if the caller does not set one.
FOR_EVER_S = 365 * 86_400.0
#: Seconds until a source that did not respond is asked again.
AGAIN_S = 60.0


@dataclass
class KnownNumbers:
    """The responses from the sources: the highest run id in each source, or the reason why the
    source did not give one.
    """

    highest: dict[str, int] = field(default_factory=dict)
    troubles: dict[str, str] = field(default_factory=dict)

    @property
    def above(self) -> int:
        """The highest run id of all sources; 0 if none is known."""
        return max(self.highest.values(), default=0)

    def words(self, newest: int) -> list[str]:
        """Return a human-readable phrase for each source that contains a run id above
        ``newest``."""
        return [
            f"{name} contains run {number}"
            for name, number in sorted(self.highest.items())
            if number > newest
        ]


def ask(
    sources: Mapping[str, KnowsRuns], newest: int, limit_s: float | None = None
) -> KnownNumbers:
    """Ask all sources concurrently for run ids above ``newest``. Never raises.

    A source that does not respond within ``limit_s`` seconds is reported as not responding.
    """
    known = KnownNumbers(
        troubles=dict.fromkeys(sources, f"no response within {limit_s or FOR_EVER_S:g} s")
    )
    asking = Abreast[str, int](
        lambda name: sources[name].highest_run(newest), slow_s=limit_s or FOR_EVER_S
    )
    for name, answer in asking.over(sources):
        if isinstance(answer, int):
            known.highest[name] = answer
            del known.troubles[name]
        elif isinstance(answer, LifecycleError):
            known.troubles[name] = str(answer)
        else:  # an unexpected error of one source must not affect the others
            log.error("asking %s for run ids failed", name, exc_info=answer)
            known.troubles[name] = f"{type(answer).__name__}: {answer}"
    return known


def bring_forward(
    store: RunNumberStore, sources: Mapping[str, KnowsRuns], limit_s: float | None = None
) -> KnownNumbers:
    """Ask all sources, and raise the counter above their highest run id.

    Raises ``StoreUnavailable``.
    """
    newest = store.newest_run_id()
    known = ask(sources, newest, limit_s)
    if store.begin_run_ids_above(known.above):
        log.warning(
            "new runs get numbers above %d: the newest run in the database is %d, and %s; was the "
            "database restored? "
            "docs/operations-database.md explains what to do",
            known.above,
            newest,
            ", ".join(known.words(newest)),
        )
    return known


class Numbers:
    """Raises the counter once after the start of a worker, and again until every source has
    answered.
    """

    def __init__(
        self, store: RunNumberStore, sources: Mapping[str, KnowsRuns], again_s: float = AGAIN_S
    ) -> None:
        self._store = store
        self._left = dict(sources)
        self._troubles: dict[str, str] = {}
        self._loop = Loop(
            "asking for the run ids in use",
            again_s,
            meanwhile="new runs may get an id that is in use",
            retry_s=(again_s, again_s),
        )
        self.first = asyncio.Event()
        """Set after the first turn, in which all sources were asked."""

    def state(self) -> Mapping[str, object]:
        """Return the state for a probe: the sources that have not responded yet, with the
        reasons.
        """
        return {
            "complete": not self._left,
            "unanswered": {name: self._troubles.get(name) for name in self._left},
        }

    async def run(self) -> None:
        """Ask until every source has responded, or until cancelled. Never raises."""
        await self._loop.run(self._next)

    async def _next(self) -> float:
        try:
            await asyncio.to_thread(self._turn)
        finally:
            self.first.set()
        return DONE

    def _turn(self) -> None:
        """Ask the sources that have not responded yet.

        Raises ``LifecycleError`` if any of them still does not respond.
        """
        try:
            known = bring_forward(self._store, self._left)
        except LifecycleError as error:
            known = KnownNumbers(troubles=dict.fromkeys(self._left, f"the database: {error}"))
        self._troubles = known.troubles
        self._left = {name: source for name, source in self._left.items() if name in known.troubles}
        if self._left:
            raise LifecycleError(
                "; ".join(f"{name}: {text}" for name, text in known.troubles.items())
            )
