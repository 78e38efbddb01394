"""Activities of a stop, from the request to the proof. All of them run on the control queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from temporalio import activity

from crawler_lifecycle.domain.errors import RowUnreadable
from crawler_lifecycle.domain.names import EVENT_RUN_STOPPED, event_key
from crawler_lifecycle.domain.run import StopIntent
from crawler_lifecycle.ports import DetailStore, EventStore, Fence, Notifier, StopStore, TaskReader, TaskStops

from .shared import Clock, Counts, beating, push_event, utc_now
from .stopping import StopPass, StopReport

#: Seconds for asking the tasks of a run whose stop cannot be recorded; the next try goes on.
UNRECORDED_S = 5.0


@dataclass(frozen=True, slots=True)
class HeardStop:
    """One stop as it reached the workflow: ``request_id`` names its row in the cancellation log (``None``: a limit)."""

    intent: StopIntent
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class RecordStop:
    """Input of ``record_stop`` and ``add_cancellation_log_to_db``."""

    fence: Fence
    heard: list[HeardStop] = field(default_factory=list)


@dataclass
class CancellationActivities:
    """Activities of a stop."""

    stops: StopStore
    details: DetailStore
    tasks: TaskReader
    events: EventStore
    cluster: TaskStops
    notifiers: Sequence[Notifier]
    clock: Clock = utc_now

    @activity.defn(name="record_stop", no_thread_cancel_exception=True)
    def record_stop(self, order: RecordStop) -> StopIntent | None:
        """Write the intent before anything is done about it; the run becomes STOPPING. Answers the intent on record.

        A row that nobody can read keeps no stop back: the tasks are asked, or killed, at once, and the intent is
        written when somebody has mended the row. Second execution: the intent is there, nothing changes.
        """
        stop = None
        try:
            for heard in order.heard:
                stop = self.stops.record_stop(order.fence.run_id, heard.intent, heard.request_id, order.fence).stop
        except RowUnreadable:
            force = any(heard.intent.force for heard in order.heard)
            with beating():
                self._pass(order.fence, force=force, seconds=UNRECORDED_S)
            raise
        return stop

    def _pass(self, fence: Fence, *, force: bool, seconds: float | None = None) -> StopReport:
        return StopPass(
            self.stops, self.details, self.tasks, self.cluster, self.clock, fence, force=force, seconds=seconds
        ).run()

    @activity.defn(name="cancel_queued_tasks", no_thread_cancel_exception=True)
    def cancel_queued_tasks(self, fence: Fence) -> Counts:
        """Cancel the tasks that were never deployed; one that a deployment call may have brought to the cluster is left
        until a look has proved that it did not.

        Second execution: they are CANCELLED already.
        """
        return Counts.of(self.stops.cancel_queued(fence, self.clock()))

    @activity.defn(name="k8_stop_task", no_thread_cancel_exception=True)
    def k8_stop_task(self, fence: Fence) -> StopReport:
        """Ask each active task of the run to end gracefully; once it has been asked, a task is STOPPING.

        It takes as many as it can in its time, some at once, and one that hangs keeps no other one waiting.
        Second execution: goes on with those that are not STOPPING yet. The cluster may get the same wish again, and
        sends no second signal to the crawler.
        """
        with beating():
            return self._pass(fence, force=False)

    @activity.defn(name="add_cancellation_log_to_db", no_thread_cancel_exception=True)
    def add_cancellation_log_to_db(self, order: RecordStop) -> None:
        """Make sure that every stop by a person has its row in the cancellation log, with the time we acted on it.

        Second execution: the rows are there and keep their times.
        """
        for heard in order.heard:
            if heard.request_id is not None:
                self.stops.record_stop(order.fence.run_id, heard.intent, heard.request_id, order.fence)
        self.stops.acted_on_stop(order.fence, self.clock())

    @activity.defn(name="k8_stop_pod", no_thread_cancel_exception=True)
    def k8_stop_pod(self, fence: Fence) -> StopReport:
        """End each active task of the run and everything it started, by force, as ``k8_stop_task`` asks them.

        Second execution: goes on with those that were not killed yet; what is gone stays gone.
        """
        with beating():
            return self._pass(fence, force=True)

    @activity.defn(name="signal_pusher_stopped", no_thread_cancel_exception=True)
    def signal_pusher_stopped(self, fence: Fence) -> None:
        """Tell the front end that the run was stopped, so that it closes its dialog.

        The event was written together with the verdict; it is pushed also when the run was resumed meanwhile.
        Second execution: pushes the same event where it has not arrived.
        """
        event = self.events.find_event(event_key(fence.run, fence.attempt, EVENT_RUN_STOPPED))
        if event is not None:
            push_event(self.events, event, self.notifiers)
