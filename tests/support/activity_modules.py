"""The modules of activities, all of them: a new one is in every test that asks for them."""

from __future__ import annotations

from importlib import import_module
from pkgutil import walk_packages
from types import ModuleType

from crawler_lifecycle import activities


def activity_modules() -> list[ModuleType]:
    """Every module of ``crawler_lifecycle.activities`` and its rooms."""
    found = walk_packages(activities.__path__, f"{activities.__name__}.")
    return [import_module(one.name) for one in found if not one.ispkg]
