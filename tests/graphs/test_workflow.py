"""Building graphs: the spec that results, and what is refused with step, value and fix (rows O-02 …
O-06, section 4).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any

import pytest

from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.run import Limits
from crawler_lifecycle.features.graphs.domain.spec import StepKind, StepSpec
from crawler_lifecycle.graphs import Workflow, crawl, manager, worker
from crawler_lifecycle.graphs.job import Job
from crawler_lifecycle.graphs.jobs import STEP_PRIORITY
from crawler_lifecycle.graphs.oban import Workflow as ObanWorkflow
from crawler_lifecycle.managers import GeneratorCrawlManager

HERE = "tests.graphs.test_workflow"


def plain(a: int = 0, b: int = 0) -> int:
    return a + b


def cascade(context: dict[str, Any]) -> None: ...


def each(item: Any, context: dict[str, Any]) -> None: ...


@worker(queue="default", priority=3, meta={"team": "prices"})
class Worker:
    def process(self, job: Any) -> None: ...


class Shops(GeneratorCrawlManager):
    name = "shops"


def paths(workflow: Workflow) -> list[str]:
    return [step.path for step in workflow.spec().steps]


def only(workflow: Workflow) -> StepSpec:
    (step,) = workflow.spec().steps
    return step


def test_a_spec_has_the_order_in_which_steps_were_added() -> None:
    sub = Workflow("inner").add("x", plain).add("y", plain, "x")
    workflow = (
        Workflow()
        .add("z", plain)
        .add_workflow("sub", sub, deps="z")
        .add_many("many", {"k": Worker.new({}), "j": plain}, dependencies=["sub"])
        .add_cascade("fan", (["p", "q"], each))
        .add_group([("g1", plain), ("g2", plain)], "fan")
        .add("a", Workflow().add("deep", Workflow()), ["z", "z", "many"])
    )
    assert paths(workflow) == [
        *("z", "sub", "sub/x", "sub/y", "many", "many/k", "many/j"),
        *("fan", "fan/0", "fan/1", "g1", "g2", "a", "a/deep"),
    ]
    steps = {step.path: step for step in workflow.spec().steps}
    assert (steps["sub"].kind, steps["sub"].job, steps["sub/y"].deps) == (
        StepKind.GRAPH,
        {"name": "inner"},
        ("x",),
    )
    assert (steps["a"].deps, steps["many"].deps, steps["g2"].deps) == (
        ("z", "many"),
        ("sub",),
        ("fan",),
    )
    assert steps["fan/1"].job == {
        "call": f"{HERE}:each",
        "style": "item",
        "label": "each",
        "item": "q",
    }
    assert len(workflow) == 7


def test_a_sub_graph_may_be_used_twice_and_grow_later() -> None:
    sub = Workflow().add("x", plain)
    workflow = Workflow().add_workflow("one", sub).add_workflow("two", sub)
    sub.add("y", plain)
    assert paths(workflow) == ["one", "one/x", "one/y", "two", "two/x", "two/y"]


def test_a_key_that_is_no_name_gets_a_safe_one() -> None:
    """As in ``fan_out``: the items of a fan-out are often named by their URL."""
    urls = {"https://a.com/x?y": 1, "b": 2, 7: 3, "\n" + "é" * 300: 4}
    made = Workflow().add_cascade("fan", (urls, each)).add_many("many", dict.fromkeys(urls, plain))
    names = [path.partition("/")[2] for path in paths(made)]
    assert names[1:4] == ["https:__a.com_x?y", "b", "7"]
    assert names[4].startswith("_ééé")
    assert (len(names[4]), names[6:]) == (77, names[1:5])
    assert [step.job["item"] for step in made.spec().steps[1:5]] == [1, 2, 3, 4]


def test_jobs() -> None:
    assert only(Workflow().add("s", plain, args={"a": 1})).job == {
        "call": f"{HERE}:plain",
        "style": "plain",
        "label": "plain",
        "args": {"a": 1},
    }
    made = only(
        Workflow().add("s", Worker.new({"since": datetime(2026, 1, 1, tzinfo=UTC)}, priority=1))
    )
    assert made.job["args"] == {"since": {"$datetime": "2026-01-01T00:00:00+00:00"}}
    assert (made.job["style"], made.job["meta"], made.priority, made.queue) == (
        "worker",
        {"team": "prices"},
        1,
        None,
    )
    started = manager(Shops, argv=["--loop-mode", 5], flow_id="f")
    assert only(Workflow().add("s", started)).job == {
        "plan": f"{HERE}:Shops",
        "options": {"argv": ["--loop-mode", "5"]},
        "flow_id": "f",
    }
    due = datetime(2026, 1, 2, tzinfo=UTC)
    run = crawl(
        "shops",
        args={"page": 2, "none": None},
        limits=Limits(run_timeout_s=60),
        resources={"cpu": "1"},
        due_at=due,
    )
    assert only(Workflow().add("s", run)).job == {
        "crawler": "shops",
        "args": {"page": "2"},
        "limits": {"run_timeout_s": 60},
        "resources": {"cpu": "1"},
        "due_at": "2026-01-02T00:00:00+00:00",
    }


def test_options() -> None:
    step = only(
        Workflow().add(
            "s",
            plain,
            timeout_s=90,
            max_attempts=3,
            backoff_s=2,
            queue="slow",
            resources=[{"browser": 1}, {"gpu": Fraction(1, 3), "lease": "0.5"}],
            schedule_in=60,
            ignore_discarded=True,
        )
    )
    assert (step.timeout_s, step.max_attempts, step.backoff_s, step.queue) == (90, 3, 2, "slow")
    assert step.resources == ({"browser": "1"}, {"gpu": "1/3", "lease": "0.5"})
    assert (step.ignore_cancelled, step.ignore_discarded) == (False, True)
    assert step.not_before is not None
    assert timedelta(0) < step.not_before - datetime.now(UTC) < timedelta(seconds=61)
    whole = (
        Workflow(max_parallel=3, pools={"browser": 2}, fail_fast=True, check_deps=False)
        .spec()
        .options
    )
    assert (whole.max_parallel, whole.pools, whole.fail_fast, whole.check_deps) == (
        3,
        {"browser": "2"},
        True,
        False,
    )
    fan = Workflow().add_cascade("fan", ([1], each), max_parallel=1, timeout_s=5).spec().steps
    assert [(one.max_parallel, one.timeout_s) for one in fan] == [(1, 60), (None, 5)]


def test_the_two_scales_of_priority_are_one_table() -> None:
    assert STEP_PRIORITY == {1: 0, 2: 2, 3: 4, 4: 6, 5: 8}
    assert only(Workflow().add("s", crawl("shops", priority=2))).priority == 2
    assert only(Workflow().add("s", crawl("shops", priority=2), priority=9)).priority == 9


def test_ignoring_is_of_the_step_else_of_its_level() -> None:
    inner = (
        Workflow(ignore_discarded=True).add("x", plain).add("y", plain, "x", ignore_discarded=False)
    )
    workflow = Workflow(ignore_cancelled=True).add("a", plain).add_workflow("sub", inner, "a")
    workflow.add("b", plain, "sub", ignore_cancelled=False).add_many("many", [plain], "b")
    found = {
        step.path: (step.ignore_cancelled, step.ignore_discarded) for step in workflow.spec().steps
    }
    assert found == {
        "a": (True, False),
        "sub": (True, False),
        "sub/x": (False, True),
        "sub/y": (False, False),
        "b": (False, False),
        "many": (True, False),
        "many/0": (True, False),
    }


def test_context_is_of_its_level_and_laid_over() -> None:
    inner = Workflow().add_context({"b": 2}).add("x", plain)
    workflow = Workflow().add_context({"a": 1}).add_context({"b": 1}).add_workflow("sub", inner)
    spec = workflow.spec()
    assert (spec.context, spec.steps[0].job["context"]) == ({"a": 1, "b": 1}, {"b": 2})


def test_the_defaults_of_oban() -> None:
    """O-17: twenty tries unless the job says otherwise; a crawl is tried once."""
    workflow = ObanWorkflow().add("w", Worker.new({})).add_cascade("c", cascade, max_attempts=2)
    workflow.add_many("m", [Worker.new({}, max_attempts=3), Worker.new({})]).add(
        "crawl", crawl("shops")
    )
    found = {step.path: step.max_attempts for step in workflow.spec().steps}
    assert found == {"w": 20, "c": 2, "m": 1, "m/0": 3, "m/1": 20, "crawl": 1}
    assert ObanWorkflow("id", "name").id == "id"


def nested(context: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
    def inner(context: dict[str, Any]) -> None: ...

    return inner


class Holder:
    @staticmethod
    def static(context: dict[str, Any]) -> None: ...


def itself() -> Workflow:
    workflow = Workflow()
    return workflow.add_workflow("w", workflow)


def recursive() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


W = Workflow
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "an unknown dependency": (
        lambda: W().add("a", plain, "x"),
        r'^step "a": deps: there is no step "x"; add it first',
    ),
    "a step on itself": (
        lambda: W(check_deps=False).add("a", plain, "a"),
        '^step "a": it depends on itself',
    ),
    "a second name": (
        lambda: W().add("a", plain).add("a", plain),
        '^step "a": a step with this name exists; .*replace=True',
    ),
    "a graph of that name": (
        lambda: W().add("a", plain).add_many("a", []),
        '^step "a": a step with this name exists',
    ),
    "a slash": (lambda: W().add("a/b", plain), "step: 'a/b' is not allowed; leave out the /"),
    "no name": (lambda: W().add("", plain), "step: '' is not allowed"),
    "a name that is a number": (lambda: W().add(1, plain), "step: 1 is not allowed"),  # type: ignore[arg-type]
    "keys of one name": (
        lambda: W().add_many("m", {"a/b": plain, "a_b": plain}),
        """step "m": key: 'a_b' is not allowed; another key has the step "a_b"; use different keys""",
    ),
    "deps twice": (
        lambda: W().add("a", plain, "x", dependencies="y"),
        'step "a": deps and dependencies mean the same',
    ),
    "deps that are no texts": (
        lambda: W().add("a", plain, [1]),
        'step "a": deps: .*give names of steps',
    ),  # type: ignore[list-item]
    "a lambda": (lambda: W().add("a", lambda: 1), 'step "a": .*<lambda> cannot be imported'),
    "a closure": (
        lambda: W().add_cascade("a", nested({})),
        'step "a": .*<locals>.*cannot be imported',
    ),
    "a partial": (
        lambda: W().add_cascade("a", __import__("functools").partial(each, 1)),
        'step "a": .*cannot be imported by name',
    ),
    "an object's method": (
        lambda: W().add("a", Worker().process),
        'step "a": .*is a method of an object',
    ),
    "a pause without end": (
        lambda: W().add("a", plain, schedule_in=1e99),
        'step "a": schedule_in: 1e',
    ),
    "no job": (
        lambda: W().add("a", 7),
        'step "a": job: 7 cannot be the job of a step; give a function',
    ),
    "a class": (lambda: W().add("a", Holder), 'step "a": job: .*cannot be the job of a step'),
    "wrong parameters": (
        lambda: W().add("a", plain, args={"c": 1}),
        r'step "a": it is called as plain\(c=…\): .*\'c\'',
    ),
    "a cascade without": (
        lambda: W().add_cascade("a", each),
        r'step "a": it is called as each\(context\): missing',
    ),
    "an item without": (
        lambda: W().add_cascade("a", ([1], cascade)),
        r"step \"a\": it is called as cascade\(item, context\)",
    ),
    "args of a job": (
        lambda: W().add("a", Worker.new({}), args={"a": 1}),
        'step "a": args: only a function takes them',
    ),
    "NaN": (
        lambda: W().add("a", plain, args={"a": float("nan")}),
        r"step \"a\": args\['a'\]: nan is not a number",
    ),
    "a value that holds itself": (
        lambda: W().add("a", plain, args={"a": recursive()}),
        r'"a": args.*contains itself',
    ),
    "an item that cannot travel": (
        lambda: W().add_cascade("a", ({"k": {1}}, each)),
        r"\"a\": item 'k': a set cannot be encoded",
    ),
    "a context that cannot": (
        lambda: W().add_context({1: 2}),
        "context: the key 1 is not a string",
    ),
    "an unknown option": (
        lambda: W().add("a", plain, tires=4),
        'step "a": tires: 4 is not allowed; a step does not have this option',
    ),
    "a float amount": (
        lambda: W().add("a", plain, resources={"r": 0.1}),
        'step "a": resources: r: 0.1 .*"1/3"',
    ),
    "not a pair": (lambda: W().add_cascade("a", (1, 2, 3)), 'step "a": .*unpack'),
    "a bound too low": (
        lambda: W().add("a", plain, max_attempts=0).spec(),
        'step "a": max_attempts: 0 is not allowed',
    ),
    "a graph in itself": (
        lambda: itself().spec(),
        "graphs may be 20 levels deep; does the graph contain itself",
    ),
    "fail_fast within": (
        lambda: W().add("a", W(fail_fast=True)),
        'step "a": fail_fast and pools are for a whole graph',
    ),
    "pools of what is appended": (
        lambda: W().append(W(pools={"db": 1})),
        "^append: fail_fast and pools are for a whole graph",
    ),
    "pools of a graft": (
        lambda: W.apply_graft(Job("g", "a/b"), W(pools={"db": 1})),
        '^graft of step "a/b": fail_fast and pools are for a whole graph',
    ),
    "a bad step of a graft": (
        lambda: W.apply_graft(Job("g", "a/b"), W().add("x", plain, priority=99)),
        '^graft of step "a/b": step "x": priority: 99',
    ),
    "an unknown crawler field": (
        lambda: crawl("shops", color=1),
        "color: 1 is not allowed; a run does not have this field",
    ),
    "a run's own": (lambda: crawl("shops", run_id=1), "run_id: 1 is not allowed; leave it out"),
    "a bad crawler name": (lambda: crawl("Not A Name"), "crawler: 'Not A Name'"),
    "a bad limit": (
        lambda: crawl("shops", limits={"run_time": 1}),
        r"limits: .*give only start_check_s",
    ),
    "a worker without process": (
        lambda: worker()(Holder),
        r"Holder: the class has no method process",
    ),
    "a worker's option": (lambda: worker(tires=4), "tires: 4 is not allowed"),
    "an id with a slash": (lambda: W(id="a/b"), "id: 'a/b' is not allowed"),
    "a context to append": (
        lambda: W().append(W().add_context({"a": 1})),
        "append: .*leave out add_context",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_is_refused_where_it_is_built(what: str) -> None:
    build, said = REFUSED[what]
    with pytest.raises(InvalidRequest, match=said):
        build()


def test_replace_and_late_dependencies() -> None:
    workflow = (
        Workflow(check_deps=False)
        .add("a", plain, "later")
        .add("b", plain)
        .add("a", Worker.new({}), replace=True)
    )
    assert paths(workflow) == ["a", "b"]
    assert workflow.spec().steps[0].job["style"] == "worker"
    assert only(Workflow(check_deps=False).add("a", plain, "later")).deps == ("later",)


def test_a_static_method_can_be_a_step() -> None:
    assert only(Workflow().add_cascade("a", Holder.static)).job["call"] == f"{HERE}:Holder.static"


def test_ids_are_in_the_order_of_time_and_of_nobody_else() -> None:
    ids = [Workflow().id for _ in range(100)]
    assert len(set(ids)) == 100
    assert [one[:8] for one in ids] == sorted(one[:8] for one in ids)
    assert {one[14] for one in ids} == {"7"}
