"""Statuses of runs, as commands show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from crawler_lifecycle.cli.output import Column, clean, of

if TYPE_CHECKING:
    pass


TERMINAL = ("COMPLETED", "FAILED")


STOPPED = ("cancelled", "cancel_timeout")


def status_word(run: Mapping[str, Any]) -> str:
    """The status; of a run that somebody stopped a word that nobody takes for a failure."""
    asked_for = run.get("status") == "FAILED" and run.get("outcome") in STOPPED
    return "stopped" if asked_for else clean(run.get("status"))


STATE = (
    Column("RUN", of("run_id"), right=True),
    Column("CRAWLER", of("crawler")),
    Column("STATUS", status_word),
    Column("OUTCOME", of("outcome")),
    Column("CAUSE", of("cause")),
)
