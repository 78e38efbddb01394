"""``python -m tests.kubernetes.cluster``: ``binaries`` and ``kueue`` build, ``up`` runs a cluster
in the foreground.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from tests.kubernetes.cluster import binaries, node
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.cluster.processes import ClusterFailed


def main(arguments: list[str]) -> int:
    """Return 0 if done, 1 if failed (with a message on standard error), 2 for wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m tests.kubernetes.cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("binaries", help="build what is missing and print the folder")
    commands.add_parser("kueue", help="build Kueue and print its folder")
    up = commands.add_parser(
        "up", help="run a cluster until SIGTERM, SIGINT or the end of the parent"
    )
    up.add_argument(
        "--kwok",
        type=int,
        default=0,
        metavar="N",
        help="nodes that only pretend (default 1 without --node)",
    )
    up.add_argument("--node", action="store_true", help="a real kubelet with containerd (root)")
    up.add_argument(
        "--flag",
        action="append",
        default=[],
        metavar="PROGRAM=FLAG",
        help="one more flag of a program",
    )
    up.add_argument("--nodes", type=int, default=0, metavar="N", help="several real nodes")
    up.add_argument(
        "--dir",
        type=Path,
        help="empty folder for state and logs, kept (default: one that is removed)",
    )
    up.add_argument(
        "--image",
        type=Path,
        action="append",
        default=[],
        help="OCI archive to load, may be repeated",
    )
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "binaries":
            print(binaries.build())
            return 0
        if chosen.command == "kueue":
            print(binaries.build_kueue())
            return 0
        return _up(chosen)
    except (ClusterFailed, binaries.NoBinaries, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 1


def _up(chosen: argparse.Namespace) -> int:
    real = chosen.nodes or int(chosen.node)
    if real and (reason := node.unable()):
        raise ClusterFailed(f"no real node here: {reason}")
    ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: ending.set())
    parent = os.getppid()
    extra: dict[str, list[str]] = {}
    for given in chosen.flag:
        program, _, flag = given.partition("=")
        extra.setdefault(program, []).append(flag)
    kwok = chosen.kwok or int(not real)
    with Cluster(
        kwok=kwok, nodes=real, folder=chosen.dir, images=chosen.image, extra=extra
    ) as cluster:
        print(json.dumps(cluster.describe()), flush=True)
        while not ending.wait(0.5) and os.getppid() == parent:
            pass
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
