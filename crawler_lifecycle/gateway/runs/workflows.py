"""Temporal as the gateway needs it: a few calls, each with a time limit, over a connection that may come late."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from temporalio.client import Client
from temporalio.service import RPCError

from crawler_lifecycle.domain.audit import AuditReport, Unknown
from crawler_lifecycle.domain.errors import TemporalUnavailable
from crawler_lifecycle.domain.run import RunRequest, StopRequest
from crawler_lifecycle.ports import Fence
from crawler_lifecycle.temporal.client import Lifecycle
from crawler_lifecycle.temporal.directory import chain_is_open
from crawler_lifecycle.temporal.plugin import connect as connect_to_temporal

from .workflow_problems import WorkflowProblem, problem_of, troubled

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Workflows(Protocol):
    """What the gateway asks of Temporal. Every method raises ``TemporalUnavailable`` for anything but an answer."""

    async def start(self, request: RunRequest, workflow_id: str, *, repair: bool = False) -> str:
        """Start a run under ``workflow_id``, or find it open. With ``repair`` a run that has ended stays as it is."""
        ...

    async def stop(self, workflow_id: str, stop: StopRequest) -> bool:
        """Signal a stop; ``False`` when no such workflow is open."""
        ...

    async def look_now(self, workflow_id: str) -> bool:
        """Ask for a look; ``False`` when no such workflow is open."""
        ...

    async def export_again(self, fence: Fence, *, event: bool, files: bool) -> str:
        """Start the workflow that delivers an attempt again, or find it open; its id."""
        ...

    async def audit(self, repair: bool, wait_s: float, unknown: Unknown) -> tuple[str, AuditReport | None]:
        """Have an audit made, or find it going on; its id, and its report if it ends within ``wait_s`` seconds."""
        ...

    async def is_open(self, workflow_id: str, first_run_id: str | None = None) -> bool:
        """Whether the workflow is open, and (when given) still the chain that began with ``first_run_id``."""
        ...

    async def trouble(self, workflow_id: str) -> WorkflowProblem | None:
        """Why this workflow does not go on; ``None`` when it does, or is not open."""
        ...

    async def troubled(self) -> dict[str, str]:
        """The open workflows whose next step fails again and again, with the server's words for it."""
        ...

    async def ping(self) -> None:
        """Return when the server answers."""
        ...


class LateTemporal:
    """``Workflows`` over a connection that ``keep_connecting`` makes when Temporal is there.

    Until then every call says so at once. A connection once made mends itself (the SDK does that).
    """

    def __init__(
        self, connect: Callable[[], Awaitable[Client]] = connect_to_temporal, *, timeout_s: float = 10.0
    ) -> None:
        self._connect = connect
        self._timeout_s = timeout_s
        self._client: Client | None = None
        self._trouble = "not connected yet"

    async def keep_connecting(self) -> None:
        """Try until there is a connection; for a background task."""
        delay = 0.2
        while self._client is None:
            try:
                # Not ``wait_for``: until Python 3.12 it forgets a cancellation that comes together with the answer, and
                # then this loop would go on for ever in a gateway that is to leave.
                async with asyncio.timeout(self._timeout_s):
                    self._client = await self._connect()
            except Exception as error:
                # Whatever it is (refused, TLS, a wrong profile), the cure is outside; readiness tells it.
                trouble = str(error) or type(error).__name__
                if trouble != self._trouble:
                    logger.warning("Temporal cannot be reached, trying again: %s", trouble)
                self._trouble = trouble
                await asyncio.sleep(delay)
                delay = min(delay * 2, 5.0)
        logger.info("connected to Temporal")

    async def start(self, request: RunRequest, workflow_id: str, *, repair: bool = False) -> str:
        return await self._call(lambda client: Lifecycle(client).start(request, workflow_id, repair=repair))

    async def stop(self, workflow_id: str, stop: StopRequest) -> bool:
        return await self._call(lambda client: Lifecycle(client).stop(workflow_id, stop))

    async def look_now(self, workflow_id: str) -> bool:
        return await self._call(lambda client: Lifecycle(client).look_now(workflow_id))

    async def export_again(self, fence: Fence, *, event: bool, files: bool) -> str:
        return await self._call(lambda client: Lifecycle(client).export_again(fence, event=event, files=files))

    async def audit(self, repair: bool, wait_s: float, unknown: Unknown) -> tuple[str, AuditReport | None]:
        return await self._call(
            lambda client: Lifecycle(client).audit(repair, min(wait_s, self._timeout_s / 2), unknown)
        )

    async def is_open(self, workflow_id: str, first_run_id: str | None = None) -> bool:
        return await self._call(lambda client: chain_is_open(client, workflow_id, first_run_id))

    async def trouble(self, workflow_id: str) -> WorkflowProblem | None:
        return await self._call(lambda client: problem_of(client, workflow_id))

    async def troubled(self) -> dict[str, str]:
        return await self._call(troubled)

    async def ping(self) -> None:
        await self._call(lambda client: Lifecycle(client).ping())

    async def _call(self, call: Callable[[Client], Awaitable[T]]) -> T:
        if self._client is None:
            raise TemporalUnavailable(f"Temporal cannot be reached: {self._trouble}")
        try:
            async with asyncio.timeout(self._timeout_s):  # see ``keep_connecting``
                return await call(self._client)
        except TimeoutError:
            raise TemporalUnavailable(f"Temporal did not answer within {self._timeout_s:g} s") from None
        except RPCError as error:
            # A missing namespace, a missing right: for the caller Temporal cannot be used now, and the text says why.
            raise TemporalUnavailable(f"Temporal refused the call ({error.status.name}): {error}") from error
