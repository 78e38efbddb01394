"""Ids for graphs that user code starts while the code is executing, and the platform that starts
these graphs. The code of a step or a hook may be executed again. So an id is derived from a key for
that execution, and a repetition has the same key.
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
    """Within this block, derive the ids of started graphs from ``key``. ``None`` means that there
    is no key, so the code in the block must give the ids.
    """
    _keys.append((key, itertools.count(1)))
    try:
        yield
    finally:
        _keys.pop()


def derived_id() -> str | None:
    """Return the id for the next graph that the executing code starts, or ``None`` outside steps
    and hooks. Raises ``InvalidRequest`` in a manager's code if there is no key.
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
    """Set the function whose result starts graphs in this process."""
    _offers[:] = [platform]


def offered() -> Any:
    """Return the platform that starts graphs in this process, or ``None`` if no platform was
    set."""
    return _offers[0]() if _offers else None
