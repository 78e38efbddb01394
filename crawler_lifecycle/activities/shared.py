"""Functions that several stages share: wire formats of activities, heartbeats, and the delivery of
events.
"""

from __future__ import annotations

import contextvars
import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from temporalio import activity
from temporalio.exceptions import CancelledError, FailureError

from crawler_lifecycle.background import Loop
from crawler_lifecycle.domain.errors import (
    InvalidRequest,
    LifecycleError,
    NotDelivered,
    RowUnreadable,
    RunNotFound,
    StoreRefused,
    StoreUnavailable,
)
from crawler_lifecycle.ports.protocols import EventSink, Notifier
from crawler_lifecycle.ports.runs import Event, Fence, TaskCounts

from . import meters
from .abreast import Abreast

if TYPE_CHECKING:
    from crawler_lifecycle.store.events import EventStore

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds that one try of a push may take. Three tries and their pauses take at most 5 s. The limit
#: is slightly above the longest limit of a notifier, so that the notifier's own error, which is
#: more specific, comes first.
PUSH_S = 1.41


#: The decorator for an activity, which has the name of its method. The name is an interface: open
#: runs know it. The SDK raises no exception in the activity's thread (see ``alive``).
activity_method = activity.defn(no_thread_cancel_exception=True)


#: For each class, the names of its activities, and the names of the methods.
_DEFINED: dict[type, dict[str, str]] = {}


def activities_in(owner: object) -> dict[str, Callable[..., Any]]:
    """Return the activities among an object's methods, by name."""
    kind = type(owner)
    if kind not in _DEFINED:
        found: dict[str, str] = {}
        for attribute, method in vars(kind).items():
            definition = activity._Definition.from_callable(method) if callable(method) else None
            if definition is not None and definition.name is not None:
                found[definition.name] = attribute
        _DEFINED[kind] = found
    return {name: getattr(owner, attribute) for name, attribute in _DEFINED[kind].items()}


def answered(owner: object, name: str, arguments: Mapping[str, Any]) -> object:
    """Return the result of the method ``ask_<name>`` to user code.

    Raises ``InvalidRequest`` for an unknown question or wrong arguments.
    """
    answer = getattr(owner, f"ask_{name}", None)
    if answer is None:
        raise InvalidRequest(f"{name!r:.80} is an unknown question")
    try:
        return answer(**arguments)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{name}: {error}") from None


def there(row: T | None, what: str) -> T:
    """Return the row for ``what``, such as ``graph 7``. Raises ``RunNotFound`` if there is no such
    row.
    """
    if row is None:
        raise RunNotFound(f"{what} does not exist; try crawlctl {what.partition(' ')[0]} list")
    return row


def keep_output(keep: Callable[[int, str], None], id: int, printed: str) -> None:
    """Record the printed output of user code. A failure to record it is only logged, because the
    output is not an effect of the code.
    """
    try:
        if printed:
            keep(id, printed)
    except LifecycleError as error:
        log.warning("the printed output of graph or manager %d is not recorded: %s", id, error)


def ordered_at() -> datetime | None:
    """Return the time at which this try was scheduled, by the clock of the Temporal server.

    Each try has a later time than the try before. Return ``None`` outside activities.
    """
    return activity.info().current_attempt_scheduled_time if activity.in_activity() else None


@dataclass(frozen=True, slots=True)
class Counts:
    """The numbers of a run's tasks by status, as activities return them."""

    by_status: dict[str, int] = field(default_factory=dict)
    active: int = 0
    queued: int = 0

    @property
    def alive(self) -> int:
        return self.active + self.queued

    @classmethod
    def of(cls, counts: TaskCounts) -> Counts:
        return cls(counts.positive(), counts.active, counts.queued)


def alive(*details: object) -> None:
    """Send a heartbeat at a point where the activity can end. Raises ``CancelledError`` if the
    activity was cancelled. Activities are never interrupted at other points
    (``no_thread_cancel_exception``). Otherwise the SDK could raise an exception in the thread at
    any instruction, for example just after the thread took a lock. The lock would then never be
    released, and every thread of the worker would wait for it.
    """
    _beat(*details)
    if activity.in_activity() and activity.is_cancelled():
        raise CancelledError("cancelled, or the worker is shutting down")


def retry_while_unavailable(call: Callable[[], T], seconds: float) -> T:
    """Return the result of the call. The call is repeated while the database is unavailable, for at
    most ``seconds``, so repetitions must be harmless. Raises ``StoreUnavailable`` after that time,
    and ``CancelledError``.
    """
    until = time.monotonic() + seconds
    pause = 0.1
    while True:
        try:
            return call()
        except StoreUnavailable:
            if time.monotonic() >= until:
                raise
            alive()
            time.sleep(pause)
            pause = min(2 * pause, 2.0)


def _beat(*details: object) -> None:
    """Send one heartbeat, if the worker's event loop accepts it.

    The SDK waits ten seconds for that, and then raises. This happens on a machine that was asleep
    or is overloaded. The exception is not an error of the activity, and the next heartbeat may
    succeed.
    """
    if activity.in_activity():
        with suppress(TimeoutError):
            activity.heartbeat(*details)


@contextmanager
def reporting(report: Callable[[Fence, str], None], fence: Fence) -> Iterator[None]:
    """Report an error that a retry cannot fix: a damaged row, a refused statement, or a bug in our
    code.

    ``report`` records the error message for the run. The activity is retried until the cause is
    repaired. If the run's own row is damaged, nothing is recorded. For a bug, only the type of the
    error is reported, because the error's message can contain secrets.
    """
    try:
        yield
    except (RowUnreadable, StoreRefused) as error:
        with suppress(Exception):
            report(fence, str(error))
        raise
    except (LifecycleError, FailureError):
        raise
    except Exception as error:
        with suppress(Exception):
            report(fence, f"an unexpected error: {type(error).__name__}; see the log of the worker")
        raise


@contextmanager
def beating(every_s: float = 3.0) -> Iterator[None]:
    """Send heartbeats in the background while a blocking call runs.

    So Temporal notices within the heartbeat timeout that a worker has died. A call that hangs in a
    living worker is limited by the activity's start-to-close timeout. A heartbeat is the call
    through which an activity learns of its cancellation.
    """
    over = threading.Event()
    context = contextvars.copy_context()
    loop = Loop("the heartbeat of an activity", every_s, first_s=every_s)
    work = functools.partial(loop.run_in_thread, lambda: context.run(_beat), over)
    thread = threading.Thread(target=work, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def send_event(events: EventStore, event: Event, sink: EventSink) -> None:
    """Send a recorded event, and record this try.

    Raises ``NotDelivered`` after recording the reason.
    """
    try:
        sink.send(event)
    except NotDelivered as error:
        _record_try(events, event, sink.name, str(error))
        raise
    _record_try(events, event, sink.name)


def _record_try(events: EventStore, event: Event, sink: str, error: str | None = None) -> None:
    meters.delivered(sink, error)
    events.record_delivery(event.seq, sink, error)


def push_event(events: EventStore, event: Event, notifiers: Sequence[Notifier]) -> None:
    """Push a recorded event through each notifier that has not delivered it, and record each try.

    All push at the same time, each for at most ``PUSH_S``, whatever its own limit. So several
    notifiers take no longer than one notifier, and a notifier that hangs counts as failed. Raises
    the first error after all notifiers were tried.
    """
    done = events.delivered_by(event.seq)
    waiting = {notifier.name: notifier for notifier in notifiers if notifier.name not in done}
    pushing = Abreast[str, None](lambda name: waiting[name].push(event), slow_s=PUSH_S)
    late = NotDelivered(f"no response within {PUSH_S:.1f} s")
    answers: dict[str, object] = {**dict.fromkeys(waiting, late), **dict(pushing.over(waiting))}
    failures = [answer for answer in answers.values() if isinstance(answer, Exception)]
    for name, answer in answers.items():
        if isinstance(answer, NotDelivered):
            _record_try(events, event, name, str(answer))
        elif not isinstance(answer, Exception):
            _record_try(events, event, name)
    if failures:
        raise failures[0]
