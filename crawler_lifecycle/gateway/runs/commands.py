"""Commands on runs: start, stop, resume and poll.

A command always writes to the database before it calls Temporal. A recorded command is carried out
even if this process dies, because the outbox retry (``sweep.py``) finds it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import uuid
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from crawler_lifecycle.activities.child_runs import (
    begin_request,
    next_workflow_id,
    uid_there,
    workflow_ids,
)
from crawler_lifecycle.clock import Clock, utc_now
from crawler_lifecycle.domain import projects
from crawler_lifecycle.domain.bounds import refusal
from crawler_lifecycle.domain.code import CodeVersions
from crawler_lifecycle.domain.crawlers.arguments import check_texts
from crawler_lifecycle.domain.crawlers.crawler import (
    CrawlerDefinition,
    check_tasks,
    completed,
    pinned,
    with_limits,
)
from crawler_lifecycle.domain.errors import (
    DuplicateRequest,
    NotInThisState,
    RowUnreadable,
    RunDeleted,
    TemporalUnavailable,
)
from crawler_lifecycle.domain.names import attempt_workflow_id
from crawler_lifecycle.domain.run import (
    INLINE_TASKS_MAX,
    RunRequest,
    RunStatus,
    StopIntent,
    StopRequest,
)
from crawler_lifecycle.domain.unknown import similar
from crawler_lifecycle.gateway.access.operations import caller_key, caller_name, check_own
from crawler_lifecycle.ports.runs import RunRow
from crawler_lifecycle.store.retention.deletion import DeletionStore
from crawler_lifecycle.store.runs.additions import AdditionStore
from crawler_lifecycle.store.runs.initiation import InitiationStore
from crawler_lifecycle.store.runs.reads import RunReader
from crawler_lifecycle.store.runs.stops import StopStore
from crawler_lifecycle.temporal.client import Workflows
from crawler_lifecycle.web.problems import FieldError, Problem, unavailable
from crawler_lifecycle.web.turns import turn

from .crawlers import Crawlers
from .requests import AddedTasks, AddTasksBody, ResumeRun, StartRun, StopRun, same_id, texts

logger = logging.getLogger(__name__)

Row = TypeVar("Row")

#: The prefixes of workflow ids, and of the request ids of runs that managers, graphs and schedules
#: start.
_OURS = ("manager/", "graph/", "schedule/", "crawl/")
LATER = (
    "The command is recorded, and takes effect as soon as Temporal can be reached, without "
    "another request."
)
BY_AUDIT = (
    "The command is recorded. A worker with the role audit carries it out as soon as Temporal can "
    "be reached, without "
    "another request."
)


@dataclass(frozen=True, slots=True)
class CommandResult(Generic[Row]):
    """The result of a command: the changed row.

    ``fresh`` is false if the command is a repeat or changed nothing.
    """

    row: Row
    fresh: bool = True
    note: str | None = None

    def mark(self, response: Response, location: str | None = None) -> None:
        """Add headers to the response: the location, and ``Idempotency-Replayed`` for a repeat."""
        if location is not None:
            response.headers["Location"] = location
        if not self.fresh:
            response.headers["Idempotency-Replayed"] = "true"


def check_foreign(field: str, id: str | None) -> None:
    """Raise ``InvalidRequest`` if a caller of one project gives an id that looks like ours.

    Otherwise, the run would count as started by a manager, graph or schedule, or a workflow of
    another project could be notified of its end.
    """
    if id is not None and projects.only() is not None and id.startswith(_OURS):
        raise refusal(field, id, f"it begins with one of {', '.join(_OURS)}; give another one")


def existing(noun: str, key: int | str, row: Row | None, known: Iterable[str] = ()) -> Row:
    """Return the row. Raises ``Problem`` 404 if it is ``None``, with the most similar of the
    ``known`` names.
    """
    if row is None:
        shown = repr(key[:200]) if isinstance(key, str) else key
        near = similar(key, known)
        fix = f"did you mean {near}?" if near else f"GET /v1/{noun}s lists all {noun}s"
        raise Problem(404, f"{noun}_not_found", f"{noun} {shown} does not exist; {fix}")
    return row


@contextlib.contextmanager
def mismatch(field: str, **more: Any) -> Iterator[None]:
    """Raise ``Problem`` 422 if the id already belongs to another request."""
    try:
        yield
    except DuplicateRequest as error:
        errors = [FieldError(field=field, message=str(error))]
        detail = f"{field}: {error}"
        raise Problem(422, "idempotency_mismatch", detail, errors=errors, **more) from error


@contextlib.contextmanager
def needing_temporal(detail: str, run_id: int | None = None) -> Iterator[None]:
    """Raise ``Problem`` 503 with this detail if Temporal is unavailable."""
    try:
        yield
    except TemporalUnavailable as error:
        raise unavailable(
            "temporal_unavailable", f"{detail} {error}".lstrip(), run_id=run_id
        ) from error


async def notify(call: Awaitable[Any], what: str, later: str = LATER) -> str | None:
    """Notify Temporal of a recorded command.

    If Temporal is unavailable, return a note for the caller.
    """
    try:
        await call
    except TemporalUnavailable as error:
        logger.warning("%s is recorded, but Temporal has not been notified yet: %s", what, error)
        return later
    return None


def sentences(*texts: str | None) -> str | None:
    """Combine these notes for the caller into one. Return ``None`` if there are none."""
    return " ".join(filter(None, texts)) or None


def found(runs: RunReader, run_id: int) -> RunRow:
    """Return the run. Raises ``Problem`` 404. This call blocks."""
    return existing("run", run_id, runs.get_run(run_id))


def undeleted(runs: RunReader, run_id: int) -> RunRow:
    """Return a run whose data can still be read.

    Raises ``Problem`` 404, and ``RunDeleted``. This call blocks.
    """
    return check_kept(found(runs, run_id))


def check_kept(row: RunRow) -> RunRow:
    """Return the same run. Raises ``RunDeleted`` if its data was deleted."""
    if row.deleted_at is not None:
        when = row.deleted_at.isoformat()
        fix = f"GET /v1/runs/{row.run_id} shows the remaining data"
        raise RunDeleted(f"run {row.run_id} was deleted at {when}; {fix}")
    return row


def as_it_stands(runs: RunReader, run_id: int) -> RunRow:
    """Return the run as a list shows it, even if a manual edit made its row unreadable.

    Raises ``Problem`` 404.
    """
    rows = runs.list_runs(before_run_id=run_id + 1, limit=1)
    return existing("run", run_id, next((row for row in rows if row.run_id == run_id), None))


@dataclass(frozen=True)
class Commands:
    """The commands start, stop, resume, delete and poll.

    They raise ``Problem`` or an error of the domain.
    """

    acceptance: InitiationStore
    additions: AdditionStore
    stops: StopStore
    runs: RunReader
    deletion: DeletionStore
    workflows: Workflows
    crawlers: Crawlers
    versions: CodeVersions
    clock: Clock = utc_now

    async def find(self, run_id: int) -> RunRow:
        """Return the run. Raises ``Problem`` 404."""
        return await run_in_threadpool(found, self.runs, run_id)

    # --- start ------------------------------------------------------------------------------------

    async def start(self, body: StartRun, key: str | None) -> CommandResult[RunRow]:
        """Write the row of the run, then start its workflow.

        A repeat with the same key and body finds this run.
        """
        request_id = _own_id(same_id(body.request_id, key))
        check_foreign("request_id", request_id)
        check_foreign("parent", body.parent)
        # The inner replace checks the request_id, because RunRequest contains the rule.
        request = dataclasses.replace(
            body.request(), request_id=request_id, project=projects.chosen(body.project)
        )
        request = dataclasses.replace(request, request_id=None)
        args = [texts(task.args) for task in body.tasks] if body.tasks is not None else None
        with mismatch("Idempotency-Key"):
            row, fresh = await self._reserve(request, request_id, body, args)
        if row.owner_run_id is None and not row.status.terminal:
            await self._begin(row)
        return CommandResult(row, fresh, self.crawlers.note() if fresh else None)

    async def _reserve(
        self,
        request: RunRequest,
        request_id: str,
        body: StartRun,
        args: list[dict[str, str]] | None,
    ) -> tuple[RunRow, bool]:
        """Return the stored run, and whether this request created it.

        Raises ``DuplicateRequest``.
        """
        while True:
            known = await run_in_threadpool(self.runs.find_run, request_id)
            wanted = await self._completed(request, body, args, known)
            try:
                # Storing many tasks takes the database a long time.
                async with (
                    turn() if len(args or ()) > INLINE_TASKS_MAX else contextlib.nullcontext()
                ):
                    return await run_in_threadpool(
                        self.acceptance.reserve_run, wanted, request_id, args, caller_key()
                    )
            except DuplicateRequest:
                if (
                    known is not None
                    or await run_in_threadpool(self.runs.find_run, request_id) is None
                ):
                    raise  # without a run, the id belongs to another project
            # Meanwhile, another gateway has stored the same request, perhaps with another
            # catalogue. Try again, and this request becomes the repeat.

    async def _completed(
        self,
        request: RunRequest,
        body: StartRun,
        args: list[dict[str, str]] | None,
        known: RunRow | None,
    ) -> RunRequest:
        """Check the request and add the limits of its crawler.

        For a repeat, add the limits that were stored, because the catalogue may have changed since
        the first request. The token may have changed too, and its name replaces a missing
        ``requested_by``. A repeat with another token is still the same request.
        """
        if known is None:
            crawler = await self.crawlers.get(body.crawler)
            check_json_types(crawler, body)
            await run_in_threadpool(check_tasks, crawler, request.args, request.settings, args)
            return await run_in_threadpool(completed, request, crawler, self.versions)
        request = with_limits(request, mapping_of(known.request.get("limits")))
        stored = mapping_of(known.request)
        request = dataclasses.replace(
            request,
            pool=request.pool or _text(stored.get("pool")),
            sites=request.sites or stored.get("sites", []),
            version=request.version or _text(stored.get("version")),
            code=_text(stored.get("code")),
        )
        if request.requested_by is not None and request.requested_by == caller_name():
            request = dataclasses.replace(
                request, requested_by=_text(known.request.get("requested_by"))
            )
        return request

    async def _begin(self, row: RunRow) -> None:
        detail = (
            f"Run {row.run_id} is recorded and starts as soon as Temporal can be reached, without "
            "another request; "
            "sending this one again (a start: under the same Idempotency-Key) is safe."
        )
        with needing_temporal(detail, row.run_id):
            # Another gateway may also start it, or the run may end before this start reaches the
            # server.
            await self.workflows.start(
                begin_request(row), next_workflow_id(row), row.run_uid, repair=True
            )

    # --- stop -------------------------------------------------------------------------------------

    async def stop(self, run_id: int, body: StopRun) -> CommandResult[RunRow]:
        """Record the stop, then notify the run's workflow, or start a workflow that carries it out.

        A run can be stopped even if its row is unreadable.
        """
        try:
            before = await self.find(run_id)
        except RowUnreadable:
            before = None
        if before is not None and before.status.terminal:
            return CommandResult(
                before, fresh=False, note="The run had already ended; nothing was stopped."
            )
        request_id = body.request_id or uuid.uuid4().hex
        stop = StopRequest(request_id, body.requested_by, body.reason, body.force)
        intent = StopIntent(self.clock(), body.force, body.requested_by, body.reason)
        row = await run_in_threadpool(self.stops.record_stop, run_id, intent, request_id)
        if row.status.terminal:
            return CommandResult(
                row, fresh=False, note="The run had already ended; nothing was stopped."
            )
        fresh = before is None or before.stop is None or row.stop != before.stop
        later = (
            "The stop is recorded and is carried out as soon as Temporal can be reached, "
            "without another request."
        )
        return CommandResult(
            row,
            fresh,
            await notify(self.notify_stop(row, stop), f"the stop of run {run_id}", later),
        )

    async def notify_stop(self, row: RunRow, stop: StopRequest) -> None:
        """Send a recorded stop to the workflow of the run.

        If no workflow is open, start one, which reads the stop.
        """
        for candidate in workflow_ids(row):
            if await self.workflows.stop(candidate, stop, run_uid=uid_there(row, candidate)):
                return
        await self.take_over(row)

    async def take_over(self, row: RunRow) -> None:
        """Start a workflow for a live run that has none, unless the run has ended meanwhile."""
        now = await self.find(row.run_id)
        # If the run ends after this check, the workflow notices that, because with ``repair`` it
        # executes nothing again.
        if (
            not now.status.terminal
            and now.attempt == row.attempt
            and now.owner_run_id == row.owner_run_id
        ):
            await self.workflows.start(
                begin_request(now), next_workflow_id(now), now.run_uid, repair=True
            )

    # --- child tasks ------------------------------------------------------------------------------

    async def add_tasks(self, run_id: int, body: AddTasksBody, key: str | None) -> AddedTasks:
        """Add child tasks to a live run.

        Then make its workflow poll now, so that free slots get the tasks immediately.
        """
        row = await self.find(run_id)
        check_own(row.ref)
        request_id = _own_id(same_id(body.request_id, key))
        args = [texts(task.args) for task in body.tasks]
        crawler = await self.crawlers.get(row.crawler)
        check_json_types(crawler, body)
        own, settings = (texts(mapping_of(row.request.get(name))) for name in ("args", "settings"))
        await run_in_threadpool(check_tasks, crawler, own, settings, args)
        with mismatch("Idempotency-Key", run_id=run_id):
            async with turn() if len(args) > INLINE_TASKS_MAX else contextlib.nullcontext():
                added = await run_in_threadpool(self.additions.add_tasks, run_id, request_id, args)
        note = sentences(self.crawlers.note(), await self._wake(row))
        return AddedTasks(run_id=run_id, tasks=added, note=note)

    async def _wake(self, row: RunRow) -> str | None:
        """Make the run's workflow poll now.

        If that fails, return a sentence about when the tasks will be deployed.
        """
        try:
            for candidate in workflow_ids(row):
                if await self.workflows.poll_now(candidate):
                    return None
        except TemporalUnavailable as error:
            logger.warning(
                "the workflow of run %d has not been notified of added tasks yet: %s",
                row.run_id,
                error,
            )
        return "The tasks are recorded, and are deployed after the next poll of the run's workflow."

    # --- resume and poll --------------------------------------------------------------------------

    async def resume(
        self, run_id: int, body: ResumeRun, attempt: int | None = None
    ) -> CommandResult[RunRow]:
        """Record the next attempt of a run that has ended or has lost its workflow, then start a
        workflow for it.

        Raises ``NotInThisState`` if the run is no longer in the ``attempt`` that the caller saw.
        """
        row = await run_in_threadpool(undeleted, self.runs, run_id)
        if attempt not in (None, row.attempt):
            raise NotInThisState(
                f"run {run_id} is now in attempt {row.attempt}; read it again first"
            )
        if row.status is RunStatus.COMPLETED and not body.rerun:
            detail = f"run {run_id} is COMPLETED; send rerun: true to execute all of it again"
            raise Problem(409, "already_completed", detail, run_id=run_id)
        request = begin_request(
            row,
            rerun=body.rerun,
            requested_by=body.requested_by,
            poll_minutes=body.poll_minutes,
            version=body.version,
        )
        if request.version is not None:
            crawler = await self.crawlers.get(row.crawler)
            request = await run_in_threadpool(pinned, request, crawler, self.versions)
        with needing_temporal(f"run {run_id} was not resumed; send this again later.", run_id):
            workflow_id = await self._resume_id(row)
        row, fresh = await run_in_threadpool(
            self.acceptance.resume_run, request, workflow_id, row.attempt
        )
        if row.owner_run_id is None:
            await self._begin(row)
        return CommandResult(row, fresh)

    async def _resume_id(self, row: RunRow) -> str:
        """Return the workflow id for the next attempt.

        Raises ``Problem`` 409 if the run is live.
        """
        wanted = next_workflow_id(row)
        if row.owner_run_id is None:
            return wanted
        if not row.status.terminal:
            for candidate in workflow_ids(row):
                if await self.workflows.is_open(candidate):
                    what = f"run {row.run_id} is {row.status} and its workflow is working on it"
                    raise Problem(
                        409,
                        "not_in_this_state",
                        f"{what}; stop it or wait for its end",
                        run_id=row.run_id,
                    )
            return wanted
        former = row.owner_run_id if row.owner_workflow_id == wanted else None
        if former is not None and await self.workflows.is_open(wanted, former):
            # The run has its verdict, but the previous workflow is still exporting.
            return attempt_workflow_id(row.crawler, row.request_id, row.attempt + 1)
        return wanted

    async def delete(self, run_id: int, requested_by: str | None) -> CommandResult[RunRow]:
        """Record the deletion of an ended run's data, then start a workflow for it.

        A repeat returns its progress.
        """
        row, fresh = await run_in_threadpool(self.deletion.ask_deletion, run_id, requested_by)
        note = None
        if row.deletion_ended_at is None:
            note = await notify(self.workflows.delete_run(row.ref), f"the deletion of run {run_id}")
        return CommandResult(row, fresh, note)

    async def poll(self, run_id: int) -> CommandResult[RunRow]:
        """Make the workflow poll the cluster now."""
        row = await self.find(run_id)
        if row.status.terminal:
            raise Problem(
                409, "not_in_this_state", f"run {run_id} has ended as {row.status}", run_id=run_id
            )
        with needing_temporal("", run_id):
            for candidate in workflow_ids(row):
                if await self.workflows.poll_now(candidate):
                    return CommandResult(row)
        detail = f"run {run_id} has no open workflow that could poll; resume the run"
        raise Problem(409, "not_in_this_state", detail, run_id=run_id)


def check_json_types(crawler: CrawlerDefinition, body: StartRun | AddTasksBody) -> None:
    """Raise ``InvalidRequest`` if an argument that the crawler declares as text is a number or a
    boolean.
    """
    check_texts(crawler.args, body.args if isinstance(body, StartRun) else {})
    for n, task in enumerate(body.tasks or ()):
        check_texts(crawler.args, task.args, f"tasks[{n}].")


def _own_id(given: str | None) -> str:
    """Return the given id, or a new id for ``None``.

    An empty id stays empty and is refused later.
    """
    return uuid.uuid4().hex if given is None else given


def mapping_of(value: object) -> Mapping[str, Any]:
    """Return the value if it is an object, or else an empty object."""
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
