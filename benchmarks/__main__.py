"""``python -m benchmarks``: all figures; with names, only those."""

from __future__ import annotations

import asyncio
import sys

from benchmarks import archive, cli, database, gateway, history, throughput
from crawler_lifecycle.cli.exits import leave

BENCHMARKS = {
    "archive": archive.main,
    "cli": cli.main,
    "database": database.main,
    "gateway": gateway.main,
    "streams": gateway.streams,
    "history": history.main,
    "throughput": throughput.main,
}


def main(names: list[str]) -> int:
    """Run the named benchmarks (default: all); 2 for an unknown name."""
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"unknown benchmark {unknown[0]!r}; there are: {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    for name in names or BENCHMARKS:
        print(f"--- {name}", flush=True)
        asyncio.run(BENCHMARKS[name]())
    return 0


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
