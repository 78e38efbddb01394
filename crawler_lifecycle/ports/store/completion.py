"""Port of completion: the verdict, exports, and the retention of files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from crawler_lifecycle.domain.retention import KeptRun, RetentionState
from crawler_lifecycle.domain.run import EndedTasks, ExportResult, StopIntent, Verdict
from crawler_lifecycle.ports.rows import RunRow
from crawler_lifecycle.ports.values import Fence


class CompletionStore(Protocol):
    """The verdict."""

    def end_run(self, fence: Fence, judge: Callable[[Sequence[EndedTasks], StopIntent | None], Verdict]) -> RunRow:
        """Judge and set the terminal status, with its transition and the event ``run.ended``, in one transaction.

        When a stop is on record, there is also the event ``run.stopped``.

        Raises ``NotInThisState`` while tasks are alive.
        """
        ...


class ExportReader(Protocol):
    """How exports stand."""

    def list_exports(self, run_id: int) -> list[Mapping[str, object]]: ...


class ExportStore(ExportReader, Protocol):
    """Exports as they go on."""

    def begin_export(self, fence: Fence) -> int:
        """An export of the fence's attempt reads files from now on; the last attempt whose files are given up, or 0."""
        ...

    def record_export(self, fence: Fence, status: str, result: ExportResult | None, error: str | None) -> None:
        """How the export of the fence's attempt stands; also of one that was resumed meanwhile."""
        ...


class FileRetentionStore(Protocol):
    """Whose files may be removed, and whose were."""

    def kept_runs(self, run_ids: Sequence[int]) -> list[KeptRun]:
        """Those of the runs that there are, as far as they decide about their files, by id."""
        ...

    def give_up_files(
        self, run_id: int, before: datetime, put_aside: Callable[[], None], *, incomplete: bool = False
    ) -> tuple[RetentionState, int]:
        """When the run is ``Stand.OLD`` (``domain.retention``): from now on its files are not read any more.

        ``put_aside`` is then called while no resume and no export of the run can begin; what it raises is raised, and
        nothing is given up. Where the run stands, and the last attempt that is given up. Raises ``RunNotFound``.
        """
        ...

    def note_files_removed(self, run_id: int, attempt: int) -> None:
        """The files that were given up are gone."""
        ...
