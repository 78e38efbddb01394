"""One stack of real processes for all tests of this folder, and the table that the kill matrix leaves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.world import World

TABLE = pytest.StashKey[list[str]]()


@pytest.fixture(scope="package")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Up with room for many tasks at once; nothing of it, crawls included, outlives the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIFECYCLE_CLUSTER__SLOTS", "16")
        world = World(tmp_path_factory.mktemp("e2e") / "state")
        try:
            world.start()
            yield world
        finally:
            world.end()


@pytest.fixture
def world(stack: World) -> World:
    """The stack, whole: every part ready and no run of an earlier test open."""
    stack.healthy()
    return stack


@pytest.fixture(scope="session")
def table(pytestconfig: pytest.Config) -> list[str]:
    """Lines that are printed at the end of the session."""
    return pytestconfig.stash.setdefault(TABLE, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table."""
    if lines := config.stash.get(TABLE, []):
        terminalreporter.section("kill matrix: seconds after kill -9")
        terminalreporter.write_line(f"{'killed':10} {'moment':10} {'part back':>10} {'all seen':>10} {'all ended':>10}")
        for line in lines:
            terminalreporter.write_line(line)
