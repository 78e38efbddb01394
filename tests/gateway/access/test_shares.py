"""Shares: one project never holds all slots, and work ends with its client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from crawler_lifecycle.clusters.local.folders.task_files import LocalFiles
from crawler_lifecycle.domain.projects import limited
from crawler_lifecycle.domain.run import RunRequest
from crawler_lifecycle.gateway.access import slots as module
from crawler_lifecycle.gateway.access.slots import Slots, is_over
from crawler_lifecycle.gateway.runs.items import TABLES
from crawler_lifecycle.ports.files import FilePart
from crawler_lifecycle.ports.runs import Owner as RunOwner
from crawler_lifecycle.web.problems import Problem
from crawler_lifecycle.web.shares import PROCESS, Shares
from tests.gateway.gateway_harness import Harness
from tests.gateway.keys import Keys
from tests.gateway.served import served, until

LEVELS = ("login", "token", "project")


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3), st.integers(1, 3)),
        max_size=60,
    )
)
def test_no_owner_holds_more_than_its_share_and_all_comes_back(
    asked: list[tuple[int, int, int, int]],
) -> None:
    counted = Shares()
    taken: list[tuple[dict[Any, int], int]] = []
    for login, token, project, amount in asked:
        names = (f"{project}.{token}.{login}", f"{project}.{token}", str(project))
        owners = dict(zip(zip(LEVELS, names, strict=True), (2, 3, 5), strict=True)) | {PROCESS: 8}
        before = dict(counted.held)
        full = counted.take(owners, amount)
        if full is None:
            taken.append((owners, amount))
        else:
            assert before.get(full, 0) + amount > owners[full]
            assert counted.held == before
        assert all(counted.held[owner] <= most for owner, most in owners.items())
    for owners, amount in taken:
        counted.give_back(owners, amount)
    assert not counted.held


class Gate:
    """Work that waits, with its owner."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.begun: list[str] = []
        self.ended: list[str] = []

    def work(self, name: str) -> str:
        self.begun.append(name)
        while not self.open.wait(0.01) and not is_over():
            continue
        self.ended.append(name)
        return name


def _held(places: Slots) -> int:
    return places._all.borrowed_tokens


async def _of(project: str | None, places: Slots, gate: Gate, name: str) -> str:
    with limited(project):
        return await places.run(None, gate.work, name)


async def test_a_project_waits_behind_no_more_than_the_shares_of_others() -> None:
    # Slots are assigned in the event loop. Threads would begin in an order of the operating system.
    places, gate, begun = Slots(3, 2), asyncio.Event(), list[str]()

    async def hold(name: str) -> None:
        with limited(name[0]):
            async with places.slot():
                begun.append(name)
                await gate.wait()

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for name in (*(f"a{number}" for number in range(40)), "b1", "b2", "c1"):
            group.create_task(hold(name))
        await until(lambda: len(begun) == 3)
        assert begun == ["a0", "a1", "b1"], "a may hold two places of three"
        await until(lambda: places._all.statistics().tasks_waiting == 2)
        gate.set()
    assert begun.index("c1") <= 4, (
        "behind its own share and those of a and b, not behind the 38 others of a"
    )
    assert len(begun) == 43
    assert not _held(places)
    assert not places._own


async def test_a_cancelled_work_is_told_and_keeps_its_place_until_it_ended() -> None:
    gate, places = Gate(), Slots(1, 1)
    stubborn = threading.Event()
    holder = asyncio.create_task(places.run(None, stubborn.wait, 60))
    await until(lambda: _held(places) == 1)
    waiting = [asyncio.create_task(_of("a", places, gate, name)) for name in ("first", "second")]
    await asyncio.sleep(0)
    holder.cancel()
    waiting[0].cancel()
    await asyncio.wait([holder, waiting[0]])
    assert _held(places) == 1, "its thread still works"
    stubborn.set()
    await until(lambda: gate.begun == ["second"])
    waiting[1].cancel()
    await until(lambda: gate.ended == ["second"])
    await until(lambda: not _held(places))


async def test_work_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WORK_S", 0.0)
    gate = Gate()
    async with asyncio.timeout(60):
        assert await _of("a", Slots(1, 1), gate, "late") == "late"
    assert not gate.open.is_set()
    assert not is_over(), "nobody set a deadline for this"


def _request(gone: asyncio.Event) -> Request:
    async def receive() -> Any:
        await gone.wait()
        return {"type": "http.disconnect"}

    return Request({"type": "http", "headers": []}, receive)


async def test_who_leaves_ends_its_work_and_who_waits_too_long_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ASK_S", 0.01)
    monkeypatch.setattr(module, "WAIT_S", 0.05)
    gate, places, gone = Gate(), Slots(1, 1), asyncio.Event()
    work = asyncio.create_task(places.run(_request(gone), gate.work, "a"))
    await until(lambda: gate.begun == ["a"])
    with pytest.raises(Problem, match="Too much is being read") as refused:
        await places.run(_request(asyncio.Event()), gate.work, "b")
    assert (refused.value.status, refused.value.code) == (503, "overloaded")
    gone.set()
    with pytest.raises(Problem, match="The client disconnected"):
        await work
    await until(lambda: gate.ended == ["a"])
    assert await places.run(None, str, 5) == "5"


# --- through the entry point
# -----------------------------------------------------------------------------


class SlowFiles(LocalFiles):
    """Files whose next part always comes, and never ends an item."""

    reads = 0

    def read(self, run: Any, task: Any, path: str, place: int, limit: int) -> FilePart | None:
        if path != "items.jsonl":
            return super().read(run, task, path, place, limit)
        SlowFiles.reads += 1
        threading.Event().wait(0.01)
        return FilePart(b"x\n" * 100, 10**12)


@asynccontextmanager
async def _two_projects(
    harness: Harness, folder: Path
) -> AsyncIterator[tuple[Any, dict[str, str]]]:
    """A gateway behind a server, and the addresses of a run of project a with an endless feed, and
    of one of b.
    """
    keys = Keys(folder, "a", "b")
    addresses = {}
    for project, name in (("a", "items.jsonl"), ("b", "items.jl")):
        request = RunRequest(crawler="plain", project=project)
        handle = harness.store.initiation.create_run(request, project, RunOwner("w", "chain"))
        files = folder / "tasks" / f"{handle.run_id}-{handle.run_uid}" / "0" / "1" / "files"
        files.mkdir(parents=True)
        (files / name).write_text('{"n": 1}\n')
        addresses[project] = f"/v1/runs/{handle.run_id}/items"
    SlowFiles.reads = 0
    app = harness.new_app(live_files=SlowFiles(folder), entrance=keys.entrance())
    async with served(app) as server, httpx.AsyncClient(base_url=server.url, timeout=120) as client:

        async def ask(project: str, more: str) -> httpx.Response:
            return await client.get(
                f"{addresses[project]}{more}", headers=keys.headers(f"{project}-read")
            )

        yield ask, addresses


@pytest.mark.parametrize("what", ["", "/stats", "/feed?contains=y", "/feed?format=csv"])
async def test_a_hostile_feed_delays_no_other_project_and_ends_with_its_client(
    harness: Harness, tmp_path: Path, what: str
) -> None:
    """Two readers of one project once took all slots for tables, and continued after their client
    had left.
    """
    async with _two_projects(harness, tmp_path) as (ask, _):
        readers = [asyncio.create_task(ask("a", what)) for _ in range(2 * TABLES[0])]
        await until(lambda: SlowFiles.reads > 3)
        for more in ("", "/stats", "/feed"):
            answer = await ask("b", more)
            assert answer.status_code == 200
            assert not [task for task in readers if task.done()], (
                "the readers of a still hold what they may"
            )
        for reader in readers:
            reader.cancel()
        await asyncio.wait(readers)

        async def is_quiet() -> bool:
            before = SlowFiles.reads
            await asyncio.sleep(0.3)
            return SlowFiles.reads == before

        async with asyncio.timeout(module.WORK_S / 2):
            while not await is_quiet():
                pass


def test_one_project_has_not_all_tables() -> None:
    assert TABLES[1] < TABLES[0]
