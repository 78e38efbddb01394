"""Audits of rows that have their own workflow: managers, graphs, due times and webhooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from crawler_lifecycle.activities.shared import activity_method, alive, beating
from crawler_lifecycle.clock import Clock, utc_now
from crawler_lifecycle.domain.audits.audit import (
    LOST,
    AuditFinding,
    AuditRules,
    FindingKind,
    LiveParent,
    StepWithoutRun,
    WorkflowState,
    given_up,
)
from crawler_lifecycle.domain.audits.judgement import judge_parent, judge_step
from crawler_lifecycle.domain.audits.overdue import OVERDUE_S
from crawler_lifecycle.domain.errors import TemporalUnavailable
from crawler_lifecycle.ports.protocols import RowOrder, WorkflowDirectory

from .giving_up import wake
from .settling import PAGE, AuditPage, AuditPart, FindingRepair, Settling, Source, still

if TYPE_CHECKING:
    from crawler_lifecycle.store.store import Store


@dataclass(frozen=True, slots=True)
class ParentKind:
    """One kind of parents, and the functions with which an audit handles them."""

    what: str
    """``LiveParent.what``."""
    read: Callable[[int, int], Sequence[LiveParent]]
    """Returns at most this many rows with numbers above this number, in ascending order."""
    order: Callable[[int, str], RowOrder]
    """Returns the input of the workflow for the row with this number and this workflow id."""
    give_up: Callable[[LiveParent, str], str | None]
    """Ends or pauses a parent for this reason, and returns the workflow that began it. Raises
    ``NotInThisState`` while runs of the parent are live.
    """
    steps: Callable[[Sequence[int]], Sequence[StepWithoutRun]] = lambda _: ()
    """Returns the steps of these rows whose run or manager is missing."""


@dataclass
class ParentAudit:
    """Compares parents with their workflows. ``AuditActivities`` compares the parents' runs, and
    workflows without a row.
    """

    store: Store
    directory: WorkflowDirectory
    kinds: Mapping[str, ParentKind]
    rules: AuditRules = field(default_factory=AuditRules)
    clock: Clock = utc_now

    def search(self, what: str, *, repair: bool) -> int:
        """Start workflows for the rows of this kind that have no workflow. An audit does the same,
        but less often. Return the number of rows without a workflow. Findings that are not seen
        again are closed. Several workers can call this at the same time. Raises ``LifecycleError``.
        """
        sooner = replace(
            self, rules=replace(self.rules, grace_s=min(self.rules.grace_s, OVERDUE_S))
        )
        began = self.clock()
        lost = 0
        page = AuditPage(repair, what=what)
        while True:
            part = sooner._compare(page, LOST)
            lost += sum(part.found.values())
            if part.next is None:
                self.store.findings.forget_findings([str(kind) for kind in LOST], began, what)
                return lost
            page = replace(page, after=part.next)

    @activity_method
    def audit_parents(self, page: AuditPage) -> AuditPart:
        """Compare a page of parents (``page.what``) with their workflows, and start a workflow for
        each parent that has none. For graphs, compare the executing steps with the existing runs
        and managers, too.

        Second execution: it finds the workflows that the first execution started. If a workflow is
        woken again, nothing changes.
        """
        with beating():
            return self._compare(page)

    def _compare(
        self, page: AuditPage, only: Sequence[FindingKind] = tuple(FindingKind)
    ) -> AuditPart:
        kind = self.kinds[page.what]
        parents = kind.read(int(page.after or 0), PAGE)
        numbers = [parent.number for parent in parents]
        found = []
        for parent in parents:
            alive()
            judged = self._judged(parent, kind)
            if judged is not None and judged.kind in only:
                found.append(self._lost(judged, parent, kind))
        for step in kind.steps(numbers) if FindingKind.NO_RUN in only else ():
            judged = judge_step(step)
            found.append(FindingRepair(judged, partial(wake_parent, self.directory, judged)))
        settling = Settling(self.store.findings, self.rules, self.clock())
        return settling.settle(found, page, numbers)

    def _lost(self, finding: AuditFinding, parent: LiveParent, kind: ParentKind) -> FindingRepair:
        """Return the finding with its repair, which starts a workflow.

        If no workflow can execute the parent, the parent is ended.
        """

        def begin() -> str:
            self.directory.begin_for(
                kind.order(parent.number, parent.workflow_id), parent.workflow_id
            )
            what = (
                "started as" if finding.kind is FindingKind.NOT_STARTED else "taken over by a new"
            )
            return f"{what} workflow {parent.workflow_id}"

        def end() -> str:
            wake(self.directory, kind.give_up(parent, given_up(finding)))
            return "given up"

        return FindingRepair(finding, begin, still(partial(self._judged, parent, kind), end))

    def _judged(self, parent: LiveParent, kind: ParentKind) -> AuditFinding | None:
        if parent.unreadable is not None:
            return judge_parent(parent, WorkflowState(open=False))
        # Any open execution under this id counts, because an execution that has not claimed the
        # parent yet is about to claim it.
        finding = judge_parent(parent, self.directory.state(parent.workflow_id))
        if finding is None:
            return None
        # The parent may have ended or been resumed between the two reads.
        now = next(iter(kind.read(parent.number - 1, 1)), None)
        return finding if now == parent else None


def wake_parent(directory: WorkflowDirectory, finding: AuditFinding) -> str:
    """Make the manager or graph of the finding read its rows again.

    Return a sentence for the report.
    """
    workflow_id = finding.workflow_id or ""
    if not directory.wake(workflow_id):
        raise TemporalUnavailable(f"no workflow {workflow_id!r} is open")
    return f"its {workflow_id.partition('/')[0]} was woken"


def source(name: str, what: str, *more: FindingKind) -> Source:
    """Return the source with the parents of one kind."""
    return name, ParentAudit.audit_parents, what, (*LOST, *more)
