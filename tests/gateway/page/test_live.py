"""What is on screens: whatever changes gets there, once rendered and once asked for, however many watch."""

from __future__ import annotations

import asyncio
import html
import json
import re
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from crawler_lifecycle.domain.audits.audit import AuditReport
from crawler_lifecycle.domain.audits.corrections import CorrectionKind
from crawler_lifecycle.domain.run import StopIntent
from crawler_lifecycle.gateway.page.runs.runs import PageFilters
from crawler_lifecycle.gateway.page.screens import live
from crawler_lifecycle.gateway.page.screens.live import BEGUN_MAX, fits
from crawler_lifecycle.ports.looks import Correction
from tests.gateway.gateway_world import World
from tests.gateway.keys import Keys
from tests.gateway.served import Sse, events, served

SINCE = "2026-11-20T12:00:00Z"


@asynccontextmanager
async def watching(url: str, query: str, **headers: str) -> AsyncIterator[AsyncIterator[Sse]]:
    """The stream of one screen."""
    async with (
        httpx.AsyncClient(timeout=120, verify=False) as client,
        client.stream("GET", f"{url}/page/events?since={SINCE}&{query}", headers=headers) as answer,
    ):
        assert answer.status_code == 200, (await answer.aread()).decode()
        yield events(answer, str)


async def until(screen: AsyncIterator[Sse], fits: Callable[[Sse], bool]) -> Sse:
    """The next event that fits; it comes, or the test hangs."""
    async for event in screen:
        if fits(event):
            return event
    raise AssertionError("the stream ended before")


def targets(event: Sse) -> list[str]:
    """What an event changes of runs; how everything stands is there now and then, too."""
    found = re.findall(r'<hx-partial hx-target="([^"]+)"', event.data) if event.event == "message" else []
    return [one for one in found if one != "#strip"]


def started(world: World, count: int = 1) -> list[int]:
    return [world_run(world) for _ in range(count)]


def world_run(world: World, **more: Any) -> int:
    with world.client() as client:
        return int(client.post("/v1/runs", json={"crawler": "plain", **more}).json()["run_id"])


def stop(world: World, run_id: int) -> None:
    world.store.stops.record_stop(run_id, StopIntent(world.clock(), False, "ann", "why"), f"s{run_id}")


async def test_a_quiet_look_gets_to_the_screen(world: World, tmp_path: Path) -> None:
    """It writes no event: the row alone says that the run was verified."""
    [run_id] = started(world)
    async with served(world.new_app()) as server, watching(server.url, f"runs={run_id}") as screen:
        hello = await until(screen, lambda event: event.event == "hello")
        assert json.loads(hello.data)["now"] == "2026-11-20T12:00:00Z"
        first = await until(screen, lambda event: bool(targets(event)))
        assert targets(first) == [f"#run-{run_id}"]
        assert "not checked yet" in first.data
        world.clock.forward(10)
        with sqlite3.connect(tmp_path / "runs.db") as database:
            database.execute("UPDATE run_history SET verified_at = ?", (str(world.clock().replace(tzinfo=None)),))
        assert "checked <time" in (await until(screen, lambda event: "checked <time" in event.data)).data


async def test_an_age_that_grows_is_counted_by_the_page_and_not_sent(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of why a run waits, too: only its age is another one at each reading."""
    monkeypatch.setitem(live.Live.__init__.__kwdefaults__, "every_s", 0.05)
    [run_id] = started(world)
    with sqlite3.connect(tmp_path / "runs.db") as database:
        since = str(world.clock().replace(tzinfo=None))
        what = "cluster: <no> answer for 4 min"
        database.execute("UPDATE run_history SET waiting_for = ?, waiting_since = ?", (what, since))
    async with (
        served(world.new_app()) as server,
        watching(server.url, f"runs={run_id}&show=list") as listed,
        watching(server.url, f"runs={run_id}&show=page") as page,
    ):
        for screen in (listed, page):
            first = await until(screen, lambda event: "has not answered" in event.data)
            assert re.search(
                r'has not answered for <time data-for datetime="2026-11-20T12:00:00.000Z" title="[^"]+">0 s</time>: '
                "&lt;no&gt; answer for 4 min",
                first.data,
            )
        for _ in range(5):
            world.clock.forward(7)
            await asyncio.sleep(0.2)
        stop(world, run_id)
        for screen in (listed, page):
            event = await until(screen, lambda event: bool(targets(event)))
            assert "stop asked" in event.data, "nothing came while only the age changed"


async def test_how_everything_stands_gets_to_lists(world: World) -> None:
    async with served(world.new_app()) as server, watching(server.url, "show=list") as screen:
        assert "Everything works" in (await until(screen, lambda event: "#strip" in event.data)).data
        world.workflows.down = True
        await until(screen, lambda event: "Temporal does not answer" in event.data)


async def test_a_change_gets_to_list_and_page_with_its_event(world: World) -> None:
    [run_id] = started(world)
    async with (
        served(world.new_app()) as server,
        watching(server.url, f"runs={run_id}&show=list") as listed,
        watching(server.url, f"runs={run_id}&show=page") as page,
    ):
        await until(listed, lambda event: bool(targets(event)))
        first = await until(page, lambda event: bool(targets(event)))
        parts = {one for one in targets(first) if not one.startswith("#squares-")}
        assert {"#run-now", "#run-press", "#run-tasks", "#run-few", "#run-history"} == parts
        stop(world, run_id)
        assert "stop asked" in (await until(listed, lambda event: "STOPPING" in event.data)).data
        changed = await until(page, lambda event: "STOPPING" in event.data)
        assert "#run-tasks" not in targets(changed)


async def test_what_a_page_was_rendered_with_is_not_sent_again(world: World) -> None:
    """Of a list and of the page of a run: what changed since it was rendered comes, and nothing else."""
    first, second = started(world, 2)
    async with served(world.new_app()) as server:
        async with httpx.AsyncClient(base_url=server.url) as client:
            found = [(await client.get(path)).text for path in ("/", f"/runs/{first}")]
        listed, page = (html.unescape(str(re.search(r'data-stream="[^?]+[?]([^"]+)"', one)[1])) for one in found)
        listed, page = (re.sub(r"since=[^&]+&?", "", one) for one in (listed, page))
        stop(world, first)
        async with watching(server.url, listed) as screen:
            assert targets(await until(screen, lambda event: bool(targets(event)))) == [f"#run-{first}"]
        async with watching(server.url, page) as screen:
            changed = set(targets(await until(screen, lambda event: bool(targets(event)))))
            assert "#run-now" in changed
            assert not {"#run-tasks", "#squares-0"} & changed
        world.clock.forward(60)  # a tab that was opened behind another one
        async with watching(server.url, listed) as screen:
            event = await until(screen, lambda event: bool(targets(event)))
            assert {f"#run-{first}", f"#run-{second}"} == set(targets(event))


async def test_new_runs_come_on_top_of_the_lists_that_they_fit(world: World) -> None:
    [old] = started(world)
    async with (
        served(world.new_app()) as server,
        watching(server.url, f"runs={old}&show=list") as every,
        watching(server.url, f"runs={old}&show=list&tag=odd") as odd,
        watching(server.url, f"runs={old}") as rows,
    ):
        for screen in (every, odd, rows):
            await until(screen, lambda event: bool(targets(event)))
        plain, tagged = world_run(world), world_run(world, tags=["odd", "more"])
        seen: list[str] = []
        while len(seen) < 2:
            event = await until(every, lambda event: "#runs" in targets(event))
            seen += re.findall(r'id="run-(\d+)"', event.data)
        assert seen == [str(plain), str(tagged)]
        event = await until(odd, lambda event: "#runs" in targets(event))
        assert re.findall(r'id="run-(\d+)"', event.data) == [str(tagged)]
        stop(world, tagged)  # and from then on it is watched
        await until(odd, lambda event: f"#run-{tagged}" in targets(event) and "STOPPING" in event.data)
        stop(world, old)
        changed = await until(rows, lambda event: "STOPPING" in event.data)
        assert targets(changed) == [f"#run-{old}"]


async def test_who_comes_back_gets_what_began_meanwhile_or_is_told_to_read_anew(world: World) -> None:
    first = started(world)[-1]
    later = started(world, 2)
    async with served(world.new_app()) as server:
        async with watching(server.url, f"runs={first}&show=list", **{"Last-Event-ID": str(first)}) as screen:
            event = await until(screen, lambda event: "#runs" in targets(event))
            assert re.findall(r'id="run-(\d+)"', event.data)[:2] == [str(one) for one in later]
            assert event.id == str(later[-1])
        async with watching(server.url, "show=list", **{"Last-Event-ID": "999"}) as screen:
            await until(screen, lambda event: event.event == "reset")
        async with httpx.AsyncClient() as client:
            answer = await client.get(f"{server.url}/page/events?since={SINCE}", headers={"Last-Event-ID": "x"})
            assert answer.status_code == 422


async def test_who_missed_too_much_reads_anew(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "BEGUN_MAX", 3)
    assert BEGUN_MAX > 3
    started(world, 5)
    missed = {"Last-Event-ID": "1"}
    async with served(world.new_app()) as server, watching(server.url, "show=list", **missed) as screen:
        await until(screen, lambda event: event.event == "reset")


async def test_statements_and_renderings_do_not_grow_with_readers(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = started(world, 3)
    asked: Counter[int] = Counter()
    rendered: Counter[int] = Counter()
    runs, real_html = type(world.store.runs), live.html
    real = runs.changed_runs

    def counted(self: Any, known: Any) -> Any:
        asked[len(known)] += 1
        return real(self, known)

    def rendering(template: str, **values: Any) -> str:
        rendered[values["run"].run_id] += 1
        return real_html(template, **values)

    monkeypatch.setattr(runs, "changed_runs", counted)
    monkeypatch.setattr(live, "html", rendering)
    app = world.new_app()
    async with served(app) as server:
        query = f"runs={','.join(map(str, ids))}"

        ready = asyncio.Barrier(21)

        async def screen() -> None:
            async with watching(server.url, query) as shown:
                await until(shown, lambda event: bool(targets(event)))
                await ready.wait()
                await until(shown, lambda event: "STOPPING" in event.data)

        screens = [asyncio.create_task(screen()) for _ in range(20)]
        await ready.wait()
        stop(world, ids[0])
        await asyncio.gather(*screens)
        assert set(asked) <= {1, 2, 3}
        assert rendered == {ids[0]: 2, ids[1]: 1, ids[2]: 1}


async def test_a_token_that_is_taken_back_ends_the_stream(world: World, keys: Keys) -> None:
    [run_id] = started(world)
    async with (
        served(world.new_app(entrance=keys.entrance())) as server,
        watching(server.url, f"runs={run_id}", **keys.headers("read")) as screen,
    ):
        first = await until(screen, lambda event: bool(targets(event)))
        assert "checkbox" not in first.data  # it may press nothing
        tables = keys.file.read_text().split("[[token]]")
        keys.file.write_text("[[token]]".join(one for one in tables if "the-read" not in one))
        keys.now += 10
        async for _ in screen:
            pass


async def test_a_gateway_that_leaves_ends_its_streams_at_once(world: World) -> None:
    started(world)
    async with served(world.new_app()) as server, watching(server.url, "runs=1,77") as screen:
        await until(screen, lambda event: bool(targets(event)))
        await server.stop()
        async for _ in screen:
            pass


async def test_what_is_shown_is_as_old_as_its_reading_began(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    started(world)
    compare = live.Live._compare

    async def slow(self: live.Live, watched: Any) -> None:
        await compare(self, watched)
        world.clock.forward(7)

    monkeypatch.setattr(live.Live, "_compare", slow)
    async with served(world.new_app()) as server:
        async with watching(server.url, "runs=1") as screen:
            await until(screen, lambda event: bool(targets(event)))
        async with watching(server.url, "runs=1") as screen:
            told = json.loads((await until(screen, lambda event: event.event == "hello")).data)
    assert (datetime.fromisoformat(told["now"]) - datetime.fromisoformat(told["as_of"])).total_seconds() >= 7


async def test_who_shows_something_else_hears_that_it_moved(world: World) -> None:
    async with served(world.new_app()) as server:
        with world.client() as client:
            for flow in ("a", "b"):
                client.post("/v1/managers", json={"crawler": "plain", "flow_id": flow})
        async with (
            watching(server.url, "about=managers") as every,
            watching(server.url, "about=managers/2") as second,
            watching(server.url, "about=graphs") as graphs,
        ):
            for screen in (every, second, graphs):
                await until(screen, lambda event: event.event == "moved")
            with world.client() as client:
                client.post("/v1/managers/1/stop")
            await until(every, lambda event: event.event == "moved")
            with world.client() as client:
                client.post("/v1/managers/2/stop")
            await until(second, lambda event: event.event == "moved")
            assert (await until(graphs, lambda event: True)).event == "tick"


async def test_what_no_event_tells_of_is_asked_once_for_all_who_show_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "TOPICS_S", 0.0)
    for name in ("every_s", "tick_s"):
        monkeypatch.setitem(live.Live.__init__.__kwdefaults__, name, 0.2)
    asked: Counter[str] = Counter()
    webhooks = type(world.store.webhooks)
    read, turn = webhooks.list_webhooks, live.Live._compare_topics

    def counted(self: Any, after_id: int = 0, limit: int = 100) -> Any:
        asked["webhooks"] += 1
        return read(self, after_id, limit)

    async def turned(self: Any) -> None:
        asked["turns"] += 1
        await turn(self)

    with world.client() as client:
        client.put("/v1/webhooks/portal", json={"url": "https://hooks.example.com/x", "secrets": ["env:CRAWL_HOOK"]})
    [run_id] = started(world)
    monkeypatch.setattr(webhooks, "list_webhooks", counted)
    monkeypatch.setattr(live.Live, "_compare_topics", turned)
    async with served(world.new_app()) as server, AsyncExitStack() as open_pages:
        topics = ("corrections", "audit", "webhooks/portal", *["webhooks"] * 8)
        pages = [await open_pages.enter_async_context(watching(server.url, f"about={one}")) for one in topics]
        for page in pages:
            await until(page, lambda event: event.event == "tick")  # how it stood is known, and told
        with world.client() as client:
            client.post("/v1/webhooks/portal/pause", json={"reason": "why"})
        world.store.corrections.record_corrections(run_id, [Correction(CorrectionKind.LATE, "LOST", "FAILED")])
        now = world.clock()
        world.store.findings.record_audit(AuditReport("audit-1", now, now, repair=False))
        for page in pages:
            await until(page, lambda event: event.event == "moved")
        assert asked["webhooks"] <= 2 * asked["turns"], "a page and its end, once for all readers"


@pytest.mark.parametrize(
    "query",
    ["runs=0", "runs=x", "runs=1,,2", f"runs={'9' * 19}", "show=all", "colour=red", "status=x", "since=now",
     f"runs={','.join(str(n) for n in range(1, 502))}"],
)  # fmt: skip
def test_what_no_page_asks_for_is_refused(world: World, query: str) -> None:
    with world.client() as client:
        assert client.get(f"/page/events?since={SINCE}&{query}").status_code == 422


def test_a_run_fits_as_the_list_decides(world: World) -> None:
    """Property by example: each filter alone, beside the statement that reads the list."""
    for more in ({"tags": ["a", "b"]}, {"flow_id": "f"}, {"parent": "p"}, {"trigger": "api"}):
        world_run(world, **more)
    stop(world, 1)
    rows = world.store.runs.list_runs()
    given: list[dict[str, Any]] = [{"tag": ["a"]}, {"tag": ["a", "b"]}, {"tag": ["c"]}, {"flow_id": "f"}, {}]
    given += [{"parent": "p"}, {"trigger": "api"}, {"status": ["STOPPING"]}, {"stage": "initiation"}]
    given += [{"crawler": "plain"}, {"outcome": "x"}, {"created_from": SINCE}, {"created_until": SINCE}]
    for one in given:
        filters = PageFilters.model_validate(one)
        wanted = filters.model_dump(exclude={"page_size", "page_token", "all", "attention", "tag"}, exclude_none=True)
        listed = world.store.runs.list_runs(**wanted, tags=filters.tag)
        assert [row.run_id for row in rows if fits(row, filters)] == [row.run_id for row in listed], one
