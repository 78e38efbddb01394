"""Opening databases, and the names of their errors."""

from __future__ import annotations

import socket
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa

from crawler_lifecycle import sqlite_files
from crawler_lifecycle.domain.errors import InvalidRequest, StoreUnavailable
from crawler_lifecycle.domain.run import RunRequest
from crawler_lifecycle.ports.runs import Fence, Owner
from crawler_lifecycle.store import engine as engine_module
from crawler_lifecycle.store.columns import UtcTime, Words, storable
from crawler_lifecycle.store.engine import Database, masked, open_engine, parse_url
from crawler_lifecycle.store.migrations.schema_version import upgrade
from crawler_lifecycle.store.store import Store, open_store
from tests.contracts.store.test_writers import together
from tests.support.databases import make_tables, wait_patiently, without_rows
from tests.support.mariadb import MariaDb
from tests.support.sql_server import SqlServer

SECRET = "s3cr@t:/x"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "state.db",
        f"mysql:/ann:{SECRET}@db/crawl",
        f"postgresql://ann:{SECRET}@db/crawl",
        f"mysql+pymysql://ann:{SECRET}@db:port/crawl",
        f"mysql+aiomysql://ann:{SECRET}@db/crawl",
        "mysql+pymysql://ann@db",
        f"mysql://db?password={SECRET}",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite+aiosqlite:///x.db",
    ],
)
def test_a_url_that_cannot_be_used(url: str) -> None:
    with pytest.raises(
        InvalidRequest, match=r"LIFECYCLE_DATABASE__URL: .*; give sqlite:"
    ) as caught:
        open_store(url)
    assert SECRET not in str(caught.value)
    assert "s3cr" not in str(caught.value)
    with pytest.raises(InvalidRequest):
        upgrade(url)


def test_masked() -> None:
    assert masked("mysql://ann:pw@h/d?charset=x") == "mysql://ann:***@h/d?charset=x"
    assert masked("ann:pw@h") == "ann:***@h"
    assert masked("sqlite:////tmp/x.db") == "sqlite:////tmp/x.db"


@pytest.mark.parametrize(
    "url", ["mysql://h/d", "mariadb://h/d", "mysql+pymysql://h/d", "mariadb+pymysql://h/d"]
)
def test_one_driver_for_mysql_and_mariadb(url: str) -> None:
    assert parse_url(url).drivername == "mysql+pymysql"


def test_nobody_answers() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        store = open_store(f"mysql+pymysql://ann:s3cret@127.0.0.1:{closed.getsockname()[1]}/crawl")
        with pytest.raises(StoreUnavailable, match="The database cannot be used now") as caught:
            store.runs.get_run(1)
        store.close()
    assert "s3cr" not in str(caught.value)


def test_a_server_that_never_greets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "CONNECT_TIMEOUT_S", 1)
    given: list[dict[str, object]] = []
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        engine = open_engine(
            parse_url(f"mysql://root@127.0.0.1:{silent.getsockname()[1]}/d"),
            pool_size=1,
            answer_timeout_s=1,
        )
        sa.event.listen(engine, "do_connect", lambda *args: given.append(args[3]))
        database = Database(engine)
        with pytest.raises(StoreUnavailable), database.reading() as connection:
            connection.execute(sa.text("SELECT 1"))
        limits = ("connect_timeout", "read_timeout", "write_timeout")
        assert [[options[name] for name in limits] for options in given] == [[1, 1, 1]], (
            "it is given up, and once"
        )
        database.close()


def test_times_are_aware_and_keep_microseconds() -> None:
    kind = UtcTime()
    dialect = sa.create_engine("sqlite://").dialect
    moment = datetime(2026, 3, 1, 14, 0, 0, 123456, tzinfo=timezone(timedelta(hours=2)))
    stored = kind.process_bind_param(moment, dialect)
    assert stored == datetime(2026, 3, 1, 12, 0, 0, 123456)
    assert kind.process_result_value(stored, dialect) == moment.astimezone(UTC)
    assert (
        kind.process_bind_param(None, dialect) is kind.process_result_value(None, dialect) is None
    )
    with pytest.raises(ValueError, match="has no time zone"):
        kind.process_bind_param(datetime(2026, 3, 1), dialect)


def test_texts_are_made_storable() -> None:
    assert storable("a\ud800b") == "a?b"
    assert storable("abcdef", 4) == "abc…"
    assert Words(4).process_bind_param("abcd", sa.create_engine("sqlite://").dialect) == "abcd"


# --- SQLite ---------------------------------------------------------------------------------------


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'state.db'}"
    make_tables(url)
    return url


def test_sqlite_is_set_up(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = engine_module._prepare_sqlite.__wrapped__  # type: ignore[attr-defined]  # tests do not wait for the disk
    monkeypatch.setattr(engine_module, "_prepare_sqlite", ours)
    database = Database(open_engine(parse_url(sqlite_url), pool_size=1))
    with database.reading() as connection:
        found = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in (
                "journal_mode",
                "synchronous",
                "foreign_keys",
                "busy_timeout",
                "secure_delete",
            )
        }
    assert found.pop("secure_delete") == 1, (
        "what was deleted is overwritten, whatever the build of SQLite"
    )
    assert found == {
        "journal_mode": "wal",
        "synchronous": 2,
        "foreign_keys": 1,
        "busy_timeout": 10_000,
    }
    database.close()


def test_sqlite_writers_begin_with_the_lock_and_readers_do_not_wait(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "BUSY_TIMEOUT_S", 0.1)
    store, other = open_store(sqlite_url), open_store(sqlite_url)
    with store.database.writing() as connection:
        connection.execute(sa.text("UPDATE outbox_counter SET seq = 7"))
        assert other.events.events_after(0) == []
        with pytest.raises(StoreUnavailable, match="cannot be used now"):
            other.initiation.reserve_run(RunRequest(crawler="a"), "r1")
    _, new = other.initiation.reserve_run(RunRequest(crawler="a"), "r1")
    assert new
    store.close()
    other.close()


def test_sqlite_on_a_full_disk(sqlite_url: str) -> None:
    store = open_store(sqlite_url)

    def no_room(connection: sqlite_files.driver.Connection, _record: object) -> None:
        connection.execute("PRAGMA max_page_count = 1").close()

    sa.event.listen(store.database.engine, "connect", no_room)
    with pytest.raises(StoreUnavailable, match="full"):
        store.initiation.reserve_run(RunRequest(crawler="a"), "r1", [{"x": "y" * 1000}] * 1000)
    assert store.runs.list_runs() == []
    store.close()


def test_sqlite_with_eight_writers(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight stores, as in eight processes, each with its own connections."""
    wait_patiently(monkeypatch)

    def work(n: int) -> None:
        with closing(open_store(sqlite_url, pool_size=1)) as store:
            for k in range(10):
                owner = Owner(f"w{n}", f"c{n}-{k}")
                handle = store.initiation.create_run(RunRequest(crawler="a"), f"r{n}-{k}", owner)
                fence = Fence(handle.run_id, 1, owner.first_run_id, handle.run_uid)
                store.deployment.note_waiting(fence, "x")
                store.events.append_event(fence, "run.note", f"{n}/{k}", {})

    assert together(*[partial(work, n) for n in range(8)]) == [None] * 8
    with closing(open_store(sqlite_url)) as store:
        assert len(store.runs.list_runs(limit=200)) == 80
        assert [e.seq for e in store.events.events_after(0)] == list(range(1, 161))


# --- servers --------------------------------------------------------------------------------------


def test_a_connection_is_set_up(server: SqlServer) -> None:
    with server.database() as url:
        database = Database(open_engine(parse_url(url), pool_size=1))
        with database.reading() as connection:
            isolation = "tx_isolation" if isinstance(server, MariaDb) else "transaction_isolation"
            row = connection.exec_driver_sql(
                f"SELECT @@{isolation}, @@sql_mode, @@character_set_connection, @@innodb_lock_wait_timeout"
            ).one()
        database.close()
    assert row[0] == "READ-COMMITTED"
    assert "STRICT_TRANS_TABLES" in row[1]
    assert row[2:] == ("utf8mb4", 8)


def test_a_server_that_ends_our_connections(server: SqlServer) -> None:
    with closing(open_store(without_rows(server), pool_size=1)) as store:
        store.health.ping()
        mine = "SELECT id FROM information_schema.processlist WHERE db = 'shared'"
        for (number,) in server.execute(mine):
            server.execute(f"KILL {number}")
        store.health.ping()

        def lose() -> None:
            with store.database.writing() as connection:
                for (number,) in server.execute(mine):
                    server.execute(f"KILL {number}")
                connection.execute(sa.text("SELECT 1"))

        with pytest.raises(StoreUnavailable, match=r"Lost connection|gone away"):
            lose()
        store.health.ping()


def _connection_id(store: Store) -> object:
    with store.database.reading() as connection:
        return connection.exec_driver_sql("SELECT CONNECTION_ID()").scalar()


def test_a_server_that_became_read_only(server: SqlServer) -> None:
    server.execute("DROP USER IF EXISTS worker@'127.0.0.1'")
    server.execute("CREATE USER worker@'127.0.0.1'")
    server.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON *.* TO worker@'127.0.0.1'")
    store = open_store(without_rows(server).replace("root@", "worker@"), pool_size=1)
    store.health.ping()
    held = _connection_id(store)
    server.execute("SET GLOBAL read_only = 1")
    try:
        with pytest.raises(StoreUnavailable, match="read-only"):
            store.initiation.reserve_run(RunRequest(crawler="a"), "r1")
    finally:
        server.execute("SET GLOBAL read_only = 0")
    assert _connection_id(store) != held
    assert store.initiation.reserve_run(RunRequest(crawler="a"), "r1")[1]
    store.close()


def test_deadlocks_and_lock_waits_are_told_as_not_now(
    server: SqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "LOCK_WAIT_S", 1)
    with closing(open_store(without_rows(server), pool_size=2)) as store:
        row, _ = store.initiation.reserve_run(RunRequest(crawler="a"), "r1")
        with store.database.writing() as connection:
            connection.execute(sa.text("SELECT * FROM run_history FOR UPDATE"))
            with pytest.raises(StoreUnavailable, match=r"[Ll]ock wait timeout"):
                store.initiation.set_property(row.run_id, 1, "a", "b")
        store.initiation.set_property(row.run_id, 1, "a", "b")


def test_a_frozen_writer_holds_its_locks_for_seconds_only(
    mariadb: MariaDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be frozen for an hour, and everybody counts events in the same row."""
    monkeypatch.setattr(engine_module, "IDLE_WRITE_S", 1)
    with closing(open_store(without_rows(mariadb), pool_size=2)) as store:
        row, _ = store.initiation.reserve_run(RunRequest(crawler="a"), "r1")

        def freeze() -> None:
            with store.database.writing() as connection:
                connection.execute(sa.text("UPDATE run_history SET waiting_for = 'x'"))
                store.initiation.set_property(row.run_id, 1, "a", "b")
                connection.execute(sa.text("SELECT 1"))

        with pytest.raises(StoreUnavailable, match=r"Lost connection|gone away"):
            freeze()
        assert store.runs.get_run(row.run_id).waiting_for is None


def test_a_folder_that_is_missing_is_named_with_the_setting_that_says_where(tmp_path: Path) -> None:
    engine = open_engine(parse_url(f"sqlite:///{tmp_path / 'gone' / 'lifecycle.db'}"), pool_size=1)
    with (
        pytest.raises(StoreUnavailable, match="LIFECYCLE_DATABASE__URL"),
        engine_module.translated(),
    ):
        engine.connect()
    engine.dispose()


def test_the_schema_of_tests_is_written_over_no_database_that_is_there(tmp_path: Path) -> None:
    """A second worker of a benchmark creates its tables while the first one has them open."""
    url = make_tables(f"sqlite:///{tmp_path}/state.db")
    store = open_store(url)
    try:
        row, _ = store.initiation.reserve_run(RunRequest(crawler="a"), "once")
        assert make_tables(url) == url
        assert store.runs.get_run(row.run_id) is not None
    finally:
        store.close()
    assert [
        file.name for file in tmp_path.iterdir() if file.suffix not in (".db-wal", ".db-shm")
    ] == ["state.db"]
