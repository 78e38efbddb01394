"""Response bodies about runs and the ledger.

They use the words of docs/lifecycle.md and of the database columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from typing import Any, Self

from pydantic import BaseModel, Field, PrivateAttr

from crawler_lifecycle.activities.run_files import RunFile
from crawler_lifecycle.domain.audits.audit import AuditReport, ReportedFinding, UnknownDecision
from crawler_lifecycle.domain.audits.overdue import OverduePolls, overdue_before, overdue_words
from crawler_lifecycle.domain.bounds import INT_MAX
from crawler_lifecycle.domain.code import Code
from crawler_lifecycle.domain.coverage import Coverage
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.domain.errors import RowUnreadable
from crawler_lifecycle.domain.names import workflow_id
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.domain.task import ACTIVE, TaskStatus
from crawler_lifecycle.domain.waiting import (
    NAMED_MAX,
    SITE_WAIT,
    SLOT_WAIT,
    Standing,
    position_in_line,
    waiting,
)
from crawler_lifecycle.gateway.api.lists import ResultPage
from crawler_lifecycle.gateway.api.rows import OfRow
from crawler_lifecycle.ports.polls import CorrectionRow, FindingRow
from crawler_lifecycle.ports.runs import Resumption, RunRobots, RunRow, TaskRow
from crawler_lifecycle.store.runs.tasks import TaskReader
from crawler_lifecycle.store.store import Store

from .requests import StrictBody


def standing_of(row: RunRow, now: datetime, **more: Any) -> Standing:
    """Return the situation of the run at ``now``. ``more`` has facts that its row lacks."""
    most = row.request.get("max_parallel_tasks")
    stop = row.stop
    return Standing(
        status=str(row.status),
        now=now,
        created_at=row.attempt_at or row.created_at,
        owned=row.owner_run_id is not None,
        waiting_for=row.waiting_for,
        waiting_since=row.waiting_since,
        look_error=row.look_error,
        look_error_since=row.look_error_since,
        next_look_at=row.next_look_at,
        stop_at=stop.requested_at if stop else None,
        stop_by=(stop.limit or stop.requested_by) if stop else None,
        stop_force=stop.force if stop else False,
        stop_heard=row.stop_acted_at is not None,
        max_parallel=most if isinstance(most, int) else None,
        **more,
    )


def facts_of_tasks(tasks: TaskReader, row: RunRow) -> dict[str, Any]:
    """Return the facts that the tasks of a live run add: the tasks for which a stop waits, or the
    reason why a task waits.
    """
    if str(row.status) in ("COMPLETED", "FAILED"):
        return {}
    try:
        if row.stop is not None:
            return {
                "unproved": [
                    task.index for task in tasks.task_page(row.run_id, ACTIVE, limit=NAMED_MAX)
                ]
            }
        page = tasks.task_page(row.run_id, [TaskStatus.PENDING], limit=NAMED_MAX)
    except RowUnreadable:
        # The sentence is less detailed then. The response about the task names the error in its
        # row.
        return {}
    return {"reason": next((task.reason for task in page if task.reason), None)}


def facts_of_line(store: Store, row: RunRow) -> dict[str, Any]:
    """Return the present position of a run in the line of its pool, or the use of the site for
    which the run waits.
    """
    waits = row.waiting_for is None or row.waiting_for.startswith((SLOT_WAIT, SITE_WAIT))
    if not waits or str(row.status) in ("COMPLETED", "FAILED"):
        return {}
    line = store.pools.in_line(row.run_id)
    if line is not None:
        return {"line": position_in_line(line)}
    return {"line": store.caps.words(row.run_id)}


def undelivered(
    attempt: int, exports: Sequence[Mapping[str, Any]], deliveries: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Return a sentence for each event and each export of an ended attempt that was not
    delivered.
    """
    words = []
    for delivery in deliveries:
        if delivery.get("attempt") != attempt or delivery.get("status") == "delivered":
            continue
        error = delivery.get("error")
        tries = delivery.get("tries")
        tried = f" after {tries} {'try' if tries == 1 else 'tries'}" if tries else ""
        words.append(f"{delivery['type']} is not delivered{tried}{f': {error}' if error else ''}")
    for export in exports:
        if export.get("attempt") == attempt and export.get("status") == "failed":
            words.append(
                "the supporting files are not archived yet: "
                f"{export.get('error') or 'no reason is known'}"
            )
    return words


#: The default period of the summary of corrections.
WEEK = timedelta(days=7)


class UploadPart(StrictBody):
    """Body of ``POST …/files``: one part of a task's bundle.

    A null ``part`` marks the end of the bundle.
    """

    part: int | None = Field(ge=0, le=99_999)
    bytes: int = Field(ge=1, le=INT_MAX)
    md5: str = Field(pattern=r"^[A-Za-z0-9+/]{22}==$", description="MD5 checksum in base64")


class UploadTicket(OfRow):
    """The address for these bytes.

    The client must send them by ``PUT``, with these headers and before ``expires_at``.
    """

    url: str
    headers: dict[str, str]
    expires_at: datetime


class Stop(OfRow):
    """The recorded request to stop."""

    requested_at: datetime
    force: bool
    requested_by: str | None
    reason: str | None
    limit: str | None
    escalated: bool


class StopOfRun(BaseModel):
    """Shows whether a run must stop.

    Its crawler can read this, so it names no person and no reason.
    """

    run_id: int
    asked: bool
    force: bool


class Deletion(BaseModel):
    """The report of the deletion of a run's data."""

    requested_at: datetime
    requested_by: str | None
    ended_at: datetime | None
    """The time at which the deletion ended; null while it executes."""
    gone: dict[str, int | None]
    """The kinds of deleted data, each with a number; null stands for all data of this kind."""
    left: dict[str, str]
    """The kinds of data that remain, each with the reason."""

    @classmethod
    def of(cls, row: RunRow) -> Self | None:
        report = row.deletion or {}
        at = row.deleted_at
        return (
            None if at is None else cls(requested_at=at, ended_at=row.deletion_ended_at, **report)
        )


class Run(OfRow):
    """One run."""

    run_id: int
    run_uid: str
    """The run's identity. After a restore of the database, a number can be used again, but a uid
    never is.
    """
    request_id: str
    project: str
    workflow_id: str
    crawler: str
    pool: str
    trigger: str
    status: RunStatus
    stage: str
    outcome: str | None
    ended_by: str | None
    """Who or what ended it: crawler, person, limit, cluster or service; null if it is live, or if
    an older build ended it.
    """
    lacks: str | None
    """How the run's results fell short of expectations; null if they did not."""
    cause: str | None
    attempt: int
    multi: bool
    requested_by: str | None
    tags: list[str]
    codes: list[Code]
    """The different codes that its tasks executed, so far as they are known."""
    flow_id: str | None
    parent: str | None
    stop: Stop | None
    waiting: str | None
    """A sentence about why the run waits now, with ``blocked`` first; null if it waits only for its
    next poll.
    """
    waiting_for: str | None
    waiting_since: datetime | None
    poll_error: str | None
    poll_error_since: datetime | None
    verified_at: datetime | None
    verified_ago_s: float | None
    next_poll_at: datetime | None
    stale: bool
    """True if the next poll is overdue, so that the status may be out of date."""
    blocked: str | None = None
    last_progress_at: datetime | None
    """The time at which a poll or the observer last saw the counters change. The counters are as
    old as this.
    """
    pages: int | None
    items: int | None
    errors: int | None
    pages_per_minute: float | None
    """The average since the start; null if it is unknown. It is null for a resumed run, whose tasks
    have averages instead.
    """
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    updated_at: datetime
    deleted: Deletion | None
    _waits: str | None = PrivateAttr(default=None)

    @property
    def waits(self) -> str | None:
        """``waiting`` with times instead of ages, so that it does not change merely because time
        passes.
        """
        return self._waits

    @classmethod
    def of(
        cls, row: RunRow, now: datetime, *, known: Mapping[str, Any] | None = None, **more: Any
    ) -> Self:
        """Build it from a row at ``now``.

        ``known`` has the facts about its tasks and deliveries that explain why it waits.
        """
        overdue = row.next_look_at is not None and row.next_look_at < overdue_before(now)
        requested_by = row.request.get("requested_by")
        tags = row.request.get("tags")
        standing = standing_of(row, now, **(known or {}))
        made = cls.from_row(
            row,
            workflow_id=row.owner_workflow_id or workflow_id(row.crawler, row.request_id),
            requested_by=requested_by if isinstance(requested_by, str) else None,
            tags=tags if isinstance(tags, list) else [],
            deleted=Deletion.of(row),
            poll_error=row.look_error,
            poll_error_since=row.look_error_since,
            next_poll_at=row.next_look_at,
            waiting=waiting(standing),
            verified_ago_s=round(max((now - row.verified_at).total_seconds(), 0.0), 3)
            if row.verified_at
            else None,
            stale=overdue and not row.status.terminal,
            **more,
        )
        made.waiting = "; ".join(filter(None, (made.blocked, made.waiting))) or None
        made._waits = waiting(replace(standing, moments=True))
        return made


class ExportEntry(BaseModel):
    """The archive of one attempt: its state and its address."""

    attempt: int
    status: str
    url: str | None
    bytes: int | None
    files: int | None
    sha256: str | None
    error: str | None
    at: datetime


class CancellationEntry(BaseModel):
    """One request of a person to stop the run."""

    attempt: int
    request_id: str
    requested_by: str | None
    reason: str | None
    force: bool
    requested_at: datetime
    acted_at: datetime | None
    """The time at which the run's workflow received it; null if it has not received it yet."""


class DeliveryEntry(BaseModel):
    """The delivery of one event to one receiver.

    If it is ``pending`` without a receiver, it has not been tried yet.
    """

    seq: int
    type: str
    attempt: int
    sink: str | None
    status: str
    tries: int
    error: str | None
    delivered_at: datetime | None


class RunDetail(Run):
    """One run with all its fields."""

    request: Mapping[str, Any]
    tasks: dict[str, int]
    exports: list[ExportEntry]
    cancellations: list[CancellationEntry]
    deliveries: list[DeliveryEntry]
    fields: Coverage | None
    """For at most 30 fields, the share of items that fill the field. It is known after the verdict,
    and null if it was not reported.
    """
    robots: list[RunRobots]
    """The robots.txt that it got, by host: the first 100."""
    resumption: list[Resumption]
    """For a resumed run: how many tasks continued from a saved state, and why the others could
    not.
    """

    @classmethod
    def of(
        cls, row: RunRow, now: datetime, *, known: Mapping[str, Any] | None = None, **more: Any
    ) -> Self:
        """Build it as for a list, with facts about its tasks and deliveries that explain why it
        waits.
        """
        facts = {
            "tasks": more["tasks"],
            "undelivered": undelivered(row.attempt, more["exports"], more["deliveries"]),
        }
        return super().of(row, now, known={**facts, **(known or {})}, **more)


class Accepted(Run):
    """The run after a command.

    ``note`` is a sentence for people about what happens next, or about why nothing changed.
    """

    note: str | None


class Overdue(BaseModel):
    """The overdue polls of all runs. Changes that they would find are not recorded yet."""

    count: int
    since: datetime | None
    """The time at which the oldest overdue poll was due."""
    run_id: int | None
    """The run of the oldest overdue poll."""
    verified_at: datetime | None
    """The time at which that run was last verified; null if it never was."""
    lost: int
    """The number of managers, graphs, firings and webhooks without their workflow."""
    lost_since: datetime | None
    """The time at which the first of these was found."""
    lost_what: str | None
    """The text of the first such finding."""
    text: str | None
    """A sentence about these problems; null if no poll is overdue and no workflow is missing."""

    @classmethod
    def of(cls, polls: OverduePolls, now: datetime) -> Self:
        return cls(**asdict(polls), text=overdue_words(polls, now))


class RunPage(ResultPage):
    """A page of runs, newest first.

    ``overdue`` covers all runs, including those that do not match the filters.
    """

    runs: list[Run]
    overdue: Overdue


class TaskPage(BaseModel):
    """A page of a run's tasks, with the oldest row first."""

    tasks: list[TaskRow]
    next_page_token: str | None


class CodeOfFolders(BaseModel):
    """The code that some tasks of a run executed."""

    digest: str | None
    version: str | None
    folders: list[str]
    """The folders of their files, with those of replaced tasks."""


class RunCodes(BaseModel):
    """The known codes of a run's tasks."""

    codes: list[CodeOfFolders]


class TaskFilePage(OfRow):
    """The supporting files that can be read now, at most 2,000."""

    run_id: int
    readable: bool
    """True if this gateway can read files of this run."""
    files: list[RunFile]
    left_out: int
    """The number of files that are not listed: links, pipes, files whose names are not text, and
    files above the limits.
    """
    note: str | None
    archive: int | None
    """The attempt whose archive has the files; null if they are still in the folders of the
    tasks.
    """
    items_missing: int
    """The number of counted items whose files cannot be read here."""


class CorrectionPage(BaseModel):
    """A page of corrections, oldest first: recorded statuses that were untrue."""

    corrections: list[CorrectionRow]
    next_page_token: str | None


class AuditBody(StrictBody):
    """Body of ``POST /v1/audit``. All fields are optional."""

    repair: bool = False
    unknown: UnknownDecision = UnknownDecision.LEAVE


class Audit(OfRow):
    """The report of one audit: what it checked, found and repaired.

    ``left`` is the number of findings that are not repaired.
    """

    audit_id: str
    started_at: datetime
    ended_at: datetime
    repair: bool
    checked: dict[str, int]
    found: dict[str, int]
    repaired: dict[str, int]
    left: int
    findings: list[ReportedFinding]
    problems: list[str]

    @classmethod
    def of(cls, report: AuditReport) -> Self:
        """Build it from the recorded report."""
        return cls.from_row(report, checked=report.looked, problems=report.troubles)


class AuditAnswer(BaseModel):
    """The requested audit. If it has no report, it is still executing."""

    audit_id: str
    report: Audit | None
    note: str | None


class AuditState(BaseModel):
    """The newest report or the requested one, and all findings of audits that are not repaired."""

    report: Audit | None
    findings: list[FindingRow]


class CorrectionTotals(BaseModel):
    """The corrections of one kind: their number, and the longest time of an untrue status."""

    count: int
    worst_s: float | None
    meaning: str | None
    """A sentence about the kind; null if this build does not know it."""


class LedgerSummary(BaseModel):
    """The corrections of all runs: how long recorded statuses were untrue.

    They do not include lag: a change that the next due poll finds is not a correction. The timeline
    of a run has the lag of each change.
    """

    since: datetime
    until: datetime
    count: int
    worst_s: float | None
    """The longest time in seconds for which a status was untrue; null if there was no correction or
    if no time is known.
    """
    kinds: dict[str, CorrectionTotals]
    overdue: Overdue
    text: str
    """The summary in one sentence."""


class CrawlerList(BaseModel):
    """The crawlers that can be started, as docs/crawlers.md describes them.

    The values of ``env`` are omitted.
    """

    crawlers: list[CrawlerDefinition]
    note: str | None = None
    """The reason why this is not the newest catalogue."""


class Readiness(BaseModel):
    """Shows whether the gateway can work. Each check is ``ok`` or an error."""

    ready: bool
    checks: dict[str, str]
