"""Unreadable payloads, in every way in which a payload reaches a run.

Only the call that sent one fails, with a reason; the run continues to its end, a stop still works,
and every history replays (the testbed replays them all).
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from inspect import signature
from itertools import product
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from pydantic import TypeAdapter
from temporalio import activity
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

from crawler_lifecycle.compose import activities_of
from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.errors import ClusterUnavailable
from crawler_lifecycle.domain.values import UndecodedPayload
from crawler_lifecycle.temporal.converter import TolerantPayloadConverter
from crawler_lifecycle.workflows.policies import POLICIES
from crawler_lifecycle.workflows.requests import answer_type, read_answer, read_carried
from crawler_lifecycle.workflows.state import RunState
from tests.support.activity_modules import activity_modules
from tests.support.fakes.cluster import FINISHED, Behaviour
from tests.support.managing import manager_testbed, quick
from tests.support.testbed import WorkflowHarness, each_at_once

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.troubles]

UNTIL_STOPPED = Behaviour(executes=None)


def raw(data: bytes, encoding: bytes | None = b"json/plain", **metadata: bytes) -> RawValue:
    more = {} if encoding is None else {"encoding": encoding}
    return RawValue(Payload(metadata={**more, **metadata}, data=data))


#: Payloads that cannot be decoded, whatever was expected.
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
#: Payloads that can be decoded, but differ from what was expected.
UNEXPECTED = {
    "number": raw(b"5"),
    "text": raw(b'"stop"'),
    "list": raw(b"[1, 2]"),
    "boolean": raw(b"true"),
    "NaN": raw(b'{"priority": NaN, "tasks": NaN, "force": NaN}'),
    "unknown field": raw(b'{"colour": "red"}'),
    "wrong types": raw(
        b'{"crawler": 7, "tasks": "all", "force": "yes", "reason": [], "request_id": {}}'
    ),
    "half a surrogate": raw(b'{"crawler": "\\ud800", "reason": "\\ud800"}'),
    "bytes": raw(b"\x00\x01", b"binary/plain"),
}
POISON = {**UNDECODABLE, "encrypted with a lost key": ENCRYPTED, **UNEXPECTED}
#: One of each kind in every run of the tests, the others with the slow ones: the effect depends
#: only on whether it was decoded, is encrypted, or has another type, and all of them are tested as
#: input.
SAMPLE = ("broken JSON", "encrypted with a lost key", "wrong types")
REST = [name for name in POISON if name not in SAMPLE]
#: Each set in one testbed; as many at once as can have an activity in progress in a worker of a
#: testbed.
every = pytest.mark.parametrize(
    "poisons", [SAMPLE, *(pytest.param(REST[n : n + 5], marks=pytest.mark.slow) for n in range(0, len(REST), 5))],
    ids=lambda names: f"{names[0]} and others",
)  # fmt: skip


async def running(testbed: WorkflowHarness) -> WorkflowHandle[Any, Any]:
    """In real time: with skipped time, such a run is polled again and again until the end of the
    test.
    """
    testbed.cluster.behaviour = UNTIL_STOPPED
    handle = await testbed.start(
        {"crawler": "books", "poll_minutes": [0.02, 600], "limits": {"start_check_s": 0.1}}
    )
    await testbed.snapshot_where(handle, lambda s: s.polls >= 1)
    return handle


# --- input ----------------------------------------------------------------------------------------


async def test_as_input_the_start_fails_and_leaves_no_row(testbed: WorkflowHarness) -> None:
    async def play(poison: str) -> None:
        handle = await testbed.start(POISON[poison])
        with pytest.raises(WorkflowFailureError) as failed:
            await testbed.ended(handle)
        cause = failed.value.cause
        assert isinstance(cause, ApplicationError)
        assert cause.type == "InvalidRequest"
        assert ":" in cause.message

    await each_at_once(play, [*UNDECODABLE, *UNEXPECTED])
    assert testbed.store.runs.list_runs() == []


TOO_FEW_OR_MANY: list[tuple[list[Any], str]] = [
    ([], "request: missing"),
    ([{"crawler": "books"}, raw(b"{")], "the second payload: it cannot be decoded"),
    ([{"crawler": "books"}, {"stage": "lunch"}], "the second payload: stage"),
    ([{"crawler": "books"}, "junk"], "the second payload"),
    ([{"crawler": "books"}, None, None], "input: 3 payloads"),
    ([{"crawler": "books"}] * 20, "input: 20 payloads"),
]


async def test_too_few_and_too_many_payloads_as_input(testbed: WorkflowHarness) -> None:
    async def play(case: tuple[list[Any], str]) -> None:
        payloads, words = case
        handle = await testbed.client.start_workflow(
            names.LIFECYCLE_WORKFLOW,
            args=payloads,
            id=f"testbed/many/{words}/{len(payloads)}",
            task_queue=names.QUEUE_MAIN,
        )
        testbed.handles.append(handle)
        with pytest.raises(WorkflowFailureError) as failed:
            await testbed.ended(handle)
        assert words in str(failed.value.cause)

    await each_at_once(play, TOO_FEW_OR_MANY)
    assert testbed.store.runs.list_runs() == []


async def test_an_input_whose_key_is_lost_waits_for_the_key(testbed: WorkflowHarness) -> None:
    """It may be a run of ours whose key was removed too early: failing it would lose it."""

    async def play(kind: str) -> None:
        handle = await testbed.client.start_workflow(
            kind, ENCRYPTED, id=f"testbed/locked/{kind}", task_queue=names.QUEUE_MAIN
        )
        async with asyncio.timeout(60):
            failures = []
            while not failures:
                history = await handle.fetch_history()
                failures = [
                    e
                    for e in history.events
                    if e.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
                ]
                await asyncio.sleep(0.05)
        assert (
            "LIFECYCLE_PAYLOADS__KEYS"
            in failures[0].workflow_task_failed_event_attributes.failure.message
        )
        await handle.terminate("end of test")

    await each_at_once(play, [names.LIFECYCLE_WORKFLOW, names.EXPORT_WORKFLOW])


async def test_our_own_state_is_never_refused_for_want_of_a_key() -> None:
    locked = UndecodedPayload("it is encrypted with the key 'lost'", locked=True)
    with pytest.raises(RuntimeError, match="key"):
        read_carried(TypeAdapter(RunState), RunState(), locked, ())


# --- signals --------------------------------------------------------------------------------------


@every
async def test_a_stop_stops_whatever_it_carries(
    real_testbed: WorkflowHarness, poisons: Sequence[str]
) -> None:
    async def play(case: tuple[str, str]) -> None:
        signal, poison = case
        handle = await running(real_testbed)
        await handle.signal(signal, POISON[poison])
        result = await real_testbed.ended(handle)
        assert (result.status, result.outcome) == ("FAILED", "cancelled")
        assert len(real_testbed.store.runs.cancellations(result.run_id)) == 1
        assert real_testbed.cluster.alive(result.run_id) == []
        notes = (await real_testbed.snapshot_where(handle, lambda s: True)).notes
        assert notes or poison in ("NaN", "wrong types", "half a surrogate")
        if poison in UNDECODABLE:
            assert "could not be read, the signal counts" in notes[0]

    # The same code reads both signals, so one of the sample is enough for the other.
    forced = poisons[:1] if poisons is SAMPLE else poisons
    await each_at_once(play, [*product(["stop"], poisons), *product(["force_stop"], forced)])


UNKNOWN = ("pause", "stop ", "x" * 900, "ünïcode \u202e")


async def test_any_other_signal_changes_nothing_whatever_it_carries(
    real_testbed: WorkflowHarness,
) -> None:
    async def play(signals: Sequence[str]) -> None:
        handle = await running(real_testbed)
        for signal in signals:
            for payload in POISON.values():
                await handle.signal(signal, payload)
            await handle.signal(signal, args=list(POISON.values()))
        real_testbed.cluster.end_now(
            (await real_testbed.snapshot_where(handle, lambda s: s.run_id)).run_id, end=FINISHED
        )
        await handle.signal("poll_now")
        result = await real_testbed.ended(handle)
        assert (result.status, result.outcome) == ("COMPLETED", "finished")
        notes = (await real_testbed.snapshot_where(handle, lambda s: True)).notes
        assert (notes == []) == (signals == ["poll_now"])
        assert all(len(note) <= 300 for note in notes)

    await each_at_once(play, [["poll_now"], UNKNOWN])


async def test_large_signals_make_the_run_continue_as_new_and_nothing_fail(
    real_testbed: WorkflowHarness,
) -> None:
    """A history of more than 4 MiB is left behind; the contents of the signals are cut, so they do
    not come along.
    """
    handle = await running(real_testbed)
    for _ in range(4):
        await handle.signal("pause", {"reason": "x" * 1_500_000})
    real_testbed.cluster.end_now(1, end=FINISHED)
    await handle.signal("poll_now")
    await real_testbed.until(lambda: real_testbed.store.runs.get_run(1).status == "COMPLETED", 60)
    chain = await real_testbed.chain(handle)
    assert len(chain) > 1
    assert chain[1].events[0].ByteSize() < 10_000
    assert (await real_testbed.ended(handle)).outcome == "finished"


async def test_what_is_over_the_servers_limit_is_refused_to_its_sender(
    real_testbed: WorkflowHarness,
) -> None:
    handle = await running(real_testbed)
    large = {"reason": "x" * 5_000_000}
    calls: list[Callable[[], Awaitable[Any]]] = [
        lambda: handle.signal("stop", large),
        lambda: handle.execute_update("add_tasks", large),
        lambda: handle.query("status", large),
        lambda: real_testbed.start(large, id="testbed/large"),
    ]
    for call in calls:
        with pytest.raises((RPCError, WorkflowQueryFailedError, WorkflowUpdateFailedError)):
            await call()
    assert real_testbed.store.runs.get_run(1).status == "PROCESSING"
    await handle.signal("stop")
    assert (await real_testbed.ended(handle)).outcome == "cancelled"


# --- updates, queries, cancel ---------------------------------------------------------------------


async def test_as_an_update_it_is_refused_with_words(real_testbed: WorkflowHarness) -> None:
    handle = await running(real_testbed)
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
    assert real_testbed.tasks(1) == {0: "RUNNING"}
    added = await handle.execute_update("add_tasks", {"tasks": [{}]})
    assert len(added["tasks"]) == 1
    await handle.signal("stop")
    assert (await real_testbed.ended(handle)).outcome == "cancelled"


async def test_as_an_argument_of_a_query_it_changes_nothing(real_testbed: WorkflowHarness) -> None:
    handle = await running(real_testbed)
    for payload in POISON.values():
        with pytest.raises(WorkflowQueryFailedError, match="no_such_query"):
            await handle.query("no_such_query", payload)
        assert (await handle.query("status", payload))["run_id"] == 1, (
            "it takes none, so none is read"
        )
    await handle.signal("stop")
    assert (await real_testbed.ended(handle)).outcome == "cancelled"


async def test_a_cancel_stops_whatever_reason_it_has(real_testbed: WorkflowHarness) -> None:
    async def play(reason: str) -> None:
        handle = await running(real_testbed)
        await handle.cancel(reason=reason)
        result = await real_testbed.ended(handle)
        assert (result.status, result.outcome) == ("FAILED", "cancelled")
        [logged] = real_testbed.store.runs.cancellations(result.run_id)
        assert len(str(logged["reason"] or "")) <= 255

    await each_at_once(play, ["x" * 60_000, "two\nlines\x00\x1b[31m\u202e\U0001f6d1"])


# --- activities -----------------------------------------------------------------------------------


class Held:
    """The first poll of every run is in progress and does not return until it is released."""

    def __init__(self, testbed: WorkflowHarness, error: Exception | None = None) -> None:
        self.testbed, self.error = testbed, error
        self.entered: dict[str, threading.Event] = {}
        """By workflow: set when it is let go."""
        self._poll = testbed.cluster.poll
        testbed.cluster.poll = self.poll  # type: ignore[method-assign]

    def poll(self, *args: Any) -> Any:
        workflow_id = activity.info().workflow_id
        if workflow_id not in self.entered:
            self.entered[workflow_id] = threading.Event()
            assert self.entered[workflow_id].wait(120)
            if self.error is not None:
                raise self.error
        return self._poll(*args)

    async def stranger(self, handle: WorkflowHandle[Any, Any]) -> tuple[str, AsyncActivityHandle]:
        """Return the name of the pending activity, and a handle by which an outsider can answer in
        its place.
        """
        await self.testbed.until(lambda: handle.id in self.entered)
        [pending] = (await handle.describe()).raw_description.pending_activities
        ids = {"workflow_id": handle.id, "run_id": None, "activity_id": pending.activity_id}
        return pending.activity_type.name, self.testbed.client.get_async_activity_handle(**ids)

    def go_on(self, handle: WorkflowHandle[Any, Any]) -> None:
        self.entered[handle.id].set()


@every
async def test_an_answer_that_cannot_be_read_is_asked_for_again(
    testbed: WorkflowHarness, poisons: Sequence[str]
) -> None:
    held = Held(testbed)

    async def play(poison: str) -> None:
        handle = await testbed.start({"crawler": "books"})
        name, stranger = await held.stranger(handle)
        await stranger.complete(POISON[poison])
        held.go_on(handle)
        result = await testbed.ended(handle)
        assert (result.status, result.outcome) == ("COMPLETED", "finished")
        assert (await testbed.events(handle)).count(name) == 2
        notes = (await testbed.snapshot_where(handle, lambda s: True)).notes
        assert f"the answer of {name} could not be read; it is called again" in notes[0]

    await each_at_once(play, poisons)


async def test_no_answer_at_all_is_asked_for_again(testbed: WorkflowHarness) -> None:
    held = Held(testbed)
    handle = await testbed.start({"crawler": "books"})
    _, stranger = await held.stranger(handle)
    await stranger.complete()
    held.go_on(handle)
    assert (await testbed.ended(handle)).outcome == "finished"


@every
async def test_details_of_a_failure_cost_one_try(
    testbed: WorkflowHarness, poisons: Sequence[str]
) -> None:
    held = Held(testbed)

    async def play(poison: str) -> None:
        handle = await testbed.start({"crawler": "books"})
        _, stranger = await held.stranger(handle)
        await stranger.fail(ApplicationError("nonsense", POISON[poison], type="Nonsense"))
        held.go_on(handle)
        assert (await testbed.ended(handle)).outcome == "finished"

    await each_at_once(play, poisons)


@every
async def test_details_of_a_heartbeat_cost_nothing(
    testbed: WorkflowHarness, poisons: Sequence[str]
) -> None:
    """The server passes them to the next try, and the SDK would fail it for good."""
    held = Held(testbed, ClusterUnavailable("503"))

    async def play(poison: str) -> None:
        handle = await testbed.start({"crawler": "books"})
        _, stranger = await held.stranger(handle)
        await stranger.heartbeat(POISON[poison])
        held.go_on(handle)
        assert (await testbed.ended(handle)).outcome == "finished"

    await each_at_once(play, poisons)


# --- answers that stay unreadable -----------------------------------------------------------------


class Strangers:
    """Workers of a foreign build: they answer these activities with unreadable results, and do
    nothing.

    ``names`` are by workflow. ``times`` is how often each is answered like this; by default,
    always.
    """

    def __init__(
        self,
        names: Mapping[str, Collection[str]],
        times: int | None = None,
        queues: Collection[str] | None = None,
    ) -> None:
        self.names, self.times, self.queues = names, times, queues
        self.answers: dict[str, Counter[str]] = {workflow_id: Counter() for workflow_id in names}

    def activities_of(self, role: str, parts: Any) -> list[Any]:
        strange = set().union(*self.names.values())
        return [
            self._replaced(a) if a.__name__ in strange else a for a in activities_of(role, parts)
        ]

    def _replaced(self, method: Any) -> Any:
        name = method.__name__

        def answer(arg: Any) -> Any:
            info = activity.info()
            strange = name in self.names.get(info.workflow_id, ())
            here = strange and (self.queues is None or info.task_queue in self.queues)
            if not here or self.answers[info.workflow_id][name] == self.times:
                return method(arg)
            self.answers[info.workflow_id][name] += 1
            return POISON["bytes"]

        answer.__annotations__ = {
            "arg": get_type_hints(method.__func__)[next(iter(signature(method).parameters))]
        }
        answer.__self__ = method.__self__  # type: ignore[attr-defined]
        return activity.defn(name=name)(answer)


#: What a stop can meet before its own steps begin.
ON_THE_WAY = (
    "run_onetime_crawler",
    "get_main_job_status",
    "update_run_started",
    "get_active_running_tasks",
)
#: The same, after a poll has found that a task has ended.
AFTER_A_CHANGE = (
    "get_bulk_task_history_data",
    "reconcile_tasks",
    "sync_statuses",
    "count_alive_tasks",
)
#: Two in one run: a run keeps twenty notes, and each step leaves eight.
STEPS_OF_A_STOP = [
    ("record_stop", "cancel_queued_tasks"),
    ("get_active_running_tasks", "count_alive_tasks"),
]


@pytest.mark.parametrize(
    "activities", [ON_THE_WAY, AFTER_A_CHANGE], ids=["on the way", "after a change"]
)
async def test_a_stop_gets_through_while_answers_stay_unreadable(
    testbed_without_workers: WorkflowHarness,
    monkeypatch: pytest.MonkeyPatch,
    activities: Sequence[str],
) -> None:
    """One run for each activity whose results are unreadable."""
    testbed, queues = testbed_without_workers, {names.QUEUE_MAIN, names.QUEUE_CLUSTER}
    strangers = Strangers({f"testbed/{name}": [name] for name in activities}, queues=queues)
    monkeypatch.setattr("tests.support.testbed.activities_of", strangers.activities_of)
    changes = activities == AFTER_A_CHANGE
    testbed.cluster.behaviour = Behaviour(executes=100) if changes else UNTIL_STOPPED

    async def play(name: str) -> None:
        handle = await testbed.start({"crawler": "books"}, id=f"testbed/{name}")
        await testbed.snapshot_where(
            handle, lambda s: any(f"the answer of {name} could" in n for n in s.notes[1:])
        )
        await handle.signal("stop")
        result = await testbed.ended(handle)
        assert result.outcome == ("finished" if changes else "cancelled"), (
            "a crawl that had ended is no stopped one"
        )
        assert strangers.answers[handle.id].total() >= 2
        assert testbed.cluster.alive(result.run_id) == []

    async with testbed.working():
        await each_at_once(play, activities)


async def test_a_step_that_a_stop_needs_is_asked_for_until_it_can_be_read(
    testbed_without_workers: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    testbed, of = (
        testbed_without_workers,
        {f"testbed/{'-'.join(steps)}": steps for steps in STEPS_OF_A_STOP},
    )
    strangers = Strangers(of, times=8, queues=[names.QUEUE_CONTROL])
    monkeypatch.setattr("tests.support.testbed.activities_of", strangers.activities_of)
    testbed.cluster.behaviour = UNTIL_STOPPED

    async def play(workflow_id: str) -> None:
        handle = await testbed.start({"crawler": "books"}, id=workflow_id)
        await testbed.snapshot_where(handle, lambda s: s.polls >= 1)
        await handle.signal("stop")
        result = await testbed.ended(handle)
        notes = (await testbed.snapshot_where(handle, lambda s: True)).notes
        assert (result.status, result.outcome) == ("FAILED", "cancelled")
        assert testbed.cluster.alive(result.run_id) == []
        assert strangers.answers[workflow_id] == dict.fromkeys(of[workflow_id], 8)
        for name in of[workflow_id]:
            own = [note for note in notes if f"the answer of {name} could" in note]
            assert f"the answer of {name} could not be read; it is called again in 15 s" in own[7]

    async with testbed.working():
        await each_at_once(play, of)


OF_A_MANAGER = [
    "open_manager",
    "begin_manager_runs",
    "record_manager_stop",
    "stop_manager_runs",
    "end_manager",
]


@pytest.mark.parametrize(
    "needed", [OF_A_MANAGER, ["run_manager_cycle"]], ids=["its own steps", "cycles"]
)
async def test_what_a_manager_needs_is_asked_for_until_it_can_be_read(
    testbed_without_workers: WorkflowHarness, monkeypatch: pytest.MonkeyPatch, needed: list[str]
) -> None:
    cycles = needed != OF_A_MANAGER
    testbed, strangers = testbed_without_workers, Strangers({"manager/stream/f1": needed}, times=3)
    monkeypatch.setattr("tests.support.testbed.activities_of", strangers.activities_of)
    testbed.cluster.behaviour = UNTIL_STOPPED
    m = manager_testbed(testbed, source=[quick(n) for n in range(2)], window=1)
    answers = [POISON["bytes"]] * 3 if cycles else []
    m.plan.answered = lambda answer: answers.pop() if answers else answer  # type: ignore[return-value]
    async with testbed.working(), m.user_code():
        handle = await m.start()
        await testbed.until(lambda: len(testbed.cluster.alive()) == 1)
        await handle.signal("stop")
        result = await testbed.ended(handle)
        notes = (await m.snapshot_where(handle, bool)).notes
    assert (result.status, result.outcome) == ("FAILED", "cancelled")
    assert testbed.cluster.alive() == []
    assert max(m.plan.lives) == 1
    assert not answers
    assert strangers.answers["manager/stream/f1"] == ({} if cycles else dict.fromkeys(needed, 3))
    for name in needed:
        assert any(f"the answer of {name} could not be read" in note for note in notes)


async def test_the_time_to_start_is_over_although_answers_stay_unreadable(
    testbed_without_workers: WorkflowHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    testbed, strangers = testbed_without_workers, Strangers({"testbed/1": ["get_main_job_status"]})
    monkeypatch.setattr("tests.support.testbed.activities_of", strangers.activities_of)
    testbed.cluster.behaviour = UNTIL_STOPPED
    async with testbed.working():
        handle = await testbed.start({"crawler": "books", "limits": {"start_timeout_s": 100}})
        result = await testbed.ended(handle)
    assert (result.status, result.outcome) == ("FAILED", "start_timeout")
    assert strangers.answers["testbed/1"].total() >= 2


def _answering() -> list[Any]:
    """Return the activities, as their classes define them."""
    kinds = {
        kind
        for module in activity_modules()
        for kind in vars(module).values()
        if isinstance(kind, type)
    }
    return [
        method
        for kind in kinds
        for name, method in vars(kind).items()
        if hasattr(method, "__temporal_activity_definition")
    ]


async def test_no_answer_of_another_type_comes_through() -> None:
    """For any activity: what was read has the annotated type, or it was not read."""
    methods = _answering()
    assert {m.__name__ for m in methods} == set(POLICIES)
    converter = TolerantPayloadConverter()
    nothing = raw(b"", b"binary/null")
    for method in methods:
        expected = answer_type(method)
        if expected is type(None):
            continue
        for poison, value in {**POISON, "nothing": nothing}.items():
            try:
                answer = read_answer(method, value.payload, converter)
            except Exception:  # refused, which is the subject of this test
                continue
            if get_origin(expected) is list:
                assert isinstance(answer, list), (method.__name__, poison)
                answers, one = answer, get_args(expected)[0]
            else:
                answers, one = [answer], expected
            assert all(isinstance(each, one) for each in answers), (method.__name__, poison)
