"""Activities of a stop, from the request to the proof. All of them run on the control queue.

Tasks are asked to end page by page; heartbeats carry the progress.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from temporalio import activity

from crawler_lifecycle.activities.abreast import Abreast
from crawler_lifecycle.activities.reconciliation import ref_of
from crawler_lifecycle.activities.shared import Clock, Counts, alive, beating, push_event, utc_now
from crawler_lifecycle.domain.errors import RowUnreadable
from crawler_lifecycle.domain.names import EVENT_RUN_STOPPED, event_key
from crawler_lifecycle.domain.run import StopIntent
from crawler_lifecycle.ports.cluster import TaskStops
from crawler_lifecycle.ports.looks import Details
from crawler_lifecycle.ports.protocols import Notifier
from crawler_lifecycle.ports.runs import Fence, TaskRef

if TYPE_CHECKING:
    from crawler_lifecycle.store.events import EventStore
    from crawler_lifecycle.store.runs.looks import LookStore
    from crawler_lifecycle.store.runs.stops import StopStore
    from crawler_lifecycle.store.runs.tasks import TaskReader

log = logging.getLogger(__name__)

#: Tasks that are read from the database, and marked in it, in one go.
STOP_PAGE = 1000
#: Seconds after which no further task is begun: the activity ends, and the next one continues from the record.
PASS_S = 20.0
#: The longest time between two records, in seconds: requests are recorded soon after they were sent.
MARK_S = 2.0
#: Seconds after which a task that was killed and is still there is killed again.
AGAIN_S = 10.0


@dataclass(frozen=True, slots=True)
class StopReport:
    """The work of one ``k8_stop_task`` or ``k8_stop_pod``."""

    left: int = 0
    """Tasks that it tried and that did not answer, or not in time. They are tried again later."""
    more: bool = False
    """True if its time was over before every task had its turn."""
    asked_at: datetime | None = None
    """The time when the last of the run's tasks was asked to end."""
    counts: Counts = field(default_factory=Counts)


class StopPass:
    """Visits each task of a run once: tasks not asked yet, or with force, tasks not killed yet; then repeats."""

    def __init__(
        self, acts: CancellationActivities, fence: Fence, *, force: bool, seconds: float | None = None
    ) -> None:
        self._stops, self._details, self._tasks = acts.stops, acts.details, acts.tasks
        self._cluster, self._clock = acts.cluster, acts.clock
        self._fence, self._force = fence, force
        self._until = time.monotonic() + (PASS_S if seconds is None else seconds)
        self._asked, self._begun, self._more = 0, False, False
        self._answered: list[tuple[TaskRef, Details | None]] = []
        self._marked_at = time.monotonic()

    def run(self) -> StopReport:
        """Ask all tasks to end, as long as the time allows. Raises the first error when no task could be asked."""
        asking = Abreast[TaskRef, Details | None](self._kill if self._force else self._stop)
        errors = []
        for task, answer in asking.over(self._turns()):
            if isinstance(answer, Exception):
                errors.append(answer)
            else:
                self._answered.append((task, answer))
            if len(self._answered) >= STOP_PAGE or time.monotonic() - self._marked_at >= MARK_S:
                self._mark()
                alive()
        self._mark()
        if errors and not self._asked:
            raise errors[0]
        run_id, left = self._fence.run_id, len(errors) + asking.slow
        if left:
            why = errors[0] if errors else "no answer yet"
            log.warning("%d tasks of run %d were not asked to end, they are asked again: %s", left, run_id, why)
        counts, asked_at = Counts.of(self._tasks.count_tasks(run_id)), self._stops.last_asked(run_id)
        return StopReport(left, self._more, asked_at, counts)

    def _turns(self) -> Iterator[TaskRef]:
        """The tasks to visit next, while there is time."""
        yield from self._pages(None)
        if self._force and not self._more:
            yield from self._pages(self._clock() - timedelta(seconds=AGAIN_S))
            self._more = False

    def _pages(self, killed_before: datetime | None) -> Iterator[TaskRef]:
        after = -1
        while True:
            page = self._stops.unstopped(self._fence, self._force, killed_before, after, STOP_PAGE)
            for task in page:
                if self._begun and time.monotonic() >= self._until:
                    self._more = True
                    return
                self._begun = True  # at least one task, or a slow machine would make no progress
                yield ref_of(task)
            if len(page) < STOP_PAGE:
                return
            after = page[-1].index

    def _stop(self, task: TaskRef) -> Details | None:
        kept = self._log(task) if self._cluster.log_fades else None
        self._cluster.stop(self._fence.run, task)
        return kept

    def _kill(self, task: TaskRef) -> None:
        self._cluster.kill(self._fence.run, task)

    def _log(self, task: TaskRef) -> Details | None:
        """The log of a task before it is ended. A later look replaces it, if there is still a log by then.

        The stop never waits for it: a node that does not answer is a reason to stop.
        """
        try:
            return next(iter(self._cluster.details(self._fence.run, [task])), None)
        except Exception as error:  # also when a reader fails on what a crawler printed
            log.warning("the log of task %s was not kept before its stop: %s", task.task_id, error)
            return None

    def _mark(self) -> None:
        """Record which tasks were asked: the kept logs first, then the statuses, in one transaction each."""
        answered, self._answered = self._answered, []
        if answered:
            try:
                details = [kept for _, kept in answered if kept is not None]
                if details:
                    self._details.save_details(self._fence, details)
                self._stops.mark_stopping(self._fence, [task.task_id for task, _ in answered], killed=self._force)
            except RowUnreadable as error:  # the requests were sent; they are repeated when the row is repaired
                log.warning("%d tasks of run %d were asked to end: %s", len(answered), self._fence.run_id, error)
        self._asked += len(answered)
        self._marked_at = time.monotonic()


#: Seconds for asking the tasks of a run whose stop cannot be recorded; the next try continues.
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
    details: LookStore
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
                StopPass(self, order.fence, force=force, seconds=UNRECORDED_S).run()
            raise
        return stop

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
            return StopPass(self, fence, force=False).run()

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
            return StopPass(self, fence, force=True).run()

    @activity.defn(name="signal_pusher_stopped", no_thread_cancel_exception=True)
    def signal_pusher_stopped(self, fence: Fence) -> None:
        """Tell the front end that the run was stopped, so that it closes its dialog.

        The event was written together with the verdict; it is pushed also when the run was resumed meanwhile.
        Second execution: pushes the same event where it has not arrived.
        """
        event = self.events.find_event(event_key(fence.run, fence.attempt, EVENT_RUN_STOPPED))
        if event is not None:
            push_event(self.events, event, self.notifiers)
