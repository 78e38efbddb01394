"""The whole stack as real processes, and the truth about its runs, read from every source except
the service.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from crawler_lifecycle import sqlite_files
from crawler_lifecycle.cli.client.gateway import Gateway
from crawler_lifecycle.cli.cluster_access import ClusterAccess
from crawler_lifecycle.cli.problems import CommandFailed
from crawler_lifecycle.cli.stack import processes, temporal_server
from crawler_lifecycle.cli.stack.layout import Layout
from crawler_lifecycle.cli.stack.stack import Stack
from crawler_lifecycle.cli.stack.supervise import Part
from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.polling_schedule import LATE_TOLERANCE_SECONDS
from examples.story_checks import CHECKS, Slots, query, run_folder, told_events
from tests.support import in_process
from tests.support.builds import command, environment

T = TypeVar("T")

Row = dict[str, Any]

PARTS = ("worker", "gateway", "scheduler", "temporal")
TERMINAL = ("COMPLETED", "FAILED")
#: Polls are one to two seconds apart, instead of minutes as in production.
QUICK: Row = {"poll_minutes": [0.02, 0.03], "limits": {"start_check_s": 0.3}}
#: A crawl that only a stop ends during a test: the site has 234 pages, which take 20 minutes.
ENDLESS = {"max_pages": "100000", "delay": "5"}
#: Audits begin only when a test requests one (every ten years, because a daily one would begin at
#: midnight), and wait for nothing.
EVERY_S = "315360000"
AUDITS = {
    "LIFECYCLE_AUDIT__INTERVAL_S": EVERY_S,
    **{f"LIFECYCLE_AUDIT__{name}GRACE_S": "0" for name in ("", "ORPHAN_", "START_")},
}
#: Far longer than anything takes that works; a wait that reaches it has failed.
PATIENCE_S = 150.0


def until(condition: Callable[[], T], what: str, seconds: float = PATIENCE_S) -> T:
    """Return the first true value of ``condition``, which is called ten times a second."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"{what} did not come within {seconds:g} s"
        time.sleep(0.1)
    return value


def moment(text: str | datetime) -> datetime:
    """Return a time from the database or a file of the cluster."""
    found = text if isinstance(text, datetime) else datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def processes_below(folder: Path) -> dict[int, str]:
    """Return every process that works below a folder, with its command line."""
    found = {}
    for pid in (int(name) for name in os.listdir("/proc") if name.isdecimal()):
        with suppress(OSError):
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            if os.fsencode(folder) in environment and pid != os.getpid() and words:
                found[pid] = words
    return found


def end_all_below(folder: Path) -> None:
    """End what still works below a folder. Raises an error if there was any."""
    end = time.monotonic() + PATIENCE_S  # a process may need a moment to die
    while (left := processes_below(folder)) and time.monotonic() < end:
        time.sleep(0.05)
    for pid in left:
        processes.end_process(pid, processes.start_time(pid), 0.0)
    assert not left, f"left behind: {left}"


def _states(pid: int) -> set[str]:
    """Return the kernel's state letters for the threads of a process."""
    with suppress(OSError):  # the thread has ended
        files = [thread / "stat" for thread in Path(f"/proc/{pid}/task").iterdir()]
        return {file.read_text().rpartition(")")[2].split()[0] for file in files}
    return set()


@dataclass
class Harness:
    """One stack. Everything below asks from outside, with deadlines, and without the service's help
    if possible.
    """

    folder: Path
    said: list[str] = field(default_factory=list)
    database: str | None = None
    crawlers: Path | None = None
    archive: str | None = None
    kubernetes: ClusterAccess | None = None

    def __post_init__(self) -> None:
        self._open = ExitStack()
        self.stack = Stack(
            Layout(
                self.folder,
                services=6,
                only_free_ports=True,
                database=self.database,
                crawlers=self.crawlers,
                archive=self.archive,
                kubernetes=self.kubernetes,
            ),
            say=self.said.append,
        )

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        self.stack.start()
        self.places = Slots(self.folder.absolute(), self.stack.addresses)
        self.gateway = self._open.enter_context(
            Gateway(str(self.stack.addresses["gateway"]), timeout_s=PATIENCE_S)
        )

    def end(self) -> None:
        """End everything, crawls too. Raises an error if anything was left behind."""
        self._open.close()
        with suppress(CommandFailed):
            self.stack.stop(kill_crawls=True)
        end_all_below(self.folder)

    def freeze(self, part: str) -> int:
        """Stop every thread of a part while it holds no lock of the database, because others could
        not continue either.
        """
        end = time.monotonic() + PATIENCE_S
        while True:
            pid = self.stack.supervisor.kill(part, signal.SIGSTOP)
            until(lambda pid=pid: _states(pid) == {"T"}, f"a frozen {part}")
            if not self.transactions():
                return pid
            self.thaw(part)
            assert time.monotonic() < end, (
                f"a rest of the {part} did not come within {PATIENCE_S:g} s"
            )
            time.sleep(0.03)

    def thaw(self, part: str) -> None:
        self.stack.supervisor.kill(part, signal.SIGCONT)

    def transactions(self) -> bool:
        """Return whether anybody is in a write transaction of the database."""
        with closing(
            sqlite_files.connect(self.places.path("database"), timeout=0.2, isolation_level=None)
        ) as database:
            try:
                database.execute("BEGIN IMMEDIATE")
            except sqlite_files.driver.OperationalError:
                return True
            database.execute("ROLLBACK")
        return False

    @contextmanager
    def site_stands_still(self) -> Iterator[None]:
        """Let the demonstration site answer no requests meanwhile, so that no crawl of it ends by
        itself.
        """
        self.freeze("site")
        try:
            yield
        finally:
            self.thaw("site")

    def processes(self) -> dict[int, str]:
        """Return every process that works below our folder, with its command line."""
        return processes_below(self.folder)

    def healthy(self) -> None:
        """Return when every part responds and nothing of earlier tests is open; leftovers of failed
        tests are stopped.
        """
        self.stack.supervisor.wait_healthy()
        for run_id in self.open_runs():
            with suppress(CommandFailed):
                self.gateway.stop(run_id, force=True, reason="left by an earlier test")
        until(lambda: not self.open_runs(), "the end of earlier runs")

    def deploy(
        self,
        folder: Path,
        name: str = "worker",
        roles: Sequence[str] = (),
        renamed: Mapping[str, str] = MappingProxyType({}),
        **settings: str,
    ) -> None:
        """Replace a part by one of the build in ``folder``, or start another worker, and wait until
        it is ready.

        ``renamed`` maps variables to their names in that build, if they differ.
        """
        what = name if name in ("gateway", "scheduler") else "worker"
        usual = self.stack.supervisor._kept[what].part
        env = environment(usual.env, **settings)
        env = {renamed.get(variable, variable): value for variable, value in env.items()}
        health = usual.health
        if name not in PARTS:
            port, metrics = processes.free_port(), processes.free_port()
            env |= {
                "LIFECYCLE_WORKER__HEALTH_PORT": str(port),
                "LIFECYCLE_WORKER__METRICS_PORT": str(metrics),
            }
            health = f"http://127.0.0.1:{port}/readyz"
        self.undeploy(name)
        part = Part(name, command(what, *roles), health, env, cwd=folder, grace_s=25.0)
        self.stack.supervisor.start([part])
        self.stack.supervisor.wait_healthy([name])

    def undeploy(self, name: str = "worker") -> None:
        """End a worker like a deployment does, and do not start it again."""
        self.stack.supervisor.stop([name])
        if name not in PARTS:  # nobody waits any longer for it to become healthy
            self.stack.supervisor._kept.pop(name, None)

    def crawlctl(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Call ``crawlctl`` with the gateway of this stack."""
        env = {**os.environ, "LIFECYCLE_GATEWAY__URL": str(self.stack.addresses["gateway"])}
        done = in_process.crawlctl(*words, env=env, folder=Path())
        assert not check or done.returncode == 0, done.stderr
        return done

    # --- asking -----------------------------------------------------------------------------------

    def query(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        return query(self.places, sql, *values)

    def open_runs(self) -> list[int]:
        return [
            row[0]
            for row in self.query(f"SELECT run_id FROM run_history WHERE status NOT IN {TERMINAL}")
        ]

    def status(self, run_id: int) -> str:
        return str(self.query("SELECT status FROM run_history WHERE run_id = ?", run_id)[0][0])

    def tasks(self, run_id: int) -> dict[str, int]:
        """Return the number of current tasks in each status."""
        sql = "SELECT status, COUNT(*) FROM task_history WHERE run_id = ? AND superseded_by IS NULL GROUP BY status"
        return dict(self.query(sql, run_id))

    def run_of(self, workflow_id: str) -> int | None:
        rows = self.query("SELECT run_id FROM run_history WHERE owner_workflow_id = ?", workflow_id)
        return int(rows[0][0]) if rows else None

    def temporal(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Call the Temporal CLI, and nothing of ours."""
        command = [
            temporal_server.executable(),
            *words,
            "--address",
            str(self.stack.addresses["temporal"]),
        ]
        clean = {k: v for k, v in os.environ.items() if not k.startswith("TEMPORAL_")}
        clean["TEMPORAL_CONFIG_FILE"] = str(self.folder / "temporal.toml")
        done = subprocess.run(
            [*command, "-o", "json"], capture_output=True, text=True, timeout=120, env=clean
        )
        assert not check or done.returncode == 0, done.stderr
        return done

    def cli_start(self, workflow_id: str, request: object | None, *, check: bool = True) -> str:
        """Start a run as an outsider would. Return the CLI's output."""
        words = [
            "workflow",
            "start",
            "--type",
            names.LIFECYCLE_WORKFLOW,
            "--task-queue",
            names.QUEUE_MAIN,
        ]
        words += ["--workflow-id", workflow_id]
        if request is not None:
            words += ["--input", json.dumps(request)]
        return self.temporal(*words, check=check).stdout

    def cli_result(self, workflow_id: str) -> Row:
        """Wait for the end of the workflow. Return ``status``, and ``result`` or ``failure``."""
        found: Row = json.loads(
            self.temporal("workflow", "result", "--workflow-id", workflow_id, check=False).stdout
        )
        return found

    def cli_list(self, which: str) -> list[Row]:
        found: list[Row] = json.loads(
            self.temporal("workflow", "list", "--query", which).stdout or "[]"
        )
        return found

    def talk(self, *calls: Callable[[Client], Any]) -> list[Any]:
        """Make these calls to Temporal at the same time.

        Return their results; an ended workflow gives ``None``.
        """

        async def one(client: Client, call: Callable[[Client], Any]) -> Any:
            try:
                return await call(client)
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
                return None

        async def talk() -> list[Any]:
            client = await Client.connect(str(self.stack.addresses["temporal"]))
            return list(await asyncio.gather(*(one(client, call) for call in calls)))

        return asyncio.run(talk())

    def open_workflows(self, workflow_ids: Sequence[str]) -> list[str]:
        """Return which of these workflows are open by their own state, because lists lag by a
        moment.
        """

        def ask(workflow_id: str) -> Callable[[Client], Any]:
            return lambda client: client.get_workflow_handle(workflow_id).describe()

        told = zip(workflow_ids, self.talk(*map(ask, workflow_ids)), strict=True)
        return [
            name for name, found in told if found is not None and found.status.name == "RUNNING"
        ]

    def listed_as_open(self, run_ids: Sequence[int]) -> int:
        """Return how many open workflows of these runs Temporal's list has.

        Starts no process, because it is called often.
        """
        which = " OR ".join(f"CrawlRunId={run_id}" for run_id in run_ids)
        (found,) = self.talk(
            lambda client: client.count_workflows(f"ExecutionStatus='Running' AND ({which})")
        )
        return int(found.count)

    # --- the truth --------------------------------------------------------------------------------

    def prove(self, run_id: int, status: str, outcome: str, *, attempt: int = 1) -> None:
        """Check that every source agrees on the end of this run, and that nothing happened twice.

        On a busy machine, an end may be found late, which is then on record; no other correction is
        justified when nobody touched the crawlers.
        """
        run = self.gateway.run(run_id)
        assert (run["status"], run["outcome"], run["attempt"]) == (status, outcome, attempt), run[
            "cause"
        ]
        for check in CHECKS.values():
            check(self.places, run)
        self._prove_tasks(run_id)
        ended = {
            e
            for e in self._event_ids()
            if re.fullmatch(rf"{run_id}-{run['run_uid']}/{attempt}/run\.ended", e)
        }
        assert len(ended) == 1
        stored = self.query(
            "SELECT attempt FROM outbox_event WHERE run_id = ? AND type = 'run.ended'", run_id
        )
        assert sorted(stored)[-1] == (attempt,)
        assert len(stored) == len(set(stored))
        archives = list(
            (self.folder / "archive" / f"{run_id}-{run['run_uid']}" / str(attempt)).iterdir()
        )
        assert [file.name for file in archives] == ["supporting-files.zip"]
        corrections = self.query(
            "SELECT kind, truth_since, created_at FROM correction WHERE run_id = ?", run_id
        )
        allowed = {"late"} if attempt == 1 else {"late", "repair"}
        assert {kind for kind, *_ in corrections} <= allowed, corrections
        found_after = [
            (moment(found) - moment(true)).total_seconds() for _, true, found in corrections
        ]
        assert all(s >= LATE_TOLERANCE_SECONDS for s in found_after), (
            "what was found sooner is no correction"
        )

    def _prove_tasks(self, run_id: int) -> None:
        """Check that each row has the exit of its process, and each process its row."""
        columns = "task_index, attempt, status, cluster_uid, exit_code, exit_signal, ended_at"
        rows = self.query(f"SELECT {columns} FROM task_history WHERE run_id = ?", run_id)
        folders = {
            (int(file.parts[-3]), int(file.parts[-2])): file.parent
            for file in run_folder(self.folder, run_id).glob("*/*/spec.json")
        }
        assert {(index, attempt) for index, attempt, _, uid, *_ in rows if uid} == set(folders)
        for index, attempt, status, uid, code, number, ended_at in rows:
            if uid is None:
                assert status == "CANCELLED", "never deployed"
                continue
            folder = folders[index, attempt]
            end = json.loads((folder / "end.json").read_text())
            assert json.loads((folder / "spec.json").read_text())["uid"] == uid
            assert (end["exit_code"], end["signal"]) == (code, number)
            assert (status == "SUCCEEDED") == (code == 0)
            assert moment(end["finished_at"]) == moment(ended_at)
            log = (folder / "log").read_text()
            assert len(re.findall(r"^200 http://[^/]+/$", log, re.MULTILINE)) <= 1, (
                "a crawl begins with the front page"
            )
            assert len(re.findall(r"^(?:finished|shutdown): ", log, re.MULTILINE)) <= 1
        twice = "SELECT task_id, to_status FROM status_transition WHERE run_id = ? AND task_id IS NOT NULL"
        assert self.query(f"{twice} GROUP BY task_id, to_status HAVING COUNT(*) > 1", run_id) == []

    def _event_ids(self) -> list[str]:
        return [str(event["id"]) for event in told_events(self.places)]

    def closed(self, run_ids: Sequence[int]) -> bool:
        """Return whether these runs have ended with everything that follows: event, archive, and
        closed workflows.

        The archive must be that of the present attempt, because an earlier one has its own.
        """
        places = ", ".join("?" * len(run_ids))
        done = self.query(
            "SELECT DISTINCT r.run_id, r.owner_workflow_id FROM run_history r JOIN export_record x ON "
            "x.run_id = r.run_id AND x.attempt = r.attempt "
            f"WHERE r.run_id IN ({places}) AND r.status IN {TERMINAL}",
            *run_ids,
        )
        if len(done) < len(set(run_ids)) or self.open_workflows(
            [workflow_id for _, workflow_id in done]
        ):
            return False
        return not self.listed_as_open(run_ids)
