"""Conditions of a crawler, derived from its last runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import groupby, takewhile
from operator import attrgetter
from typing import NamedTuple

from crawler_lifecycle.domain.conditions import IncidentCondition, fingerprint
from crawler_lifecycle.domain.ended_by import EndedBy
from crawler_lifecycle.domain.results import EARLIER, brought_less, is_good
from crawler_lifecycle.domain.run import COVERAGE, EMPTY, NO_ITEMS, UNMET_OUTCOMES, RunStatus

#: A crawler fails if, since its last good run, this many of its runs have failed with one cause, or
#: one more than this with different causes.
FAILS = 2
#: A crawler is flaky if this many of this many runs failed, with good runs among them and among the
#: newest ``FAILS``.
FLAKY_FAILS = 3
FLAKY_RUNS = 10


class JudgedRun(NamedTuple):
    """An ended run of the crawler."""

    run_id: int
    status: str
    outcome: str | None
    ended_by: str | None
    lacks: str | None
    cause: str | None
    ended_at: datetime
    items: int | None = None
    work_hash: str | None = None

    @property
    def is_judged(self) -> bool:
        """True if its result says something about its crawler, because neither a person nor a limit
        stopped it."""
        return self.ended_by not in (EndedBy.PERSON, EndedBy.LIMIT)

    @property
    def kind(self) -> str:
        """The kind of its problem, if it is not good."""
        if self.lacks in (EMPTY, COVERAGE, NO_ITEMS):
            return "crawler_empty"
        return "crawler_less" if self.lacks in UNMET_OUTCOMES else "crawler_failing"


def is_well(runs: Sequence[JudgedRun]) -> bool:
    """Return whether the newest result of a crawler is good. Only then is an incident about it
    over: its cause may also be missing because newer runs displaced it from ``runs``.

    ``runs`` contains the last ended runs, newest first.
    """
    judged = [run for run in runs if run.is_judged]
    return bool(judged) and is_good(judged[0])


def crawler_conditions(
    project: str, crawler: str, runs: Sequence[JudgedRun]
) -> list[IncidentCondition]:
    """Return what is wrong with a crawler. ``runs`` contains the last ended runs, newest first."""
    judged = [run for run in runs if run.is_judged]
    streak = list(takewhile(lambda run: not is_good(run), judged))
    groups: dict[tuple[str, str], list[JudgedRun]] = {}
    for run in [*streak, *_unmet_since(judged[len(streak) : EARLIER])]:
        cause = fingerprint(crawler, run.lacks or run.outcome, None if run.lacks else run.cause)
        groups.setdefault((run.kind, cause), []).append(run)
    found = [
        _condition(kind, project, crawler, cause, group)
        for (kind, cause), group in groups.items()
        if len(group) >= FAILS or group[0].lacks in UNMET_OUTCOMES
    ]
    once = [run for run, *more in groups.values() if not more and run.lacks not in UNMET_OUTCOMES]
    if len(once) > FAILS and all(condition.kind != "crawler_failing" for condition in found):
        found.append(_condition("crawler_failing", project, crawler, "", once))
    return [*found, *_less(project, crawler, runs), *_flaky(project, crawler, judged[:FLAKY_RUNS])]


def _unmet_since(runs: Sequence[JudgedRun]) -> Iterator[JudgedRun]:
    """Yield the runs that did not meet their expectations and are not followed by a good run with
    the same arguments, because a good run says nothing about other arguments.

    Runs of builds that did not record their arguments are left out.
    """
    good: set[str | None] = {None}
    for run in runs:
        if is_good(run):
            good.add(run.work_hash)
        elif run.lacks in UNMET_OUTCOMES and run.work_hash not in good:
            yield run


def _less(project: str, crawler: str, runs: Sequence[JudgedRun]) -> Iterator[IncidentCondition]:
    """Yield the condition that the newest completed runs with some arguments produced less than
    usual, although they met all expectations."""
    by_number = sorted(runs, key=attrgetter("run_id"), reverse=True)
    causes = brought_less(by_number)
    less = [
        run._replace(cause=causes[run.run_id])
        for run in by_number
        if run.run_id in causes and is_good(run)
    ]
    if less:
        yield _condition("crawler_less", project, crawler, "", less)


def _flaky(project: str, crawler: str, runs: Sequence[JudgedRun]) -> Iterator[IncidentCondition]:
    failed = [run for run in runs if run.status == RunStatus.FAILED]
    # Many consecutive failures do not make a crawler flaky once they are over.
    turns = groupby(run.status == RunStatus.FAILED for run in runs)
    again = sum(failing for failing, _ in turns) > 1
    if again and len(failed) >= FLAKY_FAILS and any(is_good(run) for run in runs[:FAILS]):
        yield _condition("crawler_flaky", project, crawler, "", failed)


def _condition(
    kind: str, project: str, crawler: str, cause: str, runs: Sequence[JudgedRun]
) -> IncidentCondition:
    newest = runs[0]
    oldest = runs[-1]
    times = tuple(run.ended_at for run in runs)
    fix = f"see why run {newest.run_id} ended like this, repair the crawler, and start it again"
    return IncidentCondition(
        kind,
        f"crawlers/{crawler}",
        project,
        newest.cause or newest.outcome or newest.status,
        oldest.ended_at,
        newest.ended_at,
        cause,
        len(runs),
        times,
        oldest.run_id,
        newest.run_id,
        fix,
    )
