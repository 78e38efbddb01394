"""Readings of the state folder: what cannot be read is an outage, and never an answer."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from crawler_lifecycle.domain.errors import ClusterUnavailable


def check_readable(state: Path) -> None:
    """A missing or unreadable folder of all tasks is an outage; what is missing inside of it is an answer.

    Raises ``OSError``.
    """
    tasks = state / "tasks"
    try:
        with os.scandir(tasks):
            pass
    except FileNotFoundError:
        cure = "the folder of tasks is missing: mount its disk, or make it anew if they are lost for good"
        raise FileNotFoundError(errno.ENOENT, cure, str(tasks)) from None


@contextmanager
def reading(state: Path, *, checked: bool = True) -> Iterator[None]:
    """Raises ``ClusterUnavailable`` for any ``OSError`` within, and first of all when the folder is not readable.

    ``checked``: whether that is asked; a state folder that was never made holds nothing.
    """
    try:
        if checked:
            check_readable(state)
        yield
    except OSError as error:
        raise ClusterUnavailable(f"the local cluster cannot be read: {error}") from error
