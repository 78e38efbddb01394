"""The command for soaks by hand: ``python -m tools.soak.kubernetes``. ``--help`` lists its options."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from tests.kubernetes.cluster.cluster import Cluster
from tests.support.temporal import temporal_server
from tools.soak.kubernetes.plan import Plan, make_plan
from tools.soak.kubernetes.record import flags
from tools.soak.kubernetes.soaking import Verdict, soak


async def one(plan: Plan, folder: Path) -> Verdict:
    """Execute a soak with its own cluster and its own Temporal server."""
    async with temporal_server(skipping=False) as env:
        with Cluster(kwok=4, extra=flags(folder)) as cluster:
            return await soak(env.client, folder, cluster, plan)


def main() -> int:
    """Execute one soak after the other, and return 1 if any of them found something."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.soak.kubernetes", description="Seeded soaks."
    )
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument(
        "--seeds", type=int, default=1, help="how many soaks, each with the next seed"
    )
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument(
        "--seconds",
        type=float,
        default=90.0,
        help="duration of the faults; the time to settle comes on top",
    )
    parser.add_argument("--steps", type=int, help="how many; twice as many as runs by default")
    parser.add_argument("--only", nargs="*", help="only these kinds of steps")
    parser.add_argument(
        "--folder", type=Path, help="the folder for databases, logs and the diary, by seed"
    )
    given = parser.parse_args()
    bad = 0
    for seed in range(given.seed, given.seed + given.seeds):
        plan = make_plan(
            seed, runs=given.runs, seconds=given.seconds, steps=given.steps, only=given.only
        )
        with tempfile.TemporaryDirectory(prefix="soak-") as scratch:
            folder = given.folder / str(seed) if given.folder else Path(scratch)
            folder.mkdir(parents=True, exist_ok=True)
            verdict = asyncio.run(one(plan, folder))
        for number, text in enumerate(verdict.violations, 1):
            print(f"--- seed {seed}, violation {number}\n{text}\n", flush=True)
        print(verdict, flush=True)
        bad += bool(verdict.violations)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
