"""What the scheduler service does by itself now and then: it removes what is left of old runs."""

from __future__ import annotations

import logging
import threading
from typing import Protocol

from crawler_lifecycle.domain.errors import ClusterUnavailable

logger = logging.getLogger(__name__)

FIRST_S = 60.0
#: Seconds between two cleanings.
EVERY_S = 3600.0
_DAY_S = 86_400.0


class Removing(Protocol):
    """A cluster that keeps files of runs which have ended."""

    def remove_old(self, keep_s: float) -> list[int]: ...


def clean(cluster: Removing, keep_days: float) -> None:
    """Remove what is older, and say so in the log. Never raises: the next cleaning tries again."""
    try:
        removed = cluster.remove_old(keep_days * _DAY_S)
    except ClusterUnavailable as error:
        logger.warning("old runs cannot be removed now: %s", error)
        return
    if removed:
        shown = ", ".join(map(str, removed[:20])) + (", …" if len(removed) > 20 else "")
        logger.info("removed the files of %d runs that ended more than %g days ago: %s", len(removed), keep_days, shown)


def start(
    cluster: Removing, keep_days: float, *, first_s: float = FIRST_S, every_s: float = EVERY_S
) -> threading.Event | None:
    """Clean in a thread of its own until the event that is returned is set; ``None`` when runs are kept for ever."""
    if keep_days <= 0:
        return None
    done = threading.Event()

    def work() -> None:
        wait_s = first_s
        while not done.wait(wait_s):
            clean(cluster, keep_days)
            wait_s = every_s

    threading.Thread(target=work, name="housekeeping", daemon=True).start()
    return done
