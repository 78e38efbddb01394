"""The record of an incident, and the kinds of incidents."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from urllib.parse import quote

from .crawlers.state import CrawlerState

Level = Literal["bad", "warn"]


@dataclass(frozen=True, slots=True)
class IncidentKind:
    """A kind of incident. It is in the registration of the feature that finds these incidents."""

    name: str
    """The noun for the subject, and its problem, such as ``crawler_failing``."""
    sentence: str
    """What is wrong, with ``{}`` for the name of the subject."""
    level: Level = "bad"
    """``bad``: something does not work. ``warn``: it works, but worse than usual."""
    act: str = ""
    """The action of the subject that fixes it, such as ``resume``; empty if there is none."""
    state: CrawlerState | None = None
    """The state of a crawler that has such an incident."""
    page: str = ""
    """The page that shows the subject, if the subject has no page of its own."""

    def words(self, name: str) -> str:
        """Return the sentence about the subject with this name."""
        return self.sentence.format(name)

    def path(self, subject: str) -> str:
        """Return the address of the page that shows the subject."""
        noun, _, name = subject.partition("/")
        return self.page or f"/{noun}/{quote(name, safe='')}"


@dataclass(frozen=True, slots=True)
class IncidentRow:
    """One row of the table ``incident``."""

    incident_id: int
    incident_uid: str
    kind: str
    """What is wrong, such as ``crawler_failing`` (docs/incidents.md lists all)."""
    subject: str
    """The subject, as the path of its page: ``crawlers/shop-437``, ``schedules/nightly``."""
    project: str
    """``*`` means that it is about the installation, and only callers with all projects see it."""
    level: Level
    """``bad``: something does not work. ``warn``: it works, but worse than usual."""
    state: Literal["open", "closed"]
    fingerprint: str
    """The hash of its cause. Causes that differ only in numbers or hosts have the same hash."""
    cause: str
    """A sentence about the newest occurrence."""
    fix: str | None
    """What a person can do about it."""
    count: int
    """How often it occurred."""
    first_run_id: int | None
    last_run_id: int | None
    opened_at: datetime
    """Since when it has needed attention."""
    last_at: datetime
    """The time of its newest occurrence."""
    closed_at: datetime | None = None
    closed_by: str | None = None
    """``recovered``, or the name of the person who closed it."""
    reopened: int = 0
    """How often it came back within an hour of its end."""
    notified_count: int = 0
    """The count in the last event about it; 0 if no event has reported it."""
    notices: int = 0
    """The number of events that have reported its opening or its growth since its last end."""
    muted_until: datetime | None = None
    """No event reports it until this time."""
    assignee: str | None = None
    """Who takes care of it."""
    comment: str | None = None

    @property
    def name(self) -> str:
        """The name of its subject, such as ``shop-437``."""
        return self.subject.partition("/")[2]

    @property
    def attempt(self) -> int:
        """The number of times that it was opened, which the form of a list shows."""
        return self.reopened + 1

    def is_muted(self, now: datetime) -> bool:
        """Return whether the incident is muted at this time."""
        return self.muted_until is not None and self.muted_until > now
