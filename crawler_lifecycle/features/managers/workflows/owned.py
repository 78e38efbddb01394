"""The base class of the workflows of managers and graphs.

Each workflow owns one row and begins runs for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter
from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from crawler_lifecycle.activities.child_runs import Claim, RecordParentStop, StopRecorded
from crawler_lifecycle.domain.errors import NotInThisState
from crawler_lifecycle.ports.runs import Owner
from crawler_lifecycle.workflows.calls import (
    Alarm,
    Beside,
    Condition,
    MustLeave,
    StepInterrupted,
    call,
    never,
    pause,
)
from crawler_lifecycle.workflows.requests import read_carried
from crawler_lifecycle.workflows.state import TOO_LATE, ReceivedSignal
from crawler_lifecycle.workflows.steps import commanded, heeding

from .manager_state import PASS_LEAST_S, PASS_MOST_S, PASS_S, OwnedState

S = TypeVar("S", bound=OwnedState)
A = TypeVar("A")
R = TypeVar("R")


class OwnedWorkflow(Generic[S]):
    """The workflow of one manager or graph. It claims the row, carries out its work, and records
    the stop and the end.
    """

    _s: S

    def _begin(
        self, state: TypeAdapter[S], new: S, carried: Any, surplus: Sequence[Any], wakes: str
    ) -> None:
        """Load the state of the previous execution. ``wakes`` is the purpose of the alarm, for
        Temporal's UI.
        """
        self._s, self._refused = read_carried(state, new, carried, surplus)
        self._alarm = Alarm(lambda: self._s.next_at, wakes)
        self._beside = Beside()

    async def _keep(self, life: Coroutine[Any, Any, R], *beside: Coroutine[Any, Any, None]) -> R:
        """Run ``life`` to its result, with the coroutines ``beside`` in parallel."""
        if self._refused is not None:
            raise self._refused
        living = asyncio.create_task(life)
        for coroutine in beside:
            self._beside.start(coroutine)
        return await heeding(living, self._s.inbox.want)

    @workflow.signal(
        dynamic=True, description="stop, force_stop (StopRequest or nothing), run_ended, wake"
    )
    def _on_signal(self, name: str, args: Sequence[RawValue]) -> None:
        self._s.inbox.signal(ReceivedSignal(name, args, workflow.now()))

    def note(self, text: str) -> None:
        """Add a note for people, in the snapshot and in Temporal's UI."""
        self._s.inbox.note(text)

    def _stop_wanted(self) -> bool:
        return self._s.inbox.stop is not None

    def _stop_changed(self) -> bool:
        """Return whether a stop, or a stronger one, has not been recorded yet."""
        return self._s.inbox.changed

    def _claim(self, number: int) -> Claim:
        return Claim(number, Owner(workflow.info().workflow_id, self._s.owner_run_id))

    async def _live(self, steps: Coroutine[Any, Any, R]) -> R | None:
        """Carry out the steps. Return the result, or ``None`` to continue as new."""
        try:
            return await steps
        except MustLeave:
            self._left()
            await workflow.wait_condition(workflow.all_handlers_finished)
            return None

    def _left(self) -> None:
        """Prepare the state for continue-as-new after interrupted work."""
        raise NotImplementedError

    async def _command(
        self, request_id: str | None, carry_out: Callable[[str], Awaitable[int]]
    ) -> int:
        """Carry out an update. Return the number of changed jobs or steps."""
        done = await commanded(request_id, lambda: self._s.attempt != 0, carry_out)
        self._s.inbox.woken = True
        return done

    async def _wait(self, woken: Condition, elsewhere: Condition, soon: Condition = never) -> None:
        """Wait for the alarm or a wake-up.

        After this, wait a short time for more events, until ``soon()`` returns true.

        Raises ``StepInterrupted`` if ``elsewhere()`` returns true, because other work then comes
        first.
        """
        s = self._s
        self._alarm.rang = self._s.next_at is None
        await pause(None, lambda: self._alarm.rang or woken() or elsewhere())
        if not elsewhere():
            await pause(s.gap_left(workflow.now()), lambda: elsewhere() or soon(), "more ends")
        if elsewhere():
            raise StepInterrupted

    async def _recorded(
        self,
        method: Callable[[Any, RecordParentStop], StopRecorded],
        order: RecordParentStop,
        wake: Condition = never,
    ) -> StopRecorded:
        """Record the received stop."""
        inbox = self._s.inbox
        inbox.changed = False
        try:
            recorded = await call(method, order, wake=wake)
        except MustLeave:
            inbox.changed = True
            raise
        if recorded.unreadable is not None:
            self.note(f"the stop is not on record yet: {recorded.unreadable}")
        return recorded

    def _too_late(self) -> None:
        """Drop a stop that came after the end, and add a note."""
        self._s.inbox.stop = None
        self._s.inbox.closed = True
        self.note(TOO_LATE)

    async def _ended(self, method: Callable[[Any, A], R], order: A, wake: Condition) -> R | None:
        """Record the end. Return ``None`` if a run or step has become live in the meantime."""
        try:
            return await call(method, order, control=self._stop_wanted(), wake=wake)
        except ApplicationError as error:
            if error.type != NotInThisState.code:
                raise
            return None

    async def _await_proof(self, passes: int, changed: Condition, woken: Condition = never) -> None:
        """Wait after asking runs to end. The wait becomes longer after each pass."""
        await pause(PASS_LEAST_S, changed, "runs that end")
        await pause(
            min(PASS_S * 2 ** min(passes, 10), PASS_MOST_S),
            lambda: changed() or woken(),
            "proof of the stop",
        )
