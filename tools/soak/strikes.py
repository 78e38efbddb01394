"""The random actions of storms against a stack: its processes are killed, drained and frozen,
workflows are terminated, user code is edited, and a new build takes over. There are two user-code
workers without a version, and the other worker has a version.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from crawler_lifecycle.cli.machine import start_time
from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.names import manager_workflow_id
from tests.e2e.harness import TERMINAL, until
from tests.support.builds import ROOT
from tests.support.mariadb import MariaDb, running_mariadb
from tools.soak.harness import DURABLE, SoakHarness
from tools.soak.journal import read_journals

OTHER_ROLES = ("workflows", "cluster", "control", "export", "audit")
PLANS = ("user-code", "user-code-2")
#: The seconds for which a worker is frozen.
FROZEN_S = (15.0, 60.0)
EDITS = BUILDS = 2
#: Workflows that somebody terminates: of managers, of graphs, and of due times. Within this many
#: seconds, another workflow must take over, and nobody requests an audit.
TERMINATED, HEALED_S = (names.MANAGER_WORKFLOW, names.GRAPH_WORKFLOW, names.DUE_WORKFLOW), 60.0
#: The seconds before the first strike.
FIRST_S = 10.0


@dataclass(frozen=True)
class Strike:
    """An action against the stack, and the time at which everything was up again."""

    what: str
    at: float
    over: float
    hosts: frozenset[int] = frozenset()
    """The processes with users' code that died of it."""
    whom: str = ""
    """The workflow that was terminated."""


class Striker:
    """Strikes one stack.

    The same seed causes the same strikes in the same order, but their targets depend on what
    exists.
    """

    def __init__(
        self,
        harness: SoakHarness,
        module: Path,
        seed: int,
        pause_s: float,
        also: Sequence[str] = (),
    ) -> None:
        """Set up the strikes.

        ``module`` contains the user code that is edited, ``pause_s`` is the average number of
        seconds between two strikes, and ``also`` names further components that are killed.
        """
        self.harness, self.module, self.source, self._pause_s = (
            harness,
            module,
            module.read_text(),
            pause_s,
        )
        self.seed, self._dice, self._victims = seed, random.Random(seed), random.Random(seed)
        self.parts = ("worker", "temporal", *also)
        self.strikes: list[Strike] = []
        self.killed: set[tuple[int, int]] = set()
        """Crawlers that were ended: process id and start time."""
        self._edits = self._build = 0
        self._hosts: frozenset[int] = frozenset()
        self._whom = ""
        self.wrong: list[str] = []
        self._next = FIRST_S

    def begin(self) -> None:
        """Start the workers that are struck later."""
        for name in (
            PLANS
        ):  # This comes first, because the others inherit the version of the stack's own worker.
            self.harness.deploy(ROOT, name, ("user-code",))
        self._take_over()
        self._next += time.monotonic()

    def turn(self, done: float) -> None:
        """Strike when it is due. ``done`` is the fraction of the work that is done, from 0 to 1."""
        if time.monotonic() >= self._next:
            self._strike(done)
            self._next = time.monotonic() + self._dice.uniform(0.4, 1.6) * self._pause_s

    def __str__(self) -> str:
        done = Counter(strike.what for strike in self.strikes)
        return (
            ", ".join(f"{what} {times}" for what, times in sorted(done.items())) or "nothing struck"
        )

    def _strike(self, done: float) -> None:
        """Execute a strike, and return when everything is up again."""
        kinds: dict[str, Callable[[], object]] = {
            "plans killed": lambda: self._end_plans(signal.SIGKILL),
            "plans drained": lambda: self._end_plans(signal.SIGTERM),
            "plans frozen": self._freeze,
            "host killed": self._kill_host,
            "crawler killed": self._kill_crawler,
            "workflow terminated": self._terminate,
        }
        for part in self.parts:
            kinds[f"{part} killed"] = lambda part=part: self.harness.stack.supervisor.kill(part)  # type: ignore[misc]
        if self.harness.server is not None:
            kinds["database killed"] = self._kill_database
        what = self._dice.choice([*kinds, "workflow terminated"])
        if self._edits < EDITS and done > (self._edits + 1) / (EDITS + 1):
            self._edits, what = self._edits + 1, "class edited"
            kinds[what] = lambda: self.module.write_text(f"{self.source}\n# edit {self._edits}\n")
        elif self._build < BUILDS and done > 1 / 2:
            what, kinds["build changed"] = "build changed", self._take_over
        began, self._hosts, self._whom = time.time(), frozenset(), ""
        with suppress(ProcessLookupError):
            kinds[what]()
            time.sleep(0.5)  # The pause lets the death be noticed before the health check.
            self.harness.stack.supervisor.wait_healthy()
            self.strikes.append(Strike(what, began, time.time(), self._hosts, self._whom))

    def _take_over(self) -> None:
        """Let another build with a version serve everything except user code from now on."""
        self._build += 1
        build = f"build-{self._build}"
        self.harness.deploy(ROOT, "worker", OTHER_ROLES, LIFECYCLE_WORKER__BUILD_ID=build)
        command = (
            "worker",
            "deployment",
            "set-current-version",
            "--deployment-name",
            "crawler-lifecycle",
            "--yes",
        )
        until(
            lambda: (
                not self.harness.temporal(*command, "--build-id", build, check=False).returncode
            ),
            "a current build",
        )

    def _end_plans(self, how: signal.Signals) -> None:
        name = self._victims.choice(PLANS)
        self._hosts = frozenset(self._hosts_of(name))
        self.harness.stack.supervisor.kill(name, how)

    def _freeze(self) -> None:
        """Freeze a worker, and let it continue after other workers have created the object again."""
        name, seconds = self._victims.choice(PLANS), self._victims.uniform(*FROZEN_S)
        pid = self.harness.stack.supervisor.kill(name, signal.SIGSTOP)
        threading.Timer(seconds, os.kill, (pid, signal.SIGCONT)).start()

    def _hosts_of(self, *names: str) -> list[int]:
        parents = {self.harness.stack.supervisor.pids().get(name) for name in names}
        return [
            pid
            for pid in map(int, filter(str.isdecimal, os.listdir("/proc")))
            if _parent(pid) in parents
        ]

    def _kill_host(self) -> None:
        hosts = self._hosts_of(*PLANS)
        if not hosts:
            raise ProcessLookupError
        victim = self._victims.choice(hosts)
        self._hosts = frozenset([victim])
        os.kill(victim, signal.SIGKILL)

    def _kill_crawler(self) -> None:
        """Kill a crawler that has not written its last line, so that its right end is known."""
        live = [
            c
            for c in read_journals(self.harness.journals)
            if c.end is None and start_time(c.pid) == c.start
        ]
        if not live:
            raise ProcessLookupError
        victim = self._victims.choice(live)
        os.kill(victim.pid, signal.SIGSTOP)
        now = next(
            c for c in read_journals(self.harness.journals, victim.run_id) if c.pid == victim.pid
        )
        if now.end is None:
            self.killed.add((victim.pid, victim.start))
        os.kill(victim.pid, signal.SIGKILL if now.end is None else signal.SIGCONT)

    def _terminate(self) -> None:
        """End a workflow without a notification, and return when another workflow has taken over
        its work.
        """
        found = self.harness.cli_list(f"ExecutionStatus='Running' AND WorkflowType IN {TERMINATED}")
        if not found:
            raise ProcessLookupError
        kind = self._victims.choice(sorted({one["type"]["name"] for one in found}))
        victims = sorted(
            one["execution"]["workflowId"] for one in found if one["type"]["name"] == kind
        )
        self._whom = whom = str(self._victims.choice(victims))
        self.harness.talk(lambda client: client.get_workflow_handle(whom).terminate("the storm"))
        if kind == names.DUE_WORKFLOW:
            return  # Its line contains the result.
        try:
            until(
                lambda: whom in ended(self.harness) or self.harness.open_workflows([whom]),
                "another one",
                HEALED_S,
            )
        except AssertionError:
            self.wrong.append(
                f"{whom!r} was terminated, and {HEALED_S:g} s later nothing carries what it carried"
            )

    def _kill_database(self) -> None:
        assert self.harness.server is not None
        self.harness.server.kill()
        time.sleep(self._victims.uniform(0.5, 5))
        self.harness.server.restart()


def ended(harness: SoakHarness) -> set[str]:
    """Return the ids of the workflows of managers and graphs that have ended."""
    managers = harness.query(f"SELECT name, flow_id FROM manager WHERE status IN {TERMINAL}")
    graphs = harness.query("SELECT graph_key FROM graph WHERE state NOT IN ('draft', 'executing')")
    return {manager_workflow_id(*one) for one in managers} | {
        names.graph_workflow_id(key) for (key,) in graphs
    }


def _parent(pid: int) -> int | None:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return None


# --- the commands ---------------------------------------------------------------------------------


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options that every storm has."""
    parser.add_argument(
        "--pause", type=float, default=25.0, help="seconds between deaths, on average (default: 25)"
    )
    parser.add_argument("--seed", type=int, default=1, help="default: 1")
    parser.add_argument(
        "--mariadb", action="store_true", help="on a MariaDB server of its own (default: SQLite)"
    )
    parser.add_argument(
        "--folder", type=Path, help="where the stack lives; kept (default: a temporary one)"
    )


@contextmanager
def stack(
    chosen: argparse.Namespace, module: str, source: str, slots: int
) -> Iterator[tuple[SoakHarness, Path]]:
    """Start a stack that serves one module with user code, and yield the stack and the file of the
    module. All of it is ended afterwards.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with ExitStack() as undo:
        folder = (
            chosen.folder or Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
        ).absolute()
        (folder / "modules").mkdir(parents=True)
        file = folder / "modules" / f"{module}.py"
        file.write_text(source)
        server: MariaDb | None = (
            undo.enter_context(running_mariadb(DURABLE)) if chosen.mariadb else None
        )
        settings = {
            "LIFECYCLE_USER_CODE__MODULES": json.dumps([module]),
            "LIFECYCLE_USER_CODE__FOLDER": str(file.parent),
            "LIFECYCLE_CLUSTER__SLOTS": str(slots),
        }
        yield undo.enter_context(SoakHarness.up(folder / "state", server, **settings)), file


def say(line: str) -> None:
    """Print the progress."""
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def verdict(seed: int, wrong: Sequence[str]) -> int:
    """Print everything that was untrue, and return the exit code."""
    for line in wrong:
        print(f"WRONG: {line}")
    print(
        f"seed {seed}: {'nothing lost, nothing doubled' if not wrong else f'{len(wrong)} violations'}"
    )
    return 1 if wrong else 0
