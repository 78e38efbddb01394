"""Quotas: the most starts and tasks of a token or of a pool.

What is used is counted from the rows of runs and tasks (``store/runs/quotas.py``), and never by a counter. A start is
counted for an hour. A deleted run still counts as a start, and a repeat of a request never counts twice.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta

from .errors import InvalidRequest, QuotaReached

#: Kind of a quota -> column of the run with the name of the holder.
KINDS: Mapping[str, str] = {"token": "caller", "pool": "pool", "project": "project"}
#: Keys of the setting: KIND:NAME, and KIND:* for every name without an entry of its own.
_KEY = re.compile(rf"({'|'.join(KINDS)}):(\*|[A-Za-z0-9][A-Za-z0-9._@-]{{0,63}})")
#: The highest quota. A start counts up to as many rows.
MOST = 1_000_000
#: The most keys of the setting.
QUOTAS_MAX = 1_000
#: The time for which a start counts.
WINDOW = timedelta(hours=1)
#: Seconds after which a caller should ask again for tasks. It is an estimate: nobody knows when a task ends.
AGAIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Quota:
    """The quota of one holder; ``None``: no limit."""

    starts_per_hour: int | None = None
    live_tasks: int | None = None
    """Most tasks that have not ended."""
    tasks_per_run: int | None = None
    waiting_tasks: int | None = None
    """Most tasks that do not execute yet."""


@dataclass(frozen=True, slots=True)
class Use:
    """The use of one limit now. ``used`` is counted up to ``most``, or one more."""

    used: int
    free_at: datetime | None = None
    """The time at which the next start is allowed, if none is allowed now."""


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit of one holder."""

    kind: str
    name: str
    what: str
    """The field of ``Quota``."""
    most: int

    @property
    def column(self) -> str:
        """The column of the run with the name of the holder."""
        return KINDS[self.kind]

    @property
    def of_starts(self) -> bool:
        """True if it limits starts, and not tasks."""
        return self.what == "starts_per_hour"

    @property
    def counted(self) -> bool:
        """True if rows are counted for it."""
        return self.what != "tasks_per_run"

    def __str__(self) -> str:
        return f"quota {self.what} of {self.kind} {self.name}"

    def check_size(self, present: int, more: int) -> None:
        """Raise ``InvalidRequest`` if a run with ``present`` tasks can never get ``more`` tasks."""
        present = 0 if self.counted else present
        if not self.of_starts and self.most and present + more > self.most:
            has = f", and this run has {present}" if present else ""
            raise InvalidRequest(
                f"tasks: {more} tasks are not allowed; {self} is {self.most}{has}: start fewer, or ask the operator to "
                "raise it (LIFECYCLE_QUOTAS)"
            )

    def check(self, use: Use, tasks: int, now: datetime) -> None:
        """Raise ``QuotaReached`` unless one more start, or so many more tasks, are free."""
        if use.used + (1 if self.of_starts else tasks) <= self.most:
            return
        text = f"{self}: {use.used} of {self.most} in use"
        if not self.most:
            raise QuotaReached(f"{text}; nothing is free until the operator raises it (LIFECYCLE_QUOTAS)")
        if use.free_at is not None:
            seconds = max(1.0, (use.free_at - now).total_seconds())
            text = f"{text}; free at {use.free_at:%Y-%m-%dT%H:%M:%SZ}, in {math.ceil(seconds)} s"
        else:
            seconds = AGAIN_S
            text = f"{text}, and {tasks} more asked for; free when tasks end: try again in {AGAIN_S:.0f} s"
        raise QuotaReached(text, seconds)


@dataclass(frozen=True, slots=True)
class Quotas:
    """The quotas of an installation, by their keys in the setting."""

    named: Mapping[str, Quota] = field(default_factory=dict)

    def limits(self, run: Mapping[str, object]) -> list[Limit]:
        """Return the limits that hold for a run with these columns."""
        holders = [(kind, str(run[column])) for kind, column in KINDS.items() if run.get(column) is not None]
        found = [(kind, name, self.named.get(f"{kind}:{name}", self._any(kind))) for kind, name in holders]
        return [
            Limit(kind, name, one.name, most)
            for kind, name, quota in found
            for one in fields(Quota)
            if (most := getattr(quota, one.name)) is not None
        ]

    def _any(self, kind: str) -> Quota:
        return self.named.get(f"{kind}:*", Quota())


#: An installation without quotas. Nothing is counted.
NO_QUOTAS = Quotas()


def check_key(key: str) -> str:
    """Return the same key. Raises ``ValueError`` unless it is a key of the setting."""
    if not _KEY.fullmatch(key):
        kinds = ", ".join(f"{kind}:NAME" for kind in KINDS)
        raise ValueError(f"{key!r:.80} is no key of a quota; give {kinds}, or * as NAME for all others")
    return key
