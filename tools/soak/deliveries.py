"""Checks of everything that left the service (events, archives, workflows), over all runs together."""

from __future__ import annotations

import re
from collections.abc import Iterator

from examples.story_checks import CHECKS, Untrue
from tests.e2e.harness import TERMINAL
from tools.soak.checks import Case
from tools.soak.harness import SoakHarness
from tools.soak.run_records import RunRecord, told_events

#: Messages of a worker or a server when a workflow does not repeat what its history contains.
WEDGED = re.compile(
    r"nondeterminis|Failed activation on workflow|WorkflowTaskFailed", re.IGNORECASE
)


#: Findings of audits when a start takes longer than their grace, because half of the stack is down.
EXPLAINED = ("not_started", "unrecorded")
#: Findings of audits about a run whose workflow somebody terminated.
OF_LOST_WORKFLOWS = ("no_workflow", "undelivered")


def check_events(harness: SoakHarness, record: RunRecord) -> Iterator[str]:
    """Check that every event that happens once is recorded once, and was delivered."""
    told = told_events(harness.places.path("events"))
    keys = [event["event_key"] for event in record.events if event["event_key"]]
    for key in {key for key in keys if keys.count(key) > 1}:
        yield f"the event {key} is on record {keys.count(key)} times"
    ended = [key for key in keys if key.endswith("/run.ended")]
    verdicts = [row for row in record.of_task(None) if row["to_status"] in TERMINAL]
    expected = sorted(f"{record.name}/{row['attempt']}/run.ended" for row in verdicts)
    if sorted(ended) != expected:
        yield f"verdicts {expected}, events {sorted(ended)}"
    for key in ended:
        lines = told.get(key, [])
        rows = [row for row in record.deliveries if row["event_key"] == key]
        if not lines:
            yield f"the event {key} was never delivered; deliveries {rows}"
        if len(set(lines)) > 1:
            yield f"the event {key} was delivered in {len(set(lines))} versions"
        # A worker that dies between the write to the file and the record sends the event again.
        # Each try sends it at most once.
        if [row["status"] for row in rows] != ["delivered"] * len(rows) or not rows:
            yield f"the event {key}: deliveries {rows}"
    for key in told:
        if key.startswith(f"{record.name}/") and key.endswith("/run.ended") and key not in keys:
            yield f"the event {key} was delivered and is not on record"


def check_archive(harness: SoakHarness, record: RunRecord) -> Iterator[str]:
    """Check that the archive of the last attempt exists, is complete, and contains the counted
    items.
    """
    try:
        CHECKS["archive"](harness.places, record.shown)
    except (Untrue, ValueError, OSError) as error:
        yield f"archive: {type(error).__name__}: {error}; exports {record.exports}"


def check_findings(harness: SoakHarness, case: Case) -> Iterator[str]:
    """Check that audits only had to repair damage that a plan had caused."""
    terminated = any(ask.answer != "no" for ask in case.deeds.of(case.number, "terminate"))
    rows = harness.query(
        "SELECT kind, status, detail FROM audit_finding WHERE run_id = ?", case.record.run_id
    )
    for kind, status, detail in rows:
        if kind in EXPLAINED or (kind in OF_LOST_WORKFLOWS and terminated):
            continue
        yield f"an audit found {kind} ({status}), and nobody had broken that: {detail}"


def check_workflows(harness: SoakHarness) -> Iterator[str]:
    """Check that no workflow is open for a run that has ended, and that no workflow ever diverged
    from its history.
    """
    open_ = harness.cli_list(
        "ExecutionStatus='Running' AND WorkflowType='CrawlerLifecycleWorkflow'"
    )
    live = set(harness.open_runs())
    for row in open_:
        workflow_id = row["execution"]["workflowId"]
        run_id = harness.run_of(workflow_id)
        if run_id not in live:
            yield f"the workflow {workflow_id} is open, its run {run_id} is not"
    owners = {row["execution"]["workflowId"] for row in open_}
    for run_id in live:
        ((owner,),) = harness.query(
            "SELECT owner_workflow_id FROM run_history WHERE run_id = ?", run_id
        )
        if owner not in owners:
            yield f"run {run_id} is open, its workflow {owner} is not"
    log = harness.folder / "logs" / "worker.log"
    lost = [line for line in log.read_text(errors="replace").splitlines() if WEDGED.search(line)]
    for line in lost[:3]:
        yield f"the worker says: {line[:400]}"
