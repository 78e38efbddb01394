"""Settling of one page of an audit: store the findings, repair the findings that are due, and
report each result. ``end_tasks`` ends tasks that no run owns.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from crawler_lifecycle.activities import meters
from crawler_lifecycle.activities.abreast import Abreast
from crawler_lifecycle.activities.shared import alive
from crawler_lifecycle.domain.audits.audit import (
    FOR_PEOPLE,
    AuditFinding,
    AuditRules,
    ClusterTask,
    FindingKind,
    ReportedFinding,
    StoredFinding,
    UnknownDecision,
    due,
    in_a_row,
    is_hopeless,
    most_urgent,
    ready_at,
    reportable,
)
from crawler_lifecycle.domain.errors import ClusterUnavailable, LifecycleError, NotInThisState
from crawler_lifecycle.ports.cluster import AuditedCluster
from crawler_lifecycle.ports.runs import TaskRef

if TYPE_CHECKING:
    from crawler_lifecycle.store.audits.findings import FindingStore

log = logging.getLogger(__name__)

#: Seconds after the request to end a task without an owner until the task is killed.
STOP_S = 10.0
#: Seconds within which a killed task must disappear. The cluster may have to notify its node first.
KILLED_S = 5.0
_POLL_S = 0.2
#: Further seconds after which the wait for a cluster that does not respond ends.
HANGS_S = 15.0

#: Carries out one repair and returns a description of it. Raises a domain error if the repair
#: fails.
Mend = Callable[[], str]


def still(judge: Callable[[], AuditFinding | None], end: Mend) -> Mend:
    """Return a repair that calls ``end`` only if ``judge`` still returns the finding. Otherwise the
    repair raises ``NotInThisState``. Since the first judgement, a person may have resumed the row,
    or another worker may have ended it. Then ``end`` would take the row away from its new workflow,
    or begin the row again.
    """

    def ended() -> str:
        if judge() is None:
            raise NotInThisState("it has continued or ended since the check")
        return end()

    return ended


def end_tasks(
    cluster: AuditedCluster, tasks: Mapping[str, tuple[ClusterTask, int | None]]
) -> dict[str, str | Exception]:
    """End these tasks, which no run owns, and return the result or error of each.

    ``tasks`` contains each task, with the task id if there is one. All tasks are first asked to
    end, several at a time. A task that has not ended after ``STOP_S`` seconds is killed. The
    absence of the task proves its end.
    """
    refs = {
        name: TaskRef(task_id or task.task_id or 0, task.index, task.attempt, task.uid)
        for name, (task, task_id) in tasks.items()
    }

    def ask(name: str) -> str:
        cluster.stop(tasks[name][0].run, refs[name])
        return "asked to end"

    def end(name: str) -> str:
        task, _ = tasks[name]
        if _gone(cluster, task, until):
            return "asked to end, and it ended"
        cluster.kill(task.run, refs[name])
        if _gone(cluster, task, time.monotonic() + KILLED_S):
            return f"asked to end, and killed after {STOP_S:g} s"
        raise ClusterUnavailable("asked to end and killed, but it still exists")

    hangs: dict[str, str | Exception] = dict.fromkeys(
        tasks, ClusterUnavailable("the cluster took too long to end the task")
    )
    refused = {
        name: result
        for name, result in _abreast(ask, tasks).items()
        if isinstance(result, Exception)
    }
    until = time.monotonic() + STOP_S
    return hangs | refused | _abreast(end, [name for name in tasks if name not in refused])


def _abreast(do: Callable[[str], str], names: Iterable[str]) -> dict[str, str | Exception]:
    """Call ``do`` for each name, and return the results by name.

    A call that hangs has no result.
    """
    found: dict[str, str | Exception] = {}
    for name, result in Abreast(do, slow_s=STOP_S + KILLED_S + HANGS_S).over(names):
        found[name] = result
        alive()
    return found


def _gone(cluster: AuditedCluster, task: ClusterTask, until: float) -> bool:
    """Wait until the task has disappeared or this time is reached. Return whether the task has
    disappeared.
    """
    while any(
        (seen.key, seen.uid) == (task.key, task.uid)
        for seen in cluster.inventory(run_id=task.run_id)
    ):
        alive()
        if time.monotonic() >= until:
            return False
        time.sleep(_POLL_S)
    return True


#: The maximum number of rows in a page.
PAGE = 200


@dataclass(frozen=True, slots=True)
class FindingRepair:
    """A finding and its repair."""

    finding: AuditFinding
    mend: Mend
    end: Mend | None = None
    """Ends the run or parent if its workflows were replaced too often without progress."""


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Input of the activities that compare one page of one source. ``after`` is the last key in the
    previous page.
    """

    repair: bool = False
    after: str | None = None
    unknown: UnknownDecision = UnknownDecision.LEAVE
    what: str = ""
    """The kind of parent that is compared (``LiveParent.what``), or empty for a source with only
    one kind.
    """


@dataclass(frozen=True, slots=True)
class AuditPart:
    """Result of one page. ``next`` is the beginning of the following page, or ``None`` after the
    last page.
    """

    looked: int = 0
    found: dict[str, int] = field(default_factory=dict)
    repaired: dict[str, int] = field(default_factory=dict)
    findings: list[ReportedFinding] = field(default_factory=list)
    next: str | None = None
    noted_at: datetime | None = None
    """The time just before the findings were recorded, by the clock with which findings are
    dated."""


#: A source that audits compare: the name in the report, the activity, the value of
#: ``AuditPage.what``, and the kinds of findings.
Source = tuple[str, Callable[[Any, AuditPage], AuditPart], str, tuple[FindingKind, ...]]


@dataclass(frozen=True, slots=True)
class Settling:
    """Stores, repairs and reports findings, all with the same time."""

    store: FindingStore
    rules: AuditRules
    now: datetime

    def settle(
        self,
        found: Iterable[FindingRepair],
        page: AuditPage,
        keys: Sequence[object],
        prepare: Callable[[Sequence[AuditFinding]], None] | None = None,
    ) -> AuditPart:
        """Store the findings, repair the findings that are due or that a person decided about, and
        report each result. ``keys`` contains the keys of all compared objects. The following page
        begins after the last key.
        """
        by = {
            repair.finding.subject: repair
            for repair in found
            if reportable(repair.finding, self.now, self.rules)
        }
        worth = [repair.finding for repair in by.values()]
        noted = self.store.note_findings(worth) if worth else {}
        noted |= {f.subject: in_a_row(f, noted[f.subject]) for f in worth}
        wanted = {
            f.subject
            for f in worth
            if page.repair and due(f, noted[f.subject], self.now, self.rules)
        }
        if page.unknown is not UnknownDecision.LEAVE:
            wanted |= {f.subject for f in worth if f.unknown}
        if prepare is not None and wanted:
            prepare([finding for finding in worth if finding.subject in wanted])
        counts = Counter[str]()
        repaired = Counter[str]()
        reports = []
        for finding in worth:
            on_record = noted[finding.subject]
            if on_record.settled:
                continue
            mend = None
            tries = on_record.tries
            end = by[finding.subject].end
            if finding.subject in wanted and end is not None and is_hopeless(finding, on_record):
                mend = end
                tries = 0
            elif finding.subject in wanted:
                mend, tries = by[finding.subject].mend, tries + (finding.tries_max is not None)
            one = self._report(finding, on_record, mend, tries)
            reports.append(one)
            counts[finding.kind] += 1
            repaired[finding.kind] += one.repaired
            meters.count(
                meters.AUDIT_FINDINGS, kind=str(finding.kind), repaired=str(one.repaired).lower()
            )
            # A search sees the same finding every few seconds, so a finding is logged only if it is
            # new or handled.
            level = (
                logging.WARNING
                if mend is not None or on_record.first_seen >= self.now
                else logging.DEBUG
            )
            repair = f"; {one.repair}" if one.repair else ""
            about = {
                "run_id": finding.run_id,
                "task_id": finding.task_id,
                "finding": str(finding.kind),
            }
            extra = {name: value for name, value in about.items() if value is not None}
            log.log(level, "audit: %s%s", finding.detail, repair, extra=extra)
        following = str(keys[-1]) if len(keys) >= PAGE else None
        return AuditPart(
            len(keys), dict(counts), dict(+repaired), most_urgent(reports), following, self.now
        )

    def _report(
        self, finding: AuditFinding, noted: StoredFinding, mend: Mend | None, tries: int
    ) -> ReportedFinding:
        text = finding.spared
        done = False
        if mend is not None:
            try:
                text = mend()
                done = True
            except LifecycleError as error:
                text = f"could not be repaired: {error}"
            self.store.note_repair(
                finding.subject, text, done=done, tries=tries if done else noted.tries
            )
        person = finding.kind in FOR_PEOPLE or finding.spared is not None
        left = None if done or person else ready_at(finding, noted, self.rules)
        return ReportedFinding(
            finding.kind,
            finding.detail,
            finding.run_id,
            finding.task_id,
            finding.workflow_id,
            text,
            done,
            left,
        )
