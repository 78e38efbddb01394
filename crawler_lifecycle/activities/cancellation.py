"""Activities that stop a run. All of them run on the control queue.

Tasks are asked to end page by page. The database records which tasks were asked, and the next
execution continues with the remaining tasks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from crawler_lifecycle.clock import Clock, utc_now
from crawler_lifecycle.domain.errors import RowUnreadable
from crawler_lifecycle.domain.names import EVENT_RUN_STOPPED, event_key
from crawler_lifecycle.domain.run import StopIntent
from crawler_lifecycle.ports.cluster import TaskStops
from crawler_lifecycle.ports.polls import Details
from crawler_lifecycle.ports.protocols import Notifier
from crawler_lifecycle.ports.runs import Fence, TaskRef

from .abreast import Abreast
from .poll_step import ref_of
from .shared import Counts, activity_method, alive, beating, push_event

if TYPE_CHECKING:
    from crawler_lifecycle.store.events import EventStore
    from crawler_lifecycle.store.runs.polls import PollStore
    from crawler_lifecycle.store.runs.stops import StopStore
    from crawler_lifecycle.store.runs.tasks import TaskReader

log = logging.getLogger(__name__)

#: Number of tasks that one query reads or marks.
STOP_PAGE = 1000
#: Seconds after which no further task is asked to end. The activity then returns, and its next
#: execution continues from the record.
PASS_S = 20.0
#: Maximum time between two records, in seconds, so that requests are recorded soon after they were
#: sent.
MARK_S = 2.0
#: Seconds after which a killed task that still exists is killed again.
AGAIN_S = 10.0


@dataclass(frozen=True, slots=True)
class StopReport:
    """Result of ``k8_stop_task`` or ``k8_stop_pod``."""

    left: int = 0
    """Number of tasks whose stop request failed or got no response in time. The next execution asks
    these tasks again.
    """
    more: bool = False
    """True if the time limit was reached before every task was asked to end."""
    asked_at: datetime | None = None
    """The latest time at which a task of the run was asked to end."""
    counts: Counts = field(default_factory=Counts)


class StopPass:
    """One pass over the tasks of a run.

    Without ``force``, it asks each task that was not asked yet. With ``force``, it kills each task
    that was not killed yet, and then kills again each task that still exists ``AGAIN_S`` seconds
    after its kill.
    """

    def __init__(
        self,
        acts: CancellationActivities,
        fence: Fence,
        *,
        force: bool,
        seconds: float | None = None,
    ) -> None:
        self._stops = acts.stops
        self._details = acts.details
        self._tasks = acts.tasks
        self._cluster = acts.cluster
        self._clock = acts.clock
        self._fence = fence
        self._force = force
        self._until = time.monotonic() + (PASS_S if seconds is None else seconds)
        self._asked = 0
        self._begun = False
        self._more = False
        self._answered: list[tuple[TaskRef, Details | None]] = []
        self._marked_at = time.monotonic()

    def run(self) -> StopReport:
        """Ask all tasks to end, within the time limit.

        Raises the first error if no task could be asked.
        """
        asking = Abreast[TaskRef, Details | None](
            partial(self._cluster.kill, self._fence.run) if self._force else self._stop
        )
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
        run_id = self._fence.run_id
        left = len(errors) + asking.slow
        if left:
            why = errors[0] if errors else "no response yet"
            log.warning(
                "%d tasks of run %d could not be asked to end and are asked again: %s",
                left,
                run_id,
                why,
            )
        counts = Counts.of(self._tasks.count_tasks(run_id))
        asked_at = self._stops.last_asked(run_id)
        return StopReport(left, self._more, asked_at, counts)

    def _turns(self) -> Iterator[TaskRef]:
        """Yield the tasks to ask next, until the time limit is reached."""
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
                self._begun = True  # ask at least one task, even on a slow machine
                yield ref_of(task)
            if len(page) < STOP_PAGE:
                return
            after = page[-1].index

    def _stop(self, task: TaskRef) -> Details | None:
        kept = self._log(task) if self._cluster.log_fades else None
        self._cluster.stop(self._fence.run, task)
        return kept

    def _log(self, task: TaskRef) -> Details | None:
        """Return the log of a task before the task is stopped, or ``None`` if the log cannot be
        read. The next poll replaces this log if the log still exists at that time. An error here
        does not prevent the stop, because the reason for the stop may be a node that does not
        answer.
        """
        try:
            return next(iter(self._cluster.details(self._fence.run, [task])), None)
        except Exception as error:  # the crawler's output can be another cause of a failure
            log.warning("the log of task %s was not saved before its stop: %s", task.task_id, error)
            return None

    def _mark(self) -> None:
        """Record which tasks were asked to end: first their logs in one transaction, then their
        statuses in a second transaction.
        """
        answered, self._answered = self._answered, []
        if answered:
            try:
                details = [kept for _, kept in answered if kept is not None]
                if details:
                    self._details.save_details(self._fence, details)
                self._stops.mark_stopping(
                    self._fence, [task.task_id for task, _ in answered], killed=self._force
                )
            # The requests were sent. They will be repeated after the row is repaired.
            except RowUnreadable as error:
                log.warning(
                    "%d stop requests of run %d are not recorded: %s",
                    len(answered),
                    self._fence.run_id,
                    error,
                )
        self._asked += len(answered)
        self._marked_at = time.monotonic()


#: Seconds for which ``record_stop`` asks tasks to end or kills them. The next step or the next try
#: continues with the remaining tasks.
AT_ONCE_S = 3.0


@dataclass(frozen=True, slots=True)
class HeardStop:
    """One stop as the workflow received it. ``request_id`` names the stop's row in the cancellation
    log, and is ``None`` if the stop comes from one of the run's limits.
    """

    intent: StopIntent
    request_id: str | None = None


@dataclass(frozen=True, slots=True)
class RecordStop:
    """Input of ``record_stop`` and ``add_cancellation_log_to_db``."""

    fence: Fence
    heard: list[HeardStop] = field(default_factory=list)


@dataclass
class CancellationActivities:
    """Activities that stop a run."""

    stops: StopStore
    details: PollStore
    tasks: TaskReader
    events: EventStore
    cluster: TaskStops
    notifiers: Sequence[Notifier]
    clock: Clock = utc_now

    @activity_method
    def record_stop(self, order: RecordStop) -> StopIntent | None:
        """Record the stop, and then at once ask the tasks to end, or kill them. The run becomes
        STOPPING.

        Return the recorded stop. On a busy Temporal server, seconds can elapse before the next step
        (``k8_stop_task``), which asks the remaining tasks and reports errors. If the row is
        unreadable, ``RowUnreadable`` is raised, and the stop is recorded after the row is repaired.

        Second execution: the stop is already recorded, and only tasks that were not asked yet are
        asked.
        """
        stop = None
        try:
            for heard in order.heard:
                stop = self.stops.record_stop(
                    order.fence.run_id, heard.intent, heard.request_id, order.fence
                ).stop
        except RowUnreadable:
            self._end_at_once(order.fence, any(heard.intent.force for heard in order.heard))
            raise
        if stop is not None:
            self._end_at_once(order.fence, stop.force)
        return stop

    def _end_at_once(self, fence: Fence, force: bool) -> None:
        try:
            StopPass(self, fence, force=force, seconds=AT_ONCE_S).run()
        # The next step or the next try asks again and reports its errors.
        except Exception as error:
            log.warning(
                "the tasks of run %d were not asked to end at once: %s", fence.run_id, error
            )

    @activity_method
    def cancel_queued_tasks(self, fence: Fence) -> Counts:
        """Cancel the tasks that were never deployed.

        A deployment call may have created a task although its response did not reach us. Such a
        task is cancelled only after a poll has proved that it does not exist. Second execution: the
        tasks are already CANCELLED.
        """
        return Counts.of(self.stops.cancel_queued(fence, self.clock()))

    @activity_method
    def k8_stop_task(self, fence: Fence) -> StopReport:
        """Ask each active task of the run to end gracefully. Each asked task becomes STOPPING.

        Several tasks are asked at a time, so a call that hangs does not delay the other calls.
        Second execution: continues with the tasks that are not STOPPING yet. The cluster may get
        the same request again, but it sends the crawler no second signal.
        """
        with beating():
            return StopPass(self, fence, force=False).run()

    @activity_method
    def add_cancellation_log_to_db(self, order: RecordStop) -> None:
        """Ensure that the cancellation log has a row for each stop by a person, with the time at
        which we acted on it.

        Second execution: the rows already exist and keep their times.
        """
        for heard in order.heard:
            if heard.request_id is not None:
                self.stops.record_stop(
                    order.fence.run_id, heard.intent, heard.request_id, order.fence
                )
        self.stops.acted_on_stop(order.fence, self.clock())

    @activity_method
    def k8_stop_pod(self, fence: Fence) -> StopReport:
        """Kill each active task of the run, with everything that it started.

        Several tasks are killed at a time.

        Second execution: continues with the tasks that were not killed yet.
        """
        with beating():
            return StopPass(self, fence, force=True).run()

    @activity_method
    def signal_pusher_stopped(self, fence: Fence) -> None:
        """Notify the front end that the run was stopped, so that it closes its dialog.

        The event was recorded together with the verdict. It is pushed even if the run was resumed
        in the meantime.

        Second execution: pushes the same event through the notifiers that have not delivered it.
        """
        event = self.events.find_event(event_key(fence.run, fence.attempt, EVENT_RUN_STOPPED))
        if event is not None:
            push_event(self.events, event, self.notifiers)
