"""Deployment calls that are too large for the scheduler service are split, and never fail the run."""

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
from tests.activities.harness import CRAWLERS, Harness
from tests.support.fakes.services import FakeCatalogue

#: The arguments of one task, as large as a request may make them.
HEAVY = "x" * (TASK_BYTES_MAX - 1000)


class Wire:
    """The real client and the real service, with a proxy between them that accepts bodies up to
    ``limit``.
    """

    def __init__(self, harness: Harness) -> None:
        self.limit = BODY_MAX
        self.sizes: list[int] = []
        self._service = TestClient(
            create_app(harness.cluster, FakeCatalogue(CRAWLERS)), base_url="http://127.0.0.1"
        )
        harness.scheduler = HttpSchedulerClient(  # type: ignore[assignment]
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
def wire(harness: Harness) -> Wire:
    harness.cluster.behaviour = UNTIL_STOPPED
    return Wire(harness)


def _created(harness: Harness, sizes: list[int]) -> Fence:
    """A run whose tasks have arguments of these sizes."""
    fence = harness.created(1)
    harness.store.additions.add_tasks(
        fence.run_id, "more", [{"shelf": "x" * size} for size in sizes], fence
    )
    return fence


def _deploy_all(harness: Harness, fence: Fence) -> int:
    calls = 0
    while "QUEUED" in harness.statuses():
        harness.call("run_onetime_crawler", Deploy(fence))
        calls += 1
        assert calls < 50
    return calls


def test_a_page_of_the_largest_tasks_fits_the_service_and_a_proxy_that_nobody_told_anything(
    harness: Harness, wire: Wire
) -> None:
    fence = _created(harness, [len(HEAVY)] * 40)
    _deploy_all(harness, fence)
    assert set(harness.statuses()) == {"PENDING"}
    assert max(wire.sizes) < 1024 * 1024 <= BODY_MAX
    assert len(wire.sizes) <= 5, "pages are as large as they may be"


def test_a_call_that_a_proxy_finds_too_large_is_halved_and_no_task_is_refused(
    harness: Harness, wire: Wire
) -> None:
    wire.limit = 3 * TASK_BYTES_MAX
    fence = _created(harness, [len(HEAVY)] * 9)
    _deploy_all(harness, fence)
    assert harness.statuses() == ["PENDING"] * 10
    assert [task.outcome for task in harness.tasks()] == [None] * 10


def test_one_task_that_is_too_large_alone_is_told_by_name_and_waits_for_its_fix(
    harness: Harness, wire: Wire
) -> None:
    wire.limit = 30_000
    fence = _created(harness, [len(HEAVY), 10])
    harness.call("run_onetime_crawler", Deploy(fence))
    assert harness.statuses() == ["PENDING", "QUEUED", "QUEUED"]
    for _ in range(2):
        with pytest.raises(
            CallTooLarge, match="for task 1 alone; raise the limit of the service or of its proxy"
        ):
            harness.call("run_onetime_crawler", Deploy(fence))
        assert "task 1 alone" in (harness.row().waiting_for or "")
        assert harness.statuses() == ["PENDING", "QUEUED", "QUEUED"]
    # It was not offered, so no call is in progress, and a stop need not wait.
    assert all(
        task.offered_until is None
        for task in harness.store.polls.found_state(fence).tasks
        if task.status == "QUEUED"
    )
    wire.limit = BODY_MAX
    _deploy_all(harness, fence)
    assert set(harness.statuses()) == {"PENDING"}


def test_what_is_offered_is_what_one_call_carries(harness: Harness) -> None:
    fence = _created(harness, [OFFER_BYTES_MAX // 4] * 6 + [2 * OFFER_BYTES_MAX, 5])
    until = harness.clock() + timedelta(seconds=35)
    seen = []
    for _ in range(8):
        tasks, _stop = harness.store.deployment.offer_tasks(fence, 100, None, until)
        if not tasks:
            break
        seen.append([task.index for task in tasks])
        size = sum(len(json.dumps(task.args)) for task in tasks)
        assert size <= OFFER_BYTES_MAX or len(tasks) == 1
        answers = [
            DeployedTask(task.index, "created", f"n{task.index}", f"u{task.index}")
            for task in tasks
        ]
        harness.store.deployment.record_deployed(fence, "local", tasks, answers, harness.clock())
    assert seen == [[0, 1, 2, 3], [4, 5, 6], [7], [8]]
