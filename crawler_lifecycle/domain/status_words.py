"""Words that people see in place of recorded statuses. Lists show these words, and filters accept
them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .ended_by import EndedBy

Words = Mapping[str, tuple[Sequence[str], str, object]]
"""Each word with its statuses, and with the field and the value that the word requires in
addition."""
#: The words for runs. ``FAILED`` looks like an error, but a stop by a person is not an error.
RUN_WORDS: Words = {"stopped": (("FAILED",), "ended_by", EndedBy.PERSON)}
#: The words for managers.
MANAGER_WORDS: Words = {**RUN_WORDS, "paused": (("INITIALIZING", "PROCESSING"), "paused", True)}
#: The words for states of graphs and steps, in the order of a step's life. The states have the
#: names that Oban uses.
STATE_WORDS = {
    "suspended": "waiting",
    "scheduled": "scheduled",
    "available": "ready",
    "executing": "running",
    "retryable": "retrying",
    "completed": "completed",
    "cancelled": "cancelled",
    "discarded": "failed",
}


#: The words of the web UI for recorded statuses of runs and managers.
_SHOWN = {
    "INITIALIZING": "starting",
    "PROCESSING": "running",
    "STOPPING": "stopping",
    "COMPLETED": "done",
    "FAILED": "failed",
}


def status_word(row: Mapping[str, Any]) -> str:
    """Return the status of a run or manager, or the word that filters accept in its place."""
    for word, (statuses, name, value) in MANAGER_WORDS.items():
        if row.get("status") in statuses and row.get(name) == value:
            return word
    return str(row.get("status"))


def shown_word(row: Mapping[str, Any]) -> str:
    """Return the word of the web UI for the state of a run or manager, on every page.

    Also reads ``lacks``, ``waiting`` and ``stuck`` of the row.
    """
    if row.get("stuck"):
        return "stuck"
    word = status_word(row)
    if word == "COMPLETED" and row.get("lacks") is not None:
        return "brings less"
    if word == "INITIALIZING" and row.get("waiting") is not None:
        return "waiting"
    return str(shown_status(word))


def shown_status(status: Any) -> Any:
    """Return the word of the web UI for a status alone: of a run, manager, graph or step."""
    return _SHOWN.get(status, state_word(status))


def state_word(state: Any) -> Any:
    """Return the word for a state of a graph or a step, and any other value unchanged."""
    return STATE_WORDS.get(state, state)
