"""Bodies of answers about runs and the ledger. Their words are those of docs/lifecycle.md and of the columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from typing import Any, Self

from pydantic import BaseModel, Field, PrivateAttr

from crawler_lifecycle.activities.run_files import RunFile
from crawler_lifecycle.domain.audits.audit import AuditReport, Reported, Unknown
from crawler_lifecycle.domain.audits.overdue import OverdueLooks, overdue_before, overdue_words
from crawler_lifecycle.domain.bounds import INT_MAX
from crawler_lifecycle.domain.coverage import Coverage
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.domain.errors import RowUnreadable
from crawler_lifecycle.domain.names import workflow_id
from crawler_lifecycle.domain.run import RunStatus, StopIntent
from crawler_lifecycle.domain.task import ACTIVE, TaskStatus
from crawler_lifecycle.domain.waiting import NAMED_MAX, Standing, waiting
from crawler_lifecycle.gateway.runs.requests import StrictBody
from crawler_lifecycle.ports.looks import CorrectionRow, FindingRow
from crawler_lifecycle.ports.runs import Resumption, RunRow, TaskRow
from crawler_lifecycle.store.runs.tasks import TaskReader


def standing_of(row: RunRow, now: datetime, **more: Any) -> Standing:
    """The situation of the run at ``now``; ``more`` is what its row does not tell."""
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
    """The facts that the tasks of a live run add to their numbers: which of them are waited for, or why they wait."""
    if str(row.status) in ("COMPLETED", "FAILED"):
        return {}
    try:
        if row.stop is not None:
            return {"unproved": [task.index for task in tasks.task_page(row.run_id, ACTIVE, limit=NAMED_MAX)]}
        page = tasks.task_page(row.run_id, [TaskStatus.PENDING], limit=NAMED_MAX)
    except RowUnreadable:
        return {}  # the sentence says less, and the task's own row says what is wrong with it
    return {"reason": next((task.reason for task in page if task.reason), None)}


def undelivered(
    attempt: int, exports: Sequence[Mapping[str, Any]], deliveries: Sequence[Mapping[str, Any]]
) -> list[str]:
    """The events and exports of an ended attempt that have not got through, each in words."""
    words = []
    for delivery in deliveries:
        if delivery.get("attempt") != attempt or delivery.get("status") == "delivered":
            continue
        error, tries = delivery.get("error"), delivery.get("tries")
        tried = f" after {tries} {'try' if tries == 1 else 'tries'}" if tries else ""
        words.append(f"{delivery['type']} is not delivered{tried}{f': {error}' if error else ''}")
    for export in exports:
        if export.get("attempt") == attempt and export.get("status") == "failed":
            words.append(f"the supporting files are not archived yet: {export.get('error') or 'no reason is known'}")
    return words


ENDED = (RunStatus.COMPLETED, RunStatus.FAILED)
#: Days whose corrections the summary tells when nothing else is asked for.
WEEK = timedelta(days=7)


class UploadPart(StrictBody):
    """Body of ``POST …/files``: one part of a task's bundle, or with ``part`` null its end."""

    part: int | None = Field(ge=0, le=99_999)
    bytes: int = Field(ge=1, le=INT_MAX)
    md5: str = Field(pattern=r"^[A-Za-z0-9+/]{22}==$", description="MD5 of the bytes in base64")


class UploadTicket(BaseModel):
    """The place where exactly these bytes may be put, by a ``PUT`` with these headers and before ``expires_at``."""

    url: str
    headers: dict[str, str]
    expires_at: datetime


class Stop(BaseModel):
    """The recorded wish that a run ends."""

    requested_at: datetime
    force: bool
    requested_by: str | None
    reason: str | None
    limit: str | None
    escalated: bool

    @classmethod
    def of(cls, intent: StopIntent) -> Stop:
        return cls(**asdict(intent))


class StopOfRun(BaseModel):
    """The answer to whether a run is to end. Its crawler may ask too, so it does not say who wants it and why."""

    run_id: int
    asked: bool
    force: bool


class Deletion(BaseModel):
    """The report of the deletion of what a run brought."""

    requested_at: datetime
    requested_by: str | None
    ended_at: datetime | None
    """Null while it goes on."""
    gone: dict[str, int | None]
    """What is gone, and how many; null: all there was."""
    left: dict[str, str]
    """What is left, and why."""

    @classmethod
    def of(cls, row: RunRow) -> Self | None:
        told = row.deletion or {}
        at = row.deleted_at
        return None if at is None else cls(requested_at=at, ended_at=row.deletion_ended_at, **told)


class Run(BaseModel):
    """One run."""

    run_id: int
    run_uid: str
    """The run's identity: a number comes again where a database was restored, a uid never."""
    request_id: str
    workflow_id: str
    crawler: str
    trigger: str
    status: RunStatus
    stage: str
    outcome: str | None
    cause: str | None
    attempt: int
    multi: bool
    requested_by: str | None
    tags: list[str]
    flow_id: str | None
    parent: str | None
    stop: Stop | None
    waiting: str | None
    """A sentence about what the run waits for at this moment; null when it waits for nothing but its next look."""
    waiting_for: str | None
    waiting_since: datetime | None
    look_error: str | None
    look_error_since: datetime | None
    verified_at: datetime | None
    verified_ago_s: float | None
    next_look_at: datetime | None
    stale: bool
    """True when the look that was due is overdue: nobody vouches for the status any more."""
    blocked: str | None = None
    last_progress_at: datetime | None
    """The time at which counters were last seen to move, by a look or by the observer between two: they are of then."""
    pages: int | None
    items: int | None
    errors: int | None
    pages_per_minute: float | None
    """On average since the start; null where it is unknown, as of a resumed run, whose tasks tell theirs."""
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    updated_at: datetime
    deleted: Deletion | None
    _waits: str | None = PrivateAttr(default=None)

    @property
    def waits(self) -> str | None:
        """``waiting`` with moments in place of ages: another one only when something else than the time has changed."""
        return self._waits

    @classmethod
    def of(cls, row: RunRow, now: datetime, *, known: Mapping[str, Any] | None = None, **more: Any) -> Self:
        """The row as it is at ``now``; ``known`` is what its tasks and deliveries add to what it waits for."""
        overdue = row.next_look_at is not None and row.next_look_at < overdue_before(now)
        same = {name: getattr(row, name) for name in cls.model_fields if hasattr(row, name)}
        requested_by, tags = row.request.get("requested_by"), row.request.get("tags")
        standing = standing_of(row, now, **(known or {}))
        made = cls(
            **same
            | {
                "workflow_id": row.owner_workflow_id or workflow_id(row.crawler, row.request_id),
                "requested_by": requested_by if isinstance(requested_by, str) else None,
                "tags": tags if isinstance(tags, list) else [],
                "stop": Stop.of(row.stop) if row.stop else None,
                "deleted": Deletion.of(row),
                "waiting": waiting(standing),
                "verified_ago_s": (
                    round(max((now - row.verified_at).total_seconds(), 0.0), 3) if row.verified_at else None
                ),
                "stale": overdue and not row.status.terminal,
                **more,
            }
        )
        made._waits = waiting(replace(standing, moments=True))
        return made


class ExportEntry(BaseModel):
    """The archive of one attempt: how far it is, and where it lies."""

    attempt: int
    status: str
    url: str | None
    bytes: int | None
    files: int | None
    sha256: str | None
    error: str | None
    at: datetime


class CancellationEntry(BaseModel):
    """One wish of a person that the run ends."""

    attempt: int
    request_id: str
    requested_by: str | None
    reason: str | None
    force: bool
    requested_at: datetime
    acted_at: datetime | None
    """The time at which the run's workflow had heard of it; null: not yet."""


class DeliveryEntry(BaseModel):
    """One event that must be delivered, to one receiver; ``pending`` without a receiver: nobody tried yet."""

    seq: int
    type: str
    attempt: int
    sink: str | None
    status: str
    tries: int
    error: str | None
    delivered_at: datetime | None


class RunDetail(Run):
    """One run with everything that is known about it."""

    request: Mapping[str, Any]
    tasks: dict[str, int]
    exports: list[ExportEntry]
    cancellations: list[CancellationEntry]
    deliveries: list[DeliveryEntry]
    fields: Coverage | None
    """The share of its items that fill each field, at most 30 fields, from its verdict on; null where nobody told."""
    resumption: list[Resumption]
    """Of a resumed run: how many tasks went on with saved state, and why others could not."""

    @classmethod
    def of(cls, row: RunRow, now: datetime, *, known: Mapping[str, Any] | None = None, **more: Any) -> Self:
        """As for a list, with what tasks and deliveries tell about the run's waiting."""
        told = {"tasks": more["tasks"], "undelivered": undelivered(row.attempt, more["exports"], more["deliveries"])}
        return super().of(row, now, known={**told, **(known or {})}, **more)


class Accepted(Run):
    """The run after a command; ``note`` says what a person should know about what happens next."""

    note: str | None


class Overdue(BaseModel):
    """Looks that are overdue, over all runs: what they would have found is not on record yet."""

    count: int
    since: datetime | None
    """The time at which the oldest of them was due."""
    run_id: int | None
    """The run whose look that is."""
    verified_at: datetime | None
    """The time at which that run was last verified; null also when it never was."""
    lost: int
    """Managers, graphs, due times and webhooks that no workflow carries at present."""
    lost_since: datetime | None
    """The time at which the first of them was found."""
    lost_what: str | None
    """The text of that finding."""
    text: str | None
    """All of it in one sentence; null when no look is overdue and nothing is lost."""

    @classmethod
    def of(cls, looks: OverdueLooks, now: datetime) -> Self:
        return cls(**asdict(looks), text=overdue_words(looks, now))


class RunPage(BaseModel):
    """Runs, newest first. ``overdue`` is about all runs, whatever the filters."""

    runs: list[Run]
    next_page_token: str | None
    overdue: Overdue


class TaskPage(BaseModel):
    """Tasks of a run, oldest row first."""

    tasks: list[TaskRow]
    next_page_token: str | None


class TaskFilePage(BaseModel):
    """Supporting files that can be read now, at most 2,000."""

    run_id: int
    readable: bool
    """True when files of this run can be read here at all."""
    files: list[RunFile]
    left_out: int
    """Links, pipes, names that are no text, and files beyond the limits."""
    note: str | None
    archive: int | None
    """The attempt whose archive they are in; null: the tasks have them."""


class CorrectionPage(BaseModel):
    """Recorded statuses that turned out to be untrue, oldest first."""

    corrections: list[CorrectionRow]
    next_page_token: str | None


class AuditBody(StrictBody):
    """Body of ``POST /v1/audit``; all of it may be left out."""

    repair: bool = False
    unknown: Unknown = Unknown.LEAVE


class Audit(BaseModel):
    """The report of what one audit looked at, found and did. ``left`` is how many findings were not repaired."""

    audit_id: str
    started_at: datetime
    ended_at: datetime
    repair: bool
    looked: dict[str, int]
    found: dict[str, int]
    repaired: dict[str, int]
    left: int
    findings: list[Reported]
    troubles: list[str]

    @classmethod
    def of(cls, report: AuditReport) -> Self:
        return cls(left=report.left, **{name: getattr(report, name) for name in AuditReport.__dataclass_fields__})


class AuditAnswer(BaseModel):
    """The audit that was asked for; without a report it is still going on."""

    audit_id: str
    report: Audit | None
    note: str | None


class AuditState(BaseModel):
    """The newest report, or the one that was asked for, and everything that audits found and nobody has repaired."""

    report: Audit | None
    findings: list[FindingRow]


class CorrectionTotals(BaseModel):
    """Corrections of one kind: how many, and for how long at most a recorded status was untrue."""

    count: int
    worst_s: float | None
    meaning: str | None
    """One sentence about the kind; null for one that this build does not know."""


class LedgerSummary(BaseModel):
    """For how long recorded statuses were untrue, over all runs, by the corrections of the ledger. Lag is not among
    them: changes that the look in its turn found; each change of status tells its own in the timeline."""

    since: datetime
    until: datetime
    count: int
    worst_s: float | None
    """Seconds; null when there is no correction, or nobody can say for how long."""
    kinds: dict[str, CorrectionTotals]
    overdue: Overdue
    text: str
    """The same in one sentence."""


class CrawlerList(BaseModel):
    """The crawlers that can be started, as docs/crawlers.md describes them; values of ``env`` are not told."""

    crawlers: list[CrawlerDefinition]


class Readiness(BaseModel):
    """The answer to whether the gateway can work; each check is ``ok`` or says what is wrong."""

    ready: bool
    checks: dict[str, str]
