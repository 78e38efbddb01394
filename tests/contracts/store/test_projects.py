"""Projects: what the store lets a caller of one of them read and write. The gateway's routes have their own tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from crawler_lifecycle.domain.errors import DuplicateRequest, InvalidRequest, RunNotFound
from crawler_lifecycle.domain.graph.pages import encode_pages, fingerprint
from crawler_lifecycle.domain.graph.spec import GraphSpec, StepKind, StepSpec
from crawler_lifecycle.domain.projects import limited
from crawler_lifecycle.domain.run import RunStatus, StopIntent
from crawler_lifecycle.domain.webhooks.definition import WebhookSpec
from crawler_lifecycle.ports.graphs import NewGraph
from crawler_lifecycle.ports.managers import NewManager
from crawler_lifecycle.ports.runs import Owner
from crawler_lifecycle.store import Store
from tests.contracts.store.managing import Managed, page
from tests.contracts.store.world import START, World, request

SCHEDULE = {"run": {"crawler": "services"}, "every_s": 60}
HOOK = WebhookSpec("https://hooks.example.com/x", ["env:CRAWL_HOOK"])
A = {"project": "a"}
STOP = StopIntent(START)


def filled(world: World) -> Store:
    """One of each, of project a, with the number 1 or the name x."""
    store = world.store
    store.initiation.reserve_run(request(**A), "x")
    store.managers.reserve_manager(NewManager("x", "x", "x:X", **A))  # type: ignore[arg-type]
    store.graphs.reserve_graph(NewGraph("x", "0" * 64, 1, **A))  # type: ignore[arg-type]
    store.schedules.put_schedule("x", SCHEDULE, None, "a")
    store.schedules.ask_due("x", [START], "ann", "why", request_key="k")
    store.webhooks.put_webhook("x", HOOK.document(), None, "a")
    spec = GraphSpec([StepSpec("one", StepKind.CRAWL, {"crawler": "services"})])
    [page] = encode_pages(spec)
    row, _ = store.graphs.reserve_graph(NewGraph("executing", fingerprint(spec), 1, **A))  # type: ignore[arg-type]
    store.graphs.add_graph_page(row.graph_id, 0, page)
    store.graphs.make_graph(row.graph_id)
    return store


READS: dict[str, Callable[[Store], Any]] = {
    "get_run": lambda store: store.runs.get_run(1),
    "find_run": lambda store: store.runs.find_run("x"),
    "list_runs": lambda store: store.runs.list_runs(),
    "count_runs": lambda store: store.runs.count_runs([RunStatus.INITIALIZING], 9),
    "recent_runs": lambda store: store.runs.recent_runs(["services"], 9),
    "recorded_tasks": lambda store: store.tasks.recorded_tasks([(1, 0, 1)]),
    "get_manager": lambda store: store.managers.get_manager(1),
    "find_manager": lambda store: store.managers.find_manager(None, "x"),
    "list_managers": lambda store: store.managers.list_managers(),
    "live_managers": lambda store: store.managers.live_managers().by_status,
    "get_graph": lambda store: store.graphs.get_graph(1),
    "find_graph": lambda store: store.graphs.find_graph("x"),
    "list_graphs": lambda store: store.graphs.list_graphs(states=["draft"]),  # type: ignore[list-item]
    "count_graphs": lambda store: store.graphs.count_graphs(),
    "get_schedule": lambda store: store.schedules.get_schedule("x"),
    "asked_due": lambda store: store.schedules.asked_due("x", "k"),
    "list_schedules": lambda store: store.schedules.list_schedules(),
    "count_schedules": lambda store: store.schedules.count_schedules(START).active,
    "get_webhook": lambda store: store.webhooks.get_webhook("x"),
    "list_webhooks": lambda store: store.webhooks.list_webhooks(),
}
WRITES: dict[str, Callable[[Store], Any]] = {
    "record_stop": lambda store: store.stops.record_stop(1, STOP, "s"),
    "ask_deletion": lambda store: store.deletion.ask_deletion(1, "b"),
    "add_tasks": lambda store: store.additions.add_tasks(1, "k", [{}]),
    "steer_manager": lambda store: store.managers.steer_manager(1, paused=True),
    "record_manager_stop": lambda store: store.managers.record_manager_stop(1, STOP),
    "add_graph_page": lambda store: store.graphs.add_graph_page(1, 0, b'{"steps":[]}'),
    "record_graph_stop": lambda store: store.graphs.record_graph_stop(1, STOP),
    "pause_schedule": lambda store: store.schedules.pause_schedule("x", "why"),
    "ask_due": lambda store: store.schedules.ask_due("x", [START], "b", "why"),
    "pause_webhook": lambda store: store.webhooks.pause_webhook("x", "why"),
    "test_webhook": lambda store: store.webhooks.test_webhook("x", "b"),
}


@pytest.mark.parametrize("name", READS)
def test_nothing_of_another_project_is_read(world: World, name: str) -> None:
    store = filled(world)
    with limited("b"):
        assert not READS[name](store)
    for project in ("a", None):
        with limited(project):
            assert READS[name](store)


@pytest.mark.parametrize("name", WRITES)
def test_nothing_of_another_project_is_written(world: World, name: str) -> None:
    store = filled(world)
    before = store.events.last_event_seq()
    with limited("b"), pytest.raises(RunNotFound):
        WRITES[name](store)
    with limited("b"):
        assert not store.schedules.delete_schedule("x")
        assert not store.webhooks.delete_webhook("x")
    assert store.events.last_event_seq() == before


def test_a_name_of_another_project_is_taken(world: World) -> None:
    store = filled(world)
    clashes: tuple[Callable[[], object], ...] = (
        lambda: store.initiation.reserve_run(request(project="b"), "x"),
        lambda: store.initiation.create_run(request(project="b"), "x", Owner("w", "c")),
        lambda: store.managers.reserve_manager(NewManager("x", "x", "x:X")),
        lambda: store.graphs.reserve_graph(NewGraph("x", "0" * 64, 1)),
        lambda: store.schedules.put_schedule("x", SCHEDULE, None),
        lambda: store.webhooks.put_webhook("x", HOOK.document(), None),
    )
    for clash in clashes:
        with limited("b"), pytest.raises(DuplicateRequest, match=r"is already taken; choose another one$"):
            clash()
    # A caller of all projects finds what is there, wherever it is.
    assert store.managers.reserve_manager(NewManager("x", "x", "x:X"))[0].project == "a"
    assert store.schedules.put_schedule("x", {**SCHEDULE, "every_s": 90}, None)[0].project == "a"
    with pytest.raises(DuplicateRequest, match="already taken in project 'a'"):
        store.schedules.put_schedule("x", SCHEDULE, None, "b")
    with limited("b"), pytest.raises(InvalidRequest, match="project: 'a' is not allowed; this token is of project 'b'"):
        store.initiation.reserve_run(request(**A), "new")


def test_everybody_who_has_something_is_a_project(world: World) -> None:
    assert world.store.health.projects() == set()
    store = filled(world)
    for n, project in enumerate(("b", "default", "b")):
        store.initiation.reserve_run(request(project=project), f"r{n}")
    store.webhooks.put_webhook("all", HOOK.document(), None)
    assert store.health.projects() == {"a", "b", "default", "*"}


def test_a_webhook_gets_the_events_of_its_project(world: World) -> None:
    store = world.store
    whose = {"a": "a", "b": "b", "all": None}
    rows = {
        name: store.webhooks.put_webhook(name, HOOK.document(), None, project)[0] for name, project in whose.items()
    }
    for row in rows.values():
        store.webhooks.follow_webhook(row.name, "f")
    store.initiation.reserve_run(request(**A), "x")
    store.webhooks.pause_webhook("b", "why")
    store.webhooks.pause_webhook("b", None)

    def gets(name: str) -> list[Any]:
        found = store.webhooks.waiting_events(rows[name].webhook_id, "f", HOOK, 0, 100).events
        return [(event.type, event.body["project"]) for event in found]

    assert gets("a") == [("run.changed", "a")]
    assert gets("b") == [("webhook.paused", "b")]
    assert gets("all") == [("run.changed", "a"), ("webhook.paused", "b")]


def test_users_code_sees_the_jobs_of_its_project(world: World) -> None:
    """Two managers of one name: what is seen of all flows is of the own project."""
    managers = world.store.managers
    keys = {}
    for project in ("a", "b"):
        owner = Owner(f"manager/shops/{project}", f"chain-{project}")
        managed = Managed.begun(world, NewManager("shops", project, "plans:Shops", project=project), owner)
        managers.add_page(managed.fence, page([1]))
        managed.pick(1)
        [live] = managers.starting_jobs(managed.fence)
        asked = request(project=project, parent=owner.workflow_id)
        run, _ = world.store.initiation.reserve_run(asked, live.key)
        managers.job_started(managed.fence, live.item_id, run.run_id)
        keys[project] = (managed.id, str(run.run_id))
    mine, (_, theirs) = keys["a"][0], keys["b"]
    for project, seen in (("a", [keys["a"][1]]), (None, [keys["a"][1], theirs])):
        with limited(project):
            jobs, _ = managers.owned_jobs(mine, ["pending"], all_flows=True)
            assert [job["key"] for job in jobs] == seen
            assert (managers.job_metadata(mine, theirs) is None) is (project == "a")
