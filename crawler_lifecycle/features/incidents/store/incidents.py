"""The store of incidents: what a round of the search found, and what people do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, insert, select

from crawler_lifecycle.domain.conditions import IncidentCondition
from crawler_lifecycle.domain.incident import IncidentRow
from crawler_lifecycle.domain.names import request_fingerprint
from crawler_lifecycle.domain.retention import incident_stays
from crawler_lifecycle.features import INCIDENT_KINDS
from crawler_lifecycle.store.base.bulk import chunks
from crawler_lifecycle.store.base.outbox import append_events, facts
from crawler_lifecycle.store.base.rows import Row, change_row, made
from crawler_lifecycle.store.base.unit import read_row
from crawler_lifecycle.store.retention.parts import FeatureRetention, Source

from ..domain.rules import (
    REPORTED_EVERY,
    IncidentChange,
    changes_of,
    closing,
    key_of,
)
from .reads import IncidentReader
from .tables import incident

_i = incident.c
#: The maximum numbers of open incidents in an installation, and of changes in one transaction.
OPEN_MAX = 10_000
CHANGES_MAX = 200
#: The columns that each event contains.
_TOLD = (
    *("incident_id", "kind", "subject", "project", "level", "cause", "fix", "count"),
    *("first_run_id", "last_run_id", "opened_at", "last_at", "closed_at", "closed_by"),
    *("reopened", "assignee", "comment"),
)
_EMPTY = {"state": "open", "reopened": 0, "notices": 0, "notified_count": 0}


class IncidentStore(IncidentReader):
    """Incidents: what needs a person."""

    def record_conditions(
        self, conditions: Sequence[IncidentCondition], covers: Callable[[IncidentRow], bool]
    ) -> int:
        """Open, count and close incidents according to the current conditions, and write their
        events.

        ``covers`` returns whether ``conditions`` would contain the condition of an open incident if
        it still held. Only one process may call this at a time. Returns the number of changes.
        """
        open_rows = self.open_incidents(OPEN_MAX)
        known = {key_of(row) for row in open_rows}
        new = [condition for condition in conditions if condition.key not in known]
        closed = self.closed_last({condition.subject for condition in new}) if new else {}
        now = self._clock()
        unheard = [row for row in (*open_rows, *closed.values()) if row.notices == 0]
        quiet = self.opened_since(now - REPORTED_EVERY, unheard) if unheard else set()
        found = changes_of(conditions, open_rows, closed, covers, now, quiet)
        for part in chunks(found, CHANGES_MAX):
            with self._db.writing() as conn:
                append_events(conn, [self._write(conn, change, self._clock()) for change in part])
        return len(found)

    def close_incident(self, incident_id: int, by: str) -> IncidentRow:
        """Close an incident by hand. If it is already closed, nothing changes. Raises
        ``RunNotFound``."""
        with self._db.writing() as conn:
            row = made(IncidentRow, read_row(conn, incident, incident_id, lock="write"))
            now = self._clock()
            if row.state == "open":
                append_events(conn, [self._write(conn, closing(row, by, now), now)])
            return made(IncidentRow, read_row(conn, incident, incident_id))

    def change_incident(self, incident_id: int, **values: Any) -> IncidentRow:
        """Set the columns that people decide about. Raises ``RunNotFound``."""
        with self._db.writing() as conn:
            row = read_row(conn, incident, incident_id, lock="write")
            change_row(conn, incident, row, values)
            return made(IncidentRow, {**row, **values})

    def _write(self, conn: Connection, change: IncidentChange, now: datetime) -> Row:
        """Write a change, and return its event. The result is empty if nobody is notified."""
        values = dict(change.values)
        if change.row is None:
            level = INCIDENT_KINDS[values["kind"]].level
            values = {**_EMPTY, **values, "level": level, "incident_uid": self.new_uid()}
            conn.execute(insert(incident).values(**values, open_key=_open_key(values)))
            query = select(incident).where(_i.open_key == _open_key(values))
            row = dict(conn.execute(query).mappings().one())
        else:
            row = read_row(conn, incident, change.row.incident_id, lock="write")
            if row["state"] != change.row.state:  # a person has closed it in the meantime
                return {}
            row |= values
            key = _open_key(row) if row["state"] == "open" else None
            change_row(conn, incident, row, {**values, "open_key": key})
        return {} if change.event is None else _event(row, change.event, now)


def _open_key(values: Mapping[str, Any]) -> str:
    """Return the key of an open incident, so that each cause of a subject is open only once."""
    names = ("kind", "subject", "project", "fingerprint")
    return request_fingerprint("\n".join(str(values[name]) for name in names))


def _event(row: Row, type: str, now: datetime) -> Row:
    noun, _, name = str(row["subject"]).partition("/")
    crawler = {"crawler": name} if noun == "crawlers" else {}
    sentence = INCIDENT_KINDS[row["kind"]].words(name)
    body = {**facts(row, *_TOLD), **crawler, "name": name, "sentence": sentence}
    if row["closed_at"] is not None:
        body["duration_s"] = round((row["closed_at"] - row["opened_at"]).total_seconds())
    return {
        "at": now,
        "type": type,
        "subject": f"incidents/{row['incident_id']}",
        "uid": row["incident_uid"],
        "body": body,
    }


RETENTION = FeatureRetention(
    sources=(
        Source(
            incident,
            columns=(_i.state, _i.closed_at),
            rule=lambda row, owner, before: incident_stays(row["state"], row["closed_at"], before),
            # It may be opened again.
            still=lambda before: (_i.state == "closed", _i.closed_at < before),
            marks=False,
        ),
    )
)
