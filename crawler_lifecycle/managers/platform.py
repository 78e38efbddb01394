"""``Platform``, the only service that users' classes of managers call. ``Platform`` has two
implementations: a host process of a worker (``user_code/host.py``), and the memory of
``managers.testing``. Both call the class through a ``Driver`` (``managers/driver.py``):

- ``Driver(cls, platform)`` creates the object: it reads the options and runs ``__init__``.
- ``.begin()`` calls ``on_start``, and the resume hooks if ``Start.resumed``.
- ``.page(after)`` returns the yields after this position. For an earlier position, it restarts the
  generator.
- ``.cycle(facts)`` executes one cycle. The caller commits the whole decision.
- ``.close(reason)`` calls ``on_close`` after the last cycle or a stop, and completes the last
  decision.

Each of them raises ``ClassError`` for an error of the class. If a caller cannot commit a decision,
it must end the process and create a new object, because the old object assumes that its decisions
were committed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Protocol

from crawler_lifecycle.domain.run_data import DataSource
from crawler_lifecycle.features.managers.domain.manager import (
    Decision,
    JobState,
    Live,
    Start,
    Waiting,
)


@dataclass(frozen=True, slots=True)
class OwnedQuery:
    """A query for jobs of the manager."""

    states: list[str]
    """``pending``, ``running``, ``finished``."""
    all_flows: bool = False
    """If True, include jobs of managers with the same name in other flows."""
    spider: str | None = None
    project_id: str | None = None
    after: str | None = None
    """``OwnedPage.after`` of the previous page."""
    limit: int = 500


@dataclass(frozen=True, slots=True)
class OwnedPage:
    """Jobs in the form of ``JobDict``. Finished jobs are sorted by their end, latest first, and
    other jobs by their start.
    """

    jobs: list[dict[str, Any]] = field(default_factory=list)
    after: str | None = None
    """``None`` if there are no more jobs."""


class Platform(DataSource, Protocol):
    """Services for a user's class. The class calls these methods only during a call of the driver
    and in its thread.
    """

    def start(self) -> Start:
        """Return the facts with which the process began; they never change."""

    def now(self) -> float:
        """Return the time in epoch seconds."""

    def sleep(self, seconds: float) -> None:
        """Wait.

        Raises ``TimeoutError`` at once if the wait would exceed the time limit of the current call.
        """

    def entering(self, what: str, item_id: int | None = None) -> None:
        """Report that a method of the class is about to run, with its name and its job.

        If the worker must kill the process later, it can report where the process was. The worker
        then counts a failed try of the hooks for this job's end.
        """

    def did(self, done: Decision) -> None:
        """Report the decisions made so far in the current cycle, after hooks of some ends have run.

        If the worker must kill the process during a later hook, it records these decisions.
        """

    def waiting_jobs(self, state: JobState, after_id: int = 0, limit: int = 100) -> list[Waiting]:
        """Return jobs in this waiting state at the beginning of the cycle, oldest row first."""

    def live_jobs(self, after_id: int = 0, limit: int = 500) -> list[Live]:
        """Return jobs that use a slot, excluding those in ``Facts.ended``, oldest row first."""

    def known_identities(self, identities: Collection[str]) -> set[str]:
        """Return the identities that belong to a job of the manager."""

    def job(self, key: str) -> dict[str, Any] | None:
        """Return the job with this run id or request id, in the form of ``JobDict``.

        Jobs outside of the manager are found too. Return ``None`` if no job has this id.
        """

    def owned_jobs(self, query: OwnedQuery) -> OwnedPage:
        """Return jobs of the manager that match the query, from all its attempts."""
