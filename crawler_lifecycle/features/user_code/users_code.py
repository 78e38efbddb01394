"""The user code of one worker: the processes that execute it, and its registry."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from crawler_lifecycle.domain.resources import parse_memory
from crawler_lifecycle.features.managers.domain.manager import BUILT_IN
from crawler_lifecycle.settings import UserCodeSettings

from .functions import Functions
from .pool import Hosts, Limits, no_answer
from .process import HostProcess, Rules
from .registry import Registry

if TYPE_CHECKING:
    from crawler_lifecycle.store.store import Store

#: The maximum number of seconds for the import of a project.
INSPECTION_S = 40.0


class ProjectInspector:
    """An ``Inspector`` that executes each project in a new process with the limits of user code."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def spiders(self, folder: Path) -> object:
        process = HostProcess("the project", replace(self._rules, folder=folder))
        try:
            what = "have fewer imports with side effects"
            return process.call("spiders", INSPECTION_S, no_answer, lambda: None, setting=what)
        finally:
            process.kill()


class UsersCode:
    """The processes and the registry of a worker with the role ``user-code``. The owner must call
    ``close``.
    """

    def __init__(self, settings: UserCodeSettings, store: Store) -> None:
        self._managers = store.managers
        worker_id = uuid.uuid4().hex[:12]
        rules = Rules(
            parse_memory(settings.memory) or 0, tuple(settings.environment), settings.folder
        )
        modules = [BUILT_IN.partition(":")[0], *settings.modules]
        limits = Limits(settings.hook_timeout_s, settings.page_timeout_s, settings.processes)
        self.registry = Registry(
            worker_id, modules, store.user_code, rules, notify=self._outdate, queue=settings.queue
        )
        self.hosts = Hosts(worker_id, self.registry.modules, rules, limits)
        self.inspector = ProjectInspector(rules)
        self.functions = Functions(self.registry.modules, rules, parse_memory(settings.result) or 0)

    def _outdate(self, fingerprints: Mapping[str, str]) -> None:
        self.hosts.retire(fingerprints)
        self.functions.outdate(fingerprints)

    async def registering(self) -> None:
        """Keep the recorded user code up to date until this task is cancelled."""
        try:
            await asyncio.to_thread(self.registry.run)
        finally:
            self.registry.leave()

    def state(self) -> dict[str, object]:
        """Return the facts for the worker's health report."""
        return {
            "processes": self.hosts.state(),
            "functions": self.functions.state(),
            **self.registry.state(),
        }

    async def leave(self, moved: Callable[[str], Awaitable[bool]]) -> None:
        """Notify the managers whose objects are on this worker that another worker must recreate
        these objects. A manager that is not notified finds out when its next call here gets no
        response. Raises ``LifecycleError``.
        """
        for manager_id in self.hosts.leave():
            row = await asyncio.to_thread(self._managers.get_manager, manager_id)
            if row is not None:
                await moved(row.workflow_id)

    def close(self) -> None:
        """End all processes."""
        self.registry.leave()
        self.hosts.close()
        self.functions.close()
