"""Workers that leave no notes any more: frozen, cut off from the database, or killed.

The clocks of machines differ, so a reader measures by its own how long a note has not changed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

#: Seconds without a new note after which a worker is silent. With the pause between two rounds,
#: people learn of it within ten seconds.
SILENT_S = 6.0


class WorkerNote(NamedTuple):
    """The last note of a worker: its roles, when it began, and when it left the note."""

    roles: str
    began: float
    at: float


@dataclass
class WorkerWatch:
    """The notes of workers, and since when one reader has seen each as it is."""

    _changed: dict[str, tuple[WorkerNote, float]] = field(default_factory=dict)

    def silent(self, notes: Mapping[str, WorkerNote], now: float) -> dict[str, float]:
        """Return for how many seconds each silent worker has been so, by its name."""
        before = self._changed
        self._changed = {name: (note, now) for name, note in notes.items()}
        same = {name: seen for name, seen in before.items() if seen[0] == notes.get(name)}
        self._changed |= same
        waits = {name: now - changed for name, (_, changed) in self._changed.items()}
        return {name: wait for name, wait in waits.items() if wait > SILENT_S}


def is_replaced(name: str, notes: Mapping[str, WorkerNote], silent: Collection[str]) -> bool:
    """Return whether a worker with the same roles has begun after the last note of this one."""
    alive = [notes[other] for other in notes.keys() - silent]
    last = notes[name]
    return any(other.roles == last.roles and other.began > last.at for other in alive)
