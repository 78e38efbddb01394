"""Cells of the stop matrix on real processes: several runs, each in its phase, through one outage
at the same time.

Every cell of the table can be reached here, with two things in mind. A SQLite file that is "down"
can be read but not written, since its processes have it open; MariaDB really dies. And what is sent
before a frozen worker goes on reaches it all at once, so that "stop, then force_stop" is one after
the other only where a crawler shows that it got the first.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from temporalio.service import RPCError

from crawler_lifecycle.domain import names
from examples.story_checks import CHECKS, told_events
from tests.e2e.harness import TERMINAL, Row, until
from tests.e2e.stopping import BREAK, QUICK, StopHarness
from tests.support.stop_table import PHASES, STATES, Cell, pairwise

(
    BEFORE_FIRST_TASK,
    AFTER_ROW,
    DEPLOYING,
    BEFORE_FIRST_POLL,
    WAITING,
    SINGLE,
    MULTI,
    ADDING,
    POLLING,
    COMPLETING,
    EXPORTING,
    ENDED,
) = PHASES

#: The call that hangs to keep a run in this phase.
HELD = {
    AFTER_ROW: "workflows.store.set_property.before",
    DEPLOYING: "cluster.scheduler.deploy.after",
    ADDING: "workflows.store.add_tasks.after",
    POLLING: "cluster.cluster.poll.before",
    COMPLETING: "workflows.store.end_run.before",
    EXPORTING: "export.archive.store.before",
}
#: Phases in which a deaf crawler gets the plain stop before the forced one.
EXECUTING = (BEFORE_FIRST_POLL, SINGLE, MULTI, ADDING, POLLING)
#: Phases in which nothing of the run may be on the cluster, or nothing has to be asked of it any
#: more.
WITHOUT_CLUSTER = (BEFORE_FIRST_TASK, AFTER_ROW, COMPLETING, EXPORTING, ENDED)

_numbers = itertools.count(1)


@dataclass
class Drill:
    """One cell: its run, the stops that were acknowledged, and what was seen on the way."""

    harness: StopHarness
    cell: Cell
    name: str = ""
    run_id: int = 0
    promised: list[str] = field(default_factory=list)
    """Ids of the stops that were acknowledged."""

    def __post_init__(self) -> None:
        self.name = f"stop-{next(_numbers)}"
        self.workflow_id = f"crawl/patient/{self.name}"

    @property
    def phase(self) -> str:
        return self.cell.phase

    @property
    def by_gateway(self) -> bool:
        """Return whether its stops go through the gateway: half of those that can, spread over
        phases and kinds.
        """
        cell = self.cell
        if cell.gateway:
            return True
        if cell.state == "database down" or cell.kind == "Temporal cancel":
            return False
        return (len(cell.phase) + len(cell.kind)) % 2 == 0

    # --- into the phase ---------------------------------------------------------------------------

    def request(self) -> Row:
        args, more = {}, {}
        limits = dict(QUICK["limits"])
        if self.phase in (COMPLETING, EXPORTING, ENDED):
            args["seconds"] = "0.1"
        if self.cell.group == "insisting":
            args["deaf"] = "1"
        if self.phase == BEFORE_FIRST_POLL:
            limits["start_check_s"] = 600
        if self.phase == MULTI:
            more = {"tasks": [{"args": {}}] * 4, "max_parallel_tasks": 2}
        if self.phase == ADDING:
            more = {"tasks": [{"args": {}}], "max_parallel_tasks": 1}
        return {"crawler": "patient", "args": args, **QUICK, "limits": limits, **more}

    def start(self) -> None:
        """Start it; the gateway does not know half of those that wait for their first workflow
        task.
        """
        if self.phase == BEFORE_FIRST_TASK and not self.by_gateway:
            self.harness.start_by_temporal(self.workflow_id, self.request())
            return
        self.run_id = int(self.harness.gateway.start(self.request(), self.name)["run_id"])
        if self.phase == DEPLOYING and self.cell.state == "scheduler service down":
            self.harness.points.hold(self.run_id, "cluster.scheduler.deploy.before")
        elif self.phase in HELD and self.phase not in (POLLING, ADDING):
            self.harness.points.hold(self.run_id, HELD[self.phase])

    def go_in(self) -> None:
        """Wait until the run is in its phase and stays there."""
        harness, run_id = self.harness, self.run_id
        if self.phase == WAITING:
            until(lambda: self._reads("waiting.json") == 1, "a task that waits for a slot")
            until(lambda: "slots in use" in str(self._row("waiting_for")), "that the run says so")
            return
        if self.phase == BEFORE_FIRST_POLL:
            # The observer polls once, so this phase ends with the crawler's start.
            until(
                lambda: (
                    self._row("waiting_for") == names.WAITING_FOR_START or self._row("started_at")
                ),
                "its offer",
            )
        if self.phase in EXECUTING and self.phase != BEFORE_FIRST_POLL:
            active = 2 if self.phase == MULTI else 1
            until(
                lambda: (
                    harness.tasks(run_id).get("RUNNING") == active
                    and self._row("status") == "PROCESSING"
                ),
                "a start",
            )
        if self.phase == POLLING:
            harness.points.hold(run_id, HELD[POLLING])
        if self.phase == ADDING:
            harness.points.hold(run_id, HELD[ADDING])
            harness.add_by_temporal(self.workflow_id, f"{self.name}-more")
        if self.phase == ENDED:
            until(lambda: harness.closed([run_id]), "the end of the run")
        if self.phase in HELD:
            until(lambda: harness.points.held(run_id), f"{self.cell.id}: a call that hangs")
        if self.phase in EXECUTING or (self.phase == DEPLOYING and self.cell.on_cluster):
            until(
                lambda: self._says("begins") == (2 if self.phase == MULTI else 1),
                "crawlers that execute",
            )
        if self.phase == EXPORTING:
            until(lambda: self._row("status") == "COMPLETED", "the verdict")

    def _row(self, column: str) -> Any:
        found = self.harness.rows(f"SELECT {column} FROM run_history WHERE run_id = ?", self.run_id)
        return found[0][0] if found else None

    def _reads(self, file: str) -> int:
        return sum((folder / file).exists() for folder in self.harness.task_folders(self.run_id))

    def _says(self, line: str) -> int:
        logs = [folder / "log" for folder in self.harness.task_folders(self.run_id)]
        return sum(line in log.read_text().splitlines() for log in logs if log.exists())

    # --- the stop ---------------------------------------------------------------------------------

    def stops(self) -> list[tuple[str, bool]]:
        """Return id and force of the stops that are sent at once."""
        kind, name = self.cell.kind, self.name
        if kind == "stop twice":
            return [(name, False)] * 2
        if kind == "100 stops at once":
            return [(f"{name}-{n % 50}", False) for n in range(100)]
        if kind == "force_stop":
            return [(name, True)]
        if kind == "force_stop, then stop":
            return [(f"{name}-f", True), (f"{name}-s", False)]
        if kind == "stop, then force_stop":
            return [(f"{name}-s", False), (f"{name}-f", True)]
        return [(name, False)]

    @property
    def one_after_the_other(self) -> bool:
        """Return whether the crawler should get the plain stop before the forced one."""
        return self.cell.group == "insisting" and self.cell.signals > 0

    def stop(self) -> None:
        if self.cell.kind == "Temporal cancel":
            self.harness.talk(lambda client: client.get_workflow_handle(self.workflow_id).cancel())
        else:
            self.send(self.stops()[:1] if self.one_after_the_other else self.stops())

    def force(self) -> None:
        """Send a forced stop, as somebody does who saw that the first stop did not help."""
        folders = self.harness.task_folders(self.run_id)
        until(
            lambda: all(self.harness.signals(f) for f in folders), f"{self.cell.id}: the plain stop"
        )
        self.send(self.stops()[1:])

    def send(self, stops: Sequence[tuple[str, bool]]) -> None:
        in_this_order = len({force for _, force in stops}) > 1
        if self.by_gateway:
            with ThreadPoolExecutor(1 if in_this_order else 20) as pool:
                answers = list(pool.map(lambda stop: self.post(*stop), stops))
            assert all(answer.status_code in (200, 202) for answer in answers), [
                a.text for a in answers
            ]
        elif in_this_order:
            for one in stops:
                self.harness.talk(self._signal(*one))
        else:
            self.harness.talk(*(self._signal(*one) for one in stops))
        self.promised += [request_id for request_id, _ in stops]

    def _signal(self, request_id: str, force: bool) -> Callable[[Any], Any]:
        name = names.SIGNAL_FORCE_STOP if force else names.SIGNAL_STOP
        payload = {"request_id": request_id, "requested_by": "ada"}
        return lambda client: client.get_workflow_handle(self.workflow_id).signal(name, payload)

    def post(self, request_id: str, force: bool) -> httpx.Response:
        """Send one stop through the gateway, whatever the response."""
        body = {"request_id": request_id, "force": force, "requested_by": "ada"}
        url = f"{self.harness.stack.addresses['gateway']}/v1/runs/{self.run_id}/stop"
        return httpx.post(url, json=body, timeout=60, trust_env=False)

    def heard(self) -> bool:
        """Return whether the workflow knows of the stop, or has ended."""

        async def ask(client: Any) -> Any:
            return await client.get_workflow_handle(self.workflow_id).query(names.QUERY_STATUS)

        snapshot: Row | None
        try:
            (snapshot,) = self.harness.talk(ask)
        except RPCError:  # no worker responded in time
            return False
        return bool(snapshot is None or snapshot["stop"] or snapshot["outcome"])

    # --- the proof --------------------------------------------------------------------------------

    def find_run(self) -> None:
        self.run_id = self.run_id or until(
            lambda: self.harness.run_of(self.workflow_id) or 0, "the run"
        )

    def prove(self) -> None:
        """Check that every source has the outcome of the table."""
        harness, cell, run_id = self.harness, self.cell, self.run_id
        run = harness.gateway.run(run_id)
        assert (run["status"], run["outcome"], run["attempt"]) == (cell.status, cell.outcome, 1), (
            run["cause"]
        )
        for check in CHECKS.values():
            check(harness.places, run)
        assert harness.tasks(run_id) == dict(cell.tasks)
        self._prove_tasks()
        self._prove_log()
        told = [
            e
            for e in told_events(self.harness.places)
            if e["id"] == f"{run_id}-{run['run_uid']}/1/run.ended"
        ]
        assert {e["data"]["status"] for e in told} == {cell.export_status}
        events = harness.query(
            "SELECT type, COUNT(*) FROM outbox_event WHERE run_id = ? GROUP BY type", run_id
        )
        counted = {**{"run.ended": 0, "run.stopped": 0}, **dict(events)}
        assert (counted["run.ended"], counted["run.stopped"]) == (1, cell.stopped_events)
        kinds = {
            kind
            for (kind,) in harness.query("SELECT kind FROM correction WHERE run_id = ?", run_id)
        }
        assert kinds <= {"late"}, kinds
        (exported,) = harness.query("SELECT status FROM export_record WHERE run_id = ?", run_id)
        assert exported == ("exported" if cell.on_cluster else "empty",)

    def _prove_tasks(self) -> None:
        """Check the tasks on the cluster, the signals to their crawlers, and that nothing was
        started or ended twice.
        """
        harness, cell, run_id = self.harness, self.cell, self.run_id
        folders = harness.task_folders(run_id)
        assert len(folders) == cell.on_cluster, folders
        signals = [len(harness.signals(folder)) for folder in folders]
        assert sorted(signals) == [0] * (len(folders) - cell.signals) + [1] * cell.signals
        assert sum(_killed(folder) for folder in folders) == cell.killed
        begun = [
            (folder / "log").read_text().count("begins\n")
            for folder in folders
            if (folder / "log").exists()
        ]
        assert set(begun) <= {0, 1}
        rows = harness.query(
            "SELECT task_index, status, cluster_uid FROM task_history WHERE run_id = ?", run_id
        )
        uids = {json.loads((folder / "spec.json").read_text())["uid"] for folder in folders}
        assert {uid for _, _, uid in rows if uid} == uids
        twice = "SELECT task_id, to_status FROM status_transition WHERE run_id = ? GROUP BY task_id, to_status"
        assert harness.query(f"{twice} HAVING COUNT(*) > 1", run_id) == []

    def _prove_log(self) -> None:
        """Check that each acknowledged request has one row, with the time at which it was acted on."""
        sql = "SELECT request_id, acted_at IS NOT NULL, attempt FROM cancellation_log WHERE run_id = ?"
        logged = self.harness.query(sql, self.run_id)
        assert len(logged) == self.cell.log_rows, logged
        assert {(acted, attempt) for _, acted, attempt in logged} <= {(1, 1)}
        if logged and self.cell.kind != "Temporal cancel":
            assert sorted(request_id for request_id, *_ in logged) == sorted(set(self.promised))


def _killed(folder: Path) -> bool:
    """Return whether the cluster was asked to kill this task, by the mark or by the recorded end."""
    mark, end = folder / "signalled.json", folder / "end.json"
    if mark.exists() and json.loads(mark.read_text())["by"] == "kill":
        return True
    # Killed while its folder was missing, so that nobody could write how it ended.
    if not end.exists():
        return (folder / "process.json").exists()
    return bool(json.loads(end.read_text())["signal"] == signal.SIGKILL)


@dataclass
class Batch:
    """Drills of one state at once: with a worker that is frozen while they are stopped, or
    (``killed``) without one.
    """

    harness: StopHarness
    state: str
    killed: bool
    drills: list[Drill]

    def run(self) -> None:
        """Execute all steps; after a failure, restore everything for the next batch."""
        with ExitStack() as undo:
            undo.callback(self._tidy)
            self._take_slots()
            outage = ExitStack()
            undo.push(outage)
            self._stop_worker()
            self._start_those_without_a_task()
            outage.enter_context(BREAK[self.state](self.harness))
            if self.state == "scheduler service down":
                self._call_the_dead_service()
            self._stop_all()
            if any(drill.cell.refused for drill in self.drills):
                outage.close()
                self._ask_again()
            self._start_worker()
            self._watch_the_outage()
            outage.close()
            self._all_closed()

    def _take_slots(self) -> None:
        """Bring all drills into their phase, those last that need a full cluster."""
        harness = self.harness
        first = [d for d in self.drills if d.phase not in (BEFORE_FIRST_TASK, WAITING)]
        harness.freeze("worker")
        for drill in first:
            drill.start()
        harness.thaw("worker")
        for drill in first:
            drill.go_in()
        waiting = [d for d in self.drills if d.phase == WAITING]
        if waiting:
            harness.fill_slots()
        for drill in waiting:
            drill.start()
        for drill in waiting:
            drill.go_in()

    def _stop_worker(self) -> None:
        if self.killed:
            self.harness.kill("worker")
        else:
            self.harness.freeze("worker")

    def _start_worker(self) -> None:
        if self.killed:
            for drill in self.drills:  # calls that hung in the dead worker no longer hang
                self.harness.points.release(drill.run_id)
            self.harness.bring_back("worker", wait=False)
        else:
            self.harness.thaw("worker")

    def _start_those_without_a_task(self) -> None:
        for drill in self.drills:
            if drill.phase == BEFORE_FIRST_TASK:
                drill.start()

    def _call_the_dead_service(self) -> None:
        """Let the run's next call go out now, and leave it without a response."""
        for drill in self.drills:
            if drill.phase == DEPLOYING:
                self.harness.points.release(drill.run_id)

    def _stop_all(self) -> None:
        for drill in self.drills:
            if drill.cell.refused:
                answer = drill.post(drill.name, False)
                assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable"), (
                    answer.text
                )
            else:
                drill.stop()

    def _watch_the_outage(self) -> None:
        """Check that what is possible without the dependency is done now; the rest is neither done
        nor claimed.
        """
        harness = self.harness
        if not self.killed:
            for drill in self.drills:
                until(drill.heard, f"{drill.cell.id}: that the workflow hears the stop")
            for drill in self.drills:
                if drill.phase in (AFTER_ROW, COMPLETING, EXPORTING):
                    harness.points.release(drill.run_id)
        if self.state in ("all well", "scheduler service down"):
            for drill in self.drills:
                if drill.one_after_the_other:
                    drill.force()
            self._all_closed()
        elif self.state == "cluster answering errors":
            asked = [drill for drill in self.drills if drill.phase not in WITHOUT_CLUSTER]
            for drill in asked:
                until(
                    lambda d=drill: harness.status(d.run_id) == "STOPPING",
                    f"{drill.cell.id}: the stop",
                )  # type: ignore[misc]
            time.sleep(3)
            for drill in asked:
                assert harness.status(drill.run_id) == "STOPPING", (
                    f"{drill.cell.id}: shown until proved gone"
                )
        else:
            time.sleep(3)

    def _ask_again(self) -> None:
        """Repeat what the gateway refused, and therefore never acknowledged; no worker is running
        yet.
        """
        for drill in self.drills:
            until(
                lambda d=drill: d.post(d.name, False).status_code == 202,
                "a gateway that works again",
            )  # type: ignore[misc]
            drill.promised.append(drill.name)

    def _all_closed(self) -> None:
        """Check that the verdicts come while the calls still hang; then let these return, too late
        to change anything.
        """
        for drill in self.drills:
            drill.find_run()
        ids = [drill.run_id for drill in self.drills]
        marks = ", ".join("?" * len(ids))
        sql = (
            f"SELECT run_id, status, stage, waiting_for FROM run_history WHERE run_id IN ({marks})"
        )
        ended = f"{sql} AND status IN {TERMINAL}"
        self._until(lambda: len(self.harness.rows(ended, *ids)) == len(ids), "verdicts", sql, ids)
        for drill in self.drills:
            self.harness.points.release(drill.run_id)
        self._until(lambda: self.harness.closed(ids), "closed workflows", sql, ids)

    def _until(self, condition: Callable[[], object], what: str, sql: str, ids: list[int]) -> None:
        try:
            until(condition, f"{self.state}: {what}")
        except AssertionError as error:
            cells = {drill.run_id: drill.cell.id for drill in self.drills}
            found = [(cells[row[0]], *row) for row in self.harness.rows(sql, *ids)]
            held = self.harness.points.held()
            raise AssertionError(f"{error}: {found}; held are {held}") from None

    def _tidy(self) -> None:
        harness = self.harness
        harness.points.release()
        harness.free_slots()
        if harness.worker_is_up:
            harness.thaw("worker")
        else:
            harness.bring_back("worker")
        harness.healthy()


# --- the choice of cells --------------------------------------------------------------------------

#: The number of cells on real processes; the whole table runs with skipped time. Another seed
#: chooses other cells.
REAL_CELLS, SEED = 40, int(os.environ.get("LIFECYCLE_TEST_STOP_SEED", "1"))
#: States whose cells (without those that need a dead worker) are in every run of the tests, on
#: SQLite.
SAMPLED = ("all well", "cluster answering errors")


def batch_of(cell: Cell) -> tuple[str, bool]:
    """Return the key of cells that can share an outage: its state, and whether the worker is dead."""
    return cell.state, cell.gateway


def cells_of(database: str) -> list[Any]:
    """Return this database's half of the cells as parameters, with cells of one batch next to each
    other.
    """
    ordered = sorted(
        pairwise(REAL_CELLS, SEED), key=lambda cell: (STATES.index(cell.state), cell.gateway)
    )
    mine = ordered[("sqlite", "mariadb").index(database) :: 2]
    sample = [
        cell for cell in mine if database == "sqlite" and cell.state in SAMPLED and not cell.gateway
    ]
    return [
        pytest.param(cell, id=cell.id, marks=() if cell in sample else pytest.mark.slow)
        for cell in mine
    ]


@dataclass
class Matrix:
    """The drills of the cells that this session needs; a batch runs when its first cell is needed."""

    harness: StopHarness
    cells: list[Cell]
    drills: dict[str, Drill] = field(default_factory=dict)
    failures: dict[tuple[str, bool], BaseException] = field(default_factory=dict)

    @classmethod
    def of(cls, request: pytest.FixtureRequest, harness: StopHarness) -> Matrix:
        """Return the matrix of the cells that were selected from the fixture's module."""
        items = [item for item in request.session.items if item.fspath == request.path]
        return cls(
            harness, [item.callspec.params["cell"] for item in items if hasattr(item, "callspec")]
        )

    def drill(self, cell: Cell) -> Drill:
        """Return the finished drill of this cell. Raises the error of its batch."""
        key = batch_of(cell)
        if cell.id not in self.drills:
            mine = [Drill(self.harness, c) for c in self.cells if batch_of(c) == key]
            self.drills |= {drill.cell.id: drill for drill in mine}
            began = time.monotonic()
            try:
                Batch(self.harness, *key, mine).run()
            except BaseException as error:
                self.failures[key] = error
                raise
            dead = ", no worker" if cell.gateway else ""
            print(f"\n{cell.state}{dead}: {len(mine)} cells in {time.monotonic() - began:.1f} s")
        if key in self.failures:
            raise AssertionError(f"its batch failed: {self.failures[key]}") from self.failures[key]
        return self.drills[cell.id]
