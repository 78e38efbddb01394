"""The saved state of a crawl, from which a later attempt can resume.

Scrapy's job folder is consistent only after a clean stop. After such a stop, we write a marker next
to the folder. The marker also shows whether Scrapy could save all waiting requests. Each start
removes the marker, so a crawl that is killed after its start leaves no marker.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from array import array
from typing import Any

from . import contract, reported
from .changes import changed_since
from .item_reader import KEYS_MAX, Keys
from .safe_directory import NotOurs, SafeDirectory

JOB = "job"
ASIDE = "job.aside"
MARKER = "clean-stop.json"
COUNTED = "counted.json"
KEYS = "counted.keys"
#: Notes about a task in an attempt after the first (``resume_note``).
WENT_ON = "The crawl continued where the earlier attempt was stopped"
NEWER_CODE = f"{WENT_ON}. The project's code is newer than the saved state"
NOT_SAVED = (
    "Not all waiting requests could be saved at the stop (for example, a callback is not a "
    "method of the spider), so the "
    "crawl started from the beginning"
)
NOT_CLEAN = (
    "The saved state is not from a clean stop, so it was moved aside and the crawl started "
    "from the beginning"
)
NO_STATE = "There was no saved state, so the crawl started from the beginning"
NOT_ASKED = (
    "The task did not resume (a rerun, or a crawler that is not resumable), so the crawl "
    "started from the beginning"
)
UNKNOWN = "The crawler was asked to resume. It does not report whether it resumed"
ANEW = "The crawler reports that it started from the beginning"


class JobState:
    """The job folder in ``CRAWL_STATE_DIR``."""

    def __init__(self, state_dir: str) -> None:
        self._path = state_dir
        self.folder = os.path.join(state_dir, JOB)
        self._marker = os.path.join(state_dir, MARKER)
        self._aside = os.path.join(state_dir, ASIDE)
        self.counted: contract.Json = {}
        """The counters and statistics of the earlier attempts that this attempt continues."""
        self.saved: bool | None = None
        """Whether the folder contains all waiting requests; ``None`` when Scrapy's own scheduler
        does not keep them.
        """

    def open(self, resume: bool) -> tuple[bool, str]:
        """Prepare the folder for a start in the project's folder.

        Return whether the saved state is used, and a note about this.
        """
        os.makedirs(self._path, exist_ok=True)
        marker = contract.read(self._marker)
        saved_at = 0.0 if marker is None else os.path.getmtime(self._marker)
        parent = SafeDirectory(self._path)
        parent.unlink(MARKER)
        if not os.path.isdir(self.folder) or os.path.islink(self.folder):
            parent.set_aside(JOB)
            os.makedirs(self.folder)
            return False, NO_STATE if resume else NOT_ASKED
        if resume and marker is not None and marker.get("saved") is not False:
            self.counted = _counters(marker.get("counted"))
            self.saved = marker.get("saved") is True or None
            if self.saved is None:
                return True, UNKNOWN
            return True, NEWER_CODE if changed_since(saved_at, [], ".py") else WENT_ON
        if os.path.isdir(self._aside) and not os.path.islink(self._aside):
            # Sync only a folder: with a pipe, this would hang.
            shutil.rmtree(self._aside, ignore_errors=True)
        else:
            parent.unlink(ASIDE)
        os.replace(self.folder, self._aside)
        os.makedirs(self.folder)
        if not resume:
            return False, NOT_ASKED
        return False, NOT_CLEAN if marker is None else NOT_SAVED

    def mark_clean(self, counted: contract.Json) -> None:
        """Write the marker, which contains the counters and statistics so far, and whether the
        state is complete.
        """
        contract.write(
            self._marker,
            json.dumps({"at": contract.now(), "counted": counted, "saved": self.saved}),
        )

    def with_earlier(self, stats: contract.Json) -> contract.Json:
        """Return the stats of this attempt with the counters of earlier attempts added."""
        return {**stats, **_sums(stats, self.counted)}

    def with_statistics(self, statistics: contract.Json) -> contract.Json:
        """Return the statistics of this attempt with those of earlier attempts added.

        For a maximum, keep the larger of the two values.
        """
        both = dict(self.counted.get("scrapystats", {}))
        for name, number in statistics.items():
            earlier = both.get(name, 0)
            both[name] = max(earlier, number) if "max" in name else earlier + number
        return reported.statistics(both)


class FeedCounts:
    """The numbers of items and bytes that the runner counted in a command's feeds, including those
    of the earlier attempts that the command continues.

    Each attempt has its own feeds, so the counts are kept in a file in the state folder, which all
    attempts share.
    """

    def __init__(self, state_dir: str, *, resume: bool) -> None:
        self._path = os.path.join(state_dir, COUNTED)
        self._earlier = _counters(contract.read(self._path)) if resume else {}
        if not resume:
            with contextlib.suppress(OSError):  # the folder does not exist yet
                os.unlink(self._path)

    def with_earlier(self, counted: contract.Json, *, anew: bool) -> contract.Json:
        """Add the counts of earlier attempts, unless the crawler started ``anew``. Store and return
        the result.
        """
        both = counted if anew else _sums(counted, self._earlier)
        with contextlib.suppress(OSError):  # if the disk is full, the feed cannot grow either
            contract.write(self._path, json.dumps(both))
        return both


class KeptKeys:
    """The item keys of all attempts that continue each other, stored in the state folder as hashes
    of eight bytes.
    """

    def __init__(self, state_dir: str) -> None:
        self._path = state_dir
        self._earlier = array("Q")

    def load(self, *, resume: bool) -> None:
        """Load the keys from earlier attempts, or no keys if this attempt does not continue earlier
        ones.
        """
        data = None
        if resume:
            with contextlib.suppress(OSError, NotOurs):
                data = SafeDirectory(self._path).read(KEYS, 8 * KEYS_MAX)
        data = data or b""
        self._earlier = array("Q", data[: len(data) // 8 * 8])

    def begin(self) -> Keys:
        """Return the keys from earlier attempts. Used to count this attempt from its beginning."""
        self._size = 0
        self._unsaved = self._earlier[:]
        return Keys(self._earlier, self._unsaved)

    def save(self) -> None:
        """Write the keys added since the last call."""
        with contextlib.suppress(OSError, NotOurs):  # write only the keys for which there is room
            handle = SafeDirectory(self._path).lockable(KEYS)
            try:
                count = os.pwrite(handle, self._unsaved, self._size) // 8
                self._size += 8 * count
                os.ftruncate(handle, self._size)
                del self._unsaved[:count]
            finally:
                os.close(handle)


def _sums(counted: contract.Json, earlier: contract.Json) -> dict[str, int]:
    """Return the sums of the counters of this attempt and earlier attempts."""
    return {
        name: min(counted.get(name, 0) + earlier.get(name, 0), reported.COUNT_MAX)
        for name in contract.COUNTERS
        if name in counted or name in earlier
    }


def _counters(counted: Any) -> contract.Json:
    """Return the valid counters and statistics in a file.

    The crawler can write to the file, so its content may be wrong.
    """
    good = contract.valid_stats(counted) if isinstance(counted, dict) else {}
    return contract.picked(good, (*contract.COUNTERS, "scrapystats"))
