"""Folders for other users than root."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def reachable_folder() -> Iterator[Path]:
    """Return a folder that every user can reach, including the pods of the test cluster's node; it
    is removed afterwards.

    It is not one of pytest's, which lie below a folder that each session of the same user closes to
    all others when it begins, even one that begins in parallel.
    """
    with tempfile.TemporaryDirectory(prefix="crawl-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
