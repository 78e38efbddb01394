"""Processes and ports on this machine: starting and ending processes, their logs, and free
ports.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from crawler_lifecycle.cli.machine import LOOPBACK, start_time

DIE_WITH_PARENT = Path(__file__).with_name("die_with_parent.py")

#: The range of our ports. It is below the ports for outgoing connections, so that a port is still
#: free at a restart.
FREE_PORTS = (10_240, 32_000)
_CHANCE = random.SystemRandom()

#: The mark of a listening socket in the kernel's tables: an empty peer address, followed by the
#: state.
_LISTEN = ":0000 0A "

#: Log file -> the file's sizes before the last two starts of the part. Lines before these positions
#: belong to earlier starts.
_began: dict[Path, tuple[int, ...]] = {}


def end_process(pid: int, started: int | None, grace_s: float) -> None:
    """End the process with this id and start time: SIGTERM, then SIGKILL after the grace period.

    A process that has already ended is not an error.
    """
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
        if started is None or start_time(pid) != started:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        until = time.monotonic() + wait_s
        while start_time(pid) == started and time.monotonic() < until:
            time.sleep(0.02)


def of_folder(folder: Path) -> list[int]:
    """Return those processes of this user whose command line, environment or working directory
    names this folder.
    """
    name = os.fsencode(folder) + b"/"
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has ended, or belongs to another user
            told = os.fsencode((entry / "cwd").readlink()) + b"/"
            if name in told + (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return sorted(found)


def spawn(
    command: Sequence[str], *, env: Mapping[str, str], log: Path, cwd: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start a part that dies with this process (see ``die_with_parent``).

    Append its output to ``log``.

    The part gets its own session, so that Ctrl-C reaches only this process, which ends the parts in
    order. The kernel kills the part when the *thread* that called this function ends, so this
    thread must not end before the part.
    """
    command_line = [sys.executable, "-I", "-S", str(DIE_WITH_PARENT), str(os.getpid()), *command]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        _began[log] = (*_began.get(log, ())[-1:], output.seek(0, os.SEEK_END))
        return subprocess.Popen(
            command_line,
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def is_free(port: int) -> bool:
    """Return whether a process could now listen on this port of the loopback address."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def claim(port: int, claims: ExitStack) -> bool:
    """Claim a free port of the loopback address until ``claims`` is closed.

    Return whether this was possible.

    A part begins to listen seconds after its port was chosen, and does not listen during a restart.
    In the meantime, no other stack may choose the port. The claim is a socket with an abstract
    name. The kernel gives such a name to only one process, removes it when the process ends, and
    limits it to the port's network namespace.
    """
    held = socket.socket(socket.AF_UNIX)
    try:
        held.bind(f"\0crawlctl port {port}")
        claimed = is_free(port)
    except OSError:
        claimed = False
    if claimed:
        claims.enter_context(held)
    else:
        held.close()
    return claimed


def listens(pid: int, port: int) -> bool:
    """Return whether our process with this id listens on this port."""
    process = Path(f"/proc/{pid}")
    try:
        rows = "".join(table.read_text() for table in process.glob("net/tcp*")).splitlines()
        listening = {
            f"socket:[{row.split()[9]}]"
            for row in rows
            if f":{port:04X} " in row and _LISTEN in row
        }
        return not listening.isdisjoint(
            str(descriptor.readlink()) for descriptor in process.glob("fd/*")
        )
    except OSError:  # the process has just ended or closed a file; callers that wait ask again
        return False


def free_port(usable: Callable[[int], bool] = is_free) -> int:
    """Return a random port for which ``usable`` is true."""
    for _ in range(1000):
        port = _CHANCE.randint(*FREE_PORTS)
        if usable(port):
            return port
    raise OSError(f"no free port between {FREE_PORTS[0]} and {FREE_PORTS[1]} on {LOOPBACK}")


def tail(path: Path, lines: int = 12) -> str:
    """Return the last lines that a part wrote since its last start. If there are none, return those
    since the start before that.

    Equal lines are returned only once.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            began = max(
                (position for position in _began.get(path, ()) if position < size), default=0
            )
            file.seek(max(began, size - 16_384))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    last_of_each = list(reversed(dict.fromkeys(reversed(text.splitlines()))))
    return "\n".join(last_of_each[-lines:])
