"""Crawlers that remove their own folder: the record of each shows that it executed."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from crawler_lifecycle.clusters.local.processes import liveness_marks
from crawler_lifecycle.domain.task import (
    Change,
    Observation,
    Phase,
    TaskState,
    TaskStatus,
    reconcile,
)
from crawler_lifecycle.ports.runs import TaskRef
from tests.clusters.local.local_fixture import RUN, Fixture, wait_until
from tests.support.run_refs import run_ref

pytestmark = pytest.mark.processes

HOME = """
import os, shutil, signal, sys, time
home = os.path.dirname(os.environ["CRAWL_FILES_DIR"])
runner = os.getppid()
supervisor = int(open(f"/proc/{runner}/stat").read().rsplit(")", 1)[1].split()[1])
"""
AWAY = "moved = os.environ['CRAWL_STATE_DIR'] + '/away'\nos.rename(home, moved)\n"
WAYS = {
    "removed": "shutil.rmtree(home)\n",
    "its run": "shutil.rmtree(os.path.dirname(os.path.dirname(home)))\n",
    "renamed": AWAY,
    "a file": AWAY + "open(home, 'w').close()\n",
    "a link": AWAY + "os.symlink(moved, home)\n",
    "a pipe": AWAY + "os.mkfifo(home)\n",
    "another folder": AWAY + "os.mkdir(home)\n",
    "shut": "os.chmod(home, 0)\n",
    "emptied": "shutil.rmtree(home, onerror=print)\nos.makedirs(home)\n",
}


def recorded(seen: Observation) -> Change:
    """Return what is recorded of a task that no poll had seen before."""
    task = TaskState(1000, 0, 1, TaskStatus.PENDING, seen.observed_at, uid="ours")
    change = reconcile(task, replace(seen, uid=None), None, due_at=seen.observed_at)
    assert change is not None
    return change


def over(fixture: Fixture, code: str) -> Observation:
    """Return its end, as the first poll after it sees it."""
    (deployed,) = fixture.deploy(HOME + code)
    wait_until(lambda: not fixture.running())
    [seen] = fixture.cluster.poll(
        run_ref(RUN), [TaskRef(1000, 0, 1, uid=deployed.uid)]
    ).observations
    return seen


COUNT = "open(os.environ['CRAWL_STATE_DIR'] + '/count', 'a').write('x')\n"


@pytest.mark.parametrize("way", WAYS)
def test_it_ended_as_its_supervisor_saw_and_no_second_begins(fixture: Fixture, way: str) -> None:
    code = COUNT + WAYS[way] + "time.sleep(0.2)\nsys.exit(5)\n"
    seen = over(fixture, code)
    assert seen.phase is Phase.ENDED
    assert seen.end.exit_code == 5
    assert seen.started_at is not None
    change = recorded(seen)
    assert (change.after, change.correction) == (TaskStatus.FAILED, None)
    assert ("Its folder was removed" in (change.cause or "")) == (way != "shut")
    begins_no_second(fixture, code)


def begins_no_second(fixture: Fixture, code: str) -> None:
    """Check that a second deployment, after the response to the first was lost, starts nothing."""
    (again,) = fixture.deploy(HOME + code)
    wait_until(lambda: not fixture.running())
    assert again.state == "existing"
    (counted,) = (fixture.state / "state").glob("*/*/count")
    assert counted.read_text() == "x"
    if not fixture.folder().is_dir() or fixture.folder().is_symlink():
        fixture.folder().unlink(missing_ok=True)


FORGED_SPEC = """
spec = open(home + "/spec.json").read()
shutil.rmtree(home)
os.mkdir(home)
open(home + "/spec.json", "w").write(spec.replace('"uid": "', '"uid": "x'))
"""


def test_another_spec_in_its_folder_begins_no_second(fixture: Fixture) -> None:
    (deployed,) = fixture.deploy(HOME + COUNT + FORGED_SPEC)
    wait_until(lambda: not fixture.running())
    begins_no_second(fixture, COUNT + FORGED_SPEC)
    (again,) = fixture.deploy(HOME + COUNT)
    assert again.uid == deployed.uid


def test_what_began_for_a_run_of_another_database_keeps_nobody_from_executing(
    fixture: Fixture,
) -> None:
    (first,) = fixture.deploy(HOME + WAYS["its run"])
    wait_until(lambda: not fixture.running())
    (told,) = (fixture.state / "started").iterdir()
    told.rename(told.with_name(told.name.replace(run_ref(RUN).uid, "f" * 32)))
    (again,) = fixture.deploy("pass")
    assert again.state == "created"
    assert again.uid != first.uid
    fixture.until_on_file()


@pytest.mark.parametrize("what", ["nothing", "a link", "a file"])
def test_whoever_replaces_what_is_told_beside_keeps_nobody_from_executing(
    fixture: Fixture, what: str
) -> None:
    started = fixture.state / "started"
    started.rmdir()
    if what == "a link":
        started.symlink_to(fixture.state)
    elif what == "a file":
        started.touch()
    (deployed,) = fixture.deploy("pass")
    assert deployed.state == "created"
    seen = fixture.until_on_file()
    assert seen.end.exit_code == 0


def test_without_a_word_of_its_runner_it_is_no_success(fixture: Fixture) -> None:
    change = recorded(over(fixture, WAYS["removed"]))
    assert (change.after, change.outcome) == (TaskStatus.FAILED, "failed")
    assert change.cause == "It ended without a summary (exit 0): Its folder was removed"


@pytest.mark.parametrize(
    "way", ["", WAYS["removed"], WAYS["emptied"]], ids=["kept", "removed", "emptied"]
)
def test_who_killed_all_that_watched_it_had_existed(fixture: Fixture, way: str) -> None:
    seen = over(
        fixture, f"{way}os.kill(supervisor, signal.SIGKILL)\nos.kill(runner, signal.SIGKILL)\n"
    )
    # While its folder exists, the zombie of its runner shows how that died, until process 1 has
    # reaped it.
    assert recorded(seen).correction == "vanished" or (recorded(seen).correction, way) == (
        "killed",
        "",
    )


def test_what_was_told_beside_is_of_that_very_object(fixture: Fixture) -> None:
    seen = over(fixture, WAYS["removed"])
    assert seen.end is not None
    (told,) = (fixture.state / "started").iterdir()
    task = TaskRef(1000, 0, 1, uid="another")
    for content in (
        told.read_text(),
        "garbage",
        "[]",
        json.dumps({"uid": "another", "finished_at": 7, "exit_code": "x"}),
    ):
        told.write_text(content)
        [seen] = fixture.cluster.poll(run_ref(RUN), [task]).observations
        assert seen.end is None or (seen.end.exit_code, seen.end.finished_at) == (None, None)
    told.unlink()
    os.mkfifo(told)
    assert fixture.cluster.poll(run_ref(RUN), [task]).observations[0].phase is Phase.GONE
    told.unlink()


def test_nothing_is_kept_of_an_end_on_file_and_the_rest_goes_with_old_runs(
    fixture: Fixture,
) -> None:
    fixture.deploy("pass")
    fixture.until_on_file()
    started = fixture.state / "started"
    assert list(started.iterdir()) == []
    fixture.deploy(HOME + WAYS["removed"], range(1, 2))
    wait_until(lambda: not fixture.running())
    fixture.cluster.remove_old(3600)
    assert [path.name for path in started.iterdir()] == [f"crawl-{run_ref(RUN)}-1-1"]
    fixture.cluster.remove_old(-1)
    assert list(started.iterdir()) == []


def test_a_pipe_in_the_place_of_a_mark_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "mark")
    liveness_marks.begin(str(tmp_path / "mark"))
