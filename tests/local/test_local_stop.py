"""Stopping: one signal, then force, wherever the crawler hid."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time

from local_bench import DOUBLE_FORK, POLITE, RUN, SLEEP, STUBBORN, Bench

from crawler_lifecycle.adapters.local.identity import Identity
from crawler_lifecycle.domain.task import Observation, Phase
from tests.support.run_refs import run_ref


def daemon(bench: Bench) -> Identity:
    return Identity.of(int((bench.folder() / "files/daemon").read_text()))


def how(seen: Observation) -> tuple[int | None, int | None, str | None]:
    assert seen.end is not None
    return seen.end.exit_code, seen.end.signal, seen.end.finish_reason


def test_many_stops_at_once_send_one_signal(bench: Bench) -> None:
    bench.start(POLITE)
    threads = [threading.Thread(target=bench.cluster.stop, args=(run_ref(RUN), bench.ref())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bench.runner().send(signal.SIGTERM)  # somebody else, too
    seen = bench.until(Phase.ENDED)
    assert how(seen) == (11, None, "shutdown")
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
    assert seen.end is not None
    assert seen.end.message == "It was killed because it still ran 0.5 s after the stop"
    assert not hidden.alive()


def test_a_kill_ends_everything_it_started(bench: Bench) -> None:
    bench.start(DOUBLE_FORK + "\ntime.sleep(300)")
    hidden = daemon(bench)
    bench.cluster.kill(run_ref(RUN), bench.ref())
    assert not hidden.alive()
    assert how(bench.look()) == (137, 9, None)


def test_ended_means_that_nothing_of_it_runs(bench: Bench) -> None:
    bench.start(DOUBLE_FORK)
    hidden = daemon(bench)
    assert how(bench.until(Phase.ENDED)) == (0, None, "finished")
    assert not hidden.alive()


def test_without_its_supervisor_the_runner_gets_the_one_signal(bench: Bench) -> None:
    bench.start(POLITE)
    bench.slay(bench.supervisor())
    for _ in range(3):
        bench.cluster.stop(run_ref(RUN), bench.ref())
    seen = bench.until(Phase.ENDED)
    assert how(seen) == (11, None, "shutdown")
    assert bench.signals() == 1


def test_without_supervisor_and_runner_the_crawler_gets_the_one_signal(bench: Bench) -> None:
    bench.start(POLITE)
    bench.slay(bench.supervisor())
    bench.slay(bench.runner())
    assert bench.look().phase is Phase.EXECUTING
    bench.cluster.stop(run_ref(RUN), bench.ref())
    bench.cluster.stop(run_ref(RUN), bench.ref())
    bench.until_over()
    assert bench.signals() == 1


def test_a_kill_without_the_supervisor_writes_the_end_itself(bench: Bench) -> None:
    bench.start(DOUBLE_FORK + "\ntime.sleep(300)")
    hidden = daemon(bench)
    bench.slay(bench.supervisor())
    bench.cluster.kill(run_ref(RUN), bench.ref())
    assert not hidden.alive()
    assert how(bench.look()) == (137, 9, None)


def test_a_kill_gets_past_a_frozen_supervisor(bench: Bench) -> None:
    bench.start(STUBBORN)
    supervisor = bench.supervisor()
    supervisor.send(signal.SIGSTOP)
    bench.cluster.kill(run_ref(RUN), bench.ref())
    assert how(bench.look()) == (137, 9, None)
    assert not supervisor.alive()


def test_a_stop_reaches_a_task_whose_start_was_interrupted(bench: Bench) -> None:
    """The folder is there, the supervisor is not: once it starts, it finds the stop and never executes."""
    bench.deploy("import os; open(os.environ['CRAWL_FILES_DIR'] + '/ran', 'w')")
    bench.until(Phase.ENDED)
    spec = (bench.folder() / "spec.json").read_text()
    folder = bench.folder(1)
    (folder / "files").mkdir(parents=True)
    (folder / "spec.json").write_text(spec.replace("/5/0/1", "/5/1/1"))
    bench.cluster.stop(run_ref(RUN), bench.ref(1))
    bench.deploy(SLEEP, range(1, 2))
    seen = bench.until(Phase.ENDED, 1)
    assert seen.end is not None
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
