"""The service behind the classes of users: they talk to this Protocol and to nothing else.

Two things implement it: the process that hosts a class for a worker (``plans/host.py``), and the memory of
``managers.testing``. Both hold the class by a ``Driver`` (``managers/driver.py``):

``Driver(cls, platform)``  makes the object: options are read, ``__init__`` runs
``.begin()``               ``on_start``, then the resume hooks when ``Start.resumed``; the next decision has their work
``.page(after)``           the yields after this position; asked for an earlier one, it begins the generator anew
``.cycle(facts)``          one ``workflow_loop``; the answer is to be committed as a whole
``.close(reason)``         ``on_close``: with the last cycle, whose decision it completes, or after a stop

What a class does wrong leaves each of these as ``ClassError``. Whoever could not commit a decision gives the process up
and makes the object anew: the object takes for done what it decided.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Protocol

from crawler_lifecycle.domain.managers.manager import Decision, JobState, Live, Start, Waiting
from crawler_lifecycle.domain.run_data import DataSource


@dataclass(frozen=True, slots=True)
class OwnedQuery:
    """A question for jobs of the manager."""

    states: list[str]
    """``pending``, ``running``, ``finished``."""
    all_flows: bool = False
    """True for jobs of managers of this name in every flow."""
    spider: str | None = None
    project_id: str | None = None
    after: str | None = None
    """``OwnedPage.after`` of the page before."""
    limit: int = 500


@dataclass(frozen=True, slots=True)
class OwnedPage:
    """Jobs of the manager as ``JobDict`` has them. Finished ones: the latest end first; others: by their start."""

    jobs: list[dict[str, Any]] = field(default_factory=list)
    after: str | None = None
    """``None``: there are no more."""


class Platform(DataSource, Protocol):
    """Answers of the service. Each method may be called while a call of the driver is under way, from its thread."""

    def start(self) -> Start:
        """Return what the process began with; always the same."""
        ...

    def now(self) -> float:
        """Epoch seconds."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait. Raises ``TimeoutError`` at once when the call under way may not take that long."""
        ...

    def entering(self, what: str, item_id: int | None = None) -> None:
        """The class's code is about to run: the name of the method, and the job that it is about. Whoever must kill
        the process can say where it was, and counts that as a failed try of the hooks of this end."""
        ...

    def did(self, done: Decision) -> None:
        """Return what the cycle under way has decided so far: hooks of some ends have run. Whoever must kill the
        process in a later one puts that on record."""
        ...

    def waiting_jobs(self, state: JobState, after_id: int = 0, limit: int = 100) -> list[Waiting]:
        """Jobs in this waiting state, as they were when the cycle began; oldest row first."""
        ...

    def live_jobs(self, after_id: int = 0, limit: int = 500) -> list[Live]:
        """Jobs that hold a slot, without those of ``Facts.ended``; oldest row first."""
        ...

    def known_identities(self, identities: Collection[str]) -> set[str]:
        """Return those of these identities that some job of the manager has."""
        ...

    def job(self, key: str) -> dict[str, Any] | None:
        """One job by the id of its run or of its request, as ``JobDict`` has it; any run, not only the manager's."""
        ...

    def owned_jobs(self, query: OwnedQuery) -> OwnedPage:
        """Jobs of the manager in these states, of all its attempts and in all projects."""
        ...
