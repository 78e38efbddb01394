"""``crawlctl audit``: compares database, cluster and Temporal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from crawler_lifecycle.cli import output
from crawler_lifecycle.cli.client.polling import Polling
from crawler_lifecycle.cli.output import emit, moment, show_rows, span
from crawler_lifecycle.cli.problems import CommandFailed, Exit
from crawler_lifecycle.cli.session import current, say
from crawler_lifecycle.subjects import Column, Document, of

if TYPE_CHECKING:
    from crawler_lifecycle.cli.client.gateway import Gateway

#: How long an audit is waited for without ``--timeout``, in seconds.
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
    Column("Kind", of("kind")),
    Column("Run", of("run_id"), right=True),
    Column("Finding", of("detail")),
    Column("Repair", _became),
    Column("Workflow", of("workflow_id"), wide=True),
)


def audit(
    *,
    repair: Annotated[bool, Parameter(negative=(), help="put right what is due, and do not only tell")] = False,
    adopt: Annotated[bool, Parameter(negative=(), help="take up again what executes and no row knows")] = False,
    end_unknown: Annotated[bool, Parameter(negative=(), help="end what executes and no row knows")] = False,
) -> int:
    """Compare database, cluster and Temporal now. The exit code is 0 when nothing is left to put right, else 1.

    Nothing is repaired before its grace is over: a run whose workflow was just terminated may be resumed in the next
    moment. The table says when each finding is due.

    What executes and no row knows is left alone whatever it is, because a database that was restored from an older copy
    knows too little. --adopt makes its rows again, from its workflow and from what lies on the cluster, so that it is
    looked at, stopped and archived as before; --end-unknown ends it. Both act at once.
    """
    if adopt and end_unknown:
        why = "what is taken up again goes on"
        raise CommandFailed(Exit.USAGE, "--adopt and --end-unknown exclude each other", why, "give one of them")
    with current().gateway() as gateway:
        answer = gateway.audit(repair=repair, unknown="adopt" if adopt else "end" if end_unknown else "leave")
        report = answer.get("report") or _awaited(gateway, str(answer.get("audit_id")))
    findings = report.get("findings") or []
    emit(
        report,
        names=[str(report.get("audit_id"))],
        table=lambda: show_rows(findings, FINDINGS, empty="database, cluster and Temporal agree"),
    )
    for line in _summary(report):
        say(line)
    return Exit.ERROR if report.get("left") or report.get("troubles") else Exit.DONE


def _awaited(gateway: Gateway, audit_id: str) -> Document:
    """The report, once the audit has ended. Raises ``CommandFailed`` when it takes too long."""
    say(f"audit {audit_id} is going on …")
    limit = current().timeout_s or WAIT_S
    for report in Polling(timeout_s=limit).answers(lambda: gateway.audit_report(audit_id)):
        if report is not None:
            return report
    why = f"no report within {span(limit)}; workers of the role audit make it"
    cure = "crawlctl doctor (does one poll?), then crawlctl audit again"
    raise CommandFailed(Exit.GAVE_UP_WAITING, f"audit {audit_id} is still going on", why, cure)


def _summary(report: Document) -> list[str]:
    looked = report.get("looked") or {}
    counts = ", ".join(f"{count:,} {str(name).replace('_', ' ')}" for name, count in looked.items())
    found, left = sum((report.get("found") or {}).values()), int(report.get("left") or 0)
    lines = [f"compared: {counts or 'nothing'}", f"found {found}, repaired {found - left}, left {left}"]
    lines += [f"trouble: {trouble}" for trouble in report.get("troubles") or ()]
    if len(report.get("findings") or ()) < found:
        lines.append("the first findings are shown; all open ones: GET /v1/audit")
    if left and not report.get("repair"):
        lines.append("next: crawlctl audit --repair")
    return lines
