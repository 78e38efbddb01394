"""The event stream: nothing is lost or repeated, whenever a client connects and however slowly it
reads.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st

from crawler_lifecycle.domain.errors import StoreUnavailable
from crawler_lifecycle.domain.run import RunRequest
from crawler_lifecycle.features.managers.ports import NewManager
from crawler_lifecycle.gateway.metrics import Metrics
from crawler_lifecycle.gateway.streams.feed import BUSY_S, IDLE_S, Feed, encode
from crawler_lifecycle.ports.runs import Event, Fence, Owner
from tests.gateway.gateway_harness import Harness
from tests.gateway.served import Sse, events, listening, metric, served, take, until
from tests.support.examples import examples

AT = datetime(2026, 11, 20, tzinfo=UTC)


class Telling:
    """Runs of a harness, and events about them."""

    def __init__(self, harness: Harness) -> None:
        self.store = harness.store
        self._numbers = itertools.count()

    def run(self) -> int:
        n = next(self._numbers)
        owner = Owner(f"w/{n}", f"chain-{n}")
        return self.store.initiation.create_run(
            RunRequest(crawler="plain"), f"told-{n}", owner
        ).run_id

    def tell(self, run_id: int, **body: Any) -> Event:
        row = self.store.runs.get_run(run_id)
        assert row.owner_run_id is not None
        fence = Fence(run_id, row.attempt, row.owner_run_id, row.run_uid)
        return self.store.events.append_event(
            fence, "test.told", f"test-{next(self._numbers)}", body
        )


@pytest.fixture
def telling(harness: Harness) -> Telling:
    return Telling(harness)


# --- the contract ---------------------------------------------------------------------------------


async def test_hello_first_then_what_happens_from_now_on(
    harness: Harness, telling: Telling
) -> None:
    run_id = telling.run()
    before = telling.tell(run_id, n=0)
    async with served(harness.app) as server, listening(server.url) as stream:
        [hello] = await take(stream, 1)
        assert hello.event == "hello"
        assert hello.id == str(before.seq)
        assert hello.data == {
            "server_time": "2026-11-20T12:00:00Z", "version": hello.data["version"], "seq": before.seq, "reset": False,
        }  # fmt: skip
        told = await asyncio.to_thread(
            telling.tell, run_id, text="line\nline\r\n: no comment\u2028"
        )
        [event] = await take(stream, 1)
    assert (event.event, event.id) == ("test.told", str(told.seq))
    uid = told.subject_uid
    assert len(uid) == 32
    assert event.data == {
        "seq": told.seq,
        "subject": f"runs/{run_id}",
        "run_id": run_id,
        "run_uid": uid,
        "attempt": 1,
        "type": "test.told",
        "created_at": "2026-11-20T12:00:00Z",
        "body": {
            "text": "line\nline\r\n: no comment\u2028",
            "run_id": run_id,
            "run_uid": uid,
            "project": "default",
        },
    }


@pytest.mark.parametrize("how", ["header", "after", "both"])
async def test_whoever_comes_back_gets_what_it_missed(
    harness: Harness, telling: Telling, how: str
) -> None:
    run_id = telling.run()
    told = [telling.tell(run_id, n=n).seq for n in range(5)]
    last = str(told[1]) if how != "after" else None
    # A browser keeps the address to which it first connected, so the header is the newer of the
    # two.
    params = {"after": {"after": told[1], "both": 0}[how]} if how != "header" else {}
    async with served(harness.app) as server, listening(server.url, last=last, **params) as stream:
        hello, *missed = await take(stream, 4)
    assert hello.data["seq"] == told[1]
    assert [event.data["seq"] for event in missed] == told[2:]


async def test_one_run_can_be_chosen(harness: Harness, telling: Telling) -> None:
    mine, other = telling.run(), telling.run()
    for n in range(30):
        telling.tell(other if n % 3 else mine, n=n)
    async with served(harness.app) as server, listening(server.url, after=0, run_id=mine) as stream:
        missed = (await take(stream, 12))[1:]  # the first of a run is run.changed
        await asyncio.to_thread(telling.tell, other, n=100)
        await asyncio.to_thread(telling.tell, mine, n=101)
        [live] = await take(stream, 1)
    assert {event.data["run_id"] for event in [*missed, live]} == {mine}
    assert [event.data["body"].get("n") for event in missed[1:]] == list(range(0, 30, 3))
    assert (live.data["body"]["n"], live.data["body"]["run_id"]) == (101, mine)


@pytest.mark.parametrize("after", [0, None])
async def test_one_manager_can_be_chosen(
    harness: Harness, telling: Telling, after: int | None
) -> None:
    """Among the events in memory, and among those in the database."""
    one, other = (
        harness.store.managers.reserve_manager(NewManager("shops", flow, "a:B"))[0].manager_id
        for flow in "ab"
    )
    params = {"manager": other} | ({} if after is None else {"after": after})
    async with served(harness.app) as server, listening(server.url, **params) as stream:
        [hello] = await take(stream, 1)
        assert hello.event == "hello"
        telling.run()
        harness.store.managers.steer_manager(one, paused=True)
        harness.store.managers.steer_manager(other, cap=7)
        told = await take(stream, 1 if after is None else 2)
    assert {(event.event, event.data["subject"]) for event in told} == {
        ("manager.changed", f"managers/{other}")
    }
    assert (told[-1].data["run_id"], told[-1].data["body"]["cap"]) == (None, 7)


async def test_a_number_of_another_database_begins_anew_and_says_so(
    harness: Harness, telling: Telling
) -> None:
    run_id = telling.run()
    newest = telling.tell(run_id).seq
    async with served(harness.app) as server, listening(server.url, last="100000") as stream:
        [hello] = await take(stream, 1)
        assert (hello.data["reset"], hello.data["seq"]) == (True, newest)
        told = await asyncio.to_thread(telling.tell, run_id)
        assert [event.data["seq"] for event in await take(stream, 1)] == [told.seq]


def test_wrong_parameters_are_refused(client: TestClient) -> None:
    for query, headers, field in [
        ("after=-1", {}, "after"),
        ("after=x", {}, "after"),
        (f"after={2**63}", {}, "after"),
        ("run_id=0", {}, "run_id"),
        ("runid=1", {}, "runid"),
        ("", {"Last-Event-ID": "x"}, "Last-Event-ID"),
        ("", {"Last-Event-ID": "-1"}, "Last-Event-ID"),
        ("", {"Last-Event-ID": "9" * 19}, "Last-Event-ID"),
    ]:
        answer = client.get(f"/v1/events?{query}", headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request"), query
        assert answer.json()["errors"][0]["field"] == field


def test_what_does_not_exist_and_a_stream_of_two_things(client: TestClient) -> None:
    for what, number in (("manager", 999), ("run", 4711)):
        answer = client.get("/v1/events", params={what if what == "manager" else "run_id": number})
        assert (answer.status_code, answer.json()["code"]) == (404, f"{what}_not_found")
    assert client.get("/v1/events", params={"manager": 1, "run_id": 1}).status_code == 422


# --- many, slow, and gone -------------------------------------------------------------------------


async def test_a_reader_that_never_reads_is_dropped(
    harness: Harness, telling: Telling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crawler_lifecycle.gateway.streams.responses.STALL_S", 0.5)
    run_id = telling.run()
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        async with served(harness.app) as server, listening(server.url) as stream:
            await take(stream, 1)
            await asyncio.to_thread(deaf.connect, ("127.0.0.1", server.port))
            deaf.sendall(b"GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            await until(lambda: metric(harness.app, "readers", "events") == 2)
            seqs = []
            for n in itertools.count():
                seqs.append(
                    (await asyncio.to_thread(telling.tell, run_id, pad="x" * 30_000, n=n)).seq
                )
                assert [event.data["seq"] for event in await take(stream, 1)] == seqs[-1:]
                if metric(harness.app, "dropped_total", "events"):
                    break
                if n > 100:
                    # Nothing more fits into the buffers; from now on, only time passes.
                    await asyncio.sleep(0.05)
                assert n < 1000, "it was never dropped"
            await until(lambda: metric(harness.app, "readers", "events") == 1)
            # Its connection is cut, instead of waiting for a peer that never reads: the server has
            # one connection left.
            await until(lambda: len(server.server.server_state.connections) == 1)
        async with (
            served(harness.new_app()) as server,
            listening(server.url, last=str(seqs[0])) as stream,
        ):
            assert (await take(stream, 2))[1].data["seq"] == seqs[1]


async def test_readers_that_leave_are_forgotten(
    harness: Harness, telling: Telling, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    real = harness.store.events.events_after
    monkeypatch.setattr(
        harness.store.events,
        "events_after",
        lambda *args: (asked.append(time.monotonic()), real(*args))[1],
    )
    run_id = telling.run()
    async with served(harness.app) as server:
        async with asyncio.TaskGroup() as group:
            greeted = 0

            async def one() -> list[Sse]:
                nonlocal greeted
                async with listening(server.url) as stream:
                    hello = await take(stream, 1)
                    greeted += 1
                    return hello + await take(stream, 1)

            readers = [group.create_task(one()) for _ in range(50)]
            await until(lambda: greeted == 50)
            assert metric(harness.app, "readers", "events") == 50
            told = await asyncio.to_thread(telling.tell, run_id)
        assert {reader.result()[1].data["seq"] for reader in readers} == {told.seq}
        await until(lambda: metric(harness.app, "readers", "events") == 0)
        # However long it took, there is one reader of the outbox, with its pauses, and not one for
        # each of the fifty.
        assert len(asked) <= (asked[-1] - asked[0]) / BUSY_S + 10
        async with asyncio.timeout(60):
            before = -1
            while before != len(asked):  # otherwise it would never be quiet for that long
                before = len(asked)
                await asyncio.sleep(3 * IDLE_S)


async def test_the_end_of_the_gateway_ends_the_streams(harness: Harness, telling: Telling) -> None:
    telling.run()
    async with served(harness.app, grace_s=150) as server, listening(server.url) as stream:
        await take(stream, 1)
        stopping = asyncio.create_task(server.stop())
        async with asyncio.timeout(60):  # below the server's own timeout
            assert [event async for event in stream] == []
            await stopping


# --- outages --------------------------------------------------------------------------------------


async def test_an_outage_loses_nothing(
    harness: Harness, telling: Telling, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = telling.run()
    down = threading.Event()

    def failing(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: object) -> Any:
            if down.is_set():
                raise StoreUnavailable("the database is gone")
            return real(*args)

        return call

    tell = telling.tell
    for name in ("events_after", "last_event_seq"):
        monkeypatch.setattr(
            harness.store.events, name, failing(getattr(harness.store.events, name))
        )
    async with served(harness.app) as server, listening(server.url) as stream:
        await take(stream, 1)
        first = await asyncio.to_thread(tell, run_id)
        assert (await take(stream, 1))[0].data["seq"] == first.seq
        down.set()
        missed = [await asyncio.to_thread(tell, run_id, n=n) for n in range(20)]
        await asyncio.sleep(0.8)
        async with listening(server.url, last=str(first.seq)) as late:  # connects during this time
            down.clear()
            assert [event.data["seq"] for event in await take(stream, 20)] == [
                event.seq for event in missed
            ]
            assert [event.data["seq"] for event in (await take(late, 21))[1:]] == [
                event.seq for event in missed
            ]


async def test_a_stream_may_begin_in_an_outage(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    down = True

    def last() -> int:
        if down:
            raise StoreUnavailable("the database is gone")
        return 0

    monkeypatch.setattr(harness.store.events, "last_event_seq", last)
    monkeypatch.setattr(harness.store.runs, "get_run", lambda _: last())
    async with served(harness.app) as server, listening(server.url, run_id=1) as stream:
        await asyncio.sleep(0.3)
        down = False
        assert (await take(stream, 1))[0].event == "hello"


# --- the property: nothing lost, nothing twice ----------------------------------------------------


class Outbox:
    """The part of a store that the feed needs: numbers without gaps, visible in order."""

    def __init__(self) -> None:
        self.told: list[Event] = []
        self.down = False

    def append(self, run_id: int) -> None:
        self.told.append(
            Event(
                len(self.told) + 1,
                run_id,
                "u",
                1,
                "test",
                {"n": len(self.told)},
                AT,
                f"runs/{run_id}",
            )
        )

    def last_event_seq(self) -> int:
        self._reach()
        return len(self.told)

    def events_after(
        self, seq: int, limit: int = 500, run_id: int | None = None, subject: str | None = None
    ) -> list[Event]:
        self._reach()
        return [event for event in self.told if event.seq > seq and run_id in (None, event.run_id)][
            :limit
        ]

    def properties(self, run_id: int) -> list[Mapping[str, object]]:
        self._reach()
        return []

    def _reach(self) -> None:
        if self.down:
            raise StoreUnavailable("down")


def _seqs(wire: bytes) -> Iterator[tuple[str, int]]:
    for block in wire.decode().split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":")
        )
        if "id" in fields:
            yield fields.get("event", ""), int(fields["id"])


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "BUSY_S": 0.001,
        "IDLE_S": 0.002,
        "RETRY_MAX_S": 0.005,
        "OUTAGE_S": 0.005,
    }.items():
        monkeypatch.setattr(f"crawler_lifecycle.gateway.streams.feed.{name}", value)
    for name, number in {"PAGE": 7, "CATCH_UP_PAGE": 5, "CHUNK": 700}.items():
        monkeypatch.setattr(f"crawler_lifecycle.gateway.streams.feed.{name}", number)


@settings(max_examples=examples(15))
@given(
    seed=st.integers(0, 2**32),
    chosen=st.sampled_from([None, 1, 2]),
    kept=st.sampled_from([1, 4, 50]),
)
@pytest.mark.usefixtures("quick")
def test_reconnecting_gives_every_event_once_and_in_order(
    seed: int, chosen: int | None, kept: int
) -> None:
    async def play() -> None:
        chance = random.Random(seed)
        outbox, total = Outbox(), 80
        feed = _feed(outbox, kept=kept, ping_s=0.02)
        running = asyncio.create_task(feed.run())

        async def write() -> None:
            for _ in range(total):
                outbox.append(chance.choice([1, 1, 2, 3]))
                outbox.down = chance.random() < 0.05
                if chance.random() < 0.2:
                    await asyncio.sleep(chance.random() / 100)
            outbox.down = False

        writing = asyncio.create_task(write())
        seen: list[int] = []
        last = 0
        async with asyncio.timeout(60):
            while last < total:
                budget = chance.randint(1, 12)
                feed.enter()
                async with aclosing(feed.stream(last, chosen and f"runs/{chosen}")) as stream:
                    async for wire in stream:
                        for event, seq in _seqs(wire):
                            assert event != "hello" or seq == last
                            assert seq >= last
                            last = seq
                            if event == "test":
                                seen.append(seq)
                        budget -= 1
                        if not budget or (last >= total and writing.done()):
                            break
                        if chance.random() < 0.2:
                            await asyncio.sleep(0.01)  # a slow one
                feed.leave()
        await writing
        running.cancel()
        assert seen == [event.seq for event in outbox.told if chosen in (None, event.run_id)]

    asyncio.run(play())


@pytest.mark.usefixtures("quick")
async def test_a_reader_that_shows_nothing_still_gets_signs_of_life_and_moves_on() -> None:
    """With a filter, events of other runs keep coming: the pings must still be sent, with the
    position.
    """
    outbox = Outbox()
    outbox.append(1)
    feed = _feed(outbox, ping_s=0.05)
    running = asyncio.create_task(feed.run())
    feed.enter()
    pings: list[int] = []
    async with aclosing(feed.stream(None, "runs/2")) as stream, asyncio.timeout(60):
        async for wire in stream:
            outbox.append(1)
            if wire.startswith(b": ping"):
                pings += [seq for _, seq in _seqs(wire)]
            if len(pings) > 2:
                break
    assert pings == sorted(set(pings))
    running.cancel()


@pytest.mark.usefixtures("quick")
async def test_a_feed_that_closes_rests_even_if_a_reader_lingers() -> None:
    feed = _feed(Outbox())
    running = asyncio.create_task(feed.run())
    feed.enter()
    async with aclosing(feed.stream(None, None)) as stream:
        await anext(stream)
        feed.close()
        async with asyncio.timeout(60):
            await running
            assert [wire async for wire in stream] == []


def test_the_format_survives_whatever_a_body_holds() -> None:
    event = Event(
        3,
        1,
        "u",
        1,
        "run.changed",
        {"cause": "a\nid: 9\ndata: x\r\n\r\n", "rate": float("nan")},
        AT,
        "runs/1",
    )
    lines = encode(event).wire.decode().split("\n")
    assert [line.partition(":")[0] for line in lines] == ["event", "data", "id", "", ""]


# --- helpers --------------------------------------------------------------------------------------


def _feed(outbox: Outbox, **options: Any) -> Feed:
    return Feed(outbox, outbox, Metrics(), lambda: AT, **options)  # type: ignore[arg-type]


async def test_the_headers_of_a_stream(harness: Harness) -> None:
    async with (
        served(harness.app) as server,
        httpx.AsyncClient(timeout=60) as client,
        client.stream("GET", f"{server.url}/v1/events") as answer,
    ):
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["x-accel-buffering"] == "no"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert (await take(events(answer), 1))[0].event == "hello"
