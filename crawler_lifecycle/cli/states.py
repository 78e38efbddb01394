"""Statuses of runs, as commands show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .output import Column, clean, of

TERMINAL = ("COMPLETED", "FAILED")
STOPPED = ("cancelled", "cancel_timeout")


def status_word(run: Mapping[str, Any]) -> str:
    """The status; of a run that somebody stopped a word that nobody takes for a failure."""
    asked_for = run.get("status") == "FAILED" and run.get("outcome") in STOPPED
    return "stopped" if asked_for else clean(run.get("status"))


#: The state of a graph as the status of a run, and as its outcome.
_OF_STATE = {
    "draft": ("INITIALIZING", None),
    "executing": ("PROCESSING", None),
    "completed": ("COMPLETED", "finished"),
    "discarded": ("FAILED", "failed"),
    "cancelled": ("FAILED", "cancelled"),
}


def status_of(row: Mapping[str, Any]) -> tuple[Any, Any]:
    """Status and outcome of a run or a manager; of a graph the same in their words."""
    return _OF_STATE.get(str(row.get("state")), (row.get("status"), row.get("outcome")))


STATE = (
    Column("RUN", of("run_id"), right=True),
    Column("CRAWLER", of("crawler")),
    Column("STATUS", status_word),
    Column("OUTCOME", of("outcome")),
    Column("CAUSE", of("cause")),
)
