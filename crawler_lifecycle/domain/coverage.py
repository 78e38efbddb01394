"""Fields that items fill: what a crawl tells of them, and whether a run brought less than its crawler usually does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from functools import lru_cache
from itertools import islice

from .bounds import Bound, check_number, check_text, count, refusal, travels
from .run import COVERAGE, RunStatus, Verdict

#: Fields that are told of a task or a run, and characters of their names: as ``runner/feeds.py`` has it.
FIELDS_MAX, FIELD_NAME_MAX = 30, 60
#: Names that are summed over the tasks of a run.
NAMES_MAX = 1_000
#: Completed runs with which a run is compared, and how many of them are needed.
RUNS, RUNS_MIN = 10, 3
#: Sentences that a cause holds.
SAID_MAX = 5
#: All tasks of a run have the same names.
_travels = lru_cache(4 * NAMES_MAX)(travels)
_PART = Bound(0, 1, above=True, cure=": the part of the usual share that is demanded")


@dataclass(frozen=True, slots=True)
class Coverage:
    """The share of items that fill each field, 0 to 1, and the number of these items, at least 1."""

    items: int
    shares: Mapping[str, float]

    @classmethod
    def of(cls, said: object) -> Coverage | None:
        """Read what a runner says, or a row holds; what cannot be is left out. ``None``: it says nothing of items."""
        items, told = (said.get("items"), said.get("shares")) if isinstance(said, Mapping) else (None, None)
        items = count(items)
        if not items or not isinstance(told, Mapping):
            return None
        good = (
            (name, share)
            for name, share in told.items()
            if isinstance(name, str)
            and len(name) <= FIELD_NAME_MAX
            and _travels(name, FIELD_NAME_MAX)
            and type(share) in (int, float)
            and 0 <= share <= 1  # which no NaN is
        )
        return cls(items, dict(islice(good, FIELDS_MAX)))

    def share(self, name: str) -> float | None:
        """The share of items that fill a field; ``None``: unknown, as other fields took its place."""
        return self.shares.get(name, None if len(self.shares) >= FIELDS_MAX else 0.0)


class OnViolation(StrEnum):
    """The consequence for a run that brought less than is expected."""

    ATTENTION = "attention"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Expected:
    """The part of the usual share that is demanded of each field, and whether less of it fails the run."""

    parts: Mapping[str, float] = field(default_factory=dict)
    fail: bool = False

    def check(self) -> None:
        """Raise ``InvalidRequest`` for what cannot be expected."""
        if len(self.parts) > FIELDS_MAX:
            raise refusal("expect", f"{len(self.parts)} fields", f"name at most {FIELDS_MAX}")
        for name, part in self.parts.items():
            check_text("expect", name, FIELD_NAME_MAX, needed=True)
            check_number(f"expect.{name}", part, _PART)


def summed(told: Iterable[Coverage], first: Iterable[str] = ()) -> Coverage | None:
    """The coverage of all tasks together, each by its items; of too many fields those that most fill, after ``first``.

    ``None`` where no task told any.
    """
    items, wanted = 0, frozenset(first)
    filled: dict[str, float] = {}
    for one in told:
        items += one.items
        for name, share in one.shares.items():
            if name in filled or name in wanted or len(filled) < NAMES_MAX:
                filled[name] = filled.get(name, 0.0) + share * one.items
    most = sorted(filled, key=lambda name: (name not in wanted, -filled[name], name))[:FIELDS_MAX]
    return Coverage(items, {name: min(1.0, round(filled[name] / items, 4)) for name in most}) if items else None


def judged(verdict: Verdict, coverage: Coverage | None, before: Sequence[Coverage], expected: Expected) -> Verdict:
    """The verdict of a run whose fields are looked at too; only a COMPLETED one becomes another.

    ``before``: the coverage of its crawler's last ``RUNS`` completed runs, as far as they have one.
    """
    if verdict.status is not RunStatus.COMPLETED or coverage is None:
        return verdict
    less = list(_violations(coverage, before, expected.parts))
    if not (found := less + list(_unknown(coverage, before, expected.parts))):
        return verdict
    said = found[:SAID_MAX] + ([f"and {len(found) - SAID_MAX} more fields"] if len(found) > SAID_MAX else [])
    if verdict.outcome == "partial":
        said.append(verdict.cause)
    return Verdict(RunStatus.FAILED if expected.fail and less else RunStatus.COMPLETED, COVERAGE, "; ".join(said))


def _unknown(coverage: Coverage, before: Sequence[Coverage], parts: Mapping[str, float]) -> Iterator[str]:
    """Sentences about expected fields that no item had in this run or before: their names may be wrong."""
    for name in parts:
        if coverage.share(name) == 0 and all(one.share(name) == 0 for one in before):
            near = get_close_matches(name, [other for other, share in coverage.shares.items() if share], 1)
            cure = f": is {near[0]} meant?" if near else ", or leave it out"
            yield f"{name}: no item of this run or {len(before)} before has it; correct expect in the catalogue{cure}"


def _violations(coverage: Coverage, before: Sequence[Coverage], parts: Mapping[str, float]) -> Iterator[str]:
    for name, part in parts.items():
        share = coverage.share(name)
        known = [theirs for one in before if (theirs := one.share(name)) is not None]
        if share is None or len(known) < RUNS_MIN:
            continue
        known.sort()
        usual = (known[len(known) // 2] + known[~len(known) // 2]) / 2  # their median
        least = part * usual
        if least - share > 1e-9:  # shares are rounded
            digits = next((n for n in range(3) if round(100 * share, n) < round(100 * least, n)), 3)
            has, had, needs = (f"{100 * one:.{digits}f} %" for one in (share, usual, least))
            yield (
                f"{name}: {has} of {coverage.items:,} items have it, usual are {had} "
                f"(median of {len(known)} runs), expected at least {needs}"
            )
