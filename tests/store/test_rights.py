"""The database user of workers and gateways can read and write rows, and nothing more."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pymysql
import pytest

from crawler_lifecycle.domain.audits.corrections import CorrectionKind
from crawler_lifecycle.domain.errors import StoreUnavailable
from crawler_lifecycle.domain.run import ExportResult, RunStatus
from crawler_lifecycle.domain.task import End, Phase
from crawler_lifecycle.features.webhooks.ports import DeliveryAttempt
from crawler_lifecycle.ports.access import AccessRow
from crawler_lifecycle.ports.polls import Correction
from crawler_lifecycle.store.migrations.schema_version import upgrade
from crawler_lifecycle.store.store import open_store
from crawler_lifecycle.store.tables import metadata
from tests.contracts.store.harness import Clock, Harness, seen
from tests.support.databases import SHARED, without_rows
from tests.support.grants import grants
from tests.support.sql_server import SqlServer, denied

PASSWORD = "canary-of-the-rights"


def url_of(server: SqlServer, name: str) -> str:
    """Return the URL of a database for the services' user."""
    return f"mysql+pymysql://services:{PASSWORD}@127.0.0.1:{server.port}/{name}"


@contextmanager
def database(server: SqlServer, name: str) -> Iterator[str]:
    """Return a database with this name.

    Not ``test_…``, because MariaDB lets everybody do everything in those.
    """
    server.execute(f"CREATE DATABASE {name}")
    try:
        yield url_of(server, name)
    finally:
        server.execute(f"DROP DATABASE {name}")


@pytest.fixture(scope="module")
def limited(server: SqlServer) -> Iterator[str]:
    """The URL of a migrated database for a user with the rights in deploy/database/services.sql."""
    server.execute(f"CREATE USER services@'127.0.0.1' IDENTIFIED BY '{PASSWORD}'")
    try:
        without_rows(server)
        for grant in grants("services"):
            server.execute(grant.replace("lifecycle.", f"{SHARED}.").replace("'%'", "'127.0.0.1'"))
        yield url_of(server, SHARED)
    finally:
        server.execute("DROP USER services@'127.0.0.1'")


def test_a_whole_life_needs_no_more(limited: str) -> None:
    clock = Clock()
    store = open_store(limited, clock=clock)
    try:
        store.health.ping()
        harness = Harness(store, clock)
        fence = harness.executing(tasks=3)
        assert store.run_numbers.begin_run_ids_above(fence.run_id + 40)
        assert [
            task.index for task in store.additions.add_tasks(fence.run_id, "more", [{"part": "9"}])
        ] == [3]
        harness.deploy(fence)
        clock.forward(60)
        ended = harness.finish(fence, failed=[1])
        assert ended.status is RunStatus.FAILED
        store.exports.record_export(
            fence, "exported", ExportResult("file:///x", 1, 1, "0" * 64), None
        )
        event = store.events.events_after(0)[-1]
        store.events.record_delivery(event.seq, "bus", None)
        again = harness.resume(fence)
        harness.deploy(again)
        store.stops.record_stop(again.run_id, harness.stop(), "s1", again)
        store.stops.cancel_queued(again, clock.now)
        store.stops.acted_on_stop(again, clock.now)
        clock.forward(60)
        tasks = store.polls.found_state(again).tasks
        store.stops.mark_stopping(again, [task.task_id for task in tasks])
        killed = End(exit_code=137, signal=9, finished_at=clock.now - timedelta(days=1))
        harness.poll(again, [seen(t, Phase.ENDED, clock.now, uid=t.uid, end=killed) for t in tasks])
        assert harness.finish(again).attempt == 2
        about = Correction(CorrectionKind.STILL_ALIVE, "FAILED", "RUNNING", tasks[0].task_id)
        assert len(store.corrections.record_corrections(fence.run_id, [about])) == 1
        assert {row.kind for row in store.corrections.list_corrections(fence.run_id)} == {
            "killed",
            "still_alive",
        }
        assert [row["acted_at"] for row in store.runs.cancellations(fence.run_id)] != [None]
        assert store.runs.list_runs(crawler="services")
        assert store.runs.transitions(fence.run_id)
        assert store.runs.cancellations(fence.run_id)
        assert store.events.deliveries(fence.run_id)
        store.deletion.ask_deletion(fence.run_id, "ada")
        assert store.deletion.delete_texts(fence.run, lambda: None)["status_transition"]
        hook = {"url": "https://a.example/", "secrets": ["env:CRAWL_HOOK"]}
        made, _ = store.webhooks.put("shop", hook, None)
        store.webhooks.follow_webhook("shop", "f")
        for error in ("503", None):
            store.webhooks.note_tries(
                made.webhook_id, "f", [DeliveryAttempt(event.seq, error)], event.seq, settled=True
            )
        store.webhooks.pause("shop", "enough")
        assert store.webhooks.delete("shop")
        store.access.record_access([AccessRow(clock.now, "ann", "*", "stopRun", None, 200, "done")])
        store.tokens.create_token("ci", "read", "*", "0" * 64, None, "ann")
        assert store.tokens.revoke_token("ci", "ann").revoked_at is not None
        for end in (clock.now, clock.now + timedelta(hours=1), clock.now + timedelta(hours=2)):
            store.notes.leave_note("login", "a", "", end)
    finally:
        store.close()


def test_an_upgrade_that_has_nothing_to_do_needs_no_more(limited: str) -> None:
    upgrade(limited)


LEDGER = (
    "UPDATE correction SET kind = 'late'", "DELETE FROM correction", "REPLACE INTO correction (id) VALUES (1)",
    "UPDATE correction SET evidence = '{}', kind = 'late'", "UPDATE status_transition SET lag_ms = 0",
    "DELETE FROM status_transition", "UPDATE access_log SET caller = 'nobody'",
    "UPDATE run_history, correction SET correction.lag_ms = 0",
    "UPDATE cancellation_log SET requested_by = 'nobody'", "DELETE FROM cancellation_log",
    "INSERT INTO correction (id) VALUES (1) ON DUPLICATE KEY UPDATE lag_ms = 0",
    "UPDATE schema_compatibility SET works_from = '0001'", "DELETE FROM alembic_version",
)  # fmt: skip
MORE = (
    "DROP TABLE run_history", "ALTER TABLE run_history DROP COLUMN cause", "CREATE TABLE mine (id INT)",
    "TRUNCATE status_transition", "GRANT ALL ON *.* TO services@'127.0.0.1'", "SELECT * FROM mysql.user",
)  # fmt: skip


def test_what_the_ledger_says_cannot_be_changed(limited: str, server: SqlServer) -> None:
    assert allowed(limited, server, LEDGER) == []


def test_more_is_refused(limited: str, server: SqlServer) -> None:
    assert allowed(limited, server, MORE) == []


def allowed(limited: str, server: SqlServer, statements: Iterable[str]) -> list[str]:
    """Return the statements that the user's rights do not forbid."""
    connection = pymysql.connect(
        host="127.0.0.1",
        port=server.port,
        user="services",
        password=PASSWORD,
        database=limited.rpartition("/")[2],
    )
    with connection, connection.cursor() as cursor:
        return [statement for statement in statements if not denied(cursor, statement)]


def test_every_table_is_granted_or_kept_on_purpose() -> None:
    granted = {
        name
        for line in grants("services")
        for name in re.findall(r"GRANT UPDATE(?:, DELETE)? ON lifecycle\.(\w+) ", line)
    }
    kept = {
        "status_transition",
        "correction",
        "cancellation_log",
        "access_log",
        "run_code",
        "catalogue_change",
        "schema_compatibility",
    }
    assert granted == set(metadata.tables) - kept


def test_an_upgrade_without_the_right_says_so_and_not_the_password(
    limited: str, server: SqlServer
) -> None:
    assert limited
    with (
        database(server, "rights_empty") as url,
        pytest.raises(Exception, match="denied") as caught,
    ):
        upgrade(url)
    assert PASSWORD not in str(caught.value)


def test_a_wrong_password_is_an_outage_and_is_not_told(limited: str) -> None:
    store = open_store(limited.replace(PASSWORD, f"{PASSWORD}-wrong"))
    try:
        with pytest.raises(StoreUnavailable) as caught:
            store.health.ping()
    finally:
        store.close()
    assert PASSWORD not in str(caught.value)
