"""shub-workflow's graphs: rows S-70 … S-87 of the rules. docs/graphs.md gives a reason for each
rule without a test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.graphs.shub import BaseTask, GraphManager, SpiderTask, Task
from crawler_lifecycle.graphs.testing import in_memory


class Shop(GraphManager):
    """a, then b and c, then d, which also waits for c, whatever its outcome."""

    name = "shop"

    def configure_workflow(self) -> Iterable[BaseTask]:
        a = Task("a", "py:list.py --country=fr", init_args=["--depth", 2], tags=["X=1"])
        b = SpiderTask("b", "items", page=1)
        c = Task("c", "parse --part=0\nparse --part=1\nparse --part=2", retries=0)
        d, other = (
            SpiderTask("d", "publish", job_settings={"DELAY": 2}, units=2),
            SpiderTask("e", "other"),
        )
        a.add_next_task(b)
        a.add_next_task(c)
        b.add_next_task(d)
        d.add_wait_for(c)
        c.add_required_resources({"disk": 2})
        c.add_required_resources({"gpu": 1})
        return (a, other)


def manager(*argv: str) -> Shop:
    return Shop([*(argv or ("--root-jobs",)), "--flow-id", "f1"])


def calls(*argv: str, **crawls: Any) -> list[str]:
    with in_memory(crawls=crawls) as memory:
        manager(*argv).workflow().start().wait()
    return memory.calls


def test_s74_s76_s85_tasks_are_crawls_under_a_cap() -> None:
    steps = {step.path: step for step in manager().workflow().spec().steps}
    common = ["FLOW_ID=f1", "PARENT_NAME=shop"]
    assert steps["a"].job == {
        "crawler": "list",
        "args": {"country": "fr", "depth": "2"},
        "tags": [*common, "TASK_ID=a", "X=1"],
    }
    assert steps["d"].job == {
        "crawler": "publish",
        "resources": {"memory": "2Gi"},
        "settings": {"DELAY": "2"},
        "tags": [*common, "TASK_ID=d"],
    }
    assert manager().workflow().id == "shop.f1"
    assert manager().workflow().spec().options.max_parallel == 1000
    assert (
        manager("--root-jobs", "--max-running-jobs", "2").workflow().spec().options.max_parallel
        == 2
    )


def test_s75_s81_a_task_of_several_lines_shares_its_resources() -> None:
    steps = {step.path: step for step in manager().workflow().spec().steps}
    assert [steps[f"c/{n}"].job["args"]["part"] for n in range(3)] == ["0", "1", "2"]
    assert "TASK_ID=c.2" in steps["c/2"].job["tags"]
    assert steps["c/0"].resources == ({"disk": "2/3"}, {"gpu": "1/3"})


def test_s77_next_needs_a_good_end_and_waiting_any() -> None:
    assert calls() == ["a", "e", "b", "c/0", "c/1", "c/2", "d"]
    assert calls(parse="banned")[-1] == "d"
    assert calls(items="banned") == ["a", "e", "b", "c/0", "c/1", "c/2", "b"]
    assert calls(list="banned") == ["a", "e", "a"]


def test_s79_each_run_has_its_own_tries() -> None:
    assert {
        step.path: step.max_attempts
        for step in manager().workflow().spec().steps
        if step.job.get("crawler")
    } == {
        **dict.fromkeys("abde", 2),
        **{f"c/{n}": 1 for n in range(3)},
    }


def test_s70_s71_s72_where_it_starts(capsys: pytest.CaptureFixture[str]) -> None:
    assert calls("-s", "b") == ["b", "d"]
    assert calls("-s", "b", "-s", "e", "--only-starting-jobs", items="banned") == ["b", "e"]
    assert calls("--root-jobs", "--skip-job", "c", "--comment", "again") == ["a", "e", "b", "d"]
    for argv, said in (
        ([], "give either --root-jobs or --starting-job"),
        (["--root-jobs", "-s", "a"], "give either --root-jobs or --starting-job"),
        (["-s", "nobody"], "there is no task 'nobody'; known: a, b, c, d, e"),
    ):
        with pytest.raises(SystemExit):
            Shop(argv).workflow()
        assert said in capsys.readouterr().err


def test_a_script_waits_for_its_graph(capsys: pytest.CaptureFixture[str]) -> None:
    with in_memory():
        manager().run()
    assert capsys.readouterr().out == "graph shop.f1\n"
    with in_memory(crawls={"other": "banned"}), pytest.raises(SystemExit) as left:
        manager().run()
    assert left.value.code == 5


def of(*tasks: BaseTask) -> Any:
    cls = type("Of", (GraphManager,), {"name": "of", "configure_workflow": lambda self: tasks})
    return cls(["--root-jobs"]).workflow().spec()


def cycle() -> Any:
    a, b = SpiderTask("a", "x"), SpiderTask("b", "x")
    a.add_next_task(b)
    a.add_wait_for(b)
    return of(a)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "S-74 a dot": (lambda: SpiderTask("a.b", "x"), "task_id: 'a.b'"),
    "S-74 retry": (lambda: SpiderTask("retry", "x"), "task_id: 'retry'"),
    "S-74 an id twice": (
        lambda: of(SpiderTask("a", "x"), SpiderTask("a", "y")),
        "two tasks have the id 'a'",
    ),
    "S-74 a template": (lambda: Task("a", "py:x.py {{ n }}"), "templates are not supported"),
    "S-74 a word that is no option": (
        lambda: of(Task("a", "py:x.py fr")),
        "init_args: 'fr' is not allowed; give options",
    ),
    "S-74 other arguments for a retry": (
        lambda: Task("a", "x", retry_args=["--b"]),
        "a retry resumes the run",
    ),
    "S-78 by outcome": (
        lambda: SpiderTask("a", "x", on_finish={"failed": []}),
        "Workflow.add_graft",
    ),
    "S-79 a hook": (
        lambda: type("N", (Shop,), {"bad_outcome_hook": lambda *_: None})(["--root-jobs"]),
        "bad_outcome_hook: a graph never calls it",
    ),
    "S-86 tasks at the start": (
        lambda: type("N", (Shop,), {"on_start": lambda _: None})(["--root-jobs"]),
        "on_start: a graph never calls it",
    ),
    "S-82 a pause": (lambda: SpiderTask("a", "x", wait_time=9), "not_before"),
    "S-84 a cycle": (cycle, '"after b" waits for "b" waits for "a" waits for "after b"'),
    "S-06 no name": (
        lambda: type("N", (Shop,), {"name": None})(["--root-jobs"]).workflow(),
        "name: a GraphManager needs",
    ),
}


@pytest.mark.parametrize("row", REFUSED)
def test_what_a_graph_cannot_mean_is_refused(row: str) -> None:
    build, said = REFUSED[row]
    with pytest.raises(InvalidRequest, match=said):
        build()
