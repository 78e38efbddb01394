"""Temporal's production server for a benchmark: ``BENCHMARK_TEMPORAL=production python -m
benchmarks burst``.

That of the fault benchmark (all services in one process, 4 history shards) on PostgreSQL 15,
without a proxy between. It needs root, Debian's PostgreSQL, and the programs of ``python3 -m tools
fault-programs``.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import ExitStack
from pathlib import Path

from temporalio.client import Client

from crawler_lifecycle.temporal.operator.server import register_search_attributes
from tools.faults.build import available
from tools.faults.harness import Harness


def server(stack: ExitStack, folder: Path) -> str:
    """Start the server, and yield its address. It ends with the stack."""
    place = folder / "production"
    place.mkdir()
    for one in (folder, place):
        one.chmod(
            0o711
        )  # PostgreSQL does not run as root, and must reach its own folder below this one
    harness = Harness(place, lambda text: print(text, flush=True))
    harness.logs.mkdir()
    harness.ports["proxy of postgres"] = harness.port("postgres")
    stack.callback(harness._end)
    harness._postgres()
    harness._temporal(
        *harness._production(available()), [str(Path(sys.executable).with_name("temporal"))]
    )
    address = f"127.0.0.1:{harness.port('temporal')}"
    asyncio.run(_registered(address))
    return address


async def _registered(address: str) -> None:
    """Wait as a worker of ours does when it starts.

    A namespace is known everywhere some seconds after its creation.
    """
    for _ in range(60):
        try:
            await register_search_attributes(await Client.connect(address))
        except Exception as error:  # any error of a server that is not yet up
            print(f"the namespace is not there yet: {error}", flush=True)
            await asyncio.sleep(1)
        else:
            await asyncio.sleep(15)  # as long as its services may cache the old ones
            return
    raise RuntimeError("the search attributes could not be registered")
