"""Inspects Scrapy projects in host processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from .pool import no_answer
from .process import HostProcess, Rules

#: The maximum number of seconds for the import of a project.
LIMIT_S = 40.0


class ProjectInspector:
    """An ``Inspector`` that executes each project in a new process with the limits of user code."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def spiders(self, folder: Path) -> object:
        process = HostProcess("the project", replace(self._rules, folder=folder))
        try:
            what = "have fewer imports with side effects"
            return process.call("spiders", LIMIT_S, no_answer, lambda: None, setting=what)
        finally:
            process.kill()
