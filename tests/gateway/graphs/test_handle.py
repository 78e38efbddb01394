"""A user's ``Workflow`` with the gateway itself: every query and command over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import date
from typing import Any

import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle.domain.errors import DuplicateRequest, InvalidRequest
from crawler_lifecycle.features.graphs.domain.spec import GraphState
from crawler_lifecycle.graphs import Workflow, asking, chancy, client, crawl
from crawler_lifecycle.graphs.client import Gateway
from tests.gateway.gateway_harness import Harness
from tests.gateway.graphs.test_graphs import claimed, complete
from tests.gateway.served import served
from tests.graphs.test_rules import Step, given, given_item

VALUE = {"day": date(2026, 11, 22), "$date": "no date"}


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(Gateway._pages, "__defaults__", (2,))
    monkeypatch.setattr(client, "WAIT_S", 1.0)
    yield
    asking.use(None)


def built(**more: Any) -> Workflow:
    workflow = Workflow("Nightly", id="nightly ü 1", tags=["x"], **more).add_context(
        {"since": VALUE["day"]}
    )
    workflow.add("first", Step.new({"n": 1})).add_cascade(
        "many", (list(range(5)), given_item), "first"
    )
    return workflow.add_cascade("last", given, "many", max_attempts=2)


@pytest.mark.usefixtures("small_pages")
async def test_a_handle_speaks_to_the_gateway(harness: Harness, client: TestClient) -> None:
    async with served(harness.app) as server:
        asking.use(Gateway(server.url))
        workflow = await built().start()
        await built().start()
        with pytest.raises(DuplicateRequest):
            await Workflow(id=workflow.id).add("else", Step.new({})).start()
        assert (await workflow.status()).counts == {"available": 1, "suspended": 6}
        with pytest.raises(TimeoutError):
            await workflow.wait(timeout=0.1)
        graphed = claimed(harness, workflow.id)
        assert (
            await workflow.append(Workflow(check_deps=False).add("more", Step.new({}), "last")) == 1
        )
        assert await workflow.cancel_jobs(names="more", reason="enough") == 1
        with pytest.raises(InvalidRequest, match='"nobody"'):
            await workflow.cancel_jobs(names="nobody")
        complete(graphed, first=VALUE, **{f"many/{n}": n for n in range(5)})
        status = await workflow.status()
        assert (status.name, status.total, status.subs["many"].counts) == (
            "Nightly",
            8,
            {"completed": 5},
        )
        many = {str(n): n for n in range(5)}
        assert (await workflow.all_recorded()) == {"first": VALUE, "many": many, "last": None}
        assert await workflow.get_recorded("many/3") == 3
        assert await workflow.get_context() == {"since": VALUE["day"]}
        assert await workflow.sub("many").get_context() == {"since": VALUE["day"]}
        assert [job.path for job in await workflow.all_jobs(deps_of="last")] == [
            f"many/{n}" for n in range(5)
        ]
        job = await workflow.get_job("first")
        assert (job.args, job.state, job.attempt, job.meta["workflow_id"]) == (
            {"n": 1},
            "completed",
            1,
            workflow.id,
        )
        assert (await workflow.get_job("more")).reason.endswith(": enough")
        assert await workflow.get_job("nobody") is None
        harness.store.graphs.end_graph(graphed.fence, None)
        assert (await workflow.wait()).state == "cancelled"
        assert await workflow.retry_jobs(names="more") == 1
        waiting = asyncio.create_task(workflow.wait(timeout=30))
        graphed = claimed(harness, workflow.id)
        complete(graphed)
        harness.store.graphs.end_graph(graphed.fence, None)
        assert (await waiting).counts == {"completed": 8}
        with pytest.raises(KeyError, match="nobody"):
            await Workflow(id="nobody").wait()


@pytest.mark.usefixtures("small_pages")
async def test_chancy_speaks_to_the_gateway(harness: Harness, client: TestClient) -> None:
    plugin = chancy.WorkflowPlugin
    async with served(harness.app) as server, chancy.Chancy(server.url, plugins=[plugin()]) as app:
        one, other = (chancy.Workflow(f"w{n}").add("only", Step.new({})) for n in range(2))
        for workflow in (one, other):
            await plugin.push(app, workflow)
        assert one.state is chancy.Workflow.State.PENDING
        assert await plugin.push(app, one.add("more", Step.new({}), ["only"])) == one.id
        graphed = claimed(harness, one.id)
        complete(graphed)
        harness.store.graphs.end_graph(graphed.fence, None)
        assert (
            await plugin.wait_for_workflow(app, one.id)
        ).state is chancy.Workflow.State.COMPLETED
        found = await plugin.fetch_workflows(app, states=["pending"])
        assert [workflow.id for workflow in found] == [other.id]
        assert [name for name, _ in await plugin.fetch_workflow(app, one.id)] == ["only", "more"]
        assert len(await plugin.fetch_workflows(app, ids=[one.id, other.id, "nobody"])) == 2


@pytest.mark.usefixtures("small_pages")
async def test_a_refused_graph_is_started_when_it_is_corrected(
    harness: Harness, client: TestClient
) -> None:
    async with served(harness.app) as server:
        asking.use(Gateway(server.url))
        for _ in range(2):
            with pytest.raises(InvalidRequest, match="crawler: 'plian'"):
                await Workflow(id="nightly").add("a", crawl("plian")).start()
            assert harness.store.graphs.find_graph("nightly") is None
        workflow = await Workflow(id="nightly").add("a", crawl("plain")).start()
        assert (await workflow.status()).total == 1


@pytest.mark.usefixtures("small_pages")
async def test_equal_graphs_are_started_at_once_and_pages_are_appended_together(
    harness: Harness, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crawler_lifecycle.features.graphs.domain.pages.PAGE_BYTES", 1000)

    def many(name: str, number: int) -> Workflow:
        workflow = Workflow(id="g", check_deps=False)
        for n in range(number):
            workflow.add(f"{name}{n}", Step.new({"n": n}))
        return workflow

    async with served(harness.app) as server:
        asking.use(Gateway(server.url))
        await asyncio.gather(*(many("a", 10).start() for _ in range(10)))
        assert await Workflow(id="g").append(many("b", 10)) == 10
        with pytest.raises(InvalidRequest, match='step "a9"'):
            await Workflow(id="g").append(many("c", 10).add("a9", Step.new({})))
        with pytest.raises(InvalidRequest, match="plian"):
            await Workflow(id="g").append(many("d", 10).add("x", crawl("plian")))
        assert (await Workflow(id="g").status()).total == 20
    assert [row.key for row in harness.store.graphs.newest(states=[GraphState.EXECUTING])] == ["g"]
