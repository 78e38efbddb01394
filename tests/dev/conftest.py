"""Real stacks of real processes, each in its own folder and on its own ports."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dev.dev_support import Dev
from tests.support.go_programs import FRUGAL

# For the Temporal server of each stack.
os.environ.update(FRUGAL)
#: Ends the shared stack.
LAST = "test_ctrl_c_ends_all_of_it_and_a_crawl_continues"


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[Dev]:
    """A stack that has not been started; everything that the test leaves running is killed."""
    stack = Dev(tmp_path / "state")
    yield stack
    stack.close()


@pytest.fixture(scope="package")
def shared() -> Iterator[list[Dev]]:
    """The shared stacks that are running."""
    stacks: list[Dev] = []
    yield stacks
    for stack in stacks:
        stack.close()


@pytest.fixture(scope="package")
def running(shared: list[Dev], tmp_path_factory: pytest.TempPathFactory) -> Dev:
    """One stack for the tests of this folder, which leave it as they found it.

    It also offers scrapyd's API.
    """
    for other in shared:  # its tests are over
        other.close()
    stack = Dev(
        tmp_path_factory.mktemp("dev") / "state", env={"LIFECYCLE_GATEWAY__SCRAPYD": "true"}
    )
    shared.append(stack)
    return stack.start()


@pytest.fixture(scope="package")
def serving(shared: list[Dev], tmp_path_factory: pytest.TempPathFactory) -> Dev:
    """A stack that serves a person's pages with their own catalogue, and delivers to their folders.

    An option names one folder and the environment the other.
    """
    folder = tmp_path_factory.mktemp("serving")
    (folder / "pages").mkdir()
    (folder / "pages" / "index.html").write_text("<p>private</p>")
    (folder / "crawlers.yaml").write_text("- {name: quick, kind: command, command: ['true']}\n")
    options = ("--ports", "free", "--site", "pages", "--events", (folder / "told.jsonl").as_uri())
    stack = Dev(
        folder / ".crawl", options, env={"LIFECYCLE_ARCHIVE__URL": (folder / "zips").as_uri()}
    )
    shared.append(stack)
    return stack.start()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with their own stacks come first, then those of each shared stack, because an idle
    stack takes a twentieth of a processor.
    """
    here = Path(__file__).parent
    places = [place for place, item in enumerate(items) if item.path.is_relative_to(here)]
    mine = sorted((items[place] for place in places), key=_when)
    for place, item in zip(places, mine, strict=True):
        items[place] = item


def _when(item: pytest.Item) -> tuple[bool, bool, bool]:
    names = getattr(item, "fixturenames", ())
    return "running" in names, "serving" in names, item.name == LAST
