"""All our programs exit with the intended code, every time.

Programs that used a Temporal client and exit in Python's usual way die by SIGABRT or SIGSEGV in a
third of all cases.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from crawler_lifecycle.cli.stack import processes
from crawler_lifecycle.cli.stack.supervise import ask
from tests.dev.dev_support import ANSWER_S, ROOT, Dev, wait_until

#: Without the exit helper, a third of such programs die on their way out.
PROGRAM = """
import asyncio
from temporalio.client import Client
from crawler_lifecycle.cli.exits import leave

async def main():
    client = await Client.connect("{address}")
    found = [w.id async for w in client.list_workflows()]
    print("listed", len(found) >= 0)
    return 7

leave(asyncio.run(main()))
"""
CRAWLCTL = (sys.executable, "-m", "crawler_lifecycle.cli")

#: How often: many exits of one program prove how programs exit, so these only show that each
#: command exits that way; the slow tests repeat each thirty times.
ONCE = [pytest.param(1), pytest.param(30, marks=pytest.mark.slow)]


def _environment(running: Dev) -> dict[str, str]:
    known = running.known
    return os.environ | {
        "TEMPORAL_ADDRESS": known["temporal"],
        "TEMPORAL_NAMESPACE": known["namespace"],
        "LIFECYCLE_DATABASE__URL": known["database"],
        "LIFECYCLE_SCHEDULER__URL": known["scheduler"],
        "LIFECYCLE_GATEWAY__URL": known["gateway"],
        "LIFECYCLE_GATEWAY__AUTH_DISABLED": "true",
        "LIFECYCLE_ARCHIVE__URL": known["archive"],
        "LIFECYCLE_EVENTS__URL": known["events"],
        "LIFECYCLE_CATALOGUE": str(running.state_dir / "crawlers.yaml"),
        "LIFECYCLE_CLUSTER__STATE_DIR": str(running.state_dir / "cluster"),
    }


def _all(times: int, one: Callable[[int], object], at_once: int = 4) -> set[object]:
    with ThreadPoolExecutor(at_once) as pool:
        return set(pool.map(one, range(times)))


@pytest.mark.parametrize("times", [10, pytest.param(30, marks=pytest.mark.slow)])
def test_programs_leave_with_their_own_code(running: Dev, times: int) -> None:
    """Without the helper, all ten would pass in one of sixty cases."""
    program = PROGRAM.format(address=running.known["temporal"])

    def run(_: int) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=os.environ,
        )
        return done.returncode, done.stdout, done.stderr

    assert _all(times, run) == {(7, "listed True\n", "")}


@pytest.mark.parametrize("times", ONCE)
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("doctor", "--fix", "-o", "name", "--timeout", "100s"), 0),
        (("describe", "999999"), 3),
        (("wait", "seven"), 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_short_programs(running: Dev, words: tuple[str, ...], code: int, times: int) -> None:
    env = _environment(running)

    def run(_: int) -> int:
        return subprocess.run(
            [*CRAWLCTL, *words], capture_output=True, cwd=ROOT, env=env, check=False
        ).returncode

    assert _all(times, run, 3) == {code}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "prefix"), [(("worker", "export"), "WORKER__HEALTH_"), (("gateway",), "GATEWAY__")]
)
def test_services_that_are_asked_to_end(running: Dev, words: tuple[str, ...], prefix: str) -> None:
    """Thirty times. test_worker_process and test_a_token_lets_in_whom_it_was_made_for test each
    once.
    """
    env = _environment(running)

    def run(_: int) -> int:
        port = processes.free_port()
        own = env | {f"LIFECYCLE_{prefix}PORT": str(port)}
        with subprocess.Popen(
            [*CRAWLCTL, *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            env=own,
        ) as process:
            try:
                wait_until(lambda: ask(f"http://127.0.0.1:{port}/readyz")[0] == 200)
                process.send_signal(signal.SIGTERM)
                return process.wait(ANSWER_S)
            finally:
                process.kill()

    assert _all(30, run, 2) == {0}
