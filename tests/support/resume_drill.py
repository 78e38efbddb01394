"""One line of the resume table in the testbed: the previous attempt, what happens meanwhile, the
resume.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.service import RPCError

from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.errors import InvalidRequest, SchedulerUnavailable, StoreUnavailable
from crawler_lifecycle.domain.run import RunRequest, RunResult
from crawler_lifecycle.domain.task import End
from tests.support.fakes.cluster import FINISHED, KILLED, Behaviour
from tests.support.resume_table import Cell
from tests.support.testbed import WorkflowHarness, workflow_clock

GOOD = Behaviour(executes=0.0)
BAD = Behaviour(executes=0.0, end=End(exit_code=1, reason="Error"))
#: Until the drill ends it.
STAYS = Behaviour(executes=None)
WAITS = Behaviour(waits=1e7, executes=None)
STUBBORN = Behaviour(executes=None, heeds_stop_after=None)
NO_ROOM = Behaviour(deployed="deferred", deploy_reason="no room")


class Forward:
    """The clock of the store, the cluster and the activities.

    Each workflow has its own virtual time; this clock never goes back when a later workflow begins.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: datetime | None = None

    def __call__(self) -> datetime:
        with self._lock:
            now = workflow_clock()
            self._last = now if self._last is None else max(self._last, now)
            return self._last

    def begin_anew(self) -> None:
        """Begin again: the next run is independent of the earlier ones."""
        with self._lock:
            self._last = None


class Gate:
    """Wraps a method: calls wait inside, and continue (or fail) when it is opened."""

    def __init__(
        self, owner: Any, method: str, *, after: bool = False, error: Exception | None = None
    ) -> None:
        self._owner, self._method, self._real = owner, method, getattr(owner, method)
        self._after, self._error = after, error
        self.inside, self._open = threading.Event(), threading.Event()
        setattr(owner, method, self._call)

    def _call(self, *args: Any, **more: Any) -> Any:
        if self._open.is_set():
            return self._real(*args, **more)
        answer = self._real(*args, **more) if self._after else None
        self.inside.set()
        assert self._open.wait(120)
        if self._error is not None:
            raise self._error
        return answer if self._after else self._real(*args, **more)

    def open(self) -> None:
        """Let all calls through from now on."""
        setattr(self._owner, self._method, self._real)
        self._open.set()


@dataclass
class Drill:
    """One cell. ``play`` does everything and checks the expected end; ``run`` is the number that
    its run will get.
    """

    testbed: WorkflowHarness
    cell: Cell
    run: int
    gates: list[Gate] = field(default_factory=list)
    resuming: bool = False
    former: WorkflowHandle[Any, RunResult] | None = None
    before: dict[tuple[int, int], str | None] = field(default_factory=dict)

    @property
    def multi(self) -> bool:
        return self.cell.shape == "multi-process"

    @property
    def rest(self) -> int:
        """Return the index of the task that still exists."""
        return 1 if self.multi else 0

    async def play(self) -> None:
        """Play the previous attempt, what happens meanwhile, the resume, and the checks."""
        try:
            await FORMER[self.cell.former](self)
            if self.cell.left != "a live run":
                MEANWHILE[self.cell.meanwhile](self)
            self.before = self._objects()
            self.resuming = self.cell.left != "a live run"
            await self._resume()
        finally:
            for gate in self.gates:
                gate.open()

    # --- the former attempt -----------------------------------------------------------------------

    def behave(
        self, *, rest: Behaviour = STAYS, third: Behaviour = BAD, last: Behaviour = NO_ROOM
    ) -> None:
        """Set how tasks of the previous attempt behave, including those of a late call; tasks of
        the resume stay until they are ended.
        """
        own = (GOOD, rest, third, last) if self.multi else (rest,)

        def behaviour(run: int, index: int, attempt: int) -> Behaviour:
            return STAYS if self.resuming and attempt >= self.cell.attempt else own[index]

        self.testbed.cluster.behaviour = behaviour

    async def start(self, **more: Any) -> WorkflowHandle[Any, RunResult]:
        tasks = {"tasks": [{}] * 4} if self.multi else {}
        request = {
            "crawler": "books",
            "poll_minutes": [0.1],
            "limits": {"start_check_s": 0.5},
            **tasks,
        }
        self.former = await self.testbed.start(request, **more)
        return self.former

    async def reach(self, rest: str) -> None:
        """Wait until the database has what a poll found."""
        wanted = {0: "SUCCEEDED", 1: rest, 2: "FAILED"} if self.multi else {0: rest}
        await self.testbed.until(lambda: wanted.items() <= self.testbed.tasks(self.run).items())

    async def inside(self, gate: Gate) -> None:
        self.gates.append(gate)
        await self.testbed.until(gate.inside.is_set)

    async def terminate(self) -> None:
        assert self.former is not None
        await self.former.terminate("by an operator")

    async def ended(self) -> None:
        assert self.former is not None
        await self.former.result()

    # --- the resume -------------------------------------------------------------------------------

    async def _resume(self) -> None:
        cell, testbed = self.cell, self.testbed
        for gate in self.gates:
            if gate.inside.is_set():
                gate.open()
        rerun = {"rerun": True} if cell.left == "a completed run to execute again" else {}
        twice = cell.way == "twice at once"
        # The first one must not end before the other asks.
        if twice and cell.left != "a live run":
            self.gates.append(Gate(testbed.cluster, "poll"))
        starts = [
            testbed.start(
                {"run_id": self.run, **rerun}, id=f"resume/{testbed.folder}/{self.run}/{n}"
            )
            for n in range(1 + twice)
        ]
        handles = await asyncio.gather(*starts)
        answers = [asyncio.create_task(_answer(handle)) for handle in handles]
        ending = asyncio.create_task(self._end_all(handles, answers))
        try:
            found = await asyncio.gather(*answers)
        finally:
            ending.cancel()
            with suppress(asyncio.CancelledError):
                await ending
        won = [answer for answer in found if isinstance(answer, RunResult)]
        lost = [answer for answer in found if isinstance(answer, str)]
        if cell.refused is not None:
            assert set(lost) == {cell.refused}
            assert not won
            await self._prove_refused()
            return
        # If the first one was done before the other even asked, it leaves a completed run; until
        # then, the run is live.
        assert len(won) == 1, found
        assert set(lost) <= {"RunIsLive", "AlreadyCompleted"}, lost
        assert len(lost) == twice
        self._prove(won[0])

    async def _end_all(
        self, handles: list[WorkflowHandle[Any, Any]], answers: list[asyncio.Task[Any]]
    ) -> None:
        """End what executes, once the resume has polled and the second one has its answer; a stop
        does this by itself.
        """
        if len(answers) > 1:
            await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
            for gate in self.gates:
                gate.open()
        else:
            with suppress(RPCError):
                await self.testbed.snapshot_where(
                    handles[0], lambda s: s.polls >= 1 or s.outcome, 60
                )
        if self.cell.left == "a live run":
            return
        while True:
            for run, index, attempt in self.testbed.cluster.alive(self.run):
                if self.cell.left != "tasks under a stop":
                    self.testbed.cluster.end_now(run, index, attempt, FINISHED)
            await asyncio.sleep(0.02)

    # --- the proof --------------------------------------------------------------------------------

    def _objects(self) -> dict[tuple[int, int], str | None]:
        return {
            (t.task_index, t.attempt): t.cluster_uid
            for t in self.testbed.store.tasks.list_tasks(self.run, superseded=True)
        }

    def deployed(self) -> tuple[tuple[int, ...], ...]:
        """Return the cluster's own record: the attempts with which each task was created."""
        made = sorted(
            (index, attempt)
            for run, index, attempt in self.testbed.cluster.phases()
            if run == self.run
        )
        return tuple(
            tuple(a for i, a in made if i == index) for index in range(len(self.cell.deployed))
        )

    def _prove(self, result: RunResult) -> None:
        cell, store = self.cell, self.testbed.store
        assert (result.run_id, result.attempt) == (self.run, cell.attempt)
        assert (result.status, result.outcome) == (cell.status, cell.outcome), result.cause
        assert self.deployed() == cell.deployed, self.deployed()
        row = store.runs.get_run(self.run)
        assert (row.status, row.outcome, row.attempt) == (
            result.status,
            result.outcome,
            result.attempt,
        )
        rows = store.tasks.list_tasks(self.run, superseded=True)
        current = Counter(t.task_index for t in rows if t.superseded_by is None)
        assert current == Counter(range(len(cell.deployed))), "one row counts for each task"
        assert all(t.status.terminal for t in rows)
        for (index, attempt), uid in self.before.items():
            now = self._objects().get((index, attempt))
            assert uid is None or now == uid, "what was on the cluster is the same object"
        self._prove_ledger()
        ended = [e for e in self._events() if e.endswith("/run.ended")]
        assert len(ended) == len(set(ended)) <= cell.attempt
        assert f"{self.run}/{cell.attempt}/run.ended" in ended

    def _prove_ledger(self) -> None:
        moves = self.testbed.store.runs.transitions(self.run)
        ends = Counter((m.task_id, m.to_status) for m in moves if m.task_id is not None)
        assert set(ends.values()) <= {1}, "no task ended twice"
        kinds = {c.kind for c in self.testbed.store.corrections.list_corrections(self.run)} - {
            "late",
            "repair",
        }
        assert kinds == self.cell.corrections

    def _events(self) -> list[str]:
        return [
            f"{e.run_id}/{e.attempt}/{e.type}"
            for e in self.testbed.store.events.events_after(0, run_id=self.run)
        ]

    async def _prove_refused(self) -> None:
        """Check that nothing was written, and that a live run ends as it would have."""
        assert self.testbed.store.runs.get_run(self.run).attempt == 1
        assert self.deployed() == self.cell.deployed
        if self.cell.left != "a live run":
            row = self.testbed.store.runs.get_run(self.run)
            assert (row.status, row.outcome) == (self.cell.status, self.cell.outcome)
            return
        assert self.former is not None
        MEANWHILE[self.cell.meanwhile](self)
        if self.cell.meanwhile == "nothing happens":
            self.testbed.cluster.end_now(self.run, self.rest, 1, FINISHED)
        if self.multi:
            await self.former.signal("stop")  # task 3 would wait for a slot for ever
        assert (await self.former.result()).attempt == 1
        assert self.deployed() == self.cell.deployed


async def _answer(handle: WorkflowHandle[Any, RunResult]) -> RunResult | str:
    """Return the result, or the type of the error with which the workflow failed at once."""
    try:
        return await handle.result()
    except WorkflowFailureError as error:
        return str(getattr(error.cause, "type", error.cause))


# --- the former attempts --------------------------------------------------------------------------


async def _before_the_first_task(drill: Drill) -> None:
    drill.behave()
    drill.resuming = True
    args = [{}] * 4 if drill.multi else None
    request = RunRequest(crawler="books", poll_minutes=[0.1])
    drill.testbed.store.initiation.reserve_run(replace(request), f"reserved {drill.run}", args)
    drill.former = await drill.testbed.client.start_workflow(
        names.LIFECYCLE_WORKFLOW,
        {"run_id": drill.run},
        id=f"first/{drill.testbed.folder}/{drill.run}",
        task_queue="nobody-listens",
    )
    await drill.terminate()


async def _after_the_row(drill: Drill) -> None:
    drill.behave()
    gate = Gate(drill.testbed.store.initiation, "set_property")
    await drill.start()
    await drill.inside(gate)
    await drill.terminate()


async def _call_never_through(drill: Drill) -> None:
    drill.behave()
    gate = Gate(
        drill.testbed.scheduler, "deploy", error=SchedulerUnavailable("the call never went through")
    )
    await drill.start()
    await drill.inside(gate)
    await drill.terminate()


async def _call_went_through(drill: Drill) -> None:
    drill.behave()
    gate = Gate(
        drill.testbed.scheduler,
        "deploy",
        after=True,
        error=SchedulerUnavailable("the answer was lost with its worker"),
    )
    await drill.start()
    await drill.inside(gate)
    await drill.terminate()


async def _before_the_first_poll(drill: Drill) -> None:
    drill.behave()
    gate = Gate(drill.testbed.cluster, "poll")
    await drill.start()
    await drill.inside(gate)
    await drill.terminate()


def _while(status: str, rest: Behaviour) -> Callable[[Drill], Awaitable[None]]:
    async def run(drill: Drill) -> None:
        drill.behave(rest=rest)
        await drill.start()
        if status == "PENDING" and not drill.multi:
            await drill.testbed.until(
                lambda: (
                    (row := drill.testbed.store.runs.get_run(drill.run))
                    and "slots" in (row.waiting_for or "")
                )
            )
        await drill.reach(status)
        await drill.terminate()

    return run


async def _in_a_poll(drill: Drill) -> None:
    drill.behave()
    await drill.start()
    await drill.reach("RUNNING")
    await drill.inside(Gate(drill.testbed.cluster, "poll"))
    await drill.terminate()


async def _workflow_failed(drill: Drill) -> None:
    drill.behave()
    await drill.start()
    await drill.reach("RUNNING")
    gate = Gate(drill.testbed.cluster, "poll", error=InvalidRequest("a bug"))
    await drill.inside(gate)
    assert drill.former is not None
    gate.open()
    assert await _answer(drill.former) == InvalidRequest.code


async def _under_a_stop(drill: Drill) -> None:
    drill.behave(rest=STUBBORN)
    handle = await drill.start()
    await drill.reach("RUNNING")
    await handle.signal("stop", {"requested_by": "ada"})
    gone = {3: "CANCELLED"} if drill.multi else {}
    await drill.testbed.until(
        lambda: {drill.rest: "STOPPING", **gone}.items() <= drill.testbed.tasks(drill.run).items()
    )
    await drill.testbed.until(
        lambda: (
            [c["acted_at"] is not None for c in drill.testbed.store.runs.cancellations(drill.run)]
            == [True]
        )
    )
    await drill.terminate()


async def _before_the_verdict(drill: Drill) -> None:
    drill.behave(rest=GOOD, last=GOOD)
    gate = Gate(
        drill.testbed.store.completion,
        "end_run",
        error=StoreUnavailable("the worker was gone before it was committed"),
    )
    await drill.start()
    await drill.inside(gate)
    await drill.terminate()


def _to_its_end(*, good: bool, exporting: bool) -> Callable[[Drill], Awaitable[None]]:
    async def run(drill: Drill) -> None:
        last = GOOD if good or drill.multi else BAD
        drill.behave(rest=last, third=GOOD if good else BAD, last=GOOD)
        if not exporting:
            await drill.start()
            await drill.ended()
            return
        gate = Gate(drill.testbed.outside, "send")
        await drill.start()
        await drill.inside(gate)
        await drill.terminate()

    return run


def _stopped(signal: str) -> Callable[[Drill], Awaitable[None]]:
    async def run(drill: Drill) -> None:
        drill.behave()
        handle = await drill.start()
        await drill.reach("RUNNING")
        await handle.signal(signal)
        await drill.ended()

    return run


async def _live(drill: Drill) -> None:
    drill.behave()
    await drill.start()
    await drill.reach("RUNNING")


FORMER: dict[str, Callable[[Drill], Awaitable[None]]] = {
    "terminated before the first workflow task": _before_the_first_task,
    "terminated after the history row": _after_the_row,
    "terminated during the deployment call, which never went through": _call_never_through,
    "terminated during the deployment call, which went through": _call_went_through,
    "terminated between deployment and the first poll": _before_the_first_poll,
    "terminated while a task waits for a slot": _while("PENDING", WAITS),
    "terminated while a task executes": _while("RUNNING", STAYS),
    "terminated in a poll": _in_a_poll,
    "workflow failed while a task executes": _workflow_failed,
    "terminated under a stop": _under_a_stop,
    "terminated in completion, before the verdict": _before_the_verdict,
    "terminated after the verdict FAILED, during the export": _to_its_end(
        good=False, exporting=True
    ),
    "run failed": _to_its_end(good=False, exporting=False),
    "run stopped": _stopped("stop"),
    "run stopped by force": _stopped("force_stop"),
    "terminated after the verdict COMPLETED, during the export": _to_its_end(
        good=True, exporting=True
    ),
    "run completed": _to_its_end(good=True, exporting=False),
    "run completed, and rerun asked for": _to_its_end(good=True, exporting=False),
    "run still live": _live,
}


# --- meanwhile ------------------------------------------------------------------------------------


def _end_with(end: End) -> Callable[[Drill], None]:
    def act(drill: Drill) -> None:
        for run, index, attempt in drill.testbed.cluster.alive(drill.run):
            drill.testbed.cluster.end_now(run, index, attempt, end)

    return act


def _wipe(drill: Drill) -> None:
    for run, index, attempt in drill.testbed.cluster.phases():
        if run == drill.run:
            drill.testbed.cluster.vanish(run, index, attempt)


MEANWHILE: dict[str, Callable[[Drill], None]] = {
    "nothing happens": lambda drill: None,
    "it finishes": _end_with(FINISHED),
    "it is killed": _end_with(KILLED),
    "the cluster is wiped": _wipe,
}
