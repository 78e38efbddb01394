"""Routes of the ledger: corrections, their summary, and audits."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import FastAPI, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.clock import Clock
from crawler_lifecycle.domain.audits.corrections import CorrectionKind, wrong_words
from crawler_lifecycle.domain.audits.overdue import OverduePolls
from crawler_lifecycle.gateway.api.long_poll import conditional, documents
from crawler_lifecycle.gateway.api.paging import SummaryChoice
from crawler_lifecycle.gateway.runs.commands import needing_temporal
from crawler_lifecycle.gateway.runs.requests import OptionalBodyOf
from crawler_lifecycle.ports.polls import CorrectionSummary
from crawler_lifecycle.store.audits.findings import FindingStore
from crawler_lifecycle.store.audits.reads import OverdueStore
from crawler_lifecycle.store.runs.corrections import CorrectionStore
from crawler_lifecycle.temporal.client import Workflows
from crawler_lifecycle.web.problems import Problem

from .runs.answers import (
    WEEK,
    Audit,
    AuditAnswer,
    AuditBody,
    AuditState,
    CorrectionTotals,
    LedgerSummary,
    Overdue,
)


def add_ledger(
    app: FastAPI, corrections: CorrectionStore, overdue: OverdueStore, clock: Clock
) -> None:
    """Add ``GET /v1/corrections/summary``."""

    @app.get("/v1/corrections/summary", **documents(LedgerSummary))
    def summarize_corrections(
        choice: Annotated[SummaryChoice, Query()], request: Request
    ) -> Response:
        """The corrections of all runs: the number of each kind, and the longest time for which a
        status was untrue.
        """
        now = clock()
        since = choice.since or now - WEEK
        summary = corrections.correction_summary(since)
        late = overdue.overdue_polls(now)
        return conditional(request, summary_of(summary, late, now, week=choice.since is None))


def summary_of(
    found: CorrectionSummary, late: OverduePolls, now: datetime, *, week: bool
) -> LedgerSummary:
    """Return the summary, in numbers and as a sentence."""
    known = {kind.value: kind.meaning for kind in CorrectionKind}
    overdue = Overdue.of(late, now)
    period = "this week" if week else f"since {found.since:%Y-%m-%dT%H:%M:%SZ}"
    words = wrong_words(found.worst_ms, {total.kind: total.count for total in found.kinds}, period)
    return LedgerSummary(
        since=found.since,
        until=now,
        count=found.count,
        worst_s=_seconds(found.worst_ms),
        kinds={
            total.kind: CorrectionTotals(
                count=total.count, worst_s=_seconds(total.worst_ms), meaning=known.get(total.kind)
            )
            for total in found.kinds
        },
        overdue=overdue,
        # A status that no poll has checked since then may be untrue, too.
        text="; ".join(filter(None, [words, overdue.text])),
    )


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


#: Seconds that a request waits for its audit. With few runs, an audit takes less than a second.
WAIT_S = 5.0
#: The maximum number of findings in one response.
FINDINGS_MAX = 500


def add_audit(app: FastAPI, findings: FindingStore, workflows: Workflows) -> None:
    """Add the routes that run an audit and that read its findings."""

    @app.post(
        "/v1/audit",
        responses={
            202: {
                "model": AuditAnswer,
                "description": "It is running; GET /v1/audit has its report later",
            }
        },
    )
    async def audit(body: OptionalBodyOf[AuditBody], response: Response) -> AuditAnswer:
        """Compare the database, the cluster and Temporal now.

        With ``repair``, also repair the findings that are due for repair.

        After a restore of the database, some executing tasks may have no row. ``unknown`` defines
        what to do with them: ``adopt`` writes their rows again, and ``end`` ends them.
        """
        with needing_temporal("no audit was started; send this later."):
            audit_id, report = await workflows.audit(body.repair, WAIT_S, body.unknown)
        if report is not None:
            return AuditAnswer(audit_id=audit_id, report=Audit.of(report), note=None)
        response.status_code = 202
        response.headers["Location"] = f"/v1/audit?audit_id={audit_id}"
        note = (
            "The audit is running; GET /v1/audit has its report later. Workers with the role "
            "audit carry it out."
        )
        return AuditAnswer(audit_id=audit_id, report=None, note=note)

    @app.get("/v1/audit")
    async def get_audit(
        audit_id: Annotated[
            str | None, Query(max_length=200, description="its id; the default is the newest audit")
        ] = None,
    ) -> AuditState:
        """The report of this audit (default: the newest), and every finding that is still open."""
        report = await run_in_threadpool(findings.last_audit, audit_id)
        if report is None and audit_id is not None:
            detail = (
                f"audit {audit_id!r} has no report; it is still running, or is older than 30 days"
            )
            raise Problem(404, "audit_not_found", detail)
        still_open = await run_in_threadpool(findings.audit_findings, "open", FINDINGS_MAX)
        return AuditState(report=report and Audit.of(report), findings=still_open)
