"""The route that signs uploads of supporting files from pods, one object at a time."""

from __future__ import annotations

from crawler_lifecycle.domain.errors import NotDelivered
from crawler_lifecycle.domain.task import TaskStatus
from crawler_lifecycle.gateway.access.operations import check_own
from crawler_lifecycle.gateway.api.answers import UploadPart
from crawler_lifecycle.ports.protocols import TaskBundles
from crawler_lifecycle.ports.runs import Ticket
from crawler_lifecycle.store.runs.tasks import TaskReader
from crawler_lifecycle.web.problems import Problem, unavailable

_ALIVE = {status.value for status in TaskStatus if not status.terminal}


class Uploads:
    """Gives tickets to tasks that have not ended. The bytes themselves never pass through the gateway."""

    def __init__(self, tasks: TaskReader, bundles: TaskBundles | None) -> None:
        self._tasks = tasks
        self._bundles = bundles

    def ticket(self, run_id: int, index: int, attempt: int, body: UploadPart) -> Ticket:
        """An address for one part. Raises ``Problem`` 404, 409 or 503, and ``InvalidRequest``."""
        if self._bundles is None:
            detail = (
                "this gateway hands out no places for files; set LIFECYCLE_CLUSTER__FILES_URL for it, the same as for "
                "the scheduler service"
            )
            raise Problem(409, "not_in_this_state", detail, run_id=run_id)
        found = self._tasks.recorded_tasks([(run_id, index, attempt)])
        if not found:
            detail = f"run {run_id} has no task {index} of attempt {attempt}; GET /v1/runs/{run_id}/tasks lists them"
            raise Problem(404, "task_not_found", detail, run_id=run_id)
        check_own(found[0].run)
        if found[0].status not in _ALIVE:
            # What was handed out earlier expires by itself; from here on the files of an ended task stay as they are.
            detail = f"task {index} of attempt {attempt} of run {run_id} is {found[0].status}; nothing is added to it"
            raise Problem(409, "not_in_this_state", detail, run_id=run_id)
        try:
            return self._bundles.ticket(found[0].run, index, attempt, body.part, body.bytes, body.md5)
        except NotDelivered as error:
            raise unavailable("archive_unavailable", str(error), run_id=run_id) from error
