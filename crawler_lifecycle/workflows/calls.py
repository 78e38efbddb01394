"""Calls of activities and pauses of a workflow, which a stop can always interrupt.

The workflow continues as new long before its history reaches a limit of the server (``MustLeave``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar, Unpack

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, TimeoutType
from temporalio.exceptions import TimeoutError as ServerTimeout

from crawler_lifecycle.domain.errors import not_retryable
from crawler_lifecycle.domain.names import QUEUE_CONTROL

from .policies import Options, config
from .requests import read_answer

#: The maximum wait, in seconds, before an activity is called again because its result could not be
#: read.
ASK_AGAIN_MAX_S = 60.0
#: The same limits for activities on the control queue. They are shorter because a stop needs these
#: activities.
ASK_AGAIN_STOPPING_S = 15.0
A = TypeVar("A")
R = TypeVar("R")
#: A value that a workflow waits for.
Condition = Callable[[], bool]


#: The number of events after which a workflow continues as new at its next step. A worker that does
#: not have the workflow in its cache replays all events, at 0.1 to 0.2 ms each. The current step
#: can add a few hundred events. By default, the server suggests continue-as-new at 4,096 events.
HISTORY_MAX = 400
#: The numbers of events and bytes after which a workflow continues as new at once. The next
#: execution repeats the interrupted step. After 10,000 signals, the server accepts no further
#: signals, not even a stop. It ends an execution with a history of 50 MiB.
HISTORY_MOST = 7_200
HISTORY_BYTES_MOST = 16 * 2**20


class StepInterrupted(Exception):
    """Something more important came up while a step waited for an activity. The step is repeated
    later.
    """


class MustLeave(Exception):
    """The history is close to a limit of the server.

    The next execution repeats the interrupted step.
    """


def history_full(most: int | None = None) -> bool:
    """Return whether the workflow should continue as new at its next step, that is, after ``most``
    events (``HISTORY_MAX``).
    """
    info = workflow.info()
    return info.is_continue_as_new_suggested() or info.get_current_history_length() >= (
        most or HISTORY_MAX
    )


def must_leave() -> bool:
    """Return whether the workflow must continue as new at once.

    Every call and pause checks this, because somebody can send a great many signals.
    """
    info = workflow.info()
    return (
        info.get_current_history_length() >= HISTORY_MOST
        or info.get_current_history_size() >= HISTORY_BYTES_MOST
    )


def may_leave(most: int | None = None) -> bool:
    """Return whether to continue as new now: the history is full, and every update is answered.

    While an update hangs, polls, deployments and stops continue in this execution.
    """
    return history_full(most) and workflow.all_handlers_finished()


class NotTaken(Exception):
    """No worker took an activity in time, or the only worker of the queue failed while executing
    it.
    """


def never() -> bool:
    """Return false."""
    return False


def start(
    method: Callable[[Any, A], R], arg: A, **options: Unpack[Options]
) -> workflow.ActivityHandle[R]:
    """Start an activity with the options of the policy table.

    A workflow without signals shows the activity as its details; others show their whole state.
    """
    if isinstance(workflow.instance(), WithoutSignals):
        step = options.get("summary") or method.__name__.replace("_", " ")
        workflow.set_current_details(f"{step}, since {workflow.now():%H:%M:%S} UTC")
    # The result stays raw. If the SDK could not read it, the workflow task would fail, and our code
    # could not retry.
    handle: workflow.ActivityHandle[Any] = workflow.start_activity(
        method.__name__, arg, result_type=RawValue, **config(method.__name__, **options)
    )
    return handle


async def call(
    method: Callable[[Any, A], R],
    arg: A,
    *,
    wake: Condition = never,
    seconds: float | None = None,
    **options: Unpack[Options],
) -> R:
    """Call an activity and return its result.

    Raises ``StepInterrupted`` as soon as ``wake()`` returns true or ``seconds`` have passed. Raises
    ``MustLeave`` if the workflow must continue as new at once. Raises ``NotTaken`` if no worker
    took the activity within ``taken_s``, or if the worker of ``queue`` died or failed while
    executing it. A domain error keeps its type.

    An interrupted activity is asked to cancel, and nobody waits for it, because it may hang. It
    does no harm later, because activities are idempotent and fenced. If a result cannot be read
    (because it is from another build or a foreign worker), a note reports this, and the activity is
    called again without a limit.
    """
    tries = 0
    left = seconds
    began = workflow.now()
    while True:
        try:
            return await _once(method, arg, wake, left, options)
        except _Unreadable as error:
            tries += 1
            asked = config(method.__name__, control=options.get("control", False))["task_queue"]
            most = ASK_AGAIN_STOPPING_S if asked == QUEUE_CONTROL else ASK_AGAIN_MAX_S
            again = min(float(2**tries), most)
            _report_unreadable(method, error, again)
        await pause(again if left is None else min(again, left), wake, "asking again")
        if seconds is not None:
            left = seconds - (workflow.now() - began).total_seconds()
            if left <= 0:
                raise StepInterrupted


async def _once(
    method: Callable[[Any, A], R], arg: A, wake: Condition, seconds: float | None, options: Options
) -> R:
    if wake():
        raise StepInterrupted
    if must_leave():
        raise MustLeave
    handle = start(method, arg, **options)
    try:
        await pause(seconds, lambda: handle.done() or wake())
    except MustLeave:
        abandon([handle])
        raise
    if not handle.done():
        abandon([handle])
        raise StepInterrupted
    return await _answer(method, handle, elsewhere=options.get("queue") is not None)


async def _answer(
    method: Callable[[Any, A], R], handle: workflow.ActivityHandle[Any], elsewhere: bool
) -> R:
    """Return the result of an activity.

    If ``elsewhere`` is true, raise ``NotTaken`` for retryable errors, so that the caller uses
    another queue.
    """
    try:
        raw: RawValue | None = await handle
    except ActivityError as error:
        cause = error.cause
        if isinstance(cause, ServerTimeout) and (
            elsewhere or cause.type is TimeoutType.SCHEDULE_TO_START
        ):
            raise NotTaken from error
        if elsewhere and isinstance(cause, ApplicationError) and cause.type not in not_retryable():
            raise NotTaken from error
        if isinstance(cause, ApplicationError) and cause.type:
            raise ApplicationError(cause.message, type=cause.type, non_retryable=True) from error
        raise
    try:
        answer: R = read_answer(
            method, raw.payload if raw is not None else Payload(), workflow.payload_converter()
        )
    except Exception as error:  # a decoder may raise any error for a foreign payload
        raise _Unreadable(" ".join(str(error).split())[:100] or type(error).__name__) from error
    return answer


class _Unreadable(Exception):
    """The result of an activity cannot be read."""


def _report_unreadable(method: Callable[[Any, A], Any], error: _Unreadable, seconds: float) -> None:
    """Log that a result could not be read, and also add a note if the workflow has notes."""
    text = (
        f"the answer of {method.__name__} could not be read; it is called again in {seconds:g} "
        f"s: {error}"
    )
    workflow.logger.error(text)
    note = getattr(workflow.instance(), "note", None)
    if note is not None:
        note(text)


async def pause(seconds: float | None, wake: Condition, summary: str | None = None) -> None:
    """Wait until ``wake()`` returns true, or for ``seconds`` at most. Raises ``MustLeave``."""
    if wake() or (seconds is not None and seconds <= 0):
        return
    timeout = None if seconds is None else timedelta(seconds=seconds)
    try:
        await workflow.wait_condition(
            lambda: wake() or must_leave(), timeout=timeout, timeout_summary=summary
        )
    except TimeoutError:
        return
    if not wake():
        raise MustLeave


class WithoutSignals:
    """The base class of workflows without signals.

    Signals are counted and ignored, and the first signal is logged. Without a handler, the SDK
    would keep every signal in memory for a handler that might be added later.
    """

    unknown_signals = 0

    @workflow.signal(
        dynamic=True, description="this workflow has no signals: any signal is counted and ignored"
    )
    def _on_signal(self, name: str, args: Sequence[RawValue]) -> None:
        self.unknown_signals += 1
        if self.unknown_signals == 1:
            workflow.logger.warning(
                "unknown signal %s ignored, as all that follow: this workflow has no signals", name
            )


def reason(error: FailureError) -> str:
    """Return the message of a failure, which is that of an activity's own error if there is one."""
    if isinstance(error, ActivityError) and error.cause is not None:
        return str(getattr(error.cause, "message", None) or error.cause)
    return error.message or str(error)


def fire_and_forget(handle: workflow.ActivityHandle[Any]) -> None:
    """Ignore the result of a started activity; nobody waits for it."""
    handle.add_done_callback(look_away)


def abandon(handles: Sequence[workflow.ActivityHandle[Any]]) -> None:
    """Ask activities to cancel, without waiting for them."""
    for handle in handles:
        fire_and_forget(handle)
        handle.cancel()


def look_away(task: asyncio.Task[Any]) -> None:
    """Read the exception of a task, so that asyncio does not report it as never retrieved."""
    if not task.cancelled():
        task.exception()


class Beside:
    """Coroutines that run in parallel with the main loop of a workflow. Their results are
    ignored.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()  # asyncio keeps only weak references to tasks

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a coroutine. It runs until it ends or the execution ends."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(look_away)
        task.add_done_callback(self._tasks.discard)


class Alarm:
    """An alarm: ``rang`` becomes true at a given time, and the workflow resets it.

    If the time is moved to later, the old timer still runs to its end. A new timer for each wait
    would add two events to the history each time.
    """

    def __init__(self, at: Callable[[], datetime | None], summary: str) -> None:
        self._at = at
        self._summary = summary
        self.rang = False

    async def keep(self, over: Condition) -> None:
        """Keep the alarm going until ``over()`` returns true. Raises ``MustLeave``."""
        while not over():
            await workflow.wait_condition(lambda: self._at() is not None and not self.rang)
            at = self._at()
            if at is None:
                continue
            left = (at - workflow.now()).total_seconds()
            if left > 0.002:  # the server's timers have a resolution of one millisecond
                await pause(
                    left,
                    lambda at=at: (now := self._at()) is None or now < at,  # type: ignore[misc]
                    self._summary,
                )
            else:
                self.rang = True
