"""The times of an audit come from two clocks: Temporal's for its start, a worker's for its
findings.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from temporalio.testing import ActivityEnvironment

from crawler_lifecycle.activities.audits.audit import AuditActivities, CloseAudit
from crawler_lifecycle.activities.audits.settling import AuditPage, AuditPart
from crawler_lifecycle.domain.audits.audit import AuditReport, AuditRules, FindingKind
from crawler_lifecycle.domain.run import RunRequest
from crawler_lifecycle.workflows.audit import AuditState
from tests.activities.harness import OWNER, Harness

GRACE_S = 300.0


def audited(harness: Harness, audit_id: str, ahead_s: float) -> AuditPart:
    """An audit without repairs, started by a Temporal server whose clock is this number of seconds
    ahead of the worker's.
    """
    audit = AuditActivities(
        harness.store,
        harness.cluster,
        harness.directory,
        AuditRules(start_grace_s=GRACE_S),
        harness.clock,
    )
    started_at = harness.now + timedelta(seconds=ahead_s)
    state, report = AuditState(), AuditReport(audit_id, started_at, started_at, repair=False)
    part: AuditPart = ActivityEnvironment().run(audit.audit_runs, AuditPage())
    harness.forward(1)
    state.add(report, "open_runs", part)
    ActivityEnvironment().run(
        audit.close_audit, CloseAudit(report, [FindingKind.NOT_STARTED], state.noted_from)
    )
    return part


@pytest.mark.parametrize("ahead_s", [-30.0, 0.0, 30.0])
def test_what_an_audit_saw_a_moment_ago_is_not_gone(harness: Harness, ahead_s: float) -> None:
    """Otherwise its grace period would begin again with each audit, and nothing would ever be
    repaired.
    """
    harness.store.initiation.reserve_run(RunRequest(crawler="books"), "nobody took it up")
    harness.forward(GRACE_S + 1)
    assert audited(harness, "a1", ahead_s).found == {"not_started": 1}
    [first] = harness.store.findings.audit_findings("open")
    harness.forward(60)
    audited(harness, "a2", ahead_s)
    [again] = harness.store.findings.audit_findings("open")
    assert (again.first_seen, again.last_seen > first.last_seen) == (first.first_seen, True)


def test_what_an_audit_saw_no_more_is_gone(harness: Harness) -> None:
    row, _ = harness.store.initiation.reserve_run(RunRequest(crawler="books"), "started late")
    harness.forward(GRACE_S + 1)
    audited(harness, "a1", 0)
    harness.store.initiation.claim_run(RunRequest(run_id=row.run_id), OWNER, lambda _: False)
    harness.directory.open.add(OWNER)
    harness.forward(60)
    assert audited(harness, "a2", 0).found == {}
    assert [found.kind for found in harness.store.findings.audit_findings("gone")] == [
        "not_started"
    ]


def test_pages_by_workers_with_different_clocks_keep_the_earliest_time(harness: Harness) -> None:
    state, report = AuditState(), AuditReport("a1", harness.now, harness.now, repair=False)
    for seconds in (5, -5, 3, None):
        at = None if seconds is None else harness.now + timedelta(seconds=seconds)
        state.add(report, "open_runs", AuditPart(noted_at=at))
    assert state.noted_from == harness.now - timedelta(seconds=5)
