"""The web pages of corrections and of audits."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from crawler_lifecycle.domain.audits.audit import UnknownDecision
from crawler_lifecycle.domain.audits.corrections import SOURCES, CorrectionKind
from crawler_lifecycle.domain.bounds import ID_MAX
from crawler_lifecycle.gateway.api.paging import CorrectionFilters, cut
from crawler_lifecycle.gateway.cursors import decode
from crawler_lifecycle.gateway.ledger import FINDINGS_MAX, WAIT_S, summary_of
from crawler_lifecycle.gateway.runs.answers import WEEK
from crawler_lifecycle.gateway.runs.commands import needing_temporal
from crawler_lifecycle.gateway.runs.routes import RunViews
from crawler_lifecycle.gateway.streams.timeline import task_name
from crawler_lifecycle.gateway.ui.parts.forms import (
    KeyedForm,
    Once,
    Outcome,
    form,
    outcomes_page,
    query_of,
    read,
)
from crawler_lifecycle.gateway.ui.parts.rendering import answer, next_page, query
from crawler_lifecycle.store.store import Store
from crawler_lifecycle.temporal.client import Workflows


class AuditForm(KeyedForm):
    """The form that starts an audit."""

    repair: bool = False
    unknown: UnknownDecision = UnknownDecision.LEAVE


def add_ledger(
    app: FastAPI, store: Store, views: RunViews, workflows: Workflows, once: Once
) -> None:
    """Add the web pages of corrections and audits."""

    @app.get("/corrections")
    def show_corrections(request: Request) -> Response:
        """List the corrections of all runs since a given time (default: the last week), newest
        first, and the number of corrections of each kind.
        """
        filters = query_of(request, CorrectionFilters)
        now = views.clock()
        since = filters.since or now - WEEK
        before = decode("correction", filters.page_token) or ID_MAX
        size = filters.page_size + 1
        rows = store.corrections.list_corrections(
            None, limit=size, kind=filters.kind, before_id=before
        )
        rows = [row for row in rows if row.created_at >= since]
        page, token = cut("correction", rows, filters.page_size, lambda row: row.id)
        overdue = store.overdue.overdue_polls(now)
        summary = summary_of(
            store.corrections.correction_summary(since), overdue, now, week=filters.since is None
        )
        values: dict[str, Any] = {
            "rows": page,
            "summary": summary,
            "more": next_page(filters.model_copy(update={"since": since}), token),
            "filters": filters,
            "kinds": list(CorrectionKind),
            "sources": SOURCES,
            "task_name": task_name,
            "indexes": store.tasks.task_indexes(
                {row.task_id for row in page if row.task_id is not None}
            ),
        }
        return answer(request, "corrections.html", since=since, now=now, **values)

    @app.get("/audit")
    async def show_audit(
        request: Request, audit_id: Annotated[str | None, Query(max_length=200)] = None
    ) -> Response:
        """Show the given report (default: the newest), and all open findings."""
        report = await run_in_threadpool(store.findings.last_audit, audit_id)
        findings = await run_in_threadpool(store.findings.audit_findings, "open", FINDINGS_MAX)
        due = (
            {}
            if report is None
            else {finding.detail: finding.due_at for finding in report.findings}
        )
        return answer(
            request,
            "audit.html",
            asked=audit_id,
            now=views.clock(),
            report=report,
            findings=findings,
            due=due,
            unknown=list(UnknownDecision),
        )

    @app.post("/audit")
    async def press_audit(request: Request) -> Response:
        """Run an audit now. With ``repair``, also repair the findings that are due for repair."""
        asked = read(AuditForm, await form(request))

        async def act() -> Outcome:
            with needing_temporal("no audit was made; try again later."):
                audit_id, report = await workflows.audit(asked.repair, WAIT_S, asked.unknown)
            href = "/audit" + query({"audit_id": audit_id})
            if report is None:
                return Outcome(
                    audit_id,
                    href,
                    True,
                    "The audit is executing; its report is shown here when it has ended.",
                )
            found = sum(report.found.values())
            repaired = sum(report.repaired.values())
            return Outcome(
                audit_id, href, True, f"Found {found}, repaired {repaired}, left {report.left}."
            )

        word = "Audit and repair" if asked.repair else "Audit"
        return outcomes_page(request, word, [await once(asked.key, act)], views.clock())
