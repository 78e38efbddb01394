"""The statements of docs/watching.md hold."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from fastapi.testclient import TestClient

from crawler_lifecycle.gateway.api.paging import LogChoice, RunFilters
from crawler_lifecycle.gateway.streams import feed, responses
from crawler_lifecycle.gateway.streams import logs as task_logs
from crawler_lifecycle.gateway.streams.timeline import Kind
from tests.gateway.gateway_harness import Harness
from tests.support.fakes.logs import FakeLogs

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "watching.md").read_text()


def test_every_command_of_the_page_is_answered(harness: Harness) -> None:
    logs = FakeLogs()
    with harness.client(harness.new_app(logs=logs)) as client:
        run_id = client.post("/v1/runs", json={"crawler": "plain"}).json()["run_id"]
        logs.write(b"line\n", run_id)
        logs.end(run_id)
        task_id = harness.store.tasks.list_tasks(run_id)[0].task_id
        paths = re.findall(r'curl .*"\$GATEWAY(/[^"]*)"', PAGE)
        assert len(paths) > 5
        for path in paths:
            if path != "/v1/events":  # it never ends
                path = path.replace("/7", f"/{run_id}").replace("task=12", f"task={task_id}")
                expected = 404 if "/items/feed" in path else 200  # this run has none
                assert client.get(path).status_code == expected, path


def test_the_page_names_every_filter_and_kind_and_the_numbers_in_the_code(
    client: TestClient,
) -> None:
    both = (DOCS / "gateway.md").read_text() + PAGE
    for name in (*RunFilters.model_fields, *LogChoice.model_fields):
        assert re.search(rf"`{name}[`=]", both), name
    for kind in get_args(Kind):
        assert re.search(rf"^- (`\w+`, )*`{kind}`[,:]", PAGE, re.MULTILINE), kind
    assert f"a comment every {feed.PING_S:g} s" in PAGE
    assert f"takes nothing for {responses.STALL_S:g} s" in PAGE
    assert f"the last {task_logs.BACK_MAX // 2**20} MiB" in PAGE
    assert f"retry: {feed.RETRY_MS}" in PAGE
