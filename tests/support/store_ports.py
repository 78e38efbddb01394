"""All parts of a store at once, for tests that wrap, break or count them."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable
from typing import Any, TypeVar

from crawler_lifecycle.store.store import Store

PORTS = {name: kind for name, kind in typing.get_type_hints(Store).items() if name != "database"}

S = TypeVar("S", bound=Store)


def methods() -> dict[str, Callable[..., Any]]:
    """Return every method of every port, by its name.

    Two ports may both have a method of their common base.
    """
    found: dict[str, Callable[..., Any]] = {}
    for port in PORTS.values():
        mine = dict(
            inspect.getmembers(
                port, lambda one: inspect.isfunction(one) and one.__name__[0] not in "_<"
            )
        )
        based = {name for base in port.__mro__[1:] for name in vars(base)}
        twice = {
            name for name in found.keys() & mine.keys() - based if found[name] is not mine[name]
        }
        assert not twice, "two ports have a method of one name"
        found |= mine
    return found


def port_of(store: Store, method: str) -> Any:
    """Return the port that has this method."""
    [port] = [getattr(store, name) for name in PORTS if hasattr(getattr(store, name), method)]
    return port


def behind(store: S, wrap: Callable[[Any], Any]) -> S:
    """Return the same store, with each of its ports behind ``wrap(port)``."""
    return dataclasses.replace(store, **{name: wrap(getattr(store, name)) for name in PORTS})
