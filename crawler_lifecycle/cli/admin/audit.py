"""``crawlctl audit``: compares database, cluster and Temporal, and shows the report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crawler_lifecycle.cli import output
from crawler_lifecycle.cli.client.polling import Polling
from crawler_lifecycle.cli.output import emit, moment, show_rows, span
from crawler_lifecycle.cli.problems import CommandFailed, Exit, WrongUsage
from crawler_lifecycle.cli.session import current, say
from crawler_lifecycle.subjects import Column, Document

if TYPE_CHECKING:
    from crawler_lifecycle.cli.client.gateway import Gateway

#: Seconds to wait for the report if ``--timeout`` is not given.
WAIT_S = 300.0


def _became(row: Document) -> str:
    due = moment(row.get("due_at"))
    if row.get("repair"):
        return str(row["repair"])
    if due is None:
        return "needs a person"
    left = (due - output.now()).total_seconds()
    return f"due in {span(left)}" if left > 0 else "due; crawlctl audit --repair"


FINDINGS = (
    Column("Kind", "kind"),
    Column("Run", "run_id", right=True),
    Column("Finding", "detail"),
    Column("Repair", _became),
    Column("Workflow", "workflow_id", wide=True),
)


def audit(
    *,
    repair: bool = False,
    adopt: bool = False,
    end_unknown: bool = False,
) -> int:
    """Compare database, cluster and Temporal now.

    The exit code is 0 if nothing is left to repair, otherwise 1.

    A finding is repaired only after a waiting time, because the difference may disappear without a
    repair. The table shows when the repair of each finding is due.

    Tasks and workflows without a row in the database are not changed, because the database may have
    been restored from an older copy. --adopt restores their rows from Temporal and from the
    cluster; then they are polled, stopped and archived as before. --end-unknown ends such tasks and
    workflows. Both options act at once.

    Parameters
    ----------
    repair
        also repair the findings that are due
    adopt
        restore rows for tasks that are executing without a row
    end_unknown
        end tasks that are executing without a row
    """
    if adopt and end_unknown:
        raise WrongUsage(
            "--adopt and --end-unknown cannot be combined",
            "give one of them",
            why="--adopt lets these tasks continue, but --end-unknown would end them",
        )
    with current().gateway() as gateway:
        unknown = "adopt" if adopt else "end" if end_unknown else "leave"
        answer = gateway.post("/v1/audit", {"repair": repair, "unknown": unknown})
        report = answer.get("report") or _awaited(gateway, str(answer.get("audit_id")))
    findings = report.get("findings") or []
    emit(
        report,
        names=[str(report.get("audit_id"))],
        table=lambda: show_rows(
            findings, FINDINGS, empty="the database, the cluster and Temporal agree"
        ),
    )
    for line in _summary(report):
        say(line)
    return Exit.ERROR if report.get("left") or report.get("problems") else Exit.DONE


def _awaited(gateway: Gateway, audit_id: str) -> Document:
    """Return the report when the audit has ended. Raises ``CommandFailed`` if it takes too long."""
    say(f"audit {audit_id} is running …")
    limit = current().timeout_s or WAIT_S
    for report in Polling(timeout_s=limit).answers(lambda: gateway.audit_report(audit_id)):
        if report is not None:
            return report
    raise CommandFailed(
        Exit.GAVE_UP_WAITING,
        f"audit {audit_id} has not ended yet",
        f"no report within {span(limit)}; a worker with the audit role must produce it",
        "run crawlctl doctor to check that such a worker is running, then repeat crawlctl audit",
    )


def _summary(report: Document) -> list[str]:
    checked = report.get("checked") or {}
    counts = ", ".join(
        f"{count:,} {str(name).replace('_', ' ')}" for name, count in checked.items()
    )
    found = sum((report.get("found") or {}).values())
    left = int(report.get("left") or 0)
    lines = [
        f"compared: {counts or 'nothing'}",
        f"found {found}, repaired {found - left}, left {left}",
    ]
    lines += [f"not compared: {trouble}" for trouble in report.get("problems") or ()]
    if len(report.get("findings") or ()) < found:
        lines.append("only the first findings are shown; for all open findings: GET /v1/audit")
    if left and not report.get("repair"):
        lines.append("next: crawlctl audit --repair")
    return lines
