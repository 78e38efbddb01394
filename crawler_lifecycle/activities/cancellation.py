"""Stopping: from the wish to the proof. Everything here runs on the control queue."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from temporalio import activity

from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.domain.names import EVENT_RUN_STOPPED, event_key
from crawler_lifecycle.domain.run import StopIntent
from crawler_lifecycle.ports import Cluster, Fence, Notifier, RunStore, TaskRef

from .shared import Clock, Counts, beating, send_event, utc_now

log = logging.getLogger(__name__)


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


@dataclass(frozen=True, slots=True)
class StopTask:
    """Input of ``k8_stop_task`` and ``k8_stop_pod``."""

    fence: Fence
    task: TaskRef


@dataclass
class CancellationActivities:
    """Activities of a stop."""

    store: RunStore
    cluster: Cluster
    notifier: Notifier
    clock: Clock = utc_now

    @activity.defn(name="record_stop", no_thread_cancel_exception=True)
    def record_stop(self, order: RecordStop) -> StopIntent | None:
        """Write the intent before anything is done about it; the run becomes STOPPING. Answers the intent on record.

        Second execution: the intent is there, nothing changes.
        """
        stop = None
        for heard in order.heard:
            stop = self.store.record_stop(order.fence.run_id, heard.intent, heard.request_id, order.fence).stop
        return stop

    @activity.defn(name="cancel_queued_tasks", no_thread_cancel_exception=True)
    def cancel_queued_tasks(self, fence: Fence) -> Counts:
        """Cancel the tasks that were never deployed; one that a deployment call may have brought to the cluster is left
        until a look has proved that it did not.

        Second execution: they are CANCELLED already.
        """
        return Counts.of(self.store.cancel_queued(fence, self.clock()))

    @activity.defn(name="k8_stop_task", no_thread_cancel_exception=True)
    def k8_stop_task(self, order: StopTask) -> None:
        """Ask the cluster to end one task gracefully; once it has been asked, the task is STOPPING.

        Second execution: the cluster gets the same wish again and sends no second signal to the crawler.
        """
        with beating():
            if self.cluster.log_fades:
                self._keep_log(order)
            self.cluster.stop(order.fence.run, order.task)
        self.store.mark_stopping(order.fence, [order.task.task_id])

    @activity.defn(name="add_cancellation_log_to_db", no_thread_cancel_exception=True)
    def add_cancellation_log_to_db(self, order: RecordStop) -> None:
        """Make sure that every stop by a person has its row in the cancellation log, with the time we acted on it.

        Second execution: the rows are there and keep their times.
        """
        for heard in order.heard:
            if heard.request_id is not None:
                self.store.record_stop(order.fence.run_id, heard.intent, heard.request_id, order.fence)
        self.store.acted_on_stop(order.fence, self.clock())

    @activity.defn(name="k8_stop_pod", no_thread_cancel_exception=True)
    def k8_stop_pod(self, order: StopTask) -> None:
        """End one task and everything it started, by force.

        Second execution: what is gone stays gone.
        """
        with beating():
            self.cluster.kill(order.fence.run, order.task)
        self.store.mark_stopping(order.fence, [order.task.task_id])

    def _keep_log(self, order: StopTask) -> None:
        """Stage the log of a task before it is ended. A later look replaces it, if there is still a log by then.

        The stop never waits for it: a node that does not answer is a reason to stop.
        """
        try:
            self.store.save_details(order.fence, self.cluster.details(order.fence.run, [order.task]))
        except LifecycleError as error:
            log.warning("the log of task %s was not kept before its stop: %s", order.task.task_id, error)

    @activity.defn(name="signal_pusher_stopped", no_thread_cancel_exception=True)
    def signal_pusher_stopped(self, fence: Fence) -> None:
        """Tell the front end that the run was stopped, so that it closes its dialog.

        The event was written together with the verdict; it is pushed also when the run was resumed meanwhile.
        Second execution: pushes the same event under the same id.
        """
        event = self.store.find_event(event_key(fence.run, fence.attempt, EVENT_RUN_STOPPED))
        if event is not None:
            send_event(self.store, event, self.notifier.push, self.notifier.name)
