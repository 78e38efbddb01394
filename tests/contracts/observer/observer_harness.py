"""The same operations on all observers and their clusters."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from crawler_lifecycle.clusters.local.observer import LocalObserver
from crawler_lifecycle.domain.task import Counters, Phase
from crawler_lifecycle.ports.cluster import Cluster, Observer
from crawler_lifecycle.ports.runs import TaskRef
from examples.spool.cluster import Spool, _processes
from tests.clusters.local.local_fixture import RUN, Fixture, wait_until
from tests.support.fakes.cluster import FINISHED, Behaviour, FakeCluster
from tests.support.fakes.observer import FakeObserver
from tests.support.run_refs import run_ref


class Told:
    """What an observer reported, and the thread in which it watches."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.calls: list[tuple[int, datetime]] = []
        self.tasks: list[frozenset[tuple[int, int]] | None] = []
        """Of each call, the tasks that changed."""
        self._lock = threading.Lock()

    def __call__(self, run_id: int, at: datetime, tasks: frozenset[tuple[int, int]] | None) -> None:
        assert at.tzinfo is not None
        assert at <= datetime.now(UTC)
        with self._lock:
            self.tasks.append(tasks)
            self.calls.append((run_id, at))

    @contextmanager
    def watching(self) -> Iterator[Told]:
        over = threading.Event()
        thread = threading.Thread(target=self.observer.watch, args=(self, over))
        thread.start()
        try:
            wait_until(lambda: self.observer.health().up)
            yield self
        finally:
            over.set()
            thread.join(60)
            assert not thread.is_alive(), "it did not end when it was over"

    def after(self, act: Callable[[], object], run_id: int = RUN) -> datetime:
        """Call something that changes the cluster. Return the time that is reported for the change."""
        before, began = len(self.calls), datetime.now(UTC)
        act()
        wait_until(lambda: any(run == run_id and at >= began for run, at in self.calls[before:]))
        return next(at for run, at in self.calls[before:] if run == run_id and at >= began)

    def quiet(self) -> int:
        """Wait until nothing is reported for a while. Return the number of reports."""
        while True:
            count = len(self.calls)
            threading.Event().wait(0.4)
            if len(self.calls) == count:
                return count


class Harness:
    """A cluster with one slot for tasks of one run."""

    cluster: Cluster

    def observer(self) -> Observer:
        raise NotImplementedError

    def start(self, seconds: float = 3600, index: int = 0) -> None:
        """Deploy a task that executes for this time once it has a slot."""
        raise NotImplementedError

    def count(self, pages: int, index: int = 0) -> None:
        """Let its crawler count this number of pages."""
        raise NotImplementedError

    def finish(self, index: int = 0) -> None:
        """Let it finish normally."""
        raise NotImplementedError

    def slay(self, index: int = 0) -> None:
        """Kill it from outside."""
        raise NotImplementedError

    def take_away(self, index: int = 0) -> None:
        """Remove everything that is left of it."""
        raise NotImplementedError

    def blind(self, observer: Observer) -> None:
        raise NotImplementedError

    def heal(self, observer: Observer) -> None:
        raise NotImplementedError

    def phase(self, index: int = 0) -> Phase:
        raise NotImplementedError

    def until(self, *phases: Phase, index: int = 0) -> None:
        wait_until(lambda: self.phase(index) in phases)

    def close(self) -> None:
        """End everything."""


#: The interval in seconds after which no test polls any more.
NEVER_S = 1e6


class FakeHarness(Harness):
    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self.fake = FakeCluster(behaviour=self._behaviour)
        self.cluster = self.fake
        self._uids: dict[int, str | None] = {}

    def _behaviour(self, run_id: int, index: int, attempt: int) -> Behaviour:
        busy = any(index != other for _, other, _ in self.fake.alive())
        return Behaviour(waits=NEVER_S if busy else 0.0, executes=self._seconds[index])

    def _room(self) -> None:
        """The slot is free: a waiting task gets it now."""
        with self.fake._lock:
            now = self.fake.clock()
            for task in self.fake._tasks.values():
                if task.ended is None and task.behaviour.waits == NEVER_S:
                    task.behaviour = replace(
                        task.behaviour, waits=(now - task.created_at).total_seconds()
                    )

    def observer(self) -> Observer:
        return FakeObserver(self.fake)

    def start(self, seconds: float = 3600, index: int = 0) -> None:
        self._seconds[index] = seconds
        fixture = Fixture.__new__(Fixture)
        answer = self.fake.deploy(fixture.deployment(range(index, index + 1)), fixture.crawler(""))[
            0
        ]
        self._uids[index] = answer.uid

    def count(self, pages: int, index: int = 0) -> None:
        # A share of its final count, in its first moments; then no more.
        task, share = self.fake._tasks[RUN, index, 1], 1e-5
        planned, counts_for = (
            Counters(pages=round((pages + 0.5) / share)),
            (task.behaviour.executes or 0) * share,
        )
        task.behaviour = replace(task.behaviour, counters=planned, counts_for=counts_for)

    def finish(self, index: int = 0) -> None:
        self.fake.end_now(RUN, index, end=FINISHED)
        self._room()

    def slay(self, index: int = 0) -> None:
        self.fake.end_now(RUN, index)
        self._room()

    def take_away(self, index: int = 0) -> None:
        self.fake.vanish(RUN, index)
        self._room()

    def blind(self, observer: Observer) -> None:
        assert isinstance(observer, FakeObserver)
        observer.problem = "it is dark"

    def heal(self, observer: Observer) -> None:
        assert isinstance(observer, FakeObserver)
        observer.problem = None

    def phase(self, index: int = 0) -> Phase:
        ref = TaskRef(1000 + index, index, 1, self._uids.get(index))
        return self.fake.poll(run_ref(RUN), [ref]).observations[0].phase


#: Executes for this time, or until it finds a file.
_CRAWLER = """
import os, time
until, told = time.monotonic() + {seconds}, os.environ["CRAWL_FILES_DIR"] + "/end"
while time.monotonic() < until and not os.path.exists(told):
    time.sleep(0.01)
"""


class LocalHarness(Harness):
    def __init__(self, folder: Path) -> None:
        self.fixture = Fixture(folder, slots=1)
        self.cluster = self.fixture.cluster

    def observer(self) -> Observer:
        return LocalObserver(self.fixture.state)

    def start(self, seconds: float = 3600, index: int = 0) -> None:
        self.fixture.deploy(_CRAWLER.format(seconds=seconds), range(index, index + 1))

    def count(self, pages: int, index: int = 0) -> None:
        said = {"pages": pages, "updated_at": datetime.now(UTC).isoformat()}
        (self.fixture.folder(index) / "stats.json").write_text(json.dumps(said))

    def finish(self, index: int = 0) -> None:
        (self.fixture.folder(index) / "files/end").touch()

    def slay(self, index: int = 0) -> None:
        self.fixture.slay(self.fixture.crawler_process(index))

    def take_away(self, index: int = 0) -> None:
        """Remove the folder first: a supervisor that lives has nowhere to write the end then."""
        victims = [
            self.fixture.supervisor(index),
            self.fixture.runner(index),
            self.fixture.crawler_process(index),
        ]
        shutil.rmtree(self.fixture.folder(index))
        self.fixture.slay(*[victim for victim in victims if victim.alive()])

    def blind(self, observer: Observer) -> None:
        os.rename(self.fixture.state, f"{self.fixture.state}.away")
        self.fixture.state.write_text("no folder")

    def heal(self, observer: Observer) -> None:
        self.fixture.state.unlink()
        os.rename(f"{self.fixture.state}.away", self.fixture.state)

    def phase(self, index: int = 0) -> Phase:
        uid = "known" if not self.fixture.folder(index).exists() else None
        ref = TaskRef(1000 + index, index, 1, uid)
        return self.cluster.poll(run_ref(RUN), [ref]).observations[0].phase

    def close(self) -> None:
        self.fixture.close()


class SpoolHarness(Harness):
    """The kind of cluster in ``examples/``."""

    def __init__(self, folder: Path) -> None:
        self._state = folder / "state"
        self._fixture = Fixture.__new__(Fixture)
        self.cluster = self._spool = Spool(self._state, 1)

    def _folder(self, index: int) -> Path:
        return self._state / "tasks" / str(run_ref(RUN)) / str(index) / "1"

    def observer(self) -> Observer:
        return Spool(self._state, 1)

    def start(self, seconds: float = 3600, index: int = 0) -> None:
        crawler = self._fixture.crawler(_CRAWLER.format(seconds=seconds))
        self._spool.deploy(self._fixture.deployment(range(index, index + 1)), crawler)

    def count(self, pages: int, index: int = 0) -> None:
        said = {"pages": pages, "updated_at": datetime.now(UTC).isoformat()}
        (self._folder(index) / "stats.json").write_text(json.dumps(said))

    def finish(self, index: int = 0) -> None:
        (self._folder(index) / "files/end").touch()

    def slay(self, index: int = 0) -> None:
        def gone() -> bool:  # one that was just starting is found, and killed, a moment later
            pids = _processes().get(str(self._folder(index)), [])
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not pids

        wait_until(gone)

    def take_away(self, index: int = 0) -> None:
        self.slay(index)
        shutil.rmtree(self._folder(index))

    def blind(self, observer: Observer) -> None:
        os.rename(self._state / "tasks", self._state / "away")

    def heal(self, observer: Observer) -> None:
        os.rename(self._state / "away", self._state / "tasks")

    def phase(self, index: int = 0) -> Phase:
        uid = "known" if not self._folder(index).exists() else None
        return (
            self._spool.poll(run_ref(RUN), [TaskRef(1000 + index, index, 1, uid)])
            .observations[0]
            .phase
        )

    def close(self) -> None:
        for index in (0, 1):
            self._spool.kill(run_ref(RUN), TaskRef(1000 + index, index, 1))
