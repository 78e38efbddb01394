"""The record of an incident, and the kinds of incidents."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

#: What may be wrong, by the noun and its problem.
KINDS = (
    *(f"crawler_{what}" for what in ("failing", "less", "empty", "flaky")),
    *(f"schedule_{what}" for what in ("paused", "missed", "skipped", "idle", "unsynced")),
    *("graph_failed", "manager_failed", "manager_stuck", "webhook_failing", "webhook_paused"),
    *("pool_full", "poll_overdue", "part_unwell", "worker_silent", "workflow_stuck"),
)


@dataclass(frozen=True, slots=True)
class IncidentRow:
    """One row of the table ``incident``."""

    incident_id: int
    incident_uid: str
    kind: str
    """What is wrong, such as ``crawler_failing`` (docs/incidents.md lists all)."""
    subject: str
    """What it is about, as the path of its page: ``crawlers/shop-437``, ``schedules/nightly``."""
    project: str
    """``*``: it is about the installation, and only callers of all projects see it."""
    level: Literal["bad", "warn"]
    """``bad``: something does not work. ``warn``: it works, and worse than usual."""
    state: Literal["open", "closed"]
    fingerprint: str
    """The hash of its cause: the same cause has the same one, whatever its numbers and hosts."""
    cause: str
    """A sentence about the newest occurrence."""
    fix: str | None
    """What a person can do about it."""
    count: int
    """How often it occurred."""
    first_run_id: int | None
    last_run_id: int | None
    opened_at: datetime
    """The time since which it needs attention."""
    last_at: datetime
    """The time of its newest occurrence."""
    closed_at: datetime | None = None
    closed_by: str | None = None
    """``recovered``, or the name of who closed it."""
    reopened: int = 0
    """How often it came back within an hour after its end."""
    notified_count: int = 0
    """The count in the last event about it; 0: no event reported it."""
    notices: int = 0
    """How many events reported it since its last end: its opening, and that it grew."""
    muted_until: datetime | None = None
    """Until this time no event reports it."""
    assignee: str | None = None
    """Who takes care of it."""
    comment: str | None = None

    @property
    def name(self) -> str:
        """The name of its subject, such as ``shop-437``."""
        return self.subject.partition("/")[2]

    def is_muted(self, now: datetime) -> bool:
        """Return whether no event reports the incident at this time."""
        return self.muted_until is not None and self.muted_until > now
