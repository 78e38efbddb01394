"""All readers report a damaged SQLite file in the same way; deleted words are no longer in the
files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from crawler_lifecycle import sqlite_files
from crawler_lifecycle.domain.errors import StoreRefused, StoreUnavailable
from crawler_lifecycle.store import engine
from crawler_lifecycle.store.diagnosis import diagnose, try_writing
from crawler_lifecycle.store.engine import StoreDamaged
from crawler_lifecycle.store.migrations.schema_version import read_schema, upgrade
from crawler_lifecycle.store.store import open_store
from tests.contracts.store.harness import Clock, Harness
from tests.contracts.store.test_deletion import WORD, delete, planted
from tests.support.databases import make_tables, wait_patiently

READERS: list[Callable[[str], object]] = [
    diagnose,
    read_schema,
    upgrade,
    try_writing,
    lambda url: open_store(url).health.ping(),
    lambda url: open_store(url).runs.list_runs(),
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "state.db"
    make_tables(f"sqlite:///{made}")
    return made


def no_database(file: Path) -> None:
    file.write_bytes(b"no database at all" * 1000)


def damaged(file: Path) -> None:
    """Overwrite all pages but the first."""
    with file.open("r+b") as raw:
        raw.seek(4096)
        raw.write(b"\xff" * (file.stat().st_size - 4096))


def with_a_damaged_schema(file: Path) -> None:
    """SQLite quotes the schema in its error, and Python cannot decode that."""
    with closing(sqlite_files.connect(file, isolation_level=None)) as database:
        database.execute("PRAGMA writable_schema = ON")
        damage = b"CREATE TABLE a \xd1\xd1"
        database.execute(
            "UPDATE sqlite_schema SET sql = CAST(? AS TEXT) WHERE name = 'run_history'", (damage,)
        )


@pytest.mark.parametrize("damage", [no_database, damaged, with_a_damaged_schema])
def test_all_readers_tell_damage_alike(file: Path, damage: Callable[[Path], None]) -> None:
    damage(file)
    assert sqlite_files.damage(file)
    for read in READERS:
        with pytest.raises(
            StoreDamaged,
            match="The database file is damaged; restore a complete copy: crawlctl db restore",
        ) as told:
            read(f"sqlite:///{file}")
        assert not isinstance(told.value, StoreRefused), (
            "what is damaged is waited for; no run fails for it"
        )


@pytest.fixture
def harness(file: Path) -> Iterator[Harness]:
    clock = Clock()
    with closing(open_store(f"sqlite:///{file}", clock=clock)) as store:
        yield Harness(store, clock)


def with_the_word(file: Path) -> list[str]:
    return sorted(path.name for path in file.parent.iterdir() if WORD.encode() in path.read_bytes())


def test_a_deleted_word_is_in_no_file_of_the_database(harness: Harness, file: Path) -> None:
    """Neither in free pages nor in the write-ahead log, although nothing else is written."""
    fences = [planted(harness, f"r{number}") for number in range(5)]
    harness.store.database.empty_log()
    planted(harness, "last")
    assert with_the_word(file) == ["state.db", "state.db-wal"]
    for row in harness.store.runs.list_runs():
        delete(harness.store, row.ref)
    assert "state.db-wal" in with_the_word(file)
    harness.store.deletion.forget_former()
    assert with_the_word(file) == []
    assert len(fences) == 5


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the full lock timeout takes longer than anything else on a slow machine."""
    wait_patiently(monkeypatch)


@pytest.mark.usefixtures("patient")
def test_a_long_read_is_told_and_delays_nobody_for_long(harness: Harness, file: Path) -> None:
    planted(harness)
    with closing(sqlite_files.connect(file, "ro")) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT COUNT(*) FROM run_history").fetchone()
        planted(harness, "r2")
        begun = time.monotonic()
        with pytest.raises(
            StoreUnavailable, match="a program is still reading an older state; end that program"
        ):
            harness.store.deletion.forget_former()
        assert time.monotonic() - begun < engine.BUSY_TIMEOUT_S
    harness.store.deletion.forget_former()
    with harness.store.database.reading() as connection:
        patience = connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one()
    assert patience == engine.BUSY_TIMEOUT_S * 1000, "the connections of others stay patient"
