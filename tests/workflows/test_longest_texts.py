"""The longest texts that entry points accept pass through Temporal, which ends a workflow for one
that is too long.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus

from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.bounds import SAID_MAX, travels
from crawler_lifecycle.domain.due_ids import due_workflow_id
from crawler_lifecycle.domain.run import TAG_MAX, TAGS_MAX
from crawler_lifecycle.domain.task import End
from crawler_lifecycle.features.graphs.domain.checks import check_key
from crawler_lifecycle.features.graphs.domain.spec import StepKind, StepSpec
from crawler_lifecycle.features.managers.domain.manager import FLOW_ID_MAX, NAME_MAX
from crawler_lifecycle.features.schedules.domain.definition import ScheduleSpec
from crawler_lifecycle.features.schedules.ports import DueOrder
from crawler_lifecycle.temporal.client import Workflows
from tests.support.fakes.cluster import FINISHED, Behaviour
from tests.support.graphing import graph_testbed
from tests.support.managing import manager_testbed, quick
from tests.support.testbed import WorkflowHarness

pytestmark = pytest.mark.asyncio(loop_scope="session")

EMOJI = "\N{GRINNING FACE}"
#: The longest texts with the characters that have the most bytes, and with the plainest one.
LONG, PLAIN = max((EMOJI * n for n in range(200) if travels(EMOJI * n)), key=len), "x" * SAID_MAX
TAGS = [f"{n}{LONG}"[:160] for n in range(TAGS_MAX)]
ID = EMOJI * names.REQUEST_ID_MAX
SAID = {"requested_by": LONG, "flow_id": LONG, "parent": LONG, "request_id": ID, "tags": TAGS}
#: The crawler's report of how it ended: no report may end its workflow.
ENDED = Behaviour(
    executes=0, end=End(exit_code=0, finish_reason=EMOJI * 1000, message=EMOJI * 1000)
)


async def _closed_well(testbed: WorkflowHarness, workflow_id: str) -> dict[str, Any]:
    """Return its search attributes, and check that Temporal did not end it."""
    found = await testbed.client.get_workflow_handle(workflow_id).describe()
    assert found.status is WorkflowExecutionStatus.COMPLETED
    return {pair.key.name: pair.value for pair in found.typed_search_attributes.search_attributes}


@pytest.mark.troubles
@pytest.mark.parametrize("text", [LONG, PLAIN], ids=["emoji", "plain"])
async def test_of_a_run_and_its_outcome(real_testbed: WorkflowHarness, text: str) -> None:
    real_testbed.cluster.behaviour = ENDED
    given = {"crawler": "books", **SAID, "flow_id": text, "parent": text, "request_id": ID}
    handle = await real_testbed.start(given, id=names.workflow_id("books", ID))
    result = await real_testbed.ended(handle)
    assert result.outcome.startswith(EMOJI * 150)
    told = await _closed_well(real_testbed, handle.id)
    assert (told["CrawlFlow"], told["CrawlParent"]) == (text, text)
    assert real_testbed.store.runs.request_of(1).tags == TAGS


@pytest.mark.troubles
async def test_of_a_manager_and_its_close_reason(real_testbed: WorkflowHarness) -> None:
    real_testbed.cluster.behaviour = Behaviour(executes=0)
    m = manager_testbed(real_testbed, source=[quick(1)])
    m.plan.close_reason = EMOJI * 200
    name, flow = "n" * NAME_MAX, "f" * FLOW_ID_MAX
    async with m.user_code():
        row = m.reserve(
            flow, name=name, requested_by=LONG, parent=LONG, tags=["x" * TAG_MAX] * TAGS_MAX
        )
        handle = await m.start(row=row)
        await real_testbed.ended(handle)
    told = await _closed_well(real_testbed, handle.id)
    assert (told["CrawlName"], told["CrawlFlow"], told["CrawlParent"]) == (name, flow, LONG)
    assert told["CrawlOutcome"] == EMOJI * 166
    assert m.row().outcome == EMOJI * 200


@pytest.mark.troubles
async def test_of_a_graph_and_its_crawls(real_testbed: WorkflowHarness) -> None:
    real_testbed.cluster.behaviour = Behaviour(executes=0)
    g, key = graph_testbed(real_testbed), EMOJI * 165
    check_key(key)
    path = EMOJI * 160
    step = StepSpec(
        path, StepKind.CRAWL, {"crawler": "quick", "limits": {"start_check_s": 0.0}, "tags": TAGS}
    )
    async with g.working():
        handle = await g.start([step], key=key, parent=LONG)
        assert (await g.ended(handle)).state == "completed"
    told = await _closed_well(real_testbed, handle.id)
    assert (told["CrawlFlow"], told["CrawlParent"]) == (key, LONG)
    run = real_testbed.store.runs.get_run(1)
    assert (run.flow_id, run.parent) == (key, names.graph_workflow_id(key))
    # It may still be delivering.
    await real_testbed.client.get_workflow_handle(run.owner_workflow_id).result()
    assert (await _closed_well(real_testbed, run.owner_workflow_id))["CrawlParent"] == run.parent


@pytest.mark.troubles
async def test_of_what_a_schedule_begins(real_testbed: WorkflowHarness) -> None:
    real_testbed.cluster.behaviour = Behaviour(executes=0, end=FINISHED)
    name, at = "s" * 80, datetime.now(UTC).replace(microsecond=0)
    run = {
        "crawler": "books",
        "requested_by": LONG,
        "flow_id": LONG,
        "tags": TAGS,
        "limits": {"start_check_s": 0.1},
    }
    spec = ScheduleSpec(run=run, every_s=10)
    at = datetime.fromtimestamp(at.timestamp() // 10 * 10, UTC)
    real_testbed.store.schedules.put(name, spec.document(), LONG)
    row = real_testbed.store.schedules.get(name)
    await Workflows(real_testbed.client).start_for(
        DueOrder(name, at, row.revision), due_workflow_id(name, at)
    )
    due = real_testbed.client.get_workflow_handle(due_workflow_id(name, at))
    assert await due.result() == "started"
    begun = real_testbed.store.runs.get_run(1)
    await real_testbed.client.get_workflow_handle(
        begun.owner_workflow_id or names.workflow_id("books", begun.request_id)
    ).result()
    told = await _closed_well(real_testbed, real_testbed.store.runs.get_run(1).owner_workflow_id)
    assert told["CrawlFlow"] == LONG
