"""The processes of the fault tests, which are started, kept up, killed, frozen and ended by their
ids, and toxiproxy between them.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import httpx

#: The delay after which a process that died is started again, as systemd does.
RESTART_S = 2.0
#: A timeout and not a criterion: on a busy machine, five processes have taken three minutes.
READY_S = 900.0
#: Sends each request over a new connection, as different callers would. A new client for each
#: request would read the certificates again.
HTTP = httpx.Client(trust_env=False, verify=False, limits=httpx.Limits(max_keepalive_connections=0))


def stat(pid: int) -> tuple[str, int, int] | None:
    """Return the state, parent and start time of a process from the kernel, or ``None`` if there is
    no such process.
    """
    with suppress(OSError, IndexError, ValueError):
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return words[0], int(words[1]), int(words[19])
    return None


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def children(pid: int) -> list[int]:
    return [one for one in pids() if (found := stat(one)) and found[1] == pid]


def listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def answers(url: str) -> Callable[[], bool]:
    """Return whether a health check succeeds."""

    def ask() -> bool:
        with suppress(httpx.HTTPError):
            return HTTP.get(url, timeout=5).is_success
        return False

    return ask


class Part:
    """One process. Only the main thread starts it, because it dies with the thread that started it."""

    def __init__(
        self, name: str, command: Sequence[str], env: Mapping[str, str], folder: Path, ready: Callable[[], bool],
        user: str = "",
    ) -> None:  # fmt: skip
        self.name, self.command, self.env, self.folder, self.ready = (
            name,
            list(command),
            dict(env),
            folder,
            ready,
        )
        self._as = ["--reuid", user, "--regid", user, "--clear-groups"] if user else []
        self.process: subprocess.Popen[bytes] | None = None
        self.deaths: list[tuple[float, int]] = []
        """When it died, and with which code."""
        self.wanted, self._dead_at = False, 0.0

    @property
    def pid(self) -> int:
        return self.process.pid if self.process and self.process.poll() is None else 0

    def start(self) -> None:
        words = ["setpriv", "--pdeathsig", "KILL", *self._as, "--", *self.command]
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                words,
                env=self.env,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.wanted, self._dead_at = True, 0.0

    def wait_ready(self, tick: Callable[[], None] | None = None, seconds: float = READY_S) -> None:
        """Wait until the process works, and start it again if it ends. Raises RuntimeError."""
        end = time.monotonic() + seconds
        while not self.ready():
            (tick or self.tick)()
            if time.monotonic() > end:
                tail = (self.folder / f"{self.name}.log").read_text(errors="replace")[-1500:]
                raise RuntimeError(f"{self.name} is not ready after {seconds:g} s: {tail}")
            time.sleep(0.2)

    def tick(self) -> None:
        """Start the process again if it died some time ago."""
        if self.process is None or self.process.poll() is None:
            return
        if not self._dead_at:
            self._dead_at = time.monotonic()
            self.deaths.append((time.time(), self.process.returncode))
        elif self.wanted and time.monotonic() > self._dead_at + RESTART_S:
            self.start()

    def kill(self) -> int:
        """Kill the process as a crash does, with its children if the program has several processes,
        and return how many died.
        """
        victims = [self.pid, *(children(self.pid) if self._as else [])]
        for pid in filter(None, victims):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.process:
            self.process.wait(30)
        return len(
            [pid for pid in victims if pid and ((found := stat(pid)) is None or found[0] == "Z")]
        )

    def end(self, seconds: float) -> None:
        """End the process in an orderly way, or by force after this time."""
        self.wanted = False
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(signal.SIGINT if self._as else signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)
            self.kill()


class Proxies:
    """The API of toxiproxy, and the traffic through it, which the kernel counts in its sockets and
    toxiproxy counts itself.
    """

    def __init__(self, url: str) -> None:
        self.ports: dict[str, int] = {}
        self._http = httpx.Client(base_url=url, timeout=60, trust_env=False)

    def add(self, name: str, listen: int, upstream: int) -> None:
        body = {
            "name": name,
            "listen": f"127.0.0.1:{listen}",
            "upstream": f"127.0.0.1:{upstream}",
            "enabled": True,
        }
        self._http.post("/proxies", json=body).raise_for_status()
        self.ports[name] = listen

    def enable(self, name: str, value: bool) -> None:
        self._http.post(f"/proxies/{name}", json={"enabled": value}).raise_for_status()

    def toxic(self, name: str, kind: str, stream: str, **attributes: int) -> None:
        body = {
            "name": f"{kind}-{stream}",
            "type": kind,
            "stream": stream,
            "attributes": attributes,
        }
        self._http.post(f"/proxies/{name}/toxics", json=body).raise_for_status()

    def heal(self, name: str) -> None:
        """Remove all toxics, and listen again."""
        for toxic in self._http.get(f"/proxies/{name}/toxics").raise_for_status().json():
            self._http.delete(f"/proxies/{name}/toxics/{toxic['name']}").raise_for_status()
        self.enable(name, True)

    def through(self, name: str) -> int:
        """Return the bytes of clients in ended connections, including connections that were too
        short to be seen open.
        """
        lines = self._http.get("/metrics").text.splitlines()
        mine = [
            line
            for line in lines
            if line.startswith("toxiproxy_proxy_received_bytes_total") and f'"{name}"' in line
        ]
        return sum(int(float(line.split()[-1])) for line in mine if 'direction="upstream"' in line)

    def connections(self, name: str) -> dict[str, tuple[int, int]]:
        """Return the open connections of clients, with the bytes that came from each client and
        that went to it.
        """
        asked = ["ss", "-tniH", "state", "established", f"( sport = :{self.ports[name]} )"]
        told = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        found, peer = {}, ""
        for line in told.splitlines():
            if not line[0].isspace():
                peer = line.split()[3]
                found[peer] = (0, 0)
            else:
                counts = dict(re.findall(r"\b(bytes_received|bytes_sent):(\d+)", line))
                found[peer] = int(counts.get("bytes_received", 0)), int(counts.get("bytes_sent", 0))
        return found
