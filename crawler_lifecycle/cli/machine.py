"""This machine: its loopback address, and the identity of a process: its number and its start time."""

from __future__ import annotations

from pathlib import Path

LOOPBACK = "127.0.0.1"


def start_time(pid: int) -> int | None:
    """The start of a process, in clock ticks since the machine's start; ``None`` when it does not exist or has ended.

    Process ids are used again; id and start time together name one process for good.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
