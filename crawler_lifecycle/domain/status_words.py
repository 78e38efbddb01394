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


def state_word(state: Any) -> Any:
    """Return the word for a state of a graph or a step, and any other value unchanged."""
    return STATE_WORDS.get(state, state)
