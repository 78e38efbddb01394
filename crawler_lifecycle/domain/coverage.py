"""The judgement of a run's items, pages, errors and fields by a comparison with earlier runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from itertools import islice
from statistics import median
from typing import Any

from .bounds import ID_MAX, Bound, check_number, check_text, count, refusal, travels
from .ended_by import EndedBy
from .quick import quick_dataclass
from .run import COVERAGE, DROPPED, EMPTY, NO_ITEMS, UNMET, UNMET_OUTCOMES, RunStatus, Verdict
from .unknown import similar

#: The maximum number of fields of a task or a run, and the maximum length of a field's name.
#: ``runner/feeds.py`` has the same limits.
FIELDS_MAX = 30
FIELD_NAME_MAX = 60
#: The maximum length of a note. The first note of a task becomes the run's note.
NOTE_MAX = 500
#: The maximum number of field names that are summed over the tasks of a run.
NAMES_MAX = 1_000
#: A field is compared with at most ``RUNS`` completed runs, and only if ``RUNS_MIN`` of these runs
#: have the field.
RUNS = 10
RUNS_MIN = 3
#: Counters are compared with the last ``GOOD_RUNS`` successful runs that have items, among the last
#: ``GOOD_AMONG`` completed runs. Without the second limit, every run of a crawler that never
#: produces items would be read.
GOOD_RUNS = 5
GOOD_AMONG = 1_000
#: The maximum number of fields that a cause describes.
SAID_MAX = 5
_PART = Bound(0, 1, above=True, fix=": the required fraction of the usual share")
_LEAST = Bound(0, ID_MAX, whole=True, fix=": the minimum number")
_DROP = Bound(0, 1, fix=": the fraction of the usual number that may be missing")
_SHARE = Bound(0, 1, fix=": the maximum number of errors per page")
#: Counter -> its rules. An item field with the same name as a counter is given below ``fields``.
_RULES: Mapping[str, Mapping[str, Bound]] = {
    "items": {"min": _LEAST, "drop": _DROP},
    "pages": {"min": _LEAST, "drop": _DROP},
    "errors": {"max_share": _SHARE},
}


@quick_dataclass(frozen=True, slots=True)
class Coverage:
    """The share (0 to 1) of items that have a value in each field, and the number of all readable
    items.
    """

    items: int
    """The number of readable items: at least 1, or 0 if there is a note."""
    shares: Mapping[str, float]
    note: str | None = None
    """Sentences about items that were only counted, left in files or unreadable, and about files
    that were not kept.
    """

    @classmethod
    def of(cls, said: object) -> Coverage | None:
        """Read a runner's report or the value in a row, omitting impossible fields. Return ``None``
        if the report contains no items.
        """
        if not isinstance(said, Mapping):
            return None
        items = count(said.get("items"))
        shares = said.get("shares")
        note = said.get("note")
        note = (
            note[:NOTE_MAX] if isinstance(note, str) and note and travels(note, len(note)) else None
        )
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
        """Return the share of items with a value in this field. Return ``None`` if the share is
        unknown, because only the fields with the most values are kept.
        """
        return self.shares.get(name, None if len(self.shares) >= FIELDS_MAX else 0.0)


@lru_cache(NAMES_MAX)  # all tasks of a run have the same field names
def named(fields: tuple[str, ...]) -> bool:
    """Return whether these are valid names of fields."""
    return all(travels(name, FIELD_NAME_MAX) for name in fields)


class OnViolation(StrEnum):
    """The consequence for a run that produced less than expected."""

    ATTENTION = "attention"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Brought:
    """The counters of a run, and its coverage."""

    pages: int = 0
    items: int = 0
    errors: int = 0
    coverage: Coverage | None = None


@dataclass(frozen=True, slots=True)
class ExpectedCoverage:
    """The requirements of a run. ``parts`` contains the required fraction of the usual share for
    each field.
    """

    parts: Mapping[str, float] = field(default_factory=dict)
    fail: bool = False
    """True if a run that produces less than expected becomes FAILED."""
    numbers: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """The rules of each counter, by the names in ``_RULES``."""
    watched: bool = False
    """True if a run without items needs attention when earlier runs had items, or when the run
    itself had only errors.
    """

    @classmethod
    def of(
        cls, written: Mapping[str, Any], *, fail: bool = False, watched: bool = False
    ) -> ExpectedCoverage:
        """Read the key ``expect`` in a crawler's entry without checking its value. A plain number
        is a minimum.
        """
        parts = dict[str, Any]()
        numbers = dict[str, Any]()
        for name, value in written.items():
            if name in _RULES:
                numbers[name] = value if isinstance(value, Mapping) else {"min": value}
            elif name == "fields" and isinstance(value, Mapping):
                parts |= value
            else:
                parts[name] = value
        return cls(parts, fail, numbers, watched)

    def check(self) -> None:
        """Raise ``InvalidRequest`` for an unknown rule, too many fields, or an invalid name or
        number.
        """
        for counter, given in self.numbers.items():
            rules = _RULES[counter]
            if not given or not given.keys() <= rules.keys():
                raise refusal(
                    f"expect.{counter}",
                    given,
                    f"give {{{', '.join(rules)}}}; a field of items called {counter} is named "
                    "below fields",
                )
            for rule, number in given.items():
                check_number(f"expect.{counter}.{rule}", number, rules[rule])
        if len(self.parts) > FIELDS_MAX:
            raise refusal("expect", f"{len(self.parts)} fields", f"name at most {FIELDS_MAX}")
        for name, part in self.parts.items():
            check_text("expect", name, FIELD_NAME_MAX, needed=True)
            check_number(f"expect.{name}", part, _PART)


def summed(tasks: Iterable[Coverage], first: Iterable[str] = ()) -> Coverage | None:
    """Return the combined coverage of all tasks, weighted by their numbers of items. The result has
    at most ``FIELDS_MAX`` fields: those in ``first``, then those with the most values. Return
    ``None`` if no task has a coverage.
    """
    items = 0
    wanted = frozenset(first)
    filled: dict[str, float] = {}
    note = None
    for task in tasks:
        items += task.items
        note = note or task.note
        for name, share in task.shares.items():
            if name in filled or name in wanted or len(filled) < NAMES_MAX:
                filled[name] = filled.get(name, 0.0) + share * task.items
    most = sorted(filled, key=lambda name: (name not in wanted, -filled[name], name))[:FIELDS_MAX]
    shares = {name: min(1.0, round(filled[name] / items, 4)) for name in most if items}
    return Coverage(items, shares, note) if items or note else None


def judged(
    verdict: Verdict,
    brought: Brought,
    expected: ExpectedCoverage,
    before: Sequence[Coverage],
    good: Sequence[Brought],
) -> Verdict:
    """Return the verdict of a run after comparing it with the expectations.

    Only a COMPLETED verdict can change. ``before`` contains the coverages of the crawler's last
    ``RUNS`` completed runs that have a coverage. ``good`` contains the counters of the crawler's
    last ``GOOD_RUNS`` successful runs that have items.
    """
    if verdict.status is not RunStatus.COMPLETED:
        return verdict
    less = list(too_little(brought, expected, good))
    unknown = list[str]()
    if brought.coverage is not None and brought.coverage.items:
        before = [earlier for earlier in before if earlier.items]
        less += [(COVERAGE, text) for text in violations(brought.coverage, before, expected.parts)]
        unknown += _unknown(brought.coverage, before, expected.parts)
    found = [text for _, text in less] + unknown
    if not found:
        return replace(verdict, lacks=NO_ITEMS) if good and not brought.items else verdict
    said = found[:SAID_MAX] + (
        [f"and {len(found) - SAID_MAX} more"] if len(found) > SAID_MAX else []
    )
    if (
        verdict.outcome != "finished"
    ):  # the crawler's own outcome, or the failed tasks, may be the reason
        said.append(verdict.cause)
    word = min((word for word, _ in less), key=UNMET_OUTCOMES.index, default=COVERAGE)
    status = RunStatus.FAILED if expected.fail and less else RunStatus.COMPLETED
    return Verdict(status, word, "; ".join(said), EndedBy.SERVICE, word)


def too_little(
    brought: Brought, expected: ExpectedCoverage, good: Sequence[Brought]
) -> Iterator[tuple[str, str]]:
    """Yield an outcome and a sentence for each counter that does not meet the expectations."""
    pages = brought.pages
    items = brought.items
    errors = brought.errors
    if expected.watched and errors and not pages and not items:
        yield EMPTY, f"no page and no item, but {errors:,} errors"
    for name, number in (("items", items), ("pages", pages)):
        rules = expected.numbers.get(name, {})
        usual = median(getattr(earlier, name) for earlier in good) if good else 0
        implied = name == "items" and (rules or expected.parts or (expected.watched and good))
        wanted = {
            DROPPED: (1 - rules.get("drop", 1)) * usual,
            UNMET: rules.get("min", 1 if implied else 0),
        }
        short = {word: least for word, least in wanted.items() if least - number > 1e-9}
        if short:
            word = next(iter(short)) if number or name == "pages" else EMPTY
            before = (
                f", the usual number is {usual:,.10g} (median of {len(good)} good runs)"
                if good
                else ""
            )
            yield word, f"{name}: {number:,}{before}, expected at least {max(short.values()):,.10g}"
    most = expected.numbers.get("errors", {}).get("max_share")
    if most is not None and errors > most * (pages or items) + 1e-9:
        yield (
            UNMET,
            f"errors: {errors:,} with {pages:,} pages and {items:,} items, expected at most "
            f"{100 * most:g} %",
        )


def _unknown(
    coverage: Coverage, before: Sequence[Coverage], parts: Mapping[str, float]
) -> Iterator[str]:
    """Return sentences about expected fields that no item had in this run or in the earlier runs.
    The names of these fields may be wrong.
    """
    for name in parts:
        if coverage.share(name) == 0 and all(earlier.share(name) == 0 for earlier in before):
            near = similar(name, [other for other, share in coverage.shares.items() if share])
            fix = f": did you mean {near}?" if near else ", or leave it out"
            yield (
                f"{name}: no item of this run or of the {len(before)} before it has this field; "
                f"correct expect in the catalogue{fix}"
            )


def violations(
    coverage: Coverage, before: Sequence[Coverage], parts: Mapping[str, float]
) -> Iterator[str]:
    """Yield a sentence, which begins with the name, for each field that has a value in too few
    items. ``parts`` contains the required fraction of the usual share for each field.
    """
    for name, part in parts.items():
        share = coverage.share(name)
        known = [theirs for earlier in before if (theirs := earlier.share(name)) is not None]
        if share is None or len(known) < RUNS_MIN:
            continue
        usual = median(known)
        least = part * usual
        if least - share > 1e-9:  # allow a tolerance, because shares are rounded
            digits = next((n for n in range(3) if round(100 * share, n) < round(100 * least, n)), 3)
            has, had, needs = (f"{100 * number:.{digits}f} %" for number in (share, usual, least))
            yield (
                f"{name}: {has} of {coverage.items:,} items have it, the usual share is {had} "
                f"(median of {len(known)} runs), expected at least {needs}"
            )
