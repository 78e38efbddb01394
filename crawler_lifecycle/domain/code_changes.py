"""Changes of the code of a crawler between its runs, and what its runs produced before and
after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Protocol

from .code import Code
from .coverage import RUNS, Coverage
from .results import LESS, is_good
from .run import RunStatus

#: The minimum change of the share of items that fill a field, for it to be reported.
SHARE_MIN = 0.1
#: The maximum number of fields that are reported.
FIELDS_SAID = 3


class CodedRun(Protocol):
    """The result of a run whose code may be known."""

    @property
    def run_id(self) -> int: ...
    @property
    def status(self) -> str: ...
    @property
    def lacks(self) -> str | None: ...
    @property
    def items(self) -> int | None: ...
    @property
    def fields(self) -> Coverage | None: ...


@dataclass(frozen=True, slots=True)
class CodeChange:
    """A run that executed other code than the run before it."""

    run_id: int
    code: Code
    before: Code

    @property
    def title(self) -> str:
        """The sentence for a mark of this change."""
        return f"run {self.run_id}: {self.code.label}, before it {self.before.label}"


def code_changes(run_ids: Sequence[int], codes: Mapping[int, Sequence[Code]]) -> list[CodeChange]:
    """Return the changes of code between these runs, newest first.

    ``run_ids`` is sorted from newest to oldest. Runs without known code are skipped, and a run with
    several codes changes nothing if it shares one with the run before it.
    """
    known = [run_id for run_id in run_ids if codes.get(run_id)]
    changes = []
    for run_id, earlier in pairwise(known):
        old = {code.digest for code in codes[earlier]}
        new = [code for code in codes[run_id] if code.digest not in old]
        if len(new) == len(codes[run_id]):
            changes.append(CodeChange(run_id, new[-1], codes[earlier][-1]))
    return changes


def brought_since(change: CodeChange, runs: Sequence[CodedRun]) -> str | None:
    """Return a sentence about the runs since a change of code, compared with those before it;
    ``None`` if there are no completed runs on one of the sides.

    ``runs`` is sorted from newest to oldest. At most ``RUNS`` runs are read on each side: before
    the change only good ones.
    """
    completed = [run for run in runs if run.status == RunStatus.COMPLETED]
    after = [run for run in completed if run.run_id >= change.run_id][:RUNS]
    before = [run for run in completed if run.run_id < change.run_id and is_good(run)][:RUNS]
    if not after or not before:
        return None
    lower = [*_items_since(after, before), *_fields_since(after, before)]
    result = ", ".join(lower) or "nothing unusual"
    return f"Since {change.code.label} (run {change.run_id}): {result}"


def _items_since(after: Sequence[CodedRun], before: Sequence[CodedRun]) -> list[str]:
    new = median(run.items or 0 for run in after)
    old = median(run.items or 0 for run in before)
    return [f"{new:,g} items (before: {old:,g})"] if new < LESS * old else []


def _fields_since(after: Sequence[CodedRun], before: Sequence[CodedRun]) -> list[str]:
    """Return the fields that are filled less than before, beginning with the largest difference."""
    names = dict.fromkeys(name for run in before if run.fields for name in run.fields.shares)
    found = []
    for name in names:
        new = _usual_share(after, name)
        old = _usual_share(before, name)
        if new is not None and old is not None and old - new >= SHARE_MIN:
            words = f"{name} {100 * new:.0f} % (before: {100 * old:.0f} %)"
            found.append((new - old, words))
    return [words for _, words in sorted(found)[:FIELDS_SAID]]


def _usual_share(runs: Sequence[CodedRun], name: str) -> float | None:
    shares = [run.fields.share(name) for run in runs if run.fields is not None]
    known = [share for share in shares if share is not None]
    return median(known) if known else None
