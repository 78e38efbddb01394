"""Whatever has lost its workflow is reported wherever people read it, as soon as a search has found
it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle.domain.audits.overdue import overdue_words
from crawler_lifecycle.domain.due_ids import due_workflow_id
from crawler_lifecycle.domain.names import graph_workflow_id
from crawler_lifecycle.features.webhooks.domain.definition import webhook_workflow_id
from crawler_lifecycle.ports.runs import Owner
from tests.gateway.gateway_harness import Harness
from tests.support.fakes.services import FakeDirectory

HOOK = {"url": "https://hooks.example.com/in", "secrets": ["env:CRAWL_HOOK"]}
STEP = {"path": "one", "kind": "crawl", "job": {"crawler": "plain"}}


def fits(ask: Callable[[], Any], told: Callable[[Any], bool]) -> Any:
    """Wait for a matching response, and return it."""
    end = time.monotonic() + 60
    while not told(answer := ask()):
        assert time.monotonic() < end, answer
        time.sleep(0.02)
    return answer


def begun(client: TestClient, harness: Harness) -> dict[str, str]:
    """Begin one of each. Return its workflow id."""
    manager = client.post("/v1/managers", json={"crawler": "plain", "flow_id": "f"})
    assert manager.status_code == 202, manager.text
    assert client.post("/v1/graphs", json={"id": "g", "steps": [STEP]}).status_code == 202
    assert (
        client.put(
            "/v1/schedules/s", json={"run": {"crawler": "plain"}, "cron": "0 13 * * *"}
        ).status_code
        == 200
    )
    assert client.post("/v1/schedules/s/trigger").status_code == 202
    assert client.put("/v1/webhooks/w", json=HOOK).status_code == 200
    harness.store.graphs.claim_graph(1, Owner(graph_workflow_id("g"), "chain"))
    harness.store.managers.claim_manager(1, Owner("manager/plain/f", "chain"))
    harness.store.webhooks.follow_webhook("w", "chain")
    due = due_workflow_id("s", harness.clock.now)
    return {"manager": "manager/plain/f", "graph": graph_workflow_id("g"), "due time": due,
            "webhook": webhook_workflow_id("w")}  # fmt: skip


def test_a_terminated_workflow_is_told_until_it_is_there_again(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crawler_lifecycle.gateway.metrics.FRESH_S", 0.0)
    s, directory = harness.store, FakeDirectory()
    audit = harness.audit(directory)
    with harness.client(harness.new_app(blocked_s=0.02)) as client:
        ids = begun(client, harness)
        assert set(ids) == set(audit.kinds)
        directory.open = {Owner(one, "chain") for one in ids.values()}
        assert [audit.search(what, repair=True) for what in audit.kinds] == [0, 0, 0, 0]
        places: list[Callable[[], Any]] = [
            lambda: client.get("/v1/managers").json()["managers"][0]["waiting"],
            lambda: client.get("/v1/managers/1").json()["waiting"],
            lambda: client.get("/v1/graphs").json()["graphs"][0]["waiting"],
            lambda: client.get("/v1/graphs/g").json()["waiting"],
            lambda: client.get("/v1/schedules").json()["schedules"][0]["trouble"],
            lambda: client.get("/v1/schedules/s").json()["trouble"],
            lambda: client.get("/v1/schedules/s/firings").json()["firings"][0]["reason"],
            lambda: client.get("/v1/webhooks").json()["webhooks"][0]["error"],
            lambda: client.get("/v1/webhooks/w").json()["error"],
            lambda: client.get("/schedules").text,
            lambda: client.get("/webhooks").text,
        ]
        assert not [place() for place in places if "it has no workflow" in (place() or "")]
        harness.clock.forward(1)
        directory.open, directory.closed = set(), dict.fromkeys(ids.values(), harness.clock.now)
        assert [audit.search(what, repair=True) for what in audit.kinds] == [1, 1, 1, 1]
        for place in places:
            fits(place, lambda text: "it has no workflow" in (text or ""))
        assert client.get("/v1/webhooks/w").json()["state"] == "failing"
        overdue = client.get("/v1/runs").json()["overdue"]
        assert (overdue["count"], overdue["lost"]) == (0, 4)
        assert overdue["text"].endswith(
            "but its workflow was terminated; and 3 more without a workflow"
        )
        assert "lifecycle_without_workflow 4.0" in client.get("/metrics").text
        started: list[Mapping[str, object]] = [
            *(directory.managers_begun, directory.graphs_begun),
            *(directory.due_begun, directory.webhooks_begun),
        ]
        assert not any(started)
        harness.clock.forward(30)
        assert [audit.search(what, repair=True) for what in audit.kinds] == [1, 1, 1, 1]
        assert [list(one) for one in started] == [[one] for one in ids.values()]
        directory.open = {Owner(one, "chain") for one in ids.values()}
        assert [audit.search(what, repair=True) for what in audit.kinds] == [0, 0, 0, 0]
        assert overdue_words(s.overdue.overdue_polls(harness.clock.now), harness.clock.now) is None
        for place in places:
            fits(place, lambda text: "it has no workflow" not in (text or ""))


def test_what_somebody_else_took_up_is_told_no_longer(harness: Harness) -> None:
    s, directory = harness.store, FakeDirectory()
    audit = harness.audit(directory)
    with harness.client() as client:
        ids = begun(client, harness)
        directory.closed = dict.fromkeys(ids.values(), harness.clock.now)
        assert audit.search("manager", repair=True) == 1
        harness.clock.forward(5)
        directory.open = {Owner(ids["manager"], "another chain")}
        assert audit.search("manager", repair=True) == 0
        assert s.overdue.overdue_polls(harness.clock.now).lost == 0
