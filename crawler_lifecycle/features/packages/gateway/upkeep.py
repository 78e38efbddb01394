"""The upkeep of packages: the removal of versions and zips that nothing needs."""

from __future__ import annotations

import logging
from datetime import timedelta
from itertools import islice

from starlette.concurrency import run_in_threadpool

from crawler_lifecycle.background import Loop
from crawler_lifecycle.gateway.parts import Gateway

logger = logging.getLogger(__name__)
#: Seconds between two removals.
EVERY_S = 3_600.0
#: The age below which a zip is kept, because its version may not be recorded yet.
FRESH = timedelta(hours=1)
_AT_ONCE = 200


class PackageUpkeep:
    """Removes versions and zips every hour. Several gateways may do so at once."""

    def __init__(self, gateway: Gateway) -> None:
        self._store = gateway.store.package_pruning
        self._code = gateway.code
        self._keep = gateway.keep_versions
        self._clock = gateway.clock

    async def run(self) -> None:
        """Work until the task is cancelled."""
        await Loop("the upkeep of packages", EVERY_S, retry_s=(60, 600)).run(self.turn)

    async def turn(self) -> None:
        """Work once. Passes on the errors of the database and of the code store."""
        await run_in_threadpool(self._turn)

    def _turn(self) -> None:
        for name, version in self._store.prune(self._keep):
            logger.info("version %s of package %s is removed: nothing needs it", version, name)
        until = self._clock() - FRESH
        old = (digest for digest, at in self._code.stored() if at < until)
        while digests := list(islice(old, _AT_ONCE)):
            for digest in sorted({*digests} - self._store.needed(digests)):
                # Meanwhile, a deploy may have stored it again for a version that is not recorded.
                if all(at < until for _, at in self._code.stored(digest)):
                    self._code.remove(digest)
