"""Slot supplier for workflow tasks: those of remembered workflows have slots that no other workflow can take.

All workflow tasks of a process share one interpreter. Temporal gives one that lasts 10 s to another worker, behind all
starts. With the SDK's hundred slots for both kinds a burst of starts fills them all, and a stop waits among
them. With few slots for both, starts hold them, and a stop waits outside. Two numbers cure both: what waits outside
waits in Temporal's queue, where it holds up nobody.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque

from temporalio.worker import (
    CustomSlotSupplier,
    FixedSizeSlotSupplier,
    SlotMarkUsedContext,
    SlotPermit,
    SlotReleaseContext,
    SlotReserveContext,
    WorkerTuner,
)

#: Workflow tasks at once: of workflows that are remembered (their sticky queue), and of those that are taken up.
REMEMBERED, TAKEN_UP = 32, 3


def tuner(activities: int) -> WorkerTuner:
    """Slots of a worker: so many activities at once, and workflow tasks as above."""
    return WorkerTuner.create_composite(
        workflow_supplier=WorkflowSlots(),
        activity_supplier=FixedSizeSlotSupplier(activities),
        local_activity_supplier=FixedSizeSlotSupplier(1),
        nexus_supplier=FixedSizeSlotSupplier(1),
    )


class WorkflowSlots(CustomSlotSupplier):
    """Slots of workflow tasks of one worker. Thread-safe."""

    def __init__(self, remembered: int = REMEMBERED, taken_up: int = TAKEN_UP) -> None:
        self._slots = {True: _Slots(remembered), False: _Slots(taken_up)}

    async def reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit:
        """A slot for the next poll, as soon as there is one."""
        slots = self._slots[ctx.is_sticky]
        await slots.wait()
        return _Permit(slots)

    def try_reserve_slot(self, ctx: SlotReserveContext) -> SlotPermit | None:
        """A slot for a task that comes with an answer of Temporal; none when all are taken."""
        slots = self._slots[ctx.is_sticky]
        return _Permit(slots) if slots.take() else None

    def mark_slot_used(self, ctx: SlotMarkUsedContext) -> None:
        """Nothing: a slot counts from its reservation on."""

    def release_slot(self, ctx: SlotReleaseContext) -> None:
        """Give the slot back."""
        if isinstance(ctx.permit, _Permit):
            ctx.permit.slots.give()


class _Slots:
    """So many at once, first come, first served. They come back from the SDK's own threads."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Take one now; false when there is none."""
        with self._lock:
            taken = self._free > 0
            self._free -= taken
            return taken

    async def wait(self) -> None:
        """Take one as soon as there is one."""
        turn = asyncio.get_running_loop().create_future()
        with self._lock:
            self._waiting.append(turn)
        self._serve()
        try:
            await turn
        except asyncio.CancelledError:
            with self._lock:
                waits = turn in self._waiting
                if waits:
                    self._waiting.remove(turn)
            if not waits:
                self.give()
            raise

    def give(self) -> None:
        """Give one back."""
        with self._lock:
            self._free += 1
        self._serve()

    def _serve(self) -> None:
        with self._lock:
            if not (self._free and self._waiting):
                return
            self._free -= 1
            turn = self._waiting.popleft()
        turn.get_loop().call_soon_threadsafe(_served, turn)


def _served(turn: asyncio.Future[None]) -> None:
    if not turn.done():  # who gave up meanwhile gives it back
        turn.set_result(None)


class _Permit(SlotPermit):
    """A slot that is taken, and of which kind."""

    def __init__(self, slots: _Slots) -> None:
        self.slots = slots
