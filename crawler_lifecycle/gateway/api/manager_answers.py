"""Bodies of answers about crawl managers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any, Self

from pydantic import BaseModel, Field

from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.managers.manager import BUILT_IN, JobState, manager_workflow_id
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.domain.waiting import ASK_DOCTOR
from crawler_lifecycle.ports.managers import JobRow, ManagerRow, PlanRow

from .answers import Stop
from .paging import Paging

#: Workers say what they serve every few seconds; a plan that none named for so long is served by nobody.
SERVED = timedelta(minutes=2)
ENDED = (RunStatus.COMPLETED, RunStatus.FAILED)


class ManagerFilters(Paging):
    """Filters of ``GET /v1/managers``."""

    status: RunStatus | None = None
    name: str | None = Field(default=None, max_length=63)
    flow_id: str | None = Field(default=None, max_length=120)

    def check(self) -> None:
        """Raise ``InvalidRequest`` for a flow id without the name that makes it one manager."""
        if self.flow_id is not None and self.name is None:
            raise InvalidRequest("flow_id: goes with name; give name as well, or leave flow_id out")


class JobFilters(Paging):
    """Filters of ``GET /v1/managers/{manager_id}/jobs``; ``state`` may be given several times."""

    state: list[JobState] = Field(default_factory=list)


class Jobs(BaseModel):
    """The jobs of a manager by state, and what became of what it read."""

    buffered: int
    delayed: int
    queued: int
    starting: int
    started: int
    ended: int
    yields: int
    """What its source gave so far, over all passes."""
    duplicates: int
    skipped: int
    scheduled: int
    retried: int
    good: int
    bad: int


class Manager(BaseModel):
    """One crawl manager."""

    manager_id: int
    manager_uid: str
    """Who it is: a number comes again where a database was restored, a uid never."""
    name: str
    flow_id: str
    workflow_id: str
    """Also the ``parent`` of its runs."""
    plan: str
    crawler: str | None
    """Of the built-in manager: the crawler that it runs once for each item."""
    argv: list[str]
    status: RunStatus | str
    """Another text than a status only in a list, in a row that is ``unreadable``."""
    outcome: str | None
    cause: str | None
    attempt: int
    live: int
    """Jobs that hold a slot; after its end, its runs that go on without it."""
    cap: int | None
    """Most of them, where a person set it; null: what the class says."""
    paused: bool
    waiting: str | None
    """Why nothing more is picked, in a sentence; null when nothing keeps it."""
    error: str | None
    """What its class did wrong, at which position, and the cure."""
    stop: Stop | None
    leave: bool
    """Whether its runs go on after a stop."""
    jobs: Jobs
    position: int
    exhausted: bool
    sealed: bool
    """Whether no more jobs come from outside."""
    close_reason: str | None
    tags: list[str]
    requested_by: str | None
    parent: str | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    updated_at: datetime
    """When anything of the above was last written: by its newest cycle, or by a command after it."""
    jobs_pruned_at: datetime | None
    """When jobs of it were last removed, long after an end: since then the same jobs are new to it."""
    unreadable: str | None
    """What cannot be in the manager's row, because another program wrote it, and the cure."""

    @classmethod
    def of(cls, row: ManagerRow, **more: Any) -> Self:
        """The row as it is; ``more`` is what it does not tell."""
        argv = row.options.get("argv")
        words = [str(word) for word in argv] if isinstance(argv, list) else []
        counts = row.counts
        same = {name: getattr(row, name) for name in cls.model_fields if hasattr(row, name)}
        return cls(
            **same
            | {
                "workflow_id": manager_workflow_id(row.name, row.flow_id),
                "crawler": words[0] if row.plan == BUILT_IN and words else None,
                "argv": words,
                "live": counts.live,
                "waiting": waiting(row),
                "stop": Stop.of(row.stop) if row.stop else None,
                "jobs": Jobs(
                    **{state.value: counts.by_state.get(state, 0) for state in JobState}
                    | {name: getattr(counts, name) for name in Jobs.model_fields if hasattr(counts, name)}
                ),
                "tags": list(row.tags),
                **more,
            }
        )


def waiting(row: ManagerRow) -> str | None:
    """What a manager waits for, in a sentence."""
    if row.status in ENDED or row.unreadable:
        return None
    live = row.counts.live
    runs = f"{live} {'run' if live == 1 else 'runs'}"
    if row.status is RunStatus.STOPPING:
        return "its runs go on without it" if row.leave else f"{runs} to be stopped" if live else "its end"
    if row.owner_run_id is None:
        return f"waiting for a worker{ASK_DOCTOR}"
    if row.paused:
        return f"it is paused; {runs} go on" if live else "it is paused"
    return row.waiting_for


class ManagerDetail(Manager):
    """One manager with everything that is known about it."""

    state: Mapping[str, Any]
    stats: Mapping[str, float]
    generation: int
    """How often its class was built anew."""
    fingerprint: str | None


class AcceptedManager(Manager):
    """The manager after a command; ``note`` says what a person should know about what happens next."""

    note: str | None


class ManagerPage(BaseModel):
    """Managers, newest first."""

    managers: list[Manager]
    next_page_token: str | None


class JobPage(BaseModel):
    """Jobs of a manager, oldest row first."""

    jobs: list[JobRow]
    next_page_token: str | None


@dataclass(frozen=True, slots=True)
class Plan(PlanRow):
    """A class that a manager can be started of, or a module whose functions graphs may call."""

    served: bool = False
    """Whether a worker said lately that it serves this."""

    @classmethod
    def of(cls, row: PlanRow, now: datetime) -> Self:
        return cls(**asdict(row), served=row.seen_at is not None and now - row.seen_at < SERVED)


class PlanList(BaseModel):
    """The classes that plans workers have registered."""

    plans: list[Plan]
    note: str | None
