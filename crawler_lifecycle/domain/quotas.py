"""Quotas: the maximum number of starts and tasks for a token, a pool or a project.

Use is counted from the rows of runs and tasks (``store/runs/quotas.py``), and never kept in a
counter. A start counts for an hour, even if its run is deleted within that hour. A repeated request
does not count as another start.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from .errors import InvalidRequest, QuotaReached

#: Kind of holder -> the column in the run's row that contains the holder's name.
KINDS: Mapping[str, str] = {"token": "caller", "pool": "pool", "project": "project"}
#: Keys in the setting: KIND:NAME, or KIND:* for every name without its own entry.
QUOTA_KEY = rf"^({'|'.join(KINDS)}):(\*|(oidc:)?[A-Za-z0-9][A-Za-z0-9._@+|=-]{{0,63}})$"
#: The numbers that a quota limits: starts, tasks that have not ended, tasks in one run, and tasks
#: that are not executing yet. For a project, quotas can limit the number of open objects too.
What = Literal[
    "starts_per_hour",
    "live_tasks",
    "tasks_per_run",
    "waiting_tasks",
    "managers",
    "graphs",
    "schedules",
    "webhooks",
]
#: Limits that only projects have. These limits are checked when an object is opened, not at the
#: start of a run.
OPEN = ("managers", "graphs", "schedules", "webhooks")
#: The highest quota, because checking a start counts up to as many rows, and the maximum number of
#: keys in the setting.
QUOTA_MAX = 1_000_000
QUOTAS_MAX = 1_000
#: The time for which a start counts.
WINDOW = timedelta(hours=1)
#: Seconds after which a caller should request tasks again. This is an estimate, because it is
#: unknown when a task will end.
AGAIN_S = 60.0
#: The beginning of every sentence about a quota that is used up.
QUOTA = "quota "

#: The quotas of an installation: key of the setting -> limited kind -> maximum.
Quotas = Mapping[str, Mapping[What, int]]
NO_QUOTAS: Quotas = {}


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit of one holder, and its use.

    ``used`` is counted up to ``max`` or one more, and is ``None`` if the use is not counted.
    ``free_at`` is the time at which the next start is free if none is free now.
    """

    kind: str
    name: str
    what: What
    max: int
    used: int | None = None
    free_at: datetime | None = None

    def __str__(self) -> str:
        return f"{QUOTA}{self.what} of {self.kind} {self.name}"

    def check_size(self, present: int, more: int) -> None:
        """Raise ``InvalidRequest`` if a run with ``present`` tasks can never get ``more`` tasks."""
        of_run = self.what == "tasks_per_run"
        present = present if of_run else 0
        if self.what != "starts_per_hour" and present + more > self.max and (of_run or self.max):
            has = f", and it has {present}" if present else ""
            text = f"tasks: {more} tasks are not allowed; {self} is {self.max}{has}: start fewer"
            raise InvalidRequest(f"{text}, or ask the operator to raise it (LIFECYCLE_QUOTAS)")

    def check(self, tasks: int, now: datetime, *, told: bool = True) -> None:
        """Raise ``QuotaReached`` unless one more start, or this many more tasks, are allowed now.

        If ``told`` is true, the text contains the use.
        """
        used = self.used or 0
        if used + (1 if self.what == "starts_per_hour" else tasks) <= self.max:
            return
        text = (
            f"{self}: {used} of {self.max} in use" if told else f"{self}: no capacity for this now"
        )
        if not self.max:
            raise QuotaReached(
                f"{text}; nothing is free until the operator raises it (LIFECYCLE_QUOTAS)"
            )
        if not told:
            raise QuotaReached(f"{text}; try again in {AGAIN_S:g} s", AGAIN_S)
        if self.free_at is not None:
            seconds = max(1.0, (self.free_at - now).total_seconds())
            raise QuotaReached(
                f"{text}; free at {self.free_at:%Y-%m-%dT%H:%M:%SZ}, in {math.ceil(seconds)} s",
                seconds,
            )
        raise QuotaReached(
            f"{text}, and {tasks} more requested; tasks must end first: try again in {AGAIN_S:g} s",
            AGAIN_S,
        )


def quota_of(quotas: Quotas, project: str, what: str) -> int | None:
    """Return how many of these objects a project may have open, or ``None`` if there is no
    quota."""
    limits = quotas.get(f"project:{project}", quotas.get("project:*", {}))
    return next((most for name, most in limits.items() if name == what), None)


def check_quota_keys(quotas: Quotas) -> None:
    """Raise ``ValueError`` for a limit that only projects can have."""
    for key, limits in quotas.items():
        wrong = [what for what in limits if what in OPEN and not key.startswith("project:")]
        if wrong:
            raise ValueError(
                f"{key}: {wrong[0]} is a quota of projects; give it under project:NAME or project:*"
            )


def limits_of(quotas: Quotas, run: Mapping[str, object]) -> list[Limit]:
    """Return the limits that apply to a run with these columns."""
    # The name of a token is the part after its project (``Caller.key``).
    holders = [
        (kind, str(run[of]).rpartition("/")[2])
        for kind, of in KINDS.items()
        if run.get(of) is not None
    ]
    return [
        Limit(kind, name, what, most)
        for kind, name in holders
        for what, most in quotas.get(f"{kind}:{name}", quotas.get(f"{kind}:*", {})).items()
    ]
