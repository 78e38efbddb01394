"""Sources of run ids that are in use outside the database, for ``crawlctl db``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from crawler_lifecycle.compose import build_numbers
from crawler_lifecycle.domain.errors import TemporalUnavailable
from crawler_lifecycle.temporal.client import Workflows
from crawler_lifecycle.temporal.plugin import configured_address, connect

if TYPE_CHECKING:
    from crawler_lifecycle.ports.protocols import KnowsRuns
    from crawler_lifecycle.settings import Settings

#: Seconds for all sources together. A server that is starting needs some time.
LIMIT_S = 20.0
_TRY_S = 0.1


class WorkflowNumbers:
    """An implementation of ``KnowsRuns`` with the Temporal server that the environment names.

    Each call makes its own connection.
    """

    def highest_run(self, above: int = 0) -> int:
        """Return the highest run id, as the port ``KnowsRuns`` defines it.

        Raises ``TemporalUnavailable``, including if no server is configured.
        """
        if not named():
            raise TemporalUnavailable("TEMPORAL_ADDRESS is not set")
        return asyncio.run(_highest_run(above))


async def _highest_run(above: int) -> int:
    workflows = await _connected()
    return await workflows.highest_run(above)


def named() -> bool:
    """Return whether the environment or a profile contains the address of Temporal."""
    try:
        return bool(configured_address())
    except Exception:  # an attempt to connect will report the error
        return True


async def _connected() -> Workflows:
    until = time.monotonic() + LIMIT_S
    while True:
        try:
            return Workflows(
                await asyncio.wait_for(connect(), max(_TRY_S, until - time.monotonic()))
            )
        except Exception as error:
            if time.monotonic() + _TRY_S > until:
                raise TemporalUnavailable(f"no Temporal server responds: {error}") from error
        await asyncio.sleep(_TRY_S)


def sources(settings: Settings) -> Mapping[str, KnowsRuns]:
    """Return the sources that these settings define: Temporal and the cluster. Raises
    ``InvalidRequest``.
    """
    return build_numbers(settings, WorkflowNumbers(), ("cluster",))
