"""The Temporal server's database file survives a kill at any moment of the first start, and a
damaged file is moved away.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest

from crawler_lifecycle import sqlite_files
from crawler_lifecycle.cli.stack import processes, temporal_server
from crawler_lifecycle.cli.stack.supervise import ask


def _prepare(file: Path) -> list[str]:
    said: list[str] = []
    temporal_server.prepare(file, say=said.append)
    return said


def _started(file: Path, port: int) -> subprocess.Popen[bytes]:
    command = temporal_server.command(file, port, None)
    return processes.spawn(command, env=os.environ, log=file.with_name("temporal.log"))


def _end(server: subprocess.Popen[bytes]) -> None:
    server.kill()
    server.wait()


@pytest.mark.parametrize("every", [120, pytest.param(40, marks=pytest.mark.slow)])
def test_killed_at_any_moment_of_the_first_start(tmp_path: Path, every: int) -> None:
    for milliseconds in range(40, 400, every):
        file = tmp_path / f"{milliseconds}.db"
        server = _started(file, processes.free_port())
        time.sleep(milliseconds / 1000)
        _end(server)
        _prepare(file)
        port = processes.free_port()
        server, until = _started(file, port), time.monotonic() + 150
        while ask(temporal_server.health(port))[0] is None:
            assert server.poll() is None, (
                f"killed after {milliseconds} ms: {processes.tail(tmp_path / 'temporal.log')}"
            )
            assert time.monotonic() < until, milliseconds
            time.sleep(0.02)
        _end(server)
        assert temporal_server.fault(file) is None, f"killed after {milliseconds} ms, and at work"


def test_what_a_killed_server_was_writing_is_rolled_back(tmp_path: Path) -> None:
    """A file with a journal is not damaged."""
    made, file = tmp_path / "made.db", tmp_path / "temporal.db"
    with closing(sqlite_files.connect(made, isolation_level=None)) as db:
        db.execute("CREATE TABLE namespaces (id BLOB, name TEXT)")
        db.execute("INSERT INTO namespaces VALUES (x'00', 'default')")
        db.execute("PRAGMA cache_size = 1")
        db.execute("BEGIN")
        db.execute("UPDATE namespaces SET name = 'lost'")
        db.execute("CREATE TABLE more AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 20000) "
                   "SELECT i FROM n")  # fmt: skip
        for suffix in ("", "-journal"):
            shutil.copy(f"{made}{suffix}", f"{file}{suffix}")
    assert _prepare(file) == []
    assert temporal_server.fault(file) is None


@pytest.mark.parametrize("content", [b"", b"no database at all" * 100, None])
def test_a_broken_file_is_set_aside_with_a_message(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "temporal.db"
    if content is None:  # what an interrupted first start of the server leaves
        with sqlite_files.connect(file) as db:
            db.execute("CREATE TABLE namespaces (id BLOB, name TEXT)")
        db.close()
    else:
        file.write_bytes(content)
    before = file.read_bytes()
    (line,) = _prepare(file)
    (aside,) = tmp_path.glob("temporal.db.broken-*")
    assert aside.name in line
    assert aside.read_bytes() == before
    assert not file.exists()


@pytest.mark.parametrize("steps", range(3))
def test_killed_while_it_sets_a_file_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """The file is not considered intact without its journal, and the journal is not applied to the
    next file.
    """

    class Killed(BaseException):
        pass

    file = tmp_path / "temporal.db"
    kept = {b"no database at all" * 100, b"its journal"}
    for suffix, content in zip(("", "-wal"), sorted(kept, reverse=True), strict=True):
        (tmp_path / f"temporal.db{suffix}").write_bytes(content)
    monkeypatch.setattr(temporal_server, "fault", lambda file: "broken" if file.exists() else None)
    really, left = Path.rename, iter(range(steps))

    def rename(self: Path, target: Path) -> Path:
        if next(left, None) is None:
            raise Killed
        return really(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename)
        with pytest.raises(Killed):
            _prepare(file)
    _prepare(file)
    assert not [
        path for path in tmp_path.iterdir() if path.name in ("temporal.db", "temporal.db-wal")
    ]
    assert kept <= {path.read_bytes() for path in tmp_path.glob("temporal.db.broken-*")}


def test_damage_inside_is_found(tmp_path: Path) -> None:
    file = tmp_path / "temporal.db"
    with closing(sqlite_files.connect(file)) as db, db:
        db.execute("CREATE TABLE namespaces (id INTEGER PRIMARY KEY, name TEXT)")
        db.execute("INSERT INTO namespaces VALUES (0, 'default')")
        db.executemany("INSERT INTO namespaces (name) VALUES (?)", [("x" * 100,)] * 5000)
    assert sqlite_files.damage(file) is None
    with file.open("r+b") as raw:
        raw.seek(file.stat().st_size // 2)
        raw.write(b"\xff" * 50_000)
    assert sqlite_files.damage(file) is not None
