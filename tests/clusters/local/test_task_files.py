"""Supporting files of tasks where they were written, with a crawler that writes anything there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from crawler_lifecycle.clusters.local.folders import folder as files
from crawler_lifecycle.clusters.local.folders.logs import LocalLogs
from crawler_lifecycle.clusters.local.folders.task_files import DEPTH_MAX, LocalFiles
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports.files import TaskFileList
from crawler_lifecycle.ports.runs import TaskRef

RUN = RunRef(7, "u7")
TASK = TaskRef(70, 0, 1, None)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The folder of the task's files."""
    run = tmp_path / "tasks" / str(RUN)
    (run / "0" / "1" / "files").mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    return run / "0" / "1" / "files"


@pytest.fixture
def here(tmp_path: Path) -> LocalFiles:
    return LocalFiles(tmp_path)


def test_files_are_listed_and_read_in_parts(home: Path, here: LocalFiles) -> None:
    (home / "sub").mkdir()
    (home / "items.jsonl").write_text("0123456789")
    (home / "sub" / "ä.html").write_text("page")
    assert here.list(RUN, TASK, 10) == TaskFileList([("items.jsonl", 10), ("sub/ä.html", 4)], 0)
    assert here.list(RUN, TASK, 1) == TaskFileList([("items.jsonl", 10)], 1)
    part = here.read(RUN, TASK, "items.jsonl", 4, 3)
    assert (part.data, part.size) == (b"456", 10)
    assert here.read(RUN, TASK, "missing", 0, 9) is None


def test_what_is_no_regular_file_is_left_out(home: Path, here: LocalFiles) -> None:
    (home / "link").symlink_to(home.parents[4] / "secret")
    (home / "up").symlink_to(home.parents[4])
    (home / "loop").symlink_to(home / "loop")
    os.mkfifo(home / "pipe")
    (home / os.fsdecode(b"\xff")).write_text("no text")
    deep = home
    for n in range(DEPTH_MAX + 3):
        deep /= f"{n}"
        deep.mkdir()
    (deep / "too deep").write_text("x")
    listed = here.list(RUN, TASK, 10)
    assert (listed.files, listed.left_out) == ([], 6)
    odd = ("", ".", "a//b", "x\0", "\udcff", "\ud800/x")
    for path in ("link", "up/secret", "loop", "pipe", "../log", "/etc/passwd", *odd):
        assert here.read(RUN, TASK, path, 0, 10) is None


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_a_folder_that_leads_elsewhere_is_none(home: Path, here: LocalFiles, level: int) -> None:
    """``files``, attempt, index and run are each moved away, and replaced by a link."""
    place = [home, *home.parents][level]
    place.rename(home.parents[4] / "moved")
    place.symlink_to(home.parents[4] / "moved")
    assert here.list(RUN, TASK, 10) is None
    assert here.read(RUN, TASK, "items.jsonl", 0, 10) is None


def test_files_of_another_run_are_not_this_ones(home: Path, here: LocalFiles) -> None:
    (home / "items.jsonl").write_text("of the run whose number came again")
    (home.parent / files.LOG).write_text("a line of it")
    later = RunRef(RUN.run_id, "u8")
    assert here.list(later, TASK, 10) is None
    assert here.files(later, [TASK]) == [], "nothing of it goes into an archive"
    assert LocalLogs(home.parents[4]).read(later, TASK, None, 10) is None


def test_what_is_not_there_is_none(tmp_path: Path) -> None:
    assert LocalFiles(tmp_path / "nowhere").list(RUN, TASK, 10) is None
