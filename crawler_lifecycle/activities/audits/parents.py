"""The part of an audit that is about what keeps a workflow: managers, graphs, due times and webhooks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from temporalio import activity

from crawler_lifecycle.activities.shared import Clock, alive, beating, utc_now
from crawler_lifecycle.domain.audits.audit import AuditFinding, AuditRules, FindingKind, LiveParent, WorkflowState
from crawler_lifecycle.domain.audits.judgement import judge_parent, judge_step
from crawler_lifecycle.domain.errors import TemporalUnavailable
from crawler_lifecycle.domain.schedules.definition import due_workflow_id
from crawler_lifecycle.domain.webhooks.definition import webhook_workflow_id
from crawler_lifecycle.ports import AuditStore, FindingStore, WebhookReader, WorkflowDirectory
from crawler_lifecycle.ports.store.schedules import ScheduleStore

from .ending import Mend
from .settling import PAGE, AuditPage, AuditPart, Settling


@dataclass
class ParentAudit:
    """Compares them. Their runs, and workflows without a row, are compared beside those of all others."""

    audits: AuditStore
    findings: FindingStore
    directory: WorkflowDirectory
    schedules: ScheduleStore
    webhooks: WebhookReader
    rules: AuditRules = field(default_factory=AuditRules)
    clock: Clock = utc_now

    @activity.defn(name="audit_managers", no_thread_cancel_exception=True)
    def audit_managers(self, page: AuditPage) -> AuditPart:
        """Compare a page of the managers that have not ended with their workflows; start and take over what has none.

        Second execution: finds the workflows that the first one started.
        """
        with beating():
            return self._compare(page, self.audits.open_managers, self.directory.begin_manager)

    @activity.defn(name="audit_graphs", no_thread_cancel_exception=True)
    def audit_graphs(self, page: AuditPage) -> AuditPart:
        """The same of graphs; and compare what executes of their steps with the runs and managers that there are.

        Second execution: finds the workflows that the first one started; to wake one again changes nothing.
        """
        with beating():
            return self._compare(page, self.audits.open_graphs, self.directory.begin_graph, steps=True)

    @activity.defn(name="audit_due", no_thread_cancel_exception=True)
    def audit_due(self, page: AuditPage) -> AuditPart:
        """The same of due times of schedules whose target is still to be begun.

        Second execution: finds the workflows that the first one started.
        """
        with beating():
            return self._compare(page, self._open_due, self.directory.begin_due)

    @activity.defn(name="audit_webhooks", no_thread_cancel_exception=True)
    def audit_webhooks(self, page: AuditPage) -> AuditPart:
        """The same of webhooks.

        Second execution: finds the workflows that the first one started.
        """
        with beating():
            return self._compare(page, self._open_webhooks, self.directory.begin_webhook)

    def _open_due(self, after: int, limit: int) -> list[LiveParent]:
        lines = self.schedules.due_to_begin(self.clock(), after, limit)
        return [
            LiveParent("due time", one.due_id, due_workflow_id(one.name, one.due_at), one.decision, 1, one.decided_at)
            for one in lines
        ]

    def _open_webhooks(self, after: int, limit: int) -> list[LiveParent]:
        return [
            LiveParent(
                "webhook",
                one.webhook_id,
                webhook_workflow_id(one.name),
                status="active" if one.paused_at is None else "paused",
                attempt=one.revision,
                updated_at=one.updated_at,
                owner_run_id=one.follower,
            )
            for one in self.webhooks.list_webhooks(after, limit)
        ]

    def _compare(
        self,
        page: AuditPage,
        read: Callable[[int, int], Sequence[LiveParent]],
        begin: Callable[[int, str], None],
        *,
        steps: bool = False,
    ) -> AuditPart:
        parents = read(int(page.after or 0), PAGE)
        mends: dict[str, Mend] = {}
        findings = []
        for parent in parents:
            alive()
            judged = self._judged(parent, read)
            if judged is not None:
                findings.append(judged)
                mends[judged.subject] = _beginner(judged, parent, begin)
        for step in self.audits.steps_without_runs([parent.number for parent in parents]) if steps else ():
            judged = judge_step(step)
            findings.append(judged)
            mends[judged.subject] = waker(self.directory, judged)
        settling = Settling(self.findings, self.rules, self.clock())
        part = settling.settle(findings, page, len(parents), lambda finding: mends[finding.subject])
        return replace(part, next=str(parents[-1].number) if len(parents) >= PAGE else None)

    def _judged(self, parent: LiveParent, read: Callable[[int, int], Sequence[LiveParent]]) -> AuditFinding | None:
        if parent.unreadable is not None:
            return judge_parent(parent, WorkflowState(open=False))
        # Of any chain: one that has not claimed it yet is about to.
        finding = judge_parent(parent, self.directory.state(parent.workflow_id))
        if finding is None:
            return None
        # It may have come to its end, or been resumed, between the two readings.
        now = next(iter(read(parent.number - 1, 1)), None)
        return finding if now == parent else None


def _beginner(finding: AuditFinding, parent: LiveParent, begin: Callable[[int, str], None]) -> Mend:
    def started() -> str:
        begin(parent.number, parent.workflow_id)
        what = "started as" if finding.kind is FindingKind.NOT_STARTED else "taken over by a new"
        return f"{what} workflow {parent.workflow_id}"

    return started


def waker(directory: WorkflowDirectory, finding: AuditFinding) -> Mend:
    """Has the manager or the graph of the finding look into its rows."""

    def wake() -> str:
        workflow_id = finding.workflow_id or ""
        if not directory.wake(workflow_id):
            raise TemporalUnavailable(f"no workflow {workflow_id!r} is open")
        return f"its {workflow_id.partition('/')[0]} was woken"

    return wake
