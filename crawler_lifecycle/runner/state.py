"""Resumption: whether the state an earlier attempt left behind may be trusted.

Scrapy's job folder is consistent only after a clean stop. Such a stop leaves a marker beside the folder; every start
consumes it, so that a crawl killed later leaves none.
"""

from __future__ import annotations

import os
import shutil

from . import contract


class JobState:
    """The job folder in ``CRAWL_STATE_DIR``."""

    def __init__(self, state_dir: str) -> None:
        self.folder = os.path.join(state_dir, "job")
        self._marker = os.path.join(state_dir, "clean-stop.json")
        self._aside = os.path.join(state_dir, "job.aside")

    def open(self, resume: bool) -> tuple[bool, str]:
        """Prepare the folder for a start; whether its state is used, and one sentence about that for the log."""
        marker = contract.read(self._marker)
        if marker is not None or os.path.lexists(self._marker):
            os.unlink(self._marker)
        if not os.path.isdir(self.folder):
            os.makedirs(self.folder)
            return False, "No saved state; the crawl starts from the beginning." if resume else ""
        if resume and marker is not None:
            return True, f"Resuming with the state of the clean stop at {marker.get('at', 'an unknown time')}."
        shutil.rmtree(self._aside, ignore_errors=True)
        os.replace(self.folder, self._aside)
        os.makedirs(self.folder)
        if resume:
            return False, "The saved state is not from a clean stop, so it was set aside and the crawl starts anew."
        return False, "Resumption was not asked for, so the saved state was set aside and the crawl starts anew."

    def mark_clean(self) -> None:
        """Say that the state may be resumed."""
        contract.write(self._marker, {"at": contract.now()})
