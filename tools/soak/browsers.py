"""``python -m tools.soak.browsers --times N --seed S`` checks whether a browser, or a part of it,
outlives its task.

It starts crawls of the Playwright example on a local cluster, and ends each of them in one of the
ways in ``ENDS``, sometimes while its browser starts and sometimes in the middle of a page. This
process is the reaper of everything that it starts: processes that leave their group, session or
parent become its children, so no zygote, helper or crash handler can hide. When the cluster reports
that a task has ended, none of its processes may live. Files that are left are also counted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from crawler_lifecycle.clusters.local.cluster import LocalCluster
from crawler_lifecycle.clusters.local.processes.identity import Identity
from crawler_lifecycle.domain.crawlers.arguments import Argument
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition, CrawlerKind
from crawler_lifecycle.domain.run import Limits, Resources
from crawler_lifecycle.domain.task import Phase
from crawler_lifecycle.ports.runs import Deployment, QueuedTask, TaskRef
from crawler_lifecycle.runner.child import become_subreaper
from crawler_lifecycle.runner.signs import below
from tests.examples.demo_site import ROOT, running_site
from tests.support.run_refs import run_ref

RUN = run_ref(1)
PROGRAM = ROOT / "examples" / "foreign" / "playwright_python" / "main.py"
#: A time limit that no working step reaches.
PATIENCE_S = 150.0
BESIDE = 3


@dataclass(frozen=True)
class Task:
    """One crawl, and the roles of its processes."""

    cluster: LocalCluster
    ref: TaskRef
    folder: Path

    def family(self) -> dict[int, str]:
        """Return every process of the crawl with its command line, and the supervisor first."""
        supervisor = int(self._read("supervisor.json"))
        return {
            pid: words for pid in (supervisor, *below(supervisor)) if (words := command_line(pid))
        }

    def strike(self, wanted: Callable[[int, str], bool]) -> None:
        """Send SIGKILL to the first process of this kind, if it still lives."""
        for pid in (pid for pid, words in self.family().items() if wanted(pid, words)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            return

    def runner(self) -> int:
        return int(self._read("process.json"))

    def supervisor(self) -> int:
        return int(self._read("supervisor.json"))

    def _read(self, name: str) -> int:
        return Identity.from_json(json.loads((self.folder / name).read_text())).pid


def browser(words: str) -> bool:
    return "chrom" in words.split()[0]


def handler(words: str) -> bool:
    return "crashpad_handler" in words.split()[0]


def stop(task: Task) -> None:
    task.cluster.stop(RUN, task.ref)


def kill(task: Task) -> None:
    task.cluster.kill(RUN, task.ref)


def stop_and_kill(task: Task) -> None:
    stop(task)
    kill(task)


def runner_dies(task: Task) -> None:
    task.strike(lambda pid, _: pid == task.runner())


def supervisor_dies(task: Task) -> None:
    """Nobody is left who would write the end, so a forced stop ends the rest."""
    task.strike(lambda pid, _: pid == task.supervisor())
    kill(task)


def crawler_dies(task: Task) -> None:
    task.strike(lambda pid, words: words.endswith(f" {PROGRAM.name}") and pid != task.runner())


def driver_dies(task: Task) -> None:
    task.strike(lambda _, words: "run-driver" in words)


def browser_dies(task: Task) -> None:
    task.strike(lambda _, words: browser(words) and not handler(words) and "--type=" not in words)


def handler_dies(task: Task) -> None:
    """Kill the crash handlers, which are daemons with their own session and no parent in the task.

    No other process depends on them.
    """
    task.strike(lambda _, words: handler(words))
    stop(task)


def zygote_dies(task: Task) -> None:
    """The browser then cannot open a page, and the crawler may wait for the page, so a stop ends
    it.
    """
    task.strike(lambda _, words: browser(words) and "--type=zygote" in words)
    stop(task)


ENDS: tuple[Callable[[Task], None], ...] = (
    *(
        stop,
        kill,
        stop_and_kill,
        crawler_dies,
        runner_dies,
        supervisor_dies,
        driver_dies,
        browser_dies,
        zygote_dies,
    ),
    handler_dies,
)


def command_line(pid: int) -> str:
    with suppress(OSError):
        return (
            Path(f"/proc/{pid}/cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode(errors="replace")
            .strip()
        )
    return ""


def reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() >= end:
            raise SystemExit(f"not within {PATIENCE_S:g} s")
        time.sleep(0.02)


class Playing:
    """A separate cluster, and the crawls on it."""

    def __init__(self, folder: Path, site: str, seed: int) -> None:
        self._chance = random.Random(seed)
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self._state = folder / "state"
        self._cluster = LocalCluster(self._state, BESIDE)
        self._crawler = CrawlerDefinition(
            "playwright",
            CrawlerKind.COMMAND,
            command=[sys.executable, PROGRAM.name],
            project=str(PROGRAM.parent),
            args={"site": Argument(default=site), "max_pages": Argument(default="100000")},
            env={"TMPDIR": str(self.temporary)},
        )
        self.others: set[int] = set()
        self.ends, self.left = Counter[str](), Counter[str]()
        self.longest = dict.fromkeys((end.__name__ for end in ENDS), 0.0)
        self.seen = self.most = self.handlers = 0

    def play(self, times: int, minutes: float) -> None:
        """End this many crawls, some of them in parallel, and count the processes that are alive
        after the ends.
        """
        over = time.monotonic() + 60 * minutes
        names = [ENDS[n % len(ENDS)] for n in range(times)]
        self._chance.shuffle(names)
        for first in range(0, times, BESIDE):
            if time.monotonic() >= over:
                break
            chosen = names[first : first + BESIDE]
            self._round(first, chosen)
            told = f"{sum(self.ends.values())} of {times} ended; {self.left.total()} processes left"
            print(f"{told}; {self.seen} browser processes seen", flush=True)

    def _round(self, first: int, ends: list[Callable[[Task], None]]) -> None:
        tasks = [self._start(first + n) for n in range(len(ends))]
        struck: dict[Task, tuple[str, float]] = {}
        for task, end in zip(tasks, ends, strict=True):
            self._let_work(task, anyway=end in (browser_dies, zygote_dies))
            family = task.family()
            found = sum(browser(words) for words in family.values())
            self.handlers += sum(handler(words) for words in family.values())
            self.seen, self.most = self.seen + found, max(self.most, found)
            with suppress(FileNotFoundError):  # It has not begun yet.
                end(task)
            struck[task] = end.__name__, time.monotonic()
            self.ends[end.__name__] += 1
        while struck:
            until(lambda: [task for task in struck if self._over(task)])
            for task in [task for task in struck if self._over(task)]:
                name, since = struck.pop(task)
                self.longest[name] = max(self.longest[name], time.monotonic() - since)
        for pid, words in self._alive():
            names = ", ".join(sorted({end.__name__ for end in ends}))
            self.left[f"after {names}: {words[:160]}"] += 1
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not self._alive())

    def _start(self, index: int) -> Task:
        deployment = Deployment(
            run=RUN,
            attempt=1,
            crawler="playwright",
            args={},
            settings={},
            tasks=[QueuedTask(1000 + index, index, {})],
            resources=Resources(),
            limits=Limits(stop_grace_s=20),
            expires_at=datetime.now(UTC) + timedelta(seconds=PATIENCE_S),
        )
        (deployed,) = self._cluster.deploy(deployment, self._crawler)
        if deployed.state == "refused":
            raise SystemExit(deployed.reason)
        folder = self._state / "tasks" / str(RUN) / str(index) / "1"
        return Task(self._cluster, TaskRef(1000 + index, index, 1), folder)

    def _let_work(self, task: Task, *, anyway: bool) -> None:
        """Half of the crawls are ended while the browser starts, except in the ways after which
        Playwright waits 30 s for the browser.
        """
        until((task.folder / "process.json").exists)
        if anyway or self._chance.randrange(2):
            until((task.folder / "files" / "items.jsonl").exists)
        else:
            until(lambda: any(browser(words) for words in task.family().values()))
        time.sleep(self._chance.randrange(500) / 1000)

    def _over(self, task: Task) -> bool:
        reap()
        phase = self._cluster.poll(RUN, [task.ref]).observations[0].phase
        return phase in (Phase.ENDED, Phase.GONE)

    def _alive(self) -> list[tuple[int, str]]:
        """Return the processes below this process that are not our supervisors. A process that has
        ended has no command line.
        """
        reap()
        found = ((pid, command_line(pid)) for pid in below(os.getpid()) if pid not in self.others)
        return [(pid, words) for pid, words in found if words and "local.supervisor" not in words]

    def files(self) -> Iterator[Path]:
        """Return every file that crawls left in their temporary folder."""
        return (
            file for file in self.temporary.rglob("*") if file.is_file() and not file.is_symlink()
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.soak.browsers", description="Does a browser outlive its task?"
    )
    parser.add_argument(
        "--times", type=int, default=500, help="the number of crawls to end (default: 500)"
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="the plan; the same seed is the same plan (default: 1)"
    )
    parser.add_argument(
        "--minutes", type=float, default=60, help="start no crawl after this time (default: 60)"
    )
    chosen = parser.parse_args()
    if not become_subreaper():
        print("this system does not give us what outlives its parents", file=sys.stderr)
        return 2
    began = time.monotonic()
    # The path is short, because a browser puts sockets into its temporary folder.
    folder = Path(tempfile.mkdtemp(prefix="browsers-"))
    try:
        with running_site("--services", "40", "--slow-seconds", "0.2") as site:
            playing = Playing(folder, site.url, chosen.seed)
            playing.others = {site.process.pid, *below(site.process.pid)}
            playing.play(chosen.times, chosen.minutes)
        left = list(playing.files())
        size = sum(file.stat().st_size for file in left)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for words, number in sorted(playing.left.items()):
        print(f"left {number} times {words}")
    ways = ", ".join(
        f"{name} {n} (longest {playing.longest[name]:.1f} s)"
        for name, n in sorted(playing.ends.items())
    )
    print(f"{playing.ends.total()} ends in {time.monotonic() - began:.0f} s: {ways}")
    seen = f"{playing.seen} browser processes seen, {playing.handlers} of them crash handlers"
    print(f"{seen}, at most {playing.most} of one task")
    print(f"{len(left)} files left in the temporary folder, {size / 2**20:.1f} MiB")
    print(f"{playing.left.total()} processes left")
    return 1 if playing.left else 0


if __name__ == "__main__":
    sys.exit(main())
