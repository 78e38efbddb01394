"""kill -9 behind our back, at every process and in every state: what the polls say is what
happened.
"""

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
from tests.clusters.local.local_bench import RUN, SLEEP, Bench, wait_until
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


def go(bench: Bench) -> None:
    (bench.folder() / "files/go").touch()


def test_the_crawler(bench: Bench) -> None:
    bench.start(COUNTING)
    wait_until(lambda: bench.poll().counters.items == 7)
    bench.slay(bench.crawler_process())
    seen = bench.until(Phase.ENDED)
    assert how(seen) == (137, 9, "Error", None)
    assert (
        seen.counters.pages,
        seen.counters.items,
        seen.counters.errors,
        seen.counters.bytes,
    ) == (4, 7, 1, 99)
    assert seen.end is not None
    assert read_end(seen.end).status is TaskStatus.FAILED


def test_the_runner_takes_its_crawler_with_it(bench: Bench) -> None:
    bench.start(COUNTING)
    crawler = bench.crawler_process()
    bench.slay(bench.runner())
    seen = bench.until(Phase.ENDED)
    assert how(seen) == (137, 9, "Error", None)
    assert not crawler.alive()


def test_the_supervisor_is_not_missed(bench: Bench) -> None:
    bench.start(COUNTING)
    bench.slay(bench.supervisor())
    seen = bench.poll()
    assert (seen.phase, seen.reason) == (Phase.EXECUTING, "its supervisor is dead")
    assert seen.started_at is not None
    assert bench.deploy(COUNTING)[0].state == "existing"
    go(bench)
    seen = bench.until(Phase.ENDED)
    assert how(seen) == (0, None, "Completed", "finished")
    assert seen.counters.items == 7
    assert seen.end.finished_at is not None


def test_the_supervisor_and_then_the_crawler(bench: Bench) -> None:
    bench.start(COUNTING)
    bench.slay(bench.supervisor())
    bench.slay(bench.crawler_process())
    seen = bench.until(Phase.ENDED)
    assert how(seen) == (137, 9, "Error", None)


def test_all_of_them_leave_nothing_but_the_proof_that_it_is_gone(bench: Bench) -> None:
    bench.start(COUNTING)
    bench.slay_all()
    seen = bench.until_over()
    assert seen.started_at is not None
    assert bench.deploy(COUNTING)[0].state == "existing"  # never a second crawler
    assert bench.running() == []


def test_a_waiting_supervisor(make_bench: Callable[..., Bench]) -> None:
    bench = make_bench(slots=1)
    bench.fill(1)
    bench.queue(1)
    bench.slay(bench.supervisor(1))
    assert bench.poll(1).phase is Phase.GONE
    assert bench.deploy(SLEEP, range(1, 2))[0].state == "existing"
    assert bench.poll(1).phase is Phase.GONE


def test_the_supervisor_while_it_starts_the_crawler(bench: Bench) -> None:
    """Whatever moment it dies in: afterwards nothing runs, or it runs and is seen running."""
    for index in range(5):
        bench.deploy(SLEEP, range(index, index + 1))
        time.sleep(0.0015 * index)
        supervisor = bench.supervisor(index)
        bench.slay(supervisor)
        # What it forked for the crawler executes, or leaves because nobody opens its gate.
        wait_until(
            lambda index=index: (
                not any(_argument(bench, index) in _told(pid, "cmdline") for pid in all_pids())
            )
        )
        seen = bench.poll(index)
        runs = any(f"/{index}/1/files".encode() in _told(pid, "environ") for pid in bench.running())
        assert (seen.phase is Phase.EXECUTING) == runs
        assert seen.phase in (Phase.EXECUTING, Phase.GONE, Phase.ENDED)
        bench.cluster.kill(run_ref(RUN), bench.ref(index))


def _argument(bench: Bench, index: int) -> bytes:
    """In the argument vector of the task's supervisor, and of its fork until that executes the
    crawler.
    """
    return b"\0" + os.fsencode(bench.folder(index)) + b"\0"


def all_pids() -> list[int]:
    return [stat.pid for stat in all_processes() if not stat.ended]


def _told(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""


def test_whoever_deployed_it(bench: Bench) -> None:
    """The process that deployed dies at once; the crawl goes on and its end is known."""
    script = (
        "import sys, os; sys.path[:0] = [sys.argv[1]]\n"
        "from pathlib import Path; from tests.clusters.local.local_bench import Bench\n"
        "Bench(Path(sys.argv[2])).deploy(sys.argv[3]); os.kill(os.getpid(), 9)\n"
    )
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-c", script, root, str(bench.state.parent), COUNTING], check=False
    )
    assert done.returncode == -9
    bench.until(Phase.EXECUTING)
    go(bench)
    assert how(bench.until(Phase.ENDED)) == (0, None, "Completed", "finished")


def test_a_zombie_has_ended(bench: Bench) -> None:
    """The supervisor is dead and nobody reaps the crawler (here: we are its parent and do not)."""
    bench.start(COUNTING)
    bench.slay(bench.supervisor())
    bench.cluster.kill(run_ref(RUN), bench.ref())
    child = subprocess.Popen(["/bin/sh", "-c", "kill -9 $$"])
    try:
        stat = Path(f"/proc/{child.pid}/stat")
        wait_until(lambda: ") Z " in stat.read_text())
        (bench.folder() / "end.json").unlink()
        start = int(stat.read_text().rsplit(")", 1)[1].split()[19])
        record = json.loads((bench.folder() / "process.json").read_text())
        (bench.folder() / "process.json").write_text(
            json.dumps({**record, "pid": child.pid, "start": start})
        )
        seen = bench.poll()
        assert how(seen) == (137, 9, "Error", None)
    finally:
        child.wait()
    assert bench.poll().phase is Phase.GONE


@pytest.mark.parametrize("lie", [{}, {"boot": "another"}], ids=["a reused number", "another boot"])
def test_a_number_of_somebody_else_is_not_its_own(bench: Bench, lie: dict[str, str]) -> None:
    bench.start(COUNTING)
    bench.slay_all()
    with subprocess.Popen(["/bin/sleep", "300"]) as stranger:
        for name in ("process.json", "supervisor.json"):
            path = bench.folder() / name
            path.write_text(
                json.dumps({**json.loads(path.read_text()), "pid": stranger.pid, **lie})
            )
        assert bench.poll().phase is Phase.GONE
        stranger.kill()


def test_the_evidence_survives_a_frozen_supervisor(bench: Bench) -> None:
    bench.start(COUNTING)
    supervisor = bench.supervisor()
    supervisor.send(signal.SIGSTOP)
    go(bench)
    wait_until((bench.folder() / "summary.json").exists)
    assert how(bench.until(Phase.ENDED)) == (0, None, "Completed", "finished")
    supervisor.send(signal.SIGCONT)
    wait_until((bench.folder() / "end.json").exists)
    assert how(bench.poll()) == (0, None, "Completed", "finished")
