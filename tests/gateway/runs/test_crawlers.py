"""What the gateway knows about crawlers when many callers ask for them."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

from crawler_lifecycle.domain.errors import SchedulerUnavailable
from crawler_lifecycle.gateway.runs.crawlers import Crawlers
from tests.support.fakes.services import FakeScheduler


async def test_many_callers_ask_a_failing_scheduler_service_once() -> None:
    scheduler = FakeScheduler()
    scheduler.faults.add(SchedulerUnavailable("down"), 1)
    crawlers = Crawlers(scheduler, Mock(), clock=lambda: 0.0)
    answers = await asyncio.gather(*(crawlers.all() for _ in range(50)), return_exceptions=True)
    assert {type(answer) for answer in answers} == {SchedulerUnavailable}
