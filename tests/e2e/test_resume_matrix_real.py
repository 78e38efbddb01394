"""Resuming on a stack of real processes: running tasks are adopted, ended ones are reported, and
nothing is done twice.

Covers the rows of ``resuming.md`` that depend on something real: process ids, folders, Scrapy's
state, HTTP and Temporal. ``tests/workflows/test_resume_matrix.py`` covers the others.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from crawler_lifecycle.cli.client.gateway import Gateway
from crawler_lifecycle.cli.problems import CommandFailed, Exit
from crawler_lifecycle.cli.stack import processes
from crawler_lifecycle.domain.run_data import Items
from crawler_lifecycle.graphs.client import Gateway as Platform
from crawler_lifecycle.runner.state import NOT_ASKED, NOT_CLEAN, WENT_ON
from examples.story_checks import CHECKS, run_folder, task_processes
from tests.e2e.harness import ENDLESS, QUICK, Harness, Row, until

SOME = {"max_pages": "60", "delay": "0.15"}
#: Scrapy, slow enough to be stopped in the middle.
SLOW: Row = {
    "crawler": "operations",
    "args": {"max_pages": "20"},
    "settings": {"DOWNLOAD_DELAY": "0.4"},
}


# --- what every test does -------------------------------------------------------------------------


def start(harness: Harness, **request: Any) -> int:
    """A run whose tasks execute."""
    run = int(
        harness.gateway.start({"crawler": "plain", **request, **QUICK}, uuid.uuid4().hex)["run_id"]
    )
    until(lambda: harness.tasks(run).get("RUNNING"), "a task that runs")
    return run


def terminate(harness: Harness, run: int) -> None:
    [(workflow_id,)] = harness.query(
        "SELECT owner_workflow_id FROM run_history WHERE run_id = ?", run
    )
    harness.temporal(
        "workflow", "terminate", "--workflow-id", workflow_id, "--reason", "by an operator"
    )


def folder_of(harness: Harness, run: int, index: int = 0, attempt: int = 1) -> Path:
    return run_folder(harness.folder, run) / str(index) / str(attempt)


def resumed(harness: Harness, run: int, attempt: int = 2, **more: Any) -> None:
    """Resume it over HTTP, and wait until the next attempt has its workflow."""
    harness.gateway.resume(run, **more)
    sql = "SELECT attempt FROM run_history WHERE run_id = ?"
    until(lambda: harness.query(sql, run) == [(attempt,)], f"attempt {attempt}")


def proved(
    harness: Harness, run: int, status: str, outcome: str, attempt: int, *corrections: str
) -> Row:
    """Check that every source reports the same end, and nothing twice."""
    until(lambda: harness.closed([run]), "the end of the run", 120)
    found: Row = harness.gateway.run(run)
    assert (found["status"], found["outcome"], found["attempt"]) == (status, outcome, attempt), (
        found["cause"]
    )
    for name in ("database", "processes", "archive"):
        CHECKS[name](harness.places, found)
    kinds = {kind for (kind,) in harness.query("SELECT kind FROM correction WHERE run_id = ?", run)}
    # A crawler that was killed together with its supervisor may or may not have left its exit
    # status.
    assert kinds - {"late", "repair"} <= set(corrections)
    assert bool(kinds & set(corrections)) == bool(corrections)
    twice = "SELECT task_id FROM status_transition WHERE run_id = ? AND task_id IS NOT NULL GROUP BY task_id, to_status"
    assert harness.query(f"{twice} HAVING COUNT(*) > 1", run) == []
    ended = harness.query(
        "SELECT attempt FROM outbox_event WHERE run_id = ? AND type = 'run.ended'", run
    )
    assert len(ended) == len(set(ended))
    return found


def rows(harness: Harness, run: int) -> list[tuple[Any, ...]]:
    """Return index, attempt, status, and whether another row replaced it."""
    sql = "SELECT task_index, attempt, status, superseded_by IS NOT NULL FROM task_history WHERE run_id = ?"
    return harness.query(f"{sql} ORDER BY task_index, attempt", run)


def crawled(harness: Harness, run: int, attempt: int) -> list[str]:
    """Return the addresses that Scrapy fetched, except robots.txt."""
    log = (folder_of(harness, run, attempt=attempt) / "log").read_text(errors="replace")
    return [
        url
        for url in re.findall(r"Crawled \(200\) <GET (\S+?)>", log)
        if not url.endswith("robots.txt")
    ]


def feed_of(harness: Harness, run: int, attempt: int) -> list[str]:
    """Return the items that an attempt wrote, one per line."""
    return (
        (folder_of(harness, run, attempt=attempt) / "files" / "items.jsonl")
        .read_text()
        .splitlines()
    )


def says(harness: Harness, run: int, note: str, resumed: bool) -> None:
    """Check whether the run says that it continued: over HTTP, in the list of its tasks, and to the
    operator.
    """
    assert harness.gateway.run(run)["resumption"] == [
        {"resumed": resumed, "note": note, "tasks": 1}
    ]
    last = harness.gateway.tasks(run)[-1]
    assert (last["resumed"], last["resume_note"]) == (resumed, note)
    described = harness.crawlctl("describe", str(run)).stdout
    assert f"1 task: {note}" in " ".join(described.split())


# --- adopted, told, repeated ----------------------------------------------------------------------


def test_what_executes_is_adopted(harness: Harness) -> None:
    """The worker is killed and the workflow terminated while the crawl continues."""
    run = start(harness, args=ENDLESS)
    before = task_processes(harness.places, run)
    harness.stack.supervisor.kill("worker")
    terminate(harness, run)
    resumed(harness, run)
    sql = "SELECT stage FROM run_history WHERE run_id = ?"
    until(lambda: harness.query(sql, run) == [("reconciliation",)], "polls", 120)
    assert task_processes(harness.places, run) == before, (
        "the same process: number and time of its start"
    )
    assert rows(harness, run) == [(0, 1, "RUNNING", False)]
    (pid, start_time, _), *_ = before.values()
    assert processes.start_time(pid) == start_time, "and it goes on"
    harness.gateway.stop(run)
    proved(harness, run, "FAILED", "cancelled", 2)
    assert rows(harness, run) == [(0, 1, "CANCELLED", False)]


@pytest.mark.slow
def test_of_several_tasks_only_those_are_started_that_have_to_be(harness: Harness) -> None:
    """One executes, one was killed while nobody polled, one waits for its turn."""
    with harness.site_stands_still():
        run = start(
            harness, args=SOME, tasks=[{}, {}, {"args": {"max_pages": "3"}}], max_parallel_tasks=2
        )
        until(lambda: harness.tasks(run) == {"RUNNING": 2, "QUEUED": 1}, "two tasks that run")
        terminate(harness, run)
        before = task_processes(harness.places, run)
        pid, start_time, _ = before["1/1"]
        assert processes.start_time(pid) == start_time
        os.kill(pid, signal.SIGKILL)
    until((folder_of(harness, run, 1) / "end.json").exists, "its end")
    resumed(harness, run)
    proved(harness, run, "COMPLETED", "finished", 2, "killed")
    found = rows(harness, run)
    assert found == [
        (0, 1, "SUCCEEDED", False),
        (1, 1, "FAILED", True),
        (1, 2, "SUCCEEDED", False),
        (2, 2, "SUCCEEDED", False),
    ]
    after = task_processes(harness.places, run)
    assert {name: after[name] for name in before} == before
    assert set(after) == {"0/1", "1/1", "1/2", "2/2"}


# --- refused --------------------------------------------------------------------------------------


def by_temporal(harness: Harness, run: int, name: str) -> Row:
    """Resume it as an outsider would. Return the result of that workflow."""
    harness.cli_start(name, {"run_id": run})
    return harness.cli_result(name)


def test_resumed_twice_at_once(harness: Harness) -> None:
    """Twice over HTTP and once by Temporal, at the same time: one new attempt."""
    run = start(harness, args=ENDLESS)
    before = task_processes(harness.places, run)
    terminate(harness, run)
    closes: list[Row] = []
    refused: list[CommandFailed] = []
    ready = threading.Barrier(3)

    def over_http() -> None:
        with Gateway(str(harness.stack.addresses["gateway"]), timeout_s=60) as gateway:
            ready.wait(60)
            try:
                gateway.resume(run)
            except CommandFailed as failure:
                refused.append(failure)

    def over_temporal() -> None:
        ready.wait(60)
        harness.cli_start(f"resume-at-once-{run}", {"run_id": run})
        closes.append(harness.cli_result(f"resume-at-once-{run}"))

    threads = [threading.Thread(target=call) for call in (over_http, over_http, over_temporal)]
    for thread in threads:
        thread.start()
    until(
        lambda: harness.query("SELECT attempt FROM run_history WHERE run_id = ?", run) == [(2,)],
        "attempt 2",
    )
    for thread in threads[:2]:
        thread.join(60)
    assert all(failure.code is Exit.NOT_IN_THIS_STATE for failure in refused), refused
    which = f"CrawlRunId={run} AND CrawlStatus='PROCESSING'"
    # The gateway accepts the attempt for one workflow, and another one may claim it.
    claimed = (
        "SELECT owner_workflow_id FROM run_history WHERE run_id = ? AND owner_run_id IS NOT NULL"
    )
    [(owner,)] = until(lambda: harness.query(claimed, run), "the claim of attempt 2")
    until(
        lambda: owner in json.dumps(harness.cli_list(f"ExecutionStatus='Running' AND ({which})")),
        "the winner's polls",
    )
    assert task_processes(harness.places, run) == before
    # It is refused while the winner is alive; after the stop, it might be accepted.
    if owner != f"resume-at-once-{run}":
        threads[2].join(120)
        assert closes
    harness.gateway.stop(run)
    threads[2].join(120)
    assert closes
    if owner == f"resume-at-once-{run}":
        assert closes[0]["status"] == "COMPLETED"
    else:
        assert closes[0]["status"] == "FAILED"
        assert "RunIsLive" in json.dumps(closes[0])
    proved(harness, run, "FAILED", "cancelled", 2)


@pytest.mark.slow
def test_a_completed_run_is_executed_again_only_on_demand(harness: Harness) -> None:
    # One page after the other: which service comes first decides which three operations are
    # crawled.
    one_by_one = {"CONCURRENT_REQUESTS": "1"}
    request = {"crawler": "operations", "args": {"max_pages": "3"}, "settings": one_by_one, **QUICK}
    run = int(harness.gateway.start(request, uuid.uuid4().hex)["run_id"])
    proved(harness, run, "COMPLETED", "finished", 1)
    with pytest.raises(CommandFailed) as caught:
        harness.gateway.resume(run)
    assert caught.value.code is Exit.NOT_IN_THIS_STATE
    assert "AlreadyCompleted" in json.dumps(by_temporal(harness, run, f"resume-completed-{run}"))
    resumed(harness, run, rerun=True)
    proved(harness, run, "COMPLETED", "finished", 2)
    assert crawled(harness, run, 2) == crawled(harness, run, 1)
    says(harness, run, NOT_ASKED, False)


# --- Scrapy's state -------------------------------------------------------------------------------


@contextmanager
def crawled_in_part(harness: Harness) -> Iterator[int]:
    """A Scrapy run that has crawled some pages, and cannot crawl the others meanwhile."""
    with ExitStack() as still:
        run = start(harness, **SLOW)
        until(lambda: len(crawled(harness, run, 1)) >= 5, "5 pages")
        still.enter_context(harness.site_stands_still())
        yield run


#: The statistics that managers read.
STATISTICS = "SELECT s.stats FROM task_stats s JOIN task_history t USING (task_id) WHERE t.run_id = ? AND superseded_by IS NULL"


def items_told(harness: Harness, run: int) -> dict[str, int]:
    """Return the number of items of the run, as each interface shows it."""
    described = json.loads(harness.crawlctl("describe", str(run), "-o", "json").stdout)
    shown = json.loads(harness.crawlctl("items", str(run), "--limit", "1000", "-o", "json").stdout)
    listed = json.loads(harness.crawlctl("files", str(run), "-o", "json").stdout)
    address = str(harness.stack.addresses["gateway"])
    with httpx.Client(base_url=address, timeout=60) as client:
        table = client.get(f"/v1/runs/{run}/items", params={"limit": 1000}).json()
        stats = client.get(f"/v1/runs/{run}/items/stats").json()
        csv = client.get(
            f"/v1/runs/{run}/items/feed", params={"format": "csv", "fields": "url"}
        ).text
        page = client.get(f"/runs/{run}/items").text
    return {
        "describe": described["items"],
        "coverage": described["fields"]["items"],
        "statistics": json.loads(harness.query(STATISTICS, run)[0][0])["item_scraped_count"],
        "crawlctl items": len(shown["items"]),
        "crawlctl items --format": len(
            harness.crawlctl("items", str(run), "--format", "jsonl").stdout.splitlines()
        ),
        "crawlctl files": sum(file["name"].endswith("items.jsonl") for file in listed["files"])
        and described["items"],
        "table": table["total"],
        "stats": stats["items"],
        "csv": csv.count("\n") - 1,
        "page": int(re.findall(r"(?:of |<p>)([0-9]+) items", page)[0]),
        "graph": len(list(Items(Platform(address), [run]))),
    }


def test_a_stopped_scrapy_crawl_goes_on_where_it_was(harness: Harness) -> None:
    with crawled_in_part(harness) as run:
        harness.gateway.stop(run)
        # It ends when what it waits for has come, or at once if there is nothing to wait for.
        until(lambda: "RUNNING" not in harness.tasks(run), "the stop signal")
    proved(harness, run, "FAILED", "cancelled", 1)
    resumed(harness, run)
    proved(harness, run, "COMPLETED", "finished", 2)
    first, second = crawled(harness, run, 1), crawled(harness, run, 2)
    assert len(first) >= 5
    assert second
    assert len(set(first + second)) == len(first) + len(second), "no request was sent twice"
    says(harness, run, WENT_ON, True)
    told = items_told(harness, run)
    assert set(told.values()) == {len(feed_of(harness, run, 1)) + len(feed_of(harness, run, 2))}, (
        told
    )
    shutil.rmtree(run_folder(harness.folder, run))
    assert items_told(harness, run) == told, "the archive has the files of both attempts"


@pytest.mark.slow
def test_a_killed_scrapy_crawl_begins_anew(harness: Harness) -> None:
    """Its state cannot be trusted, and the run says so."""
    with crawled_in_part(harness) as run:
        harness.gateway.stop(run, force=True)
        until(lambda: harness.status(run) == "FAILED", "the end of the run")
    proved(harness, run, "FAILED", "cancelled", 1)
    resumed(harness, run)
    proved(harness, run, "COMPLETED", "finished", 2)
    assert set(crawled(harness, run, 1)[:3]) <= set(crawled(harness, run, 2)), "from the beginning"
    says(harness, run, NOT_CLEAN, False)
