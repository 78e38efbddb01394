"""A few cases of many that together meet everything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from typing import TypeVar

T = TypeVar("T")


def covering(among: Iterable[T], met: Callable[[T], Set[object]]) -> list[T]:
    """Cases that together meet all that ``among`` meet, chosen one after the other: the first that
    adds most.
    """
    rest = list(among)
    wanted, chosen = set[object]().union(*map(met, rest)), list[T]()
    while wanted:
        chosen.append(max(rest, key=lambda case: len(met(case) & wanted)))
        wanted -= met(chosen[-1])
    return chosen
