"""Workers that no longer leave notes, because they are frozen or cut off from the database, or were
killed.

The clocks of machines differ, so a reader uses its own clock to measure how long a note has not
changed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

#: Seconds without a new note after which a worker counts as silent. Even with the pause between two
#: rounds, people learn of it within ten seconds.
SILENT_S = 6.0


class WorkerNote(NamedTuple):
    """The last note of a worker: its roles, when the worker began, and when it left the note."""

    roles: str
    began: float
    at: float


@dataclass
class WorkerWatch:
    """The notes of workers, and since when one reader has seen each note unchanged."""

    _changed: dict[str, tuple[WorkerNote, float]] = field(default_factory=dict)
    _began: float | None = None
    is_settled: bool = False
    """Whether it has watched for long enough to know which workers are silent."""

    def silent(self, notes: Mapping[str, WorkerNote], now: float) -> dict[str, float]:
        """Return the seconds for which each silent worker has been silent, by its name."""
        if self._began is None:
            self._began = now
        self.is_settled = now - self._began > SILENT_S
        before = self._changed
        self._changed = {name: (note, now) for name, note in notes.items()}
        same = {name: seen for name, seen in before.items() if seen[0] == notes.get(name)}
        self._changed |= same
        waits = {name: now - changed for name, (_, changed) in self._changed.items()}
        return {name: wait for name, wait in waits.items() if wait > SILENT_S}


def is_replaced(name: str, notes: Mapping[str, WorkerNote], silent: Collection[str]) -> bool:
    """Return whether a worker with the same roles has begun since the last note of this worker."""
    alive = [notes[other] for other in notes.keys() - silent]
    last = notes[name]
    return any(other.roles == last.roles and other.began > last.at for other in alive)
