"""``python -m tests.histories.record``: record the golden histories anew, by hand, when a change is meant.

Each history is a promise: a run that is at any of its points when a new version is deployed goes on. Record anew only
what no living run can depend on any more; a change that must keep them is made with ``workflow.patched``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from temporalio.client import WorkflowHandle, WorkflowHistory, WorkflowUpdateFailedError

from crawler_lifecycle.client import Lifecycle
from crawler_lifecycle.domain.errors import NotDelivered
from crawler_lifecycle.domain.run import RunResult
from crawler_lifecycle.fakes.cluster import FINISHED, Behaviour
from crawler_lifecycle.ports import Fence, Look, TaskRef
from tests.support.lab import Lab, laboratory
from tests.support.temporal import temporal_server

FOLDER = Path(__file__).parent
SIZE_MAX = 150_000
#: How this machine names its workers and their own task queues: ``pid@host``, ``pid@host-…``.
MACHINE = re.compile(rf"{os.getpid()}@{re.escape(socket.gethostname())}")

History = dict[str, Any]
Handle = WorkflowHandle[Any, RunResult]


async def completed(lab: Lab) -> Handle:
    """A single-process run on the ladder, to its end, with an archive."""
    lab.cluster.behaviour = Behaviour(executes=900)
    lab.cluster.folders[1, 0] = lab.folder
    return await _to_its_end(lab, {"crawler": "books", "requested_by": "ada", "flow_id": "f1", "parent": "nobody"})


async def waves(lab: Lab) -> Handle:
    """Five tasks of a scheduled run, two at a time."""
    lab.cluster.behaviour = lambda run, index, attempt: Behaviour(executes=50 + 40 * index)
    tasks = [{"args": {"shelf": str(n)}} for n in range(5)]
    return await _to_its_end(lab, {"crawler": "books", "trigger": "scheduled", "tasks": tasks, "max_parallel_tasks": 2})


async def stopped(lab: Lab) -> Handle:
    """A stop while three tasks execute and one is queued."""
    lab.cluster.behaviour = Behaviour(executes=None, heeds_stop_after=8)
    handle = await lab.start({"crawler": "books", "tasks": [{}] * 4, "max_parallel_tasks": 3})
    await lab.snapshot_where(handle, lambda s: s.looks >= 1)
    await handle.signal("stop", {"requested_by": "ada", "reason": "enough", "request_id": "s1"})
    return await _ended(handle, "cancelled")


async def force_stopped(lab: Lab) -> Handle:
    """A plain stop that is ignored, a second one without a payload by force."""
    lab.cluster.behaviour = Behaviour(executes=None, heeds_stop_after=None)
    handle = await lab.start({"crawler": "books", "limits": {"force_stop_after_s": None}})
    await lab.snapshot_where(handle, lambda s: s.looks >= 1)
    await handle.signal("stop")
    await lab.until(lambda: lab.cluster.signals(1))
    await handle.signal("force_stop")
    return await _ended(handle, "cancelled")


async def resumed(lab: Lab) -> Handle:
    """The second attempt of a terminated run: one end found late, one task adopted, one queued anew."""
    lab.cluster.behaviour = lambda run, index, attempt: Behaviour(executes=None if attempt == 1 else 30)
    first = await lab.start({"crawler": "books", "tasks": [{}] * 3})
    await lab.snapshot_where(first, lambda s: s.looks >= 1)
    await first.terminate("by an operator")
    lab.cluster.end_now(1, 0, end=FINISHED)
    lab.cluster.end_now(1, 1)
    again = await lab.start({"run_id": 1})
    await lab.snapshot_where(again, lambda s: s.stage == "reconciliation" and s.looks >= 2)
    lab.cluster.end_now(1, 2, end=FINISHED)
    return await _ended(again, "finished")


async def refused(lab: Lab) -> Handle:
    """A crawler that nobody knows."""
    return await _to_its_end(lab, {"crawler": "nobody"})


async def corrected(lab: Lab) -> Handle:
    """Killed behind our back and corrected."""
    lab.cluster.behaviour = Behaviour(executes=None)
    handle = await lab.start({"crawler": "books"})
    await lab.snapshot_where(handle, lambda s: s.looks >= 1)
    lab.cluster.end_now(1)
    return await _ended(handle, "failed")


async def continued(lab: Lab) -> Handle:
    """Several executions of one run; the histories of all of them are kept."""
    lab.cluster.behaviour = Behaviour(executes=2 * 3600)
    return await _to_its_end(lab, {"crawler": "books", "tasks": [{}] * 2})


async def grown(lab: Lab) -> Handle:
    """Two tasks added to a run that executes, and a third that is refused."""
    lab.cluster.behaviour = lambda run, index, attempt: Behaviour(executes=None if index == 0 else 20)
    handle = await lab.start({"crawler": "books"})
    await lab.snapshot_where(handle, lambda s: s.looks >= 1)
    await handle.execute_update("add_tasks", {"tasks": [{"args": {"shelf": n}} for n in "78"], "request_id": "g1"})
    with contextlib.suppress(WorkflowUpdateFailedError):
        await handle.execute_update("add_tasks", {"tasks": [{"args": {"colour": "red"}}]})
    await lab.until(lambda: lab.tasks(1) == {0: "RUNNING", 1: "SUCCEEDED", 2: "SUCCEEDED"})
    lab.cluster.end_now(1, 0, end=FINISHED)
    return await _ended(handle, "finished")


async def pushed(lab: Lab) -> Handle:
    """A front end that wants to hear of every change, and takes none."""
    lab.outside.sends = True
    lab.outside.fail["push"] = NotDelivered("refused")
    lab.cluster.behaviour = lambda run, index, attempt: Behaviour(executes=50 + 40 * index)
    return await _to_its_end(lab, {"crawler": "books", "tasks": [{}] * 2})


async def exported(lab: Lab) -> WorkflowHandle[Any, Any]:
    """The deliveries of an ended run, made again."""
    lab.cluster.folders[1, 0] = lab.folder
    await _to_its_end(lab, {"crawler": "books"})
    row = lab.store.get_run(1)
    workflow_id = await Lifecycle(lab.client).export_again(Fence(1, 1, row.owner_run_id))
    first = (await lab.client.get_workflow_handle(workflow_id).describe()).run_id
    handle = lab.client.get_workflow_handle(workflow_id, run_id=first, first_execution_run_id=first)
    await handle.result()
    return handle


async def woken(lab: Lab) -> Handle:
    """Woken in the middle of looks: while the start is awaited, while it executes, and under a stop.

    ``woken_before.json`` is the same by a version that kept no gap there; it is not made again.
    """
    lab.cluster.behaviour = Behaviour(waits=20, executes=None, heeds_stop_after=8)
    entered, gate, look = threading.Event(), threading.Event(), lab.cluster.look

    def held(run_id: int, tasks: Sequence[TaskRef]) -> Look:
        entered.set()
        gate.wait(20)
        return look(run_id, tasks)

    async def wake_in_a_look() -> None:
        gate.clear()
        entered.clear()
        await lab.until(entered.is_set)
        await handle.signal("look_now")
        await asyncio.sleep(0.3)
        gate.set()

    lab.cluster.look = held  # type: ignore[method-assign]
    handle = await lab.start({"crawler": "books"})
    await wake_in_a_look()
    await lab.snapshot_where(handle, lambda s: s.stage == "reconciliation")
    await wake_in_a_look()
    await handle.signal("stop")
    await lab.until(lambda: lab.cluster.signals(1))
    await wake_in_a_look()
    return await _ended(handle, "cancelled")


SCENARIOS: list[Callable[[Lab], Awaitable[Handle]]] = [
    completed, waves, stopped, force_stopped, resumed, refused, corrected, continued, grown, pushed, exported,
    woken,
]  # fmt: skip


async def _to_its_end(lab: Lab, request: dict[str, Any]) -> Handle:
    handle = await lab.start(request)
    await lab.client.get_workflow_handle(handle.id, result_type=RunResult).result()
    return handle


async def _ended(handle: Handle, outcome: str) -> Handle:
    result = await handle.result()
    assert result.outcome == outcome, result
    return handle


def scrubbed(history: WorkflowHistory) -> History:
    """The history as JSON, without the names of the machine and of the processes that made it."""
    document: History = history.to_json_dict()

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            told = {k: v for k, v in value.items() if k != "stackTrace"}
            return {k: "worker" if k == "identity" else clean(v) for k, v in told.items()}
        if isinstance(value, list):
            return [clean(item) for item in value]
        if isinstance(value, str):
            return MACHINE.sub("worker", value)
        return value

    cleaned: History = clean(document)
    return cleaned


def write(name: str, histories: list[WorkflowHistory]) -> Iterator[str]:
    """One file for each execution of a chain; says what was written."""
    for number, history in enumerate(histories, 1):
        file = FOLDER / (f"{name}.json" if len(histories) == 1 else f"{name}-{number}.json")
        text = json.dumps({"workflowId": history.workflow_id, **scrubbed(history)}, separators=(",", ":")) + "\n"
        assert len(text) <= SIZE_MAX, f"{file.name} has {len(text)} bytes"
        assert not MACHINE.search(text)
        file.write_text(text)
        yield f"{file.name}: {len(history.events)} events, {len(text):,} bytes"


async def main(names: list[str]) -> None:
    """Record the named scenarios, or all."""
    for scenario in SCENARIOS:
        name = scenario.__name__
        if names and name not in names:
            continue
        few = {"limit.historyCount.suggestContinueAsNew": "60"} if scenario is continued else None
        async with temporal_server(skipping=True, dynamic=few) as env:
            with tempfile.TemporaryDirectory() as folder:
                async with laboratory(env.client, Path(folder)) as lab:
                    handle = await scenario(lab)
                    for old in FOLDER.glob(f"{name}*.json"):
                        old.unlink()
                    for line in write(name, await lab.chain(handle)):
                        print(line)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
