"""Graphs as text and as nodes and edges: the documents' examples, golden files, and a parser for
the output.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from crawler_lifecycle.features.graphs.domain.render import (
    EDGES_MAX,
    FAN_ABOVE,
    NODES_MAX,
    label,
    picture,
    to_dot,
    to_mermaid,
)
from crawler_lifecycle.features.graphs.domain.spec import StepKind, StepSpec, StepState
from tests.domain.graph.steps import crawl, group, step

GOLDEN = Path(__file__).parent / "golden"


def worker(path: str, of: str, *deps: str) -> StepSpec:
    return replace(step(path, *deps), job={"call": f"shop.steps:{of}", "label": of})


OBAN = [
    worker("setup", "SetupWorker"),
    worker("process_a", "ProcessWorker", "setup"),
    worker("process_b", "ProcessWorker", "setup"),
    worker("finish", "FinishWorker", "process_a", "process_b"),
]
NESTED = [
    worker("setup", "SetupWorker"),
    group("extract", "setup"),
    worker("extract/extract", "ExtractWorker"),
    group("extract/none", "extract"),
    group("extract/deep"),
    crawl("extract/deep/end", "late"),
    group("many", "extract"),
    *(worker(f"many/{n}", "Item") for n in range(51)),
    replace(worker("notify", "Notifier", "many"), graft=True),
    worker("notify/1", "Send"),
    worker("summary", "Sum", "notify", "extract"),
]
STATES = {one.path: list(StepState)[n % 8] for n, one in enumerate(NESTED)}
ODD = [
    *(
        "end",
        "Graph",
        'a"b',
        "a\\",
        "\\",
        'a\\"b',
        "<b>x<",
        "&lt;",
        "#35;",
        "`x`",
        "**x**",
        "$$x$$",
        "1. x",
        "10) x",
    ),
    *(
        "- x",
        'style:x"',
        '%%{init: {"theme":"dark"}}%%',
        "a]",
        "(a)",
        "{{a}}",
        "a|b",
        "a;b",
        "ünï",
        "日本",
        "o",
        "x",
    ),
    *(
        "--> c",
        "_a_",
        "__init__",
        "\\N",
        "\\n",
        "click",
        "@{ shape: x }",
        "🙂",
        "'",
        "step_1",
        "a b",
        "a_b",
        "%5",
        ".",
    ),
]


def golden(name: str, text: str) -> None:
    """Check that the file contains this text. To write it again, delete it and review the result."""
    file = GOLDEN / name
    if not file.exists():
        file.write_text(text)
        pytest.fail(f"{file} was not there; read what was written, and keep it")
    assert text == file.read_text()


def test_texts_are_those_of_the_golden_files() -> None:
    golden("oban.dot", to_dot(OBAN, "nightly etl"))
    golden("nested.dot", to_dot(NESTED, states=STATES))
    golden("nested.mmd", to_mermaid(NESTED, STATES))
    golden("odd.dot", to_dot([step(name) for name in ODD], 'a "b" \\'))
    golden("odd.mmd", to_mermaid([step(name) for name in ODD]))


def test_texts_do_not_depend_on_the_hash_seed() -> None:
    code = "from tests.domain.graph.test_render import *; print(to_dot(NESTED, states=STATES), to_mermaid(NESTED, STATES))"
    root = Path(__file__).parents[3]
    made = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            cwd=root,
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(made) == 1


def test_mermaid_reads_back() -> None:
    """The parser supports only what we write: each name is its own node, with the intended text."""
    text = to_mermaid([step(name, *ODD[n - 1 : n]) for n, name in enumerate(ODD)])
    nodes, edges = {}, []
    for line in text.splitlines()[1:]:
        if found := re.fullmatch(r'  ([A-Za-z_]\w*)\["([^"]*)"\]', line, re.ASCII):
            nodes[found[1]] = re.sub(r"#(\d+);", lambda code: chr(int(code[1])), found[2])
        else:
            edges.append(re.fullmatch(r"  (\w+) --> (\w+)", line, re.ASCII).groups())  # type: ignore[union-attr]
    assert list(nodes.values()) == [f"{name} (work)" for name in ODD]
    assert edges == list(zip(nodes, list(nodes)[1:], strict=False))
    assert not {"end", "graph", "Graph", "click"} & set(nodes)


@pytest.mark.skipif(
    shutil.which("dot") is None, reason="graphviz is not installed; `make test-deps` installs it"
)
@pytest.mark.parametrize("name", ["oban.dot", "nested.dot", "odd.dot"])
def test_graphviz_reads_what_was_meant(name: str) -> None:
    made = subprocess.run(["dot", "-Tjson", GOLDEN / name], capture_output=True, check=True)
    assert not made.stderr
    read = json.loads(made.stdout)
    # Graphviz leaves the escapes of a label to the renderer.
    labels = [
        one["label"]
        .replace("\\\\", "\0")
        .replace("\\n", "\n")
        .replace("\0", "\\")
        .replace("&amp;", "&")
        for one in read["objects"]
        if one.get("style") != "invis" and "cluster" not in one["name"]
    ]
    if name == "odd.dot":
        assert sorted(labels) == sorted(f"{one} (work)" for one in ODD)
    if name == "nested.dot":
        inner = {one["name"] for one in read["objects"] if one["name"].startswith("cluster_")}
        assert inner == {"cluster_extract", "cluster_extract/deep", "cluster_notify"}
        assert (
            "many (51 steps: 7 suspended, 7 scheduled, 6 available, 6 executing, 6 retryable, 6 completed, 6 "
            in ("\n".join(labels))
        )
        assert len(read["edges"]) == 7


def test_a_wide_graph_is_one_box_unless_it_is_expanded() -> None:
    found = picture(NESTED, STATES)
    many = next(node for node in found.nodes if node.path == "many")
    assert (many.steps, sum(many.counts.values()), many.label, many.state) == (
        51,
        51,
        "",
        "cancelled",
    )
    assert not any(node.path.startswith("many/") for node in found.nodes)
    assert ("extract", "many") in found.edges
    assert ("extract/deep/late", "extract/deep/end") in found.edges
    for expand in (True, ["many"]):
        assert (
            sum(node.path.startswith("many/") for node in picture(NESTED, expand=expand).nodes)
            == 51
        )
    wide = picture([step(str(n), *(["0"] if n else [])) for n in range(NODES_MAX + 5)], expand=True)
    assert (len(wide.nodes), len(wide.edges), wide.left_out) == (NODES_MAX, NODES_MAX - 1, 5)
    assert picture([]).nodes == []
    assert to_mermaid([]) == "flowchart TD\n"


def test_a_fan_out_of_a_large_graph_is_one_node_unless_it_is_expanded() -> None:
    fan = [worker(f"page_{n}", "Fetch", "list") for n in range(1000)]
    others = [worker(f"other_{n}", "Check", "list") for n in range(FAN_ABOVE)]
    last = [worker("sum", "Sum", *(one.path for one in fan)), worker("end", "End")]
    steps = [worker("list", "List"), *fan, *others, *last]
    states = {
        one.path: StepState.COMPLETED if n % 2 else StepState.EXECUTING for n, one in enumerate(fan)
    }
    found = picture(steps, states)
    assert [node.path for node in found.nodes] == [
        "list",
        "page_0",
        *(one.path for one in others),
        "sum",
        "end",
    ]
    [folded] = [node for node in found.nodes if node.steps]
    assert (folded.name, folded.steps) == ("page_0 … page_999", 1000)
    assert (folded.state, folded.kind) == (None, StepKind.FUNCTION)
    assert folded.counts == {"executing": 500, "completed": 500}
    assert {("list", "page_0"), ("page_0", "sum"), ("list", "other_3")} <= set(found.edges)
    assert len(found.edges) == 2 + FAN_ABOVE
    for expand in (True, ["page_0"]):
        assert len(picture(steps, expand=expand).nodes) == len(steps)
    assert len(picture(steps[:40]).nodes) == 40, "a small graph is drawn as it is"
    layers = [
        worker(f"{part}{n}", f"{part}{n}", *(f"a{m}" for m in range(500) if part == "b"))
        for part in "ab"
        for n in range(500)
    ]
    crowded = picture(layers)
    assert (len(crowded.nodes), len(crowded.edges), crowded.edges_left_out) == (
        1000,
        EDGES_MAX,
        250_000 - EDGES_MAX,
    )


def test_a_label_says_what_a_step_does() -> None:
    works: list[tuple[StepKind, dict[str, str], str]] = [
        (StepKind.FUNCTION, {"call": "m:f"}, "f"),
        (StepKind.FUNCTION, {"call": "a.b:C.d"}, "d"),
        (StepKind.FUNCTION, {"call": "m:f", "label": "F"}, "F"),
        (StepKind.CRAWL, {"crawler": "books"}, "books"),
        (StepKind.MANAGER, {"plan": "m:M"}, "M"),
        (StepKind.GRAPH, {}, ""),
        (StepKind.APPROVAL, {}, "approval"),
    ]
    assert [label(StepSpec("a", kind, job)) for kind, job, _ in works] == [
        text for _, _, text in works
    ]
