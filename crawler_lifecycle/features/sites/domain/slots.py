"""Free slots of sites, and the waiting runs that get them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from crawler_lifecycle.domain.pools import Ticket

from .site import SiteLimits


def free_slots(limits: SiteLimits, closures: int, tasks: int) -> int | None:
    """Return how many further tasks an open site allows; ``None`` for any number.

    ``tasks`` is the number of tasks that hold a slot of the site. While ``closures`` is above 0,
    the site allows one task, which finds out whether it answers again.
    """
    most = limits.tasks
    if closures:
        most = 1 if most is None else min(most, 1)
    return None if most is None else max(0, most - tasks)


def turns(line: Sequence[Ticket], free: int) -> Counter[int]:
    """Return how many of the free slots each waiting run gets, by the numbers of the runs.

    ``line`` is in the order of the line. The most urgent runs get all their slots first. Runs of
    the same priority get one slot in each turn.
    """
    given = Counter[int]()
    for _, urgent in groupby(line, key=lambda ticket: ticket.priority):
        waiting = list(urgent)
        while waiting and free:
            turn = waiting[:free]
            given.update(ticket.run_id for ticket in turn)
            free -= len(turn)
            waiting = [ticket for ticket in waiting if given[ticket.run_id] < ticket.wanted]
    return given
