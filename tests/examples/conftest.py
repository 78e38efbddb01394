"""Shared fixtures of the tests in this folder."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.examples.demo_site import ROOT, RunningSite, running_site

# Plain `pytest` does not put the project's folder there, `python -m pytest` does.
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))


@pytest.fixture(scope="module")
def site() -> Iterator[RunningSite]:
    """A small site that the tests of a module share."""
    with running_site("--services", "4", "--slow-seconds", "0.2") as running:
        yield running
