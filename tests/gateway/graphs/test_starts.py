"""A start is one decision: a refusal leaves nothing behind, and a repetition gets the first
response at any time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle.features.graphs.domain.pages import encode_pages, fingerprint
from crawler_lifecycle.features.graphs.domain.spec import GraphSpec, GraphState, StepKind, StepSpec
from crawler_lifecycle.features.graphs.ports import NewGraph
from crawler_lifecycle.features.graphs.store.graphs import DRAFT_S
from crawler_lifecycle.features.managers.ports import UserCodeRow
from tests.contracts.store.graphing import chain, step
from tests.gateway.gateway_harness import Harness

Send = Callable[[TestClient, str, GraphSpec], list[Any]]


def crawling(crawler: str) -> GraphSpec:
    return GraphSpec([step("a"), StepSpec("b", StepKind.CRAWL, {"crawler": crawler}, ("a",))])


def whole(client: TestClient, key: str, spec: GraphSpec) -> list[Any]:
    steps = [
        {"path": one.path, "kind": one.kind, "job": one.job, "deps": list(one.deps)}
        for one in spec.steps
    ]
    return [client.post("/v1/graphs", json={"id": key, "steps": steps})]


def paged(client: TestClient, key: str, spec: GraphSpec) -> list[Any]:
    """Send what clients send, until a response is an error.

    A sender whose draft is gone begins again.
    """
    pages, whose = encode_pages(spec), fingerprint(spec)
    for _ in range(10):
        answers = [
            client.post("/v1/graphs", json={"id": key, "pages": len(pages), "fingerprint": whose})
        ]
        if answers[-1].json().get("state") != "draft":
            return answers
        calls = [("PUT", f"pages/{number}", page) for number, page in enumerate(pages)]
        for method, what, data in [*calls, ("POST", "start", None)]:
            path = f"/v1/graphs/{key}/{what}?fingerprint={whose}"
            answers.append(client.request(method, path, content=data))
            if not answers[-1].is_success:
                break
        if answers[-1].status_code != 404:
            return answers
    raise AssertionError("its draft was removed again and again")


def rows(harness: Harness) -> list[tuple[str, str]]:
    return [
        (row.key, str(row.state)) for row in harness.store.graphs.newest(states=list(GraphState))
    ]


@pytest.mark.parametrize("send", [whole, paged])
def test_a_refused_start_leaves_nothing_and_the_corrected_one_has_its_id(
    harness: Harness, client: TestClient, send: Send
) -> None:
    refused = send(client, "nightly", crawling("plian"))[-1]
    assert (refused.status_code, refused.json()["code"]) == (422, "unknown_crawler")
    assert rows(harness) == []
    assert client.get("/v1/graphs/nightly").status_code == 404
    assert send(client, "nightly", crawling("plain"))[-1].status_code == 202
    assert rows(harness) == [("nightly", "executing")]


@pytest.mark.parametrize("send", [whole, paged])
def test_a_draft_that_a_client_left_is_continued_replaced_or_stopped(
    harness: Harness, client: TestClient, send: Send
) -> None:
    spec, other = GraphSpec(chain(2)), GraphSpec(chain(3))
    for key, left in (("same", spec), ("other", other), ("stopped", other)):
        page, whose = encode_pages(left)[0], fingerprint(left)
        client.post("/v1/graphs", json={"id": key, "pages": 1, "fingerprint": whose})
        client.put(f"/v1/graphs/{key}/pages/0", content=page)
    stopped = client.post("/v1/graphs/stopped/stop")
    assert (stopped.status_code, stopped.json()["state"]) == (202, "cancelled")
    assert "was removed" in stopped.json()["note"]
    assert client.get("/v1/graphs/stopped").status_code == 404
    for key in ("same", "other", "stopped"):
        assert send(client, key, spec)[-1].status_code == 202
        assert send(client, key, spec)[-1].status_code in (200, 202)
        assert send(client, key, other)[-1].json()["code"] == "idempotency_mismatch"
    assert sorted(rows(harness)) == [
        ("other", "executing"),
        ("same", "executing"),
        ("stopped", "executing"),
    ]


def test_a_late_page_of_a_replaced_draft_reaches_no_other_graph(client: TestClient) -> None:
    spec, other = GraphSpec(chain(2)), GraphSpec(chain(3))
    whose = fingerprint(spec)
    client.post("/v1/graphs", json={"id": "g", "pages": 1, "fingerprint": whose})
    client.post("/v1/graphs", json={"id": "g", "pages": 1, "fingerprint": fingerprint(other)})
    for method, what in (("PUT", "pages/0"), ("POST", "start")):
        late = client.request(
            method, f"/v1/graphs/g/{what}?fingerprint={whose}", content=encode_pages(spec)[0]
        )
        assert (late.status_code, late.json()["code"]) == (422, "idempotency_mismatch")
    assert paged(client, "g", other)[-1].status_code == 202


def test_drafts_are_never_open_and_leave_by_themselves(
    harness: Harness, client: TestClient
) -> None:
    graphs = harness.store.graphs
    for number in range(5):
        graphs.reserve_graph(NewGraph(f"d{number}", "0" * 64, 1))
    harness.clock.forward(DRAFT_S - 1)
    asyncio.run(harness.sweep().once())
    assert len(graphs.newest(states=[GraphState.DRAFT])) == 5
    harness.clock.forward(2)
    asyncio.run(harness.sweep().once())
    assert graphs.newest(states=[GraphState.DRAFT]) == []


def test_a_repeat_is_answered_though_what_it_needs_is_gone(
    harness: Harness, client: TestClient
) -> None:
    spec = GraphSpec(chain(2))
    harness.store.user_code.register_user_code(
        "worker", [UserCodeRow("shop.steps", "module", None, "", "f")]
    )
    first = whole(client, "g", spec)[0]
    harness.store.user_code.register_user_code("worker", [])
    harness.store.user_code.register_user_code(
        "worker-2", [UserCodeRow("shop.other", "module", None, "", "f")]
    )
    harness.clock.forward(3600)
    harness.store.user_code.register_user_code(
        "worker-2", [UserCodeRow("shop.other", "module", None, "", "f")]
    )
    for again in (whole(client, "g", spec)[-1], paged(client, "g", spec)[-1]):
        assert again.json()["graph_id"] == first.json()["graph_id"]
        assert again.headers["Idempotency-Replayed"] == "true"


@pytest.mark.parametrize("many", [2, 10])
@pytest.mark.parametrize("send", [whole, paged, None])
def test_equal_starts_at_one_moment_are_all_answered_alike(
    harness: Harness,
    client: TestClient,
    monkeypatch: pytest.MonkeyPatch,
    many: int,
    send: Send | None,
) -> None:
    """``None``: some are sent whole and some in pages."""
    monkeypatch.setattr("crawler_lifecycle.features.graphs.domain.pages.PAGE_BYTES", 1000)
    spec, ways = GraphSpec(chain(20)), [whole, paged] if send is None else [send]
    for round in range(3):
        with ThreadPoolExecutor(many) as pool:
            key = f"g{round}"
            chosen = [random.Random(f"{round}/{n}").choice(ways) for n in range(many)]
            answers = [
                one
                for each in pool.map(lambda way, key=key: way(client, key, spec), chosen)
                for one in each
            ]
        assert [one.text for one in answers if not one.is_success and one.status_code != 404] == []
    assert sorted(rows(harness)) == [("g0", "executing"), ("g1", "executing"), ("g2", "executing")]


@pytest.mark.parametrize("many", [2, 10])
def test_different_starts_at_one_moment_are_one_graph_and_refusals(
    harness: Harness, client: TestClient, many: int
) -> None:
    for round in range(3):
        with ThreadPoolExecutor(many) as pool:
            key = f"g{round}"
            specs = [GraphSpec(chain(n + 1)) for n in range(many)]
            last = [
                each[-1] for each in pool.map(lambda spec, key=key: paged(client, key, spec), specs)
            ]
        assert sum(one.is_success for one in last) == 1
        assert {one.json()["code"] for one in last if not one.is_success} == {
            "idempotency_mismatch"
        }
        [won] = [n for n, one in enumerate(last) if one.is_success]
        assert client.get(f"/v1/graphs/{key}").json()["total"] == won + 1


def test_refused_starts_at_one_moment_are_all_told_why(
    harness: Harness, client: TestClient
) -> None:
    with ThreadPoolExecutor(10) as pool:
        last = [
            each[-1]
            for each in pool.map(lambda _: paged(client, "g", crawling("plian")), range(10))
        ]
    assert {one.json()["code"] for one in last} == {"unknown_crawler"}
    assert rows(harness) == []


def test_pages_of_steps_are_appended_all_or_none(
    harness: Harness, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crawler_lifecycle.features.graphs.domain.pages.PAGE_BYTES", 1000)
    whole(client, "g", GraphSpec([step("a")]))

    def append(key: str, steps: list[StepSpec]) -> Any:
        spec = GraphSpec(steps)
        pages, whose = encode_pages(spec), fingerprint(spec)
        client.post("/v1/graphs", json={"id": "draft", "pages": len(pages), "fingerprint": whose})
        for number, page in enumerate(pages):
            sent = client.put(f"/v1/graphs/draft/pages/{number}", content=page)
            if not sent.is_success:
                return sent
        return client.post("/v1/graphs/g/append?draft=draft", headers={"Idempotency-Key": key})

    more = chain(20)
    refused = append("k", [*more, StepSpec("z", StepKind.CRAWL, {"crawler": "plian"})])
    assert (refused.status_code, client.get("/v1/graphs/g").json()["total"]) == (422, 1)
    twin = append("k", [*more, step("a")])
    assert (twin.status_code, client.get("/v1/graphs/g").json()["total"]) == (422, 1)
    added = append("k", more)
    # Its draft is gone.
    again = client.post("/v1/graphs/g/append?draft=draft", headers={"Idempotency-Key": "k"})
    for answer in (added, again):
        assert (answer.status_code, answer.json()["count"]) == (200, 20)
    assert rows(harness) == [("g", "executing")]
    gone = client.post("/v1/graphs/g/append?draft=draft", headers={"Idempotency-Key": "other"})
    assert (gone.status_code, gone.json()["errors"][0]["field"]) == (422, "draft")
