"""Quotas: the most starts and tasks of a token, of a pool or of a project.

What is used is counted from the rows of runs and tasks (``store/runs/quotas.py``), and never by a counter. A start is
counted for an hour, also after its run was deleted. A repeat of a request is no other start.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from .errors import InvalidRequest, QuotaReached

#: Kind of holder -> column of the run with the holder's name.
KINDS: Mapping[str, str] = {"token": "caller", "pool": "pool", "project": "project"}
#: Keys of the setting: KIND:NAME, and KIND:* for every name without an entry of its own.
_KEY = re.compile(rf"({'|'.join(KINDS)}):(\*|[A-Za-z0-9][A-Za-z0-9._@-]{{0,63}})")
#: What a quota limits: starts, tasks that have not ended, tasks of one run, and tasks that do not execute yet.
STARTS, LIVE, OF_RUN, WAITING = "starts_per_hour", "live_tasks", "tasks_per_run", "waiting_tasks"
#: The highest quota, because a start counts up to as many rows; and the most keys of the setting.
MOST, QUOTAS_MAX = 1_000_000, 1_000
#: The time for which a start counts.
WINDOW = timedelta(hours=1)
#: Seconds after which to ask again for tasks. It is an estimate: nobody knows when a task ends.
AGAIN_S = 60.0
#: The beginning of every sentence about a quota that is used up.
QUOTA = "quota "

#: The quotas of an installation: key of the setting -> what is limited -> the most.
Quotas = Mapping[str, Mapping[str, int]]
NO_QUOTAS: Quotas = {}


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit of one holder."""

    kind: str
    name: str
    what: str
    most: int

    def __str__(self) -> str:
        return f"{QUOTA}{self.what} of {self.kind} {self.name}"

    def check_size(self, present: int, more: int) -> None:
        """Raise ``InvalidRequest`` if a run with ``present`` tasks can never get ``more`` tasks."""
        has = present if self.what == OF_RUN else 0
        if self.what != STARTS and 0 < self.most < has + more:
            text = f"tasks: {more} tasks are not allowed; {self} is {self.most}" + (
                f", and it has {has}" if has else ""
            )
            raise InvalidRequest(f"{text}: start fewer, or ask the operator to raise it (LIFECYCLE_QUOTAS)")

    def check(self, used: int, free_at: datetime | None, tasks: int, now: datetime) -> None:
        """Raise ``QuotaReached`` unless one more start, or so many more tasks, are free.

        ``free_at`` is the time when the next start is free.
        """
        if used + (1 if self.what == STARTS else tasks) <= self.most:
            return
        text, seconds = f"{self}: {used} of {self.most} in use", AGAIN_S
        if not self.most:
            raise QuotaReached(f"{text}; nothing is free until the operator raises it (LIFECYCLE_QUOTAS)")
        if free_at is not None:
            seconds = max(1.0, (free_at - now).total_seconds())
            raise QuotaReached(f"{text}; free at {free_at:%Y-%m-%dT%H:%M:%SZ}, in {math.ceil(seconds)} s", seconds)
        more = f"and {tasks} more asked for; free when tasks end: try again in {seconds:.0f} s"
        raise QuotaReached(f"{text}, {more}", seconds)


def limits_of(quotas: Quotas, run: Mapping[str, object]) -> list[Limit]:
    """Return the limits that hold for a run with these columns."""
    holders = [(kind, str(run[column])) for kind, column in KINDS.items() if run.get(column) is not None]
    return [
        Limit(kind, name, what, most)
        for kind, name in holders
        for what, most in quotas.get(f"{kind}:{name}", quotas.get(f"{kind}:*", {})).items()
    ]


def check_key(key: str) -> str:
    """Return the same key. Raises ``ValueError`` unless it is a key of the setting."""
    if not _KEY.fullmatch(key):
        kinds = ", ".join(f"{kind}:NAME" for kind in KINDS)
        raise ValueError(f"{key!r:.80} is no key of a quota; give {kinds}, or * as NAME for all others")
    return key
