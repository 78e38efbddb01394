"""A local cluster with tiny crawlers, for tests with real processes."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from crawler_lifecycle.clusters.local.cluster import LocalCluster
from crawler_lifecycle.clusters.local.folders.task_files import LocalFiles
from crawler_lifecycle.clusters.local.processes.identity import Identity, all_processes
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition, CrawlerKind
from crawler_lifecycle.domain.resources import Resources
from crawler_lifecycle.domain.run import Limits
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import Observation, Phase
from crawler_lifecycle.ports.runs import DeployedTask, Deployment, QueuedTask, TaskRef
from tests.support.run_refs import run_ref

RUN = 5
#: Longer than any test may take: the test ends it.
SLEEP = "import time; time.sleep(300)"
#: Writes dead processes and an end into its files while it is executing.
FORGER = """
import json, os
home = os.path.dirname(os.environ["CRAWL_FILES_DIR"])
dead = json.load(open(home + "/process.json")) | {"pid": 2**22 - 3, "start": 1}
for name, data in [
    ("supervisor.json", dead),
    ("process.json", dead),
    ("summary.json", {"finish_reason": "finished", "exit": 0}),
    ("end.json", {"exit_code": 0, "reason": "Completed"}),
]:
    with open(home + "/forged.tmp", "w") as file:
        json.dump(data, file)
    os.rename(home + "/forged.tmp", home + "/" + name)
"""
#: Counts its SIGTERMs in files/signals, prints when its handler is installed, and ends a moment
#: after the first.
POLITE = """
import os, signal, time
files = os.environ["CRAWL_FILES_DIR"]
count = []
def stop(*_):
    count.append(1)
    with open(files + "/signals", "a") as file:
        file.write("x")
signal.signal(signal.SIGTERM, stop)
open(files + "/ready", "w").close()
while not count:
    time.sleep(0.01)
time.sleep(0.4)
"""
STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(os.environ["CRAWL_FILES_DIR"] + "/ready", "w").close()
time.sleep(300)
"""
#: A grandchild in its own session, which ignores SIGTERM, like the crawler itself.
DOUBLE_FORK = """
import os, signal, time
files = os.environ["CRAWL_FILES_DIR"]
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open(files + "/daemon.tmp", "w") as file:
            file.write(str(os.getpid()))
        os.rename(files + "/daemon.tmp", files + "/daemon")
        time.sleep(300)
    os._exit(0)
os.wait()
while not os.path.exists(files + "/daemon"):
    time.sleep(0.01)
open(files + "/ready", "w").close()
"""
#: Leaves the group, the session and the environment marks: a daemon with an empty environment. Its
#: number is in files/daemon.
ESCAPED = """
import os, signal, sys, time
files = os.environ["CRAWL_FILES_DIR"]
signal.signal(signal.SIGTERM, signal.SIG_IGN)
told = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); os.rename(*sys.argv[1:]); time.sleep(300)"
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, ["daemon", "-I", "-S", "-c", told, files + "/daemon.tmp", files + "/daemon"], {})
    os._exit(0)
os.wait()
while not os.path.exists(files + "/daemon"):
    time.sleep(0.01)
open(files + "/ready", "w").close()
"""


def wait_until(condition: Callable[[], object], seconds: float = 150) -> None:
    """Poll until the condition holds; fail after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not come true, not within {seconds:g} s"
        time.sleep(0.01)


class Fixture:
    """One state folder; one run and one crawler at a time."""

    run = RUN

    def __init__(self, folder: Path, slots: int = 2, **options: Any) -> None:
        self.state = folder / "state"
        self.cluster = LocalCluster(self.state, slots, **options)
        self.files = LocalFiles(self.state)

    def own(self) -> None:
        """Return the folder of the run, as its first deployment makes it."""
        self.folder().parents[1].mkdir(parents=True)

    def crawler(self, code: str, **options: Any) -> CrawlerDefinition:
        command = [sys.executable, "-I", "-S", "-c", code]
        return CrawlerDefinition("demo", CrawlerKind.COMMAND, command=command, **options)

    def deployment(
        self,
        indexes: range = range(1),
        *,
        memory: str | None = None,
        cpu: str | None = None,
        expires_in: float = 120.0,
        priority: int = 3,
        **limits: Any,
    ) -> Deployment:
        return Deployment(
            run=run_ref(self.run),
            attempt=1,
            crawler="demo",
            args={},
            settings={},
            tasks=[QueuedTask(1000 + index, index, {}) for index in indexes],
            resources=Resources(cpu=cpu, memory=memory),
            limits=Limits(**limits),
            expires_at=datetime.now(UTC) + timedelta(seconds=expires_in),
            priority=priority,
        )

    def deploy(self, code: str, indexes: range = range(1), **options: Any) -> list[DeployedTask]:
        return self.cluster.deploy(self.deployment(indexes, **options), self.crawler(code))

    def ref(self, index: int = 0) -> TaskRef:
        return TaskRef(1000 + index, index, 1)

    def folder(self, index: int = 0) -> Path:
        return self.state / "tasks" / str(run_ref(self.run)) / str(index) / "1"

    def poll(self, index: int = 0) -> Observation:
        return self.cluster.poll(run_ref(self.run), [self.ref(index)]).observations[0]

    def until(self, phase: Phase, index: int = 0) -> Observation:
        deadline = time.monotonic() + 150
        while (seen := self.poll(index)).phase is not phase:
            assert time.monotonic() < deadline, f"not within 150 s: {seen}"
            time.sleep(0.01)
        return seen

    def until_on_file(self, index: int = 0) -> Observation:
        """Wait until the supervisor has written the end and exited; a poll may know the end
        earlier, from other evidence.
        """
        wait_until((self.folder(index) / "end.json").exists)
        wait_until(lambda: not self.supervisor(index).alive())
        return self.poll(index)

    def fill(self, count: int) -> None:
        """Let the first ``count`` tasks take the slots, one after the other, because the queue
        keeps the order of arrival.
        """
        for index in range(count):
            self.deploy(SLEEP, range(index, index + 1))
            self.until(Phase.EXECUTING, index)

    def queue(self, index: int, code: str = SLEEP) -> None:
        """Deploy a task that finds no free slot, and wait until its supervisor is last in the
        queue.
        """
        self.deploy(code, range(index, index + 1))
        wait_until(lambda: (self.poll(index).reason or "").startswith("waiting: "))
        wait_until(lambda: self._is_head() or self._sleeps_in_queue(index))

    def _is_head(self) -> bool:
        """Return whether the one waiting task holds the turnstile; if several wait, whether the
        first of them does.
        """
        if len(os.listdir(self.state / "live")) > len(os.listdir(self.state / "started")) + 1:
            return False
        with open(self.state / "slots/turnstile-3", "a") as turnstile:
            try:
                fcntl.flock(turnstile, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def _sleeps_in_queue(self, index: int) -> bool:
        """Return whether the supervisor sleeps in the kernel's list of waiters, because it takes
        signals only there.
        """
        status = Path(f"/proc/{self.supervisor(index).pid}/status").read_text()
        told = dict(line.split(":", 1) for line in status.splitlines())
        open_to_stops = not int(told["SigBlk"], 16) & 1 << (signal.SIGTERM - 1)
        return open_to_stops and told["State"].strip().startswith("S")

    def until_over(self, index: int = 0) -> Observation:
        """Wait until it ended or is gone, which depends on whether process 1 has reaped the zombie."""
        wait_until(lambda: self.poll(index).phase in (Phase.ENDED, Phase.GONE))
        seen = self.poll(index)
        if seen.phase is Phase.ENDED:
            assert (seen.end.exit_code, seen.end.signal, seen.end.finish_reason) == (137, 9, None)
        return seen

    def start(self, code: str, **options: Any) -> None:
        """Deploy one task and wait until its crawler reports that it is ready."""
        self.deploy(code, **options)
        wait_until((self.folder() / "files/ready").exists)

    def signals(self, index: int = 0) -> int:
        path = self.folder(index) / "files/signals"
        return len(path.read_text()) if path.exists() else 0

    # --- who is who

    def _identity(self, name: str, index: int) -> Identity:
        wait_until((self.folder(index) / name).exists)
        return Identity.from_json(json.loads((self.folder(index) / name).read_text()))

    def supervisor(self, index: int = 0) -> Identity:
        return self._identity("supervisor.json", index)

    def runner(self, index: int = 0) -> Identity:
        return self._identity("process.json", index)

    def crawler_process(self, index: int = 0) -> Identity:
        """The runner's child."""
        runner = self.runner(index).pid
        found: list[int] = []

        def poll() -> bool:
            found[:] = [stat.pid for stat in all_processes() if stat.parent == runner]
            return bool(found)

        wait_until(poll)
        return Identity.of(found[0])

    def slay(self, *victims: Identity) -> None:
        """Kill it with SIGKILL from outside, and wait until it is dead."""
        first, *_ = [victim.send(signal.SIGKILL) for victim in victims]
        assert first, "the others may go with it"
        wait_until(lambda: not any(victim.alive() for victim in victims))

    def slay_all(self) -> None:
        """Kill the supervisor first, so that nobody is left to write the end."""
        supervisor, runner, crawler = self.supervisor(), self.runner(), self.crawler_process()
        self.slay(supervisor)
        self.slay(runner, crawler)

    def running(self) -> list[int]:
        """Return every process of this state folder: crawlers by their environment, supervisors by
        their arguments.
        """
        mark = os.fsencode(self.state)
        found = []
        for stat in all_processes():
            if stat.ended or stat.pid == os.getpid():
                continue
            for name in ("environ", "cmdline"):
                try:
                    content = Path(f"/proc/{stat.pid}/{name}").read_bytes()
                except OSError:
                    continue
                if mark in content:
                    found.append(stat.pid)
                    break
        return found

    def close(self) -> None:
        """End everything, and fail if something survives."""
        if self.state.exists():
            for path in self.state.glob("tasks/*/*/*/spec.json"):
                name, index, attempt = path.parent.parts[-3:]
                run = RunRef.named(name)
                assert run is not None
                self.cluster.kill(run, TaskRef(1000 + int(index), int(index), int(attempt)))
        wait_until(lambda: not self.running())
