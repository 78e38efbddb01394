"""Small helpers for users' manager scripts."""

from __future__ import annotations

import logging
import os


def get_kumo_loglevel(default: int = logging.INFO) -> int:
    """Return the log level in the variable ``LOG_LEVEL``, a number or a name, or else
    ``default``.
    """
    text = os.environ.get("LOG_LEVEL", "").strip().upper()
    if text.isdigit():
        return int(text)
    level = logging.getLevelNamesMapping().get(text)
    return default if level is None else level
