"""Steps that several stages share: one look and what follows, asking tasks to end, sending events."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Protocol, TypeVar

from temporalio import workflow
from temporalio.common import SearchAttributeKey
from temporalio.exceptions import ActivityError, ApplicationError

from crawler_lifecycle.activities.cancellation import CancellationActivities
from crawler_lifecycle.activities.reconciliation import LookAnswer, LookOrder, ReconciliationActivities, Sync
from crawler_lifecycle.domain import ladder, names
from crawler_lifecycle.domain.bounds import cut_to_travel, travels
from crawler_lifecycle.domain.managers.manager import names_of_workflow
from crawler_lifecycle.domain.run import StopIntent
from crawler_lifecycle.ports.runs import Fence

from .calls import Interrupted, MustLeave, call, fire_and_forget, history_full, pause, reason, start
from .requests import refused
from .state import REASON_MAX, Inbox, RunState

R = TypeVar("R")

#: Seconds for which tasks are asked to end, over all tries, before the run is looked at all the same.
ASK_WINDOW_S = 45.0


def gap(s: RunState) -> float:
    """Seconds from one look to the next at the present rung."""
    return ladder.poll_interval(s.rung, s.poll_minutes, s.last_look_s)


def gap_left(s: RunState) -> float:
    """Seconds until the run may be looked at again, however often it is woken."""
    if s.looked_at is None:
        return 0.0
    least = max(ladder.MIN_GAP_SECONDS, 2 * s.last_look_s)
    return least - (workflow.now() - s.looked_at).total_seconds()


def until_look(s: RunState) -> float | None:
    """Seconds until the look that is planned; one that another execution has just ordered counts for the gap."""
    if s.next_look_at is None:
        return None
    return max((s.next_look_at - workflow.now()).total_seconds(), gap_left(s))


def is_time(s: RunState) -> bool:
    """Return whether the look that is planned is due; the server's timers have whole milliseconds."""
    left = until_look(s)
    return left is not None and left < 0.002


def _after(at: datetime, ordered_at: datetime, seconds: float) -> datetime:
    """``at`` by a worker's clock is so many seconds after a moment between ``ordered_at`` and now.

    A clock that is wrong by an hour would let a run be looked at without a rest, or not for an hour.
    """
    gap = timedelta(seconds=seconds)
    return min(max(at, ordered_at + gap), workflow.now() + gap)


async def look_round(s: RunState, source: str, led_by: float, next_gap: float, *, resumed: bool = False) -> LookAnswer:
    """One look and what follows from it. A quiet round is its first two activities and nothing else.

    Raises ``Interrupted`` when a stop comes, or when a stop already under way turns into another one.
    """
    control, pages = s.stop_wanted(), s.pages_deployed
    wake = s.stop_changed if control else s.stop_wanted
    rec, fence = ReconciliationActivities, s.fence
    believed = await call(rec.get_active_running_tasks, s.run_id, control=control, wake=wake)
    order = LookOrder(fence, led_by, next_gap, source, resumed, s.limits.stall_timeout_s)
    ordered_at = s.looked_at = workflow.now()
    text = f"look {s.looks + 1} ({source}), {believed.counts.alive} tasks alive"
    found = await call(rec.get_history_statuses_to_sync, order, control=control, wake=wake, summary=text)
    s.looks, s.looked_at = s.looks + 1, workflow.now()
    s.last_look_at, s.last_look_s = found.observed_at, found.seconds
    s.next_look_at = _after(found.next_look_at, ordered_at, found.gap_s)
    s.counts = believed.counts
    s.inbox.recorded_stop(found.stop)
    if found.changed:
        text = f"{found.changed} tasks changed"
        await call(rec.get_bulk_task_history_data, fence, control=control, wake=wake, summary=text)
        await call(rec.reconcile_tasks, fence, control=control, wake=wake)
        synced = await call(rec.sync_statuses, Sync(fence, source, found.observed_at), control=control, wake=wake)
        if synced.push:
            fire_and_forget(start(rec.signal_pusher_changed, fence))
    if found.changed or not believed.counts.alive or s.pages_deployed != pages:
        s.counts = await call(rec.count_alive_tasks, s.run_id, control=control, wake=wake)
    if found.stalled and s.counts.active and not s.stop_wanted():
        s.inbox.want_stop(StopIntent(workflow.now(), limit="cancelled (stalled)"), None)
    return found


async def ask_to_end(s: RunState) -> None:
    """Ask every active task to end that was not asked yet; by force kill each that is left.

    One activity takes as many tasks as it has time for and puts each on record, so a run of any size takes a few
    events. What does not answer is asked again at the next turn. Raises ``Interrupted`` when the stop changes.
    """
    forced = s.inbox.stop is not None and s.inbox.stop.force
    method = CancellationActivities.k8_stop_pod if forced else CancellationActivities.k8_stop_task
    while s.counts.active and (forced or s.unasked or s.asked_at is None):
        # None of those that wait is asked before now, whatever the worker's clock says: force would come too soon.
        soonest = s.asked_at or (workflow.now() if s.unasked else None)
        try:
            report = await call(method, s.fence, control=True, wake=s.stop_changed, seconds=ASK_WINDOW_S)
        except Interrupted:
            if s.stop_changed():
                raise
            return  # the cluster does not answer
        s.counts, asked_at = report.counts, None if report.more else report.asked_at
        s.asked_at = asked_at and min(max(asked_at, soonest or asked_at), workflow.now())
        if not report.more or history_full():
            return


async def best_effort(s: RunState, method: Callable[[Any, Fence], R]) -> R | None:
    """An activity whose failure is on record elsewhere and never changes the run.

    A stop of a live run does not wait for it: its queue may be stuck for as long as what runs there hangs.
    """

    def overtaken() -> bool:
        return s.outcome is None and s.stop_wanted()

    try:
        return await call(method, s.fence, wake=overtaken)
    except Interrupted:
        return None
    except (ActivityError, ApplicationError) as error:
        s.inbox.note(f"{method.__name__} gave up: {reason(error)}")
        return None


async def tell_parent(s: RunState) -> None:
    """Signal ``run_ended`` to the workflow that asked to be told; one that closed meanwhile is no error.

    It comes with the verdict and before the deliveries: these may take days, and a parent waits for the end alone.
    """
    result = s.result(None)
    if s.parent and (names.graph_key_of(s.parent) or names_of_workflow(s.parent)):
        # Ours reads the row of the run. What a crawler said would stay in its history when the run is deleted.
        result = replace(result, outcome="", cause="")
    await tell(s.parent, names.SIGNAL_RUN_ENDED, result, s.inbox)


async def tell(parent: str | None, signal: str, result: object, inbox: Inbox) -> None:
    """Signal the end to the workflow that asked to be told; one that closed meanwhile is no error."""
    if parent is None:
        return
    if not travels(parent):  # a manual edit: the server would refuse the task that notifies it, for ever
        inbox.note("its parent has no id that a workflow can have, and is not told")
        return
    try:
        await workflow.get_external_workflow_handle(parent).signal(signal, result)
    except ApplicationError as error:
        inbox.note(f"parent {parent} could not be told: {error.message}")


async def commanded(request_id: str | None, ready: Callable[[], bool], carry_out: Callable[[str], Awaitable[R]]) -> R:
    """The result of an update, which waits until it can be carried out. Its own id makes a repeat harmless where it
    gives none."""
    update = workflow.current_update_info()
    key = request_id or (update.id if update is not None else str(workflow.uuid4()))
    try:
        await pause(None, ready)
        return await carry_out(key)
    except MustLeave:
        text = f"the history is full and goes on in a new one; send it again with request_id {key!r}"
        raise refused(text) from None


async def heeding(life: asyncio.Task[R], want: Callable[[StopIntent], None]) -> R:
    """The result of the task; Temporal's cancel is a stop, and cancels nothing by itself."""
    while not life.done():
        try:
            await workflow.wait([life])
        except asyncio.CancelledError:
            why = (workflow.cancellation_reason() or "")[:REASON_MAX] or None
            want(StopIntent(workflow.now(), requested_by="temporal cancel", reason=why))
    return life.result()


class Published(Protocol):
    """The state of a workflow as the Temporal UI shows it."""

    published: dict[str, str]

    def search_attributes(self) -> list[tuple[SearchAttributeKey[Any], object]]: ...

    def details(self) -> str: ...


def publish(s: Published) -> None:
    """Let the Temporal UI tell the story: search attributes where they changed, details always."""
    told = [(key, value) for key, value in s.search_attributes() if value is not None]
    # Of what a crawler, a class or a manual edit wrote as much as fits: Temporal ends a workflow for one that does not.
    wanted = [(key, cut_to_travel(value) if isinstance(value, str) else value) for key, value in told]
    changed = [key.value_set(value) for key, value in wanted if s.published.get(key.name) != str(value)]
    if changed:
        workflow.upsert_search_attributes(changed)
        s.published = {key.name: str(value) for key, value in wanted}
    workflow.set_current_details(s.details())
