"""The examples in the docstrings of what users import: each runs as written and prints what it
shows.
"""

from __future__ import annotations

import doctest
import importlib
import sys
from types import ModuleType

import pytest

from crawler_lifecycle import graphs, managers

ROOMS = (managers, graphs)
MODULES = (
    *("managers.base", "managers.manager", "managers.crawl", "managers.generator"),
    *("managers.stats", "managers.testing", "managers.types"),
    *(
        "graphs.chancy",
        "graphs.job",
        "graphs.jobs",
        "graphs.oban",
        "graphs.shub",
        "graphs.workflow",
    ),
)
#: Descriptions of a text or a dictionary, base classes, and exceptions.
WORDS = {
    *(
        "BaseScript",
        "FullJobParams",
        "JobDict",
        "JobKey",
        "JobMeta",
        "JobParams",
        "Outcome",
        "PlatformUnavailable",
    ),
    *("ScheduleArgs", "SpiderName"),
}


def examples() -> list[doctest.DocTest]:
    modules = [importlib.import_module(f"crawler_lifecycle.{name}") for name in MODULES]
    found = (doctest.DocTestFinder().find(module, module.__name__) for module in modules)
    return [one for several in found for one in several if one.examples]


@pytest.mark.parametrize(
    "example", examples(), ids=lambda one: one.name.removeprefix("crawler_lifecycle.")
)
def test_an_example_runs(example: doctest.DocTest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its own module, because functions of graphs are called by their names."""
    users = ModuleType("users_example")
    monkeypatch.setitem(sys.modules, users.__name__, users)
    example.globs = vars(users)
    told: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    failed, _ = runner.run(example, out=told.append, clear_globs=False)
    assert not failed, "".join(told)


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.__name__)
def test_every_class_and_function_that_users_import_has_one(room: ModuleType) -> None:
    wanted = {name for name in room.__all__ if callable(getattr(room, name)) and name not in WORDS}
    without = [name for name in wanted if ">>>" not in (getattr(room, name).__doc__ or "")]
    assert not without
