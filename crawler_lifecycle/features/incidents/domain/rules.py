"""The rules by which conditions become incidents, and by which incidents are opened, counted,
closed, reopened and reported.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from crawler_lifecycle.domain.conditions import IncidentCondition, Key
from crawler_lifecycle.domain.incident import IncidentRow
from crawler_lifecycle.domain.names import (
    EVENT_INCIDENT_CLOSED,
    EVENT_INCIDENT_GREW,
    EVENT_INCIDENT_OPENED,
)

RECOVERED = "recovered"
#: A cause that comes back within this time opens its incident again.
REOPENED_WITHIN = timedelta(hours=1)
#: A condition whose last occurrence is older than this opens no incident, because nobody has missed
#: it.
OPENED_WITHIN = timedelta(days=30)
#: The openings of one incident are reported at most once in this time.
REPORTED_EVERY = timedelta(minutes=15)
#: An incident is reported again when its count is this many times the reported count.
GROWS = 10


@dataclass(frozen=True, slots=True)
class IncidentChange:
    """One change of the record. ``row`` is the incident that changes, or ``None`` for a new
    incident."""

    row: IncidentRow | None
    values: Mapping[str, Any]
    event: str | None = None
    """The type of the event about it."""


def key_of(row: IncidentRow) -> Key:
    """Return the values that the row has in common with its condition."""
    return row.kind, row.subject, row.project, row.fingerprint


def changes_of(
    conditions: Iterable[IncidentCondition],
    open_rows: Iterable[IncidentRow],
    closed: Mapping[Key, IncidentRow],
    covers: Callable[[IncidentRow], bool],
    now: datetime,
    quiet: Container[int] = (),
) -> list[IncidentChange]:
    """Return the changes.

    ``closed`` contains, for each key, the incident that was closed last. ``covers`` returns whether
    ``conditions`` would contain the condition of an open incident if it still held. ``quiet``
    contains the numbers of the incidents whose opening is not reported yet, because it was reported
    within ``REPORTED_EVERY``.
    """
    found = {condition.key: condition for condition in conditions}
    known = {key_of(row): row for row in open_rows}
    changes = []
    continued = set[Key]()
    for key, condition in found.items():
        open_key = next((each for each in condition.keys if each in known), key)
        continued.add(open_key)
        row = known.get(open_key)
        change = (
            _appeared(condition, closed.get(key), now)
            if row is None
            else _continued(condition, row, now)
        )
        if change is not None:
            changes.append(_held_back(change, quiet))
    over = [row for key, row in known.items() if key not in continued and covers(row)]
    return changes + [closing(row, RECOVERED, now) for row in over]


def _held_back(change: IncidentChange, quiet: Container[int]) -> IncidentChange:
    """Return the change without an event about the opening of an incident in ``quiet``. A later
    round reports it, if it is still open."""
    if change.event != EVENT_INCIDENT_OPENED or change.row is None:
        return change
    if change.row.incident_id not in quiet:
        return change
    return IncidentChange(change.row, {**change.values, "notices": 0})


def closing(row: IncidentRow, by: str, now: datetime) -> IncidentChange:
    """Return the end of an incident. The end is reported if anything else was reported since its
    last end."""
    said = row.notices > 0 and not row.is_muted(now)
    values = {"state": "closed", "closed_at": now, "closed_by": by, "notices": 0}
    return IncidentChange(row, values, EVENT_INCIDENT_CLOSED if said else None)


def _appeared(
    condition: IncidentCondition, last: IncidentRow | None, now: datetime
) -> IncidentChange | None:
    values = _newest(condition)
    if last is not None and last.closed_at is not None:
        seen = last.closed_by != RECOVERED and condition.at <= last.closed_at
        if seen:  # whoever closed it knows about these occurrences; only a newer one is news
            return None
        if now - last.closed_at <= REOPENED_WITHIN:
            count = max(last.count + _fresh(condition, last), condition.count)
            values |= {"state": "open", "closed_at": None, "closed_by": None}
            values |= {"count": count, "reopened": last.reopened + 1}
            return _reported(IncidentChange(last, values), last, count, now)
    if now - condition.at > OPENED_WITHIN:
        return None
    muted = last is not None and last.is_muted(now)
    first = {
        "opened_at": min(condition.since, now),
        "first_run_id": condition.first_run_id,
        "muted_until": last.muted_until if last is not None and muted else None,
        "count": condition.count,
    }
    return _reported(IncidentChange(None, {**values, **first}), last, condition.count, now)


def _reported(
    change: IncidentChange, last: IncidentRow | None, count: int, now: datetime
) -> IncidentChange:
    """Return the change with the event that the incident is open, unless ``last`` is muted."""
    if last is not None and last.is_muted(now):
        return change
    values = {**change.values, "notices": 1, "notified_count": count}
    return IncidentChange(change.row, values, EVENT_INCIDENT_OPENED)


def _continued(
    condition: IncidentCondition, row: IncidentRow, now: datetime
) -> IncidentChange | None:
    count = max(row.count + _fresh(condition, row), condition.count)
    # What a state consists of can change without a new occurrence, such as who holds a pool. The
    # recorded cause may be cut.
    same = (
        condition.subject == row.subject
        and condition.run_id == row.last_run_id
        and condition.cause.startswith(row.cause)
    )
    values = {**_newest(condition), "count": count, "last_at": max(condition.at, row.last_at)}
    if row.notices == 0 and not row.is_muted(now):  # its opening is not reported yet
        return _reported(IncidentChange(row, values), row, count, now)
    if same and count == row.count and condition.at <= row.last_at:
        return None
    if row.notices != 1 or count < GROWS * row.notified_count or row.is_muted(now):
        return IncidentChange(row, values)
    return IncidentChange(
        row, {**values, "notices": 2, "notified_count": count}, EVENT_INCIDENT_GREW
    )


def _newest(condition: IncidentCondition) -> dict[str, Any]:
    """Return the columns about the newest occurrence."""
    return {
        "cause": condition.cause,
        "fix": condition.fix,
        "last_run_id": condition.run_id,
        "last_at": condition.at,
        "kind": condition.kind,
        "subject": condition.subject,
        "project": condition.project,
        "fingerprint": condition.fingerprint,
    }


def _fresh(condition: IncidentCondition, row: IncidentRow) -> int:
    """Return the number of occurrences that the row does not count yet."""
    return sum(at > row.last_at for at in condition.times)
