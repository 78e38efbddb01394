"""Canaries: new versions of packages, and of entries of the catalogue, that only a share of the
runs uses until they are judged.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

#: The bounds of the share of new runs that get the new version, and of the runs that are judged.
SHARE_MIN = 0.01
SHARE_MAX = 0.5
RUNS_MAX = 100
#: The maximum number of runs that get the new version, so that few are read to judge it.
GIVEN_MAX = 1_000


class Judge(StrEnum):
    """A criterion for the runs of a new version, in addition to the entry's ``expect``."""

    COVERAGE = "coverage"
    """The shares of items that have a value in each field."""
    ITEMS = "items"
    """The number of items."""
    ERRORS = "errors"
    """Whether the runs failed."""
    DURATION = "duration"
    """How long the runs took."""


class CanaryState(StrEnum):
    """The state of a canary."""

    OPEN = "open"
    ACCEPTED = "accepted"
    """The new version became the current one."""
    REJECTED = "rejected"
    """The old version stayed the current one."""
    CANCELLED = "cancelled"
    """Another deploy, or the choice or deletion of a version, ended it."""


@dataclass(frozen=True, slots=True)
class CanarySettings:
    """The settings of a canary."""

    share: float
    runs: int = 3
    judge: Sequence[Judge] = tuple(Judge)


@dataclass(frozen=True, slots=True)
class CanaryRow:
    """One row of the table ``canary``."""

    canary_id: int
    canary_uid: str
    package: str | None
    """The package; ``None`` for the canary of an entry."""
    crawler: str | None
    """The entry whose versions are compared; ``None`` for the canary of a package."""
    project: str
    old_version: str
    """The current version, which the other runs use."""
    new_version: str
    """The version that is tried."""
    share: float
    runs: int
    """The number of ended runs of the new version after which it is judged."""
    judge: Sequence[Judge]
    state: CanaryState
    asked: int
    """The number of runs that named no version while it was open."""
    given: int
    """The number of these that got the new version."""
    created_at: datetime
    created_by: str | None
    ended_at: datetime | None
    ended_by: str | None
    """``judge``, or the person who ended it."""
    result: str | None
    """A sentence with the reason for its end."""

    @property
    def name(self) -> str:
        """The name of the package or entry."""
        return self.package or self.crawler or ""

    @property
    def subject(self) -> str:
        """The subject of its events and incidents."""
        return f"{'packages' if self.package else 'crawlers'}/{self.name}"


def version_before(
    versions: Sequence[str], current: str, former: str | None, only_tried: Container[str]
) -> str | None:
    """Return the version that was in use before the current one; ``None`` if there is none.

    ``versions`` are all versions, newest first. ``former`` is the recorded older version that was
    in use before; there is none after a change to an older version. Without it, the answer is the
    newest older version that is not ``only_tried``: given to runs by a canary, but not accepted.
    """
    if former is not None and former != current and former in versions:
        return former
    older = versions[versions.index(current) + 1 :] if current in versions else []
    return next((version for version in older if version not in only_tried), None)


def gets_new(share: float, asked: int, given: int) -> bool:
    """Return whether the next run gets the new version.

    ``asked`` counts the runs before it, and ``given`` those of them that got the new version.
    """
    # A product such as 0.1 * 30 is slightly too large.
    wanted = math.ceil(round(share * (asked + 1), 6))
    return given < min(wanted, GIVEN_MAX)
