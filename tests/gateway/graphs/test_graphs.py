"""Graphs over HTTP: one row and one workflow for each, whatever happens on the way."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import date
from typing import Any, cast

import httpx
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from crawler_lifecycle.domain.names import graph_workflow_id
from crawler_lifecycle.domain.run import StopRequest
from crawler_lifecycle.domain.values import encode, packed
from crawler_lifecycle.features.graphs.domain.pages import encode_pages, fingerprint
from crawler_lifecycle.features.graphs.domain.spec import GraphSpec, StepKind, StepSpec, StepState
from crawler_lifecycle.features.graphs.gateway import routes
from crawler_lifecycle.features.graphs.gateway.commands import SILENT
from crawler_lifecycle.features.managers.domain.manager import BUILT_IN
from crawler_lifecycle.features.managers.ports import UserCodeRow
from crawler_lifecycle.gateway.api import long_poll
from crawler_lifecycle.gateway.sweep import GRACE
from crawler_lifecycle.ports.runs import Owner
from tests.contracts.store.graphing import Graphed, approval, group, step
from tests.gateway.gateway_harness import Harness
from tests.gateway.served import served

STEPS = [
    {
        "path": "fetch",
        "kind": "function",
        "job": {"call": "shop.steps:fetch", "args": {"day": {"$date": "2026-11-22"}}},
    },
    {"path": "parse", "kind": "function", "job": {"call": "shop.steps:parse"}, "deps": ["fetch"]},
]
MODULE = UserCodeRow("shop.steps", "module", None, "", "f1")
BROKEN = UserCodeRow(
    "shop.old", "module", None, "", "f1", error="ImportError: no module named lxml"
)


def crawling(**job: Any) -> dict[str, Any]:
    return {"path": "x", "kind": "crawl", "job": job}


def start(client: TestClient, key: str | None = None, **body: Any) -> Any:
    return client.post("/v1/graphs", json=body, headers={"Idempotency-Key": key} if key else {})


def claimed(harness: Harness, key: str) -> Graphed:
    """Let the open workflow of the graph claim it."""
    row = harness.store.graphs.find_graph(key)
    assert row is not None
    owner = Owner(graph_workflow_id(key), harness.workflows.open[graph_workflow_id(key)])
    return Graphed.claimed(cast(Any, harness), row.graph_id, owner)


def sent(
    harness: Harness, client: TestClient, steps: list[StepSpec], key: str = "g", **more: Any
) -> Graphed:
    """Return a graph that was sent in pages and is owned by its workflow."""
    spec = GraphSpec(steps, context=more.pop("context", {}))
    pages = encode_pages(spec)
    announced = start(client, id=key, pages=len(pages), fingerprint=fingerprint(spec), **more)
    assert announced.json().get("state") == "draft", announced.text
    for number, page in enumerate(pages):
        assert client.put(f"/v1/graphs/{key}/pages/{number}", content=page).status_code == 202
    assert client.post(f"/v1/graphs/{key}/start").status_code == 202
    return claimed(harness, key)


def complete(graphed: Graphed, **results: Any) -> None:
    """Execute everything that waits to be called; named steps record this value."""
    batches = graphed.advance().batches
    while batches:
        for work in (one for batch in batches for one in graphed.work(batch.number)):
            if not graphed.begin(work):
                continue
            done = graphed.end(work)
            if work.path in results:
                data = encode(results[work.path])
                done = graphed.end(work, result=b"".join(packed([data])))
            graphed.begin(done=[done])
        batches = graphed.advance(*(batch.number for batch in batches)).batches


# --- start ----------------------------------------------------------------------------------------


def test_a_small_graph_travels_in_one_body_and_is_one_graph_for_its_id(
    harness: Harness, client: TestClient
) -> None:
    answer = start(
        client, id="nightly 1", name="Nightly", steps=STEPS, context={"k": 1}, tags=["b", "a"]
    )
    found = answer.json()
    assert (answer.status_code, answer.headers["Location"]) == (202, "/v1/graphs/nightly%201")
    assert (found["id"], found["state"], found["total"], found["tags"]) == (
        "nightly 1",
        "executing",
        2,
        ["a", "b"],
    )
    assert "No user-code worker has registered" in found["note"]
    assert harness.workflows.graphs == [("graph/nightly 1", found["graph_id"])]
    again = start(client, id="nightly 1", steps=STEPS, context={"k": 1})
    assert (again.headers["Idempotency-Replayed"], again.json()["graph_id"]) == (
        "true",
        found["graph_id"],
    )
    other = start(client, id="nightly 1", steps=STEPS, context={"k": 2})
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")
    assert start(client, "key-1", steps=STEPS).json()["id"] == "key-1"
    assert client.get("/v1/graphs/nightly 1").json()["counts"] == {"available": 1, "suspended": 1}


def test_what_cannot_be_a_graph_is_refused_with_step_and_fix(
    harness: Harness, client: TestClient
) -> None:
    for body, code, detail in [
        ({"id": "a/b", "steps": STEPS}, "invalid_request", "id: 'a/b' is not allowed"),
        (
            {"id": "a ", "steps": STEPS},
            "invalid_request",
            "id: 'a ' is not allowed; remove the white space",
        ),
        ({"id": "..", "steps": STEPS}, "invalid_request", "id: '..' is not allowed"),
        (
            {"steps": STEPS, "pages": 1},
            "invalid_request",
            "steps: give either steps or the number of pages",
        ),
        ({"pages": 1}, "invalid_request", "fingerprint: give it together with pages"),
        ({"steps": STEPS, "options": {"speed": 1}}, "invalid_request", "options.speed: "),
        ({"steps": STEPS, "options": {"fail_fast": 1}}, "invalid_request", "options.fail_fast: "),
        ({"steps": [STEPS[0], STEPS[0]]}, "invalid_request", 'step "fetch"'),
        ({"steps": [STEPS[1]]}, "invalid_request", 'step "parse"'),
        (
            {"steps": [{"path": "x", "kind": "crawl", "job": {"crawler": "no"}}]},
            "unknown_crawler",
            'step "x": ',
        ),
        (
            {"steps": [{"path": "x", "kind": "crawl", "job": {"crawler": "strict"}}]},
            "invalid_request",
            'step "x": args.site',
        ),
        (
            {"steps": [{"path": "x", "kind": "crawl", "job": {"crawler": "plain", "speed": 1}}]},
            "invalid_request",
            'step "x": speed',
        ),
    ]:
        answer = start(client, **body)
        assert (answer.status_code, answer.json()["code"]) == (422, code), body
        assert answer.json()["detail"].startswith(detail), answer.text
        assert harness.store.graphs.newest() == []


def test_a_function_of_no_registered_module_is_refused(
    harness: Harness, client: TestClient
) -> None:
    harness.store.user_code.register_user_code("worker-1", [MODULE, BROKEN])
    assert start(client, steps=STEPS).json()["note"] is None
    system = [{"path": "x", "kind": "function", "job": {"call": "os:system"}}]
    unknown = start(client, steps=system)
    assert (unknown.status_code, unknown.json()["code"]) == (422, "unknown_class")
    assert "known: shop.old, shop.steps" in unknown.json()["detail"]
    broken = start(
        client, steps=[{"path": "x", "kind": "function", "job": {"call": "shop.old:run"}}]
    )
    assert broken.json()["code"] == "user_code_unusable"
    assert "no module named lxml" in broken.json()["detail"]
    start(client, id="draft", pages=1, fingerprint="0" * 64)
    assert (
        client.put("/v1/graphs/draft/pages/0", json={"steps": system}).json()["code"]
        == "unknown_class"
    )


def test_a_step_is_judged_by_the_pool_that_would_call_it(
    harness: Harness, client: TestClient
) -> None:
    """Two pools may have different code for one module, or one of them none that works."""
    user_code, gpu = harness.store.user_code, replace(BROKEN, error=None, queue="gpu")
    user_code.register_user_code("worker-1", [MODULE, BROKEN])
    user_code.register_user_code("worker-2", [gpu])

    def code(call: str, queue: str | None) -> str:
        steps = [{"path": "x", "kind": "function", "job": {"call": call}, "queue": queue}]
        answer = start(client, steps=steps)
        return str(answer.json().get("code", answer.status_code))

    assert [code("shop.old:run", queue) for queue in (None, "gpu")] == ["user_code_unusable", "202"]
    assert [code("shop.steps:run", queue) for queue in (None, "gpu")] == ["202", "unknown_class"]
    assert [code("shop.old:run", "empty"), code("os:system", "empty")] == [
        "202",
        "unknown_class",
    ], "nobody is there yet"
    user_code.register_user_code("worker-3", [UserCodeRow("shop.new", "reading", None, "", "")])
    assert code("shop.new:run", None) == "user_code_unknown"


def test_workers_that_have_no_module_of_users_are_there_too(
    harness: Harness, client: TestClient
) -> None:
    harness.store.user_code.register_user_code(
        "worker-1", [UserCodeRow(BUILT_IN, "manager", "each", "", "")]
    )
    steps = [{"path": "x", "kind": "function", "job": {"call": "shops.steps:run"}}]
    refused = start(client, steps=steps).json()
    assert refused["code"] == "unknown_class"
    assert "known: none; name its module in LIFECYCLE_USER_CODE__MODULES" in refused["detail"]
    assert start(client, steps=[steps[0] | {"queue": "gpu"}]).status_code == 202, (
        "of that pool nobody knows"
    )


def test_a_draft_is_a_graph_wholly_or_not_at_all(harness: Harness, client: TestClient) -> None:
    spec = GraphSpec([step("a"), step("b", "a")])
    [page] = encode_pages(spec)
    halves = [json.dumps({"steps": [one]}).encode() for one in json.loads(page)["steps"]]
    announced = start(client, id="d", pages=2, fingerprint=fingerprint(spec)).json()
    assert (announced["state"], announced["waiting"]) == (
        "draft",
        "waiting for its 2 pages, and then for its start",
    )
    assert client.put("/v1/graphs/d/pages/1", content=halves[1]).status_code == 202
    missing = client.post("/v1/graphs/d/start")
    assert (missing.status_code, "page 0" in missing.json()["detail"]) == (422, True)
    assert (
        client.put("/v1/graphs/d/pages/1", content=halves[0]).json()["code"]
        == "idempotency_mismatch"
    )
    assert client.put("/v1/graphs/d/pages/0", content=b"[]").status_code == 422
    assert client.put("/v1/graphs/d/pages/0", content=halves[0]).status_code == 202
    for verb in ("cancel", "retry"):
        assert client.post(f"/v1/graphs/d/{verb}").json()["code"] == "not_in_this_state", verb
    assert client.get("/v1/graphs").json()["graphs"] == []
    assert [one["id"] for one in client.get("/v1/graphs?state=draft").json()["graphs"]] == ["d"]
    assert client.post("/v1/graphs/d/start").status_code == 202
    assert client.post("/v1/graphs/d/start").status_code == 200
    late = client.put("/v1/graphs/d/pages/0", content=halves[0])
    assert (late.status_code, late.json()["code"]) == (409, "not_in_this_state")


def test_what_temporal_did_not_hear_is_told_by_the_sweep(
    harness: Harness, client: TestClient
) -> None:
    harness.workflows.down = True
    answer = start(client, id="g", steps=STEPS)
    assert (answer.status_code, "as soon as Temporal" in answer.json()["note"]) == (202, True)
    harness.workflows.down = False
    assert asyncio.run(harness.sweep().once()) == 0
    harness.clock.forward(GRACE.total_seconds() + 1)
    assert asyncio.run(harness.sweep().once()) == 1
    graphed = claimed(harness, "g")
    harness.clock.forward(GRACE.total_seconds() + 1)
    assert asyncio.run(harness.sweep().once()) == 0
    harness.workflows.down = True
    assert client.post("/v1/graphs/g/stop").status_code == 202
    harness.workflows.down = False
    harness.clock.forward(GRACE.total_seconds() + 1)
    assert asyncio.run(harness.sweep().once()) == 1
    assert (harness.workflows.woken, graphed.row.stop is not None) == (["graph/g"], True)


def test_a_graph_whose_workflow_somebody_ended_gets_another_one(
    harness: Harness, client: TestClient
) -> None:
    sent(harness, client, [step("a")])
    del harness.workflows.open["graph/g"]
    harness.clock.forward(GRACE.total_seconds() + 1)
    assert asyncio.run(harness.sweep().once()) == 0
    harness.clock.forward(SILENT.total_seconds())
    assert asyncio.run(harness.sweep().once()) == 1
    assert [one for one, _ in harness.workflows.graphs] == ["graph/g", "graph/g"]
    assert claimed(harness, "g").fence.attempt == 2


# --- what it is -----------------------------------------------------------------------------------


def test_functions_that_no_worker_takes_are_waited_for_in_sight(
    harness: Harness, client: TestClient
) -> None:
    graphed = sent(harness, client, [step("a", queue="nobodys"), step("b", "a")])
    graphed.advance()
    assert "no worker has begun" in client.get("/v1/graphs/g").json()["waiting"]
    one = client.get("/v1/graphs/g/step?path=a").json()
    assert one["reason"] == 'it is waiting for a free worker of the pool "nobodys"'
    listed = client.get("/v1/graphs/g/steps?path=a&path=b").json()["steps"]
    assert [listed[0], listed[1]["reason"]] == [one, 'it is waiting for "a" (available)']
    graphed.begin(*graphed.work(1))
    assert client.get("/v1/graphs/g").json()["waiting"] is None


def test_steps_are_listed_in_pages_with_what_is_in_them(
    harness: Harness, client: TestClient
) -> None:
    graphed = sent(
        harness,
        client,
        [
            group("g"),
            step("g/a"),
            step("g/b", "a"),
            step("z", "g"),
            StepSpec("c", StepKind.CRAWL, {"crawler": "plain"}),
        ],
    )
    first = client.get("/v1/graphs/g/steps?page_size=2").json()
    assert [one["path"] for one in first["steps"]] == ["g", "g/a"]
    rest = client.get("/v1/graphs/g/steps", params={"page_token": first["next_page_token"]}).json()
    assert [(one["path"], one["deps"]) for one in rest["steps"]] == [
        ("g/b", ["a"]),
        ("z", ["g"]),
        ("c", []),
    ]
    assert rest["next_page_token"] is None
    inside = client.get("/v1/graphs/g/steps?path=g&page_size=2").json()
    assert [one["path"] for one in inside["steps"]] == ["g", "g/a"]
    inside = client.get(
        "/v1/graphs/g/steps", params={"path": "g", "page_token": inside["next_page_token"]}
    ).json()
    assert [one["path"] for one in inside["steps"]] == ["g/b"]
    assert [
        one["path"]
        for one in client.get("/v1/graphs/g/steps?state=suspended&path=g").json()["steps"]
    ] == ["g/b"]
    one = client.get("/v1/graphs/g/step?path=z").json()
    assert (one["state"], one["job"]["call"]) == ("suspended", "shop.steps:work")
    assert "g" in one["reason"]
    status = client.get("/v1/graphs/g/status").json()
    assert (status["id"], status["state"], status["total"]) == ("g", "executing", 4)
    assert status["subs"]["g"]["counts"] == {"available": 1, "suspended": 1}
    assert graphed.row.state == "executing"
    for path in ("g/none", ""):
        assert client.get("/v1/graphs/g/step", params={"path": path}).status_code in (404, 422)
    assert client.get("/v1/graphs/no/steps").json()["code"] == "graph_not_found"


def test_results_come_back_as_recorded(
    harness: Harness, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphed = sent(
        harness, client, [group("g"), step("g/a"), step("g/b"), step("z", "g"), step("quiet")]
    )
    values = {"g/a": {"day": date(2026, 11, 22)}, "g/b": ["ü", 1], "z": 3}
    complete(graphed, **values)
    assert client.get("/v1/graphs/g/result?path=g/a").json() == {"day": {"$date": "2026-11-22"}}
    nothing = client.get("/v1/graphs/g/result?path=quiet")
    assert (nothing.status_code, nothing.json()["code"]) == (404, "result_not_found")
    found = client.get("/v1/graphs/g/results").json()
    assert found == {
        "results": {
            "g": {},
            "g/a": {"day": {"$date": "2026-11-22"}},
            "g/b": ["ü", 1],
            "z": 3,
            "quiet": None,
        },
        "next_page_token": None,
    }
    assert list(found["results"]) == ["g", "g/a", "g/b", "z", "quiet"]
    assert list(client.get("/v1/graphs/g/results?path=g").json()["results"]) == ["g", "g/a", "g/b"]
    monkeypatch.setattr(routes, "RESULTS_BYTES", 5)
    pages, token = [], None
    while True:
        page = client.get(
            "/v1/graphs/g/results", params={"page_token": token} if token else {}
        ).json()
        pages.append(list(page["results"]))
        if (token := page["next_page_token"]) is None:
            break
    assert pages == [["g"], ["g/a"], ["g/b"], ["z"], ["quiet"]]


def test_a_context_is_laid_over_that_around_it(harness: Harness, client: TestClient) -> None:
    steps = [group("g", job={"context": {"a": 2}}), step("g/x")]
    sent(harness, client, steps, context={"a": 1, "b": 1})
    assert client.get("/v1/graphs/g/context").json() == {"context": {"a": 1, "b": 1}}
    assert client.get("/v1/graphs/g/context?path=g").json() == {"context": {"a": 2, "b": 1}}
    sent(harness, client, [step("x")], key="none")
    assert client.get("/v1/graphs/none/context").json() == {"context": None}


def test_a_picture_folds_what_is_wide(harness: Harness, client: TestClient) -> None:
    sent(harness, client, [group("g"), *(step(f"g/{n}") for n in range(51)), step("z", "g")])
    found = client.get("/v1/graphs/g/picture").json()
    assert [(one["path"], one["steps"]) for one in found["nodes"]] == [("g", 51), ("z", None)]
    assert (found["edges"], found["nodes"][0]["counts"]) == ([["g", "z"]], {"available": 51})
    for every in ("*", "g"):
        assert len(client.get(f"/v1/graphs/g/picture?expand={every}").json()["nodes"]) == 53
    assert client.get("/v1/graphs/g/picture?format=mermaid").text.startswith("flowchart TD\n")
    assert client.get("/v1/graphs/g/picture?format=dot").text.startswith("digraph")


def test_a_step_of_a_kind_of_another_version_is_listed_and_drawn(
    harness: Harness, client: TestClient
) -> None:
    """After a rollback, rows of the newer version remain."""
    sent(harness, client, [step("a"), step("b", "a")])
    with harness.store.database.writing() as conn:
        conn.execute(text("UPDATE graph_step SET kind = 'survey' WHERE path = 'b'"))
    assert [one["kind"] for one in client.get("/v1/graphs/g/steps").json()["steps"]] == [
        "function",
        "survey",
    ]
    nodes = client.get("/v1/graphs/g/picture").json()["nodes"]
    assert [(one["kind"], one["label"]) for one in nodes] == [("function", "work"), ("survey", "")]
    assert client.get("/graphs/g").status_code == 200


# --- commands -------------------------------------------------------------------------------------


def test_commands_count_once_for_each_key_and_wake_the_workflow(
    harness: Harness, client: TestClient
) -> None:
    graphed = sent(harness, client, [step("a"), step("b", "a"), step("z")])
    body = {"names": ["a"], "reason": "wrong day", "requested_by": "ada"}
    for _ in range(2):
        answer = client.post(
            "/v1/graphs/g/cancel", json=body, headers={"Idempotency-Key": "k"}
        ).json()
        assert (answer["count"], answer["state"]) == (1, "executing")
    assert graphed.states() == {"a": "cancelled", "b": "cancelled", "z": "available"}
    assert graphed.step("a").reason == "cancelled by ada: wrong day"
    # The same key for another verb is another command.
    assert client.post("/v1/graphs/g/retry", headers={"Idempotency-Key": "k"}).json()["count"] == 2
    more = {
        "context": {},
        "steps": [{"path": "n", "kind": "function", "job": {"call": "a:b"}, "deps": ["z"]}],
    }
    assert client.post("/v1/graphs/g/append", json=more).json()["count"] == 1
    assert client.post("/v1/graphs/g/append", json=more).status_code == 422
    unknown = client.post("/v1/graphs/g/cancel", json={"names": ["a", "none"]})
    assert (unknown.status_code, 'step "none"' in unknown.json()["detail"]) == (422, True)
    assert harness.workflows.woken == ["graph/g"] * 4


def test_an_approval_is_decided_once(harness: Harness, client: TestClient) -> None:
    graphed = sent(harness, client, [approval("g 1"), step("a", "g 1"), approval("late", "a")])
    graphed.advance()
    waiting = client.get("/v1/graphs/g").json()["waiting"]
    assert waiting == "step \"g 1\": it is waiting for an approval: crawlctl graph approve g 'g 1'"

    def decide(**body: Any) -> Any:
        return client.post("/v1/graphs/g/approve", json={"requested_by": "ada", **body})

    for body, status, told in (
        ({}, 422, "step"),
        ({"step": "g 1", "approved": "perhaps"}, 422, "approved"),
        ({"step": "none"}, 422, 'step "none": there is no such step in this graph'),
        (
            {"step": "a"},
            422,
            "step: 'a' is not allowed; its kind is function; name a step of kind approval",
        ),
        (
            {"step": "late"},
            409,
            'it is suspended (it is waiting for "a" (suspended)); decide when it is waiting',
        ),
    ):
        refused = decide(**body)
        assert (refused.status_code, told in refused.text.replace("\\", "")) == (status, True), (
            refused.text
        )
    assert [decide(step="g 1", note="go").json()["count"] for _ in range(2)] == [1, 0]
    other = decide(step="g 1", approved=False)
    assert (other.status_code, "approved by ada: go" in other.json()["detail"]) == (409, True)
    said = client.get("/v1/graphs/g/result", params={"path": "g 1"}).json()
    assert (said["approved"], said["by"], said["note"]) == (True, "ada", "go")
    assert harness.workflows.woken == ["graph/g"] * 2
    assert client.post("/v1/graphs/none/approve", json={"step": "g 1"}).status_code == 404


def test_a_graph_that_has_ended_goes_on_after_a_retry(harness: Harness, client: TestClient) -> None:
    graphed = sent(harness, client, [step("a"), step("b", "a")])
    graphed.execute(state=StepState.DISCARDED)
    harness.store.graphs.end_graph(graphed.fence, "Step 'a' was discarded")
    del harness.workflows.open["graph/g"]
    over = client.get("/v1/graphs/g").json()
    assert (over["state"], over["counts"]) == ("discarded", {"cancelled": 1, "discarded": 1})
    assert client.post("/v1/graphs/g/stop").status_code == 200
    assert client.post("/v1/graphs/g/cancel").json() == {
        "id": "g",
        "count": 0,
        "state": "discarded",
        "note": None,
    }
    assert client.post("/v1/graphs/g/retry", json={"cascade": True}).json()["count"] == 2
    assert [one for one, _ in harness.workflows.graphs] == ["graph/g", "graph/g"]
    again = claimed(harness, "g")
    assert (again.row.attempt, again.states()) == (2, {"a": "available", "b": "suspended"})


def test_a_stop_that_a_spoilt_step_holds_up_names_it(harness: Harness, client: TestClient) -> None:
    graphed = sent(harness, client, [step("a"), step("b")])
    with harness.store.database.writing() as conn:
        conn.execute(text("UPDATE graph_step SET shape = '{\"long\": 7}' WHERE path = 'b'"))
    told = client.post("/v1/graphs/g/stop").json()["waiting"]
    assert told.startswith('step "b": graph_step')
    assert "shape is" in told
    with harness.store.database.writing() as conn:
        conn.execute(text("UPDATE graph_step SET shape = NULL WHERE path = 'b'"))
    graphed.advance()
    assert graphed.states() == {"a": "cancelled", "b": "cancelled"}
    assert (
        client.get("/v1/graphs/g").json()["waiting"]
        == "it is being stopped, and is waiting for the end of its steps"
    )


def test_a_stop_is_on_record_and_reaches_the_workflow_past_a_spoilt_row(
    harness: Harness, client: TestClient
) -> None:
    graphed = sent(harness, client, [step("a")])
    assert client.post("/v1/graphs/g/stop", json={"reason": "enough"}).status_code == 202
    assert client.post("/v1/graphs/g/stop", json={"reason": "enough"}).status_code == 200
    assert client.post("/v1/graphs/g/stop", json={"force": True}).json()["stop"]["force"] is True
    assert graphed.states() == {"a": "cancelled"}
    with harness.store.database.writing() as conn:
        conn.execute(text("UPDATE graph SET options = '{\"fail_fast\": 7.5}'"))
    assert client.post("/v1/graphs/g/stop").json()["code"] == "row_unreadable"
    [(workflow, stop)] = harness.workflows.signals
    assert (workflow, stop) == ("graph/g", StopRequest(None, None, None, False))
    [listed] = client.get("/v1/graphs").json()["graphs"]
    assert "fail_fast of the options" in listed["unreadable"]


# --- waiting --------------------------------------------------------------------------------------


async def test_a_wait_for_the_end_ends_with_it(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_poll, "REREAD_S", 10_000.0)
    with TestClient(harness.new_app(), base_url="http://127.0.0.1:8500") as client:
        graphed = sent(harness, client, [step("a"), step("b", "a")])
    async with (
        served(harness.app) as server,
        httpx.AsyncClient(base_url=server.url, timeout=90) as http,
    ):
        waits = [
            asyncio.create_task(http.get(f"/v1/graphs/g{what}?wait=60"))
            for what in ("/status", "/status", "")
        ]
        await asyncio.sleep(0.5)
        await asyncio.to_thread(complete, graphed)
        changed = await waits[2]
        assert changed.json()["counts"] != {"available": 1, "suspended": 1}
        assert not waits[0].done()
        await asyncio.to_thread(harness.store.graphs.end_graph, graphed.fence, None)
        for answer in await asyncio.gather(*waits[:2]):
            assert (answer.json()["state"], answer.json()["total"]) == ("completed", 2)
        assert (await http.get("/v1/graphs/g/status?wait=60")).json()["state"] == "completed"
