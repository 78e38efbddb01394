"""Live pages: every change arrives, and is rendered once, however many clients watch."""

from __future__ import annotations

import asyncio
import html
import json
import re
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from fastapi.testclient import TestClient

from crawler_lifecycle import sqlite_files
from crawler_lifecycle.domain.errors import StoreUnavailable
from crawler_lifecycle.domain.run import StopIntent
from crawler_lifecycle.domain.task import Counters
from crawler_lifecycle.gateway.access.slots import Slots
from crawler_lifecycle.gateway.ttl_cache import CachedAnswer
from crawler_lifecycle.gateway.ui import live
from crawler_lifecycle.gateway.ui.parts import rendering
from crawler_lifecycle.ports.polls import LiveCounters
from tests.gateway.gateway_harness import Harness
from tests.gateway.keys import Keys
from tests.gateway.served import Sse, events, served


@asynccontextmanager
async def watching(
    url: str, path: str, query: str = "", seen: str = "", **headers: str
) -> AsyncIterator[Any]:
    """The stream of one page."""
    asked = urlencode({"path": path, "query": query, "seen": seen})
    async with (
        httpx.AsyncClient(timeout=120, verify=False) as client,
        client.stream("GET", f"{url}/page/events?{asked}", headers=headers) as answer,
    ):
        assert answer.status_code == 200, (await answer.aread()).decode()
        yield events(answer, str)


async def until(screen: AsyncIterator[Sse], fits: Callable[[Sse], bool]) -> Sse:
    """Return the next matching event; without one, the test hangs."""
    async for event in screen:
        if fits(event):
            return event
    raise AssertionError("the stream ended before")


@pytest.mark.parametrize(
    ("path", "about"),
    [
        ("/", "fleet"),
        ("/runs/7/log", "runs/7"),
        ("/schedules/nightly/due-times", "schedules/nightly"),
        ("/corrections", "corrections"),
    ],
)
def test_events_about_a_subject_update_all_its_tabs(path: str, about: str) -> None:
    async def render() -> str:
        return ""

    marks: CachedAnswer[live.Marks] = CachedAnswer(lambda: render(), 1.0)  # type: ignore[arg-type, return-value]
    screen = live.Screen(path, render, marks, Slots(1, 1))
    assert (screen.about, screen.run_id) == (about, 7 if about == "runs/7" else None)


def targets(event: Sse) -> list[str]:
    """Return what an event changes."""
    if event.event != "message":
        return []
    return re.findall(r'<hx-partial hx-target="([^"]+)"', event.data)


def moved(event: Sse) -> bool:
    return bool(targets(event))


def start(harness: Harness, **more: Any) -> int:
    with harness.client() as client:
        return int(client.post("/v1/runs", json={"crawler": "plain", **more}).json()["run_id"])


def stop(harness: Harness, run_id: int) -> None:
    harness.store.stops.record_stop(
        run_id, StopIntent(harness.clock(), False, "ann", "why"), f"s{run_id}"
    )


async def page_of(url: str, path: str) -> tuple[str, dict[str, str]]:
    """Return a page, and how it requests its stream."""
    async with httpx.AsyncClient(base_url=url) as client:
        text = (await client.get(path)).text
    address = html.unescape(str(re.search(r'data-stream="([^"]+)"', text)[1]))  # type: ignore[index]
    return text, dict(httpx.URL(address).params)


async def test_a_quiet_poll_gets_to_the_screen(harness: Harness, tmp_path: Path) -> None:
    """It writes no event: only the row shows that the run was verified."""
    run_id = start(harness)
    async with (
        served(harness.new_app()) as server,
        watching(server.url, "/runs", "crawler=plain") as screen,
    ):
        hello = await until(screen, lambda event: event.event == "hello")
        assert json.loads(hello.data)["now"] == "2026-11-20T12:00:00Z"
        first = await until(screen, moved)
        assert targets(first) == ["#main"]
        assert "not checked yet" in first.data
        harness.clock.forward(10)
        with sqlite_files.connect(tmp_path / "runs.db") as database:
            database.execute(
                "UPDATE run_history SET verified_at = ?",
                (str(harness.clock().replace(tzinfo=None)),),
            )
        assert targets(
            await until(screen, lambda event: 'data-title="Checked"><time' in event.data)
        ) == [f"#run-{run_id}"]


async def test_an_age_that_grows_is_not_sent(
    harness: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither are the reasons why a run waits, in which only the age changes at each reading."""
    monkeypatch.setattr(live, "EVERY_S", 0.05)
    monkeypatch.setattr(live, "REST", 0.0)
    run_id = start(harness)
    with sqlite_files.connect(tmp_path / "runs.db") as database:
        since = str(harness.clock().replace(tzinfo=None))
        what = "cluster: <no> answer for 4 min"
        database.execute("UPDATE run_history SET waiting_for = ?, waiting_since = ?", (what, since))
    async with (
        served(harness.new_app()) as server,
        watching(server.url, "/runs", "crawler=plain") as listed,
        watching(server.url, f"/runs/{run_id}") as page,
    ):
        for screen in (listed, page):
            first = await until(screen, lambda event: "has not answered" in event.data)
            assert re.search(
                r'has not answered for <time data-for datetime="2026-11-20T12:00:00.000Z" title="[^"]+">0 s</time>: '
                "&lt;no&gt; answer for 4 min",
                first.data,
            )
        for _ in range(5):
            harness.clock.forward(7)
            await asyncio.sleep(0.2)
        stop(harness, run_id)
        for screen in (listed, page):
            event = await until(screen, moved)
            # Row and timeline are read one after the other: either may come first.
            assert re.search("stop requested|ann", event.data), (
                "nothing came while only the age changed"
            )


async def test_how_everything_stands_gets_to_the_first_page(harness: Harness) -> None:
    async with served(harness.new_app()) as server, watching(server.url, "/") as screen:
        await until(screen, lambda event: "Everything works" in event.data)
        harness.workflows.down = True
        await until(screen, lambda event: "unwell</a>" in event.data)


async def test_the_first_page_is_not_rendered_for_each_event(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state is reused for some seconds, so it would show nothing new."""
    monkeypatch.setattr(live, "EVERY_S", 3600.0)
    async with (
        served(harness.new_app()) as server,
        watching(server.url, "/") as first,
        watching(server.url, "/runs") as runs,
    ):
        await until(first, moved)
        await until(runs, moved)
        start(harness)
        await until(runs, moved)
        for _ in range(2):
            assert (await until(first, lambda event: True)).event == "tick"


async def test_a_change_gets_to_list_and_page_with_its_event(harness: Harness) -> None:
    run_id = start(harness)
    start(harness)
    async with (
        served(harness.new_app()) as server,
        watching(server.url, "/runs", "crawler=plain") as listed,
        watching(server.url, f"/runs/{run_id}") as page,
    ):
        for screen in (listed, page):
            await until(screen, moved)
        stop(harness, run_id)
        assert targets(await until(listed, lambda event: "stopping" in event.data)) == [
            f"#run-{run_id}"
        ]
        changed = targets(await until(page, lambda event: "pill stopping" in event.data))
        assert "#subject-head" in changed
        assert not {"#main", "#run-tasks", "#run-why"} & set(changed)


@pytest.mark.parametrize("path", ["/runs", "/runs/1"])
async def test_what_a_page_was_rendered_with_is_not_sent_again(harness: Harness, path: str) -> None:
    run_id = start(harness)
    start(harness)
    async with served(harness.new_app()) as server:
        _, asked = await page_of(server.url, path)
        stop(harness, run_id)
        async with watching(server.url, **asked) as screen:
            changed = targets(await until(screen, moved))
            assert "#main" not in changed
            assert f"#run-{run_id}" in changed or "#subject-head" in changed
            assert not {"#run-2", "#run-tasks"} & set(changed)


async def test_new_runs_come_on_top_of_the_lists_that_they_fit_and_of_no_selection(
    harness: Harness,
) -> None:
    old = start(harness)
    async with (
        served(harness.new_app()) as server,
        watching(server.url, "/runs") as every,
        watching(server.url, "/runs", "tag=odd") as odd,
        watching(server.url, "/runs", "all=true") as chosen,
    ):
        for screen in (every, odd, chosen):
            await until(screen, lambda event: event.event == "message")
        tagged = start(harness, tags=["odd", "more"])
        plain = start(harness)
        event = await until(every, lambda event: f'id="run-{plain}"' in event.data)
        assert re.findall(r'<tr id="run-(\d+)"', event.data) == [str(plain), str(tagged), str(old)]
        event = await until(odd, lambda event: f'id="run-{tagged}"' in event.data)
        assert re.findall(r'<tr id="run-(\d+)"', event.data) == [str(tagged)]
        stop(harness, old)
        seen = await until(chosen, lambda event: "stopping" in event.data)
        assert "#main" not in targets(seen)


async def test_a_page_that_connects_again_gets_what_changed_back(harness: Harness) -> None:
    """Its address still names what it was loaded with; what it was sent since then counts."""
    start(harness)
    async with served(harness.new_app()) as server:

        async def works() -> None:
            async with watching(server.url, "/") as other:
                await until(other, lambda event: "Everything works" in event.data)

        await works()
        text, asked = await page_of(server.url, "/")
        assert "Everything works" in text
        async with watching(server.url, **asked) as screen:
            harness.workflows.down = True
            bad = await until(screen, lambda event: "unwell</a>" in event.data and bool(event.id))
        harness.workflows.down = False
        await works()
        async with watching(server.url, **asked, **{"Last-Event-ID": bad.id}) as screen:
            event = await until(screen, lambda event: "Everything works" in event.data)
            assert 'hx-target="#main"' not in event.data, "only what changed is sent again"


async def test_a_message_names_what_does_not_answer(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even on a page that shows nothing of it, and while its rendering hangs."""
    run_id = start(harness)
    health, hangs = type(harness.store.health), threading.Event()
    async with (
        served(harness.new_app()) as server,
        watching(server.url, f"/runs/{run_id}/log") as screen,
    ):
        first = json.loads((await until(screen, lambda event: event.event == "tick")).data)
        assert (first["away"], first["as_of"]) == ("", "2026-11-20T12:00:00Z")
        harness.workflows.down = True
        await until(screen, lambda event: '"away":"Temporal does not answer"' in event.data)

        def away(*_: Any) -> None:
            raise StoreUnavailable("away")

        for read in ("get_run", "run_marks"):
            monkeypatch.setattr(type(harness.store.runs), read, lambda *_: hangs.wait())
        monkeypatch.setattr(health, "ping", away)
        harness.clock.forward(60)
        both = await until(
            screen, lambda event: "the database does not answer and Temporal" in event.data
        )
        assert json.loads(both.data)["as_of"] == "2026-11-20T12:00:00Z"
        hangs.set()


async def test_many_readers_share_one_rendering_and_have_keys_of_their_own(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = start(harness)
    rendered: Counter[str] = Counter()
    real = rendering.html

    def counted(template: str, **values: Any) -> str:
        rendered[template] += 1
        return real(template, **values)

    monkeypatch.setattr(rendering, "html", counted)
    monkeypatch.setattr(live, "EVERY_S", 3600.0)
    keys: set[str] = set()
    async with served(harness.new_app()) as server:
        ready = asyncio.Barrier(21)

        async def screen() -> None:
            async with watching(server.url, f"/runs/{run_id}") as shown:
                first = await until(shown, moved)
                keys.update(re.findall(r'name="key" value="([0-9a-f]{32})"', first.data))
                await ready.wait()
                await until(shown, lambda event: "pill stopping" in event.data)

        screens = [asyncio.create_task(screen()) for _ in range(20)]
        await ready.wait()
        stop(harness, run_id)
        await asyncio.gather(*screens)
    assert rendered["run.html"] <= 3
    assert len(keys) == 20


async def test_a_page_of_a_run_is_rendered_only_for_news(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes in its row have no event.

    Without changes, the page is as new as the query for the row.
    """
    run_id = start(harness)
    shown: list[str] = []
    real = rendering.html
    monkeypatch.setattr(
        rendering, "html", lambda name, **values: shown.append(name) or real(name, **values)
    )
    for name, value in {"EVERY_S": 0.05, "REST": 0.0, "MARKS_S": 0.0, "TICK_S": 0.1}.items():
        monkeypatch.setattr(live, name, value)
    async with (
        served(harness.new_app()) as server,
        watching(server.url, f"/runs/{run_id}") as screen,
    ):
        await until(screen, moved)
        # The event of its start may cause two.
        await until(screen, lambda event: event.event == "tick")
        harness.clock.forward(60)
        await until(screen, lambda event: '"as_of":"2026-11-20T12:01:00Z"' in event.data)
        before = len(shown)
        harness.clock.forward(60)
        await until(screen, lambda event: '"as_of":"2026-11-20T12:02:00Z"' in event.data)
        assert len(shown) == before
        counted = LiveCounters(harness.ref(run_id), 1, 0, Counters(pages=7))
        harness.claim(run_id)
        harness.deploy(run_id)
        assert harness.store.live_counters.record_counts(harness.ref(run_id), [counted]) == 1
        await until(screen, lambda event: "<b>7</b>" in event.data)


async def test_a_token_that_gets_another_role_ends_the_stream(harness: Harness, keys: Keys) -> None:
    """Its page shows what the former role may see."""
    async with (
        served(harness.new_app(entrance=keys.entrance())) as server,
        watching(server.url, "/webhooks", **keys.headers("admin")) as screen,
    ):
        await until(screen, moved)
        keys.file.write_text(keys.file.read_text().replace('role = "admin"', 'role = "read"'))
        keys.now += 10
        async for _ in screen:
            pass


async def test_a_token_that_is_taken_back_ends_the_stream(harness: Harness, keys: Keys) -> None:
    start(harness)
    async with (
        served(harness.new_app(entrance=keys.entrance())) as server,
        watching(server.url, "/runs", **keys.headers("read")) as screen,
    ):
        first = await until(screen, moved)
        assert 'name="run"' not in first.data  # it has no button
        tables = keys.file.read_text().split("[[token]]")
        keys.file.write_text("[[token]]".join(one for one in tables if "the-read" not in one))
        keys.now += 10
        async for _ in screen:
            pass


async def test_a_gateway_that_leaves_ends_its_streams_at_once(harness: Harness) -> None:
    start(harness)
    async with served(harness.new_app()) as server, watching(server.url, "/runs") as screen:
        await until(screen, moved)
        await server.stop()
        async for _ in screen:
            pass


async def test_what_is_shown_is_as_old_as_its_rendering_began(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(harness)
    keep = live.Screen._keep

    def slow(self: live.Screen, text: str) -> None:
        keep(self, text)
        harness.clock.forward(7)

    monkeypatch.setattr(live.Screen, "_keep", slow)
    monkeypatch.setattr(live, "EVERY_S", 3600.0)
    async with (
        served(harness.new_app()) as server,
        watching(server.url, "/runs") as first,
        watching(server.url, "/runs") as second,
    ):
        await until(first, moved)
        told = json.loads((await until(second, lambda event: event.event == "tick")).data)
    assert (
        datetime.fromisoformat(told["now"]) - datetime.fromisoformat(told["as_of"])
    ).total_seconds() >= 7


async def test_a_page_of_something_else_moves_with_its_events(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "OTHERS_S", 3600.0)
    async with served(harness.new_app()) as server:
        with harness.client() as client:
            for flow in ("a", "b"):
                client.post("/v1/managers", json={"crawler": "plain", "flow_id": flow})
        async with (
            watching(server.url, "/managers") as every,
            watching(server.url, "/managers/2") as second,
            watching(server.url, "/graphs") as graphs,
        ):
            for screen in (every, second, graphs):
                await until(screen, moved)
            with harness.client() as client:
                client.post("/v1/managers/1/stop")
            await until(every, moved)
            with harness.client() as client:
                client.post("/v1/managers/2/stop")
            await until(second, moved)
            assert (await until(graphs, lambda event: True)).event == "tick"


async def test_what_no_event_tells_of_is_read_again_now_and_then(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "OTHERS_S", 0.1)
    hook = {"url": "https://hooks.example.com/x", "secrets": ["env:CRAWL_HOOK"]}
    async with served(harness.new_app()) as server, watching(server.url, "/webhooks") as webhooks:
        await until(webhooks, moved)
        with harness.client() as client:
            client.put("/v1/webhooks/portal", json=hook)
        await until(webhooks, lambda event: "portal" in event.data)
        async with watching(server.url, "/webhooks/portal") as portal:
            await until(portal, moved)
            with harness.client() as client:
                client.delete("/v1/webhooks/portal")
            await until(portal, lambda event: event.event == "gone")


async def test_a_screen_outlives_a_database_that_does_not_answer(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "EVERY_S", 0.05)
    run_id = start(harness)
    runs = type(harness.store.runs)
    real = runs.list_runs
    async with served(harness.new_app()) as server, watching(server.url, "/runs") as screen:
        await until(screen, moved)

        def away(*_: Any, **__: Any) -> Any:
            raise OSError("away")

        monkeypatch.setattr(runs, "list_runs", away)
        stop(harness, run_id)
        await until(screen, lambda event: event.event == "tick")
        monkeypatch.setattr(runs, "list_runs", real)
        await until(screen, lambda event: "stopping" in event.data)


def test_what_no_page_asks_for_is_refused(harness: Harness) -> None:
    for query in [
        "",
        "path=/runs/1/files",
        "path=/v1/runs",
        "path=//x",
        "path=/&seen=xyz",
        "path=/&more=1",
        "path=/nope",
    ]:
        with harness.client() as client:
            assert client.get(f"/page/events?{query}").status_code == 422, query


def test_nobody_watches_what_they_may_not_read(harness: Harness, keys: Keys) -> None:
    with TestClient(
        harness.new_app(entrance=keys.entrance()), base_url="http://127.0.0.1"
    ) as client:
        answer = client.get("/page/events?path=/webhooks", headers=keys.headers("operate"))
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
