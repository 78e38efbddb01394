"""What a site's journal says about the crawls that visited it, without any other source."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class Request(NamedTuple):
    """A request as the site saw it. Times are seconds of the monotonic clock."""

    at: float
    end: float
    """When the answer was written, or the connection was lost; infinite if neither came."""
    status: int
    path: str
    agent: str
    host: str = ""
    """The header ``Host`` without the port."""


@dataclass(frozen=True)
class Refusals:
    """What reached a closed site."""

    in_flight: int
    """Requests that were in progress when the first one was refused."""
    arrived: Sequence[float]
    """Seconds after the first 429 was written at which other requests arrived, until the site
    opened.
    """
    probes: int
    """Requests from the opening until the first answer that was no 429."""
    silent_s: float
    """Seconds from the opening until the first request; infinite if none came."""


@dataclass(frozen=True)
class Journal:
    """Requests in the order of their arrival, connections, and closings (begin, end)."""

    requests: Sequence[Request]
    connections: Sequence[tuple[float, float]]
    closings: Sequence[tuple[float, float]]

    @classmethod
    def from_json(cls, data: Any) -> Journal:
        """Read what ``/journal`` returned."""
        requests = [
            Request(at, math.inf if end is None else end, *others)
            for at, end, *others in data["requests"]
        ]
        connections = [(at, math.inf if end is None else end) for at, end in data["connections"]]
        return cls(sorted(requests), connections, [(at, end) for at, end in data["closings"]])

    def between(self, begin: float, end: float) -> Journal:
        """Return the part of the journal between two moments."""
        return Journal(
            [one for one in self.requests if begin <= one.at < end],
            [(at, over) for at, over in self.connections if at < end and over > begin],
            [one for one in self.closings if begin <= one[0] < end],
        )

    def of(self, host: str) -> Journal:
        """Return the requests to a host, without connections."""
        requests = [request for request in self.requests if request.host == host]
        return Journal(requests, [], self.closings)

    @property
    def most_a_second(self) -> int:
        """The maximum number of requests in any sliding second."""
        return most_in_a_second([one.at for one in self.requests])

    @property
    def rate(self) -> float:
        """Requests per second, from the first one to the last one."""
        if len(self.requests) < 2:
            return 0.0
        return len(self.requests) / (self.requests[-1].at - self.requests[0].at)

    @property
    def most_requests(self) -> int:
        """The maximum number of requests in progress at once."""
        return most_at_once((one.at, one.end) for one in self.requests)

    @property
    def most_connections(self) -> int:
        """The maximum number of connections at once."""
        return most_at_once(self.connections)

    def refusals(self) -> Refusals:
        """Return what happened around the last closing.

        Raises ``ValueError`` if no request was refused.
        """
        closed, opened = self.closings[-1]
        refused = [one for one in self.requests if one.at >= closed and one.status == 429]
        if not refused:
            raise ValueError("no request reached the site while it was closed")
        told = min(one.end for one in refused)
        later = [one for one in self.requests if one.at >= opened]
        answered = min((one.end for one in later if one.status != 429), default=math.inf)
        return Refusals(
            sum(one.at < told <= one.end for one in self.requests) - 1,
            [one.at - told for one in self.requests if told <= one.at < opened],
            sum(one.at < answered for one in later),
            later[0].at - opened if later else math.inf,
        )


def most_in_a_second(times: Sequence[float]) -> int:
    """Return the maximum number of these times in any second, which begins with one of them and
    ends before the same moment of the next second.
    """
    most = 0
    first = 0
    for last, at in enumerate(times):
        while at - times[first] >= 1.0:
            first += 1
        most = max(most, last - first + 1)
    return most


def most_at_once(spans: Iterable[tuple[float, float]]) -> int:
    """Return the maximum number of spans that overlap. A span that ends when another begins does
    not overlap it.
    """
    changes = sorted(change for begin, end in spans for change in ((begin, 1), (end, -1)))
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most
