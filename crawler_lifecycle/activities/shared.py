"""Parts that several stages share: wire formats of activities, heartbeats, and the delivery of events."""

from __future__ import annotations

import contextvars
import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
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
from crawler_lifecycle.ports.protocols import Notifier
from crawler_lifecycle.ports.runs import Event, Fence, TaskCounts

from . import meters

if TYPE_CHECKING:
    from crawler_lifecycle.store.events import EventStore

log = logging.getLogger(__name__)

Clock = Callable[[], datetime]
T = TypeVar("T")


def utc_now() -> datetime:
    """Now, aware, in UTC."""
    return datetime.now(UTC)


#: For each class: the name of each of its activities, with the name of the method.
_DEFINED: dict[type, dict[str, str]] = {}


def activities_in(owner: object) -> dict[str, Callable[..., Any]]:
    """The activities among an object's methods, by their names."""
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
    """The answer of the method ``ask_<name>`` to users' code. Raises ``InvalidRequest`` for an unknown question."""
    answer = getattr(owner, f"ask_{name}", None)
    if answer is None:
        raise InvalidRequest(f"{name!r:.80} is no question")
    try:
        return answer(**arguments)
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{name}: {error}") from None


def there(row: T | None, what: str) -> T:
    """The row of ``what``, such as ``graph 7``. Raises ``RunNotFound`` when there is none."""
    if row is None:
        raise RunNotFound(f"{what} does not exist; crawlctl {what.partition(' ')[0]} list shows what there is")
    return row


def keep_output(keep: Callable[[int, str], None], id: int, printed: str) -> None:
    """Record what users' code printed. The output is no part of its effects."""
    try:
        if printed:
            keep(id, printed)
    except LifecycleError as error:
        log.warning("what %d printed is not kept: %s", id, error)


def ordered_at() -> datetime | None:
    """Time at which this try was scheduled, by the clock of the Temporal server: later tries have later times."""
    return activity.info().current_attempt_scheduled_time if activity.in_activity() else None


@dataclass(frozen=True, slots=True)
class Counts:
    """Tasks of a run by status, as activities answer them."""

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
    """Heartbeat from a point at which the activity can end. Raises ``CancelledError`` when it was asked to.

    Activities are never interrupted anywhere else (``no_thread_cancel_exception``): the SDK would throw an exception
    into the thread at any instruction, also between taking a lock and remembering it, and then the lock is gone for
    every thread of the worker.
    """
    _beat(*details)
    if activity.in_activity() and activity.is_cancelled():
        raise CancelledError("cancelled, or the worker leaves")


def patient(call: Callable[[], T], seconds: float) -> T:
    """The result of the call.

    While the database is unavailable the call is repeated, for a limited time; repeating it must be harmless. Raises
    ``CancelledError``, and ``StoreUnavailable`` after that time.
    """
    until, pause = time.monotonic() + seconds, 0.1
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
    """One heartbeat, if the worker's event loop takes it.

    The SDK waits ten seconds for that and then raises; on a machine that was asleep or is starved that says nothing
    against the activity, and the next beat may get through.
    """
    if activity.in_activity():
        with suppress(TimeoutError):
            activity.heartbeat(*details)


@contextmanager
def telling(tell: Callable[[Fence, str], None], fence: Fence) -> Iterator[None]:
    """Report, by ``tell``, an error that is no outage: a row damaged by a manual edit, a statement that the database
    refused, a bug of ours.

    The activity is retried until somebody repairs it. When the run's own row is the damaged one, nothing is written to
    it. Of a bug only its type is reported: its text may hold anything.
    """
    try:
        yield
    except (RowUnreadable, StoreRefused) as error:
        with suppress(Exception):
            tell(fence, str(error))
        raise
    except (LifecycleError, FailureError):
        raise
    except Exception as error:
        with suppress(Exception):
            tell(fence, f"this build cannot go on here ({type(error).__name__}); the log of its worker says where")
        raise


@contextmanager
def beating(every_s: float = 3.0) -> Iterator[None]:
    """Heartbeat in the background while a blocking call runs.

    A worker that dies is then noticed within the heartbeat timeout; a call that hangs in a living worker is still
    bounded by the activity's start-to-close timeout. Cancellation of the activity is delivered by heartbeats, too.
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


def send_event(events: EventStore, event: Event, send: Callable[[Event], None], sink: str) -> Event:
    """Send a recorded event, and record this try. Raises ``NotDelivered`` after recording the reason."""
    try:
        send(event)
    except NotDelivered as error:
        meters.delivered(sink, str(error))
        events.record_delivery(event.seq, sink, str(error))
        raise
    meters.delivered(sink)
    events.record_delivery(event.seq, sink, None)
    return event


def push_event(events: EventStore, event: Event, notifiers: Sequence[Notifier]) -> None:
    """Push an event that is on record by each notifier that has not delivered it, with each try on record.

    A notifier that fails does not delay the others. Raises the first ``NotDelivered`` after all were tried.
    """
    done, failures = events.delivered_by(event.seq), list[NotDelivered]()
    for notifier in notifiers:
        if notifier.name not in done:
            try:
                send_event(events, event, notifier.push, notifier.name)
            except NotDelivered as error:
                failures.append(error)
    if failures:
        raise failures[0]
