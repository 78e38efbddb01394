"""A worker that was frozen during a step and wakes when others have continued changes nothing, and
reports this.

One real worker is held in nine steps of nine runs at once and frozen (SIGSTOP). Then either another
worker repeats and finishes the same steps, or every run is resumed with its next attempt. Then the
first one wakes, does what it was about to do, and exits.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from temporalio.common import SearchAttributeKey

from crawler_lifecycle.cli.problems import CommandFailed, Exit
from crawler_lifecycle.cli.stack import processes
from crawler_lifecycle.cli.stack.supervise import Part
from crawler_lifecycle.domain.run import Stage
from tests.e2e.harness import TERMINAL, Row, moment, until
from tests.e2e.stopping import QUICK, StopHarness
from tests.support.builds import command

pytestmark = pytest.mark.slow

LONG = 3600.0
STAGE = SearchAttributeKey.for_keyword("CrawlStage")
#: Polls of the frozen worker that the server still answers each take a task, until its timeout.
RECOVERY_S = 200.0


@dataclass(frozen=True, slots=True)
class Step:
    """Where the worker is held (role, port and method), and what leads there."""

    point: str
    seconds: float = LONG
    """How long the crawler goes on by itself."""
    ends: bool = False
    """Whether the crawler is told to finish when everything is ready for that."""
    held_from: str = "start"
    """``start``, or ``running``: from when its task executes on."""
    stopped: bool = False
    warns: bool = True
    """Whether the first attempt's write is refused when the run is at its second."""


UNSENT, PUSHED = "deployment call, before it is sent", "append of an event"
STEPS = {
    # The scheduler service refuses it, because the call has expired.
    UNSENT: Step("cluster.scheduler.deploy.before", warns=False),
    "deployment call, before its answer is written": Step("cluster.scheduler.deploy.after"),
    "update_run_started": Step("workflows.store.mark_started.before"),
    "record_poll": Step("cluster.store.record_poll.before", held_from="running"),
    "sync_statuses": Step("workflows.store.apply_findings.before", ends=True, held_from="running"),
    "update_run_status": Step("workflows.store.end_run.before", seconds=1.0),
    # A held call to the cluster was replaced by another: none of it is written when it returns.
    "k8_stop_task": Step(
        "control.cluster.stop.before", held_from="running", stopped=True, warns=False
    ),
    PUSHED: Step("workflows.store.append_event.before"),
    # An attempt that was resumed meanwhile may still record the result of its own export, because
    # nobody else will.
    "record_export": Step("export.store.record_export.before", seconds=1.0, warns=False),
}

NEVER = datetime(1970, 1, 1, tzinfo=UTC)
#: What may not change. What polls of a continuing run change (times, counters) is checked
#: separately.
FACTS = {
    "run_history": "status stage outcome attempt owner_run_id waiting_for stop_requested_at started_at ended_at",
    "task_history": "task_id attempt task_index superseded_by status outcome cluster_uid exit_code exit_signal "
    "deployed_at started_at ended_at offered_until",
    "status_transition": "seq task_id attempt from_status to_status source",
    "correction": "id task_id kind",
    "outbox_event": "seq attempt type event_key",
    "cancellation_log": "attempt request_id acted_at",
    "export_record": "attempt status url bytes files sha256 error",
}


@dataclass
class Frozen:
    """One freeze: the contents of the database before and after the worker woke, by step."""

    harness: StopHarness
    resumes: bool
    runs: dict[str, int] = field(default_factory=dict)
    before: dict[str, Row] = field(default_factory=dict)
    after: dict[str, Row] = field(default_factory=dict)
    times: dict[str, tuple[datetime, datetime]] = field(default_factory=dict)
    frozen_at: datetime = NEVER

    def play(self) -> None:
        self.hold()
        self.freeze()
        self.succeed()
        self.before = {name: self.facts(run) for name, run in self.runs.items()}
        polled = {name: self.polled(run) for name, run in self.runs.items()}
        self.wake()
        self.after = {name: self.facts(run) for name, run in self.runs.items()}
        self.times = {name: (polled[name], self.polled(run)) for name, run in self.runs.items()}
        self.end()

    def hold(self) -> None:
        """Start all runs, and wait until the worker is held in each of them."""
        harness = self.harness
        for name, step in STEPS.items():
            last = harness.query("SELECT COALESCE(MAX(run_id), 0) FROM run_history")[0][0]
            if step.held_from == "start":
                harness.points.hold(last + 1, step.point)
            request = {"crawler": "patient", "args": {"seconds": str(step.seconds)}, **QUICK}
            self.runs[name] = harness.gateway.start(
                request, f"{'resumed' if self.resumes else 'retried'}-{name}"
            )["run_id"]
            assert self.runs[name] == last + 1
        for name, step in STEPS.items():
            if step.held_from == "running":
                run = self.runs[name]
                until(lambda run=run: harness.tasks(run).get("RUNNING"), f"the task of run {run}")
                harness.points.hold(run, step.point)
                if step.ends:
                    (folder,) = harness.task_folders(run)
                    (folder / "files" / "enough").touch()
                if step.stopped:
                    harness.gateway.stop(run, requested_by="ada", request_id=f"stop-{run}")
        for name, step in STEPS.items():
            until(
                lambda run=self.runs[name], at=step.point: harness.points.held(run, at),
                f"the worker held in {name}",
            )

    def freeze(self) -> None:
        self.harness.freeze("worker")
        self.frozen_at = datetime.now(UTC)
        if self.resumes:
            for run in self.runs.values():
                [(workflow_id,)] = self.harness.query(
                    "SELECT owner_workflow_id FROM run_history WHERE run_id = ?", run
                )
                self.harness.temporal("workflow", "terminate", "--workflow-id", workflow_id)
        self.harness.points.release()

    def succeed(self) -> None:
        """Let another worker take over, until it has done each step."""
        harness = self.harness
        usual = harness.stack.supervisor._kept["worker"].part
        port, metrics = processes.free_port(), processes.free_port()
        ports = {
            "LIFECYCLE_WORKER__HEALTH_PORT": str(port),
            "LIFECYCLE_WORKER__METRICS_PORT": str(metrics),
        }
        health = f"http://127.0.0.1:{port}/readyz"
        part = Part("successor", command("worker"), health, {**usual.env, **ports}, grace_s=25.0)
        began = time.monotonic()
        harness.stack.supervisor.start([part])
        harness.stack.supervisor.wait_healthy(["successor"])
        if self.resumes:
            for name, run in self.runs.items():
                self._resume(name, run)
        for name, run in self.runs.items():
            until(
                lambda name=name, run=run: self._is_done(name, run),
                f"{name} by somebody else",
                RECOVERY_S,
            )
            print(f"{time.monotonic() - began:6.1f} s {name}", flush=True)

    def _resume(self, name: str, run: int) -> None:
        harness = self.harness
        try:
            harness.gateway.resume(run, rerun=harness.status(run) == "COMPLETED")
        except CommandFailed as refused:
            # A recorded stop whose workflow is gone: the gateway has begun the next attempt by
            # itself.
            if refused.code is not Exit.NOT_IN_THIS_STATE or not STEPS[name].stopped:
                raise
        until(
            lambda: self._attempt(run) == 2, f"the second attempt of run {run} ({name})", RECOVERY_S
        )

    def _attempt(self, run: int) -> int:
        return int(
            self.harness.query("SELECT attempt FROM run_history WHERE run_id = ?", run)[0][0]
        )

    def _is_done(self, name: str, run: int) -> bool:
        """Return whether another worker did the step, and the run is at rest."""
        harness, step = self.harness, STEPS[name]
        if step.stopped or step.ends or step.seconds < LONG:
            return harness.closed([run])
        sql = "SELECT status, waiting_for, look_ordered_at, verified_at FROM run_history WHERE run_id = ?"
        [(status, waits, ordered, verified)] = harness.query(sql, run)
        if (
            status != "PROCESSING"
            or waits is not None
            or ordered is None
            or harness.tasks(run) != {"RUNNING": 1}
        ):
            return False
        # With a poll by the successor, because the first worker was frozen before it.
        return verified is not None and moment(verified) > self.frozen_at and self._has_started(run)

    def _has_started(self, run: int) -> bool:
        """Return whether the start of the run was pushed or abandoned: its workflow shows the next
        stage after that.
        """
        [(workflow_id,)] = self.harness.query(
            "SELECT owner_workflow_id FROM run_history WHERE run_id = ?", run
        )
        (found,) = self.harness.talk(
            lambda client: client.get_workflow_handle(workflow_id).describe()
        )
        return (
            found is not None and found.typed_search_attributes.get(STAGE) == Stage.RECONCILIATION
        )

    def wake(self) -> None:
        """Let the first worker continue and exit normally, so that everything that it was about to
        do is done.
        """
        harness = self.harness
        harness.thaw("worker")
        until(lambda: not harness.points.held(), "that the woken worker goes on with all of them")
        for name in STEPS:
            until(lambda name=name: self.told(name), f"what the woken worker says of {name}")
        if self.resumes:
            own = "SELECT 1 FROM export_record WHERE run_id = ? AND attempt = 1"
            until(
                lambda: harness.query(own, self.runs["record_export"]),
                "how the first attempt's export went",
            )
        harness.stack.supervisor.stop(["worker"])

    def told(self, name: str) -> list[str]:
        """Return the log lines of this step's refused write; if it logs none, check that there are
        none.
        """
        run = self.runs[name]
        said = (self.harness.folder / "logs" / "worker.log").read_text(errors="replace")
        lines = [
            line
            for line in said.splitlines()
            if "refused" in line and re.search(rf"\b[Rr]un {run}\b", line)
        ]
        if self.resumes and STEPS[name].warns:
            return [line for line in lines if f"Run {run} is at attempt 2 of owner" in line]
        if not self.resumes and name == "record_poll":
            return [line for line in lines if f"run {run}, attempt 1, that was ordered at" in line]
        return (
            ["nothing is expected"]
            if self.resumes or not any("is at attempt" in line for line in lines)
            else []
        )

    def end(self) -> None:
        """Check that every run ends as if nothing had happened; the first worker serves again."""
        harness = self.harness
        for run in self.runs.values():
            if harness.status(run) not in TERMINAL:
                harness.gateway.stop(run, requested_by="ada", request_id=f"end-{run}")
        until(lambda: harness.closed(list(self.runs.values())), "the end of all runs", RECOVERY_S)
        harness.stack.supervisor.stop(["successor"])
        harness.bring_back("worker")

    def facts(self, run: int) -> Row:
        """Return everything on record that only a step may change."""
        found: Row = {}
        for table, columns in FACTS.items():
            rows = self.harness.query(
                f"SELECT {', '.join(columns.split())} FROM {table} WHERE run_id = ?", run
            )
            found[table] = sorted(tuple(map(str, row)) for row in rows)
        found["objects"] = [str(folder) for folder in self.harness.task_folders(run)]
        return found

    def polled(self, run: int) -> datetime:
        return moment(
            self.harness.query("SELECT verified_at FROM run_history WHERE run_id = ?", run)[0][0]
        )


@pytest.fixture(scope="module", params=["retried", "resumed"])
def frozen(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Frozen]:
    folder = tmp_path_factory.mktemp(f"frozen-{request.param}") / "state"
    # Scheduled audits would take over runs whose workflow was terminated if the test takes long.
    with StopHarness.up(folder, LIFECYCLE_AUDIT__INTERVAL_S="0") as harness:
        story = Frozen(harness, resumes=request.param == "resumed")
        story.play()
        yield story


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", STEPS)
def test_it_changes_nothing(frozen: Frozen, name: str) -> None:
    before, after = frozen.before[name], frozen.after[name]
    # A push is tried three times and then abandoned, so that only the frozen worker may be left to
    # record it: it is held in one, and its polls may have taken each try of another.
    late = [event for event in after["outbox_event"] if event not in before["outbox_event"]]
    now = str(frozen._attempt(frozen.runs[name]))
    assert {event[1:3] for event in late} <= {(now, "run.started")}
    after = after | {
        "outbox_event": [event for event in after["outbox_event"] if event not in late]
    }
    if name == "record_export" and frozen.resumes:
        own = [row for row in after["export_record"] if row not in before["export_record"]]
        assert [row[0] for row in own] == ["1"], (
            "how the export of its own attempt went, and nothing else"
        )
        after = after | {"export_record": [row for row in after["export_record"] if row not in own]}
    assert after == before
    former, latter = frozen.times[name]
    assert latter >= former, "a poll that was ordered earlier takes nothing back"


@pytest.mark.parametrize("name", STEPS)
def test_its_refused_write_is_told(frozen: Frozen, name: str) -> None:
    # The scheduler service refuses the late deployment call, and nobody may receive its response:
    # what that call did not do is proved below.
    [told, *_] = frozen.told(name)
    if frozen.resumes and STEPS[name].warns:
        assert "attempt 1 of owner" in told
        assert "warning" in told.lower()
    elif not frozen.resumes and name == "record_poll":
        assert "warning" in told.lower()


@pytest.mark.parametrize("name", STEPS)
def test_everything_happened_once(frozen: Frozen, name: str) -> None:
    harness, run = frozen.harness, frozen.runs[name]
    rows = harness.query(
        "SELECT task_index, attempt, cluster_uid FROM task_history WHERE run_id = ?", run
    )
    folders = harness.task_folders(run)
    assert sorted(uid for *_, uid in rows) == sorted(
        json.loads((f / "spec.json").read_text())["uid"] for f in folders
    )
    assert len(rows) == (2 if frozen.resumes and name == "record_export" else 1), (
        "one object for each row"
    )
    assert all(len(harness.signals(folder)) <= 1 for folder in folders), "one stop signal"
    ended = harness.query(
        "SELECT attempt FROM outbox_event WHERE run_id = ? AND type = 'run.ended'", run
    )
    started = harness.query(
        "SELECT attempt FROM outbox_event WHERE run_id = ? AND type = 'run.started'", run
    )
    for events in (ended, started):
        assert len(events) == len(set(events)), "no event twice"
    assert ended[-1] == (frozen._attempt(run),)
    exports = harness.query("SELECT attempt FROM export_record WHERE run_id = ?", run)
    assert len(exports) == len(set(exports))
