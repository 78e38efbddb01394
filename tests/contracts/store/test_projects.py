"""Projects: what the store lets a caller of one project read and write.

The gateway's routes have their own tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from crawler_lifecycle.domain.errors import DuplicateRequest, InvalidRequest, RunNotFound
from crawler_lifecycle.domain.projects import limited
from crawler_lifecycle.domain.run import RunStatus, StopIntent
from crawler_lifecycle.features.graphs.domain.pages import encode_pages, fingerprint
from crawler_lifecycle.features.graphs.domain.spec import GraphSpec, StepKind, StepSpec
from crawler_lifecycle.features.graphs.ports import NewGraph
from crawler_lifecycle.features.managers.ports import NewManager
from crawler_lifecycle.features.webhooks.domain.definition import WebhookSpec
from crawler_lifecycle.ports.runs import Owner
from crawler_lifecycle.store.store import Store
from tests.contracts.store.harness import START, Harness, request
from tests.contracts.store.managing import Managed, page

SCHEDULE = {"run": {"crawler": "services"}, "every_s": 60}
HOOK = WebhookSpec("https://hooks.example.com/x", ["env:CRAWL_HOOK"])
A = {"project": "a"}
STOP = StopIntent(START)


@dataclass(frozen=True)
class Filled:
    """One of each kind, in project a, with one of these numbers or the name x."""

    store: Store
    run: int
    manager: int
    graph: int


def filled(harness: Harness) -> Filled:
    store = harness.store
    run, _ = store.initiation.reserve_run(request(**A), "x")
    manager, _ = store.managers.reserve_manager(NewManager("x", "x", "x:X", **A))  # type: ignore[arg-type]
    graph, _ = store.graphs.reserve_graph(NewGraph("x", "0" * 64, 1, **A))  # type: ignore[arg-type]
    store.schedules.put("x", SCHEDULE, None, "a")
    store.schedules.ask_due("x", [START], "ann", "why", request_key="k")
    store.webhooks.put("x", HOOK.document(), None, "a")
    spec = GraphSpec([StepSpec("one", StepKind.CRAWL, {"crawler": "services"})])
    [page] = encode_pages(spec)
    row, _ = store.graphs.reserve_graph(NewGraph("executing", fingerprint(spec), 1, **A))  # type: ignore[arg-type]
    store.graphs.add_graph_page(row.graph_id, 0, page)
    store.graphs.make_graph(row.graph_id)
    return Filled(store, run.run_id, manager.manager_id, graph.graph_id)


READS: dict[str, Callable[[Filled], Any]] = {
    "get_run": lambda a: a.store.runs.get_run(a.run),
    "find_run": lambda a: a.store.runs.find_run("x"),
    "list_runs": lambda a: a.store.runs.list_runs(),
    "search_runs": lambda a: a.store.runs.search_runs("service")[0],
    "count_found": lambda a: a.store.runs.count_found(9),
    "known_values": lambda a: a.store.runs.known_values(9)["crawler"],
    "count_runs": lambda a: a.store.runs.count_runs([RunStatus.INITIALIZING], 9),
    "runs_since": lambda a: a.store.runs.runs_since(START),
    "brief_runs": lambda a: a.store.runs.brief_runs(9),
    "live_runs": lambda a: a.store.runs.live_runs(9),
    "newest_runs": lambda a: a.store.runs.newest_runs(9),
    "recent_runs": lambda a: a.store.runs.recent_runs(["services"], 9),
    "recorded_tasks": lambda a: a.store.tasks.recorded_tasks([(a.run, 0, 1)]),
    "get_manager": lambda a: a.store.managers.get_manager(a.manager),
    "find_manager": lambda a: a.store.managers.find_manager(None, "x"),
    "newest managers": lambda a: a.store.managers.newest(),
    "search managers": lambda a: a.store.managers.search("x", "name")[0],
    "count_listed managers": lambda a: a.store.managers.count_listed(9),
    "live_managers": lambda a: a.store.managers.live_managers().by_status,
    "get_graph": lambda a: a.store.graphs.get_graph(a.graph),
    "find_graph": lambda a: a.store.graphs.find_graph("x"),
    "newest graphs": lambda a: a.store.graphs.newest(states=["draft"]),
    "search graphs": lambda a: a.store.graphs.search("x", states=["draft"])[0],
    "count_listed graphs": lambda a: a.store.graphs.count_listed(9),
    "count_graphs": lambda a: a.store.graphs.count_graphs(),
    "get schedule": lambda a: a.store.schedules.get("x"),
    "asked_due": lambda a: a.store.schedules.asked_due("x", "k"),
    "latest_due": lambda a: a.store.schedules.latest_due(),
    "page of schedules": lambda a: a.store.schedules.page(),
    "count_schedules": lambda a: a.store.schedules.count_schedules(START).active,
    "get webhook": lambda a: a.store.webhooks.get("x"),
    "page of webhooks": lambda a: a.store.webhooks.page(),
}
WRITES: dict[str, Callable[[Filled], Any]] = {
    "record_stop": lambda a: a.store.stops.record_stop(a.run, STOP, "s"),
    "ask_deletion": lambda a: a.store.deletion.ask_deletion(a.run, "b"),
    "add_tasks": lambda a: a.store.additions.add_tasks(a.run, "k", [{}]),
    "steer_manager": lambda a: a.store.managers.steer_manager(a.manager, paused=True),
    "record_manager_stop": lambda a: a.store.managers.record_manager_stop(a.manager, STOP),
    "add_graph_page": lambda a: a.store.graphs.add_graph_page(a.graph, 0, b'{"steps":[]}'),
    "record_graph_stop": lambda a: a.store.graphs.record_graph_stop(a.graph, STOP),
    "pause_schedule": lambda a: a.store.schedules.pause("x", "why"),
    "ask_due": lambda a: a.store.schedules.ask_due("x", [START], "b", "why"),
    "pause_webhook": lambda a: a.store.webhooks.pause("x", "why"),
    "test_webhook": lambda a: a.store.webhooks.test_webhook("x", "b"),
}


@pytest.mark.parametrize("name", READS)
def test_nothing_of_another_project_is_read(harness: Harness, name: str) -> None:
    there = filled(harness)
    with limited("b"):
        assert not READS[name](there)
    for project in ("a", None):
        with limited(project):
            assert READS[name](there)


@pytest.mark.parametrize("name", WRITES)
def test_nothing_of_another_project_is_written(harness: Harness, name: str) -> None:
    there = filled(harness)
    store = there.store
    before = store.events.last_event_seq()
    with limited("b"), pytest.raises(RunNotFound):
        WRITES[name](there)
    with limited("b"):
        assert not store.schedules.delete("x")
        assert not store.webhooks.delete("x")
    assert store.events.last_event_seq() == before


def test_a_name_of_another_project_is_taken(harness: Harness) -> None:
    store = filled(harness).store
    clashes: tuple[Callable[[], object], ...] = (
        lambda: store.initiation.reserve_run(request(project="b"), "x"),
        lambda: store.initiation.create_run(request(project="b"), "x", Owner("w", "c")),
        lambda: store.managers.reserve_manager(NewManager("x", "x", "x:X")),
        lambda: store.graphs.reserve_graph(NewGraph("x", "0" * 64, 1)),
        lambda: store.schedules.put("x", SCHEDULE, None),
        lambda: store.webhooks.put("x", HOOK.document(), None),
    )
    for clash in clashes:
        with (
            limited("b"),
            pytest.raises(DuplicateRequest, match=r"is already taken; choose another one$"),
        ):
            clash()
    # A caller with all projects finds what exists, wherever it is.
    assert store.managers.reserve_manager(NewManager("x", "x", "x:X"))[0].project == "a"
    assert store.schedules.put("x", {**SCHEDULE, "every_s": 90}, None)[0].project == "a"
    with pytest.raises(DuplicateRequest, match="already taken in project 'a'"):
        store.schedules.put("x", SCHEDULE, None, "b")
    with (
        limited("b"),
        pytest.raises(
            InvalidRequest, match="project: 'a' is not allowed; this token belongs to project 'b'"
        ),
    ):
        store.initiation.reserve_run(request(**A), "new")


def test_everybody_who_has_something_is_a_project(harness: Harness) -> None:
    assert harness.store.health.projects() == set()
    store = filled(harness).store
    for n, project in enumerate(("b", "default", "b")):
        store.initiation.reserve_run(request(project=project), f"r{n}")
    store.webhooks.put("all", HOOK.document(), None)
    assert store.health.projects() == {"a", "b", "default", "*"}


def test_a_webhook_gets_the_events_of_its_project(harness: Harness) -> None:
    store = harness.store
    whose = {"a": "a", "b": "b", "all": None}
    rows = {
        name: store.webhooks.put(name, HOOK.document(), None, project)[0]
        for name, project in whose.items()
    }
    for row in rows.values():
        store.webhooks.follow_webhook(row.name, "f")
    store.initiation.reserve_run(request(**A), "x")
    store.webhooks.pause("b", "why")
    store.webhooks.pause("b", None)

    def gets(name: str) -> list[Any]:
        found = store.webhooks.waiting_events(rows[name].webhook_id, "f", HOOK, 0, 100).events
        return [(event.type, event.body["project"]) for event in found]

    assert gets("a") == [("run.changed", "a")]
    assert gets("b") == [("webhook.paused", "b")]
    assert gets("all") == [("run.changed", "a"), ("webhook.paused", "b")]


def test_users_code_sees_the_jobs_of_its_project(harness: Harness) -> None:
    """With two managers of the same name, all flows means all flows of the own project."""
    managers = harness.store.managers
    keys = {}
    for project in ("a", "b"):
        owner = Owner(f"manager/shops/{project}", f"chain-{project}")
        managed = Managed.begun(
            harness, NewManager("shops", project, "plans:Shops", project=project), owner
        )
        managers.add_page(managed.fence, page([1]))
        managed.pick(1)
        [live] = managers.starting_jobs(managed.fence)
        asked = request(project=project, parent=owner.workflow_id)
        run, _ = harness.store.initiation.reserve_run(asked, live.key)
        managers.job_started(managed.fence, live.item_id, run.run_id)
        keys[project] = (managed.id, str(run.run_id))
    mine, (_, theirs) = keys["a"][0], keys["b"]
    for project, seen in (("a", [keys["a"][1]]), (None, [keys["a"][1], theirs])):
        with limited(project):
            jobs, _ = managers.owned_jobs(mine, ["pending"], all_flows=True)
            assert [job["key"] for job in jobs] == seen
            assert (managers.job_metadata(mine, theirs) is None) is (project == "a")
