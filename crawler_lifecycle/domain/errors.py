"""Errors of the domain, each with a stable type string.

The type string is used in Temporal, problem documents and logs; texts may change, types may not. After a ``RETRYABLE``
error a later try may succeed; after any other error it fails in the same way.
"""

from __future__ import annotations

from typing import ClassVar


class LifecycleError(Exception):
    """Base of all errors that we raise on purpose.

    ``code`` is the stable type string: the name of the class; an adapter's subclass has the name of its base class
    here. ``retryable`` says whether a later try can help, and ``retry_after_s`` how many seconds the other side asked
    us to wait.
    """

    code: ClassVar[str] = "LifecycleError"
    retryable: ClassVar[bool] = False
    retry_after_s: float | None = None

    def __init_subclass__(cls) -> None:
        if cls.__module__ == __name__:
            cls.code = cls.__name__


class InvalidRequest(LifecycleError, ValueError):
    """A request that can never be carried out; the text names the field, the value and the cure."""


class RunNotFound(LifecycleError):
    """No run has this id."""


class RowMissing(RunNotFound):
    """The row of a live run is missing: the database was restored from an older copy, or created again.

    Its workflow waits, and continues by itself once ``crawlctl audit --adopt`` has made the row again.
    """

    retryable = True


class DuplicateRequest(LifecycleError):
    """The request id belongs to a run that another workflow owns."""


class RunIsLive(LifecycleError):
    """The run is owned by a workflow that is still open, so nobody else may take it over."""


class AlreadyCompleted(LifecycleError):
    """The run is COMPLETED; only ``rerun: true`` executes it again."""


class Fenced(LifecycleError):
    """The writer lost the run: its attempt or owner is not the recorded one any more. It must not write."""


class Overtaken(LifecycleError):
    """A look or a manager's cycle came too late: a later one is recorded. A retry reads again, and may write."""

    retryable = True


class NotInThisState(LifecycleError):
    """The action does not fit the state of the run (resume of a run that is still going on, and the like)."""


class RunDeleted(NotInThisState):
    """The run was deleted, or is about to be: nothing that it brought is read or written, and nobody resumes it."""


class TooManyOpen(NotInThisState):
    """As many managers, graphs, schedules or webhooks are open as the installation allows; the text names the limit."""


class DeploymentRefused(LifecycleError):
    """The scheduler service said that this deployment will never work (unknown crawler, bad arguments)."""


class DeploymentExpired(LifecycleError):
    """The deployment call was older than its ``expires_at``; a fresh try may succeed."""

    retryable = True


class SchedulerUnavailable(LifecycleError):
    """The scheduler service could not be reached, or answered that it cannot work now."""

    retryable = True


class MeantElsewhere(SchedulerUnavailable):
    """The scheduler service creates tasks in another namespace than the caller reads, so it created none."""


class CallTooLarge(SchedulerUnavailable):
    """The scheduler service, or a proxy before it, takes no call of this size. That is no word about any task."""


class ClusterUnavailable(LifecycleError):
    """The cluster could not be read completely. This says nothing about any task (an error is no observation)."""

    retryable = True


class OtherPlace(ClusterUnavailable):
    """The call concerns a task in another namespace, and nothing was done."""


class NotStarted(LifecycleError):
    """The main task waits on the cluster; the text says why."""

    retryable = True


class NothingDeployed(LifecycleError):
    """The cluster took none of the offered tasks yet (quota, too many waiting)."""

    retryable = True


class StoreUnavailable(LifecycleError):
    """The database cannot be used now: unreachable, locked, read-only, or at another schema version."""

    retryable = True


class StoreRefused(StoreUnavailable):
    """The database works but refused one statement of ours.

    The text names the statement and never a value in it. It is retried nevertheless: no run may be given up because of
    our own bug, which a new build may fix.
    """


class RowUnreadable(LifecycleError):
    """A row holds an impossible value, because of a manual edit.

    The text names table, key, column, value and cure. The row is not overwritten. Work that waits for it continues by
    itself once a person has repaired it.
    """

    retryable = True


class RowEdited(RowUnreadable, Fenced):
    """Only one of attempt and owner changed, which no takeover does: a manual edit. Refused until it is repaired."""


class TemporalUnavailable(LifecycleError):
    """Temporal cannot be reached or cannot take the call now."""

    retryable = True


class NotDelivered(LifecycleError):
    """A notification, event or archive could not be delivered now; it stays recorded and is sent again."""

    retryable = True


class NotYetDelivered(NotDelivered):
    """The archive of a run is on its way, and its files cannot be read before it is there."""


class CatalogueError(LifecycleError, ValueError):
    """``crawlers.yaml`` cannot be used; the text names file, line, key and cure."""


def _subclasses(cls: type[LifecycleError]) -> list[type[LifecycleError]]:
    # Each once: an error may be of two kinds.
    return list(dict.fromkeys(c for sub in cls.__subclasses__() for c in (sub, *_subclasses(sub))))


def codes() -> frozenset[str]:
    """Every type string there is."""
    return frozenset(c.code for c in _subclasses(LifecycleError))


def not_retryable() -> list[str]:
    """The type strings that no retry can mend, for Temporal's retry policies."""
    return sorted({c.code for c in _subclasses(LifecycleError) if not c.retryable})
