"""One page of an audit: keep what was found, repair what is due, and say what became of each.

``AuditEnding`` ends tasks that no run owns.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from crawler_lifecycle.activities import meters
from crawler_lifecycle.activities.abreast import Abreast
from crawler_lifecycle.activities.shared import alive
from crawler_lifecycle.domain.audits.audit import (
    AuditFinding,
    AuditRules,
    ClusterTask,
    Noted,
    Reported,
    Unknown,
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

#: Between asking a task that nobody owns to end and ending it by force, in seconds.
STOP_S = 10.0
#: What a killed one gets to be gone: a cluster may have to tell its node first.
KILLED_S = 5.0
_POLL_S = 0.2
#: On top of both: what a cluster that does not answer gets.
HANGS_S = 15.0

#: Carries out one repair; what was done, in words. Raises an error of the domain when it could not.
Mend = Callable[[], str]


def still(judge: Callable[[], AuditFinding | None], end: Mend) -> Mend:
    """The same end, of what is found so once more: since it was judged a person may have resumed it, or another worker
    ended it, and to end that again would take it from its new workflow, or begin it anew."""

    def ended() -> str:
        if judge() is None:
            raise NotInThisState("it went on, or ended, meanwhile")
        return end()

    return ended


class AuditEnding:
    """Ends tasks that nobody owns: all are asked first, and then each has the rest of the same time."""

    def __init__(self, cluster: AuditedCluster, tasks: Mapping[str, tuple[AuditFinding, ClusterTask]]) -> None:
        self._cluster = cluster
        self._tasks = tasks
        self._until = 0.0
        self._asked: list[AuditFinding] = []
        self._refused: dict[str, Exception] = {}
        self._became: dict[str, str | Exception] | None = None

    def ask(self, findings: Sequence[AuditFinding]) -> None:
        """Ask all of these to end, some at once."""
        told = self._abreast(self._ask, findings)
        self._refused = {subject: what for subject, what in told.items() if isinstance(what, Exception)}
        self._asked = [finding for finding in findings if finding.subject not in self._refused]
        self._until, self._became = time.monotonic() + STOP_S, None

    def of(self, finding: AuditFinding) -> Mend:
        """A mend that ends this one; the first that is called sees to the ends of all, some at once."""

        def end() -> str:
            if self._became is None:
                self._became = {**self._refused, **self._abreast(self._end, self._asked)}
            became = self._became.get(finding.subject, ClusterUnavailable("the cluster took too long to end it"))
            if isinstance(became, Exception):
                raise became
            return became

        return end

    @staticmethod
    def _abreast(do: Callable[[AuditFinding], str], findings: Sequence[AuditFinding]) -> dict[str, str | Exception]:
        """Results for each finding; one that hangs has none."""
        crowd = Abreast(do, slow_s=STOP_S + KILLED_S + HANGS_S)
        found: dict[str, str | Exception] = {}
        for finding, told in crowd.over(findings):
            found[finding.subject] = told
            alive()
        return found

    def _ask(self, finding: AuditFinding) -> str:
        task, ref = self._ref(finding)
        self._cluster.stop(task.run, ref)
        return "asked to end"

    def _ref(self, finding: AuditFinding) -> tuple[ClusterTask, TaskRef]:
        _, task = self._tasks[finding.subject]
        return task, TaskRef(finding.task_id or task.task_id or 0, task.index, task.attempt, task.uid)

    def _end(self, finding: AuditFinding) -> str:
        """Wait for its end, then end it by force; proved by its absence."""
        task, ref = self._ref(finding)
        while self._there(task):
            alive()
            if time.monotonic() >= self._until:
                self._kill(task, ref)
                return f"asked to end, and killed after {STOP_S:g} s"
            time.sleep(_POLL_S)
        return "asked to end, and it ended"

    def _kill(self, task: ClusterTask, ref: TaskRef) -> None:
        self._cluster.kill(task.run, ref)
        killed = time.monotonic()
        while self._there(task):
            alive()
            if time.monotonic() - killed >= KILLED_S:
                raise ClusterUnavailable("asked to end and killed, and it is still there")
            time.sleep(_POLL_S)

    def _there(self, task: ClusterTask) -> bool:
        return any((t.key, t.uid) == (task.key, task.uid) for t in self._cluster.inventory(run_id=task.run_id))


PAGE = 200


@dataclass(frozen=True, slots=True)
class Found:
    """A finding, and what repairs it."""

    finding: AuditFinding
    mend: Mend
    end: Mend | None = None
    """What ends it instead, where it was taken over in vain too often."""


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Input of the comparing activities: one page of one source. ``after`` is where it begins."""

    repair: bool = False
    after: str | None = None
    unknown: Unknown = Unknown.LEAVE


@dataclass(frozen=True, slots=True)
class AuditPart:
    """Result of one page. ``next`` is where the following page begins, ``None`` at the end."""

    looked: int = 0
    found: dict[str, int] = field(default_factory=dict)
    repaired: dict[str, int] = field(default_factory=dict)
    findings: list[Reported] = field(default_factory=list)
    next: str | None = None
    noted_at: datetime | None = None
    """Before what was found came on record, by the clock that gives findings their times."""


@dataclass(frozen=True, slots=True)
class Settling:
    """Settle findings at one moment."""

    store: FindingStore
    rules: AuditRules
    now: datetime

    def settle(
        self,
        found: Iterable[Found],
        page: AuditPage,
        looked: int,
        prepare: Callable[[Sequence[AuditFinding]], None] | None = None,
    ) -> AuditPart:
        """Keep the findings, repair those that are due or that a person spoke about, and say what became of each."""
        by = {one.finding.subject: one for one in found if reportable(one.finding, self.now, self.rules)}
        worth = [one.finding for one in by.values()]
        noted = self.store.note_findings(worth) if worth else {}
        noted |= {f.subject: in_a_row(f, noted[f.subject]) for f in worth}
        wanted = {f.subject for f in worth if page.repair and due(f, noted[f.subject], self.now, self.rules)}
        if page.unknown is not Unknown.LEAVE:
            wanted |= {f.subject for f in worth if f.unknown}
        if prepare is not None and wanted:
            prepare([finding for finding in worth if finding.subject in wanted])
        counts, repaired = Counter[str](), Counter[str]()
        told = []
        for finding in worth:
            on_record = noted[finding.subject]
            if on_record.settled:
                continue
            mend, tries, end = None, on_record.tries, by[finding.subject].end
            if finding.subject in wanted and end is not None and is_hopeless(finding, on_record):
                mend, tries = end, 0
            elif finding.subject in wanted:
                mend, tries = by[finding.subject].mend, tries + (finding.tries_max is not None)
            one = self._tell(finding, on_record, mend, tries)
            told.append(one)
            counts[finding.kind] += 1
            repaired[finding.kind] += one.repaired
            meters.count(meters.AUDIT_FINDINGS, kind=str(finding.kind), repaired=str(one.repaired).lower())
            # What searches see every few seconds is told when it is new, and when something is done about it.
            level = logging.WARNING if mend is not None or on_record.first_seen >= self.now else logging.DEBUG
            told_repair = f"; {one.repair}" if one.repair else ""
            log.log(level, "audit: %s%s", finding.detail, told_repair, extra=_about(finding))
        return AuditPart(looked, dict(counts), dict(+repaired), most_urgent(told), noted_at=self.now)

    def _tell(self, finding: AuditFinding, noted: Noted, mend: Mend | None, tries: int) -> Reported:
        words, done = finding.spared, False
        if mend is not None:
            try:
                words, done = mend(), True
            except LifecycleError as error:
                words = f"could not be repaired: {error}"
            self.store.note_repair(finding.subject, words, done=done, tries=tries if done else noted.tries)
        person = finding.kind.repair is None or finding.spared is not None
        left = None if done or person else ready_at(finding, noted, self.rules)
        return Reported(
            finding.kind, finding.detail, finding.run_id, finding.task_id, finding.workflow_id, words, done, left
        )


def _about(finding: AuditFinding) -> dict[str, object]:
    known = {"run_id": finding.run_id, "task_id": finding.task_id, "finding": str(finding.kind)}
    return {name: value for name, value in known.items() if value is not None}
