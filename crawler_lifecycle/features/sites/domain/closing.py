"""Closed sites: a response to one task applies to all."""

from __future__ import annotations

from dataclasses import dataclass

from .site import SiteLimits

#: The longest time for which one response closes a site, in seconds. A site that demands more is
#: probed after a day.
CLOSED_MAX_S = 86_400.0
#: The same for a response to a run that does not name the site, and may be of another project than
#: those that do.
STRANGER_MAX_S = 3_600.0
#: The maximum number of times that the rest doubles.
_DOUBLINGS_MAX = 20


@dataclass(frozen=True, slots=True)
class Block:
    """A response with which a site refuses requests.

    ``retry_after_s`` are the seconds of its header ``Retry-After``, if it has one. Some reports
    contain no status. ``most_s`` is the longest time for which it closes the site.
    """

    status: int | None
    retry_after_s: float | None = None
    most_s: float = CLOSED_MAX_S

    @classmethod
    def of(cls, status: int | None, retry_after_s: float | None) -> Block:
        """Return a reported response. A time above ``CLOSED_MAX_S`` counts as this time."""
        return cls(status, None if retry_after_s is None else min(retry_after_s, CLOSED_MAX_S))


@dataclass(frozen=True, slots=True)
class SiteState:
    """The state of a site. Times are seconds of the database's clock."""

    closed_until: float = 0.0
    closures: int = 0
    """The number of times in a row that the site closed. While it is above 0 and the time is over,
    one task probes the site.
    """

    def closed_s(self, now: float) -> float:
        """Return the seconds for which the site stays closed."""
        return min(CLOSED_MAX_S, max(0.0, self.closed_until - now))


OPEN = SiteState()


def blocked(state: SiteState, block: Block, limits: SiteLimits, now: float) -> SiteState:
    """Return the state after a refused request.

    Requests that were in progress when the site closed report the same refusal. They never shorten
    the time, and do not double it.
    """
    is_new = now >= state.closed_until
    closures = state.closures + is_new
    if block.retry_after_s is not None:
        rest = block.retry_after_s
    elif is_new:
        rest = limits.rest_s * 2 ** min(closures - 1, _DOUBLINGS_MAX)
    else:
        return state
    until = now + min(max(rest, 1.0), block.most_s)
    return SiteState(max(until, state.closed_until), closures)


def passed(state: SiteState, now: float) -> SiteState:
    """Return the state after a request that the site answered. This opens a site that is probed."""
    return OPEN if state.closures and now >= state.closed_until else state
