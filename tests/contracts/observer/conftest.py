from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.contracts.observer.kubernetes_harness import FakeApiHarness
from tests.contracts.observer.observer_harness import (
    FakeHarness,
    Harness,
    LocalHarness,
    SpoolHarness,
)


#: The example of a custom kind has processes like ``local``, and runs with the tests that start
#: those.
@pytest.fixture(
    params=["fake", "local", "kubernetes", pytest.param("spool", marks=pytest.mark.processes)]
)
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    """``kubernetes`` is the fake API server; tests/kubernetes runs the same on the real one."""
    makers: dict[str, Callable[[], Harness]] = {
        "fake": FakeHarness,
        "local": lambda: LocalHarness(tmp_path),
        "spool": lambda: SpoolHarness(tmp_path),
        "kubernetes": lambda: FakeApiHarness(tmp_path),
    }
    made = makers[request.param]()
    yield made
    made.close()
