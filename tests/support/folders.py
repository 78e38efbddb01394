"""Folders for those who are not root."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def reachable_folder() -> Iterator[Path]:
    """A folder that every user reaches, and the pods of the test cluster's node; it is gone
    afterwards.

    Not one of pytest's: these lie below a folder that each session of the same user closes to all
    others when it begins, also one that begins beside us.
    """
    with tempfile.TemporaryDirectory(prefix="crawl-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
