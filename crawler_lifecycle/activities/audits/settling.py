"""One page of an audit: keep what was found, repair what is due, and say what became of each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from crawler_lifecycle.activities import meters
from crawler_lifecycle.domain.audits.audit import (
    AuditFinding,
    AuditRules,
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
from crawler_lifecycle.domain.errors import LifecycleError

from .ending import Mend

if TYPE_CHECKING:
    from crawler_lifecycle.store.audits.findings import FindingStore


log = logging.getLogger(__name__)

PAGE = 200
#: What ends one that was taken over in vain too often.
EndOf = Callable[[AuditFinding], Mend]


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Input of the comparing activities: one page of one source. ``after`` is where it begins."""

    repair: bool = False
    after: str | None = None
    unknown: Unknown = Unknown.LEAVE


@dataclass(frozen=True, slots=True)
class AuditPart:
    """What one page showed. ``next`` is where the following page begins, ``None`` at the end."""

    looked: int = 0
    found: dict[str, int] = field(default_factory=dict)
    repaired: dict[str, int] = field(default_factory=dict)
    findings: list[Reported] = field(default_factory=list)
    next: str | None = None
    noted_at: datetime | None = None
    """Before what was found came on record, by the clock that gives findings their times."""


@dataclass(frozen=True, slots=True)
class Settling:
    """What becomes of findings, at one moment."""

    store: FindingStore
    rules: AuditRules
    now: datetime

    def settle(
        self,
        findings: Iterable[AuditFinding],
        page: AuditPage,
        looked: int,
        mend_of: Callable[[AuditFinding], Mend],
        prepare: Callable[[Sequence[AuditFinding]], None] | None = None,
        end_of: EndOf | None = None,
    ) -> AuditPart:
        """Keep the findings, repair those that are due or that a person spoke about, and say what became of each.

        ``end_of`` is what ends one that was taken over in vain too often.
        """
        worth = [finding for finding in findings if reportable(finding, self.now, self.rules)]
        noted = self.store.note_findings(worth) if worth else {}
        noted |= {f.subject: in_a_row(f, noted[f.subject]) for f in worth}
        wanted = {f.subject for f in worth if page.repair and due(f, noted[f.subject], self.now, self.rules)}
        if page.unknown is not Unknown.LEAVE:
            wanted |= {f.subject for f in worth if f.unknown}
        if prepare is not None and wanted:
            prepare([finding for finding in worth if finding.subject in wanted])
        found: dict[str, int] = {}
        repaired: dict[str, int] = {}
        told = []
        for finding in worth:
            on_record = noted[finding.subject]
            if on_record.settled:
                continue
            mend, tries = None, on_record.tries
            if finding.subject in wanted and end_of is not None and is_hopeless(finding, on_record):
                mend, tries = end_of(finding), 0
            elif finding.subject in wanted:
                mend, tries = mend_of(finding), tries + (finding.tries_max is not None)
            one = self._tell(finding, on_record, mend, tries)
            told.append(one)
            found[finding.kind] = found.get(finding.kind, 0) + 1
            if one.repaired:
                repaired[finding.kind] = repaired.get(finding.kind, 0) + 1
            meters.count(meters.AUDIT_FINDINGS, kind=str(finding.kind), repaired=str(one.repaired).lower())
            # What searches see every few seconds is told when it is new, and when something is done about it.
            level = logging.WARNING if mend is not None or on_record.first_seen >= self.now else logging.DEBUG
            told_repair = f"; {one.repair}" if one.repair else ""
            log.log(level, "audit: %s%s", finding.detail, told_repair, extra=_about(finding))
        return AuditPart(looked, found, repaired, most_urgent(told), noted_at=self.now)

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
