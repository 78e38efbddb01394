"""The memory limit of a task, with crawlers that really allocate: by the kernel where possible,
else by watching.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import ANY

import pytest

from crawler_lifecycle.clusters.local import cluster
from crawler_lifecycle.clusters.local.processes import cgroup, identity
from crawler_lifecycle.domain.task import Phase, read_end
from tests.clusters.local.local_fixture import Fixture, wait_until
from tests.support.run_refs import run_ref

pytestmark = pytest.mark.processes

GROW = "import time\nheld = []\nwhile True:\n    held.append(bytearray(b'x' * 2**22)); time.sleep(0.02)\n"
#: Two children, each under the limit, together over it.
FAMILY = """
import os, time
for _ in range(2):
    if os.fork() == 0:
        held = bytearray(b"x" * (60 * 2**20))
        time.sleep(300)
time.sleep(300)
"""
#: Forked children share their parent's memory, which counts once.
SHARED = """
import os, time
held = bytearray(60 * 2**20)
for place in range(0, len(held), 4096):
    held[place] = 1
for _ in range(3):
    if os.fork() == 0:
        time.sleep(1.5)
        os._exit(0)
time.sleep(1.5)
"""
UNTIL_GO = """
import os, time
files = os.environ["CRAWL_FILES_DIR"]
open(files + "/ready", "w").close()
while not os.path.exists(files + "/go"):
    time.sleep(0.01)
"""
FAST = "held = bytearray(b'x' * (90 * 2**20))\nraise SystemExit(1)\n"
#: Without environment marks and outside the group: a daemon with its own environment.
HIDDEN = """
import os, time
files = os.environ["CRAWL_FILES_DIR"]
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve("/bin/sleep", ["sleep", "59.371"], {})
    os._exit(0)
os.wait()
open(files + "/ready", "w").close()
time.sleep(300)
"""


def _unavailable() -> str | None:
    try:
        cgroup.find()
    except cgroup.Unavailable as why:
        return str(why)
    return None


WHY_NOT = _unavailable()
#: If the kernel offers no such group, these belong to `make test-all`, which reports that it skips
#: them.
UNABLE = [
    pytest.mark.slow,
    pytest.mark.skip(reason=f"no cgroup can be made on this machine: {WHY_NOT}"),
]
NEEDS_CGROUP = [] if WHY_NOT is None else UNABLE


def needs_cgroup(test: Callable[..., None]) -> Callable[..., None]:
    for mark in NEEDS_CGROUP:
        test = mark(test)
    return test


@pytest.fixture(params=["watched", pytest.param("kernel", marks=NEEDS_CGROUP)])
def fixture(request: pytest.FixtureRequest, make_fixture: Callable[..., Fixture]) -> Fixture:
    return make_fixture(cgroup_setting="off" if request.param == "watched" else "auto")


@pytest.fixture
def kernel(make_fixture: Callable[..., Fixture]) -> Iterator[Fixture]:
    made = make_fixture(cgroup_setting="auto")
    yield made
    # The supervisor removes it once the end is on file; after a kill, the next poll does.
    wait_until(lambda: made.poll() and groups(made) == [])


def groups(fixture: Fixture) -> list[str]:
    """Return the existing cgroups of the fixture's task."""
    spec = fixture.folder() / "spec.json"
    if not spec.exists():
        return []
    folder = cgroup.Group.of(json.loads(spec.read_text())).folder
    return [folder] if os.path.exists(folder) else []


@pytest.mark.parametrize(
    "code", [GROW, FAMILY, FAST], ids=["grows", "family", "fails at the limit"]
)
def test_over_the_limit_is_out_of_memory(fixture: Fixture, code: str) -> None:
    fixture.deploy(code, memory="80Mi")
    seen = fixture.until_on_file()
    assert seen.end.reason == "OOMKilled"
    assert seen.end.memory_limit == "80Mi"
    assert seen.peak_memory is not None
    assert seen.peak_memory >= 80 * 2**20
    assert (seen.end.exit_code, seen.end.signal) in ((137, 9), (1, None))
    assert read_end(seen.end).outcome == "killed by oom"
    assert read_end(seen.end).cause.startswith("Out of memory (limit 80Mi), ")


def test_processes_that_go_while_memory_is_read_are_not_counted_for_those_they_shared_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Four processes share 60. Each is read after another has ended, and then has a larger share."""
    mebi = 2**20
    shares, alive = iter([15 * mebi, 20 * mebi, 30 * mebi, 60 * mebi]), [1, 2, 3, 4]

    def ask(pid: int) -> int:
        if len(alive) > 1:
            alive.remove(pid)
        return next(shares)

    monkeypatch.setattr(identity, "descendants", lambda pid: list(alive))
    monkeypatch.setattr(identity, "resident", lambda pid: 60 * mebi)
    monkeypatch.setattr(identity, "proportional", ask)
    assert identity.memory_of(1, 110 * mebi) == 60 * mebi


def test_a_family_that_never_keeps_still_is_not_over_the_limit_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """But a single process that never changes is, and so is a process tree whose exact sum is over
    it.
    """
    born = iter(range(100))
    monkeypatch.setattr(identity, "descendants", lambda pid: [pid, next(born)])
    monkeypatch.setattr(identity, "resident", lambda pid: 60)
    monkeypatch.setattr(identity, "proportional", lambda pid: 60)
    assert identity.memory_of(7, 110) == 109
    monkeypatch.setattr(identity, "descendants", lambda pid: [pid, 8])
    assert identity.memory_of(7, 110) == 120


@pytest.fixture
def nobody_wakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped supervisor stands for a slow one."""
    monkeypatch.setattr(cluster, "wake_supervisors", lambda tasks: None)


@pytest.mark.usefixtures("nobody_wakes")
def test_a_slow_supervisor_hides_no_kill_for_memory(make_fixture: Callable[..., Fixture]) -> None:
    """It writes the reason before it kills; a poll before the end is on file reads that."""
    fixture = make_fixture(cgroup_setting="off")
    fixture.start(UNTIL_GO + GROW, memory="80Mi")
    fixture.supervisor().send(signal.SIGSTOP)
    oom = {"message": "It held 1 bytes, the limit is 0 bytes", "peak_memory": 81 * 2**20}
    (fixture.folder() / "oom.json").write_text(json.dumps(oom))
    fixture.slay(fixture.runner(), fixture.crawler_process())
    seen = fixture.until(Phase.ENDED)
    assert (seen.end.reason, seen.end.exit_code, seen.end.signal) == ("OOMKilled", 137, 9)
    assert (
        seen.end.message
        == "Its supervisor had not written the end. It held 1 bytes, the limit is 0 bytes"
    )
    assert seen.peak_memory == 81 * 2**20


@needs_cgroup
@pytest.mark.usefixtures("nobody_wakes")
def test_a_slow_supervisor_hides_no_kill_of_the_kernel(kernel: Fixture) -> None:
    kernel.start(UNTIL_GO + GROW, memory="80Mi")
    supervisor = kernel.supervisor()
    supervisor.send(signal.SIGSTOP)
    (kernel.folder() / "files/go").touch()
    seen = kernel.until(Phase.ENDED)
    assert not (kernel.folder() / "end.json").exists()
    assert seen.end.reason == "OOMKilled"
    supervisor.send(signal.SIGCONT)
    assert kernel.until_on_file().end == replace(seen.end, message=ANY, finished_at=ANY)


@pytest.mark.usefixtures("nobody_wakes")
@pytest.mark.parametrize("supervised", [True, False])
def test_who_fails_at_the_limit_is_out_of_memory_without_its_supervisor_too(
    make_fixture: Callable[..., Fixture], supervised: bool
) -> None:
    fixture = make_fixture(cgroup_setting="off")
    fixture.start(UNTIL_GO + FAST, memory="80Mi")
    supervisor = fixture.supervisor()
    if supervised:
        supervisor.send(signal.SIGSTOP)
    else:
        fixture.slay(supervisor)
    (fixture.folder() / "files/go").touch()
    seen = fixture.until(Phase.ENDED)
    assert (seen.end.reason, seen.end.exit_code) == ("OOMKilled", 1)
    assert "It failed after it had used " in (seen.end.message or "")
    supervisor.send(signal.SIGCONT)


def test_shared_pages_count_once(fixture: Fixture) -> None:
    fixture.deploy(SHARED, memory="110Mi")
    seen = fixture.until(Phase.ENDED)
    assert seen.end.reason == "Completed"


def test_more_than_can_ever_be_had_is_refused_by_the_kernel(
    make_fixture: Callable[..., Fixture],
) -> None:
    fixture = make_fixture(cgroup_setting="off")
    fixture.deploy("held = bytearray(2**33)", memory="80Mi")
    seen = fixture.until(Phase.ENDED)
    assert (seen.end.exit_code, seen.end.reason) == (1, "Error")
    [details] = fixture.cluster.details(run_ref(5), [fixture.ref()])
    assert "MemoryError" in (details.log_tail or "")


# --- by the kernel --------------------------------------------------------------------------------


@needs_cgroup
def test_the_limits_stand_in_the_group_while_it_runs_and_the_group_goes_with_it(
    kernel: Fixture,
) -> None:
    kernel.start(
        "import os, time; open(os.environ['CRAWL_FILES_DIR'] + '/ready', 'w'); time.sleep(300)",
        memory="96Mi",
        cpu="250m",
    )
    [folder] = groups(kernel)
    found = {name: Path(folder, name) for name in os.listdir(folder)}
    assert found["memory.max"].read_text().strip() == str(96 * 2**20)
    assert found["cpu.max"].read_text().split() == ["25000", "100000"]
    inside = {int(pid) for pid in found["cgroup.procs"].read_text().split()}
    assert {kernel.runner().pid, kernel.crawler_process().pid} <= inside
    assert kernel.supervisor().pid not in inside
    kernel.cluster.stop(run_ref(5), kernel.ref())
    kernel.until(Phase.ENDED)
    wait_until(lambda: not groups(kernel))
    wait_until(lambda: not (kernel.folder() / "cgroup.json").exists())


@needs_cgroup
def test_without_limits_there_is_no_group(kernel: Fixture) -> None:
    kernel.deploy("pass")
    kernel.until(Phase.ENDED)
    assert not (kernel.folder() / "cgroup.json").exists()


@needs_cgroup
@pytest.mark.parametrize("end", [GROW, "raise SystemExit(3)"], ids=["out of memory", "by itself"])
def test_a_killed_supervisor_leaves_the_truth_to_the_next_poll(kernel: Fixture, end: str) -> None:
    kernel.start(f"{UNTIL_GO}{end}", memory="80Mi")
    kernel.slay(kernel.supervisor())
    assert kernel.poll().phase is Phase.EXECUTING
    assert groups(kernel)
    (kernel.folder() / "files/go").touch()
    seen = kernel.until(Phase.ENDED)
    assert seen.end.reason == ("OOMKilled" if end is GROW else "Error")
    assert read_end(seen.end).outcome == ("killed by oom" if end is GROW else "diskusage_exceeded")
    wait_until(lambda: kernel.poll().phase is Phase.ENDED and not groups(kernel))
    again = kernel.poll()
    assert again.end.reason == seen.end.reason
    assert end is not GROW or (again.peak_memory or 0) >= 80 * 2**20


@needs_cgroup
@pytest.mark.parametrize("supervised", [True, False])
def test_what_hides_from_the_marks_is_found_in_the_group(kernel: Fixture, supervised: bool) -> None:
    kernel.start(HIDDEN, memory="80Mi")
    [folder] = groups(kernel)
    inside = [int(pid) for pid in Path(folder, "cgroup.procs").read_text().split()]
    if not supervised:
        kernel.slay(kernel.supervisor())
        kernel.slay(kernel.runner(), kernel.crawler_process())
        assert kernel.poll().phase is Phase.EXECUTING
    kernel.cluster.kill(run_ref(5), kernel.ref())
    assert not any(b"59.371" in _command(pid) for pid in inside)
    assert kernel.poll().phase is Phase.ENDED


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_a_group_that_cannot_be_made_costs_nothing_but_itself(
    make_fixture: Callable[..., Fixture], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroup, "find", lambda setting: cgroup.Parent("/nowhere/at/all", cpu=True))
    fixture = make_fixture()
    fixture.deploy(GROW, memory="80Mi", cpu="1")
    seen = fixture.until(Phase.ENDED)
    assert seen.end.reason == "OOMKilled"
    assert "This task has no cgroup" in (fixture.folder() / "supervisor.log").read_text()


def test_a_spec_that_names_a_foreign_group_is_garbage(
    make_fixture: Callable[..., Fixture], tmp_path: Path
) -> None:
    fixture = make_fixture(cgroup_setting="off")
    fixture.deploy("pass")
    fixture.until(Phase.ENDED)
    wait_until(lambda: not fixture.supervisor().alive())  # while it is alive, it owns the file
    spec = json.loads((fixture.folder() / "spec.json").read_text())
    spec |= {"cgroup": str(tmp_path), "name": "foreign"}
    foreign = tmp_path / f"foreign-{spec['uid'][:8]}"
    foreign.mkdir()
    (fixture.folder() / "spec.json").write_text(json.dumps(spec))
    (fixture.folder() / "cgroup.json").write_text("{}")
    seen = fixture.poll()
    assert seen.phase is Phase.ENDED
    assert "ignored: the spec names no cgroup of this task" in (seen.end.message or "")
    assert foreign.is_dir()
