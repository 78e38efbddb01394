"""The state of a run's workflow, as one value that travels over continue-as-new."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue, SearchAttributeKey
from temporalio.converter import PayloadConverter

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
from crawler_lifecycle.domain.undecoded import Undecoded
from crawler_lifecycle.domain.waiting import Standing, waiting
from crawler_lifecycle.ports.runs import Fence, RunHandle

from .calls import Interrupted, MustLeave

NOTES_MAX = 20
#: Stops that wait for the database, at the longest of texts still less than what may travel through Temporal.
HEARD_MAX = 300
TOO_LATE = "a stop came after the verdict and changed nothing"
#: Characters kept of what a stop says about itself: a state must stay small, whatever is sent.
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


@dataclass
class Inbox:
    """Everything that reached the run from outside and has not been carried out yet."""

    stop: StopIntent | None = None
    heard: list[HeardStop] = field(default_factory=list)
    """Stops that are not in the database yet."""
    changed: bool = False
    """True if one of them asks for more than was asked for before. The others are logged and interrupt nothing."""
    look_now: bool = False
    notes: list[str] = field(default_factory=list)
    closed: bool = False
    """True if the verdict is on record: nothing that comes now can stop the run, and nothing says that it did."""
    unknown: int = 0
    """Signals that nobody knows: counted, and only the first is told."""

    def note(self, text: str) -> None:
        """Remember a remark for people; the oldest are forgotten."""
        self.notes = [*self.notes, text[:300]][-NOTES_MAX:]

    def late(self) -> bool:
        """Return whether a stop comes too late, and note that once."""
        if self.closed and TOO_LATE not in self.notes:
            self.note(TOO_LATE)
        return self.closed

    def want_stop(self, intent: StopIntent, request_id: str | None) -> None:
        """A stop by a person (with the id of its request) or by a limit (without)."""
        if self.late():
            return
        before, self.stop = self.stop, intent if self.stop is None else self.stop.merged(intent)
        self.changed = self.changed or self.stop != before
        if request_id is None or all(h.request_id != request_id for h in self.heard):
            self.heard = [*self.heard, HeardStop(intent, request_id)]
        if len(self.heard) > HEARD_MAX:
            self.heard = self.heard[-HEARD_MAX:]
            text = f"more than {HEARD_MAX} stops came before one could be recorded; the oldest are not logged"
            if text not in self.notes:
                self.note(text)

    @contextmanager
    def taken(self) -> Iterator[list[HeardStop]]:
        """The stops that are to be put on record now; where that is interrupted, they wait again."""
        heard, changed = self.heard, self.changed
        self.heard, self.changed = [], False
        try:
            yield heard
        except (Interrupted, MustLeave):
            self.heard, self.changed = [*heard, *self.heard], changed or self.changed
            raise

    def recorded_stop(self, intent: StopIntent | None) -> None:
        """A stop that is in the database already, perhaps past us (through the gateway)."""
        if intent is not None:
            before, self.stop = self.stop, intent if self.stop is None else intent.merged(self.stop)
            # A signal of the same adds nothing any more, so the force is carried out from here.
            self.changed = self.changed or (before is not None and self.stop.force and not before.force)

    def signal(
        self, name: str, args: Sequence[RawValue], converter: PayloadConverter, now: datetime, new_id: str
    ) -> None:
        """Take one signal, whatever it carries: nothing is refused, and a stop is never lost."""
        if name in (names.SIGNAL_STOP, names.SIGNAL_FORCE_STOP):
            intent, told = self.asked_to_stop(name, args, converter, now)
            self.want_stop(intent, words(told.get("request_id"), names.REQUEST_ID_MAX) or new_id)
        elif name == names.SIGNAL_LOOK_NOW:
            self.look_now = True
        else:
            self.unheard(name, args, converter, names.SIGNAL_LOOK_NOW)

    def asked_to_stop(
        self, name: str, args: Sequence[RawValue], converter: PayloadConverter, now: datetime, *more: str
    ) -> tuple[StopIntent, dict[str, object]]:
        """The stop that a signal asks for, and its fields; ``more``: those beside the fields of every stop."""
        told = self.fields(name, args, converter, ("request_id", "requested_by", "reason", "force", *more))
        force = name == names.SIGNAL_FORCE_STOP or told.get("force") is True
        by, reason = words(told.get("requested_by"), REASON_MAX), words(told.get("reason"), REASON_MAX)
        return StopIntent(now, force, by, reason), told

    def unheard(self, name: str, args: Sequence[RawValue], converter: PayloadConverter, *known: str) -> None:
        """Count a signal that nobody knows; only the first is told. ``known``: what may be sent beside stops."""
        if name == names.SIGNAL_MORE:
            self.unknown += converter.from_payload(args[0].payload)
            return
        self.unknown += 1
        if self.unknown == 1:
            self.note(f"unknown signal {name!r} ignored; known are stop, force_stop and {', '.join(known)}")

    def told(self) -> list[str]:
        """The notes, and how many signals nobody knew."""
        more = [f"{self.unknown} unknown signals ignored in all"] if self.unknown > 1 else []
        return [*self.notes, *more]

    def fields(
        self, name: str, args: Sequence[RawValue], converter: PayloadConverter, known: Sequence[str]
    ) -> dict[str, object]:
        """The fields of a signal, as far as they can be read: whatever it carries, the signal counts."""
        if len(args) > 1:
            self.note(f"signal {name!r} came with {len(args)} payloads, only the first was read")
        if not args:
            return {}
        try:
            value = converter.from_payload(args[0].payload)
        except Exception as error:  # whatever a stranger's payload does to a decoder, the stop still counts
            value = Undecoded(f"{type(error).__name__}")
        if isinstance(value, Undecoded):
            self.note(f"payload of signal {name!r} could not be read, the signal counts: {value}")
            return {}
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.note(f"payload of signal {name!r} is no object, the signal counts")
            return {}
        unknown = sorted(str(k) for k in set(value) - set(known))
        if unknown:
            self.note(f"signal {name!r}: unknown fields {', '.join(unknown)[:100]} ignored")
        return value


@dataclass
class RunState:
    """The run as its workflow knows it. Fields are only ever added, with defaults: old histories must still load."""

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
    """True if this workflow stands in for one that was lost: it comes to the verdict that the lost one would have."""
    looked_back: bool = False
    """On resume: whether the complete look at what is left of the earlier attempt is done."""
    request: RunRequest | None = None
    """The stored request without its tasks, for a database that loses the row."""
    limits: Limits = field(default_factory=Limits)
    poll_minutes: list[float] | None = None
    max_parallel: int | None = None
    status: RunStatus = RunStatus.INITIALIZING
    outcome: str | None = None
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
    """The time when the last look was answered, or was ordered, by the clock of the server and not of a worker."""
    next_look_at: datetime | None = None
    last_look_s: float = 0.0
    since: datetime | None = None
    """The time when this attempt began to deploy; ``start_timeout_s`` counts from here."""
    started_at: datetime | None = None
    """The time when the first of its tasks executed, not before ``since``; ``run_timeout_s`` counts from here."""
    deployed: bool = False
    """True if a deployment call of this attempt was answered."""
    pages_deployed: int = 0
    stop_rung: int = 0
    asked_at: datetime | None = None
    """The time when the last of the tasks was asked to end; ``None`` while some still wait for their turn."""
    stopped: bool = False
    stop_log: list[HeardStop] = field(default_factory=list)
    """Recorded stops whose row in the cancellation log still lacks the time we acted on it."""
    inbox: Inbox = field(default_factory=Inbox)
    parent_told: bool = False
    """True if the workflow that asked for it was notified of the end."""
    completed: int = 0
    """Steps of the completion that were taken."""
    published: dict[str, str] = field(default_factory=dict)
    """Search attributes as they were last set."""

    @property
    def fence(self) -> Fence:
        return Fence(self.run_id, self.attempt, self.owner_run_id, self.run_uid)

    @property
    def room(self) -> bool:
        """Return whether queued tasks may be deployed beside the active ones."""
        if not self.counted:
            return True
        return self.counts.queued > 0 and (self.max_parallel is None or self.counts.active < self.max_parallel)

    @property
    def counted(self) -> bool:
        """Return whether it is known at all how many tasks there are."""
        return bool(self.counts.by_status)

    @property
    def limit(self) -> tuple[datetime, str] | None:
        """The moment at which a limit of time ends the run, and its name, while one counts."""
        if self.stop_wanted() or self.since is None or self.stage not in (Stage.DEPLOYMENT, Stage.RECONCILIATION):
            return None
        if self.started_at is None:
            seconds, since, name = self.limits.start_timeout_s, self.since, "start_timeout"
        else:
            seconds, since, name = self.limits.run_timeout_s, self.started_at, "timed_out"
        return None if seconds is None else (since + timedelta(seconds=seconds), name)

    def adopt(self, handle: RunHandle, owner_run_id: str) -> None:
        """Take over what the database says about the run that we now own."""
        request = handle.request
        self.run_id, self.run_uid = handle.run_id, handle.run_uid
        self.attempt, self.owner_run_id = handle.attempt, owner_run_id
        self.crawler, self.trigger = request.crawler or "", request.trigger
        self.request = request
        self.flow_id, self.parent = request.flow_id, request.parent
        self.multi, self.resumed, self.rerun, self.status = handle.multi, handle.resumed, handle.rerun, handle.status
        self.repair = handle.repair
        self.limits, self.poll_minutes = request.limits, request.poll_minutes
        self.max_parallel = request.max_parallel_tasks
        self.inbox.recorded_stop(handle.stop)

    def judged(self, ended: RunEnded) -> None:
        """Take over the verdict that is committed now."""
        self.status, self.outcome, self.cause = ended.status, ended.outcome, ended.cause
        self.pages, self.items, self.errors, self.push_end = ended.pages, ended.items, ended.errors, ended.push
        self.stopped = ended.stopped
        self.counts, self.waiting_for, self.next_look_at = Counts(ended.tasks), None, None
        heard, inbox = self.inbox.stop, self.inbox
        if inbox.heard or (heard is not None and (ended.stop is None or (heard.force and not ended.stop.force))):
            inbox.note(TOO_LATE)
        inbox.stop, inbox.heard, inbox.changed, inbox.closed = ended.stop, [], False, True

    def result(self, export: ExportResult | None) -> RunResult:
        """The result of the workflow."""
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
        )

    def snapshot(self) -> RunSnapshot:
        """The answer of the query ``status``: nothing that the database may know better."""
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
            cause=self.cause,
            stop=self.inbox.stop,
            tasks=dict(self.counts.by_status) if ended else None,
            rung=self.rung,
            last_look_at=self.last_look_at,
            next_look_at=self.next_look_at,
            looks=self.looks,
            waiting_for=self.waiting_for,
            waiting=self.waiting(),
            notes=self.inbox.told(),
        )

    def record(self) -> WorkflowRecord:
        """The answer of the query ``record``."""
        known, stop = sum(self.counts.by_status.values()), self.inbox.stop
        return WorkflowRecord(self.run_id, self.run_uid, self.attempt, self.request, self.multi, known, stop)

    def waiting(self) -> str | None:
        """The reason why the run waits, as far as its workflow knows."""
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

    def search_attributes(self) -> list[tuple[SearchAttributeKey[Any], object]]:
        """Search attributes of the run."""
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
        """The run in Markdown, for the Temporal UI."""
        rows = [
            f"### Run {self.run_id}: {self.crawler}, attempt {self.attempt}",
            f"- **{self.status}** in {self.stage}" + (f", {self.outcome}: {self.cause}" if self.outcome else ""),
            f"- tasks: {', '.join(f'{k} {v}' for k, v in sorted(self.counts.by_status.items())) or 'not deployed yet'}",
        ]
        sentence = self.waiting()
        if sentence:
            rows.append(f"- waiting: {sentence}")
        if self.last_look_at:
            rows.append(f"- look {self.looks} at {self.last_look_at:%Y-%m-%d %H:%M:%S} UTC")
        if self.next_look_at and not self.status.terminal:
            rows.append(f"- next look at {self.next_look_at:%Y-%m-%d %H:%M:%S} UTC")
        if self.inbox.stop:
            stop = self.inbox.stop
            who = stop.limit or stop.requested_by or "somebody"
            rows.append(f"- {'forced stop' if stop.force else 'stop'} at {stop.requested_at:%H:%M:%S} UTC by {who}")
        rows += [f"- note: {note}" for note in self.inbox.told()[-5:]]
        return "\n".join(rows)

    def stop_wanted(self) -> bool:
        """Return whether anybody or any limit wants the run to end."""
        return self.inbox.stop is not None

    @property
    def unasked(self) -> bool:
        """Return whether tasks are active that were not asked to end yet."""
        return any(self.counts.by_status.get(status) for status in ("PENDING", "RUNNING"))

    def stop_changed(self) -> bool:
        """Return whether a stop under way is no longer the same: more is asked for, or it is time for force."""
        return self.inbox.changed or self.escalated(workflow.now()) is not None

    def until_force(self, seconds: float | None) -> float | None:
        """``seconds``, or less when a plain stop becomes a forced one before; ``None`` is for ever."""
        left = self._force_in(workflow.now())
        if left is None:
            return seconds
        return max(left, 0.0) if seconds is None else min(seconds, max(left, 0.0))

    def escalated(self, now: datetime) -> HeardStop | None:
        """The forced stop that a plain one has become by now, if it has."""
        stop, left = self.inbox.stop, self._force_in(now)
        if stop is None or left is None or left > 0:
            return None
        return HeardStop(replace(stop, force=True, escalated=True))

    def _force_in(self, now: datetime) -> float | None:
        """Seconds until force; ``None``: never, or not yet known, because tasks wait to be asked in order."""
        stop, after, asked = self.inbox.stop, self.limits.force_stop_after_s, self.asked_at
        if stop is None or stop.force or after is None or asked is None:
            return None
        return (asked + timedelta(seconds=after) - now).total_seconds()
