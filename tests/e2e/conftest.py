"""One stack of real processes for all tests of this folder, and the table of the kill matrix.

It can be held at any call (failpoints), its audits repair at once, and each test leaves it intact,
which ``harness`` checks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.harness import AUDITS, Row
from tests.e2e.stopping import PATIENT, StopHarness
from tests.support.go_programs import FRUGAL

TABLE = pytest.StashKey[list[str]]()


# For each Temporal server and each command of its CLI.
os.environ.update(FRUGAL)
HERE = Path(__file__).resolve().parent
#: In this folder: one that adds tasks to its own run, and one that continues where it was.
CRAWLERS: list[Row] = [
    {
        "name": "shelves",
        "command": ["python", "shelves.py"],
        "args": {"shelf": {"required": False}},
    },
    {
        "name": "steps",
        "command": ["python", "steps.py"],
        "args": {"journal": {"required": True}},
        "items": False,
        "resumable": True,
    },
]
#: Replaces the worker by a slow one, and leaves much open.
LAST = "test_a_stop_passes_queues_that_are_stuck"


@pytest.fixture(scope="package")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StopHarness]:
    """A stack with slots for many tasks; none of its processes, crawls included, outlives the
    tests.
    """
    folder = tmp_path_factory.mktemp("e2e")
    own = [{**entry, "kind": "command", "project": str(HERE)} for entry in CRAWLERS]
    (folder / "more.yaml").write_text(json.dumps([*own, PATIENT]))
    more = {"LIFECYCLE_EXTRA_CATALOGUE": str(folder / "more.yaml")}
    with StopHarness.up(folder / "state", examples=True, **more, **AUDITS) as harness:
        yield harness


@pytest.fixture
def harness(stack: StopHarness) -> StopHarness:
    """The intact stack: every part ready, and no run of an earlier test open."""
    stack.healthy()
    return stack


@pytest.fixture(scope="session")
def table(pytestconfig: pytest.Config) -> list[str]:
    """Lines that are printed at the end of the session."""
    return pytestconfig.stash.setdefault(TABLE, [])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with their own stacks come first, because the shared one takes a twentieth of a
    processor while it runs.
    """
    places = [place for place, item in enumerate(items) if item.path.is_relative_to(HERE)]
    mine = sorted((items[place] for place in places), key=_when)
    for place, item in zip(places, mine, strict=True):
        items[place] = item


def _when(item: pytest.Item) -> tuple[bool, bool]:
    return "stack" in getattr(item, "fixturenames", ()), item.name == LAST


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print the table."""
    if lines := config.stash.get(TABLE, []):
        terminalreporter.section("kill matrix: seconds after kill -9")
        terminalreporter.write_line(
            f"{'killed':10} {'moment':10} {'part back':>10} {'all seen':>10} {'all ended':>10}"
        )
        for line in lines:
            terminalreporter.write_line(line)
