"""Base of the workflows of managers and of graphs: each keeps one row going that has runs of its own."""

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
from crawler_lifecycle.workflows.calls import Alarm, Beside, Interrupted, MustLeave, call, never, pause
from crawler_lifecycle.workflows.requests import read_carried
from crawler_lifecycle.workflows.state import TOO_LATE
from crawler_lifecycle.workflows.steps import commanded, heeding

from .manager_state import PASS_LEAST_S, PASS_MOST_S, PASS_S, OwnedState

S = TypeVar("S", bound=OwnedState)
A = TypeVar("A")
R = TypeVar("R")


class OwnedWorkflow(Generic[S]):
    """One workflow of one row, which it claims, keeps going, stops and ends."""

    _s: S

    def _begin(self, state: TypeAdapter[S], new: S, carried: Any, surplus: Sequence[Any], wakes: str) -> None:
        """Take over what a former execution carried here. ``wakes``: what the alarm is for."""
        self._s, self._refused = read_carried(state, new, carried, surplus)
        self._alarm = Alarm(lambda: self._s.next_at, wakes)
        self._beside = Beside()

    async def _keep(self, life: Coroutine[Any, Any, R], *beside: Coroutine[Any, Any, None]) -> R:
        """The result of its life, with the work beside it."""
        if self._refused is not None:
            raise self._refused
        living = asyncio.create_task(life)
        for one in beside:
            self._beside.start(one)
        return await heeding(living, self._s.inbox.want)

    @workflow.signal(dynamic=True, description="stop, force_stop (StopRequest or nothing), run_ended, wake")
    def _on_signal(self, name: str, args: Sequence[RawValue]) -> None:
        self._s.inbox.signal(name, args, workflow.payload_converter(), workflow.now(), "")

    def note(self, text: str) -> None:
        """Show people a remark, in the snapshot and in Temporal's UI."""
        self._s.inbox.note(text)

    def _stop_wanted(self) -> bool:
        return self._s.inbox.stop is not None

    def _stop_changed(self) -> bool:
        """Return whether more is requested than is recorded."""
        return self._s.inbox.changed

    def _claim(self, number: int) -> Claim:
        return Claim(number, Owner(workflow.info().workflow_id, self._s.owner_run_id))

    async def _live(self, steps: Coroutine[Any, Any, R]) -> R | None:
        """Step by step to the result; ``None`` asks for continue-as-new."""
        try:
            return await steps
        except MustLeave:
            self._left()
            await workflow.wait_condition(workflow.all_handlers_finished)
            return None

    def _left(self) -> None:
        """Take note that something was left in the middle."""
        raise NotImplementedError

    async def _command(self, request_id: str | None, carry_out: Callable[[str], Awaitable[int]]) -> int:
        """The result of an update."""
        done = await commanded(request_id, lambda: self._s.attempt != 0, carry_out)
        self._s.inbox.woken = True
        return done

    async def _wait(
        self, woken: Callable[[], bool], elsewhere: Callable[[], bool], soon: Callable[[], bool] = lambda: False
    ) -> None:
        """Wait for the alarm, or for a wake-up and then a short time more, which ends when ``soon()`` returns true.
        Raises ``Interrupted`` when something else is to be done.
        """
        s, self._alarm.rang = self._s, self._s.next_at is None
        await pause(None, lambda: self._alarm.rang or woken() or elsewhere())
        if not elsewhere():
            await pause(s.gap_left(workflow.now()), lambda: elsewhere() or soon(), "more ends")
        if elsewhere():
            raise Interrupted

    async def _recorded(
        self,
        method: Callable[[Any, RecordParentStop], StopRecorded],
        order: RecordParentStop,
        wake: Callable[[], bool] = never,
    ) -> StopRecorded:
        """Put the stop on record that was heard."""
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
        """The stop came after the end."""
        self._s.inbox.stop, self._s.inbox.closed = None, True
        self.note(TOO_LATE)

    async def _ended(self, method: Callable[[Any, A], R], order: A, wake: Callable[[], bool]) -> R | None:
        """Record the end; ``None``: a run or step became live meanwhile."""
        try:
            return await call(method, order, control=self._stop_wanted(), wake=wake)
        except ApplicationError as error:
            if error.type != NotInThisState.code:
                raise
            return None

    async def _await_proof(
        self, passes: int, changed: Callable[[], bool], woken: Callable[[], bool] = lambda: False
    ) -> None:
        """Wait after a pass over runs that are to end: a moment, then longer from pass to pass."""
        await pause(PASS_LEAST_S, changed, "runs that end")
        await pause(min(PASS_S * 2 ** min(passes, 10), PASS_MOST_S), lambda: changed() or woken(), "proof of the stop")
