"""Starting, controlling, showing and waiting for graphs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import respx

from crawler_lifecycle.features.graphs.domain.pages import decode_pages, fingerprint
from crawler_lifecycle.features.graphs.domain.spec import GraphOptions
from tests.cli.cli_support import Crawlctl

GRAPH: dict[str, Any] = {
    "id": "nightly 1",
    "name": "nightly",
    "workflow_id": "graph/nightly 1",
    "state": "executing",
    "attempt": 1,
    "total": 3,
    "counts": {"suspended": 2, "executing": 1},
    "waiting": None,
    "cause": None,
    "created_at": "2026-11-20T11:59:00Z",
    "ended_at": None,
}
COMPLETED = GRAPH | {
    "state": "completed",
    "counts": {"completed": 3},
    "ended_at": "2026-11-20T11:59:58Z",
}
DISCARDED = COMPLETED | {
    "state": "discarded",
    "counts": {"discarded": 3},
    "cause": "Step 'a' was discarded: boom",
}
CANCELLED = COMPLETED | {"state": "cancelled", "counts": {"cancelled": 3}}
AT = "/v1/graphs/nightly%201"
SHOPS = """
from crawler_lifecycle.graphs.jobs import crawl
from crawler_lifecycle.graphs.workflow import Workflow

print("loading")

def build(day, crawler="plain"):
    return Workflow("shops", id=f"shops-{day}").add("books", crawl(crawler)).add("prices", crawl(crawler), "books")
"""


def body(route: respx.Route) -> Any:
    return json.loads(route.calls.last.request.content)


def test_a_graph_is_built_by_its_module_in_a_process_beside_and_sent_in_pages(
    gateway: respx.MockRouter, crawlctl: Crawlctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shops.py").write_text(SHOPS)
    monkeypatch.chdir(tmp_path)
    drafts = gateway.post("/v1/graphs").respond(
        202, json=GRAPH | {"id": "shops-7", "state": "draft"}
    )
    page = gateway.put("/v1/graphs/shops-7/pages/0").respond(202, json={"note": "nobody calls it"})
    begun = gateway.post("/v1/graphs/shops-7/start").respond(
        202, json=GRAPH | {"id": "shops-7", "note": "later"}
    )
    result = crawlctl(
        "graph", "start", "shops:build", "--tag", "t", "--project", "shop-a", "--", "7"
    )
    assert result.code == 0, result.err
    assert "graph shops-7: nobody calls it later" in result.err, (
        "what was said of a page counts as well"
    )
    sent = body(drafts)
    assert (sent["id"], sent["name"], sent["tags"], sent["pages"]) == ("shops-7", "shops", ["t"], 1)
    assert sent["project"] == "shop-a"
    spec = decode_pages([page.calls.last.request.content], GraphOptions())
    assert [step.path for step in spec.steps] == ["books", "prices"]
    assert (sent["fingerprint"], sent["requested_by"], begun.call_count) == (
        fingerprint(spec),
        "tester",
        1,
    )
    # The same as a file, which a dry run writes.
    dry = crawlctl("graph", "start", "shops:build", "--dry-run", "--", "7")
    (tmp_path / "shops.json").write_text(dry.out)
    assert crawlctl("graph", "start", "--file", "shops.json").code == 0
    assert body(drafts)["fingerprint"] == sent["fingerprint"]
    failed = crawlctl("graph", "start", "shops:nobody", "--", "7")
    assert failed.code == 2
    assert failed.err == (
        "crawlctl: 'shops:nobody' returned no graph\n"
        "  why:  AttributeError: module 'shops' has no attribute 'nobody'\n"
        "  next: correct it, and try again\n"
    ), "its process says nothing beside it"
    assert (
        "  why:  it names no function; give module:function"
        in crawlctl("graph", "start", "shops").err
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("nonsense", "this is not valid JSON"),
        ("[]", "give a JSON object with steps"),
        ('{"steps": [], "speed": 1}', "give a JSON object with steps"),
        (
            '{"steps": [{"path": "a", "kind": "crawl", "job": {"crawler": "c"}, "deps": ["b"]}]}',
            'step "a"',
        ),
        ('{"steps": [], "options": {"speed": 1}}', "speed"),
    ],
)
def test_a_file_that_is_no_graph_asks_nobody(
    gateway: respx.MockRouter, crawlctl: Crawlctl, tmp_path: Path, content: str, said: str
) -> None:
    file = tmp_path / "graph.json"
    file.write_text(content)
    result = crawlctl("graph", "start", "--file", str(file))
    assert (result.code, said in result.err) == (2, True), result.err
    assert (
        crawlctl("graph", "start").code
        == crawlctl("graph", "start", "a:b", "--file", str(file)).code
        == 2
    )


@pytest.mark.parametrize(("end", "code"), [(COMPLETED, 0), (DISCARDED, 5), (CANCELLED, 6)])
@pytest.mark.parametrize("verb", ["wait", "watch"])
def test_the_exit_code_tells_how_it_ended(
    gateway: respx.MockRouter, crawlctl: Crawlctl, verb: str, end: dict[str, Any], code: int
) -> None:
    gateway.get(AT).mock(side_effect=[respx.MockResponse(json=one) for one in (GRAPH, end)])
    result = crawlctl("graph", verb, "nightly 1")
    assert result.code == code, result.err
    if code:
        assert (
            "next: crawlctl graph describe 'nightly 1' · crawlctl graph retry 'nightly 1'"
            in result.err
        )
    gateway.get(AT).respond(json=end)
    assert crawlctl("graph", "wait", "nightly 1", "--for", "ended").code == 0


def test_steps_are_cancelled_and_retried_by_their_paths(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    cancelled = gateway.post(f"{AT}/cancel").respond(
        json={"id": "nightly 1", "count": 2, "note": None}
    )
    result = crawlctl("graph", "stop", "nightly 1", "--step", "g/a", "--reason", "wrong")
    assert (result.code, "2 steps cancelled" in result.out) == (0, True)
    assert body(cancelled) == {"reason": "wrong", "requested_by": "tester", "names": ["g/a"]}
    retried = gateway.post(f"{AT}/retry").respond(
        json={"id": "nightly 1", "count": 1, "note": "later"}
    )
    result = crawlctl("graph", "retry", "nightly 1", "--no-cascade", "--fresh")
    assert ("1 step retried" in result.out, "later" in result.err) == (True, True)
    assert body(retried) == {"cascade": False, "fresh": True, "requested_by": "tester"}
    assert crawlctl("graph", "stop", "a", "b", "--step", "x").code == 2
    stopped = gateway.post(f"{AT}/stop").respond(202, json=GRAPH)
    assert crawlctl("graph", "force-stop", "nightly 1").code == 2
    assert crawlctl("graph", "force-stop", "nightly 1", "--yes").code == 0
    assert body(stopped) == {"requested_by": "tester", "force": True}


def test_a_step_is_approved_or_rejected(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    decided = gateway.post(f"{AT}/approve").respond(
        json={"id": "nightly 1", "count": 1, "note": None}
    )
    result = crawlctl("graph", "approve", "nightly 1", "g/ask", "--note", "go")
    assert (result.code, "1 step approved" in result.out) == (0, True)
    assert body(decided) == {
        "step": "g/ask",
        "approved": True,
        "note": "go",
        "requested_by": "tester",
    }
    result = crawlctl("graph", "approve", "nightly 1", "g/ask", "--reject", "--by", "ada")
    assert (result.code, "1 step rejected" in result.out) == (0, True)
    assert body(decided) == {"step": "g/ask", "approved": False, "requested_by": "ada"}


def test_graphs_and_their_steps_are_shown(gateway: respx.MockRouter, crawlctl: Crawlctl) -> None:
    step = {
        "path": "g/a",
        "kind": "crawl",
        "state": "retryable",
        "job": {"crawler": "plain"},
        "deps": ["b"],
    }
    step |= {
        "tries": 1,
        "max_attempts": 3,
        "run_id": 7,
        "errors": [{"attempt": 1, "error": "boom"}],
        "reason": "5 s",
    }
    gateway.get("/v1/graphs").respond(
        json={"graphs": [GRAPH], "next_page_token": "x", "total": 7, "total_exact": True}
    )
    listed_graphs = crawlctl("graph", "list", "--state", "executing", "--limit", "1")
    assert ("1 running" in listed_graphs.out, listed_graphs.err) == (
        True,
        "1 of 7; for more: --limit\n",
    )
    gateway.get(AT).respond(json=GRAPH)
    listed = gateway.get(f"{AT}/steps").respond(json={"steps": [step], "next_page_token": None})
    runs = gateway.get("/v1/runs", params={"parent": "graph/nightly 1"}).respond(
        json={"runs": [{"run_id": 7}]}
    )
    result = crawlctl("graph", "describe", "nightly 1", "--below", "g")
    assert "g/a" in result.out
    assert "crawlctl list --parent" in result.err
    runs.respond(json={"runs": []})
    assert "crawlctl list" not in crawlctl("graph", "describe", "nightly 1").err, (
        "there is nothing to list"
    )
    assert listed.calls.last.request.url.params["path"] == "g"
    gateway.get(f"{AT}/step").respond(json=step)
    shown = crawlctl("graph", "step", "nightly 1", "g/a")
    assert "attempt 1: boom" in shown.out
    assert "crawlctl describe 7" in shown.err
    gateway.get(f"{AT}/result").respond(text='{"n": 1}')
    assert crawlctl("graph", "step", "nightly 1", "g/a", "--result").json == {"n": 1}
    drawn = gateway.get(f"{AT}/picture").respond(text="flowchart TD\n")
    assert (
        crawlctl("graph", "render", "nightly 1", "--expand", "g", "--expand", "h").out
        == "flowchart TD\n"
    )
    params = drawn.calls.last.request.url.params
    assert (params["format"], params.get_list("expand")) == ("mermaid", ["g", "h"])


def test_a_graph_that_nobody_knows_is_not_found(
    gateway: respx.MockRouter, crawlctl: Crawlctl
) -> None:
    problem = {
        "code": "graph_not_found",
        "detail": "graph 'x' does not exist",
        "title": "Graph not found",
    }
    gateway.get("/v1/graphs/x").respond(404, json=problem)
    result = crawlctl("graph", "describe", "x")
    assert (result.code, "crawlctl graph list" in result.err) == (3, True)
