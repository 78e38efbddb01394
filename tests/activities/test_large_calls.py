"""Deployment calls that are too large for the scheduler service: fewer tasks at once, and never a
verdict.
"""

from __future__ import annotations

import json
from datetime import timedelta

import httpx
import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle.activities.deployment import Deploy
from crawler_lifecycle.adapters.scheduler import HttpSchedulerClient
from crawler_lifecycle.domain.bounds import OFFER_BYTES_MAX
from crawler_lifecycle.domain.errors import CallTooLarge
from crawler_lifecycle.domain.run import TASK_BYTES_MAX
from crawler_lifecycle.ports.runs import DeployedTask, Fence
from crawler_lifecycle.scheduler.app import BODY_MAX, create_app
from tests.activities.cases import UNTIL_STOPPED
from tests.activities.world import CRAWLERS, World
from tests.support.fakes.services import FakeCatalogue

#: The arguments of one task, as large as any request may make them.
HEAVY = "x" * (TASK_BYTES_MAX - 1000)


class Wire:
    """The real client and the real service, with a proxy between them that takes bodies up to
    ``limit``.
    """

    def __init__(self, world: World) -> None:
        self.limit = BODY_MAX
        self.sizes: list[int] = []
        self._service = TestClient(
            create_app(world.cluster, FakeCatalogue(CRAWLERS)), base_url="http://127.0.0.1"
        )
        world.scheduler = HttpSchedulerClient(  # type: ignore[assignment]
            "http://127.0.0.1", transport=httpx.MockTransport(self._pass)
        )

    def _pass(self, request: httpx.Request) -> httpx.Response:
        self.sizes.append(len(request.content))
        if len(request.content) > self.limit:
            return httpx.Response(
                413, content=b"<html><h1>413 Request Entity Too Large</h1></html>"
            )
        answer = self._service.request(
            request.method,
            request.url.path,
            content=request.content,
            headers={"content-type": "application/json"},
        )
        return httpx.Response(answer.status_code, content=answer.content, headers=answer.headers)


@pytest.fixture
def wire(world: World) -> Wire:
    world.cluster.behaviour = UNTIL_STOPPED
    return Wire(world)


def _created(world: World, sizes: list[int]) -> Fence:
    """A run whose tasks have arguments of these sizes."""
    fence = world.created(1)
    world.store.additions.add_tasks(
        fence.run_id, "more", [{"shelf": "x" * size} for size in sizes], fence
    )
    return fence


def _deploy_all(world: World, fence: Fence) -> int:
    calls = 0
    while "QUEUED" in world.statuses():
        world.call("run_onetime_crawler", Deploy(fence))
        calls += 1
        assert calls < 50
    return calls


def test_a_page_of_the_largest_tasks_fits_the_service_and_a_proxy_that_nobody_told_anything(
    world: World, wire: Wire
) -> None:
    fence = _created(world, [len(HEAVY)] * 40)
    _deploy_all(world, fence)
    assert set(world.statuses()) == {"PENDING"}
    assert max(wire.sizes) < 1024 * 1024 <= BODY_MAX
    assert len(wire.sizes) <= 5, "pages are as large as they may be"


def test_a_call_that_a_proxy_finds_too_large_is_halved_and_no_task_is_refused(
    world: World, wire: Wire
) -> None:
    wire.limit = 3 * TASK_BYTES_MAX
    fence = _created(world, [len(HEAVY)] * 9)
    _deploy_all(world, fence)
    assert world.statuses() == ["PENDING"] * 10
    assert [task.outcome for task in world.tasks()] == [None] * 10


def test_one_task_that_is_too_large_alone_is_told_by_name_and_waits_for_its_fix(
    world: World, wire: Wire
) -> None:
    wire.limit = 30_000
    fence = _created(world, [len(HEAVY), 10])
    world.call("run_onetime_crawler", Deploy(fence))
    assert world.statuses() == ["PENDING", "QUEUED", "QUEUED"]
    for _ in range(2):
        with pytest.raises(
            CallTooLarge, match="for task 1 alone; raise the limit of the service or of the proxy"
        ):
            world.call("run_onetime_crawler", Deploy(fence))
        assert "task 1 alone" in (world.row().waiting_for or "")
        assert world.statuses() == ["PENDING", "QUEUED", "QUEUED"]
    # It was not offered, so nothing is on its way: a stop needs to wait for nobody.
    assert all(
        task.offered_until is None
        for task in world.store.polls.found_state(fence).tasks
        if task.status == "QUEUED"
    )
    wire.limit = BODY_MAX
    _deploy_all(world, fence)
    assert set(world.statuses()) == {"PENDING"}


def test_what_is_offered_is_what_one_call_carries(world: World) -> None:
    fence = _created(world, [OFFER_BYTES_MAX // 4] * 6 + [2 * OFFER_BYTES_MAX, 5])
    until = world.clock() + timedelta(seconds=35)
    seen = []
    for _ in range(8):
        tasks, _stop = world.store.deployment.offer_tasks(fence, 100, None, until)
        if not tasks:
            break
        seen.append([task.index for task in tasks])
        size = sum(len(json.dumps(task.args)) for task in tasks)
        assert size <= OFFER_BYTES_MAX or len(tasks) == 1
        answers = [
            DeployedTask(task.index, "created", f"n{task.index}", f"u{task.index}")
            for task in tasks
        ]
        world.store.deployment.record_deployed(fence, "local", answers, world.clock())
    assert seen == [[0, 1, 2, 3], [4, 5, 6], [7], [8]]
