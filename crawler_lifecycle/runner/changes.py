"""Changed files below a crawler's working folder: the crawler's own code, and files that a crawl
wrote there.

A project's folder may contain anything, so the search has limits. The search skips hidden folders,
caches, installed packages and mounted volumes.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter

#: The limits of a search: the number of files, and seconds.
FILES_MAX = 20_000
SECONDS = 1.0
_LEFT_OUT = ("__pycache__", "node_modules", "site-packages", "venv")


def changed_since(moment: float, left_out: list[str], suffix: str = "") -> Counter[str]:
    """Return how many files in each folder have changed since ``moment`` (seconds since the epoch).

    Folders are relative to the working folder. ``left_out`` are absolute paths, which are skipped
    together with their parent folders.
    """
    found: Counter[str] = Counter()
    until = time.monotonic() + SECONDS
    left = FILES_MAX
    for folder, below, names in os.walk("."):
        if folder == "." and os.getcwd() == os.sep:
            break
        below[:] = [name for name in below if _is_searched(os.path.join(folder, name), left_out)]
        left -= len(names)
        if left < 0 or time.monotonic() > until:
            break
        for name in names:
            with contextlib.suppress(OSError):
                if (
                    name.endswith(suffix)
                    and os.lstat(os.path.join(folder, name)).st_mtime >= moment
                ):
                    found[folder] += 1
    return found


def _is_searched(folder: str, left_out: list[str]) -> bool:
    name = os.path.basename(folder)
    begin = os.path.realpath(folder) + os.sep
    mine = not name.startswith(".") and name not in _LEFT_OUT and not os.path.ismount(folder)
    return mine and not any(f"{path}/".startswith(begin) for path in left_out)
