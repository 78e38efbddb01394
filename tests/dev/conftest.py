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


@pytest.fixture(scope="package")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """One stack for the tests of this folder, which leave it as whole as they found it. It speaks scrapyd's dialect."""
    stack = Dev(tmp_path_factory.mktemp("dev") / "state", env={"LIFECYCLE_GATEWAY__SCRAPYD": "true"})
    yield stack.start()
    stack.close()


@pytest.fixture(scope="package")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """One that serves a person's own pages, beside a catalogue of theirs, and delivers to folders of theirs.

    Of these an option names one and the environment the other.
    """
    folder = tmp_path_factory.mktemp("serving")
    (folder / "pages").mkdir()
    (folder / "pages" / "index.html").write_text("<p>private</p>")
    (folder / "crawlers.yaml").write_text("- {name: quick, kind: command, command: ['true']}\n")
    options = ("--ports", "free", "--site", "pages", "--events", (folder / "told.jsonl").as_uri())
    stack = Dev(folder / ".crawl", options, env={"LIFECYCLE_ARCHIVE__URL": (folder / "zips").as_uri()})
    yield stack.start()
    stack.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those with stacks of their own come first: a shared one that is up takes a twentieth of a processor."""
    here = Path(__file__).parent
    places = [place for place, item in enumerate(items) if item.path.is_relative_to(here)]
    shared = {"running", "serving"}
    mine = sorted((items[place] for place in places), key=lambda item: len(shared & set(item.fixturenames)))
    for place, item in zip(places, mine, strict=True):
        items[place] = item
