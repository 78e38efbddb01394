"""Temporary notes between processes: ended sessions, fingerprints of settings, and upgrades."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import Column, Connection, String, delete, select

from crawler_lifecycle.background import Loop
from crawler_lifecycle.store.base.bulk import put_row
from crawler_lifecycle.store.base.rows import Row
from crawler_lifecycle.store.base.unit import StorePart

from .columns import UtcTime, Words, new_table, required

process_note = new_table(
    "process_note",
    Column("kind", String(20), primary_key=True),
    Column("name", String(100), primary_key=True),
    required("note", Words(1000)),
    # The note expires at this time. The next note of the same kind removes expired notes.
    required("ends_at", UtcTime),
)

#: The kinds of notes: the id of a session that ended early; the settings of a process; and an
#: upgrade of the schema, which is valid as long as a rollback is possible.
LOGIN = "login"
SETTINGS = "settings"
UPGRADE = "upgrade"
#: A worker that has not shut down, and the process that does the work that only one process may do
#: at a time.
WORKER = "worker"
TURN = "turn"
#: The maximum number of notes of a kind that are read. No installation has so many processes or
#: logouts.
NOTES_MAX = 10_000
#: Seconds between two notes about the settings of a process, the lifetime of such a note in
#: seconds, and the maximum number of differences that are reported.
EVERY_S = 20.0
COUNTS_S = 60.0
SHOWN = 10
#: Seconds between two notes of a worker, and the time after which it counts as dead.
BEAT_S = 2.0
DEAD_AFTER = timedelta(hours=1)
_n = process_note.c


class NoteStore(StorePart):
    """The notes of all processes that share the database."""

    def leave_note(self, kind: str, name: str, note: str, ends_at: datetime) -> None:
        """Leave a note, or replace the note with this name.

        Expired notes of this kind are removed.
        """

        def write(conn: Connection) -> None:
            conn.execute(delete(process_note).where(_n.kind == kind, _n.ends_at <= self._clock()))
            put_row(
                conn, process_note, {"kind": kind, "name": name}, {"note": note, "ends_at": ends_at}
            )

        self._db.inserting(f"note {name!r}", write)

    def remove_note(self, worker: str) -> None:
        """Remove the note of a worker, if it exists."""
        with self._db.writing() as conn:
            conn.execute(delete(process_note).where(_n.kind == WORKER, _n.name == worker))

    def take_turn(self, name: str, holder: str, ends_at: datetime) -> bool:
        """Take the turn until ``ends_at``, or extend the turn of this process.

        Returns false while another process has the turn.
        """

        def write(conn: Connection) -> bool:
            mine = (_n.kind == TURN, _n.name == name)
            query = select(process_note).where(*mine).with_for_update()
            there = conn.execute(query).mappings().one_or_none()
            if there and there["note"] != holder and there["ends_at"] > self._clock():
                return False
            key = {"kind": TURN, "name": name}
            put_row(conn, process_note, key, {"note": holder, "ends_at": ends_at})
            return True

        return self._db.inserting(f"turn {name!r}", write)

    def live_notes(self, kind: str) -> Sequence[Row]:
        """Return the valid notes of a kind, with their names and expiry times."""
        return self._rows(
            select(process_note).where(_n.kind == kind, _n.ends_at > self._clock()).limit(NOTES_MAX)
        )


@dataclass(eq=False)
class SameSettings:
    """Shares the fingerprints of this process's settings with other processes, and reports which
    settings differ.

    ``marks`` contains the fingerprints by the names of the variables. Processes that ended and
    builds that leave no notes are not compared.
    """

    notes: NoteStore
    service: str
    marks: Mapping[str, str]
    problem: str = ""
    """The settings that differ, and the processes in which they differ; empty if all settings are
    the same.
    """

    async def run(self) -> None:
        """Compare the settings repeatedly until the task is cancelled."""
        await Loop("comparing settings", EVERY_S).run(self.compare)

    async def compare(self) -> None:
        """Compare the settings once. Passes on the errors of the store."""
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
            told
            and f"not the same as here: {told}; give all processes the same settings, and "
            "restart them"
        )


@dataclass(eq=False)
class Beats:
    """Leaves notes about a running worker, and removes the notes when the worker shuts down.

    A worker that is killed or frozen leaves its last note.
    """

    notes: NoteStore
    roles: Sequence[str]

    def __post_init__(self) -> None:
        self._name = f"{platform.node()}/{os.getpid()}"[-100:]
        self._began = time.time()

    async def run(self) -> None:
        """Leave notes until the task is cancelled."""
        try:
            await Loop("the notes of this worker", BEAT_S).run(self._beat)
        finally:
            await asyncio.to_thread(self.notes.remove_note, self._name)

    async def _beat(self) -> None:
        roles = " ".join(sorted(self.roles))
        note = json.dumps({"roles": roles, "began": self._began, "at": time.time()})
        ends_at = datetime.now(UTC) + DEAD_AFTER
        await asyncio.to_thread(self.notes.leave_note, WORKER, self._name, note, ends_at)


def _has_ended(process: str) -> bool:
    """Return whether this process ran on this machine and has ended.

    Notes from other machines are valid until they expire.
    """
    node, _, pid = process.rpartition(" ")[2].rpartition("/")
    return node == platform.node() and not os.path.exists(f"/proc/{pid}")
