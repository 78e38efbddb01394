"""The tries that count: the items of a run are those of all tries of its tasks that no later try
replaced.

A try that continues the earlier one (``resumed`` is true) adds to it. A try that started from the
beginning (false) replaces all earlier tries of its task. A try that does not report it (``None``)
replaces nothing: it may not have begun, and items that come twice are better than lost ones.

Counters of a try continue from those of the tries that it continues (docs/contract.md). So the
counters of a run are sums over the last tries of its tasks, while its files are those of all tries
that count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Try(NamedTuple):
    """One try of a task, and its counter of items, which includes those of the tries that it
    continues.
    """

    task_id: int
    task_index: int
    attempt: int
    cluster_uid: str | None
    run_attempt: int
    superseded_by: int | None
    resumed: bool | None
    items: int | None


def counting(tries: Sequence[Try]) -> list[Try]:
    """Return those of these tries that count, by id.

    ``tries``: all of the run up to a moment, by id.
    """
    later = {attempt.task_id: attempt for attempt in tries}
    found: dict[int, Try] = {}
    for attempt in reversed(tries):
        after = later.get(attempt.superseded_by or 0)
        if after is None or (after.resumed is not False and after.task_id in found):
            found[attempt.task_id] = attempt
    return [*found.values()][::-1]


def own_items(tries: Iterable[Try]) -> dict[int, int]:
    """Return how many items each try counted itself, by its id.

    ``tries``: all that count, by id.
    """
    sums = Counter[int]()
    own: dict[int, int] = {}
    for attempt in tries:
        own[attempt.task_id] = max(0, (attempt.items or 0) - sums[attempt.task_index])
        sums[attempt.task_index] += own[attempt.task_id]
    return own
