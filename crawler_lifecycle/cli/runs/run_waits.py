"""What a run waits for, as the gateway says it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crawler_lifecycle.cli.output import clean
from crawler_lifecycle.domain.waiting import ageless

__all__ = ["ageless", "waiting_clause", "waiting_words"]


def waiting_words(run: Mapping[str, Any]) -> str:
    """The gateway's sentence; empty when the run waits for nothing but its next look."""
    return clean(run.get("waiting"))


def waiting_clause(run: Mapping[str, Any]) -> str:
    """The same inside of a line about the run: it says that something is waited for, and says it once."""
    words = waiting_words(run)
    return words if not words or words.startswith("waiting") else f"waiting: {words}"
