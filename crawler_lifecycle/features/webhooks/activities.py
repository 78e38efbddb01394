"""Activities that deliver events to one webhook. They read the outbox from the position that the
webhook's row records.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from temporalio import activity

from crawler_lifecycle.activities import meters
from crawler_lifecycle.activities.audits.parents import source
from crawler_lifecycle.activities.shared import activity_method, beating
from crawler_lifecycle.background import CHANCE
from crawler_lifecycle.clock import Clock, utc_now
from crawler_lifecycle.domain.audits.audit import LiveParent
from crawler_lifecycle.domain.audits.judgement import progress_mark
from crawler_lifecycle.domain.errors import Fenced, NotDelivered, RunNotFound
from crawler_lifecycle.domain.names import EVENT_WEBHOOK_TEST
from crawler_lifecycle.ports.runs import Event

from .domain.definition import GIVE_UP_S, WebhookSpec, webhook_workflow_id
from .ports import (
    DeliveryAttempt,
    ReceiverGone,
    WebhookOrder,
    WebhookRow,
    WebhookSender,
    WebhookSenders,
)

if TYPE_CHECKING:
    from .store import WebhookStore


log = logging.getLogger(__name__)

T = TypeVar("T")

#: The sources that audits compare.
SOURCES = (source("webhooks", "webhook"),)

#: The number of events that are read at a time.
PAGE = 100
#: The number of parallel deliveries. Events of one subject are never delivered in parallel.
LANES = 8
#: Seconds between two reads of the outbox when there are no new events: the first wait.
IDLE_S = 0.1
#: The longest wait.
IDLE_MAX_S = 1.0
#: Seconds between two records of the deliveries.
NOTE_S = 0.5
#: The number of consecutive failures after which the rest of a page is left to the next try.
FAILED_MAX = 3
#: The number of unwanted events after which the position is recorded. At most this many events are
#: read again after a crash.
UNNOTED_MAX = 1000
#: While an event is not accepted, other subjects may be at most this many events ahead of it.
AHEAD_MAX = 1000
#: The duration of one execution in seconds. Then the workflow starts the next one, which reads the
#: definition again.
SHIFT_S = 900.0
#: Additional seconds for the page that is being delivered when an execution ends.
LATE_S = 30.0


class FollowEnd(StrEnum):
    """The reason why one execution of ``follow_webhook`` ended."""

    ON = "on"
    """The webhook is not finished, and there may be more events to deliver."""
    FAILING = "failing"
    """Some events were delivered, and some deliveries failed."""
    PAUSED = "paused"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class Following:
    """Result of ``follow_webhook``."""

    how: FollowEnd
    stuck_seq: int | None = None
    """The number of the first event that was not accepted."""
    wait_s: float | None = None
    """Seconds for which the receiver wants no delivery."""


@dataclass
class WebhookActivities:
    """The activity of a webhook's workflow."""

    webhooks: WebhookStore
    senders: WebhookSenders
    clock: Clock = utc_now
    shift_s: float = SHIFT_S

    def open(self, after: int, limit: int) -> list[LiveParent]:
        """Return webhooks that are not paused and have numbers higher than ``after``."""
        return [
            LiveParent(
                "webhook",
                webhook.webhook_id,
                webhook_workflow_id(webhook.name),
                status="active",
                attempt=webhook.revision,
                updated_at=webhook.updated_at,
                owner_run_id=webhook.follower,
                progress=progress_mark(webhook.revision, webhook.through_seq),
            )
            for webhook in self.webhooks.page(after, limit)
            if webhook.paused_at is None  # a paused webhook has no workflow; a resume starts one
        ]

    def give_up(self, parent: LiveParent, why: str) -> None:
        """Pause a webhook that no workflow can serve."""
        self.webhooks.pause(parent.workflow_id.partition("/")[2], why)

    @activity_method
    def follow_webhook(self, order: WebhookOrder) -> Following:
        """Deliver the events after the webhook's recorded position, and then new events, for up to
        ``shift_s`` seconds.

        Second execution: it continues after the recorded deliveries. After a crash, only events of
        the last half second can be delivered twice. Raises ``NotDelivered`` if no event could be
        delivered.
        """
        with beating():
            return asyncio.run(self._follow(order.name))

    async def _follow(self, name: str) -> Following:
        follower = _follower()
        row = await _block(self.webhooks.follow_webhook, name, follower)
        if row is None:
            return Following(FollowEnd.DELETED)
        if row.paused_at is not None:
            return Following(FollowEnd.PAUSED)
        async with self.senders.connections() as sender:
            return await _Shift(self, row, follower, sender).work()


class _Shift:
    """One execution of ``follow_webhook``, with one version of the webhook's row."""

    def __init__(
        self, acts: WebhookActivities, row: WebhookRow, follower: str, sender: WebhookSender
    ) -> None:
        self._acts = acts
        self._store = acts.webhooks
        self._sender = sender
        self._row = row
        self._follower = follower
        self._spec = WebhookSpec.read(row.definition)
        self._read = row.through_seq
        """The number of the last event that was read from the outbox."""
        self._left: dict[int, str] = {}
        """Events that were read but not delivered yet, in order, each with its subject."""
        self._tried: list[DeliveryAttempt] = []
        """Tries that have not been recorded yet."""
        self._sent = 0
        self._failure: NotDelivered | None = None
        self._failed_in_row = 0
        self._idle_s = IDLE_S
        self._over = asyncio.get_running_loop().time() + acts.shift_s

    async def work(self) -> Following:
        """Deliver page after page until the execution ends. Raises ``NotDelivered``."""
        try:
            while True:
                ended = await self._turn()
                if ended is not None:
                    return ended
        # Another execution delivers, or the webhook was changed or deleted. The workflow reads it
        # again.
        except Fenced:
            return Following(FollowEnd.ON)

    async def _turn(self) -> Following | None:
        ask = self._store.waiting_events
        row = self._row
        waiting = await _block(ask, row.webhook_id, self._follower, self._spec, self._read, PAGE)
        if waiting.paused:
            return Following(FollowEnd.PAUSED)
        # New events of these subjects must wait behind an undelivered one.
        wait = set(self._left.values())
        self._left |= {event.seq: event.subject for event in waiting.events}
        self._read = waiting.until_seq
        await self._deliver([event for event in waiting.events if event.subject not in wait])
        leaves = self._leaves()
        if waiting.events or leaves or self._through >= row.through_seq + UNNOTED_MAX:
            await self._note()
        if self._row.paused_at is not None:
            return Following(FollowEnd.PAUSED)
        if self._failure is not None:
            if (
                not leaves
                and not self._hopeless
                and waiting.more
                and self._read < self._through + AHEAD_MAX
            ):
                return None
            if not self._sent:
                raise self._failure
            return Following(FollowEnd.FAILING, next(iter(self._left)), self._failure.retry_after_s)
        if leaves:
            return Following(FollowEnd.ON)
        self._idle_s = IDLE_S if waiting.events else min(2 * self._idle_s, IDLE_MAX_S)
        if not waiting.more:
            await asyncio.sleep(self._idle_s)
        return None

    @property
    def _through(self) -> int:
        """Return the number of the last event before the first undelivered one. All events up to it
        are delivered or unwanted.
        """
        return next(iter(self._left)) - 1 if self._left else self._read

    @property
    def _hopeless(self) -> bool:
        """Return whether the rest of the page must be left to the next try."""
        return self._failed_in_row >= FAILED_MAX or (
            self._failure is not None and _ends(self._failure)
        )

    def _leaves(self) -> bool:
        """Return whether this execution must end, because its time is over or it was cancelled."""
        return asyncio.get_running_loop().time() >= self._over or _must_leave()

    def _stops(self) -> bool:
        """Return whether no further delivery may begin."""
        late = asyncio.get_running_loop().time() >= self._over + LATE_S
        return late or self._hopeless or self._row.paused_at is not None or _must_leave()

    async def _deliver(self, events: Sequence[Event]) -> None:
        """Deliver a page, with the events of each subject in order.

        Record deliveries while others are still in progress.
        """
        lanes: dict[str, list[Event]] = {}
        for event in events:
            lanes.setdefault(event.subject, []).append(event)
        order = list(lanes.values())
        if self._row.failing_since is not None:
            # Otherwise, the refused event would always come first, and the others would never be
            # tried.
            CHANCE.shuffle(order)
        free = asyncio.Semaphore(LANES)
        under_way = [asyncio.create_task(self._lane(lane, free)) for lane in order]
        try:
            while under_way:
                done, pending = await asyncio.wait(under_way, timeout=NOTE_S)
                for task in done:
                    task.result()
                under_way = list(pending)
                if under_way and self._tried:
                    await self._note()
        finally:
            for task in under_way:
                task.cancel()

    async def _lane(self, events: Sequence[Event], free: asyncio.Semaphore) -> None:
        """Deliver the events of one subject in order, until one is not accepted."""
        for event in events:
            async with free:
                if self._stops():
                    return
                try:
                    answer = await self._send(event)
                except NotDelivered as error:
                    self._tried.append(DeliveryAttempt(event.seq, str(error)))
                    self._failed_in_row += 1
                    if self._failure is None or not _ends(self._failure):
                        self._failure = error
                    meters.count(meters.WEBHOOK_DELIVERIES, result="failed")
                    return
            self._tried.append(
                DeliveryAttempt(
                    event.seq, answer=answer if event.type == EVENT_WEBHOOK_TEST else None
                )
            )
            del self._left[event.seq]
            self._sent += 1
            self._failed_in_row = 0
            meters.count(meters.WEBHOOK_DELIVERIES, result="delivered")
            late = self._acts.clock() - event.created_at
            meters.measure(meters.WEBHOOK_LAG, late.total_seconds())

    async def _send(self, event: Event) -> str:
        """Deliver one event, and return the response.

        An error concerns only this event, and other events are still delivered.
        """
        try:
            return await self._sender.send(self._spec, event)
        except NotDelivered:
            raise
        except Exception as error:
            log.exception("webhook %s: event %d cannot be sent", self._row.name, event.seq)
            why = f"the event cannot be sent: {type(error).__name__}; see the worker's log"
            raise NotDelivered(why) from error

    async def _note(self) -> None:
        """Record the tries.

        Pause the webhook if its receiver is gone or has failed for too long. Raises ``Fenced``.
        """
        tried, self._tried = self._tried, []
        note = functools.partial(self._store.note_tries, settled=not self._left)
        self._row = row = await _block(
            note, self._row.webhook_id, self._follower, tried, self._through
        )
        since = row.failing_since
        why = None
        if isinstance(self._failure, ReceiverGone):
            why = str(self._failure)
        elif since is not None and self._acts.clock() - since >= timedelta(seconds=GIVE_UP_S):
            why = f"event {self._through + 1} was not accepted for a day: {row.error}"
        if why is not None and row.paused_at is None:
            with suppress(RunNotFound):  # the webhook was deleted meanwhile
                self._row = await _block(self._store.pause, row.name, why)


def _ends(failure: NotDelivered) -> bool:
    """Return whether the receiver itself asked for no further tries, for some time or
    permanently.
    """
    return failure.retry_after_s is not None or isinstance(failure, ReceiverGone)


def _must_leave() -> bool:
    """Return whether this execution was cancelled or its worker is shutting down."""
    return activity.is_cancelled() or activity.is_worker_shutdown()


def _follower() -> str:
    """Return the name of this deliverer, which stands for one try of one activity."""
    info = activity.info()
    return f"{info.workflow_run_id}/{info.activity_id}/{info.attempt}"[-64:]


async def _block(call: Callable[..., T], *args: Any) -> T:
    """Call the database in a thread."""
    return await asyncio.to_thread(call, *args)
