"""Interceptors of activities and workflows for log fields, metrics, retry-after, and heartbeats of
short activities.

Log fields are set before the code runs. Every log line of the code or of a library therefore has
the run, attempt, task, workflow, activity, try and task queue. Metrics and log lines about finished
activities are derived from their results.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import logging
import time
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import Any

import structlog
from temporalio import activity, workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    ExecuteWorkflowInput,
    HandleQueryInput,
    HandleSignalInput,
    HandleUpdateInput,
    Interceptor,
    StartActivityInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)

from crawler_lifecycle.activities import meters
from crawler_lifecycle.activities.cancellation import RecordStop
from crawler_lifecycle.activities.completion import RunEnded
from crawler_lifecycle.activities.initiation import CreateHistory
from crawler_lifecycle.activities.meters import count, measure
from crawler_lifecycle.activities.reconciliation import PollAnswer, PollOrder
from crawler_lifecycle.background import Beside, Loop
from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.domain.run import ExportResult
from crawler_lifecycle.observability.logs import of_workflow
from crawler_lifecycle.ports.runs import Fence, RunHandle

from .floods import WAKING

log = logging.getLogger(__name__)

#: The maximum number of log lines per activation of a workflow. On each replay, the lines of ten
#: thousand signals would block its thread for longer than the SDK allows.
LINES_MAX = 10


class Lines:
    """A counter of the lines that one workflow has logged in its current activation."""

    def __init__(self) -> None:
        self._at = self._count = -1

    def left(self) -> int:
        """Return the number of lines that the workflow may still log."""
        at = workflow.info().get_current_history_length()
        if at != self._at:
            self._at = at
            self._count = 0
        return LINES_MAX - self._count

    def take(self) -> int:
        """Count one more line. Return how many lines were still allowed before this one."""
        left = self.left()
        self._count += 1
        return left


#: The line counter of the workflow whose code is running; ``None`` outside workflows.
_lines: contextvars.ContextVar[Lines | None] = contextvars.ContextVar("lines", default=None)


def bounded(record: logging.LogRecord) -> bool:
    """Return whether to write a log line of workflow code; lines of other code are always written.

    A note is added to the last line of an activation.
    """
    lines = _lines.get()
    if lines is None or not workflow.in_workflow():
        return True
    left = lines.take()
    if left == 1:
        record.msg = f"{record.msg} (further lines of this step are not logged)"
    return left > 0


def subject(args: Sequence[object]) -> dict[str, object]:
    """Return the ids of the run, manager, attempt and task in the first argument of an activity."""
    found: dict[str, object] = {}
    for arg in args[:1]:
        if isinstance(arg, int):  # a number alone is the run id
            found["run_id"] = arg
        parts = (
            arg,
            getattr(arg, "fence", None),
            getattr(arg, "request", None),
            getattr(arg, "task", None),
        )
        for name in ("run_id", "manager_id", "attempt", "task_id"):
            value = next(
                (v for part in parts if (v := getattr(part, name, None)) is not None), None
            )
            if value is not None:
                found[name] = value
    return found


class Observing(Interceptor):
    """The interceptor of our workers for log fields, metrics and retry-after."""

    def __init__(self) -> None:
        # The SDK appends its fields to every message; here they are separate fields.
        activity.logger.activity_info_on_message = False
        workflow.logger.workflow_info_on_message = False
        workflow.logger.base_logger.addFilter(bounded)

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Activity(next)

    def workflow_interceptor_class(
        self, input: WorkflowInterceptorClassInput
    ) -> type[WorkflowInboundInterceptor]:
        return _Workflow


class _Activity(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        info = activity.info()
        # The fields stay bound, because the SDK later logs a failure in the same asyncio task,
        # which then ends.
        structlog.contextvars.bind_contextvars(
            workflow_id=info.workflow_id,
            workflow_run_id=info.workflow_run_id,
            activity=info.activity_type,
            task_queue=info.task_queue,
            **{"try": info.attempt},
            **subject(input.args),
        )
        began = time.monotonic()
        try:
            answer = await super().execute_activity(input)
        except BaseException as error:
            failed(info.activity_type, error)
            later = _later(error, info)
            if later is None:
                raise
            raise later.with_traceback(error.__traceback__) from error.__cause__
        seconds = time.monotonic() - began
        if recorder := _RECORDERS.get(info.activity_type):
            recorder(input.args[0] if input.args else None, answer, seconds)
        log.debug("%s done in %.3f s", info.activity_type, seconds)
        return answer


class _Workflow(WorkflowInboundInterceptor):
    """Interceptor of one workflow execution. All its code shares these log fields."""

    fields: dict[str, object]
    lines: Lines

    def _enter(self) -> None:
        of_workflow.set(self.fields)
        _lines.set(self.lines)

    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        self.fields = {}
        self.lines = Lines()
        super().init(_Calls(outbound, self.fields))

    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
        info = workflow.info()
        self.fields.update(
            workflow_id=info.workflow_id, workflow_run_id=info.run_id, task_queue=info.task_queue
        )
        self.fields["workflow"] = info.workflow_type
        self._enter()
        workflow.logger.info("workflow continues" if info.continued_run_id else "workflow begins")
        try:
            result = await super().execute_workflow(input)
        except Exception as error:
            # Only the type is logged. It may be continue-as-new or a bug, and the SDK logs a bug
            # itself.
            workflow.logger.debug("workflow ended by %s", type(error).__name__)
            raise
        workflow.logger.info("workflow ends")
        return result

    async def handle_signal(self, input: HandleSignalInput) -> None:
        self._enter()
        # Wake-ups are frequent: there is one for every change on the cluster, and a manager gets
        # one for every end of a run. The following poll or manager cycle logs the result.
        level = logging.DEBUG if input.signal in (*WAKING, names.SIGNAL_MORE) else logging.INFO
        # This is checked here too, because building a line that is then dropped costs time.
        if self.lines.left() > 0:
            workflow.logger.log(level, "signal %s", input.signal)
        await super().handle_signal(input)

    async def handle_query(self, input: HandleQueryInput) -> Any:
        self._enter()
        return await super().handle_query(input)

    def handle_update_validator(self, input: HandleUpdateInput) -> None:
        self._enter()
        super().handle_update_validator(input)

    async def handle_update_handler(self, input: HandleUpdateInput) -> Any:
        self._enter()
        workflow.logger.info("update %s", input.update)
        return await super().handle_update_handler(input)


class _Calls(WorkflowOutboundInterceptor):
    """Adds the run to the log fields, from the arguments of the activities that the workflow
    calls.
    """

    def __init__(self, next: WorkflowOutboundInterceptor, fields: dict[str, object]) -> None:
        super().__init__(next)
        self._fields = fields

    def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:
        about = subject(input.args)
        self._fields.update(
            (name, about[name]) for name in ("run_id", "manager_id", "attempt") if name in about
        )
        return super().start_activity(input)


def failed(name: str, error: BaseException) -> None:
    """Count a failed try of an activity. The SDK logs it."""
    if meters.expected(error):
        return
    count(meters.FAILURES, activity=name, error=meters.error_class(error))
    if name == "get_history_statuses_to_sync":
        count(meters.POLLS, result="failed")
    if name == "export_supporting_files":
        count(meters.EXPORTS, result="failed")


def _began(_: CreateHistory, handle: RunHandle, __: float) -> None:
    count(
        meters.RUNS_STARTED,
        trigger=str(handle.request.trigger),
        resumed=str(handle.resumed).lower(),
    )
    about = {"run_id": handle.run_id, "attempt": handle.attempt}
    crawler = handle.request.crawler
    log.info(
        "run %d begins: attempt %d of crawler %s",
        handle.run_id,
        handle.attempt,
        crawler,
        extra=about,
    )


def _ended(_: Fence, ended: RunEnded, __: float) -> None:
    count(
        meters.RUNS_ENDED,
        status=str(ended.status),
        outcome=meters.outcome_class(ended.outcome),
        ended_by=ended.ended_by or "unknown",
    )
    log.info("run ended %s / %s: %s", ended.status, ended.outcome, ended.cause)


def _polled(_: PollOrder, answer: PollAnswer, __: float) -> None:
    meters.polled(answer.seconds)


def _stopped(order: RecordStop, _: object, __: float) -> None:
    for heard in order.heard:
        intent = heard.intent
        kind = "limit" if intent.limit is not None else "forced" if intent.force else "graceful"
        count(meters.STOPS, kind=kind)
        why = intent.limit or intent.reason or "no reason given"
        log.info("stop (%s) by %s: %s", kind, intent.requested_by or "unnamed", why)


def _exported(_: Fence, result: ExportResult | None, seconds: float) -> None:
    count(meters.EXPORTS, result="empty" if result is None else "exported")
    if result is not None:
        count(meters.EXPORT_BYTES, result.bytes)
        measure(meters.EXPORT_TIME, seconds)


_RECORDERS: dict[str, Callable[[Any, Any, float], None]] = {
    "create_history_id": _began,
    "update_run_status": _ended,
    "get_history_statuses_to_sync": _polled,
    "record_stop": _stopped,
    "export_supporting_files": _exported,
}


def _later(error: BaseException, info: activity.Info) -> ApplicationError | None:
    """Return the same error with the wait that a server requested; ``None`` if it did not request
    one.

    Adapters put the server's Retry-After into ``LifecycleError.retry_after_s``. Here it becomes
    Temporal's delay before the next try. The wait is never shorter than the policy's wait, because
    an overloaded server may ask all clients to return after one second. Nor is it longer than the
    policy's longest wait, so a stop is retried after 15 s even if an overloaded API server requests
    a longer wait.
    """
    if not isinstance(error, LifecycleError) or not error.retryable or error.retry_after_s is None:
        return None
    asked = min(timedelta(seconds=error.retry_after_s), longest(info.retry_policy))
    delay = max(asked, interval(info.retry_policy, info.attempt))
    return ApplicationError(str(error), type=error.code, next_retry_delay=delay)


def longest(policy: RetryPolicy | None) -> timedelta:
    """Return the policy's longest wait between two tries."""
    if policy is None:
        return timedelta.max
    # This is the default of Temporal's server.
    return policy.maximum_interval or 100 * policy.initial_interval


def interval(policy: RetryPolicy | None, attempt: int) -> timedelta:
    """Return the policy's wait after this try. The first try has the number 1."""
    if policy is None:
        return timedelta(0)
    most_s = longest(policy).total_seconds()
    # After a hundred doublings, the longest wait is always reached; thousands would overflow a
    # float.
    grown_s = policy.initial_interval.total_seconds() * policy.backoff_coefficient ** min(
        attempt - 1, 100
    )
    return timedelta(seconds=min(grown_s, most_s))


class HeartbeatInterceptor(Interceptor):
    """Sends heartbeats for the activities in ``names`` from the worker's event loop, three per
    heartbeat timeout.

    ``note`` is called with each activity that begins.

    Polls, deployments and stops send their own heartbeats. Other activities only wait for the
    database, and have long time limits. With heartbeats, Temporal notices the death of their worker
    sooner.
    """

    def __init__(self, names: Collection[str], note: Callable[[activity.Info], None]) -> None:
        self.names = frozenset(names)
        self.note = note

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Beating(next, self)


class _Beating(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, of: HeartbeatInterceptor) -> None:
        super().__init__(next)
        self._of = of

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        info = activity.info()
        self._of.note(info)
        if info.heartbeat_timeout is None or info.activity_type not in self._of.names:
            return await super().execute_activity(input)
        every_s = info.heartbeat_timeout.total_seconds() / 3
        async with Beside() as beside:
            # In an activity that is a plain function, ``heartbeat`` waits for the event loop, so
            # calling it here would block.
            in_thread = functools.partial(asyncio.to_thread, activity.heartbeat)
            beat = _beat if inspect.iscoroutinefunction(input.fn) else in_thread
            beside.start(Loop("the heartbeat of an activity", every_s, first_s=every_s).run(beat))
            return await super().execute_activity(input)


async def _beat() -> None:
    activity.heartbeat()
