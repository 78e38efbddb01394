"""The rights that ``crawlctl db prune`` needs: only those of the services, and those that
deploy/database/pruning.sql grants.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta

import pymysql
import pytest

from crawler_lifecycle.domain.audits.audit import AuditFinding, FindingKind
from crawler_lifecycle.domain.conditions import IncidentCondition
from crawler_lifecycle.domain.retention import GOES, NEVER
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.features.graphs.domain.pages import encode_pages
from crawler_lifecycle.features.graphs.domain.spec import GraphSpec
from crawler_lifecycle.features.schedules.domain.definition import ScheduleSpec, TargetKind
from crawler_lifecycle.features.schedules.ports import TargetRef
from crawler_lifecycle.ports.access import AccessRow
from crawler_lifecycle.ports.polls import Details
from crawler_lifecycle.store.retention.pruning import open_pruner
from crawler_lifecycle.store.store import Store, open_store
from tests.contracts.store.graphing import Graphed, announced, step
from tests.contracts.store.harness import Clock, Harness
from tests.contracts.store.managing import NEW, Managed, job
from tests.support.databases import SHARED, without_rows
from tests.support.grants import grants
from tests.support.sql_server import SqlServer, denied


@pytest.fixture(scope="module")
def address(server: SqlServer) -> Iterator[str]:
    """The URL of a migrated database, into which either user's name is put."""
    without_rows(server)
    users = ("services", "pruning")
    try:
        for user in users:
            assert grants(user), user
            # Two modules of tests share the server, and one of them has a user of this name, too.
            server.execute(f"CREATE USER {user}_p@'127.0.0.1'")
            for grant in grants(user):
                own = grant.replace("lifecycle.", f"{SHARED}.").replace(
                    f"{user}@'%'", f"{user}_p@'127.0.0.1'"
                )
                server.execute(own)
        yield f"mysql+pymysql://USER_p@127.0.0.1:{server.port}/{SHARED}"
    finally:
        for user in users:
            server.execute(f"DROP USER IF EXISTS {user}_p@'127.0.0.1'")


def _leave(store: Store, clock: Clock, name: str) -> None:
    """Create a run that ended long ago, with rows in every table."""
    harness = Harness(store, clock)
    fence = harness.executing(name, tasks=2)
    store.polls.save_details(
        fence,
        [
            Details(task.task_id, "the end of a log", statistics={"a": 1})
            for task in store.tasks.list_tasks(fence.run_id)
        ],
    )
    harness.finish(fence, failed=[0])
    for event in store.events.events_after(0, 1000, fence.run_id):
        store.events.record_delivery(event.seq, "pusher", None)
    managed = Managed.begun(harness, replace(NEW, flow_id=name))
    store.managers.add_jobs(managed.id, [job(1)], "page-1")
    store.managers.end_manager(managed.fence, RunStatus.COMPLETED, "finished", "done")
    graphed = Graphed.made(harness, [step("a")], name)
    graphed.execute()
    store.graphs.keep_output(graphed.id, "some")
    store.graphs.end_graph(graphed.fence, None)
    draft, _ = store.graphs.reserve_graph(announced(GraphSpec([step("a")]), f"{name}-draft"))
    store.graphs.add_graph_page(draft.graph_id, 0, encode_pages(GraphSpec([step("a")]))[0])
    spec = ScheduleSpec(run={"crawler": "books"}, every_s=60)
    schedule, _ = store.schedules.put(name, spec.document(), None)
    due = store.schedules.decide_due(name, clock.now, schedule.revision)
    store.schedules.due_begun(due.due_id, TargetRef(TargetKind.RUN, fence.run_id))
    store.findings.note_findings(
        [AuditFinding(name, FindingKind.STILL_ALIVE, "it executes", fence.run_id)]
    )
    store.findings.note_repair(name, "ended")
    problem = IncidentCondition(
        "crawler_failing", f"crawlers/{name}", "default", "no price", clock.now, clock.now
    )
    store.incidents.record_conditions([problem], lambda row: True)
    store.incidents.record_conditions([], lambda row: True)
    store.access.record_access([AccessRow(clock.now, "ann", "*", "stopRun", None, 200, "done")])
    clock.forward(100 * 86_400)


@pytest.mark.parametrize("user", ["services", "pruning"])
def test_a_pruning_needs_no_more(address: str, server: SqlServer, user: str) -> None:
    clock, removed = Clock(), set[str]()
    with (
        closing(open_store(server.url_of(SHARED), clock=clock)) as store,
        closing(open_pruner(address.replace("USER", user), clock=clock)) as pruner,
    ):
        for n in range(2):
            _leave(store, clock, f"{user}-{n}")
        run = store.runs.list_runs(limit=1)[0]
        staged = {
            "task_observation": f"(task_id, run_id, attempt, task_index) VALUES (1, {run.run_id}, 1, 0)",
            "task_finding": f"(task_id, run_id, believed, terminal, evidence) VALUES (1, {run.run_id}, 'x', 1, '{{}}')",
        }
        for table, row in staged.items():
            server.execute(f"INSERT INTO {SHARED}.{table} {row}")
        before = clock.now - timedelta(days=90)
        for table in pruner.tables:
            chunk = pruner.poll(table, before)
            removed |= {
                touched
                for touched, rows in pruner.remove(table, chunk.goes, before).items()
                if rows
            }
        assert removed == set(GOES)
        assert (
            sum(
                sum(pruner.remove(t, pruner.poll(t, before).goes, before).values())
                for t in pruner.tables
            )
            == 0
        )


MORE = (
    *(f"DELETE FROM {table}" for table in NEVER),
    "UPDATE run_history SET status = 'FAILED'",
    "UPDATE correction SET kind = 'late'",
    "UPDATE outbox_event SET type = 'x'",
    "UPDATE outbox_counter SET seq = 0",
    "INSERT INTO outbox_counter (id, seq) VALUES (2, 0)",
    "DROP TABLE task_log",
    "TRUNCATE outbox_event",
)


def test_more_it_cannot(address: str, server: SqlServer) -> None:
    assert address
    connection = pymysql.connect(
        host="127.0.0.1", port=server.port, user="pruning_p", database=SHARED
    )
    with connection, connection.cursor() as cursor:
        assert [statement for statement in MORE if not denied(cursor, statement)] == []


def test_the_file_names_the_tables_that_rows_leave() -> None:
    named = {
        name
        for grant in grants("pruning")
        for name in re.findall(r"GRANT DELETE ON lifecycle\.(\w+) ", grant)
    }
    assert named == set(GOES)
