"""Saved state: whether the state of an earlier attempt may be used to resume.

Scrapy's job folder is consistent only after a clean stop. Such a stop leaves a marker beside the folder; every start
consumes it, so that a crawl killed later leaves none.
"""

from __future__ import annotations

import json
import os
import shutil
from typing import Any

from . import contract
from .held import Held

JOB, ASIDE, MARKER = "job", "job.aside", "clean-stop.json"
#: What the run says about a task of a later attempt (``resume_note``).
WENT_ON = "It went on where the attempt before was stopped"
NOT_CLEAN = "The saved state is not from a clean stop, so it was set aside and the crawl began anew"
NO_STATE = "There was no saved state, so the crawl began at the beginning"
NOT_ASKED = "It was not to go on (a rerun, or a crawler that is not resumable), so the crawl began anew"
UNKNOWN = "It was asked to go on; the crawler does not tell whether it did"
ANEW = "The crawler says that it began anew"


class JobState:
    """The job folder in ``CRAWL_STATE_DIR``."""

    def __init__(self, state_dir: str) -> None:
        self._place = state_dir
        self.folder = os.path.join(state_dir, JOB)
        self._marker = os.path.join(state_dir, MARKER)
        self._aside = os.path.join(state_dir, ASIDE)
        self.counted: dict[str, int] = {}
        """The counters of earlier attempts, whose work this one continues."""

    def open(self, resume: bool) -> tuple[bool, str, str]:
        """Prepare the folder for a start: whether its state is used, a note on that for people (empty when there is
        nothing to say), and the same with its details for the log."""
        os.makedirs(self._place, exist_ok=True)
        marker = contract.read(self._marker)
        place = Held(self._place)
        place.unlink(MARKER)
        if not os.path.isdir(self.folder) or os.path.islink(self.folder):
            place.set_aside(JOB)
            os.makedirs(self.folder)
            return False, *((NO_STATE, f"{NO_STATE}.") if resume else ("", ""))
        if resume and marker is not None:
            self.counted = _counters(marker)
            return True, WENT_ON, f"Resuming with the state of the clean stop at {marker.get('at', 'an unknown time')}."
        if os.path.isdir(self._aside) and not os.path.islink(self._aside):
            shutil.rmtree(self._aside, ignore_errors=True)  # of a pipe it would wait for a writer, for ever
        else:
            place.unlink(ASIDE)
        os.replace(self.folder, self._aside)
        os.makedirs(self.folder)
        note = NOT_CLEAN if resume else NOT_ASKED
        return False, note, f"{note}."

    def mark_clean(self, counted: dict[str, int]) -> None:
        """Record that the state may be resumed, and the counters so far."""
        contract.write(self._marker, json.dumps({"at": contract.now(), "counted": counted}))

    def with_earlier(self, stats: contract.Json) -> contract.Json:
        """Statistics of this attempt with what earlier ones counted."""
        sums = {
            name: min(stats.get(name, 0) + self.counted.get(name, 0), contract.COUNT_MAX)
            for name in contract.COUNTERS
            if name in stats or name in self.counted
        }
        return {**stats, **sums}


def _counters(marker: Any) -> dict[str, int]:
    """The counters of a marker, which the crawler can write: only valid values."""
    counted = marker.get("counted")
    good = contract.valid_stats(counted) if isinstance(counted, dict) else {}
    return {name: good[name] for name in contract.COUNTERS if name in good}
