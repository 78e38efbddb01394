"""The Temporal server's database file survives a kill at any moment of the first start, and damage is set aside."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from crawler_lifecycle.cli.stack import temporal_server

BUILD = """
import os, sys
from pathlib import Path
from crawler_lifecycle.cli.stack import temporal_server
file = Path(sys.argv[1])
temporal_server.prepare(file, env=os.environ, log=file.with_name("build.log"), say=print)
"""


def _prepare(file: Path) -> list[str]:
    said: list[str] = []
    temporal_server.prepare(file, env=os.environ, log=file.with_name("build.log"), say=said.append)
    return said


def test_killed_at_any_moment_of_the_first_start(tmp_path: Path) -> None:
    file = tmp_path / "temporal.db"
    for milliseconds in range(40, 400, 40):
        builder = subprocess.Popen([sys.executable, "-c", BUILD, str(file)])
        time.sleep(milliseconds / 1000)
        builder.send_signal(signal.SIGKILL)
        builder.wait()
        assert temporal_server.fault(file) is None, f"after {milliseconds} ms"
    assert _prepare(file) == []
    assert file.exists()
    assert temporal_server.fault(file) is None
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("temporal")] == ["temporal.db"]


def test_what_a_killed_builder_left_goes_although_the_file_is_there(tmp_path: Path) -> None:
    """It may die between giving the file its name and removing what it was built from."""
    file = tmp_path / "temporal.db"
    _prepare(file)
    for suffix in (".draft", ".draft-wal", ".copy"):
        (tmp_path / f"temporal.db{suffix}").write_bytes(b"left")
    assert _prepare(file) == []
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("temporal")] == ["temporal.db"]


def test_what_the_dying_server_takes_itself_is_no_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was killed with its builder a moment ago, and may yet end the journal that it had begun."""
    file = tmp_path / "temporal.db"
    file.write_bytes(b"")
    monkeypatch.setattr(temporal_server, "fault", lambda _: None)
    (tmp_path / "temporal.db.draft-journal").touch()
    really = Path.unlink

    def unlink(self: Path, missing_ok: bool = False) -> None:
        really(self)
        really(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", unlink)
    assert _prepare(file) == []


@pytest.mark.parametrize("content", [b"", b"no database at all" * 100, None])
def test_a_broken_file_is_set_aside_with_a_message(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "temporal.db"
    if content is None:  # what an interrupted first start of the server itself leaves
        with sqlite3.connect(file) as db:
            db.execute("CREATE TABLE namespaces (id BLOB, name TEXT)")
        db.close()
    else:
        file.write_bytes(content)
    before = file.read_bytes()
    (line,) = _prepare(file)
    (aside,) = tmp_path.glob("temporal.db.broken-*")
    assert aside.name in line
    assert aside.read_bytes() == before
    assert temporal_server.fault(file) is None


def _undone_in_its_journal(folder: Path) -> Path:
    """A file as a killed server leaves it: what makes it useless is in its journal alone."""
    made, file = folder / "made.db", folder / "temporal.db"
    with closing(sqlite3.connect(made, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("CREATE TABLE namespaces (id BLOB, name TEXT)")
        db.execute("INSERT INTO namespaces VALUES (x'00', 'default')")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.execute("DELETE FROM namespaces")
        for suffix in ("", "-wal"):
            shutil.copy(folder / f"made.db{suffix}", folder / f"temporal.db{suffix}")
    return file


@pytest.mark.parametrize("steps", range(3))
def test_killed_while_it_sets_a_file_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Neither is the file taken for good without its journal, nor is the journal given to the next file."""

    class Killed(BaseException):
        pass

    file = _undone_in_its_journal(tmp_path)
    kept = {(tmp_path / f"temporal.db{suffix}").read_bytes() for suffix in ("", "-wal")}
    really, left = Path.rename, iter(range(steps))

    def rename(self: Path, target: Path) -> Path:
        if next(left, None) is None:
            raise Killed
        return really(self, target)

    monkeypatch.setattr(temporal_server, "_build", lambda file, env, log: file.write_bytes(b"new"))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename)
        with pytest.raises(Killed):
            _prepare(file)
    _prepare(file)
    assert file.read_bytes() == b"new"
    assert not (tmp_path / "temporal.db-wal").exists()
    assert kept <= {path.read_bytes() for path in tmp_path.glob("temporal.db.broken-*")}


def test_damage_inside_is_found(tmp_path: Path) -> None:
    file = tmp_path / "temporal.db"
    _prepare(file)
    assert not temporal_server.is_damaged(file)
    with file.open("r+b") as raw:
        raw.seek(file.stat().st_size // 2)
        raw.write(b"\xff" * 50_000)
    assert temporal_server.is_damaged(file)


def test_a_server_that_was_killed_while_it_wrote_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The draft is left with a journal when its server is killed within a transaction."""

    def wait(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
        real(process, address, log)
        (tmp_path / "temporal.db.draft-journal").touch()

    real = temporal_server._wait
    monkeypatch.setattr(temporal_server, "_wait", wait)
    assert _prepare(tmp_path / "temporal.db") == []
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("temporal")] == ["temporal.db"]
