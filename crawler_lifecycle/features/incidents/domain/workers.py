"""Workers that leave no notes any more: frozen, cut off from the database, or killed.

The clocks of machines differ, so a reader measures by its own how long a note has not changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

#: Seconds without a new note after which a worker is silent. With the pause between two rounds,
#: people learn of it within ten seconds.
SILENT_S = 7.0


class Beat(NamedTuple):
    """The last note of a worker: its roles, when it began, and when it left the note."""

    roles: str
    began: float
    at: float


@dataclass
class WorkerWatch:
    """What one reader has seen of the notes of workers."""

    _changed: dict[str, tuple[Beat, float]] = field(default_factory=dict)

    def silent(self, beats: Mapping[str, Beat], now: float) -> dict[str, float]:
        """Return for how many seconds each silent worker has been so, by its name.

        A worker with the same roles that began later replaces a silent one.
        """
        before = self._changed
        self._changed = {name: (beat, now) for name, beat in beats.items()}
        same = {name: seen for name, seen in before.items() if seen[0] == beats.get(name)}
        self._changed |= same
        waits = {name: now - changed for name, (_, changed) in self._changed.items()}
        alive = [beats[name] for name, wait in waits.items() if wait <= SILENT_S]
        return {
            name: wait
            for name, wait in waits.items()
            if wait > SILENT_S and not any(_replaces(other, beats[name]) for other in alive)
        }


def _replaces(other: Beat, beat: Beat) -> bool:
    return other.roles == beat.roles and other.began > beat.at
