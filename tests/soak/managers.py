"""``python -m tests.soak.managers --jobs N --seed S [--mariadb]``: a crawl manager whose surroundings die at random.

Its plans workers are killed, frozen and drained; the processes with its class, the other worker, the Temporal server,
the database server and crawlers are killed; the class is edited twice, and a new build takes over once. The other
worker is of a version, the plans workers are of none. Then managers are stopped in every way, and the worker dies
meanwhile. The judges are the journals that the crawlers keep themselves, and the kernel's list of processes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from crawler_lifecycle.cli.gateway import Document
from crawler_lifecycle.cli.problems import CommandFailed
from crawler_lifecycle.cli.process_identity import start_time
from tests.e2e.world import TERMINAL, until
from tests.soak.journal import read_journals
from tests.soak.manager_judge import Count, Strike, judge
from tests.soak.manager_stops import CLASS as ENDLESS
from tests.soak.manager_stops import stops
from tests.soak.world import DURABLE, SoakWorld
from tests.support.builds import ROOT
from tests.support.mariadb import MariaDb, running_mariadb

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
OTHER_ROLES = ("workflows", "cluster", "control", "export", "audit")
PLANS = ("plans", "plans-2")
#: Seconds that a frozen worker stands still; how many times as long as without troubles all may take.
FROZEN_S, PATIENCE = (15.0, 60.0), 6.0


class Chaos:
    """One manager over one stack, and what is done to them."""

    def __init__(self, world: SoakWorld, jobs: int, window: int, seconds: float, pause_s: float, seed: int) -> None:
        self.world, self.jobs, self.window, self.seconds, self.pause_s = world, jobs, window, seconds, pause_s
        self.random = random.Random(seed)
        self.module = Path(os.environ["LIFECYCLE_PLANS__FOLDER"]) / f"{MODULE}.py"
        self.source = CLASS.format(jobs=jobs, window=window, seconds=seconds) + ENDLESS
        self.strikes: list[Strike] = []
        self.killed: set[tuple[int, int]] = set()
        """Crawlers that we have ended: process id and start time."""
        self.edits, self.build = 0, 0

    def play(self) -> list[str]:
        """Everything; what was untrue."""
        world, plan = self.world, f"{MODULE}:Stream"
        self.module.write_text(self.source)
        for name in PLANS:  # first: others inherit the version of the stack's own worker
            world.deploy(ROOT, name, ("plans",))
        self._take_over()
        until(lambda: plan in [row["plan"] for row in world.gateway.plans()["plans"]], "the class on record")
        with Count(world.mark) as count:
            found = self._until_it_ends(world.gateway.start_manager({"plan": plan, "flow_id": "chaos"}, "chaos"))
        wrong = judge(world, found, self.jobs, self.window, count, self.killed, self.strikes)
        return [*wrong, *stops(world, f"{MODULE}:Endless")]

    def _take_over(self) -> None:
        """Another build, of a version, serves everything but users' code from now on."""
        self.build += 1
        build = f"build-{self.build}"
        self.world.deploy(ROOT, "worker", OTHER_ROLES, LIFECYCLE_WORKER__BUILD_ID=build)
        command = ("worker", "deployment", "set-current-version", "--deployment-name", "crawler-lifecycle", "--yes")
        until(lambda: not self.world.temporal(*command, "--build-id", build, check=False).returncode, "a current build")

    def _until_it_ends(self, started: Document) -> Document:
        began, told, found = time.monotonic(), 0.0, started
        strike_at = began + 10
        while found["status"] not in TERMINAL:
            now = time.monotonic()
            assert now - began < self.jobs * self.seconds / self.window * PATIENCE + 300, f"it does not end: {found}"
            if now >= strike_at:
                self._strike()
                strike_at = time.monotonic() + self.random.uniform(0.4, 1.6) * self.pause_s
            with suppress(CommandFailed):
                found = self.world.gateway.manager(started["manager_id"])
            if now - told > 10 and "jobs" in found:
                told = now
                good, waiting = found["jobs"]["good"], found["waiting"]
                _say(f"{now - began:4.0f} s: {good} good, {found['live']} live; {self._done()}; {waiting}")
            time.sleep(0.3)
        _say(f"ended after {time.monotonic() - began:.0f} s: {found['status']} {found['outcome']}; {self._done()}")
        return found

    def _done(self) -> str:
        done = Counter(strike.what for strike in self.strikes)
        return ", ".join(f"{what} {times}" for what, times in sorted(done.items()))

    def _strike(self) -> None:
        """Do something to it; back when everything is up again."""
        done = len(list(self.world.journals.iterdir())) / self.jobs
        kinds: dict[str, Callable[[], object]] = {
            "plans killed": lambda: self.world.stack.kill_part(self.random.choice(PLANS)),
            "plans drained": lambda: self.world.stack.kill_part(self.random.choice(PLANS), signal.SIGTERM),
            "plans frozen": self._freeze,
            "host killed": self._kill_host,
            "worker killed": lambda: self.world.stack.kill_part("worker"),
            "temporal killed": lambda: self.world.stack.kill_part("temporal"),
            "crawler killed": self._kill_crawler,
        }
        if self.world.server is not None:
            kinds["database killed"] = self._kill_database
        what = self.random.choice(list(kinds))
        if self.edits < 2 and done > (self.edits + 1) / 3:
            self.edits, what = self.edits + 1, "class edited"
            kinds[what] = lambda: self.module.write_text(f"{self.source}\n# edit {self.edits}\n")
        elif self.build < 2 and done > 1 / 2:
            what, kinds["build changed"] = "build changed", self._take_over
        began = time.time()
        with suppress(ProcessLookupError):
            kinds[what]()
            time.sleep(0.5)  # so that the death is seen before the health is asked for
            self.world.stack.wait_healthy()
            self.strikes.append(Strike(what, began, time.time()))

    def _freeze(self) -> None:
        """A worker stands still and then goes on, when others have made the object anew."""
        name, seconds = self.random.choice(PLANS), self.random.uniform(*FROZEN_S)
        pid = self.world.stack.kill_part(name, signal.SIGSTOP)
        threading.Timer(seconds, os.kill, (pid, signal.SIGCONT)).start()

    def _kill_host(self) -> None:
        parents = {self.world.stack.pids.get(name) for name in PLANS}
        hosts = [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if _parent(pid) in parents]
        if not hosts:
            raise ProcessLookupError
        os.kill(self.random.choice(hosts), signal.SIGKILL)

    def _kill_crawler(self) -> None:
        """Of one that has not said its last word, so that everybody knows what its end is."""
        live = [c for c in read_journals(self.world.journals) if c.end is None and start_time(c.pid) == c.start]
        if not live:
            raise ProcessLookupError
        victim = self.random.choice(live)
        os.kill(victim.pid, signal.SIGSTOP)
        now = next(c for c in read_journals(self.world.journals, victim.run_id) if c.pid == victim.pid)
        if now.end is None:
            self.killed.add((victim.pid, victim.start))
        os.kill(victim.pid, signal.SIGKILL if now.end is None else signal.SIGCONT)

    def _kill_database(self) -> None:
        assert self.world.server is not None
        self.world.server.kill()
        time.sleep(self.random.uniform(0.5, 5))
        self.world.server.restart()


def _parent(pid: int) -> int | None:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return None


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.managers", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000, help="default: 1000")
    parser.add_argument("--window", type=int, default=20, help="default: 20")
    parser.add_argument("--seconds", type=float, default=10.0, help="of a job, on average (default: 10)")
    parser.add_argument(
        "--pause", type=float, default=25.0, help="seconds between two deaths, on average (default: 25)"
    )
    parser.add_argument("--seed", type=int, default=1, help="default: 1")
    parser.add_argument("--mariadb", action="store_true", help="on a MariaDB server of its own (default: SQLite)")
    parser.add_argument("--folder", type=Path, help="where the stack lives; kept (default: a temporary one)")
    chosen = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):  # everything of it is ended all the same
        signal.signal(number, signal.default_int_handler)
    with ExitStack() as undo:
        folder = (chosen.folder or Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))).absolute()
        (folder / "modules").mkdir(parents=True)
        server: MariaDb | None = undo.enter_context(running_mariadb(DURABLE)) if chosen.mariadb else None
        settings = {
            "LIFECYCLE_PLANS__MODULES": json.dumps([MODULE]),
            "LIFECYCLE_PLANS__FOLDER": str(folder / "modules"),
            "LIFECYCLE_CLUSTER__SLOTS": str(chosen.window * 2),
        }
        world = undo.enter_context(SoakWorld.up(folder / "state", server, **settings))
        wrong = Chaos(world, chosen.jobs, chosen.window, chosen.seconds, chosen.pause, chosen.seed).play()
    for line in wrong:
        print(f"WRONG: {line}")
    print(f"seed {chosen.seed}: {'nothing lost, nothing doubled' if not wrong else f'{len(wrong)} violations'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
