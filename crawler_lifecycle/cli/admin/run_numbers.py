"""Numbers of runs that something outside of the database still bears, asked for from the command line."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from temporalio.client import Client
from temporalio.envconfig import ClientConfig

from crawler_lifecycle.compose import build_numbers
from crawler_lifecycle.domain.errors import TemporalUnavailable
from crawler_lifecycle.temporal.directory import TemporalDirectory
from crawler_lifecycle.temporal.plugin import connect

if TYPE_CHECKING:
    from crawler_lifecycle.ports import KnowsRuns
    from crawler_lifecycle.settings import Settings

#: Seconds for all sources together. A server that was started with us needs a moment.
LIMIT_S = 20.0
_TRY_S = 0.1


class Workflows:
    """``KnowsRuns`` by the Temporal server of the environment, with a connection of its own for one question."""

    def __init__(self, patience_s: float = LIMIT_S) -> None:
        self._patience_s = patience_s

    def highest_run(self, above: int = 0) -> int:
        """See the port. Raises ``TemporalUnavailable``, also where nothing names a server."""
        if not named():
            raise TemporalUnavailable("TEMPORAL_ADDRESS is not set")
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="numbers of workflows", daemon=True)
        thread.start()
        try:
            connecting = asyncio.run_coroutine_threadsafe(_connected(self._patience_s), loop)
            return TemporalDirectory(loop, connecting.result()).highest_run(above)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


def named() -> bool:
    """Whether the environment or a profile says where Temporal is."""
    try:
        return bool(ClientConfig.load_client_connect_config().get("target_host"))
    except Exception:  # told by whoever connects
        return True


async def _connected(patience_s: float) -> Client:
    until = time.monotonic() + patience_s
    while True:
        try:
            return await asyncio.wait_for(connect(), max(_TRY_S, until - time.monotonic()))
        except Exception as error:
            if time.monotonic() + _TRY_S > until:
                raise TemporalUnavailable(f"no Temporal server answers: {error}") from error
        await asyncio.sleep(_TRY_S)


def sources(settings: Settings, patience_s: float = LIMIT_S) -> Mapping[str, KnowsRuns]:
    """Everything that these settings name. Raises ``InvalidRequest``."""
    return build_numbers(settings, Workflows(patience_s), ("cluster", "export"))
