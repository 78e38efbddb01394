"""Routes of audits: start one, and read what it found."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, FastAPI, Query, Response
from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.domain.errors import TemporalUnavailable
from crawler_lifecycle.gateway.api.answers import Audit, AuditAnswer, AuditBody, AuditState
from crawler_lifecycle.store.audits.findings import FindingStore
from crawler_lifecycle.temporal.client import Workflows
from crawler_lifecycle.web.problems import JsonBody, Problem, unavailable

_BODY = JsonBody(AuditBody, optional=True)
#: How long a request waits for its audit, in seconds; a small fleet is compared in less than one.
WAIT_S = 5.0
#: Findings that are listed.
FINDINGS_MAX = 500


def add_audit(app: FastAPI, findings: FindingStore, workflows: Workflows) -> None:
    """Add asking for an audit, and reading what audits found."""

    @app.post(
        "/v1/audit",
        operation_id="audit",
        openapi_extra=_BODY.openapi,
        responses={202: {"model": AuditAnswer, "description": "It is going on; GET /v1/audit has its report later"}},
    )
    async def audit(body: Annotated[AuditBody, Depends(_BODY)], response: Response) -> AuditAnswer:
        """Compare database, cluster and Temporal now, and with ``repair`` put right what is due.

        ``unknown`` says what becomes of what executes and no row knows, as after a restore of the database: ``adopt``
        takes it up again, ``end`` ends it.
        """
        try:
            audit_id, report = await workflows.audit(body.repair, WAIT_S, body.unknown)
        except TemporalUnavailable as error:
            raise unavailable("temporal_unavailable", f"no audit was made; send this later. {error}") from error
        if report is not None:
            return AuditAnswer(audit_id=audit_id, report=Audit.of(report), note=None)
        response.status_code = 202
        response.headers["Location"] = f"/v1/audit?audit_id={audit_id}"
        note = "It is going on; its report comes with GET /v1/audit. Workers of the role audit carry it out."
        return AuditAnswer(audit_id=audit_id, report=None, note=note)

    @app.get("/v1/audit", operation_id="getAudit")
    async def get_audit(
        audit_id: Annotated[str | None, Query(max_length=200, description="that audit; default: the newest")] = None,
    ) -> AuditState:
        """The report of the newest audit, and every finding that is still open."""
        report = await run_in_threadpool(findings.last_audit, audit_id)
        if report is None and audit_id is not None:
            detail = f"there is no report of audit {audit_id!r}; it is going on, or older than 30 days"
            raise Problem(404, "audit_not_found", detail)
        still_open = await run_in_threadpool(findings.audit_findings, "open", FINDINGS_MAX)
        return AuditState(report=None if report is None else Audit.of(report), findings=still_open)
