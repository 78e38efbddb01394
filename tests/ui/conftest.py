"""One stack and one Chromium for all journeys, and the people who use them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.e2e.harness import Harness
from tests.ui.browser import Visitor, chromium

Visits = Callable[..., Visitor]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="package")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """A stack with slots for many tasks; none of its processes, crawls included, outlives the
    tests.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIFECYCLE_CLUSTER__SLOTS", "16")
        harness = Harness(tmp_path_factory.mktemp("page") / "state")
        try:
            harness.start()
            yield harness
        finally:
            harness.end()


@pytest.fixture
def harness(stack: Harness) -> Harness:
    """The intact stack: every part ready, and no run of an earlier test open."""
    stack.healthy()
    return stack


@pytest.fixture
def visits(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Visits]:
    """Make visitors: ``visits(origin, **options of the profile)``.

    All are judged at the end of the test.
    """
    made: list[Visitor] = []

    def visit(origin: str, **options: Any) -> Visitor:
        made.append(Visitor(browser, origin.rstrip("/"), options))
        return made[-1]

    yield visit
    for visitor in made:
        visitor.leave()


@pytest.fixture
def visitor(visits: Visits, harness: Harness) -> Visitor:
    """A visitor of the stack's web UI."""
    return visits(str(harness.stack.addresses["gateway"]))
