"""An in-memory platform for every test of graphs that needs one."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from crawler_lifecycle.graphs.testing import Memory, in_memory


@pytest.fixture
def memory() -> Iterator[Memory]:
    known = set(sys.modules)
    with in_memory() as platform:
        yield platform
    for name in {"example", "example_workflow"} - known:
        sys.modules.pop(name, None)
