"""How a workflow is changed while runs of the former code are open: ``workflow.patched``, shown on a small workflow.

The product has no such flag, as nothing has been released. The first change after a release needs one.
"""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from temporalio import activity, workflow
from temporalio.client import WorkflowHistory
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner, Worker
from temporalio.workflow import NondeterminismError

pytestmark = pytest.mark.asyncio(loop_scope="session")

QUICK = timedelta(seconds=10)
FLAG = "greet-first"


@activity.defn
async def greet() -> str:
    return "hello"


@activity.defn
async def work() -> str:
    return "done"


@workflow.defn(name="small")
class Former:
    """The workflow as it was released."""

    @workflow.run
    async def run(self) -> list[str]:
        return [await workflow.execute_activity(work, start_to_close_timeout=QUICK)]


@workflow.defn(name="small")
class Changed:
    """New runs greet first; open runs go on as they began."""

    @workflow.run
    async def run(self) -> list[str]:
        said = []
        if workflow.patched(FLAG):
            said.append(await workflow.execute_activity(greet, start_to_close_timeout=QUICK))
        return [*said, await workflow.execute_activity(work, start_to_close_timeout=QUICK)]


@workflow.defn(name="small")
class ChangedWithoutFlag:
    """The same change, made carelessly."""

    @workflow.run
    async def run(self) -> list[str]:
        said = await workflow.execute_activity(greet, start_to_close_timeout=QUICK)
        return [said, await workflow.execute_activity(work, start_to_close_timeout=QUICK)]


async def played(env: WorkflowEnvironment, code: type) -> tuple[list[str], WorkflowHistory]:
    """What the workflow answers, and its history."""
    name = f"small-{uuid.uuid4().hex}"
    async with Worker(
        env.client, task_queue=name, workflows=[code], activities=[greet, work],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):  # fmt: skip
        handle = await env.client.start_workflow("small", id=name, task_queue=name, result_type=list[str])
        return await handle.result(), await handle.fetch_history()


async def replay(code: type, history: WorkflowHistory) -> None:
    """Raises ``NondeterminismError`` where this code does not go on with the history."""
    await Replayer(workflows=[code], workflow_runner=UnsandboxedWorkflowRunner()).replay_workflow(history)


async def test_a_patched_change_goes_on_with_old_runs_and_new_ones(skipping: WorkflowEnvironment) -> None:
    said, old = await played(skipping, Former)
    assert said == ["done"]
    await replay(Changed, old)
    said, new = await played(skipping, Changed)
    assert said == ["hello", "done"]
    await replay(Changed, new)


async def test_the_same_change_without_the_flag_is_refused(skipping: WorkflowEnvironment) -> None:
    _, old = await played(skipping, Former)
    with pytest.raises(NondeterminismError):
        await replay(ChangedWithoutFlag, old)
