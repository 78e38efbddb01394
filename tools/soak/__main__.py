"""``python -m tools.soak --minutes N --seed S [--runs M]`` exits with 0 if nothing untrue was
reported, and with 1 otherwise.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.support.mariadb import running_mariadb
from tools.soak.harness import DURABLE
from tools.soak.plan import write_plan
from tools.soak.soak import soak


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.soak", description="Did the service ever report something untrue?"
    )
    parser.add_argument(
        "--minutes", type=float, default=10, help="length of the plan (default: 10)"
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="the plan; the same seed is the same plan (default: 1)"
    )
    parser.add_argument(
        "--runs", type=int, default=500, help="start at most this many runs (default: 500)"
    )
    parser.add_argument(
        "--folder",
        type=Path,
        help="the folder of the stack, which is kept (default: a temporary one)",
    )
    parser.add_argument(
        "--mariadb", action="store_true", help="use a separate MariaDB server (default: SQLite)"
    )
    parser.add_argument("--plan", action="store_true", help="print the plan and do nothing")
    chosen = parser.parse_args()
    plan = write_plan(chosen.seed, chosen.minutes, chosen.runs)
    print(plan, flush=True)
    if chosen.plan:
        return 0
    with ExitStack() as undo:
        scratch = undo.enter_context(tempfile.TemporaryDirectory(prefix="soak-"))
        server = undo.enter_context(running_mariadb(DURABLE)) if chosen.mariadb else None
        folder = (chosen.folder or Path(scratch)) / "state"
        violations = soak(folder, plan, lambda line: print(line, flush=True), server)
    print(
        f"seed {plan.seed}: {len(violations)} violations"
        if violations
        else f"seed {plan.seed}: nothing untrue"
    )
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
