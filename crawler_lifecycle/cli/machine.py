"""Facts about this machine: its loopback address, and the start times of processes."""

from __future__ import annotations

from pathlib import Path

LOOPBACK = "127.0.0.1"


def start_time(pid: int) -> int | None:
    """Return the start time of a process, in clock ticks since the machine's start.

    ``None`` if it does not exist or has ended. Process ids are used again, but id and start time identify one process.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
