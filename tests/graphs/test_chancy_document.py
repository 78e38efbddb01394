"""The examples of Chancy's documentation, with only their imports changed (rows C-… of the rules).

| the document's | test |
|---|---|
| `Chancy(…)`, `Leadership`, `@job()`, `.add(top, "top")`, `push` (C-01, C-02, C-07) | `test_c02_example_workflow` |
| `generate_dot` and its exact text (C-17) | `test_c17_dot` |
| `Sequence`, `add`, `push` (C-06) | `test_c06_sequence`, `test_c06_add` |
| `wait_for_workflow`, `TimeoutError`, `KeyError`, a failed one is returned (C-15) | `test_c15_waiting` |
| `add("step_1", job, ["step_1"])`, `add_group` (C-02, C-03) | `test_c03_a_group` |
| `fetch_workflow`, `fetch_workflows(states, ids, limit)` (C-14) | `test_c14_fetching` |
| fields of `Workflow` and `WorkflowStep`, `State`, `is_…`, `steps_by_state` (C-05, C-12) | `test_c05_states` |
| a container of steps (C-04) | `test_c04_container` |
| push again adds what is new (C-07) | `test_c07_a_live_workflow_grows` |
| jobs keep retries, timeouts, scheduling (C-09, C-20) | `test_c09_jobs_keep_their_options` |
| the first failure (C-10) | `test_c10_the_first_failure` |
| no steps, `validate` and its errors (C-11) | `test_c11_what_cannot_run_is_refused` |
| `push_ex` (C-08) | `test_c08_push_ex_says_that_it_is_no_part_of_a_transaction` |
| `pruning_rule`, `Rules.Age`, `to_sql`, `cleanup` (C-16) | `test_c16_pruning` |
| all that drives Chancy's own loop (C-13) | `test_c13_what_drives_a_loop_does_nothing` |
| an unknown step, a cycle (defects) | `test_what_would_wedge_is_refused` |

C-18 and C-19 (REST, dashboard, Django) are not here: docs/graphs.md says why.
"""

from __future__ import annotations

import asyncio
import io
from datetime import timedelta
from typing import Any

import pytest

from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.graphs.chancy import (
    Chancy,
    CircularDependencyError,
    EmptyWorkflowError,
    InvalidDependencyError,
    Leadership,
    Limit,
    Sequence,
    StepState,
    Workflow,
    WorkflowPlugin,
    WorkflowStep,
    job,
)
from crawler_lifecycle.graphs.testing import Memory
from crawler_lifecycle.graphs.workflow import Workflow as Graph
from tests.graphs.support import play

EXAMPLE = """
import asyncio
from chancy import Chancy, job
from chancy.plugins.leadership import Leadership
from chancy.plugins.workflow import Workflow, WorkflowPlugin

@job()
async def top():
    print(f"Top")

@job()
async def left():
    print(f"Left")

@job()
async def right():
    print(f"Right")

@job()
async def bottom():
    print(f"Bottom")

async def main():
    async with Chancy(
        "postgresql://localhost/postgres",
        plugins=[Leadership(), WorkflowPlugin()]
    ) as chancy:
        workflow = (
            Workflow("example")
            .add(top, "top")
            .add(left, "left", ["top"])
            .add(right, "right", ["top"])
            .add(bottom, "bottom", ["left", "right"])
        )
        await WorkflowPlugin.push(chancy, workflow)

if __name__ == "__main__":
    asyncio.run(main())
"""
DOT = r"""digraph "example" {
  rankdir=TB;
  node [shape=box, style="rounded,filled", fontname="Arial"];
  "top" [label="top\n(pending)", fillcolor=lightblue];
  "left" [label="left\n(pending)", fillcolor=lightblue];
  "right" [label="right\n(pending)", fillcolor=lightblue];
  "bottom" [label="bottom\n(pending)", fillcolor=lightblue];
  "top" -> "left";
  "top" -> "right";
  "left" -> "bottom";
  "right" -> "bottom";
  labelloc="t";
  label="Workflow: example\nState: pending";
}
"""
chancy = Chancy()


@job()
def step(**told: Any) -> object:
    return object()  # Chancy keeps no results, so it may be anything


@job()
def failing() -> None:
    raise RuntimeError("as told")


def fetched(workflow: Workflow | Sequence) -> Workflow:
    found = WorkflowPlugin.fetch_workflow(chancy, workflow.id)
    assert isinstance(found, Workflow)
    return found


def ended(workflow: Workflow | Sequence) -> Workflow:
    found = WorkflowPlugin.wait_for_workflow(chancy, workflow.id)
    assert isinstance(found, Workflow)
    return found


def states(workflow: Workflow) -> dict[str, str | None]:
    return {name: one.state and one.state.value for name, one in workflow}


def dot(workflow: Workflow) -> str:
    output = io.StringIO()
    WorkflowPlugin.generate_dot(workflow, output)
    return output.getvalue()


def test_c02_example_workflow(memory: Memory, capsys: pytest.CaptureFixture[str]) -> None:
    module = play(EXAMPLE, "example_workflow", before="")
    with pytest.warns(UserWarning, match=r"Chancy\(postgresql:…\): not an address of a gateway"):
        asyncio.run(module.main())
    (row,) = memory.find(states=(), keys=(), limit=9)
    assert memory.wait(row["id"], None)["state"] == "completed"
    first, *middle, last = capsys.readouterr().out.split()
    assert (first, sorted(middle), last) == ("Top", ["Left", "Right"], "Bottom")


def diamond() -> Workflow:
    built = (
        Workflow("example").add("top", step).add("left", step, ["top"]).add("right", step, ["top"])
    )
    return built.add("bottom", step, ["left", "right"])


def test_c17_dot(memory: Memory) -> None:
    workflow = diamond()
    assert dot(workflow) == DOT
    WorkflowPlugin.push(chancy, workflow)
    assert dot(fetched(workflow)) == DOT
    done = DOT.replace("pending", "succeeded").replace("lightblue", "lightgreen")
    assert dot(ended(workflow)) == done.replace("State: succeeded", "State: completed")
    odd = dot(Workflow('a"b').add('x"\\', step))
    assert 'digraph "a\\"b" {' in odd
    assert '"x\\"\\\\" [label="x\\"\\\\\\n(pending)", fillcolor=lightblue];' in odd


SEQUENCE = """
import asyncio
from chancy import Chancy, job
from chancy.plugins.workflow import Sequence

@job()
async def first():
    print("First")

@job()
async def second():
    print("Second")

@job()
async def third():
    print("Third")

async def main():
    async with Chancy("postgresql://localhost/postgres") as chancy:
        sequence = Sequence("example_workflow", [first, second, third])
        await sequence.push(chancy)

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_c06_sequence(memory: Memory, capsys: pytest.CaptureFixture[str]) -> None:
    module = play(SEQUENCE, "example_workflow", before="")
    with pytest.warns(UserWarning, match="not an address of a gateway"):
        asyncio.run(module.main())
    (row,) = memory.find(states=(), keys=(), limit=9)
    memory.wait(row["id"], None)
    assert (row["name"], memory.calls) == ("example_workflow", ["step_0", "step_1", "step_2"])
    assert capsys.readouterr().out.split() == ["First", "Second", "Third"]


def test_c06_add(memory: Memory) -> None:
    sequence = Sequence("example_sequence").add(step).add(step).add(step)
    assert sequence.push(chancy) == sequence.id
    assert {name: one.dependencies for name, one in ended(sequence)} == {
        "step_0": [],
        "step_1": ["step_0"],
        "step_2": ["step_1"],
    }


async def test_c15_waiting(memory: Memory) -> None:
    workflow = Workflow("example")
    workflow.add("step1", step)
    workflow.add("step2", failing, ["step1"])
    workflow_id = await WorkflowPlugin.push(chancy, workflow)
    completed_workflow = await WorkflowPlugin.wait_for_workflow(
        chancy,
        workflow_id,
        timeout=300,  # 5 minute timeout
    )
    assert completed_workflow.state is Workflow.State.FAILED
    with pytest.raises(KeyError, match="no graph has the id 'nobody'"):
        await WorkflowPlugin.wait_for_workflow(chancy, "nobody")
    late = Workflow("late").add(
        "later", step.job.with_scheduled_at(memory.now + timedelta(hours=1))
    )
    await WorkflowPlugin.push(chancy, late)
    with pytest.raises(asyncio.TimeoutError):
        await WorkflowPlugin.wait_for_workflow(chancy, late.id, timeout=300)


def test_c03_a_group(memory: Memory) -> None:
    workflow = Workflow("my_workflow")
    workflow.add("setup", step)
    workflow.add_group([("step_1", step), ("step_2", step), (step, "step_3")], ["setup"])
    assert [one.dependencies for _, one in workflow] == [[], ["setup"], ["setup"], ["setup"]]
    WorkflowPlugin.push(chancy, workflow)
    assert ended(workflow).is_complete


def test_c02_the_same_id_is_the_later_step() -> None:
    workflow = Workflow("again").add("a", step).add("b", step, ["a"]).add("a", failing)
    assert [name for name, _ in workflow] == ["a", "b"]
    assert workflow["a"].job is failing


def test_c14_fetching(memory: Memory) -> None:
    made = [Workflow(f"w{n}").add("only", failing if n == 2 else step) for n in range(4)]
    for one in made:
        WorkflowPlugin.push(chancy, one)
    ended(made[1])
    ended(made[2])

    def names(**how: Any) -> list[str]:
        return [one.name for one in WorkflowPlugin.fetch_workflows(chancy, **how)]

    assert names() == ["w3", "w2", "w1", "w0"]
    assert names(states=["pending"]) == ["w3", "w0"]
    assert names(states=["completed", "failed"]) == ["w2", "w1"]
    assert names(states=[Workflow.State.FAILED]) == ["w2"]
    assert names(ids=[made[0].id, made[3].id]) == ["w3", "w0"]
    assert (names(ids=[]), names(limit=2)) == ([], ["w3", "w2"])
    assert WorkflowPlugin.fetch_workflow(chancy, "nobody's") is None


def test_c05_states(memory: Memory) -> None:
    workflow = diamond()
    assert (workflow.state, workflow.created_at, len(workflow.id)) == (
        Workflow.State.PENDING,
        None,
        36,
    )
    assert workflow.steps_by_state == {StepState.PENDING: list(workflow.steps.values())}
    WorkflowPlugin.push(chancy, workflow)
    assert workflow.created_at == workflow.updated_at == memory.now
    assert not fetched(workflow).is_running
    turns(memory, workflow, 1)
    running = fetched(workflow)
    assert (running.state, running.is_running, running.is_complete) == (
        Workflow.State.RUNNING,
        True,
        False,
    )
    found = running.steps_by_state
    assert {state and state.value: len(steps) for state, steps in found.items()} == {
        "succeeded": 1,
        "pending": 3,
    }
    assert (running["top"].job_id, running["left"].job_id) == (f"{workflow.id}/top", None)
    assert ended(workflow).is_complete


def turns(memory: Memory, workflow: Workflow, count: int) -> None:
    for _ in range(count):
        memory.turn(workflow.id)


def test_c04_container(memory: Memory) -> None:
    workflow = diamond()
    workflow += WorkflowStep(step, "extra", ["bottom"])
    assert (len(workflow), workflow["extra"].dependencies) == (5, ["bottom"])
    del workflow["extra"]
    assert [name for name, _ in workflow] == ["top", "left", "right", "bottom"]


def test_c07_a_live_workflow_grows(memory: Memory) -> None:
    """Pushed again, it leaves existing steps unchanged: no step runs twice, not even from a stale
    object.
    """
    workflow = diamond()
    WorkflowPlugin.push(chancy, workflow)
    ended(workflow)
    assert WorkflowPlugin.push(chancy, workflow.add("extra", step, ["bottom"])) == workflow.id
    assert ended(workflow).is_complete
    WorkflowPlugin.push(chancy, fetched(workflow))
    assert sorted(memory.calls) == ["bottom", "extra", "left", "right", "top"]


def test_c09_jobs_keep_their_options(memory: Memory) -> None:
    options = {
        "queue": "slow",
        "priority": 3,
        "max_attempts": 2,
        "limits": [Limit(Limit.Type.TIME, 90)],
    }
    chosen = step.job.with_kwargs(url="x").with_meta({"of": 1})
    for name, value in options.items():
        chosen = getattr(chosen, f"with_{name}")(value)
    (spec,) = Workflow("w").add("a", chosen).spec().steps
    assert (spec.queue, spec.priority, spec.max_attempts, spec.timeout_s) == ("slow", 2, 2, 90)
    assert (spec.job["args"], spec.job["meta"]) == ({"url": "x"}, {"of": 1})
    (plain,) = Workflow("w").add("a", step).spec().steps
    assert (plain.queue, plain.priority, plain.max_attempts) == (None, 5, 1)
    with pytest.raises(InvalidRequest, match=r"limits: .*LIFECYCLE_USER_CODE__MEMORY"):
        Workflow("w").add("a", step.job.with_limits([Limit(Limit.Type.MEMORY, 1)])).spec()
    with pytest.raises(AttributeError):
        step.job.with_magic(1)


def test_c10_the_first_failure(memory: Memory) -> None:
    """Its own tries come first. Then nothing more starts, and steps that had not begun have no
    state.
    """
    workflow = (
        Workflow("w")
        .add("a", failing.job.with_max_attempts(2))
        .add("b", step)
        .add("c", step, ["b"])
    )
    workflow.add("d", step, ["a"])
    WorkflowPlugin.push(chancy, workflow)
    turns(memory, workflow, 1)
    assert states(fetched(workflow))["a"] == "retrying"
    found = ended(workflow)
    assert found.state is Workflow.State.FAILED
    assert states(found) == {"a": "failed", "b": "succeeded", "c": "succeeded", "d": None}
    assert memory.calls.count("a") == 2
    assert "unstarted" in dot(found)


def test_c11_what_cannot_run_is_refused(memory: Memory) -> None:
    """Refused by ``validate``, and by ``push`` before anything is sent.

    As in Chancy, users catch ``ValueError``.
    """
    known = Workflow("w").add("a", step).add("b", step, ["a"])
    known.validate()
    wrong = {
        EmptyWorkflowError: Workflow("nothing"),
        InvalidDependencyError: Workflow("w").add("a", step, ["nobody"]),
        CircularDependencyError: Workflow("w").add("a", step, ["b"]).add("b", step, ["a"]),
    }
    for error, workflow in wrong.items():
        assert issubclass(error, ValueError)
        for refused in (
            workflow.validate,
            lambda workflow=workflow: WorkflowPlugin.push(chancy, workflow),
        ):
            with pytest.raises(error):
                refused()
    assert memory.find(states=(), keys=(), limit=9) == []


async def test_c08_push_ex_says_that_it_is_no_part_of_a_transaction(memory: Memory) -> None:
    workflow = Workflow("w").add("a", step)
    with pytest.warns(UserWarning, match="call push after the commit"):
        assert await WorkflowPlugin.push_ex(object(), chancy, workflow) == workflow.id
    assert await WorkflowPlugin.push_ex(None, chancy, workflow) == workflow.id
    assert ended_now(memory, workflow) == "completed"


def ended_now(memory: Memory, workflow: Workflow) -> str:
    return str(memory.wait(workflow.id, None)["state"])


async def test_c16_pruning() -> None:
    """Rules can be built and read; the installation decides what is removed, and when."""
    age = WorkflowPlugin.Rules.Age()
    assert age.to_sql() == "age"
    plugin = WorkflowPlugin(pruning_rule=(age > 3600) & (age < 10**10) | (age > 10**11))
    assert plugin.pruning_rule.to_sql() == "((age > 3600 AND age < 1e+10) OR age > 1e+11)"
    assert WorkflowPlugin().pruning_rule.to_sql() == "age > 86400"
    assert await plugin.cleanup(chancy) is None


async def test_c13_what_drives_a_loop_does_nothing() -> None:
    plugin = WorkflowPlugin(polling_interval=5, max_workflows_per_run=7, max_pending_workflows=9)
    async with Chancy(plugins=[Leadership(), plugin]) as app:
        assert app.plugins[1].polling_interval == 5
        await plugin.process_workflow(app, Workflow("w"))
        await plugin.run(None, app)
    assert [
        plugin.get_scope(),
        plugin.migrate_key(),
        plugin.migrate_package(),
        plugin.api_plugin(),
    ] == [None] * 4


def grafting(context: dict[str, Any]) -> Graph:
    return Graph().add("x", told).add("y", told, "x")


def told() -> None: ...


def test_the_other_facades_graphs_have_edges_that_lead_to_steps(memory: Memory) -> None:
    """A sub-graph is a step after those in it, and whoever waits for a graft waits for what it
    attached.
    """
    inner = Graph().add("a", told).add_many("empty", [], "a").add("b", told, "empty")
    graph = Graph(check_deps=False).add("first", told).add_workflow("inner", inner, "first")
    graph.add_graft("graft", grafting, "inner").add("last", told, ["graft", "not there yet"])
    graph.start()
    while memory.turn(graph.id):
        pass
    found = fetched(Workflow("any", id=graph.id))
    found.validate()
    assert {name: one.dependencies for name, one in found} == {
        "first": [],
        "inner": ["inner/a", "inner/empty", "inner/b"],
        "inner/a": ["first"],
        "inner/empty": ["inner/a"],
        "inner/b": ["inner/empty"],
        "graft": ["inner"],
        "last": ["graft", "graft/x", "graft/y"],
        "graft/x": ["graft"],
        "graft/y": ["graft/x"],
    }
    assert states(found)["inner"] == "succeeded"


def test_what_would_wedge_is_refused(memory: Memory) -> None:
    """In Chancy, an unknown step kills the leader's loop, and a cycle waits for ever."""
    with pytest.raises(InvalidRequest, match='step "a": deps: there is no step "nobody"'):
        WorkflowPlugin.push(chancy, Workflow("w").add("a", step, ["nobody"]))
    with pytest.raises(InvalidRequest, match='"a" waits for "b" waits for "a"'):
        WorkflowPlugin.push(chancy, Workflow("w").add("a", step, ["b"]).add("b", step, ["a"]))
