"""Every statement of ``crawlctl db prune`` is explained among many rows: each reads a chunk, none
reads a table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
import sqlalchemy as sa

from crawler_lifecycle.domain.retention import Stays
from crawler_lifecycle.store.engine import Database, open_engine, parse_url
from crawler_lifecycle.store.retention.pruning import Pruner, open_pruner
from crawler_lifecycle.store.runs.tables import task_log
from crawler_lifecycle.store.tables import metadata
from tests.store.plans import Plans
from tests.support.databases import make_tables
from tests.support.filling import (
    FILLED_FROM,
    analyze,
    fill_events,
    fill_findings,
    fill_graphs,
    fill_records,
    fill_runs,
    fill_tasks,
)
from tests.support.servers import EXPLAINED, empty_database

RUNS, EACH = 2_000, 3
#: Rows for three chunks.
SMALL_TABLE = 3 * 500
#: Half of the runs ended before this time, one a minute.
BEFORE = FILLED_FROM + timedelta(minutes=RUNS // 2)


@dataclass
class Explained:
    """The plans of everything that a pruning sent, and its result."""

    plans: Plans
    removed: Counter[str] = field(default_factory=Counter)
    stays: Counter[tuple[str, Stays]] = field(default_factory=Counter)
    chunks: Counter[str] = field(default_factory=Counter)


def _fill(url: str) -> None:
    make_tables(url)
    with (
        closing(Database(open_engine(parse_url(url), pool_size=1))) as database,
        database.writing() as conn,
    ):
        first = fill_runs(conn, RUNS)
        fill_tasks(conn, first, RUNS, EACH)
        fill_records(conn, first, RUNS)
        conn.execute(sa.text("UPDATE outbox_event SET event_key = NULL, type = 'run.changed'"))
        fill_events(conn, first, RUNS)
        # The push of every fourth run failed, so that its newest change has to be searched for.
        conn.execute(sa.text("UPDATE outbox_delivery SET status = 'failed' WHERE seq % 4 = 0"))
        finding = "'x', 0, '{}', " + "'SUCCEEDED'"
        columns = "run_id, task_id, believed, terminal, evidence, status"
        conn.execute(
            sa.text(
                f"INSERT INTO task_finding ({columns}) SELECT run_id, task_id, {finding} FROM task_history"
            )
        )
        fill_findings(conn)
        fill_graphs(conn)
        analyze(conn, list(metadata.tables))


def _explain(url: str) -> Explained:
    _fill(url)
    done = Explained(Plans(url))
    with closing(open_pruner(url)) as pruner, done.plans.watching(pruner._db.engine):
        for table in pruner.tables:
            _explain_table(pruner, table, done)
        done.plans.doing = "control"
        with pruner._db.reading() as conn:
            conn.execute(sa.select(task_log.c.task_id).where(task_log.c.log_tail == "y")).all()
    return done


def _explain_table(pruner: Pruner, table: str, done: Explained) -> None:
    place = (0, 0)
    while True:
        done.plans.doing = f"poll {table}"
        chunk = pruner.poll(table, BEFORE, place)
        done.chunks[table] += 1
        done.stays += Counter({(table, why): rows for why, rows in chunk.stays.items()})
        assert len(chunk.goes) + chunk.stays.total() <= 500
        done.plans.doing = f"remove {table}"
        done.removed += Counter(pruner.remove(table, chunk.goes, BEFORE))
        if chunk.next is None:
            return
        place = chunk.next


@pytest.fixture(scope="module", params=EXPLAINED)
def explained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Explained]:
    with empty_database(request.param, tmp_path_factory.mktemp("pruning") / "state.db") as url:
        yield _explain(url)


def test_pruning_goes_chunk_by_chunk_and_reads_or_sorts_no_whole_table(
    explained: Explained, subtests: pytest.Subtests
) -> None:
    """This is one test, so that one process fills one database."""
    with subtests.test("nothing reads or sorts everything"):
        # MySQL reads a table at once from which a third of the rows is removed, whatever index a
        # DELETE names: it is small then.
        faults = {
            key: fault for key, fault in explained.plans.faults.items() if fault.rows > SMALL_TABLE
        }
        assert [f"{key}: {fault}" for key, fault in faults.items() if key[0] != "control"] == []
        assert len(explained.plans.statements) > 15
    with subtests.test("what reads everything is seen"):
        assert ("control", "scan", "task_log") in explained.plans.faults
    with subtests.test(
        "half of it went, so that the plans are of a pruning that had something to do"
    ):
        half = RUNS // 2
        unsent = explained.stays["outbox_event", Stays.UNSENT]
        assert unsent == half // 4
        assert explained.removed == {
            "outbox_event": half - unsent, "outbox_delivery": half - unsent, "task_log": half * EACH,
            "task_stats": half * EACH,
            "task_observation": half * EACH, "task_finding": half * EACH, "audit_finding": half,
            "graph_step": half * EACH, "graph_result": half * EACH, "graph_log": half, "graph_page": half,
        }  # fmt: skip
        assert explained.stays["outbox_event", Stays.ONCE] == half
        # Tables are read to their end, and no chunk is read twice.
        assert explained.chunks["outbox_event"] == 2 * RUNS // 500 + 1
        assert explained.chunks["task_finding"] == RUNS * EACH // 500 + 1
