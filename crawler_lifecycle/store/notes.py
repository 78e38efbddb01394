"""Notes that processes leave for each other for a time: logins that ended, fingerprints of
settings, and an upgrade.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import Column, Connection, String, delete, select

from crawler_lifecycle.background import Loop
from crawler_lifecycle.store.base.bulk import put_row
from crawler_lifecycle.store.base.rows import Row
from crawler_lifecycle.store.base.unit import StorePart
from crawler_lifecycle.store.columns import UtcTime, Words, new_table, required

process_note = new_table(
    "process_note",
    Column("kind", String(20), primary_key=True),
    Column("name", String(100), primary_key=True),
    required("note", Words(1000)),
    # The note does not count after this time. The next note of its kind removes it.
    required("ends_at", UtcTime),
)

#: The kinds of notes: the id of a login that ended before its time; the settings of a process; an
#: upgrade of the schema, which counts as long as the former build may return.
LOGIN = "login"
SETTINGS = "settings"
UPGRADE = "upgrade"
#: The most notes of a kind that are read. Nobody has so many processes, or logs out so often.
NOTES_MAX = 10_000
#: Seconds between two notes about the settings of a process, seconds for which one counts, and the
#: most differences that are reported.
EVERY_S = 20.0
COUNTS_S = 60.0
SHOWN = 10
_n = process_note.c


class NoteStore(StorePart):
    """The notes of all processes that use the database."""

    def leave_note(self, kind: str, name: str, note: str, ends_at: datetime) -> None:
        """Leave a note, or replace the one with this name.

        Notes of the kind whose time is over are removed.
        """

        def write(conn: Connection) -> None:
            conn.execute(delete(process_note).where(_n.kind == kind, _n.ends_at <= self._clock()))
            put_row(
                conn, process_note, {"kind": kind, "name": name}, {"note": note, "ends_at": ends_at}
            )

        self._db.inserting(f"note {name!r}", write)

    def live_notes(self, kind: str) -> Sequence[Row]:
        """Return the notes of a kind that count, with their names and ends."""
        return self._rows(
            select(process_note).where(_n.kind == kind, _n.ends_at > self._clock()).limit(NOTES_MAX)
        )


@dataclass(eq=False)
class SameSettings:
    """Shares the fingerprints of this process's settings with other processes, and finds out which
    of theirs differ.

    ``marks``: the fingerprints, by the variables of the settings. Processes that ended, and builds
        that leave no notes,
    are not compared.
    """

    notes: NoteStore
    service: str
    marks: Mapping[str, str]
    problem: str = ""
    """The settings that differ and the processes that have them; empty: none differs."""

    async def run(self) -> None:
        """Compare until the task is cancelled."""
        await Loop("comparing settings", EVERY_S).run(self.compare)

    async def compare(self) -> None:
        """Compare once. Raises what the store raises."""
        process = f"{self.service} {platform.node()}/{os.getpid()}"[-100:]
        ends_at = datetime.now(UTC) + timedelta(seconds=COUNTS_S)
        await asyncio.to_thread(
            self.notes.leave_note, SETTINGS, process, json.dumps(self.marks), ends_at
        )
        notes = await asyncio.to_thread(self.notes.live_notes, SETTINGS)
        differ = [
            f"{name} of {note['name']}"
            for note in notes
            if not _has_ended(note["name"])
            for name, mark in json.loads(note["note"]).items()
            if mark != self.marks.get(name, mark)
        ]
        told = "; ".join(sorted(differ)[:SHOWN])
        self.problem = (
            told and f"not the same as here: {told}; give all processes the same, and restart them"
        )


def _has_ended(process: str) -> bool:
    """Return whether this process ran on this machine and is gone.

    Elsewhere a note counts until its time is over.
    """
    node, _, pid = process.rpartition(" ")[2].rpartition("/")
    return node == platform.node() and not os.path.exists(f"/proc/{pid}")
