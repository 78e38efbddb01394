"""Activities in parallel with a storm: clients that send unusual texts, and schedules, each in its
own thread.

Their crawls use the crawler ``aside``, which keeps its journals in its own folder, so that they do
not count for the manager or the graphs of the storm.
"""

from __future__ import annotations

import threading

from tools.soak.api_client import ApiClient
from tools.soak.harness import SoakHarness
from tools.soak.journal import read_journals
from tools.soak.odd_records import check_strangers
from tools.soak.odd_texts import Strangers
from tools.soak.schedule_records import check_schedules
from tools.soak.schedules import Schedules

#: The user code for the module of a storm: the class that a schedule starts as a manager.
CLASS = """

from crawler_lifecycle.managers import GeneratorCrawlManager as _Generator


class Aside(_Generator):
    name, spider, loop_mode, default_max_jobs = "aside", "aside", 5, 2

    def set_parameters_gen(self):
        for number in range(2):
            yield {"spider_args": {"number": number, "seconds": 0.3}}
"""


class Aside:
    """Both activities on one stack."""

    def __init__(self, harness: SoakHarness, module: str, seed: int) -> None:
        """Set up both activities. ``module`` contains ``CLASS``."""
        self._harness, self._over, self.wrong = harness, threading.Event(), list[str]()
        api = ApiClient(lambda: str(harness.stack.addresses["gateway"]))
        self.strangers, self.schedules = (
            Strangers(api, seed),
            Schedules(api, seed, f"{module}:Aside"),
        )
        actors = (self.strangers, self.schedules)
        self._threads = [
            threading.Thread(target=self._act, args=(one,), daemon=True) for one in actors
        ]

    def __str__(self) -> str:
        sent, told = [one.start for one in self.strangers.sent], self.schedules.told
        good, lives = sum(one.ok for one in sent), len(self.schedules.lives)
        return (
            f"{len(sent)} odd requests, {good} accepted; {len(told)} commands on schedules, "
            f"deleted {lives} times, "
            f"{len(self.schedules.wanted)} due times promised to a person"
        )

    def begin(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Stop beginning new work, and return when both threads have ended."""
        self._over.set()
        for thread in self._threads:
            thread.join()

    def judge(self) -> list[str]:
        """Return everything that was untrue, after everything has ended."""
        crawls, one = read_journals(self._harness.aside), self.schedules
        self.wrong += check_strangers(self._harness, self.strangers.sent, crawls)
        self.wrong += check_schedules(self._harness, one.lives, one.wanted, one.told, crawls)
        return self.wrong

    def _act(self, actor: Strangers | Schedules) -> None:
        try:
            pause = 0.0
            while not self._over.wait(pause):
                pause = actor.turn()
            actor.finish()
        except Exception as error:  # If these clients fail, a storm proves less than it reports.
            self.wrong.append(f"{type(actor).__name__} broke down: {type(error).__name__}: {error}")
