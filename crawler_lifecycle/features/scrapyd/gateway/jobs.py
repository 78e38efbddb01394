"""The calls of scrapyd's API: one project, the crawlers of the catalogue as spiders, and runs as
jobs.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.domain.bounds import travels
from crawler_lifecycle.domain.names import REQUEST_ID_MAX
from crawler_lifecycle.domain.run import RunStatus, Trigger
from crawler_lifecycle.gateway.access.operations import signed
from crawler_lifecycle.gateway.access.recorder import present_call
from crawler_lifecycle.gateway.runs.commands import Commands
from crawler_lifecycle.gateway.runs.crawlers import Crawlers
from crawler_lifecycle.gateway.runs.requests import StartRun, StopRun
from crawler_lifecycle.ports.runs import RunRow
from crawler_lifecycle.store.runs.reads import RunReader
from crawler_lifecycle.web.problems import Problem

from .forms import Form, refused, shown
from .projects import Projects, is_project

Answer = dict[str, Any]

#: The maximum number of jobs in each list: of live jobs, and of the newest ended ones (as scrapyd's
#: ``finished_to_keep``).
LIVE_MAX = 1000
FINISHED_MAX = 100
#: The highest number up to which ``daemonstatus`` counts.
COUNTED_MAX = 10_000
#: The state of a job for each status of its run.
STATES: Mapping[RunStatus, str] = {
    RunStatus.INITIALIZING: "pending",
    RunStatus.PROCESSING: "running",
    RunStatus.STOPPING: "running",
    RunStatus.COMPLETED: "finished",
    RunStatus.FAILED: "finished",
}
_SIGNALS = {**dict.fromkeys(("INT", "TERM", "HUP", "2", "15", "1"), False), "KILL": True, "9": True}
#: Scrapyd's names for our fields.
_FIELDS = {"request_id": "jobid", "crawler": "spider"}


@dataclass(frozen=True)
class Jobs:
    """Answers each call, without ``status`` and ``node_name``.

    Raises ``Problem`` or an error of the domain.
    """

    projects: Projects
    commands: Commands
    crawlers: Crawlers
    runs: RunReader

    # --- projects, versions and spiders -----------------------------------------------------------

    async def daemonstatus(self, form: Form) -> Answer:
        """Return the number of jobs in each state.

        Finished jobs are counted only up to the number that a list shows.
        """

        def count(state: str, most: int) -> int:
            return self.runs.count_runs(_statuses(state), most)

        most = {"pending": COUNTED_MAX, "running": COUNTED_MAX, "finished": FINISHED_MAX}
        return {state: await run_in_threadpool(count, state, most[state]) for state in most}

    async def listprojects(self, form: Form) -> Answer:
        """Return all projects."""
        return {"projects": await self.projects.names()}

    async def listversions(self, form: Form) -> Answer:
        """Return the versions of a project, the current one last."""
        return {"versions": await self.projects.versions(form.need("project"))}

    async def listspiders(self, form: Form) -> Answer:
        """Return the spiders of a version of a project, by default of the current one."""
        project = form.need("project")
        return {"spiders": await self.projects.spiders(project, form.get("_version"))}

    # --- jobs -------------------------------------------------------------------------------------

    async def schedule(self, form: Form) -> Answer:
        """Start a run with the id of the job. A repeat finds the run and starts nothing."""
        project = form.need("project")
        spider = form.need("spider")
        version = form.get("_version")
        found = await self.projects.find(project, version)
        body = StartRun(
            crawler=await self.projects.crawler(project, spider, found),
            version=found.version if version and found is not None else None,
            trigger=Trigger.API,
            request_id=form.get("jobid"),
            priority=min(5, max(1, 3 - round(form.number("priority")))),
            settings=dict(_setting(text) for text in form.all("setting")),
        )
        jobid = body.request_id if body.request_id is not None else uuid.uuid4().hex
        body = signed(body.model_copy(update={"request_id": jobid, "args": form.rest()}))
        try:
            done = await self.commands.start(body, None)
        except Problem as problem:
            if problem.code == "unknown_crawler":
                problem.detail = (
                    f"spider {shown(body.crawler)} not found; {problem.detail.partition('; ')[2]}"
                )
            if problem.code == "idempotency_mismatch":
                problem.detail = (
                    f"jobid: {shown(jobid)} is already used by another request; give another one"
                )
            # A recorded run will start without another request. If the client got an error, it
            # might repeat the request with another id.
            if problem.code != "temporal_unavailable" or problem.run_id is None:
                raise
            present_call().about.append(("run", str(problem.run_id), None, True))
            return {"jobid": jobid}
        present_call().about.append(("run", str(done.row.run_id), None, True))
        if not done.fresh and done.row.status.terminal:
            used = f"run {done.row.run_id} used it and is {done.row.status}"
            raise refused(f"jobid: {shown(jobid)} is already used: {used}; give another one")
        return {"jobid": jobid}

    async def cancel(self, form: Form) -> Answer:
        """Stop the run of a job, by force with the signal ``KILL``.

        Return its previous state, or ``None`` if it has ended.
        """
        await self.projects.check(form.need("project"))
        job = form.need("job")
        signal = form.get("signal") or "INT"
        force = _SIGNALS.get(signal.upper().removeprefix("SIG"))
        if force is None:
            raise refused(
                f"signal: {shown(signal)} is not allowed; give INT for a graceful stop, or KILL"
            )
        row = await self._find(job)
        if row is not None:
            present_call().about.append(("run", str(row.run_id), None, True))
        if row is None or row.status.terminal:
            return {"prevstate": None}
        done = await self.commands.stop(row.run_id, signed(StopRun(force=force)))
        return {"prevstate": None if done.row.status.terminal else STATES[row.status]}

    async def status(self, form: Form) -> Answer:
        """Return the state of one job."""
        job = form.need("job")
        await self.projects.check(form.get("project"))
        row = await self._find(job)
        return {"currstate": None if row is None else STATES[row.status]}

    async def listjobs(self, form: Form) -> Answer:
        """Return the newest jobs, newest first."""
        project = form.get("project")
        await self.projects.check(project)
        known = await self.crawlers.all()
        # In this order, a run that ends between the calls is in both lists. In the other order, it
        # might be in neither.
        live = await run_in_threadpool(self._listed, ("pending", "running"), LIVE_MAX)
        ended = await run_in_threadpool(self._listed, ("finished",), FINISHED_MAX)
        over = {row.run_id for row in ended}
        answer: dict[str, list[Answer]] = {"pending": [], "running": [], "finished": []}
        for row in (*(row for row in live if row.run_id not in over), *ended):
            place = self.projects.place_of(known, row)
            if project is None or is_project(place[0], project):
                state = STATES[row.status]
                answer[state].append(_waits(place, row) if state == "pending" else _ran(place, row))
        return answer

    async def run_of(self, project: str, spider: str, job: str) -> RunRow:
        """Return the run of a job. Raises ``Problem`` 404."""
        row = await self._find(job)
        place = row and self.projects.place_of(await self.crawlers.all(), row)
        if row is None or not place or not is_project(place[0], project) or place[1] != spider:
            what = f"project {shown(project)} has no job {shown(job)} of spider {shown(spider)}"
            raise Problem(
                404,
                "log_not_found",
                f"{what}; listjobs.json lists the newest jobs with their log_url",
            )
        return row

    def _listed(self, states: tuple[str, ...], most: int) -> list[RunRow]:
        statuses = [status for state in states for status in _statuses(state)]
        return [
            row for row in self.runs.list_runs(status=statuses, limit=most) if row.status in STATES
        ]

    async def _find(self, job: str) -> RunRow | None:
        if not travels(job, REQUEST_ID_MAX):
            return None  # no run has such an id, and some databases refuse it
        return await run_in_threadpool(self.runs.find_run, job)


def _waits(place: tuple[str, str], row: RunRow) -> Answer:
    given = {name: row.request.get(name) or {} for name in ("settings", "args")}
    return {**_job(place, row), "version": row.request.get("version"), **given}


def _ran(place: tuple[str, str], row: RunRow) -> Answer:
    began = {"start_time": _time(row.started_at or row.created_at)}
    more = (
        {"end_time": _time(row.ended_at or row.updated_at)}
        if row.status.terminal
        else {"pid": None}
    )
    log = "/".join(quote(part, safe="") for part in (*place, row.request_id))
    return {**_job(place, row), **began, **more, "log_url": f"/logs/{log}.log", "items_url": None}


def _job(place: tuple[str, str], row: RunRow) -> Answer:
    return {"id": row.request_id, "project": place[0], "spider": place[1]}


def in_its_words(detail: str) -> str:
    """Replace the field name at the beginning of an error text with its name in scrapyd's API."""
    field, colon, rest = detail.partition(": ")
    return f"{_FIELDS.get(field, field)}{colon}{rest}"


def _statuses(state: str) -> list[RunStatus]:
    return [status for status, name in STATES.items() if name == state]


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise refused(f"setting: {shown(text)} has no '='; send NAME=VALUE")
    return name, value


def _time(moment: datetime) -> str:
    """Return a time as scrapyd writes it: in UTC but without a zone, and with the microseconds that
    its clients need.
    """
    return moment.replace(tzinfo=None).isoformat(" ", "microseconds")
