"""The testbed on a machine that sometimes stalls: lateness there is no error of a workflow."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer, _workflow

from crawler_lifecycle.compose import WORKFLOWS
from crawler_lifecycle.temporal.plugin import plugin

HISTORY = Path(__file__).parents[1] / "histories" / "completed.json"


@pytest.mark.troubles
async def test_a_replay_whose_thread_is_not_run_for_a_while_is_no_deadlock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    activate, stood_still = _workflow._RunningWorkflow.activate, []

    def late(self: Any, act: Any) -> Any:
        if not stood_still:
            stood_still.append(True)
            time.sleep(2.5)  # the SDK allows 2 s
        return activate(self, act)

    monkeypatch.setattr(_workflow._RunningWorkflow, "activate", late)
    history = WorkflowHistory.from_json("completed", HISTORY.read_text())
    await Replayer(workflows=WORKFLOWS, plugins=[plugin()]).replay_workflow(history)
    assert stood_still
