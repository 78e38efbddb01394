"""The written items are the same wherever they are counted, shown, exported, passed to a graph or
archived.

A few of the thousands of cases of ``python3 -m tools fuzz``, and those in which it found something.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.runner import random_feeds
from tests.runner.scrapy_project import ScrapyFixture
from tests.runner.surfaces import Surfaces
from tests.runner.test_scrapy_projects import project as write

FEEDS, PROJECTS, BY_HTTP = 16, 16, 2
#: Projects that Scrapy crawls in a separate process.
LAUNCHED = (0, 1, 6, 13, 16, 26, 28, 69, 90, 94, 550)
ITEM = {"name": "tea", "text": "", "price": "0.5", "tags": ["a"]}
JSON_LINES = {"format": "jsonlines"}


@pytest.fixture(scope="module")
def surfaces(tmp_path_factory: pytest.TempPathFactory) -> Surfaces:
    return Surfaces(tmp_path_factory.mktemp("surfaces"))


def test_feeds_are_told_alike(surfaces: Surfaces) -> None:
    wrong = {seed: random_feeds.difference(seed, surfaces) for seed in range(BY_HTTP, FEEDS)}
    with surfaces.by_http() as asked:
        wrong |= {seed: random_feeds.difference(seed, surfaces, asked) for seed in range(BY_HTTP)}
    assert {seed: differs for seed, differs in wrong.items() if differs} == {}


def test_projects_are_told_alike(surfaces: Surfaces, tmp_path: Path) -> None:
    from tests.runner.random_projects import difference, project  # Scrapy takes long to import

    wrong = {seed: difference(project(seed), surfaces, tmp_path) for seed in range(PROJECTS)}
    assert {seed: differs for seed, differs in wrong.items() if differs} == {}


@pytest.mark.parametrize(
    "settings",
    [
        {"FEED_URI": Path("out.jl"), "FEED_FORMAT": "jsonlines"},
        {"FEEDS": {"pages/%(name)s.jl": JSON_LINES}},
        {"FEEDS": {"skipped.jsonl": JSON_LINES}},
        {"FEEDS": {"a|b?": JSON_LINES}},
        {
            "FEEDS": {"a.txt": {"format": "lines"}},
            "FEED_EXPORTERS": {"lines": "tests.runner.random_projects.Lines"},
        },
    ],
    ids=[
        "path of old settings",
        "folder of pages",
        "skipped",
        "name in an archive",
        "own exporter",
    ],
)
def test_a_feed_is_kept_and_found(
    surfaces: Surfaces, tmp_path: Path, settings: dict[str, Any]
) -> None:
    from tests.runner.random_projects import Project, difference

    made = Project({"settings.py": settings}, [ITEM], dict, [ITEM])
    assert difference(made, surfaces, tmp_path) is None


@pytest.mark.processes
def test_scrapy_itself_writes_the_same(surfaces: Surfaces, scrapy_fixture: ScrapyFixture) -> None:
    """Each place for settings, of new and old Scrapy, once."""
    from tests.runner.random_projects import modules, project

    for seed in LAUNCHED:
        made, fixture = project(seed), scrapy_fixture
        texts = modules(made)
        write(fixture, texts.pop("spider"), texts.pop("settings"), **texts)
        fixture.next_attempt()
        given = {**made.places.get("-s", {}), **made.places.get("-o", {})}
        assert fixture.crawl("quotes", CRAWL_SETTINGS=json.dumps(given)) == 0, (
            fixture.output.decode()
        )
        summary = fixture.summary()
        assert (summary["items"], summary["fields"]["items"]) == (
            len(made.written),
            len(made.written),
        ), seed
        assert "note" not in summary["fields"], seed
        shutil.copytree(fixture.files, surfaces.empty(), dirs_exist_ok=True)
        assert surfaces.difference(made.written) is None, seed
