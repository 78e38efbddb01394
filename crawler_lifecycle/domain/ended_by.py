"""The five causes that can end a task or a run."""

from enum import StrEnum


class EndedBy(StrEnum):
    """The party that ended a task or a run (see the table in docs/lifecycle.md, "Who ended it").

    Colours, exit codes, lists, retries and alerts depend on this value and never on an outcome,
    because a crawler can report any string as its outcome, even an outcome that only we should set.
    """

    CRAWLER = "crawler"
    """The crawler ended on its own, with any exit code, signal or outcome, or at one of its own
    limits."""
    PERSON = "person"
    """A person, or the run's schedule, manager or graph, requested a stop."""
    LIMIT = "limit"
    """A limit of the request or of the crawler's entry was reached: time, memory or local storage.
    """
    CLUSTER = "cluster"
    """The cluster or its owner removed the task, or the cluster lost it."""
    SERVICE = "service"
    """This service ended or judged the task or run: the scheduler service refused it, an audit gave
    up on it, or its items lack fields.
    """
