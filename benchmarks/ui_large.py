"""Large pages: a run of ten thousand tasks, and graphs of thousands of steps; how fast they load
and move.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime

import httpx
import sqlalchemy as sa

from benchmarks.ui_browser import Visit, answers_within, middle, most, visiting
from benchmarks.ui_harness import UiHarness
from crawler_lifecycle.domain.names import graph_subject, run_subject
from crawler_lifecycle.features.graphs.domain.pages import encode_pages, fingerprint
from crawler_lifecycle.features.graphs.ports import NewGraph
from crawler_lifecycle.features.graphs.store.tables import graph_step
from crawler_lifecycle.graphs import Workflow, crawl
from crawler_lifecycle.store.base.outbox import insert_event
from crawler_lifecycle.store.runs.tables import task_history

TASKS, STEPS, MANY, LAYER, VISITS, MOVES = 10_000, 2_000, 10_000, 50, 5, 8
RUN_S, GRAPH_S, MANY_S, TASK_MS = 1.0, 1.0, 5.0, 200.0
DRAWN = "#drawing svg:not([aria-busy])"
#: Records when the drawing is complete, in milliseconds from the beginning of the navigation.
NOTE_DRAWN = """
addEventListener('DOMContentLoaded', () => {
  const room = document.getElementById('drawing');
  if (room) new MutationObserver((_, own) => {
    if (!room.querySelector('svg:not([aria-busy])')) return;
    own.disconnect();
    requestAnimationFrame(() => setTimeout(() => { window.drawnAt = performance.now(); }));
  }).observe(room, {childList: true, subtree: true, attributes: true});
});
"""


async def graphs(harness: UiHarness) -> None:
    """Print the figures of graphs."""
    await _graph(harness, "layers", _layers(STEPS), GRAPH_S)
    await _graph(harness, "fan", _fan(STEPS), GRAPH_S)
    await _graph(harness, "many", _layers(MANY), MANY_S)


async def run(harness: UiHarness) -> None:
    """Print the figures of a run."""
    large, t = harness.new_large_run(TASKS), task_history.c
    _move_tasks(harness, large.run_id, 1, TASKS // 2, "SUCCEEDED")

    def move(n: int) -> None:
        changed = sa.update(task_history).where(
            t.run_id == large.run_id, t.task_index == TASKS // 2 + n
        )
        with harness.store.database.writing() as connection:
            connection.execute(changed.values(status="SUCCEEDED", ended_at=datetime.now(UTC)))
            _tell(connection, run_subject(large.run_id), large.run_uid, large.run_id)

    path = f"/runs/{large.run_id}"
    await _report(harness, f"page of a run of {TASKS:,} tasks", path, RUN_S, "#subject-head", move)


def _move_tasks(harness: UiHarness, run_id: int, first: int, last: int, status: str) -> None:
    t = task_history.c
    some = sa.update(task_history).where(t.run_id == run_id, t.task_index.between(first, last))
    with harness.store.database.writing() as connection:
        connection.execute(some.values(status=status, ended_at=datetime.now(UTC)))


async def _graph(harness: UiHarness, key: str, graph: Workflow, target_s: float) -> None:
    spec = graph.spec()
    pages = encode_pages(spec)
    graphs, key = harness.store.graphs, f"page-{key}"
    row, _ = graphs.reserve_graph(
        NewGraph(key, fingerprint(spec), len(pages), options=spec.options)
    )
    for page, data in enumerate(pages):
        graphs.add_graph_page(row.graph_id, page, data)
    graphs.make_graph(row.graph_id)

    def move(n: int) -> None:
        s = graph_step.c
        changed = sa.update(graph_step).where(s.graph_id == row.graph_id, s.number == n)
        with harness.store.database.writing() as connection:
            connection.execute(changed.values(state="completed"))
            _tell(connection, graph_subject(key), row.graph_uid)

    await _report(
        harness,
        f"graph of {len(spec.steps):,} steps ({key})",
        f"/graphs/{key}",
        target_s,
        DRAWN,
        move,
    )
    async with visiting(
        harness.browser, harness.gateway.url + f"/graphs/{key}", NOTE_DRAWN, until=DRAWN
    ) as visit:
        since = await visit.now()
        await visit.page.click("#drawing .unfold-all")
        await visit.page.wait_for_selector(DRAWN, state="attached")
        unfolded = await visit.now() - since
        await visit.page.focus("#drawing .pane")
        for pressed in ("0", *"+" * 12, *["ArrowRight", "ArrowDown"] * 10, "0"):
            await visit.page.keyboard.press(pressed)
            await asyncio.sleep(0.05)
        tasks = await visit.tasks(since)
        print(
            f"  all unfolded after {unfolded:.0f} ms; longest task of the main thread then and ",
            end="",
        )
        print(
            f"while one zooms and moves {most(tasks):.0f} ms (target: <= {TASK_MS:g}), {len(tasks)} "
            "above 50 ms"
        )


def _layers(steps: int) -> Workflow:
    """Make steps that each depend on two others of their own, so that no two are alike."""
    graph = Workflow(id="layers")
    for n in range(steps):
        layer, place = divmod(n, LAYER)
        deps = (
            {(layer - 1) * LAYER + (place + shift) % LAYER for shift in (0, 1 + layer % 7)}
            if layer
            else set()
        )
        graph.add(f"s{n}", crawl("books", args={"n": str(n)}), [f"s{one}" for one in sorted(deps)])
    return graph


def _fan(steps: int) -> Workflow:
    """Make a step before and a step after all others, which are alike."""
    graph = Workflow(id="fan").add("first", crawl("books"))
    names = [f"s{n}" for n in range(steps - 2)]
    for n, name in enumerate(names):
        graph.add(name, crawl("books", args={"n": str(n)}), ["first"])
    return graph.add("last", crawl("books"), names)


def _tell(connection: sa.Connection, subject: str, uid: str, run_id: int | None = None) -> None:
    key = f"told-{time.time_ns()}"
    insert_event(
        connection,
        datetime.now(UTC),
        "benchmark.told",
        subject,
        uid,
        {},
        run_id=run_id,
        event_key=key,
    )


async def _report(
    harness: UiHarness,
    title: str,
    path: str,
    target_s: float,
    until: str,
    move: Callable[[int], None],
) -> None:
    """Measure the server alone, visitors with an empty cache, and then changes while one of them
    watches.
    """
    async with httpx.AsyncClient(base_url=harness.gateway.url, timeout=30) as http:
        times = []
        for _ in range(VISITS):
            began = time.perf_counter()
            answer = await http.get(
                path, headers={"Accept": "text/html", "Accept-Encoding": "gzip"}
            )
            times.append((time.perf_counter() - began) * 1000)
            answer.raise_for_status()
    usable, tasks = [], []
    for _ in range(VISITS):
        async with visiting(
            harness.browser, harness.gateway.url + path, NOTE_DRAWN, until=until
        ) as visit:
            drawn = await visit.page.evaluate("window.drawnAt ?? 0")
            usable.append(max(visit.usable_ms, drawn))
            tasks.append(most(await visit.tasks()))
            size = sum(visit.loaded.values()) / 1024
    print(
        f"{title}: server {middle(times):.0f} ms, in Chromium usable after "
        f"{middle(usable):.0f} ms ",
        end="",
    )
    print(f"(target: <= {target_s:g} s; fastest {min(usable):.0f}), {size:.0f} KB; ", end="")
    print(f"longest task of the main thread until then {middle(tasks):.0f} ms")
    async with visiting(
        harness.browser, harness.gateway.url + path, NOTE_DRAWN, until=until
    ) as visit:
        await asyncio.sleep(5)
        await _moving(visit, move)


async def _moving(visit: Visit, move: Callable[[int], None]) -> None:
    since, before = await visit.now(), visit.loaded["/page/events"]

    async def moves() -> None:
        for n in range(1, MOVES + 1):
            await asyncio.to_thread(move, n)
            await asyncio.sleep(1)

    moving = asyncio.create_task(moves())
    answers = await answers_within(visit.page, MOVES + 3)
    await moving
    tasks = await visit.tasks(since)
    sent = (visit.loaded["/page/events"] - before) / 1024
    print(
        f"  {MOVES} steps or tasks move: longest task of the main thread {most(tasks):.0f} ms ",
        end="",
    )
    print(
        f"(target: <= {TASK_MS:g}), {len(tasks)} above 50 ms; answers within "
        f"{most(answers):.0f} ms; ",
        end="",
    )
    print(f"{sent:.0f} KB by the stream", flush=True)
