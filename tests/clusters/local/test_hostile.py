"""Crawlers that replace our files and folders harm only themselves, and can be stopped."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from crawler_lifecycle.adapters.archive import FolderArchive
from crawler_lifecycle.clusters.local import cluster
from crawler_lifecycle.clusters.local.folders import reader as folder_reader
from crawler_lifecycle.clusters.local.folders.logs import LocalLogs
from crawler_lifecycle.clusters.local.observer import LocalObserver
from crawler_lifecycle.clusters.local.processes import identity
from crawler_lifecycle.domain.task import LOG_TAIL_BYTES, Phase
from crawler_lifecycle.ports.runs import TaskRef
from tests.clusters.local.local_fixture import (
    DOUBLE_FORK,
    FORGER,
    POLITE,
    RUN,
    SLEEP,
    STUBBORN,
    Fixture,
    wait_until,
)
from tests.support.run_refs import run_ref

pytestmark = pytest.mark.processes

KINDS = ("nothing", "file", "link", "loop", "pipe", "elsewhere")
#: Files of a task with contents, and what a crawler may write into them to avoid being stopped.
LIES = {
    "spec.json": {"uid": "another"},
    "supervisor.json": None,
    "process.json": {"pid": 2, "start": 1, "boot": "none"},
    "stop.json": {},
    "signalled.json": {},
    "end.json": {"exit_code": 0, "reason": "Completed"},
    "summary.json": {"finish_reason": "finished", "exit": 0},
    "stats.json": {"pages": 10**400, "updated_at": "9999-01-01T00:00:00Z"},
    "lock": None,
}


def place(fixture: Fixture, level: str) -> Path:
    return {
        "run": fixture.folder().parents[1],
        "index": fixture.folder().parent,
        "attempt": fixture.folder(),
    }[level]


def put(path: Path, kind: str) -> None:
    """Put something else in the place of the folder."""
    path.rename(path.with_name(f"{path.name}.away"))
    if kind == "file":
        path.touch()
    elif kind == "link":
        path.symlink_to(path.with_name(f"{path.name}.away"))
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "elsewhere":
        path.symlink_to("/etc")


def known(fixture: Fixture, index: int = 0) -> TaskRef:
    uid = json.loads((fixture.folder(index) / "spec.json").read_text())["uid"]
    return replace(fixture.ref(index), uid=uid)


@pytest.fixture
def watched(fixture: Fixture) -> Iterator[Callable[[], list[int]]]:
    """An observer of everything, and its reports."""
    told: list[int] = []
    over = threading.Event()
    observer = LocalObserver(fixture.state)

    def heard(run_id: int, at: datetime, tasks: object) -> None:
        told.append(run_id)

    thread = threading.Thread(target=observer.watch, args=(heard, over))
    thread.start()
    wait_until(lambda: observer.health().up)

    def ask() -> list[int]:
        assert observer.health().up, observer.health().problem
        return told

    yield ask
    over.set()
    thread.join()


#: Level and kind, and whether it is a stop or a kill: all combinations would be a long matrix.
PLACES = [
    *(("attempt", kind) for kind in KINDS),
    ("index", "file"),
    ("run", "loop"),
    ("run", "nothing"),
]
REPLACED = [
    pytest.param(level, kind, force, marks=[pytest.mark.slow] if force is bool(number % 2) else [])
    for number, (level, kind) in enumerate(PLACES)
    for force in (False, True)
]


@pytest.mark.parametrize(("level", "kind", "force"), REPLACED)
def test_a_task_whose_folder_was_replaced_is_stopped_by_its_name(
    fixture: Fixture, watched: Callable[[], list[int]], level: str, kind: str, force: bool
) -> None:
    signals = fixture.state / "signals"  # the crawler's own folder no longer exists
    fixture.start(STUBBORN if force else POLITE.replace('files + "/signals"', repr(str(signals))))
    task, supervisor, runner = known(fixture), fixture.supervisor(), fixture.runner()
    put(place(fixture, level), kind)
    assert fixture.cluster.poll(run_ref(RUN), [task]).observations[0].phase is Phase.EXECUTING
    for _ in range(2):
        (fixture.cluster.kill if force else fixture.cluster.stop)(run_ref(RUN), task)
    wait_until(lambda: not runner.alive())
    wait_until(lambda: not supervisor.alive())
    seen = fixture.cluster.poll(run_ref(RUN), [task]).observations[0]
    assert (seen.end.exit_code, seen.end.finish_reason) == (137 if force else 11, None)
    assert fixture.running() == []
    watched()
    path = place(fixture, level)
    if os.path.lexists(path):
        path.unlink()
    path.with_name(f"{path.name}.away").rename(path)
    assert force or signals.read_text() == "x", "one signal, however often it is asked"


def test_a_kill_by_name_is_no_stop_before(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor that is asked to end passes the stop signal on to a crawler that is still alive."""
    signals = fixture.state / "signals"
    fixture.start(POLITE.replace('files + "/signals"', repr(str(signals))))
    task, supervisor = known(fixture), fixture.supervisor()
    put(place(fixture, "attempt"), "file")

    def slowly(victims: list[identity.Stat]) -> int:
        time.sleep(0.3)
        return identity.kill_all(victims)

    monkeypatch.setattr(cluster, "kill_all", slowly)
    fixture.cluster.kill(run_ref(RUN), task)
    assert not supervisor.alive()
    assert not signals.exists()
    folder = place(fixture, "attempt")
    folder.unlink()
    folder.with_name(f"{folder.name}.away").rename(folder)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *((name, "lie") for name in LIES),
        *((name, "folder") for name in ("spec.json", "lock")),
        *(
            pytest.param(name, "folder", marks=pytest.mark.slow)
            for name in LIES
            if name not in ("spec.json", "lock")
        ),
        *((name, "gone") for name in ("spec.json", "supervisor.json", "process.json", "lock")),
    ],
)
def test_no_lie_in_a_file_keeps_a_stop_from_a_crawler(
    fixture: Fixture, name: str, how: str
) -> None:
    fixture.start(STUBBORN)
    fixture.deploy(SLEEP, range(1, 2))
    fixture.until(Phase.EXECUTING, 1)
    task, other = known(fixture), fixture.runner(1)
    path, lie = fixture.folder() / name, LIES[name]
    path.unlink(missing_ok=True)
    if how == "folder":
        path.mkdir()
    elif how == "lie":
        # Somebody else's processes, in place of our own.
        told = fixture.supervisor(1)._asdict() if name == "supervisor.json" else lie
        path.write_text(json.dumps(told))
    assert (
        fixture.cluster.poll(run_ref(RUN), [task]).observations[0].phase is Phase.EXECUTING
        or name == "spec.json"
    )
    fixture.cluster.stop(run_ref(RUN), task)
    fixture.cluster.kill(run_ref(RUN), task)
    runs = folder_reader.TaskFolder(fixture.cluster._state, run_ref(RUN), fixture.ref())
    wait_until(lambda: runs.named() == ([], []))
    assert fixture.cluster.poll(run_ref(RUN), [task]).observations[0].phase in (
        Phase.ENDED,
        Phase.GONE,
    ) or (name == "spec.json")
    assert other.alive()
    assert fixture.poll(1).phase is Phase.EXECUTING


def test_an_end_that_the_crawler_wrote_is_set_aside(fixture: Fixture) -> None:
    fixture.start(POLITE)
    for name in ("end.json", "summary.json"):
        (fixture.folder() / name).write_text(json.dumps(LIES[name]))
    seen = fixture.poll()
    assert (seen.phase, seen.end) == (Phase.EXECUTING, None)
    fixture.cluster.stop(run_ref(RUN), fixture.ref())
    seen = fixture.until_on_file()
    assert seen.end.finish_reason == "shutdown"
    assert json.loads((fixture.folder() / "end.json").read_text())["exit_code"] == 11
    assert json.loads((fixture.folder() / "end.json.forged").read_text()) == LIES["end.json"]


#: Executes itself again without an environment: only its runner still shows to which task it
#: belongs.
UNMARKED = """
import sys
ready = os.environ["CRAWL_FILES_DIR"] + "/ready"
wait = "import sys, time; open(sys.argv[1], 'w').close(); time.sleep(300)"
os.execve(sys.executable, ["hidden", "-I", "-S", "-c", wait, ready], {})
"""


@pytest.mark.parametrize("code", [FORGER + POLITE, FORGER + UNMARKED], ids=["marked", "unmarked"])
def test_an_end_with_dead_processes_counts_only_when_nothing_executes(
    fixture: Fixture, code: str
) -> None:
    fixture.start(code)
    fixture.deploy("pass", range(1, 2))
    fixture.until_on_file(1)
    forger = known(fixture)
    seen = fixture.cluster.poll(run_ref(RUN), [forger, fixture.ref(1)]).observations
    assert [one.phase for one in seen] == [Phase.EXECUTING, Phase.ENDED]
    assert seen[0].end is None
    fixture.cluster.kill(run_ref(RUN), forger)
    wait_until(lambda: fixture.running() == [])
    assert fixture.cluster.poll(run_ref(RUN), [forger]).observations[0].phase is Phase.ENDED


def test_a_forged_end_closes_no_log(fixture: Fixture) -> None:
    fixture.start(FORGER + POLITE)

    def ended() -> bool:
        part = LocalLogs(fixture.state).read(run_ref(RUN), fixture.ref(), None, 1000)
        return part is not None and part.ended

    assert not ended()
    fixture.cluster.kill(run_ref(RUN), known(fixture))
    wait_until(ended)


def test_all_tasks_of_a_poll_share_one_reading_of_the_processes(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixture.deploy("pass", range(3))
    for index in range(3):
        fixture.until_on_file(index)
    asked: list[int] = []
    really = identity.still_alive

    def counted(tasks: dict[str, list[bytes]]) -> set[str]:
        asked.append(len(tasks))
        return really(tasks)

    refs = [fixture.ref(index) for index in range(3)]
    with monkeypatch.context() as patch:
        patch.setattr(cluster, "still_alive", counted)
        for alone in ("members", "named"):
            patch.setattr(folder_reader, alone, None)
        seen = fixture.cluster.poll(run_ref(RUN), refs).observations
    assert {one.phase for one in seen} == {Phase.ENDED}
    assert asked == [3]


def test_what_a_folder_was_replaced_with_is_in_no_archive(fixture: Fixture, tmp_path: Path) -> None:
    secret = tmp_path / "secrets" / "files"
    secret.mkdir(parents=True)
    (secret / "key").write_text("secret")
    fixture.deploy("pass")
    fixture.until_on_file()
    archive = FolderArchive((tmp_path / "archive").as_uri())
    for level in ("attempt", "files"):
        sources = fixture.files.files(run_ref(RUN), [fixture.ref()])
        path = fixture.folder() if level == "attempt" else fixture.folder() / "files"
        path.rename(path.with_name("away"))
        path.symlink_to(secret.parent if level == "attempt" else secret)
        for asked in (sources, fixture.files.files(run_ref(RUN), [fixture.ref()])):
            stored = archive.store("5/1/x.zip", asked, {"run_id": RUN}, lambda *_: None)
            [path_of] = (tmp_path / "archive").rglob("x.zip")
            with zipfile.ZipFile(path_of) as zipped:
                assert zipped.namelist() == ["manifest.json"]
            assert "task-0" in (stored.note or "")
        path.unlink()
        path.with_name("away").rename(path)


def test_the_observer_goes_on_whatever_lies_in_folders_of_others(
    fixture: Fixture, watched: Callable[[], list[int]], tmp_path: Path
) -> None:
    tasks, deep = fixture.state / "tasks", b"d" * 255
    for number, kind in enumerate(KINDS[1:], 900):
        alone, inside, within = (tasks / str(run_ref(number + more)) for more in (0, 20, 40))
        for path in (alone, inside / "0", within / "0" / "1"):
            path.mkdir(parents=True)
            put(path, kind)
            (fixture.state / "live" / f"crawl-{run_ref(number)}-0-1").touch()
    (tasks / ("9" * 255)).mkdir()
    (fixture.state / "live" / f"crawl-{'9' * 200}-0-1").touch()
    away = tasks / f"{run_ref(905)}.away"
    inner = os.open(away if away.exists() else tasks, os.O_RDONLY)
    for _ in range(100):
        os.mkdir(deep, dir_fd=inner)
        outer, inner = inner, os.open(deep, os.O_RDONLY, dir_fd=inner)
        os.close(outer)
    os.close(inner)
    fixture.start(POLITE)
    for name in ("end.json", "supervisor.json", "spec.json"):
        os.mkfifo(tasks / f"{run_ref(900)}.away" / name)
    wait_until(lambda: RUN in watched())
    told = watched().count(RUN)
    fixture.cluster.stop(run_ref(RUN), fixture.ref())
    fixture.until_on_file()
    wait_until(lambda: watched().count(RUN) > told)
    shutil.rmtree(tasks, ignore_errors=True)
    tasks.mkdir(exist_ok=True)


# --- the log --------------------------------------------------------------------------------------

#: 200 MB as fast as possible.
FLOOD = """
import os
for _ in range(3200):
    os.write(1, b"y" * 65536)
print("after", flush=True)
"""


def test_a_flood_never_takes_more_than_the_cap(fixture: Fixture) -> None:
    fixture.deploy(FLOOD)
    most = 0

    def weigh() -> int:
        weight = 0
        for path in fixture.folder().glob("log*"):
            with suppress(FileNotFoundError):  # renamed meanwhile
                weight += path.stat().st_size
        return weight

    while fixture.poll().phase is not Phase.ENDED:
        most = max(most, weigh())
    fixture.until_on_file()
    most = max(most, weigh())  # a slow machine may not have polled in between
    assert 50 * 2**20 < most <= 101 * 2**20
    assert 50 * 2**20 <= (fixture.folder() / "log.1").stat().st_size <= 51 * 2**20, (
        "it is moved aside when it is full"
    )
    [details] = fixture.cluster.details(run_ref(RUN), [fixture.ref()])
    assert len(details.log_tail or "") == LOG_TAIL_BYTES
    assert "after" in (details.log_tail or "")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("log", kind) for kind in ("link", "pipe", "folder", "gone")),
        ("log.1", "link"),
        ("log.1", "folder"),
    ],
)
def test_nothing_is_opened_that_a_crawler_put_where_its_log_belongs(
    fixture: Fixture, tmp_path: Path, name: str, kind: str
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    make = {
        "link": f"os.symlink({str(victim)!r}, path)",
        "pipe": "os.mkfifo(path)",
        "folder": "os.makedirs(path + '/inner')",
        "gone": "pass",
    }
    fixture.deploy(f"""
import os
path = os.environ["CRAWL_FILES_DIR"] + "/../{name}"
if os.path.lexists(path):
    os.unlink(path)
{make[kind]}
for _ in range(1000):
    os.write(1, b"y" * 65536)
print("after", flush=True)
""")
    seen = fixture.until_on_file()
    assert seen.end.exit_code == 0
    assert victim.read_text() == "precious"
    log = fixture.folder() / "log"
    assert log.is_file()
    assert not log.is_symlink()
    part = LocalLogs(fixture.state).read(run_ref(RUN), fixture.ref(), None, 200)
    assert b"after" in part.data


def test_who_holds_the_pipe_open_holds_no_end_up(fixture: Fixture) -> None:
    """A grandchild in its own session keeps printing; the crawler's own last output is there."""
    fixture.deploy("""
import os, sys, time
if os.fork() == 0:
    os.setsid()
    while True:
        os.write(1, b"on and on\\n")
        time.sleep(0.001)
time.sleep(0.3)
print("last words", flush=True)
""")
    seen = fixture.until_on_file()
    assert seen.end.exit_code == 0
    assert "last words" in (fixture.folder() / "log").read_text()
    assert fixture.running() == []


def test_names_are_those_of_a_task_and_no_other(fixture: Fixture) -> None:
    fixture.start(
        DOUBLE_FORK + "time.sleep(300)\n"
    )  # whatever a crawler leaves at its end is killed
    daemon = int((fixture.folder() / "files/daemon").read_text())
    supervisors, crawlers = folder_reader.TaskFolder(
        fixture.cluster._state, run_ref(RUN), fixture.ref()
    ).named()
    assert [one.pid for one in supervisors] == [fixture.supervisor().pid]
    assert daemon in {one.pid for one in crawlers}
    assert os.getpid() not in {one.pid for one in crawlers}
    assert folder_reader.TaskFolder(fixture.cluster._state, run_ref(RUN), fixture.ref()).named(
        "another"
    ) == ([], [])
    assert folder_reader.TaskFolder(
        fixture.cluster._state, run_ref(RUN), TaskRef(1001, 1, 1)
    ).named() == ([], [])
