"""The judgement of a new version: its ended runs are compared with earlier runs of their crawlers.

The limits are those of ``domain.coverage`` and ``domain.results``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from statistics import median

from crawler_lifecycle.domain.coverage import (
    GOOD_RUNS,
    RUNS,
    Brought,
    Coverage,
    ExpectedCoverage,
    too_little,
    violations,
)
from crawler_lifecycle.domain.results import LESS, RUNS_MIN, is_good, run_seconds
from crawler_lifecycle.domain.run import UNMET_OUTCOMES, RunStatus

from .canary import CanaryRow, Judge

#: A field is compared if at least this share of the items usually has it. The shares of rarer
#: fields differ from run to run; the entry's ``expect`` can name them.
USUAL_MIN = 0.5
#: A run is slow if it takes this many times the usual number of seconds, and more than a minute.
SLOW = 2
SLOW_MIN_S = 60.0
#: The maximum number of faults that the result names.
FAULTS_MAX = 5
#: Less than ``LESS`` of the usual number of items is a fault. No items are allowed where that is
#: usual.
_ITEMS = ExpectedCoverage(numbers={"items": {"drop": 1 - LESS, "min": 0}})

Crawler = tuple[str, str]
"""The project and the name of a crawler."""


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """An ended run that no person stopped."""

    run_id: int
    project: str
    crawler: str
    status: str
    outcome: str | None
    lacks: str | None
    cause: str | None
    pages: int
    items: int
    coverage: Coverage | None
    started_at: datetime | None
    ended_at: datetime | None

    @property
    def of(self) -> Crawler:
        """Its crawler."""
        return self.project, self.crawler

    @property
    def is_unmet(self) -> bool:
        """True if it did not meet what the crawler's entry expects."""
        return self.lacks in UNMET_OUTCOMES


@dataclass(frozen=True, slots=True)
class RunFault:
    """A reason why a run is bad."""

    run: ComparedRun
    name: str
    """The field or the figure."""
    text: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """The judgement of a new version. ``good`` is ``None`` while more runs are needed."""

    good: bool | None
    counted: int
    bad: int
    faults: str
    """The faults, or an empty string."""

    def words(self, row: CanaryRow) -> str:
        """Return the sentence about the end of a canary."""
        if not self.good:
            return (
                f"{row.name} {row.new_version} was rolled back to {row.old_version}: {self.faults}"
            )
        why = f"{self.bad} of {self.counted} runs were bad"
        return f"{row.name} {row.new_version} replaced {row.old_version}: {why}"


def judgement(
    runs: Sequence[ComparedRun],
    old: Mapping[Crawler, Sequence[ComparedRun]],
    judge: Collection[Judge],
    needed: int,
) -> Judgement:
    """Return the judgement of a new version after ``needed`` of its runs.

    ``old`` contains the last runs of each crawler with other versions, newest first. The new
    version is bad if half or more of its runs are bad, or if no run of a crawler meets what its
    entry expects. That half of them are bad can be certain before all runs have ended.
    """
    counted = runs[:needed]
    found = [fault for run in counted for fault in faults(run, old[run.of], judge)]
    bad = len({fault.run.run_id for fault in found})
    good = None
    if 2 * bad >= needed:
        good = False
    elif len(counted) == needed:
        met = {run.of for run in counted if not run.is_unmet}
        good = all(run.of in met for run in counted)
    return Judgement(good, len(counted), bad, _result(found))


def faults(
    run: ComparedRun, old: Sequence[ComparedRun], judge: Collection[Judge]
) -> Iterator[RunFault]:
    """Yield the reasons why a run is bad. ``old`` contains earlier runs of its crawler, newest
    first.
    """
    cause = run.cause or run.outcome or run.status
    if run.is_unmet:
        yield RunFault(run, "expect", cause)
    elif run.status != RunStatus.COMPLETED:
        before = old[:RUNS]
        if Judge.ERRORS in judge and 2 * sum(map(is_good, before)) >= len(before):
            yield RunFault(run, "errors", f"it failed: {cause}")
    else:
        good = [before for before in old if is_good(before)][:GOOD_RUNS]
        if len(good) >= RUNS_MIN and Judge.ITEMS in judge:
            yield from _less(run, good)
        if len(good) >= RUNS_MIN and Judge.DURATION in judge:
            yield from _slow(run, good)
        if Judge.COVERAGE in judge:
            yield from _emptier(run, old)


def _less(run: ComparedRun, good: Sequence[ComparedRun]) -> Iterator[RunFault]:
    brought = [Brought(before.pages, before.items) for before in good]
    for _, text in too_little(Brought(run.pages, run.items), _ITEMS, brought):
        yield RunFault(run, "items", text)


def _slow(run: ComparedRun, good: Sequence[ComparedRun]) -> Iterator[RunFault]:
    took = run_seconds(run) or 0.0
    usual = median(run_seconds(before) or 0.0 for before in good)
    if took > max(SLOW * usual, SLOW_MIN_S):
        yield RunFault(run, "duration", f"it took {took:,.0f} s, usually {usual:,.0f} s")


def _emptier(run: ComparedRun, old: Sequence[ComparedRun]) -> Iterator[RunFault]:
    """Yield the fields that fewer items have than usual, of those that items usually have."""
    completed = [before for before in old if before.status == RunStatus.COMPLETED]
    known = [before.coverage for before in completed if before.coverage is not None]
    shares = [coverage for coverage in known if coverage.items][:RUNS]
    if run.coverage is None or not run.coverage.items:
        return
    names = {name: None for coverage in shares for name in coverage.shares}
    usual = {name: median(coverage.share(name) or 0.0 for coverage in shares) for name in names}
    parts = {name: LESS for name, share in usual.items() if share >= USUAL_MIN}
    for text in violations(run.coverage, shares, parts):
        yield RunFault(run, text.partition(":")[0], text)


def _result(found: Iterable[RunFault]) -> str:
    """Return the faults of each crawler, each once, with the runs that have it."""

    def kind(fault: RunFault) -> tuple[str, str]:
        return fault.run.crawler, fault.name

    said = []
    for (crawler, _), alike in groupby(sorted(found, key=kind), kind):
        same = list(alike)
        runs = ", ".join(str(fault.run.run_id) for fault in same)
        said.append(f"{crawler}: {same[0].text} ({'run' if len(same) == 1 else 'runs'} {runs})")
    more = [f"and {len(said) - FAULTS_MAX} more"] if len(said) > FAULTS_MAX else []
    return "; ".join([*said[:FAULTS_MAX], *more])
