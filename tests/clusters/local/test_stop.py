"""Stopping: one signal, then force, wherever the crawler hid."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable

import pytest

from crawler_lifecycle.clusters.local.folders.reader import TaskFolder
from crawler_lifecycle.clusters.local.processes.identity import Identity, below
from crawler_lifecycle.domain.task import Observation, Phase
from tests.clusters.local.local_bench import (
    DOUBLE_FORK,
    ESCAPED,
    POLITE,
    RUN,
    SLEEP,
    STUBBORN,
    Bench,
    wait_until,
)
from tests.support.run_refs import run_ref

pytestmark = pytest.mark.processes

#: What a crawler has forked is killed at its end: it stays until the test has seen it.
UNTIL_TOLD = """
while not os.path.exists(files + "/go"):
    time.sleep(0.01)
"""


def daemon(bench: Bench) -> Identity:
    return Identity.of(int((bench.folder() / "files/daemon").read_text()))


def how(seen: Observation) -> tuple[int | None, int | None, str | None]:
    return seen.end.exit_code, seen.end.signal, seen.end.finish_reason


def test_many_stops_at_once_send_one_signal(bench: Bench) -> None:
    bench.start(POLITE)
    threads = [
        threading.Thread(target=bench.cluster.stop, args=(run_ref(RUN), bench.ref()))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bench.runner().send(signal.SIGTERM)  # somebody else, too
    seen = bench.until(Phase.ENDED)
    assert how(seen) == (0, None, "shutdown")
    assert bench.signals() == 1


def test_a_stop_before_the_crawler_has_its_handler_ends_it_at_once(bench: Bench) -> None:
    for index in range(6):
        bench.deploy(SLEEP, range(index, index + 1))
        time.sleep(0.004 * index)
        bench.cluster.stop(run_ref(RUN), bench.ref(index))
    for index in range(6):
        seen = bench.until(Phase.ENDED, index)
        assert seen.end is not None
        # By the signal: force would have said so, after the grace.
        assert seen.end.reason == "Cancelled" or seen.end.exit_code in (11, 13), seen


def test_after_the_grace_it_is_forced_with_everything_it_started(bench: Bench) -> None:
    bench.start(DOUBLE_FORK + "\ntime.sleep(300)", stop_grace_s=0.5)
    hidden = daemon(bench)
    bench.cluster.stop(run_ref(RUN), bench.ref())
    seen = bench.until_on_file()
    assert how(seen) == (137, 9, None)
    assert seen.end.message == "It was killed because it still ran 0.5 s after the stop"
    assert not hidden.alive()


@pytest.mark.parametrize(
    "way", ["its own end", "stop", "kill", "the runner is killed", "kill without supervisor"]
)
def test_nothing_leaves_the_tree_whatever_it_hides(
    make_bench: Callable[..., Bench], way: str
) -> None:
    """A double fork with a session of its own and an empty environment, where no cgroup holds
    it.
    """
    bench = make_bench(slots=1, cgroup_setting="off")
    bench.start(ESCAPED + UNTIL_TOLD, stop_grace_s=0.5)
    hidden = daemon(bench)
    if way == "its own end":
        (bench.folder() / "files/go").touch()
    elif way == "stop":
        bench.cluster.stop(run_ref(RUN), bench.ref())
    elif way == "the runner is killed":
        bench.slay(bench.runner())
    else:
        if way == "kill without supervisor":
            bench.slay(bench.supervisor())
        bench.cluster.kill(run_ref(RUN), bench.ref())
        assert not hidden.alive()
        assert how(bench.poll()) == (137, 9, None)
    bench.until_on_file()
    if way != "kill without supervisor":
        assert hidden.stat() is None, "it is not only dead: whoever adopted it has reaped it"
    bench.deploy("pass", range(1, 2))  # there is one slot, and nothing of the first task holds it
    assert how(bench.until(Phase.ENDED, 1)) == (0, None, "finished")


def test_a_forged_supervisor_leads_to_nobody_elses_processes(bench: Bench) -> None:
    """The crawler owns its folder and writes another process's number where its supervisor's
    was.
    """
    bench.deploy("pass")
    bench.until_on_file()
    stranger = subprocess.Popen(["/bin/sh", "-c", "sleep 300 & wait"], start_new_session=True)
    try:
        forged = json.dumps(Identity.of(stranger.pid)._asdict())
        (bench.folder() / "supervisor.json").write_text(forged)
        wait_until(lambda: below(stranger.pid))
        child = below(stranger.pid)[0]
        folder = TaskFolder(bench.state, run_ref(RUN), bench.ref())
        assert not folder.supervisor_alive()
        assert child.pid not in [found.pid for found in folder.processes(None)]
    finally:
        os.killpg(stranger.pid, signal.SIGKILL)
        stranger.wait()


def test_without_its_supervisor_the_runner_gets_the_one_signal(bench: Bench) -> None:
    bench.start(POLITE)
    bench.slay(bench.supervisor())
    for _ in range(3):
        bench.cluster.stop(run_ref(RUN), bench.ref())
    seen = bench.until(Phase.ENDED)
    assert how(seen) == (0, None, "shutdown")
    assert bench.signals() == 1


def test_without_supervisor_and_runner_the_crawler_gets_the_one_signal(bench: Bench) -> None:
    bench.start(POLITE)
    bench.slay(bench.supervisor())
    bench.slay(bench.runner())
    assert bench.poll().phase is Phase.EXECUTING
    bench.cluster.stop(run_ref(RUN), bench.ref())
    bench.cluster.stop(run_ref(RUN), bench.ref())
    bench.until_over()
    assert bench.signals() == 1


def test_a_kill_gets_past_a_frozen_supervisor(bench: Bench) -> None:
    bench.start(STUBBORN)
    supervisor = bench.supervisor()
    supervisor.send(signal.SIGSTOP)
    bench.cluster.kill(run_ref(RUN), bench.ref())
    assert how(bench.poll()) == (137, 9, None)
    wait_until(lambda: not supervisor.alive())


def test_a_stop_reaches_a_task_whose_start_was_interrupted(bench: Bench) -> None:
    """The folder is there, the supervisor is not: once it starts, it finds the stop and never
    executes.
    """
    bench.deploy("import os; open(os.environ['CRAWL_FILES_DIR'] + '/ran', 'w')")
    bench.until(Phase.ENDED)
    spec = (bench.folder() / "spec.json").read_text()
    folder = bench.folder(1)
    (folder / "files").mkdir(parents=True)
    (folder / "spec.json").write_text(spec.replace("/0/1", "/1/1"))
    bench.cluster.stop(run_ref(RUN), bench.ref(1))
    bench.deploy(SLEEP, range(1, 2))
    seen = bench.until(Phase.ENDED, 1)
    assert seen.end.reason == "Cancelled"
    assert not (folder / "files/ran").exists()


def test_a_reused_number_is_not_signalled(bench: Bench) -> None:
    bench.start(POLITE)
    crawler = bench.crawler_process()
    bench.slay(bench.supervisor())
    with subprocess.Popen(["/bin/sleep", "300"]) as stranger:
        for name in ("process.json", "supervisor.json"):
            path = bench.folder() / name
            path.write_text(json.dumps({**json.loads(path.read_text()), "pid": stranger.pid}))
        bench.cluster.stop(run_ref(RUN), bench.ref())
        bench.cluster.kill(run_ref(RUN), bench.ref())
        assert stranger.poll() is None
        assert not crawler.alive()  # found by its environment all the same
        stranger.kill()
