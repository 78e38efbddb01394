"""The search for changed files below the working folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from crawler_lifecycle.runner import changes
from crawler_lifecycle.runner.changes import changed_since
from crawler_lifecycle.runner.state import (
    NEWER_CODE,
    NO_STATE,
    NOT_ASKED,
    NOT_CLEAN,
    NOT_SAVED,
    UNKNOWN,
    WENT_ON,
    JobState,
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def write(path: Path, at: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    os.utime(path, (at, at))


def test_files_that_were_changed_since_then_are_counted_by_folder(project: Path) -> None:
    for name in ("a", "store/full/b", "store/full/c", "store/thumbs/d"):
        write(project / name, 200)
    write(project / "store" / "old", 99)
    (project / "store" / "dangling").symlink_to("nowhere")
    assert changed_since(100, []) == {
        ".": 1,
        "./store": 1,
        "./store/full": 2,
        "./store/thumbs": 1,
    }, "a link is new"
    assert changed_since(2**40, []) == {}


def test_what_nobody_wants_to_keep_is_left_out(project: Path) -> None:
    for name in (
        ".git/x",
        "demo/__pycache__/x",
        "node_modules/x",
        ".venv/x",
        "runs/7/files/x",
        "runs/8/x",
        "demo/x",
    ):
        write(project / name, 200)
    assert changed_since(100, [str(project / "runs" / "7" / "files")]) == {"./demo": 1}


def test_a_search_ends_in_a_folder_without_an_end(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "FILES_MAX", 10)
    for number in range(20):
        write(project / str(number), 200)
    assert changed_since(100, []) == {}
    monkeypatch.chdir("/")
    assert changed_since(0, []) == {}


@pytest.mark.parametrize(
    ("saved", "newer", "expected"),
    [
        (True, False, (True, WENT_ON)),
        (True, True, (True, NEWER_CODE)),
        (None, True, (True, UNKNOWN)),
        (False, False, (False, NOT_SAVED)),
    ],
)
def test_the_note_says_what_a_resume_goes_on_from(
    project: Path, tmp_path: Path, saved: bool | None, newer: bool, expected: tuple[bool, str]
) -> None:
    state = JobState(str(tmp_path / "state"))
    assert state.open(resume=False) == (False, NOT_ASKED)
    state.saved = saved
    state.mark_clean({"pages": 7})
    write(project / "spider.py", 2**33 if newer else 100)
    assert state.open(resume=True) == expected
    assert state.counted == ({"pages": 7} if expected[0] else {})
    assert all(len(note) <= 200 for note in (NEWER_CODE, NOT_SAVED, NOT_CLEAN, NO_STATE, NOT_ASKED))
