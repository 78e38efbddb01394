"""``python -m tools.soak.managers --jobs N --seed S [--mariadb]`` executes a crawl manager while
the components around it are killed at random.

Its user-code workers are killed, frozen and drained. The processes with its class, the other
worker, the Temporal server, the database server and crawlers are killed, and workflows are
terminated. The class is edited twice, and a new build takes over once. In parallel, clients send
texts with unusual characters, and schedules are triggered, backfilled and deleted. The other worker
has a version, and the user-code workers have none. Then managers are stopped in every way while the
worker is killed. The judges are the journals that the crawlers keep themselves, and the kernel's
list of processes.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import suppress

from crawler_lifecycle.cli.client.gateway import Document
from crawler_lifecycle.cli.problems import CommandFailed
from tests.e2e.harness import TERMINAL, until
from tools.soak.api_client import settled
from tools.soak.aside import CLASS as ASIDE
from tools.soak.aside import Aside
from tools.soak.harness import SoakHarness
from tools.soak.manager_judge import Count, judge
from tools.soak.manager_stops import CLASS as ENDLESS
from tools.soak.manager_stops import stops
from tools.soak.strikes import Striker, options, say, stack, verdict

MODULE = "stream_of_jobs"
CLASS = """
from crawler_lifecycle.managers import GeneratorCrawlManager


class Stream(GeneratorCrawlManager):
    name, spider, loop_mode, default_max_jobs, MAX_RETRIES = "stream", "soak", 5, {window}, 9

    def set_parameters_gen(self):
        for number in range({jobs}):
            yield {{"spider_args": {{"number": number, "seconds": {seconds} * (0.7 + number % 7 / 10)}}}}

    def finished_ok_hook(self, spider, outcome, job_args_override, jobkey):
        self.state["good"] = self.state.get("good", 0) + 1

    def bad_outcome_hook(self, spider, outcome, job_args_override, jobkey):
        self.state["bad"] = self.state.get("bad", 0) + 1
        super().bad_outcome_hook(spider, outcome, job_args_override, jobkey)
"""
#: The maximum number of parallel crawls that do not belong to the manager.
ASIDE_SLOTS = 6
#: The factor by which everything may take longer than without faults.
PATIENCE = 6.0


class Chaos:
    """One manager on one stack, and the faults."""

    def __init__(
        self,
        harness: SoakHarness,
        striker: Striker,
        seed: int,
        jobs: int,
        window: int,
        seconds: float,
    ) -> None:
        self.harness, self.striker, self.seed = harness, striker, seed
        self.jobs, self.window, self.seconds = jobs, window, seconds

    def play(self) -> list[str]:
        """Execute everything, and return what was untrue."""
        harness, plan = self.harness, f"{MODULE}:Stream"
        self.striker.begin()
        aside = Aside(harness, MODULE, self.seed)
        until(
            lambda: (
                plan in [row["plan"] for row in harness.gateway.get("/v1/user-code")["user_code"]]
            ),
            "the class on record",
        )
        with Count(harness.mark) as count:
            started = harness.gateway.start({"plan": plan, "flow_id": "chaos"}, "chaos", "manager")
            aside.begin()
            found = self._until_it_ends(started)
        aside.end()
        say(str(aside))
        wrong = [*self.striker.wrong, *settled(harness), *aside.judge()]
        wrong += judge(
            harness, found, self.jobs, self.window, count, self.striker.killed, self.striker.strikes
        )
        return [
            *wrong,
            *(stops(harness, f"{MODULE}:Endless") if found["status"] in TERMINAL else ()),
        ]

    def _until_it_ends(self, started: Document) -> Document:
        began, told, found = time.monotonic(), 0.0, started
        while found["status"] not in TERMINAL:
            now = time.monotonic()
            if now - began > self.jobs * self.seconds / self.window * PATIENCE + 300:
                self.striker.wrong.append(f"it does not end: {found}")
                return found
            self.striker.turn(len(list(self.harness.journals.iterdir())) / self.jobs)
            with suppress(CommandFailed):
                found = self.harness.gateway.get(f"/v1/managers/{started['manager_id']}")
            if now - told > 10 and "jobs" in found:
                told = now
                good, waiting = found["jobs"]["good"], found["waiting"]
                say(
                    f"{now - began:4.0f} s: {good} good, {found['live']} live; {self.striker}; "
                    f"{waiting}"
                )
            time.sleep(0.3)
        say(
            f"ended after {time.monotonic() - began:.0f} s: {found['status']} {found['outcome']}; "
            f"{self.striker}"
        )
        return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.soak.managers", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000, help="default: 1000")
    parser.add_argument("--window", type=int, default=20, help="default: 20")
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="of a job, on average (default: 10)"
    )
    options(parser)
    chosen = parser.parse_args()
    source = (
        CLASS.format(jobs=chosen.jobs, window=chosen.window, seconds=chosen.seconds)
        + ENDLESS
        + ASIDE
    )
    with stack(chosen, MODULE, source, slots=chosen.window * 2 + ASIDE_SLOTS) as (harness, module):
        striker = Striker(harness, module, chosen.seed, chosen.pause)
        wrong = Chaos(
            harness, striker, chosen.seed, chosen.jobs, chosen.window, chosen.seconds
        ).play()
    return verdict(chosen.seed, wrong)


if __name__ == "__main__":
    sys.exit(main())
