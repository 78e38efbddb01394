"""The health strip: each part shows its state with a time, and asking costs nothing more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.audits.corrections import CorrectionKind
from crawler_lifecycle.domain.errors import StoreUnavailable
from crawler_lifecycle.gateway import health
from crawler_lifecycle.gateway.health import Health, HealthPart, Needs
from crawler_lifecycle.gateway.metrics import Metrics
from crawler_lifecycle.gateway.streams.feed import Feed
from crawler_lifecycle.ports.polls import Correction
from crawler_lifecycle.temporal.operator.task_queues import Poller, Queue
from tests.contracts.store import harness as store_harness
from tests.contracts.store.test_overdue import executing
from tests.gateway.gateway_harness import Harness

ALIVE = [Poller(None, 1.0, True)]


def made(harness: Harness) -> Health:
    store, workflows = harness.store, cast(Any, harness.workflows)
    feed = Feed(store.events, store.runs, Metrics(), harness.clock)
    needs = Needs(store.health, workflows)
    return Health(needs, workflows, feed, store, harness.clock)


def read(strip: Health) -> dict[str, HealthPart]:
    return {one.name: one for one in asyncio.run(strip.read()).parts}


def test_what_answers_and_what_does_not(harness: Harness) -> None:
    harness.workflows.queues = [
        Queue(names.QUEUE_MAIN, "workflows", ALIVE),
        Queue(names.QUEUE_CLUSTER, "activities", [], backlog=3, backlog_age_s=9.0),
        Queue(names.QUEUE_WEBHOOKS, "activities"),
    ]
    strip = asyncio.run(made(harness).read())
    assert [(one.name.split()[0], one.level) for one in strip.parts] == [
        ("database", "ok"), ("temporal", "ok"), ("queue", "ok"), ("queue", "bad"), ("queue", "warn"),
        ("polls", "ok"), ("stream", "ok"),
    ]  # fmt: skip
    assert (strip.level, strip.parts[3].fix) == ("bad", "crawlctl worker cluster")
    assert "3 waiting" in strip.parts[3].text
    assert (strip.wrong.split(";")[0], strip.worst_s) == ("no corrections this week", None)
    harness.workflows.down = True
    found = read(made(harness))
    assert "refused" in found["temporal"].text
    assert not [name for name in found if name.startswith("queue")], "nobody can tell"


def test_a_late_poll_is_told_with_what_the_cluster_said(harness: Harness) -> None:
    made_harness = store_harness.Harness(harness.store, cast(store_harness.Clock, harness.clock))
    fence = executing(made_harness, "late")
    harness.store.polls.record_poll_error(fence, "403 from the cluster")
    harness.store.corrections.record_corrections(
        fence.run_id, [Correction(CorrectionKind.LATE, "LOST", "FAILED")]
    )
    harness.clock.forward(3600)
    strip = asyncio.run(made(harness).read())
    [polls] = [one for one in strip.parts if one.name == "polls"]
    assert polls.level == "bad"
    assert f"(run {fence.run_id})" in polls.text
    assert "403 from the cluster" in polls.text
    assert "1 correction (late 1)" in strip.wrong


def test_a_database_that_is_away_or_silent(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise StoreUnavailable("it refuses connections")

    strip = made(harness)
    monkeypatch.setattr(harness.store.health, "ping", away)
    monkeypatch.setattr(harness.store.overdue, "overdue_polls", away)
    found = read(strip)
    assert (found["database"].level, found["polls"].level) == ("bad", "bad")
    assert "it refuses connections" in found["polls"].text
    monkeypatch.setattr(health, "READY_TIMEOUT_S", 0.05)
    over = asyncio.Event()

    def silent(*_: object) -> None:
        while not over.is_set():
            pass

    monkeypatch.setattr(harness.store.overdue, "overdue_polls", silent)
    monkeypatch.setattr(harness.store.health, "ping", lambda: None)

    async def asked() -> HealthPart:
        try:
            return next(one for one in (await made(harness).read()).parts if one.name == "polls")
        finally:
            over.set()

    assert "did not answer within" in asyncio.run(asked()).text


def test_all_who_ask_share_one_answer(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    ping = harness.store.health.ping
    monkeypatch.setattr(harness.store.health, "ping", lambda: asked.append(1) or ping())  # type: ignore[func-returns-value]

    async def many(strip: Health) -> None:
        first = await asyncio.gather(*(strip.read() for _ in range(50)))
        assert len({id(one) for one in first}) == 1
        assert await strip.read() is first[0]

    async def at_once(needs: Needs) -> None:
        await asyncio.gather(*(needs() for _ in range(50)))

    asyncio.run(at_once(Needs(harness.store.health, cast(Any, harness.workflows))))
    assert asked.pop() == 1
    assert not asked
    asyncio.run(many(made(harness)))
    assert (len(asked), harness.workflows.asked_for_queues) == (1, 1)
    monkeypatch.setattr(health, "FRESH_S", 0.0)
    monkeypatch.setattr(health, "QUEUES_S", 3600.0)
    strip = made(harness)

    async def twice() -> None:
        for _ in range(3):
            await strip.read()

    asyncio.run(twice())
    assert (len(asked), harness.workflows.asked_for_queues) == (4, 2), (
        "task queues are asked for more seldom"
    )


def test_task_queues_that_take_long_keep_nobody_waiting(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in {"QUEUES_WAIT_S": 0.01, "FRESH_S": 0.0, "QUEUES_S": 0.0}.items():
        monkeypatch.setattr(health, name, seconds)
    harness.workflows.queues = [Queue(names.QUEUE_MAIN, "workflows", ALIVE)]

    async def levels(strip: Health) -> list[str]:
        return [one.level for one in (await strip.read()).parts if one.name.startswith("queue")]

    async def asked() -> None:
        strip, ask, gate = made(harness), harness.workflows.task_queues, asyncio.Event()

        async def slow(*what: Any) -> list[Queue]:
            await gate.wait()
            return await ask(*what)

        monkeypatch.setattr(harness.workflows, "task_queues", slow)
        assert await levels(strip) == ["asking"]
        gate.set()
        monkeypatch.setattr(health, "QUEUES_WAIT_S", 100.0)
        assert await levels(strip) == ["ok"]
        gate.clear()
        monkeypatch.setattr(health, "QUEUES_WAIT_S", 0.01)
        assert await levels(strip) == ["ok"], "as they were, with the time of that"

    asyncio.run(asked())


def test_a_stream_that_nobody_feeds(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    async def parts(then: Callable[[Feed], None]) -> HealthPart:
        strip = made(harness)
        then(strip.feed)
        return next(one for one in (await strip.read()).parts if one.name == "stream")

    assert "nobody reads" in asyncio.run(parts(lambda feed: None)).text
    assert asyncio.run(parts(lambda feed: feed.enter())).level == "ok"
    monkeypatch.setattr(health, "SILENT_S", 0.0)
    late = asyncio.run(parts(lambda feed: feed.enter()))
    assert (late.level, late.text.split(",")[0]) == ("bad", "1 reader")


def test_the_route(harness: Harness) -> None:
    with harness.client() as client:
        answer = client.get("/v1/health").json()
    assert answer["level"] == "ok"
    assert {one["name"] for one in answer["parts"]} >= {"database", "temporal", "polls", "stream"}
