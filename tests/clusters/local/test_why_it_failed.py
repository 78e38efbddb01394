"""Real crawlers that fail on the local cluster: what the database says about them afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from crawler_lifecycle.activities.deployment import Deploy, DeploymentActivities
from crawler_lifecycle.activities.reconciliation import (
    PollOrder,
    PollStep,
    ReconciliationActivities,
    Sync,
)
from crawler_lifecycle.domain.run import RunRequest, verdict
from crawler_lifecycle.domain.task import Phase
from crawler_lifecycle.ports.runs import Fence, Owner, RunRow, TaskRow
from crawler_lifecycle.store.store import open_store
from tests.clusters.local.local_fixture import Fixture, wait_until
from tests.support.databases import make_tables
from tests.support.fakes.services import FakeNotifier, FakeScheduler, untried

FEED = (
    "import os; open(os.environ['CRAWL_FILES_DIR'] + '/items.jsonl', 'w').write('{}\\n{}\\n{}')\n"
)
FAKE = "print('Traceback (most recent call last):\\n  File x\\nKeyError: 1', flush=True)\n"


def crawled(folder: Path, code: str, **options: Any) -> tuple[RunRow, TaskRow]:
    """The run and its task at the end of their life, with real processes, activities and database."""
    url = make_tables(f"sqlite:///{folder / 'state.db'}")
    fixture = Fixture(folder)
    store, cluster = open_store(url, pool_size=1), fixture.cluster
    scheduler = FakeScheduler([fixture.crawler(code, **options)], cluster)
    handle = store.initiation.create_run(
        RunRequest(crawler="demo"), "r1", Owner("crawl/demo/r1", "chain")
    )
    fence = Fence(handle.run_id, handle.attempt, "chain", handle.run_uid)
    rows = (store.polls, store.runs, store.tasks, store.events)
    deploying = DeploymentActivities(
        store.deployment, *rows, cluster, scheduler, [FakeNotifier()], untried(store), store.entries
    )
    polling = ReconciliationActivities(
        store.polls, store.tasks, store.events, cluster, [FakeNotifier()], store.retries
    )
    play = ActivityEnvironment().run
    play(deploying.run_onetime_crawler, Deploy(fence))
    wait_until(
        lambda: PollStep(store.polls, cluster, fence).poll()[1].observations[0].phase is Phase.ENDED
    )
    play(polling.get_history_statuses_to_sync, PollOrder(fence, 60, 60))
    play(polling.get_bulk_task_history_data, fence)
    play(polling.reconcile_tasks, fence)
    play(polling.sync_statuses, Sync(fence))
    run = store.completion.end_run(fence, verdict)
    [task] = store.tasks.list_tasks(run.run_id)
    store.close()
    return run, task


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise SystemExit('password=hunter22 is wrong')", "password=[redacted] is wrong"),
        (
            "print(chr(27) + '[31m' + 'x' * 10**6 + chr(0), flush=True); raise SystemExit(1)",
            "x" * 200,
        ),
        ("raise SystemExit(1)", None),
    ],
)
def test_a_crawler_that_fails_says_why(tmp_path: Path, code: str, error: str | None) -> None:
    run, task = crawled(tmp_path, FEED + code)
    assert (task.error is None) == (error is None)
    assert (task.error or "").startswith(error or "")
    assert (
        run.cause
        == task.cause
        == "The crawler failed, exit 1" + (f": {task.error}" if error else "")
    )
    assert len(task.error or "") <= 300
    assert (run.items, task.items) == (3, 3)


def test_the_error_counts_and_not_what_came_after_it(tmp_path: Path) -> None:
    noise = "2026-03-01 12:00:00 [scrapy.core.engine] DEBUG: Crawled (200) <GET https://shop.example/> (referer: None)"
    lines = f"for n in range(3300): print({noise!r})\n"
    code = f"{lines}print('2026-03-01 12:00:00 [shop] ERROR: no feed today')\n{lines}raise SystemExit(1)"
    run, task = crawled(tmp_path, code)
    assert task.error == "no feed today"
    assert run.cause == "The crawler failed, exit 1: no feed today"


def test_a_traceback_is_no_failure(tmp_path: Path) -> None:
    run, task = crawled(tmp_path, FEED + FAKE, items=False)
    assert (run.status, run.outcome, task.error, run.cause) == (
        "COMPLETED",
        "finished",
        None,
        task.cause,
    )
    assert run.items is None, "items: off"


def test_what_a_crawler_says_itself_is_one_line_without_secrets(tmp_path: Path) -> None:
    told = {"message": "no\x00 \x1b[1mpage\npassword=hunter22"}
    write = f"open(os.environ['CRAWL_STATS_FILE'], 'w').write(json.dumps({told}))"
    _, task = crawled(tmp_path, f"import json, os; {write}; raise SystemExit(1)")
    assert task.error == "no  [1mpage password=[redacted]"
    assert task.cause == f"The crawler failed, exit 1: {task.error}"
