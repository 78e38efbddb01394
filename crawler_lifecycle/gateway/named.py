"""The common part of the commands on schedules and webhooks: put, pause, resume and delete.

A command first writes the row, and then calls Temporal. If this process dies or Temporal is
unavailable, workers with the role audit carry out the recorded command later.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.gateway.runs.commands import CommandResult, existing, mismatch
from crawler_lifecycle.gateway.runs.requests import PauseBody
from crawler_lifecycle.store.base.named import NamedPart
from crawler_lifecycle.temporal.client import Workflows

R = TypeVar("R")


@dataclass(frozen=True)
class NamedCommands(ABC, Generic[R]):
    """The commands that change named objects, such as schedules.

    They raise ``Problem`` or an error of the domain.
    """

    store: NamedPart[Any]
    workflows: Workflows

    noun: ClassVar[str]

    @abstractmethod
    async def _kept(self, row: R, fresh: bool = True, note: str | None = None) -> CommandResult[R]:
        """Notify Temporal of a recorded command, and return the result of the command."""

    async def seen(self, name: str) -> R | None:
        """Return the row with this name, or ``None`` if there is none."""
        row = await run_in_threadpool(self.store.get, name)
        return None if row is None or row.deleted_at is not None else row

    async def find(self, name: str) -> R:
        """Return the row with this name. Raises ``Problem`` 404."""
        row = await self.seen(name)
        others = [] if row is not None else await run_in_threadpool(self.store.every)
        return existing(self.noun, name, row, [other.name for other in others])

    @abstractmethod
    async def put(self, name: str, body: Any) -> CommandResult[R]:
        """Create the object, or change its definition. A repeat changes nothing."""

    async def _put(
        self,
        name: str,
        definition: Mapping[str, Any],
        by: str | None,
        project: str | None,
        note: str | None,
    ) -> CommandResult[R]:
        with mismatch("name"):
            row, fresh = await run_in_threadpool(self.store.put, name, definition, by, project)
        return await self._kept(row, fresh, note)

    async def delete(self, name: str) -> CommandResult[R]:
        """Delete the object. Its records stay, and everything that it started continues."""
        row = await self.find(name)
        return await self._kept(row, await run_in_threadpool(self.store.delete, name))

    async def pause(self, name: str, body: PauseBody) -> CommandResult[R]:
        """Pause the object. It does nothing until it is resumed."""
        row: Any = await self.find(name)
        if row.paused_at is not None:
            return CommandResult(row, fresh=False, note=f"The {self.noun} was already paused.")
        return await self._kept(await run_in_threadpool(self.store.pause, name, body.words()))

    async def resume(self, name: str, **more: Any) -> CommandResult[R]:
        """Resume the object.

        ``more`` has further arguments for the store's ``pause``. If one of them is true, the call
        also applies to an object that was not paused.
        """
        row: Any = await self.find(name)
        if row.paused_at is None and not any(more.values()):
            return await self._kept(row, False, f"The {self.noun} was not paused.")
        return await self._kept(
            await run_in_threadpool(partial(self.store.pause, name, None, **more))
        )
