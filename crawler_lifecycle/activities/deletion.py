"""Deletion of what a run brought: texts of rows, executions with their histories, files and archives."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from temporalio import activity

from crawler_lifecycle.domain.errors import Fenced, LifecycleError, NotDelivered, TemporalUnavailable
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports.protocols import FileArchive, FilesPlace, WorkflowDirectory
from crawler_lifecycle.ports.runs import RunRow

from .child_runs import workflow_ids
from .shared import alive, beating, there

if TYPE_CHECKING:
    from crawler_lifecycle.store.retention.deletion import DeletionStore
    from crawler_lifecycle.store.runs.reads import RunReader

#: Temporal's lists may lag behind: so often none must be listed in a row, with so many seconds between two lists.
LISTS, LIST_S = 2, 1.0
#: Lists of one try.
LISTS_MAX = 300


@dataclass
class DeletionActivities:
    """Steps of a deletion that is on record. Each writes into its report what is gone, and what is left and why."""

    deletion: DeletionStore
    runs: RunReader
    directory: WorkflowDirectory
    archive: FileArchive
    places: Sequence[FilesPlace]

    @activity.defn(name="delete_run_texts", no_thread_cancel_exception=True)
    def delete_run_texts(self, run: RunRef) -> None:
        """Take the words of persons and crawlers out of all rows about the run. Second execution: the same."""
        with beating(), self._noting(run, "rows"):
            gone = self.deletion.delete_texts(run, alive)
            self.deletion.note_deletion(run, {f"words in {table}": count for table, count in gone.items()}, {})

    @activity.defn(name="delete_run_histories", no_thread_cancel_exception=True)
    def delete_run_histories(self, run: RunRef) -> None:
        """Delete what Temporal has of the run, also what is open. Second execution: what is left.

        Raises ``TemporalUnavailable`` while there is something.
        """
        row, empty = self._row(run), 0
        with beating(), self._noting(run, "histories of Temporal"):
            for _ in range(LISTS_MAX):
                empty = 0 if self.directory.delete_executions(run, workflow_ids(row)) else empty + 1
                if empty == LISTS:
                    return
                alive()
                time.sleep(LIST_S)
            raise TemporalUnavailable("Temporal still lists some")

    @activity.defn(name="delete_run_files", no_thread_cancel_exception=True)
    def delete_run_files(self, run: RunRef) -> None:
        """Remove its archives, and the files of its tasks: the end of the deletion. Second execution: what is left."""
        row = self._row(run)
        troubles = list[LifecycleError]()
        with beating():
            for place in self.places:
                with self._noting(run, f"files in {place.where}", troubles):
                    place.put_aside(run)
                    place.remove(run, row.attempt)
            with self._noting(run, "archives", troubles):
                self.archive.remove(run)
            if troubles:  # its words may be names of a crawler's files, and would stay in our own history
                raise NotDelivered("not everything could be removed; the report of the run says why")
            self.deletion.note_deletion(run, {}, {}, ended=True)

    def _row(self, run: RunRef) -> RunRow:
        """The row of this very run: a database that was restored may give its number to another one."""
        row = there(self.runs.get_run(run.run_id), f"run {run.run_id}")
        if row.run_uid != run.uid:
            raise Fenced(run.foreign(f"The row of run {run.run_id}", row.run_uid))
        return row

    @contextmanager
    def _noting(self, run: RunRef, what: str, troubles: list[LifecycleError] | None = None) -> Iterator[None]:
        """Keep in the report why this is left, or that it is gone. With ``troubles`` others have their turn first."""
        try:
            yield
        except LifecycleError as error:
            self.deletion.note_deletion(run, {}, {what: str(error)[:1000]})
            if troubles is None:
                raise
            troubles.append(error)
        else:
            self.deletion.note_deletion(run, {what: None}, {what: None})
