"""The story's checks find untrue records: each is given a false record of an otherwise true run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from crawler_lifecycle import sqlite_files
from crawler_lifecycle.cli.stack import processes
from tests.dev.dev_support import ROOT

sys.path.insert(0, str(ROOT))
from examples.story_checks import CHECKS, Slots, Untrue

RUN: dict[str, Any] = {
    "run_id": 3,
    "run_uid": "u3",
    "attempt": 1,
    "status": "COMPLETED",
    "outcome": "finished",
    "items": 2,
}


@pytest.fixture
def places(tmp_path: Path) -> Slots:
    """A state directory with the true records of run 3."""
    with closing(sqlite_files.connect(tmp_path / "lifecycle.db")) as db:
        db.execute("CREATE TABLE run_history (run_id, status, outcome, ended_at)")
        db.execute("CREATE TABLE task_history (run_id, status, superseded_by)")
        db.execute("INSERT INTO run_history VALUES (3, 'COMPLETED', 'finished', '2026')")
        db.execute("INSERT INTO task_history VALUES (3, 'SUCCEEDED', NULL), (3, 'RUNNING', 9)")
        db.commit()
    folder = tmp_path / "cluster" / "tasks" / "3-u3" / "0" / "1"
    folder.mkdir(parents=True)
    (folder / "process.json").write_text(json.dumps({"pid": os.getpid(), "start": 1, "group": 1}))
    with zipfile.ZipFile(tmp_path / "files.zip", "w") as archive:
        archive.writestr("task-0/items.jsonl", "{}\n{}\n")
    event = {"id": "3-u3/1/run.ended", "data": {"status": "COMPLETED"}}
    (tmp_path / "events.jsonl").write_text(f"half a li\n{json.dumps(event)}\n")
    url = tmp_path.as_uri()
    return Slots(
        tmp_path,
        {"database": f"sqlite:///{tmp_path}/lifecycle.db", "events": f"{url}/events.jsonl"},
    )


def _run(places: Slots, **other: object) -> dict[str, Any]:
    export = {
        "attempt": 1,
        "status": "exported",
        "url": (places.state_dir / "files.zip").as_uri(),
        "files": 1,
        "bytes": 9,
    }
    return {**RUN, "exports": [export], **other}


def _database(places: Slots, sql: str) -> None:
    with closing(sqlite_files.connect(places.path("database"))) as db:
        db.execute(sql)
        db.commit()


@pytest.mark.parametrize("name", CHECKS)
def test_the_truth_passes(places: Slots, name: str) -> None:
    assert CHECKS[name](places, _run(places))


def test_the_database_says_otherwise(places: Slots) -> None:
    with pytest.raises(Untrue, match="COMPLETED/finished"):
        CHECKS["database"](places, _run(places, status="FAILED"))


def test_a_task_is_still_alive_on_record(places: Slots) -> None:
    _database(places, "UPDATE task_history SET superseded_by = NULL")
    with pytest.raises(Untrue, match="RUNNING"):
        CHECKS["database"](places, _run(places))


def test_a_crawler_still_runs(places: Slots) -> None:
    file = next(places.state_dir.glob("cluster/tasks/3-u3/*/*/process.json"))
    file.write_text(
        json.dumps({"pid": os.getpid(), "start": processes.start_time(os.getpid()), "group": 1})
    )
    with pytest.raises(Untrue, match="0/1 still run"):
        CHECKS["processes"](places, _run(places))


@pytest.fixture
def stray(places: Slots) -> Iterator[int]:
    env = os.environ | {"CRAWL_RUN_ID": "3", "CRAWL_STATE_DIR": str(places.state_dir / "cluster")}
    with subprocess.Popen(
        [sys.executable, "-S", "-c", "input()"], env=env, stdin=subprocess.PIPE
    ) as process:
        yield process.pid
        process.kill()


def test_a_process_nobody_recorded_still_works_for_the_run(places: Slots, stray: int) -> None:
    with pytest.raises(Untrue, match=str(stray)):
        CHECKS["processes"](places, _run(places))
    assert CHECKS["processes"](places, _run(places, run_id=4))


def test_the_archive_is_damaged_or_misses_items(places: Slots) -> None:
    with pytest.raises(Untrue, match="2 items, counted were 5"):
        CHECKS["archive"](places, _run(places, items=5))
    file = places.state_dir / "files.zip"
    content = bytearray(file.read_bytes())
    content[content.index(b"{}")] = ord("X")
    file.write_bytes(content)
    with pytest.raises(Untrue, match="damaged"):
        CHECKS["archive"](places, _run(places))


def test_the_export_failed(places: Slots) -> None:
    export = {"attempt": 1, "status": "failed", "url": None, "error": "disk full"}
    with pytest.raises(Untrue, match="disk full"):
        CHECKS["archive"](places, _run(places, exports=[export]))


def test_the_end_was_not_told(places: Slots) -> None:
    with pytest.raises(Untrue, match=r"run\.ended"):
        CHECKS["events"](places, _run(places, attempt=2))
    with pytest.raises(Untrue, match="reported was COMPLETED"):
        CHECKS["events"](places, _run(places, status="FAILED"))
