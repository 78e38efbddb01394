"""The web pages of corrections and of audits."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import FastAPI, Request
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from crawler_lifecycle.domain.audits.audit import UnknownDecision
from crawler_lifecycle.domain.audits.corrections import SOURCES, CorrectionKind
from crawler_lifecycle.domain.bounds import ID_MAX
from crawler_lifecycle.domain.projects import narrowed
from crawler_lifecycle.gateway.api.paging import CorrectionFilters, cut
from crawler_lifecycle.gateway.cursors import decode
from crawler_lifecycle.gateway.ledger import FINDINGS_MAX, WAIT_S, summary_of
from crawler_lifecycle.gateway.runs.answers import WEEK
from crawler_lifecycle.gateway.runs.commands import needing_temporal
from crawler_lifecycle.gateway.runs.routes import RunViews
from crawler_lifecycle.gateway.streams.timeline import task_name
from crawler_lifecycle.gateway.ui.parts.choosing import TRUTH_TABS, Chooser
from crawler_lifecycle.gateway.ui.parts.forms import KeyedForm, Once, form, read
from crawler_lifecycle.gateway.ui.parts.lists import (
    HeldFilters,
    RowPage,
    filters_of,
    held,
    held_sorts,
    list_page,
    windowed,
)
from crawler_lifecycle.gateway.ui.parts.notes import Outcome, note_outcomes
from crawler_lifecycle.gateway.ui.parts.rendering import query
from crawler_lifecycle.store.store import Store
from crawler_lifecycle.subjects import (
    CellLine,
    Column,
    Document,
    JsonDetails,
    Lag,
    Link,
    Note,
    Subject,
    at,
)
from crawler_lifecycle.temporal.client import Workflows


class AuditForm(KeyedForm):
    """The form that starts an audit."""

    repair: bool = False
    unknown: UnknownDecision = UnknownDecision.LEAVE


def _run(row: Document) -> Any:
    link = Link(row["run_id"], f"/runs/{row['run_id']}") if row["run_id"] else None
    task = row.get("task_id")
    return CellLine([link, Note(task_name(task, row["indexes"]) if task else None)])


CORRECTION = Subject(
    "correction",
    "id",
    columns=(
        Column("Found", at("created_at")),
        Column("Run", _run),
        Column("Kind", "kind"),
        Column("Shown", "believed", leaves=1),
        Column("True", "truth"),
        Column("Wrong for", lambda row: Lag(row["lag_ms"]), right=True),
        Column("Found by", lambda row: SOURCES.get(row["found_by"], row["found_by"]), leaves=2),
        Column("Evidence", lambda row: JsonDetails(row["evidence"]), leaves=1),
    ),
    empty="No corrections since then.",
)
CORRECTIONS = Chooser(
    CORRECTION,
    "/corrections",
    "Run, kind, status, evidence",
    sorts=held_sorts(CORRECTION.columns[:-1]),
    facets={"kind": "Kind"},
    values={"kind": list(CorrectionKind)},
    times={"since": "Since"},
    tabs=TRUTH_TABS,
    newest_first=True,
)


FINDING = Subject(
    "finding",
    "id",
    columns=(
        Column("Kind", "kind"),
        Column("Run", _run),
        Column(
            "What", lambda row: CellLine([row["detail"], Note(row["repair"], "why")]), fills=True
        ),
        Column("First seen", at("first_seen"), leaves=2),
        Column("Last seen", at("last_seen"), leaves=3),
        Column("Repair from", at("due_at"), leaves=1),
        Column("Evidence", lambda row: JsonDetails(row["evidence"]), leaves=1),
    ),
    empty="There are no open findings.",
)
FINDINGS = Chooser(
    FINDING,
    "/audit",
    "Kind, run, what was found",
    sorts=held_sorts(FINDING.columns[:-1]),
    title="Audit",
    tabs=TRUTH_TABS,
)


class PageCorrections(CorrectionFilters, HeldFilters):
    """Filters of the page of corrections."""


class AuditFilters(HeldFilters):
    """Filters of the page of audits."""

    audit_id: str | None = Field(default=None, max_length=200)


def add_ledger(
    app: FastAPI, store: Store, views: RunViews, workflows: Workflows, once: Once
) -> None:
    """Add the web pages of corrections and audits."""

    @app.get("/corrections")
    def show_corrections(request: Request) -> Response:
        """List the corrections of all runs since a given time (default: the last week), newest
        first, and the number of corrections of each kind.
        """
        filters = filters_of(request, PageCorrections)
        now = views.clock()
        since = filters.since or now - WEEK

        def found(asked: PageCorrections) -> RowPage:
            before = decode("correction", asked.page_token) or ID_MAX
            size = asked.page_size + 1
            with narrowed(asked.project):
                rows = store.corrections.list_corrections(
                    None, limit=size, kind=asked.kind, before_id=before
                )
            rows = [row for row in rows if row.created_at >= since]
            page, token = cut("correction", rows, asked.page_size, lambda row: row.id)
            tasks = {row.task_id for row in page if row.task_id is not None}
            indexes = store.tasks.task_indexes(tasks)
            return RowPage([asdict(row) | {"indexes": indexes} for row in page], token)

        overdue = store.overdue.overdue_polls(now)
        summary = summary_of(
            store.corrections.correction_summary(since), overdue, now, week=filters.since is None
        )
        return list_page(
            request,
            CORRECTIONS,
            filters,
            windowed(CORRECTIONS, found),
            now=now,
            template="corrections.html",
            summary=summary,
        )

    @app.get("/audit")
    def show_audit(request: Request) -> Response:
        """Show the given report (default: the newest), and all open findings."""
        filters = filters_of(request, AuditFilters)
        audit_id = filters.audit_id
        report = store.findings.last_audit(audit_id)
        due = {finding.detail: finding.due_at for finding in report.findings} if report else {}
        findings = store.findings.audit_findings("open", FINDINGS_MAX)
        tasks = {finding.task_id for finding in findings if finding.task_id is not None}
        indexes = store.tasks.task_indexes(tasks)
        rows = [
            {**asdict(finding), "due_at": due.get(finding.detail), "indexes": indexes}
            for finding in findings
        ]
        return list_page(
            request,
            FINDINGS,
            filters,
            held(FINDINGS, rows),
            now=views.clock(),
            template="audit.html",
            unknown=list(UnknownDecision),
            asked_report=audit_id,
            report=report,
        )

    @app.post("/audit")
    async def press_audit(request: Request) -> Response:
        """Run an audit now. With ``repair``, also repair the findings that are due for repair."""
        asked = read(AuditForm, await form(request))

        async def act() -> Outcome:
            with needing_temporal("no audit was started; try again later."):
                audit_id, report = await workflows.audit(asked.repair, WAIT_S, asked.unknown)
            href = "/audit" + query({"audit_id": audit_id})
            if report is None:
                return Outcome(
                    audit_id,
                    href,
                    True,
                    "The audit is running; its report is shown here when it has ended.",
                )
            found = sum(report.found.values())
            repaired = sum(report.repaired.values())
            return Outcome(
                audit_id, href, True, f"Found {found}, repaired {repaired}, left {report.left}."
            )

        word = "Audit and repair" if asked.repair else "Audit"
        key = f"{asked.key}.{asked.repair}.{asked.unknown}"
        note_outcomes(request, word, [await once(key, act)])
        return await run_in_threadpool(show_audit, request)
