"""The rounds that find incidents.

If there are several gateways, only one of them makes the rounds. A round checks only what may have
changed: crawlers with runs that ended since the last round. The first round, and then one every ten
minutes, checks everything.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from crawler_lifecycle.background import Failures, Loop
from crawler_lifecycle.domain.conditions import IncidentCondition
from crawler_lifecycle.domain.incident import IncidentRow
from crawler_lifecycle.features import FEATURES
from crawler_lifecycle.gateway.health import HealthPart
from crawler_lifecycle.gateway.parts import Gateway

from ..domain.workers import WorkerWatch
from ..store.reads import Crawler
from .conditions import (
    STUCK_FOR,
    found_of_crawlers,
    found_of_parts,
    found_of_workers,
    found_of_workflows,
)

#: Seconds between two rounds. Every round checks for silent workers. Every fifth one also checks
#: crawlers and parts, and every fifteenth one the conditions of features.
EVERY_S = 1.0
OFTEN = 5
SELDOM = 15
WHOLE = timedelta(minutes=10)
#: The time after which another gateway takes over the rounds if this gateway makes none.
TURN = timedelta(seconds=10)
#: Seconds that a round waits for the state of the parts.
PARTS_S = 1.0

Source = Callable[[], Iterable[IncidentCondition]]


@dataclass
class RoundState:
    """The state that this process keeps between rounds."""

    rounds: int = 0
    seq: int = 0
    whole_at: datetime | None = None
    began_at: datetime | None = None
    workers: WorkerWatch = field(default_factory=WorkerWatch)
    silent: list[str] = field(default_factory=list)
    bad: dict[str, datetime] = field(default_factory=dict)
    stuck: dict[str, datetime] = field(default_factory=dict)


class Rounds:
    """Finds incidents."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._store = gateway.store
        self._holder = uuid.uuid4().hex
        self._failures: dict[str, Failures] = {}
        self._seen = RoundState()

    async def run(self) -> None:
        """Make rounds until this is cancelled. This method never raises."""

        async def turn() -> None:
            health = None
            if self._seen.rounds % OFTEN == 0:
                health = await self._gateway.health.read_within(PARTS_S)
            await asyncio.to_thread(self.once, None if health is None else health.parts)

        await Loop("the search for incidents", EVERY_S).run(turn)

    def once(self, parts: Sequence[HealthPart] | None) -> bool:
        """Make one round. ``parts`` is ``None`` if their state is unknown at the moment. Returns
        false if another gateway makes the rounds. This call blocks.
        """
        now = self._gateway.clock()
        often = self._seen.rounds % OFTEN == 0
        if often and not self._store.notes.take_turn("incidents", self._holder, now + TURN):
            self._seen = RoundState()  # the other gateway may record what this one does not see
            return False
        seen = self._seen
        whole = often and (seen.whole_at is None or now - seen.whole_at >= WHOLE)
        ended, seq = self._ended(whole) if often else (Counter[Crawler](), seen.seq)
        well = set[Crawler]()
        sources: dict[str, Source] = {
            "worker": partial(found_of_workers, self._store, seen.workers, now)
        }
        if often:
            sources |= {
                "crawler": partial(found_of_crawlers, self._store, ended, well),
                "workflow": partial(found_of_workflows, self._gateway.blocked, seen.stuck, now),
            }
            if parts is not None:
                parts = [*parts, *self._failing_searches(now)]
                sources["part"] = partial(found_of_parts, parts, seen.bad, now)
        if whole or seen.rounds % SELDOM == 0:
            sources |= {
                noun: partial(feature.load(name), self._store, now)
                for feature in FEATURES
                for noun, name in feature.conditions.items()
            }
        found = {noun: self._found(noun, source) for noun, source in sources.items()}
        seen.began_at = seen.began_at or now
        # A gateway that has just begun does not know yet how long a problem has lasted.
        settled = {
            "worker": seen.workers.is_settled,
            "part": seen.rounds > 0,
            "workflow": now - seen.began_at >= STUCK_FOR,
        }

        def covers(row: IncidentRow) -> bool:
            noun = row.kind.partition("_")[0]
            over = noun != "crawler" or (row.project, row.name) in well
            return over and settled.get(noun, True) and found.get(noun) is not None

        conditions = [condition for group in found.values() for condition in group or ()]
        silent = [condition.subject for condition in found["worker"] or ()]
        if often or silent != seen.silent:
            self._store.incidents.record_conditions(conditions, covers)
        seen.silent = silent
        seen.rounds += 1
        if found.get("crawler") is not None:  # otherwise, the next round checks them again
            seen.seq = seq
            seen.whole_at = now if whole else seen.whole_at
        return True

    def _found(self, noun: str, source: Source) -> list[IncidentCondition] | None:
        """Return the conditions, or ``None`` if they cannot be read now."""
        failures = self._failures.setdefault(noun, Failures(f"the search for {noun} problems"))
        try:
            found = list(source())
        except Exception as error:
            failures.failed(error)
            return None
        failures.worked()
        return found

    def _failing_searches(self, now: datetime) -> list[HealthPart]:
        """Return the searches that failed at least twice in a row."""
        fix = "until the error in the log of the gateway is fixed, new problems are not found"
        return [
            HealthPart(f"the search for {noun} problems", "bad", failures.problem or "", fix, now)
            for noun, failures in self._failures.items()
            if failures.count > 1
        ]

    def _ended(self, whole: bool) -> tuple[Counter[Crawler], int]:
        """Return the crawlers to check, how many runs of each ended recently, and the last event
        that these numbers include.
        """
        if not whole:
            return self._store.incidents.crawlers_ended_after(self._seen.seq)
        seq = self._store.events.last_event_seq()
        return Counter(dict.fromkeys(self._store.incidents.all_crawlers(), 0)), seq
