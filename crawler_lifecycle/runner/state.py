"""Resumption: whether the state an earlier attempt left behind may be trusted.

Scrapy's job folder is consistent only after a clean stop. Such a stop leaves a marker beside the folder; every start
consumes it, so that a crawl killed later leaves none.
"""

from __future__ import annotations

import os
import shutil

from . import contract

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
        self.folder = os.path.join(state_dir, "job")
        self._marker = os.path.join(state_dir, "clean-stop.json")
        self._aside = os.path.join(state_dir, "job.aside")

    def open(self, resume: bool) -> tuple[bool, str, str]:
        """Prepare the folder for a start: whether its state is used, a note on that for people (empty when there is
        nothing to say), and the same with its details for the log."""
        marker = contract.read(self._marker)
        if marker is not None or os.path.lexists(self._marker):
            os.unlink(self._marker)
        if not os.path.isdir(self.folder):
            os.makedirs(self.folder)
            return False, *((NO_STATE, f"{NO_STATE}.") if resume else ("", ""))
        if resume and marker is not None:
            return True, WENT_ON, f"Resuming with the state of the clean stop at {marker.get('at', 'an unknown time')}."
        shutil.rmtree(self._aside, ignore_errors=True)
        os.replace(self.folder, self._aside)
        os.makedirs(self.folder)
        note = NOT_CLEAN if resume else NOT_ASKED
        return False, note, f"{note}."

    def mark_clean(self) -> None:
        """Say that the state may be resumed."""
        contract.write(self._marker, {"at": contract.now()})
