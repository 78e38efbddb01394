"""The truth about a soak: the journals of the crawlers, and the journal of what the soak did to
them.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Line = dict[str, Any]
#: Run, index and attempt, which name one task on the cluster.
Name = tuple[int, int, int]


@dataclass
class Process:
    """One process of a crawler, by its own report."""

    run_id: int
    index: int
    attempt: int
    task_id: int
    pid: int
    start: int
    runner: int
    args: dict[str, str]
    begin: float
    last: float
    """When it last said anything: it executed until then at the least."""
    end: Line | None
    lost: float | None
    """When it killed its own runner."""
    signals: list[float]
    hungry: float | None = None
    """When it began to take the memory that it needs."""
    requests: list[tuple[str, float, float]] = field(default_factory=list)
    """Site, begin and end of each of its requests. The last one may end with the process."""
    refused: bool = False
    """True if a site refused one of its requests."""
    code: str = ""
    """The name in the deployed code that it executed; empty if its code was not deployed."""

    @property
    def name(self) -> Name:
        return self.run_id, self.index, self.attempt

    def __str__(self) -> str:
        how = (
            json.dumps({k: v for k, v in self.end.items() if k not in ("what", "at")})
            if self.end
            else "no end"
        )
        said = (
            f"signals {[round(at - self.begin, 2) for at in self.signals]}"
            if self.signals
            else "no signal"
        )
        lived = f"{clock(self.begin)} to {clock(self.last)}"
        return (
            f"process {self.pid} of {self.index}/{self.attempt} ({self.args.get('how')}): "
            f"{lived}, {said}, {how}"
        )


def clock(at: float) -> str:
    """Return a moment in a form that people can compare within one hour."""
    return time.strftime("%H:%M:%S", time.gmtime(at)) + f"{at % 1:.3f}"[1:]


def read_process(file: Path) -> Process | None:
    """Return the journal in this file, or ``None`` if its process died before it wrote anything."""
    lines: list[Line] = []
    for text in file.read_text().splitlines():
        try:
            lines.append(json.loads(text))
        except ValueError:  # The process was killed in the middle of a line.
            break
    if not lines:
        return None
    first = lines[0]
    ends = [line for line in lines if line["what"] == "end"]
    losses = [line["at"] for line in lines if line["what"] == "lost"]
    hungers = [line["at"] for line in lines if line["what"] == "hungry"]
    return Process(
        run_id=first["run_id"],
        index=first["task_index"],
        attempt=first["attempt"],
        task_id=first["task_id"],
        pid=first["pid"],
        start=first["start"],
        runner=first["runner"],
        args=first["args"],
        begin=first["at"],
        last=lines[-1]["at"],
        end=ends[0] if ends else None,
        lost=losses[0] if losses else None,
        signals=[line["at"] for line in lines if line["what"] == "signal"],
        hungry=hungers[0] if hungers else None,
        requests=_requests(lines),
        refused=any(line["what"] == "refused" for line in lines),
        code=first.get("code", ""),
    )


def _requests(lines: list[Line]) -> list[tuple[str, float, float]]:
    """Return the requests of a process, which are one after the other."""
    begins = [line["at"] for line in lines if line["what"] == "request"]
    ends = [line["at"] for line in lines if line["what"] == "answer"]
    ends += [lines[-1]["at"]] * (len(begins) - len(ends))
    site = lines[0]["args"].get("site", "")
    return [(site, begin, end) for begin, end in zip(begins, ends, strict=True)]


def read_journals(folder: Path, run_id: int | None = None) -> list[Process]:
    """Return every process that has executed, in the order in which they began."""
    pattern = "*.jsonl" if run_id is None else f"{run_id}-*.jsonl"
    found = (read_process(file) for file in folder.glob(pattern))
    return sorted(
        (process for process in found if process is not None), key=lambda process: process.begin
    )


@dataclass(frozen=True)
class Kill:
    """A death that the soak caused, with the processes of the task that died and the time."""

    name: Name
    whom: str
    at: float


@dataclass(frozen=True)
class Ask:
    """A request: when it was sent, when it was answered, and the answer."""

    step: int
    run: int
    kind: str
    sent: float
    answered: float
    answer: str
    """``ok``: it was promised. ``no``: refused. ``unknown``: nobody answered, and it may have
    happened.
    """
    detail: str = ""
    force: bool = False
    key: str = ""
    way: str = ""
    tasks: int = 0
    manager: int = 0
    """Of a manager of this number, and of no run."""


@dataclass
class Deeds:
    """The actions of the soak, written down when they are executed. Steps execute in parallel."""

    kills: list[Kill] = field(default_factory=list)
    asks: list[Ask] = field(default_factory=list)
    log: list[tuple[float, int, str]] = field(default_factory=list)
    hidden: list[tuple[float, float]] = field(default_factory=list)
    """When the disk with the tasks was missing: what ended then may have left no trace."""
    complaints: list[str] = field(default_factory=list)
    """What was untrue on the spot."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def killed(self, name: Name, whom: str, at: float) -> None:
        with self._lock:
            self.kills.append(Kill(name, whom, at))

    def asked(self, ask: Ask) -> None:
        with self._lock:
            self.asks.append(ask)

    def complain(self, text: str) -> None:
        with self._lock:
            self.complaints.append(text)

    def note(self, step: int, text: str) -> None:
        with self._lock:
            self.log.append((time.time(), step, text))

    def of(self, run: int, *kinds: str) -> list[Ask]:
        return [ask for ask in self.asks if ask.run == run and ask.kind in kinds]

    def kills_of(self, name: Name) -> list[Kill]:
        return [kill for kill in self.kills if kill.name == name]

    def steps_of(self, run: int, run_id: int | None) -> set[int]:
        """Return the steps that affected a run."""
        found = {ask.step for ask in self.asks if ask.run == run}
        word = re.compile(rf"\b{run_id}/\d+/\d+\b")
        return found | {
            step for _, step, text in self.log if run_id is not None and word.search(text)
        }


def overlaps(processes: Iterable[Process]) -> list[tuple[Process, Process]]:
    """Yield pairs of processes that executed at the same time."""
    found, ordered = [], sorted(processes, key=lambda process: process.begin)
    for n, one in enumerate(ordered):
        found += [(one, other) for other in ordered[n + 1 :] if other.begin < one.last]
    return found
