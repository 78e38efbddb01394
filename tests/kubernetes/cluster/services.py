"""The network of Services for a real node: a name server and a proxy in this process, for CoreDNS
and kube-proxy.

Every Service has its own address on the node's bridge, and the name that the specification gives
it. A connection to ``address:port`` goes on to a pod that the cluster itself calls ready, at the
port that its EndpointSlice says: a wrong selector, port name or readiness leads nowhere here as
well. Network policies are enforced by nobody.
"""

from __future__ import annotations

import ipaddress
import itertools
import select
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from types import TracebackType
from typing import Any

from tests.kubernetes.cluster.admin import AdminError
from tests.kubernetes.cluster.cluster import Cluster

DOMAIN = "svc.cluster.local"
_CONNECT_S = 5.0
_NAME_ERROR, _A = 3, 1
_API = ("default", "kubernetes")
#: No Service: a port of this machine.
_HERE = ("", "")


class ServiceNetwork:
    """Serves names and addresses of all Services that exist when ``refresh`` is called; a context
    manager.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._places = cluster, cluster.places
        self._closing = threading.Event()
        self._open = ExitStack()
        self._names: dict[str, str] = {}
        self._listening: set[tuple[str, int]] = set()
        self._turn = itertools.count()
        #: Requested names and addresses that lead nowhere.
        self.unknown: set[str] = set()

    def __enter__(self) -> ServiceNetwork:
        try:
            server = self._open.enter_context(
                closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            )
            server.bind((self._places.gateway, 53))
            self._start(self._serve_names, server)
            self.refresh()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening. Open connections end by themselves."""
        self._closing.set()
        self._open.close()
        for address in {address for address, _ in self._listening}:
            self._ip("delete", address)
        self._listening.clear()

    def refresh(self) -> None:
        """Add Services that were created since."""
        for service in self._cluster.admin.get("/api/v1/services")["items"]:
            space, name = service["metadata"]["namespace"], service["metadata"]["name"]
            address = service["spec"]["clusterIP"]
            self._names[f"{name}.{space}.{DOMAIN}"] = address
            for port in service["spec"]["ports"]:
                if (address, port["port"]) not in self._listening:
                    self._listen(address, space, name, port)

    def address(self, name: str, namespace: str) -> str:
        """Return the address of a Service that was added. Raises KeyError for any other."""
        return self._names[f"{name}.{namespace}.{DOMAIN}"]

    def lend(self, port: int) -> str:
        """Let pods reach a server of this machine that listens only on loopback. Returns the
        address for them.
        """
        server = self._open.enter_context(
            closing(socket.create_server((self._places.gateway, port), backlog=128))
        )
        self._start(self._accept, server, *_HERE, str(port))
        return f"{self._places.gateway}:{port}"

    def _listen(self, address: str, space: str, name: str, port: dict[str, Any]) -> None:
        if address not in {known for known, _ in self._listening}:
            self._ip("add", address)
        server = self._open.enter_context(
            closing(socket.create_server((address, port["port"]), backlog=128))
        )
        self._listening.add((address, port["port"]))
        self._start(self._accept, server, space, name, port.get("name", ""))

    def _ip(self, verb: str, address: str) -> None:
        command = ["ip", "address", verb, f"{address}/32", "dev", self._places.name]
        subprocess.run(command, check=verb == "add", capture_output=True)

    def _start(self, work: Any, server: socket.socket, *more: str) -> None:
        server.settimeout(0.2)
        thread = threading.Thread(target=work, args=(server, *more), daemon=True)
        thread.start()
        self._open.callback(thread.join, 5)
        self._open.callback(self._closing.set)

    # --- connections ------------------------------------------------------------------------------

    def _accept(self, server: socket.socket, space: str, name: str, port: str) -> None:
        while not self._closing.is_set():
            try:
                client, _ = server.accept()
            except TimeoutError:
                continue
            threading.Thread(
                target=self._carry, args=(client, space, name, port), daemon=True
            ).start()

    def _carry(self, client: socket.socket, space: str, name: str, port: str) -> None:
        with closing(client):
            ready = list(self._ends(space, name, port))
            if not ready:
                # A reset, as for a refused connection.
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return
            with (
                suppress(OSError),
                closing(socket.create_connection(self._next(ready), _CONNECT_S)) as pod,
            ):
                self._pass_on(client, pod)

    def _next(self, ready: list[tuple[str, int]]) -> tuple[str, int]:
        return ready[next(self._turn) % len(ready)]

    def _ends(self, space: str, name: str, port: str) -> Iterator[tuple[str, int]]:
        """Return the present endpoints of the Service."""
        if (space, name) == _HERE:
            yield "127.0.0.1", int(port)
            return
        if (space, name) == _API:
            yield "127.0.0.1", int(self._cluster.api.rpartition(":")[2])
            return
        path = f"/apis/discovery.k8s.io/v1/namespaces/{space}/endpointslices"
        try:
            slices = self._cluster.admin.get(
                f"{path}?labelSelector=kubernetes.io%2Fservice-name%3D{name}"
            )["items"]
        except (AdminError, OSError):
            return
        for one in slices:
            numbers = [
                known["port"]
                for known in one.get("ports") or ()
                if (known.get("name") or "") == port
            ]
            for end in one.get("endpoints") or ():
                if numbers and (end.get("conditions") or {}).get("ready"):
                    yield end["addresses"][0], numbers[0]

    def _pass_on(self, client: socket.socket, pod: socket.socket) -> None:
        other = {client: pod, pod: client}
        open_ = set(other)
        while open_ and not self._closing.is_set():
            readable, _, _ = select.select(list(open_), [], [], 1.0)
            for end in readable:
                if data := end.recv(65536):
                    other[end].sendall(data)
                else:
                    open_.discard(end)
                    other[end].shutdown(socket.SHUT_WR)

    # --- names ------------------------------------------------------------------------------------

    def _serve_names(self, server: socket.socket) -> None:
        while not self._closing.is_set():
            try:
                question, asker = server.recvfrom(4096)
            except TimeoutError:
                continue
            # Nobody waits for a response to an invalid query.
            with suppress(OSError, IndexError, struct.error):
                server.sendto(self.answer(question), asker)

    def answer(self, question: bytes) -> bytes:
        """Answer a DNS query for one name: an address, nothing of that type, or no such name."""
        labels, at = [], 12
        while length := question[at]:
            labels.append(question[at + 1 : at + 1 + length].decode("ascii", "replace"))
            at += 1 + length
        name, kind = ".".join(labels).lower(), struct.unpack_from(">H", question, at + 1)[0]
        address = self._names.get(name)
        if address is None:
            self.unknown.add(name)
        asked = question[12 : at + 5]
        found = (
            struct.pack(">HHHIH", 0xC00C, _A, 1, 5, 4) + ipaddress.ip_address(address).packed
            if address
            else b""
        )
        found = found if kind == _A else b""
        flags = 0x8580 | (0 if address else _NAME_ERROR)
        return (
            question[:2] + struct.pack(">HHHHH", flags, 1, 1 if found else 0, 0, 0) + asked + found
        )
