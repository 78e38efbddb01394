"""``python -m tests.soak.managers --jobs N --seed S``: a crawl manager whose surroundings are killed at random.

Its plans worker, the processes with its class, the other worker and the Temporal server die again and again; the class
is edited twice. The judge is the journal that the crawlers keep themselves: every job exactly once, in order, and
never more at once than the window.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from unittest import mock

from crawler_lifecycle.cli.problems import CommandFailed
from tests.e2e.world import TERMINAL, World, until
from tests.soak.journal import Process, read_journals
from tests.support.builds import ROOT

NAME, MODULE = "stream", "stream_of_jobs"
CLASS = """
from crawler_lifecycle.managers import GeneratorCrawlManager


class Stream(GeneratorCrawlManager):
    name, spider, loop_mode, default_max_jobs = {name!r}, "soak", 5, {window}

    def set_parameters_gen(self):
        for number in range({jobs}):
            yield {{"spider_args": {{"number": str(number)}}}}

    def finished_ok_hook(self, spider, outcome, job_args_override, jobkey):
        self.state["hooks"] = self.state.get("hooks", 0) + 1
"""
CATALOGUE = """
- name: soak
  kind: command
  project: {project}
  command: ["python", "-S", "crawler.py"]
  args:
    journal: {{default: {journal}}}
    seconds: {{default: "0.3"}}
    how: {{default: finished}}
    number: {{required: true}}
"""
OTHER_ROLES = ("workflows", "cluster", "control", "export", "audit")
#: Seconds between two deaths, and how long all of it may take for each job.
PAUSE_S, PATIENCE_S = (4.0, 16.0), 6.0


class Chaos:
    """One manager over one stack, and what is done to them."""

    def __init__(self, folder: Path, jobs: int, window: int, seed: int, say: Callable[[str], None]) -> None:
        self.folder, self.jobs, self.window, self.say = folder, jobs, window, say
        self.random = random.Random(seed)
        self.modules, self.journals = folder / "modules", folder / "journals"
        for one in (self.modules, self.journals):
            one.mkdir(parents=True)
        self.module = self.modules / f"{MODULE}.py"
        self.source = CLASS.format(name=NAME, window=window, jobs=jobs)
        self.module.write_text(self.source)
        crawlers = folder / "crawlers.yaml"
        project, journal = json.dumps(str(Path(__file__).parent)), json.dumps(str(self.journals))
        crawlers.write_text(CATALOGUE.format(project=project, journal=journal))
        self.world = World(folder / "state", crawlers=crawlers)
        self.edits, self.deeds = 0, Counter[str]()

    def settings(self) -> dict[str, str]:
        return {
            "LIFECYCLE_PLANS__MODULES": json.dumps([MODULE]),
            "LIFECYCLE_PLANS__FOLDER": str(self.modules),
            "LIFECYCLE_CLUSTER__SLOTS": str(self.window * 2),
        }

    def play(self) -> list[str]:
        """Everything; what was untrue."""
        with mock.patch.dict(os.environ, self.settings()):
            try:
                self.world.start()
                self.world.deploy(ROOT, "worker", OTHER_ROLES)
                self.world.deploy(ROOT, "plans", ("plans",))
                return self._play()
            finally:
                self.world.end()

    def _play(self) -> list[str]:
        gateway, plan = self.world.gateway, f"{MODULE}:Stream"
        until(lambda: plan in [row["plan"] for row in gateway.plans()["plans"]], "the class on record")
        began = time.monotonic()
        one = gateway.start_manager({"plan": plan, "flow_id": "chaos"}, "chaos")["manager_id"]
        next_at, told = time.monotonic() + 5, 0.0
        while True:
            now = time.monotonic()
            found = None
            with suppress(CommandFailed):
                found = gateway.manager(one)
            if found is not None and found["status"] in TERMINAL:
                break
            if now - began > self.jobs * PATIENCE_S + 120:
                return [f"it did not end within {now - began:.0f} s: {found}"]
            if now >= next_at:
                self.world.stack.wait_healthy()  # what is never up cannot go on
                self._strike()
                next_at = time.monotonic() + self.random.uniform(*PAUSE_S)
            if now - told > 10 and found is not None:
                told = now
                self.say(f"{now - began:4.0f} s: {found['jobs']['good']} good, {found['live']} live; {self._done()}")
            time.sleep(0.3)
        self.say(f"ended after {time.monotonic() - began:.0f} s: {found['status']} {found['outcome']}; {self._done()}")
        return self._judge(found)

    def _done(self) -> str:
        return ", ".join(f"{what} {times}" for what, times in sorted(self.deeds.items()))

    def _strike(self) -> None:
        what = self.random.choice(("plans", "host", "worker", "temporal", "host", "plans"))
        if self.edits < 2 and len(read_journals(self.journals)) > (self.edits + 1) * self.jobs // 3:
            self.edits += 1
            self.module.write_text(f"{self.source}\n# edit {self.edits}\n")
            self.deeds["edit"] += 1
            return
        if what == "host":
            hosts = [pid for pid, words in self._children_of_plans().items() if "plans.host" in words]
            if not hosts:
                return
            with suppress(ProcessLookupError):
                os.kill(self.random.choice(hosts), signal.SIGKILL)
        else:
            with suppress(ProcessLookupError):
                self.world.stack.kill_part(what)
        self.deeds[what] += 1

    def _children_of_plans(self) -> dict[int, str]:
        """Users' processes have nothing of our environment."""
        parent, found = self.world.stack.pids.get("plans"), {}
        for pid in (int(name) for name in os.listdir("/proc") if name.isdecimal()):
            with suppress(OSError):
                if int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) == parent:
                    found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    # --- the judge ---------------------------------------------------------------------------------------------------

    def _judge(self, found: dict[str, object]) -> list[str]:
        crawls = read_journals(self.journals)
        wrong = []
        if (found["status"], found["outcome"]) != ("COMPLETED", "finished"):
            wrong.append(f"the manager is {found['status']} {found['outcome']}: {found['cause']}")
        times = Counter(int(crawl.args["number"]) for crawl in crawls)
        lost = [number for number in range(self.jobs) if not times[number]]
        doubled = {number: count for number, count in times.items() if count > 1}
        if lost or doubled:
            wrong.append(f"lost: {lost}; more than once: {doubled}")
        if unended := [str(crawl) for crawl in crawls if crawl.end is None or crawl.end.get("code") != 0]:
            wrong.append(f"did not end by themselves: {unended[:5]}")
        if (most := most_at_once(crawls)) > self.window:
            wrong.append(f"{most} at once, and the window is {self.window}")
        hooks = self.world.gateway.manager(int(str(found["manager_id"])))["state"].get("hooks")
        if hooks != self.jobs:
            wrong.append(f"{hooks} hooks of {self.jobs} jobs are on record")
        runs = self.world.query("SELECT run_id FROM run_history")
        if len(runs) != self.jobs:
            wrong.append(f"{len(runs)} runs of {self.jobs} jobs")
        seqs = [row[0] for row in self.world.query("SELECT seq FROM manager_item ORDER BY position")]
        if seqs != sorted(seqs):
            wrong.append("jobs got their numbers in another order than the source has")
        begins = [crawl.begin for crawl in crawls]
        self.say(f"{len(crawls)} crawls in {max(begins) - min(begins):.0f} s, at most {most} at once, {len(runs)} runs")
        return wrong


def most_at_once(crawls: Sequence[Process]) -> int:
    """The most crawls that executed at one instant."""
    steps = sorted([(crawl.begin, 1) for crawl in crawls] + [(crawl.last, -1) for crawl in crawls])
    live = most = 0
    for _, step in steps:
        live += step
        most = max(most, live)
    return most


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.managers", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000, help="default: 1000")
    parser.add_argument("--window", type=int, default=20, help="default: 20")
    parser.add_argument("--seed", type=int, default=1, help="default: 1")
    parser.add_argument("--folder", type=Path, help="where the stack lives; kept (default: a temporary one)")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as scratch:
        folder = chosen.folder or Path(scratch)
        wrong = Chaos(folder, chosen.jobs, chosen.window, chosen.seed, lambda line: print(line, flush=True)).play()
    for line in wrong:
        print(f"WRONG: {line}")
    print(f"seed {chosen.seed}: {'nothing lost, nothing doubled' if not wrong else f'{len(wrong)} violations'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
