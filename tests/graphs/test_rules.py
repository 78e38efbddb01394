"""Rules of Oban's workflows that its examples do not show, and the nine ambiguities (A3 of the
rules).
"""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

import pytest

from crawler_lifecycle.domain.errors import DuplicateRequest, Fenced, InvalidRequest
from crawler_lifecycle.graphs import (
    Cancel,
    Record,
    Snooze,
    Workflow,
    crawl,
    current_job,
    fan_out,
    manager,
    oban,
    worker,
)
from crawler_lifecycle.graphs.job import Job
from crawler_lifecycle.graphs.testing import Memory, in_memory


@worker()
class Step:
    """A step that does what its arguments say."""

    def process(self, job: Job) -> Any:
        if job.args.get("fails", 0) >= job.attempt:
            raise RuntimeError(f"as told, {job.attempt}")
        if "cancel" in job.args:
            return Cancel(job.args["cancel"])
        if job.args.get("snooze", 0) > job.meta["snoozed"]:
            return Snooze(60)
        if "limit" in job.args:
            return Record("x" * 100, limit=job.args["limit"])
        return Record(job.key) if job.args.get("record") else "not recorded"


def given(context: dict[str, Any]) -> dict[str, Any]:
    return context


def told() -> str:
    return current_job().path


def states(workflow: Workflow) -> dict[str, str]:
    return {job.path: job.state for job in workflow.all_jobs()}


def test_o17_what_a_worker_returns(memory: Memory) -> None:
    workflow = (
        oban.Workflow()
        .add("cancel", Step.new({"cancel": "not today"}))
        .add("snooze", Step.new({"snooze": 2}))
    )
    workflow.add("large", Step.new({"limit": 10}, max_attempts=1)).add(
        "fits", Step.new({"limit": 1000})
    )
    workflow.add("value", Step.new({})).start().wait()
    found = {job.name: job for job in workflow.all_jobs()}
    assert (found["cancel"].state, found["cancel"].reason) == ("cancelled", "not today")
    assert (found["snooze"].state, found["snooze"].attempt, found["snooze"].meta["snoozed"]) == (
        "completed",
        3,
        2,
    )
    assert found["large"].state == "discarded"
    assert "more than 10" in found["large"].errors[0]["error"]
    assert workflow.all_recorded() == {"snooze": None, "fits": "x" * 100, "value": None}


def test_o17_tries_and_errors(memory: Memory) -> None:
    """A snooze is not a try; each failure is kept; the pause doubles."""
    workflow = oban.Workflow().add("a", Step.new({"fails": 3})).start()
    began = memory.now
    status = workflow.wait()
    job = workflow.get_job("a")
    assert (status.state, job.attempt, [one["attempt"] for one in job.errors]) == (
        "completed",
        4,
        [1, 2, 3],
    )
    assert memory.now - began == timedelta(seconds=15 + 30 + 60)


def test_o18_a_retry_keeps_errors_and_begins_tries_anew(memory: Memory) -> None:
    workflow = Workflow().add("a", Step.new({"fails": 3}, max_attempts=2)).start()
    assert workflow.wait().state == "discarded"
    assert workflow.retry_jobs() == 1
    assert workflow.wait().state == "completed"
    assert (len(workflow.get_job("a").errors), workflow.get_job("a").attempt) == (3, 4)


def test_ambiguity_2_retry_is_of_what_failed_or_was_cancelled(memory: Memory) -> None:
    workflow = (
        Workflow()
        .add("good", Step.new({}))
        .add("bad", Step.new({"fails": 1}, max_attempts=1))
        .start()
    )
    workflow.wait()
    assert workflow.retry_jobs() == 1
    workflow.wait()
    assert workflow.retry_jobs() == 0
    assert workflow.retry_jobs(names="good") == 1
    workflow.wait()
    assert memory.calls.count("good") == 2


def test_ambiguities_3_and_4_a_retried_step_is_available_and_dependents_come_along(
    memory: Memory,
) -> None:
    workflow = Workflow().add("first", Step.new({})).add("a", Step.new({"fails": 1}), "first")
    workflow.add("b", Step.new({}), "a")
    workflow.start()
    assert states_after(workflow) == {"first": "completed", "a": "discarded", "b": "cancelled"}
    assert workflow.retry_jobs(names="a") == 2
    assert states(workflow) == {"first": "completed", "a": "available", "b": "suspended"}
    assert workflow.wait().state == "completed"


def test_ambiguity_4_oban_leaves_dependents_alone(memory: Memory) -> None:
    workflow = (
        oban.Workflow()
        .add("a", Step.new({"fails": 1}, max_attempts=1))
        .add("b", Step.new({}), deps="a")
    )
    workflow.add("c", Step.new({}), deps="b").start()
    assert states_after(workflow) == {"a": "discarded", "b": "cancelled", "c": "cancelled"}
    assert workflow.retry_jobs(names=["a"]) == 1
    assert states_after(workflow) == {"a": "completed", "b": "cancelled", "c": "cancelled"}
    assert workflow.retry_jobs(names=["b"], cascade=True) == 2
    assert states_after(workflow) == {"a": "completed", "b": "completed", "c": "completed"}


def states_after(workflow: Workflow) -> dict[str, str]:
    workflow.wait()
    return states(workflow)


def test_ambiguity_6_what_is_empty_is_done(memory: Memory) -> None:
    workflow = (
        Workflow()
        .add_many("many", [])
        .add_cascade("fan", ({}, given_item))
        .add_workflow("sub", Workflow())
    )
    workflow.add_graft("graft", grafts_an_empty_graph).add_graft("none", grafts_nothing)
    workflow.add_cascade("end", given, ["many", "fan", "sub", "graft", "none"]).start()
    assert workflow.wait().counts == {"completed": 3}
    assert workflow.get_recorded("end") == {
        "many": {},
        "fan": {},
        "sub": {},
        "graft": {},
        "none": {},
    }


def grafts_an_empty_graph(context: dict[str, Any]) -> Workflow:
    return Workflow()


def grafts_nothing(context: dict[str, Any]) -> None: ...


def given_item(item: Any, context: dict[str, Any]) -> None: ...


def test_ambiguity_6_what_is_empty_within_a_dependency_is_there(memory: Memory) -> None:
    """The result is as a worker provides it, whether nothing was added or nothing was recorded."""
    inner = Workflow().add_many("none", []).add_many("bare", [Step.new({})]).add("one", told)
    workflow = Workflow().add_workflow("inner", inner).add_cascade("given", given, "inner").start()
    workflow.wait()
    assert workflow.get_recorded("given") == {
        "inner": {"none": {}, "bare": {"0": None}, "one": "inner/one"}
    }


def test_ambiguities_7_and_8_totals_count_what_is_within_and_names_are_of_a_level(
    memory: Memory,
) -> None:
    sub = Workflow("inner").add("a", Step.new({})).add("b", Step.new({}))
    status = Workflow("outer").add("a", Step.new({})).add_workflow("sub", sub, "a").start().wait()
    assert (status.total, status.subs["sub"].total, status.subs["sub"].name) == (3, 2, "inner")


def test_ambiguity_9_context_flows_down(memory: Memory) -> None:
    """Into sub-graphs and grafts, where a child's value takes precedence."""
    sub = Workflow().add_context({"b": "child"}).add_cascade("see", given)
    workflow = Workflow().add_context({"a": 1, "b": "parent"}).add_workflow("sub", sub)
    workflow.add_graft("graft", grafting).add_cascade("end", given, ["sub", "graft"]).start()
    workflow.wait()
    assert workflow.get_recorded("sub/see") == {"a": 1, "b": "child"}
    assert workflow.get_recorded("graft/see") == {"a": 1, "b": "parent", "c": "grafted"}
    assert set(workflow.get_recorded("end")["graft"]) == {"see"}
    assert workflow.sub("graft").get_context() == {"a": 1, "b": "parent", "c": "grafted"}


def grafting(context: dict[str, Any]) -> Workflow:
    return Workflow().add_context({"c": "grafted"}).add_cascade("see", given)


def failing_graft(context: dict[str, Any]) -> Workflow:
    return Workflow().add("inner", Step.new({"fails": 99})).add_graft("deeper", grafting)


def test_o07_who_depends_on_a_graft_waits_for_all_of_it(memory: Memory) -> None:
    """This includes a graft within a graft; a failure in it cancels the dependents."""
    workflow = Workflow().add_graft("g", failing_graft).add("after", Step.new({}), "g").start()
    assert states_after(workflow) == {
        "g": "completed",
        "after": "cancelled",
        "g/inner": "discarded",
        "g/deeper": "completed",
        "g/deeper/see": "completed",
    }


@worker()
class Twice:
    """Grafts once, again the same, and then something else."""

    def process(self, job: Job) -> None:
        same = [Workflow().add("x", Step.new({})) for _ in range(2)]
        for one in same:
            assert Workflow.apply_graft(job, one) is one
        Workflow.apply_graft(job, Workflow().add("y", Step.new({})))


@worker()
class Foreign:
    """Grafts below another step."""

    def process(self, job: Job) -> None:
        other = Workflow.for_job(job).get_job("other")
        Workflow.apply_graft(other, Workflow().add("x", Step.new({})))


@worker()
class Own:
    """Grafts the graph that contains it."""

    def process(self, job: Job) -> None:
        Workflow.apply_graft(job, Workflow.for_job(job))


def own(context: dict[str, Any]) -> Workflow:
    return Workflow.for_job(current_job())


@worker()
class NoGraft:
    def process(self, job: Job) -> Workflow:
        return Workflow()


def nonsense(context: dict[str, Any]) -> int:
    return 7


@pytest.mark.parametrize(
    ("job", "graft", "said"),
    [
        (Twice.new({}), True, DuplicateRequest.__name__),
        (Foreign.new({}), True, Fenced.__name__),
        (Own.new({}), True, "give a new Workflow"),
        (own, True, "returned the graph that it belongs to"),
        (NoGraft.new({}), False, "is not a graft; add the step with add_graft"),
        (nonsense, True, "is a graft and returned int"),
        (Twice.new({}), False, InvalidRequest.__name__),
    ],
)
def test_grafts_that_make_no_sense(job: Any, graft: bool, said: str, memory: Memory) -> None:
    workflow = Workflow().add_cascade("other", given)
    (workflow.add_graft if graft else workflow.add)("it", job, "other")
    assert workflow.start().wait().state == "discarded"
    assert said in workflow.get_job("it").errors[0]["error"]


def test_crawls_and_managers_are_steps() -> None:
    """A dependent step gets the outcome; a failed crawl is discarded with its outcome."""
    workflow = (
        Workflow()
        .add("shops", crawl("shops"))
        .add("bad", crawl("bad"))
        .add("m", manager("x:Shops"), "shops")
    )
    workflow.add_cascade("merge", given, ["shops", "bad"], ignore_discarded=True)
    with in_memory(crawls={"shops": {"outcome": "finished", "items": 7}, "bad": "banned"}):
        assert workflow.start().wait().counts == {"completed": 3, "discarded": 1}
        bad = workflow.get_job("bad")
        assert (bad.outcome, bad.worker, bad.run_id) == ("banned", "bad", 2)
        merged = workflow.get_recorded("merge")
    assert (merged["shops"]["items"], merged["shops"]["run_id"], merged["shops"]["status"]) == (
        7,
        1,
        "COMPLETED",
    )
    assert merged["bad"]["outcome"] == "banned"
    with in_memory(crawls={"shops": ["banned", "finished"]}):
        again = Workflow().add("shops", crawl("shops"), max_attempts=2).start()
        assert again.wait().state == "completed"
        assert again.get_job("shops").attempt == 2


def _job(item: dict[str, Any]) -> Any:
    return crawl("shop", args={"url": item["url"]})


def test_a_step_for_each_item() -> None:
    keys: list[Any] = ["a.com", "b/c\n", 7, 1.5, " d ", "x" * 300, "é" * 300, "\x01"]
    made = fan_out(({"url": key} for key in keys), _job, key="url").spec().steps
    names = [step.path for step in made]
    assert names[:5] == ["a.com", "b_c", "7", "1.5", "d"]
    assert [len(name) for name in names[5:7]] == [77, 77]
    assert names[7] == "_"
    assert made[0].job == {"crawler": "shop", "args": {"url": "a.com"}}
    calls = (
        fan_out([{"url": 1}], lambda item: (told, {}), key=lambda item: f"n{item['url']}")
        .spec()
        .steps
    )
    assert [(one.path, one.job["label"]) for one in calls] == [("n1", "told")]
    assert fan_out([], _job, key="url").spec().steps == []


@pytest.mark.parametrize(
    ("items", "said"),
    [
        (
            [{"url": "a/b"}, {"url": "a_b"}],
            """key of item 1: 'a_b' is not allowed; another key has the step "a_b"; use different keys""",
        ),
        (
            [{"url": "a"}, {"name": "a"}],
            "item 1: {'name': 'a'} is not allowed; it has no field 'url'",
        ),
        (["a"], "item 0: 'a' is not allowed"),
        ([{"url": None}], "key of item 0: None is not allowed; give a string or a number"),
        ([{"url": ["a"]}], "key of item 0"),
        ([{"url": "  "}], "key of item 0"),
        (
            ({"url": n} for n in itertools.count()),
            "items: more than 20000 are too many for one graph",
        ),
    ],
)
def test_items_that_make_no_steps(items: Any, said: str) -> None:
    with pytest.raises(InvalidRequest) as told_:
        fan_out(items, _job, key="url")
    assert said in str(told_.value)


def test_a_function_knows_its_job_and_its_key_is_of_all_attempts(memory: Memory) -> None:
    workflow = (
        Workflow()
        .add("told", told)
        .add("key", Step.new({"record": 1, "fails": 1}, max_attempts=2))
        .start()
    )
    workflow.wait()
    assert workflow.get_recorded("told") == "told"
    assert workflow.get_recorded("key") == workflow.get_job("key").key
    with pytest.raises(RuntimeError, match="no step of a graph is executing here"):
        current_job()
