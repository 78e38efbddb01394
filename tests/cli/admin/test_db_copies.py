"""``crawlctl db backup`` and ``crawlctl db restore``: copies are complete, even under load, and
only copies are restored.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from alembic import command

from crawler_lifecycle import sqlite_files
from crawler_lifecycle.cli.problems import CommandFailed
from crawler_lifecycle.cli.stack import copies
from crawler_lifecycle.settings import sqlite_url
from crawler_lifecycle.store.migrations import schema_version
from crawler_lifecycle.store.migrations.schema_version import head_version, read_schema, upgrade
from crawler_lifecycle.store.store import open_store
from tests.cli.cli_support import Crawlctl
from tests.contracts.store.harness import Clock, Harness

ROOT = Path(__file__).parents[3]
#: A process that creates and ends runs until its input is closed.
STORM = """
import sys, threading
from tests.contracts.store.harness import Clock, Harness
from crawler_lifecycle.store.store import open_store
clock = Clock()
harness = Harness(open_store(sys.argv[1], clock=clock), clock)
ends = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), ends.set()), daemon=True).start()
harness.finish(harness.executing(f"{sys.argv[2]}-0", 2))
print("begins", flush=True)  # from now on it has the file open
number = 0
while not ends.is_set():
    number += 1
    harness.finish(harness.executing(f"{sys.argv[2]}-{number}", 2))
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A database with one run, in a folder whose name needs quotes."""
    made = tmp_path / "a 100%25 folder" / "lifecycle.db"
    made.parent.mkdir()
    upgrade(sqlite_url(made))
    fill(made, "r1")
    return made


def fill(file: Path, name: str) -> None:
    """One more run."""
    clock = Clock()
    with closing(open_store(sqlite_url(file), clock=clock)) as store:
        harness = Harness(store, clock)
        harness.finish(harness.executing(name, 2))


def runs(file: Path) -> list[str]:
    with closing(sqlite_files.connect(file, "ro")) as database:
        return [
            name
            for (name,) in database.execute("SELECT request_id FROM run_history ORDER BY run_id")
        ]


def damaged(file: Path, first: int = 10, pages: int = 40) -> None:
    with file.open("r+b") as raw:
        raw.seek(first * 4096)
        raw.write(b"\xf5\x97" * 2048 * pages)


@contextmanager
def storm(file: Path, writers: int = 2) -> Iterator[None]:
    command = (sys.executable, "-c", STORM, sqlite_url(file))
    processes = [
        subprocess.Popen(
            (*command, f"w{number}"), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for number in range(writers)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        yield
        assert all(process.poll() is None for process in processes)
    finally:
        for process in processes:
            process.communicate(timeout=60)


# --- backup ---------------------------------------------------------------------------------------


def test_copies_in_a_storm_are_whole_and_of_one_moment(
    crawlctl: Crawlctl, file: Path, tmp_path: Path
) -> None:
    made = [tmp_path / f"copy-{number}.db" for number in range(5)]
    with storm(file):
        until = time.monotonic() + 60
        for copy in made:
            known = len(runs(file))
            while len(runs(file)) == known:
                assert time.monotonic() < until, "nobody writes"
            result = crawlctl("db", "backup", str(copy), "--url", sqlite_url(file))
            assert result.code == 0, result.err
    counts = []
    for copy in made:
        assert list(copy.parent.glob(f"{copy.name}?*")) == [], "it is one file"
        assert copy.stat().st_mode & 0o077 == 0
        with closing(sqlite_files.connect(copy, "ro")) as database:

            def ask(statement: str, database: sqlite_files.driver.Connection = database) -> int:
                return int(database.execute(statement).fetchone()[0])

            assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert database.execute("PRAGMA foreign_key_check").fetchall() == []
            counts.append(ask("SELECT COUNT(*) FROM run_history"))
            assert ask("SELECT COUNT(*) FROM task_history") == 2 * counts[-1]
            assert ask("SELECT seq FROM outbox_counter") == ask("SELECT MAX(seq) FROM outbox_event")
            last = "SELECT to_status FROM status_transition s WHERE s.task_id = t.task_id ORDER BY seq DESC LIMIT 1"
            assert ask(f"SELECT COUNT(*) FROM task_history t WHERE t.status <> ({last})") == 0
    assert counts == sorted(set(counts)), "each has more than the one before"


def test_a_copy_is_never_written_over_a_file(
    crawlctl: Crawlctl, file: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.db"
    copy.write_text("precious")
    result = crawlctl("db", "backup", str(copy), "--url", sqlite_url(file))
    assert (result.code, "File exists" in result.err, copy.read_text()) == (4, True, "precious")
    result = crawlctl("db", "backup", str(tmp_path / "none" / "copy.db"), "--url", sqlite_url(file))
    assert (result.code, "unable to open database file" in result.err) == (4, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [file.parent.name, "copy.db"]


def test_no_copy_is_made_of_a_damaged_database(
    crawlctl: Crawlctl, file: Path, tmp_path: Path
) -> None:
    damaged(file)
    result = crawlctl("db", "backup", str(tmp_path / "copy.db"), "--url", sqlite_url(file))
    assert (result.code, "was not copied" in result.err) == (4, True)
    assert list(tmp_path.glob("copy*")) == []


@pytest.mark.parametrize("verb", ["backup", "restore"])
def test_a_server_is_copied_with_its_own_tools(crawlctl: Crawlctl, verb: str) -> None:
    result = crawlctl("db", verb, "a copy.sql", "--url", "mysql://ann:secret@db.example/runs")
    assert result.code == 2
    address = "--host=db.example --port=3306 --user=ann --password runs"
    assert (
        f"mysqldump --single-transaction --hex-blob --no-tablespaces {address} > 'a copy.sql'"
        in result.err
    )
    assert f"mysql {address} < 'a copy.sql'" in result.err
    assert "secret" not in result.err
    wrong = crawlctl("db", verb, "copy.db", "--url", "oracle://x/y")
    assert (wrong.code, "LIFECYCLE_DATABASE__URL" in wrong.err) == (2, True)


# --- restore --------------------------------------------------------------------------------------


def test_a_copy_is_put_back_and_the_former_files_are_kept(
    crawlctl: Crawlctl, file: Path, tmp_path: Path
) -> None:
    copy, url = tmp_path / "copy.db", sqlite_url(file)
    assert crawlctl("db", "backup", str(copy), "--url", url).code == 0
    fill(file, "r2")
    # As after a kill: the last writes are only in the write-ahead log.
    with closing(sqlite_files.connect(file)) as database:
        database.execute("UPDATE run_history SET request_id = 'r3' WHERE request_id = 'r2'")
        database.commit()
        kept = {
            suffix: file.with_name(file.name + suffix).read_bytes() for suffix in ("-wal", "-shm")
        }
    for suffix, content in kept.items():
        file.with_name(file.name + suffix).write_bytes(content)
    result = crawlctl("db", "restore", str(copy), "--url", url)
    assert result.code == 0, result.err
    assert "next: crawlctl dev" in result.err
    assert (runs(file), runs(copy), copy.exists()) == (["r1"], ["r1"], True)
    (aside,) = (
        path
        for path in file.parent.glob("*.replaced-*")
        if "-wal" not in path.name and "-shm" not in path.name
    )
    assert str(aside) in result.err
    assert runs(aside)[0] == "r1"
    assert Path(f"{aside}-wal").exists(), (
        "the log goes with its database, and is not applied to the next"
    )
    assert file.with_name("lifecycle.db.restored").read_text() == str(copy)


def test_a_damaged_file_and_a_missing_one_are_replaced(
    crawlctl: Crawlctl, file: Path, tmp_path: Path
) -> None:
    copy, url = tmp_path / "copy.db", sqlite_url(file)
    assert crawlctl("db", "backup", str(copy), "--url", url).code == 0
    file.write_bytes(b"no database" * 1000)
    assert crawlctl("db", "restore", str(copy), "--url", url).code == 0
    assert runs(file) == ["r1"]
    file.unlink()
    assert crawlctl("db", "restore", str(copy), "--url", url).code == 0
    assert runs(file) == ["r1"]


def test_nothing_is_restored_while_a_service_has_the_database_open(
    crawlctl: Crawlctl, file: Path, tmp_path: Path
) -> None:
    copy, url = tmp_path / "copy.db", sqlite_url(file)
    assert crawlctl("db", "backup", str(copy), "--url", url).code == 0
    with storm(file, 1):
        result = crawlctl("db", "restore", str(copy), "--url", url)
        assert (result.code, "is in use: end crawlctl dev" in result.err) == (4, True)
    assert len(runs(file)) > 1
    assert list(file.parent.glob("*.restored")) == list(file.parent.glob("*.replaced-*")) == []


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("missing", "unable to open database file"),
        ("no database", "file is not a database"),
        ("damaged", "was not copied"),
        ("another", "is not one of our databases"),
        ("newer", "9999"),
    ],
)
def test_what_is_no_usable_copy_is_refused(
    crawlctl: Crawlctl, file: Path, tmp_path: Path, kind: str, said: str
) -> None:
    copy, url, before = tmp_path / "copy.db", sqlite_url(file), file.read_bytes()
    if kind == "no database":
        copy.write_bytes(b"hello" * 1000)
    elif kind == "another":
        with closing(sqlite_files.connect(copy)) as database, database:
            database.execute("CREATE TABLE namespaces (id)")
    elif kind != "missing":
        assert crawlctl("db", "backup", str(copy), "--url", url).code == 0
        if kind == "damaged":
            damaged(copy)
        else:
            with closing(sqlite_files.connect(copy)) as database, database:
                database.execute("UPDATE alembic_version SET version_num = '9999'")
                database.execute("UPDATE schema_compatibility SET works_from = '9998'")
    result = crawlctl("db", "restore", str(copy), "--url", url)
    assert (result.code, said in result.err, "Traceback" in result.err) == (4, True, False), (
        result.err
    )
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == [file.name], "no draft is left"


def test_an_older_copy_is_upgraded_before_it_replaces_anything(
    crawlctl: Crawlctl, file: Path, tmp_path: Path
) -> None:
    copy, config = tmp_path / "copy.db", schema_version._config()
    with schema_version._changing(sqlite_url(copy)) as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
    assert read_schema(sqlite_url(copy)).version == "0001"
    result = crawlctl("db", "restore", str(copy), "--url", sqlite_url(file))
    assert result.code == 0, result.err
    assert read_schema(sqlite_url(file)).version == head_version()
    assert runs(file) == []


# --- the daily copies of crawlctl dev -------------------------------------------------------------


def test_three_daily_copies_are_kept_and_errors_are_only_told(file: Path) -> None:
    folder = file.with_name("copies")
    folder.mkdir()
    for day in range(1, 5):
        sqlite_files.copy(file, folder / f"lifecycle-2026-01-0{day}.db")
    said: list[str] = []
    copies.make(file, say=said.append)
    copies.make(file, say=said.append)
    today = f"lifecycle-{datetime.now(UTC):%Y-%m-%d}.db"
    names = ["lifecycle-2026-01-03.db", "lifecycle-2026-01-04.db", today]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert said == []
    (folder / today).unlink()
    damaged(file)
    copies.make(file, say=said.append)
    assert len(said) == 1
    assert "today's copy could not be made" in said[0]
    assert sorted(path.name for path in folder.iterdir()) == names[:-1], (
        "a damaged file pushes no whole copy out"
    )


def test_a_damaged_file_is_told_with_its_newest_whole_copy(file: Path) -> None:
    copies.check(file)
    copies.check(file.with_name("none.db"))
    folder = file.with_name("copies")
    folder.mkdir()
    for day in (1, 2, 3):
        sqlite_files.copy(file, folder / f"lifecycle-2026-01-0{day}.db")
    damaged(folder / "lifecycle-2026-01-03.db")
    damaged(file)
    with pytest.raises(CommandFailed, match=r"is damaged: ") as told:
        copies.check(file)
    whole = folder / "lifecycle-2026-01-02.db"
    assert told.value.why == f"its newest intact copy is {whole}"
    assert told.value.next_step is not None
    assert told.value.next_step.startswith(
        f"crawlctl db restore '{whole}' --url {sqlite_url(file)}"
    )
