"""Output of tasks: its end, everything new, from which position, and until when."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.clusters.local.cluster import LocalCluster
from crawler_lifecycle.clusters.local.folders.logs import LocalLogs
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition, CrawlerKind
from crawler_lifecycle.domain.errors import ClusterUnavailable
from crawler_lifecycle.domain.last_words import kept_log
from crawler_lifecycle.domain.resources import Resources
from crawler_lifecycle.domain.run import Limits, RunRequest
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import Change, Observation, Phase, TaskStatus, log_tail
from crawler_lifecycle.gateway.streams.logs import (
    BACK_MAX,
    CHUNK,
    FOUND_MAX,
    _last_lines,
)
from crawler_lifecycle.ports.files import LogPart
from crawler_lifecycle.ports.polls import Details, Poll, TaskFinding
from crawler_lifecycle.ports.runs import DeployedTask, Deployment, Fence, Owner, QueuedTask, TaskRef
from tests.gateway.gateway_harness import Harness
from tests.gateway.served import metric, served
from tests.support.fakes.logs import FakeLogs


class Task:
    """One run with one task, and what the task does as far as the database knows."""

    def __init__(self, harness: Harness) -> None:
        self.harness, self.store = harness, harness.store
        owner = Owner("w", "chain")
        handle = self.store.initiation.create_run(RunRequest(crawler="plain"), "logged", owner)
        self.run_id = handle.run_id
        self.fence = Fence(self.run_id, 1, "chain", handle.run_uid)
        self.task_id = self.store.tasks.list_tasks(self.run_id)[0].task_id

    def deployed(self) -> None:
        tasks, _ = self.store.deployment.offer_tasks(
            self.fence, 1, None, self.harness.clock() + timedelta(seconds=25)
        )
        self.store.deployment.record_deployed(
            self.fence,
            "fake",
            tasks,
            [DeployedTask(task.index, "created", "n", "u") for task in tasks],
            self.harness.clock(),
        )

    def became(self, before: TaskStatus, after: TaskStatus, tail: str | None = None) -> None:
        now = self.harness.clock()
        finding = TaskFinding(
            Change(self.task_id, before, after, now),
            Observation(0, 1, Phase.ENDED, now, name="n", uid="u"),
        )
        self.store.polls.record_poll(
            self.fence, Poll(now, 0.1, [finding.observation]), [finding], now
        )
        if tail is not None:
            self.store.polls.save_details(self.fence, [Details(self.task_id, tail)])
        self.store.polls.apply_details(self.fence)
        self.store.polls.apply_findings(self.fence, "look")

    def running(self) -> None:
        self.deployed()
        self.became(TaskStatus.PENDING, TaskStatus.RUNNING)

    @property
    def path(self) -> str:
        return f"/v1/runs/{self.run_id}/logs"


@pytest.fixture
def task(harness: Harness) -> Task:
    return Task(harness)


def _get(harness: Harness, path: str, logs: FakeLogs | None, **params: object) -> httpx.Response:
    with harness.client(harness.new_app(logs=logs)) as client:
        return client.get(path, params=params)  # type: ignore[arg-type, return-value]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crawler_lifecycle.gateway.streams.logs.STATUS_S", 0.05)


# --- lines ----------------------------------------------------------------------------------------


@given(st.lists(st.sampled_from([b"\n", b"a", b"\r", b"\x85", b"bc\n"])), st.integers(0, 6))
def test_the_last_lines_of_anything(parts: list[bytes], count: int) -> None:
    data = b"".join(parts)
    lines = [line + b"\n" for line in data.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    if not lines[-1]:
        lines.pop()
    assert (
        _last_lines(data, count)
        == b"".join(lines[len(lines) - count :] if count < len(lines) else lines)[
            : len(data) if count else 0
        ]
    )


def test_the_last_lines_of_a_long_log(harness: Harness, task: Task) -> None:
    for tail in [0, 1, 3, 1999, 2000, 2001, 10_000]:
        logs = FakeLogs()
        lines = [f"line {n} {'x' * 100}\n".encode() for n in range(2000)]
        logs.write(b"".join(lines), task.run_id)
        assert sum(map(len, lines)) > 3 * CHUNK, tail
        assert _get(harness, task.path, logs, tail=tail).content == b"".join(
            lines[max(0, 2000 - tail) :]
        )


class Gigabyte:
    """A log of a gigabyte. Implements ``TaskLogs``; each line is made when it is read."""

    size, line = 1_000_000_000, b"x" * 99 + b"\n"

    def __init__(self) -> None:
        self.given = 0

    def read(self, _run: RunRef, _task: TaskRef, after: int | None, limit: int) -> LogPart:
        place = self.size - limit if after is None else after
        data = (self.line * (limit // 100 + 2))[place % 100 :][: min(limit, self.size - place)]
        self.given += len(data)
        return LogPart(data, place + len(data), False)


async def test_of_a_log_of_a_gigabyte_only_what_is_taken_is_read(
    harness: Harness, task: Task
) -> None:
    task.running()
    log, page = Gigabyte(), f"/runs/{task.run_id}/log"
    async with (
        served(harness.new_app(logs=log)) as server,
        httpx.AsyncClient(base_url=server.url) as client,
    ):
        shown = await client.get(page)
        assert (shown.status_code, shown.text.count("x" * 99)) == (200, 500)
        assert log.given < 1_000_000
        async with client.stream("GET", f"{page}/whole") as download:
            took = 0
            async for piece in download.aiter_bytes():
                took += len(piece)
                if took > 5_000_000:
                    break
        assert log.given < 20_000_000, (
            "the rest of the download is not read before somebody takes it"
        )


def test_a_line_without_an_end_is_not_read_from_its_beginning(harness: Harness, task: Task) -> None:
    logs = FakeLogs()
    logs.write(b"begin" + b"x" * (BACK_MAX + 10), task.run_id)
    assert len(_get(harness, task.path, logs, tail=1).content) == BACK_MAX


def test_wrong_parameters_are_refused(client: TestClient, task: Task) -> None:
    for query in [
        "tail=-1",
        "tail=10001",
        "tail=x",
        "task=0",
        "follow=maybe",
        "lines=3",
        "around=3",
        "level=loud",
        "before=-1",
        "q=",
    ]:
        answer = client.get(f"{task.path}?{query}")
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request"), query
        assert answer.json()["errors"][0]["field"] == query.partition("=")[0]


# --- where it comes from --------------------------------------------------------------------------


def test_whatever_was_printed_arrives_as_it_is_and_is_no_page(harness: Harness, task: Task) -> None:
    logs = FakeLogs()
    hostile = bytes(range(256)) + b"\x1b[2J\x1b]0;title\x07<script>alert(1)</script>\r\n\xff\xfe\n"
    logs.write(hostile, task.run_id)
    answer = _get(harness, task.path, logs)
    assert answer.content == hostile
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"


def test_the_log_itself_comes_before_its_kept_end(harness: Harness, task: Task) -> None:
    task.deployed()
    task.became(TaskStatus.PENDING, TaskStatus.SUCCEEDED, tail="two\nthree\n")
    logs = FakeLogs()
    assert _get(harness, task.path, logs).text == "two\nthree\n"
    assert _get(harness, task.path, logs, tail=1, follow=True).text == "three\n"
    assert _get(harness, task.path, None, follow=True).text == "two\nthree\n"
    logs.write(b"one\ntwo\nthree\n", task.run_id)
    logs.end(task.run_id)
    for follow in (False, True):
        assert _get(harness, task.path, logs, follow=follow).text == "one\ntwo\nthree\n"


NOISE = b"2026-03-01 12:00:00 [scrapy.core.engine] DEBUG: Crawled (200) <GET https://shop.example/> (referer: None)\n"
ERROR = b"2026-03-01 12:00:00 [scrapy.core.scraper] ERROR: Spider error\nTraceback (most recent call last):\n  x\n"


def test_a_log_opens_at_its_last_error(harness: Harness, task: Task) -> None:
    logs = FakeLogs()
    early, late = NOISE * 5_000, NOISE * 3_300
    logs.write(early + ERROR + b"KeyError: 'price'\n" + late, task.run_id)
    task.running()
    answer = _get(harness, task.path, logs, around="error", before=10, after=7)
    assert (answer.headers["X-Log-Line"], answer.headers["X-Log-First"]) == ("5004", "4994")
    assert answer.content == NOISE * 7 + ERROR + b"KeyError: 'price'\n" + NOISE * 7
    page = _get(harness, f"/runs/{task.run_id}/log", logs, around="error").text
    assert "Lines 4\u202f804 to 5\u202f204" in page
    found = re.search(r'<span id="found" class="error"><a [^>]*>5004</a> ([^\n]*)', page)
    assert found is not None
    assert found[1] == "KeyError: &#39;price&#39;"


def test_lines_around_a_line_and_lines_that_fit(harness: Harness, task: Task) -> None:
    logs = FakeLogs()
    log = NOISE * 66_665 + ERROR + b"KeyError: 'price'\n" + NOISE * 33_331
    logs.write(log, task.run_id)
    task.running()
    lines = log.split(b"\n")
    around = _get(harness, task.path, logs, around="line", line=66_666, before=2, after=1)
    assert around.content == b"\n".join(lines[66_663:66_667]) + b"\n"
    beyond = _get(harness, task.path, logs, around="line", line=10**9, before=0, after=0)
    assert beyond.headers["X-Log-Line"] == "100001"
    errors = _get(harness, task.path, logs, level="error")
    assert errors.text.splitlines() == [
        f"66666:{lines[66_665].decode()}",
        "66667:Traceback (most recent call last):",
        "66669:KeyError: 'price'",
    ]
    assert "X-Log-Next" not in errors.headers
    assert (
        _get(harness, task.path, logs, q="PRICE", level="error").text == "66669:KeyError: 'price'\n"
    )
    assert _get(harness, task.path, logs, q="no such text").text == ""
    many = _get(harness, task.path, logs, q="crawled")
    assert (many.text.count("\n"), many.headers["X-Log-Next"]) == (FOUND_MAX, str(FOUND_MAX + 1))
    rest = _get(harness, task.path, logs, q="crawled", line=99_900)
    assert rest.text.partition(":")[0] == "99900"
    page = f"/runs/{task.run_id}/log"
    shown = _get(harness, page, logs, q="'price'", level="").text
    assert "1 matching line, in the part of the log that can be read here" in shown
    assert "Continue the search at line 501" in _get(harness, page, logs, q="crawled").text


def test_the_lines_of_a_followed_log_have_the_numbers_of_its_links(
    harness: Harness, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = FakeLogs()
    lines = [f"line {n}\n".encode() for n in range(1, 30_001)]
    logs.write(b"".join(lines), task.run_id)
    logs.end(task.run_id)
    task.became(TaskStatus.PENDING, TaskStatus.SUCCEEDED, tail="line a\nline b\nline c\n")
    for tail, first in ((1, 30_000), (500, 29_501), (10_000, 20_001)):
        followed = _get(harness, task.path, logs, tail=tail, follow=True)
        assert followed.headers["X-Log-First"] == str(first)
        around = _get(harness, task.path, logs, around="line", line=first, before=0, after=0)
        assert around.content == lines[first - 1] == followed.content[: len(around.content)]
    kept = _get(harness, task.path, None, tail=2, follow=True)
    assert (kept.headers["X-Log-First"], kept.text) == ("2", "line b\nline c\n")
    around = _get(harness, task.path, None, around="line", line=2, before=0, after=0)
    assert around.text == "line b\n"
    assert "X-Log-First" not in _get(harness, task.path, logs, tail=1).headers
    monkeypatch.setattr("crawler_lifecycle.gateway.streams.logs.COUNTED_MAX", 1000)
    large = _get(harness, task.path, logs, tail=1, follow=True)
    assert "X-Log-First" not in large.headers, "too much would have to be counted"
    page = _get(harness, f"/runs/{task.run_id}/log", logs).text
    assert (
        f'data-line="/runs/{task.run_id}/log?task={task.task_id}&amp;around=line&amp;line="' in page
    )


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("around", {"around": "error", "q": "x"}),
        ("around", {"around": "error", "follow": True}),
        ("follow", {"q": "x", "follow": True}),
        ("line", {"around": "line"}),
        ("line", {"line": 3}),
        ("q", {"q": "a\nb"}),
    ],
)
def test_parameters_that_contradict_each_other_are_refused(
    harness: Harness, task: Task, field: str, wrong: dict[str, Any]
) -> None:
    answer = _get(harness, task.path, FakeLogs(), **wrong)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, field)


def test_where_the_log_is_gone_its_kept_part_opens_at_the_error(
    harness: Harness, task: Task
) -> None:
    log = NOISE * 5_000 + ERROR + b"KeyError: 'price'\n" + NOISE * 3_300
    kept = log_tail(kept_log(lambda at, most: log[at : at + most], len(log), failed=True))
    task.became(TaskStatus.PENDING, TaskStatus.FAILED, tail=kept)
    for logs in (None, FakeLogs()):
        answer = _get(harness, task.path, logs, around="error")
        number = int(answer.headers["X-Log-Line"])
        assert kept.split("\n")[number - 1] == "KeyError: 'price'"
        assert ERROR.decode() + "KeyError: 'price'" in answer.text
        assert f"{number}:KeyError: 'price'" in _get(harness, task.path, logs, q="KeyError").text


def test_a_log_without_an_error_says_so(harness: Harness, task: Task) -> None:
    task.became(TaskStatus.PENDING, TaskStatus.SUCCEEDED, tail=NOISE.decode())
    answer = _get(harness, task.path, None, around="error")
    assert (answer.status_code, answer.json()["code"]) == (404, "log_not_found")
    assert "contains no error; omit around to see its end" in answer.json()["detail"]


def test_a_search_in_a_log_out_of_reach_is_explained(harness: Harness, task: Task) -> None:
    task.running()
    answer = _get(harness, task.path, None, q="price")
    assert (answer.status_code, answer.json()["code"]) == (404, "log_not_found")
    assert "the log's end is stored after the task has ended" in answer.json()["detail"]


def test_a_log_that_goes_away_while_it_is_asked_for_is_given_as_it_was_kept(
    harness: Harness, task: Task
) -> None:
    """A pod whose end is on record is released, so its log may disappear between two requests."""

    class Vanishing(FakeLogs):
        asked = 0

        def read(self, run: RunRef, ref: TaskRef, after: int | None, limit: int) -> LogPart | None:
            self.asked += 1
            return super().read(run, ref, after, limit) if self.asked == 1 else None

    task.deployed()
    task.became(TaskStatus.PENDING, TaskStatus.SUCCEEDED, tail="two\nthree\n")
    for tail, expected in ((100, "two\nthree\n"), (1, "three\n")):
        logs = Vanishing()
        logs.write(b"one\ntwo\nthree\n", task.run_id)
        logs.end(task.run_id)
        assert _get(harness, task.path, logs, tail=tail).text == expected


@pytest.mark.parametrize("follow", [False, True])
def test_a_log_out_of_reach_is_explained(harness: Harness, task: Task, follow: bool) -> None:
    task.running()
    answer = _get(harness, task.path, FakeLogs() if follow else None, follow=follow)
    assert (answer.status_code, answer.json()["code"]) == (404, "log_not_found")
    assert (
        "this gateway cannot read logs of the cluster" in answer.json()["detail"]
        if follow
        else True
    )
    assert "stored after the task has ended" in answer.json()["detail"]


def test_a_task_that_waits_has_printed_nothing_and_is_told_how_to_wait_for_it(
    harness: Harness, task: Task
) -> None:
    answer = _get(harness, task.path, FakeLogs())
    assert (answer.status_code, answer.json()["code"]) == (404, "log_not_found")
    assert "follow=true" in answer.json()["detail"]


def test_a_cluster_that_does_not_answer_is_no_missing_log(harness: Harness, task: Task) -> None:
    logs = FakeLogs()
    logs.error = ClusterUnavailable("the disk is gone")
    answer = _get(harness, task.path, logs)
    assert (answer.status_code, answer.json()["code"]) == (503, "cluster_unavailable")


# --- following ------------------------------------------------------------------------------------


def _followed(
    harness: Harness, task: Task, logs: FakeLogs, *steps: Callable[[], object], tail: int = 10
) -> httpx.Response:
    """Follow the log, and take the steps one after the other once it has begun."""
    app = harness.new_app(logs=logs)
    over = threading.Event()

    def play() -> None:
        while not metric(app, "readers", "log") and not over.wait(0.01):
            pass
        for step in steps:
            over.wait(0.3)
            step()

    with ThreadPoolExecutor(1) as threads, harness.client(app) as client:
        playing = threads.submit(play)
        answer = client.get(task.path, params={"follow": True, "tail": tail})
        over.set()
        playing.result()
    return answer  # type: ignore[return-value]


@pytest.mark.usefixtures("quick")
def test_following_gives_all_of_it_and_ends_with_the_task(harness: Harness, task: Task) -> None:
    task.running()
    logs = FakeLogs()
    logs.write(b"old\none\n", task.run_id)
    large = b"x" * (3 * CHUNK) + b"\n"
    answer = _followed(
        harness,
        task,
        logs,
        lambda: logs.write(b"two\n", task.run_id),
        lambda: logs.write(large, task.run_id),
        lambda: (logs.write(b"end\n", task.run_id), logs.end(task.run_id)),
        tail=1,
    )
    assert answer.content == b"one\ntwo\n" + large + b"end\n"


@pytest.mark.usefixtures("quick")
def test_following_waits_for_the_start_and_survives_outages(harness: Harness, task: Task) -> None:
    task.deployed()
    logs = FakeLogs()
    answer = _followed(
        harness,
        task,
        logs,
        lambda: logs.write(b"one\n", task.run_id),
        lambda: setattr(logs, "error", ClusterUnavailable("away")),
        lambda: (logs.write(b"two\n", task.run_id), setattr(logs, "error", None)),
        lambda: logs.end(task.run_id),
    )
    assert (answer.status_code, answer.content) == (200, b"one\ntwo\n")


@pytest.mark.usefixtures("quick")
def test_a_task_that_ended_elsewhere_is_followed_to_its_kept_end(
    harness: Harness, task: Task
) -> None:
    task.deployed()
    ends = lambda: task.became(TaskStatus.PENDING, TaskStatus.SUCCEEDED, tail="the end\n")  # noqa: E731
    assert _followed(harness, task, FakeLogs(), ends).text == "the end\n"


@pytest.mark.usefixtures("quick")
def test_a_log_that_nobody_ends_is_followed_until_the_database_says_so(
    harness: Harness, task: Task
) -> None:
    task.running()
    logs = FakeLogs()
    logs.write(b"one\n", task.run_id)
    lost = lambda: task.became(  # noqa: E731
        TaskStatus.RUNNING, TaskStatus.LOST, tail="kept, not to be shown twice\n"
    )
    assert _followed(harness, task, logs, lost).text == "one\n"


async def test_who_leaves_is_not_followed_any_more(harness: Harness, task: Task) -> None:
    logs = FakeLogs()
    logs.write(b"one\n", task.run_id)
    app = harness.new_app(logs=logs)
    async with served(app) as server, httpx.AsyncClient(timeout=60) as client:
        async with client.stream("GET", f"{server.url}{task.path}?follow=true") as answer:
            assert await anext(answer.aiter_bytes()) == b"one\n"
            assert metric(app, "readers", "log") == 1
        async with asyncio.timeout(60):
            while metric(app, "readers", "log"):  # noqa: ASYNC110
                await asyncio.sleep(0.02)


async def test_the_end_of_the_gateway_ends_what_is_followed(harness: Harness, task: Task) -> None:
    logs = FakeLogs()
    logs.write(b"one\n", task.run_id)
    async with (
        asyncio.timeout(60),  # below the server's own timeout
        served(harness.new_app(logs=logs), grace_s=150) as server,
        httpx.AsyncClient(timeout=60) as client,
        client.stream("GET", f"{server.url}{task.path}?follow=true") as answer,
    ):
        assert await anext(answer.aiter_bytes()) == b"one\n"
        await server.stop()


# --- the real thing -------------------------------------------------------------------------------

_CRAWLER = """
import sys, time
for n in range(20):
    print("line", n, "x" * 50, flush=True)
    time.sleep(0.03)
sys.stdout.buffer.write(bytes(range(256)))
"""


@pytest.mark.usefixtures("quick")
def test_a_real_task_is_followed_to_its_last_byte(
    harness: Harness, task: Task, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    cluster = LocalCluster(state, slots=1)
    crawler = CrawlerDefinition(
        "plain", CrawlerKind.COMMAND, command=[sys.executable, "-I", "-S", "-c", _CRAWLER]
    )
    deployment = Deployment(
        run=task.fence.run,
        attempt=1,
        crawler="plain",
        args={},
        settings={},
        tasks=[QueuedTask(task.task_id, 0, {})],
        resources=Resources(),
        limits=Limits(),
        expires_at=datetime.now(UTC) + timedelta(seconds=120),
    )
    task.deployed()
    cluster.deploy(deployment, crawler)
    with harness.client(harness.new_app(logs=LocalLogs(state))) as client:
        followed = client.get(f"{task.path}?follow=true").content
        again = client.get(f"{task.path}?tail=10000").content
    log = next((state / "tasks").rglob("log")).read_bytes()
    assert followed == again == log
    assert log.count(b"line") == 20
    assert bytes(range(256)) in log


def test_a_link_in_the_place_of_a_log_opens_nothing(
    harness: Harness, task: Task, tmp_path: Path
) -> None:
    task.running()
    folder = tmp_path / "tasks" / str(task.fence.run) / "0" / "1"
    folder.mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    os.symlink(tmp_path / "secret", folder / "log")
    with harness.client(harness.new_app(logs=LocalLogs(tmp_path))) as client:
        answer = client.get(task.path)
    assert answer.status_code == 404
    assert "secret" not in answer.text
