"""Moments between two system calls, forced: whoever comes in between, nothing is lost and nothing is made up."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from local_bench import RUN, Bench

from crawler_lifecycle.adapters.local import folder as files
from crawler_lifecycle.adapters.local import identity
from crawler_lifecycle.adapters.local.identity import Identity, Stat, members
from crawler_lifecycle.domain.task import Phase

#: Leaves a child behind and ends, once somebody closes its standard input.
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


# --- who still runs ---------------------------------------------------------------------------------------------------


def test_a_child_that_was_left_while_processes_were_listed_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parent was in the list and has ended before anybody read it; it came too late for the list."""
    marks = files.marks(77, 1, str(tmp_path))
    environment = dict(entry.decode().split("=", 1) for entry in marks)
    command = [sys.executable, "-I", "-S", "-c", FORKS_AND_ENDS]
    read, left = identity.read_stat, list[int]()
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:

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


def test_a_crawler_that_has_not_made_its_group_yet_is_killed(bench: Bench) -> None:
    """Its supervisor opened the gate and was killed before the fork had its first moment of time."""
    bench.deploy("pass")
    bench.until_on_file()
    (bench.folder() / "end.json").unlink()
    (bench.folder() / "summary.json").unlink()
    with subprocess.Popen(["/bin/sleep", "300"]) as fork:
        assert os.getpgid(fork.pid) == os.getpgid(0)
        files.replace(str(bench.folder() / "process.json"), Identity.of(fork.pid).to_json())
        assert bench.look().phase is Phase.EXECUTING
        bench.cluster.kill(RUN, bench.ref())
        killed = fork.poll() == -9
        fork.kill()
    assert killed
    end = bench.look().end
    assert end is not None
    assert (end.exit_code, end.signal) == (137, 9)


# --- what an error says -----------------------------------------------------------------------------------------------


def test_without_descriptors_nothing_is_said_of_a_file_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other threads may hold them all for a moment; the kernel says so before it looks for the file."""

    def no_more(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "open", no_more)
    with pytest.raises(OSError, match="Too many open files"):
        files.read(str(tmp_path / "process.json"))
