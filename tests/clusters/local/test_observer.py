"""The observer of the local cluster, when what it watches is killed, hidden, foreign or from
another build.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from crawler_lifecycle.clusters.local import observer
from crawler_lifecycle.clusters.local.folders import arrivals
from crawler_lifecycle.clusters.local.folders import folder as files
from crawler_lifecycle.clusters.local.folders.reader import TaskFolder, task_name
from crawler_lifecycle.clusters.local.observer import LocalObserver
from crawler_lifecycle.clusters.local.processes import liveness_marks
from crawler_lifecycle.domain.task import Phase
from tests.clusters.local.local_fixture import (
    DOUBLE_FORK,
    FORGER,
    POLITE,
    RUN,
    SLEEP,
    Fixture,
    wait_until,
)
from tests.contracts.observer.observer_harness import Told
from tests.support.run_refs import run_ref

NAME = task_name(run_ref(RUN), 0, 1)


@pytest.fixture
def told(fixture: Fixture) -> Iterator[Told]:
    told = Told(LocalObserver(fixture.state))
    with told.watching():
        yield told


def a_whole_turn(told: Told) -> None:
    """Wait until the observer has completed a turn that began after now; it reports its state at
    the end of each turn.
    """
    for _ in range(2):
        seen = told.observer.health()
        wait_until(lambda seen=seen: told.observer.health() is not seen)


def marks(fixture: Fixture, folder: str) -> list[str]:
    return sorted(os.listdir(fixture.state / folder))


def test_a_mark_lives_as_long_as_its_task(fixture: Fixture) -> None:
    fixture.fill(1)
    assert (marks(fixture, liveness_marks.LIVE), marks(fixture, liveness_marks.ENDED)) == (
        [NAME],
        [],
    )
    fixture.slay(fixture.crawler_process())
    fixture.until_over()
    wait_until(
        lambda: (
            (marks(fixture, liveness_marks.LIVE), marks(fixture, liveness_marks.ENDED))
            == ([], [NAME])
        )
    )
    liveness_marks.forget(str(fixture.state))
    assert marks(fixture, liveness_marks.ENDED) == [NAME]
    liveness_marks.forget(str(fixture.state), keep_s=-1)
    assert marks(fixture, liveness_marks.ENDED) == []


def test_a_start_and_an_end_are_told_by_the_kernel_alone_when_a_poll_sees_them(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is reported once, and not earlier: the recipient polls once, in the observer's thread."""
    # It reads once, and then when the kernel reports something.
    monkeypatch.setattr(observer, "CHECK_S", 1e6)
    seen: list[Phase] = []
    over, seeing = threading.Event(), LocalObserver(fixture.state)

    def changed(run_id: int, at: datetime, tasks: frozenset[tuple[int, int]] | None) -> None:
        seen.append(fixture.poll().phase)

    thread = threading.Thread(target=seeing.watch, args=(changed, over))
    thread.start()
    try:
        wait_until(lambda: seeing.health().up)
        fixture.start(POLITE)
        wait_until(lambda: seen == [Phase.EXECUTING])
        fixture.cluster.stop(run_ref(RUN), fixture.ref())
        fixture.until_on_file()
        wait_until(lambda: seen == [Phase.EXECUTING, Phase.ENDED])
    finally:
        over.set()
        thread.join()
    assert seen == [Phase.EXECUTING, Phase.ENDED]


@pytest.mark.parametrize("lacks", ["inotify", "an instance", "a watch"])
def test_where_the_kernel_tells_nothing_the_marks_are_read(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, lacks: str
) -> None:
    calls = {"inotify_init1": lambda flags: -1} if lacks == "an instance" else {}
    if lacks == "a watch":
        calls = {"inotify_init1": lambda flags: os.dup(0), "inotify_add_watch": lambda *_: -1}
    monkeypatch.setattr(arrivals.ctypes, "CDLL", lambda *_, **__: SimpleNamespace(**calls))
    monkeypatch.setattr(observer, "CHECK_S", 1e6)
    told = Told(LocalObserver(fixture.state))
    with told.watching():
        told.after(lambda: fixture.fill(1))
        told.after(lambda: fixture.slay(fixture.crawler_process()))
    assert [one.getMessage()[:40] for one in caplog.records if "inotify" in one.message] == [
        "changes of folders are found only by rea"
    ]


@pytest.mark.parametrize("name", [files.STARTED, liveness_marks.ENDED])
def test_a_folder_that_was_replaced_is_watched_in_its_place(
    fixture: Fixture, told: Told, name: str
) -> None:
    os.rename(fixture.state / name, fixture.state / "away")
    (fixture.state / name).mkdir()
    told.after(lambda: fixture.fill(1))
    told.after(lambda: fixture.slay(fixture.crawler_process()))
    wait_until(lambda: told.observer.health().watched == 0)


def test_a_killed_supervisor_is_told_and_then_the_end_of_its_crawler(
    fixture: Fixture, told: Told
) -> None:
    fixture.fill(1)
    told.quiet()
    told.after(lambda: fixture.slay(fixture.supervisor()))
    told.quiet()
    told.after(lambda: fixture.slay(fixture.runner(), fixture.crawler_process()))
    assert fixture.poll().phase in (Phase.ENDED, Phase.GONE)
    wait_until(lambda: marks(fixture, liveness_marks.LIVE) == [])
    wait_until(lambda: told.observer.health().watched == 0)


def test_what_a_dead_crawler_left_running_is_watched_to_its_end(
    fixture: Fixture, told: Told
) -> None:
    fixture.start(DOUBLE_FORK + "time.sleep(300)")
    wait_until((fixture.folder() / "files/daemon").exists)
    daemon = int((fixture.folder() / "files/daemon").read_text())
    told.quiet()
    fixture.slay(fixture.supervisor())
    fixture.slay(fixture.crawler_process(), fixture.runner())
    told.quiet()
    a_whole_turn(told)
    assert told.observer.health().watched == 1
    told.after(lambda: os.kill(daemon, 9))
    wait_until(lambda: told.observer.health().watched == 0)


def test_a_forged_end_is_none_and_the_true_one_is_told(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observer, "CHECK_S", 0.0)  # each turn looks into every folder
    told = Told(LocalObserver(fixture.state))
    with told.watching():
        fixture.start(FORGER + POLITE)
        a_whole_turn(told)
        assert told.observer.health().watched == 1
        told.quiet()
        told.after(lambda: fixture.cluster.kill(run_ref(RUN), fixture.ref()))
        wait_until(lambda: told.observer.health().watched == 0)


def test_a_supervisor_that_dies_in_the_queue_is_told(fixture: Fixture, told: Told) -> None:
    fixture.fill(2)
    fixture.queue(2)
    told.quiet()
    told.after(lambda: fixture.slay(fixture.supervisor(2)))
    assert fixture.poll(2).phase is Phase.GONE


def test_a_folder_that_is_taken_away_is_told_at_once_and_its_end_again(
    fixture: Fixture, told: Told
) -> None:
    fixture.fill(1)
    supervisor, runner, crawler = fixture.supervisor(), fixture.runner(), fixture.crawler_process()
    told.quiet()
    told.after(lambda: shutil.rmtree(fixture.folder()))
    assert all(one.alive() for one in (supervisor, runner, crawler))
    told.after(lambda: fixture.slay(crawler))
    wait_until(lambda: told.observer.health().watched == 0)


def test_a_supervisor_that_begins_while_it_is_looked_for_is_not_over(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins between two readings of one poll, and of one turn of the observer."""
    fixture.fill(1)
    crawler = fixture.crawler_process()
    hidden = {
        name: (fixture.folder() / name).read_bytes() for name in ("supervisor.json", "process.json")
    }
    alive, late = TaskFolder.supervisor_alive, [True]

    def begins_meanwhile(folder: TaskFolder) -> bool:
        if not late:
            return alive(folder)
        for name in hidden:
            assert not (folder.path / name).exists()
        for name, content in hidden.items():
            (folder.path / name).write_bytes(content)
        late.clear()
        return False

    monkeypatch.setattr(TaskFolder, "supervisor_alive", begins_meanwhile)
    for name in hidden:
        (fixture.folder() / name).unlink()
    told = Told(LocalObserver(fixture.state))
    with told.watching():
        wait_until(lambda: not late)
        told.quiet()
        a_whole_turn(told)
        assert told.observer.health().watched == 1
        for name in hidden:
            (fixture.folder() / name).unlink()
        with monkeypatch.context() as patch:
            # The crawler has not been forked yet.
            patch.setattr(TaskFolder, "processes", lambda *_: [])
            late.append(True)
            assert fixture.poll().phase is Phase.ABSENT
        assert fixture.poll().phase is Phase.EXECUTING
        told.quiet()
        told.after(lambda: fixture.slay(crawler))


def test_an_end_that_nobody_watched_is_told_while_its_mark_is_kept(fixture: Fixture) -> None:
    fixture.deploy("pass")
    fixture.until_on_file()
    wait_until(lambda: marks(fixture, liveness_marks.ENDED) == [NAME])
    fixture.cluster.remove_old(3600)
    told = Told(LocalObserver(fixture.state))
    with told.watching():
        wait_until(lambda: told.calls)
        assert told.calls[0][1] <= datetime.now(UTC) + timedelta(seconds=1)
    liveness_marks.forget(str(fixture.state), keep_s=-1)
    again = Told(LocalObserver(fixture.state))
    with again.watching():
        assert again.quiet() == 0


def test_foreign_names_and_marks_without_a_task_do_no_harm(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observer, "STALE_S", 0.3)
    for name in (
        "crawl-x-1-1",
        "notes.txt",
        "crawl-01-0-1",
        "crawl-1-0-1-1",
        task_name(run_ref(77), 0, 1),
    ):
        (fixture.state / liveness_marks.LIVE / name).touch()
    (fixture.state / liveness_marks.ENDED / "crawl--1-0").touch()
    (fixture.state / "tasks" / "notes").mkdir()
    told = Told(LocalObserver(fixture.state))
    with told.watching():
        wait_until(lambda: task_name(run_ref(77), 0, 1) not in marks(fixture, liveness_marks.LIVE))
        told.after(lambda: fixture.fill(1))
        assert {run for run, _ in told.calls} <= {RUN, 77}


def test_a_deployment_that_comes_again_after_its_mark_was_dropped_is_watched(
    fixture: Fixture, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deploying process was killed between the mark and the supervisor, and the next try is
    late.
    """
    with monkeypatch.context() as patch:
        patch.setattr(observer, "STALE_S", 0.3)
        told.after(lambda: liveness_marks.begin(str(fixture.state / liveness_marks.LIVE / NAME)))
        wait_until(
            lambda: (
                told.observer.health().watched == 0 and marks(fixture, liveness_marks.LIVE) == []
            )
        )
    told.quiet()
    told.after(lambda: fixture.fill(1))
    wait_until(lambda: told.observer.health().watched == 1)
    told.quiet()
    told.after(lambda: fixture.slay(fixture.crawler_process()))


def test_a_mark_that_is_dropped_while_its_supervisor_is_on_its_way_comes_back(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = liveness_marks.begin

    def dropped_at_once(mark: str) -> None:
        begin(mark)
        liveness_marks.drop(mark)

    monkeypatch.setattr(liveness_marks, "begin", dropped_at_once)
    fixture.fill(1)
    assert marks(fixture, liveness_marks.LIVE) == [NAME]


def test_garbage_in_the_folder_hides_no_end(fixture: Fixture, told: Told) -> None:
    fixture.fill(1)
    supervisor, crawler = fixture.supervisor(), fixture.crawler_process()
    told.quiet()
    (fixture.folder() / "process.json").write_text("{")
    (fixture.folder() / "supervisor.json").write_text("[]")
    told.after(lambda: fixture.slay(crawler))
    wait_until(lambda: not supervisor.alive())
    wait_until(lambda: told.observer.health().watched == 0)


def test_an_observer_that_is_there_before_the_cluster_leaves_it_to_be_made(
    make_fixture: Callable[..., Fixture], tmp_path: Path
) -> None:
    """Two processes begin in an empty folder. What the observer creates does not suggest that tasks
    ever existed.
    """
    told = Told(LocalObserver(tmp_path / "state"))
    with told.watching():
        fixture = make_fixture()
        assert fixture.poll().phase is Phase.ABSENT
        told.after(lambda: fixture.fill(1))


def test_observers_have_places_and_move_up(fixture: Fixture) -> None:
    over, second = threading.Event(), LocalObserver(fixture.state)
    first = LocalObserver(fixture.state)
    thread = threading.Thread(target=first.watch, args=(lambda *change: None, over))
    thread.start()
    wait_until(lambda: first.health().up)
    with Told(second).watching():
        assert (first.health().place, second.health().place) == (0, 1)
        over.set()
        thread.join()
        wait_until(lambda: second.health().place == 0)


def test_a_flaw_in_whoever_is_told_does_not_end_the_watch(fixture: Fixture) -> None:
    seen = Told(LocalObserver(fixture.state))
    bad = [1, 1]

    def changed(run_id: int, at: datetime, tasks: frozenset[tuple[int, int]] | None) -> None:
        if bad:
            bad.pop()
            raise ZeroDivisionError
        seen(run_id, at, tasks)

    over = threading.Event()
    thread = threading.Thread(target=seen.observer.watch, args=(changed, over))
    thread.start()
    fixture.deploy(SLEEP)
    try:
        wait_until(lambda: seen.calls)
    finally:
        over.set()
        thread.join()


def test_watching_is_cheap(fixture: Fixture) -> None:
    """The work does not grow with ended runs, because their folders are never opened."""
    for run in range(100, 300):
        (fixture.state / liveness_marks.ENDED / task_name(run_ref(run), 0, 1)).touch()
    (fixture.state / "tasks").rmdir()
    (fixture.state / "tasks").write_text("unreadable as a folder")
    told = Told(LocalObserver(fixture.state))
    with told.watching():
        wait_until(lambda: len({run for run, _ in told.calls}) == 200)
        a_whole_turn(told)
        assert (told.observer.health().up, told.quiet()) == (True, 200)
    (fixture.state / "tasks").unlink()
    (fixture.state / "tasks").mkdir()
