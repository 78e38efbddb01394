"""One stack of real processes for all tests of this folder, and the table that the kill matrix leaves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.world import World

TABLE = pytest.StashKey[list[str]]()


HERE = Path(__file__).resolve().parent
#: Of this folder: one that adds tasks to its own run, and one that goes on where it was.
CRAWLERS = [
    {"name": "shelves", "command": ["python", "shelves.py"], "args": {"shelf": {"required": False}}},
    {
        "name": "steps",
        "command": ["python", "steps.py"],
        "args": {"journal": {"required": True}},
        "items": False,
        "resumable": True,
    },
]


@pytest.fixture(scope="package")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Up with room for many tasks at once; nothing of it, crawls included, outlives the tests."""
    folder = tmp_path_factory.mktemp("e2e")
    own = [{**entry, "kind": "command", "project": str(HERE)} for entry in CRAWLERS]
    (folder / "more.yaml").write_text(json.dumps(own))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIFECYCLE_CLUSTER__SLOTS", "16")
        patch.setenv("LIFECYCLE_MORE_CRAWLERS", str(folder / "more.yaml"))
        world = World(folder / "state")
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those with stacks of their own come first: the shared one, while it is up, takes a twentieth of a processor."""
    places = [place for place, item in enumerate(items) if item.path.is_relative_to(HERE)]
    mine = sorted((items[place] for place in places), key=_is_of_the_shared_stack)
    for place, item in zip(places, mine, strict=True):
        items[place] = item


def _is_of_the_shared_stack(item: pytest.Item) -> bool:
    of_its_module = getattr(item, "module", None)
    return "stack" in getattr(item, "fixturenames", ()) and not hasattr(of_its_module, "stack")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the table."""
    if lines := config.stash.get(TABLE, []):
        terminalreporter.section("kill matrix: seconds after kill -9")
        terminalreporter.write_line(f"{'killed':10} {'moment':10} {'part back':>10} {'all seen':>10} {'all ended':>10}")
        for line in lines:
            terminalreporter.write_line(line)
