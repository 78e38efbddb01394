"""Tasks added to a live run from outside: by Temporal's CLI, and by the crawler itself with its own
token.
"""

from __future__ import annotations

import json
import uuid

from examples.story_checks import run_folder
from tests.e2e.harness import ENDLESS, QUICK, Harness, until


def test_a_crawler_adds_tasks_to_its_own_run(harness: Harness) -> None:
    run_id = int(harness.gateway.start({"crawler": "shelves", **QUICK}, uuid.uuid4().hex)["run_id"])
    until(lambda: harness.closed([run_id]), "the end of the run")
    ended = harness.gateway.run(run_id)
    sql = "SELECT task_index, status, args FROM task_history WHERE run_id = ? ORDER BY task_index"
    tasks = harness.query(sql, run_id)
    assert [(index, status) for index, status, _ in tasks] == [(n, "SUCCEEDED") for n in range(3)]
    assert [json.loads(args) for _, _, args in tasks] == [{}, {"shelf": "7"}, {"shelf": "8"}]
    assert (ended["status"], ended["outcome"]) == ("COMPLETED", "finished")
    written = [path.read_text() for path in run_folder(harness.folder, run_id).rglob("shelf.txt")]
    assert sorted(written) == ["7", "8"]


def test_the_temporal_cli_adds_tasks(harness: Harness) -> None:
    harness.cli_start("cli/adding", {"crawler": "plain", "args": ENDLESS, **QUICK})
    run_id = until(lambda: harness.run_of("cli/adding"), "the run")
    until(lambda: harness.tasks(run_id).get("RUNNING"), "a task that runs")
    page = json.dumps(
        {"tasks": [{"args": {"max_pages": "2", "delay": "0.01"}}], "request_id": "cli-more"}
    )
    words = [
        "workflow",
        "update",
        "execute",
        "--workflow-id",
        "cli/adding",
        "--name",
        "add_tasks",
        "--input",
        page,
    ]
    for _ in range(2):
        answer = json.loads(harness.temporal(*words).stdout)
        assert [task["index"] for task in answer["result"]["tasks"]] == [1]
    until(
        lambda: harness.tasks(run_id) == {"RUNNING": 1, "SUCCEEDED": 1}, "the end of the added task"
    )
    harness.temporal("workflow", "signal", "--workflow-id", "cli/adding", "--name", "stop")
    result = harness.cli_result("cli/adding")["result"]
    assert result["tasks"] == {"CANCELLED": 1, "SUCCEEDED": 1}
