"""Event readers whose position is older than what ``crawlctl db prune`` left are told, and nothing
is skipped silently.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle.gateway.streams import feed
from crawler_lifecycle.ports.polls import Details
from crawler_lifecycle.ports.runs import Event, Fence
from crawler_lifecycle.store.retention.pruning import Pruner, open_pruner
from tests.contracts.store import harness as lives
from tests.gateway.gateway_harness import Harness
from tests.gateway.served import Sse, listening, served, take

DAY = 86_400.0


@pytest.fixture
def pruner(harness: Harness) -> Iterator[Pruner]:
    with closing(
        open_pruner(harness.store.database.engine.url.render_as_string(), clock=harness.clock)
    ) as pruner:
        yield pruner


@pytest.fixture
def runs(harness: Harness) -> lives.Harness:
    return lives.Harness(harness.store, harness.clock)  # type: ignore[arg-type]


def ended(runs: lives.Harness, name: str, *, wait: float = 0) -> Fence:
    fence = runs.deployed(name, crawler="plain")
    runs.execute(fence)
    runs.clock.forward(wait * DAY)
    tasks = runs.store.tasks.list_tasks(fence.run_id)
    runs.store.polls.save_details(
        fence, [Details(task.task_id, "the end of a log") for task in tasks]
    )
    runs.finish(fence)
    return fence


def prune(pruner: Pruner, harness: Harness) -> int:
    before, gone = harness.clock.now - timedelta(days=90), 0
    for table in pruner.tables:
        gone += sum(pruner.remove(table, pruner.poll(table, before).goes, before).values())
    return gone


def kept(harness: Harness, run_id: int | None = None) -> list[Event]:
    return harness.store.events.events_after(0, 10_000, run_id)


def numbers(found: list[Sse]) -> list[int]:
    return [one.data["seq"] for one in found]


@pytest.mark.parametrize("run_id", [None, 1])
async def test_a_place_in_a_gap(
    harness: Harness, runs: lives.Harness, pruner: Pruner, run_id: int | None
) -> None:
    """The reader is moved to the end and asked to read everything again; later events arrive as
    usual.
    """
    old = ended(runs, "old")
    place = kept(harness)[1].seq
    harness.clock.forward(100 * DAY)
    assert prune(pruner, harness) > 3
    newest = harness.store.events.last_event_seq()
    one = {} if run_id is None else {"run_id": run_id}
    async with (
        served(harness.app) as server,
        listening(server.url, last=str(place), **one) as stream,
    ):
        [hello] = await take(stream, 1)
        assert (hello.event, hello.data["reset"], hello.data["seq"], hello.id) == (
            "hello",
            True,
            newest,
            str(newest),
        )
        await asyncio.to_thread(harness.store.events.append_event, old, "test.told", "k", {})
        assert numbers(await take(stream, 1)) == [newest + 1]
    async with (
        served(harness.app) as server,
        listening(server.url, last=str(newest), **one) as stream,
    ):
        [hello, told] = await take(stream, 2)
        assert (hello.data["reset"], told.data["seq"]) == (False, newest + 1), (
            "it comes back as everybody does"
        )


@pytest.mark.parametrize("size", [2, 100])
async def test_what_was_removed_further_on_is_told_when_it_is_reached(
    harness: Harness,
    runs: lives.Harness,
    pruner: Pruner,
    size: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next events exist because their run is live; those behind them do not."""
    monkeypatch.setattr(feed, "CATCH_UP_PAGE", size)
    live = runs.deployed("live", crawler="plain")
    runs.execute(live)
    there = [event.seq for event in kept(harness)]
    ended(runs, "old")
    harness.clock.forward(100 * DAY)
    assert prune(pruner, harness) > 3
    newest = harness.store.events.last_event_seq()
    async with served(harness.app) as server, listening(server.url, last=str(there[0])) as stream:
        hello, *told = await take(stream, len(there))
        assert (hello.data["reset"], numbers(told)) == (False, there[1:])
        [again] = await take(stream, 1)
        assert (again.event, again.data["reset"], again.data["seq"]) == ("hello", True, newest)
        await asyncio.to_thread(harness.store.events.append_event, live, "test.told", "k", {})
        assert numbers(await take(stream, 1)) == [newest + 1]


async def test_the_end_is_removed(harness: Harness, runs: lives.Harness, pruner: Pruner) -> None:
    """The newest events of all are gone, as in an installation that was off for a year."""
    ended(runs, "old")
    place = next(event.seq for event in kept(harness) if event.type == "run.ended")
    harness.clock.forward(100 * DAY)
    assert prune(pruner, harness) > 3
    newest = harness.store.events.last_event_seq()
    assert kept(harness)[-1].seq == place < newest
    async with served(harness.app) as server, listening(server.url, last=str(place)) as stream:
        [hello] = await take(stream, 1)
        assert (hello.data["reset"], hello.data["seq"]) == (True, newest)


async def test_a_reader_of_another_run_misses_nothing(
    harness: Harness, runs: lives.Harness, pruner: Pruner
) -> None:
    live = runs.deployed("live", crawler="plain")
    old = ended(runs, "old")
    runs.execute(live)
    harness.clock.forward(100 * DAY)
    assert prune(pruner, harness) > 3
    mine = [event.seq for event in kept(harness, live.run_id)]
    async with (
        served(harness.app) as server,
        listening(server.url, last=str(mine[0]), run_id=live.run_id) as stream,
    ):
        hello, *told = await take(stream, len(mine))
        assert (hello.data["reset"], numbers(told)) == (False, mine[1:])
    assert old.run_id != live.run_id


async def test_after_0_begins_with_the_oldest_that_is_there(
    harness: Harness, runs: lives.Harness, pruner: Pruner
) -> None:
    first, second = ended(runs, "first"), ended(runs, "second", wait=100)
    harness.clock.forward(80 * DAY)
    assert prune(pruner, harness) > 3
    for run_id in (None, first.run_id, second.run_id):
        there = [event.seq for event in kept(harness, run_id)]
        one: dict[str, Any] = {} if run_id is None else {"run_id": run_id}
        async with served(harness.app) as server, listening(server.url, after=0, **one) as stream:
            hello, *told = await take(stream, len(there) + 1)
            assert (hello.data["reset"], numbers(told)) == (False, there)


async def test_removed_meanwhile(
    harness: Harness, runs: lives.Harness, pruner: Pruner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader of one run, whose events are removed while it is fed from the database."""
    monkeypatch.setattr(feed, "CATCH_UP_PAGE", 2)
    old = ended(runs, "old")
    there = [event.seq for event in kept(harness)]
    harness.clock.forward(100 * DAY)
    newest, really, asked = (
        harness.store.events.last_event_seq(),
        harness.store.events.events_after,
        list[int](),
    )

    def events_after(
        seq: int, limit: int = 500, run_id: int | None = None, subject: str | None = None
    ) -> list[Event]:
        if run_id is not None:
            asked.append(seq)
            if len(asked) == 2:
                assert prune(pruner, harness) > 3
        return really(seq, limit, run_id)

    monkeypatch.setattr(harness.store.events, "events_after", events_after)
    async with (
        served(harness.app) as server,
        listening(server.url, last=str(there[0]), run_id=old.run_id) as stream,
    ):
        hello, one, two, again = await take(stream, 4)
    assert hello.data["reset"] is False
    assert numbers([one, two]) == there[1:3]
    assert (again.event, again.data["reset"], again.data["seq"]) == ("hello", True, newest)


def test_a_log_that_was_removed_says_so(
    harness: Harness, runs: lives.Harness, pruner: Pruner, client: TestClient
) -> None:
    old = ended(runs, "old")
    [task] = harness.store.tasks.list_tasks(old.run_id)
    assert client.get(f"/v1/runs/{old.run_id}/logs").text == "the end of a log"
    harness.clock.forward(100 * DAY)
    assert prune(pruner, harness) > 3
    answer = client.get(f"/v1/runs/{old.run_id}/logs")
    assert (answer.status_code, answer.json()["code"]) == (404, "log_not_found")
    assert answer.json()["detail"] == (
        f"task {task.task_id} is SUCCEEDED and has no log here; the stored log was removed, because its run ended "
        "long ago (crawlctl db prune)"
    )


def test_all_else_is_answered_as_before(
    harness: Harness, runs: lives.Harness, pruner: Pruner, client: TestClient
) -> None:
    """Describe, timeline, corrections, tasks and lists; a resume and an export are also accepted
    again.
    """
    old = ended(runs, "old")
    paths = ["", "/timeline", "/corrections", "/tasks", "/transitions"]
    harness.clock.forward(100 * DAY)

    def read() -> list[Any]:
        answers = [client.get(f"/v1/runs/{old.run_id}{path}") for path in paths]
        answers += [
            client.get("/v1/runs"),
            client.get("/v1/corrections"),
            client.get("/v1/corrections/summary"),
        ]
        return [(answer.status_code, answer.text) for answer in answers]

    before = read()
    assert {code for code, _ in before if code != 404} == {200}
    assert prune(pruner, harness) > 3
    assert read() == before
    again = client.post(f"/v1/runs/{old.run_id}/export", json={"event": True, "files": True})
    assert again.status_code == 202, again.text
    resumed = client.post(f"/v1/runs/{old.run_id}/resume", json={"rerun": True})
    assert resumed.status_code in (200, 202), resumed.text
