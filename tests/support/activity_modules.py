"""All modules of activities, so that a new one is in every test that uses them."""

from __future__ import annotations

from importlib import import_module
from pkgutil import walk_packages
from types import ModuleType

from crawler_lifecycle import activities, features


def activity_modules() -> list[ModuleType]:
    """Return every module of activities: of the core, and of each feature."""
    core = walk_packages(activities.__path__, f"{activities.__name__}.")
    others = walk_packages(features.__path__, f"{features.__name__}.")
    found = [*core, *(one for one in others if one.name.split(".")[3:4] == ["activities"])]
    return [import_module(one.name) for one in found if not one.ispkg]
