"""The laboratory on a machine that stands still now and then: what is late there is no fault of a workflow."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from temporalio.client import WorkflowHistory
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Replayer, _workflow

from crawler_lifecycle.compose import WORKFLOWS
from crawler_lifecycle.domain.run import RunSnapshot
from crawler_lifecycle.temporal.plugin import plugin
from tests.support.lab import Lab

HISTORY = Path(__file__).parents[1] / "histories" / "completed.json"


async def test_a_replay_whose_thread_is_not_run_for_a_while_is_no_deadlock(monkeypatch: pytest.MonkeyPatch) -> None:
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


def _lab() -> Lab:
    nobody = cast(Any, None)
    return Lab(nobody, nobody, nobody, nobody, nobody, nobody)


class Asked:
    """A workflow's handle that answers these one after the other."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)

    async def query(self, name: str, **_: Any) -> Any:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_a_question_that_was_not_answered_in_time_is_asked_again() -> None:
    answer = cast(RunSnapshot, SimpleNamespace(looks=1))
    late = RPCError("context deadline exceeded", RPCStatusCode.DEADLINE_EXCEEDED, b"")
    handle = cast(Any, Asked(late, SimpleNamespace(looks=0), answer))
    assert await _lab().snapshot_where(handle, lambda s: s.looks == 1) is answer


async def test_a_question_that_cannot_be_answered_is_told() -> None:
    gone = RPCError("workflow not found", RPCStatusCode.NOT_FOUND, b"")
    with pytest.raises(RPCError, match="workflow not found"):
        await _lab().snapshot_where(cast(Any, Asked(gone)), lambda s: True)
