"""A real node: containerd and kubelet in private mount and pid namespaces, with real containers.

Needs root.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.kubernetes.cluster import images
from tests.kubernetes.cluster.control_plane import ControlPlane
from tests.kubernetes.cluster.node_files import cni, containerd, kubelet
from tests.kubernetes.cluster.places import CGROUPS, Slots
from tests.kubernetes.cluster.processes import ClusterFailed, Part, until

CNI_PLUGINS = Path("/usr/lib/cni")
_NEEDED = ("runc", "ip", "unshare", "setpriv", "mount", "nsenter")
#: The cgroup controllers of version 2 that the kubelet needs.
_CONTROLLERS = ("cpuset", "cpu", "io", "memory", "pids")


def unable() -> str | None:
    """Return why no real node can run on this machine, or nothing if it can."""
    if os.geteuid() != 0:
        return "root is needed for containers"
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"
    lacking = [name for name in _NEEDED if not shutil.which(name, path=path)]
    plugins = (CNI_PLUGINS / name for name in ("bridge", "host-local", "loopback"))
    lacking += [str(plugin) for plugin in plugins if not plugin.exists()]
    if lacking:
        return f"{', '.join(lacking)} missing (`make test-deps`)"
    if not os.access(CGROUPS, os.W_OK):
        return f"{CGROUPS} is not writable"
    return None


class Node:
    """One kubelet. ``number`` counts the nodes of the cluster from 0."""

    INNER = ("kubelet", "containerd")

    def __init__(
        self, places: Slots, bin_: Path, plane: ControlPlane, name: str, number: int
    ) -> None:
        if number >= 3:
            raise ClusterFailed(
                "at most 3 real nodes a cluster: they share one subnet of 240 addresses"
            )
        if set(str(places.folder)) & set(",:\\'\""):
            raise ClusterFailed(
                f"{str(places.folder)!r}: no comma, colon, quote or backslash; overlays cannot have them"
            )
        self.name, self.number = name, number
        self._places, self._bin, self._plane = places, bin_, plane
        self.folder = places.folder / name
        self._port = places.port()
        self.part = Part(
            name,
            [],
            places.folder / f"{name}.log",
            {"PATH": f"{bin_}:/usr/sbin:/usr/bin:/sbin:/bin"},
        )

    def start(self, archives: Sequence[Path] = ()) -> None:
        """Start it; it is ready when the API server reports so.

        Data of an earlier start are used, as after a reboot.
        """
        loaded = [images.pause(self._bin), images.python(), *archives]
        self._write_files()
        self._make_bridge()
        self._make_cgroups()
        private = [
            "unshare",
            "--mount",
            "--propagation",
            "slave",
            "--pid",
            "--fork",
            "--kill-child=SIGKILL",
        ]
        script = [str(Path(__file__).with_name("node_init.sh")), str(self.folder), self.name]
        self.part.command = (*private, "--mount-proc", "bash", *script, *map(str, loaded))
        self.part.start()

    def load(self, archive: Path) -> None:
        """Import an OCI archive into the running node."""
        self._inside("ctr", "--namespace", "k8s.io", "images", "import", "--local", str(archive))

    def _inside(self, *command: str) -> None:
        init = self._children(self.part.pid)[0]
        enter = ["nsenter", "--target", str(init), "--mount", "--"]
        done = subprocess.run(
            [*enter, *command], env=self.part.env, capture_output=True, text=True, timeout=300
        )
        if done.returncode:
            raise ClusterFailed(f"{' '.join(command)}: {done.stderr.strip()[-1000:]}")

    # --- what it stands on ------------------------------------------------------------------------

    def _write_files(self) -> None:
        places, folder = self._places, self.folder
        (folder / "cni").mkdir(parents=True, exist_ok=True)
        first = 10 + self.number * 80
        # One node has the whole subnet unless others follow it.
        last = 250 if self.number == 0 and not self._has_others() else first + 79
        subnet, ends = (
            f"{places.network}.{places.slot}.0/24",
            (places.address(first), places.address(last)),
        )
        (folder / "cni" / "10-bridge.conflist").write_text(
            cni(places.name, subnet, places.services, places.gateway, *ends)
        )
        runc = shutil.which("runc", path=self.part.env["PATH"]) or "runc"
        (folder / "containerd.toml").write_text(containerd(folder, images.PAUSE, CNI_PLUGINS, runc))
        config = kubelet(
            folder, self.name, places.gateway, self._port, self._plane.authority.certificate
        )
        (folder / "kubelet.yaml").write_text(json.dumps(config, indent=1))
        (folder / "address").write_text(places.gateway)
        token = self._plane.tokens[f"system:node:{self.name}"]
        self._plane.authority.kubeconfig(folder / "kubeconfig", self._plane.api, token)

    def _has_others(self) -> bool:
        return f"system:node:{self._places.name}-node2" in self._plane.tokens

    def _make_bridge(self) -> None:
        bridge = self._places.name
        if Path(f"/sys/class/net/{bridge}").exists():
            return
        for words in (
            ["link", "add", bridge, "type", "bridge"],
            ["address", "add", f"{self._places.gateway}/24", "dev", bridge],
            ["link", "set", bridge, "up"],
        ):
            subprocess.run(["ip", *words], check=True, capture_output=True)

    def _make_cgroups(self) -> None:
        """Create the root that the kubelet expects: in every hierarchy of version 1, or in the only
        tree of version 2.

        It has the maximum weight: by default, all pods together weigh as much as one process of the
        machine, and get a twentieth of a processor next to twenty. Their limits bound them.
        """
        if (CGROUPS / "cgroup.controllers").exists():
            self._delegate(CGROUPS)
            (CGROUPS / self.name).mkdir(exist_ok=True)
            self._delegate(CGROUPS / self.name)
            (CGROUPS / self.name / "cpu.weight").write_text("10000")
            return
        for hierarchy in (p for p in CGROUPS.iterdir() if p.is_dir() and p.name != "unified"):
            root = hierarchy / self.name
            root.mkdir(exist_ok=True)
            if hierarchy.name == "cpuset" or (root / "cpuset.cpus").exists():
                for name in ("cpuset.cpus", "cpuset.mems"):
                    (root / name).write_text((hierarchy / name).read_text())
            if (root / "cpu.shares").exists():
                (root / "cpu.shares").write_text("262144")

    @staticmethod
    def _delegate(cgroup: Path) -> None:
        there = (cgroup / "cgroup.controllers").read_text().split()
        given = (cgroup / "cgroup.subtree_control").read_text().split()
        for controller in _CONTROLLERS:
            if controller in there and controller not in given:
                try:
                    (cgroup / "cgroup.subtree_control").write_text(f"+{controller}")
                except OSError as error:
                    raise ClusterFailed(
                        f"{cgroup} does not hand on {controller} to a node: {error.strerror}"
                    ) from None

    # --- what runs inside -------------------------------------------------------------------------

    @staticmethod
    def _children(pid: int) -> list[int]:
        with suppress(OSError):
            return [
                int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            ]
        return []

    def inner_pid(self, program: str) -> int | None:
        """Return the process id, as this machine counts, of the kubelet or containerd of this node."""
        for init in self._children(self.part.pid) if self.part.alive() else ():
            for pid in self._children(init):
                with suppress(OSError):
                    if Path(f"/proc/{pid}/comm").read_text().strip() == program:
                        return pid
        return None

    def signal(self, program: str, number: int) -> None:
        """Send a signal to the kubelet or containerd. Raises ClusterFailed if it is not running."""
        pid = self.inner_pid(program)
        if pid is None:
            raise ClusterFailed(f"{program} of {self.name} does not run")
        os.kill(pid, number)
        if number == signal.SIGKILL:
            until(
                lambda: self.inner_pid(program) != pid, f"the end of {program}", 150, pause_s=0.02
            )

    def start_inner(self, program: str) -> None:
        """Start the kubelet or containerd again after it was killed."""
        init = self._children(self.part.pid)[0]
        os.kill(init, signal.SIGUSR1 if program == "kubelet" else signal.SIGUSR2)
        until(
            lambda: self.inner_pid(program),
            f"{program} of {self.name}",
            150,
            [self.part],
            pause_s=0.02,
        )

    def wait_gone(self) -> None:
        """Return when no process of the node is left: the kernel ends them after the first one."""

        def left() -> bool:
            for root in (CGROUPS / self.name, *CGROUPS.glob(f"*/{self.name}")):
                for file in root.rglob("cgroup.procs"):
                    with suppress(OSError):
                        if file.read_text().strip():
                            return True
            return False

        until(lambda: not left(), f"the end of the processes of {self.name}", 150, pause_s=0.02)
