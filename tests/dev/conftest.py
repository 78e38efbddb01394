"""Real stacks of real processes, each in a folder and on ports of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dev.dev_support import Dev


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[Dev]:
    """A stack that is not started yet; whatever the test leaves of it is killed."""
    stack = Dev(tmp_path / "state")
    yield stack
    stack.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """One stack for the tests of a module, which leave it as whole as they found it."""
    stack = Dev(tmp_path_factory.mktemp("dev") / "state")
    yield stack.start()
    stack.close()
