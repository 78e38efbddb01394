"""The same operations on all clusters, so that one suite tests each of them."""

from __future__ import annotations

import io
import re
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Protocol, cast

from crawler_lifecycle.clusters.kind import kind_of
from crawler_lifecycle.clusters.local.cluster import LocalCluster
from crawler_lifecycle.clusters.local.folders.inventory import LocalRuns
from crawler_lifecycle.clusters.local.folders.task_files import LocalFiles
from crawler_lifecycle.domain.code import Code
from crawler_lifecycle.domain.crawlers.arguments import Argument
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition, CrawlerKind
from crawler_lifecycle.domain.errors import ClusterUnavailable
from crawler_lifecycle.domain.resources import Resources
from crawler_lifecycle.domain.run import Limits
from crawler_lifecycle.domain.task import Observation, Phase
from crawler_lifecycle.features.packages.adapters.packing import pack
from crawler_lifecycle.ports.cluster import Cluster, Deployer, EvidenceKeeper, TaskFiles
from crawler_lifecycle.ports.protocols import KnowsRuns
from crawler_lifecycle.ports.runs import DeployedTask, Deployment, QueuedTask, TaskRef
from crawler_lifecycle.runner.package import Package
from crawler_lifecycle.settings import ClusterSettings
from tests.support.fakes.cluster import FINISHED, Behaviour, FakeCluster
from tests.support.run_refs import run_ref

RUN = 7
LONG = 3600.0
"""A task that is not to end by itself."""
WAIT_S = 150.0

_CRAWLER = """
import json, os, signal, sys, time
stopped = []
def stop(*_):
    stopped.append(1)
    open(os.environ["CRAWL_FILES_DIR"] + "/signals", "a").write("x")
signal.signal(signal.SIGTERM, stop)
stats = {"pages": 3, "items": 2, "errors": 0, "scrapystats": {"item_scraped_count": 2, "mine": 0.5}}
with open(os.environ["CRAWL_STATS_FILE"], "w") as file:
    json.dump(stats, file)
print("a line of log", flush=True)
until = time.monotonic() + float(sys.argv[1])
told = os.environ["CRAWL_FILES_DIR"] + "/end"
while time.monotonic() < until and not stopped and not os.path.exists(told):
    time.sleep(0.01)
"""

#: The crawler's own statistics at its end.
STATISTICS = {"item_scraped_count": 2, "mine": 0.5}


class Both(Cluster, Deployer, Protocol):
    """What the suite needs from a cluster."""

    kind: str


class Harness:
    """A cluster with one slot, and a clock."""

    cluster: Both
    files: TaskFiles
    numbers: KnowsRuns
    keeper: EvidenceKeeper | None = None
    saturated = r"waiting: 1 of 1 slots in use"
    """What a task says that waits for room."""
    killed: tuple[int | None, int | None, str | None] = (137, 9, None)
    """Exit code, signal and finish reason of a crawler that was killed."""
    stopped = 11
    """Exit code of one that heeds a stop."""
    logs = True
    """Whether running tasks have logs, and so counters."""
    counts_signals = True
    names_code = True
    """Whether it says which code a task executes."""
    uid_in_names = False
    """Whether two runs of one number are there beside each other: their uids are in the names of
    all that is theirs.
    """

    def crawler(self, seconds: float) -> CrawlerDefinition:
        raise NotImplementedError

    def with_project(self) -> dict[str, str]:
        """The fields of an entry whose code the cluster can name."""
        return {}

    def change_project(self) -> None:
        """Change the code that later tasks execute, if it is a folder."""

    def deploy_without_code(self) -> None:
        """Deploy a task of a package. The task executes, and its code cannot be fetched."""
        raise NotImplementedError

    def give_code(self) -> None:
        """Let the code of this task arrive."""
        raise NotImplementedError

    def now(self) -> datetime:
        raise NotImplementedError

    def settle(self) -> None:
        """Let a moment pass."""
        raise NotImplementedError

    def finish(self, index: int = 0) -> None:
        """Let an executing task finish normally."""
        raise NotImplementedError

    def break_it(self) -> None:
        """Make the cluster unreadable."""
        raise NotImplementedError

    def signals(self, index: int = 0) -> int:
        raise NotImplementedError

    def deployment(
        self, tasks: int = 1, attempt: int = 1, expires_in: float = 60.0, **args: str
    ) -> Deployment:
        return Deployment(
            run=run_ref(RUN),
            attempt=attempt,
            crawler="demo",
            args=args,
            settings={},
            tasks=[
                QueuedTask(100 * attempt + index, index, {}, attempt=attempt)
                for index in range(tasks)
            ],
            resources=Resources(),
            limits=Limits(stop_grace_s=60),
            expires_at=self.now() + timedelta(seconds=expires_in),
        )

    def deploy(
        self,
        seconds: float = LONG,
        tasks: int = 1,
        attempt: int = 1,
        record: Mapping[str, object] | None = None,
    ) -> list[DeployedTask]:
        """Deploy; if tasks compete for the only slot, the lowest index gets it."""
        return self.cluster.deploy(
            replace(self.deployment(tasks, attempt), record=record or {}), self.crawler(seconds)
        )

    def ref(self, index: int = 0, attempt: int = 1) -> TaskRef:
        return TaskRef(100 * attempt + index, index, attempt)

    def missed(self, uid: str) -> TaskRef:
        """Return a task with this uid that was missing long enough to count as gone."""
        return replace(self.ref(), uid=uid)

    def never_ran(self, index: int) -> None:
        """Poll until it is proved that a waiting task that was asked to end has never executed."""
        seen = self.until(Phase.ENDED, index)
        assert seen.end is not None
        assert (seen.end.reason, seen.end.exit_code, seen.end.signal) == ("Cancelled", None, None)
        assert seen.started_at is None

    def until_saturated(self, index: int) -> None:
        """Poll until the task waits for a slot; it may not have reached the queue yet."""
        deadline = time.monotonic() + WAIT_S
        while not re.search(
            self.saturated, (seen := self.until(Phase.WAITING, index)).reason or ""
        ):
            assert time.monotonic() < deadline, f"not within {WAIT_S:g} s: {seen}"
            self.settle()

    def until_nothing_lives(self) -> None:
        """Poll until the inventory is empty."""
        deadline = time.monotonic() + WAIT_S
        while found := self.cluster.inventory():
            assert time.monotonic() < deadline, f"not within {WAIT_S:g} s: {found}"
            self.settle()

    def poll(self, index: int = 0, attempt: int = 1) -> Observation:
        return self.cluster.poll(run_ref(RUN), [self.ref(index, attempt)]).observations[0]

    def until(self, phase: Phase, index: int = 0, attempt: int = 1) -> Observation:
        """Poll until the task is in this phase; fail after a minute."""
        deadline = time.monotonic() + WAIT_S
        while (seen := self.poll(index, attempt)).phase is not phase:
            assert time.monotonic() < deadline, f"not within {WAIT_S:g} s: {seen}"
            self.settle()
        return seen

    def until_code(self, *, waits: bool) -> Observation:
        """Poll until the executing task waits for its code, or has it."""
        deadline = time.monotonic() + WAIT_S
        while (self.until(Phase.EXECUTING).code_wait is not None) is not waits:
            assert time.monotonic() < deadline, f"not within {WAIT_S:g} s"
            self.settle()
        return self.poll()

    def until_counted(self, index: int = 0) -> None:
        """Poll until the task has counted something, where this is visible."""
        if not self.logs:
            self.until(Phase.EXECUTING, index)
            return
        deadline = time.monotonic() + WAIT_S
        while not self.poll(index).counters.pages:
            assert time.monotonic() < deadline, f"not within {WAIT_S:g} s"
            self.settle()


class CodeGateway:
    """The part of a gateway that serves the code of one folder, away until it begins."""

    def __init__(self, folder: Path) -> None:
        file = io.BytesIO()
        pack(folder, file)
        self.code = Code(Package(file).digest(), "v1")

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(file.getvalue())

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
        self._server.server_bind()  # it refuses connections until it listens
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        url = f"http://127.0.0.1:{self._server.server_address[1]}/code"
        self.environment = {"CRAWL_CODE_URL": url, "CRAWL_CODE_TOKEN": "token"}

    def begin(self) -> None:
        self._server.server_activate()
        self._thread.start()

    def end(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()


class LocalHarness(Harness):
    """Real processes.

    This crawler is a command that exits with 0, so its outcome is known only where the runner
    reports it.
    """

    stopped = 0
    uid_in_names = True
    gateway: CodeGateway | None = None

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cluster = LocalCluster(
            folder / "state",
            slots=1,
            task_environment=lambda *_: self.gateway.environment if self.gateway else {},
        )
        self.files, self.numbers = LocalFiles(folder / "state"), LocalRuns(folder / "state")

    def with_project(self) -> dict[str, str]:
        (self.folder / "shop").mkdir()
        self.change_project()
        return {"project": str(self.folder / "shop")}

    def change_project(self) -> None:
        with (self.folder / "shop" / "spider.py").open("a") as file:
            file.write("# changed\n")

    def deploy_without_code(self) -> None:
        (self.folder / "package").mkdir()
        (self.folder / "package" / "crawl.py").write_text("import time\ntime.sleep(300)")
        self.gateway = CodeGateway(self.folder / "package")
        crawler = CrawlerDefinition(
            "demo",
            CrawlerKind.COMMAND,
            command=[sys.executable, "-I", "-S", "crawl.py"],
        )
        self.cluster.deploy(replace(self.deployment(), code=self.gateway.code), crawler)

    def give_code(self) -> None:
        assert self.gateway is not None
        self.gateway.begin()

    def now(self) -> datetime:
        return datetime.now(UTC)

    def crawler(self, seconds: float) -> CrawlerDefinition:
        command = [sys.executable, "-I", "-S", "-c", _CRAWLER, str(seconds)]
        return CrawlerDefinition(
            "demo", CrawlerKind.COMMAND, command=command, args={"page": Argument()}
        )

    def settle(self) -> None:
        time.sleep(0.02)

    def break_it(self) -> None:
        (self.folder / "state").rename(self.folder / "elsewhere")

    def finish(self, index: int = 0) -> None:
        (self.folder / "state/tasks" / str(run_ref(RUN)) / str(index) / "1/files/end").touch()

    def mend(self) -> None:
        if (self.folder / "elsewhere").exists():
            (self.folder / "elsewhere").rename(self.folder / "state")

    def signals(self, index: int = 0) -> int:
        path = self.folder / "state/tasks" / str(run_ref(RUN)) / str(index) / "1/files/signals"
        return len(path.read_text()) if path.exists() else 0

    def close(self) -> None:
        """End everything of the run."""
        self.mend()
        if self.gateway is not None:
            self.gateway.end()
        for index in range(4):
            for attempt in (1, 2):
                self.cluster.kill(run_ref(RUN), self.ref(index, attempt))


class SpoolHarness(LocalHarness):
    """The kind of cluster in ``examples/``, composed like in any process."""

    names_code = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        settings = {
            "kind": "examples.spool.cluster:SpoolKind",
            "state_dir": folder / "state",
            "slots": 1,
        }
        kind = kind_of(ClusterSettings.model_validate(settings))
        self.cluster = cast(Both, kind.deployer(None))
        self.files, self.numbers = kind.files(None), kind.numbers()


class FakeHarness(Harness):
    """Memory and a clock that is advanced by hand; the second and later tasks wait, as with one
    slot.
    """

    def __init__(self, folder: Path) -> None:
        self._now = datetime(2030, 1, 1, tzinfo=UTC)
        self._seconds = LONG
        self._code_after = 0.0
        self.fake = FakeCluster(clock=lambda: self._now, behaviour=self._behave)
        self.cluster = self.files = self.numbers = self.fake
        folder.joinpath("files").mkdir()
        self.fake.folders[RUN, 0] = folder / "files"

    def _behave(self, run_id: int, index: int, attempt: int) -> Behaviour:
        return Behaviour(
            waits=index * self._seconds,
            executes=self._seconds,
            statistics=STATISTICS,
            code_after=self._code_after,
        )

    def deploy_without_code(self) -> None:
        self._code_after = 60.0
        self.deploy()

    def give_code(self) -> None:
        self._now += timedelta(seconds=self._code_after)

    def now(self) -> datetime:
        return self._now

    def crawler(self, seconds: float) -> CrawlerDefinition:
        self._seconds = seconds
        return CrawlerDefinition(
            "demo", CrawlerKind.COMMAND, command=["true"], args={"page": Argument()}
        )

    def settle(self) -> None:
        self._now += timedelta(seconds=0.2)

    def finish(self, index: int = 0) -> None:
        self.fake.end_now(RUN, index, end=FINISHED)

    def break_it(self) -> None:
        self.fake.fail_with(ClusterUnavailable("down"))

    def signals(self, index: int = 0) -> int:
        return self.fake.signals(RUN, index)
