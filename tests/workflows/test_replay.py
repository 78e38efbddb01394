"""The recorded histories replay with the present workflow, and the gate refuses when it should.

A failure here means that runs which are open while a new version is deployed would stand still. The
fix is ``workflow.patched``, not a new recording (see ``tests/histories/record.py``).
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer
from temporalio.workflow import NondeterminismError

from crawler_lifecycle.compose import WORKFLOWS
from crawler_lifecycle.temporal.plugin import plugin
from crawler_lifecycle.workflows.policies import POLICIES
from tests.histories import record
from tests.histories.record import fingerprint, promised

FOLDER = Path(__file__).parents[1] / "histories"
HISTORIES = sorted(FOLDER.glob("*.json"))

History = dict[str, Any]
SCHEDULED = "activityTaskScheduledEventAttributes"


def read(name: str) -> History:
    found: History = json.loads((FOLDER / f"{name}.json").read_text())
    return found


async def replay(history: History) -> None:
    """Replay as a worker does. Raises the error that a worker would get."""
    replayer = Replayer(workflows=WORKFLOWS, plugins=[plugin()])
    await replayer.replay_workflow(WorkflowHistory.from_json(history["workflowId"], history))


def activities(history: History) -> list[str]:
    return [e[SCHEDULED]["activityType"]["name"] for e in history["events"] if SCHEDULED in e]


def renamed(history: History, activity: str) -> History:
    """Return the history of a workflow that called this activity by another name."""
    for event in history["events"]:
        if SCHEDULED in event and event[SCHEDULED]["activityType"]["name"] == activity:
            event[SCHEDULED]["activityType"]["name"] = "another_activity"
    return history


def without(history: History, activity: str) -> History:
    """Return the history of a workflow that never called this activity: its events are removed, the
    others move up.
    """
    scheduled = {
        e["eventId"]
        for e in history["events"]
        if SCHEDULED in e and e[SCHEDULED]["activityType"]["name"] == activity
    }
    kept = [
        e
        for e in history["events"]
        if e["eventId"] not in scheduled
        and not any(
            isinstance(v, dict) and v.get("scheduledEventId") in scheduled for v in e.values()
        )
    ]
    assert len(kept) < len(history["events"])
    new = {event["eventId"]: str(number) for number, event in enumerate(kept, 1)}

    def moved(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {k: moved(v, k) for k, v in value.items()}
        if isinstance(value, list):
            return [moved(item) for item in value]
        return new.get(value, value) if key.endswith("ventId") else value

    return {**history, "events": [moved(event) for event in kept]}


async def test_every_recorded_history_replays() -> None:
    """One worker replays all of them, because making a worker takes longer than replaying a
    history.
    """
    given = {file.stem: read(file.stem) for file in HISTORIES}
    histories = {
        name: WorkflowHistory.from_json(one["workflowId"], one) for name, one in given.items()
    }

    async def all_of_them() -> AsyncIterator[WorkflowHistory]:
        for history in histories.values():
            yield history

    replayer = Replayer(workflows=WORKFLOWS, plugins=[plugin()])
    replayed: set[str] = set()
    async with replayer.workflow_replay_iterator(all_of_them()) as results:
        async for result in results:
            [name] = [name for name, history in histories.items() if history is result.history]
            assert result.replay_failure is None, name
            replayed.add(name)
    assert replayed == histories.keys()


def test_no_recording_was_changed_or_removed() -> None:
    """A new recording says nothing about runs that began with the old form."""
    found = {file.name: fingerprint(file) for file in HISTORIES}
    for name, digest in promised().items():
        assert name in found, (
            f"{name} is gone: runs of that form may be open; bring it back from the version control"
        )
        assert found[name] == digest, (
            f"{name} was changed: runs of that form may be open; bring it back, and give the new form a name of its own"
        )
    new = sorted(set(found) - set(promised()))
    assert not new, (
        f"{new}: not in SHA256SUMS; python -m tests.histories.record NAME makes recordings and their line"
    )


def test_a_recording_is_not_made_twice_by_accident(capsys: pytest.CaptureFixture[str]) -> None:
    assert asyncio.run(record.main(["completed"])) == 2
    assert "completed: recorded already" in capsys.readouterr().err
    assert asyncio.run(record.main(["nonsense"])) == 2
    assert "no such scenario" in capsys.readouterr().err


def test_the_histories_cover_what_a_run_may_go_through() -> None:
    names = {re.sub(r"-\d+$", "", file.stem) for file in HISTORIES}
    assert names == {scenario.__name__ for scenario in record.SCENARIOS}
    assert len([f for f in HISTORIES if f.stem.startswith("continued")]) > 1, (
        "a chain of executions"
    )
    called = {name for file in HISTORIES for name in activities(read(file.stem))}
    assert called == set(POLICIES), "every activity is in one of them"


def test_no_history_names_a_machine() -> None:
    for file in HISTORIES:
        text = file.read_text()
        assert len(text) <= 150_000, file.name
        assert not re.search(r"\d+@|/(home|root|tmp|work|usr)/", text), file.name


async def test_the_histories_of_a_chain_carry_the_state_on() -> None:
    """The second execution begins where the first one was, not at the initiation."""
    assert activities(read("continued-1"))[0] == "create_history_id"
    assert "create_history_id" not in activities(read("continued-2"))


@pytest.mark.parametrize(
    ("name", "activity"),
    [
        ("completed", "create_history_id"),
        ("completed", "get_history_statuses_to_sync"),
        ("completed", "export_supporting_files"),
        ("stopped", "k8_stop_task"),
        ("stopped", "add_cancellation_log_to_db"),
        ("resumed", "requeue_ended_tasks"),
        ("grown", "add_tasks"),
        ("pushed", "signal_pusher_changed"),
        ("exported", "resend_pushes"),
        ("repaired", "requeue_ended_tasks"),
        ("deleted", "delete_run_histories"),
        ("deleted_files_first", "delete_run_histories"),
        ("retried", "retry_ended_tasks"),
        ("audited", "audit_workflows"),
        ("audited", "close_audit"),
        ("continued-2", "get_history_statuses_to_sync"),
        ("managed", "begin_manager_runs"),
        ("managed", "note_manager"),
        ("managed_until_stopped", "stop_manager_runs"),
        ("managed_for_long-2", "run_manager_cycle"),
    ],
)
async def test_the_gate_bites(name: str, activity: str) -> None:
    """A step with another name, or a removed one, is found."""
    with pytest.raises(NondeterminismError, match=activity):
        await replay(renamed(read(name), activity))
    with pytest.raises(NondeterminismError):
        await replay(without(read(name), activity))
