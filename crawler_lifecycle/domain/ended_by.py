"""The five causes that can end a task or a run."""

from __future__ import annotations

from enum import StrEnum


class EndedBy(StrEnum):
    """The party that ended a task or a run (see the table in docs/lifecycle.md, "Who ended it").

    Colours, exit codes, lists, retries and alerts depend on this value and never on an outcome,
    because a crawler can report any text as its outcome, even one of ours.
    """

    CRAWLER = "crawler"
    """It ended on its own, with any exit code, signal or outcome, or at a limit of its own."""
    PERSON = "person"
    """A stop was requested by a person, or by the schedule, manager or graph of the run."""
    LIMIT = "limit"
    """A limit of the request or of the crawler's entry was reached: time, memory or local storage.
    """
    CLUSTER = "cluster"
    """The cluster or its owner removed it or lost it."""
    SERVICE = "service"
    """We ended it or judged it: the scheduler service refused it, an audit gave up on it, or its
    items lack fields.
    """
