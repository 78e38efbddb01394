"""Tests of the test cluster: it starts, its parts can be broken, several can run at once, and
nothing is left.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.kubernetes.cluster import images, node
from tests.kubernetes.cluster.admin import Admin, AdminError
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.cluster.places import CGROUPS, Slots, base
from tests.kubernetes.cluster.processes import ClusterFailed, until

pytestmark = pytest.mark.slow

UP = [sys.executable, "-m", "tests.kubernetes.cluster", "up"]
POD = {
    "containers": [{"name": "crawler", "image": images.PYTHON, "imagePullPolicy": "Never"}],
    "restartPolicy": "Never",
}


@pytest.fixture(autouse=True)
def _binaries(kube_binaries: None) -> None:
    """Require the programs for all tests here."""


def _processes(mark: str) -> dict[int, str]:
    """Return processes whose command line contains ``mark``, such as the folder of a cluster."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with suppress(OSError):
                words = (
                    (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
                if mark in words:
                    found[int(entry.name)] = words
    return found


def _trace(name: str) -> list[str]:
    """Return what the machine has of the cluster of this name."""
    links = [p.name for p in Path("/sys/class/net").iterdir() if p.name == name]
    cgroups = [str(p) for p in (*CGROUPS.glob(f"{name}-*"), *CGROUPS.glob(f"*/{name}-*"))]
    mounts = [
        line for line in Path("/proc/self/mounts").read_text().splitlines() if f"/{name}/" in line
    ]
    return links + cgroups + mounts + list(_processes(f"{base()}/{name}/").values())


def _host() -> dict[str, object]:
    """Return what a node could have changed on the machine."""
    settings = ("vm/overcommit_memory", "kernel/panic", "net/ipv4/ip_forward", "vm/panic_on_oom")
    mounts = [line for line in Path("/proc/self/mounts").read_text().splitlines() if "clk" in line]
    return {name: Path("/proc/sys", name).read_text() for name in settings} | {"mounts": mounts}


def _real(cluster_nodes: int) -> None:
    if cluster_nodes and (reason := node.unable()):
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(f"THE REAL KUBELET CANNOT RUN HERE: {reason}")


@pytest.mark.parametrize(("kwok", "nodes"), [(2, 0), (0, 1)], ids=["kwok", "real"])
def test_nothing_is_left(kwok: int, nodes: int) -> None:
    _real(nodes)
    before = _host()
    with Cluster(kwok=kwok, nodes=nodes) as cluster:
        name, folder = cluster.places.name, cluster.places.folder
        pids = [part.pid for part in cluster.parts().values()]
        namespace = cluster.namespace()
        spec = POD | {
            "containers": [POD["containers"][0] | {"args": ["-c", "import time; time.sleep(600)"]}]
        }
        cluster.admin.post(
            f"/api/v1/namespaces/{namespace}/pods", {"metadata": {"name": "stays"}, "spec": spec}
        )
        path = f"/api/v1/namespaces/{namespace}/pods/stays"
        until(lambda: cluster.admin.get(path)["status"]["phase"] == "Running", "a running pod", 150)
        assert _trace(name)
    assert _trace(name) == []
    assert not folder.exists()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert _host() == before


def test_two_at_once_share_nothing() -> None:
    with Cluster(kwok=1) as one, Cluster(kwok=1) as two:
        assert {one.places.name, one.api, one.places.gateway}.isdisjoint(
            {two.places.name, two.api, two.places.gateway}
        )
        first, second = one.namespace("first"), two.namespace("second")
        names = {item["metadata"]["name"] for item in two.admin.get("/api/v1/namespaces")["items"]}
        assert second in names
        assert first not in names
        stranger = Admin(one.api, two.token(), one.plane.authority.certificate)
        with pytest.raises(AdminError) as refused:
            stranger.get("/api/v1/nodes")
        assert refused.value.status == 401


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_whoever_ends_it_every_process_ends(number: int, tmp_path: Path) -> None:
    """After SIGKILL, too: the kernel ends the parts, and the next start clears the rest."""
    words = ["--node"] if node.unable() is None else ["--kwok", "1"]
    deep = tmp_path / "a folder with a long name as sockets have only short ones" / "c"
    running = subprocess.Popen([*UP, *words, "--dir", str(deep)], stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    said = json.loads(running.stdout.readline())
    assert Admin(said["api"], "void", deep / "pki/ca.crt").ready() is False
    assert _processes(said["dir"])
    running.send_signal(number)
    assert running.wait(120) == (-number if number == signal.SIGKILL else 0)
    until(lambda: not _processes(said["dir"]), "the end of every process", 150)
    running.stdout.close()
    places = Slots.take()
    assert _trace(places.name) == []
    places.release()


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ClusterFailed, match="not empty"):
        Cluster(kwok=1, folder=tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
