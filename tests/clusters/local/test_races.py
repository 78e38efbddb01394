"""Races between two system calls, forced by tests: nothing is lost and nothing is made up."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from crawler_lifecycle.clusters.local import launch, observation
from crawler_lifecycle.clusters.local import supervisor as supervisors
from crawler_lifecycle.clusters.local.folders import folder as files
from crawler_lifecycle.clusters.local.folders.reader import TaskFolder
from crawler_lifecycle.clusters.local.processes import identity
from crawler_lifecycle.clusters.local.processes.cgroup import Group
from crawler_lifecycle.clusters.local.processes.identity import Identity, Stat, members, read_stat
from crawler_lifecycle.domain.task import Phase
from crawler_lifecycle.ports.runs import DeployedTask
from crawler_lifecycle.runner.safe_directory import SafeDirectory
from tests.clusters.local.local_fixture import POLITE, RUN, SLEEP, Fixture, wait_until
from tests.support.run_refs import run_ref

pytestmark = pytest.mark.processes

#: Leaves a child behind and ends, once its standard input is closed.
FORKS_AND_ENDS = """
import os, sys, time
sys.stdin.read()
pid = os.fork()
if pid:
    print(pid, flush=True)
    os._exit(0)
os.close(1)
time.sleep(300)
"""


# --- who still runs -------------------------------------------------------------------------------


def test_a_child_that_was_left_while_processes_were_listed_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parent was in the list and ended before it was read; the child came too late for the
    list.
    """
    marks = files.marks(77, "a", 1, str(tmp_path))
    environment = dict(entry.decode().split("=", 1) for entry in marks)
    command = [sys.executable, "-I", "-S", "-c", FORKS_AND_ENDS]
    read, left = identity.read_stat, list[int]()
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:

        def read_too_late(pid: int) -> Stat | None:
            if pid == parent.pid and not left:
                told, _ = parent.communicate()
                left.append(int(told))
            return read(pid)

        monkeypatch.setattr(identity, "read_stat", read_too_late)
        found = [stat.pid for stat in members(None, marks)]
    try:
        assert found == left
    finally:
        os.kill(left[0], 9)


@pytest.mark.parametrize("file", [files.SUPERVISOR, files.PROCESS])
@pytest.mark.parametrize("then", ["on its way out", "gone", "there"])
def test_one_that_ends_while_it_is_asked_is_no_stranger(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch, file: str, then: str
) -> None:
    """The kernel removes a process's arguments and environment before its number."""
    fixture.deploy("pass")
    fixture.until_on_file()
    nameless = subprocess.Popen(["/bin/sleep", "300"])  # its arguments do not identify the task
    read, asked = identity.read_stat, list[int]()

    def read_at_its_end(pid: int) -> Stat | None:
        stat = read(pid)
        if pid != nameless.pid or stat is None or then == "there":
            return stat
        asked.append(pid)
        stat.exiting = then == "on its way out"
        return None if then == "gone" and len(asked) > 1 else stat

    try:
        (fixture.folder() / file).write_text(json.dumps(Identity.of(nameless.pid)._asdict()))
        monkeypatch.setattr(identity, "read_stat", read_at_its_end)
        folder = TaskFolder(fixture.state, run_ref(RUN), fixture.ref())
        assert folder.exists()
        found = folder.identity(file)
    finally:
        nameless.kill()
        nameless.wait()
    if then == "there":
        assert found is None
        assert folder.incidents == [f"{file}: it names a process that does not belong to the task"]
    else:
        assert found is not None
        assert folder.incidents == []


def test_a_crawler_that_has_not_made_its_group_yet_is_killed(fixture: Fixture) -> None:
    """Its supervisor opened the gate, and was killed before the fork had executed."""
    fixture.deploy("pass")
    fixture.until_on_file()
    (fixture.folder() / "end.json").unlink()
    (fixture.folder() / "summary.json").unlink()
    with subprocess.Popen([sys.executable, "-S", "-c", SLEEP, str(fixture.folder())]) as fork:
        assert os.getpgid(fork.pid) == os.getpgid(0)
        files.replace(
            files.held(str(fixture.folder())), "process.json", Identity.of(fork.pid)._asdict()
        )
        assert fixture.poll().phase is Phase.EXECUTING
        fixture.cluster.kill(run_ref(RUN), fixture.ref())
        killed = fork.poll() == -9
        fork.kill()
    assert killed
    end = fixture.poll().end
    assert (end.exit_code, end.signal) == (137, 9)


def test_an_end_is_said_when_everything_is_gone_however_long_that_takes(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed process still needs time to disappear, which a starved machine delays."""
    fixture.deploy("pass")
    fixture.until_on_file()
    rounds = 0

    def goes_slowly(*_: object) -> list[Stat]:
        nonlocal rounds
        rounds += 1
        return [own] if rounds < 1000 else []

    own = read_stat(os.getpid())
    assert own is not None
    monkeypatch.setattr(supervisors, "ROUND", 0.0)
    monkeypatch.setattr(supervisors, "members", goes_slowly)
    monkeypatch.setattr(supervisors, "kill_all", lambda victims: len(list(victims)))
    child = os.posix_spawn("/bin/true", ["true"], {}, setsid=True)
    assert supervisors.Supervisor(str(fixture.folder()))._reap(child) in (0, 9)
    assert rounds == 1000


def test_the_word_of_a_living_supervisor_is_awaited_whenever_the_runner_ended(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends between two reads of one poll: its own summary is there, and the end follows a moment
    later.
    """
    fixture.start(POLITE)
    supervisor, runner = fixture.supervisor(), fixture.runner()
    alive, asked = Identity.alive, list[int]()

    def alive_a_moment_ago(self: Identity) -> bool:
        if self.pid == runner.pid and len(asked) < 2:
            asked.append(self.pid)
            return True
        return alive(self)

    supervisor.send(signal.SIGSTOP)
    fixture.crawler_process().send(signal.SIGTERM)
    wait_until(lambda: not runner.alive())
    monkeypatch.setattr(Identity, "alive", alive_a_moment_ago)
    monkeypatch.setattr(observation, "END_SECONDS", 60.0)
    threading.Timer(0.2, supervisor.send, (signal.SIGCONT,)).start()
    seen = fixture.poll()
    assert asked
    assert seen.phase is Phase.ENDED
    assert seen.end.message is None, "the end is the supervisor's, and nothing was missing"


# --- what an error says ---------------------------------------------------------------------------


def test_without_descriptors_nothing_is_said_of_a_file_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other threads may hold all descriptors for a moment; the kernel reports this before it looks
    for the file.
    """

    def no_more(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "open", no_more)
    with pytest.raises(OSError, match="Too many open files"):
        files.read(SafeDirectory(str(tmp_path)), "process.json")


# --- polls and what is taken away -----------------------------------------------------------------


@pytest.mark.parametrize("phase", [Phase.ENDED, Phase.GONE])
def test_a_folder_that_is_taken_away_during_a_poll_is_gone_and_nothing_else(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch, phase: Phase
) -> None:
    """Retention removes it in one step, for example: what is missing from then on is no evidence."""
    [deployed] = fixture.deploy("pass")
    fixture.until_on_file()
    if phase is Phase.GONE:
        for name in ("end.json", "summary.json"):
            (fixture.folder() / name).unlink()
    known = replace(fixture.ref(), uid=deployed.uid)
    before = fixture.cluster.poll(run_ref(RUN), [known]).observations[0]
    assert before.phase is phase
    real_has, real_read = TaskFolder.has, TaskFolder.read

    def take_away() -> None:
        if next(left, None) is None and fixture.folder().exists():
            fixture.folder().rename(fixture.state / "taken")

    def has(folder: TaskFolder, name: str) -> bool:
        take_away()
        return real_has(folder, name)

    def read(folder: TaskFolder, name: str) -> dict[str, object] | None:
        take_away()
        return real_read(folder, name)

    monkeypatch.setattr(TaskFolder, "has", has)
    monkeypatch.setattr(TaskFolder, "read", read)
    for steps in range(12):
        left = iter(range(steps))
        seen = fixture.cluster.poll(run_ref(RUN), [known]).observations[0]
        if fixture.folder().exists():
            assert steps > 5
            assert seen == replace(before, observed_at=seen.observed_at)
        else:
            assert (seen.phase, seen.reason, seen.end) == (
                Phase.GONE,
                "its folder was removed",
                None,
            )
            (fixture.state / "taken").rename(fixture.folder())


def test_a_kill_of_the_kernel_that_another_poll_writes_down_meanwhile_is_told(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other poll removes the group. Whoever reads first one and then the other must find one of
    them.
    """
    fixture.deploy("pass")
    fixture.until_on_file()
    for name in ("end.json", "summary.json"):
        (fixture.folder() / name).unlink()
    oom = fixture.folder() / "oom.json"

    def settle() -> None:
        files.create(files.held(str(fixture.folder())), "oom.json", {"kills": 1, "peak_memory": 7})

    class Counting(Group):
        def oom_kills(self) -> int:
            if oom.exists():
                raise FileNotFoundError(2, "No such file or directory")
            return 1

    def group(folder: TaskFolder) -> Group | None:
        found = None if oom.exists() else Counting("/nowhere")
        settle()
        return found

    real = TaskFolder.has

    def has(folder: TaskFolder, name: str) -> bool:
        found = real(folder, name)
        if name == files.OOM:
            settle()
        return found

    monkeypatch.setattr(TaskFolder, "processes", lambda *_: [])
    monkeypatch.setattr(TaskFolder, "group", group)
    monkeypatch.setattr(TaskFolder, "has", has)
    end = fixture.poll().end
    assert (end.reason, end.exit_code, end.signal) == ("OOMKilled", 137, 9)


def test_a_disk_that_comes_back_while_its_absence_is_judged_is_not_a_folder_removed(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a supervisor thought that its folder was removed, it would not write the end."""
    fixture.deploy("pass")
    fixture.until_on_file()
    tasks, away = fixture.state / "tasks", fixture.state / "away"
    judge, opened = supervisors.Supervisor(str(fixture.folder())), os.open
    tasks.rename(away)

    def back_again(*args: object, **more: object) -> int:
        try:
            return opened(*args, **more)
        finally:
            if away.exists():
                away.rename(tasks)

    monkeypatch.setattr(os, "open", back_again)
    assert not judge._removed()
    assert not judge._removed()
    fixture.folder().rename(fixture.state / "taken")
    assert judge._removed()


# --- deployments ----------------------------------------------------------------------------------


def test_two_deployments_find_the_same_garbage(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second deployment must not remove the spec of the first."""
    fixture.own()
    (fixture.folder() / "files").mkdir(parents=True)
    (fixture.folder() / "spec.json").write_text('{"uid": "x", "argv"')
    really, first = launch.exclusive, list[DeployedTask]()

    def exclusive(state: Path) -> AbstractContextManager[None]:
        monkeypatch.undo()
        first.extend(fixture.deploy("pass"))
        return really(state)

    monkeypatch.setattr(launch, "exclusive", exclusive)
    [second] = fixture.deploy("pass")
    assert [one.state for one in (*first, second)] == ["created", "existing"]
    assert first[0].uid == second.uid
    assert fixture.until_on_file().uid == second.uid


def test_a_new_log_gets_its_name_whoever_makes_one_at_the_same_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two deployments create a task's log: the second one just after the first had freed the name."""
    (tmp_path / "log").write_text("of somebody before")
    free = SafeDirectory.set_aside

    def free_and_lose_it(self: SafeDirectory, name: str) -> None:
        free(self, name)
        (tmp_path / name).write_text("of the other")

    monkeypatch.setattr(SafeDirectory, "set_aside", free_and_lose_it)
    handle = SafeDirectory(str(tmp_path)).new("log")
    os.write(handle, b"ours")
    os.close(handle)
    assert (tmp_path / "log").read_text() == "ours"
    assert {path.name for path in tmp_path.iterdir()} == {"log", "log.forged"}


def test_a_log_that_cannot_get_its_name_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: SafeDirectory, name: str) -> None:
        raise OSError(errno.EROFS, "read-only", name)

    monkeypatch.setattr(SafeDirectory, "set_aside", refuse)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="read-only"):
        SafeDirectory(str(tmp_path)).new("log")
    assert (list(tmp_path.iterdir()), len(os.listdir("/proc/self/fd"))) == ([], before)


@pytest.mark.parametrize("kind", [AttributeError, OSError])
def test_a_signal_is_sent_also_where_python_or_the_kernel_has_no_pidfd(
    monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    """uv's Pythons, which `uvx` uses, are built without it."""

    def absent(pid: int) -> int:
        raise kind("no pidfd here")

    if kind is AttributeError:
        monkeypatch.delattr(os, "pidfd_open")
    else:
        monkeypatch.setattr(os, "pidfd_open", absent)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert Identity.of(child.pid).send(signal.SIGKILL)
        assert child.wait(60) == -signal.SIGKILL
        assert not identity.Identity(child.pid, 1, identity.boot_id()).send(signal.SIGKILL)
