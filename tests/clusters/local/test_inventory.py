"""What the local cluster's inventory finds when folders and processes disagree."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from crawler_lifecycle.clusters.local.cluster import LocalCluster
from crawler_lifecycle.clusters.local.folders import inventory
from crawler_lifecycle.clusters.local.processes.identity import Stat
from crawler_lifecycle.ports.runs import TaskRef
from tests.clusters.local.local_fixture import wait_until
from tests.support.run_refs import run_ref


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def cluster(state: Path) -> LocalCluster:
    return LocalCluster(state, slots=2)


def folder_of(state: Path, run_id: int, index: int = 0, attempt: int = 1) -> Path:
    return state / "tasks" / str(run_ref(run_id)) / str(index) / str(attempt)


def marked(files: Path) -> subprocess.Popen[bytes]:
    marks = {
        "CRAWL_RUN_ID": "7",
        "CRAWL_RUN_UID": run_ref(7).uid,
        "CRAWL_TASK_ID": "41",
        "CRAWL_FILES_DIR": str(files),
    }
    return subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(300)"], env={**os.environ, **marks}
    )


@pytest.fixture
def straggler(state: Path, cluster: LocalCluster) -> Iterator[subprocess.Popen[bytes]]:
    """A process with the environment of task 41 (run 7, index 3, attempt 2)."""
    files = folder_of(state, 7, 3, 2) / "files"
    files.mkdir(parents=True)
    process = marked(files)
    try:
        wait_until(cluster.inventory)
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_process_that_outlived_its_recorded_end_is_found_and_killed(
    state: Path, cluster: LocalCluster, straggler: subprocess.Popen[bytes]
) -> None:
    folder = folder_of(state, 7, 3, 2)
    (folder / "spec.json").write_text(json.dumps({"uid": "u-1", "task_id": 41}))
    (folder / "end.json").write_text(json.dumps({"exit_code": 0}))
    (task,) = cluster.inventory()
    assert (task.key, task.uid, task.task_id, task.executing) == ((7, 3, 2), "u-1", 41, True)
    assert not task.stray
    cluster.kill(run_ref(7), TaskRef(41, 3, 2, "u-1"))
    assert straggler.wait(60) == -signal.SIGKILL
    assert cluster.inventory() == []


def test_a_process_whose_folder_was_taken_away_is_named_by_pid_and_start(
    state: Path, cluster: LocalCluster, straggler: subprocess.Popen[bytes]
) -> None:
    shutil.rmtree(state / "tasks" / str(run_ref(7)))
    (task,) = cluster.inventory(run_id=7)
    assert (task.key, task.task_id) == ((7, 3, 2), 41)
    assert (task.uid or "").startswith(f"{straggler.pid}@")
    assert task.stray, "the database knows it by its folder's uid, and it is the same task"
    cluster.kill(run_ref(7), TaskRef(41, 3, 2, task.uid))
    assert straggler.wait(60) == -signal.SIGKILL
    assert cluster.inventory() == []


def test_a_process_that_ends_meanwhile_hides_no_other_of_its_task(
    state: Path,
    cluster: LocalCluster,
    straggler: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read, other = inventory._processes, marked(folder_of(state, 7, 3, 2) / "files")

    def read_then_ended(tasks: Path) -> dict[inventory.Place, list[Stat]]:
        found = read(tasks)
        straggler.kill()
        straggler.wait()
        return found

    try:
        wait_until(lambda: len(read(state / "tasks")[7, 3, 2, run_ref(7).uid]) == 2)
        monkeypatch.setattr(inventory, "_processes", read_then_ended)
        (task,) = cluster.inventory()
    finally:
        other.kill()
        other.wait()
    assert task.uid is not None
    assert task.uid.startswith(f"{other.pid}@")


def test_folders_of_ended_tasks_and_strangers_are_no_tasks(
    state: Path, cluster: LocalCluster
) -> None:
    ended = folder_of(state, 5)
    ended.mkdir(parents=True)
    (ended / "spec.json").write_text(json.dumps({"uid": "u", "task_id": 1}))
    (ended / "end.json").write_text(json.dumps({"exit_code": 0}))
    (state / "tasks" / "lost+found").mkdir()
    removed = state / "tasks" / str(run_ref(6))
    removed.mkdir()
    (removed / "removed.json").write_text("{}")
    (state / "tasks" / str(run_ref(8))).write_text("a file")
    never = folder_of(state, 9)
    never.mkdir(parents=True)
    (never / "spec.json").write_text(json.dumps({"uid": "u", "task_id": 2}))
    assert cluster.inventory() == [], "deployed, and never had a supervisor: nothing of it executes"
