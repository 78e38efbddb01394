"""Routes of crawl managers and user code."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from starlette.responses import PlainTextResponse

from crawler_lifecycle.gateway.access.operations import signed
from crawler_lifecycle.gateway.api.long_poll import conditional, documents
from crawler_lifecycle.gateway.parts import Gateway
from crawler_lifecycle.gateway.runs.commands import CommandResult
from crawler_lifecycle.gateway.runs.requests import BodyOf, IdempotencyKey, OptionalBodyOf, same_id

from ..ports import ManagerRow
from .answers import (
    AcceptedManager,
    JobFilters,
    JobPage,
    ManagerDetail,
    ManagerFilters,
    ManagerId,
    ManagerPage,
    UserCodeAnswer,
    UserCodeList,
)
from .commands import NO_WORKER
from .requests import (
    AddedJobs,
    AddJobs,
    ResumeManager,
    SetLimit,
    StartManager,
    StopManager,
)


def add_managers(app: FastAPI, gateway: Gateway) -> None:
    """Add the routes of commands, the routes that read managers, and the list of user code."""
    commands = gateway.manager_commands
    views = gateway.manager_views

    def answer(done: CommandResult[ManagerRow], response: Response) -> AcceptedManager:
        response.status_code = 202 if done.fresh else 200
        return AcceptedManager.of(done.row, note=done.note)

    same: dict[int | str, dict[str, Any]] = {
        200: {
            "model": AcceptedManager,
            "description": "The manager is already in this state; nothing was changed",
        }
    }

    @app.post("/v1/managers", status_code=202)
    async def start_manager(
        body: BodyOf[StartManager], response: Response, idempotency_key: IdempotencyKey = None
    ) -> AcceptedManager:
        """Start a manager of a registered class, or the built-in manager, which runs a crawler once
        for each job.

        Name and flow id identify a manager. The same start finds the manager while it is live, and
        resumes it after its end. Without `flow_id`, a flow id is derived from the
        `Idempotency-Key`, and a repeated start never resumes the manager.
        """
        done = await commands.start(signed(body), same_id(body.request_id, idempotency_key))
        done.mark(response, f"/v1/managers/{done.row.manager_id}")
        return AcceptedManager.of(done.row, note=done.note)

    @app.post("/v1/managers/{manager_id}/stop", status_code=202, responses=same)
    async def stop_manager(
        manager_id: ManagerId, body: OptionalBodyOf[StopManager], response: Response
    ) -> AcceptedManager:
        """Stop a manager and its runs, gracefully or by force. With `leave`, the manager's runs
        continue.

        The answer comes after the stop has been recorded. From then on, no job is started or
        retried.
        """
        return answer(await commands.stop(manager_id, signed(body)), response)

    @app.post("/v1/managers/{manager_id}/pause", status_code=202, responses=same)
    async def pause_manager(manager_id: ManagerId, response: Response) -> AcceptedManager:
        """Pause a manager, so that the manager starts no more jobs until it is resumed. Executing
        runs continue.
        """
        return answer(await commands.pause(manager_id), response)

    @app.post("/v1/managers/{manager_id}/resume", status_code=202, responses=same)
    async def resume_manager(
        manager_id: ManagerId, body: OptionalBodyOf[ResumeManager], response: Response
    ) -> AcceptedManager:
        """Continue a paused manager. A manager that has ended continues as its next attempt.

        The runs that its stop ended do not continue, unless `redo` is true.
        """
        return answer(await commands.resume(manager_id, body), response)

    @app.post("/v1/managers/{manager_id}/limit", status_code=202, responses=same)
    async def set_manager_limit(
        manager_id: ManagerId, body: BodyOf[SetLimit], response: Response
    ) -> AcceptedManager:
        """Set the maximum number of live jobs. With 0, the class sets the number. A lower cap does
        not end any jobs.
        """
        return answer(await commands.cap(manager_id, body.cap), response)

    @app.post("/v1/managers/{manager_id}/jobs", status_code=202)
    async def add_jobs(
        manager_id: ManagerId, body: BodyOf[AddJobs], idempotency_key: IdempotencyKey = None
    ) -> AddedJobs:
        """Add a page of at most 500 jobs to a live manager.

        A repeat with the same `Idempotency-Key` adds nothing.

        A job with the same spider and arguments as an earlier job is left out. `seal` states that
        no more jobs will come, so that the built-in manager ends after its last job.
        """
        return await commands.add_jobs(manager_id, body, same_id(body.request_id, idempotency_key))

    @app.get("/v1/managers", **documents(ManagerPage))
    def list_managers(filters: Annotated[ManagerFilters, Query()], request: Request) -> Response:
        """The managers that match all given filters, newest first. `flow_id` needs `name`.

        ``search`` selects managers that contain this text in their number, name, flow, class,
        arguments or tags; case is ignored. ``sort`` selects another order: name, flow_id, status,
        outcome, live, wait, good, bad or skipped, with a ``-`` in front for the largest first. Both
        cover the newest 2,000 managers that pass the other filters. A search also finds older
        managers by name and by the beginning of the number; ``note`` describes what was left out.
        """
        return conditional(request, views.page(filters).with_total(filters, views.counted))

    @app.get("/v1/managers/{manager_id}", **documents(ManagerDetail))
    async def get_manager(manager_id: ManagerId, request: Request) -> Response:
        """One manager, with its status, live jobs, jobs in each state, the reason why the manager
        waits, and the class's error.
        """
        return conditional(request, await views.one(manager_id))

    @app.get("/v1/managers/{manager_id}/jobs", **documents(JobPage))
    def list_jobs(
        manager_id: ManagerId, filters: Annotated[JobFilters, Query()], request: Request
    ) -> Response:
        """The jobs of a manager with their runs, oldest row first.

        `state=skipped` lists skipped jobs with a reason. ``search`` selects jobs that contain this
        text in their numbers, crawler, arguments, tags, outcome or error. A page of a search reads
        at most 2,000 jobs; ``note`` states if more follow.
        """
        views.found(manager_id)
        return conditional(request, views.jobs(manager_id, filters))

    @app.get("/v1/managers/{manager_id}/logs", response_class=PlainTextResponse)
    def get_manager_log(manager_id: ManagerId) -> Response:
        """The last output of a manager's class up to its newest cycle, at most 16 KiB for all its
        processes together.
        """
        views.found(manager_id)
        return PlainTextResponse(views.store.output(manager_id))

    @app.get("/v1/user-code", **documents(UserCodeList))
    def list_user_code(request: Request) -> Response:
        """The modules and classes that user-code workers have registered, with the options of their
        command lines.
        """
        rows = gateway.store.user_code.list_user_code()
        note = None if rows else NO_WORKER
        return conditional(
            request,
            UserCodeList(
                user_code=[UserCodeAnswer.of(row, views.clock()) for row in rows], note=note
            ),
        )
