"""Webhooks over a real Temporal server, with the real activity, store and HTTP."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack
from datetime import timedelta
from typing import Any

import pytest
import pytest_asyncio

from crawler_lifecycle.clock import utc_now
from crawler_lifecycle.compose import WEBHOOKS, build_parent_audit
from crawler_lifecycle.domain.names import EVENT_WEBHOOK_PAUSED
from crawler_lifecycle.features.webhooks.domain.definition import WebhookSpec, webhook_workflow_id
from crawler_lifecycle.features.webhooks.ports import WebhookOrder, WebhookRow
from crawler_lifecycle.ports.runs import Fence, Owner
from crawler_lifecycle.temporal.client import Workflows
from crawler_lifecycle.workflows import calls
from tests.contracts.store.harness import request
from tests.support.faulty_http import Answer, serving
from tests.support.receiver import Receiver
from tests.support.testbed import WorkflowHarness, start_workers

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Hooked:
    """One webhook of a test."""

    def __init__(self, testbed: WorkflowHarness, receiver: Receiver, name: str) -> None:
        self.testbed, self.receiver, self.name = testbed, receiver, name
        self.workflows = Workflows(testbed.client)

    async def put(self, url: str | None = None, **fields: Any) -> None:
        """Create or change it, as the gateway does."""
        spec = WebhookSpec(url or self.receiver.url, ["env:CRAWL_HOOK"], **fields)
        self.testbed.store.webhooks.put(self.name, spec.document(), "ann")
        await self.begin()

    async def begin(self) -> None:
        first = await self.workflows.start_for(
            WebhookOrder(self.name), webhook_workflow_id(self.name), wake=True
        )
        if first not in {one.first_execution_run_id for one in self.testbed.handles}:
            id = webhook_workflow_id(self.name)
            self.testbed.handles.append(
                self.testbed.client.get_workflow_handle(id, first_execution_run_id=first)
            )

    @property
    def row(self) -> WebhookRow:
        found: WebhookRow | None = self.testbed.store.webhooks.get(self.name)
        assert found is not None
        return found

    async def settled(self) -> None:
        """Wait until every existing event has been delivered."""
        last = self.testbed.store.events.last_event_seq()
        await self.testbed.until(lambda: self.row.through_seq >= last)

    async def resumed(self, *, skip: bool = False) -> None:
        self.testbed.store.webhooks.pause(self.name, None, skip=skip)
        await self.begin()

    async def deleted(self) -> None:
        """Delete it; its workflow ends."""
        self.testbed.store.webhooks.delete(self.name)
        await self.begin()
        assert (
            await self.testbed.ended(
                self.testbed.client.get_workflow_handle(webhook_workflow_id(self.name))
            )
            == "deleted"
        )


@pytest_asyncio.fixture(loop_scope="session")
async def hooks(testbed_without_workers: WorkflowHarness) -> AsyncIterator[Any]:
    """Make webhooks of receivers, and delete them at the end."""
    made: list[Hooked] = []
    testbed = testbed_without_workers

    with ExitStack() as servers:

        def make(name: str) -> Hooked:
            receiver = Receiver()
            servers.enter_context(serving(receiver))
            made.append(Hooked(testbed, receiver, name))
            return made[-1]

        async with AsyncExitStack() as stack:
            await start_workers(stack, testbed, roles=["workflows", WEBHOOKS])
            yield make
            for one in made:
                await one.deleted()


def runs(testbed: WorkflowHarness, count: int) -> list[Fence]:
    """Create this number of runs, with their own events on record."""
    found = []
    for number in range(count):
        owner = Owner(f"crawl/books/r{number}", f"chain-{number}")
        handle = testbed.store.initiation.create_run(request(crawler="books"), f"r{number}", owner)
        found.append(Fence(handle.run_id, handle.attempt, owner.first_run_id, handle.run_uid))
    return found


def tell(
    testbed: WorkflowHarness, fences: list[Fence], times: int, begin: int = 0
) -> Iterator[int]:
    for number in range(begin, begin + times):
        for fence in fences:
            event = testbed.store.events.append_event(
                fence, "run.changed", f"{fence.run_id}/{number}", {"n": number}
            )
            yield event.seq


def in_order(seqs: list[int]) -> list[int]:
    """Return each number where it came first."""
    return list(dict.fromkeys(seqs))


async def test_a_receiver_that_fails_at_random_gets_all_in_order(hooks: Any) -> None:
    hook = hooks("random")
    hook.receiver.chance = (random.Random(19), 0.3)
    await hook.put(events=["run.changed"])
    fences = runs(hook.testbed, 6)
    told = list(tell(hook.testbed, fences, 12))
    await hook.settled()
    found = hook.receiver.seqs()
    assert set(told) <= set(found)
    for fence in fences:
        first = in_order(hook.receiver.seqs(f"runs/{fence.run_id}"))
        assert first == sorted(first)
    assert hook.row.failing_since is None
    tries = hook.testbed.store.webhooks.list_webhook_deliveries(hook.row.webhook_id, limit=1000)
    assert {line.status for line in tries} == {"delivered"}
    assert max(line.tries for line in tries) > 1


@pytest.mark.troubles
async def test_answers_that_are_lost_mean_a_second_delivery_under_the_same_id(hooks: Any) -> None:
    hook = hooks("lost")
    hook.receiver.faults.append("drop")
    await hook.put(events=["run.changed"])
    [seq] = tell(hook.testbed, runs(hook.testbed, 1), 1)
    await hook.settled()
    mine = [
        id for id, one in zip(hook.receiver.ids, hook.receiver.seqs(), strict=True) if one == seq
    ]
    assert len(set(mine)) == 1
    assert len(mine) + len(hook.receiver.faults) >= 1
    assert len(set(hook.receiver.ids)) < len(hook.receiver.ids)


@pytest.mark.troubles
async def test_one_that_is_down_delays_no_other_and_misses_nothing(hooks: Any) -> None:
    down, well = hooks("down"), hooks("well")
    down.receiver.answer = Answer(503, b"closed")
    for hook in (down, well):
        await hook.put(events=["run.changed"])
    told = list(tell(well.testbed, runs(well.testbed, 2), 5))
    await well.settled()
    assert set(told) <= set(well.receiver.seqs())
    row = await down.testbed.until(lambda: down.row if down.row.failing_since else None)
    assert (down.receiver.taken, row.error) == ([], "the receiver returned 503: closed")
    down.receiver.answer = Answer(200, b"")
    await down.settled()
    assert set(told) <= set(down.receiver.seqs())


@pytest.mark.troubles
async def test_a_change_of_address_is_taken_up_at_once(hooks: Any) -> None:
    old, new = hooks("moved"), hooks("other")
    old.receiver.answer = Answer(302, b"", headers={"Location": "/elsewhere"})
    await old.put(events=["run.changed"])
    told = list(tell(old.testbed, runs(old.testbed, 1), 3))
    await old.testbed.until(lambda: old.row.failing_since)
    assert "redirects are not followed" in str(old.row.error)
    await old.put(url=new.receiver.url, events=["run.changed"])
    await old.settled()
    assert in_order(new.receiver.seqs())[-3:] == told


@pytest.mark.troubles
async def test_a_410_pauses_it_at_once_and_a_resume_goes_on(hooks: Any) -> None:
    hook = hooks("gone")
    hook.receiver.answer = Answer(410, b"")
    await hook.put(events=["run.changed"])
    fences = runs(hook.testbed, 1)
    told = list(tell(hook.testbed, fences, 2))
    await hook.testbed.until(lambda: hook.row.paused_at)
    assert "410" in str(hook.row.pause_reason)
    events = [
        one for one in hook.testbed.store.events.events_after(0) if one.type == EVENT_WEBHOOK_PAUSED
    ]
    assert [one.body["name"] for one in events] == ["gone"]
    hook.receiver.answer = Answer(204, b"")
    await hook.resumed()
    await hook.settled()
    assert in_order(hook.receiver.seqs())[-2:] == told
    hook.testbed.store.webhooks.pause("gone", "enough")
    later = list(tell(hook.testbed, fences, 1, begin=2))
    await hook.resumed(skip=True)
    await hook.settled()
    assert not set(later) & set(hook.receiver.seqs())


@pytest.mark.troubles
async def test_one_that_nobody_follows_is_found(hooks: Any) -> None:
    """The gateway died after it had inserted the row and before it started the workflow."""
    hook = hooks("forgotten")
    spec = WebhookSpec(hook.receiver.url, ["env:CRAWL_HOOK"], events=["webhook.paused"])
    hook.testbed.store.webhooks.put("forgotten", spec.document(), None)
    event = hook.testbed.store.webhooks.test_webhook("forgotten", "ann")
    audit = build_parent_audit(hook.testbed.parts)
    audit.clock = lambda: utc_now() + timedelta(seconds=60)
    assert await asyncio.to_thread(audit.search, "webhook", repair=True) == 1
    await hook.settled()
    assert hook.receiver.seqs() == [event.seq]
    assert hook.receiver.taken[0]["type"] == "webhook.test"


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let executions continue as new after a few steps; requested before the testbed, which replays
    at its end.
    """
    monkeypatch.setattr(calls, "HISTORY_MAX", 12)


@pytest.mark.troubles
async def test_it_goes_on_in_one_execution_after_another(forgetful: None, hooks: Any) -> None:
    hook = hooks("long")
    await hook.put(events=["run.changed"])
    [fence] = runs(hook.testbed, 1)
    told: list[int] = []
    for number in range(6):
        told += tell(hook.testbed, [fence], 1, begin=number)
        await hook.settled()
        await hook.begin()
    assert in_order(hook.receiver.seqs())[-6:] == told
    assert len(await hook.testbed.chain(hook.testbed.handles[-1])) > 1
