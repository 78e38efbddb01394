"""The upkeep of sites: limits from the settings, and the removal of old figures."""

from __future__ import annotations

import logging

from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.background import Loop
from crawler_lifecycle.gateway.parts import Gateway

logger = logging.getLogger(__name__)
#: Seconds between two removals.
EVERY_S = 3_600.0


class SiteUpkeep:
    """Applies the settings once, when the gateway starts, and removes old figures every hour."""

    def __init__(self, gateway: Gateway) -> None:
        self._store = gateway.store.sites
        self._entries = gateway.sites

    async def run(self) -> None:
        """Work until the task is cancelled."""
        await Loop("the upkeep of sites", EVERY_S, retry_s=(1, 60)).run(self.turn)

    async def turn(self) -> None:
        """Work once. Passes on the errors of the store."""
        await run_in_threadpool(self._turn)

    def _turn(self) -> None:
        if self._entries is not None:
            for name in self._store.apply_settings(self._entries):
                logger.warning("LIFECYCLE_SITES replaced the limits that people gave %s", name)
            self._entries = None
        self._store.remove_old()
