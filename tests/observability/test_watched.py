"""A real worker that executed real runs: its lines, its metrics, its traces, and no secret in any
of them.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote, quote_plus

import httpx
import opentelemetry.trace
import pytest
import pytest_asyncio
from temporalio.client import WorkflowHandle, WorkflowHistory
from temporalio.contrib.opentelemetry import OpenTelemetryPlugin, create_tracer_provider
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Replayer

from crawler_lifecycle.activities.meters import INSTRUMENTS
from crawler_lifecycle.compose import WORKFLOWS
from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.run import RunResult, RunSnapshot
from crawler_lifecycle.temporal.plugin import plugin
from tests.observability.watched_harness import ROOT, VALUES, Collector, Watched, until
from tests.support.databases import make_tables
from tests.support.temporal import temporal_server

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.processes]

HEADER = "canary-of-a-caller-9"
SECRET = [*VALUES, HEADER]
#: Activities that get the run and no attempt.
COUNTING = ("get_active_running_tasks", "count_alive_tasks")
QUICK = {"poll_minutes": [0.02], "limits": {"start_check_s": 0.2}}


class Harness:
    """What happened, once for all tests of this module."""

    def __init__(self, server: WorkflowEnvironment, watched: Watched) -> None:
        self.server, self.watched = server, watched
        self.handles: dict[str, WorkflowHandle[object, RunResult]] = {}
        self.results: dict[str, RunResult] = {}
        self.metrics = ""
        self.answers: list[str] = []

    async def begin(self, crawler: str) -> WorkflowHandle[object, RunResult]:
        self.handles[crawler] = await self.server.client.start_workflow(
            names.LIFECYCLE_WORKFLOW, {"crawler": crawler, **QUICK}, id=f"watched/{crawler}",
            task_queue=names.QUEUE_MAIN, result_type=RunResult,
        )  # fmt: skip
        return self.handles[crawler]

    async def begin_by_http(self) -> None:
        """Start a run through the gateway, as a front end does, with a secret in a header and in a
        wrong request.
        """
        address = f"http://127.0.0.1:{self.watched.ports['gateway']}/v1/runs"
        headers = {
            "Authorization": f"Bearer {HEADER}",
            "Idempotency-Key": "by-http",
            "X-Request-Id": "front-1",
        }
        async with httpx.AsyncClient(headers=headers, timeout=60) as client:
            wrong = await client.post(address, json={"crawler": "good", "password": HEADER})
            self.answers = [wrong.text]
            assert wrong.status_code == 422
            begun = await client.post(address, json={"crawler": "good", **QUICK})
            assert begun.status_code == 202, begun.text
        self.handles["by http"] = self.server.client.get_workflow_handle(
            "crawl/good/by-http", result_type=RunResult
        )


def _is_end(line: dict[str, object]) -> bool:
    return line["event"] == "workflow ends"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harness(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Harness]:
    """Four runs: one waits for the scheduler service and succeeds, one fails, one is stopped, one
    comes by HTTP.
    """
    folder = tmp_path_factory.mktemp("watched")
    async with temporal_server(skipping=False) as server:
        make_tables(f"sqlite:///{folder / 'runs.db'}")
        target = server.client.service_client.config.target_host
        watched = Watched(folder, target, server.client.namespace, Collector())
        harness = Harness(server, watched)
        try:
            watched.start("worker")
            await harness.begin("good")
            until(
                lambda: watched.value(
                    "lifecycle_activity_failures_total", error="SchedulerUnavailable"
                )
            )
            watched.start("scheduler")
            for crawler in ("good", "bad"):
                handle = harness.handles.get(crawler) or await harness.begin(crawler)
                harness.results[crawler] = await handle.result()
            handle = await harness.begin("long")
            while (  # noqa: ASYNC110
                await handle.query(names.QUERY_STATUS, result_type=RunSnapshot)
            ).stage != "reconciliation":
                await asyncio.sleep(0.05)
            await handle.signal(
                names.SIGNAL_FORCE_STOP,
                {"reason": "enough\r\n\x1b[2Jfor \u202enow", "requested_by": "me"},
            )
            harness.results["long"] = await handle.result()
            watched.start("gateway")
            await harness.begin_by_http()
            harness.results["by http"] = await harness.handles["by http"].result()
            harness.metrics = watched.scrape()
            # A separate thread writes lines, a moment after they were logged.
            ended = {handle.id for handle in harness.handles.values()}
            until(
                lambda: (
                    ended
                    <= {each["workflow_id"] for each in watched.lines("worker") if _is_end(each)}
                )
            )
            until(lambda: any(each.get("status") == 202 for each in watched.lines("gateway")))
            yield harness
        finally:
            watched.stop()


async def test_the_runs_were_real(harness: Harness) -> None:
    shown = {crawler: (str(r.status), r.outcome) for crawler, r in harness.results.items()}
    assert shown == {
        "good": ("COMPLETED", "finished"),
        "bad": ("FAILED", "failed"),
        "long": ("FAILED", "cancelled"),
        "by http": ("COMPLETED", "finished"),
    }


async def test_every_line_is_json_and_names_its_subject(harness: Harness) -> None:
    lines = harness.watched.lines("worker")
    assert {line["service"] for line in lines} == {"worker"}
    # The SDK logs this before it calls our interceptor.
    of_activities = [
        line for line in lines if "activity" in line and line["event"] != "Starting activity"
    ]
    assert {line["activity"] for line in of_activities} >= {
        "create_history_id",
        "count_alive_tasks",
        "record_stop",
    }
    for line in of_activities:
        assert {"workflow_id", "workflow_run_id", "task_queue", "try", "pid"} <= set(line), line
        if line["activity"] != "create_history_id":
            known = {"run_id"} if line["activity"] in COUNTING else {"run_id", "attempt"}
            assert known <= set(line), line
    told = [line["event"] for line in lines if line.get("run_id") == 3 and line["level"] == "info"]
    assert any(text.startswith("run 3 begins: attempt 1 of crawler long") for text in told), told
    assert any(text.startswith("run ended FAILED / cancelled") for text in told), told
    killed = [
        line for line in lines if line.get("activity") == "k8_stop_pod" and "done" in line["event"]
    ]
    assert killed
    assert {line["run_id"] for line in killed} == {3}, "it takes all tasks of its run"


async def test_lines_of_workflows_are_written_once_and_know_their_run(harness: Harness) -> None:
    lines = [
        line for line in harness.watched.lines("worker") if line["logger"] == "temporalio.workflow"
    ]
    of_long = [
        line for line in lines if line["workflow_id"] == "watched/long" and line["level"] == "info"
    ]
    events = [line["event"] for line in of_long]
    # Temporal refuses the end of a workflow while a signal is on its way. The worker then executes
    # this last step again, with its line.
    assert events[:3] == ["workflow begins", "signal force_stop", "workflow ends"]
    assert set(events[3:]) <= {"workflow ends"}, events
    assert {line.get("run_id") for line in of_long[1:]} == {3}
    assert of_long[-1]["attempt"] == 1


async def test_text_from_outside_breaks_no_line(harness: Harness) -> None:
    (stop,) = [
        line
        for line in harness.watched.lines("worker")
        if line["event"].startswith("stop (forced)")
    ]
    assert r"enough\r\n\x1b[2Jfor \u202enow" in stop["event"]


async def test_tracebacks_are_for_bugs_alone(harness: Harness) -> None:
    for name in ("worker", "scheduler", "gateway"):
        assert [line for line in harness.watched.lines(name) if "exception" in line] == []
    failed = [
        line
        for line in harness.watched.lines("worker")
        if line.get("error_type") == "SchedulerUnavailable"
    ]
    assert failed
    assert failed[0]["run_id"] == 1


async def test_lines_of_a_request_name_it_and_its_run(harness: Harness) -> None:
    lines = [
        line for line in harness.watched.lines("gateway") if line.get("http_request") == "front-1"
    ]
    told = [(line["status"], line["path"]) for line in lines if "status" in line]
    assert told == [(422, "/v1/runs"), (202, "/v1/runs")]
    assert all(line["service"] == "gateway" for line in lines)


async def test_figures_are_what_happened(harness: Harness) -> None:
    value = harness.watched.value
    assert value("lifecycle_runs_started_total", trigger="manual", resumed="false") == 4
    assert value("lifecycle_runs_ended_total") == 4
    assert value("lifecycle_runs_ended_total", status="FAILED", outcome="cancelled") == 1
    assert value("lifecycle_runs_ended_total", status="FAILED", outcome="failed") == 1
    assert value("lifecycle_polls_total", result="ok") == value("lifecycle_poll_seconds_count") >= 3
    assert value("lifecycle_stops_total", kind="forced") == 1
    assert value("lifecycle_tasks_changed_total", to="SUCCEEDED") == 2
    assert value("lifecycle_tasks_changed_total", to="CANCELLED") == 1
    assert value("lifecycle_truth_lag_seconds_count") >= 3
    assert value("lifecycle_exports_total") >= 3
    assert value("lifecycle_deliveries_total", sink="file", result="delivered") == 4
    assert value("lifecycle_build_info", build="build-of-the-tests") == 1
    assert value("temporal_worker_task_slots_available") > 0
    assert "lifecycle_truth_lag_seconds_bucket" in harness.metrics
    assert 'le="900"' in harness.metrics


async def test_the_scheduler_service_counts_what_it_was_offered(harness: Harness) -> None:
    shown = harness.watched.scrape("scheduler")
    assert 'crawler_lifecycle_scheduler_tasks_total{state="created"} 4.0' in shown
    assert (
        'crawler_lifecycle_scheduler_requests_total{operation="deployOnetime",status="201"} 4.0'
        in shown
    )
    assert 'build="build-of-the-tests"' in shown
    assert "process_resident_memory_bytes" in shown
    page = (ROOT / "docs" / "observability.md").read_text()
    ours = {
        line.split()[2]
        for line in shown.splitlines()
        if line.startswith("# TYPE crawler_lifecycle_")
    }
    assert [
        name for name in sorted(ours) if not name.endswith("_created") and f"`{name}`" not in page
    ] == []


async def test_the_page_about_metrics_names_what_there_is(harness: Harness) -> None:
    page = (ROOT / "docs" / "observability.md").read_text()
    declared = {instrument.exposed for instrument in INSTRUMENTS} | {"lifecycle_build_info"}
    declared |= {"lifecycle_wake_ups_total", "lifecycle_observer_up", "lifecycle_poll_stretch"}
    shown = {
        line.split()[2]
        for line in harness.metrics.splitlines()
        if line.startswith("# TYPE lifecycle_")
    }
    assert shown <= declared
    # Nothing was corrected or due, and no audit found anything in these runs; the other metrics
    # must have been scraped.
    absent = {"lifecycle_corrections_total", "lifecycle_audit_findings_total"}
    absent |= {"lifecycle_schedule_firings_total", "lifecycle_schedule_lateness_seconds"}
    absent |= {"lifecycle_webhook_deliveries_total", "lifecycle_webhook_lag_seconds"}
    assert declared - shown <= absent
    assert [name for name in sorted(declared) if f"`{name}`" not in page] == []
    sdk = {
        line.split()[2]
        for line in harness.metrics.splitlines()
        if line.startswith("# TYPE temporal_")
    }
    named = set(re.findall(r"`(temporal_\w+)`", page))
    assert named
    assert named - sdk <= {"temporal_request_failure_total"}, (
        "that one is there only after a call that failed"
    )


async def test_a_run_is_one_trace(harness: Harness) -> None:
    harness.watched.end("worker", "gateway")
    spans = harness.watched.collector.spans()
    by_trace: dict[bytes, set[str]] = {}
    for span in spans:
        by_trace.setdefault(span.trace_id, set()).add(span.name)
    whole = [
        found for found in by_trace.values() if f"RunWorkflow:{names.LIFECYCLE_WORKFLOW}" in found
    ]
    assert len(whole) == 4, by_trace
    (by_http,) = [found for found in whole if f"StartWorkflow:{names.LIFECYCLE_WORKFLOW}" in found]
    assert "RunActivity:update_run_status" in by_http, "from the gateway to the verdict"
    assert all(
        {"RunActivity:create_history_id", "RunActivity:update_run_status"} <= found
        for found in whole
    )


async def test_histories_made_with_traces_replay_without_them(harness: Harness) -> None:
    """Switching traces on or off must never block a run; see also the golden histories below."""
    for handle in harness.handles.values():
        history = await handle.fetch_history()
        await Replayer(workflows=WORKFLOWS, plugins=[plugin()]).replay_workflow(history)


@pytest.mark.parametrize("name", ["completed", "stopped", "waves", "resumed"])
async def test_histories_made_without_traces_replay_with_them(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opentelemetry.trace, "_TRACER_PROVIDER", create_tracer_provider())
    document = (ROOT / "tests" / "histories" / f"{name}.json").read_text()
    history = WorkflowHistory.from_json(name, json.loads(document))
    tracing = OpenTelemetryPlugin(add_temporal_spans=True)
    await Replayer(workflows=WORKFLOWS, plugins=[plugin(), tracing]).replay_workflow(history)


def _forms(secret: str) -> set[str]:
    raw = secret.encode()
    whole = base64.b64encode(raw).decode()
    return {
        secret,
        quote(secret, safe=""),
        quote_plus(secret),
        raw.hex(),
        json.dumps(secret)[1:-1],
        whole[:-4],
    }


async def test_no_canary_came_out_anywhere(harness: Harness) -> None:
    places: dict[str, str] = {}
    for crawler, handle in harness.handles.items():
        history = await handle.fetch_history()
        places[f"history of {crawler}"] = history.to_json()
        payloads = [
            base64.b64decode(data, validate=False)
            for data in _payloads(json.loads(history.to_json()))
        ]
        places[f"payloads of {crawler}"] = b"\n".join(payloads).decode("utf-8", "replace")
    for name in ("worker", "scheduler", "gateway"):
        places[f"log of {name}"] = harness.watched.log(name)
    places["metrics"] = harness.metrics
    places["traces"] = b"".join(harness.watched.collector.bodies).decode("latin-1")
    places["events"] = (harness.watched.folder / "events.jsonl").read_text()
    assert all(places.values()), [name for name, text in places.items() if not text]
    hits = [
        (place, form)
        for place, text in places.items()
        for v in SECRET
        for form in _forms(v)
        if form in text
    ]
    assert hits == []
    # What a caller sends in a field is named to the caller, and to nobody else.
    assert [value for value in VALUES if value in harness.answers[0]] == []
    assert "SchedulerUnavailable" in places["log of worker"], (
        "the address with the password was never told"
    )


def _bytes_of(folder: Path, pattern: str) -> bytes:
    return b"".join(path.read_bytes() for path in folder.glob(pattern))


def _payloads(value: object) -> list[str]:
    if isinstance(value, dict):
        own = [value["data"]] if isinstance(value.get("data"), str) else []
        return own + [data for member in value.values() for data in _payloads(member)]
    return (
        [data for member in value for data in _payloads(member)] if isinstance(value, list) else []
    )


async def test_the_database_holds_no_canary(harness: Harness) -> None:
    content = _bytes_of(harness.watched.folder, "runs.db*")
    assert b"watched/long" in content
    assert [value for value in VALUES if value.encode() in content] == []
