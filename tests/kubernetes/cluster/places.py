"""The names that one cluster owns on this machine (ports, bridge, subnet, cgroups, folder), and how
they are cleared.

A machine has twenty *slots*. Whoever holds the lock of a slot owns its names; the kernel releases
the lock with its holder, so anything under the names of a newly taken slot was left by a killed
process, and is removed.
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tests.kubernetes.cluster.processes import ClusterFailed

SLOTS = 20
#: Below the range from which the kernel takes ports of outgoing connections, so that nobody takes
#: one between two starts.
FIRST_PORT = 21_000
PORTS_A_SLOT = 50
CGROUPS = Path("/sys/fs/cgroup")


def base() -> Path:
    """Return the folder of locks and of what clusters write, one for each user."""
    return Path(os.environ.get("TMPDIR", "/tmp")) / f"crawler-lifecycle-kube-{os.getuid()}"


@dataclass
class Slots:
    """A slot that is held until ``release``.

    ``prefix`` and ``network`` are used for links, cgroups and addresses.
    """

    slot: int
    folder: Path
    prefix: str = "clk"
    network: str = "10.123"
    _lock: IO[str] | None = field(default=None, repr=False)
    _given: int = field(default=0, repr=False)

    @classmethod
    def take(
        cls, folder: Path | None = None, prefix: str = "clk", network: str = "10.123"
    ) -> Slots:
        """Take the first free slot, cleared of what an earlier holder left.

        Raises ClusterFailed if all are taken.
        """
        root = base()
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for slot in range(SLOTS):
            lock = (root / f"{prefix}{slot}.lock").open("a")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.close()
                continue
            own = root / f"{prefix}{slot}"
            places = cls(slot, folder.absolute() if folder else own, prefix, network, lock)
            places.clear()
            shutil.rmtree(own, ignore_errors=True)
            try:
                places._empty_folder()
            except ClusterFailed:
                places.release(keep_folder=True)
                raise
            return places
        raise ClusterFailed(f"all {SLOTS} slots below {root} are taken: end another cluster first")

    def _empty_folder(self) -> None:
        """Make the folder. If it contains anything except an earlier cluster, it is not emptied."""
        if (self.folder / "tokens.csv").exists():
            shutil.rmtree(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        if any(self.folder.iterdir()):
            raise ClusterFailed(
                f"{self.folder} is not empty and holds no test cluster: name another folder"
            )

    @property
    def name(self) -> str:
        """Return the name of the cluster, its bridge and its cgroups."""
        return f"{self.prefix}{self.slot}"

    @property
    def gateway(self) -> str:
        """Return the address of the bridge: the node's own, and where pods reach a server of this
        machine.
        """
        return f"{self.network}.{self.slot}.1"

    def address(self, last: int) -> str:
        """Return an address of the subnet."""
        return f"{self.network}.{self.slot}.{last}"

    @property
    def services(self) -> str:
        """Return the network for the addresses of Services, next to that of pods; each cluster has
        its own.
        """
        first, second = self.network.split(".")
        return f"{first}.{int(second) + 1}.{self.slot}.0/24"

    @property
    def api_service(self) -> str:
        """Return the address at which pods find the API server: the first one of Services."""
        return str(next(ipaddress.ip_network(self.services).hosts()))

    def port(self) -> int:
        """Return a free port of the slot, a different one each time."""
        while self._given < PORTS_A_SLOT:
            port = FIRST_PORT + self.slot * PORTS_A_SLOT + self._given
            self._given += 1
            with socket.socket() as probe, suppress(OSError):
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("0.0.0.0", port))
                return port
        raise ClusterFailed(f"no port of {self.name} is free")

    @property
    def held(self) -> bool:
        """Return whether the slot is still ours."""
        return self._lock is not None

    # --- clearing ---------------------------------------------------------------------------------

    def clear(self) -> None:
        """Remove link and cgroups of this slot.

        Raises ClusterFailed if something still holds them.
        """
        if Path(f"/sys/class/net/{self.name}").exists():
            subprocess.run(["ip", "link", "delete", self.name], check=True, capture_output=True)
        end = time.monotonic() + 150
        while left := list(self.cgroups()):
            for folder in left:
                with suppress(
                    OSError
                ):  # busy for a moment longer, because the kernel is still reaping
                    folder.rmdir()
            if time.monotonic() > end:
                raise ClusterFailed(
                    f"cgroups of {self.name} do not go away: {[str(p) for p in left[:3]]}"
                )
            time.sleep(0.02)

    def cgroups(self) -> Iterator[Path]:
        """Return our cgroups in every hierarchy, the deepest first."""
        hierarchies = [CGROUPS]  # version 2: one tree
        if not (CGROUPS / "cgroup.controllers").exists():
            hierarchies = [p for p in CGROUPS.iterdir() if p.is_dir()] if CGROUPS.is_dir() else []
        for hierarchy in hierarchies:
            for root in hierarchy.glob(f"{self.name}-*"):
                for folder, _, _ in os.walk(root, topdown=False):
                    yield Path(folder)

    def release(self, *, keep_folder: bool = False) -> None:
        """Clear everything and release the slot."""
        self.clear()
        if not keep_folder:
            shutil.rmtree(self.folder)
        if self._lock:
            self._lock.close()
            self._lock = None
