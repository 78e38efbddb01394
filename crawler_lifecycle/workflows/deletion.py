"""``RunDeletionWorkflow``: deletes what a run brought; its row, which keeps the report, stays.

Every step is tried until it is done, in the order in which nothing comes back: rows, which take nothing more of the
run; executions, so that nothing of it goes on; then files and archives.
"""

from __future__ import annotations

from typing import Any

from temporalio import workflow

from crawler_lifecycle.activities.deletion import DeletionActivities
from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.bounds import LIMITS, check_number
from crawler_lifecycle.domain.run_ref import RunRef

from .calls import MustLeave, WithoutSignals, call, never, pause
from .requests import read_input

#: Seconds after which an export has learnt that its workflow is gone (by its heartbeats, each half a minute).
STRAY_S = 60.0


@workflow.defn(name=names.DELETION_WORKFLOW)
class RunDeletionWorkflow(WithoutSignals):
    """One deletion. ``run`` is a ``RunRef`` and all that is read. Fails for anything else."""

    @workflow.run
    async def run(self, run: Any = None, *surplus: Any) -> None:
        """Delete. What must be left the next execution does again."""
        ref: RunRef = read_input(RunRef, run)
        check_number("run_id", ref.run_id, LIMITS["run_id"])
        try:
            await call(DeletionActivities.delete_run_texts, ref)
            await call(DeletionActivities.delete_run_histories, ref)
            await pause(STRAY_S, never, "an export that may still write")
            await call(DeletionActivities.delete_run_files, ref)
        except MustLeave:
            workflow.continue_as_new(ref)
