"""An audit's times come from two clocks: Temporal's says when it began, a worker's when a finding
was seen.
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
from tests.activities.world import OWNER, World

GRACE_S = 300.0


def audited(world: World, audit_id: str, ahead_s: float) -> AuditPart:
    """An audit that only tells, by a Temporal whose clock is so many seconds ahead of the
    worker's.
    """
    audit = AuditActivities(
        world.store, world.cluster, world.directory, AuditRules(start_grace_s=GRACE_S), world.clock
    )
    started_at = world.now + timedelta(seconds=ahead_s)
    state, report = AuditState(), AuditReport(audit_id, started_at, started_at, repair=False)
    part: AuditPart = ActivityEnvironment().run(audit.audit_runs, AuditPage())
    world.forward(1)
    state.add(report, "open_runs", part)
    ActivityEnvironment().run(
        audit.close_audit, CloseAudit(report, [FindingKind.NOT_STARTED], state.noted_from)
    )
    return part


@pytest.mark.parametrize("ahead_s", [-30.0, 0.0, 30.0])
def test_what_an_audit_saw_a_moment_ago_is_not_gone(world: World, ahead_s: float) -> None:
    """If it were, its grace would begin anew with each audit, and nothing would ever be
    repaired.
    """
    world.store.initiation.reserve_run(RunRequest(crawler="books"), "nobody took it up")
    world.forward(GRACE_S + 1)
    assert audited(world, "a1", ahead_s).found == {"not_started": 1}
    [first] = world.store.findings.audit_findings("open")
    world.forward(60)
    audited(world, "a2", ahead_s)
    [again] = world.store.findings.audit_findings("open")
    assert (again.first_seen, again.last_seen > first.last_seen) == (first.first_seen, True)


def test_what_an_audit_saw_no_more_is_gone(world: World) -> None:
    row, _ = world.store.initiation.reserve_run(RunRequest(crawler="books"), "started late")
    world.forward(GRACE_S + 1)
    audited(world, "a1", 0)
    world.store.initiation.claim_run(RunRequest(run_id=row.run_id), OWNER, lambda _: False)
    world.directory.open.add(OWNER)
    world.forward(60)
    assert audited(world, "a2", 0).found == {}
    assert [found.kind for found in world.store.findings.audit_findings("gone")] == ["not_started"]


def test_pages_by_workers_with_different_clocks_keep_the_earliest_time(world: World) -> None:
    state, report = AuditState(), AuditReport("a1", world.now, world.now, repair=False)
    for seconds in (5, -5, 3, None):
        at = None if seconds is None else world.now + timedelta(seconds=seconds)
        state.add(report, "open_runs", AuditPart(noted_at=at))
    assert state.noted_from == world.now - timedelta(seconds=5)
