"""Commands on crawl managers: start, stop, pause, resume, set the cap and add jobs.

The order is the same as for runs: first the row is written, then a signal wakes the workflow. A
recorded command is carried out even if this process dies or Temporal is unavailable. The outbox
retry starts new managers and sends stops. The next cycle of the manager reads all other changes.
This process therefore remembers nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import pairwise
from typing import Any

from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.clock import Clock
from crawler_lifecycle.domain.bounds import refusal
from crawler_lifecycle.domain.crawlers.arguments import check_value
from crawler_lifecycle.domain.crawlers.crawler import (
    CrawlerDefinition,
    check_tasks,
    effective_settings,
    pinned,
    unknown_argument,
)
from crawler_lifecycle.domain.errors import InvalidRequest, TemporalUnavailable
from crawler_lifecycle.domain.projects import chosen
from crawler_lifecycle.domain.run import RunRequest, RunStatus, StopIntent, check_sizes
from crawler_lifecycle.domain.unknown import advise, suggest
from crawler_lifecycle.gateway.runs.commands import (
    LATER,
    CommandResult,
    Commands,
    check_foreign,
    existing,
    mismatch,
    needing_temporal,
    notify,
    sentences,
)
from crawler_lifecycle.gateway.runs.crawlers import Crawlers
from crawler_lifecycle.gateway.runs.requests import ResumeRun, texts
from crawler_lifecycle.gateway.sweep import Unsent
from crawler_lifecycle.temporal.client import Workflows
from crawler_lifecycle.web.problems import FieldError, Problem, unavailable

from ..activities.registered import NAME_MODULE, check_read
from ..domain.jobs import base_of, options_of
from ..domain.manager import BUILT_IN, NAME_MAX, Job, ManagerOrder
from ..ports import CODE_MANAGER, ManagerRow, NewManager, UserCodeRow
from ..store.managers import ManagerStore
from ..store.user_code import UserCodeStore
from .requests import (
    NAME_PATTERN,
    AddedJobs,
    AddJobs,
    ResumeManager,
    StartManager,
    StopManager,
    job_of,
)

NEXT_CYCLE = (
    "The change is recorded, but Temporal is down. The change takes effect within five "
    "minutes after Temporal is back."
)
TAKEN_UP = "The manager was not paused, but it had no workflow: a new workflow was started."
UNKNOWN = (
    "Temporal is down; within a minute after it is back, a manager without a workflow gets "
    "a workflow automatically."
)
NEXT_ATTEMPT = "The manager continues as its next attempt."
CUT_OFF = (
    "Its live runs are being stopped. A resume does not repeat their jobs, except with --redo: "
    "crawlctl manager resume {} --redo."
)
#: The number of runs that ``redo`` resumes at once.
REDONE_AT_ONCE = 10
#: The maximum number of managers of one status that the outbox retry reads. There are never more
#: open managers than this.
UNSENT_MAX = 100_000
#: Seconds between the tries of a resume while the workflow of the previous attempt is still open.
CLOSING_S = (0.1, 0.3, 1.0)
#: Seconds between two reads of a manager's row until the workflow has recorded the next attempt.
RECORDED_S = (0.05, 0.1, 0.2, 0.4, 0.8)
NO_WORKER = (
    "No user-code worker has registered yet, so the class is not checked. If it cannot be "
    "used, the manager's error will report this as soon as a worker has registered."
)


@dataclass(frozen=True)
class ManagerCommands:
    """The commands that start and change managers.

    The methods raise ``Problem`` or an error of the domain.
    """

    managers: ManagerStore
    user_code: UserCodeStore
    runs: Commands
    workflows: Workflows
    crawlers: Crawlers
    clock: Clock

    async def find(self, manager_id: int) -> ManagerRow:
        """Return the manager. Raises ``Problem`` 404."""
        return existing(
            "manager", manager_id, await run_in_threadpool(self.managers.get_manager, manager_id)
        )

    # --- start ------------------------------------------------------------------------------------

    async def start(self, body: StartManager, key: str | None) -> CommandResult[ManagerRow]:
        """Write the row of the manager, and then start its workflow.

        Name and flow id identify a manager. A repeated start finds the manager while it is live,
        and resumes it as its next attempt after its end. Without a flow id, a flow id is derived
        from ``key``, and a repeated start does not resume the manager after its end.
        """
        body.check()
        check_foreign("parent", body.parent)
        request_id = key if key is not None else uuid.uuid4().hex
        plan, note = await self.check_user_code(body, chosen(body.project))
        name = (
            body.name or body.crawler or (plan.name or _name_in(plan, body.argv) if plan else None)
        )
        if name is None and plan is None:
            detail = (
                "name: missing, and no user-code worker has registered the class yet; give a name, "
                "or send this again later"
            )
            raise unavailable("user_code_unknown", detail)
        if name is None:
            raise InvalidRequest(
                "name: missing, and the class has none; give a name, or the name in argv"
            )
        if not re.fullmatch(NAME_PATTERN, name):
            fix = (
                f"give a name of at most {NAME_MAX} letters, digits and _ . - in addition to "
                "the class"
            )
            raise refusal("name", name, fix)
        given = body.flow(_flow_of_program(plan, body.argv))
        flow_id = given or str(
            uuid.UUID(hashlib.sha256(f"{name}/{request_id}".encode()).hexdigest()[:32])
        )
        new = NewManager(
            name=name,
            flow_id=flow_id,
            plan=body.plan or BUILT_IN,
            options={"argv": body.command_line()},
            requested_by=body.requested_by,
            parent=body.parent,
            project=body.project,
            tags=body.tags,
            fresh=given is None,
        )
        with mismatch("Idempotency-Key" if new.fresh else "flow_id"):
            row, fresh = await run_in_threadpool(self.managers.reserve_manager, new)
        if row.status.terminal and new.fresh:
            return CommandResult(row, fresh=False)
        if row.status.terminal:
            return CommandResult(await self._resume(row), note=note)
        order = ManagerOrder(row.manager_id)
        begun = (
            self.notify(row)
            if row.owner_run_id
            else self.workflows.start_for(order, row.workflow_id)
        )
        note = sentences(note, await notify(begun, f"manager {row.manager_id}"))
        return CommandResult(row, fresh, note)

    async def check_user_code(
        self, body: StartManager, project: str
    ) -> tuple[UserCodeRow | None, str | None]:
        """Check that the requested manager could be started. Return the registered class, if any,
        and a note for the caller, if any. Raises ``Problem`` 422, or 503 while a worker is still
        reading the module.
        """
        rows = await run_in_threadpool(self.user_code.list_user_code)
        pool = options_of(body.command_line()).get("--pool")
        pools = await run_in_threadpool(self.managers.known_pools)
        pools.check(pool, project)
        if body.crawler is not None:
            crawler = await self.crawlers.get(body.crawler)
            if body.options.version is not None:
                asked = RunRequest(crawler.name, version=body.options.version)
                await run_in_threadpool(pinned, asked, crawler, self.runs.versions)
            if not pool:
                pools.check(crawler.pool, project)
            # Jobs may add required arguments later, so only the given names and values are checked.
            for given, value in texts(body.options.args).items():
                check_argument(crawler, "options.args", given, value)
            for given in body.options.max_per_key:
                check_argument(crawler, "options.max_per_key", given)
            effective_settings(crawler, body.options.settings)
            return None, sentences(self.crawlers.note(), None if rows else NO_WORKER)
        module = str(body.plan).partition(":")[0]
        # Workers may have different versions of the class. The options must be valid for one of
        # them.
        codes = [row for row in rows if row.kind == CODE_MANAGER and row.plan == body.plan]
        codes = codes or [row for row in rows if row.plan == module and row.error is not None]
        found = next(iter(codes), None)
        if found is None:
            check_read(rows, module if ":" in str(body.plan) else None)
        if found is None and any(row.heard(self.clock()) for row in rows):
            plans = {row.plan for row in rows if row.kind == CODE_MANAGER}
            advice = suggest(body.plan, sorted(plans))
            error = FieldError(
                field="plan", value=repr(body.plan)[:120], message=f"unknown class; {advice}"
            )
            detail = f"plan: {body.plan!r} is unknown; {advice}; {NAME_MODULE}"
            raise Problem(422, "unknown_class", detail, errors=[error])
        if found is None and ":" not in str(body.plan):
            detail = (
                "no user-code worker has registered its classes yet; give module:Class, or send "
                "this again later"
            )
            raise unavailable("user_code_unknown", f"plan: {body.plan!r}: {detail}")
        if found is not None and found.error is not None:
            raise Problem(
                422, "user_code_unusable", f"plan: {body.plan!r} cannot be used: {found.error}"
            )
        if found is None:
            return None, NO_WORKER
        for n, code in enumerate(codes, 1):
            try:
                check_options(code, body.argv)
                return code, None
            except InvalidRequest:
                if n == len(codes):
                    raise
        return found, None

    async def _resume(self, row: ManagerRow) -> ManagerRow:
        """Start the workflow of the next attempt, which records it.

        Return its row, or the previous row if the start takes a long time.

        Raises ``Problem`` 503 while Temporal is unavailable, because nothing has recorded the
        resume. Raises 409 while the workflow of the previous attempt is still open.
        """
        for pause_s in CLOSING_S:
            with needing_temporal(
                f"manager {row.manager_id} has ended and was not resumed; send this again later."
            ):
                chain = await self.workflows.start_for(
                    ManagerOrder(row.manager_id), row.workflow_id
                )
            if chain != row.owner_run_id:
                return await self._next_attempt(row)
            await asyncio.sleep(pause_s)
        raise _not_now(row, "its workflow is about to close; send this again in a moment")

    async def _next_attempt(self, row: ManagerRow) -> ManagerRow:
        """Wait for the next attempt, so that a caller who reads the row after this answer does not
        see the former end.
        """
        for pause_s in RECORDED_S:
            await asyncio.sleep(pause_s)
            if (now := await self.find(row.manager_id)).attempt != row.attempt:
                return now
        return row

    async def notify(self, row: ManagerRow) -> bool:
        """Wake the workflow of a manager after a change to its row, or start a workflow if none is
        open.

        Return whether a workflow was started. Raises ``TemporalUnavailable``.
        """
        if (
            await self.workflows.wake(row.workflow_id)
            or (await self.find(row.manager_id)).status.terminal
        ):
            return False
        await self.workflows.start_for(ManagerOrder(row.manager_id), row.workflow_id)
        return True

    def unsent(self, due: datetime) -> Iterator[Unsent]:
        """Yield the starts and stops that were accepted before ``due`` and did not reach Temporal.
        This blocks.
        """
        for status, what in ((RunStatus.INITIALIZING, "start"), (RunStatus.STOPPING, "stop")):
            for row in self.managers.newest(limit=UNSENT_MAX, states=[status]):
                if row.updated_at <= due and (what == "stop" or row.owner_run_id is None):
                    yield f"the {what} of manager {row.manager_id}", partial(self.notify, row)

    async def _notified(self, row: ManagerRow, later: str = LATER) -> str | None:
        return await notify(self.notify(row), f"manager {row.manager_id}", later)

    # --- stop and control
    # ---------------------------------------------------------------------------

    async def stop(self, manager_id: int, body: StopManager) -> CommandResult[ManagerRow]:
        """Record the stop, and then wake the workflow."""
        body.check()
        intent = StopIntent(self.clock(), body.force, body.requested_by, body.reason)
        before = await self.find(manager_id)
        row = await run_in_threadpool(
            self.managers.record_manager_stop, manager_id, intent, body.leave
        )
        if row.status.terminal:
            return CommandResult(
                row, fresh=False, note="The manager had already ended; nothing was stopped."
            )
        fresh = (before.stop, before.leave) != (row.stop, row.leave)
        cut_off = CUT_OFF.format(manager_id) if row.counts.live and not row.leave else None
        return CommandResult(row, fresh, sentences(await self._notified(row), cut_off))

    async def pause(self, manager_id: int) -> CommandResult[ManagerRow]:
        """Start no more jobs. Executing runs continue."""
        row = await self._live(manager_id)
        if row.paused:
            return CommandResult(row, fresh=False)
        return await self._steer(manager_id, paused=True)

    async def resume(
        self, manager_id: int, body: ResumeManager | None = None
    ) -> CommandResult[ManagerRow]:
        """Continue a paused manager, or a manager without a workflow. An ended manager continues as
        its next attempt. If ``redo`` is true, the runs that a stop of the manager ended are resumed
        first. A repeat resumes the remaining runs.
        """
        row = await self.find(manager_id)
        if body is not None and body.redo and row.status is not RunStatus.STOPPING:
            await self._redo(manager_id)
        if row.status.terminal:
            return CommandResult(await self._resume(row), note=NEXT_ATTEMPT)
        if row.status is RunStatus.STOPPING:
            raise _not_now(row, "it is being stopped; resume it when it has ended")
        if row.paused:
            return await self._steer(manager_id, paused=False)
        try:
            begun = await self.notify(row)
        except TemporalUnavailable:
            return CommandResult(row, fresh=False, note=f"The manager was not paused. {UNKNOWN}")
        return CommandResult(row, begun, TAKEN_UP if begun else "The manager was not paused.")

    async def _redo(self, manager_id: int) -> None:
        last = 0
        while runs := await run_in_threadpool(
            self.managers.cut_off_runs, manager_id, last, REDONE_AT_ONCE
        ):
            await asyncio.gather(
                *(self.runs.resume(run.run_id, ResumeRun(), run.attempt) for run in runs)
            )
            last = runs[-1].run_id

    async def cap(self, manager_id: int, cap: int) -> CommandResult[ManagerRow]:
        """Set the maximum number of live jobs. With 0, the class sets the number."""
        row = await self._live(manager_id)
        if (row.cap or 0) == cap:
            return CommandResult(row, fresh=False)
        return await self._steer(manager_id, cap=cap)

    async def _live(self, manager_id: int) -> ManagerRow:
        row = await self.find(manager_id)
        if row.status.terminal or row.status is RunStatus.STOPPING:
            raise _not_now(row, "it can no longer be paused or capped")
        return row

    async def _steer(
        self, manager_id: int, *, paused: bool | None = None, cap: int | None = None
    ) -> CommandResult[ManagerRow]:
        row = await run_in_threadpool(
            self.managers.steer_manager, manager_id, paused=paused, cap=cap
        )
        return CommandResult(row, note=await self._notified(row, NEXT_CYCLE))

    # --- jobs that users add ----------------------------------------------------------------------

    async def add_jobs(self, manager_id: int, body: AddJobs, key: str | None) -> AddedJobs:
        """Add a page of jobs. A repeat with the same key adds nothing."""
        body.check()
        row = await self.find(manager_id)
        jobs = await self.checked_jobs(row.plan, row.options, row.project, body)
        with mismatch("Idempotency-Key"):
            new = await run_in_threadpool(
                self.managers.add_jobs, manager_id, jobs, key, seal=body.seal
            )
        note = await self._notified(row, NEXT_CYCLE)
        return AddedJobs(
            manager_id=manager_id,
            jobs=len(jobs),
            new=new,
            sealed=row.sealed or body.seal,
            note=note,
        )

    async def checked_jobs(
        self, plan: str, options: Mapping[str, Any], project: str, body: AddJobs
    ) -> list[Job]:
        """Return the jobs for a manager with this class and these options.

        Raises ``InvalidRequest``.
        """
        built_in = plan == BUILT_IN
        base = base_of(plan, options)
        jobs = [job_of(n, given, base, built_in=built_in) for n, given in enumerate(body.jobs)]
        crawler = await self.crawlers.get(base.spider) if built_in and jobs else None
        await run_in_threadpool(self._check_jobs, project, crawler, jobs)
        return jobs

    def _check_jobs(
        self, project: str, crawler: CrawlerDefinition | None, jobs: Sequence[Job]
    ) -> None:
        """Raise ``InvalidRequest`` with the first job that its pool or crawler would refuse."""
        pools = self.managers.known_pools()
        for n, job in enumerate(jobs):
            try:
                pools.check(job.pool or (crawler.pool if crawler else None), project)
                if crawler is not None:
                    check_tasks(crawler, job.spider_args, job.job_settings, None)
                    check_sizes(job.spider_args, job.job_settings)
            except InvalidRequest as error:
                raise InvalidRequest(f"jobs[{n}].{error}") from None


def _name_in(plan: UserCodeRow, argv: Sequence[str]) -> str | None:
    """Return the name in a command line. A class without a name has an argument ``name`` in its
    options.
    """
    arguments = [option["name"] for option in plan.options if not option["name"].startswith("-")]
    if "name" not in arguments:
        return None
    flags = {
        text
        for option in plan.options
        if option.get("type") == "flag"
        for text in (option["name"], *option.get("aliases", ()))
    }
    given = []
    of_option = False
    for word in argv:
        is_option = word.startswith("-")
        if not is_option and not of_option:
            given.append(word)
        of_option = is_option and word not in flags and "=" not in word
    return dict(zip(arguments, given, strict=False)).get("name")


def _flow_of_program(plan: UserCodeRow | None, argv: Sequence[str]) -> str | None:
    """Return the flow id that the class sets for the program that ``argv`` selects, if any."""
    words = {**dict(pairwise(argv)), **options_of(argv)}
    program = words.get("--program", words.get("-g"))
    known = [option.get("flow_ids") for option in (plan.options if plan else ())]
    return next(
        (
            str(flow_ids[program])
            for flow_ids in known
            if isinstance(flow_ids, dict) and program in flow_ids
        ),
        None,
    )


def check_options(plan: UserCodeRow, argv: Sequence[str]) -> None:
    """Raise ``InvalidRequest`` for an option that the class does not have. The error contains the
    word.
    """
    names = [
        text for option in plan.options for text in (option["name"], *option.get("aliases", ()))
    ]
    known = sorted(name for name in names if name.startswith("--"))
    for n, word in enumerate(argv):
        name = word.partition("=")[0]
        if name == "--":
            return
        # The class also accepts shortened options, except for --flow-id, which identifies the
        # manager.
        taken = name in known or (
            name not in "--flow-id" and any(option.startswith(name) for option in known)
        )
        if name.startswith("--") and not taken:
            advice = advise(name, known)
            raise refusal(f"argv[{n}]", name, f"{plan.plan} does not have it; {advice}")


def check_argument(
    crawler: CrawlerDefinition, where: str, name: str, value: str | None = None
) -> None:
    """Raise ``InvalidRequest`` for an argument that the crawler does not have, or for an invalid
    value of an argument.
    """
    if name not in crawler.args:
        raise InvalidRequest(f"{where}.{name}: {unknown_argument(crawler, name)}")
    if value is not None:
        check_value(f"{where}.{name}", crawler.args[name], value)


def _not_now(row: ManagerRow, why: str) -> Problem:
    return Problem(409, "not_in_this_state", f"manager {row.manager_id} is {row.status}; {why}")
