"""Housekeeping of the scheduler service: now and then it removes what is left of old runs."""

from __future__ import annotations

import functools
import logging
import threading
from typing import Protocol

from crawler_lifecycle.background import Loop
from crawler_lifecycle.domain.retention import DAY_S

logger = logging.getLogger(__name__)

FIRST_S = 60.0
#: Seconds between two cleanings.
EVERY_S = 3600.0
#: Seconds after an error, and the most of them.
RETRY_S = (60.0, EVERY_S)


class Removing(Protocol):
    """A cluster that keeps files of runs which have ended."""

    def remove_old(self, keep_s: float) -> list[int]: ...


def clean(cluster: Removing, keep_days: float) -> None:
    """Remove what is older, and say so in the log. Raises ``ClusterUnavailable``."""
    removed = cluster.remove_old(keep_days * DAY_S)
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
    loop = Loop("the removal of old runs", every_s, first_s=first_s, retry_s=RETRY_S)
    work = functools.partial(loop.run_in_thread, lambda: clean(cluster, keep_days), done)
    threading.Thread(target=work, name="housekeeping", daemon=True).start()
    return done
