"""Every statement of the store is explained among thousands of runs: none may read or sort them
all.

The statements are not listed here. Every method of the port is called in the lives below, and
whatever it sends is explained just before it is sent; a separate test fails for a method that no
life calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from crawler_lifecycle.domain.audits.audit import (
    AuditFinding,
    AuditReport,
    ClusterTask,
    FindingKind,
)
from crawler_lifecycle.domain.audits.corrections import CorrectionKind
from crawler_lifecycle.domain.audits.overdue import overdue_before
from crawler_lifecycle.domain.bounds import ID_MAX, MOST
from crawler_lifecycle.domain.conditions import IncidentCondition
from crawler_lifecycle.domain.coverage import Coverage, ExpectedCoverage
from crawler_lifecycle.domain.errors import NotInThisState
from crawler_lifecycle.domain.names import graph_subject, graph_workflow_id, manager_subject
from crawler_lifecycle.domain.pools import CALL_S, Pool, Pools
from crawler_lifecycle.domain.projects import limited
from crawler_lifecycle.domain.retention import RetentionState
from crawler_lifecycle.domain.retries import NextTry
from crawler_lifecycle.domain.run import RunRequest, RunStatus, Stage
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import Counters, Phase, TaskStatus
from crawler_lifecycle.features import INCIDENT_KINDS
from crawler_lifecycle.features.canaries.domain.canary import CanaryState
from crawler_lifecycle.features.graphs.domain.pages import encode_pages
from crawler_lifecycle.features.graphs.domain.spec import GraphSpec, GraphState, StepKind, StepState
from crawler_lifecycle.features.graphs.store.graphs import DRAFT_S
from crawler_lifecycle.features.managers.domain.manager import AddedJob, JobState
from crawler_lifecycle.features.managers.ports import UserCodeRow
from crawler_lifecycle.features.packages.store.packages import NewVersion
from crawler_lifecycle.features.schedules.domain.decision import Decision
from crawler_lifecycle.features.schedules.domain.definition import TargetKind
from crawler_lifecycle.features.schedules.ports import TargetRef
from crawler_lifecycle.features.sites.domain.site import SiteLimits
from crawler_lifecycle.features.webhooks.domain.definition import WebhookSpec
from crawler_lifecycle.features.webhooks.ports import DeliveryAttempt
from crawler_lifecycle.ports.access import AccessRow
from crawler_lifecycle.ports.polls import Correction, Details, LiveCounters, Poll
from crawler_lifecycle.ports.runs import Fence, LostRun, Owner, TaskRecord
from crawler_lifecycle.store.base import search
from crawler_lifecycle.store.base.outbox import outbox_event
from crawler_lifecycle.store.runs.tables import run_history, task_history
from crawler_lifecycle.store.store import Store, open_store
from crawler_lifecycle.store.tables import metadata
from tests.contracts.store.graphing import KEY, Graphed, announced, crawl, group, step
from tests.contracts.store.harness import (
    OTHER,
    OWNER,
    START,
    Clock,
    Harness,
    bad_end,
    closed,
    request,
    seen,
)
from tests.contracts.store.managing import NEW, NEXT, Managed, job, page
from tests.contracts.store.test_overdue import executing
from tests.store.plans import Plans
from tests.support.databases import make_tables, wait_patiently
from tests.support.filling import (
    COMMON_CODE,
    COMMON_TAG,
    FILLED_FROM,
    POOLS,
    RARE_CODE,
    RARE_TAG,
    analyze,
    fill_access,
    fill_blocks,
    fill_canaries,
    fill_catalogue,
    fill_findings,
    fill_graphs,
    fill_line,
    fill_managers,
    fill_records,
    fill_runs,
    fill_sites,
    fill_tasks,
)
from tests.support.servers import EXPLAINED, empty_database
from tests.support.store_ports import behind, methods

# The module's databases are filled during its first test.
pytestmark = pytest.mark.timeout(1800)


@dataclass(frozen=True)
class Size:
    """The number of ended runs, of tasks in each, and of tasks in the live run."""

    runs: int
    each: int
    large: int


#: The servers choose by the number of rows. SQLite chooses by how many it expects for a key and
#: gives no numbers, and each scan counts as one of very many rows: a sixth of them shows the same.
SIZES = {"sqlite": Size(2_000, 5, 1_000)}
SERVERS_SIZE = Size(12_000, 5, 6_000)

#: (method, what, table) -> why it may.
MAY = {
    (
        "list_runs",
        "scan",
        "run_history",
    ): "the newest runs are read in the order of the key, until a page is full",
    (
        "search_runs",
        "scan",
        "run_history",
    ): "the newest 2,000 are read in the order of the key",
    (
        "count_found",
        "scan",
        "run_history",
    ): "the newest runs are counted in the order of the key, at most 10,001",
    **{
        (method, "scan", name): "SQLite goes from crawler to crawler, and finds each by an index"
        for method in ("newest_runs", "all_crawlers")
        for name in ("step", "(subquery-1)")
    },
    **{
        (
            "known_values",
            "scan",
            name,
        ): "SQLite finds the different values by reading an index, once in ten seconds"
        for name in ("run_history", "run_tag")
    },
    (
        "list_runs attention tags",
        "temporary",
        "later",
    ): "MariaDB makes it or not, by its estimate, for one page",
    (
        "ends_of",
        "temporary",
        "run_history",
    ): "the failed runs of a crawler are counted by outcome, for people",
    **{
        (
            "good_shares",
            what,
            "page",
        ): "the newest hundred runs of each crawler of a page are counted, for people"
        for what in ("scan", "temporary")
    },
    ("live_runs", "scan", "each"): "a bounded number of live runs is counted, for all who poll",
    (
        "live_runs",
        "temporary",
        "each",
    ): "a bounded number of live runs is counted, for all who poll",
    **{
        (
            "count_due",
            what,
            name,
        ): "at most 1,441 firings of one day are counted by their result, for people"
        for what in ("scan", "temporary")
        for name in ("each_due", "<derived2>")  # the name that MariaDB gives it
    },
    ("list_incidents", "scan", "incident"): "the newest are read in the order of the key",
    **{
        (method, what, "incident"): "all open incidents are read and sorted, which are few"
        for method in ("record_conditions", "open_incidents")
        for what in ("scan", "sort")
    },
    (
        "latest_due",
        "scan",
        "schedule",
    ): "all schedules, of which there are thousands, and one due time of each",
    **{
        (
            method,
            "scan",
            table,
        ): "the newest are read in the order of the key, and SQLite reads an index of names"
        for method in ("newest", "search", "count_listed")
        for table in ("manager", "graph")
    },
    (
        "count_schedules",
        "scan",
        "schedule",
    ): "all schedules, of which there are thousands, and no due times",
    (
        "list_user_code",
        "scan",
        "plan",
    ): "all classes that may be started, of which there are dozens",
    (
        "register_user_code",
        "scan",
        "plan",
    ): "all classes that may be started, of which there are dozens",
    (
        "list_access",
        "scan",
        "access_log",
    ): "the newest rows are read in the order of an index, until a page is full",
    **{
        (
            method,
            "scan",
            "access_token",
        ): "all tokens, of which there are a thousand at most, and those of before"
        for method in ("create_token", "list_tokens")
    },
    **{
        (method, "scan", "site"): "a row for each site, for people, until a page is full"
        for method in ("list_sites", "set_limits")
    },
    **{
        (method, kind, "catalogue_entry"): "all entries, of which there are thousands"
        for method in ("list_entries", "entry_marks", "set_entry", "add_version")
        for kind in ("scan", "sort")
    },
    **{
        (method, "scan", "catalogue_entry"): "new entries are added if fewer than 5000 are there"
        for method in ("use_version", "end_canary", "delete_version")
    },
    ("list_packages", "scan", "package"): "a row for each package, until a page is full",
    **{
        ("prune", "scan", table): "all versions and schedules, once an hour"
        for table in ("package_version", "schedule")
    },
    **{
        (method, "scan", "schedule"): "all schedules, of which there are thousands, for a person"
        for method in ("delete_version", "delete_package")
    },
    ("apply_settings", "scan", "site"): "a row for each site, once when a gateway starts",
    **{
        (method, "scan", "holder"): "the runs with active tasks"
        for method in ("list_sites", "get_site", "site_runs", "closed_sites")
    },
    ("put", "scan", "webhook"): "all webhooks, of which there are a thousand at most",
    ("put", "scan", "schedule"): "all schedules, of which there are thousands, and no due times",
    ("last_audit", "scan", "audit_report"): "the newest report is read in the order of the key",
    (
        "record_audit",
        "scan",
        "audit_report",
    ): "the oldest reports are read in the order of the key, 100 of them",
    (
        "found_state",
        "sort",
        "task_history",
    ): "a poll compares all unsettled tasks of its run, and needs them all",
    (
        "record_poll",
        "sort",
        "task_history",
    ): "a poll compares all unsettled tasks of its run, and needs them all",
    ("record_at_once", "sort", "task_history"): "the same, if it is no poll of a few of them",
    (
        "cancel_queued",
        "sort",
        "task_history",
    ): "all queued tasks of the run are cancelled, and read for that",
    (
        "count_tasks",
        "temporary",
        "task_history",
    ): "the few statuses of one run are counted out of the index alone",
    (
        "tasks_of_runs",
        "temporary",
        "task_history",
    ): "the few statuses of the runs on one page, out of the index alone",
    (
        "places",
        "temporary",
        "task_history",
    ): "a run has one place, or two after a namespace was made anew",
    (
        "resumption",
        "temporary",
        "task_history",
    ): "the few notes of one resumed run are counted, for one screen",
    (
        "ended_groups",
        "temporary",
        "task_history",
    ): "once at the end of a run, into as many groups as it has outcomes",
    (
        "end_run",
        "temporary",
        "task_history",
    ): "once at the end of a run, into as many groups as it has outcomes",
    **{
        (
            method,
            "temporary",
            "graph_step",
        ): "steps of one graph are counted by state, out of the index alone"
        for method in ("make_graph", "claim_graph", "get_graph", "find_graph", "newest")
    },
    **{
        (
            method,
            "scan",
            "head",
        ): "the first waiting runs of each pool, at most as many as there are places to give"
        for method in ("offer_tasks", "record_deployed", "call")
    },
    ("in_line", "scan", "head"): "at most a thousand runs that come first are counted, for people",
    ("adopt", "scan", "pool_ticket"): "once a minute",
    **{
        (method, "scan", "pool"): "all pools, of which there are a hundred at most"
        for method in (
            *("offer_tasks", "record_deployed", "waits_for_slot", "queue_of", "quotas_of"),
            *("create_run", "reserve_run", "claim_run", "add_tasks", "known_pools", "list_pools"),
            *("set_pool", "delete_pool", "slot_holders", "in_line", "call", "adopt"),
        )
    },
    ("delete_pool", "scan", "schedule"): "all schedules, of which there are thousands, once",
    ("adopt", "scan", "site"): "the names of all entries, once a minute",
    **{
        (
            method,
            "scan",
            "holder",
        ): "the runs with tasks that hold a slot, out of the index of the statuses of tasks"
        for method in ("offer_tasks", "call", "words")
    },
    ("call", "scan", "pool_ticket"): "one row shows that somebody waits",
    ("list_pools", "scan", "pool_ticket"): "all waiting runs are counted, for people",
    (
        "list_pools",
        "temporary",
        "pool_ticket",
    ): "the waiting runs of one project are counted by pool, for people",
    ("slot_holders", "scan", "held"): "the tasks with a slot of one pool are counted, for people",
    **{
        (
            method,
            "scan",
            "counted",
        ): "as many rows as the quota allows are read out of an index, and counted"
        for method in ("reserve_run", "create_run", "add_tasks", "quotas_of")
    },
    **{("ping", "scan", name): "the schema itself: one row for each column" for name in ("m", "c")},
    ("ping", "scan", "schema_compatibility"): "it has one row",
    **{
        (
            method,
            "sort",
            "task_history",
        ): "the one task of a run that is tried again first, for the text about its wait"
        for method in ("record_deployed", "retry_ended")
    },
    (
        "requeue_ended",
        "temporary",
        "task_history",
    ): "once in an attempt; a table is copied from itself through another",
}


#: Indexes that a database does not use among these rows, although others need them.
OTHERWISE: dict[str, set[str]] = {
    "mariadb": {
        "ix_canary_project_canary_id",
        "ix_correction_project_kind_id",
        "ix_run_history_project_ended_by_run_id",
    },
    "sqlite": {"ix_graph_step_graph_id_batch"},
    "mysql": {
        "ix_access_log_project_at",
        "ix_canary_project_canary_id",
        "ix_correction_project_kind_id",
        "ix_run_history_project_ended_by_run_id",
        "ix_manager_name_manager_id",
        "ix_graph_name_graph_id",
        "ix_schedule_due_schedule_id_decision_decided_at",
    },
}

LISTS = ("list_runs", "newest")
"""Methods whose statements depend on what is asked for: each choice of filters counts by itself."""
PAGED = {"limit", "before_run_id"}


class Watched:
    """A port that reports which of its methods is being called."""

    def __init__(self, port: Any, plans: Plans, called: set[str]) -> None:
        self._port = port
        self._plans = plans
        self._called = called

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._port, name)

        def call(*args: object, **named: object) -> Any:
            asked = sorted(named.keys() - PAGED) if name in LISTS else []
            self._plans.doing = " ".join([name, *asked])
            self._called.add(name)
            return method(*args, **named)

        return call


@dataclass
class Filled:
    """A database full of ended runs, and one live run with many tasks."""

    store: Store
    clock: Clock
    large: Fence
    size: Size


def _fill(url: str, size: Size) -> Filled:
    make_tables(url)
    clock = Clock()
    room = dict.fromkeys(MOST, ID_MAX)
    # A variant that waits for nobody.
    named = {f"pool-{n}": Pool(max=50) for n in range(POOLS)} | {"large": Pool(queue="q")}
    pools = Pools(named, slots=100_000)
    most = {"starts_per_hour": 500, "live_tasks": 100_000, "waiting_tasks": 100_000}
    quotas = dict.fromkeys(("token:ci", "pool:default", "pool:pool-3", "project:default"), most)
    store = open_store(
        url, clock=clock, told=lambda news: None, most=room, pools=pools, quotas=quotas
    )
    with store.database.writer.begin() as connection:
        first = fill_runs(connection, size.runs)
        fill_tasks(connection, first, size.runs, size.each)
        fill_records(connection, first, size.runs)
        fill_line(connection, size.runs)
        fill_sites(connection, size.runs)
        fill_catalogue(connection)
        fill_canaries(connection)
        fill_findings(connection)
        fill_access(connection)
        fill_blocks(connection)
        fill_managers(connection, size.runs)
        fill_graphs(connection)
    row, _ = store.initiation.reserve_run(
        request(tags=["large"], flow_id="flow-0", pool="large"), "large", [{}] * size.large
    )
    handle = store.initiation.claim_run(RunRequest(run_id=row.run_id), OWNER, closed)
    with store.database.writer.begin() as connection:
        analyze(connection, list(metadata.tables))
    return Filled(
        store, clock, Fence(handle.run_id, handle.attempt, OWNER.first_run_id, handle.run_uid), size
    )


@pytest.fixture(scope="module", params=EXPLAINED)
def explained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Plans, set[str]]]:
    """The plans of everything that the lives below send, and the methods that they called."""
    file = tmp_path_factory.mktemp("plans") / "state.db"
    with pytest.MonkeyPatch.context() as patch, empty_database(request.param, file) as url:
        wait_patiently(patch)
        yield _explain(url, SIZES.get(request.param, SERVERS_SIZE), Plans(request.param))


def _explain(url: str, size: Size, plans: Plans) -> tuple[Plans, set[str]]:
    filled = _fill(url, size)
    called: set[str] = set()
    watched = behind(filled.store, lambda port: Watched(port, plans, called))
    try:
        with plans.watching(filled.store.database.engine):
            large_life(watched, filled)  # type: ignore[arg-type]
            short_lives(Harness(watched, filled.clock))  # type: ignore[arg-type]
            readers(watched, filled)  # type: ignore[arg-type]
            pooling(Harness(watched, filled.clock))  # type: ignore[arg-type]
            visiting(Harness(watched, filled.clock))  # type: ignore[arg-type]
            managing(Harness(watched, filled.clock), size)  # type: ignore[arg-type]
            graphs(Harness(watched, filled.clock), size)  # type: ignore[arg-type]
            schedules(Harness(watched, filled.clock))  # type: ignore[arg-type]
            webhooks(Harness(watched, filled.clock))  # type: ignore[arg-type]
            incidents(Harness(watched, filled.clock), size)  # type: ignore[arg-type]
            audits(watched, filled)  # type: ignore[arg-type]
            access(watched, filled)  # type: ignore[arg-type]
            clearing(watched, filled)  # type: ignore[arg-type]
            plans.doing = "control"
            with filled.store.database.reading() as connection:
                for statement in SLOW:
                    connection.execute(statement).all()
    finally:
        filled.store.close()
    return plans, called


def large_life(store: Store, filled: Filled) -> None:
    """A run with many tasks: deployed in pages, polled, extended, stopped, ended, resumed."""
    harness, fence, now = Harness(store, filled.clock), filled.large, filled.clock.now
    assert len(harness.deploy(fence, limit=500)) == 500
    store.additions.add_tasks(fence.run_id, "more", [{"a": "1"}] * 500)
    store.additions.add_tasks(fence.run_id, "more", [{"a": "1"}] * 500)
    tasks = [
        task for task in store.polls.found_state(fence).tasks if task.status is TaskStatus.PENDING
    ]
    harness.stage(fence, [seen(t, Phase.EXECUTING, now, changed_at=now, uid=t.uid) for t in tasks])
    store.polls.staged(fence)
    store.live_counters.record_counts(
        fence.run, [LiveCounters(fence.run, t.attempt, t.index, Counters(5)) for t in tasks[:500]]
    )
    store.polls.save_details(fence, [Details(t.task_id, "log", statistics={"a": 1}) for t in tasks])
    store.polls.apply_details(fence)
    store.polls.apply_findings(fence, "look")
    store.deployment.mark_started(fence, now)
    for few in (frozenset({(0, 1), (1, 1)}), None):
        state = store.polls.found_state(fence, few)
        observed = [seen(t, Phase.EXECUTING, now, uid=t.uid) for t in state.tasks]
        store.polls.record_at_once(fence, Poll(now, 0.1, observed), [], "wake", state, None)
    harness.deploy(fence, limit=100)
    deployed = [task for task in store.polls.found_state(fence).tasks if task.uid]
    harness.poll(fence, [seen(t, Phase.ENDED, now, uid=t.uid, end=bad_end(now)) for t in deployed])
    memory = ["512Mi", None] * 300
    for left in (100, 0):
        done = store.retries.retry_ended(
            fence,
            lambda end, used: NextTry(60, memory.pop()) if used < 550 else "used up",
            3,
            remember=True,
        )
        assert (done.left, done.resting.tasks) == (left, 550 - left // 2)
    ended = [
        index for index, status in harness.statuses(fence).items() if status is TaskStatus.FAILED
    ]
    store.retries.take_up(
        fence, [ClusterTask(fence.run_id, index, 9, executing=True) for index in ended]
    )
    assert store.tasks.count_tasks(fence.run_id).active == len(ended) == 50
    store.retries.resting(fence.run_id)
    store.retries.memory_of("default", "services")
    store.stops.record_stop(fence.run_id, harness.stop(), "s1")
    store.stops.record_stop(fence.run_id, harness.stop(force=True), "s1")
    store.stops.cancel_queued(fence, now)
    store.stops.unstopped(fence, False)
    store.stops.unstopped(fence, True)
    store.stops.unstopped(fence, True, START)
    store.stops.last_asked(fence.run_id)
    store.stops.mark_stopping(fence, [t.task_id for t in tasks])
    store.stops.acted_on_stop(fence, now)
    harness.finish(fence)
    store.exports.record_export(fence, "done", None, None)
    second = harness.resume(fence)
    harness.deploy(second, limit=500)
    offered, _ = store.deployment.offer_tasks(second, 500, None, now, "a place")
    store.deployment.withdraw_offer(second, offered, now)
    store.deployment.refuse_queued(second, "no room")


def short_lives(harness: Harness) -> None:
    """What the large life does not cover."""
    store = harness.store
    fence = harness.run("short", tasks=3)
    store.initiation.set_property(fence.run_id, 1, "a", "b")
    store.initiation.set_property(fence.run_id, 1, "a", "c")
    store.deployment.note_waiting(fence, "quota")
    store.polls.record_poll_error(fence, "403")
    harness.deploy(fence, limit=1, state="deferred")
    harness.deploy(fence, limit=2)
    [task] = store.tasks.list_tasks(fence.run_id, limit=1)
    about = Correction(CorrectionKind.REPAIR, "INITIALIZING", "PROCESSING")
    store.corrections.record_corrections(
        fence.run_id, [about, Correction(CorrectionKind.LATE, "LOST", "FAILED", task.task_id)]
    )
    store.events.append_event(fence, "run.started", f"{fence.run_id}/1/run.started", {})
    with suppress(NotInThisState):
        harness.end(fence)
    harness.brings(
        "fields",
        Coverage(5, {"a": 1.0}),
        expected=ExpectedCoverage({"a": 1.0}, numbers={"items": {"drop": 0.5}}),
    )
    store.initiation.resume_run(RunRequest(run_id=fence.run_id), "w2", fence.attempt)
    store.initiation.claim_run(RunRequest(run_id=fence.run_id), OTHER, closed)
    store.initiation.reserve_run(request(), "reserved", caller="ci")
    store.quotas.quotas_of({"caller": "ci", "pool": "default"})


def adopted(store: Store, filled: Filled) -> None:
    """A run without a row, twice, and once more with a task that has no row."""
    run, owner = RunRef(store.run_numbers.newest_run_id() + 2, "ad" * 16), OTHER
    tasks = [
        TaskRecord(index, 1, 10**9 + index, "services", {}, {}, f"c-{index}", f"u-{index}")
        for index in range(3)
    ]
    lost = LostRun(run, 1, "lost", request(tags=["a"]), True, owner, tasks[:2], "local", 4)
    for one in (lost, lost, replace(lost, tasks=tasks)):
        store.adoption.adopt_run(one)


def pooling(harness: Harness) -> None:
    """Runs that wait behind thousands of others."""
    fences = [harness.run(f"pooled-{n}", tasks=60, pool="pool-3") for n in range(2)]
    for fence in fences:
        harness.deploy(fence)
        harness.store.deployment.waits_for_slot(fence.run_id)
    harness.store.deployment.queue_of("pool-3", "default")
    harness.deploy(fences[0], limit=5, state="deferred")
    for project in (None, "default"):
        with limited(project):
            harness.store.pools.list_pools()
            harness.store.pools.slot_holders("pool-3", 10)
            harness.store.pools.slot_holders("default", 10)
            harness.store.pools.in_line(fences[1].run_id)
    harness.store.pools.call()
    harness.store.pools.adopt()
    harness.store.pools.uncall([1, 2], gone=False)
    harness.store.pools.uncall([1], gone=True)
    harness.store.stops.record_stop(fences[1].run_id, harness.stop(), "s1")


def visiting(harness: Harness) -> None:
    """Runs that wait for a closed site behind thousands of others, and runs on open sites."""
    store = harness.store
    fences = [harness.run(f"visits-{n}", 3, sites=[f"site-{n % 2}"]) for n in range(4)]
    for fence in fences:
        harness.deploy(fence)
        store.deployment.waits_for_slot(fence.run_id)
        for project in (None, "default"):
            with limited(project):
                store.caps.words(fence.run_id)
    store.caps.adopt()
    store.caps.call()
    harness.clock.forward(CALL_S)
    store.caps.call()
    store.caps.uncall([fence.run_id for fence in fences], gone=False)
    store.caps.uncall([fences[0].run_id], gone=True)
    store.stops.record_stop(fences[1].run_id, harness.stop(), "s1")


def readers(store: Store, filled: Filled) -> None:
    """Every reader, with every filter and with those that people combine."""
    run_id = filled.large.run_id
    store.runs.get_run(run_id)
    store.runs.find_run("filled-77")
    store.runs.request_of(run_id)
    for wanted in FILTERS:
        store.runs.list_runs(**wanted)
        store.runs.list_runs(**wanted, before_run_id=filled.size.runs // 2)
    searching(store, filled)
    store.runs.count_runs([RunStatus.INITIALIZING], 10_000)
    store.runs.count_runs([RunStatus.COMPLETED, RunStatus.FAILED], 100)
    store.runs.recent_runs([f"crawler-{n}" for n in range(50)], 20)
    store.runs.brief_runs(60, crawler="crawler-7", before_id=filled.size.runs // 2)
    overviews(store, filled)
    store.tasks.list_tasks(run_id)
    store.tasks.list_tasks(
        run_id, after_task_id=filled.size.runs * filled.size.each + 500, superseded=True
    )
    store.tasks.task_page(run_id, [TaskStatus.SUCCEEDED, TaskStatus.CANCELLED], after_index=500)
    store.tasks.count_tasks(run_id)
    store.tasks.peak_memory(run_id, 20)
    store.tasks.tasks_of_runs([run_id, *range(1, 500)])
    store.tasks.task_indexes(range(1, 500))
    store.tasks.tries(run_id)
    store.tasks.codes(run_id)
    store.tasks.list_tasks(run_id, among=range(1, 21))
    store.deployment.places(run_id)
    store.deployment.ended_groups(run_id)
    store.runs.transitions(run_id)
    store.runs.transitions(7, after_seq=5)
    store.corrections.list_corrections(run_id)
    store.corrections.list_corrections(after_id=100)
    store.corrections.list_corrections(before_id=ID_MAX)
    store.corrections.list_corrections(before_id=ID_MAX, kind="late")
    store.corrections.list_corrections(kind="late", after_id=100)
    store.corrections.list_corrections(run_id, kind="killed")
    store.corrections.correction_summary(FILLED_FROM + timedelta(minutes=filled.size.runs - 500))
    store.runs.cancellations(run_id)
    store.runs.resumption(run_id)
    store.exports.list_exports(run_id)
    store.runs.properties(run_id)
    store.events.deliveries(run_id)
    store.tasks.log_tail(77)
    store.tasks.statistics(run_id)
    store.events.find_event("filled/77")
    store.events.get_event(77)
    store.events.newest_events(run_id, 300)
    store.events.last_event(run_id, "run.ended")
    store.events.last_event_seq()
    store.events.events_after(100)
    store.events.events_after(100, run_id=run_id)
    store.events.delivered_by(77)
    store.events.record_delivery(77, "events", "refused")
    store.events.record_delivery(77, "pusher", None)
    store.search.fill()
    store.sweep.unowned_runs(START + timedelta(days=1))
    store.sweep.unheard_stops(START + timedelta(days=1))
    store.wake_ups.wake_target(77)
    store.wake_ups.unverified(START + timedelta(days=1))
    store.polls.recorded_state(77)
    store.polls.rollback_possible()
    store.runs.run_marks(range(1, 501))
    store.health.ping()
    store.health.projects()
    # SQLite plans without reading the values, so the plan is the same for both.
    for project in (
        ("default",)
        if filled.store.database.engine.dialect.name == "sqlite"
        else ("default", "nobody")
    ):
        with limited(project):
            of_one_project(store, filled)
    deploying(store)


def searching(store: Store, filled: Filled) -> None:
    """A search that continues among older runs, and lists in another order.

    The number of runs to read is known.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "WINDOW", 20)
        for wanted in (
            {},
            {"status": ["FAILED", "COMPLETED"]},
            {"crawler": "crawler-7"},
            {"tags": [COMMON_TAG]},
        ):
            for text in ("rare", "crawler-1", "flow-2", "7"):
                store.runs.search_runs(text, **wanted)  # type: ignore[arg-type]
            store.runs.search_runs(None, "-took", **wanted)  # type: ignore[arg-type]
            store.runs.count_found(100, **wanted)  # type: ignore[arg-type]
        for text in ("m1", "7"):
            store.managers.search(text)
            store.managers.search(text, states=["COMPLETED", "FAILED"])
            store.graphs.search(text.replace("m", "g"))
            store.graphs.search(text, states=[GraphState.COMPLETED, GraphState.EXECUTING])
        for sort in ("live", "-wait"):
            store.managers.search(None, sort, name="m7")
        store.graphs.search(None, "-took", name="g7")
        store.managers.count_listed(100)
        store.managers.count_listed(100, states=["COMPLETED"], name="m7")
        store.graphs.count_listed(100)
        store.graphs.count_listed(100, states=[GraphState.COMPLETED, GraphState.EXECUTING])
    store.runs.known_values(100)


def overviews(store: Store, filled: Filled) -> None:
    """The queries of the overview and of a crawler's page."""
    lately = FILLED_FROM + timedelta(minutes=filled.size.runs - 500)
    store.runs.runs_since(lately)
    store.runs.ends_of("crawler-7", lately, 8)
    store.runs.live_runs(1_000)
    store.runs.newest_runs(1_000)
    store.runs.good_shares([f"crawler-{n}" for n in range(50)], lately)
    store.runs.brief_runs(50, crawler="crawler-7")
    store.runs.codes_of([7, 8, 9])
    store.schedules.latest_due()


def of_one_project(store: Store, filled: Filled) -> None:
    """The queries of a caller with one project.

    All rows belong to the first one, as without projects.
    """
    run_id = filled.large.run_id
    for wanted in FILTERS:
        store.runs.list_runs(**wanted)
        store.runs.list_runs(**wanted, before_run_id=filled.size.runs // 2)
    searching(store, filled)
    store.runs.get_run(run_id)
    store.runs.find_run("filled-77")
    store.runs.count_runs([RunStatus.COMPLETED, RunStatus.FAILED], 100)
    store.runs.recent_runs([f"crawler-{n}" for n in range(50)], 20)
    store.runs.brief_runs(60, crawler="crawler-7", before_id=filled.size.runs // 2)
    overviews(store, filled)
    store.runs.properties(run_id)
    store.tasks.recorded_tasks([(run_id, n, 1) for n in range(100)])
    for kind in (None, "late"):
        store.corrections.list_corrections(run_id, kind=kind)
        store.corrections.list_corrections(after_id=100, kind=kind)
        store.corrections.list_corrections(before_id=ID_MAX, kind=kind)
    store.corrections.correction_summary(FILLED_FROM + timedelta(minutes=filled.size.runs - 500))
    store.overdue.overdue_polls(START)
    for status in ([], ["COMPLETED", "FAILED"]):
        store.managers.newest(7, states=status)
        store.managers.newest(7, states=status, name="m7")
    store.managers.failures("FAILED", "COMPLETED", [1, 2])
    store.managers.find_manager(None, "flow-7")
    store.managers.live_managers()
    store.managers.job_metadata(1, "filled-77")
    for states in ([], [GraphState.COMPLETED, GraphState.EXECUTING]):
        store.graphs.newest(20_007, states=states)
        store.graphs.newest(20_007, states=states, name="g7")
    store.graphs.failures("discarded", "completed", ["g-7", "g-8"])
    store.graphs.count_graphs()
    store.schedules.page(20)
    store.schedules.get("nightly")
    store.schedules.count_schedules(START)
    store.webhooks.page(10)
    for project in (None, "default"):
        with limited(project):
            store.sites.list_sites(20, 20, search="site", show="closed")
            store.sites.list_sites(0, 20, show="limited")
            store.sites.list_sites(0, 20, show="busy")
            store.sites.get_site("site-7")
            store.sites.sites_of("www.site-7")
            store.sites.minutes("site-7", 60)
            store.sites.proxies("site-7")
            store.sites.blocks("site-7", before_id=100)
            store.sites.site_runs("site-0")
            store.sites.robots("site-7")
            store.sites.robots_text("site-7", "https://site-7")
            store.sites.robots_of_run(1)
    store.sites.closed_sites(100)
    store.sites.set_limits("site-7", SiteLimits(tasks=1), "ann")
    store.sites.remove_limits("site-7", "ann")
    store.sites.close_site("site-7", 60, "ann")
    store.sites.open_site("site-7", "ann")
    store.sites.apply_settings({"site-8": SiteLimits(tasks=1)})
    store.sites.apply_settings({})
    store.pools.known_pools()
    store.pools.set_pool("shop", Pool(max=1), "ann")
    store.pools.delete_pool("shop", [])
    store.sites.remove_old()
    for project in (None, "default"):
        with limited(project):
            store.entries.list_entries()
            store.entries.entry_marks()
            store.entries.get_entry("entry-7")
            store.entries.entry_history("entry-7", before=40)
            store.entries.entry_version("entry-7", 3)
            store.canaries.list_canaries(4_000)
            store.canaries.list_canaries(package="package-7")
            store.canaries.list_canaries(state="open")
            store.canaries.get_canary(7)


def deploying(store: Store) -> None:
    """Everything that changes packages, their canaries and entries."""
    store.canaries.held(CanaryState.REJECTED)
    canary_id = store.canaries.held(CanaryState.OPEN)[0].canary_id
    store.canaries.new_runs(canary_id)
    store.canaries.old_runs(canary_id, [("default", "crawler-7")])
    store.canaries.end_canary(canary_id, CanaryState.ACCEPTED, "ann", "")
    store.entries.set_entry("entry-8", {"name": "entry-8"}, "ann")
    store.entries.use_entry("entry-8", 1, "ann")
    store.entries.set_entry("entry-8", {"name": "entry-8", "image": "2"}, "ann")
    store.entries.roll_back("entry-8", "ann")
    store.entries.delete_entry("entry-8")
    for project in (None, "default"):
        with limited(project):
            store.packages.list_packages(400, 100)
            store.packages.versions("package-7")
            store.packages.find_version("package-7")
            store.canaries.open_canary("package-7")
            store.packages.package_version_before("package-7")
            store.entries.entry_version_before("entry-7")
            store.canaries.open_canary("entry-7", of_entry=True)
    new = NewVersion("package-7", "new", "sha256:7", 1, 1, spiders=[{"name": "new", "args": {}}])
    store.packages.check_version(new)
    store.packages.check_owner("package-7")
    store.packages.add_version(new)
    store.packages.use_version("package-7", "v500", "ann")
    store.packages.delete_version("package-7", "v1000")
    store.packages.delete_version("package-7", "v500", fall_back=True)
    store.packages.delete_package("package-8")
    store.package_pruning.needed([f"sha256:{n}" for n in range(100)])
    store.package_pruning.prune(48)


def managing(harness: Harness, size: Size) -> None:
    """A manager with half as many jobs, from its start to its end and once more."""
    managers = harness.store.managers
    managers.find_manager("filled", "flow-7")
    managers.find_manager(None, "flow-7")
    managers.newest(7)
    managers.newest(name="m7")
    managers.newest(7, states=["COMPLETED"], name="m7")
    managers.reserve_manager(NEW)
    managed = Managed.begun(harness)
    for n in range(size.large // 1000):
        managers.add_page(managed.fence, page(range(500 * n, 500 * n + 500), 500 * n))
    managed.pick(size.large // 120)
    managers.known_identities(managed.id, [job(n).identity for n in range(300, 900)])
    [first, *_] = runs = managed.begin()
    managed.pick(2)
    managers.job_started(
        managed.fence, managers.starting_jobs(managed.fence)[0].item_id, None, "no"
    )
    for fence in runs:
        harness.finish(fence)
    managed.handle()
    harness.resume(first, rerun=True)
    managers.facts(managed.fence, 10)
    waiting = managers.waiting_jobs(managed.id, JobState.BUFFERED, after_id=500)
    managed.commit(
        added=[AddedJob(-1, job(10**6)), AddedJob(-2, job(5), unique=False, seq=1, retry=1)],
        delayed=[one.item_id for one in waiting],
    )
    managers.live_jobs(managed.id)
    managers.live_runs(managed.id)
    managers.cut_off_runs(managed.id)
    managers.list_jobs(managed.id, 500)
    managers.list_jobs(managed.id, states=[JobState.ENDED])
    managers.add_jobs(managed.id, [job(n, spider="x") for n in range(500)], "page-1")
    managers.add_jobs(managed.id, [job(n, spider="x") for n in range(500)], "page-1")
    managers.job_metadata(managed.id, str(first.run_id))
    managers.job_metadata(managed.id, f"manager/{managed.id}/501")
    for after in (None, "live:7", f"ended:{START.isoformat()}:7"):
        managers.owned_jobs(managed.id, ["running", "finished"], after=after)
        managers.owned_jobs(
            managed.id, ["pending", "finished"], spider="services", project_id="7", after=after
        )
    managers.note_error(managed.fence, "odd")
    managers.note_try(managed.fence)
    managers.live_managers()
    managers.keep_output(managed.id, "one\n")
    managers.keep_output(managed.id, "two\n")
    managers.output(managed.id)
    managers.steer_manager(managed.id, paused=True, cap=3)
    managers.record_manager_stop(managed.id, harness.stop())
    managers.end_manager(managed.fence, RunStatus.FAILED, "cancelled", "stopped", leave=True)
    managers.get_manager(managed.id)
    managers.count_ended("manager/0", harness.clock.now - timedelta(hours=1))
    managers.list_jobs(managed.id, 500, states=[JobState.STARTED, JobState.ENDED])
    managers.reserve_manager(replace(NEW, options={}))
    again = Managed.claimed(harness, managed.id, NEXT)
    harness.store.managers.get_manager(again.id)
    harness.store.events.events_after(100, subject=manager_subject(managed.id))
    harness.store.user_code.register_user_code("w1", [UserCodeRow("a:B", "manager", "b", "", "f")])
    harness.store.user_code.register_user_code("w1", [])
    harness.store.user_code.list_user_code()
    harness.store.user_code.get_user_code("a:B")


def webhooks(harness: Harness) -> None:
    """A webhook that gets thousands of events, among others, and events of a run that no status
    shows.
    """
    store, clock = harness.store.webhooks, harness.clock
    assert store.every() == []
    spec = WebhookSpec(
        "https://hooks.example.com/", ["env:CRAWL_HOOK"], tags=["large"], crawlers=["services"]
    )
    for n in range(40):
        store.put(f"w{n}", spec.document(), "ann")
    row, _ = store.put(
        "w7", WebhookSpec("https://hooks.example.com/", ["env:CRAWL_HOOK"]).document(), "ann"
    )
    store.follow_webhook("w7", "f")
    told = [event.seq for event in harness.store.events.events_after(0, 500)]
    for part in range(0, len(told), 100):
        tried = [
            DeliveryAttempt(seq, None if seq % 3 else "503") for seq in told[part : part + 100]
        ]
        store.note_tries(row.webhook_id, "f", tried, 0, settled=False)
    store.note_tries(
        row.webhook_id,
        "f",
        [DeliveryAttempt(told[0]), DeliveryAttempt(told[1])],
        told[1],
        settled=True,
    )
    store.waiting_events(row.webhook_id, "f", spec, 0, 100)
    store.waiting_events(
        row.webhook_id, "f", WebhookSpec("https://a.example/", ["env:CRAWL_HOOK"]), told[-1], 100
    )
    store.list_webhook_deliveries(row.webhook_id)
    store.list_webhook_deliveries(row.webhook_id, before_seq=told[50], status="failed")
    store.page(10)
    store.get("w7")
    store.test_webhook("w7", "ann", seen=told[-1])
    store.pause("w7", "a migration")
    store.pause("w7", None, skip_seq=next(seq for seq in told[2:] if seq % 3 == 0))
    store.pause("w7", None, skip=True)
    store.delete("w7")
    fence = executing(harness, "stale")
    clock.forward(91)
    stale = [
        run
        for run in harness.store.overdue.overdue_runs(overdue_before(clock.now))
        if run.run_id == fence.run_id
    ]
    harness.store.run_reports.note_stale(stale[0])
    harness.store.run_reports.note_blocked("crawl/services/stale", None, "a bug", clock.now)


def incidents(harness: Harness, size: Size) -> None:
    """Incidents of crawlers that fail repeatedly, most of them closed."""
    store, clock = harness.store.incidents, harness.clock
    kinds = [kind for kind in INCIDENT_KINDS if kind.startswith("crawler_")]
    needs = [
        IncidentCondition(
            kinds[n % len(kinds)],
            f"crawlers/c{n}",
            f"p{n % 40}",
            "boom",
            clock.now,
            clock.now,
            f"{n}",
        )
        for n in range(size.runs // 40)
    ]
    for _ in range(8):
        store.record_conditions(needs, lambda row: True)
        store.record_conditions([], lambda row: True)
        clock.forward(7200)
        needs = [replace(one, at=clock.now) for one in needs]
    store.record_conditions(needs[:20], lambda row: True)
    store.record_conditions([replace(one, count=9) for one in needs[:20]], lambda row: True)
    for project in (None, "p3"):
        with limited(project):
            [first, *_] = store.open_incidents(50)
            store.get_incident(first.incident_id)
            store.open_counts(heard=True)
            store.list_incidents()
            store.list_incidents(first.incident_id + 1, muted=False)
            store.list_incidents(state="closed", muted=True)
            store.list_incidents(state="all")
            store.list_incidents(kind=kinds[0], assignee="ann")
            store.list_incidents(subject=first.subject)
            store.incident_events(first, 50)
    store.closed_last({first.subject})
    store.opened_since(START, [first])
    store.change_incident(first.incident_id, comment="later")
    store.close_incident(first.incident_id, "ann")
    [crawler, *_] = store.all_crawlers()
    store.ended_runs([crawler], 20)
    store.crawlers_ended_after(0)
    notes = harness.store.notes
    notes.take_turn("incidents", "one", clock.now)
    notes.leave_note("worker", "host/1", "{}", clock.now)
    notes.remove_note("host/1")


def schedules(harness: Harness) -> None:
    """A schedule with 3,000 due times, from its creation to its deletion, among others."""
    store, clock = harness.store.schedules, harness.clock
    definition = {
        "run": {"crawler": "services"},
        "every_s": 60,
        "overlap": "queue",
        "pause_after_failures": 3,
    }
    clock.forward(-3000 * 60)
    for n in range(200):
        store.put(f"s{n}", definition, "ann")
    row, _ = store.put("s7", {**definition, "every_s": 120}, "ann")
    clock.forward(3000 * 60)
    past = [clock.now - timedelta(minutes=n) for n in range(3000, 0, -1)]
    store.unfired_due(row.schedule_id, clock.now)
    while store.note_due(row.schedule_id, clock.now).more:
        pass
    for n in range(3):
        line = store.decide_due("s7", clock.now + timedelta(seconds=n), row.revision)
        store.due_begun(line.due_id, TargetRef(TargetKind.RUN, 1 + n))
    store.decide_due("s7", clock.now)
    store.asked_due("s7", "key")
    [asked, *_] = store.ask_due(
        "s7", past[:3], "ann", "backfilled", seen=clock.now + timedelta(days=1)
    )
    store.get_due(asked.due_id)
    store.previous_target(asked.due_id)
    store.give_way(asked.due_id)
    store.due_failed(asked.due_id, "no")
    store.due_to_begin(clock.now + timedelta(days=1))
    store.list_firings(row.schedule_id)
    store.list_firings(row.schedule_id, before=past[1500], decision=Decision.MISSED)
    store.count_due(row.schedule_id, past[100], past[2900], 1_440)
    store.page(20)
    store.page(deleted=True)
    store.get("s7")
    store.count_schedules(clock.now)
    store.told_schedule(row.schedule_id, row.revision, trouble=None, ended_at=None)
    store.pause("s7", "a migration")
    store.pause("s7", None)
    store.delete("s7")


def graphs(harness: Harness, size: Size) -> None:
    """A graph with half as many functions and some crawls, from its pages to its end and once more."""
    store = harness.store.graphs
    steps = [step(f"f{n}", max_attempts=3) for n in range(size.large // 2)]
    fan = [group("fan"), *(step(f"fan/{n}") for n in range(size.large // 10))]
    more = [step("graft", graft=True), step("all", "fan", *(one.path for one in steps))]
    crawls = [crawl(f"c{n}") for n in range(20)]
    graphed = Graphed.made(harness, [*more, *fan, *steps, *crawls], context={"a": 1})
    picked = graphed.advance()
    work = [one for batch in picked.batches[:3] for one in graphed.work(batch.number)]
    graphed.begin(*work)
    graphed.advance()  # only those rows of this graph are read that may have changed
    spec = GraphSpec([step(f"g{n}") for n in range(500)])
    store.begin_graft(graphed.id, 0, 1, spec, "d")
    store.record(graphed.fence, [graphed.end(one, result=b"{}") for one in work])
    runs = graphed.begin_runs()
    harness.store.audits.steps_without_runs([graphed.id])
    harness.store.audits.open_runs(size.runs - 100, limit=200)
    for fence in runs.values():
        harness.finish(fence)
    graphed.advance(*(batch.number for batch in picked.batches))
    store.load(graphed.id)
    store.newest(20_007)
    store.newest(20_007, name="g7")
    store.newest(20_007, states=[GraphState.COMPLETED, GraphState.EXECUTING])
    store.newest(states=[GraphState.CANCELLED], name="g7")
    store.untold_graphs(harness.clock.now, harness.clock.now)
    store.count_graphs()
    store.outline(graphed.id)
    store.find_graph(graphed.row.key)
    store.list_steps(graphed.id, 3000, states=[StepState.COMPLETED])
    store.list_steps(graphed.id, search="f7", kinds=[StepKind.FUNCTION])
    store.list_steps(graphed.id, paths=[f"f{n}" for n in range(700)])
    store.count_listed_steps(graphed.id)
    store.count_listed_steps(graphed.id, states=[StepState.COMPLETED], kinds=[StepKind.FUNCTION])
    store.count_listed_steps(graphed.id, search="f7")
    numbers = [one.number for one in work]
    list(store.results(graphed.id, numbers))
    list(store.result(graphed.id, numbers[0]))
    store.given(graphed.id, [2, *numbers])
    store.context(graphed.id, 7)
    store.cancelled(graphed.fence, range(700))
    store.live_graph_runs(graphed.id)
    store.live_graph_runs(graphed.id, ending=True)
    store.live_graph_managers(graphed.id)
    store.keep_output(graphed.id, "one")
    store.keep_output(graphed.id, "two")
    store.output(graphed.id)
    store.record_graph_stop(graphed.id, harness.stop())
    graphed.advance(*range(1, 1000))
    store.end_graph(graphed.fence, "stopped")
    harness.store.deletion.delete_texts(next(iter(runs.values())).run, lambda: None)
    store.command(graphed.id, "again", lambda graph: graph.retry(None, cascade=True))
    again = Graphed.claimed(harness, graphed.id, Owner(graph_workflow_id(KEY), "chain-again"))
    again.advance()
    Graphed.claimed(harness, graphed.id, Owner(graph_workflow_id(KEY), "chain-lost"))
    harness.store.events.events_after(100, subject=graph_subject(KEY))
    store.reserve_graph(announced(spec, "whole"), spec)
    draft, _ = store.reserve_graph(announced(spec, "draft"))
    store.add_graph_page(draft.graph_id, 0, encode_pages(spec)[0])
    store.draft_spec(draft.graph_id)
    store.reserve_graph(announced(GraphSpec([step("other")]), "draft"))
    harness.clock.forward(2 * DRAFT_S)
    store.drop_old_drafts()
    store.drop_draft(draft.graph_id)


def access(store: Store, filled: Filled) -> None:
    """People's actions, and their tokens."""
    at = filled.clock.now
    kinds = {"run": "7", "manager": "7", "graph": "g7", "schedule": "nightly", "webhook": "portal"}
    store.access.record_access(
        [
            AccessRow(at, "a", "*", "o", None, 200, "done", kind=kind, subject=key)
            for kind, key in kinds.items()
        ]
    )
    middle = FILLED_FROM + timedelta(minutes=filled.size.runs // 2)
    for wanted in (
        {},
        {"caller": "caller-3"},
        {"operation": "operation-3"},
        {"subject": "77", "kind": "run"},
        {"outcome": "outcome-3"},
    ):
        store.access.list_access(51, **wanted)  # type: ignore[arg-type]
        store.access.list_access(51, **wanted, before=(middle, 77))  # type: ignore[arg-type]
        store.access.list_access(51, **wanted, since=FILLED_FROM, until=middle)  # type: ignore[arg-type]
        with limited("default"):
            store.access.list_access(51, **wanted, before=(middle, 77))  # type: ignore[arg-type]
    store.tokens.create_token("ci", "read", "*", "0" * 64, None, "ann")
    store.tokens.list_tokens(live=True)
    store.tokens.tokens_used({"0" * 64: at})
    store.tokens.revoke_token("ci", "ann")
    store.tokens.list_tokens()
    for _ in range(2):
        store.notes.leave_note("login", "a", "", at)
    store.notes.live_notes("login")


def audits(store: Store, filled: Filled) -> None:
    """Everything that an audit reads and writes."""
    run_id, since = filled.large.run_id, FILLED_FROM + timedelta(days=1)
    store.audits.open_runs()
    store.audits.open_runs(after_run_id=filled.size.runs // 2, limit=200)
    page = store.audits.ended_runs(since, limit=200)
    store.audits.ended_runs(since, (page[-1].ended_at, page[-1].run_id), limit=200)
    store.audits.ended_run(page[0].run_id)
    store.overdue.overdue_runs(START + timedelta(days=1))
    store.overdue.overdue_runs(START + timedelta(days=1), (START, 7))
    store.overdue.overdue_polls(START + timedelta(days=1))
    store.tasks.recorded_tasks(
        [(run_id, index, 1) for index in range(500)] + [(n, 0, 1) for n in range(1, 200)]
    )
    store.audits.unproved_ends([run.run_id for run in page] + [run_id], since)
    store.audits.existing_runs(range(1, 500))
    store.audits.open_managers(0, 200)
    store.audits.existing_parents(
        [f"{kind}/m{n}/f" for kind in ("manager", "graph") for n in range(20)]
    )
    store.audits.open_graphs(0, 200)
    store.audits.steps_without_runs(range(1, 200))
    store.run_numbers.begin_run_ids_above(store.run_numbers.newest_run_id() + 1)
    adopted(store, filled)
    found = [AuditFinding(f"orphan/{n}", FindingKind.ORPHAN, "it executes", n) for n in range(200)]
    store.findings.note_findings(found)
    store.findings.note_findings(found)
    store.findings.note_repair("orphan/7", "ended")
    store.findings.audit_findings()
    store.findings.forget_findings(["orphan"], filled.clock.forward(1))
    report = AuditReport("a1", filled.clock.now, filled.clock.now, repair=True)
    store.findings.record_audit(report)
    store.findings.record_audit(report)
    store.findings.last_audit()
    store.findings.last_audit("a1")


def clearing(store: Store, filled: Filled) -> None:
    """Everything that the cleaning of storage reads and writes, for a page of runs and for an old
    one.
    """
    page = store.file_retention.kept_runs(range(1, 501))
    old = next(run for run in page if run.ended_at is not None)
    row = store.runs.get_run(old.run_id)
    fence = Fence(old.run_id, old.attempt, row.owner_run_id or "", old.run_uid)
    store.exports.record_export(fence, "exported", None, None)
    store.exports.begin_export(fence)
    before = filled.clock.forward(86_400)
    assert store.file_retention.give_up_files(old.run_id, before, lambda: None) == (
        RetentionState.OLD,
        old.attempt,
        1,
    )
    store.file_retention.note_files_removed(old.run_id, old.attempt)
    assert store.file_retention.give_up_files(old.run_id, before, lambda: None) == (
        RetentionState.REMOVED,
        old.attempt,
        0,
    )
    store.deletion.ask_deletion(old.run_id, "ada")
    assert [one.run_id for one in store.deletion.open_deletions(filled.clock.forward(60))] == [
        old.run_id
    ]
    store.deletion.delete_texts(RunRef(old.run_id, old.run_uid), lambda: None)
    store.deletion.forget_former()
    store.deletion.note_deletion(RunRef(old.run_id, old.run_uid), {}, {}, ended=True)


LIVE = [status.value for status in RunStatus if not status.terminal]
FILTERS: list[dict[str, Any]] = [
    {},
    {"waits": "pool", "pool": "pool-3"},
    {"waits": "start"},
    {"status": ["COMPLETED"]},
    {"status": ["FAILED", "COMPLETED"]},
    {"status": LIVE},
    {"stage": Stage.COMPLETION.value},
    {"stage": Stage.DEPLOYMENT.value},
    {"crawler": "crawler-7"},
    {"crawler": "nobody"},
    {"pool": "pool-7"},
    {"trigger": "manual"},
    {"outcome": "memory_exceeded"},
    {"flow_id": "flow-200"},
    {"tags": [RARE_TAG]},
    {"tags": [COMMON_TAG]},
    {"tags": ["nobody"]},
    {"created_from": FILLED_FROM + timedelta(days=10)},
    {"created_from": START + timedelta(days=365)},
    {"created_until": FILLED_FROM + timedelta(days=1)},
    {
        "created_from": FILLED_FROM + timedelta(days=3),
        "created_until": FILLED_FROM + timedelta(days=4),
    },
    {"crawler": "crawler-7", "status": ["FAILED"]},
    {"crawler": "crawler-7", "status": LIVE},
    {"crawler": "crawler-7", "outcome": "memory_exceeded"},
    {"crawler": "crawler-7", "created_from": FILLED_FROM + timedelta(days=10)},
    {"flow_id": "flow-200", "status": ["COMPLETED"]},
    {"status": ["FAILED"], "created_until": FILLED_FROM + timedelta(days=1)},
    {"status": ["FAILED"], "trigger": "manual"},
    {"stage": Stage.COMPLETION.value, "trigger": "manual"},
    {"tags": [RARE_TAG], "status": ["FAILED"]},
    {"tags": [COMMON_TAG], "crawler": "crawler-7"},
    {"tags": [COMMON_TAG], "status": ["COMPLETED"]},
    {"tags": [COMMON_TAG, RARE_TAG]},
    {"code": RARE_CODE},
    {"code": COMMON_CODE},
    {"code": COMMON_CODE, "status": ["FAILED"]},
    {"code": COMMON_CODE, "crawler": "crawler-7", "tags": [COMMON_TAG]},
    {"tags": [RARE_TAG, "nobody"], "status": ["FAILED"]},
    {"parent": "manager/0"},
    {"parent": "manager/0", "status": ["FAILED"]},
    {"parent": "nobody", "status": LIVE},
    {"attention": True},
    {"attention": True, "crawler": "crawler-7"},
    {"attention": True, "created_from": FILLED_FROM + timedelta(days=10)},
    {"attention": True, "tags": [COMMON_TAG]},
]


#: Statements that do not stay fast, to check the test itself.
SLOW = (
    sa.select(run_history.c.run_id).where(run_history.c.cause == "x"),
    sa.select(task_history.c.task_id).where(task_history.c.node == "x").limit(1),
    sa.select(outbox_event.c.seq)
    .where(outbox_event.c.run_id > 7)
    .order_by(outbox_event.c.created_at)
    .limit(1),
)


#: What may be changed in tables to which rows are only appended.
LEDGER = ("correction", "status_transition", "cancellation_log")


def rewrites(statement: str) -> bool:
    """Return whether the statement would change or delete rows of the ledger."""
    words = re.sub(r"\s+", " ", statement).strip()
    tables = [table for table in LEDGER if re.search(rf"\b{table}\b", words)]
    if not tables or words.upper().startswith("SELECT"):
        return False
    if re.match(r"INSERT INTO", words, re.I):
        return "ON DUPLICATE KEY" in words.upper() or "ON CONFLICT" in words.upper()
    # The time at which a stop was acted on; and the texts of a deleted run are removed.
    may = r"cancellation_log SET (acted_at|reason)|(status_transition|correction) SET evidence"
    return not re.match(rf"UPDATE ({may}) ?= ?\S+ WHERE ", words)


@pytest.mark.parametrize("statement", [
    "UPDATE correction SET kind=%(kind)s WHERE id = 1", "DELETE FROM status_transition", "REPLACE INTO correction (id)",
    "UPDATE correction SET evidence=?, kind=? WHERE id = 1",
    "UPDATE cancellation_log SET acted_at=?, requested_by=? WHERE id = 1", "INSERT OR REPLACE INTO correction (id)",
    "UPDATE task_history AS t FROM correction SET x = 1", "INSERT INTO correction (id) ON CONFLICT (id) DO NOTHING",
    "DELETE x FROM correction AS x", "TRUNCATE status_transition",
])  # fmt: skip
def test_a_statement_that_rewrites_the_ledger_is_seen(statement: str) -> None:
    assert rewrites(statement)


def test_every_statement_stays_fast_and_the_ledger_is_only_ever_appended_to(
    explained: tuple[Plans, set[str]], subtests: pytest.Subtests
) -> None:
    """This is one test, because filling a database takes a minute, and each process would fill its
    own.
    """
    plans, called = explained
    with subtests.test("nothing reads or sorts everything"):
        unexpected = [
            f"{key}: {fault}"
            for key, fault in plans.faults.items()
            if key not in MAY and key[0] != "control"
        ]
        assert not unexpected, "\n".join(unexpected)
        assert len(plans.statements) > 100
    with subtests.test("what does not stay fast is seen"):
        seen = {(kind, table) for method, kind, table in plans.faults if method == "control"}
        assert seen >= {("scan", "run_history"), ("scan", "task_history")}
        # SQLite does not report how much it sorts.
        if any("%(" in statement for statement in plans.statements):
            assert ("sort", "outbox_event") in seen
    with subtests.test("every index serves a statement"):
        indexes = {
            one.name
            for table in metadata.tables.values()
            for one in table.indexes
            if not one.unique
        }
        assert indexes - plans.indexes <= OTHERWISE.get(plans.database, set())
    with subtests.test("every method of the port was explained"):
        assert methods().keys() - called == set()
    with subtests.test("the ledger is only ever appended to"):
        assert [statement for statement in plans.statements if rewrites(statement)] == []
        for table in LEDGER:
            assert any(
                re.match(rf"INSERT INTO {table}\b", statement) for statement in plans.statements
            ), table
