"""Ids of graphs that user code starts while it executes, and the platform that starts them.

The code of a step or a hook may be executed again. So an id is derived from a key of that
execution, which is the same each time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .errors import InvalidRequest

_keys: list[tuple[str | None, Iterator[int]]] = []
_offers: list[Callable[[], Any]] = []


@contextmanager
def once(key: str | None) -> Iterator[None]:
    """Derive the ids of the graphs that the block starts from ``key``.

    ``None`` means that the block has no key, so its code must give the ids.
    """
    _keys.append((key, itertools.count(1)))
    try:
        yield
    finally:
        _keys.pop()


def derived_id() -> str | None:
    """Return the id for the next graph that the executing code starts, or ``None`` outside steps
    and hooks.

    Raises ``InvalidRequest`` in code of a manager that has no key.
    """
    if not _keys:
        return None
    key, numbers = _keys[-1]
    if key is None:
        fix = (
            "give one that is the same each time, such as Workflow(id=…), or start the graph in "
            "a hook of an end"
        )
        raise InvalidRequest(f"id: missing, and this method may be executed again; {fix}")
    return f"{key.replace('/', '.')}-{next(numbers)}"


def offer(platform: Callable[[], Any]) -> None:
    """Use the object that ``platform`` returns to start graphs in this process."""
    _offers[:] = [platform]


def offered() -> Any:
    """Return the platform that starts graphs in this process, or ``None`` if none was offered."""
    return _offers[0]() if _offers else None
