"""Steps that several stages and workflows share: polls, requests to end tasks, signals and search
attributes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Protocol, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

from crawler_lifecycle.activities.cancellation import CancellationActivities
from crawler_lifecycle.activities.reconciliation import (
    AliveTasks,
    PollAnswer,
    PollOrder,
    ReconciliationActivities,
    Sync,
)
from crawler_lifecycle.domain import names, polling_schedule
from crawler_lifecycle.domain.bounds import cut_to_travel, travels
from crawler_lifecycle.domain.names import names_of_workflow
from crawler_lifecycle.domain.run import StopIntent
from crawler_lifecycle.ports.runs import Fence

from .calls import (
    Condition,
    MustLeave,
    StepInterrupted,
    call,
    fire_and_forget,
    history_full,
    pause,
    reason,
    start,
)
from .requests import refused
from .state import REASON_MAX, Attributes, Inbox, RunState

R = TypeVar("R")

#: The maximum number of seconds, over all tries, for asking tasks to end. After that, a poll
#: follows in any case.
ASK_WINDOW_S = 45.0


def gap(s: RunState) -> float:
    """Return the seconds from one poll to the next at the current step of the polling schedule."""
    return polling_schedule.poll_interval(s.rung, s.poll_minutes, s.last_look_s)


def gap_left(s: RunState) -> float:
    """Return the seconds until the next poll is allowed, including one after a wake-up."""
    if s.looked_at is None:
        return 0.0
    least = max(polling_schedule.MIN_GAP_SECONDS, 2 * s.last_look_s)
    return least - (workflow.now() - s.looked_at).total_seconds()


def until_poll(s: RunState) -> float | None:
    """Return the seconds until the planned poll, or ``None`` if no poll is planned.

    The shortest gap after the last poll is always kept, which the previous execution may have
    begun.
    """
    if s.next_look_at is None:
        return None
    return max((s.next_look_at - workflow.now()).total_seconds(), gap_left(s))


def until_turn(s: RunState) -> float | None:
    """Return the seconds until the planned poll or the next try, or ``None`` if neither is
    planned.
    """
    poll = until_poll(s)
    retry = None if s.retry_at is None else (s.retry_at - workflow.now()).total_seconds()
    known = [seconds for seconds in (poll, retry) if seconds is not None]
    return max(min(known), 0.0) if known else None


def is_retry_time(s: RunState) -> bool:
    """Return whether the first of the next tries may begin."""
    return s.retry_at is not None and (s.retry_at - workflow.now()).total_seconds() < 0.002


def is_time(s: RunState) -> bool:
    """Return whether the planned poll is due.

    The server's timers have a resolution of one millisecond, so 2 ms are ignored.
    """
    left = until_poll(s)
    return left is not None and left < 0.002


def _after(at: datetime, ordered_at: datetime, seconds: float) -> datetime:
    """Return the worker's time ``at``, corrected if the worker's clock is wrong.

    It should be ``seconds`` after a time between ``ordered_at`` and now. With a clock that is wrong
    by an hour, the next poll would otherwise come at once or an hour late.
    """
    gap = timedelta(seconds=seconds)
    return min(max(at, ordered_at + gap), workflow.now() + gap)


async def poll_round(
    s: RunState, source: str, led_by: float, next_gap: float, *, resumed: bool = False
) -> PollAnswer:
    """Do one poll and apply its changes.

    Without changes, it needs only two activities. Raises ``StepInterrupted`` if a stop comes, or if
    the current stop changes.
    """
    control = s.stop_wanted()
    pages = s.pages_deployed
    planned = source == "look"
    wake = s.stop_changed if control else s.stop_wanted
    rec = ReconciliationActivities
    fence = s.fence
    believed = await call(
        rec.get_active_running_tasks, s.run_id, control=control, planned=planned, wake=wake
    )
    ordered_at = s.looked_at = workflow.now()
    late = ordered_at - s.next_look_at if planned and s.next_look_at else timedelta(0)
    order = PollOrder(
        fence, led_by, next_gap, source, resumed, s.limits.stall_timeout_s, late.total_seconds()
    )
    text = f"poll {s.looks + 1} ({source}), {believed.counts.alive} tasks alive"
    found = await call(
        rec.get_history_statuses_to_sync,
        order,
        control=control,
        planned=planned,
        wake=wake,
        summary=text,
    )
    s.looks, s.looked_at = s.looks + 1, workflow.now()
    s.last_look_at = found.observed_at
    s.last_look_s = found.seconds
    s.next_look_at = _after(found.next_look_at, ordered_at, found.gap_s)
    s.counts = believed.counts
    s.inbox.recorded_stop(found.stop)
    if found.changed:
        sync = Sync(fence, source, found.observed_at, details_follow=found.truth_first)
        details = partial(
            fetch_details, s, f"{found.changed} tasks changed", control=control, wake=wake
        )
        if not found.truth_first:
            await details()
        synced = await call(rec.sync_statuses, sync, control=control, wake=wake)
        if found.truth_first:
            await details()
        if synced.push:
            fire_and_forget(start(rec.signal_pusher_changed, fence))
    if found.changed or not believed.counts.alive or s.pages_deployed != pages:
        s.counts = (await call(rec.count_alive_tasks, s.run_id, control=control, wake=wake)).counts
    if found.stalled and s.counts.active and not s.stop_wanted():
        s.inbox.want_stop(StopIntent(workflow.now(), limit="cancelled (stalled)"), None)
    return found


async def fetch_details(s: RunState, text: str, *, control: bool, wake: Condition) -> None:
    """Fetch and record the debugging information of the tasks that ended."""
    rec = ReconciliationActivities
    await call(rec.get_bulk_task_history_data, s.fence, control=control, wake=wake, summary=text)
    await call(rec.reconcile_tasks, s.fence, control=control, wake=wake)


async def catch_up(s: RunState) -> AliveTasks:
    """Count the tasks after a poll that was recorded without the workflow, so that no other poll is
    needed.

    Raises ``StepInterrupted`` if a stop comes, or if the current stop changes.
    """
    control = s.stop_wanted()
    wake = s.stop_changed if control else s.stop_wanted
    rec = ReconciliationActivities
    s.inbox.look_recorded = False
    try:
        found = await call(rec.count_alive_tasks, s.run_id, control=control, wake=wake)
        if found.details:
            await fetch_details(s, f"{found.details} tasks ended", control=control, wake=wake)
    except StepInterrupted:
        s.inbox.look_recorded = True
        raise
    s.counts = found.counts
    s.inbox.recorded_stop(found.stop)
    if found.push:
        fire_and_forget(start(rec.signal_pusher_changed, s.fence))
    return found


async def ask_to_end(s: RunState) -> None:
    """Ask each active task that was not asked yet to end; a forced stop kills every remaining task.

    One activity handles as many tasks as it has time for, and records each. So a run of any size
    needs few events. If the cluster does not respond, the next turn asks again. Raises
    ``StepInterrupted`` if the stop changes.
    """
    forced = s.inbox.stop is not None and s.inbox.stop.force
    method = CancellationActivities.k8_stop_pod if forced else CancellationActivities.k8_stop_task
    while s.counts.active and (forced or s.unasked or s.asked_at is None):
        # The tasks get the request after this moment. A worker with a wrong clock can report an
        # earlier time, with which the stop would be forced too soon.
        soonest = s.asked_at or (workflow.now() if s.unasked else None)
        try:
            report = await call(
                method, s.fence, control=True, wake=s.stop_changed, seconds=ASK_WINDOW_S
            )
        except StepInterrupted:
            if s.stop_changed():
                raise
            return  # the cluster did not answer in time
        s.counts = report.counts
        asked_at = None if report.more else report.asked_at
        s.asked_at = asked_at and min(max(asked_at, soonest or asked_at), workflow.now())
        if not report.more or history_full():
            return


async def best_effort(s: RunState, method: Callable[[Any, Fence], R]) -> R | None:
    """Call an activity whose failure does not change the run.

    After a failure, add a note and return ``None``. A stop of a live run does not wait for this
    activity, because its queue may be blocked.
    """

    def overtaken() -> bool:
        return s.outcome is None and s.stop_wanted()

    try:
        return await call(method, s.fence, wake=overtaken)
    except StepInterrupted:
        return None
    except (ActivityError, ApplicationError) as error:
        s.inbox.note(f"{method.__name__} gave up: {reason(error)}")
        return None


async def tell_parent(s: RunState) -> None:
    """Send the signal ``run_ended`` to the parent workflow.

    It is sent after the verdict and before the deliveries, because these can take days and a parent
    waits only for the end.
    """
    result = s.result(None)
    if s.parent and (names.graph_key_of(s.parent) or names_of_workflow(s.parent)):
        # Our own workflows read the row. The crawler's strings would stay in their history after
        # the run is deleted.
        result = replace(result, outcome="", cause="")
    await tell(s.parent, names.SIGNAL_RUN_ENDED, result, s.inbox)


async def tell(parent: str | None, signal: str, result: object, inbox: Inbox) -> None:
    """Send a signal about the end to the parent workflow.

    A parent that is already closed is not an error.
    """
    if parent is None:
        return
    # This happens after a manual edit of the row; the server would refuse the workflow task for
    # ever.
    if not travels(parent):
        inbox.note("the parent was not notified: its id is not a valid workflow id")
        return
    try:
        await workflow.get_external_workflow_handle(parent).signal(signal, result)
    except ApplicationError as error:
        inbox.note(f"parent {parent} could not be notified: {error.message}")


async def commanded(
    request_id: str | None, ready: Condition, carry_out: Callable[[str], Awaitable[R]]
) -> R:
    """Carry out an update as soon as ``ready()`` returns true, and return its result.

    Without a ``request_id``, the id of the update identifies repeats.
    """
    update = workflow.current_update_info()
    key = request_id or (update.id if update is not None else str(workflow.uuid4()))
    try:
        await pause(None, ready)
        return await carry_out(key)
    except MustLeave:
        text = (
            "the workflow continues with a new history; send the update again with request_id "
            f"{key!r}"
        )
        raise refused(text) from None


async def heeding(life: asyncio.Task[R], want: Callable[[StopIntent], None]) -> R:
    """Return the result of the task.

    A cancellation by Temporal becomes a stop, and cancels nothing directly.
    """
    while not life.done():
        try:
            await workflow.wait([life])
        except asyncio.CancelledError:
            why = (workflow.cancellation_reason() or "")[:REASON_MAX] or None
            want(StopIntent(workflow.now(), requested_by="temporal cancel", reason=why))
    return life.result()


class PublishedState(Protocol):
    """The part of a workflow's state that the Temporal UI can show."""

    published: dict[str, str]

    def search_attributes(self) -> Attributes: ...

    def details(self) -> str: ...


def publish(s: PublishedState) -> None:
    """Update the search attributes that changed, and the details, in the Temporal UI."""
    known = [(key, value) for key, value in s.search_attributes() if value is not None]
    # Strings from crawlers, classes and manual edits are cut, because Temporal ends a workflow
    # whose search attribute is too long.
    wanted = [
        (key, cut_to_travel(value) if isinstance(value, str) else value) for key, value in known
    ]
    changed = [
        key.value_set(value) for key, value in wanted if s.published.get(key.name) != str(value)
    ]
    if changed:
        workflow.upsert_search_attributes(changed)
        s.published = {key.name: str(value) for key, value in wanted}
    workflow.set_current_details(s.details())
