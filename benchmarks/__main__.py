"""``python -m benchmarks``: runs all short benchmarks, or those with the given names.

``--each`` runs every benchmark that needs no large installation.
"""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

from benchmarks import (
    archive,
    beside,
    capacity,
    classes,
    cli,
    crowd,
    database,
    gateway,
    graphs,
    history,
    incidents,
    items,
    kubernetes_harness,
    kubernetes_poll,
    large_histories,
    logs,
    managers,
    polite,
    pools,
    retries,
    rows,
    schedules,
    search,
    taking_up,
    tenants,
    throughput,
    truth,
    truth_faults,
    ui,
    versions,
    versions_kubelet,
    webhooks,
)
from crawler_lifecycle.cli.exits import leave

BENCHMARKS = {
    "archive": archive.main,
    "beside": beside.main,
    "classes": classes.main,
    "cli": cli.main,
    "database": database.main,
    "gateway": gateway.main,
    "streams": gateway.streams,
    "history": history.main,
    "incidents": incidents.main,
    "search": search.main,
    "logs": logs.main,
    "throughput": throughput.main,
    "taking-up": taking_up.main,
    "open-runs": crowd.open_runs,
    "burst": crowd.burst,
    "taking-up-large": large_histories.main,
    "managers": managers.main,
    "graphs": graphs.main,
    "items": items.main,
    "ui": ui.main,
    "polite": polite.main,
    "pools": pools.main,
    "retries": retries.main,
    "rows": rows.main,
    "capacity": capacity.main,
    "schedules": schedules.main,
    "tenants": tenants.main,
    "truth": truth.main,
    "versions": versions.main,
    "versions-kubelet": versions_kubelet.main,
    "webhooks": webhooks.main,
    "rest": truth_faults.rest,
    "kubernetes-poll": kubernetes_poll.main,
    "kubernetes-kwok": kubernetes_harness.kwok,
    "kubernetes-kubelet": kubernetes_harness.kubelet,
}
#: These take many minutes, or need the programs of the test cluster (make kube-binaries), so they
#: run only when named.
LONG = (
    "polite",
    "rest",
    "open-runs",
    "burst",
    "taking-up-large",
    "ui",
    "schedules",
    "kubernetes-poll",
    "kubernetes-kwok",
    "kubernetes-kubelet",
    "versions-kubelet",
    "retries",
    "capacity",
    "tenants",
    "classes",
)
#: The maximum number of parallel benchmarks of ``--each``. Most of them mostly wait.
AT_ONCE = 4
#: What takes minutes to build or install, and who needs it. ``--each`` leaves these out.
_CLUSTER = "the programs of the test cluster (make kube-binaries)"
INSTALLED = {
    "ui": "Chromium (make test-deps)",
    "kubernetes-poll": _CLUSTER,
    "kubernetes-kwok": _CLUSTER,
    "kubernetes-kubelet": f"{_CLUSTER} and root",
    "versions-kubelet": f"{_CLUSTER} and root",
    "retries": _CLUSTER,
    "capacity": _CLUSTER,
}


def _processor_s() -> float:
    """Return the seconds of processor time of this process, and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _each() -> int:
    """Run every benchmark that needs no large installation, each in its own process, the long ones
    first.

    Several run at once, because figures at their smallest size mean nothing. Return 1 if one
    failed.
    """
    for name, what in INSTALLED.items():
        print(f"{name} is left out: it needs {what}; play it by its name")
    names = sorted(set(BENCHMARKS) - set(INSTALLED), key=lambda name: (name not in LONG, name))

    def play(name: str) -> subprocess.CompletedProcess[str]:
        order = [sys.executable, "-m", "benchmarks", name]
        return subprocess.run(
            order,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    with ThreadPoolExecutor(AT_ONCE) as threads:
        failed = []
        for played in as_completed([threads.submit(play, name) for name in names]):
            result = played.result()
            print(result.stdout, end="", flush=True)
            failed += [result.args[-1]] if result.returncode else []
    print(
        f"{len(names) - len(failed)} of {len(names)} benchmarks ended well"
        + "".join(f"; {one} failed" for one in failed)
    )
    return 1 if failed else 0


def main(names: list[str]) -> int:
    """Run the named benchmarks (default: all but the long ones). Return the exit code, 2 for an
    unknown name.
    """
    if "--help" in names:
        print(
            f"{__doc__}\n\nThere are: {', '.join(BENCHMARKS)}.\nOnly when named: {', '.join(LONG)}."
        )
        return 0
    if names == ["--each"]:
        return _each()
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(
            f"unknown benchmark {unknown[0]!r}; there are: {', '.join(BENCHMARKS)}", file=sys.stderr
        )
        return 2
    for name in names or [name for name in BENCHMARKS if name not in LONG]:
        began, used = time.monotonic(), _processor_s()
        print(f"--- {name}", flush=True)
        asyncio.run(BENCHMARKS[name]())
        seconds = (
            f"{time.monotonic() - began:.0f} s, {_processor_s() - used:.0f} s of processor time"
        )
        print(f"--- {name} took {seconds}", flush=True)
    return 0


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
