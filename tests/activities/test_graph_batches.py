"""Calls of graph functions in real processes and with the real store, driven like the graph's
workflow does.
"""

from __future__ import annotations

import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from temporalio.exceptions import CancelledError
from temporalio.testing import ActivityEnvironment

from crawler_lifecycle.activities.run_files import FileReading, RunFiles
from crawler_lifecycle.clusters.local.folders.task_files import LocalFiles
from crawler_lifecycle.domain.errors import Fenced, StoreUnavailable
from crawler_lifecycle.domain.names import functions_queue
from crawler_lifecycle.domain.projects import only
from crawler_lifecycle.domain.run import StopIntent
from crawler_lifecycle.domain.values import decode, packed, to_json, unpacked
from crawler_lifecycle.features.graphs.activities import batches as graph_batches
from crawler_lifecycle.features.graphs.activities.batches import BatchOrder, GraphBatchActivities
from crawler_lifecycle.features.graphs.domain.engine import PickedSteps
from crawler_lifecycle.features.graphs.domain.spec import StepKind, StepSpec, StepState
from crawler_lifecycle.features.graphs.ports import ExecutionEnd, StepWork
from crawler_lifecycle.features.managers.ports import UserCodeRow
from crawler_lifecycle.features.user_code.functions import Functions
from crawler_lifecycle.features.user_code.process import Rules
from crawler_lifecycle.ports.protocols import UserCodeFailed, WorkerLeaves
from crawler_lifecycle.store.store import open_store
from tests.contracts.store.graphing import Graphed, crawl, group
from tests.contracts.store.harness import Clock, Harness
from tests.support.databases import make_tables
from tests.user_code.user_code_support import module, until

pytestmark = pytest.mark.troubles

BODY = """
from datetime import date
from pathlib import Path
from crawler_lifecycle.features.graphs.domain.spec import GraphSpec, StepKind, StepSpec
from crawler_lifecycle.graphs import Workflow, crawl, fan_out
from crawler_lifecycle.graphs.asking import current
from crawler_lifecycle.graphs.job import current_job
from crawler_lifecycle.graphs.job import Cancel, Record, Snooze

def note(word=None):
    job = current_job()
    with open("ledger", "a") as ledger: ledger.write(f"{job.path} {job.attempt}\\n")
    return word or {"at": date(2026, 11, 22), "n": job.attempt}
def seen(context): return context
def item(item, context): return [item, sorted(context)]
def fails(): raise ValueError(f"try {current_job().attempt}, before: {[e['error'][:12] for e in current_job().errors]}")
def ends(): os._exit(7)
def hangs(): note(); time.sleep(3600)
def stubborn():
    signal.signal(signal.SIGTERM, lambda *_: None)
    hangs()
def polite():
    note()
    while not current_job().cancelled(): time.sleep(0.01)
    return "stopped early"
def snoozes(): return Snooze(60) if current_job().meta["snoozed"] < 2 else current_job().attempt
def cancels(): return Cancel("no data today")
def large(): return "x" * 3_000_000
def prints(): print("password=hunter2", "and a word"); return 1
class Worker:
    async def process(self, job):
        graph = Workflow.for_job(job)
        status, after = await graph.status(), await graph.get_job("after")
        return Record({
            "args": job.args,
            "jobs": {one.path: one.state for one in await graph.all_jobs()},
            "inside": [one.path for one in await graph.all_jobs(names=["fan", "first"])],
            "of deps": await graph.all_recorded(deps_of=job),
            "recorded": await graph.all_recorded(),
            "context": await graph.get_context(),
            "status": [status.state, status.total, dict(status.counts), type(status.started_at).__name__],
            "why": after.reason,
            "nobody": await graph.get_job("nobody"),
        })
def each(context):
    shops = current_job().items("shops", fields=["url"])
    return fan_out(shops, lambda shop: crawl("services", args={"site": shop["url"]}), key="url")
def merge(context):
    return [sorted(item["url"] for item in current_job().items("each")), len(current_job().files("each"))]
def secrets():
    links = {name: os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if int(name) > 2
             and os.path.lexists(f"/proc/self/fd/{name}")}
    return [dict(os.environ), sorted(links.values())]
def cancels_another(): return current().cancel(current_job().graph, ["victim"], "not wanted")
def spec(*names):
    here = note.__module__
    steps = [StepSpec(name, StepKind.FUNCTION, {"call": f"{here}:note"}) for name in names]
    return GraphSpec(steps, context={"deep": 1})
def grafts():
    job = current_job()
    current().graft(job.graph, job.path, job.attempt, spec("a", "b"))
    current().graft(job.graph, job.path, job.attempt, spec("a", "b"))
def grafts_nothing(): ...
def grafts_pools(): return Workflow(pools={"db": 1})
def grafts_twice():
    grafts()
    current().graft(current_job().graph, current_job().path, current_job().attempt, spec("c"))
def grafts_elsewhere():
    job = current_job()
    current().graft(job.graph, "grafter", 1, spec("a"))
"""


class Directory:
    """Records which workflows were woken."""

    def __init__(self) -> None:
        self.woken: list[str] = []

    def wake(self, workflow_id: str) -> bool:
        self.woken.append(workflow_id)
        return True


@dataclass
class Fixture:
    """A worker that calls the functions of one module."""

    harness: Harness
    folder: Path
    modules: list[str] = field(default_factory=list)
    live: Any = None
    """The files that tasks have."""

    def __post_init__(self) -> None:
        self.module = module(self.folder, BODY)
        self.functions = Functions(
            [self.module, *self.modules], Rules(folder=self.folder), 64 * 1024 * 1024
        )
        self.directory: Any = Directory()
        store = self.harness.store
        self.activities = GraphBatchActivities(
            *(
                store.graphs,
                store.user_code,
                self.functions,
                self.directory,
                self.reading,
                self.harness.clock,
            ),
            grace_s=0.2,
        )
        self.environment = ActivityEnvironment()
        self.environment.info = replace(self.environment.info, task_queue=functions_queue(None))

    def reading(self, parent: str) -> FileReading:
        store = self.harness.store
        return FileReading(
            store.runs, RunFiles(store.tasks, store.exports, self.live, None, "nowhere"), parent
        )

    def step(
        self, path: str, *deps: str, call: str = "note", style: str = "plain", **fields: Any
    ) -> StepSpec:
        job = {"call": call if ":" in call else f"{self.module}:{call}", "style": style}
        job |= {name: fields.pop(name) for name in ("args", "item") if name in fields}
        return StepSpec(path, StepKind.FUNCTION, job, deps, **fields)

    def graph(self, *steps: StepSpec, **more: Any) -> Graphed:
        return Graphed.made(self.harness, steps, **more)

    def call(self, graph: Graphed, batch: int) -> None:
        self.environment.run(self.activities.run_graph_batch, BatchOrder(graph.fence, batch))

    def run(self, graph: Graphed, picked: PickedSteps | None = None) -> int:
        """Call functions until none is left. Return the number of calls."""
        calls, picked = 0, picked or graph.advance()
        while picked.batches and calls < 100:
            for batch in picked.batches:
                self.call(graph, batch.number)
                calls += 1
            picked = graph.advance(*(batch.number for batch in picked.batches))
        return calls

    def ledger(self) -> list[str]:
        """Return what the functions themselves recorded about their executions."""
        file = self.folder / "ledger"
        return file.read_text().splitlines() if file.exists() else []

    def value(self, graph: Graphed, path: str) -> Any:
        parts = self.harness.store.graphs.result(graph.id, graph.step(path).number)
        return decode(b"".join(unpacked(parts)))


@pytest.fixture
def fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fixture]:
    # The number of calls depends on no clock.
    monkeypatch.setattr(graph_batches, "BEGIN_S", 600.0)
    clock = Clock()
    store = open_store(make_tables(f"sqlite:///{tmp_path}/state.db"), pool_size=4, clock=clock)
    users = tmp_path / "users"
    users.mkdir()
    found = Fixture(Harness(store, clock), users)
    yield found
    found.functions.close()
    store.close()


def test_a_chain_is_one_call_and_each_step_is_on_record_before_the_next(fixture: Fixture) -> None:
    graph = fixture.graph(
        *(fixture.step(f"s{n}", *([f"s{n - 1}"] if n else [])) for n in range(12))
    )
    assert fixture.run(graph) == 1
    assert fixture.ledger() == [f"s{n} 1" for n in range(12)]
    assert set(graph.states().values()) == {StepState.COMPLETED}
    assert fixture.value(graph, "s3") == {"at": datetime(2026, 11, 22).date(), "n": 1}


def test_a_function_is_called_within_the_project_of_its_graph(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    within: list[str | None] = []
    context = fixture.harness.store.graphs.context

    def asked(graph_id: int, number: int) -> Any:
        within.append(only())
        return context(graph_id, number)

    monkeypatch.setattr(fixture.harness.store.graphs, "context", asked)
    fixture.run(fixture.graph(fixture.step("first", call="seen", style="cascade")))
    assert (within, only()) == (["default"], None)


def test_many_short_functions_share_transactions(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_batches, "TOGETHER_S", 600.0)
    begun: list[int] = []
    record = fixture.harness.store.graphs.record

    def counted(
        fence: Any, done: Sequence[ExecutionEnd], begin: Sequence[StepWork] = ()
    ) -> set[int]:
        begun.append(len(begin))
        return record(fence, done, begin)

    monkeypatch.setattr(fixture.harness.store.graphs, "record", counted)
    graph = fixture.graph(
        *(fixture.step(f"s{n}") for n in range(200)),
        fixture.step("all", *(f"s{n}" for n in range(200))),
    )
    fixture.run(graph)
    assert set(graph.states().values()) == {StepState.COMPLETED}
    assert len(fixture.ledger()) == 201
    assert max(begun) > 2
    assert len(begun) < 201
    begun.clear()
    fixture.run(fixture.graph(*(fixture.step(f"s{n}") for n in range(64)), key="again"))
    assert begun[:2] == [2, 0], "the worker knows by now that this function is short"


def test_a_cascade_gets_context_and_what_its_dependencies_recorded(fixture: Fixture) -> None:
    day, waited_for = (
        datetime(2026, 11, 22, tzinfo=UTC),
        ("first", "fan", "empty", "visit", "grafts", "bare", "lost"),
    )
    graph = fixture.graph(
        fixture.step("first", args={"word": to_json({"day": day})}),
        group("fan", "first", job={"context": {"shared": 2}}),
        fixture.step("fan/0", call="item", style="item", item={"$$date": 1}),
        fixture.step("fan/users", call="item", style="item", item=to_json(day)),
        group("fan/deep"),
        fixture.step("fan/deep/x"),
        group("empty"),
        crawl("visit"),
        fixture.step("grafts", call="grafts", graft=True),
        fixture.step("bare", call="grafts_nothing", graft=True),
        fixture.step("lost", call="fails"),
        fixture.step("sum", *waited_for, call="seen", style="cascade", ignore_discarded=True),
        context={"source": to_json(day), "shared": 1},
    )
    picked = graph.advance()
    run = graph.begin_runs()["visit"]
    graph.finish(run)
    fixture.run(graph, picked)
    found = fixture.value(graph, "sum")
    visit = found.pop("visit")
    assert (
        visit.items()
        >= {"run_id": run.run_id, "status": "COMPLETED", "outcome": "finished"}.items()
    )
    assert {"pages", "items", "errors", "archive"} < visit.keys()
    note = {"at": day.date(), "n": 1}
    around = ["first", "shared", "source"]  # an item of a fan-out gets what the fan-out depends on
    assert found == {
        "source": day,
        "shared": 1,
        "first": {"day": day},
        "fan": {"0": [{"$date": 1}, around], "users": [day, around], "deep": {"x": note}},
        "empty": {},
        "grafts": {"a": note, "b": note},
        "bare": {},
    }


def test_a_worker_asks_about_its_graph(fixture: Fixture) -> None:
    """The function awaits the result in its process, with the handle that users have."""
    graph = fixture.graph(
        fixture.step("first"),
        group("fan"),
        fixture.step("fan/a"),
        fixture.step("fan/b", call="cancels"),
        fixture.step(
            "asks",
            "first",
            "fan",
            call="Worker",
            style="worker",
            args={"a": 1},
            ignore_cancelled=True,
        ),
        fixture.step("after", "asks"),
        key="nightly",
        context={"c": 3},
    )
    fixture.run(graph)
    note = {"at": datetime(2026, 11, 22).date(), "n": 1}
    assert fixture.value(graph, "asks") == {
        "args": {"a": 1},
        "jobs": {
            "first": "completed",
            "fan/a": "completed",
            "fan/b": "cancelled",
            "asks": "executing",
            "after": "suspended",
        },
        "inside": ["first", "fan/a", "fan/b"],
        "of deps": {"first": note, "fan": {"a": note}},
        "recorded": {"first": note, "fan": {"a": note}},
        "context": {"c": 3},
        "status": [
            "executing",
            5,
            {"completed": 2, "executing": 1, "suspended": 1, "cancelled": 1},
            "datetime",
        ],
        "why": 'it is waiting for "asks" (executing)',
        "nobody": None,
    }
    assert graph.step("fan/b").reason == "no data today"


def test_failures_are_tried_again_and_then_final(fixture: Fixture) -> None:
    graph = fixture.graph(
        fixture.step("f", call="fails", max_attempts=2, backoff_s=30), fixture.step("after", "f")
    )
    fixture.run(graph)
    row = graph.step("f")
    assert (row.state, row.outcome) == (StepState.RETRYABLE, "failed")
    fixture.harness.clock.forward(31)
    fixture.run(graph)
    row = graph.step("f")
    assert (row.state, row.attempt) == (StepState.DISCARDED, 2)
    assert row.reason is not None
    assert row.reason.startswith("ValueError: try 2, before: ['ValueError: ']")
    assert graph.step("after").state is StepState.CANCELLED


BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "its process ends": ({"call": "ends"}, "failed", "its process ended with exit code 7"),
    "too long": (
        {"call": "hangs", "timeout_s": 0.6},
        "timed_out",
        "more than 0.6 s and was killed",
    ),
    "other arguments": (
        {"args": {"nobody": 1}, "max_attempts": 5},
        "failed",
        "unexpected keyword argument 'nobody'",
    ),
    "no such function": ({"call": "gone", "max_attempts": 5}, "failed", "no longer has this name"),
    "not listed": ({"call": "subprocess:run"}, "failed", "is not in LIFECYCLE_USER_CODE__MODULES"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_goes_wrong_is_the_end_of_its_step_alone(fixture: Fixture, case: str) -> None:
    fields, outcome, said = BAD[case]
    graph = fixture.graph(
        fixture.step("before"), fixture.step("bad", **fields), fixture.step("beside")
    )
    fixture.run(graph)
    row = graph.step("bad")
    assert (row.state, row.outcome, row.attempt) == (StepState.DISCARDED, outcome, 1)
    assert said in str(row.reason)
    assert said in row.errors[0]["error"]
    assert {graph.step(path).state for path in ("before", "beside")} == {StepState.COMPLETED}


SPOILT: dict[str, tuple[str, str, str]] = {
    "no call": (
        "graph_step",
        "job = '{}' WHERE path = 'bad'",
        'step "bad": call: None is not allowed; give "module:',
    ),
    "a style": (
        "graph_step",
        """job = '{"call": "a:b", "style": 5}' WHERE path = 'bad'""",
        "style: 5 is not allowed",
    ),
    "args": (
        "graph_step",
        """job = '{"call": "a:b", "args": {"$date": "x"}}' WHERE path = 'bad'""",
        "args",
    ),
    "limit": (
        "graph_step",
        """shape = '{"timeout_s": "long"}' WHERE path = 'bad'""",
        "timeout_s: 'long' is not",
    ),
    "value": ("graph", """context = '{"day": {"$date": "x"}}'""", "'x'"),
    "result": (
        "graph_result",
        "data = x'FFFF'",
        'result of step "before": .* is damaged.*; retry that step',
    ),
    "no result": ("graph_result", "data = x''", "a stored part of it is missing"),
}


@pytest.mark.parametrize("case", SPOILT)
def test_what_a_manual_edit_has_spoilt_is_the_end_of_its_step_alone(
    fixture: Fixture, case: str
) -> None:
    table, statement, said = SPOILT[case]
    bad = fixture.step("bad", "before", call="seen", style="cascade")
    graph = fixture.graph(
        fixture.step("before"), bad, fixture.step("beside", queue="other"), context={"day": 1}
    )
    one, other = graph.advance().batches
    [before, _] = graph.work(one.number)
    graph.begin(before)
    graph.begin(done=[graph.end(before, result=b"".join(packed([b"1"])))])
    with fixture.harness.store.database.engine.begin() as conn:  # type: ignore[attr-defined]
        assert conn.execute(sa.text(f"UPDATE {table} SET {statement}")).rowcount
    fixture.call(graph, one.number)
    fixture.call(graph, other.number)
    row = graph.step("bad")
    assert (row.state, row.outcome) == (StepState.DISCARDED, "failed")
    assert re.search(said, str(row.reason)), row.reason
    assert row.errors[0]["error"] == row.reason
    assert graph.step("beside").state is StepState.COMPLETED


def test_a_module_that_another_worker_has_is_left_to_it(fixture: Fixture) -> None:
    graph = fixture.graph(fixture.step("here"), fixture.step("there", call="elsewhere:f"))
    rows = [UserCodeRow("elsewhere", "module", None, "", "1")]
    fixture.harness.store.user_code.register_user_code("another", rows)
    here, there = graph.advance().batches
    fixture.call(graph, here.number)
    with pytest.raises(UserCodeFailed, match="is not in LIFECYCLE_USER_CODE__MODULES"):
        fixture.call(graph, there.number)
    assert graph.step("here").state is StepState.COMPLETED
    row = graph.step("there")
    assert (row.state, row.tries, row.errors) == (StepState.AVAILABLE, 0, ())
    fixture.harness.clock.forward(1000)  # no worker has reported this for a long time
    fixture.run(graph)
    assert graph.step("there").state is StepState.DISCARDED


def test_a_module_that_only_another_pool_has_is_waited_for_by_nobody(fixture: Fixture) -> None:
    graph = fixture.graph(fixture.step("there", call="elsewhere:f", max_attempts=1))
    row = UserCodeRow("elsewhere", "module", None, "", "1", queue="gpu")
    fixture.harness.store.user_code.register_user_code("another", [row])
    fixture.run(graph)
    assert graph.step("there").state is StepState.DISCARDED


def test_a_snooze_costs_no_try(fixture: Fixture) -> None:
    graph = fixture.graph(fixture.step("s", call="snoozes"))
    for _ in range(3):
        fixture.run(graph)
        fixture.harness.clock.forward(61)
    assert fixture.value(graph, "s") == 3
    assert (graph.step("s").snoozed, graph.step("s").state) == (2, StepState.COMPLETED)


def test_a_large_result_is_kept_in_parts(fixture: Fixture) -> None:
    graph = fixture.graph(
        fixture.step("l", call="large"), fixture.step("m", "l", call="seen", style="cascade")
    )
    fixture.run(graph)
    assert fixture.value(graph, "m") == {"l": "x" * 3_000_000}
    assert graph.step("l").result_bytes == 3_000_002


def test_what_functions_print_is_kept_without_secrets(fixture: Fixture) -> None:
    graph = fixture.graph(fixture.step("p", call="prints"))
    fixture.run(graph)
    printed = fixture.harness.store.graphs.output(graph.id)  # type: ignore[attr-defined]
    assert "and a word" in printed
    assert "hunter2" not in printed


def _beside(fixture: Fixture, graph: Graphed, call: Callable[[], None]) -> list[BaseException]:
    """Call ``act`` while a function executes. Return what the activity raised."""
    (batch,) = graph.advance().batches
    raised: list[BaseException] = []

    def work() -> None:
        try:
            fixture.call(graph, batch.number)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    until(fixture.ledger)
    call()
    thread.join()
    return raised


@pytest.mark.parametrize("how", ["polite", "hangs", "stubborn"])
def test_a_cancelled_function_is_asked_to_end_and_ended(
    fixture: Fixture, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_batches, "TERM_S", 0.5)
    if how == "polite":
        fixture.activities = replace(fixture.activities, grace_s=600.0)
    graph = fixture.graph(fixture.step("s", call=how, timeout_s=600), fixture.step("after", "s"))
    store = fixture.harness.store.graphs
    assert not _beside(fixture, graph, lambda: _cancel(store, graph))
    row = graph.step("s")
    assert (row.state, row.ending, row.result_bytes) == (StepState.CANCELLED, False, None)
    assert graph.step("after").state is StepState.CANCELLED
    assert len(fixture.ledger()) == 1


def _cancel(store: Any, graph: Graphed) -> None:
    assert store.command(graph.id, "c1", lambda engine: engine.cancel([0], "by ada"))
    assert graph.step("s").ending


def test_a_stop_by_force_kills_and_proves_that_nothing_runs(fixture: Fixture) -> None:
    graph = fixture.graph(fixture.step("s", call="hangs", timeout_s=600))

    def stop() -> None:
        now = fixture.harness.clock.now
        fixture.harness.store.graphs.record_graph_stop(graph.id, StopIntent(now, force=True))
        assert graph.step("s").ending
        fixture.environment.cancel()

    (raised,) = _beside(fixture, graph, stop)
    assert isinstance(raised, CancelledError)
    assert (graph.step("s").state, graph.step("s").ending) == (StepState.CANCELLED, False)


def test_a_worker_that_leaves_loses_nothing_but_time(fixture: Fixture) -> None:
    graph = fixture.graph(fixture.step("s", call="hangs", timeout_s=600))
    (raised,) = _beside(fixture, graph, fixture.functions.close)
    assert isinstance(raised, WorkerLeaves)
    assert graph.step("s").state is StepState.EXECUTING
    (fixture.folder / f"{fixture.module}.py").write_text("def hangs(): return 'done'")
    fixture.functions = Functions([fixture.module], Rules(folder=fixture.folder), 1000)
    fixture.activities = replace(fixture.activities, functions=fixture.functions)
    fixture.call(graph, 1)
    assert (fixture.value(graph, "s"), graph.step("s").attempt) == ("done", 2)


def test_a_database_that_is_away_for_a_moment_costs_no_execution(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = fixture.graph(fixture.step("a"), fixture.step("b", "a"))
    record, away = fixture.harness.store.graphs.record, [False, True, True, True, False]

    def sometimes(*arguments: Any) -> set[int]:
        if away and away.pop(0):
            record(*arguments)  # it may have taken effect, and only its response is lost
            raise StoreUnavailable("away")
        return record(*arguments)

    monkeypatch.setattr(fixture.harness.store.graphs, "record", sometimes)
    fixture.run(graph)
    assert fixture.ledger() == ["a 1", "b 1"]
    assert set(graph.states().values()) == {StepState.COMPLETED}


def test_a_function_may_ask_whether_it_is_cancelled_while_the_database_is_away(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is no, and the function is neither killed nor executed again."""
    graph = fixture.graph(fixture.step("s", call="polite", timeout_s=600))
    store = fixture.harness.store.graphs
    cancelled, asked = store.cancelled, list[int]()

    def away(*arguments: Any) -> set[int]:
        asked.append(1)
        if len(asked) <= 2:
            raise StoreUnavailable("away")
        return cancelled(*arguments)

    monkeypatch.setattr(store, "cancelled", away)
    assert not _beside(fixture, graph, lambda: _cancel(store, graph))
    assert len(asked) > 2
    assert fixture.ledger() == ["s 1"]
    assert graph.step("s").state is StepState.CANCELLED


def test_what_a_function_asks_is_answered_when_the_database_is_back(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If only the response was lost, the request has no second effect."""
    graph = fixture.graph(fixture.step("c", call="cancels_another"), fixture.step("victim", "c"))
    store = fixture.harness.store.graphs
    command, lost = store.command, [True, True]

    def away(*arguments: Any) -> int:
        answer = command(*arguments)
        if lost and lost.pop():
            raise StoreUnavailable("away")
        return answer

    monkeypatch.setattr(store, "command", away)
    fixture.run(graph)
    assert (fixture.value(graph, "c"), graph.step("c").attempt, lost) == (1, 1, [])
    row = graph.step("victim")
    assert (row.state, row.reason) == (StepState.CANCELLED, "cancelled by step c: not wanted")


def test_whoever_lost_the_graph_writes_nothing(fixture: Fixture) -> None:
    graph = fixture.graph(fixture.step("a"))
    (batch,) = graph.advance().batches
    graph.fence = replace(graph.fence, owner_run_id="another")
    with pytest.raises(Fenced):
        fixture.call(graph, batch.number)
    assert fixture.ledger() == []


def test_a_graft_is_made_once(fixture: Fixture) -> None:
    graph = fixture.graph(
        fixture.step("grafter", call="grafts", graft=True),
        fixture.step("after", "grafter", call="seen", style="cascade"),
    )
    fixture.run(graph)
    note = {"at": datetime(2026, 11, 22).date(), "n": 1}
    assert fixture.value(graph, "after") == {"grafter": {"a": note, "b": note}}
    assert fixture.directory.woken == ["graph/nightly/shops"] * 2


@pytest.mark.parametrize(
    ("call", "graft", "said"),
    [
        ("grafts", False, "is not a graft; add it with add_graft"),
        ("grafts_twice", True, "DuplicateRequest"),
        ("grafts_elsewhere", True, "only the executing step may graft"),
        (
            "grafts_pools",
            True,
            'InvalidRequest: graft of step "s": fail_fast and pools are for a whole graph',
        ),
    ],
)
def test_a_graft_that_cannot_be_fails_its_step(
    fixture: Fixture, call: str, graft: bool, said: str
) -> None:
    graph = fixture.graph(fixture.step("s", call=call, graft=graft))
    fixture.run(graph)
    assert graph.step("s").state is StepState.DISCARDED
    assert said in str(graph.step("s").reason)


def test_after_its_time_a_call_answers_and_the_rest_costs_no_try(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_batches, "BEGIN_S", 1e-9)
    graph = fixture.graph(*(fixture.step(f"s{n}") for n in range(96)))
    first = graph.advance().batches[0]
    batch = graph_batches._Batch(fixture.activities, graph.row, graph.fence)
    fixture.environment.run(lambda: batch.run(graph.work(first.number)))
    assert fixture.ledger() == []  # there was no time to begin anything
    monkeypatch.setattr(graph_batches, "BEGIN_S", 600.0)
    batch._took = 700.0
    fixture.environment.run(lambda: batch.run(graph.work(first.number)))
    assert fixture.ledger() == []  # the next one would end too late
    batch._took = 0.0
    monkeypatch.setattr(graph_batches, "BEGIN_S", 0.05)
    fixture.environment.run(lambda: batch.run(graph.work(first.number)))
    rows = [graph.step(path) for path in ("s0", "s1", "s2")]
    assert [(row.state, row.tries) for row in rows] == [
        ("completed", 1),
        ("available", 0),
        ("available", 0),
    ]
    assert 0 < batch._took < 600


def test_a_crawl_for_each_item_of_a_crawl(fixture: Fixture, tmp_path: Path) -> None:
    """From live files, through the process: items, a graft of crawls for them, and the items of
    these crawls.
    """
    fixture.live = LocalFiles(tmp_path)
    graph = fixture.graph(
        crawl("shops"),
        fixture.step("each", "shops", call="each", style="cascade", graft=True),
        fixture.step("merge", "each", call="merge", style="cascade"),
    )

    def end(urls: dict[str, list[str]]) -> None:
        for path, run in graph.begin_runs().items():
            folder = tmp_path / "tasks" / f"{run.run_id}-{run.run_uid}" / "0" / "1" / "files"
            folder.mkdir(parents=True)
            (folder / "items.jsonl").write_text(
                "".join(f'{{"url": "{url}", "n": 1}}\n' for url in urls[path])
            )
            graph.finish(run)

    graph.advance()
    end({"shops": ["a.com", "b.com/x"]})
    fixture.run(graph)
    assert set(graph.states()) == {"shops", "each", "merge", "each/a.com", "each/b.com_x"}
    end({"each/a.com": ["1", "2"], "each/b.com_x": ["3"]})
    fixture.run(graph)
    assert fixture.value(graph, "merge") == [["1", "2", "3"], 2]


def test_a_function_has_no_credential_and_no_file_of_the_worker(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    secret = "canary-5c6d7e"
    for name in (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "LIFECYCLE_DATABASE__URL",
        "TEMPORAL_API_KEY",
    ):
        monkeypatch.setenv(name, secret)
    with (tmp_path / secret).open("wb"), socket.create_server(("127.0.0.1", 0)):
        graph = fixture.graph(fixture.step("look", call="secrets"))
        fixture.run(graph)
    environment, files = fixture.value(graph, "look")
    assert secret not in str(environment) + str(files)
    assert not [
        name for name in environment if name.startswith(("AWS_", "LIFECYCLE_", "TEMPORAL_"))
    ]
    kinds = Counter(re.sub(r"(/\S*/|:\[\d+\]|[#\d]+)", "", name) for name in files)
    assert kinds == {"pipe": 2, " (deleted)": 2}, "its two pipes, and two files without a name"
