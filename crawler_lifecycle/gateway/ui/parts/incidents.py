"""Incidents as web pages show them: what is wrong, and the action that fixes it."""

from __future__ import annotations

from dataclasses import dataclass

from crawler_lifecycle.domain.crawlers.state import CrawlerState
from crawler_lifecycle.domain.incident import IncidentRow
from crawler_lifecycle.features import INCIDENT_KINDS
from crawler_lifecycle.gateway.access.operations import may
from crawler_lifecycle.store.store import Store
from crawler_lifecycle.subjects import SUBJECTS, Action


@dataclass(frozen=True, slots=True)
class IncidentLine:
    """An incident with the strings and links for its page."""

    row: IncidentRow
    sentence: str
    page: str
    """The address of the page that shows its subject and receives the form of the action."""
    act: Action | None
    """The action that fixes it, if there is one that the caller may carry out."""
    state: CrawlerState | None
    """The state of its crawler, if it is about one."""


def incidents_about(store: Store, subject: str) -> list[IncidentLine]:
    """Return the open incidents about this subject, such as ``crawlers/shop``, newest first. This
    call blocks.
    """
    return [incident_line(row) for row in store.incidents.list_incidents(subject=subject)]


def incident_line(row: IncidentRow) -> IncidentLine:
    """Return an incident as pages show it to the present caller."""
    kind = INCIDENT_KINDS[row.kind]
    noun = row.kind.partition("_")[0]
    act = None
    if row.state == "open" and kind.act and may(f"press{noun.capitalize()}"):
        act = SUBJECTS[noun].action(kind.act)
    return IncidentLine(row, kind.words(row.name), kind.path(row.subject), act, kind.state)
