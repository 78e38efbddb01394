"""Routes of crawl managers and plans, and the bodies of their answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, Self

from fastapi import Depends, FastAPI, Path, Query, Request, Response
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse

from crawler_lifecycle.domain.bounds import ID_MAX
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.managers.manager import BUILT_IN, JobState, manager_workflow_id
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.domain.waiting import ASK_DOCTOR
from crawler_lifecycle.gateway.access.operations import signed
from crawler_lifecycle.gateway.api.long_poll import conditional, documents
from crawler_lifecycle.gateway.api.paging import Paging, cut
from crawler_lifecycle.gateway.cursors import decode
from crawler_lifecycle.gateway.managers.commands import NO_WORKER, ManagerCommands, found, workflow_id_of
from crawler_lifecycle.gateway.managers.requests import AddedJobs, AddJobs, SetCap, StartManager, StopManager
from crawler_lifecycle.gateway.runs.answers import ENDED, Stop
from crawler_lifecycle.gateway.runs.blocked import Blocked
from crawler_lifecycle.gateway.runs.commands import Commanded
from crawler_lifecycle.gateway.runs.requests import IdempotencyKey, same_id
from crawler_lifecycle.ports.managers import JobRow, ManagerRow, PlanRow
from crawler_lifecycle.store.managers.managers import ManagerStore
from crawler_lifecycle.store.managers.plans import PlanStore
from crawler_lifecycle.web.problems import JsonBody

#: Workers say what they serve every few seconds; a plan that none named for so long is served by nobody.
SERVED = timedelta(minutes=2)


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
    """The number of items that its source gave so far, over all passes."""
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
    """The manager's identity: a number comes again where a database was restored, a uid never."""
    name: str
    flow_id: str
    workflow_id: str
    """Also the ``parent`` of its runs."""
    plan: str
    crawler: str | None
    """Of the built-in manager: the crawler that it runs once for each item."""
    argv: list[str]
    status: RunStatus
    outcome: str | None
    cause: str | None
    attempt: int
    live: int
    """Jobs that hold a slot; after its end, its runs that go on without it."""
    cap: int | None
    """Most of them, where a person set it; null: what the class says."""
    paused: bool
    waiting: str | None
    """The reason why nothing more is picked, in a sentence; null when nothing keeps it."""
    error: str | None
    """The mistake of its class, at which position, and the cure."""
    stop: Stop | None
    leave: bool
    """True when its runs go on after a stop."""
    jobs: Jobs
    position: int
    exhausted: bool
    sealed: bool
    """True when no more jobs come from outside."""
    close_reason: str | None
    tags: list[str]
    requested_by: str | None
    parent: str | None
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    updated_at: datetime
    """The time at which anything of the above was last written: by its newest cycle, or by a command after it."""
    jobs_pruned_at: datetime | None
    """The time at which jobs of it were last removed, long after an end: since then the same jobs are new to it."""

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
    """Say in a sentence what a manager waits for."""
    if row.status in ENDED:
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
    """The number of times that its class was built anew."""
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
    """True when a worker said lately that it serves this."""

    @classmethod
    def of(cls, row: PlanRow, now: datetime) -> Self:
        return cls(**asdict(row), served=row.seen_at is not None and now - row.seen_at < SERVED)


class PlanList(BaseModel):
    """The classes that plans workers have registered."""

    plans: list[Plan]
    note: str | None


_START = JsonBody(StartManager)
_STOP = JsonBody(StopManager, optional=True)
_JOBS = JsonBody(AddJobs)
_CAP = JsonBody(SetCap)

ManagerId = Annotated[int, Path(ge=1, le=ID_MAX)]


def add_manager_commands(app: FastAPI, commands: ManagerCommands) -> None:
    """Add start, stop, pause, resume, cap and more jobs."""

    def answer(done: Commanded[ManagerRow], response: Response) -> AcceptedManager:
        response.status_code = 202 if done.fresh else 200
        return AcceptedManager.of(done.row, note=done.note)

    same: dict[int | str, dict[str, Any]] = {
        200: {"model": AcceptedManager, "description": "It was so already; nothing was changed"}
    }

    @app.post("/v1/managers", operation_id="startManager", status_code=202)
    async def start_manager(
        body: Annotated[StartManager, Depends(_START)], response: Response, idempotency_key: IdempotencyKey = None
    ) -> AcceptedManager:
        """Start a manager: of a registered class, or the built-in one, which runs a crawler once for each item.

        Name and flow id say which manager it is: while it is live the same start finds it, after its end the same
        start resumes it. Without `flow_id` one is made of the `Idempotency-Key`, and a repeat never resumes.
        """
        done = await commands.start(signed(body), same_id(body.request_id, idempotency_key))
        done.mark(response, f"/v1/managers/{done.row.manager_id}")
        return AcceptedManager.of(done.row, note=done.note)

    @app.post("/v1/managers/{manager_id}/stop", operation_id="stopManager", status_code=202, responses=same)
    async def stop_manager(
        manager_id: ManagerId, body: Annotated[StopManager, Depends(_STOP)], response: Response
    ) -> AcceptedManager:
        """Stop a manager and its runs, gracefully or by force; with `leave` its runs go on.

        The stop is on record before this is answered: nothing more is picked, and nothing is retried.
        """
        return answer(await commands.stop(manager_id, signed(body)), response)

    @app.post("/v1/managers/{manager_id}/pause", operation_id="pauseManager", status_code=202, responses=same)
    async def pause_manager(manager_id: ManagerId, response: Response) -> AcceptedManager:
        """Have a manager pick nothing more until it is resumed; what runs goes on."""
        return answer(await commands.pause(manager_id), response)

    @app.post("/v1/managers/{manager_id}/resume", operation_id="resumeManager", status_code=202, responses=same)
    async def resume_manager(manager_id: ManagerId, response: Response) -> AcceptedManager:
        """Let a paused manager go on; one that has ended goes on as its next attempt."""
        return answer(await commands.resume(manager_id), response)

    @app.post("/v1/managers/{manager_id}/cap", operation_id="capManager", status_code=202, responses=same)
    async def cap_manager(
        manager_id: ManagerId, body: Annotated[SetCap, Depends(_CAP)], response: Response
    ) -> AcceptedManager:
        """Set how many jobs may be live at once; 0 is what the class says. A smaller cap ends nothing."""
        return answer(await commands.cap(manager_id, body.cap), response)

    @app.post("/v1/managers/{manager_id}/jobs", operation_id="addJobs", status_code=202)
    async def add_jobs(
        manager_id: ManagerId, body: Annotated[AddJobs, Depends(_JOBS)], idempotency_key: IdempotencyKey = None
    ) -> AddedJobs:
        """Add a page of jobs to a live manager, at most 500; the same `Idempotency-Key` again adds nothing.

        A job that is like an earlier one (spider and arguments) is left out. With `seal` no more will come, and the
        built-in manager ends when all have run.
        """
        return await commands.add_jobs(manager_id, body, same_id(body.request_id, idempotency_key))


class ManagerViews:
    """Managers as they are answered: a page of them, one with everything about it, and its jobs."""

    def __init__(self, managers: ManagerStore, blocked: Blocked, clock: Callable[[], datetime]) -> None:
        self.managers, self._blocked, self.clock = managers, blocked, clock

    def page(self, filters: ManagerFilters) -> ManagerPage:
        """Managers, newest first, that fit. Blocks."""
        filters.check()
        before = decode("manager", filters.page_token)
        if filters.flow_id is not None:
            row = self.managers.find_manager(str(filters.name), filters.flow_id)
            rows = [row] if row is not None and filters.status in (None, row.status) else []
        else:
            size = filters.page_size + 1
            rows = self.managers.list_managers(before, size, status=filters.status, name=filters.name)
        page, token = cut("manager", rows, filters.page_size, lambda row: row.manager_id)
        blocked = self._blocked.listed_workflow
        answers = [Manager.of(row, waiting=blocked(workflow_id_of(row)) or waiting(row)) for row in page]
        return ManagerPage(managers=answers, next_page_token=token)

    async def detail(self, manager_id: int) -> ManagerDetail:
        """One manager. Raises ``Problem`` 404."""
        row = await run_in_threadpool(found, self.managers, manager_id)
        is_open = row.status not in ENDED
        why = await self._blocked.of_workflow(workflow_id_of(row), is_open=is_open) or waiting(row)
        return ManagerDetail.of(row, state=row.state, stats=row.stats, waiting=why)

    def jobs(self, manager_id: int, filters: JobFilters) -> JobPage:
        """Jobs of one that fit, oldest row first. Blocks."""
        after = decode("job", filters.page_token) or 0
        rows = self.managers.list_jobs(manager_id, after, filters.page_size + 1, states=filters.state)
        page, token = cut("job", rows, filters.page_size, lambda row: row.item_id)
        return JobPage(jobs=page, next_page_token=token)


def add_manager_readers(app: FastAPI, plans: PlanStore, views: ManagerViews) -> None:
    """Add lists and details of managers, and the list of plans."""
    managers = views.managers

    @app.get("/v1/managers", operation_id="listManagers", **documents(ManagerPage))
    def list_managers(filters: Annotated[ManagerFilters, Query()], request: Request) -> Response:
        """Managers, newest first, that fit every given filter; `flow_id` goes with `name`."""
        return conditional(request, views.page(filters))

    @app.get("/v1/managers/{manager_id}", operation_id="getManager", **documents(ManagerDetail))
    async def get_manager(manager_id: ManagerId, request: Request) -> Response:
        """One manager: its state, its window, its jobs by state, what it waits for, and what its class did wrong."""
        return conditional(request, await views.detail(manager_id))

    @app.get("/v1/managers/{manager_id}/jobs", operation_id="listJobs", **documents(JobPage))
    def list_jobs(manager_id: ManagerId, filters: Annotated[JobFilters, Query()], request: Request) -> Response:
        """Jobs of a manager, oldest row first, with their runs; `state=skipped` lists what was left out, and why."""
        if filters.page_token is None:
            found(managers, manager_id)
        return conditional(request, views.jobs(manager_id, filters))

    @app.get("/v1/managers/{manager_id}/logs", operation_id="getManagerLog", response_class=PlainTextResponse)
    def get_manager_log(manager_id: ManagerId) -> Response:
        """The last output of the class of a manager: 16 KiB at most, over all its processes, as of its newest cycle."""
        found(managers, manager_id)
        return PlainTextResponse(managers.manager_output(manager_id))

    @app.get("/v1/plans", operation_id="listPlans", **documents(PlanList))
    def list_plans(request: Request) -> Response:
        """The modules and classes that plans workers have registered, with the options of their command lines."""
        rows = plans.list_plans()
        note = None if rows else NO_WORKER
        return conditional(request, PlanList(plans=[Plan.of(row, views.clock()) for row in rows], note=note))
