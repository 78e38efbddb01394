"""Fixtures for tests of activities. A new harness starts from a copy of an empty database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.activities.harness import Harness


@pytest.fixture
def new_harness(tmp_path: Path) -> Iterator[Callable[[], Harness]]:
    """Return a function that makes a new harness on each call."""
    harnesses: list[Harness] = []

    def make() -> Harness:
        harnesses.append(Harness.over(tmp_path / str(len(harnesses))))
        return harnesses[-1]

    yield make
    for harness in harnesses:
        harness.close()


@pytest.fixture
def harness(new_harness: Callable[[], Harness]) -> Harness:
    return new_harness()
