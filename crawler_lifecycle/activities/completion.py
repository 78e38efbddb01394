"""Stage 4, completion: the verdict, the signal for the export, and the archive of supporting files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from temporalio import activity

from crawler_lifecycle.domain.errors import NotDelivered
from crawler_lifecycle.domain.run import EndedTasks, ExportResult, RunStatus, StopIntent, Verdict, verdict
from crawler_lifecycle.ports import Catalogue, Cluster, EventSink, Fence, FileArchive, RunStore, TaskRef

from .shared import beating, deliver

#: Tasks read from the database in one go.
TASK_PAGE = 500
#: Key of an attempt's archive, below the archive's root.
ARCHIVE_KEY = "{run_id}/{attempt}/supporting-files.zip"


@dataclass(frozen=True, slots=True)
class RunEnded:
    """What ``update_run_status`` decided."""

    status: RunStatus
    outcome: str
    cause: str
    tasks: dict[str, int] = field(default_factory=dict)
    pages: int | None = None
    items: int | None = None
    errors: int | None = None


@dataclass
class CompletionActivities:
    """Activities of stage 4."""

    store: RunStore
    cluster: Cluster
    sink: EventSink
    archive: FileArchive
    catalogue: Catalogue

    @activity.defn(name="update_run_status")
    def update_run_status(self, fence: Fence) -> RunEnded:
        """Set the run's verdict from its tasks, once per attempt.

        Second execution: answers the verdict already committed.
        """
        row = self.store.get_run(fence.run_id)
        crawler = self.catalogue.get(row.crawler) if row is not None else None
        partial_ok = crawler is not None and crawler.partial_ok

        def judge(groups: Sequence[EndedTasks], stop: StopIntent | None) -> Verdict:
            return verdict(groups, stop, partial_ok=partial_ok)

        ended = self.store.end_run(fence, judge)
        tasks = {str(k): v for k, v in self.store.count_tasks(fence.run_id).by_status.items() if v}
        return RunEnded(
            ended.status, ended.outcome or "", ended.cause or "", tasks, ended.pages, ended.items, ended.errors
        )

    @activity.defn(name="initiate_export_signal")
    def initiate_export_signal(self, fence: Fence) -> int:
        """Tell data pipelines that the run ended and its data can be exported; the event's sequence number.

        Second execution: sends the same event under the same id.
        """
        row = self.store.get_run(fence.run_id)
        if row is None:
            return 0
        body = {
            "run_id": row.run_id,
            "attempt": row.attempt,
            "request_id": row.request_id,
            "crawler": row.crawler,
            "trigger": row.trigger,
            "flow_id": row.flow_id,
            "status": row.status,
            "outcome": row.outcome,
            "cause": row.cause,
            "tasks": dict(self.store.count_tasks(row.run_id).by_status),
            "pages": row.pages,
            "items": row.items,
            "errors": row.errors,
            "started_at": row.started_at.isoformat() if row.started_at else None,
            "ended_at": row.ended_at.isoformat() if row.ended_at else None,
            "supporting_files": ARCHIVE_KEY.format(run_id=row.run_id, attempt=row.attempt),
        }
        with beating():
            return deliver(self.store, fence, "run.ended", body, self.sink.send, self.sink.name).seq

    def _all_tasks(self, run_id: int) -> list[TaskRef]:
        refs: list[TaskRef] = []
        after = 0
        while True:
            page = self.store.list_tasks(run_id, after_task_id=after, limit=TASK_PAGE, superseded=True)
            refs += [TaskRef(t.task_id, t.task_index, t.attempt, t.cluster_uid) for t in page]
            if len(page) < TASK_PAGE:
                return refs
            after = page[-1].task_id

    @activity.defn(name="export_supporting_files")
    def export_supporting_files(self, fence: Fence) -> ExportResult | None:
        """Zip the supporting files of all tasks of the run into the archive; ``None`` when there are none.

        Earlier attempts of the same indexes are included: a resumed crawl goes on where they ended.
        Second execution: writes the same archive under the same key again.
        """
        try:
            with beating():
                refs = self._all_tasks(fence.run_id)
                sources = self.cluster.files(fence.run_id, refs)
                if not sources:
                    self.store.record_export(fence, "empty", None, None)
                    return None
                manifest = {"run_id": fence.run_id, "attempt": fence.attempt}
                key = ARCHIVE_KEY.format(run_id=fence.run_id, attempt=fence.attempt)
                result = self.archive.store(key, sources, manifest, lambda files, size: activity.heartbeat(files, size))
        except NotDelivered as error:
            self.store.record_export(fence, "failed", None, str(error))
            raise
        self.store.record_export(fence, "exported", result, None)
        return result
