"""The progress of a manager for its web page: a sentence, a bar of its jobs, its pace, and its end
if known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Self

from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.gateway.ui.parts.formats import number
from crawler_lifecycle.gateway.ui.parts.rendering import query
from crawler_lifecycle.subjects import MANAGER, WAITING

from ..domain.manager import BUILT_IN, FINISHED
from .answers import ManagerDetail

HOUR = timedelta(hours=1)
#: The width of the bar, and the minimum width of a part, so that one failed job among thousands is
#: visible.
WIDTH = 1000
LEAST = 8
#: The minimum number of ends in an hour for an estimate of the time of the end.
ENDS_MIN = 5
LIVE = ("starting", "started")


@dataclass(frozen=True, slots=True)
class Part:
    """The jobs in one kind of state, with their count, their position in the bar, and the address
    of their list.
    """

    kind: str
    """waiting, running, succeeded, failed, ended or skipped."""
    jobs: int
    x: int
    width: int
    href: str


def parts_of(manager: ManagerDetail) -> list[Part]:
    """Return the parts of the bar that have jobs.

    Each job is counted once. The counters of good and bad ends count every end of a run that a
    person resumed, but no end after the manager's end. Therefore the succeeded and failed parts
    together never exceed the number of ended jobs.
    """
    jobs = manager.jobs
    good = min(jobs.good, jobs.ended)
    bad = min(jobs.bad, jobs.ended - good)
    here = MANAGER.path(manager.manager_id, "/jobs")
    runs = {"parent": manager.workflow_id}
    found: Mapping[str, tuple[int, str]] = {
        "waiting": (_waits(manager), here + query({"state": WAITING})),
        "running": (manager.live, here + query({"state": LIVE})),
        "succeeded": (good, "/runs" + query({**runs, "status": RunStatus.COMPLETED})),
        "failed": (bad, "/runs" + query({**runs, "status": RunStatus.FAILED})),
        "ended": (jobs.ended - good - bad, here + query({"state": "ended"})),
        "skipped": (jobs.skipped, here + query({"state": "skipped"})),
    }
    there = {kind: figures for kind, figures in found.items() if figures[0] > 0}
    every = sum(many for many, _ in there.values())
    room = WIDTH - LEAST * len(there)
    parts = list[Part]()
    x = 0
    for kind, (many, href) in there.items():
        width = LEAST + room * many // every
        parts.append(Part(kind, many, x, width, href))
        x += width
    return parts


def sentence(manager: ManagerDetail) -> str:
    """Return one sentence about the state of the manager."""
    jobs = manager.jobs
    done = f"{_jobs(jobs.ended)} ended"
    if manager.status.terminal:
        word = "completed" if manager.status is RunStatus.COMPLETED else "failed"
        why = "" if manager.outcome in (None, FINISHED) else f" with {manager.outcome}"
        return f"It {word}{why}: {done}, {_jobs(_waits(manager))} never started."
    if manager.status is RunStatus.STOPPING:
        return f"It is being stopped: {_jobs(manager.live)} running, {done}."
    if manager.paused:
        state = "It is paused"
    else:
        state = "It is working" if manager.started_at else "It has not begun"
    most = f" (at most {number(manager.cap)})" if manager.cap else ""
    waiting = _jobs(_waits(manager))
    return f"{state}: {_jobs(manager.live)} running{most}, {waiting} waiting, {done}."


@dataclass(frozen=True, slots=True)
class Pace:
    """The number of jobs that end per hour, and the time that the known jobs will take."""

    last_hour: int
    """The number of runs that ended in the last hour."""
    overall: float | None
    """Ended jobs per hour since its first start, including pauses; ``None`` if nothing has ended
    yet.
    """
    left_s: float | None
    """Seconds until its last known job ends at the pace of the last hour."""
    untold: str | None
    """A sentence that explains why this is unknown; ``None`` after its end."""

    @classmethod
    def of(cls, manager: ManagerDetail, ended: int, now: datetime) -> Self:
        """``ended`` is the number of runs that ended in the last hour."""
        begun = (
            manager.started_at
            if manager.attempt == 1 and manager.started_at
            else manager.created_at
        )
        passed = ((manager.ended_at or now) - begun).total_seconds()
        overall = manager.jobs.ended * 3600 / passed if manager.jobs.ended and passed > 0 else None
        left = manager.live + _waits(manager)
        untold = _untold(manager, ended)
        if manager.status.terminal or untold is not None or not left:
            return cls(ended, overall, None, untold)
        return cls(ended, overall, left * min(passed, HOUR.total_seconds()) / ended, None)


def _untold(manager: ManagerDetail, ended: int) -> str | None:
    if manager.status.terminal:
        return None
    known = manager.sealed if manager.plan == BUILT_IN else manager.exhausted
    reasons: Mapping[str, Any] = {
        "it is being stopped": manager.status is RunStatus.STOPPING,
        "it is paused": manager.paused,
        "its class has an error": manager.error,
        "more jobs may come": not known,
        f"only {number(ended)} of its runs ended in the last hour": ended < ENDS_MIN,
    }
    return next(
        (f"The time of its end is unknown: {why}." for why, so in reasons.items() if so), None
    )


def _waits(manager: ManagerDetail) -> int:
    jobs: Mapping[str, int] = manager.jobs.model_dump()
    return sum(jobs[name] for name in WAITING)


def _jobs(count: int) -> str:
    """Return ``1 job`` or ``1 200 jobs``, with the thin spaces of all numbers of the web UI."""
    return f"{number(count)} {'job' if count == 1 else 'jobs'}"
