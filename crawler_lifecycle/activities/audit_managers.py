"""The part of an audit that is about managers: their rows beside their workflows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from temporalio import activity

from crawler_lifecycle.domain.audit import AuditFinding, AuditRules, FindingKind, LiveManager, WorkflowState
from crawler_lifecycle.domain.audit_judgement import judge_manager
from crawler_lifecycle.ports import AuditStore, FindingStore, WorkflowDirectory

from .audit_ending import Mend
from .audit_settling import PAGE, AuditPage, AuditPart, Settling
from .shared import Clock, alive, beating, utc_now


@dataclass
class ManagerAudit:
    """Compares managers. Their runs, and workflows without a row, are compared beside those of all others."""

    audits: AuditStore
    findings: FindingStore
    directory: WorkflowDirectory
    rules: AuditRules = field(default_factory=AuditRules)
    clock: Clock = utc_now

    @activity.defn(name="audit_managers", no_thread_cancel_exception=True)
    def audit_managers(self, page: AuditPage) -> AuditPart:
        """Compare a page of the managers that have not ended with their workflows; start and take over what has none.

        Second execution: finds the workflows that the first one started.
        """
        with beating():
            managers = self.audits.open_managers(int(page.after or 0), PAGE)
            mends: dict[str, Mend] = {}
            findings = []
            for manager in managers:
                alive()
                judged = self._judged(manager)
                if judged is not None:
                    findings.append(judged)
                    mends[judged.subject] = self._beginner(judged, manager)
            settling = Settling(self.findings, self.rules, self.clock())
            part = settling.settle(findings, page, len(managers), lambda finding: mends[finding.subject])
        return replace(part, next=str(managers[-1].manager_id) if len(managers) >= PAGE else None)

    def _judged(self, manager: LiveManager) -> AuditFinding | None:
        if manager.unreadable is not None:
            return judge_manager(manager, WorkflowState(open=False))
        # Of any chain: one that has not claimed the manager yet is about to.
        finding = judge_manager(manager, self.directory.state(manager.workflow_id))
        if finding is None:
            return None
        # It may have come to its end, or been resumed, between the two readings.
        now = next(iter(self.audits.open_managers(manager.manager_id - 1, 1)), None)
        return finding if now == manager else None

    def _beginner(self, finding: AuditFinding, manager: LiveManager) -> Mend:
        def begin() -> str:
            self.directory.begin_manager(manager.manager_id, manager.workflow_id)
            what = "started as" if finding.kind is FindingKind.NOT_STARTED else "taken over by a new"
            return f"{what} workflow {manager.workflow_id}"

        return begin
