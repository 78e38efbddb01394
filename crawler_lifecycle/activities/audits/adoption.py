"""Adoption: takes up runs and tasks that execute but have no row, for example after a restore of the database."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.audits.adoption import WorkflowRecord
from crawler_lifecycle.domain.audits.audit import OpenWorkflow
from crawler_lifecycle.domain.errors import InvalidRequest, NotInThisState, TemporalUnavailable
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
    """The run that an open workflow says it works for."""
    return RunRef(workflow.run_id or 0, workflow.run_uid or "")


class Adoption:
    """Makes the rows of lost runs again: from their workflow where one is open, else from what lies on the cluster.

    With its row, attempt and owner back, a workflow that waited goes on by itself. A run without one is taken over in
    repair mode, as any run whose workflow was lost.
    """

    def __init__(self, store: Store, cluster: TaskInventory, directory: WorkflowDirectory) -> None:
        self._store, self._cluster, self._directory = store, cluster, directory
        self._hurried: set[RunRef] = set()

    def of(self, run: RunRef) -> Mend:
        """A mend that takes this run up again. A second time it finds the row."""
        return lambda: self._adopt(run)

    def _adopt(self, run: RunRef) -> str:
        there = self._store.runs.get_run(run.run_id)
        tasks = self._cluster.task_records(run)
        if there is not None and run.owns(there.run_uid):
            words = self._complete(there, tasks)
            self._hurry(there)
            return words
        workflow = self._directory.of_run(run)
        known, trouble = None, None
        if workflow is not None:
            try:
                known = self._directory.record(workflow)
            except TemporalUnavailable as error:
                trouble = error
        row = self._store.adoption.adopt_run(self._lost(run, tasks, workflow, known, trouble))
        if workflow is not None:
            self._hurry(row)
            return f"taken up again as run {row.run_id}, with {len(tasks)} tasks; its workflow goes on"
        return f"taken up again as run {row.run_id}, with {len(tasks)} tasks, by workflow {self._begin(row)}"

    def _complete(self, row: RunRow, tasks: Sequence[TaskRecord]) -> str:
        """The run is already on record. Data that the older row lacks is added.

        Raises ``NotInThisState`` where that row has ended.
        """
        owner, multi = Owner(row.owner_workflow_id or "", row.owner_run_id or ""), row.multi or len(tasks) > 1
        request = self._store.runs.request_of(row.run_id)
        lost = LostRun(row.ref, row.attempt, row.request_id, request, multi, owner, tasks, self._cluster.kind)
        self._store.adoption.adopt_run(lost)
        return f"taken up again in run {row.run_id}"

    def _hurry(self, row: RunRow) -> None:
        """Let a workflow that waits for its row continue now, not at its next retry. One call serves all tasks of a
        run.
        """
        if row.owner_workflow_id is None or row.owner_run_id is None or row.ref in self._hurried:
            return
        self._hurried.add(row.ref)
        try:
            self._directory.hurry(Owner(row.owner_workflow_id, row.owner_run_id))
        except TemporalUnavailable as error:  # the run is taken over, and comes to its next retry by itself
            log.warning("audit: run %d is not looked at sooner: %s", row.run_id, error)

    def _begin(self, row: RunRow) -> str:
        workflow_id = names.attempt_workflow_id(row.crawler, row.request_id, row.attempt + 1)
        self._directory.begin(RunRequest(crawler=row.crawler, run_id=row.run_id), workflow_id, row.run_uid, repair=True)
        return workflow_id

    def _lost(
        self,
        run: RunRef,
        tasks: Sequence[TaskRecord],
        workflow: OpenWorkflow | None,
        known: WorkflowRecord | None,
        trouble: TemporalUnavailable | None,
    ) -> LostRun:
        """All data that is known about the run. Raises ``NotInThisState``, with the reason, where it is too little."""
        newest = max(tasks, key=lambda one: one.attempt, default=None)
        record: Mapping[str, object] = newest.record if newest is not None else {}
        if known is not None and known.request is not None:
            request, multi, attempt, total, stop = known.request, known.multi, known.attempt, known.tasks, known.stop
            request_id = request.request_id or run.uid
        elif newest is not None and record.get("request"):
            multi, attempt, total, stop = bool(record.get("multi")), newest.attempt, _number(record.get("tasks")), None
            request, request_id = _request(record, newest, multi), str(record.get("request_id") or run.uid)
        elif trouble is not None:
            raise trouble
        else:
            raise NotInThisState(
                "neither a workflow nor anything on the cluster says what was asked for; end it (crawlctl audit "
                "--end-unknown), and start it anew"
            )
        owner = Owner(workflow.workflow_id, workflow.first_run_id) if workflow is not None else _owner(record, run)
        kind = self._cluster.kind
        return LostRun(run, attempt, request_id, request, multi, owner, tasks, kind, total, stop)


def _request(record: Mapping[str, object], task: TaskRecord, multi: bool) -> RunRequest:
    """Return the request from the record beside a task. Raises ``NotInThisState`` for a record that is not ours."""
    told = record.get("request")
    own = {"args": {} if multi else dict(task.args), "settings": dict(task.settings), "crawler": task.crawler}
    try:
        return _REQUEST.validate_python({**(told if isinstance(told, Mapping) else {}), **own})
    except (ValidationError, InvalidRequest) as error:
        raise NotInThisState(f"what the cluster says was asked for cannot be: {str(error)[:500]}") from error


def _owner(record: Mapping[str, object], run: RunRef) -> Owner:
    told = record.get("owner")
    workflow_id, first = (told.get("workflow_id"), told.get("first_run_id")) if isinstance(told, Mapping) else ("", "")
    return Owner(str(workflow_id or f"lost/{run}")[:1000], str(first or run.uid)[:64])


def _number(value: object) -> int:
    return min(value, names.TASKS_PER_RUN_MAX) if isinstance(value, int) and value > 0 else 0
