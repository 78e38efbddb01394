"""Stage 4, completion: the verdict, the export signal, and the archive of supporting files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from crawler_lifecycle.domain.coverage import ExpectedCoverage
from crawler_lifecycle.domain.errors import (
    InvalidRequest,
    LifecycleError,
    NotDelivered,
    NotInThisState,
)
from crawler_lifecycle.domain.names import (
    EVENT_RUN_CHANGED,
    EVENT_RUN_ENDED,
    EVENT_RUN_STOPPED,
    archive_key,
    event_key,
    files_prefix,
)
from crawler_lifecycle.domain.run import (
    EndedTasks,
    ExportResult,
    RunStatus,
    StopIntent,
    Verdict,
    verdict,
)
from crawler_lifecycle.domain.tries import Try, counting
from crawler_lifecycle.ports.cluster import TaskFiles
from crawler_lifecycle.ports.files import FileSource
from crawler_lifecycle.ports.protocols import Catalogue, EventSink, FileArchive, Notifier
from crawler_lifecycle.ports.runs import Fence, RunRobots, TaskRef

from .shared import activity_method, alive, beating, push_event, reporting, send_event

if TYPE_CHECKING:
    from crawler_lifecycle.store.events import EventStore
    from crawler_lifecycle.store.runs.completion import CompletionStore, ExportStore
    from crawler_lifecycle.store.runs.deployment import DeploymentStore
    from crawler_lifecycle.store.runs.reads import RunReader
    from crawler_lifecycle.store.runs.tasks import TaskReader


#: The maximum number of hosts in the manifest whose robots.txt the run got.
ROBOTS_MAX = 1000
#: The reason in the manifest for files that ``crawlctl cluster gc`` removed.
FILES_REMOVED = "its files were removed because they were exported long ago (crawlctl cluster gc)"


@dataclass(frozen=True, slots=True)
class RunEnded:
    """Result of ``update_run_status``: the verdict of the run."""

    status: RunStatus
    outcome: str
    cause: str
    tasks: dict[str, int] = field(default_factory=dict)
    pages: int | None = None
    items: int | None = None
    errors: int | None = None
    push: bool = False
    """True if a notifier sends pushes, so that ``signal_pusher_changed`` is needed."""
    stopped: bool = False
    """True if a stop is recorded, so that ``signal_pusher_stopped`` is needed."""
    stop: StopIntent | None = None
    """The recorded stop."""
    ended_by: str | None = None
    """The party that ended the run (``EndedBy``)."""


@dataclass
class CompletionActivities:
    """Activities for stage 4."""

    completion: CompletionStore
    exports: ExportStore
    waits: DeploymentStore
    runs: RunReader
    tasks: TaskReader
    events: EventStore
    files: TaskFiles
    sink: EventSink
    archive: FileArchive
    catalogue: Catalogue
    notifiers: Sequence[Notifier]
    robots_of_run: Callable[[int, int], Sequence[RunRobots]]

    @activity_method
    def update_run_status(self, fence: Fence) -> RunEnded:
        """Derive the run's verdict from its tasks, and record it once per attempt.

        Second execution: returns the recorded verdict.
        """
        with reporting(self.waits.note_waiting, fence):
            row = self.runs.get_run(fence.run_id)
        crawler = self.catalogue.get(row.crawler) if row is not None else None
        partial_ok, expected = (
            (False, ExpectedCoverage())
            if crawler is None
            else (crawler.partial_ok, crawler.expected)
        )

        def judge(groups: Sequence[EndedTasks], stop: StopIntent | None) -> Verdict:
            return verdict(groups, stop, partial_ok=partial_ok)

        with reporting(self.waits.note_waiting, fence):
            ended = self.completion.end_run(fence, judge, expected)
        tasks = self.tasks.count_tasks(fence.run_id).positive()
        return RunEnded(
            ended.status,
            ended.outcome or "",
            ended.cause or "",
            tasks,
            ended.pages,
            ended.items,
            ended.errors,
            push=any(notifier.sends for notifier in self.notifiers),
            stopped=ended.stop is not None,
            stop=ended.stop,
            ended_by=ended.ended_by,
        )

    @activity_method
    def initiate_export_signal(self, fence: Fence) -> int:
        """Notify data pipelines that the run ended and its data can be exported, and return the
        event's sequence number.

        The event was recorded together with the verdict. It is delivered even if the run was
        resumed in the meantime.

        Second execution: delivers the same event under the same id.
        """
        event = self.events.find_event(event_key(fence.run, fence.attempt, EVENT_RUN_ENDED))
        if event is None:
            raise NotDelivered(
                f"attempt {fence.attempt} of run {fence.run_id} has no verdict yet to send"
            )
        self._send_earlier_ends(fence)
        send_event(self.events, event, self.sink)
        return event.seq

    @activity_method
    def deliver_event(self, key: str) -> None:
        """Deliver a recorded event about the end of a manager or a graph to the data pipelines.

        Raises ``InvalidRequest`` if no such event is recorded.

        Second execution: delivers the same event under the same id.
        """
        event = self.events.find_event(key)
        if event is None:
            raise InvalidRequest(
                f"key: no recorded event has the id {key!r:.80}; give the id of a recorded event"
            )
        send_event(self.events, event, self.sink)

    def _send_earlier_ends(self, fence: Fence) -> None:
        """Deliver the end events of earlier attempts that are still undelivered. A run can be
        resumed before the earlier workflow has delivered its event, and that workflow can have
        failed. Audits check only the current attempt. A failure is recorded and not raised.
        """
        if fence.attempt == 1:
            return
        ends = [
            row
            for row in self.events.deliveries(fence.run_id, keyed=True)
            if row["type"] == EVENT_RUN_ENDED
        ]
        delivered = {row["attempt"] for row in ends if row["status"] == "delivered"}
        undelivered = {int(str(row["attempt"])) for row in ends if row["attempt"] not in delivered}
        for attempt in sorted(older for older in undelivered if older < fence.attempt):
            event = self.events.find_event(event_key(fence.run, attempt, EVENT_RUN_ENDED))
            if event is not None:
                with suppress(NotDelivered):
                    send_event(self.events, event, self.sink)

    def _sources(self, fence: Fence, tries: Sequence[Try], given_up: int) -> list[FileSource]:
        """Return the files of these tries.

        For attempts whose files were removed, return entries that state this.
        """
        refs = [(task_try.run_attempt, TaskRef.of(task_try)) for task_try in tries]
        gone = [ref for of, ref in refs if of <= given_up and ref.uid is not None]
        found = self.files.files(fence.run, [ref for of, ref in refs if of > given_up])
        return [
            *(FileSource(files_prefix(r.index, r.attempt), missing=FILES_REMOVED) for r in gone),
            *found,
        ]

    @activity_method
    def export_supporting_files(self, fence: Fence) -> ExportResult | None:
        """Zip the supporting files of all tasks of the run into the archive. Return ``None`` if
        there are no files. Files of earlier attempts are included, because a resumed crawl
        continues where these attempts ended.

        Second execution: writes the same archive under the same key again.
        """
        try:
            with beating():
                given_up = self.exports.begin_export(fence)
                exports = (
                    self.exports.list_exports(fence.run_id) if given_up >= fence.attempt else []
                )
                if any(export["attempt"] == fence.attempt and export["url"] for export in exports):
                    raise NotInThisState(
                        f"{FILES_REMOVED}; the archive stays as it was exported before"
                    )
                tries = [
                    task_try
                    for task_try in self.tasks.tries(fence.run_id)
                    if task_try.run_attempt <= fence.attempt
                ]
                sources = [] if given_up >= fence.attempt else self._sources(fence, tries, given_up)
                if not sources:
                    self.exports.record_export(fence, "empty", None, None)
                    return None
                manifest = {
                    "run_id": fence.run_id,
                    "run_uid": fence.run_uid,
                    "attempt": fence.attempt,
                }
                ended = self.events.find_event(event_key(fence.run, fence.attempt, EVENT_RUN_ENDED))
                told = {} if ended is None else ended.body
                manifest |= {
                    name: told.get(name) for name in ("status", "outcome", "ended_by", "codes")
                }
                robots = self.robots_of_run(fence.run_id, ROBOTS_MAX)
                if robots:
                    manifest["robots"] = [asdict(found) for found in robots]
                kept = set(counting(tries))
                replaced = [
                    files_prefix(task_try.task_index, task_try.attempt)
                    for task_try in tries
                    if task_try not in kept
                ]
                key = archive_key(fence.run, fence.attempt)
                crawler = self.catalogue.get(self.runs.request_of(fence.run_id).crawler or "")
                files_max = None if crawler is None else crawler.files_max
                about = {**manifest, "replaced": replaced}
                result = self.archive.store(key, sources, about, alive, files_max=files_max)
        except LifecycleError as error:
            self.exports.record_export(fence, "failed", None, str(error))
            raise
        self.exports.record_export(fence, "exported", result, result.note)
        return result

    @activity_method
    def resend_pushes(self, fence: Fence) -> int:
        """Push the undelivered events of this attempt again, and return their number.

        A ``run.changed`` event is left out if a newer ``run.changed`` event exists. Raises
        ``NotDelivered`` at the first event that fails again.

        Second execution: pushes only the events that are still undelivered.
        """
        newest = self.events.last_event(fence.run_id, EVENT_RUN_CHANGED)
        ours = {notifier.name for notifier in self.notifiers}
        wanted = {
            int(str(row["seq"]))
            for row in self.events.deliveries(fence.run_id)
            if (row["status"] == "failed" and row["sink"] in ours)
            or (row["status"] == "pending" and row["type"] == EVENT_RUN_STOPPED)
        }
        events = [
            event for seq in sorted(wanted) if (event := self.events.get_event(seq)) is not None
        ]
        events = [event for event in events if event.attempt == fence.attempt]
        events = [event for event in events if event.type != EVENT_RUN_CHANGED or event == newest]
        for event in events:
            push_event(self.events, event, self.notifiers)
        return len(events)
