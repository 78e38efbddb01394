"""Worlds for activities: a new one costs a copy of an empty database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.activities.world import World


@pytest.fixture
def new_world(tmp_path: Path) -> Iterator[Callable[[], World]]:
    """Makes a new world each time it is called."""
    worlds: list[World] = []

    def make() -> World:
        worlds.append(World.over(tmp_path / str(len(worlds))))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


@pytest.fixture
def world(new_world: Callable[[], World]) -> World:
    return new_world()
