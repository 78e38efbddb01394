"""Words that people see instead of recorded statuses. Lists show them, and their filters take
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .ended_by import EndedBy

Words = Mapping[str, tuple[Sequence[str], str, object]]
"""Each word with its statuses, and with the field that must have this value."""
#: The words for runs. ``FAILED`` looks like an error, which a stop by a person is not.
RUN_WORDS: Words = {"stopped": (("FAILED",), "ended_by", EndedBy.PERSON)}
#: The words for managers.
MANAGER_WORDS: Words = {**RUN_WORDS, "paused": (("INITIALIZING", "PROCESSING"), "paused", True)}
#: The words for states of graphs and steps, which have the names that Oban uses; in the order of a
#: step's life.
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
    """Return the word for a state of a graph or a step, and every other value as it is."""
    return STATE_WORDS.get(state, state)
