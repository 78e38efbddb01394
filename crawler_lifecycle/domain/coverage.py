"""Coverage: the share of a run's items that fill each field, and the comparison with earlier runs of its crawler."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from functools import lru_cache
from itertools import islice

from .bounds import Bound, check_number, check_text, count, refusal, travels
from .ended_by import EndedBy
from .quick import quick_dataclass
from .run import COVERAGE, RunStatus, Verdict

#: The most fields of a task or a run, and of characters of a field's name. ``runner/feeds.py`` has the same limits.
FIELDS_MAX, FIELD_NAME_MAX = 30, 60
#: The most characters of a note. The first note of a task is the run's.
NOTE_MAX = 500
#: The most field names that are summed over the tasks of a run.
NAMES_MAX = 1_000
#: A run is compared with at most ``RUNS`` completed runs, and only if ``RUNS_MIN`` of them know the field.
RUNS, RUNS_MIN = 10, 3
#: The most fields that a cause describes.
SAID_MAX = 5
_PART = Bound(0, 1, above=True, cure=": the required part of the usual share")


@quick_dataclass(frozen=True, slots=True)
class Coverage:
    """The share (0 to 1) of items that fill each field, and the number of all items that can be read."""

    items: int
    """At least 1, or 0 with a note."""
    shares: Mapping[str, float]
    note: str | None = None
    """A sentence about items that were counted or left in files, and that cannot be read."""

    @classmethod
    def of(cls, said: object) -> Coverage | None:
        """Read a runner's report or the value of a row. Leave out impossible fields. ``None``: it reports no items."""
        items, shares = (said.get("items"), said.get("shares")) if isinstance(said, Mapping) else (None, None)
        items = count(items)
        note = said.get("note") if isinstance(said, Mapping) else None
        note = note[:NOTE_MAX] if isinstance(note, str) and note and travels(note, len(note)) else None
        if items is None or not (items or note) or not isinstance(shares, Mapping):
            return None
        good = (
            (name, share)
            for name, share in shares.items()
            if isinstance(name, str)
            and len(name) <= FIELD_NAME_MAX
            and named((name,))
            and type(share) in (int, float)
            and 0 <= share <= 1  # false for NaN
        )
        return cls(items, dict(islice(good, FIELDS_MAX)), note)

    def share(self, name: str) -> float | None:
        """Return the share of items that fill a field. ``None``: unknown, only the most filled fields are kept."""
        return self.shares.get(name, None if len(self.shares) >= FIELDS_MAX else 0.0)


@lru_cache(NAMES_MAX)  # all tasks of a run have the same field names
def named(fields: tuple[str, ...]) -> bool:
    """Return whether these may be the names of fields."""
    return all(travels(name, FIELD_NAME_MAX) for name in fields)


class OnViolation(StrEnum):
    """The consequence for a run whose items fill a field less than is expected."""

    ATTENTION = "attention"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Expected:
    """The required part of the usual share for each field. ``fail``: a run below it fails."""

    parts: Mapping[str, float] = field(default_factory=dict)
    fail: bool = False

    def check(self) -> None:
        """Raise ``InvalidRequest`` for too many fields, an invalid field name or an invalid part."""
        if len(self.parts) > FIELDS_MAX:
            raise refusal("expect", f"{len(self.parts)} fields", f"name at most {FIELDS_MAX}")
        for name, part in self.parts.items():
            check_text("expect", name, FIELD_NAME_MAX, needed=True)
            check_number(f"expect.{name}", part, _PART)


def summed(tasks: Iterable[Coverage], first: Iterable[str] = ()) -> Coverage | None:
    """Return the coverage of all tasks together, weighted by their items.

    The result has at most ``FIELDS_MAX`` fields: the fields in ``first``, then the most filled fields. ``None``: no
    task has a coverage.
    """
    items, wanted = 0, frozenset(first)
    filled: dict[str, float] = {}
    note = None
    for one in tasks:
        items += one.items
        note = note or one.note
        for name, share in one.shares.items():
            if name in filled or name in wanted or len(filled) < NAMES_MAX:
                filled[name] = filled.get(name, 0.0) + share * one.items
    most = sorted(filled, key=lambda name: (name not in wanted, -filled[name], name))[:FIELDS_MAX]
    shares = {name: min(1.0, round(filled[name] / items, 4)) for name in most if items}
    return Coverage(items, shares, note) if items or note else None


def judged(verdict: Verdict, coverage: Coverage | None, before: Sequence[Coverage], expected: Expected) -> Verdict:
    """Return the verdict of a run after the check of its coverage. Only a COMPLETED verdict can change.

    ``before``: the coverages of its crawler's last ``RUNS`` completed runs. A run without a coverage is left out.
    """
    if verdict.status is not RunStatus.COMPLETED or coverage is None or not coverage.items:
        return verdict
    before = [one for one in before if one.items]
    less = list(_violations(coverage, before, expected.parts))
    if not (found := less + list(_unknown(coverage, before, expected.parts))):
        return verdict
    said = found[:SAID_MAX] + ([f"and {len(found) - SAID_MAX} more fields"] if len(found) > SAID_MAX else [])
    if verdict.outcome == "partial":
        said.append(verdict.cause)
    status = RunStatus.FAILED if expected.fail and less else RunStatus.COMPLETED
    return Verdict(status, COVERAGE, "; ".join(said), EndedBy.SERVICE)


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
        usual = (known[len(known) // 2] + known[~len(known) // 2]) / 2  # the median of the known shares
        least = part * usual
        if least - share > 1e-9:  # a tolerance, because shares are rounded
            digits = next((n for n in range(3) if round(100 * share, n) < round(100 * least, n)), 3)
            has, had, needs = (f"{100 * one:.{digits}f} %" for one in (share, usual, least))
            yield (
                f"{name}: {has} of {coverage.items:,} items have it, the usual share is {had} "
                f"(median of {len(known)} runs), expected at least {needs}"
            )
