"""An outsider with only the Temporal CLI starts, queries, stops and resumes runs."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from examples.story_checks import run_folder
from tests.e2e.harness import ENDLESS, QUICK, Harness, until


def _tasks_of(harness: Harness, workflow_id: str, status: str) -> int:
    run_id = harness.run_of(workflow_id)
    return harness.tasks(run_id).get(status, 0) if run_id else 0


def test_a_crawl_from_start_to_result(harness: Harness) -> None:
    """A real Scrapy crawl: the CLI prints its verdict as the result, and search attributes find it."""
    harness.cli_start("cli/crawl", {"crawler": "services", "requested_by": "ada", **QUICK})
    closed = harness.cli_result("cli/crawl")
    assert closed["status"] == "COMPLETED"
    result = closed["result"]
    assert (result["status"], result["outcome"], result["items"]) == ("COMPLETED", "finished", 6)
    assert result["export"]["files"] >= 1
    harness.prove(result["run_id"], "COMPLETED", "finished")
    found = until(
        lambda: harness.cli_list(
            f"CrawlStatus='COMPLETED' AND CrawlOutcome='finished' AND CrawlRunId={result['run_id']}"
        ),
        "the run in the list",
    )
    assert [w["execution"]["workflowId"] for w in found] == ["cli/crawl"]


@pytest.mark.parametrize(
    "payload", [None, {"requested_by": "ada", "reason": "enough", "request_id": "cli-1"}]
)
def test_query_list_and_stop(harness: Harness, payload: dict[str, str] | None) -> None:
    workflow_id = f"cli/stopped-{'plain' if payload is None else 'typed'}"
    harness.cli_start(workflow_id, {"crawler": "plain", "args": ENDLESS, **QUICK})
    until(lambda: _tasks_of(harness, workflow_id, "RUNNING"), "a task that runs")
    run_id = harness.run_of(workflow_id)
    assert run_id is not None

    def asked() -> dict[str, object]:
        answer = harness.temporal(
            "workflow", "query", "--workflow-id", workflow_id, "--type", "status"
        ).stdout
        (snapshot,) = json.loads(answer)["queryResult"]
        return snapshot

    snapshot = until(
        lambda: s if (s := asked())["stage"] == "reconciliation" else None, "the reconciliation"
    )
    assert (snapshot["run_id"], snapshot["crawler"]) == (run_id, "plain")
    assert snapshot["status"] is None, "while it goes on, that is for the database to say"
    until(
        lambda: harness.cli_list(f"CrawlStatus='PROCESSING' AND CrawlRunId={run_id}"),
        "the run in the list",
    )
    words = ["workflow", "signal", "--workflow-id", workflow_id, "--name", "stop"]
    harness.temporal(*words, *([] if payload is None else ["--input", json.dumps(payload)]))
    result = harness.cli_result(workflow_id)["result"]
    assert (result["status"], result["outcome"]) == ("FAILED", "cancelled")
    harness.prove(run_id, "FAILED", "cancelled")
    logged = harness.query(
        "SELECT request_id, requested_by, reason, acted_at IS NOT NULL FROM cancellation_log WHERE run_id = ?",
        run_id,
    )
    assert len(logged) == 1
    assert logged[0][3] == 1
    if payload is not None:
        assert logged[0][:3] == ("cli-1", "ada", "enough")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (None, "request: missing"),
        ({"crawler": "plain", "colour": "red"}, "colour"),
        ({"crawler": "plain", "limits": {"run_timeout_s": "soon"}}, "run_timeout_s"),
        ({}, "crawler"),
    ],
)
def test_an_invalid_start_fails_at_once_and_names_the_field(
    harness: Harness, given: dict[str, object] | None, named: str
) -> None:
    before = harness.query("SELECT COUNT(*) FROM run_history")
    workflow_id = f"cli/invalid-{named.split(':')[0]}"
    harness.cli_start(workflow_id, given)
    closed = harness.cli_result(workflow_id)
    assert closed["status"] == "FAILED"
    failure = closed["closeEvent"]["workflowExecutionFailedEventAttributes"]["failure"]
    assert named in failure["message"]
    assert failure["applicationFailureInfo"]["type"] == "InvalidRequest"
    assert harness.query("SELECT COUNT(*) FROM run_history") == before


def test_a_terminated_run_is_resumed_without_repeating_what_finished(harness: Harness) -> None:
    """Two tasks are done and two executing when an operator terminates the workflow; the crawlers
    continue alone.
    """
    short, long = {"max_pages": "3", "delay": "0.05"}, {"max_pages": "40", "delay": "0.1"}
    tasks = [{"args": args} for args in (short, long, short, long)]
    with harness.site_stands_still():
        harness.cli_start("cli/terminated", {"crawler": "plain", "tasks": tasks, **QUICK})
        until(lambda: _tasks_of(harness, "cli/terminated", "RUNNING") == 4, "tasks that run")
        run_id = harness.run_of("cli/terminated")
        assert run_id is not None
        folders = [run_folder(harness.folder, run_id) / str(index) / "1" for index in (1, 3)]
        crawlers = [
            int(json.loads((folder / "process.json").read_text())["pid"]) for folder in folders
        ]
        for pid in crawlers:
            os.killpg(pid, signal.SIGSTOP)
    try:
        until(
            lambda: _tasks_of(harness, "cli/terminated", "SUCCEEDED") == 2,
            "the end of the short tasks",
        )
        assert harness.tasks(run_id) == {"SUCCEEDED": 2, "RUNNING": 2}
        harness.temporal(
            "workflow", "terminate", "--workflow-id", "cli/terminated", "--reason", "by an operator"
        )
    finally:
        for pid in crawlers:
            os.killpg(pid, signal.SIGCONT)
    harness.cli_start("cli/resumed", {"run_id": run_id})
    close = harness.cli_result("cli/resumed")
    if "result" in close:
        result = close["result"]
        assert (result["run_id"], result["attempt"], result["tasks"]) == (
            run_id,
            2,
            {"SUCCEEDED": 4},
        )
    else:  # the search for lost workflows, which runs every few seconds, took over the run earlier
        assert "still open" in json.dumps(close)
        until(lambda: harness.closed([run_id]), "the end of the run that was taken over")
    harness.prove(run_id, "COMPLETED", "finished", attempt=2)
    rows = harness.query(
        "SELECT task_index, attempt FROM task_history WHERE run_id = ? ORDER BY task_id", run_id
    )
    assert rows == [(index, 1) for index in range(4)], (
        "what executed was adopted, what finished stayed"
    )


def test_a_manager_as_the_cli_sees_and_steers_it(harness: Harness) -> None:
    """Jobs by an update, the story in its details, a reset in the middle, and Temporal's cancel."""
    body = {"crawler": "plain", "name": "by-cli", "flow_id": "f1", "options": {"max_running": 2}}
    started = harness.gateway.start(body, "by-cli", "manager")
    one, workflow_id = started["manager_id"], "manager/by-cli/f1"

    def told(*words: str) -> Any:
        return json.loads(harness.temporal("workflow", *words, "--workflow-id", workflow_id).stdout)

    def details() -> str:
        found = told("query", "--type", "__temporal_workflow_metadata")["queryResult"][0]
        return str(found.get("currentDetails", ""))

    assert "waiting for jobs" in until(
        lambda: text if "waiting" in (text := details()) else "", "what it waits for"
    )
    jobs = [
        {"spider": "plain", "spider_args": ENDLESS | {"max_pages": str(n)}}
        for n in (100001, 100002, 100003)
    ]
    page = json.dumps({"jobs": jobs, "request_id": "p1"})
    for _ in range(2):
        assert told("update", "execute", "--name", "add_job", "--input", page)["result"] == 3

    def asked() -> dict[str, Any]:
        (snapshot,) = told("query", "--type", "status")["queryResult"]
        return dict(snapshot)

    until(lambda: asked()["live"] == 2, "two jobs that live")
    until(lambda: len(harness.gateway.runs(parent=workflow_id)) == 2, "their runs")
    assert details().startswith("### Manager")
    assert "2 live jobs" in details()
    which = "WorkflowType='CrawlManagerWorkflow' AND CrawlName='by-cli' AND CrawlFlow='f1' AND CrawlStatus='PROCESSING'"
    until(lambda: harness.cli_list(which), "the manager in the list")
    told("reset", "--type", "FirstWorkflowTask", "--reason", "by hand")
    until(lambda: asked()["live"] == 2, "the same two jobs")
    harness.temporal("workflow", "cancel", "--workflow-id", workflow_id)
    result = harness.cli_result(workflow_id)["result"]
    assert (result["status"], result["outcome"], result["attempt"]) == ("FAILED", "cancelled", 1)
    found = harness.gateway.get(f"/v1/managers/{one}")
    assert (found["status"], found["jobs"]["scheduled"]) == ("FAILED", 2)
    runs = harness.gateway.runs(parent=workflow_id)
    assert [run["status"] for run in runs] == ["FAILED"] * 2
    for run in runs:
        harness.prove(run["run_id"], "FAILED", "cancelled")
