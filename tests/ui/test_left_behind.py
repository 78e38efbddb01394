"""What a crawl with a browser leaves behind.

All tests that start a Chromium are in this folder: see ``.ci/run``.
"""

from __future__ import annotations

import subprocess
import sys

from tests.support.builds import ROOT
from tests.ui.browser import executable


def test_no_browser_outlives_its_task() -> None:
    """Six ways to end it; `python -m tools.soak.browsers` plays hundreds."""
    executable()
    played = subprocess.run(
        [sys.executable, "-m", "tools.soak.browsers", "--times", "6"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert (played.returncode, played.stdout.splitlines()[-1]) == (0, "0 processes left"), (
        played.stdout + played.stderr
    )
