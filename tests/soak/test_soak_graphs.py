"""The judge of random graphs: honestly played graphs pass, and every false record is found."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crawler_lifecycle.features.graphs.domain.spec import (
    GraphOptions,
    GraphSpec,
    StepKind,
    StepSpec,
)
from crawler_lifecycle.graphs.testing import Memory, in_memory
from tools.soak import graph_steps
from tools.soak.graph_judge import check, lost, of_processes
from tools.soak.graph_managers import jobs_of
from tools.soak.graph_plan import MODULE, Command, GraphPlan, write_plans
from tools.soak.graph_records import Asked, Execution, GraphCase, read_ledger
from tools.soak.graph_steps import digest
from tools.soak.journal import Process
from tools.soak.strikes import Strike

GRAPHS = 12
GOOD = {"how": "finished"}


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Where functions write, which take no time meanwhile."""
    file = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    # The name in the steps of the plans, because only functions that a module itself defines may be
    # called.
    spec = importlib.util.spec_from_file_location(MODULE, graph_steps.__file__)
    assert spec is not None
    assert spec.loader is not None
    steps = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, MODULE, steps)
        spec.loader.exec_module(steps)
        steps.LEDGER = file
        steps.behaviour = lambda graph, path: replace(
            graph_steps.behaviour(graph, path), seconds=0.0
        )
        yield file


def played(plan: GraphPlan, file: Path) -> GraphCase:
    """This graph in memory, as its rows, the gateway and the ledgers would report it."""
    asked: list[Asked] = []
    with in_memory(
        crawls=lambda job: "finished" if job.get("args", GOOD)["how"] == "finished" else "failed"
    ) as memory:
        memory.send(plan.key, plan.spec, name=None, tags=[])
        appends = [command for command in plan.commands if command.what == "append"]
        for command in (*appends, *(command for command in plan.later if command.what == "retry")):
            if command.what == "append":
                memory.append(plan.key, GraphSpec(command.steps, plan.spec.options))
            else:
                memory.wait(plan.key, None)
                memory.retry(plan.key, None, cascade=True, fresh=command.fresh)
            asked.append(
                Asked(plan.key, replace(command, paths=None), graph_steps.time.time(), 0.0, "ok")
            )
        memory.wait(plan.key, None)
    asked = [replace(one, at=one.sent + 1e-6) for one in asked]
    return _case(plan, memory, read_ledger(file).get(plan.key, []), asked)


def _case(
    plan: GraphPlan, memory: Memory, executions: list[Execution], asked: list[Asked]
) -> GraphCase:
    graph = memory._graphs[plan.key]
    last = {one.path: one for one in executions}
    end = max((one.end or 0.0 for one in executions), default=1.0)
    rows, runs, processes, managers = {}, {}, [], {}
    first = min((e.begin for e in executions), default=1.0) - 1.0
    for row in graph.rows:
        step, one = row.step, last.get(row.path)
        columns = (
            "number",
            "path",
            "kind",
            "state",
            "attempt",
            "tries",
            "outcome",
            "reason",
            "run_id",
            "ending",
        )
        times = (
            {"started_at": one.begin, "ended_at": one.end}
            if one
            else {"started_at": 0.0, "ended_at": 0.0}
        )
        rows[row.path] = {name: getattr(step, name) for name in columns} | times
        if row.kind is StepKind.CRAWL and step.run_id is not None:
            good = step.state == "completed"
            runs[step.run_id] = {
                "run_id": step.run_id,
                "status": "COMPLETED" if good else "FAILED",
                "outcome": "",
            }
            processes.append(crawled(step.run_id, first, 0 if good else 1))
        if row.kind is StepKind.MANAGER and step.run_id is not None:
            its = [crawled(1000 + n, first, 0, number=str(n)) for n in range(jobs_of(row.spec))]
            ended = [{"run_id": one.run_id, "status": "COMPLETED"} for one in its]
            managers[step.run_id] = {
                "status": "COMPLETED",
                "outcome": "finished",
                "runs": ended,
                "processes": its,
            }
    recorded = {path: digest(value) for path, value in memory.recorded(plan.key, None).items()}
    row = {"state": graph.state(), "attempt": 1, "ended_at": end}
    shown, events = memory.status(plan.key) or {}, [("graphs/1-u/1/graph.ended", 1)]
    return GraphCase(
        plan, row, rows, shown, recorded, executions, asked, (), runs, processes, managers, events
    )  # type: ignore[arg-type]


def crawled(run_id: int, at: float, code: int, **args: str) -> Process:
    """A crawler that took no time."""
    return Process(
        run_id, 0, 1, 1, 10, 1, 9, args, at, at, {"at": at, "code": code, "pages": 1}, None, []
    )


@pytest.mark.parametrize("number", range(GRAPHS))
def test_graphs_that_were_played_honestly_pass(number: int, ledger: Path) -> None:
    plan = write_plans(7, GRAPHS, steps=40)[number]
    case = played(plan, ledger)
    assert list(check(case)) == []


def test_a_seed_is_a_plan() -> None:
    assert write_plans(3, 5) == write_plans(3, 5) != write_plans(4, 5)
    user_code = write_plans(3, 40)
    assert {c.what for p in user_code for c in p.commands} == {
        "cancel",
        "retry",
        "append",
        "stop",
        "force-stop",
    }
    assert max(len(plan.spec.steps) for plan in user_code) > 200


# --- lies -----------------------------------------------------------------------------------------


def function(path: str, *deps: str, style: str = "cascade", **more: Any) -> StepSpec:
    job = {"call": f"{MODULE}:{style}", "style": style, **({"item": 1} if style == "item" else {})}
    return StepSpec(path, StepKind.FUNCTION, job, deps=deps, **more)


@pytest.fixture(scope="module")
def honest(ledger: Path) -> GraphCase:
    """A crawl and a function, a fan-out over their results, and a function of that, which fails
    once; a manager, and a function after it.
    """
    needs: dict[str, Any] = {"resources": ({"db": "2/3"},)}
    stream = {"plan": f"{MODULE}:Stream", "options": {"argv": ["--jobs", "3", "--seconds", "1"]}}
    steps = [
        StepSpec("crawl", StepKind.CRAWL, {"crawler": "soak", "args": GOOD}),
        StepSpec("stream", StepKind.MANAGER, stream),
        function("first"),
        StepSpec("fan", StepKind.GRAPH, {"fan_out": True}, deps=("crawl", "first"), max_parallel=1),
        function("fan/0", style="item", **needs),
        function("fan/1", style="item", **needs),
        function("late", "stream"),
        function("last", "fan", max_attempts=3, backoff_s=0.0),
    ]
    fails = {"last": 1}
    keys = (f"honest-{n}" for n in range(10_000))
    paths = [one.path for one in steps if one.kind is StepKind.FUNCTION]
    key = next(
        k
        for k in keys
        if all(graph_steps.behaviour(k, p).failures == fails.get(p, 0) for p in paths)
    )
    case = played(GraphPlan(key, GraphSpec(steps, GraphOptions(pools={"db": "1"}))), ledger)
    assert case.graph["state"] == "completed"
    assert list(check(case)) == []
    return case


def of(case: GraphCase, path: str, attempt: int = 1) -> Execution:
    return next(one for one in case.executions if (one.path, one.attempt) == (path, attempt))


def again(case: GraphCase, path: str, **more: Any) -> None:
    """Another execution of a step, after its last one."""
    last = max((one for one in case.executions if one.path == path), key=lambda one: one.begin)
    end = last.end or last.begin
    known = {"begin": end + 0.001, "end": end + 0.002}
    case.executions.append(replace(last, **known | more))


def a_result_of_another(case: GraphCase) -> None:
    case.recorded = {**case.recorded, "first": digest("another")}


def a_result_that_is_gone(case: GraphCase) -> None:
    case.recorded = {path: one for path, one in case.recorded.items() if path != "last"}


def an_input_of_another(case: GraphCase) -> None:
    of(case, "last", 2).given = {**of(case, "last", 2).given, "fan": digest({"0": 1})}


def an_input_too_little(case: GraphCase) -> None:
    of(case, "fan/0").given = {
        name: one for name, one in of(case, "fan/0").given.items() if name != "first"
    }


def begins_too_early(case: GraphCase) -> None:
    of(case, "last").begin = of(case, "fan/1").begin - 1


def begins_before_its_crawl_ends(case: GraphCase) -> None:
    case.processes[0].last = of(case, "fan/0").begin + 1


def executes_again_for_nothing(case: GraphCase) -> None:
    again(case, "first", attempt=2)
    case.rows["first"]["attempt"] = 2


def an_attempt_twice(case: GraphCase) -> None:
    again(case, "first")


def an_attempt_that_is_not_on_record(case: GraphCase) -> None:
    again(case, "first", attempt=2)


def two_at_one_time(case: GraphCase) -> None:
    one = of(case, "last")
    one.end = of(case, "last", 2).begin + 1


def more_tries_than_it_has(case: GraphCase) -> None:
    for attempt in (3, 4, 5):
        again(case, "last", attempt=attempt, how="raise")


def was_never_executed(case: GraphCase) -> None:
    case.executions = [one for one in case.executions if one.path != "first"]


def a_success_that_was_a_failure(case: GraphCase) -> None:
    of(case, "first").how = "raise"


def is_killed_by_nobody(case: GraphCase) -> None:
    of(case, "first").how = of(case, "first").end = None


def is_cancelled_by_nobody(case: GraphCase) -> None:
    case.rows["last"]["state"] = "cancelled"


def a_state_that_does_not_follow(case: GraphCase) -> None:
    case.graph["state"] = case.shown["state"] = "discarded"


def a_group_that_does_not_follow(case: GraphCase) -> None:
    case.rows["fan"]["state"] = "cancelled"


def completed_on_what_failed(case: GraphCase) -> None:
    case.rows["crawl"]["state"] = "discarded"


def a_gateway_that_counts_wrongly(case: GraphCase) -> None:
    case.shown = {**case.shown, "counts": {"completed": 4}}


def a_step_that_is_gone(case: GraphCase) -> None:
    del case.rows["last"]


def a_step_that_nobody_sent(case: GraphCase) -> None:
    case.rows["more"] = {**case.rows["last"], "number": 8}


def a_number_twice(case: GraphCase) -> None:
    case.rows["last"]["number"] = 0


def executes_after_the_end(case: GraphCase) -> None:
    case.graph["ended_at"] -= 60


def crawls_after_the_end(case: GraphCase) -> None:
    case.processes[0].last = case.graph["ended_at"] + 60


def a_run_that_is_open(case: GraphCase) -> None:
    case.runs[1]["status"] = "PROCESSING"


def a_run_of_somebody_else(case: GraphCase) -> None:
    case.rows["crawl"]["run_id"] = 77


def a_second_run(case: GraphCase) -> None:
    case.runs[2] = {**case.runs[1], "run_id": 2}


def a_crawl_that_failed(case: GraphCase) -> None:
    case.processes[0].end = {"code": 1}


def two_at_once_in_a_graph_of_one(case: GraphCase) -> None:
    one, other = sorted((of(case, "fan/0"), of(case, "fan/1")), key=lambda one: one.begin)
    one.end = other.end = other.begin + 1


def a_manager_that_is_open(case: GraphCase) -> None:
    stream(case)["status"] = "PROCESSING"


def a_manager_that_failed(case: GraphCase) -> None:
    stream(case)["status"] = "FAILED"


def a_manager_of_somebody_else(case: GraphCase) -> None:
    case.rows["stream"]["run_id"] = 77


def a_second_manager(case: GraphCase) -> None:
    case.managers[77] = stream(case)


def a_job_that_a_manager_lost(case: GraphCase) -> None:
    stream(case)["processes"].pop()


def a_job_of_a_manager_again(case: GraphCase) -> None:
    stream(case)["processes"].append(crawled(1009, 1.0, 0, number="1"))


def three_at_once_of_a_manager(case: GraphCase) -> None:
    for one in stream(case)["processes"]:
        one.last += 1


def begins_before_its_manager_ends(case: GraphCase) -> None:
    stream(case)["processes"][0].last = of(case, "late").begin + 1


def a_run_of_a_manager_that_is_open(case: GraphCase) -> None:
    stream(case)["runs"][0]["status"] = "PROCESSING"


def stream(case: GraphCase) -> dict[str, Any]:
    return case.managers[case.rows["stream"]["run_id"]]


def a_crawl_after_its_success(case: GraphCase) -> None:
    one = case.processes[0]
    case.processes.append(replace(one, attempt=2, begin=one.last + 0.01, last=one.last + 0.02))


def an_end_told_twice(case: GraphCase) -> None:
    case.events *= 2


def dated_elsewhere(case: GraphCase) -> None:
    case.rows["first"]["ended_at"] = of(case, "first").begin - 5


LIES: list[tuple[Callable[[GraphCase], None], str]] = [
    (a_result_of_another, "the result of first is"),
    (a_result_that_is_gone, "the result of last is None"),
    (an_input_of_another, "was given another fan"),
    (an_input_too_little, "was given another first than is right: None"),
    (begins_too_early, "before fan/1 had executed"),
    (begins_before_its_crawl_ends, "began while this executed"),
    (executes_again_for_nothing, "nothing had happened to it"),
    (an_attempt_twice, "attempt 1 was executed 2 times"),
    (an_attempt_that_is_not_on_record, "attempt 2 was executed, on record are 1"),
    (two_at_one_time, "executed twice at the same time"),
    (more_tries_than_it_has, "its attempts were spent"),
    (was_never_executed, "it was never executed"),
    (a_success_that_was_a_failure, "its last execution was"),
    (is_killed_by_nobody, "nobody ended"),
    (is_cancelled_by_nobody, "nobody cancelled it"),
    (a_state_that_does_not_follow, "its steps are completed"),
    (a_group_that_does_not_follow, "what is in it is completed"),
    (completed_on_what_failed, "what it depends on failed"),
    (a_gateway_that_counts_wrongly, "the gateway says counts"),
    (a_step_that_is_gone, "is not on record"),
    (a_step_that_nobody_sent, "nobody asked for it"),
    (a_number_twice, "the numbers of its steps"),
    (executes_after_the_end, "it had ended at"),
    (crawls_after_the_end, "it had ended at"),
    (a_run_that_is_open, "is PROCESSING"),
    (a_run_of_somebody_else, "does not belong to it"),
    (a_second_run, "2 runs of 1 crawls"),
    (a_crawl_that_failed, "its last process is"),
    (a_crawl_after_its_success, "succeeded and was executed again"),
    (
        two_at_once_in_a_graph_of_one,
        "executed at one time in fan, which has 1 places: fan/0, fan/1",
    ),
    (
        two_at_once_in_a_graph_of_one,
        "held more db at one time than the 1 that there are: fan/0, fan/1",
    ),
    (a_manager_that_is_open, "the manager of stream is PROCESSING"),
    (a_manager_that_failed, "stream is completed, its manager is FAILED"),
    (a_manager_of_somebody_else, "has the manager 77, which does not belong to it"),
    (a_second_manager, "2 managers of 1 steps"),
    (a_job_that_a_manager_lost, "is completed and lost these: [2]"),
    (a_job_of_a_manager_again, "again after a success, or without a reason: [1]"),
    (three_at_once_of_a_manager, "executed at once, and its window is 2"),
    (begins_before_its_manager_ends, "began while this executed"),
    (a_run_of_a_manager_that_is_open, "its run 1000 is PROCESSING"),
    (an_end_told_twice, "its outcomes were reported as"),
    (dated_elsewhere, "is dated"),
]


@pytest.mark.parametrize(("lie", "told"), LIES, ids=[lie.__name__ for lie, _ in LIES])
def test_every_lie_is_found(lie: Callable[[GraphCase], None], told: str, honest: GraphCase) -> None:
    case = deepcopy(honest)
    lie(case)
    assert told in "\n".join(check(replace(case)))


def killed(
    case: GraphCase, what: str, *, hosts: frozenset[int] = frozenset(), whom: str = ""
) -> GraphCase:
    """The case with a first attempt of ``first`` that was killed, and a strike at that time."""
    found = deepcopy(case)
    one = of(found, "first")
    found.executions.append(replace(one, begin=one.begin - 20, end=None, how=None, gave=None))
    one.attempt = found.rows["first"]["attempt"] = 2
    value = graph_steps.value_of(found.plan.key, "first", 2)
    one.gave = digest(value)
    found.recorded = {**found.recorded, "first": one.gave} if value is not None else found.recorded
    strike = Strike(what, one.begin - 19, one.begin - 18, hosts, whom)
    return replace(found, strikes=[strike])


def again_for_nothing(case: GraphCase) -> bool:
    return any("nothing had happened to it" in text for text in check(case))


def test_a_strike_explains_only_what_it_met(honest: GraphCase) -> None:
    pid = of(honest, "first").pid
    assert not again_for_nothing(met := killed(honest, "host killed", hosts=frozenset([pid])))
    assert [what for _, what in lost(met)] == ["host killed"]
    assert again_for_nothing(killed(honest, "host killed", hosts=frozenset([pid + 1])))
    assert not again_for_nothing(killed(honest, "temporal killed"))
    assert not again_for_nothing(
        killed(honest, "workflow terminated", whom=f"graph/{honest.plan.key}")
    )
    assert again_for_nothing(killed(honest, "workflow terminated", whom="graph/another"))
    assert again_for_nothing(killed(honest, "gateway killed"))
    assert again_for_nothing(killed(honest, "database killed"))


@pytest.fixture(scope="module")
def retried(ledger: Path) -> GraphCase:
    """A retry executes ``late`` for the first time, after ``last``, which had ignored its failure."""
    late, last = (
        function("late", "fails"),
        function("last", "late", ignore_cancelled=True, ignore_discarded=True),
    )
    spec, fails = GraphSpec([function("fails"), late, last], GraphOptions()), {"fails": 1}
    keys = (f"retried-{n}" for n in range(10_000))
    paths = [one.path for one in spec.steps]
    key = next(
        k
        for k in keys
        if all(graph_steps.behaviour(k, p).failures == fails.get(p, 0) for p in paths)
    )
    case = played(GraphPlan(key, spec, later=[Command(0.0, "retry")]), ledger)
    assert [one.path for one in case.executions] == ["fails", "last", "fails", "late"]
    return case


def test_a_dependency_of_later_gave_nothing_before(retried: GraphCase) -> None:
    assert "late" not in of(retried, "last").given
    assert list(check(retried)) == []
    case = deepcopy(retried)
    of(case, "last").begin = (of(case, "late").end or 0.0) + 0.001
    assert "was given another late than is right: None" in "\n".join(check(replace(case)))


def test_two_at_once_in_one_process_are_found(honest: GraphCase) -> None:
    case = deepcopy(honest)
    of(case, "first").end = None
    assert list(of_processes([case])) == []
    of(case, "last").end = None
    assert "left several executions" in "".join(of_processes([case]))


def test_a_cancelled_step_needs_somebody_who_asked(honest: GraphCase) -> None:
    case = deepcopy(honest)
    is_cancelled_by_nobody(case)
    asked = Asked(case.plan.key, Command(0.0, "cancel", ("last",)), 1.0, 2.0, "unknown")
    assert "nobody cancelled it" not in "\n".join(check(replace(case, asked=[asked])))
    assert "nobody cancelled it" in "\n".join(
        check(replace(case, asked=[replace(asked, answer="no")]))
    )
