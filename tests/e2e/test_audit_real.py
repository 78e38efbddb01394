"""Audits on the real stack: what terminated, deleted and killed parts leave behind is found and
repaired.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from crawler_lifecycle import sqlite_files
from crawler_lifecycle.domain.run import RunRequest
from crawler_lifecycle.store.store import open_store
from examples.story_checks import run_folder
from tests.e2e.harness import AUDITS, ENDLESS, EVERY_S, QUICK, Harness, moment, until
from tests.support import in_process

SHORT = {"max_pages": "3", "delay": "0.05"}
#: The time from due to polled, whatever delays the poll; the rest is the reserve for a slow
#: machine.
REACH_S = 60 + 15


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """A stack whose gateways repeat no delivery by themselves."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in AUDITS.items():
            patch.setenv(name, value)
        patch.setenv("LIFECYCLE_GATEWAY__OUTBOX_RETRY_S", "86400")
        harness = Harness(tmp_path_factory.mktemp("audit") / "state")
        try:
            harness.start()
            yield harness
        finally:
            harness.end()


def crawlctl(harness: Harness, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "LIFECYCLE_GATEWAY__URL": str(harness.stack.addresses["gateway"])}
    return in_process.crawlctl(*words, env=env, folder=harness.folder)


def audit(harness: Harness, *more: str, code: int = 0) -> dict[str, Any]:
    """Call ``crawlctl audit --repair``. Return its report."""
    done = crawlctl(harness, "audit", "--repair", *more, "-o", "json")
    assert done.returncode == code, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["problems"] == []
    return report


def repaired(harness: Harness, kind: str) -> None:
    """Check that an audit repairs the finding.

    On a slow machine, the search for overdue runs may be first. What either of them did is then
    read from the corrections.
    """
    assert audit(harness)["repaired"] in ({kind: 1}, {})


def settled(harness: Harness) -> None:
    """Check that another audit finds nothing."""
    assert audit(harness)["found"] == {}


def write(harness: Harness, *statements: str) -> None:
    """Write into the database, as an operator might do without telling anybody."""
    with sqlite_files.connect(harness.places.path("database"), timeout=30) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def started(harness: Harness, args: dict[str, str], *, tasks: int = 1) -> int:
    request = {"crawler": "plain", "tasks": [{"args": args}] * tasks, **QUICK}
    return int(harness.gateway.start(request, f"audit-{time.monotonic_ns()}")["run_id"])


def corrections(harness: Harness, run_id: int) -> list[tuple[str, str, str]]:
    return harness.query(
        "SELECT kind, believed, truth FROM correction WHERE run_id = ? AND found_by = 'sweep'",
        run_id,
    )


def owner(harness: Harness, run_id: int) -> str:
    return str(
        harness.query("SELECT owner_workflow_id FROM run_history WHERE run_id = ?", run_id)[0][0]
    )


def crawlers_of(harness: Harness, run_id: int) -> list[int]:
    """Return the processes of a run's crawlers."""
    found = []
    for pid in harness.processes():
        try:
            entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"CRAWL_RUN_ID={run_id}".encode() in entries:
            found.append(pid)
    return found


def test_audits_are_scheduled(stack: Harness) -> None:
    described = json.loads(
        stack.temporal("schedule", "describe", "--schedule-id", "crawl-audit").stdout
    )
    schedule = described["schedule"]
    assert schedule["spec"]["interval"] == [{"interval": f"{EVERY_S}s"}] or EVERY_S in json.dumps(
        schedule["spec"]
    )
    assert schedule["action"]["startWorkflow"]["workflowType"]["name"] == "CrawlAuditWorkflow"
    assert "SKIP" in str(schedule["policies"]["overlapPolicy"]).upper()
    reports = "SELECT audit_id FROM audit_report ORDER BY audit_id"
    before = stack.query(reports)
    stack.temporal("schedule", "trigger", "--schedule-id", "crawl-audit")
    until(lambda: stack.query(reports) != before, "the report of a scheduled audit")


def test_a_run_whose_workflow_was_terminated_comes_to_its_end(stack: Harness) -> None:
    """Its two crawlers end without being seen; nothing is executed twice."""
    stack.healthy()
    with stack.site_stands_still():
        run_id = started(stack, {"max_pages": "30", "delay": "0.1"}, tasks=2)
        until(lambda: stack.tasks(run_id) == {"RUNNING": 2}, "two tasks that run")
        # They may be recorded as executing before the run itself has started.
        until(lambda: stack.gateway.run(run_id)["status"] == "PROCESSING", "a run that has started")
        stack.temporal(
            "workflow",
            "terminate",
            "--workflow-id",
            owner(stack, run_id),
            "--reason",
            "by an operator",
        )
    assert crawlctl(stack, "audit", "-q").returncode == 1, "without --repair something is left"
    repaired(stack, "no_workflow")
    until(lambda: stack.closed([run_id]), "the end of the run")
    run = stack.gateway.run(run_id)
    assert (run["status"], run["outcome"], run["attempt"]) == ("COMPLETED", "finished", 2)
    rows = stack.query(
        "SELECT task_index, attempt, status FROM task_history WHERE run_id = ?", run_id
    )
    assert sorted(rows) == [(0, 1, "SUCCEEDED"), (1, 1, "SUCCEEDED")]
    assert ("repair", "PROCESSING", "no workflow") in corrections(stack, run_id)
    settled(stack)


def test_a_crawler_that_no_row_knows_is_ended(stack: Harness) -> None:
    """All rows of the run were deleted, and its workflow is gone as well: a person ends the
    crawler.
    """
    stack.healthy()
    run_id = started(stack, ENDLESS)
    until(lambda: stack.tasks(run_id) == {"RUNNING": 1}, "a task that runs")
    workflow_id = owner(stack, run_id)
    until(
        lambda: stack.cli_list(f"CrawlRunId={run_id} AND ExecutionStatus='Running'"),
        "the workflow in the list",
    )
    until(lambda: crawlers_of(stack, run_id), "the crawler itself")
    stack.temporal(
        "workflow", "terminate", "--workflow-id", workflow_id, "--reason", "by an operator"
    )
    events = f"(SELECT seq FROM outbox_event WHERE run_id = {run_id})"
    tables = (
        "task_observation",
        "task_finding",
        "status_transition",
        "history_property",
        "task_history",
    )
    write(
        stack,
        "PRAGMA foreign_keys = OFF",
        f"DELETE FROM outbox_delivery WHERE seq IN {events}",
        *(
            f"DELETE FROM {table} WHERE run_id = {run_id}"
            for table in ("outbox_event", *tables, "run_history")
        ),
    )
    report = audit(stack, code=1)
    assert (report["found"], report["repaired"]) == ({"orphan": 1}, {})
    assert "crawlctl audit --adopt" in report["findings"][0]["repair"]
    assert crawlers_of(stack, run_id), "without a person's word nothing is ended"
    report = audit(stack, "--end-unknown")
    assert (report["found"], report["left"]) == ({"orphan": 1}, 0)
    assert report["findings"][0]["run_id"] == run_id
    assert crawlers_of(stack, run_id) == []
    settled(stack)


def test_a_crawler_of_an_ended_run_that_executes_is_a_correction_and_is_ended(
    stack: Harness,
) -> None:
    """Somebody recorded an end that did not happen: the row says FAILED while the crawler
    continues.
    """
    stack.healthy()
    run_id = started(stack, ENDLESS)
    until(lambda: stack.tasks(run_id) == {"RUNNING": 1}, "a task that runs")
    stack.temporal(
        "workflow", "terminate", "--workflow-id", owner(stack, run_id), "--reason", "by an operator"
    )
    ended = "ended_at = strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'"
    write(
        stack,
        f"UPDATE task_history SET status = 'FAILED', outcome = 'failed', {ended} WHERE run_id = {run_id}",
        f"UPDATE run_history SET status = 'FAILED', stage = 'completion', outcome = 'failed', {ended}"
        f" WHERE run_id = {run_id}",
        "INSERT INTO export_record (run_id, attempt, status, at)"
        f" VALUES ({run_id}, 1, 'empty', strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')",
    )
    report = audit(stack)
    assert report["repaired"]["still_alive"] == 1
    assert crawlers_of(stack, run_id) == []
    assert ("still_alive", "FAILED", "RUNNING") in corrections(stack, run_id)
    assert stack.status(run_id) == "FAILED"


def test_a_crawler_that_outlives_its_supervisor_and_forges_its_end_executes(stack: Harness) -> None:
    """The supervisor is killed and an end forged, but the process counts.

    Its run continues, and a stop ends it.
    """
    stack.healthy()
    run_id = started(stack, ENDLESS)
    until(lambda: stack.tasks(run_id) == {"RUNNING": 1}, "a task that runs")
    # Its process is on file a moment before it executes, and exits if its supervisor dies in
    # between.
    until(lambda: crawlers_of(stack, run_id), "the crawler itself")
    folder = run_folder(stack.folder, run_id) / "0" / "1"
    os.kill(json.loads((folder / "supervisor.json").read_text())["pid"], signal.SIGKILL)
    (folder / "end.json").write_text(
        json.dumps({"exit_code": 1, "signal": None, "reason": "Error"})
    )
    looked = "SELECT verified_at FROM run_history WHERE run_id = ?"
    before = stack.query(looked, run_id)
    until(lambda: stack.query(looked, run_id) != before, "a look after that")
    assert stack.tasks(run_id) == {"RUNNING": 1}
    assert crawlers_of(stack, run_id), "the crawler itself goes on"
    stack.gateway.stop(run_id, force=True, reason="enough")
    until(lambda: stack.closed([run_id]), "the end of the run")
    assert stack.status(run_id) == "FAILED"
    assert crawlers_of(stack, run_id) == []
    settled(stack)


@pytest.mark.slow
def test_a_run_whose_starter_died_is_started(alone: Harness) -> None:
    """The gateway died after it had committed the row."""
    alone.healthy()
    store = open_store(str(alone.stack.addresses["database"]))
    try:
        request = RunRequest(crawler="plain", args=SHORT, poll_minutes=[0.02])
        row, _ = store.initiation.reserve_run(request, f"reserved-{time.monotonic_ns()}")
    finally:
        store.close()
    repaired(alone, "not_started")
    until(lambda: alone.closed([row.run_id]), "the end of the run")
    alone.prove(row.run_id, "COMPLETED", "finished")
    settled(alone)


@pytest.mark.slow
def test_a_temporal_that_has_forgotten_everything_is_noticed_within_a_minute(
    alone: Harness,
) -> None:
    """Its database is replaced by an empty one. Nobody requests an audit."""
    alone.healthy()
    run_id = started(alone, ENDLESS)
    until(lambda: alone.tasks(run_id) == {"RUNNING": 1}, "a task that runs")
    until(lambda: alone.gateway.run(run_id)["status"] == "PROCESSING", "a run that has started")
    supervisor = alone.stack.supervisor
    temporal = supervisor._kept["temporal"].part
    supervisor.stop(["temporal"])
    for file in alone.folder.glob("temporal.db*"):
        file.unlink()
    due = moment(alone.query("SELECT next_look_at FROM run_history WHERE run_id = ?", run_id)[0][0])
    supervisor.start([temporal])
    alone.stack.supervisor.wait_healthy()
    back = datetime.now(UTC)
    until(
        lambda: alone.gateway.get("/v1/runs")["overdue"]["run_id"] == run_id,
        "the word that its poll is overdue",
    )
    assert f"(run {run_id})" in alone.gateway.get("/v1/corrections/summary")["text"]
    until(lambda: alone.gateway.run(run_id)["attempt"] == 2, "another workflow", 120)
    looked = "SELECT verified_at FROM run_history WHERE run_id = ?"
    until(lambda: moment(alone.query(looked, run_id)[0][0]) > back, "a poll", 30)
    seconds = (moment(alone.query(looked, run_id)[0][0]) - max(due, back)).total_seconds()
    assert seconds < REACH_S, f"{seconds:.1f} s from due to polled"
    assert ("repair", "PROCESSING", "no workflow") in corrections(alone, run_id)
    assert alone.tasks(run_id) == {"RUNNING": 1}, "the crawl itself went on"
    alone.gateway.stop(run_id, force=True)
    until(lambda: alone.closed([run_id]), "the end of the run")
    assert alone.gateway.get("/v1/runs")["overdue"]["count"] == 0
    # The schedule of audits disappeared with Temporal's database.
    described = ["schedule", "describe", "--schedule-id", "crawl-audit"]
    until(lambda: alone.temporal(*described, check=False).returncode == 0, "the schedule of audits")
    # This Temporal knows nothing about the run of the previous test.
    found = json.loads(crawlctl(alone, "audit", "-o", "json").stdout)["findings"]
    assert [finding for finding in found if finding["run_id"] == run_id] == []
