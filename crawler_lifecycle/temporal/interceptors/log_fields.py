"""Interceptors of activities and workflows: they bind log fields and count what happens.

Log fields are bound before the code runs, so that every line that it or a library writes carries run, attempt, task,
workflow, activity, try and task queue. Nothing here changes what an activity or workflow does.
"""

from __future__ import annotations

import contextvars
import logging
import time
from collections.abc import Sequence
from typing import Any

import structlog
from temporalio import activity, workflow
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

from crawler_lifecycle.domain import names
from crawler_lifecycle.observability.logs import of_workflow

from . import recorders

log = logging.getLogger(__name__)

#: Lines that one activation of a workflow may log. Whoever sends ten thousand signals would else hold its thread for
#: longer than the SDK lets it, each time the workflow is replayed.
LINES_MAX = 10


class Lines:
    """How many lines the present activation of one workflow has logged."""

    def __init__(self) -> None:
        self._at = self._count = -1

    def left(self) -> int:
        """How many more it may log."""
        at = workflow.info().get_current_history_length()
        if at != self._at:
            self._at, self._count = at, 0
        return LINES_MAX - self._count

    def take(self) -> int:
        """Log one more; how many are left before it."""
        left = self.left()
        self._count += 1
        return left


#: The lines of the workflow whose code runs now.
_lines: contextvars.ContextVar[Lines | None] = contextvars.ContextVar("lines", default=None)


def bounded(record: logging.LogRecord) -> bool:
    """Whether this line of workflow code is logged; the last one says so. Lines of other code have no bound here."""
    lines = _lines.get()
    if lines is None or not workflow.in_workflow():
        return True
    left = lines.take()
    if left == 1:
        record.msg = f"{record.msg} (more of this moment is not logged)"
    return left > 0


def subject(args: Sequence[object]) -> dict[str, object]:
    """Which run or manager, attempt and task the arguments of an activity are about, as far as they say."""
    found: dict[str, object] = {}
    for arg in args[:1]:
        if isinstance(arg, int):  # where an activity takes nothing but a number, it is the run's
            found["run_id"] = arg
        places = (arg, getattr(arg, "fence", None), getattr(arg, "request", None), getattr(arg, "task", None))
        for name in ("run_id", "manager_id", "attempt", "task_id"):
            value = next((v for place in places if (v := getattr(place, name, None)) is not None), None)
            if value is not None:
                found[name] = value
    return found


class Observing(Interceptor):
    """The interceptor of our workers."""

    def __init__(self) -> None:
        # The SDK appends what it knows to every message; here it is in fields of its own.
        activity.logger.activity_info_on_message = False
        workflow.logger.workflow_info_on_message = False
        workflow.logger.base_logger.addFilter(bounded)

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        return _Activity(next)

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:
        return _Workflow


class _Activity(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        info = activity.info()
        # Not unbound afterwards: the SDK's own line about a failure comes after us, and the task ends with it.
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
            recorders.failed(info.activity_type, error)
            raise
        seconds = time.monotonic() - began
        recorders.completed(info.activity_type, input.args[0] if input.args else None, answer, seconds)
        log.debug("%s done in %.3f s", info.activity_type, seconds)
        return answer


class _Workflow(WorkflowInboundInterceptor):
    """Created anew for every workflow execution; whatever runs in it shares these fields."""

    fields: dict[str, object]
    lines: Lines

    def _enter(self) -> None:
        of_workflow.set(self.fields)
        _lines.set(self.lines)

    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        self.fields, self.lines = {}, Lines()
        super().init(_Calls(outbound, self.fields))

    async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:
        info = workflow.info()
        self.fields.update(workflow_id=info.workflow_id, workflow_run_id=info.run_id, task_queue=info.task_queue)
        self.fields["workflow"] = info.workflow_type
        self._enter()
        workflow.logger.info("workflow goes on" if info.continued_run_id else "workflow begins")
        try:
            result = await super().execute_workflow(input)
        except Exception as error:
            # Not what ended it: continue-as-new and bugs come this way as well, and the SDK tells both.
            workflow.logger.debug("workflow left by %s", type(error).__name__)
            raise
        workflow.logger.info("workflow ends")
        return result

    async def handle_signal(self, input: HandleSignalInput) -> None:
        self._enter()
        # A wake-up comes for every change on the cluster, and to a manager for every end of a run; the look or the
        # cycle that follows it says what was found.
        wakes = (
            names.SIGNAL_LOOK_NOW,
            names.SIGNAL_RUN_ENDED,
            names.SIGNAL_WAKE,
            names.SIGNAL_MOVED,
            names.SIGNAL_MORE,
        )
        level = logging.DEBUG if input.signal in wakes else logging.INFO
        if self.lines.left() > 0:  # asked here as well: making a line that is not logged costs time, too
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
    """Learns which run this is from what the workflow asks its activities to do."""

    def __init__(self, next: WorkflowOutboundInterceptor, fields: dict[str, object]) -> None:
        super().__init__(next)
        self._fields = fields

    def start_activity(self, input: StartActivityInput) -> workflow.ActivityHandle[Any]:
        about = subject(input.args)
        self._fields.update((name, about[name]) for name in ("run_id", "manager_id", "attempt") if name in about)
        return super().start_activity(input)
