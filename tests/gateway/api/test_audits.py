"""POST and GET /v1/audit: requesting an audit, and the findings of audits."""

from __future__ import annotations

from datetime import timedelta

from fastapi.testclient import TestClient

from crawler_lifecycle.domain.audits.audit import (
    AuditFinding,
    AuditReport,
    FindingKind,
    ReportedFinding,
)
from tests.gateway.gateway_harness import Harness


def report_of(harness: Harness, audit_id: str = "audit-1") -> AuditReport:
    found = ReportedFinding(
        FindingKind.ORPHAN,
        "task 0 of run 9 executes",
        9,
        due_at=harness.clock() + timedelta(minutes=5),
    )
    return AuditReport(
        audit_id,
        harness.clock(),
        harness.clock() + timedelta(seconds=1),
        repair=True,
        looked={"open_runs": 3},
        found={"orphan": 1, "no_workflow": 2},
        repaired={"no_workflow": 2},
        findings=[found],
    )


def test_an_audit_that_ends_soon_is_answered_with_its_report(
    harness: Harness, client: TestClient
) -> None:
    harness.workflows.report = report_of(harness)
    answer = client.post("/v1/audit", json={"repair": True})
    assert answer.status_code == 200
    body = answer.json()
    assert (body["audit_id"], body["report"]["left"], body["report"]["found"]) == (
        "audit-1",
        1,
        {"orphan": 1, "no_workflow": 2},
    )
    assert body["report"]["findings"][0]["kind"] == "orphan"
    assert harness.workflows.audits == [True]


def test_without_a_body_it_only_tells(harness: Harness, client: TestClient) -> None:
    harness.workflows.report = report_of(harness)
    assert client.post("/v1/audit").status_code == 200
    assert harness.workflows.audits == [False]


def test_one_that_takes_longer_is_read_later(harness: Harness, client: TestClient) -> None:
    answer = client.post("/v1/audit", json={"repair": False, "unknown": "adopt"})
    assert harness.workflows.unknown == "adopt"
    assert client.post("/v1/audit", json={"unknown": "burn"}).status_code == 422
    assert (answer.status_code, answer.json()["report"]) == (202, None)
    where = answer.headers["Location"]
    missing = client.get(where)
    assert (missing.status_code, missing.json()["code"]) == (404, "audit_not_found")
    harness.store.findings.record_audit(report_of(harness))
    harness.store.findings.record_audit(report_of(harness, "audit-2"))
    assert client.get(where).json()["report"]["audit_id"] == "audit-1"
    assert client.get("/v1/audit").json()["report"]["audit_id"] == "audit-2"


def test_what_is_open_is_listed(harness: Harness, client: TestClient) -> None:
    assert client.get("/v1/audit").json() == {"report": None, "findings": []}
    harness.store.findings.note_findings([
        AuditFinding("orphan/9", FindingKind.ORPHAN, "task 0 of run 9 executes", 9, evidence={"uid": "u"}),
        AuditFinding("no_row/w", FindingKind.NO_ROW, "workflow 'w' belongs to run 8", 8, workflow_id="w"),
    ])  # fmt: skip
    harness.store.findings.note_repair("no_row/w", "terminated")
    (found,) = client.get("/v1/audit").json()["findings"]
    assert (found["kind"], found["status"], found["evidence"]) == ("orphan", "open", {"uid": "u"})


def test_temporal_away_is_said(harness: Harness, client: TestClient) -> None:
    harness.workflows.down = True
    answer = client.post("/v1/audit", json={"repair": True})
    assert (answer.status_code, answer.json()["code"]) == (503, "temporal_unavailable")


def test_a_misspelt_field_is_named(client: TestClient) -> None:
    answer = client.post("/v1/audit", json={"repare": True})
    assert answer.status_code == 422
    assert "repare" in answer.text
