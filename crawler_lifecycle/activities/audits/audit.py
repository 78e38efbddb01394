"""Activities for the audit: they compare the database, the cluster and Temporal in pages, and
repair the differences. Audits have their own task queue, threads and connections. So an audit that
hangs or compares a million rows never delays a run. Each activity compares one page of one source,
records its findings, and repairs the findings that are due (``domain.audits``).

Runs continue while an audit is reading, so the first source is read again before any decision.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from crawler_lifecycle.activities import meters
from crawler_lifecycle.activities.shared import activity_method, alive, beating
from crawler_lifecycle.clock import Clock, utc_now
from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.audits.audit import (
    RECENT,
    AuditFinding,
    AuditReport,
    AuditRules,
    ClusterTask,
    EndedRun,
    FindingKind,
    LiveRun,
    OpenWorkflow,
    ReportedFinding,
    UnknownDecision,
    WorkflowState,
    given_up,
    reportable,
)
from crawler_lifecycle.domain.audits.corrections import CorrectionKind
from crawler_lifecycle.domain.audits.judgement import (
    judge_counted,
    judge_deliveries,
    judge_end,
    judge_live,
    judge_parent_workflow,
    judge_task,
    judge_workflow,
)
from crawler_lifecycle.domain.audits.overdue import OVERDUE_S
from crawler_lifecycle.domain.errors import (
    ClusterUnavailable,
    InvalidRequest,
    RowUnreadable,
    RunNotFound,
)
from crawler_lifecycle.domain.run import RunRequest, StopIntent
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import TaskStatus
from crawler_lifecycle.ports.cluster import AuditedCluster
from crawler_lifecycle.ports.polls import Correction
from crawler_lifecycle.ports.protocols import WorkflowDirectory
from crawler_lifecycle.ports.runs import Fence, TaskRef

from .adoption import Adoption, run_of
from .giving_up import GivingUp
from .parents import wake_parent
from .settling import PAGE, AuditPage, AuditPart, FindingRepair, Mend, Settling, end_tasks, still

if TYPE_CHECKING:
    from crawler_lifecycle.store.store import Store

log = logging.getLogger(__name__)

#: The maximum number of runs with an ignored stop that one search reads from the database.
UNHEARD_MAX = 1000
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class CloseAudit:
    """Input of ``close_audit``. ``complete`` contains the kinds of findings whose sources were
    compared completely.
    """

    report: AuditReport
    complete: list[FindingKind] = field(default_factory=list)
    noted_from: datetime | None = None
    """The earliest ``noted_at`` of all pages, or ``None`` if no page was compared."""


@dataclass
class AuditActivities:
    """Activities of an audit."""

    store: Store
    cluster: AuditedCluster
    directory: WorkflowDirectory
    rules: AuditRules = field(default_factory=AuditRules)
    clock: Clock = utc_now
    giving_up: GivingUp | None = None

    # --- the cluster ------------------------------------------------------------------------------

    @activity_method
    def audit_cluster(self, page: AuditPage) -> AuditPart:
        """Compare a page of the cluster's tasks with the rows, and end tasks without an owner.

        Second execution: the ended tasks are no longer listed.
        """
        with beating():
            after = _key(page.after)
            seen = self.cluster.inventory(after=after, limit=PAGE)
            rows = {
                task.key: task
                for task in self.store.tasks.recorded_tasks([task.key for task in seen])
            }
            suspects = [task for task in seen if judge_task(task, rows.get(task.key)) is not None]
            # A task can end and be recorded between the two reads. Only a task that still exists
            # is a finding.
            still = {
                (task.key, task.uid)
                for run_id in sorted({task.run_id for task in suspects})
                for task in self.cluster.inventory(run_id=run_id, limit=len(suspects) + PAGE)
            }
            pairs = [
                (task, rows.get(task.key)) for task in suspects if (task.key, task.uid) in still
            ]
            adoption = Adoption(self.store, self.cluster, self.directory)
            found = list[FindingRepair]()
            ended = dict[str, ClusterTask]()
            became: dict[str, str | Exception] = {}
            for task, row in pairs:
                finding = judge_task(task, row)
                if finding is None:
                    continue
                self._still_alive(finding, task)
                if finding.unknown and page.unknown is UnknownDecision.ADOPT:
                    found.append(FindingRepair(finding, adoption.of(task.run)))
                else:
                    ended[finding.subject] = task
                    found.append(FindingRepair(finding, partial(_became, became, finding.subject)))

            def end(wanted: Sequence[AuditFinding]) -> None:
                now = {
                    finding.subject: (ended[finding.subject], finding.task_id)
                    for finding in wanted
                    if finding.subject in ended
                }
                became.update(end_tasks(self.cluster, now))

            return self._settling.settle(
                found, page, ["/".join(map(str, task.key)) for task in seen], end
            )

    def _still_alive(self, finding: AuditFinding, task: ClusterTask) -> None:
        """Record a correction for a task that is still executing although it is recorded as
        ended."""
        if finding.kind is not FindingKind.STILL_ALIVE or finding.run_id is None:
            return
        recorded = str(finding.evidence["recorded"])
        about_task = recorded in {s.value for s in TaskStatus if s.terminal}
        self._correct(
            finding.run_id,
            Correction(
                CorrectionKind.STILL_ALIVE,
                believed=recorded if about_task else str(finding.evidence["run"]),
                truth=str(TaskStatus.RUNNING if task.executing else TaskStatus.PENDING),
                task_id=finding.task_id if about_task else None,
                attempt=finding.attempt,
                evidence=finding.evidence,
            ),
        )

    # --- runs that are open -----------------------------------------------------------------------

    @activity_method
    def audit_runs(self, page: AuditPage) -> AuditPart:
        """Compare a page of live runs with their workflows, and start a workflow for each run that
        has none.

        Second execution: it finds the workflows that the first execution started.
        """
        with beating():
            runs = self.store.audits.open_runs(int(page.after or 0), PAGE)
            since = self.clock() - RECENT
            found = self._late_evidence({run.run_id: run.stop for run in runs}, since)
            for run in runs:
                alive()
                judged = self._judged(run)
                if judged is not None:
                    found.append(self._lost(judged, run))
                uncounted = judge_counted(run)
                if uncounted is not None:
                    found.append(
                        FindingRepair(uncounted, partial(wake_parent, self.directory, uncounted))
                    )
            return self._settling.settle(found, page, [run.run_id for run in runs])

    def _judged(self, run: LiveRun) -> AuditFinding | None:
        state = self._state(run)
        if state.open:
            return None
        # The run may have ended or been resumed between the two reads.
        now = next(iter(self.store.audits.open_runs(run.run_id - 1, 1)), None)
        return (
            judge_live(run, state, self.store.tasks.count_tasks(run.run_id).positive())
            if now == run
            else None
        )

    def _lost(self, finding: AuditFinding, run: LiveRun) -> FindingRepair:
        """Return the finding with its repair. A workflow adopts the run. If that is not possible,
        the run is ended.
        """
        end = None
        if self.giving_up is not None:
            end = still(
                partial(self._judged, run), partial(self.giving_up.run, run, given_up(finding))
            )
        return FindingRepair(finding, partial(self._resume, finding, run), end)

    def _state(self, run: LiveRun) -> WorkflowState:
        """Return the state of the run's workflow: the owner, or a workflow that is about to claim
        the run.

        If none is open, return the state of the workflow that closed last.
        """
        own = names.workflow_id(run.crawler, run.request_id)
        state = WorkflowState(open=False)
        if run.owner_workflow_id is not None:
            state = self.directory.state(run.owner_workflow_id, run.owner_run_id)
        if state.open:
            return state
        coming = [names.attempt_workflow_id(run.crawler, run.request_id, run.attempt + 1)]
        # A workflow with the plain id may belong to an earlier attempt that still delivers its
        # events and claims nothing.
        if run.attempt == 1 or run.owner_workflow_id == own:
            coming.append(own)
        ended = [state]
        for workflow_id in coming:
            one = self.directory.state(workflow_id)
            if one.open and not one.of_another(run.run_uid):
                return one
            ended += [one] if one.how not in (None, "completed") else []
        return max(ended, key=lambda one: one.closed_at or _LONG_AGO)

    def _resume(self, finding: AuditFinding, run: LiveRun) -> str:
        request = RunRequest(
            crawler=run.crawler, run_id=run.run_id, priority=min(max(run.priority, 1), 5)
        )
        if finding.kind is FindingKind.NOT_STARTED:
            workflow_id = run.owner_workflow_id or names.workflow_id(run.crawler, run.request_id)
            # The workflow may have been started since the check, and may even have ended. Then
            # start nothing.
            self.directory.begin(request, workflow_id, run.run_uid, repair=True)
            return f"started as workflow {workflow_id}"
        workflow_id = names.attempt_workflow_id(run.crawler, run.request_id, run.attempt + 1)
        self._correct(
            run.run_id,
            Correction(
                CorrectionKind.REPAIR,
                believed=run.status,
                truth="no workflow",
                attempt=run.attempt,
                truth_since=finding.since,
                evidence={**finding.evidence, "taken_over_by": workflow_id},
            ),
        )
        self.directory.begin(request, workflow_id, run.run_uid, repair=True)
        return f"taken over by workflow {workflow_id}"

    def take_over(self, run: LiveRun, *, repair: bool = True) -> ReportedFinding | None:
        """Take over a run that has no workflow, and return the finding with the result. Return
        ``None`` if the run has a workflow, or if the run has continued. The grace period is shorter
        than in an audit. Repeated or concurrent calls find the workflow that the first call
        started. If ``repair`` is false, the finding is only reported. Raises
        ``TemporalUnavailable``.
        """
        finding = self._judged(run)
        if finding is None:
            return None
        grace = min(self.rules.grace_s, OVERDUE_S) if finding.since is not None else 0.0
        sooner = replace(self, rules=replace(self.rules, grace_s=grace))
        part = sooner._settling.settle([self._lost(finding, run)], AuditPage(repair), [run.run_id])
        return next(iter(part.findings), None)

    def take_over_ended(self, *, repair: bool = True) -> int:
        """Take over the runs whose workflow has just been ended from outside, before the next poll
        of these runs is due.

        Return the number of runs that have no workflow. Raises ``TemporalUnavailable``.
        """
        ended = self.directory.ended_runs()
        runs = [
            run
            for run_id in ended
            for run in self.store.audits.open_runs(run_id - 1, 1)
            if run.run_id == run_id
        ]
        return sum(self.take_over(run, repair=repair) is not None for run in runs)

    def end_forced(self) -> int:
        """End the tasks of runs whose workflow does not act on a forced stop. The workflow records
        the outcomes of the tasks when it can. Return 0, because these runs still have a workflow.
        """
        for run in self.store.sweep.unheard_stops(
            self.clock() - timedelta(seconds=OVERDUE_S), UNHEARD_MAX
        ):
            if run.stop is not None and run.stop.force and self.giving_up is not None:
                try:
                    self.giving_up.end_tasks(run)
                # The tasks of the other runs are ended nevertheless.
                except ClusterUnavailable as error:
                    log.warning("the tasks of run %d cannot be ended now: %s", run.run_id, error)
        return 0

    # --- workflows that are open ------------------------------------------------------------------

    @activity_method
    def audit_workflows(self, page: AuditPage) -> AuditPart:
        """Compare a page of the open workflows with the rows, and end the workflows whose run has
        no row.

        Second execution: the ended workflows are no longer open.
        """
        with beating():
            listed, following = self.directory.open_runs(page.after, PAGE)
            suspects = [w for w, finding in self._judged_workflows(listed) if finding is not None]
            found: list[tuple[AuditFinding, OpenWorkflow]] = []
            for listed_one in suspects:
                alive()
                # The list can be out of date. The workflow itself shows whether it is open, and
                # which run it belongs to.
                workflow = self.directory.confirm(listed_one)
                again = [] if workflow is None else self._judged_workflows([workflow])
                found += [(finding, workflow) for workflow, finding in again if finding is not None]
            adoption = Adoption(self.store, self.cluster, self.directory)
            mends = [
                self._without_row(finding, workflow, page.unknown, adoption)
                for finding, workflow in found
            ]
            settled = [
                FindingRepair(finding, mend)
                for (finding, _), mend in zip(found, mends, strict=True)
            ]
            part = self._settling.settle(settled, page, [w.workflow_id for w in listed])
        return replace(part, next=following)

    def _judged_workflows(
        self, listed: Sequence[OpenWorkflow]
    ) -> list[tuple[OpenWorkflow, AuditFinding | None]]:
        runs = self.store.audits.existing_runs([w.run_id for w in listed if w.run_id is not None])
        parents = self.store.audits.existing_parents([w.workflow_id for w in listed if w.of_parent])
        return [
            (w, judge_parent_workflow(w, w.workflow_id in parents))
            if w.of_parent
            else (w, judge_workflow(w, runs.get(w.run_id or 0)))
            for w in listed
        ]

    def _without_row(
        self,
        finding: AuditFinding,
        workflow: OpenWorkflow,
        unknown: UnknownDecision,
        adoption: Adoption,
    ) -> Mend:
        if unknown is not UnknownDecision.ADOPT:
            return partial(self._terminate, finding, workflow)
        return _no_adoption if workflow.of_parent else adoption.of(run_of(workflow))

    def _terminate(self, finding: AuditFinding, workflow: OpenWorkflow) -> str:
        self.directory.end(workflow, f"audit: {finding.detail}")
        return "terminated"

    # --- runs that ended recently -----------------------------------------------------------------

    @activity_method
    def audit_ended(self, page: AuditPage) -> AuditPart:
        """Compare a page of recently ended runs with their deliveries, and compare unproved ends
        with the cluster.

        Second execution: it finds that the delivery has begun. A correction is recorded only once.
        """
        with beating():
            since = self.clock() - RECENT
            runs = self.store.audits.ended_runs(since, _moment(page.after), PAGE)
            found: list[FindingRepair] = []
            for run in runs:
                alive()
                undelivered = self._undelivered(run)
                if undelivered is not None:
                    found.append(FindingRepair(undelivered, partial(self._deliver, run)))
            found += self._late_evidence({run.run_id: run.stop for run in runs}, since)
            return self._settling.settle(
                found, page, [f"{run.ended_at.isoformat()} {run.run_id}" for run in runs]
            )

    def _undelivered(self, run: EndedRun) -> AuditFinding | None:
        finding = judge_deliveries(run)
        if finding is None or not reportable(finding, self.clock(), self.rules):
            return None
        owner = run.owner_workflow_id
        if owner is not None and self.directory.state(owner, run.owner_run_id).open:
            return None
        if self.directory.state(names.export_workflow_id(run.ref, run.attempt)).open:
            return None
        # The workflow may have delivered the last event and closed between the two reads.
        now = self.store.audits.ended_run(run.run_id)
        return finding if now == run else None

    def _deliver(self, run: EndedRun) -> str:
        fence = Fence(run.run_id, run.attempt, run.owner_run_id or "", run.run_uid)
        event = not (run.event_delivered and run.pushes_delivered)
        self.directory.deliver_again(fence, event=event, files=not run.exported)
        return f"sent again by workflow {names.export_workflow_id(run.ref, run.attempt)}"

    def _late_evidence(
        self, stops: Mapping[int, StopIntent | None], since: datetime
    ) -> list[FindingRepair]:
        """Return findings about outcomes that were recorded without evidence, if the cluster now
        has evidence.

        ``stops`` contains the stops of the runs to check.
        """
        found = []
        ends: dict[RunRef, list[TaskRef]] = {}
        recorded = {}
        for task in self.store.audits.unproved_ends(list(stops), since):
            recorded[task.key] = task
            ends.setdefault(task.run, []).append(
                TaskRef(task.task_id, task.index, task.attempt, task.uid)
            )
        for run, refs in ends.items():
            alive()
            try:
                poll = self.cluster.poll(run, refs)
            except ClusterUnavailable as error:  # the source "cluster" reports this itself
                log.warning("audit: no evidence about run %d: %s", run.run_id, error)
                continue
            for seen in poll.observations:
                task = recorded[run.run_id, seen.index, seen.attempt]
                finding = judge_end(task, seen, stops[run.run_id])
                if finding is not None:
                    found.append(FindingRepair(finding, partial(self._record, finding)))
        return found

    def _record(self, finding: AuditFinding) -> str:
        if finding.run_id is not None:
            correction = Correction(
                CorrectionKind.LATE_EVIDENCE,
                believed=str(finding.evidence["recorded"]),
                truth=str(finding.evidence["truth"]),
                task_id=finding.task_id,
                attempt=finding.attempt,
                truth_since=finding.since,
                evidence=finding.evidence,
            )
            self._correct(finding.run_id, correction)
        return "recorded as a correction; the status of the task stays"

    # --- the end of an audit ----------------------------------------------------------------------

    @activity_method
    def close_audit(self, order: CloseAudit) -> int:
        """Store the report, close the findings that were not seen again, and return the number of
        closed findings.

        Second execution: the report is already stored, and nothing else is closed.
        """
        # Temporal's clock is not used here. If our clock were behind Temporal's clock, recent
        # findings would be closed.
        begin = order.noted_from or order.report.started_at
        gone = self.store.findings.forget_findings([str(kind) for kind in order.complete], begin)
        self.store.findings.record_audit(order.report)
        return gone

    # --- shared -----------------------------------------------------------------------------------

    @property
    def _settling(self) -> Settling:
        return Settling(self.store.findings, self.rules, self.clock())

    def _correct(self, run_id: int, correction: Correction) -> None:
        try:
            written = self.store.corrections.record_corrections(run_id, [correction], "sweep")
        # The run's row may have been removed or damaged.
        except (RunNotFound, InvalidRequest, RowUnreadable) as error:
            log.warning("audit: a correction of run %d could not be written: %s", run_id, error)
            return
        meters.corrected(written)


def _became(became: Mapping[str, str | Exception], subject: str) -> str:
    """Return how this task was ended. Raises the error that prevented the end."""
    result = became[subject]
    if isinstance(result, Exception):
        raise result
    return result


def _no_adoption() -> str:
    raise InvalidRequest(
        "its jobs or steps existed only in its lost rows; end it, and start it again under its id"
    )


def _key(text: str | None) -> tuple[int, int, int] | None:
    if text is None:
        return None
    run_id, index, attempt = (int(part) for part in text.split("/"))
    return run_id, index, attempt


def _moment(text: str | None) -> tuple[datetime, int] | None:
    if text is None:
        return None
    moment, _, run_id = text.rpartition(" ")
    return datetime.fromisoformat(moment), int(run_id)
