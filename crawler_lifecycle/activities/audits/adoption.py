"""Adoption: restoring the missing rows of executing runs and tasks, for example after a restore of
the database.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.audits.adoption import WorkflowRecord
from crawler_lifecycle.domain.audits.audit import OpenWorkflow
from crawler_lifecycle.domain.errors import InvalidRequest, NotInThisState, TemporalUnavailable
from crawler_lifecycle.domain.plurals import count
from crawler_lifecycle.domain.run import RunRequest
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports.cluster import TaskInventory
from crawler_lifecycle.ports.protocols import WorkflowDirectory
from crawler_lifecycle.ports.runs import LostRun, Owner, RunRow, TaskRecord

from .settling import Mend

if TYPE_CHECKING:
    from crawler_lifecycle.store.store import Store


log = logging.getLogger(__name__)

_REQUEST = TypeAdapter(RunRequest)


def run_of(workflow: OpenWorkflow) -> RunRef:
    """Return the run that an open workflow claims to belong to."""
    return RunRef(workflow.run_id or 0, workflow.run_uid or "")


class Adoption:
    """Restores the rows of runs that are missing from the database, from a run's open workflow or,
    if there is none, from the records on the cluster. A waiting workflow continues automatically
    when its row, attempt and owner exist again. A run without a workflow is taken over in repair
    mode, like all runs whose workflow was lost.
    """

    def __init__(self, store: Store, cluster: TaskInventory, directory: WorkflowDirectory) -> None:
        self._store = store
        self._cluster = cluster
        self._directory = directory
        self._hurried: set[RunRef] = set()

    def of(self, run: RunRef) -> Mend:
        """Return a repair that restores this run's rows. A second call finds the restored row."""
        return lambda: self._adopt(run)

    def _adopt(self, run: RunRef) -> str:
        row = self._store.runs.get_run(run.run_id)
        tasks = self._cluster.task_records(run)
        if row is not None and run.owns(row.run_uid):
            text = self._complete(row, tasks)
            self._hurry(row)
            return text
        workflow = self._directory.of_run(run)
        known = None
        unavailable = None
        if workflow is not None:
            try:
                known = self._directory.record(workflow)
            except TemporalUnavailable as error:
                unavailable = error
        row = self._store.adoption.adopt_run(self._lost(run, tasks, workflow, known, unavailable))
        if workflow is not None:
            self._hurry(row)
            return (
                f"adopted again as run {row.run_id}, with {count(len(tasks), 'task')}; its "
                "workflow continues"
            )
        return (
            f"adopted again as run {row.run_id}, with {count(len(tasks), 'task')}, by workflow "
            f"{self._begin(row)}"
        )

    def _complete(self, row: RunRow, tasks: Sequence[TaskRecord]) -> str:
        """Add the missing data to the run's existing row. Raises ``NotInThisState`` if that run has
        ended.
        """
        owner = Owner(row.owner_workflow_id or "", row.owner_run_id or "")
        multi = row.multi or len(tasks) > 1
        request = self._store.runs.request_of(row.run_id)
        lost = LostRun(
            row.ref, row.attempt, row.request_id, request, multi, owner, tasks, self._cluster.kind
        )
        self._store.adoption.adopt_run(lost)
        return f"adopted again in run {row.run_id}"

    def _hurry(self, row: RunRow) -> None:
        """Make a workflow that is waiting for its row continue now instead of at its next retry.

        This is done once for each run.
        """
        if row.owner_workflow_id is None or row.owner_run_id is None or row.ref in self._hurried:
            return
        self._hurried.add(row.ref)
        try:
            self._directory.hurry(Owner(row.owner_workflow_id, row.owner_run_id))
        except TemporalUnavailable as error:  # the workflow will continue at its next retry
            log.warning(
                "audit: the workflow of run %d continues only at its next retry: %s",
                row.run_id,
                error,
            )

    def _begin(self, row: RunRow) -> str:
        workflow_id = names.attempt_workflow_id(row.crawler, row.request_id, row.attempt + 1)
        self._directory.begin(
            RunRequest(crawler=row.crawler, run_id=row.run_id),
            workflow_id,
            row.run_uid,
            repair=True,
        )
        return workflow_id

    def _lost(
        self,
        run: RunRef,
        tasks: Sequence[TaskRecord],
        workflow: OpenWorkflow | None,
        known: WorkflowRecord | None,
        unavailable: TemporalUnavailable | None,
    ) -> LostRun:
        """Return all known data about the run.

        Raises ``NotInThisState`` with the reason if the data is not sufficient.
        """
        newest = max(tasks, key=lambda one: one.attempt, default=None)
        record: Mapping[str, object] = newest.record if newest is not None else {}
        if known is not None and known.request is not None:
            request = known.request
            multi = known.multi
            attempt = known.attempt
            total = known.tasks
            stop = known.stop
            request_id = request.request_id or run.uid
        elif newest is not None and record.get("request"):
            multi = bool(record.get("multi"))
            attempt = newest.attempt
            total = 0
            stop = None
            request = _request(record, newest, multi)
            request_id = str(record.get("request_id") or run.uid)
        elif unavailable is not None:
            raise unavailable
        else:
            raise NotInThisState(
                "neither a workflow nor the cluster has its request; end it with crawlctl audit "
                "--end-unknown"
            )
        owner = (
            Owner(workflow.workflow_id, workflow.first_run_id)
            if workflow is not None
            else _owner(record, run)
        )
        return LostRun(
            run, attempt, request_id, request, multi, owner, tasks, self._cluster.kind, total, stop
        )


def _request(record: Mapping[str, object], task: TaskRecord, multi: bool) -> RunRequest:
    """Return the request in the record that is stored with a task. Raises ``NotInThisState`` if the
    record is not ours.
    """
    recorded = record.get("request")
    own = {
        "args": {} if multi else dict(task.args),
        "settings": dict(task.settings),
        "crawler": task.crawler,
    }
    try:
        return _REQUEST.validate_python(
            {**(recorded if isinstance(recorded, Mapping) else {}), **own}
        )
    except (ValidationError, InvalidRequest) as error:
        raise NotInThisState(
            f"the request that the cluster recorded is not valid: {str(error)[:500]}"
        ) from error


def _owner(record: Mapping[str, object], run: RunRef) -> Owner:
    owner = record.get("owner")
    workflow_id, first = (
        (owner.get("workflow_id"), owner.get("first_run_id"))
        if isinstance(owner, Mapping)
        else ("", "")
    )
    return Owner(str(workflow_id or f"lost/{run}")[:1000], str(first or run.uid)[:64])
