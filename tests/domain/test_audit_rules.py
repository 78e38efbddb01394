"""Properties of the audit rules: no findings in a sound installation, before a grace period, or
after a repair.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crawler_lifecycle.domain.audits.audit import (
    FOR_PEOPLE,
    LIVED,
    TRIES_MAX,
    AuditFinding,
    AuditRules,
    ClusterTask,
    EndedRun,
    FindingKind,
    LiveParent,
    LiveRun,
    OpenWorkflow,
    RecordedTask,
    ReportedFinding,
    StoredFinding,
    WorkflowState,
    due,
    given_up,
    in_a_row,
    is_hopeless,
    most_urgent,
    ready_at,
    reportable,
)
from crawler_lifecycle.domain.audits.judgement import (
    judge_deliveries,
    judge_end,
    judge_live,
    judge_parent,
    judge_task,
    judge_workflow,
)
from crawler_lifecycle.domain.ended_by import EndedBy
from crawler_lifecycle.domain.run import RunStatus, StopIntent
from crawler_lifecycle.domain.task import End, Observation, Phase, TaskStatus

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LONG_AGO = NOW - timedelta(days=1)
#: The uid of every run.
U = "u" * 32
LIVE = [s.value for s in RunStatus if not s.terminal]
OVER = [s.value for s in RunStatus if s.terminal]
ALIVE = ["QUEUED", "PENDING", "RUNNING", "STOPPING"]
ENDS = ["SUCCEEDED", "FAILED", "CANCELLED", "LOST"]


@dataclass
class Run:
    """One run in all three systems."""

    run_id: int
    status: str
    row: bool = True
    owned: bool = True
    workflow_open: bool = True
    task: str | None = None
    """The recorded status of its task; ``None``: there is no row of it."""
    executing: bool = False
    delivered: bool = True


@dataclass
class Harness:
    """The contents of the database, the cluster and Temporal."""

    runs: list[Run] = field(default_factory=list)

    def findings(self, order: random.Random | None = None) -> list[AuditFinding]:
        """Return the findings for everything, in any order."""
        runs = list(self.runs)
        if order is not None:
            order.shuffle(runs)
        return [finding for run in runs for finding in _judged(run)]

    def repair(self, finding: AuditFinding) -> None:
        """Do what the repair of the activities does."""
        run = next(run for run in self.runs if run.run_id == finding.run_id)
        if finding.kind in (FindingKind.ORPHAN, FindingKind.STILL_ALIVE):
            run.executing = False
        elif finding.kind in (FindingKind.NO_WORKFLOW, FindingKind.NOT_STARTED):
            run.workflow_open = run.owned = True
        elif finding.kind is FindingKind.NO_ROW:
            run.workflow_open = False
        elif finding.kind is FindingKind.UNDELIVERED:
            run.delivered = True


def _judged(run: Run) -> list[AuditFinding]:
    found: list[AuditFinding | None] = []
    owner = (f"w{run.run_id}", f"c{run.run_id}") if run.owned else (None, None)
    if run.row and run.status in LIVE:
        live = LiveRun(
            run.run_id, U, 1, run.status, "books", f"r{run.run_id}", LONG_AGO, None, *owner
        )
        closed = WorkflowState(open=False, closed_at=LONG_AGO, how="terminated")
        found.append(
            judge_live(
                live, WorkflowState(open=True) if run.workflow_open and run.owned else closed
            )
        )
    if run.row and run.status in OVER:
        ended = EndedRun(
            run.run_id,
            U,
            1,
            run.status,
            "books",
            LONG_AGO,
            *owner,
            None,
            run.delivered,
            True,
            run.delivered,
        )
        found.append(None if run.workflow_open else judge_deliveries(ended))
    if run.workflow_open and run.owned:
        workflow = OpenWorkflow(f"w{run.run_id}", f"c{run.run_id}", LONG_AGO, run.run_id, U)
        found.append(judge_workflow(workflow, U if run.row else None))
    if run.executing:
        seen = ClusterTask(run.run_id, 0, 1, True, 7, "uid", LONG_AGO, run_uid=U)
        known = run.row and run.task is not None
        recorded = (
            RecordedTask(run.run_id, run.run_id, U, 0, 1, run.task or "", run.status, "uid")
            if known
            else None
        )
        found.append(judge_task(seen, recorded))
    return [finding for finding in found if finding is not None]


@st.composite
def sound_runs(draw: st.DrawFn, run_id: int) -> Run:
    """A run about which all three systems agree."""
    if draw(st.booleans()):
        task = draw(st.sampled_from([*ALIVE, *ENDS]))
        return Run(
            run_id,
            draw(st.sampled_from(LIVE)),
            task=task,
            executing=task in ALIVE[1:] and draw(st.booleans()),
        )
    exporting = draw(st.booleans())
    delivered = not exporting or draw(st.booleans())
    status, task = draw(st.sampled_from(OVER)), draw(st.sampled_from(ENDS))
    return Run(run_id, status, workflow_open=exporting, task=task, delivered=delivered)


@st.composite
def damaged_runs(draw: st.DrawFn, run_id: int) -> Run:
    """A run with any contents in each system."""
    return Run(
        run_id,
        draw(st.sampled_from([*LIVE, *OVER])),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.sampled_from([None, *ALIVE, *ENDS])),
        draw(st.booleans()),
        draw(st.booleans()),
    )


def harnesses(kind: str) -> st.SearchStrategy[Harness]:
    runs = sound_runs if kind == "sound" else damaged_runs
    return (
        st.integers(0, 8)
        .flatmap(lambda n: st.tuples(*(runs(i) for i in range(1, n + 1))))
        .map(lambda found: Harness(list(found)))
    )


@given(harnesses("sound"))
def test_a_sound_harness_has_no_findings(harness: Harness) -> None:
    assert harness.findings() == []


@given(harnesses("damaged"), st.randoms(use_true_random=False))
def test_the_order_of_reading_means_nothing(harness: Harness, order: random.Random) -> None:
    def by_subject(findings: list[AuditFinding]) -> list[AuditFinding]:
        return sorted(findings, key=lambda finding: finding.subject)

    assert by_subject(harness.findings(order)) == by_subject(harness.findings())
    assert len({finding.subject for finding in harness.findings()}) == len(harness.findings())


@given(harnesses("damaged"))
def test_after_every_repair_nothing_is_left_but_what_needs_a_person(harness: Harness) -> None:
    # The next audit repairs what a repair reveals: a task of a run without a row.
    for _ in range(3):
        for finding in harness.findings():
            harness.repair(finding)
    assert [finding for finding in harness.findings() if finding.kind not in FOR_PEOPLE] == []


rules = st.builds(
    AuditRules,
    grace_s=st.floats(1, 1000),
    orphan_grace_s=st.floats(1, 1000),
    start_grace_s=st.floats(1, 1000),
    resend_s=st.floats(1, 5000),
)
kinds = st.sampled_from(list(FindingKind))


@given(kinds, rules, st.floats(0, 2000), st.one_of(st.none(), st.floats(0, 2000)))
def test_nothing_is_repaired_before_its_grace(
    kind: FindingKind, rules: AuditRules, age_s: float, since_s: float | None
) -> None:
    since = None if since_s is None else NOW - timedelta(seconds=since_s)
    finding = AuditFinding("s", kind, "d", 1, since=since)
    noted = StoredFinding(NOW - timedelta(seconds=age_s))
    if not due(finding, noted, NOW, rules):
        return
    assert kind not in FOR_PEOPLE
    assert ready_at(finding, noted, rules) <= NOW
    oldest = noted.first_seen if since is None else min(noted.first_seen, since)
    grace = {
        FindingKind.LATE_EVIDENCE: 0.0,
        FindingKind.ORPHAN: rules.orphan_grace_s,
        FindingKind.STILL_ALIVE: rules.orphan_grace_s,
        FindingKind.NOT_STARTED: rules.start_grace_s,
    }.get(kind, rules.grace_s)
    assert NOW - oldest >= timedelta(seconds=grace) - timedelta(microseconds=1)
    if kind in (FindingKind.ORPHAN, FindingKind.STILL_ALIVE):
        assert age_s >= grace - 1e-6, (
            "however long it executes, somebody must have had the time to see it"
        )


@given(kinds, rules, st.floats(0, 10_000))
def test_what_was_repaired_and_settled_is_not_repaired_again(
    kind: FindingKind, rules: AuditRules, age_s: float
) -> None:
    noted = StoredFinding(NOW - timedelta(seconds=age_s), NOW, settled=True)
    assert not due(AuditFinding("s", kind, "d", 1, since=LONG_AGO), noted, NOW, rules)


def test_a_delivery_is_ordered_again_after_its_time_and_not_at_every_audit() -> None:
    rules = AuditRules()
    finding = AuditFinding("s", FindingKind.UNDELIVERED, "d", 1, since=LONG_AGO)
    for passed, wanted in ((0, False), (rules.resend_s - 1, False), (rules.resend_s, True)):
        noted = StoredFinding(LONG_AGO, NOW - timedelta(seconds=passed))
        assert due(finding, noted, NOW, rules) is wanted


def test_what_only_begins_is_no_finding_yet() -> None:
    rules = AuditRules()
    for kind in (FindingKind.NOT_STARTED, FindingKind.UNRECORDED, FindingKind.UNDELIVERED):
        young = AuditFinding("s", kind, "d", 1, since=NOW - timedelta(seconds=1))
        assert not reportable(young, NOW, rules)
        assert reportable(replace(young, since=LONG_AGO), NOW, rules)
    assert reportable(AuditFinding("s", FindingKind.ORPHAN, "d", 1), NOW, rules)


# --- evidence that comes late


def _end(**more: object) -> Observation:
    end = End(finished_at=NOW, **more)  # type: ignore[arg-type]
    return Observation(0, 1, Phase.ENDED, NOW, uid="u", end=end)


GOOD = _end(exit_code=0, finish_reason="finished")
BAD = _end(exit_code=1, finish_reason="failed")
PERSON = StopIntent(LONG_AGO, requested_by="ada")


@pytest.mark.parametrize(
    ("status", "codes", "seen", "stop", "truth"),
    [
        ("LOST", (None, None), GOOD, None, "SUCCEEDED"),
        ("LOST", (None, None), BAD, None, "FAILED"),
        ("LOST", (None, None), BAD, PERSON, "CANCELLED"),
        ("CANCELLED", (None, None), GOOD, PERSON, "SUCCEEDED"),
        ("CANCELLED", (None, None), BAD, PERSON, None),
        ("FAILED", (None, None), BAD, PERSON, None),
        ("SUCCEEDED", (0, None), GOOD, None, None),
        ("SUCCEEDED", (0, None), BAD, None, "FAILED"),
        ("FAILED", (1, None), BAD, PERSON, None),
        ("RUNNING", (None, None), GOOD, None, None),
        ("LOST", (None, None), replace(GOOD, uid="another"), None, None),
        ("LOST", (None, None), replace(GOOD, phase=Phase.GONE, end=None), None, None),
    ],
)
def test_only_evidence_contradicts_a_recorded_end(
    status: str,
    codes: tuple[int | None, int | None],
    seen: Observation,
    stop: StopIntent | None,
    truth: str | None,
) -> None:
    finding = judge_end(RecordedTask(7, 1, U, 0, 1, status, "FAILED", "u", *codes), seen, stop)
    assert (finding.evidence["truth"] if finding else None) == truth


# --- the report


def test_what_executes_unowned_is_told_first_and_a_report_has_an_end() -> None:
    findings = [
        ReportedFinding(kind, f"{n}", n) for n in range(40) for kind in reversed(FindingKind)
    ]
    random.Random(7).shuffle(findings)
    told = most_urgent(findings)
    assert len(told) == 100
    assert [f.kind for f in told] == [FindingKind.ORPHAN] * 40 + [FindingKind.STILL_ALIVE] * 40 + [
        FindingKind.NO_WORKFLOW
    ] * 20
    assert [f.run_id for f in told[:40]] == list(range(40))


def test_every_status_of_a_task_is_judged() -> None:
    seen = ClusterTask(1, 0, 1, executing=False, uid="u", run_uid=U)
    for status in TaskStatus:
        finding = judge_task(seen, RecordedTask(7, 1, U, 0, 1, status, "PROCESSING", "u"))
        assert (finding is not None) == status.terminal
    over = judge_task(seen, RecordedTask(7, 1, U, 0, 1, "RUNNING", "FAILED", "u"))
    assert over is not None
    assert "its run is FAILED" in over.detail


LIVE_CRAWL = ClusterTask(1, 0, 1, executing=True, task_id=7, uid="C", run_uid=U)


REFUSED = ("deploy_failed", EndedBy.SERVICE)


@pytest.mark.parametrize(
    ("seen", "row"),
    [
        (LIVE_CRAWL, RecordedTask(7, 1, U, 0, 1, "LOST", "FAILED", "A")),
        (LIVE_CRAWL, RecordedTask(7, 1, U, 0, 1, "SUCCEEDED", "COMPLETED", "A", 0)),
        (LIVE_CRAWL, RecordedTask(7, 1, U, 0, 1, "FAILED", "FAILED", None, None, None, *REFUSED)),
        (LIVE_CRAWL, RecordedTask(8, 1, U, 0, 1, "CANCELLED", "FAILED", None, outcome="cancelled")),
        # A second crawl next to a correct one.
        (LIVE_CRAWL, RecordedTask(7, 1, U, 0, 1, "RUNNING", "PROCESSING", "A")),
        (LIVE_CRAWL, RecordedTask(8, 1, U, 0, 1, "QUEUED", "PROCESSING", None)),
    ],
)
def test_another_object_under_the_name_is_told_and_never_ended(
    seen: ClusterTask, row: RecordedTask
) -> None:
    finding = judge_task(seen, row)
    assert finding is not None
    assert finding.kind is FindingKind.ORPHAN, "no still_alive: the row's end may well be true"
    assert finding.task_id == row.task_id
    assert f"as object C, but the row of its name ({row.status})" in finding.detail
    assert finding.spared is not None
    assert not due(finding, StoredFinding(LONG_AGO), NOW, AuditRules(orphan_grace_s=0))


@pytest.mark.parametrize(
    ("seen", "row"),
    [
        (replace(LIVE_CRAWL, run_uid=uid), RecordedTask(7, 1, U, 0, 1, status, run_status, known))
        for uid in ("v" * 32, None)
        for status, run_status, known in (
            ("PENDING", "INITIALIZING", None),
            ("RUNNING", "PROCESSING", "A"),
            ("LOST", "FAILED", "A"),
            ("CANCELLED", "FAILED", None),
        )
    ],
)
def test_what_another_run_of_the_same_number_left_is_reported_and_never_ended(
    seen: ClusterTask, row: RecordedTask
) -> None:
    """A restored database assigned the number again: the row belongs to another crawl, whatever its
    status is.
    """
    workflow = OpenWorkflow("w1", "c1", LONG_AGO, 1, seen.run_uid)
    for finding, kind in (
        (judge_task(seen, row), FindingKind.ORPHAN),
        (judge_workflow(workflow, U), FindingKind.NO_ROW),
    ):
        assert finding is not None
        assert finding.kind is kind
        assert f"this run has the uid {U}" in finding.detail
        assert "the database was restored" in finding.detail
        assert finding.spared is not None
        assert not due(
            finding, StoredFinding(LONG_AGO), NOW, AuditRules(grace_s=0, orphan_grace_s=0)
        )


def test_an_object_that_lost_its_labels_is_ours_by_its_own_uid() -> None:
    row = RecordedTask(7, 1, U, 0, 1, "RUNNING", "PROCESSING", "C")
    assert judge_task(replace(LIVE_CRAWL, run_uid=None), row) is None


REFUSED = ("deploy_failed", EndedBy.SERVICE)


@pytest.mark.parametrize(
    ("seen", "row"),
    [
        (LIVE_CRAWL, RecordedTask(7, 1, U, 0, 1, "LOST", "FAILED", "C")),
        # Deployed late.
        (LIVE_CRAWL, RecordedTask(7, 1, U, 0, 1, "CANCELLED", "FAILED", None, outcome="cancelled")),
        (
            replace(LIVE_CRAWL, task_id=None),
            RecordedTask(7, 1, U, 0, 1, "CANCELLED", "FAILED", None),
        ),
        (replace(LIVE_CRAWL, uid=None), RecordedTask(7, 1, U, 0, 1, "LOST", "FAILED", "A")),
        # Only a process is left of it, which has no uid of its own.
        (
            replace(LIVE_CRAWL, uid="12@34", stray=True),
            RecordedTask(7, 1, U, 0, 1, "LOST", "FAILED", "A"),
        ),
    ],
)
def test_our_own_object_is_still_alive_and_ended(seen: ClusterTask, row: RecordedTask) -> None:
    finding = judge_task(seen, row)
    assert finding is not None
    assert (finding.kind, finding.spared) == (FindingKind.STILL_ALIVE, None)
    assert due(finding, StoredFinding(LONG_AGO), NOW, AuditRules())
    assert judge_task(seen, replace(row, status="RUNNING", run_status="PROCESSING")) is None


# --- what is taken over in vain


def lost(forced: bool = False, closed_at: datetime = NOW) -> AuditFinding:
    parent = LiveParent(
        "manager", 3, "manager/a/b", "PROCESSING", 1, LONG_AGO, "chain", forced=forced
    )
    found = judge_parent(
        parent, WorkflowState(open=False, closed_at=closed_at, how="terminated", why="too large")
    )
    assert found is not None
    assert (
        found.detail
        == "manager 3 (manager/a/b) is PROCESSING, but its workflow was terminated: too large"
    )
    return found


@pytest.mark.parametrize(
    ("tries", "wait_s"), [(0, 30), (1, 30), (2, 60), (3, 120), (4, 240), (TRIES_MAX, 30)]
)
def test_each_take_over_in_vain_waits_longer_than_the_one_before(tries: int, wait_s: float) -> None:
    noted = StoredFinding(LONG_AGO, NOW, tries=tries)
    assert ready_at(lost(closed_at=LONG_AGO), noted, AuditRules()) == NOW + timedelta(
        seconds=wait_s
    )


@pytest.mark.parametrize(("forced", "most"), [(False, TRIES_MAX), (True, 1)])
def test_after_so_many_in_a_row_it_is_given_up(forced: bool, most: int) -> None:
    finding = lost(forced)
    assert [
        is_hopeless(finding, StoredFinding(NOW, NOW, tries=n)) for n in (0, most - 1, most)
    ] == [
        False,
        most == 0,
        True,
    ]
    assert "too large" in given_up(finding)


@pytest.mark.parametrize(
    ("lived_s", "tries"), [(LIVED.total_seconds(), 4), (LIVED.total_seconds() + 1, 0)]
)
def test_one_that_lived_for_a_while_begins_the_count_anew(lived_s: float, tries: int) -> None:
    noted = StoredFinding(NOW + timedelta(seconds=lived_s), NOW, tries=4)
    for closed_at in (LONG_AGO, NOW + timedelta(days=1)):  # whatever the clock of the server says
        assert in_a_row(lost(closed_at=closed_at), noted).tries == tries


def test_what_goes_on_is_another_finding() -> None:
    """Its takeovers are counted separately; across attempts and owners, it stays the same finding."""
    run = LiveRun(1, U, 1, "PROCESSING", "books", "r1", LONG_AGO, None, "crawl/books/r1", "chain")
    gone = WorkflowState(open=False, closed_at=NOW, how="terminated")
    again = replace(run, attempt=2, owner_run_id="another")
    asked = replace(run, stop=StopIntent(NOW))
    forced = replace(run, stop=StopIntent(NOW, force=True))
    subjects = [
        getattr(judge_live(one, gone, tasks), "subject", None)
        for one, tasks in [
            (run, {"RUNNING": 2}),
            (again, {"RUNNING": 2}),
            (run, {"RUNNING": 1}),
            (asked, {"RUNNING": 2}),
            (forced, {"RUNNING": 2}),
        ]
    ]
    assert subjects[0] == subjects[1]
    assert len({*subjects}) == 4


@pytest.mark.parametrize(
    ("stop", "most"),
    [
        (None, TRIES_MAX),
        # Its crawlers have their grace period, whatever happens to workflows meanwhile.
        (StopIntent(NOW), TRIES_MAX),
        (StopIntent(NOW, limit="timed_out"), TRIES_MAX),
        (StopIntent(NOW, force=True), 1),
    ],
)
def test_only_a_forced_stop_gives_up_sooner(stop: StopIntent | None, most: int) -> None:
    run = LiveRun(
        1, U, 1, "STOPPING", "books", "r1", LONG_AGO, None, "crawl/books/r1", "chain", stop=stop
    )
    found = judge_live(
        run, WorkflowState(open=False, closed_at=NOW, how="terminated"), {"RUNNING": 2}
    )
    assert found is not None
    assert found.tries_max == most


def test_one_that_was_just_made_is_not_lost_by_a_workflow_of_before() -> None:
    """A graph is retried whose workflow was once terminated: the gateway is about to start the next
    one.
    """
    parent = LiveParent("graph", 3, "graph/a", "executing", 2, NOW)
    before = WorkflowState(open=False, closed_at=LONG_AGO, how="terminated")
    found = judge_parent(parent, before)
    assert found is not None
    assert (found.kind, found.since) == (FindingKind.NOT_STARTED, NOW)
    after = judge_parent(parent, replace(before, closed_at=NOW + timedelta(seconds=1)))
    assert after is not None
    assert after.kind is FindingKind.NO_WORKFLOW
