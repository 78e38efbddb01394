"""Deployed code on a real kubelet: how soon after ``crawlctl deploy`` of a project the first pod
executes its spider.

The gateway and the workers are processes of this machine. The pod has the published crawler image,
which is on the node already; it fetches the package from the gateway, as in any cluster.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

from benchmarks.sizes import size
from benchmarks.truth_lag import _line
from benchmarks.versions import FILES, write_project
from crawler_lifecycle.cli.stack import processes
from crawler_lifecycle.cli.stack.supervise import Part
from crawler_lifecycle.clusters.kubernetes import labels
from tests.e2e.harness import until
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.real.real_harness import RealHarness
from tests.support import crawler_image
from tests.support.builds import command

DEPLOYS = size(5, 1)
_SPIDER = """
import scrapy

class Products(scrapy.Spider):
    name = "products"

    async def start(self):
        print("executes", flush=True)
        return
        yield
"""
#: A gateway that listens outside of loopback needs a caller. Nobody uses this one.
_CALLERS = f'[[token]]\nname = "nobody"\nrole = "read"\nsha256 = "{secrets.token_hex(32)}"\n'
_ENTRY = {
    "name": "package",
    "kind": "scrapy",
    "spider": "products",
    "package": "shop",
    "image": crawler_image.REFERENCE,
}


def _serve_pods(harness: RealHarness) -> None:
    """Start a gateway that pods can reach, and let the scheduler service name it to them.

    The gateway of the stack accepts everybody, so it listens only on the loopback address.
    """
    host, port = harness.cluster.places.gateway, processes.free_port()
    callers = harness.folder / "callers.toml"
    callers.write_text(_CALLERS)
    key = secrets.token_hex(32)
    named = {"LIFECYCLE_GATEWAY__TASK_KEY": key, "LIFECYCLE_GATEWAY__URL": f"http://{host}:{port}"}
    usual = harness.stack.supervisor._kept["gateway"].part
    env = {name: value for name, value in usual.env.items() if not name.endswith("AUTH_DISABLED")}
    env |= named | {
        "LIFECYCLE_GATEWAY__HOST": host,
        "LIFECYCLE_GATEWAY__PORT": str(port),
        "LIFECYCLE_GATEWAY__CALLERS_FILE": str(callers),
    }
    part = Part("pods-gateway", command("gateway"), f"http://{host}:{port}/readyz", env)
    harness.stack.supervisor.start([part])
    harness.stack.supervisor.wait_healthy(["pods-gateway"])
    harness.deploy(Path.cwd(), "scheduler", **named)


def _deploy(harness: RealHarness, project: Path, version: str) -> tuple[float, float]:
    """Deploy a new version and start a run with it.

    Returns the seconds until ``crawlctl deploy`` returned, and until the spider executed by the
    timestamp of the container runtime.
    """
    (project / "shop" / "spiders" / "products.py").write_text(f"{_SPIDER}\n# {version}\n")
    gateway = str(harness.stack.addresses["gateway"])
    command = [sys.executable, "-m", "crawler_lifecycle.cli", "deploy", str(project)]
    began = time.time()
    subprocess.run(
        [*command, "--version", version, "--gateway", gateway],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    deployed = time.time()
    request = {"crawler": "package", "version": version}
    run_id = int(harness.gateway.start(request, version)["run_id"])
    executed = until(lambda: _executed(harness, run_id), "a spider that executes", 60)
    return deployed - began, executed - began


def _executed(harness: RealHarness, run_id: int) -> float | None:
    """Return when the spider of a run executed, in seconds since the epoch; ``None`` before that.

    A container that has not started has no log.
    """
    for pod in harness.objects(run_id, "pods"):
        if pod["status"]["phase"] == "Pending":
            continue
        log = harness.path(pod) + f"/log?timestamps=true&container={labels.CONTAINER}"
        found = re.search(r"(\S{26})\S*Z executes", harness.cluster.admin.text(log))
        if found:
            return datetime.fromisoformat(found[1] + "+00:00").timestamp()
    return None


def _measure() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        archive = crawler_image.assemble(folder / "crawler.tar")
        with Cluster(nodes=1, images=[archive]) as cluster:
            harness = RealHarness(folder / "state", cluster)
            (harness.folder / "crawlers.yaml").write_text(json.dumps([_ENTRY]))
            harness.start()
            try:
                _serve_pods(harness)
                project = write_project(folder / "shop")
                waits = [_deploy(harness, project, f"v{n}") for n in range(DEPLOYS)]
            finally:
                harness.end()
    _line(f"crawlctl deploy, {FILES} files", [wait[0] for wait in waits], "-")
    what = "from that command until the first pod executes, real kubelet"
    _line(what, [wait[1] for wait in waits], "10 s")


async def main() -> None:
    """Print the figures."""
    await asyncio.to_thread(_measure)
