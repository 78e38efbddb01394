"""Each service as an adapter and as a fake, so that one test can check both."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import uvicorn
from fastapi import FastAPI

from crawler_lifecycle.domain.crawlers.arguments import Argument
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition, CrawlerKind
from crawler_lifecycle.domain.crawlers.pod import PodOptions
from crawler_lifecycle.domain.resources import Resources
from crawler_lifecycle.domain.run import Limits
from crawler_lifecycle.ports.runs import Deployment, Event, QueuedTask
from crawler_lifecycle.web.listening import bind
from tests.support.run_refs import run_ref

CRAWLERS = [
    CrawlerDefinition(
        "plain",
        CrawlerKind.COMMAND,
        command=["true"],
        args={
            "site": Argument("http://127.0.0.1"),
            "page": Argument(),
            "key": Argument(required=True),
        },
        settings={"DOWNLOAD_DELAY": "1", "DEPTH_LIMIT": "2"},
        resources=Resources(cpu="500m", memory="64Mi"),
        limits={"stall_timeout_s": 60.0},
    ),
    CrawlerDefinition(
        "other", CrawlerKind.SCRAPY, project="/nowhere", kubernetes=PodOptions(project="/nowhere")
    ),
]


def deployment(
    *tasks: QueuedTask,
    crawler: str = "plain",
    args: dict[str, str] | None = None,
    life_s: float = 300,
    scheduled: bool = False,
    run_id: int = 7,
    resume: bool = False,
) -> Deployment:
    now = datetime.now(UTC)
    return Deployment(
        run=run_ref(run_id),
        attempt=1,
        crawler=crawler,
        args={"key": "k"} if args is None else args,
        settings={"DEPTH_LIMIT": "9"},
        tasks=tasks or (QueuedTask(70, 0, {}),),
        resources=Resources(memory="128Mi"),
        limits=Limits(stop_grace_s=3),
        expires_at=now + timedelta(seconds=life_s),
        scheduled=scheduled,
        due_at=now if scheduled else None,
        resume=resume,
    )


def event(number: int = 1, type: str = "run.ended", **body: object) -> Event:
    at = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
    return Event(
        number,
        number,
        run_ref(number).uid,
        1,
        type,
        {"run_id": number, **body},
        at,
        f"runs/{number}",
    )


@contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """The app on a real port."""
    bound = bind("127.0.0.1", 0, "TEST")
    server = uvicorn.Server(
        uvicorn.Config(app, log_config=None, lifespan="on", timeout_keep_alive=600)
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)
        bound.close()
