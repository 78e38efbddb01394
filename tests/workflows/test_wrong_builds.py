"""The replay gate with real other builds: wrong changes of the workflows are refused, right ones
pass.

Each case is a copy of the code with one edit, replayed in a separate process, as a deployment would
execute it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.builds import ROOT, Change, build, environment

pytestmark = pytest.mark.troubles

HISTORIES = ROOT / "tests" / "histories"

#: Replays every recording with the code of the working directory, and prints what was wrong with
#: each refused one.
REPLAY = """
import asyncio, json, os, pathlib, sys
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer
import crawler_lifecycle
from crawler_lifecycle.compose import WORKFLOWS
from crawler_lifecycle.temporal.plugin import plugin

async def main():
    refused = {}
    replayer = Replayer(workflows=WORKFLOWS, plugins=[plugin()])
    for file in sorted(pathlib.Path(sys.argv[1]).glob("*.json")):
        if sys.argv[2:] and file.stem not in sys.argv[2:]:
            continue
        history = json.loads(file.read_text())
        try:
            await replayer.replay_workflow(WorkflowHistory.from_json(history["workflowId"], history))
        except Exception as error:
            refused[file.stem] = f"{type(error).__name__}: {error}"
    build = pathlib.Path(crawler_lifecycle.__file__).parents[1]
    print(json.dumps({"build": str(build), "refused": refused}), flush=True)

asyncio.run(main())
os._exit(0)  # the SDK's threads do not like an interpreter that ends while they let go of workflows
"""

LIFECYCLE, STEPS = "workflows/lifecycle.py", "workflows/steps.py"

REGISTERED = """        registration = AddWorkflowId(s.run_id, s.attempt, info.workflow_id)
        await call(InitiationActivities.add_workflow_id, registration)
"""
FIRST_CHECK = '        await pause(least if left is None else min(least, left), self._woken, "first check of the start")\n'
POLLED = "        found = await poll_round(s, source, led_by, gap(s))\n"
WRITTEN = "        await call(rec.reconcile_tasks, fence, control=control, wake=wake)\n"
FETCHED = "        await call(rec.get_bulk_task_history_data, fence, control=control, wake=wake, summary=text)\n"
ASKED = "        await self._logging(self._end_tasks())\n"
LOGGED = """        if s.stop_rung == 0 or heard:
            await call(CancellationActivities.add_cancellation_log_to_db, RecordStop(s.fence, s.stop_log))
            s.stop_log = []
"""
EXPORTED = "            await best_effort(s, step)\n"
TOLD = "            await tell_parent(s)\n"
CHANGED = "        workflow.upsert_search_attributes(changed)\n"

#: A wrong change -> the edits, and a recording that must reveal it.
WRONG: dict[str, tuple[list[Change], str]] = {
    "an activity is gone": ([Change(LIFECYCLE, REGISTERED, "")], "completed"),
    "two activities change places": (
        [Change(STEPS, WRITTEN, ""), Change(STEPS, FETCHED, WRITTEN + FETCHED)],
        "completed",
    ),
    "a timer is added": (
        [Change(LIFECYCLE, POLLED, "        await workflow.sleep(1)\n" + POLLED)],
        "continued-2",
    ),
    "a timer is gone": ([Change(LIFECYCLE, FIRST_CHECK, "")], "waves"),
    "an activity is added": ([Change(LIFECYCLE, EXPORTED, EXPORTED * 2)], "refused"),
    "an activity became another one": (
        [
            Change(
                LIFECYCLE,
                "CancellationActivities.signal_pusher_stopped",
                "ReconciliationActivities.signal_pusher_changed",
            )
        ],
        "stopped",
    ),
    "a stop is logged before it asks": (
        [Change(LIFECYCLE, ASKED, ""), Change(LIFECYCLE, LOGGED, LOGGED + ASKED)],
        "stopped",
    ),
    "the parent is not told": ([Change(LIFECYCLE, TOLD, "")], "completed"),
    "search attributes are not set": ([Change(STEPS, CHANGED, "        pass\n")], "completed"),
}
FAST = ("an activity is gone", "a timer is added")

NOW = "DATABASE = Policy(QUEUE_MAIN, 16, _retry(1, 30), heartbeat_s=DEAD_S, beaten=True)"
DATABASE = "DATABASE = Policy(QUEUE_MAIN, 9, _retry(3, 9))"

#: A right change -> its edits.
RIGHT: dict[str, list[Change]] = {
    "nothing": [],
    "a step for new runs alone": [
        Change(LIFECYCLE, POLLED, '        if workflow.patched("a"):\n            await workflow.sleep(1)\n' + POLLED)
    ],
    "other timeouts and retries": [
        Change("workflows/policies.py", NOW, DATABASE)
    ],
    "another length of a timer": [Change(LIFECYCLE, "least = s.limits.start_check_s", "least = 77.0")],
}  # fmt: skip


def refused(folder: Path, changes: list[Change], *only: str) -> dict[str, str]:
    """Return the recordings (all, or only these) that this build cannot continue, each with the
    reason.
    """
    built = build(folder / "build", *changes)
    done = subprocess.run(
        [sys.executable, "-c", REPLAY, str(HISTORIES), *only],
        cwd=built, env=environment(os.environ), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["build"] == str(built), "not our own code was replayed"
    found: dict[str, str] = said["refused"]
    return found


@pytest.mark.parametrize(
    "name", [pytest.param(n, id=n, marks=() if n in FAST else pytest.mark.slow) for n in WRONG]
)  # fmt: skip
def test_a_wrong_build_is_refused(name: str, tmp_path: Path) -> None:
    changes, notices = WRONG[name]
    found = refused(tmp_path, changes, *((notices,) if name in FAST else ()))
    assert notices in found, f"the gate let pass: {name}"
    assert all("NondeterminismError" in reason for reason in found.values()), found


@pytest.mark.parametrize(
    "name", [pytest.param(n, id=n, marks=() if n.startswith("a step") else pytest.mark.slow) for n in RIGHT]
)  # fmt: skip
def test_a_right_build_passes(name: str, tmp_path: Path) -> None:
    assert (
        refused(
            tmp_path, RIGHT[name], *(("completed", "stopped") if name.startswith("a step") else ())
        )
        == {}
    )
