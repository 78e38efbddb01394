"""The stack of a soak, and the actions that plans request."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from unittest import mock

import httpx
import pymysql
from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.service import RPCError

from crawler_lifecycle import sqlite_files
from crawler_lifecycle.cli.cluster_access import ClusterAccess
from crawler_lifecycle.cli.machine import start_time
from crawler_lifecycle.domain import names
from examples.story_checks import run_folder
from tests.e2e.harness import TERMINAL, Harness, Row
from tests.support.mariadb import MariaDb
from tests.support.resets import reset
from tools.faults.oracle import Ask as SiteAsk
from tools.soak.journal import Ask, Deeds, Name, read_journals
from tools.soak.plan import Step
from tools.soak.sites import call_of

#: For a server that is killed, because committed data must survive the death of its process.
DURABLE = "--innodb-flush-log-at-trx-commit=2"
HERE = Path(__file__).resolve().parent
SLOTS = 10
CATALOGUE = """
- name: soak
  kind: command
  project: {project}
  command: ["python", "-S", "crawler.py"]
  resumable: true
  args:
    journal: {{default: {journal}}}
    seconds: {{default: "1"}}
    how: {{default: finished}}
    deaf: {{required: false}}
    needs: {{required: false}}
    site: {{required: false}}
    refused: {{required: false}}
    number: {{required: false}}
- name: aside
  kind: command
  project: {project}
  command: ["python", "-S", "crawler.py", "aside"]
  resumable: true
  args:
    journal: {{default: {aside}}}
    seconds: {{default: "0.3"}}
    how: {{default: finished}}
    note: {{required: false}}
    number: {{required: false}}
"""
SETTINGS = {
    "LIFECYCLE_CLUSTER__SLOTS": str(SLOTS),
    "LIFECYCLE_GATEWAY__MAX_WRITES_PER_S": "1000",
    "LIFECYCLE_GATEWAY__MAX_CONCURRENT_REQUESTS": "200",
    "LIFECYCLE_GATEWAY__OUTBOX_RETRY_S": "2",
    # The only audits are those of the plan and of the soak, and they need not wait for operators
    # who would repair a problem themselves.
    "LIFECYCLE_AUDIT__INTERVAL_S": "0",
    "LIFECYCLE_AUDIT__GRACE_S": "2",
    "LIFECYCLE_AUDIT__ORPHAN_GRACE_S": "2",
    "LIFECYCLE_AUDIT__START_GRACE_S": "2",
    # The usual policy, with times that fit into a soak.
    "LIFECYCLE_RETRIES": '{"backoff_s": 0.3}',
}
#: The seconds after which a missing answer is given up.
ANSWER_S = 15.0
#: The seconds for which a start without an answer is repeated under its id.
START_AGAIN_S = 60.0


@dataclass
class SoakHarness(Harness):
    """One stack, its journals, and what was done to both."""

    deeds: Deeds = field(default_factory=Deeds)
    server: MariaDb | None = None

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.journals = self.folder / "journals"
        self.journals.mkdir(exist_ok=True)
        #: The arguments of crawls that execute in parallel with those of a storm.
        self.aside = self.folder / "aside"
        self.aside.mkdir(exist_ok=True)
        #: A variable in the environment of every process of this stack, and of no other process.
        self.mark = os.fsencode(self.folder.absolute())
        self.crawlers = self.folder / "soak.yaml"
        places = {
            "project": HERE,
            "journal": self.journals.absolute(),
            "aside": self.aside.absolute(),
        }
        text = CATALOGUE.format(**{name: json.dumps(str(place)) for name, place in places.items()})
        self.crawlers.write_text(text)
        #: The runs of the plan by their number, as soon as their ids are known.
        self.ids: dict[int, int] = {}
        #: What people did to sites.
        self.site_asks: list[SiteAsk] = []
        super().__post_init__()

    @classmethod
    @contextmanager
    def up(
        cls,
        folder: Path,
        server: MariaDb | None = None,
        kubernetes: ClusterAccess | None = None,
        **settings: str,
    ) -> Iterator[Self]:
        """Start a stack on SQLite or on this server, with crawls on this machine or on this
        cluster. All of it is ended afterwards.
        """
        with ExitStack() as undo:
            undo.enter_context(mock.patch.dict(os.environ, SETTINGS | settings))
            database = None if server is None else undo.enter_context(server.database())
            harness = cls(folder, database=database, server=server, kubernetes=kubernetes)
            try:
                harness.start()
                yield harness
            finally:
                harness.end()

    # --- who is who -------------------------------------------------------------------------------

    def key(self, run: int) -> str:
        return f"soak-{run}"

    def run_id(self, run: int) -> int | None:
        """Return the run with this number in the plan, or ``None`` until it is recorded."""
        if run not in self.ids:
            with contextlib.suppress(
                sqlite_files.driver.OperationalError, pymysql.err.OperationalError
            ):
                rows = self.query(
                    "SELECT run_id FROM run_history WHERE request_id = ?", self.key(run)
                )
                if rows:
                    self.ids[run] = int(rows[0][0])
        return self.ids.get(run)

    def owner(self, run: int) -> str | None:
        rows = self.query(
            "SELECT owner_workflow_id FROM run_history WHERE request_id = ?", self.key(run)
        )
        return str(rows[0][0]) if rows and rows[0][0] else None

    # --- steps ------------------------------------------------------------------------------------

    def do(self, step: Step) -> None:
        """Execute a step. Its result is written to the journal, and nothing is raised."""
        deed = getattr(self, f"_{step.kind.replace(' ', '_')}")
        try:
            deed(step)
        except Exception as error:  # A step may fail in any way if half of the stack is down.
            self.deeds.note(step.number, f"{step.kind}: {type(error).__name__}: {str(error)[:200]}")

    def _ask(self, step: Step, call: Callable[[], tuple[str, str]], **more: Any) -> Ask:
        """Send a request, and write its time and its answer to the journal."""
        sent = time.time()
        try:
            answer, detail = call()
        except httpx.ConnectError as error:
            answer, detail = "no", str(error)
        except (
            sqlite_files.driver.Error,
            pymysql.err.Error,
        ) as error:  # The target is not known now, so no request was sent.
            answer, detail = "no", f"{type(error).__name__}: {error}"[:150]
        except (httpx.HTTPError, OSError, RuntimeError, RPCError) as error:
            answer, detail = "unknown", f"{type(error).__name__}: {error}"[:150]
        told = Ask(step.number, step.run or 0, step.kind, sent, time.time(), answer, detail, **more)
        self.deeds.asked(told)
        return told

    def _http(self, method: str, path: str, body: Row, key: str | None = None) -> tuple[str, str]:
        headers = {"Idempotency-Key": key} if key else {}
        url = f"{self.stack.addresses['gateway']}{path}"
        got = httpx.request(
            method, url, json=body, headers=headers, timeout=ANSWER_S, trust_env=False
        )
        # A 5xx is neither a promise nor a refusal: the requested action may have happened.
        answer = "ok" if got.is_success else "unknown" if got.status_code >= 500 else "no"
        return answer, f"{got.status_code} {got.text[:160]}"

    def _temporal(self, call: Callable[[Client], Any]) -> tuple[str, str]:
        async def talk() -> object:
            client = await Client.connect(str(self.stack.addresses["temporal"]))
            return await call(client)

        try:
            return "ok", str(asyncio.run(asyncio.wait_for(talk(), ANSWER_S)))[:100]
        except RPCError as error:
            if error.status.name in ("NOT_FOUND", "ALREADY_EXISTS"):
                return "no", f"{error.status.name}: {error}"[:150]
            raise

    @staticmethod
    def _together(times: int, call: Callable[[], object]) -> None:
        threads = [threading.Thread(target=call) for _ in range(times)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _site(self, step: Step) -> None:
        site, what, body = step.more["site"], step.more["what"], step.more["body"]
        method, path = call_of(site, what, body)
        key = f"site-{step.number}"
        sent = body if what == "limits" else {**body, "requested_by": key}
        told = self._ask(step, lambda: self._http(method, path, sent), key=key)
        status = {"ok": 200, "no": 409}.get(told.answer)
        times = told.sent, told.answered
        self.site_asks.append(SiteAsk(what, key, *times, status, site=site, body=body))

    def _start(self, step: Step) -> None:
        assert step.run is not None
        request, key = {"crawler": "soak", **step.more["request"]}, self.key(step.run)
        tasks = len(request.get("tasks") or [{}])
        if step.more["way"] == "gateway":
            self._until_told(
                step, lambda: self._http("POST", "/v1/runs", request, key), tasks=tasks, key=key
            )
        else:
            self._until_told(
                step, lambda: self._start_by_temporal(step, request), tasks=tasks, way="temporal"
            )

    def _until_told(self, step: Step, call: Callable[[], tuple[str, str]], **more: Any) -> bool:
        """Repeat a request until it is accepted, for some time, and return whether it was accepted."""
        until = time.monotonic() + START_AGAIN_S
        while self._ask(step, call, **more).answer != "ok":
            if time.monotonic() > until:
                return False
            time.sleep(1)
        return True

    def manager_key(self, manager: int) -> str:
        return f"soak-manager-{manager}"

    def _manage(self, step: Step) -> None:
        """Start a manager and add its jobs. Each request is repeated until there is an answer."""
        number = step.more["manager"]
        key, options = (
            self.manager_key(number),
            {"max_running": step.more["cap"], "retries": step.more["retries"]},
        )
        body: Row = {"crawler": "soak", "name": "soak", "flow_id": f"M{number}", "options": options}
        asked: Row = {"key": key, "manager": number}
        if self._until_told(step, lambda: self._http("POST", "/v1/managers", body, key), **asked):
            ((manager_id,),) = self.query(
                "SELECT manager_id FROM manager WHERE flow_id = ?", f"M{number}"
            )
            page = {"jobs": [{"spider_args": job} for job in step.more["jobs"]], "seal": True}
            self._until_told(
                step,
                lambda: self._http("POST", f"/v1/managers/{manager_id}/jobs", page, key),
                **asked,
            )

    def _steer(self, step: Step) -> None:
        number, what = step.more["manager"], step.more["what"]
        rows = self.query("SELECT manager_id FROM manager WHERE flow_id = ?", f"M{number}")
        if not rows:
            self.deeds.note(step.number, f"{what}: M{number} is not known yet")
            return
        if what in ("terminate", "reset"):
            self._ask(
                step,
                lambda: self._temporal(lambda client: _by_hand(client, what, number)),
                manager=number,
                way=what,
            )
            return
        path, body = f"/v1/managers/{rows[0][0]}/{what}", step.more["body"]
        more: Row = {
            "force": bool(body.get("force")),
            "way": "leave" if body.get("leave") else what,
            "manager": number,
        }
        self._ask(step, lambda: self._http("POST", path, body), **more)

    def _start_by_temporal(self, step: Step, request: Row) -> tuple[str, str]:
        assert step.run is not None
        full, queue = {**request, "request_id": self.key(step.run)}, names.QUEUE_MAIN
        more: Row = {"id": f"stranger/{step.run}", "task_queue": queue}
        more["id_conflict_policy"] = WorkflowIDConflictPolicy.USE_EXISTING
        return self._temporal(
            lambda client: client.start_workflow(names.LIFECYCLE_WORKFLOW, full, **more)
        )

    def _of_run(self, step: Step) -> int | None:
        assert step.run is not None
        found = self.run_id(step.run)
        if found is None:
            self.deeds.note(step.number, f"{step.kind}: R{step.run} is not known yet")
        return found

    def _add(self, step: Step) -> None:
        if (run_id := self._of_run(step)) is None:
            return
        body, key = {"tasks": step.more["tasks"]}, f"add-{step.number}"
        for _ in range(2 if step.more["twice"] else 1):
            self._ask(
                step,
                lambda: self._http("POST", f"/v1/runs/{run_id}/tasks", body, key),
                tasks=len(step.more["tasks"]),
                key=key,
            )

    def _stop(self, step: Step) -> None:
        if (run_id := self._of_run(step)) is None:
            return
        force, way, key = step.more["force"], step.more["way"], f"stop-{step.number}"
        body = {"request_id": key, "force": force, "requested_by": "soak"}
        if way == "gateway":
            call = lambda: self._http("POST", f"/v1/runs/{run_id}/stop", body)  # noqa: E731
        else:
            name = names.SIGNAL_FORCE_STOP if force else names.SIGNAL_STOP
            call = lambda: self._signal(step, name, body)  # noqa: E731
        self._together(
            step.more["times"], lambda: self._ask(step, call, force=force, key=key, way=way)
        )

    def _signal(self, step: Step, name: str, *payload: object) -> tuple[str, str]:
        owner = self.owner(step.run or 0)
        if owner is None:
            return "no", "no workflow"
        return self._temporal(
            lambda client: client.get_workflow_handle(owner).signal(name, *payload)
        )

    def _wake(self, step: Step) -> None:
        if self._of_run(step) is not None:
            for _ in range(step.more["times"]):
                self._ask(step, lambda: self._signal(step, names.SIGNAL_POLL_NOW))

    def _cancel(self, step: Step) -> None:
        if self._of_run(step) is not None and (owner := self.owner(step.run or 0)):
            call = lambda: self._temporal(lambda client: client.get_workflow_handle(owner).cancel())  # noqa: E731
            self._ask(step, call, way="cancel")

    def _terminate(self, step: Step) -> None:
        if self._of_run(step) is not None and (owner := self.owner(step.run or 0)):
            call = lambda: self._temporal(  # noqa: E731
                lambda client: client.get_workflow_handle(owner).terminate("soak")
            )
            self._ask(step, call)

    def _resume(self, step: Step) -> None:
        if (run_id := self._of_run(step)) is None:
            return
        rerun = step.more["rerun"]
        count = iter(range(100))

        def once() -> None:
            if step.more["way"] == "gateway":
                self._ask(
                    step,
                    lambda: self._http("POST", f"/v1/runs/{run_id}/resume", {"rerun": rerun}),
                    force=rerun,
                )
            else:
                more: Row = {
                    "id": f"resume/{step.number}/{next(count)}",
                    "task_queue": names.QUEUE_MAIN,
                }
                body = {"run_id": run_id, "rerun": rerun}
                start = lambda client: client.start_workflow(names.LIFECYCLE_WORKFLOW, body, **more)  # noqa: E731
                self._ask(step, lambda: self._temporal(start), force=rerun, way="temporal")

        self._together(step.more["times"], once)

    def _audit(self, step: Step) -> None:
        self._ask(step, lambda: self._http("POST", "/v1/audit", {"repair": step.more["repair"]}))

    # --- deaths -----------------------------------------------------------------------------------

    def _kill_part(self, step: Step) -> None:
        part = step.more["part"]
        with contextlib.suppress(ProcessLookupError):
            self.deeds.note(
                step.number, f"kill -9 of {part}, process {self.stack.supervisor.kill(part)}"
            )

    def _away(self, step: Step) -> None:
        supervisor, part = self.stack.supervisor, step.more["part"]
        supervisor._kept[part].wanted = False
        with contextlib.suppress(ProcessLookupError):
            supervisor.kill(part)
        time.sleep(step.more["seconds"])
        supervisor._kept[part].wanted = True

    def _freeze(self, step: Step) -> None:
        pid = self.stack.supervisor.kill(step.more["part"], signal.SIGSTOP)
        start = start_time(pid)
        time.sleep(step.more["seconds"])
        if start_time(pid) == start:
            os.kill(pid, signal.SIGCONT)

    def _lock(self, step: Step) -> None:
        """Prevent all writes for a while. If the database is a server, prevent all reads too."""
        if self.server is not None:
            self.server.kill()
            try:
                time.sleep(step.more["seconds"])
            finally:
                self.server.restart()
            return
        file = self.places.path("database")
        with contextlib.closing(sqlite_files.connect(file, timeout=20, isolation_level=None)) as db:
            db.execute("BEGIN EXCLUSIVE")
            time.sleep(step.more["seconds"])
            db.execute("ROLLBACK")

    def _hide(self, step: Step) -> None:
        tasks = self.folder / "cluster" / "tasks"
        away, since = tasks.with_name("tasks.away"), time.time()
        tasks.rename(away)
        try:
            time.sleep(step.more["seconds"])
        finally:
            if tasks.exists():
                self.deeds.complain("somebody took a missing disk for an empty one")
            else:
                away.rename(tasks)
            self.deeds.hidden.append((since, time.time()))

    def _kill(self, step: Step) -> None:
        """Kill processes of one task that waits or executes: its crawler, its runner, its
        supervisor, or several of them at once.
        """
        if step.run is None:
            known = self.query(f"SELECT run_id FROM run_history WHERE status NOT IN {TERMINAL}")
        elif (run_id := self._of_run(step)) is not None:
            known = [(run_id,)]
        else:
            return
        living: dict[Name, dict[str, tuple[int, int]]] = {}
        for (run_id,) in known:
            living |= self.living(run_id)
        if not living:
            self.deeds.note(step.number, "kill: nothing lives")
            return
        name = sorted(living)[int(step.more["pick"] * len(living))]
        for whom in step.more["whom"].split("+"):
            if whom == "folder":
                self.deeds.killed(name, whom, time.time())
                shutil.rmtree(
                    run_folder(self.folder, name[0]).joinpath(*map(str, name[1:])),
                    ignore_errors=True,
                )
                self.deeds.note(
                    step.number, f"the folder of task {'/'.join(map(str, name))} is gone"
                )
                continue
            victim = living[name].get(whom)
            if victim is None or start_time(victim[0]) != victim[1]:
                continue
            self.deeds.killed(name, whom, time.time())
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim[0], signal.SIGKILL)
                self.deeds.note(
                    step.number, f"kill -9 of the {whom} of task {'/'.join(map(str, name))}"
                )

    def living(self, run_id: int) -> dict[Name, dict[str, tuple[int, int]]]:
        """Return the process id and start time of the living supervisor, runner and crawler of each
        task of a run.
        """
        found: dict[Name, dict[str, tuple[int, int]]] = {}
        folder = f"{run_folder(self.folder.absolute(), run_id)}/"
        for pid in (int(entry) for entry in os.listdir("/proc") if entry.isdecimal()):
            with contextlib.suppress(OSError, ValueError, IndexError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
                mine = [word for word in words if word.startswith(folder)]
                if mine and (start := start_time(pid)):
                    index, attempt = mine[0].removeprefix(folder).split("/")[:2]
                    found.setdefault((run_id, int(index), int(attempt)), {})["supervisor"] = (
                        pid,
                        start,
                    )
        for process in read_journals(self.journals, run_id):
            if start_time(process.pid) != process.start:
                continue
            mine_too = found.setdefault(process.name, {})
            mine_too["crawler"] = (process.pid, process.start)
            parent = start_time(process.runner)
            if parent and parent <= process.start and process.runner > 1 and process.lost is None:
                mine_too["runner"] = (process.runner, parent)
        return found


async def _by_hand(client: Client, what: str, manager: int) -> object:
    """Terminate or reset the workflow of a manager, as an operator does."""
    workflow_id = f"manager/soak/M{manager}"
    if what == "reset":
        return await reset(client, workflow_id, -1)
    return await client.get_workflow_handle(workflow_id).terminate("soak")
