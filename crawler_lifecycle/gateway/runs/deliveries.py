"""Deliveries of an ended run: repeat them, and download the archive."""

from __future__ import annotations

import base64
import contextlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.domain.errors import NotDelivered
from crawler_lifecycle.domain.names import EVENT_RUN_ENDED, event_key
from crawler_lifecycle.ports.protocols import FileArchive
from crawler_lifecycle.ports.runs import Fence, RunRow
from crawler_lifecycle.store.events import EventStore
from crawler_lifecycle.store.runs.completion import ExportStore
from crawler_lifecycle.store.runs.reads import RunReader
from crawler_lifecycle.temporal.client import Workflows
from crawler_lifecycle.web.problems import Problem, unavailable

from .commands import CommandResult, needing_temporal, undeleted
from .requests import ResendExport


@contextlib.contextmanager
def reading(run_id: int) -> Iterator[None]:
    """Raise ``Problem`` 503 if the archive cannot be read."""
    try:
        yield
    except NotDelivered as error:
        raise unavailable("archive_unavailable", str(error), run_id=run_id) from error


@dataclass(frozen=True)
class Deliveries:
    """Repeats the deliveries of ended runs, and reads their archives.

    Raises ``Problem`` or an error of the domain.
    """

    runs: RunReader
    events: EventStore
    exports: ExportStore
    workflows: Workflows
    archive: FileArchive | None

    async def resend(self, run_id: int, body: ResendExport) -> CommandResult[RunRow]:
        """Start a workflow that repeats the deliveries of an attempt, with the same ids and
        keys.
        """
        row, attempt = await run_in_threadpool(self._judged, run_id, body.attempt)
        # The owner is checked only for the present attempt. For an earlier attempt, its number is
        # enough.
        fence = Fence(run_id, attempt, row.owner_run_id or "", row.run_uid)
        with needing_temporal(
            f"the deliveries of run {run_id} are not repeated; try again later.",
            run_id,
        ):
            workflow_id = await self.workflows.export_again(
                fence, event=body.event, files=body.files
            )
        return CommandResult(
            row, note=f"The workflow {workflow_id} delivers attempt {attempt} again."
        )

    def _judged(self, run_id: int, wanted: int | None) -> tuple[RunRow, int]:
        """Return the run and an attempt (default: the present one).

        Raises ``Problem`` 409 if the attempt has no verdict.
        """
        row = undeleted(self.runs, run_id)
        attempt = wanted or row.attempt
        if self.events.find_event(event_key(row.ref, attempt, EVENT_RUN_ENDED)) is None:
            detail = (
                f"attempt {attempt} of run {run_id} has no verdict, so there is nothing to deliver"
            )
            raise Problem(409, "not_in_this_state", detail, run_id=run_id)
        return row, attempt

    def download(self, run_id: int, wanted: int | None) -> tuple[Iterator[bytes], dict[str, str]]:
        """Return the archive of an attempt (default: the newest) and its headers.

        Raises ``Problem`` 404 or 503.
        """
        undeleted(self.runs, run_id)
        stored = [e for e in self.exports.list_exports(run_id) if e["status"] == "exported"]
        fitting = [e for e in stored if wanted in (None, e["attempt"])]
        if not fitting or self.archive is None:
            which = f"attempt {wanted} of run {run_id}" if wanted else f"run {run_id}"
            detail = f"{which} has no archive; GET /v1/runs/{run_id} has the state of its exports"
            raise Problem(404, "archive_not_found", detail, run_id=run_id)
        record = max(fitting, key=lambda entry: int(str(entry["attempt"])))
        with reading(run_id):
            chunks = self.archive.open(str(record["url"]))
            # The first read can still report errors. After that, the head of the response is sent,
            # and errors cannot be reported.
            first = next(chunks, b"")
        digest = str(record["sha256"])
        return itertools.chain([first], chunks), {
            "Content-Length": str(record["bytes"]),
            "Content-Disposition": f'attachment; filename="run-{run_id}-{record["attempt"]}.zip"',
            "Repr-Digest": f"sha-256=:{base64.b64encode(bytes.fromhex(digest)).decode()}:",
            "ETag": f'"{digest}"',
            "X-Content-Type-Options": "nosniff",
        }
