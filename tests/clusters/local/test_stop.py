"""Stopping: one signal, then force, wherever the crawler hides."""

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
from tests.clusters.local.local_fixture import (
    DOUBLE_FORK,
    ESCAPED,
    POLITE,
    RUN,
    SLEEP,
    STUBBORN,
    Fixture,
    wait_until,
)
from tests.support.run_refs import run_ref

pytestmark = pytest.mark.processes

#: Processes that a crawler has forked are killed at its end, so it continues until the test has
#: seen them.
UNTIL_TOLD = """
while not os.path.exists(files + "/go"):
    time.sleep(0.01)
"""


def daemon(fixture: Fixture) -> Identity:
    return Identity.of(int((fixture.folder() / "files/daemon").read_text()))


def how(seen: Observation) -> tuple[int | None, int | None, str | None]:
    return seen.end.exit_code, seen.end.signal, seen.end.finish_reason


def test_many_stops_at_once_send_one_signal(fixture: Fixture) -> None:
    fixture.start(POLITE)
    threads = [
        threading.Thread(target=fixture.cluster.stop, args=(run_ref(RUN), fixture.ref()))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    fixture.runner().send(signal.SIGTERM)  # the signal also reaches others
    seen = fixture.until(Phase.ENDED)
    assert how(seen) == (0, None, "shutdown")
    assert fixture.signals() == 1


def test_a_stop_before_the_crawler_has_its_handler_ends_it_at_once(fixture: Fixture) -> None:
    for index in range(6):
        fixture.deploy(SLEEP, range(index, index + 1))
        time.sleep(0.004 * index)
        fixture.cluster.stop(run_ref(RUN), fixture.ref(index))
    for index in range(6):
        seen = fixture.until(Phase.ENDED, index)
        assert seen.end is not None
        # It was the signal: force would have been recorded, after the grace period.
        assert seen.end.reason == "Cancelled" or seen.end.exit_code in (11, 13), seen


def test_after_the_grace_it_is_forced_with_everything_it_started(fixture: Fixture) -> None:
    fixture.start(DOUBLE_FORK + "\ntime.sleep(300)", stop_grace_s=0.5)
    hidden = daemon(fixture)
    fixture.cluster.stop(run_ref(RUN), fixture.ref())
    seen = fixture.until_on_file()
    assert how(seen) == (137, 9, None)
    assert seen.end.message == "It was killed because it was still running 0.5 s after the stop"
    assert not hidden.alive()


@pytest.mark.parametrize(
    "way", ["its own end", "stop", "kill", "the runner is killed", "kill without supervisor"]
)
def test_nothing_leaves_the_tree_whatever_it_hides(
    make_fixture: Callable[..., Fixture], way: str
) -> None:
    """A double fork with its own session and an empty environment, without a cgroup to hold it."""
    fixture = make_fixture(slots=1, cgroup_setting="off")
    fixture.start(ESCAPED + UNTIL_TOLD, stop_grace_s=0.5)
    hidden = daemon(fixture)
    if way == "its own end":
        (fixture.folder() / "files/go").touch()
    elif way == "stop":
        fixture.cluster.stop(run_ref(RUN), fixture.ref())
    elif way == "the runner is killed":
        fixture.slay(fixture.runner())
    else:
        if way == "kill without supervisor":
            fixture.slay(fixture.supervisor())
        fixture.cluster.kill(run_ref(RUN), fixture.ref())
        assert not hidden.alive()
        assert how(fixture.poll()) == (137, 9, None)
    fixture.until_on_file()
    if way != "kill without supervisor":
        assert hidden.stat() is None, "it is not only dead: whoever adopted it has reaped it"
    fixture.deploy("pass", range(1, 2))  # there is one slot, and nothing of the first task holds it
    assert how(fixture.until(Phase.ENDED, 1)) == (0, None, "finished")


def test_a_forged_supervisor_leads_to_nobody_elses_processes(fixture: Fixture) -> None:
    """The crawler owns its folder, and writes another process's number in place of its
    supervisor's.
    """
    fixture.deploy("pass")
    fixture.until_on_file()
    stranger = subprocess.Popen(["/bin/sh", "-c", "sleep 300 & wait"], start_new_session=True)
    try:
        forged = json.dumps(Identity.of(stranger.pid)._asdict())
        (fixture.folder() / "supervisor.json").write_text(forged)
        wait_until(lambda: below(stranger.pid))
        child = below(stranger.pid)[0]
        folder = TaskFolder(fixture.state, run_ref(RUN), fixture.ref())
        assert not folder.supervisor_alive()
        assert child.pid not in [found.pid for found in folder.processes(None)]
    finally:
        os.killpg(stranger.pid, signal.SIGKILL)
        stranger.wait()


def test_without_its_supervisor_the_runner_gets_the_one_signal(fixture: Fixture) -> None:
    fixture.start(POLITE)
    fixture.slay(fixture.supervisor())
    for _ in range(3):
        fixture.cluster.stop(run_ref(RUN), fixture.ref())
    seen = fixture.until(Phase.ENDED)
    assert how(seen) == (0, None, "shutdown")
    assert fixture.signals() == 1


def test_without_supervisor_and_runner_the_crawler_gets_the_one_signal(fixture: Fixture) -> None:
    fixture.start(POLITE)
    fixture.slay(fixture.supervisor())
    fixture.slay(fixture.runner())
    assert fixture.poll().phase is Phase.EXECUTING
    fixture.cluster.stop(run_ref(RUN), fixture.ref())
    fixture.cluster.stop(run_ref(RUN), fixture.ref())
    fixture.until_over()
    assert fixture.signals() == 1


def test_a_kill_gets_past_a_frozen_supervisor(fixture: Fixture) -> None:
    fixture.start(STUBBORN)
    supervisor = fixture.supervisor()
    supervisor.send(signal.SIGSTOP)
    fixture.cluster.kill(run_ref(RUN), fixture.ref())
    assert how(fixture.poll()) == (137, 9, None)
    wait_until(lambda: not supervisor.alive())


def test_a_stop_reaches_a_task_whose_start_was_interrupted(fixture: Fixture) -> None:
    """The folder exists, but not the supervisor: once that starts, it finds the stop and executes
    nothing.
    """
    fixture.deploy("import os; open(os.environ['CRAWL_FILES_DIR'] + '/ran', 'w')")
    fixture.until(Phase.ENDED)
    spec = (fixture.folder() / "spec.json").read_text()
    folder = fixture.folder(1)
    (folder / "files").mkdir(parents=True)
    (folder / "spec.json").write_text(spec.replace("/0/1", "/1/1"))
    fixture.cluster.stop(run_ref(RUN), fixture.ref(1))
    fixture.deploy(SLEEP, range(1, 2))
    seen = fixture.until(Phase.ENDED, 1)
    assert seen.end.reason == "Cancelled"
    assert not (folder / "files/ran").exists()


def test_a_reused_number_is_not_signalled(fixture: Fixture) -> None:
    fixture.start(POLITE)
    crawler = fixture.crawler_process()
    fixture.slay(fixture.supervisor())
    with subprocess.Popen(["/bin/sleep", "300"]) as stranger:
        for name in ("process.json", "supervisor.json"):
            path = fixture.folder() / name
            path.write_text(json.dumps({**json.loads(path.read_text()), "pid": stranger.pid}))
        fixture.cluster.stop(run_ref(RUN), fixture.ref())
        fixture.cluster.kill(run_ref(RUN), fixture.ref())
        assert stranger.poll() is None
        assert not crawler.alive()  # it is still found by its environment
        stranger.kill()
