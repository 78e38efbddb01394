"""Programs that touched a Temporal client leave with the exit code they meant, every time."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from dev_support import ROOT, Dev

#: Without the exit helper a third of such programs die by SIGABRT or SIGSEGV on their way out.
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


def test_thirty_programs_leave_with_their_own_code(running: Dev) -> None:
    program = PROGRAM.format(address=running.known["temporal"])

    def run(_: int) -> tuple[int, str, str]:
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, env=os.environ)
        return done.returncode, done.stdout, done.stderr

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(run, range(30))) == {(7, "listed True\n", "")}
