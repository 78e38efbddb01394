"""The leases of tasks. One transaction answers all calls that arrived while the last one ran."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated

from fastapi import FastAPI, Path, Query
from pydantic import AfterValidator, Field
from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.domain.bounds import INT_MAX
from crawler_lifecycle.domain.errors import StoreRefused
from crawler_lifecycle.domain.hosts import HOST_MAX, host_of
from crawler_lifecycle.gateway.access.operations import caller_run
from crawler_lifecycle.gateway.api.paging import Id
from crawler_lifecycle.gateway.parts import Gateway
from crawler_lifecycle.gateway.runs.requests import BodyOf, StrictBody
from crawler_lifecycle.gateway.runs.routes import no_task
from crawler_lifecycle.web.problems import Problem

from ..domain.closing import Block
from ..domain.lanes import LANES_MAX
from ..store.leases import Answers, LeaseCall, LeaseStore, SiteAnswer, SiteReport
from ..store.minutes import OTHERS
from .closings import ClosingWatch

#: The maximum numbers of sites in one call, and of lanes for which a task asks at one site.
SITES_MAX = 100
WANTED_MAX = LANES_MAX
#: The maximum number of responses that one call reports for one status.
COUNT_MAX = 1_000_000
#: The maximum number of proxies in one report. Crawlers count the others as ``others``.
PROXIES_MAX = 21
PROXY_LENGTH_MAX = 255
#: The maximum number of calls that wait for the database.
CALLS_MAX = 1000
#: The maximum number of processes whose last call is remembered.
COUNTED_MAX = 20_000
#: Seconds for which a call that only renews leases waits for others, because one transaction for
#: many calls costs much less.
PATIENCE_S = 0.5


# A crawler whose call is refused has no leases, and older ones then keep no limits. Therefore, no
# response of a site may make a report wrong.
def _known_statuses(counts: dict[str, int]) -> dict[str, int]:
    """Count statuses that no response should have as ``error``."""
    known = Counter[str]()
    for status, count in counts.items():
        known[status if re.fullmatch("[1-5][0-9]{2}", status) else "error"] += count
    return dict(known)


def _known_proxies(proxies: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """Count proxies whose names are not a host and a port as ``others``."""
    known: dict[str, Counter[str]] = {}
    for proxy, counts in proxies.items():
        is_known = len(proxy) <= PROXY_LENGTH_MAX and re.fullmatch("[!-?A-~]+", proxy)
        known.setdefault(proxy if is_known else OTHERS, Counter()).update(counts)
    return {proxy: dict(counts) for proxy, counts in known.items()}


_Lane = Annotated[int, Field(ge=0, lt=1000)]
_Count = Annotated[int, Field(ge=0, le=COUNT_MAX)]
_Statuses = Annotated[dict[str, _Count], AfterValidator(_known_statuses)]
_Host = Annotated[str, Field(min_length=1, max_length=HOST_MAX)]


class RefusedRequest(StrictBody):
    """A response with which the site refused a request."""

    status: int = Field(description="any other than 400 to 599 counts as 429")
    retry_after_s: float | None = Field(
        default=None,
        ge=0,
        description="the seconds of the header `Retry-After`; more than a day count as a day",
    )


class SiteDemand(StrictBody):
    """The demand of a task at one host, and its report since the last call."""

    wanted: int = Field(ge=0, le=WANTED_MAX, description="how many lanes the task can use now")
    kept: list[_Lane] = Field(
        default_factory=list,
        max_length=1000,
        description="the lanes that the task keeps; it returns all others",
    )
    block: RefusedRequest | None = Field(
        default=None, description="the site refused a request, so it closes for all tasks"
    )
    passed: bool = Field(default=False, description="true if the site answered a request")
    statuses: _Statuses = Field(
        default_factory=dict,
        description="the number of responses by status; `error` counts requests without one, and "
        "statuses other than 100 to 599",
    )
    refused: _Count = Field(
        default=0, description="the number of requests that robots.txt did not allow"
    )
    proxies: Annotated[dict[str, _Statuses], AfterValidator(_known_proxies)] = Field(
        default_factory=dict,
        max_length=PROXIES_MAX,
        description="the part of `statuses` that came through each proxy, such as `proxy:3128`; "
        "a name that is not a host and a port in ASCII counts as `others`",
    )

    def to_report(self, host: str) -> SiteReport:
        block = None
        if self.block is not None:
            status = self.block.status if 400 <= self.block.status < 600 else 429
            block = Block.of(status, self.block.retry_after_s)
        statuses = {status: count for status, count in self.statuses.items() if count}
        return SiteReport(
            host, self.wanted, self.kept, block, self.passed, statuses, self.refused, self.proxies
        )


class LeaseDemands(StrictBody):
    """The hosts that a task visits."""

    sites: dict[_Host, SiteDemand] = Field(max_length=SITES_MAX)


class LeasedLane(StrictBody):
    """A lane that the task holds."""

    lane: int
    first_s: float = Field(description="seconds until a request may begin")
    every_s: float = Field(description="seconds between the starts of two requests")
    until_s: float = Field(description="seconds until the lease ends unless it is renewed")
    leaves: bool = Field(
        description="true if no further request may begin; return the lane after the present one"
    )
    leaves_s: float | None = Field(
        description="seconds until `leaves` is true; null if no task is waiting for the lane"
    )


class SiteLease(StrictBody):
    """The lanes of the task at one host."""

    site: str
    free: bool = Field(description="true if requests need no lane")
    exclusive: bool = Field(description="true if a lane is busy until its request has ended")
    probe: bool = Field(description="true if one request decides whether the site opens again")
    closed_s: float = Field(description="seconds for which no request may begin")
    ask_s: float = Field(description="seconds after which to ask again, at the latest")
    now: float = Field(description="the time of the answer, by the clock of the database")
    lanes: list[LeasedLane]


class Leases(StrictBody):
    """The leases of a task, by host."""

    sites: dict[str, SiteLease]


class ClosedSites(StrictBody):
    """The closed sites at which a task has lanes."""

    sites: list[str] = Field(description="begin no further request there, and ask for new leases")


class LeaseDesk:
    """Answers the calls of tasks. Only the event loop uses it."""

    def __init__(self, store: LeaseStore) -> None:
        self._store = store
        self._waiting: list[tuple[LeaseCall, asyncio.Future[Answers]]] = []
        self._worker: asyncio.Task[None] | None = None
        self._urgent = asyncio.Event()
        self._counted: dict[tuple[str, str], int] = {}
        """The number of the last call of each process whose reports were counted."""
        self.reported = asyncio.Event()
        """Set when a task has reported a refused request."""

    async def answer(self, call: LeaseCall) -> Mapping[str, SiteAnswer]:
        """Return the answers by host.

        Raises ``Problem`` 409 if the task does not execute any more, 503 if too many calls are
        waiting, and ``StoreUnavailable``.
        """
        if len(self._waiting) >= CALLS_MAX:
            detail = f"{CALLS_MAX} lease calls are waiting; try again in a moment"
            raise Problem(503, "overloaded", detail, headers={"Retry-After": "1"})
        future: asyncio.Future[Answers] = asyncio.get_running_loop().create_future()
        self._waiting.append((call, future))
        if not call.only_renews:
            self._urgent.set()
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())
        answers = await future
        if answers is None:
            raise not_executing(call)
        return answers

    async def _work(self) -> None:
        try:
            while self._waiting:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._urgent.wait(), PATIENCE_S)
                self._urgent.clear()
                await self._answer_batch()
        finally:
            self._worker = None

    async def _answer_batch(self) -> None:
        """Answer all calls that are waiting. A second call of a process waits for the next batch,
        because its lanes have the same holders. The reports of a repeated call are not counted
        again.
        """
        batch: dict[tuple[str, str], tuple[LeaseCall, asyncio.Future[Answers]]] = {}
        rest = []
        for call, future in self._waiting:
            caller = (call.task, call.process)
            if caller in batch:
                rest.append((call, future))
            elif not future.done():
                repeated = call.number is not None and self._counted.get(caller) == call.number
                batch[caller] = call.demand if repeated else call, future
        self._waiting = rest
        if not all(call.only_renews for call, _ in rest):
            self._urgent.set()
        calls = [call for call, _ in batch.values()]
        answers = await run_in_threadpool(self._answers, calls)
        if any(report.block for call in calls for report in call.reports.values()):
            self.reported.set()
        for (caller, (call, future)), found in zip(batch.items(), answers, strict=True):
            if call.number is not None and not isinstance(found, Exception):
                self._counted.pop(caller, None)
                self._counted[caller] = call.number
            if future.done():
                continue
            if isinstance(found, Exception):
                future.set_exception(found)
            else:
                future.set_result(found)

        for caller in [*self._counted][: max(0, len(self._counted) - COUNTED_MAX)]:
            del self._counted[caller]

    def _answers(self, calls: Sequence[LeaseCall]) -> list[Answers | Exception]:
        """Return the answer to each call, or its error.

        A call that the database refuses must not fail the others, so they are divided until it is
        alone.
        """
        try:
            return [*self._store.answer(calls)]
        except Exception as error:
            if not isinstance(error, StoreRefused) or len(calls) == 1:
                return [error] * len(calls)
        half = len(calls) // 2
        return [*self._answers(calls[:half]), *self._answers(calls[half:])]


def not_executing(call: LeaseCall) -> Problem:
    """Return the error for a task that does not execute any more."""
    detail = (
        f"task {call.index} of attempt {call.attempt} of run {call.run_id} is not running; it "
        "gets no leases"
    )
    return Problem(409, "not_in_this_state", detail, run_id=call.run_id)


def add_leases(app: FastAPI, gateway: Gateway) -> None:
    """Add the route by which tasks lease requests to sites."""
    desk = LeaseDesk(LeaseStore(gateway.store.database))
    watch = ClosingWatch(gateway.store.database, desk.reported)
    gateway.leaving.append(watch.close)
    tasks = gateway.store.tasks

    async def uid_of(run_id: int, index: int, attempt: int) -> str | None:
        """Return the uid of the run whose crawler calls; ``None`` if a person does."""
        run = caller_run()
        if run is not None:
            return run.uid
        if not await run_in_threadpool(tasks.recorded_tasks, [(run_id, index, attempt)]):
            raise no_task(run_id, index, attempt)
        return None

    @app.post("/v1/runs/{run_id}/tasks/{index}/attempts/{attempt}/leases")
    async def lease_sites(
        run_id: Id,
        index: Annotated[int, Path(ge=0, le=INT_MAX)],
        attempt: Annotated[int, Path(ge=1, le=INT_MAX)],
        body: BodyOf[LeaseDemands],
        process: Annotated[
            str,
            Query(
                pattern="^[0-9A-Za-z_-]{0,32}$",
                description="a name for the process, if several processes of the task ask",
            ),
        ] = "",
        call: Annotated[
            int | None,
            Query(
                ge=0,
                le=INT_MAX,
                description="the number of the call; a process that repeats a call because it got "
                "no answer uses the same one, and its reports count once",
            ),
        ] = None,
    ) -> Leases:
        """Lease lanes of sites, renew them and return them.

        The crawler of a task calls this with the token in `CRAWL_LEASES_TOKEN`. All tasks together
        keep the limits of each site, and a refused request closes the site for all of them.
        """
        reports = {host: demand.to_report(_host(host)) for host, demand in body.sites.items()}
        uid = await uid_of(run_id, index, attempt)
        answers = await desk.answer(LeaseCall(run_id, uid, index, attempt, reports, process, call))
        return Leases(sites={host: _lease(answer) for host, answer in answers.items()})

    @app.get("/v1/runs/{run_id}/tasks/{index}/attempts/{attempt}/leases/closings")
    async def wait_for_closings(
        run_id: Id,
        index: Annotated[int, Path(ge=0, le=INT_MAX)],
        attempt: Annotated[int, Path(ge=1, le=INT_MAX)],
    ) -> ClosedSites:
        """Wait until a site closes at which the task has lanes, for up to 50 s.

        The crawler of a task calls this with the token in `CRAWL_LEASES_TOKEN`, so that it need not
        wait for the next renewal of its leases.
        """
        uid = await uid_of(run_id, index, attempt)
        task = LeaseCall(run_id, uid, index, attempt, {})
        return ClosedSites(sites=await watch.closed_sites(task.task))


@functools.lru_cache(20_000)
def _host(given: str) -> str:
    return host_of(given, "sites")


def _lease(answer: SiteAnswer) -> SiteLease:
    lanes = [
        LeasedLane(
            lane=lease.lane,
            first_s=timetable.first_s,
            every_s=timetable.every_s,
            until_s=lease.until - answer.now,
            leaves=lease.leaves,
            leaves_s=leaves_s,
        )
        for lease, timetable, leaves_s in answer.lanes
    ]
    return SiteLease(
        site=answer.site,
        free=answer.free,
        exclusive=answer.exclusive,
        probe=answer.probe,
        closed_s=answer.closed_s,
        ask_s=answer.ask_s,
        now=answer.now,
        lanes=lanes,
    )
