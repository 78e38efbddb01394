"""One call, which executes the functions of several steps of a graph one after the other, in a
process with users' code.

The effects of the functions are recorded before the activity returns. Several short functions share
one transaction. If a step depends on the step before it, one transaction records the end of the
first and the beginning of the second.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from temporalio import activity
from temporalio.exceptions import CancelledError

from crawler_lifecycle.activities.run_files import FileReading
from crawler_lifecycle.activities.shared import (
    activity_method,
    alive,
    keep_output,
    retry_while_unavailable,
    there,
)
from crawler_lifecycle.clock import Clock, utc_now
from crawler_lifecycle.domain.errors import InvalidRequest, RowUnreadable, StoreUnavailable
from crawler_lifecycle.domain.names import graph_workflow_id, pool_of
from crawler_lifecycle.domain.projects import limited
from crawler_lifecycle.domain.values import NoValue
from crawler_lifecycle.features.managers.activities.registered import starts_none
from crawler_lifecycle.features.managers.domain.manager import OUTPUT_BYTES
from crawler_lifecycle.ports.protocols import (
    FunctionCall,
    FunctionHost,
    FunctionHosts,
    FunctionReply,
    UserCodeFailed,
    WorkflowDirectory,
)

from ..domain.engine import StepEnd, after_failure
from ..domain.spec import LOST_MAX, StepState
from ..ports import ExecutionEnd, GraphFence, GraphRow, StepWork
from .questions import Around, Questions, given_frames, unfit

if TYPE_CHECKING:
    from crawler_lifecycle.features.managers.store.user_code import UserCodeStore

    from ..store.graphs import GraphStore


#: The number of seconds after which a call should free its slot for another graph. The first
#: function always begins. Each further function begins only if it would end in time if it took as
#: long as the function before it. A function that has begun is always executed to its end.
BEGIN_S = 1.0
#: Limits for one transaction: the seconds that its functions take, the number of these functions,
#: and the bytes of their results.
TOGETHER_S = 0.1
TOGETHER_MAX = 50
TOGETHER_BYTES = 1024 * 1024
#: The maximum number of functions whose usual duration a worker remembers.
CALLS_MAX = 1000
#: The seconds that a cancelled function has to end on its own, and the further seconds after
#: SIGTERM.
GRACE_S = 15.0
TERM_S = 5.0
#: Seconds between two checks for a cancellation of the call by Temporal.
BEAT_S = 0.5
#: Seconds between two checks for a cancellation of the step.
POLLED_S = 1.0
#: The number of seconds for which a worker keeps the results of completed functions while the
#: database is unavailable. If the worker discarded them, the functions would be executed again.
KEPT_S = 60.0
REASON_MAX = 1000


@dataclass(frozen=True, slots=True)
class BatchOrder:
    """The input of ``run_graph_batch``: the batch of steps (``GraphStore.batch``), and the workflow
    that owns the graph.
    """

    fence: GraphFence
    batch: int
    turn: int = 1
    """The priority of this call among the calls of all graphs: 1 (first) to 5."""


@dataclass
class GraphBatchActivities:
    """The activity of workers that call functions (``names.functions_queue``)."""

    graphs: GraphStore
    user_code: UserCodeStore
    functions: FunctionHosts
    directory: WorkflowDirectory
    reading: Callable[[str], FileReading]
    """Creates a reader for the files of a workflow's runs, for one execution."""
    clock: Clock = utc_now
    grace_s: float = GRACE_S
    together: dict[str, int] = field(default_factory=dict, repr=False)
    """For each function, the number of executions that fit into one transaction, as last
    measured.
    """
    start: Callable[..., bool] = starts_none
    """Starts a graph for a function: ``GraphStarts.start``."""

    @activity_method
    def run_graph_batch(self, order: BatchOrder) -> None:
        """Call the functions of a batch.

        The activity returns after some seconds and releases the remaining steps.

        If Temporal cancels the activity, because the graph is stopped by force, the activity kills
        the function. A second execution begins the next attempt of each step that had begun and not
        ended.
        """
        row = there(self.graphs.get_graph(order.fence.graph_id), f"graph {order.fence.graph_id}")
        batch = _Batch(self, row, order.fence)
        try:
            with limited(row.project):  # users' code must not see another project
                batch.run(self.graphs.batch(order.fence, order.batch))
        finally:
            keep_output(self.graphs.keep_output, row.graph_id, batch.printed)


class _FunctionKilled(Exception):
    """A cancelled function did not end in time."""


class _NotHere(Exception):
    """This worker does not have the function, but other workers do."""


class _Batch:
    """One execution of ``run_graph_batch``."""

    def __init__(self, owner: GraphBatchActivities, row: GraphRow, fence: GraphFence) -> None:
        self._owner = owner
        self._graphs = owner.graphs
        self._row = row
        self._fence = fence
        self._done: list[ExecutionEnd] = []
        """Ended executions that are not recorded yet."""
        self._took = 0.0
        """Seconds that the last function took."""
        self._around = Around()
        self._beat_at = time.monotonic()
        self.printed = ""

    def alive(self, now: float) -> None:
        """Send a heartbeat, at most once every ``BEAT_S`` seconds, because each heartbeat takes as
        long as a short function.
        """
        if now - self._beat_at >= BEAT_S:
            self._beat_at = now
            alive()

    def run(self, work: Sequence[StepWork]) -> None:
        """Call the functions until the time limit is reached.

        Raises ``Fenced``, ``CancelledError``, and ``UserCodeFailed`` if only other workers can call
        the function.
        """
        left = list(work)
        until = time.monotonic() + BEGIN_S
        try:
            while left and time.monotonic() + self._took < until:
                group = self._group(left)
                begun = self._record(group)
                del left[: len(group)]
                self._call([step for step in group if step.number in begun], until)
        finally:
            if self._done:  # these functions have ended, however this call ends
                self._record()

    def _group(self, left: Sequence[StepWork]) -> list[StepWork]:
        """Return the steps that begin now: the next steps of one function that do not depend on
        each other.
        """
        group: list[StepWork] = []
        call = _called(left[0])
        for step in left[: self._owner.together.get(call, 1)]:
            if _called(step) != call or {other.number for other in group} & set(step.deps):
                break
            group.append(step)
        return group

    def _call(self, work: Sequence[StepWork], until: float) -> None:
        """Call the functions of the begun steps.

        If the function of a step is not called after all, this does not count as a try.
        """
        began = time.monotonic()
        called = 0
        try:
            for step in work:
                if called and time.monotonic() >= until:
                    break
                called += 1
                self._done.append(self._executed(step))
                if sum(done.result_bytes for done in self._done) > TOGETHER_BYTES:
                    self._record()
        except _NotHere as why:
            called -= 1
            raise UserCodeFailed(str(why), missing=True) from None
        finally:
            self._done += [
                ExecutionEnd(StepEnd(step.number, step.attempt, StepState.AVAILABLE))
                for step in work[called:]
            ]
        if called:
            self._took = (time.monotonic() - began) / called
            self._learn(_called(work[0]), max(self._took, 1e-4))

    def _learn(self, call: str, took: float) -> None:
        """Remember how many executions that take ``took`` seconds each fit into one transaction."""
        together = self._owner.together
        if len(together) >= CALLS_MAX:
            together.clear()
        together[call] = max(
            1, min(TOGETHER_MAX, 2 * together.get(call, 1), int(TOGETHER_S / took))
        )

    def _executed(self, work: StepWork) -> ExecutionEnd:
        """Call one function, and return how it ended. Raises ``_NotHere``, ``CancelledError``."""
        wrong = unfit(work)
        if wrong is not None:
            end = StepEnd(
                work.number, work.attempt, StepState.DISCARDED, "failed", wrong[:REASON_MAX]
            )
            return ExecutionEnd(end, error=wrong)
        with self._owner.functions.use(self._row.key) as host:
            watch = _Watch(self._owner, self._fence, work, host, self.alive)
            reading = self._owner.reading(graph_workflow_id(self._row.key))
            known = (self._graphs, self._owner.directory, self._row, work, host)
            questions = Questions(*known, watch.check, reading, self._owner.start)
            try:
                reply = host.call(self._order(work), questions.answer, watch.alive)
                return self._completed(work, reply)
            except UserCodeFailed as failed:
                if failed.missing and self._served(work):
                    raise _NotHere(str(failed)) from None
                return watch.ended() or self._failed(work, failed, watch)
            # The input of the step cannot be read.
            except (InvalidRequest, NoValue, RowUnreadable) as error:
                return self._failed(work, UserCodeFailed(str(error), lives=True), watch)
            except _FunctionKilled:
                return watch.ended() or self._failed(work, UserCodeFailed("it was killed"), watch)
            except CancelledError:
                # The process of the function has ended, and a graph that was stopped by force waits
                # for this record.
                if watch.check():
                    self._done += filter(None, [watch.ended()])
                raise
            finally:
                self.printed = (self.printed + host.printed())[-OUTPUT_BYTES:]

    def _order(self, work: StepWork) -> FunctionCall:
        job = {
            "path": work.path,
            "job": dict(work.job),
            "attempt": work.attempt,
            "max_attempts": work.max_attempts,
            "snoozed": work.snoozed,
        }
        if work.attempt > 1:
            rows = self._graphs.list_steps(self._row.graph_id, paths=[work.path])
            job["errors"] = [error for row in rows for error in row.errors]
        # The contexts of a graft step may include the context of the graph that the step grafted
        # before. Other steps must not get that context.
        around = Around() if work.graft else self._around
        # Read only when the function asks for it.
        given = given_frames(self._graphs, self._row.graph_id, work, around)
        return FunctionCall(
            function=_called(work),
            graph=self._row.key,
            job=job,
            limit_s=work.timeout_s,
            graft=work.graft,
            given=given if work.job.get("style") in ("cascade", "item") else (),
        )

    def _completed(self, work: StepWork, reply: FunctionReply) -> ExecutionEnd:
        state = StepState.COMPLETED
        outcome = None
        not_before = None
        if reply.kind == "cancel":
            state = StepState.CANCELLED
            outcome = "cancelled"
        elif reply.kind == "snooze":
            state = StepState.SCHEDULED
            not_before = self._owner.clock() + timedelta(seconds=reply.seconds)
        end = StepEnd(work.number, work.attempt, state, outcome, reply.reason, not_before)
        return ExecutionEnd(end, reply.result, reply.result_bytes)

    def _failed(self, work: StepWork, failed: UserCodeFailed, watch: _Watch) -> ExecutionEnd:
        state = StepState.DISCARDED
        not_before = None
        if not failed.for_good:
            # A process that another process ended counts as lost, as if its worker had died.
            most = work.max_attempts + (LOST_MAX if failed.struck else 0)
            state, not_before = after_failure(work.tries, most, work.backoff_s, self._owner.clock())
        outcome = "timed_out" if watch.took() >= work.timeout_s and not failed.lives else "failed"
        text = str(failed)
        end = StepEnd(work.number, work.attempt, state, outcome, text[:REASON_MAX], not_before)
        return ExecutionEnd(end, error=text)

    def _served(self, work: StepWork) -> bool:
        """Return whether a worker of this pool currently reports that it has the module of this
        step.
        """
        pool = pool_of(activity.info().task_queue)
        plan = self._owner.user_code.get_user_code(_called(work).partition(":")[0], pool)
        return plan is not None and plan.error is None and plan.heard(self._owner.clock())

    def _record(self, begin: Sequence[StepWork] = ()) -> set[int]:
        """Record finished steps and begin the given steps.

        Return the numbers of the steps that began.
        """
        record = functools.partial(self._graphs.record, self._fence, self._done, begin)
        begun = retry_while_unavailable(record, KEPT_S if self._done else 0.0)
        self._done.clear()
        return begun


def _called(work: StepWork) -> str:
    return str(work.job.get("call"))


@dataclass
class _Watch:
    """Checks whether a step was cancelled, while the step's function is executing."""

    _owner: GraphBatchActivities
    _fence: GraphFence
    _work: StepWork
    _host: FunctionHost
    _beat: Callable[[float], None]
    _began: float = field(default_factory=time.monotonic)
    _polled: float = field(default_factory=time.monotonic)
    _since: float | None = None
    """The time when the cancellation was noticed."""
    _asked: bool = False

    def took(self) -> float:
        """Return the seconds since the function began."""
        return time.monotonic() - self._began

    def check(self) -> bool:
        """Return whether the step was cancelled.

        While the database is unavailable, return the last known result.
        """
        if self._since is None:
            self._polled = time.monotonic()
            with suppress(StoreUnavailable):  # an outage is not a reason to end a function
                if self._owner.graphs.cancelled(self._fence, [self._work.number]):
                    self._since = self._polled
        return self._since is not None

    def alive(self) -> None:
        """Send a heartbeat, and check whether the step was cancelled.

        This method is called regularly while the function is executing.

        Raises ``CancelledError``, and ``_FunctionKilled`` if the cancelled function did not end in
        time.
        """
        now = time.monotonic()
        self._beat(now)
        if self._since is None:
            if now - self._polled >= POLLED_S:
                self.check()
        elif now - self._since >= self._owner.grace_s + TERM_S:
            raise _FunctionKilled
        elif now - self._since >= self._owner.grace_s and not self._asked:
            self._asked = True
            self._host.end_soon()

    def ended(self) -> ExecutionEnd | None:
        """Return the end of a cancelled step, or ``None`` if the step was not cancelled."""
        if self._since is None:
            return None
        return ExecutionEnd(
            StepEnd(self._work.number, self._work.attempt, StepState.CANCELLED, "cancelled")
        )
