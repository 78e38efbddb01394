"""What is refused, each with its step, its value and a fix."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.features.graphs.domain.checks import check
from crawler_lifecycle.features.graphs.domain.commands import AppendSteps
from crawler_lifecycle.features.graphs.domain.engine import Graph
from crawler_lifecycle.features.graphs.domain.pages import decode_pages, encode_pages
from crawler_lifecycle.features.graphs.domain.spec import (
    DEPS_MAX,
    STEPS_MAX,
    GraphOptions,
    GraphSpec,
    StepKind,
    StepSpec,
)
from tests.domain.graph.steps import NOW, approval, begin, crawl, graph, group, step

GOOD_NAMES = [
    *(
        "a",
        "A B",
        "ünï",
        "日本",
        "🙂",
        "a.b",
        '"',
        "\\",
        "'",
        "%",
        "-",
        " ",
        "<b>",
        "${x}",
        "..",
        "0",
    )
]
GOOD_NAMES += ["x" * 200]
BAD_NAMES = [
    "",
    "x" * 201,
    "a/",
    "/a",
    "a//b",
    "a\n",
    "a\x00",
    "\x7f",
    "\x85",
    "\u2028",
    "\u2029",
    "\ud800",
]


@pytest.mark.parametrize("name", GOOD_NAMES)
def test_names_of_all_kinds_may_be(name: str) -> None:
    spec = GraphSpec(
        [group(name), step(f"{name}/{name}"), step("z" * 200 + "z" if name == "z" else "zz", name)]
    )
    check(spec)
    assert decode_pages(encode_pages(spec), spec.options) == spec


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_cannot_be(name: str) -> None:
    with pytest.raises(
        InvalidRequest, match=r"give a string of 1 to 200 characters|leave out the /"
    ):
        check(GraphSpec([step(name)]))


def deep(levels: int) -> list[StepSpec]:
    return [group("/".join("d" * n)) for n in range(1, levels)] + [step("/".join("d" * levels))]


def function(**job: Any) -> StepSpec:
    return StepSpec("a", StepKind.FUNCTION, {"call": "m:f", **job})


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)
NESTED: list[Any] = []
for _ in range(100_000):
    NESTED = [NESTED]


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ([step("a", "a")], r'step "a": it depends on itself'),
        (
            [step("a", "b")],
            r'step "a": deps: there is no step "b" in its level; add it, or build the graph with check',
        ),
        ([step("a", "g/x"), group("g"), step("g/x")], r'step "a": deps: .g/x. is not allowed'),
        (
            [group("g"), step("x"), step("g/y", "x")],
            r'step "g/y": deps: there is no step "x" in its level',
        ),
        (
            [step("a"), step("a")],
            r'step "a": this name already exists; use each name only once per level',
        ),
        ([step("g/x")], r'step "g/x": graph "g" does not precede it'),
        ([step("a"), step("a/b")], r'step "a/b": "a" is not a graph'),
        (deep(21), r"graphs may be 20 levels deep"),
        ([step("/".join(["d" * 200] * 5) + "/x")], r"at most 1000 characters"),
        (
            [step("a", "c"), step("b", "a"), step("c", "b"), step("d", "c")],
            r'deps: "a" waits for "c" waits for "b" waits for "a": none of these steps could ever start',
        ),
        ([group("g", "b"), step("g/x"), step("b", "g")], r'"g" waits for "b" waits for "g"'),
        ([step("a", priority=10)], r'step "a": priority: 10 is not allowed'),
        ([step("a", priority=True)], r"priority: True"),
        ([step("a", timeout_s=float("nan"))], r"timeout_s: nan"),
        ([step("a", timeout_s=0)], r"timeout_s: 0"),
        ([step("a", max_attempts=0)], r"max_attempts: 0"),
        ([step("a", backoff_s=-1)], r"backoff_s: -1"),
        (
            [step("a", not_before="2026-03-01T12:00:00Z")],
            r"not_before: .+ give a datetime with its zone",
        ),
        (
            [step("a", not_before=datetime(2026, 1, 1))],
            r"not_before: '2026-01-01T00:00:00' is not allowed",
        ),
        ([step("a", queue="a b")], r"queue: 'a b'"),
        ([step("a", max_parallel=3)], r"max_parallel: 3 is not allowed; set it on a group"),
        ([group("g", max_parallel=0)], r"max_parallel: 0"),
        ([group("g", resources=({"db": "1"},))], r"is not allowed; set it on the steps in it"),
        (
            [crawl("a", graft=True)],
            r"graft: True is not allowed; only a function or a worker may graft",
        ),
        *(
            (
                [step("a", resources=({"db": amount},))],
                r"resources: db: .* is not allowed; give an amount above 0",
            )
            for amount in ("0", "1/0", "-1", "0.0", "1e9", "x", "1" * 10, 1, "١")
        ),
        ([step("a", resources=({},) * 6)], r"resources: 6 is not allowed"),
        ([step("a", resources=({"": "1"},))], r"resources: '' is not allowed"),
        ([function(call="m")], r"call: 'm' is not allowed; give \"module:function\""),
        ([function(call="m:f.<locals>.g")], r"name a function of a module"),
        ([function(call="m:<lambda>")], r"name a function of a module"),
        ([function(call="os.system('x'):f")], r"call: "),
        (
            [function(style="shell")],
            r"style: 'shell' is not allowed; give one of plain, worker, cascade, item",
        ),
        ([function(args=[1])], r"args: \[1\] is not allowed; give an object"),
        ([function(argz={})], r"argz: {} is not allowed; this field does not exist"),
        ([function(item=float("nan"))], r'step "a": job: this is not JSON .*; give a JSON object'),
        ([function(item={1: 2})], r"JSON would change this value"),
        ([function(item=(1, 2))], r"JSON would change this value"),
        ([function(item=b"x")], r"this is not JSON"),
        ([function(item="\ud800")], r"this is not JSON"),
        ([function(item=CIRCLE)], r"this is not JSON"),
        ([function(item=NESTED)], r"this is not JSON"),
        ([function(item="x" * 1024 * 1024)], r"bytes are too many; give at most 1048576"),
        ([StepSpec("a", StepKind.CRAWL, {})], r"crawler: None is not allowed"),
        (
            [StepSpec("a", StepKind.CRAWL, {"crawler": "b", "parent": "x"})],
            r"parent: 'x' is not allowed; leave it out",
        ),
        ([StepSpec("a", StepKind.MANAGER, {})], r"plan: None"),
        (
            [StepSpec("a", StepKind.MANAGER, {"plan": "x:Y", "flow_id": "f "})],
            r"flow_id: 'f ' is not allowed; give at most",
        ),
        (
            [StepSpec("a", StepKind.MANAGER, {"plan": "x:Y", "options": []})],
            r"options: \[\] is not allowed",
        ),
        ([approval("a", timeout_s=0)], r"timeout_s: 0 is not allowed; give a number above 0"),
        ([approval("a", call="m:f")], r"call: 'm:f' is not allowed; this field does not exist"),
        (
            [replace(approval("a"), timeout_s=9.0)],
            r"timeout_s: 9.0 is not allowed; give its limit with the job",
        ),
        (
            [replace(approval("a"), max_attempts=2)],
            r"max_attempts: 2 is not allowed; an approval is decided once",
        ),
        ([replace(approval("a"), resources=({"db": "1"},))], r"an approval executes nothing"),
        ([StepSpec("a", StepKind.GRAPH, {"context": 1})], r"context: 1 is not allowed"),
        (
            [step(str(n)) for n in range(STEPS_MAX + 1)],
            r"steps: 20001 are too many .* put several items into one step",
        ),
        (
            [
                *(step(str(n)) for n in range(500)),
                *(step(f"b{n}", *map(str, range(500))) for n in range(401)),
            ],
            rf"deps: 200500 are too many; give at most {DEPS_MAX}: depend on a group",
        ),
    ],
)
def test_a_graph_that_cannot_be(steps: list[StepSpec], text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        check(GraphSpec(steps))


def test_options_that_cannot_be() -> None:
    with pytest.raises(InvalidRequest, match="max_parallel: 0"):
        check(GraphSpec([], GraphOptions(max_parallel=0)))
    with pytest.raises(InvalidRequest, match="pools: db: 'none'"):
        check(GraphSpec([], GraphOptions(pools={"db": "none"})))


def test_no_step_takes_more_of_a_pool_than_was_declared() -> None:
    """Whether sent, appended or grafted: otherwise the pool would be larger for all steps."""
    pools, two = {"db": "1", "gpu": "1/2"}, ({"other": "9"}, {"db": "2"})
    text = r'resources: 2 of "db" is more than its graph has \(pools: 1\); give at most 1'
    with pytest.raises(InvalidRequest, match=f'step "g/a": {text}'):
        check(GraphSpec([group("g"), step("g/a", resources=two)], GraphOptions(pools=pools)))
    one = graph(step("a", resources=({"db": "1"},)), step("grafts", graft=True), pools=pools)
    one.pick(NOW, batches=9, begin=9)
    grafts = begin(one, "grafts")
    for below, where in ((None, "late"), (grafts, "grafts/late")):
        with pytest.raises(InvalidRequest, match=f'step "{where}": {text}'):
            one.add([step("late", resources=two)], below)
    with pytest.raises(InvalidRequest, match=r'2/3 of "gpu" is more'):
        one.add([step("late", resources=({"gpu": "2/3"},))])
    one.add([step("late", resources=({"gpu": "0.5"},))], grafts)


def test_a_cycle_is_named_in_full_up_to_a_hundred_steps() -> None:
    ring = [step(str(n), str((n + 1) % 99)) for n in range(99)]
    with pytest.raises(InvalidRequest) as refused:
        check(GraphSpec(ring))
    assert str(refused.value).count(" waits for ") == 99
    ring = [step(str(n), str((n + 1) % STEPS_MAX)) for n in range(STEPS_MAX)]
    with pytest.raises(InvalidRequest, match=r"waits for \(19901 more\) waits for") as refused:
        check(GraphSpec(ring))
    assert len(str(refused.value)) < 3000


def test_too_many_by_growth_and_nothing_has_changed() -> None:
    one = graph(*(step(str(n)) for n in range(STEPS_MAX - 1)))
    with pytest.raises(InvalidRequest, match="20001 are too many"):
        one.add([step("x"), step("y")])
    with pytest.raises(InvalidRequest, match='there is no step "nobody"'):
        one.add([step("x", "nobody")])
    assert len(one.steps) == STEPS_MAX - 1
    one.add([step("x")])
    assert Graph(one.options, one.steps).state == one.state


def test_what_is_appended_is_checked_when_it_comes_in() -> None:
    with pytest.raises(InvalidRequest, match=r'step "a": priority: 99'):
        AppendSteps(steps=[step("a", priority=99)])


def test_times_and_numbers_of_all_kinds_may_be() -> None:
    check(
        GraphSpec(
            [
                step(
                    "a",
                    not_before=datetime(2026, 1, 1, tzinfo=UTC),
                    timeout_s=0.5,
                    backoff_s=0,
                    max_attempts=20,
                ),
                step(
                    "b",
                    "a",
                    "a",
                    resources=({"db": "1/3", "gpu": "0.5"}, {"other": "2"}),
                    queue="big-1",
                ),
                step("c", "late"),
            ],
            GraphOptions(check_deps=False, pools={"db": "2"}, max_parallel=1),
        )
    )
