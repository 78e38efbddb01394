"""Calls and pauses of a workflow, which a stop can always interrupt.

An execution continues as a new one long before its history reaches a limit of the server (``MustLeave``).
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

#: Longest pause before an answer that could not be read is asked for again, in seconds.
ASK_AGAIN_MAX_S = 60.0
#: The same for activities on the control queue: the steps of a stop, which nothing can replace.
ASK_AGAIN_STOPPING_S = 15.0
A = TypeVar("A")
R = TypeVar("R")


#: Events after which an execution continues as a new one. A worker without it in its cache replays them all, some 0.1
#: to 0.2 ms each; continuing costs one more step. A round, or a window of a stop with its hundred calls, comes on top;
#: the server suggests it at 4,096 by default.
HISTORY_MAX = 400
#: Events and bytes after which it does so at once, whatever is under way, and takes that up again in the next one. The
#: server takes no signal, a stop neither, after 10,000 of them, and ends an execution of 50 MiB.
HISTORY_MOST, HISTORY_BYTES_MOST = 7_200, 16 * 2**20


class Interrupted(Exception):
    """Something more important came up while an activity was awaited; the step is taken again."""


class MustLeave(Exception):
    """The history is about to reach a limit of the server: the awaited work is left to the next execution."""


def history_full(most: int | None = None) -> bool:
    """Return whether this execution is to go on as another one as soon as it may: after ``most`` events
    (``HISTORY_MAX``)."""
    info = workflow.info()
    return info.is_continue_as_new_suggested() or info.get_current_history_length() >= (most or HISTORY_MAX)


def must_leave() -> bool:
    """Return whether it is to do so at once. Checked in every call and every pause: somebody may be flooding it."""
    info = workflow.info()
    return info.get_current_history_length() >= HISTORY_MOST or info.get_current_history_size() >= HISTORY_BYTES_MOST


def may_leave(most: int | None = None) -> bool:
    """Return whether to continue as new now, ``history_full`` of ``most``. While an update hangs, looks, deployments
    and stops go on where they are.
    """
    return history_full(most) and workflow.all_handlers_finished()


class NotTaken(Exception):
    """No worker of a task queue took an activity in time, or the only one of its queue could not do it."""


def never() -> bool:
    """Never true."""
    return False


def start(method: Callable[[Any, A], R], arg: A, **options: Unpack[Options]) -> workflow.ActivityHandle[R]:
    """Start an activity by the policy table."""
    # By name and raw: an answer that cannot be read would fail the workflow task before our code could ask again.
    handle: workflow.ActivityHandle[Any] = workflow.start_activity(
        method.__name__, arg, result_type=RawValue, **config(method.__name__, **options)
    )
    return handle


async def call(
    method: Callable[[Any, A], R],
    arg: A,
    *,
    wake: Callable[[], bool] = never,
    seconds: float | None = None,
    **options: Unpack[Options],
) -> R:
    """The activity's answer. Raises ``Interrupted`` as soon as ``wake()`` holds or ``seconds`` have passed,
    ``MustLeave`` when this execution can go on no longer, and ``NotTaken`` when no worker took it in ``taken_s``, or
    when that of ``queue`` died or failed with it.

    An interrupted activity is asked to cancel and its answer is not awaited: it may hang, and it is idempotent and
    fenced, so that it can do no harm later. An error of the domain keeps its own type. An answer that cannot be read
    (another build's, a foreign worker's) is asked for again, for ever and in sight: that is what idempotence is for.
    """
    tries, left, began = 0, seconds, workflow.now()
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
                raise Interrupted


async def _once(
    method: Callable[[Any, A], R], arg: A, wake: Callable[[], bool], seconds: float | None, options: Options
) -> R:
    if wake():
        raise Interrupted
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
        raise Interrupted
    return await _answer(method, handle, elsewhere=options.get("queue") is not None)


async def _answer(method: Callable[[Any, A], R], handle: workflow.ActivityHandle[Any], elsewhere: bool) -> R:
    """``elsewhere``: whether what could be mended by another try is asked of another queue."""
    try:
        raw: RawValue | None = await handle
    except ActivityError as error:
        cause = error.cause
        if isinstance(cause, ServerTimeout) and (elsewhere or cause.type is TimeoutType.SCHEDULE_TO_START):
            raise NotTaken from error
        if elsewhere and isinstance(cause, ApplicationError) and cause.type not in not_retryable():
            raise NotTaken from error
        if isinstance(cause, ApplicationError) and cause.type:
            raise ApplicationError(cause.message, type=cause.type, non_retryable=True) from error
        raise
    try:
        answer: R = read_answer(method, raw.payload if raw is not None else Payload(), workflow.payload_converter())
    except Exception as error:  # whatever a foreign payload does to a decoder
        raise _Unreadable(" ".join(str(error).split())[:100] or type(error).__name__) from error
    return answer


class _Unreadable(Exception):
    """An activity's answer is not what it should be."""


def _report_unreadable(method: Callable[[Any, A], Any], error: _Unreadable, seconds: float) -> None:
    """Say in the log and, where the workflow takes notes, in its snapshot that an answer could not be read."""
    text = f"the answer of {method.__name__} could not be read, it is asked again in {seconds:g} s: {error}"
    workflow.logger.error(text)
    note = getattr(workflow.instance(), "note", None)
    if note is not None:
        note(text)


async def pause(seconds: float | None, wake: Callable[[], bool], summary: str | None = None) -> None:
    """Wait until ``wake()`` returns true, at most ``seconds``. Raises ``MustLeave``."""
    if wake() or (seconds is not None and seconds <= 0):
        return
    timeout = None if seconds is None else timedelta(seconds=seconds)
    try:
        await workflow.wait_condition(lambda: wake() or must_leave(), timeout=timeout, timeout_summary=summary)
    except TimeoutError:
        return
    if not wake():
        raise MustLeave


class WithoutSignals:
    """A workflow that knows no signal. What comes all the same is counted, said once and dropped.

    The handler is needed: the SDK would keep every signal for one that may come, and wake nobody.
    """

    unknown_signals = 0

    @workflow.signal(dynamic=True, description="no signal is known here: whatever comes is counted and dropped")
    def _on_signal(self, name: str, args: Sequence[RawValue]) -> None:
        self.unknown_signals += 1
        if self.unknown_signals == 1:
            workflow.logger.warning("unknown signal %s dropped, and every one that follows: none is known here", name)


def reason(error: FailureError) -> str:
    """The cause of a failure, in the words of the innermost error that has some."""
    if isinstance(error, ActivityError) and error.cause is not None:
        return str(getattr(error.cause, "message", None) or error.cause)
    return error.message or str(error)


def fire_and_forget(handle: workflow.ActivityHandle[Any]) -> None:
    """Start an activity without waiting for it; its result is ignored."""
    handle.add_done_callback(look_away)


def abandon(handles: Sequence[workflow.ActivityHandle[Any]]) -> None:
    """Ask activities to cancel and never await them."""
    for handle in handles:
        fire_and_forget(handle)
        handle.cancel()


def look_away(task: asyncio.Task[Any]) -> None:
    """Retrieve the outcome, so that asyncio does not report an exception that nobody waits for."""
    if not task.cancelled():
        task.exception()


class Beside:
    """Coroutines that run beside the loop of a workflow. Their results are ignored."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()  # asyncio itself would forget them

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it until it ends, or the execution does."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(look_away)
        task.add_done_callback(self._tasks.discard)


class Alarm:
    """Rings when a time has come: ``rang`` is true until the workflow says otherwise.

    One timer goes on while that time moves further away: a timer for each wait would cost two events more.
    """

    def __init__(self, at: Callable[[], datetime | None], summary: str) -> None:
        self._at, self._summary = at, summary
        self.rang = False

    async def keep(self, over: Callable[[], bool]) -> None:
        """Watch the time until it is over. Raises ``MustLeave``."""
        while not over():
            await workflow.wait_condition(lambda: self._at() is not None and not self.rang)
            at = self._at()
            if at is None:
                continue
            left = (at - workflow.now()).total_seconds()
            if left > 0.002:  # the server's timers have whole milliseconds
                await pause(left, lambda at=at: (now := self._at()) is None or now < at, self._summary)  # type: ignore[misc]
            else:
                self.rang = True
