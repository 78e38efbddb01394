"""One cell of the stop matrix in the testbed: bring a run to its phase, break something, stop it,
poll.

The run uses real time until its stop is sent, so that a phase lasts as long as needed; from then
on, its time is skipped. A broken dependency works again a minute of the run's own time after the
stop.
"""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, cast

from temporalio.client import (
    WorkflowHandle,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import WorkflowEnvironment

from crawler_lifecycle.activities.child_runs import begin_request, own_workflow_id
from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.errors import (
    ClusterUnavailable,
    LifecycleError,
    SchedulerUnavailable,
    StoreUnavailable,
)
from crawler_lifecycle.domain.run import RunRequest, RunResult, RunSnapshot, TasksAdded
from crawler_lifecycle.gateway.runs.commands import Commands
from crawler_lifecycle.gateway.runs.crawlers import Crawlers
from crawler_lifecycle.gateway.runs.requests import StopRun
from crawler_lifecycle.temporal.client import Workflows
from crawler_lifecycle.workflows.state import TOO_LATE
from tests.support.catalogues import stored_in
from tests.support.fakes.cluster import Behaviour
from tests.support.stop_table import Cell
from tests.support.store_ports import behind
from tests.support.testbed import WorkflowHarness, longer_and_longer, start_workers, workflow_clock

#: How long, in its own time, a run has to do without what is down, and how long anything may take
#: in real time, in seconds: on a busy machine, nothing here may be late, and hanging calls are
#: still reported.
OUTAGE_S, PATIENCE_S = 60.0, 150.0
#: How long one step of a cell may take in total, and how long abandoning a cell may take, in real
#: seconds.
STEP_S, GIVE_UP_S = 160.0, 30.0
#: In every problem that is a missed deadline, which a starved machine may cause.
MISSED = "not within"

DOWN: dict[str, tuple[str, Callable[[], LifecycleError]]] = {
    "database down": ("store", lambda: StoreUnavailable("the database is away")),
    "cluster answering errors": (
        "cluster",
        lambda: ClusterUnavailable("the API server answered 503"),
    ),
    "scheduler service down": ("scheduler", lambda: SchedulerUnavailable("connection refused")),
}
#: Where a run is held so that it stays in its phase: part, method, and whether the method has had
#: its effect.
HELD = {
    "after the history row": ("store", "set_property", False),
    "during the deployment call": ("scheduler", "deploy", False),
    "while children are being added": ("store", "add_tasks", True),
    "in a poll": ("cluster", "poll", False),
    "in completion, before the verdict": ("store", "end_run", False),
    "after the verdict, during the export": ("archive", "store", False),
}
#: The effect of a worker that dies during an activity: it never responds, and the activity is
#: retried.
DIED = "the worker died"


class Gate:
    """Holds every call until it is opened; with ``after``, calls have their effect first."""

    def __init__(self, part: str, method: str, after: bool) -> None:
        self.place, self.after = (part, method), after
        self.reached, self._opened = threading.Event(), threading.Event()

    def open(self) -> None:
        self._opened.set()

    def hold(self, part: str, method: str) -> None:
        if (part, method) != self.place:
            return
        self.reached.set()
        assert self._opened.wait(2 * STEP_S), f"nobody opened {self.place}"


@dataclass
class Trial:
    """A cell, the run that plays it, and what happened to it."""

    cell: Cell
    run_id: int = 0
    handle: WorkflowHandle[Any, RunResult] | None = None
    gates: list[Gate] = field(default_factory=list)
    down: bool = False
    dead: bool = False
    """Its workers are gone; what they were doing never answers."""
    released: bool = False
    until: datetime | None = None
    failures: int = 0
    killed: set[int] = field(default_factory=set)
    alive_at_verdict: list[tuple[int, int, int]] = field(default_factory=list)
    adding: asyncio.Task[TasksAdded] | None = None
    problems: list[str] = field(default_factory=list)

    def call(self, part: str, method: str, real: Callable[[], Any]) -> Any:
        """Make one call of an activity to the outside for this run."""
        before = [gate for gate in self.gates if not gate.after]
        for gate in before:
            gate.hold(part, method)
        if self.dead:
            if part == "scheduler" and self.cell.state != "scheduler service down":
                real()  # the call was sent already; only its response is lost
            raise StoreUnavailable(DIED)
        if self._away(part):
            self.failures += 1
            raise DOWN[self.cell.state][1]()
        answer = real()
        for gate in self.gates:
            if gate.after:
                gate.hold(part, method)
        if self.dead:
            raise StoreUnavailable(DIED)
        return answer

    def _away(self, part: str) -> bool:
        if not self.down or DOWN[self.cell.state][0] != part:
            return False
        if self.released:
            self.until = self.until or workflow_clock() + timedelta(seconds=OUTAGE_S)
            self.down = workflow_clock() < self.until
        return self.down

    def die(self) -> None:
        """Let none of its calls return any more, and hold nothing."""
        self.dead = True
        for gate in self.gates:
            gate.open()

    def go_on(self, *methods: str) -> None:
        """The stop was sent: broken dependencies work again in a minute, and the calls (all, or
        these) are released.
        """
        self.released = True
        for gate in self.gates:
            if not methods or gate.place[1] in methods:
                gate.open()


class Meddled:
    """A part of the harness whose calls for a trial go through ``Trial.call``."""

    def __init__(self, part: str, inner: Any, harness: Harness) -> None:
        self._part, self._inner, self._harness = part, inner, harness

    def __getattr__(self, method: str) -> Any:
        real = getattr(self._inner, method)
        if not callable(real):
            return real

        def call(*args: Any, **kwargs: Any) -> Any:
            trial = self._harness.trial_of(method, args)
            if trial is None:
                return real(*args, **kwargs)
            if method == "end_run":
                alive = self._harness.testbed.cluster.alive(trial.run_id)
            answer = trial.call(self._part, method, lambda: real(*args, **kwargs))
            if method == "end_run":
                trial.alive_at_verdict += alive
            elif (self._part, method) == ("cluster", "kill"):
                trial.killed.add(args[1].index)
            elif method in ("create_run", "claim_run"):
                self._harness.began(trial, answer.run_id)
            return answer

        return call


class Harness:
    """Several trials in one testbed that was made without workers."""

    def __init__(
        self, testbed: WorkflowHarness, env: WorkflowEnvironment, cells: Sequence[Cell]
    ) -> None:
        self.testbed, self.env = testbed, env
        self.trials = [Trial(cell) for cell in cells]
        self._by_workflow = {trial.cell.id: trial for trial in self.trials}
        self._by_run: dict[int, Trial] = {}
        self._skipping: list[asyncio.Task[bool]] = []
        testbed.cluster.behaviour = lambda run_id, index, attempt: self._behaviour(
            self._by_run[run_id].cell
        )
        testbed.scheduler.cluster = testbed.cluster
        wrapped = {
            part: Meddled(part, getattr(testbed.parts, part), self)
            for part in ("cluster", "scheduler")
        }
        self.store = testbed.parts.store
        store = behind(self.store, lambda port: Meddled("store", port, self))
        testbed.parts = dataclasses.replace(
            testbed.parts,
            store=store,
            archive=cast(Any, Meddled("archive", testbed.outside, self)),
            **cast(dict[str, Any], wrapped),
        )

    @staticmethod
    def _behaviour(cell: Cell) -> Behaviour:
        if cell.phase in (
            "in completion, before the verdict",
            "after the verdict, during the export",
            "ended",
        ):
            return Behaviour(executes=0.2)
        waits = 1e9 if cell.phase.startswith("waiting") else 0.0
        return Behaviour(
            waits=waits, executes=None, heeds_stop_after=None if cell.group == "insisting" else 8
        )

    def trial_of(self, method: str, args: tuple[Any, ...]) -> Trial | None:
        """Return the trial to which this call belongs."""
        if method == "create_run":
            return self._by_workflow[args[2].workflow_id]
        if method == "store":
            return self._by_run[int(args[0].partition("-")[0])]
        first = args[0] if args else None
        run_id = first if isinstance(first, int) else getattr(first, "run_id", None)
        return (
            self._by_run.get(run_id)
            if isinstance(run_id, int) and method != "record_delivery"
            else None
        )

    def began(self, trial: Trial, run_id: int) -> None:
        """Return whether the trial's run has its row."""
        trial.run_id = run_id
        self._by_run[run_id] = trial
        if trial.cell.phase.startswith("after the verdict"):
            self.testbed.cluster.folders[run_id, 0] = self.testbed.folder

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Workers of every role, with threads for everything that is held at once; they die at the
        end.
        """
        for trial in self.trials:
            trial.dead = False
        async with AsyncExitStack() as stack:
            await start_workers(stack, self.testbed, threads=24)
            try:
                yield
            finally:
                for trial in self.trials:
                    trial.die()
                for task in self._skipping:
                    task.cancel()
                await asyncio.gather(*self._skipping, return_exceptions=True)
                self._skipping.clear()

    async def give_up(self, trial: Trial) -> None:
        """Clean up after a failed trial: no held thread, no waiting update, no open workflow."""
        trial.die()
        if trial.adding is not None:
            trial.adding.cancel()
            await asyncio.gather(trial.adding, return_exceptions=True)
        if trial.handle is None:
            return
        try:
            await trial.handle.terminate("given up", rpc_timeout=timedelta(seconds=GIVE_UP_S))
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:  # NOT_FOUND: it was closed already
                trial.problems.append(f"it could not be terminated: {error}")

    # --- to the phase

    async def reach(self, trial: Trial) -> None:
        """Start the trial's run and bring it to its phase."""
        cell = trial.cell
        if cell.phase == "before the first workflow task" and cell.gateway:
            await self._reserve(trial)
            return
        place = HELD.get(cell.phase)
        if place is not None and cell.phase != "in a poll":
            trial.gates.append(Gate(*place))
        trial.handle = await self.testbed.start(self._request(cell), id=cell.id)
        if cell.phase == "before the first workflow task":
            return
        if cell.phase == "while children are being added":
            await self._until(trial, lambda: self._tasks(trial) == {0: "RUNNING"})
            page = {"tasks": [{}, {}], "request_id": "grown"}
            trial.adding = asyncio.create_task(
                trial.handle.execute_update(names.UPDATE_ADD_TASKS, page, result_type=TasksAdded)
            )
        elif cell.phase == "in a poll":
            await self._where(trial, lambda s: s.polls >= 1)
            trial.gates.append(Gate(*HELD[cell.phase]))
        if place is not None:
            await self._until(trial, trial.gates[-1].reached.is_set)
        elif cell.phase.startswith("between"):
            await self._until(trial, lambda: self._tasks(trial) == {0: "PENDING"})
        elif cell.phase.startswith("waiting"):
            await self._until(
                trial, lambda: "slots" in str(getattr(self._row(trial), "waiting_for", None))
            )
        elif cell.phase.startswith("running"):
            await self._where(trial, lambda s: s.stage == "reconciliation")
            assert list(self._tasks(trial).values()).count("RUNNING") == cell.on_cluster
        else:
            assert (await trial.handle.result()).status == cell.status

    @staticmethod
    def _request(cell: Cell) -> dict[str, Any]:
        check = 600.0 if cell.phase.startswith("between") else 0.05
        polls = (
            0.01
            if cell.phase.startswith(("in a poll", "in completion", "after the verdict", "ended"))
            else 600.0
        )
        request: dict[str, Any] = {
            "crawler": "books",
            "poll_minutes": [polls],
            "limits": {"start_check_s": check},
        }
        if "queued children" in cell.phase:
            request |= {"tasks": [{}] * 4, "max_parallel_tasks": 2}
        return request

    async def _reserve(self, trial: Trial) -> None:
        """Start a run as the gateway does: its row first, then its workflow."""
        request = RunRequest(crawler="books")
        row, _ = await asyncio.to_thread(self.store.initiation.reserve_run, request, trial.cell.id)
        self.began(trial, row.run_id)
        await Workflows(self.testbed.client).start(
            begin_request(row), own_workflow_id(row), row.run_uid
        )
        handle = self.testbed.client.get_workflow_handle(
            own_workflow_id(row), result_type=RunResult
        )
        trial.handle = dataclasses.replace(handle) if dataclasses.is_dataclass(handle) else handle
        self._by_workflow[own_workflow_id(row)] = trial

    def _row(self, trial: Trial) -> Any:
        return self.store.runs.get_run(trial.run_id) if trial.run_id else None

    def _tasks(self, trial: Trial) -> dict[int, str]:
        return (
            {t.task_index: str(t.status) for t in self.store.tasks.list_tasks(trial.run_id)}
            if trial.run_id
            else {}
        )

    async def _until(self, trial: Trial, condition: Callable[[], Any]) -> None:
        end, pauses = time.monotonic() + PATIENCE_S, longer_and_longer()
        while not await asyncio.to_thread(condition):
            assert time.monotonic() < end, f"{MISSED} {PATIENCE_S:g} s; tasks {self._tasks(trial)}"
            await asyncio.sleep(next(pauses))

    async def _where(self, trial: Trial, condition: Callable[[RunSnapshot], Any]) -> None:
        assert trial.handle is not None
        await self.testbed.snapshot_where(trial.handle, condition, PATIENCE_S)

    # --- the stop

    async def stop(self, trial: Trial) -> None:
        """Break what the cell requires, then send the stop in the cell's way."""
        cell = trial.cell
        trial.down = cell.state in DOWN
        if cell.gateway:
            await self._stop_through_gateway(trial)
            return
        both = cell.kind in ("stop, then force_stop", "force_stop, then stop")
        if not both or not cell.signals:
            trial.gates.append(Gate("store", "record_stop", False))
        match cell.kind:
            case "stop":
                await self._signal(trial, "stop", "a")
            case "stop twice":
                await self._signal(trial, "stop", "a")
                await self._signal(trial, "stop", "a")
            case "Temporal cancel":
                await self._sent(trial, cast(Any, trial.handle).cancel())
                # An update that reaches the workflow together with the cancel is handled before it.
                await self._seen(trial)
            case "100 stops at once":
                await asyncio.gather(
                    *(self._signal(trial, "stop", f"n{n % 50}", seen=False) for n in range(100))
                )
                await self._seen(trial)
            case "force_stop":
                await self._signal(trial, "force_stop", "a")
            case "force_stop, then stop":
                await self._signal(trial, "force_stop", "a")
                await self._signal(trial, "stop", "b")
            case "stop, then force_stop":
                await self._signal(trial, "stop", "a")
                if cell.signals:
                    await self._until(trial, lambda: self._signalled(trial) == cell.signals)
                await self._signal(trial, "force_stop", "b")
            case other:
                raise AssertionError(f"nobody knows how to send {other!r}")
        if cell.phase == "while children are being added":
            await self._refuses_tasks(trial)

    def _signalled(self, trial: Trial) -> int:
        return sum(self.testbed.cluster.signals(trial.run_id, index) for index in range(8))

    async def _signal(self, trial: Trial, name: str, request_id: str, *, seen: bool = True) -> None:
        assert trial.handle is not None
        payload = {"request_id": request_id, "requested_by": "ada", "reason": "enough"}
        await self._sent(trial, trial.handle.signal(name, payload))
        if seen:
            await self._seen(trial)

    async def _sent(self, trial: Trial, call: Any) -> None:
        """Return whether Temporal accepts the stop, which it refuses only for a closed workflow."""
        try:
            await call
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND or trial.cell.phase != "ended":
                trial.problems.append(f"the stop was not acknowledged: {error}")
            return
        if trial.cell.phase == "ended" and trial.cell.kind != "Temporal cancel":
            trial.problems.append("Temporal acknowledged the stop of a closed workflow")

    async def _seen(self, trial: Trial) -> None:
        """Check that what was acknowledged is shown."""
        if trial.cell.phase not in ("before the first workflow task", "ended"):
            late = trial.cell.phase.startswith("after the verdict")
            await self._where(trial, lambda s: TOO_LATE in s.notes if late else s.stop is not None)

    async def _refuses_tasks(self, trial: Trial) -> None:
        assert trial.handle is not None
        page = {"tasks": [{}], "request_id": "too late"}
        try:
            # An accepted one would be held with the others, and never answered.
            await asyncio.wait_for(
                trial.handle.execute_update(names.UPDATE_ADD_TASKS, page), PATIENCE_S
            )
        # The client converts one into the other.
        except (TimeoutError, WorkflowUpdateRPCTimeoutOrCancelledError):
            trial.problems.append(
                f"adding a task under a stop was refused {MISSED} {PATIENCE_S:g} s"
            )
        except WorkflowUpdateFailedError as error:
            if (
                not isinstance(error.cause, ApplicationError)
                or error.cause.type != "NotInThisState"
            ):
                trial.problems.append(f"a task added under a stop: {error.cause}")
        else:
            trial.problems.append("a task was added under a stop")

    async def _stop_through_gateway(self, trial: Trial) -> None:
        """Call ``POST …/stop`` in a gateway that shares the database with the dead workers."""
        trial.dead = False
        commands = Commands(
            self.testbed.parts.store.initiation,
            self.testbed.parts.store.additions,
            self.testbed.parts.store.stops,
            self.testbed.parts.store.runs,
            self.testbed.parts.store.deletion,
            Workflows(self.testbed.client),
            Crawlers(self.testbed.scheduler, stored_in(self.testbed.store)),
            self.testbed.parts.store.versions,
        )
        body = StopRun(request_id="g", requested_by="ada")
        if trial.cell.refused:
            try:
                await commands.stop(trial.run_id, body)
            except StoreUnavailable:
                trial.down = False
            else:
                trial.problems.append("it was acknowledged although the database is away")
        outcome = await commands.stop(trial.run_id, body)
        wanted = trial.cell.status if trial.cell.late else "STOPPING"
        if outcome.row.status != wanted:
            trial.problems.append(f"the gateway answered {outcome.row.status}, not {wanted}")
        trial.down = trial.cell.state in DOWN

    # --- the end

    async def finish(self, trial: Trial) -> None:
        """Let the run continue in virtual time, and compare its end with the cell."""
        assert trial.handle is not None
        if trial.cell.phase == "in completion, before the verdict" and not trial.cell.gateway:
            # The verdict in progress waits until the stop is recorded; after that, there is no
            # race.
            trial.go_on("record_stop")
            if trial.cell.state != "database down":
                await self._until(
                    trial,
                    lambda: len(self.store.runs.cancellations(trial.run_id)) == trial.cell.log_rows,
                )
        trial.go_on()
        if trial.cell.phase != "ended":
            self._skipping.append(asyncio.create_task(self.env.fast_forward(trial.handle)))
        try:
            result = await asyncio.wait_for(trial.handle.result(), PATIENCE_S)
        except TimeoutError:
            row = await asyncio.to_thread(self.store.runs.get_run, trial.run_id)
            trial.problems.append(
                f"an end {MISSED} {PATIENCE_S:g} s; row {row}; tasks {self._tasks(trial)}"
            )
            return
        trial.run_id = result.run_id
        if trial.adding is not None and len((await trial.adding).tasks) != 2:
            trial.problems.append("the tasks that were being added got lost")
        trial.problems += await asyncio.to_thread(self._differences, trial, result)

    def _differences(self, trial: Trial, result: RunResult) -> list[str]:
        """Return differences from the table, in words."""
        cell, run_id = trial.cell, trial.run_id
        row = self.store.runs.get_run(run_id)
        logged = self.store.runs.cancellations(run_id)
        signals = [self.testbed.cluster.signals(run_id, index) for index in range(8)]
        pushed = {
            e.seq
            for e in self.testbed.outside.pushed
            if (e.run_id, e.type) == (run_id, "run.stopped")
        }
        sent = {e.seq: e.body["status"] for e in self.testbed.outside.sent if e.run_id == run_id}
        moves = [t for t in self.store.runs.transitions(run_id) if t.task_id is None]
        ends = [t.ended_at for t in self.store.tasks.list_tasks(run_id) if t.ended_at is not None]
        event = self.store.events.find_event(f"{row.ref}/1/run.stopped")
        facts = {
            "result": ((result.status, result.outcome), (cell.status, cell.outcome)),
            "row": ((row.status, row.outcome), (cell.status, cell.outcome)),
            "tasks": (result.tasks, dict(cell.tasks)),
            "on the cluster": (len(self._ever(run_id)), cell.on_cluster),
            "SIGTERM": (sum(map(bool, signals)), cell.signals),
            "SIGTERM twice": ([n for n in signals if n > 1], []),
            "killed": (len(trial.killed), cell.killed),
            "logged": (len(logged), cell.log_rows),
            "request ids": (len({entry["request_id"] for entry in logged}), cell.log_rows),
            "acted on": (len([entry for entry in logged if entry["acted_at"]]), cell.log_rows),
            "run.stopped": (
                (len(pushed), event is not None),
                (cell.stopped_events, cell.stopped_events == 1),
            ),
            "export": (list(sent.values()), [cell.export_status]),
            "STOPPING shown": (
                [m.to_status for m in moves].count("STOPPING"),
                int(cell.log_rows > 0),
            ),
            "last status": (moves[-1].to_status, cell.status),
            "ended before its tasks": (any(end > moves[-1].committed_at for end in ends), False),
            "alive at the verdict": (trial.alive_at_verdict, []),
            "alive now": (self.testbed.cluster.alive(run_id), []),
            # A slow machine may poll late, which is then recorded.
            "corrections": (
                [c for c in self.store.corrections.list_corrections(run_id) if c.kind != "late"],
                [],
            ),
            "intent": (row.stop is not None, cell.log_rows > 0),
        }
        return [
            f"{name}: {found}, not {wanted}"
            for name, (found, wanted) in facts.items()
            if found != wanted
        ]

    def _ever(self, run_id: int) -> list[tuple[int, int, int]]:
        return [key for key in self.testbed.cluster._tasks if key[0] == run_id]


async def play(harness: Harness) -> list[str]:
    """Play all trials at once. Returns differences from the table, each with its cell."""
    try:
        await _play(harness)
    except asyncio.CancelledError:
        for trial in harness.trials:
            await harness.give_up(trial)
        raise
    return [f"{t.cell.id}: {problem}" for t in harness.trials for problem in t.problems]


async def _play(harness: Harness) -> None:
    trials = harness.trials
    early = [t for t in trials if t.cell.phase == "before the first workflow task"]
    later = [t for t in trials if t not in early]
    here, there = ([t for t in later if t.cell.gateway == through] for through in (False, True))
    # Once for all starts: two overlapping ones would leave time skipping off for every later test
    # of the session.
    with harness.env.with_time_skipping_disabled():
        await _each(harness, harness.reach, early)
    await _each(harness, harness.stop, early)
    async with harness.working():
        with harness.env.with_time_skipping_disabled():
            await _each(harness, harness.reach, later)
        await _each(harness, harness.stop, here)
        await _each(harness, harness.finish, early + here)
    if there:
        await _each(harness, harness.stop, there)
        async with harness.working():
            await _each(harness, harness.finish, there)


async def _each(harness: Harness, step: Callable[[Trial], Any], trials: Sequence[Trial]) -> None:
    """Do a step of every trial that has no error yet; a trial with an error is abandoned, and no
    other.
    """
    await asyncio.gather(*(_one(harness, step, trial) for trial in trials if not trial.problems))


async def _one(harness: Harness, step: Callable[[Trial], Any], trial: Trial) -> None:
    try:
        async with asyncio.timeout(STEP_S) as bound:
            await step(trial)
    except Exception as error:
        text = f"{MISSED} {STEP_S:g} s" if bound.expired() else f"{type(error).__name__}: {error}"
        trial.problems.append(f"{step.__name__}: {text}; tasks {harness._tasks(trial)}")
    if trial.problems:
        await harness.give_up(trial)
