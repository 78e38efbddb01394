"""Payloads that nobody can read, by every way on which a payload reaches a run.

Only the call that brought one fails, and says why; the run goes on to its end, a stop still stops, and every history
replays (the laboratory replays them all).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.client import (
    AsyncActivityHandle,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
)
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.errors import ClusterUnavailable
from crawler_lifecycle.fakes.cluster import Behaviour
from crawler_lifecycle.payloads import Undecoded
from crawler_lifecycle.workflows.requests import read_carried
from tests.support.lab import Lab

pytestmark = pytest.mark.asyncio(loop_scope="session")

UNTIL_STOPPED = Behaviour(executes=None)


def raw(data: bytes, encoding: bytes | None = b"json/plain", **metadata: bytes) -> RawValue:
    more = {} if encoding is None else {"encoding": encoding}
    return RawValue(Payload(metadata={**more, **metadata}, data=data))


#: What cannot be decoded, whatever was expected.
UNDECODABLE = {
    "bytes that are no text": raw(b"\xff\xfe\x00\xc3"),
    "broken JSON": raw(b"{not json"),
    "empty": raw(b""),
    "no encoding": raw(b"{}", None),
    "unknown encoding": raw(b"\x00", b"binary/strange"),
    "encoding that is no text": raw(b"{}", b"\xff\xfe"),
    "10,000 levels": raw(b"[" * 10_000 + b"]" * 10_000),
    "protobuf of nobody": raw(b"\x0a\x01", b"binary/protobuf", messageType=b"no.such.Message"),
}
ENCRYPTED = raw(b"x" * 64, b"binary/encrypted", **{"encryption-key-id": b"lost"})
#: What can be decoded and is not what was expected.
UNEXPECTED = {
    "number": raw(b"5"),
    "text": raw(b'"stop"'),
    "list": raw(b"[1, 2]"),
    "boolean": raw(b"true"),
    "NaN": raw(b'{"priority": NaN, "tasks": NaN, "force": NaN}'),
    "unknown field": raw(b'{"colour": "red"}'),
    "wrong types": raw(b'{"crawler": 7, "tasks": "all", "force": "yes", "reason": [], "request_id": {}}'),
    "half a surrogate": raw(b'{"crawler": "\\ud800", "reason": "\\ud800"}'),
    "bytes": raw(b"\x00\x01", b"binary/plain"),
}
POISON = {**UNDECODABLE, "encrypted with a lost key": ENCRYPTED, **UNEXPECTED}
#: One of each kind in every run of the tests; all of them with the slow ones.
SAMPLE = ("broken JSON", "unknown encoding", "encrypted with a lost key", "wrong types")
every = pytest.mark.parametrize(
    "poison", [pytest.param(name, marks=() if name in SAMPLE else pytest.mark.slow) for name in POISON]
)


async def running(lab: Lab, behaviour: Behaviour | None = None) -> WorkflowHandle[Any, Any]:
    lab.cluster.behaviour = behaviour or UNTIL_STOPPED
    handle = await lab.start({"crawler": "books"})
    await lab.snapshot_where(handle, lambda s: s.looks >= 1)
    return handle


# --- input ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("poison", [*UNDECODABLE, *UNEXPECTED])
async def test_as_input_the_start_fails_and_leaves_no_row(lab: Lab, poison: str) -> None:
    handle = await lab.start(POISON[poison])
    with pytest.raises(WorkflowFailureError) as failed:
        await handle.result()
    cause = failed.value.cause
    assert isinstance(cause, ApplicationError)
    assert cause.type == "InvalidRequest"
    assert ":" in cause.message
    assert lab.store.list_runs() == []


@pytest.mark.parametrize(
    ("payloads", "words"),
    [
        ([], "request: missing"),
        ([{"crawler": "books"}, raw(b"{")], "the second payload: it cannot be decoded"),
        ([{"crawler": "books"}, {"stage": "lunch"}], "the second payload: stage"),
        ([{"crawler": "books"}, "junk"], "the second payload"),
        ([{"crawler": "books"}, None, None], "input: 3 payloads"),
        ([{"crawler": "books"}] * 20, "input: 20 payloads"),
    ],
)
async def test_too_few_and_too_many_payloads_as_input(lab: Lab, payloads: list[Any], words: str) -> None:
    handle = await lab.client.start_workflow(
        names.LIFECYCLE_WORKFLOW, args=payloads, id=f"lab/many/{words}/{len(payloads)}", task_queue=names.QUEUE_MAIN
    )
    lab.handles.append(handle)
    with pytest.raises(WorkflowFailureError) as failed:
        await handle.result()
    assert words in str(failed.value.cause)
    assert lab.store.list_runs() == []


async def test_an_input_whose_key_is_lost_waits_for_the_key(lab: Lab) -> None:
    """It may be a run of ours whose key was taken out too early: to fail it would lose it."""
    handle = await lab.client.start_workflow(
        names.LIFECYCLE_WORKFLOW, ENCRYPTED, id="lab/locked", task_queue=names.QUEUE_MAIN
    )
    for _ in range(200):
        history = await handle.fetch_history()
        failures = [e for e in history.events if e.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED]
        if failures:
            break
        await asyncio.sleep(0.05)
    assert "LIFECYCLE_PAYLOADS__KEYS" in failures[0].workflow_task_failed_event_attributes.failure.message
    await handle.terminate("end of test")


async def test_our_own_state_is_never_refused_for_want_of_a_key() -> None:
    with pytest.raises(RuntimeError, match="key"):
        read_carried(Undecoded("it is encrypted with the key 'lost'", locked=True), ())


# --- signals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("signal", ["stop", "force_stop"])
@every
async def test_a_stop_stops_whatever_it_carries(lab: Lab, signal: str, poison: str) -> None:
    handle = await running(lab)
    await handle.signal(signal, POISON[poison])
    result = await handle.result()
    assert (result.status, result.outcome) == ("FAILED", "cancelled")
    assert len(lab.store.cancellations(result.run_id)) == 1
    assert lab.cluster.alive() == []
    notes = (await lab.snapshot_where(handle, lambda s: True)).notes
    assert notes or poison in ("NaN", "wrong types", "half a surrogate")
    if poison in UNDECODABLE:
        assert "could not be read, the signal counts" in notes[0]


@pytest.mark.parametrize("signal", ["look_now", "pause", "stop ", "x" * 900, "ünïcode \u202e"])
async def test_any_other_signal_changes_nothing_whatever_it_carries(lab: Lab, signal: str) -> None:
    handle = await running(lab, Behaviour(executes=300))
    for payload in POISON.values():
        await handle.signal(signal, payload)
    await handle.signal(signal, args=list(POISON.values()))
    result = await handle.result()
    assert (result.status, result.outcome) == ("COMPLETED", "finished")
    notes = (await lab.snapshot_where(handle, lambda s: True)).notes
    assert (notes == []) == (signal == "look_now")
    assert all(len(note) <= 300 for note in notes)


async def test_large_signals_make_the_run_continue_as_new_and_nothing_fail(lab: Lab) -> None:
    """A history over 4 MiB is left behind; what the signals said of themselves is cut, so it does not come along."""
    handle = await running(lab, Behaviour(executes=2000))
    for _ in range(4):
        await handle.signal("pause", {"reason": "x" * 1_500_000})
    await handle.signal("look_now")
    await lab.until(lambda: lab.store.get_run(1).status == "COMPLETED", 60)
    chain = await lab.chain(handle)
    assert len(chain) > 1
    assert chain[1].events[0].ByteSize() < 10_000
    assert (await handle.result()).outcome == "finished"


async def test_what_is_over_the_servers_limit_is_refused_to_its_sender(lab: Lab) -> None:
    handle = await running(lab)
    large = {"reason": "x" * 5_000_000}
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: handle.signal("stop", large),
        lambda: handle.execute_update("add_tasks", large),
        lambda: handle.query("status", large),
        lambda: lab.client.start_workflow(names.LIFECYCLE_WORKFLOW, large, id="lab/large", task_queue=names.QUEUE_MAIN),
    ]
    for call in calls:
        with pytest.raises((RPCError, WorkflowQueryFailedError, WorkflowUpdateFailedError)):
            await call()
    assert lab.store.get_run(1).status == "PROCESSING"
    await handle.signal("stop")
    assert (await handle.result()).outcome == "cancelled"


# --- updates, queries, cancel -----------------------------------------------------------------------------------------


async def test_as_an_update_it_is_refused_with_words(lab: Lab) -> None:
    handle = await running(lab)
    for poison, payload in POISON.items():
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await handle.execute_update("add_tasks", payload)
        cause = refused.value.cause
        assert isinstance(cause, ApplicationError), poison
        assert cause.type == "InvalidRequest", poison
        assert ":" in cause.message, poison
    for name, args in (("add_tasks", list(POISON.values())), ("no_such_update", [{}])):
        with pytest.raises(WorkflowUpdateFailedError):
            await handle.execute_update(name, args=args)
    assert lab.tasks(1) == {0: "RUNNING"}
    added = await handle.execute_update("add_tasks", {"tasks": [{}]})
    assert len(added["tasks"]) == 1
    await handle.signal("stop")
    assert (await handle.result()).outcome == "cancelled"


async def test_as_an_argument_of_a_query_it_changes_nothing(lab: Lab) -> None:
    handle = await running(lab, Behaviour(executes=300))
    for payload in POISON.values():
        with pytest.raises(WorkflowQueryFailedError, match="no_such_query"):
            await handle.query("no_such_query", payload)
        assert (await handle.query("status", payload))["run_id"] == 1, "it takes none, so none is read"
    assert (await handle.result()).outcome == "finished"


@pytest.mark.parametrize("reason", ["", "x" * 60_000, "two\nlines\x00\x1b[31m", "\u202e\U0001f6d1"])
async def test_a_cancel_stops_whatever_reason_it_has(lab: Lab, reason: str) -> None:
    handle = await running(lab)
    await handle.cancel(reason=reason)
    result = await handle.result()
    assert (result.status, result.outcome) == ("FAILED", "cancelled")
    [logged] = lab.store.cancellations(result.run_id)
    assert len(str(logged["reason"] or "")) <= 255


# --- activities -------------------------------------------------------------------------------------------------------


class Held:
    """An activity of the run is under way and does not come back until it is let go."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.entered, self.go_on = threading.Event(), threading.Event()
        self.error: Exception | None = None
        self._look = lab.cluster.look
        lab.cluster.look = self.look  # type: ignore[method-assign]

    def look(self, *args: Any) -> Any:
        if not self.entered.is_set():
            self.entered.set()
            assert self.go_on.wait(30)
            if self.error is not None:
                raise self.error
        return self._look(*args)

    async def stranger(self, handle: WorkflowHandle[Any, Any]) -> tuple[str, AsyncActivityHandle]:
        """The name of the pending activity, and a handle by which a stranger can answer in its place."""
        assert await asyncio.to_thread(self.entered.wait, 20)
        [pending] = (await handle.describe()).raw_description.pending_activities
        ids = {"workflow_id": handle.id, "run_id": None, "activity_id": pending.activity_id}
        return pending.activity_type.name, self.lab.client.get_async_activity_handle(**ids)


@every
async def test_an_answer_that_cannot_be_read_is_asked_for_again(lab: Lab, poison: str) -> None:
    held = Held(lab)
    handle = await lab.start({"crawler": "books"})
    name, stranger = await held.stranger(handle)
    await stranger.complete(POISON[poison])
    held.go_on.set()
    result = await handle.result()
    assert (result.status, result.outcome) == ("COMPLETED", "finished")
    assert (await lab.events(handle)).count(name) == 2
    notes = (await lab.snapshot_where(handle, lambda s: True)).notes
    assert f"the answer of {name} could not be read, it is asked again" in notes[0]


async def test_no_answer_at_all_is_asked_for_again(lab: Lab) -> None:
    held = Held(lab)
    handle = await lab.start({"crawler": "books"})
    _, stranger = await held.stranger(handle)
    await stranger.complete()
    held.go_on.set()
    assert (await handle.result()).outcome == "finished"


@every
async def test_details_of_a_failure_cost_one_try(lab: Lab, poison: str) -> None:
    held = Held(lab)
    handle = await lab.start({"crawler": "books"})
    _, stranger = await held.stranger(handle)
    await stranger.fail(ApplicationError("nonsense", POISON[poison], type="Nonsense"))
    held.go_on.set()
    assert (await handle.result()).outcome == "finished"


@every
async def test_details_of_a_heartbeat_cost_nothing(lab: Lab, poison: str) -> None:
    """The server gives them to the next try, and the SDK would fail it for good."""
    held = Held(lab)
    held.error = ClusterUnavailable("503")
    handle = await lab.start({"crawler": "books"})
    _, stranger = await held.stranger(handle)
    await stranger.heartbeat(POISON[poison])
    held.go_on.set()
    assert (await handle.result()).outcome == "finished"
