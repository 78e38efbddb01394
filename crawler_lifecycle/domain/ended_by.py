"""The five that may end a task or a run."""

from __future__ import annotations

from enum import StrEnum


class EndedBy(StrEnum):
    """The one who ended a task or a run (the table is in docs/lifecycle.md, "Who ended it").

    Colours, exit codes, lists, retries and alerts follow this value, and never an outcome: a
    crawler may report any text as its outcome, also one of ours.
    """

    CRAWLER = "crawler"
    """It ended itself: by any exit code, signal or word of its own, also at a limit of its own."""
    PERSON = "person"
    """A stop was asked for, by a person or by the schedule, manager or graph of the run."""
    LIMIT = "limit"
    """A limit of the request or of the crawler's entry: time, memory or local storage."""
    CLUSTER = "cluster"
    """The cluster or its owner took it away, or lost it."""
    SERVICE = "service"
    """We ended it or judged it: the scheduler service refused it, an audit gave it up, or its items
    lack fields.
    """
