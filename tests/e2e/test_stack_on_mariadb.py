"""The whole stack of real processes on MariaDB: a crawl to its end, a stop, and the story that ``make run`` tells."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.world import ENDLESS, QUICK, World, until
from tests.support.mariadb import MariaDb
from tests.support.servers import SERVERS, empty_database

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def mariadb_world(mariadb: MariaDb, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with mariadb.database() as url:
        world = World(tmp_path_factory.mktemp("e2e-mariadb") / "state", database=url)
        try:
            world.start()
            yield world
        finally:
            world.end()


def test_a_crawl_and_a_stop(mariadb_world: World) -> None:
    world = mariadb_world
    good = world.gateway.start({"crawler": "services", **QUICK}, "good")["run_id"]
    stopped = world.gateway.start({"crawler": "plain", "args": ENDLESS, **QUICK}, "stopped")["run_id"]
    until(lambda: world.tasks(stopped).get("RUNNING"), "a task that runs")
    world.gateway.stop(stopped, reason="enough", requested_by="ada")
    until(lambda: world.closed([good, stopped]), "the end of both runs")
    world.prove(good, "COMPLETED", "finished")
    world.prove(stopped, "FAILED", "cancelled")
    asked = world.query("SELECT requested_by, reason FROM cancellation_log WHERE run_id = ?", stopped)
    assert asked == [("ada", "enough")]
    assert world.query("SELECT COUNT(*) FROM run_tag WHERE run_id = ?", good) == [(0,)]


def test_the_worker_is_killed(mariadb_world: World) -> None:
    world = mariadb_world
    some = {"max_pages": "40", "delay": "0.1"}
    with world.site_stands_still():
        run_id = world.gateway.start({"crawler": "plain", "args": some, **QUICK}, "killed")["run_id"]
        until(lambda: world.tasks(run_id).get("RUNNING"), "a task that runs")
        world.stack.kill_part("worker")
    until(lambda: world.closed([run_id]), "the end of the run", 90)
    world.prove(run_id, "COMPLETED", "finished")


@pytest.mark.parametrize("kind", SERVERS)
def test_the_story(kind: str, tmp_path: Path) -> None:
    with empty_database(kind, tmp_path) as url:
        words = ["--state-dir", str(tmp_path / "state"), "--free-ports", "--database", url]
        told = subprocess.run(
            [sys.executable, "-m", "examples.story", *words],
            cwd=ROOT,
            env={**os.environ, "TERM": "dumb"},
            capture_output=True,
            text=True,
            timeout=500,
        )
    assert told.returncode == 0, (told.stdout + told.stderr)[-3000:]
    assert "every check held" in told.stdout
    assert not list((tmp_path / "state").rglob("lifecycle.db")), "nothing was kept in SQLite"
