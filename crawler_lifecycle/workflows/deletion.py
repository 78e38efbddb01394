"""``RunDeletionWorkflow``: deletes the data of a run.

The run's row stays and keeps the report of the deletion.

Each step is tried until it succeeds. The order prevents new data. First come the rows, which then
accept no more data of the run, then files and archives, then the workflow executions, so that none
of them continues, and finally the files of an export that was under way.
"""

from __future__ import annotations

from typing import Any

from temporalio import workflow

from crawler_lifecycle.activities.deletion import DeletionActivities
from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.bounds import LIMITS, check_number
from crawler_lifecycle.domain.run_ref import RunRef

from .calls import MustLeave, WithoutSignals, call, never, pause
from .requests import workflow_input

#: Seconds after which an export notices that its workflow is gone. An export sends a heartbeat
#: every half minute.
STRAY_S = 60.0
#: The patch for executions that still delete files before histories.
FILES_FIRST = "files-first"


@workflow.defn(name=names.DELETION_WORKFLOW)
class RunDeletionWorkflow(WithoutSignals):
    """The workflow of one deletion. Its input is a ``RunRef``, and it fails for any other input."""

    @workflow.run
    async def run(self, run: Any = None, *surplus: Any) -> None:
        """Delete the data. After continue-as-new, all steps begin again."""
        ref: RunRef = workflow_input(RunRef, run)
        check_number("run_id", ref.run_id, LIMITS["run_id"])
        try:
            await call(DeletionActivities.delete_run_texts, ref)
            exporting: bool | None = None
            if workflow.patched(FILES_FIRST):
                exporting = await call(DeletionActivities.delete_run_files, ref)
            await call(DeletionActivities.delete_run_histories, ref)
            if exporting is not False:
                await pause(STRAY_S, never, "an export that may still write")
            await call(DeletionActivities.delete_run_files, ref)
        except MustLeave:
            workflow.continue_as_new(ref)
