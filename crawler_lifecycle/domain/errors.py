"""Errors of the domain, each with a stable type string. Temporal, problem documents and logs use
the type strings, which must not change; the messages may change. After a retryable error, a later
try may succeed. After an error that is not retryable, every try fails in the same way.
"""

from __future__ import annotations

from typing import ClassVar


class LifecycleError(Exception):
    """Base of all errors that we raise on purpose.

    ``code`` is the stable type string, which is the name of the class. A subclass in an adapter has
    the code of its base class in this module. If ``retryable`` is true, a later try may succeed.
    ``retry_after_s`` is the number of seconds that the other side asked us to wait.
    """

    code: ClassVar[str] = "LifecycleError"
    retryable: ClassVar[bool] = False
    retry_after_s: float | None = None

    def __init_subclass__(cls) -> None:
        if cls.__module__ == __name__:
            cls.code = cls.__name__


class InvalidRequest(LifecycleError, ValueError):
    """A request that can never be carried out. Each message names the field, the value and the
    fix."""

    def __init__(self, *texts: str) -> None:
        super().__init__("; ".join(texts))
        self.texts = texts


class RunNotFound(LifecycleError):
    """No run has this id."""


class RowMissing(RunNotFound):
    """The row of a live run is missing: the database was restored from an older copy, or created
    again. The run's workflow waits, and continues automatically after ``crawlctl audit --adopt``
    has restored the row.
    """

    retryable = True


class DuplicateRequest(LifecycleError):
    """The request id belongs to a run that another workflow owns."""


class RunIsLive(LifecycleError):
    """An open workflow owns the run, so no other workflow may adopt the run."""


class AlreadyCompleted(LifecycleError):
    """The run is COMPLETED; only ``rerun: true`` executes it again."""


class Fenced(LifecycleError):
    """The writer no longer owns the run, because the row contains a different attempt or owner. The
    writer must not change the row.
    """


class Overtaken(LifecycleError):
    """A poll or a manager's cycle came too late, because a later poll or cycle is already recorded.
    A retry reads the new state first.
    """

    retryable = True


class NotInThisState(LifecycleError):
    """The action is not possible in the present state of the run, such as a resume of a run that
    has not ended.
    """


class RunDeleted(NotInThisState):
    """The run is deleted, or its deletion has begun. Its data is neither read nor written, and the
    run cannot be resumed.
    """


class TooManyOpen(NotInThisState):
    """The installation's limit of open managers, graphs, schedules or webhooks is reached. The
    message names the limit.
    """


class QuotaReached(LifecycleError):
    """A quota is used up. The message names the quota, its use, and the time when the next start is
    free.

    ``retry_after_s`` is ``None`` if waiting never frees the quota. Managers, graphs and schedules
    try again.
    """

    retryable = True

    def __init__(self, text: str, retry_after_s: float | None = None) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class DeploymentRefused(LifecycleError):
    """The scheduler service refused the deployment permanently, for example because of an unknown
    crawler or bad arguments.
    """


class DeploymentExpired(LifecycleError):
    """The deployment call arrived after its ``expires_at``. A new try may succeed."""

    retryable = True


class IssuerUnavailable(LifecycleError):
    """The issuer of people's tokens (OpenID Connect) cannot be reached, or its answers cannot be
    used.
    """

    retryable = True


class SchedulerUnavailable(LifecycleError):
    """The scheduler service cannot be reached, or reports that it is unavailable."""

    retryable = True


class MeantElsewhere(SchedulerUnavailable):
    """The scheduler service uses a different namespace from the caller, so it created no task."""


class CallTooLarge(SchedulerUnavailable):
    """The scheduler service, or a proxy in front of the service, refused the call because of the
    size of the call. This proves nothing about any task.
    """


class ClusterUnavailable(LifecycleError):
    """The cluster could not be read completely. This proves nothing about the state of any task."""

    retryable = True


class OtherPlace(ClusterUnavailable):
    """The call is about a task in another namespace, and nothing was done."""


class NotStarted(LifecycleError):
    """The main task waits on the cluster. The message explains why."""

    retryable = True


class NothingDeployed(LifecycleError):
    """The cluster has not accepted any of the offered tasks yet, because of a quota or too many
    waiting tasks.
    """

    retryable = True


class UserCodeUnknown(LifecycleError):
    """A user-code worker is still reading the module that a request names, so the request cannot be
    checked yet.
    """

    retryable = True


class StoreUnavailable(LifecycleError):
    """The database cannot be used now because it is unreachable, locked, read-only, or at a
    different schema version.
    """

    retryable = True


class StoreRefused(StoreUnavailable):
    """The database works but refused one of our statements. The message names the statement but
    never a value in it.

    The error is retried, because it is a bug of ours that a new build may fix, and no run may fail
    because of our bug.
    """


class RowUnreadable(LifecycleError):
    """A row contains an impossible value because of a manual edit. The message names the table,
    key, column, value and fix. The row is not overwritten. Work that waits for the row continues
    automatically after a person has repaired the row.
    """

    retryable = True


class RowEdited(RowUnreadable, Fenced):
    """A manual edit changed only the attempt or only the owner, whereas a takeover changes both.
    Writers wait for the repair.
    """


class TemporalUnavailable(LifecycleError):
    """Temporal cannot be reached or cannot accept the call now."""

    retryable = True


class NotDelivered(LifecycleError):
    """A notification, an event or an archive could not be delivered now. The record is kept, and
    the delivery is repeated.
    """

    retryable = True


class NotYetDelivered(NotDelivered):
    """The archive of a run is not delivered yet. The run's files can be read only after the
    delivery."""


class CatalogueError(LifecycleError, ValueError):
    """``crawlers.yaml`` cannot be used. The message names the file, the line, the key and the
    fix."""


def _subclasses(cls: type[LifecycleError]) -> list[type[LifecycleError]]:
    # ``dict.fromkeys`` keeps each class once: an error may have two base classes.
    return list(dict.fromkeys(c for sub in cls.__subclasses__() for c in (sub, *_subclasses(sub))))


def codes() -> frozenset[str]:
    """Return all type strings."""
    return frozenset(c.code for c in _subclasses(LifecycleError))


def not_retryable() -> list[str]:
    """Return the type strings of errors that are not retried, for Temporal's retry policies."""
    return sorted({c.code for c in _subclasses(LifecycleError) if not c.retryable})
