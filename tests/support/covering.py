"""Choosing a few of many cases that together cover everything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from typing import TypeVar

T = TypeVar("T")


def covering(among: Iterable[T], met: Callable[[T], Set[object]]) -> list[T]:
    """Return cases that together cover everything that ``among`` covers, chosen one by one: the
    first that adds most.
    """
    rest = list(among)
    wanted, chosen = set[object]().union(*map(met, rest)), list[T]()
    while wanted:
        chosen.append(max(rest, key=lambda case: len(met(case) & wanted)))
        wanted -= met(chosen[-1])
    return chosen
