"""Migrations create what the tables declare, from any start, with any number of processes."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from crawler_lifecycle.clock import utc_now
from crawler_lifecycle.domain.errors import NotInThisState, StoreUnavailable
from crawler_lifecycle.domain.run import RunRequest
from crawler_lifecycle.ports.runs import Owner
from crawler_lifecycle.store.columns import compressed
from crawler_lifecycle.store.diagnosis import sqlite_file
from crawler_lifecycle.store.engine import Database, open_engine, parse_url
from crawler_lifecycle.store.migrations import ddl
from crawler_lifecycle.store.migrations import schema_version as schema
from crawler_lifecycle.store.migrations.schema_version import (
    head_version,
    read_schema,
    recreate,
    upgrade,
)
from crawler_lifecycle.store.runs.tables import task_log
from crawler_lifecycle.store.store import open_store
from crawler_lifecycle.store.tables import metadata
from tests.support.servers import EXPLAINED
from tools.schema import fingerprint, statements

#: For what the store decides by what it reads in the tables: MySQL, where an upgrade takes three
#: times as long, gets the same statements as MariaDB. Both are checked for what migrations make.
FEWER_ON_MYSQL = pytest.mark.parametrize("empty_url", EXPLAINED, indirect=True)


def engine_of(url: str) -> sa.Engine:
    return open_engine(parse_url(url), pool_size=1)


def write(url: str, *statements: str) -> None:
    """Write as another program does."""
    with closing(Database(engine_of(url))) as database, database.writing() as connection:
        for statement in statements:
            connection.execute(sa.text(statement))


@pytest.mark.parametrize("empty_url", ["sqlite"], indirect=True)
def test_migrations_and_tables_agree(empty_url: str) -> None:
    """Compared by Alembic. The next test compares more, on every database."""
    upgrade(empty_url)
    engine = engine_of(empty_url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
    engine.dispose()


def _described(url: str) -> dict[str, Any]:
    """Return everything that a database says about its tables, unordered."""
    engine = engine_of(url)
    described: dict[str, Any] = {}
    with engine.connect() as connection:
        inspected = sa.inspect(connection)
        for table in inspected.get_table_names():
            described[table] = {
                "columns": {
                    one["name"]: (str(one["type"]), one["nullable"], one["default"])
                    for one in inspected.get_columns(table)
                },
                "key": inspected.get_pk_constraint(table)["constrained_columns"],
                **{
                    kind: sorted(
                        str(sorted(one.items(), key=str))
                        for one in getattr(inspected, f"get_{kind}")(table)
                    )
                    for kind in ("indexes", "unique_constraints", "foreign_keys")
                },
                # A column that was added later has its own constraint on SQLite.
                "checks": sorted(
                    term.strip("()")
                    for one in inspected.get_check_constraints(table)
                    for term in re.split(r" and (?![^()]*\))", one["sqltext"], flags=re.IGNORECASE)
                ),
            }
    engine.dispose()
    return described


def test_what_migrations_make_is_what_the_tables_declare(empty_url: str) -> None:
    """This includes constraints, which Alembic does not compare."""
    upgrade(empty_url)
    migrated = _described(empty_url)
    engine = engine_of(empty_url)
    with engine.begin() as connection:
        if connection.dialect.name == "mysql":
            connection.execute(sa.text("SET SESSION foreign_key_checks = 0"))
        for table in migrated:
            connection.execute(sa.text(f"DROP TABLE {table}"))
        for statement in statements(connection.dialect):
            connection.exec_driver_sql(statement)
    engine.dispose()
    assert {**_described(empty_url), "alembic_version": migrated["alembic_version"]} == migrated


def test_tables_change_by_a_migration_only() -> None:
    fix = "the tables changed: write a migration, and put `python -m tools.schema` into its FINGERPRINT"
    assert fingerprint() == schema.head_fingerprint(), fix
    for script in Path(schema.__file__).parent.glob("versions/*.py"):
        assert "store.tables" not in script.read_text(), (
            f"{script.name}: write out what this version makes"
        )


def test_services_read_migrations_as_alembic_does() -> None:
    scripts = ScriptDirectory(str(Path(schema.__file__).parent)).walk_revisions()
    told = [(one.revision, one.module.WORKS_FROM, one.module.FINGERPRINT) for one in scripts][::-1]
    assert [
        (each["revision"], each["WORKS_FROM"], each["FINGERPRINT"]) for each in schema._migrations()
    ] == told
    assert [each[0] for each in told] == list(schema.known_versions())


#: The contents of released migrations. Each new one adds a line, and none ever changes.
FROZEN = {
    "0001.mysql.sql": "5a136075ab3428cc",
    "0001.sqlite.sql": "ca852454ce158c9b",
    "0001_first_schema.py": "77da91be64e8e062",
    "0002_fingerprint.py": "0c5cb3a51b0bc926",
    "0003_compressed_logs.py": "feb4bb84a675098e",
    "0004.mysql.sql": "97672d72c2ad915a",
    "0004.sqlite.sql": "eab2825c3f5fa499",
    "0004_access.py": "02632a314988721c",
    "0005.mysql.sql": "486f3e6a9c2dda9c",
    "0005.sqlite.sql": "9ecf6b33bb2a0936",
    "0005_notes.py": "b7a8c8fed05d05d3",
    "0006_ended_by.py": "66d303e32b8eb2fc",
    "0007_lacks.py": "758a2f2d2ebe236b",
    "0008_looks.py": "38aa89951e52bb5e",
    "0009_step_kinds.py": "38b8b5bd2efb36ce",
    "0010.mysql.sql": "2916d382fdd296f0",
    "0010.sqlite.sql": "97964f67d3dc6b2a",
    "0010_incidents.py": "85b6a37f609739b2",
    "0011.mysql.sql": "4d4f72a54717a926",
    "0011.sqlite.sql": "2798ef87fa08fc86",
    "0011_search.py": "e3f613d9aac1c59c",
    "0012.mysql.sql": "8dc031a15b59b8f8",
    "0012.sqlite.sql": "fde6c34ceb5e2c45",
    "0012_sites.py": "0ffe24d9fa3e82ca",
    "0013.mysql.sql": "965fdb1c3a8eda5e",
    "0013.sqlite.sql": "09e2999f1c4a4782",
    "0013_codes.py": "2fdc2aba7b149f8a",
    "0016.mysql.sql": "910c39008ce88925",
    "0016.sqlite.sql": "932d686a11fa410c",
    "0016_canaries.py": "2b924e6946bdda72",
    "0014.mysql.sql": "809a3cedafdd5a9c",
    "0014.sqlite.sql": "016527d0947806d1",
    "0014_packages.py": "3ae9cf19745a8059",
    "0015.mysql.sql": "6e3402ff48415544",
    "0015.sqlite.sql": "855656402d800745",
    "0015_catalogue.py": "83caf8aa13c8c5ab",
    "0017.mysql.sql": "a9ad85085ea3df8a",
    "0017.sqlite.sql": "591083f5a3e5cae2",
    "0017_pools.py": "957d906371f46ce5",
    "0018_former_versions.py": "e47c5c0e03678327",
}


def test_a_migration_that_landed_never_changes() -> None:
    folder = Path(schema.__file__).parent / "versions"
    found = {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()[:16]
        for file in folder.glob("0*.*")
    }
    assert found == FROZEN


OLDER = ["DROP TABLE crawler_memory", "ALTER TABLE task_history RENAME COLUMN retry_note TO former"]


@FEWER_ON_MYSQL
def test_a_database_from_before_the_first_schema_is_named_with_what_it_lacks(
    current_url: str,
) -> None:
    """Whatever version it states, or none; it stays unchanged until somebody has it created again."""
    write(current_url, *OLDER)
    for version in (*schema.known_versions(), "none"):
        write(current_url, f"UPDATE alembic_version SET version_num = '{version}'")
        if version == "none":
            write(current_url, "DROP TABLE alembic_version")
        lacks = (
            "task_history.retry_note"
            if version == "none"
            else "table crawler_memory, task_history.retry_note"
        )
        problem = read_schema(current_url).problem or ""
        assert problem.startswith(f"The database has schema version {version}, but lacks {lacks}")
        assert problem.endswith(
            "crawlctl db upgrade --recreate, which DELETES all that the database records"
        )
        with (
            closing(open_store(current_url)) as store,
            pytest.raises(StoreUnavailable, match=re.escape(problem)),
        ):
            store.health.ping()
        with pytest.raises(NotInThisState, match=re.escape(problem)):
            upgrade(current_url)
    recreate(current_url)
    assert read_schema(current_url).problem is None
    with closing(open_store(current_url)) as store:
        store.initiation.create_run(RunRequest(crawler="services"), "r", Owner("w", "1"))


def migrate(url: str, to: str) -> None:
    """Bring the database to an older or newer schema, as a build does for which that is the newest."""
    if file := sqlite_file(url):
        file.parent.mkdir(exist_ok=True)
    engine = engine_of(url)
    with engine.begin() as connection:
        config = schema._config()
        config.attributes["connection"] = connection
        older = [None, *schema.known_versions()].index(to if to != "base" else None)
        now = MigrationContext.configure(connection).get_current_revision()
        down = older < [None, *schema.known_versions()].index(now)
        (command.downgrade if down else command.upgrade)(config, to)
    engine.dispose()


DAY = "2026-11-27 10:00:00.000000"


def insert_run(url: str, run_id: int = 1, **more: Any) -> None:
    """Write a run like an older build, with these columns."""
    row: dict[str, Any] = {
        "run_id": run_id,
        "run_uid": f"u{run_id}",
        "request_id": f"r{run_id}",
        "request_hash": "h",
    }
    row |= {
        "crawler": "services",
        "pool": "default",
        "trigger": "api",
        "status": "PROCESSING",
        "stage": "completion",
    }
    row |= {"attempt": 1, "requeued_attempt": 1, "request": '{"crawler": "services"}'}
    row |= dict.fromkeys(
        ("claim_resumed", "claim_rerun", "claim_repair", "multi", "stop_force", "stop_escalated"), 0
    )
    row |= dict.fromkeys(("created_at", "updated_at", "ended_at"), DAY)
    insert(url, "run_history", row | more)


def insert_task(url: str, task_id: int = 1, **more: Any) -> None:
    """Write a task of run 1 like an older build."""
    row: dict[str, Any] = {
        "task_id": task_id,
        "run_id": 1,
        "attempt": 1,
        "run_attempt": 1,
        "task_index": task_id,
    }
    row |= {"status": "RUNNING", "args": "{}", "ever_seen": 1, "status_since": DAY, "ended_at": DAY}
    insert(url, "task_history", row | more)


def insert(url: str, table: str, row: dict[str, Any]) -> None:
    engine = engine_of(url)
    with engine.begin() as connection:
        names = ", ".join(f"`{name}`" for name in row)
        values = ", ".join(f":{name}" for name in row)
        connection.execute(sa.text(f"INSERT INTO {table} ({names}) VALUES ({values})"), row)
    engine.dispose()


def test_each_schema_since_the_first_goes_up_with_its_records_and_comes_down(
    empty_url: str,
) -> None:
    """An upgrade that was interrupted between a change and its version, as MySQL leaves it, is
    continued as well.
    """
    migrate(empty_url, "0001")
    insert_run(empty_url)
    insert_task(empty_url)
    insert(empty_url, "run_tag", {"run_id": 1, "tag": "a"})
    assert read_schema(empty_url).problem == (
        f"The database has schema version 0001, this build needs {head_version()}; run: crawlctl db upgrade"
    )
    for cut in (False, True):
        if cut:
            write(empty_url, "UPDATE alembic_version SET version_num = '0001'")
        upgrade(empty_url)
        with closing(open_store(empty_url)) as store:
            store.health.ping()
            [run] = store.runs.list_runs(tags=["a"])
            assert (run.run_id, run.run_uid, run.created_at.isoformat()) == (
                1,
                "u1",
                "2026-11-27T10:00:00+00:00",
            )
            assert [task.task_id for task in store.tasks.list_tasks(1)] == [1]
    migrate(empty_url, "base")
    engine = engine_of(empty_url)
    with engine.connect() as connection:
        assert sa.inspect(connection).get_table_names() == ["alembic_version"]
    engine.dispose()


@FEWER_ON_MYSQL
def test_a_build_with_another_migration_of_the_same_number_is_told_apart(current_url: str) -> None:
    write(current_url, "UPDATE schema_compatibility SET fingerprint = 'another'")
    for use in (upgrade, lambda url: open_store(url).health.ping()):
        with pytest.raises(
            (NotInThisState, StoreUnavailable),
            match=r"another migration of this number made it; .* --recreate",
        ):
            use(current_url)


@FEWER_ON_MYSQL
def test_a_database_with_records_that_can_be_used_is_not_created_anew(current_url: str) -> None:
    """Whatever version it states, or none."""
    with closing(open_store(current_url)) as store:
        store.initiation.create_run(RunRequest(crawler="services"), "r", Owner("w", "1"))
        for version in (*schema.known_versions(), "0999", None):
            changed = f"UPDATE alembic_version SET version_num = '{version}'"
            write(current_url, changed if version else "DELETE FROM alembic_version")
            with pytest.raises(NotInThisState, match="--recreate would delete all records"):
                recreate(current_url)
            assert store.runs.list_runs(limit=5)


def test_an_upgrade_that_was_cut_off_goes_on(current_url: str) -> None:
    write(
        current_url,
        "DELETE FROM alembic_version",
        "DROP TABLE outbox_delivery",
        "DELETE FROM outbox_counter",
    )
    upgrade(current_url)
    with closing(open_store(current_url)) as store:
        store.health.ping()
        assert store.events.last_event_seq() == 0


@FEWER_ON_MYSQL
def test_a_version_that_was_lost_has_one_fix_that_keeps_every_row(current_url: str) -> None:
    store = open_store(current_url)
    request = RunRequest(crawler="services", tags=["nightly"])
    run_id = store.initiation.create_run(request, "r", Owner("w", "1")).run_id
    rows = [store.runs.list_runs(tags=["nightly"]), store.runs.transitions(run_id)]
    sentence = f"The database has schema version none, this build needs {head_version()}; run: crawlctl db upgrade"
    for lost in ("DELETE FROM alembic_version", "DROP TABLE alembic_version"):
        write(current_url, lost)
        assert read_schema(current_url).problem == sentence
        with pytest.raises(StoreUnavailable, match=re.escape(sentence)):
            store.health.ping()
        upgrade(current_url)
        store.health.ping()
        assert rows == [store.runs.list_runs(tags=["nightly"]), store.runs.transitions(run_id)]
    store.close()


@FEWER_ON_MYSQL
def test_an_upgrade_of_what_is_there_writes_nothing(
    current_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements: list[str] = []

    def heard(*args: object) -> None:
        statements.append(str(args[2]))

    sa.event.listen(sa.Engine, "before_cursor_execute", heard)
    try:
        upgrade(current_url)
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", heard)
    assert statements
    writing = ("CREATE", "ALTER", "DROP", "INSERT", "UPDATE", "DELETE")
    assert not [one for one in statements if one.lstrip().upper().startswith(writing)]
    assert read_schema(current_url).version == head_version()


def test_logs_are_read_after_an_upgrade_and_by_the_build_before(empty_url: str) -> None:
    migrate(empty_url, "0002")
    insert_run(empty_url)
    insert_task(empty_url)
    with closing(open_store(empty_url)) as store:
        log = "INSERT INTO task_log (task_id, log_tail) VALUES (1, 'ü\n')"
        write(empty_url, log)
        upgrade(empty_url)
        assert store.tasks.log_tail(1) == "ü\n"
        engine = engine_of(empty_url)
        with engine.begin() as connection:
            values = {"log_tail": "", "compressed": compressed("ü and ß\n")}
            connection.execute(sa.update(task_log).values(**values))
        assert store.tasks.log_tail(1) == "ü and ß\n"
        migrate(empty_url, "0002")
        with engine.connect() as connection:
            assert connection.execute(sa.text("SELECT * FROM task_log")).all() == [(1, "ü and ß\n")]
        engine.dispose()


#: What builds before 0006 recorded -> who ended it. If a crawler's own word is one of ours, the
#: cause decides.
ENDED_BEFORE = [
    ("SUCCEEDED", "cancelled", "The crawler ended itself with 'cancelled', exit 0", "crawler"),
    ("FAILED", "cancelled", "The crawler failed with 'cancelled', exit 1", "crawler"),
    ("FAILED", "interrupted", "Ended from outside: its node is gone, exit 137", "cluster"),
    ("FAILED", "interrupted", "Somebody else stopped the crawler, exit 11", "cluster"),
    ("FAILED", "timed_out", "It ran longer than run_timeout_s allows, exit 13", "limit"),
    ("FAILED", "timed_out", "The cluster's own deadline for it passed, exit 143", "cluster"),
    ("FAILED", "killed by oom", "Out of memory (limit 1Gi), SIGKILL, exit 137", "limit"),
    ("FAILED", "diskusage_exceeded", "It used more local storage than it may, exit 1", "limit"),
    ("FAILED", "diskusage_exceeded", "The disk is full, exit 3", "crawler"),
    ("FAILED", "deploy_failed", "no such image", "service"),
    ("FAILED", "failed", "failed, exit 13", "service"),
    ("FAILED", "failed", "It ended without a summary (exit 0)", "crawler"),
    ("CANCELLED", "cancel_timeout", "Stop requested by ann, then forced, exit 137", "person"),
    ("CANCELLED", "start_timeout", "Stopped before it was deployed", "limit"),
    ("LOST", "lost", "It vanished from the cluster and left no trace of its end", "cluster"),
    ("RUNNING", None, None, None),
]


def test_older_ends_tell_who_ended_them(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Page by page, and without changing a row twice."""
    monkeypatch.setattr(ddl, "_ROWS", 4)
    migrate(empty_url, "0005")
    runs: list[tuple[str, str | None, str, str | None, str | None, str | None]] = [
        ("FAILED", "cancelled", "Stopped by ann", DAY, None, "person"),
        (
            "FAILED",
            "cancelled",
            "The crawler failed with 'cancelled', exit 1",
            None,
            None,
            "crawler",
        ),
        (
            "FAILED",
            "timed_out",
            "It ran longer than run_timeout_s allows, exit 13",
            DAY,
            "timed_out",
            "limit",
        ),
        ("FAILED", "failed", "several workflows ended. failed, exit 13", DAY, "failed", "service"),
        (
            "FAILED",
            "partial",
            "1 of 3 tasks did not succeed; most: It vanished",
            None,
            None,
            "crawler",
        ),
        (
            "FAILED",
            "evicted",
            "2 of 2 tasks did not succeed; most: Ended from outside: drained",
            None,
            None,
            "cluster",
        ),
        ("COMPLETED", "finished", "All 3 tasks succeeded", None, None, "crawler"),
        ("COMPLETED", "coverage", "price: 10 % have it", None, None, "service"),
        (
            "COMPLETED",
            "coverage",
            "The crawler ended itself with 'coverage', exit 0",
            None,
            None,
            "crawler",
        ),
        ("PROCESSING", None, "", None, None, None),
    ]
    for n, (status, outcome, cause, stop_at, limit, _) in enumerate(runs, 1):
        stop = {"stop_requested_at": stop_at, "stop_limit": limit}
        insert_run(empty_url, n, status=status, outcome=outcome, cause=cause, **stop)
    for n, (status, task_outcome, task_cause, _) in enumerate(ENDED_BEFORE, 1):
        insert_task(empty_url, n, status=status, outcome=task_outcome, cause=task_cause)
    upgrade(empty_url)
    engine = engine_of(empty_url)
    with engine.connect() as connection:
        found = (
            connection.execute(sa.text("SELECT ended_by FROM run_history ORDER BY run_id"))
            .scalars()
            .all()
        )
        assert list(found) == [run[-1] for run in runs]
        told = (
            connection.execute(sa.text("SELECT ended_by FROM task_history ORDER BY task_id"))
            .scalars()
            .all()
        )
        assert list(told) == [task[-1] for task in ENDED_BEFORE]
    engine.dispose()


@FEWER_ON_MYSQL
@pytest.mark.processes
def test_two_processes_upgrade_at_once(empty_url: str) -> None:
    # On SQLite, the file is the lock: processes wait for each other as long as a slow machine
    # takes.
    program = """
import sys
from crawler_lifecycle.store import engine
from crawler_lifecycle.store.migrations.schema_version import upgrade
engine.BUSY_TIMEOUT_S = 120
upgrade(sys.argv[1])
"""
    processes = [
        subprocess.Popen([sys.executable, "-c", program, empty_url], stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=150)
        assert (process.returncode, errors.decode()[-2000:]) == (0, "")
    assert read_schema(empty_url).version == head_version()


@FEWER_ON_MYSQL
def test_ping_names_versions_and_the_fix(current_url: str) -> None:
    store = open_store(current_url)
    store.health.ping()
    newer = "UPDATE alembic_version SET version_num = '0999'"
    write(current_url, newer, "UPDATE schema_compatibility SET works_from = '0999'")
    with pytest.raises(StoreUnavailable, match=rf"0999.*{head_version()}.*newer version made it"):
        store.health.ping()
    with pytest.raises(NotInThisState, match=r"0999.*newer version made it"):
        upgrade(current_url)
    assert read_schema(current_url).version == "0999", "what a newer version made stays as it is"
    write(current_url, "DROP TABLE alembic_version", "DROP TABLE cancellation_log")
    with pytest.raises(StoreUnavailable, match=rf"none.*{head_version()}.*crawlctl db upgrade"):
        store.health.ping()
    with pytest.raises(StoreUnavailable, match="crawlctl db upgrade"):
        store.runs.cancellations(1)
    store.close()


@FEWER_ON_MYSQL
def test_a_former_build_may_return_for_a_day_after_an_upgrade(empty_url: str) -> None:
    """Until then, no workflow does what it could not replay.

    A new database has no earlier build.
    """
    now = utc_now()
    migrate(empty_url, "0007")
    upgrade(empty_url)
    with closing(open_store(empty_url, clock=lambda: now)) as store:
        assert store.polls.rollback_possible()
        now += timedelta(days=1, seconds=30)
        assert not store.polls.rollback_possible()


def test_a_new_database_has_no_former_build(current_url: str) -> None:
    with closing(open_store(current_url)) as store:
        assert not store.polls.rollback_possible()
