"""Schedules in parallel with a storm: they are created, triggered, backfilled, paused and deleted
at random, and created again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from tests.e2e.harness import moment
from tools.soak.api_client import ApiClient, Document, Told
from tools.soak.odd_texts import QUICK, odd_text

NAMES = ("aside-a", "aside-b", "aside-c")
EVERY_S = 20
#: How far back a backfill goes, and how late a due time may begin.
BACK_S, CATCH_UP_S = 60, 30
#: The mean number of seconds between two commands.
PACE_S = 3.0


@dataclass(frozen=True)
class Wanted:
    """A due time that a person requested, and whose firing was promised."""

    name: str
    due_at: float
    told: Told


class Schedules:
    """A client that often changes its schedules. ``plan`` is a manager that a schedule may begin."""

    def __init__(self, api: ApiClient, seed: int, plan: str) -> None:
        self._api, self._dice, self._plan = api, random.Random(f"schedules-{seed}"), plan
        self._count = 0
        self._since: dict[str, float] = {}
        self.wanted: list[Wanted] = []
        self.told: list[Told] = []
        self.lives: list[tuple[str, float, float]] = []
        """The name of a schedule, and the time during which it certainly existed."""

    def turn(self) -> float:
        name, acts = self._dice.choice(NAMES), list[Callable[[str], None]]()
        if name not in self._since:
            acts = [self.put]
        else:
            acts = [self.put, self.pause, self.resume, self.delete, self.backfill, self.backfill]
            acts += [self.trigger] * 3 + [self.trigger_and_delete, self.backfill_and_delete]
        self._dice.choice(acts)(name)
        return self._dice.expovariate(1 / PACE_S)

    def finish(self) -> None:
        """Check that every earlier due time has a line when a schedule is deleted."""
        for name in list(self._since):
            self.delete(name)

    def _ask(self, method: str, name: str, what: str = "", body: Document | None = None) -> Told:
        self._count += 1
        told = self._api.until_told(
            method, f"/v1/schedules/{name}{what}", body, f"schedules-{self._count}"
        )
        self.told.append(told)
        return told

    def put(self, name: str) -> None:
        told = self._ask("PUT", name, body=self.definition())
        if told.ok:
            self._since.setdefault(name, told.at)

    def definition(self) -> Document:
        crawl: Document = {
            "crawler": "aside",
            "args": {"seconds": str(round(self._dice.uniform(0, 3), 1))},
            **QUICK,
        }
        step = {"path": "only", "kind": "crawl", "job": crawl}
        kinds: list[Document] = [{"run": crawl}] * 3 + [
            {"manager": {"plan": self._plan}},
            {"graph": {"steps": [step]}},
        ]
        overlap = self._dice.choice(["skip", "queue", "allow", "allow", "stop_previous"])
        times = {"every_s": EVERY_S, "catch_up_s": CATCH_UP_S, "overlap": overlap}
        return self._dice.choice(kinds) | times

    def pause(self, name: str) -> None:
        self._ask("POST", name, "/pause", {"reason": odd_text(self._dice)})

    def resume(self, name: str) -> None:
        self._ask("POST", name, "/resume")

    def delete(self, name: str) -> None:
        told = self._ask("DELETE", name)
        if told.ok or told.status == 404:
            self.lives.append((name, self._since.pop(name), told.sent))

    def trigger(self, name: str) -> None:
        self._promised(name, self._ask("POST", name, "/trigger", {"requested_by": "a person"}))

    def backfill(self, name: str) -> None:
        after = datetime.fromtimestamp(time.time() - BACK_S, UTC).isoformat()
        self._promised(
            name, self._ask("POST", name, "/backfill", {"after": after, "requested_by": "a person"})
        )

    def trigger_and_delete(self, name: str) -> None:
        """The request is sent before any worker can have read the change."""
        self.trigger(name)
        self.delete(name)

    def backfill_and_delete(self, name: str) -> None:
        self.backfill(name)
        self.delete(name)

    def _promised(self, name: str, told: Told) -> None:
        if told.ok:
            # A backfill also names firings that existed before, and firings that are due only by
            # the schedule.
            asked = [
                line["due_at"]
                for line in told.answer.get("due", ())
                if line["asked_by"] is not None
            ]
            self.wanted += [Wanted(name, moment(at).timestamp(), told) for at in asked]
