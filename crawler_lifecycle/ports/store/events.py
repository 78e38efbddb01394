"""The outbox: events in the order of their numbers, and their deliveries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from crawler_lifecycle.ports.values import Event, Fence


class EventReader(Protocol):
    """Events and deliveries that are on record."""

    def find_event(self, key: str) -> Event | None: ...

    def last_event(self, run_id: int, type: str) -> Event | None:
        """The run's newest event of this type."""
        ...

    def get_event(self, seq: int) -> Event | None: ...

    def events_after(
        self, seq: int, limit: int = 500, run_id: int | None = None, subject: str | None = None
    ) -> list[Event]:
        """Events with a greater number, in order, of everything, of one run, or about one ``subject``. None with a
        smaller one appears later."""
        ...

    def last_event_seq(self) -> int:
        """The number of the newest event; 0 when there was none yet."""
        ...

    def deliveries(self, run_id: int, *, keyed: bool = False) -> list[Mapping[str, object]]:
        """Every delivery of the run's events that was tried: seq, type, attempt, sink, status, tries, error, when.

        With ``keyed`` only of events that are to be delivered once; mere news of a change, of which a long run has
        thousands, are left out.
        """
        ...


class EventStore(EventReader, Protocol):
    """Events as they are appended and delivered."""

    def append_event(self, fence: Fence, type: str, key: str, body: Mapping[str, object]) -> Event:
        """Append one event; the same ``key`` again answers the event already there."""
        ...

    def delivered_by(self, seq: int) -> set[str]:
        """The sinks that have delivered this event."""
        ...

    def record_delivery(self, seq: int, sink: str, error: str | None) -> None:
        """Count one try of a delivery; ``error`` None means delivered."""
        ...
