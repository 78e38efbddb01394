"""Deletion of a run's data: strings in rows, workflow executions with their histories, files and
archives.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from temporalio import activity

from crawler_lifecycle.domain.bounds import INT_MAX
from crawler_lifecycle.domain.errors import (
    Fenced,
    LifecycleError,
    NotDelivered,
    TemporalUnavailable,
)
from crawler_lifecycle.domain.names import export_workflow_id
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports.protocols import FileArchive, FilesPlace, WorkflowDirectory
from crawler_lifecycle.ports.runs import RunRow

from .child_runs import workflow_ids
from .shared import alive, beating, there

if TYPE_CHECKING:
    from crawler_lifecycle.store.retention.deletion import DeletionStore
    from crawler_lifecycle.store.runs.reads import RunReader

#: The number of consecutive empty lists from Temporal that prove the deletion, and the seconds
#: between two lists. More than one is needed because Temporal's lists can be out of date.
LISTS = 2
LIST_S = 1.0
#: Maximum number of lists that one try reads.
LISTS_MAX = 300
_HISTORIES = "Temporal histories"


@dataclass
class DeletionActivities:
    """Steps of a recorded deletion. Each step records in the run's report what is gone, what
    remains, and why.
    """

    deletion: DeletionStore
    runs: RunReader
    directory: WorkflowDirectory
    archive: FileArchive
    places: Sequence[FilesPlace]

    @activity.defn(name="delete_run_texts", no_thread_cancel_exception=True)
    def delete_run_texts(self, run: RunRef) -> None:
        """Remove strings that people and crawlers wrote from all rows about the run. Second
        execution: does the same.
        """
        with beating(), self._noting(run, "rows"):
            gone = self.deletion.delete_texts(run, alive)
            self.deletion.note_deletion(
                run, {f"strings in {table}": count for table, count in gone.items()}, {}
            )

    @activity.defn(name="delete_run_histories", no_thread_cancel_exception=True)
    def delete_run_histories(self, run: RunRef) -> None:
        """Delete all workflow executions of the run from Temporal, including open executions.
        Raises ``TemporalUnavailable`` while Temporal still lists executions. Second execution:
        deletes the remaining executions.
        """
        row = self._row(run)
        empty = 0
        with beating(), self._noting(run, _HISTORIES):
            for _ in range(LISTS_MAX):
                empty = 0 if self.directory.delete_executions(run, workflow_ids(row)) else empty + 1
                if empty == LISTS:
                    return
                alive()
                time.sleep(LIST_S)
            raise TemporalUnavailable("Temporal still lists workflow executions of the run")

    @activity.defn(name="delete_run_files", no_thread_cancel_exception=True)
    def delete_run_files(self, run: RunRef) -> bool | None:
        """Remove the run's archives and the files of its tasks. This is the last step, after the
        workflow executions have been deleted. Return whether an export can still write files; older
        builds return ``None``. Raises ``NotDelivered`` if files or archives remain. Second
        execution: removes the remaining files and archives.
        """
        row = self._row(run)
        errors = list[LifecycleError]()
        with beating():
            for location in self.places:
                with self._noting(run, f"files in {location.where}", errors):
                    location.put_aside(run)
                    location.remove(run, INT_MAX)  # a deleted run is never resumed
            with self._noting(run, "archives", errors):
                self.archive.remove(run)
            with self._noting(run, "rows", errors):
                self.deletion.forget_former()
            if errors:  # the errors may name a crawler's files, which must not get into our history
                raise NotDelivered(
                    "not everything could be removed; the report of the run explains why"
                )
            if _HISTORIES in (row.deletion or {})["gone"]:
                self.deletion.note_deletion(run, {}, {}, ended=True)
            # No new export begins. An export that is under way has an open workflow.
            exporting = (*workflow_ids(row), export_workflow_id(run, row.attempt))
            return any(self.directory.state(export).open for export in exporting)

    def _row(self, run: RunRef) -> RunRow:
        """Return the row of exactly this run.

        Raises ``Fenced`` if another run has its number, which can happen after a restore.
        """
        row = there(self.runs.get_run(run.run_id), f"run {run.run_id}")
        if row.run_uid != run.uid:
            raise Fenced(run.foreign(f"The row of run {run.run_id}", row.run_uid))
        return row

    @contextmanager
    def _noting(
        self, run: RunRef, what: str, errors: list[LifecycleError] | None = None
    ) -> Iterator[None]:
        """Record in the report that ``what`` is gone, or the error that prevents it.

        If ``errors`` is given, the error is appended to it instead of being raised, so that the
        next steps are still tried.
        """
        try:
            yield
        except LifecycleError as error:
            self.deletion.note_deletion(run, {}, {what: str(error)[:1000]})
            if errors is None:
                raise
            errors.append(error)
        else:
            self.deletion.note_deletion(run, {what: None}, {what: None})
