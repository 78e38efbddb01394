"""Migrations: they make what the tables say, from any start, by any number of processes."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from crawler_lifecycle.domain.errors import NotInThisState, StoreUnavailable
from crawler_lifecycle.domain.run import RunRequest
from crawler_lifecycle.ports.runs import Owner
from crawler_lifecycle.store import Store, head_version, open_store, read_schema, upgrade
from crawler_lifecycle.store.engine import Database, open_engine, parse_url
from crawler_lifecycle.store.migrations import schema_version as schema
from crawler_lifecycle.store.tables import metadata


def engine_of(url: str) -> sa.Engine:
    return open_engine(parse_url(url), pool_size=1)


def write(url: str, *statements: str) -> None:
    """What another hand writes."""
    with closing(Database(engine_of(url))) as database, database.writing() as connection:
        for statement in statements:
            connection.execute(sa.text(statement))


def _same_type(_context: object, _inspected: object, _meta: object, inspected: Any, meta: Any) -> bool | None:
    # MariaDB has no JSON type: it keeps JSON as LONGTEXT with a check.
    if isinstance(meta, sa.JSON) and isinstance(inspected, sa.Text):
        return False
    return None


def test_migrations_and_tables_agree(empty_url: str) -> None:
    upgrade(empty_url)
    engine = engine_of(empty_url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": _same_type})
        assert compare_metadata(context, metadata) == []
    engine.dispose()


def test_a_released_schema_moves_no_more_with_the_tables() -> None:
    before = importlib.metadata.version("crawler-lifecycle").startswith("0.")
    for script in Path(schema.__file__).parent.glob("versions/*.py"):
        assert before or "store.tables" not in script.read_text(), f"{script.name}: write out what this version makes"


def test_an_upgrade_that_was_cut_off_goes_on(empty_url: str) -> None:
    upgrade(empty_url)
    write(empty_url, "DELETE FROM alembic_version", "DROP TABLE outbox_delivery", "DELETE FROM outbox_counter")
    upgrade(empty_url)
    with closing(open_store(empty_url)) as store:
        store.health.ping()
        assert store.events.last_event_seq() == 0


@pytest.mark.parametrize("lost", ["DELETE FROM alembic_version", "DROP TABLE alembic_version"])
def test_a_version_that_was_lost_has_one_cure_that_keeps_every_row(empty_url: str, lost: str) -> None:
    upgrade(empty_url)
    store = open_store(empty_url)
    request = RunRequest(crawler="services", tags=["nightly"])
    run_id = store.initiation.create_run(request, "r", Owner("w", "1")).run_id
    rows = [store.runs.list_runs(tags=["nightly"]), store.runs.transitions(run_id)]
    write(empty_url, lost)
    sentence = f"The database has schema version none, this build needs {head_version()}; run: crawlctl db upgrade"
    assert read_schema(empty_url).problem == sentence
    with pytest.raises(StoreUnavailable, match=re.escape(sentence)):
        store.health.ping()
    upgrade(empty_url)
    store.health.ping()
    assert rows == [store.runs.list_runs(tags=["nightly"]), store.runs.transitions(run_id)]
    store.close()


def test_an_upgrade_of_what_is_there_writes_nothing(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    upgrade(empty_url)
    statements: list[str] = []

    def heard(*args: object) -> None:
        statements.append(str(args[2]))

    sa.event.listen(sa.Engine, "before_cursor_execute", heard)
    try:
        upgrade(empty_url)
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", heard)
    assert statements
    writing = ("CREATE", "ALTER", "DROP", "INSERT", "UPDATE", "DELETE")
    assert not [one for one in statements if one.lstrip().upper().startswith(writing)]
    assert read_schema(empty_url).version == head_version() == "0001"


def test_downgrade_leaves_nothing(empty_url: str) -> None:
    upgrade(empty_url)
    engine = engine_of(empty_url)
    with engine.begin() as connection:
        config = schema._config()
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
    with engine.connect() as connection:
        assert sa.inspect(connection).get_table_names() == ["alembic_version"]
    engine.dispose()


@pytest.mark.processes
def test_two_processes_upgrade_at_once(empty_url: str) -> None:
    # On SQLite the file is the lock: they wait for each other as long as a slow machine takes.
    program = """
import sys
from crawler_lifecycle.store import engine, upgrade
engine.BUSY_TIMEOUT_S = 120
upgrade(sys.argv[1])
"""
    processes = [subprocess.Popen([sys.executable, "-c", program, empty_url], stderr=subprocess.PIPE) for _ in range(2)]
    for process in processes:
        _, errors = process.communicate(timeout=150)
        assert (process.returncode, errors.decode()[-2000:]) == (0, "")
    assert read_schema(empty_url).version == head_version()


def test_ping_names_versions_and_the_cure(store: Store, empty_url: str) -> None:
    store.health.ping()
    newer = "UPDATE alembic_version SET version_num = '0999'"
    write(empty_url, newer, "UPDATE schema_compatibility SET works_from = '0999'")
    with pytest.raises(StoreUnavailable, match=r"0999.*0001.*newer version made it"):
        store.health.ping()
    with pytest.raises(NotInThisState, match=r"0999.*newer version made it"):
        upgrade(empty_url)
    assert read_schema(empty_url).version == "0999", "what a newer version made stays as it is"
    write(empty_url, "DROP TABLE alembic_version", "DROP TABLE cancellation_log")
    with pytest.raises(StoreUnavailable, match=r"none.*0001.*crawlctl db upgrade"):
        store.health.ping()
    with pytest.raises(StoreUnavailable, match="crawlctl db upgrade"):
        store.runs.cancellations(1)
