"""The routes about the files with the rules of sites."""

from __future__ import annotations

import base64
from dataclasses import asdict
from typing import Annotated

from fastapi import FastAPI, Path
from pydantic import Base64Bytes, Field

from crawler_lifecycle.domain.bounds import INT_MAX
from crawler_lifecycle.gateway.access.operations import caller_run
from crawler_lifecycle.gateway.api.paging import Id
from crawler_lifecycle.gateway.parts import Gateway
from crawler_lifecycle.gateway.runs.requests import BodyOf, StrictBody
from crawler_lifecycle.gateway.runs.routes import no_task

from ..domain.robots import FILE_MAX, ORIGIN_MAX, POLICY_MAX
from ..store.leases import LeaseCall
from ..store.robots import FetchedFile, RobotsAnswer, RobotsStore
from .leases import not_executing

_BASE64_MAX = 4 * (FILE_MAX // 3 + 1)


class SiteFile(StrictBody):
    """The response to a request for a file."""

    status: int | None = Field(
        default=None, ge=100, le=599, description="null if the site did not answer"
    )
    body: Annotated[Base64Bytes, Field(max_length=_BASE64_MAX)] = Field(
        default=b"", description="the first 512 KiB, in base64"
    )

    def to_file(self) -> FetchedFile:
        return FetchedFile(self.status, self.body)


class TdmHeaders(StrictBody):
    """The headers of a response with ``tdm-reservation: 1``."""

    policy: str | None = Field(default=None, max_length=POLICY_MAX, description="`tdm-policy`")


class RobotsCall(StrictBody):
    """A question about the robots.txt of an origin, or what the task has learned about it."""

    origin: str = Field(
        min_length=1, max_length=ORIGIN_MAX, description="such as `https://shop.example:8443`"
    )
    agent: str = Field(
        default="*",
        min_length=1,
        max_length=500,
        description="the `User-Agent` of the crawler, whose crawl delay applies",
    )
    robots: SiteFile | None = Field(default=None, description="`/robots.txt`, if it was fetched")
    tdm: SiteFile | None = Field(
        default=None, description="`/.well-known/tdmrep.json`, if it was fetched"
    )
    reserved: TdmHeaders | None = Field(
        default=None,
        description="a response reserved the rights of text and data mining; sent without files",
    )


class SiteRules(StrictBody):
    """The robots.txt of an origin, or how the task gets it."""

    fetch: bool = Field(description="true if this task fetches the files for all, in 60 s")
    wait_s: float | None = Field(
        description="seconds after which to ask again, because another task fetches them"
    )
    status: int | None = Field(
        description="the status with which the site answered; null if its rules are unknown"
    )
    sha256: str | None
    body: str = Field(description="robots.txt in base64")
    delayed: bool = Field(
        description="true if it contains a crawl delay, so that requests need a lane"
    )


def add_robots(app: FastAPI, gateway: Gateway) -> None:
    """Add the route by which tasks share the robots.txt of each site."""
    store = RobotsStore(gateway.store.database)
    tasks = gateway.store.tasks

    @app.post("/v1/runs/{run_id}/tasks/{index}/attempts/{attempt}/leases/robots")
    def share_robots(
        run_id: Id,
        index: Annotated[int, Path(ge=0, le=INT_MAX)],
        attempt: Annotated[int, Path(ge=1, le=INT_MAX)],
        body: BodyOf[RobotsCall],
    ) -> SiteRules:
        """Get the robots.txt of an origin, which one task fetches for all each day.

        The crawler of a task calls this with the token in `CRAWL_LEASES_TOKEN`.
        """
        run = caller_run()
        if run is None and not tasks.recorded_tasks([(run_id, index, attempt)]):
            raise no_task(run_id, index, attempt)
        task = LeaseCall(run_id, None if run is None else run.uid, index, attempt, {})
        answer: RobotsAnswer | None
        if body.reserved is not None:
            answer = store.reserve(task, body.origin, body.reserved.policy)
        elif body.robots is None and body.tdm is None:
            answer = store.ask(task, body.origin)
        else:
            robots = None if body.robots is None else body.robots.to_file()
            tdm = None if body.tdm is None else body.tdm.to_file()
            answer = store.report(task, body.origin, body.agent, robots, tdm)
        if answer is None:
            raise not_executing(task)
        text = base64.b64encode(answer.body).decode()
        return SiteRules(**{**asdict(answer), "body": text})
