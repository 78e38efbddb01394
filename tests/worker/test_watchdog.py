"""A process that was asked to end ends within its grace period, whatever its threads do."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from crawler_lifecycle.worker import watchdog

#: A process like a worker: a loop that waits for the signal, and threads that hang in different
#: ways.
PROCESS = """
import asyncio, concurrent.futures, logging, signal, sys, threading, time
from crawler_lifecycle.worker.watchdog import Watchdog

logging.basicConfig(format="%(message)s")
lock = threading.Lock()

def hang_for_ever():
    lock.acquire(); lock.acquire()

def spin():
    while True: pass

def hold_the_log():
    for handler in logging.getLogger().handlers: handler.acquire()
    hang_for_ever()

async def main():
    over, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, over.set)
    Watchdog(0.5).watch([signal.SIGTERM])
    with concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="part") as pool:
        if what == "nothing":
            print("ready", flush=True)
            await over.wait()
        elif what == "the loop":
            print("ready", flush=True)
            time.sleep(3600)
        else:
            pool.submit({"a lock": hang_for_ever, "a spin": spin, "the log": hold_the_log}[what])
            await asyncio.sleep(0.1)
            print("ready", flush=True)
            await over.wait()

what = sys.argv[1]
asyncio.run(main())
print("left by itself", flush=True)
"""


def leave(what: str) -> tuple[int, str, str]:
    """Return exit code and output of such a process that gets SIGTERM when it is ready."""
    with subprocess.Popen(
        [sys.executable, "-c", PROCESS, what],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    return process.returncode, out, err


def test_one_that_can_leave_leaves_by_itself() -> None:
    code, out, err = leave("nothing")
    assert (code, out, err) == (0, "left by itself\n", "")


@pytest.mark.parametrize(
    ("what", "where"), [("a lock", "part_0 in hang_for_ever"), ("a spin", "part_0 in spin")]
)
def test_a_thread_that_hangs_keeps_no_process(what: str, where: str) -> None:
    code, out, err = leave(what)
    assert (code, out) == (watchdog.EXIT_HUNG, "")
    assert "did not end within 0.5 s" in err
    assert where in err


def test_a_loop_that_hangs_keeps_no_process() -> None:
    code, _, err = leave("the loop")
    assert code == watchdog.EXIT_HUNG
    assert "MainThread in" in err


def test_a_log_that_is_held_keeps_no_process() -> None:
    assert leave("the log") == (watchdog.EXIT_HUNG, "", "")
