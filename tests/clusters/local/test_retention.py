"""Old runs are removed, and nothing else."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from crawler_lifecycle.clusters.local.folders import retention
from crawler_lifecycle.clusters.local.folders.reader import TaskFolder
from crawler_lifecycle.domain.errors import ClusterUnavailable, NotInThisState
from crawler_lifecycle.domain.task import Phase
from crawler_lifecycle.ports.runs import TaskRef
from tests.clusters.local.local_fixture import RUN, SLEEP, Fixture
from tests.support.run_refs import run_ref

pytestmark = pytest.mark.processes

DAY = 86_400.0
WRITE = "import os; open(os.environ['CRAWL_FILES_DIR'] + '/x', 'w').close()"


def age(fixture: Fixture, days: float, index: int = 0) -> None:
    """Make the end of a task this old."""
    when = time.time() - days * DAY
    os.utime(fixture.folder(index) / "end.json", (when, when))


@pytest.fixture
def ended(fixture: Fixture) -> Fixture:
    fixture.deploy(WRITE)
    fixture.until_on_file()
    return fixture


def test_an_old_run_goes_with_its_state_and_leaves_a_mark(ended: Fixture) -> None:
    saved = ended.state / "state" / str(run_ref(RUN)) / "0"
    assert saved.is_dir()
    age(ended, 15)
    assert ended.cluster.remove_old(14 * DAY) == [RUN]
    assert not ended.folder().exists()
    assert not saved.exists()
    assert list((ended.state / "trash").iterdir()) == []
    assert ended.cluster.remove_old(14 * DAY) == []
    with pytest.raises(
        NotInThisState, match=r"run 5 were removed .* LIFECYCLE_CLUSTER__KEEP_DAYS days"
    ):
        ended.files.files(run_ref(RUN), [ended.ref()])
    assert ended.files.files(run_ref(RUN), []) == []
    assert (
        ended.cluster.poll(run_ref(RUN), [TaskRef(1000, 0, 1, "uid")]).observations[0].phase
        is Phase.GONE
    )


def test_a_young_one_stays(ended: Fixture) -> None:
    age(ended, 13.9)
    assert ended.cluster.remove_old(14 * DAY) == []
    assert len(ended.files.files(run_ref(RUN), [ended.ref()])) == 1


def test_a_run_with_a_task_that_executes_or_was_lost_stays_whole(
    make_fixture: Callable[..., Fixture],
) -> None:
    fixture = make_fixture(slots=2)
    fixture.deploy(WRITE)
    fixture.until_on_file()
    fixture.deploy(SLEEP, range(1, 2))
    fixture.until(Phase.EXECUTING, 1)
    age(fixture, 99)
    assert fixture.cluster.remove_old(DAY) == []
    fixture.slay(fixture.supervisor(1), fixture.runner(1), fixture.crawler_process(1))
    assert not (fixture.folder(1) / "end.json").exists()
    assert fixture.cluster.remove_old(0) == []
    assert fixture.folder().is_dir()


def test_a_resumed_run_is_counted_from_its_last_end(ended: Fixture) -> None:
    age(ended, 99)
    again = ended.folder().with_name("2")
    again.mkdir()
    (again / "spec.json").write_text("{}")
    assert ended.cluster.remove_old(DAY) == []
    (again / "end.json").write_text("{}")
    assert ended.cluster.remove_old(DAY) == []
    os.utime(again / "end.json", (1, 1))
    assert ended.cluster.remove_old(DAY) == [RUN]


def test_one_that_is_deployed_again_meanwhile_stays(
    ended: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    age(ended, 99)
    judged = retention._is_over

    def deployed_after_the_first_judgement(run: Path, before: float) -> bool:
        try:
            return judged(run, before)
        finally:
            ended.folder().with_name("2").mkdir(exist_ok=True)

    monkeypatch.setattr(retention, "_is_over", deployed_after_the_first_judgement)
    assert ended.cluster.remove_old(DAY) == []
    assert ended.folder().is_dir()


def test_a_removal_that_was_interrupted_is_finished_by_the_next(
    ended: Fixture, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    age(ended, 99)

    def refuse(folder: Path, **_: object) -> None:
        raise PermissionError(13, "Permission denied", str(folder))

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", refuse)
        assert ended.cluster.remove_old(DAY) == [RUN]
    assert "cannot be removed" in caplog.text
    assert len(list((ended.state / "trash").iterdir())) == 1
    assert ended.cluster.remove_old(DAY) == []
    assert list((ended.state / "trash").iterdir()) == []


@pytest.mark.parametrize("steps", range(3))
def test_a_cleaning_that_is_killed_between_two_steps_leaves_nothing_behind(
    ended: Fixture, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    class Killed(BaseException):
        pass

    ended.folder(1).mkdir(parents=True)
    (ended.folder(1) / "end.json").write_text("{}")
    for index in range(2):
        age(ended, 99, index)
    really, left = os.rename, iter(range(steps))

    def rename(source: Path, target: Path) -> None:
        if next(left, None) is None:
            raise Killed
        really(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", rename)
        with pytest.raises(Killed):
            ended.cluster.remove_old(DAY)
    ended.cluster.remove_old(DAY)
    assert sorted(os.listdir(ended.state / "tasks" / str(run_ref(RUN)))) == ["removed.json"]
    assert os.listdir(ended.state / "state") == []
    assert os.listdir(ended.state / "trash") == []


def test_the_files_of_a_run_that_is_removed_meanwhile_are_all_there_or_none(
    ended: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise an archive of some files would replace one of all files."""
    for index in range(2):
        (ended.folder(index) / "files").mkdir(parents=True, exist_ok=True)
        (ended.folder(index) / "end.json").write_text("{}")
        age(ended, 99, index)
    really, cleaning = (
        TaskFolder.has,
        threading.Thread(target=ended.cluster.remove_old, args=(DAY,)),
    )

    def has(self: TaskFolder, name: str) -> bool:
        found = really(self, name)
        if name == "files" and cleaning.ident is None:
            cleaning.start()
            cleaning.join(0.5)  # it would have finished if nothing held it
        return found

    monkeypatch.setattr(TaskFolder, "has", has)
    found = ended.files.files(run_ref(RUN), [ended.ref(index) for index in range(2)])
    cleaning.join()
    assert [source.prefix for source in found] == ["task-0", "task-1"]
    with pytest.raises(NotInThisState):
        ended.files.files(run_ref(RUN), [ended.ref(index) for index in range(2)])


def test_two_cleanings_remove_the_same_things(
    ended: Fixture, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What one cleaning is about to remove, the other has just removed; neither gives up or reports
    this.
    """
    age(ended, 99)
    unlink, rmdir, others = os.unlink, os.rmdir, iter([False, True] * 99)

    def unlink_behind(path: str, *, dir_fd: int | None = None) -> None:
        if dir_fd is not None and next(others):
            unlink(path, dir_fd=dir_fd)
        unlink(path, dir_fd=dir_fd)

    def rmdir_behind(path: str, *, dir_fd: int | None = None) -> None:
        rmdir(path, dir_fd=dir_fd)
        rmdir(path, dir_fd=dir_fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", unlink_behind)
        patch.setattr(os, "rmdir", rmdir_behind)
        assert ended.cluster.remove_old(DAY) == [RUN]
    assert os.listdir(ended.state / "trash") == []
    assert caplog.text == ""


def test_the_trash_is_emptied_while_a_run_is_put_aside(
    ended: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another cleaning waits until the run has been moved completely."""
    age(ended, 99)
    really = os.makedirs
    other = threading.Thread(target=ended.cluster.remove_old, args=(DAY,))

    def makedirs(name: Path, mode: int) -> None:
        monkeypatch.undo()
        really(name, mode)
        other.start()
        other.join(0.5)  # it would have finished if nothing held it
        assert name.is_dir()

    monkeypatch.setattr(os, "makedirs", makedirs)
    assert ended.cluster.remove_old(DAY) == [RUN]
    other.join()
    assert list((ended.state / "trash").iterdir()) == []


def test_what_is_not_ours_stays(fixture: Fixture, tmp_path: Path) -> None:
    outside = tmp_path / "outside" / "0" / "1"
    outside.mkdir(parents=True)
    (outside / "end.json").write_text("{}")
    os.utime(outside / "end.json", (1, 1))
    linked, empty = str(run_ref(7)), str(run_ref(8))
    (fixture.state / "tasks" / linked).symlink_to(tmp_path / "outside")
    (fixture.state / "tasks" / empty).mkdir()
    (fixture.state / "tasks" / "notes").mkdir()
    fixture.cluster.remove_old(0)
    assert (outside / "end.json").exists()
    assert sorted(os.listdir(fixture.state / "tasks")) == [linked, empty, "notes"]


def test_a_state_folder_that_is_gone_is_an_outage(fixture: Fixture) -> None:
    (fixture.state / "tasks").rename(fixture.state / "elsewhere")
    with pytest.raises(ClusterUnavailable):
        fixture.cluster.remove_old(0)
