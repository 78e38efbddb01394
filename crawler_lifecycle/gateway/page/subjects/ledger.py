"""The ledger of corrections, and audits: what was recorded and turned out to be untrue, and what nobody looks after."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from crawler_lifecycle.domain.audits.audit import Unknown
from crawler_lifecycle.domain.audits.corrections import SOURCES, CorrectionKind
from crawler_lifecycle.domain.audits.overdue import overdue_before
from crawler_lifecycle.domain.bounds import ID_MAX
from crawler_lifecycle.domain.errors import TemporalUnavailable
from crawler_lifecycle.gateway.api.answers import WEEK
from crawler_lifecycle.gateway.api.paging import CorrectionFilters, cut
from crawler_lifecycle.gateway.api.routes.audit import FINDINGS_MAX, WAIT_S
from crawler_lifecycle.gateway.api.routes.corrections import summary_of
from crawler_lifecycle.gateway.api.routes.runs import RunViews
from crawler_lifecycle.gateway.cursors import decode
from crawler_lifecycle.gateway.page.parts.forms import form, read
from crawler_lifecycle.gateway.page.parts.pressing import Once, Pressed, Told, tell
from crawler_lifecycle.gateway.page.parts.rendering import answer, query
from crawler_lifecycle.gateway.streams.timeline import task_name
from crawler_lifecycle.ports import Store
from crawler_lifecycle.temporal.client import Workflows
from crawler_lifecycle.web.problems import unavailable


class AuditForm(Pressed):
    """The form of an audit."""

    repair: bool = False
    unknown: Unknown = Unknown.LEAVE


def add_ledger(app: FastAPI, store: Store, views: RunViews, workflows: Workflows, once: Once) -> None:
    """Add corrections and audits."""

    @app.get("/corrections", operation_id="showCorrections", include_in_schema=False)
    def show_corrections(request: Request) -> Response:
        """Corrections of all runs since a time, newest first, and how many of each kind there were; of the last week by
        default."""
        filters = read(CorrectionFilters, request.query_params.multi_items())
        now = views.clock()
        since = filters.since or now - WEEK
        before = decode("correction", filters.page_token) or ID_MAX
        size = filters.page_size + 1
        rows = store.corrections.list_corrections(None, limit=size, kind=filters.kind, before_id=before)
        rows = [row for row in rows if row.created_at >= since]
        page, token = cut("correction", rows, filters.page_size, lambda row: row.id)
        overdue = store.overdue.overdue_looks(overdue_before(now))
        summary = summary_of(store.corrections.correction_summary(since), overdue, now, week=filters.since is None)
        asked = {"kind": filters.kind, "since": since.isoformat(), "page_size": filters.page_size}
        more = "/corrections" + query({**asked, "page_token": token}) if token else None
        values: dict[str, Any] = {
            "rows": page,
            "summary": summary,
            "more": more,
            "filters": filters,
            "kinds": list(CorrectionKind),
            "sources": SOURCES,
            "task_name": task_name,
            "indexes": store.tasks.task_indexes({row.task_id for row in page if row.task_id is not None}),
        }
        return answer(request, "corrections.html", since=since, now=now, **values)

    @app.get("/audit", operation_id="showAudit", include_in_schema=False)
    async def show_audit(request: Request, audit_id: Annotated[str | None, Query(max_length=200)] = None) -> Response:
        """The newest report, and what is still open."""
        report = await run_in_threadpool(store.findings.last_audit, audit_id)
        findings = await run_in_threadpool(store.findings.audit_findings, "open", FINDINGS_MAX)
        due = {} if report is None else {one.detail: one.due_at for one in report.findings}
        values: dict[str, Any] = {
            "report": report,
            "findings": findings,
            "due": due,
            "unknown": list(Unknown),
            "asked": audit_id,
        }
        now = views.clock()
        return answer(request, "audit.html", now=now, **values)

    @app.post("/audit", operation_id="pressAudit", include_in_schema=False)
    async def press_audit(request: Request) -> Response:
        """Compare database, cluster and Temporal now, and put right what is due."""
        pressed = read(AuditForm, await form(request))

        async def act() -> Told:
            try:
                audit_id, report = await workflows.audit(pressed.repair, WAIT_S, pressed.unknown)
            except TemporalUnavailable as error:
                raise unavailable("temporal_unavailable", f"no audit was made; press again later. {error}") from error
            href = "/audit" + query({"audit_id": audit_id})
            if report is None:
                return Told(audit_id, href, True, "It is going on; its report comes here when a worker has made it.")
            found, repaired = sum(report.found.values()), sum(report.repaired.values())
            return Told(audit_id, href, True, f"Found {found}, repaired {repaired}, left {report.left}.")

        word = "Audit and repair" if pressed.repair else "Audit"
        return tell(request, word, [await once(pressed.key, act)], views.clock())
