"""Graphs that steps and hooks start: once, whatever happens to the process, and with the checks of
every start.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.domain.errors import TemporalUnavailable
from crawler_lifecycle.features.graphs.activities.starting import GraphStarts
from crawler_lifecycle.features.graphs.domain.commands import GraphOrder
from crawler_lifecycle.features.graphs.domain.spec import GraphState, StepState
from crawler_lifecycle.features.managers.ports import UserCodeRow
from crawler_lifecycle.features.user_code.pool import Hosts
from crawler_lifecycle.graphs import Job
from crawler_lifecycle.store.store import Store, open_store
from tests.activities.test_graph_batches import Fixture as Functions
from tests.activities.test_manager_cycle import Fixture as Managers
from tests.activities.test_manager_cycle import fixture
from tests.activities.test_manager_cycle_processes import hosts, write
from tests.contracts.store.graphing import Graphed
from tests.contracts.store.harness import Clock, Harness
from tests.support.databases import make_tables
from tests.support.fakes.services import FakeCatalogue
from tests.user_code.user_code_support import module

pytestmark = pytest.mark.troubles

__all__ = ["fixture", "hosts"]

BODY = """
from pathlib import Path
from crawler_lifecycle.graphs import Workflow, crawl, current_job
from crawler_lifecycle.graphs import chancy, oban
from crawler_lifecycle.graphs.chancy import Chancy, WorkflowPlugin, job

AT_IMPORT = Workflow("at import").add("one", crawl("services"))
def work(): ...
@job()
def step(): ...

def dies(word):
    if not Path(word).exists():
        Path(word).touch()
        os.kill(os.getpid(), signal.SIGKILL)
def started(*workflows): return [workflow.start().id for workflow in workflows]
def two():
    found = started(Workflow("a").add("one", work), Workflow("b").add("one", crawl("services")))
    dies("two")
    return found
def one_of_two():
    Workflow("a").add("one", work).start()
    dies("one_of_two")
    Workflow("b").add("one", work).start()
def retried():
    Workflow("later").add("one", work, schedule_in=60).start()
    if current_job().attempt == 1: raise ValueError("once more")
def with_id(): return started(Workflow(id="own").add("one", work), AT_IMPORT, AT_IMPORT)
async def awaits(): return (await Workflow("c").add("one", work).start()).id
def enqueues(): return oban.enqueue_many(oban.Workflow(name="d").add("one", work)).id
async def pushes():
    async with Chancy() as server:
        found = chancy.Workflow("e").add("one", step.job)
        return [await WorkflowPlugin.push(server, found), found.id, chancy.Workflow("f").id]
def misspelt(): Workflow("x").add("one", crawl("servcies")).start()
def of_no_module(): Workflow("x").add("one", __import__("json").dumps, args={"obj": 1}).start()
def another():
    Workflow("x").add(str(current_job().attempt), work).start()
    raise ValueError("again with other steps")
def waits(): Workflow(id="other").wait()
"""


class Directory:
    """Records which graphs were started."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.down = False

    def wake(self, workflow_id: str) -> bool:
        return True

    def begin_for(self, order: GraphOrder, workflow_id: str) -> None:
        if self.down:
            raise TemporalUnavailable("Temporal is away")
        self.begun.append(workflow_id)


def starts(store: Store, directory: Any, clock: Clock) -> GraphStarts:
    catalogue = FakeCatalogue([CrawlerDefinition("services")])
    catalogue.problem = "line 3 of crawlers.yaml is not read"
    return GraphStarts(store.graphs, store.user_code, directory, catalogue, clock)


@pytest.fixture
def functions(tmp_path: Path) -> Iterator[Functions]:
    clock = Clock()
    store = open_store(make_tables(f"sqlite:///{tmp_path}/state.db"), pool_size=5, clock=clock)
    name = module(tmp_path, BODY)
    found = Functions(Harness(store, clock), tmp_path, [name])
    found.module = name
    found.directory = Directory()
    found.activities.start = starts(store, found.directory, clock).start
    yield found
    found.functions.close()
    store.close()


def others(store: Store) -> dict[str, str | None]:
    """Return the graphs that steps or hooks started, by id."""
    rows = store.graphs.newest(states=list(GraphState))
    return {row.key: row.name for row in rows if row.requested_by is not None}


def executed(functions: Functions, call: str, **fields: Any) -> Any:
    """Execute a graph with this step to its end. Return the graph and the result of the step."""
    graph = functions.graph(functions.step("s", call=call, **fields))
    for _ in range(20):
        functions.run(graph)
        if graph.step("s").state.final:
            break
        functions.harness.clock.forward(60)
    return graph, functions.value(graph, "s") if graph.step("s").result_bytes else None


def key_of(graph: Graphed, path: str = "s") -> str:
    return Job(graph.row.key, path, meta={"name": path}).key


def test_a_step_that_is_executed_again_starts_each_graph_once(functions: Functions) -> None:
    graph, found = executed(functions, "two", max_attempts=2)
    key = key_of(graph)
    assert (graph.step("s").attempt, found) == (2, [f"{key}-1", f"{key}-2"])
    assert others(functions.harness.store) == {f"{key}-1": "a", f"{key}-2": "b"}
    assert set(functions.directory.begun) == {f"graph/{key}-1", f"graph/{key}-2"}


def test_what_an_execution_did_not_reach_is_started_by_the_next(functions: Functions) -> None:
    graph, _ = executed(functions, "one_of_two", max_attempts=2)
    key = key_of(graph)
    assert others(functions.harness.store) == {f"{key}-1": "a", f"{key}-2": "b"}


def test_a_time_that_is_computed_anew_makes_no_other_graph(functions: Functions) -> None:
    graph, _ = executed(functions, "retried", max_attempts=2)
    assert graph.step("s").state is StepState.COMPLETED
    assert others(functions.harness.store) == {f"{key_of(graph)}-1": "later"}


@pytest.mark.parametrize(("call", "named"), [("awaits", "c"), ("enqueues", "d")])
def test_every_way_to_start_one_is_open_to_a_step(
    functions: Functions, call: str, named: str
) -> None:
    graph, found = executed(functions, call)
    assert found == f"{key_of(graph)}-1"
    assert others(functions.harness.store) == {found: named}


def test_a_job_of_chancy_pushes(functions: Functions) -> None:
    graph, found = executed(functions, "pushes")
    key = key_of(graph)
    assert found == [f"{key}-1", f"{key}-1", f"{key}-2"]
    assert others(functions.harness.store) == {f"{key}-1": "e"}


def test_an_id_of_its_own_and_a_graph_that_was_built_at_import(functions: Functions) -> None:
    graph, found = executed(functions, "with_id")
    assert found == ["own", f"{key_of(graph)}-1", f"{key_of(graph)}-1"]


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("misspelt", "step \"one\": crawler: 'servcies' is unknown; did you mean services?"),
        ("misspelt", "; line 3 of crawlers.yaml is not read"),
        ("of_no_module", "no user-code worker has registered 'json'"),
        ("another", "which was sent with other steps"),
        ("waits", "it can start graphs, and read and change its own"),
    ],
)
def test_a_graph_that_cannot_be_started_is_refused_in_the_step(
    functions: Functions, call: str, why: str
) -> None:
    store = functions.harness.store
    store.user_code.register_user_code(
        "w", [UserCodeRow(functions.module, "module", None, "", "f")]
    )
    graph, _ = executed(functions, call, max_attempts=2)
    assert why in (graph.step("s").reason or "")
    assert len(others(store)) == (call == "another")


def test_a_graph_is_recorded_while_temporal_is_away(functions: Functions) -> None:
    functions.directory.down = True
    graph, found = executed(functions, "enqueues")
    assert (graph.step("s").state, functions.directory.begun) == (StepState.COMPLETED, [])
    assert [
        row.key for row in functions.harness.store.graphs.newest() if row.owner_run_id is None
    ] == [found]


MANAGER = """
import os, signal
from pathlib import Path
from crawler_lifecycle.managers import GeneratorCrawlManager

def work(): ...

class M(GeneratorCrawlManager):
    name, spider, loop_mode, default_max_jobs = "shops", "shop", 60, 1

    def set_parameters_gen(self):
        yield {"page": 1}

    def finished_ok_hook(self, spider, outcome, job_args_override, jobkey):
        from crawler_lifecycle.graphs import Workflow
        Workflow("after a job").add("one", work).start()
        assert self.hook_key
        if not Path("dead").exists():
            Path("dead").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def workflow_loop(self):
        again = super().workflow_loop()
        from crawler_lifecycle.graphs import Workflow
        for workflow in (Workflow("loop"), Workflow(id="own")):
            try:
                workflow.add("one", work).start()
            except ValueError as error:
                self.state["loop"] = str(error)
        try:
            Workflow(id="own").status()
        except ConnectionError as error:
            self.state["asks"] = str(error)
        return again

    def on_close(self):
        from crawler_lifecycle.graphs import Workflow
        Workflow("after the manager").add("one", work).start()
"""


@pytest.mark.processes
def test_hooks_start_graphs_once_and_a_graph_follows_a_manager(
    fixture: Managers, hosts: Hosts, tmp_path: Path
) -> None:
    write(tmp_path, MANAGER)
    directory = Directory()
    fixture.activities.start_graph = starts(
        fixture.harness.store, directory, fixture.harness.clock
    ).start
    assert fixture.cycle().picked == 1
    fixture.end(1)
    answer = fixture.cycle()
    for _ in range(5):
        if answer.over:
            break
        answer = fixture.cycle()
    assert (answer.over, answer.error, answer.unclosed) == (True, None, None)
    number = fixture.row.manager_id
    assert others(fixture.harness.store) == {
        f"manager.{number}.1.1-1": "after a job",
        "own": None,
        f"manager.{number}.close.1-1": "after the manager",
    }
    assert fixture.row.state["loop"].startswith(
        "id: missing, and this method may be executed again; give one"
    )
    assert "can only start graphs" in fixture.row.state["asks"]
    assert f"graph/manager.{number}.close.1-1" in directory.begun
