"""The tries that count: a run's items come from all tries of its tasks that no later try replaced.

If ``resumed`` is true, a try continues the earlier try and adds to its items. If ``resumed`` is
false, a try started from the beginning and replaces all earlier tries of its task. If ``resumed``
is ``None``, the try replaces nothing: it may not have begun, and duplicate items are better than
missing items.

The counters of a try include the counters of the tries that it continues (docs/contract.md). So the
counters of a run are sums over the last try of each task, while the files of a run are the files of
all tries that count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Try(NamedTuple):
    """One try, with its counter of items. The counter includes the items of the tries that this try
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
    """Return the tries that count, sorted by id. ``tries`` contains all tries of the run up to some
    moment, sorted by id.
    """
    later = {attempt.task_id: attempt for attempt in tries}
    found: dict[int, Try] = {}
    for attempt in reversed(tries):
        after = later.get(attempt.superseded_by or 0)
        if after is None or (after.resumed is not False and after.task_id in found):
            found[attempt.task_id] = attempt
    return [*found.values()][::-1]


def own_items(tries: Iterable[Try]) -> dict[int, int]:
    """Return the number of items that each try itself counted, by the id of the try. ``tries``
    contains all tries that count, sorted by id.
    """
    sums = Counter[int]()
    own: dict[int, int] = {}
    for attempt in tries:
        own[attempt.task_id] = max(0, (attempt.items or 0) - sums[attempt.task_index])
        sums[attempt.task_index] += own[attempt.task_id]
    return own
