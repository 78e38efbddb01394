"""The workflow that deletes a run's results, on a real server: histories, archives and files are
gone.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.client import Client

from crawler_lifecycle.clock import utc_now
from crawler_lifecycle.clusters.volume import VolumePlace
from crawler_lifecycle.domain.errors import NotDelivered
from crawler_lifecycle.domain.names import deletion_workflow_id, graph_workflow_id
from crawler_lifecycle.domain.run import RunResult, RunStatus
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.temporal.client import Workflows
from crawler_lifecycle.workflows import deletion as workflow
from crawler_lifecycle.workflows import steps
from tests.contracts.store.test_deletion import WORD, where
from tests.support.fakes.cluster import Behaviour
from tests.support.testbed import WorkflowHarness

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def histories(client: Client, since: datetime) -> list[str]:
    """Return executions since then whose history contains the word."""
    found = []
    async for row in client.list_workflows(f"StartTime >= '{since.isoformat()}'"):
        history = await client.get_workflow_handle(row.id, run_id=row.run_id).fetch_history()
        if any(WORD.encode() in event.SerializeToString() for event in history.events):
            found.append(f"{row.workflow_type} {row.id}")
    return found


async def planted(testbed: WorkflowHarness) -> RunRef:
    """An ended and exported run with the word in everything that it got and reported."""
    testbed.cluster.behaviour = Behaviour(
        log=f"{WORD}\n", end=replace(Behaviour().end, finish_reason=WORD, message=WORD)
    )
    testbed.cluster.folders[1, 0] = testbed.folder
    ask = {"crawler": "books", "args": {"shelf": WORD}, "tags": [WORD]}
    run_id = (await (await testbed.start(ask, id=f"testbed/{testbed.folder.name}")).result()).run_id
    testbed.handles.clear()  # nothing of it can be replayed
    run: RunRef = testbed.store.runs.get_run(run_id).ref
    return run


async def deleted(testbed: WorkflowHarness, run: RunRef) -> Any:
    """Delete it. Returns its row afterwards."""
    await asyncio.to_thread(testbed.store.deletion.ask_deletion, run.run_id, "ada")
    await Workflows(testbed.client).delete_run(run)
    workflow_id = deletion_workflow_id(run)
    first = (await testbed.client.get_workflow_handle(workflow_id).describe()).run_id
    handle: Any = testbed.client.get_workflow_handle(
        workflow_id, run_id=first, first_execution_run_id=first
    )
    await testbed.ended(handle)
    testbed.handles.append(handle)  # it is replayed
    return testbed.store.runs.get_run(run.run_id)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    assert workflow.STRAY_S == 60
    monkeypatch.setattr(workflow, "STRAY_S", 0.5)


@pytest.fixture
def local(real_testbed: WorkflowHarness) -> Path:
    """The folder of a local cluster with the files of run 1."""
    state = real_testbed.folder / "cluster"
    (state / "tasks").mkdir(parents=True)
    real_testbed.parts.places.append(VolumePlace(state))  # type: ignore[attr-defined]
    return state


def files(folder: Path) -> list[Path]:
    """Return files that contain the word."""
    return [
        path for path in folder.rglob("*") if path.is_file() and WORD.encode() in path.read_bytes()
    ]


@pytest.mark.troubles
async def test_nothing_is_left_in_temporal_and_in_archives(real_testbed: WorkflowHarness) -> None:
    since = utc_now()
    run = await planted(real_testbed)
    assert len(await histories(real_testbed.client, since)) == 1
    assert (len(real_testbed.outside.stored), bool(where(real_testbed.store))) == (1, True)
    row = await deleted(real_testbed, run)
    assert await histories(real_testbed.client, since) == []
    assert real_testbed.outside.stored == []
    assert where(real_testbed.store) == set()
    assert row.deletion["gone"].keys() >= {
        "archives",
        "Temporal histories",
        "strings in task_history",
    }
    assert (row.deletion["left"], row.deletion_ended_at is not None) == ({}, True)


@pytest.mark.troubles
async def test_what_still_delivers_is_ended_and_waited_for(real_testbed: WorkflowHarness) -> None:
    """An archive that nobody accepts keeps a run's workflow open for a day."""
    since = utc_now()
    real_testbed.outside.fail["store"] = NotDelivered(WORD)
    real_testbed.cluster.folders[1, 0] = real_testbed.folder
    handle = await real_testbed.start(
        {"crawler": "books", "args": {"shelf": WORD}}, id=f"testbed/{real_testbed.folder.name}"
    )
    await real_testbed.until(lambda: real_testbed.store.exports.list_exports(1))
    real_testbed.handles.clear()
    row = await deleted(real_testbed, real_testbed.store.runs.get_run(1).ref)
    assert (row.deletion_ended_at is not None, where(real_testbed.store)) == (True, set())
    # Others share the server, and the short ids.
    assert handle.id not in str(await histories(real_testbed.client, since))
    assert (await real_testbed.events(real_testbed.handles[0])) == [
        *("delete_run_texts", "delete_run_files", "delete_run_histories", "delete_run_files"),
    ]


@pytest.mark.troubles
async def test_an_outage_is_told_and_what_is_left_goes_after_it(
    real_testbed: WorkflowHarness, local: Path
) -> None:
    run = await planted(real_testbed)
    task = local / "tasks" / str(run) / "0" / "1"
    (task / "files").mkdir(parents=True)
    (task / "files" / "items.jsonl").write_text(WORD)
    saved = local / "state" / str(run) / "0"
    saved.mkdir(parents=True)
    (saved / "queue").write_text(WORD)
    real_testbed.outside.fail["remove"] = NotDelivered("the bucket is away")

    async def heal() -> None:
        def told() -> bool:
            report = real_testbed.store.runs.get_run(run.run_id).deletion
            return bool(report and report["left"] == {"archives": "the bucket is away"})

        await real_testbed.until(told)
        assert await asyncio.to_thread(files, local) == []
        real_testbed.outside.fail = {}

    row, _ = await asyncio.gather(deleted(real_testbed, run), heal())
    assert row.deletion["left"] == {}
    assert row.deletion["gone"][f"files in {local}"] is None
    assert real_testbed.outside.stored == []


@pytest.mark.parametrize(("parent", "words"), [
    ("somebody's own", ("finished", "why")), ("manager/shelves/f", ("", "")), (graph_workflow_id("a/b"), ("", "")),
])  # fmt: skip
async def test_only_parents_of_others_hear_words_of_a_crawler(
    monkeypatch: pytest.MonkeyPatch, parent: str, words: tuple[str, str]
) -> None:
    """Our own workflows read the row of the run: a word in their histories would outlive its
    deletion.
    """
    heard: list[RunResult] = []

    async def tell(parent: str, signal: str, result: RunResult, inbox: object) -> None:
        heard.append(result)

    monkeypatch.setattr(steps, "tell", tell)
    result = RunResult(1, "a" * 32, RunStatus.FAILED, "finished", "why", 2, {})
    await steps.tell_parent(SimpleNamespace(parent=parent, result=lambda _: result, inbox=None))  # type: ignore[arg-type]
    assert [(one.outcome, one.cause) for one in heard] == [words]
    assert (heard[0].run_id, heard[0].status, heard[0].attempt) == (1, "FAILED", 2)
