"""Calling activities from a workflow so that a stop never waits behind one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.exceptions import ActivityError, ApplicationError, FailureError

from crawler_lifecycle.domain.names import QUEUE_CONTROL

from .policies import config
from .requests import read_answer

#: Longest pause before an answer that could not be read is asked for again, in seconds.
ASK_AGAIN_MAX_S = 60.0
#: The same for what runs on the control queue: the steps of a stop, which nothing can stand in for.
ASK_AGAIN_STOPPING_S = 15.0
#: Events after which an execution goes on as another one, before the server suggests it (at 4,096 by default): a round,
#: or a window of a stop with its hundred calls, comes on top.
HISTORY_MAX = 3_600

A = TypeVar("A")
R = TypeVar("R")


class Interrupted(Exception):
    """Something more important came up while an activity was awaited; the step is taken again."""


def history_full() -> bool:
    """Whether this execution is to go on as another one as soon as it may."""
    info = workflow.info()
    return info.is_continue_as_new_suggested() or info.get_current_history_length() >= HISTORY_MAX


def may_leave() -> bool:
    """Whether to continue as new now. While an update hangs, looks, deployments and stops go on where they are."""
    return history_full() and workflow.all_handlers_finished()


def start(
    method: Callable[[Any, A], R], arg: A, *, control: bool = False, summary: str | None = None
) -> workflow.ActivityHandle[R]:
    """Start an activity by the policy table."""
    options = config(method.__name__, control=control, summary=summary)
    # By name and raw: an answer that cannot be read would fail the workflow task before our code could ask again.
    handle: workflow.ActivityHandle[Any] = workflow.start_activity(
        method.__name__, arg, result_type=RawValue, **options
    )
    return handle


async def call(
    method: Callable[[Any, A], R],
    arg: A,
    *,
    control: bool = False,
    summary: str | None = None,
    wake: Callable[[], bool] | None = None,
    seconds: float | None = None,
) -> R:
    """The activity's answer. Raises ``Interrupted`` as soon as ``wake()`` holds or ``seconds`` have passed.

    An interrupted activity is asked to cancel and its answer is not awaited: it may hang, and it is idempotent and
    fenced, so that it can do no harm later. An error of the domain keeps its own type. An answer that cannot be read
    (another build's, a foreign worker's) is asked for again, for ever and in sight: that is what idempotence is for.
    """
    tries, left, began = 0, seconds, workflow.now()
    while True:
        try:
            return await _once(method, arg, control, summary, wake, left)
        except _Unreadable as error:
            tries += 1
            queue = config(method.__name__, control=control)["task_queue"]
            most = ASK_AGAIN_STOPPING_S if queue == QUEUE_CONTROL else ASK_AGAIN_MAX_S
            again = min(float(2**tries), most)
            _tell(method, error, again)
        await pause(again if left is None else min(again, left), wake or (lambda: False), "asking again")
        if seconds is not None:
            left = seconds - (workflow.now() - began).total_seconds()
            if left <= 0:
                raise Interrupted


async def _once(
    method: Callable[[Any, A], R],
    arg: A,
    control: bool,
    summary: str | None,
    wake: Callable[[], bool] | None,
    seconds: float | None,
) -> R:
    if wake is not None and wake():
        raise Interrupted
    handle = start(method, arg, control=control, summary=summary)
    if wake is None and seconds is None:
        return await _answer(method, handle)
    await pause(seconds, lambda: handle.done() or (wake is not None and wake()))
    if not handle.done():
        abandon([handle])
        raise Interrupted
    return await _answer(method, handle)


async def _answer(method: Callable[[Any, A], R], handle: workflow.ActivityHandle[Any]) -> R:
    try:
        raw: RawValue | None = await handle
    except ActivityError as error:
        cause = error.cause
        if isinstance(cause, ApplicationError) and cause.type:
            raise ApplicationError(cause.message, type=cause.type, non_retryable=True) from error
        raise
    try:
        answer: R = read_answer(method, raw.payload if raw is not None else Payload(), workflow.payload_converter())
    except Exception as error:  # whatever a stranger's payload does to a decoder
        raise _Unreadable(" ".join(str(error).split())[:100] or type(error).__name__) from error
    return answer


class _Unreadable(Exception):
    """An activity's answer is not what it should be."""


def _tell(method: Callable[[Any, A], Any], error: _Unreadable, seconds: float) -> None:
    """Say in the log and, where the workflow takes notes, in its snapshot that an answer could not be read."""
    text = f"the answer of {method.__name__} could not be read, it is asked again in {seconds:g} s: {error}"
    workflow.logger.error(text)
    note = getattr(workflow.instance(), "note", None)
    if note is not None:
        note(text)


async def pause(seconds: float | None, wake: Callable[[], bool], summary: str | None = None) -> None:
    """Wait until ``wake()`` holds, at most ``seconds``."""
    if wake() or (seconds is not None and seconds <= 0):
        return
    timeout = None if seconds is None else timedelta(seconds=seconds)
    try:
        await workflow.wait_condition(wake, timeout=timeout, timeout_summary=summary)
    except TimeoutError:
        return


def reason(error: FailureError) -> str:
    """What went wrong, in the words of the innermost error that has some."""
    if isinstance(error, ActivityError) and error.cause is not None:
        return str(getattr(error.cause, "message", None) or error.cause)
    return error.message or str(error)


def neglect(handle: workflow.ActivityHandle[Any]) -> None:
    """Let an activity run without waiting for it, whatever comes of it."""
    handle.add_done_callback(_look_away)


def abandon(handles: Sequence[workflow.ActivityHandle[Any]]) -> None:
    """Ask activities to cancel and never await them."""
    for handle in handles:
        neglect(handle)
        handle.cancel()


def _look_away(task: asyncio.Task[Any]) -> None:
    """Retrieve the outcome, so that asyncio does not report an exception that nobody waits for."""
    if not task.cancelled():
        task.exception()
