"""Users' modules, and processes that load them."""

from __future__ import annotations

import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crawler_lifecycle.features.managers.domain.manager import (
    Decision,
    Facts,
    JobState,
    Page,
    Start,
)
from crawler_lifecycle.features.user_code.pool import Host, Hosts, Limits
from crawler_lifecycle.features.user_code.process import Rules

HEAD = """\
import os, signal, sys, time
from crawler_lifecycle.managers import GeneratorCrawlManager

def write_everywhere(data):
    for fd in range(3, 64):
        try:
            os.write(fd, data)
        except OSError:
            pass

"""


def module(folder: Path, body: str, name: str | None = None) -> str:
    """Write a module with this text below the usual imports. Returns its name, which is always
    different.
    """
    name = name or f"users_{uuid.uuid4().hex[:8]}"
    (folder / f"{name}.py").write_text(HEAD + textwrap.dedent(body))
    return name


def manager(folder: Path, body: str, name: str | None = None) -> str:
    """Write a module whose class ``M`` has this body. Returns the plan."""
    text = 'class M(GeneratorCrawlManager):\n    name = "m"\n    spider = "shop"\n    default_max_jobs = 10\n'
    return module(folder, text + textwrap.indent(textwrap.dedent(body), "    "), name) + ":M"


def generator(folder: Path, body: str) -> str:
    """Return the plan of a manager whose generator has this body."""
    return manager(
        folder, "def set_parameters_gen(self):\n" + textwrap.indent(textwrap.dedent(body), "    ")
    )


@dataclass
class Fixture:
    """Processes of one worker, and their requests."""

    folder: Path
    hook_timeout_s: float = 20.0
    page_timeout_s: float = 20.0
    processes: int = 50
    memory: int = 1024**3
    modules: list[str] = field(default_factory=list)

    @contextmanager
    def hosts(self) -> Iterator[Hosts]:
        """Processes for any module of the folder."""
        modules = [path.stem for path in self.folder.glob("*.py")] + self.modules
        limits = Limits(self.hook_timeout_s, self.page_timeout_s, self.processes)
        found = Hosts("w", modules, Rules(self.memory, folder=self.folder), limits)
        try:
            yield found
        finally:
            found.close()

    @contextmanager
    def begun(self, plan: str) -> Iterator[Host]:
        """Return a process whose object was created."""
        with self.hosts() as hosts, hosts.use(plan, 1, 1, 0, nothing) as host:
            host.begin(Start(1, "m", "f"), 1, answer)
            yield host

    def page(self, plan: str) -> Page:
        """Return the first page of a manager's source."""
        with self.begun(plan) as host:
            return host.page(0, answer)

    def cycle(self, plan: str, facts: Facts | None = None) -> Decision:
        """Return the first cycle of a manager for which nothing waits."""
        with self.begun(plan) as host:
            return host.cycle(facts or Facts(1, 1, 0.0, 1, exhausted=True), answer)


def answer(name: str, arguments: Any) -> Any:
    """Answer that there are no jobs."""
    assert name != "waiting_jobs" or arguments["state"] in list(JobState)
    return {"jobs": [], "after": None} if name == "owned_jobs" else None if name == "job" else []


def nothing() -> None:
    """Nobody waits."""


def until(condition: Callable[[], object]) -> None:
    """Wait for a condition, at most for a minute."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.02)
