"""SIGKILL from outside, at every process and in every state: polls find what happened."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from crawler_lifecycle.clusters.local.processes.identity import all_processes
from crawler_lifecycle.domain.task import Observation, Phase, TaskStatus, read_end
from tests.clusters.local.local_fixture import RUN, SLEEP, Fixture, wait_until
from tests.support.run_refs import run_ref

pytestmark = pytest.mark.processes

COUNTING = """
import json, os, time
def write(data):
    path = os.environ["CRAWL_STATS_FILE"]
    with open(path + ".tmp", "w") as file:
        json.dump(data, file)
    os.rename(path + ".tmp", path)
write({"pages": 4, "items": 7, "errors": 1, "bytes": 99})
open(os.environ["CRAWL_FILES_DIR"] + "/ready", "w").close()
while not os.path.exists(os.environ["CRAWL_FILES_DIR"] + "/go"):
    time.sleep(0.01)
"""


def how(seen: Observation) -> tuple[int | None, int | None, str | None, str | None]:
    return seen.end.exit_code, seen.end.signal, seen.end.reason, seen.end.finish_reason


def go(fixture: Fixture) -> None:
    (fixture.folder() / "files/go").touch()


def test_the_crawler(fixture: Fixture) -> None:
    fixture.start(COUNTING)
    wait_until(lambda: fixture.poll().counters.items == 7)
    fixture.slay(fixture.crawler_process())
    seen = fixture.until(Phase.ENDED)
    assert how(seen) == (137, 9, "Error", None)
    assert (
        seen.counters.pages,
        seen.counters.items,
        seen.counters.errors,
        seen.counters.bytes,
    ) == (4, 7, 1, 99)
    assert seen.end is not None
    assert read_end(seen.end).status is TaskStatus.FAILED


def test_the_runner_takes_its_crawler_with_it(fixture: Fixture) -> None:
    fixture.start(COUNTING)
    crawler = fixture.crawler_process()
    fixture.slay(fixture.runner())
    seen = fixture.until(Phase.ENDED)
    assert how(seen) == (137, 9, "Error", None)
    assert not crawler.alive()


def test_the_supervisor_is_not_missed(fixture: Fixture) -> None:
    fixture.start(COUNTING)
    fixture.slay(fixture.supervisor())
    seen = fixture.poll()
    assert (seen.phase, seen.reason) == (Phase.EXECUTING, "its supervisor is dead")
    assert seen.started_at is not None
    assert fixture.deploy(COUNTING)[0].state == "existing"
    go(fixture)
    seen = fixture.until(Phase.ENDED)
    assert how(seen) == (0, None, "Completed", "finished")
    assert seen.counters.items == 7
    assert seen.end.finished_at is not None


def test_the_supervisor_and_then_the_crawler(fixture: Fixture) -> None:
    fixture.start(COUNTING)
    fixture.slay(fixture.supervisor())
    fixture.slay(fixture.crawler_process())
    seen = fixture.until(Phase.ENDED)
    assert how(seen) == (137, 9, "Error", None)


def test_all_of_them_leave_nothing_but_the_proof_that_it_is_gone(fixture: Fixture) -> None:
    fixture.start(COUNTING)
    fixture.slay_all()
    seen = fixture.until_over()
    assert seen.started_at is not None
    assert fixture.deploy(COUNTING)[0].state == "existing"  # never a second crawler
    assert fixture.running() == []


def test_a_waiting_supervisor(make_fixture: Callable[..., Fixture]) -> None:
    fixture = make_fixture(slots=1)
    fixture.fill(1)
    fixture.queue(1)
    fixture.slay(fixture.supervisor(1))
    assert fixture.poll(1).phase is Phase.GONE
    assert fixture.deploy(SLEEP, range(1, 2))[0].state == "existing"
    assert fixture.poll(1).phase is Phase.GONE


def test_the_supervisor_while_it_starts_the_crawler(fixture: Fixture) -> None:
    """Whenever it dies, either nothing runs afterwards, or it runs and is seen running."""
    for index in range(5):
        fixture.deploy(SLEEP, range(index, index + 1))
        time.sleep(0.0015 * index)
        supervisor = fixture.supervisor(index)
        fixture.slay(supervisor)
        # The process that it forked for the crawler executes, or exits because nobody opens its
        # gate.
        wait_until(
            lambda index=index: (
                not any(_argument(fixture, index) in _told(pid, "cmdline") for pid in all_pids())
            )
        )
        seen = fixture.poll(index)
        runs = any(
            f"/{index}/1/files".encode() in _told(pid, "environ") for pid in fixture.running()
        )
        assert (seen.phase is Phase.EXECUTING) == runs
        assert seen.phase in (Phase.EXECUTING, Phase.GONE, Phase.ENDED)
        fixture.cluster.kill(run_ref(RUN), fixture.ref(index))


def _argument(fixture: Fixture, index: int) -> bytes:
    """It is in the arguments of the task's supervisor, and of its fork until that executes the
    crawler.
    """
    return b"\0" + os.fsencode(fixture.folder(index)) + b"\0"


def all_pids() -> list[int]:
    return [stat.pid for stat in all_processes() if not stat.ended]


def _told(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""


def test_whoever_deployed_it(fixture: Fixture) -> None:
    """The deploying process dies at once; the crawl continues, and its end is recorded."""
    script = (
        "import sys, os; sys.path[:0] = [sys.argv[1]]\n"
        "from pathlib import Path; from tests.clusters.local.local_fixture import Fixture\n"
        "Fixture(Path(sys.argv[2])).deploy(sys.argv[3]); os.kill(os.getpid(), 9)\n"
    )
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-c", script, root, str(fixture.state.parent), COUNTING], check=False
    )
    assert done.returncode == -9
    fixture.until(Phase.EXECUTING)
    go(fixture)
    assert how(fixture.until(Phase.ENDED)) == (0, None, "Completed", "finished")


def test_a_zombie_has_ended(fixture: Fixture) -> None:
    """The supervisor is dead and nobody reaps the crawler (here, its parent is this process, which
    does not).
    """
    fixture.start(COUNTING)
    fixture.slay(fixture.supervisor())
    fixture.cluster.kill(run_ref(RUN), fixture.ref())
    child = subprocess.Popen(["/bin/sh", "-c", "kill -9 $$"])
    try:
        stat = Path(f"/proc/{child.pid}/stat")
        wait_until(lambda: ") Z " in stat.read_text())
        (fixture.folder() / "end.json").unlink()
        start = int(stat.read_text().rsplit(")", 1)[1].split()[19])
        record = json.loads((fixture.folder() / "process.json").read_text())
        (fixture.folder() / "process.json").write_text(
            json.dumps({**record, "pid": child.pid, "start": start})
        )
        seen = fixture.poll()
        assert how(seen) == (137, 9, "Error", None)
    finally:
        child.wait()
    assert fixture.poll().phase is Phase.GONE


@pytest.mark.parametrize("lie", [{}, {"boot": "another"}], ids=["a reused number", "another boot"])
def test_a_number_of_somebody_else_is_not_its_own(fixture: Fixture, lie: dict[str, str]) -> None:
    fixture.start(COUNTING)
    fixture.slay_all()
    with subprocess.Popen(["/bin/sleep", "300"]) as stranger:
        for name in ("process.json", "supervisor.json"):
            path = fixture.folder() / name
            path.write_text(
                json.dumps({**json.loads(path.read_text()), "pid": stranger.pid, **lie})
            )
        assert fixture.poll().phase is Phase.GONE
        stranger.kill()


def test_the_evidence_survives_a_frozen_supervisor(fixture: Fixture) -> None:
    fixture.start(COUNTING)
    supervisor = fixture.supervisor()
    supervisor.send(signal.SIGSTOP)
    go(fixture)
    wait_until((fixture.folder() / "summary.json").exists)
    assert how(fixture.until(Phase.ENDED)) == (0, None, "Completed", "finished")
    supervisor.send(signal.SIGCONT)
    wait_until((fixture.folder() / "end.json").exists)
    assert how(fixture.poll()) == (0, None, "Completed", "finished")
