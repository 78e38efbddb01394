"""The state of a run's workflow: one value that continue-as-new passes on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue, SearchAttributeKey

from crawler_lifecycle.activities.cancellation import HeardStop
from crawler_lifecycle.activities.completion import RunEnded
from crawler_lifecycle.activities.shared import Counts
from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.audits.adoption import WorkflowRecord
from crawler_lifecycle.domain.bounds import words
from crawler_lifecycle.domain.run import (
    ExportResult,
    Limits,
    RunRequest,
    RunResult,
    RunSnapshot,
    RunStatus,
    Stage,
    StopIntent,
    Trigger,
)
from crawler_lifecycle.domain.values import UndecodedPayload
from crawler_lifecycle.domain.waiting import Standing, waiting
from crawler_lifecycle.ports.runs import Fence, Resting, RunHandle

from .calls import MustLeave, StepInterrupted

NOTES_MAX = 20
#: The maximum number of stops that wait for their record. With the longest strings, they still fit
#: into one message of Temporal.
HEARD_MAX = 300
TOO_LATE = "a stop came after the verdict and changed nothing"
#: The maximum length that is kept of a stop's strings. The state must stay small, whatever a signal
#: contains.
REASON_MAX = 255

RUN_ID = SearchAttributeKey.for_int("CrawlRunId")
RUN_UID = SearchAttributeKey.for_keyword("CrawlRunUid")
CRAWLER = SearchAttributeKey.for_keyword("CrawlCrawler")
TRIGGER = SearchAttributeKey.for_keyword("CrawlTrigger")
STAGE = SearchAttributeKey.for_keyword("CrawlStage")
STATUS = SearchAttributeKey.for_keyword("CrawlStatus")
OUTCOME = SearchAttributeKey.for_keyword("CrawlOutcome")
FLOW = SearchAttributeKey.for_keyword("CrawlFlow")
PARENT = SearchAttributeKey.for_keyword("CrawlParent")
#: Search attributes of a workflow, or ``None`` if not known yet.
Attributes = list[tuple[SearchAttributeKey[Any], object]]


@dataclass(frozen=True)
class ReceivedSignal:
    """A signal with any payload."""

    name: str
    args: Sequence[RawValue]
    at: datetime
    new_id: str = ""
    """An id for a request that has none."""

    def payload(self) -> Any:
        """Return the first payload: ``None`` if there is none, and an ``UndecodedPayload`` if it
        cannot be read.
        """
        if not self.args:
            return None
        try:
            return workflow.payload_converter().from_payload(self.args[0].payload)
        except Exception as error:  # a decoder may raise any error for a foreign payload
            return UndecodedPayload(type(error).__name__)


@dataclass
class Inbox:
    """The signals and stops that were received for the run and are not carried out yet."""

    stop: StopIntent | None = None
    heard: list[HeardStop] = field(default_factory=list)
    """Stops that are not in the database yet."""
    changed: bool = False
    """True if one of these stops requests more than the earlier stops. The others are only
    logged.
    """
    look_now: bool = False
    look_recorded: bool = False
    """True if a poll was recorded without the workflow, which has to count the tasks."""
    place_free: bool = False
    """True if the pool has a slot for a waiting task of the run."""
    notes: list[str] = field(default_factory=list)
    closed: bool = False
    """True if the verdict is recorded, so that a stop no longer has an effect."""
    unknown: int = 0
    """The number of unknown signals. Only the first one is named in a note."""

    def note(self, text: str) -> None:
        """Add a note for people. The oldest notes are dropped."""
        self.notes = [*self.notes, text[:300]][-NOTES_MAX:]

    def late(self) -> bool:
        """Return whether a stop comes too late. If so, add a note once."""
        if self.closed and TOO_LATE not in self.notes:
            self.note(TOO_LATE)
        return self.closed

    def want_stop(self, intent: StopIntent, request_id: str | None) -> None:
        """Accept a stop, either by a person with the id of the request, or by a limit without an
        id.
        """
        if self.late():
            return
        before, self.stop = self.stop, intent if self.stop is None else self.stop.merged(intent)
        self.changed = self.changed or self.stop != before
        if request_id is None or all(h.request_id != request_id for h in self.heard):
            self.heard = [*self.heard, HeardStop(intent, request_id)]
        if len(self.heard) > HEARD_MAX:
            self.heard = self.heard[-HEARD_MAX:]
            text = (
                f"more than {HEARD_MAX} stops came before one could be recorded; the oldest are "
                "not logged"
            )
            if text not in self.notes:
                self.note(text)

    @contextmanager
    def taken(self) -> Iterator[list[HeardStop]]:
        """Yield the stops to record now.

        If recording is interrupted, they wait again.
        """
        heard = self.heard
        changed = self.changed
        self.heard = []
        self.changed = False
        try:
            yield heard
        except (StepInterrupted, MustLeave):
            self.heard, self.changed = [*heard, *self.heard], changed or self.changed
            raise

    def recorded_stop(self, intent: StopIntent | None) -> None:
        """Adopt a stop that is already in the database.

        The gateway may have recorded it.
        """
        if intent is not None:
            before, self.stop = self.stop, intent if self.stop is None else intent.merged(self.stop)
            # The signal of this stop comes later and then changes nothing. So mark a newly forced
            # stop as a change here.
            self.changed = self.changed or (
                before is not None and self.stop.force and not before.force
            )

    def signal(self, signal: ReceivedSignal) -> None:
        """Accept one signal. No signal is refused, so no stop is lost."""
        name = signal.name
        if name in (names.SIGNAL_STOP, names.SIGNAL_FORCE_STOP):
            intent, told = self.asked_to_stop(signal)
            request_id = words(told.get("request_id"), names.REQUEST_ID_MAX)
            self.want_stop(intent, request_id or signal.new_id)
        elif name in (names.SIGNAL_POLL_NOW, names.SIGNAL_LOOK_NOW):
            value = signal.payload()
            # Any other payload requests a poll, and needs no note.
            if isinstance(value, dict) and value.get("recorded") is True:
                self.look_recorded = True
            else:
                self.look_now = True
        elif name == names.SIGNAL_PLACE_FREE:
            self.place_free = True
        else:
            self.unheard(signal, names.SIGNAL_POLL_NOW, names.SIGNAL_PLACE_FREE)

    def asked_to_stop(
        self, signal: ReceivedSignal, *more: str
    ) -> tuple[StopIntent, dict[str, object]]:
        """Return the stop that a signal requests, and its fields.

        ``more`` contains further known fields.
        """
        told = self.fields(signal, ("request_id", "requested_by", "reason", "force", *more))
        force = signal.name == names.SIGNAL_FORCE_STOP or told.get("force") is True
        by = words(told.get("requested_by"), REASON_MAX)
        reason = words(told.get("reason"), REASON_MAX)
        return StopIntent(signal.at, force, by, reason), told

    def unheard(self, signal: ReceivedSignal, *known: str) -> None:
        """Count an unknown signal, and name the first one in a note.

        ``known`` contains the known signals other than stops.
        """
        if signal.name == names.SIGNAL_MORE:
            self.unknown += signal.payload()
            return
        self.unknown += 1
        if self.unknown == 1:
            self.note(
                f"unknown signal {signal.name!r} ignored; known are stop, force_stop and "
                f"{', '.join(known)}"
            )

    def told(self) -> list[str]:
        """Return the notes, with the number of unknown signals."""
        more = [f"{self.unknown} unknown signals ignored in all"] if self.unknown > 1 else []
        return [*self.notes, *more]

    def described(self, rows: Sequence[str]) -> str:
        """Return these rows of Markdown, followed by the last notes."""
        return "\n".join([*rows, *(f"- note: {note}" for note in self.told()[-5:])])

    def fields(self, signal: ReceivedSignal, known: Sequence[str]) -> dict[str, object]:
        """Return the fields of a signal that can be read.

        The signal counts with any payload.
        """
        name = signal.name
        count = len(signal.args)
        if count > 1:
            self.note(f"signal {name!r} came with {count} payloads, only the first was read")
        value = signal.payload()
        if isinstance(value, UndecodedPayload):
            self.note(f"payload of signal {name!r} could not be read, the signal counts: {value}")
            return {}
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.note(f"payload of signal {name!r} is not an object, but the signal counts")
            return {}
        unknown = sorted(str(k) for k in set(value) - set(known))
        if unknown:
            self.note(f"signal {name!r}: unknown fields {', '.join(unknown)[:100]} ignored")
        return value


@dataclass
class RunState:
    """The state of a run that its workflow knows.

    New fields need a default, and no field may be removed, because old histories must load.
    """

    stage: Stage = Stage.INITIATION
    run_id: int = 0
    run_uid: str = ""
    attempt: int = 0
    owner_run_id: str = ""
    crawler: str = ""
    trigger: Trigger = Trigger.MANUAL
    flow_id: str | None = None
    parent: str | None = None
    multi: bool = False
    resumed: bool = False
    rerun: bool = False
    repair: bool = False
    """True if this workflow replaces a lost workflow in the same attempt."""
    looked_back: bool = False
    """True if the first poll of a resume, for the tasks of the earlier attempt, is done."""
    request: RunRequest | None = None
    """The stored request without its tasks, from which an audit can restore a lost row."""
    limits: Limits = field(default_factory=Limits)
    poll_minutes: list[float] | None = None
    max_parallel: int | None = None
    status: RunStatus = RunStatus.INITIALIZING
    outcome: str | None = None
    ended_by: str | None = None
    cause: str | None = None
    pages: int | None = None
    items: int | None = None
    errors: int | None = None
    push_end: bool = False
    counts: Counts = field(default_factory=Counts)
    waiting_for: str | None = None
    rung: int = 0
    looks: int = 0
    last_look_at: datetime | None = None
    looked_at: datetime | None = None
    """The time at which the last poll ended or, if it has not ended, began, by the clock of the
    Temporal server.
    """
    next_look_at: datetime | None = None
    last_look_s: float = 0.0
    since: datetime | None = None
    """The time at which this attempt began its deployment. ``start_timeout_s`` counts from here."""
    started_at: datetime | None = None
    """The time at which its first task executed, not before ``since``. ``run_timeout_s`` counts
    from here.
    """
    deployed: bool = False
    """True if a deployment call of this attempt has had a response."""
    pages_deployed: int = 0
    in_line: bool = False
    """True if the last deployment got no slot of the run's pool."""
    ended: int = 0
    """The number of tasks that ended without success and are not tried again."""
    resting: int = 0
    """The number of queued tasks whose next try may not begin yet."""
    retry_at: datetime | None = None
    """The time at which the first of them may begin."""
    stop_rung: int = 0
    asked_at: datetime | None = None
    """The time at which the last task was asked to end, or ``None`` if some tasks were not asked
    yet.
    """
    stopped: bool = False
    stop_log: list[HeardStop] = field(default_factory=list)
    """Recorded stops whose rows in the cancellation log do not have the time yet at which we
    acted."""
    inbox: Inbox = field(default_factory=Inbox)
    parent_told: bool = False
    """True if the parent workflow was notified of the end."""
    completed: int = 0
    """The number of finished steps of the completion."""
    published: dict[str, str] = field(default_factory=dict)
    """The search attributes as they were last set."""

    @property
    def fence(self) -> Fence:
        return Fence(self.run_id, self.attempt, self.owner_run_id, self.run_uid)

    @property
    def room(self) -> bool:
        """Return whether queued tasks may be deployed in addition to the active tasks."""
        if not self.counted:
            return True
        return self.counts.queued > self.resting and (
            self.max_parallel is None or self.counts.active < self.max_parallel
        )

    @property
    def counted(self) -> bool:
        """Return whether the tasks were counted."""
        return bool(self.counts.by_status)

    @property
    def undecided(self) -> bool:
        """Return whether tasks ended without success and the policy of retries has not decided
        about them yet.
        """
        return (
            sum(self.counts.by_status.get(status, 0) for status in ("FAILED", "LOST")) > self.ended
        )

    def rest(self, resting: Resting, now: datetime) -> None:
        """Note the tasks whose next try may not begin yet.

        The wait is at least a second, because clocks differ.
        """
        self.resting = resting.tasks
        wait_s = resting.wait_s
        self.retry_at = None if wait_s is None else now + timedelta(seconds=max(wait_s, 1.0))

    @property
    def limit(self) -> tuple[datetime, str] | None:
        """Return the time at which a time limit stops the run, and the limit's outcome.

        Return ``None`` if no limit applies now.
        """
        if (
            self.stop_wanted()
            or self.since is None
            or self.stage not in (Stage.DEPLOYMENT, Stage.RECONCILIATION)
        ):
            return None
        if self.started_at is None:
            seconds = self.limits.start_timeout_s
            since = self.since
            name = "start_timeout"
        else:
            seconds = self.limits.run_timeout_s
            since = self.started_at
            name = "timed_out"
        return None if seconds is None else (since + timedelta(seconds=seconds), name)

    def adopt(self, handle: RunHandle, owner_run_id: str) -> None:
        """Adopt the row of the run that this workflow now owns."""
        request = handle.request
        self.run_id = handle.run_id
        self.run_uid = handle.run_uid
        self.attempt = handle.attempt
        self.owner_run_id = owner_run_id
        self.crawler = request.crawler or ""
        self.trigger = request.trigger
        self.request = request
        self.flow_id = request.flow_id
        self.parent = request.parent
        self.multi = handle.multi
        self.resumed = handle.resumed
        self.rerun = handle.rerun
        self.status = handle.status
        self.repair = handle.repair
        self.limits = request.limits
        self.poll_minutes = request.poll_minutes
        self.max_parallel = request.max_parallel_tasks
        self.inbox.recorded_stop(handle.stop)

    def judged(self, ended: RunEnded) -> None:
        """Adopt the recorded verdict."""
        self.status = ended.status
        self.outcome = ended.outcome
        self.cause = ended.cause
        self.ended_by = ended.ended_by
        self.pages = ended.pages
        self.items = ended.items
        self.errors = ended.errors
        self.push_end = ended.push
        self.stopped = ended.stopped
        self.counts = Counts(ended.tasks)
        self.waiting_for = None
        self.next_look_at = None
        heard = self.inbox.stop
        inbox = self.inbox
        if inbox.heard or (
            heard is not None and (ended.stop is None or (heard.force and not ended.stop.force))
        ):
            inbox.note(TOO_LATE)
        inbox.stop = ended.stop
        inbox.heard = []
        inbox.changed = False
        inbox.closed = True

    def result(self, export: ExportResult | None) -> RunResult:
        """Return the result of the workflow."""
        return RunResult(
            run_id=self.run_id,
            run_uid=self.run_uid,
            status=self.status,
            outcome=self.outcome or "",
            cause=self.cause or "",
            attempt=self.attempt,
            tasks=dict(self.counts.by_status),
            items=self.items,
            pages=self.pages,
            errors=self.errors,
            export=export,
            ended_by=self.ended_by,
        )

    def snapshot(self) -> RunSnapshot:
        """Return the response to the query ``status``, without values that can be newer in the
        database.
        """
        ended = self.outcome is not None
        return RunSnapshot(
            run_id=self.run_id or None,
            run_uid=self.run_uid or None,
            attempt=self.attempt,
            crawler=self.crawler,
            trigger=self.trigger,
            stage=self.stage,
            status=self.status if ended else None,
            outcome=self.outcome,
            ended_by=self.ended_by,
            cause=self.cause,
            stop=self.inbox.stop,
            tasks=dict(self.counts.by_status) if ended else None,
            step=self.rung,
            last_poll_at=self.last_look_at,
            next_poll_at=self.next_look_at,
            polls=self.looks,
            waiting_for=self.waiting_for,
            waiting=self.waiting(),
            notes=self.inbox.told(),
        )

    def record(self) -> WorkflowRecord:
        """Return the response to the query ``record``."""
        known = sum(self.counts.by_status.values())
        stop = self.inbox.stop
        return WorkflowRecord(
            self.run_id, self.run_uid, self.attempt, self.request, self.multi, known, stop
        )

    def waiting(self) -> str | None:
        """Return the reason why the run is waiting, as far as its workflow knows it."""
        stop = self.inbox.stop
        known = Standing(
            status=self.status.value,
            waiting_for=self.waiting_for,
            stop_at=stop.requested_at if stop else None,
            stop_by=(stop.limit or stop.requested_by) if stop else None,
            stop_force=stop.force if stop else False,
            tasks=self.counts.by_status or None,
            max_parallel=self.max_parallel,
        )
        return waiting(known)

    def search_attributes(self) -> Attributes:
        """Return the search attributes of the run."""
        return [
            (RUN_ID, self.run_id),
            (RUN_UID, self.run_uid),
            (CRAWLER, self.crawler),
            (TRIGGER, str(self.trigger)),
            (STAGE, str(self.stage)),
            (STATUS, str(self.status)),
            (OUTCOME, self.outcome),
            (FLOW, self.flow_id),
            (PARENT, self.parent),
        ]

    def details(self) -> str:
        """Return a description of the run in Markdown, for the Temporal UI."""
        tasks = ", ".join(f"{k} {v}" for k, v in sorted(self.counts.by_status.items()))
        rows = [
            f"### Run {self.run_id}: {self.crawler}, attempt {self.attempt}",
            f"- **{self.status}** in {self.stage}"
            + (f", {self.outcome}: {self.cause}" if self.outcome else ""),
            f"- tasks: {tasks or 'not deployed yet'}",
        ]
        sentence = self.waiting()
        if sentence:
            rows.append(f"- waiting: {sentence}")
        if self.last_look_at:
            rows.append(f"- poll {self.looks} at {self.last_look_at:%Y-%m-%d %H:%M:%S} UTC")
        if self.next_look_at and not self.status.terminal:
            rows.append(f"- next poll at {self.next_look_at:%Y-%m-%d %H:%M:%S} UTC")
        if self.inbox.stop:
            stop = self.inbox.stop
            who = stop.limit or stop.requested_by or "somebody"
            rows.append(
                f"- {'forced stop' if stop.force else 'stop'} at {stop.requested_at:%H:%M:%S} UTC "
                f"by {who}"
            )
        return self.inbox.described(rows)

    def stop_wanted(self) -> bool:
        """Return whether a person or a limit has stopped the run."""
        return self.inbox.stop is not None

    @property
    def unasked(self) -> bool:
        """Return whether there are active tasks that were not asked to end yet."""
        return any(self.counts.by_status.get(status) for status in ("PENDING", "RUNNING"))

    def stop_changed(self) -> bool:
        """Return whether the current stop has changed, because a stronger stop came or the stop
        becomes forced now.
        """
        return self.inbox.changed or self.escalated(workflow.now()) is not None

    def until_force(self, seconds: float | None) -> float | None:
        """Return ``seconds``, or less if a plain stop becomes a forced stop before that.

        ``None`` means no limit.
        """
        left = self._force_in(workflow.now())
        if left is None:
            return seconds
        return max(left, 0.0) if seconds is None else min(seconds, max(left, 0.0))

    def escalated(self, now: datetime) -> HeardStop | None:
        """Return the forced stop if the plain stop becomes one now, and otherwise ``None``."""
        stop = self.inbox.stop
        left = self._force_in(now)
        if stop is None or left is None or left > 0:
            return None
        return HeardStop(replace(stop, force=True, escalated=True))

    def _force_in(self, now: datetime) -> float | None:
        """Return the seconds until the stop becomes forced.

        Return ``None`` if there will be none, or if it is unknown because some tasks were not asked
        to end yet.
        """
        stop = self.inbox.stop
        after = self.limits.force_stop_after_s
        asked = self.asked_at
        if stop is None or stop.force or after is None or asked is None:
            return None
        return (asked + timedelta(seconds=after) - now).total_seconds()
