"""The oracle about sites: what must hold at them whatever fails. It shares no code with the service."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from tools.faults.oracle import ENDED, OVER, Ask, Evidence
from tools.soak.journal import Process

CAPPED, MOODY = SITES = ("capped.example", "moody.shop.example")
#: The site in a request to crawl both sites, and the prefix of the keys of such requests.
BOTH = "both"
KEYS = "faults-site-"
#: The limits of ``CAPPED``.
LIMITS: dict[str, Any] = {"tasks": 2, "requests_per_s": 5.0, "connections": 2}
UNLIMITED = 10_000
#: A task that got its slot before a cap was lowered may begin this many seconds after that.
ON_ITS_WAY_S = 20.0
STEP_S = 0.5
#: A crawler that was killed leaves its leases, which end after at most this many seconds.
LEASE_S = 30
#: Tasks that hold a slot, by site.
HOLDERS = (
    "SELECT s.site, COUNT(DISTINCT t.task_id) FROM run_site s JOIN task_history t "
    "ON t.run_id = s.run_id WHERE t.status IN ('PENDING', 'RUNNING', 'STOPPING') GROUP BY s.site"
)
_NOW = "UNIX_TIMESTAMP(NOW(6))"
LEFT = {
    "run {} waits in the line of site {}": "SELECT run_id, site FROM site_ticket",
    "site {} has a lease of {} that does not end": (
        f"SELECT site, holder FROM site_lease WHERE until > {_NOW} + {LEASE_S}"
    ),
    "run {} was deleted and has the host {}": (
        "SELECT s.run_id, s.host FROM run_site s JOIN run_history r ON r.run_id = s.run_id "
        "WHERE r.deletion_ended_at IS NOT NULL"
    ),
    "site {} is closed for {} s": (
        f"SELECT site, closed_until - {_NOW} FROM site WHERE closed_until > {_NOW}"
    ),
}
"""What must not be there when everything has ended."""
BLOCKS = "SELECT site, person, run_id FROM site_block"


def judge_sites(e: Evidence) -> list[str]:
    """Return every violation, as a sentence."""
    return [
        *caps(e, SITES),
        *_holders(e),
        *_rates(e),
        *_connections(e),
        *closings(e),
        *_failures(e),
        *e.left_at_sites,
    ]


def sites_of(e: Evidence, one: Process) -> set[str]:
    """Return the sites to whose caps a process counts."""
    mine = {ask.run_id for ask in e.asks if ask.kind == "start" and ask.site == BOTH}
    site = one.args.get("site")
    return set(SITES) if one.run_id in mine else {site} if site else set()


def caps(e: Evidence, names: Sequence[str]) -> Iterator[str]:
    """Check that no task began beyond the cap of its site."""
    visits = [(one, sites_of(e, one)) for one in e.processes if "site" in one.args]
    for site in names:
        mine = [one for one, sites in visits if site in sites]
        for one in mine:
            alive = sum(other is one or other.begin <= one.begin < other.last for other in mine)
            most = cap_at(e, site, one.begin)
            if alive > most:
                yield f"{alive} tasks executed on {site}, which allows {most}, at the start of {one}"


def cap_at(e: Evidence, site: str, at: float) -> int:
    """Return the highest cap with which a task may have begun at a moment."""
    if site == CAPPED:
        changes = [(0.0, 0.0, int(LIMITS["tasks"]))]
    else:
        changes = [(0.0, 0.0, UNLIMITED)]
        changes += [
            (ask.sent, ask.answered if ask.accepted else math.inf, _cap_of(ask))
            for ask in e.asks
            if ask.kind == "limits" and ask.site == site
        ]
    since = at - ON_ITS_WAY_S * e.patience
    since -= e.disturbed(since, at)
    steps = [since + n * STEP_S for n in range(int((at - since) / STEP_S) + 1)]
    return max(
        (_highest(changes, step) for step in [*steps, at] if not _closed(e, site, step)), default=0
    )


def _cap_of(ask: Ask) -> int:
    return UNLIMITED if ask.body is None else int(ask.body.get("tasks", UNLIMITED))


def _highest(changes: list[tuple[float, float, int]], at: float) -> int:
    """Return the highest cap that may be valid at a moment. Requests overlap, and the one whose
    answer came last need not be the last one.
    """
    begun = [one for one in changes if one[0] <= at]
    latest = max(sent for sent, answered, _ in begun if answered <= at)
    return max(cap for _, answered, cap in begun if answered >= latest)


def _closed(e: Evidence, site: str, at: float) -> bool:
    """Return whether a person had certainly closed the site at that moment."""
    asks = [ask for ask in e.asks if ask.site == site and ask.sent <= at]
    opened = max((ask.answered for ask in asks if ask.kind == "open"), default=0.0)
    return any(
        ask.kind == "close"
        and ask.accepted
        and max(ask.answered, opened) <= at < ask.sent + ask.body["for_s"]
        and ask.sent > opened
        for ask in asks
    )


def _holders(e: Evidence) -> Iterator[str]:
    most = e.most_holders[CAPPED]
    if most > LIMITS["tasks"]:
        yield f"{most} recorded tasks held a slot of {CAPPED}, which allows {LIMITS['tasks']}"


def _rates(e: Evidence) -> Iterator[str]:
    """Check the requests in any second. Other processes may delay one of them."""
    times = sorted(at for one in e.processes for site, at, _ in one.requests if site == CAPPED)
    most = LIMITS["requests_per_s"] + math.ceil(e.patience)
    first = 0
    for last, at in enumerate(times):
        while at - times[first] >= 1.0:
            first += 1
        if last - first + 1 > most:
            yield f"{last - first + 1} requests reached {CAPPED} within a second, before {at:.1f}"
            return


def _connections(e: Evidence) -> Iterator[str]:
    """Check the requests in progress, but for those of crawlers that the fault tests froze."""
    struck = [one for one in e.processes if (one.pid, one.start) not in e.kills]
    spans = [(at, end) for one in struck for site, at, end in one.requests if site == CAPPED]
    changes = sorted(change for at, end in spans for change in ((at, 1), (end, -1)))
    now = 0
    for at, change in changes:
        now += change
        if now > LIMITS["connections"]:
            yield f"{now} requests were in progress at {CAPPED} at {at:.1f}"
            return


def closings(e: Evidence) -> Iterator[str]:
    """Check that each closing and opening is that of a person or of a refused request."""
    people = {ask.key for ask in e.asks if ask.kind in ("close", "open")}
    refused = {one.run_id for one in e.processes if one.refused}
    for site, person, run_id in e.blocks:
        if person is not None and person not in people:
            yield f"{site} was closed or opened by {person}, who did not do that"
        if run_id is not None and run_id not in refused:
            yield f"{site} was closed by run {run_id}, of which it refused no request"


def _failures(e: Evidence) -> Iterator[str]:
    """Check that a site lets no run fail: its tasks wait."""
    started = {ask.run_id for ask in e.asks if ask.key.startswith(KEYS)}
    stopped = {ask.run_id for ask in e.asks if ask.kind in ("stop", "delete")}
    ran = {one.name for one in e.processes}
    for task in e.tasks:
        run_id = task.name[0]
        if run_id in started - stopped and task.status in ENDED and task.name not in ran:
            yield f"task {task.name} of a run with a site is {task.status}, and never began"
    for run in e.runs:
        if run.run_id in started and run.status not in OVER:
            yield f"run {run.run_id} of a site never ended"


def summary(e: Evidence) -> str:
    """Return what happened at the sites, in one line."""
    visits = [one for one in e.processes if "site" in one.args]
    requests = sum(len(one.requests) for one in visits)
    refused = sum(one.refused for one in visits)
    changes = sum(ask.accepted for ask in e.asks if ask.kind in ("limits", "close", "open"))
    return (
        f"{len(visits)} tasks visited sites with {requests} requests, of which {refused} were "
        f"refused; {changes} changes of sites; the most slots in use: {dict(e.most_holders)}"
    )
