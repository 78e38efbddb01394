"""Workflow tasks with very many signals: the workflow's code gets few of them, with the same
effect.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any

import pytest
from temporalio import workflow
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.common import RawValue
from temporalio.worker import _workflow_instance

from crawler_lifecycle.features.graphs.workflows.graph_state import ANSWERED_MAX, GraphInbox
from crawler_lifecycle.features.managers.workflows.manager_state import ManagerInbox
from crawler_lifecycle.temporal.converter import TolerantPayloadConverter
from crawler_lifecycle.temporal.floods import FEW, thinned
from crawler_lifecycle.temporal.plugin import plugin
from crawler_lifecycle.workflows.state import HEARD_MAX, Inbox, ReceivedSignal

NOW = datetime(2026, 3, 1, tzinfo=UTC)
MANY = 2_000

Signals = Sequence[tuple[str, object]]


@pytest.fixture(autouse=True)
def converter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of a workflow, signals have no converter."""
    monkeypatch.setattr(workflow, "payload_converter", TolerantPayloadConverter)


def step(signals: Signals) -> WorkflowActivation:
    """A workflow task with these signals, and a timer before and after them."""
    act = WorkflowActivation(run_id="r", is_replaying=True, history_length=7)
    act.jobs.add().fire_timer.seq = 1
    for name, said in signals:
        signal = act.jobs.add().signal_workflow
        signal.signal_name = name
        if said is not None:
            signal.input.add(metadata={"encoding": b"json/plain"}, data=json.dumps(said).encode())
    act.jobs.add().fire_timer.seq = 2
    return act


def heard(act: WorkflowActivation, inbox: Inbox) -> Inbox:
    """Return the inbox after every signal of the workflow task was accepted."""
    ids = count()
    for job in act.jobs:
        if job.HasField("signal_workflow"):
            signal = job.signal_workflow
            args = [RawValue(one) for one in signal.input]
            inbox.signal(ReceivedSignal(signal.signal_name, args, NOW, f"id-{next(ids)}"))
    return inbox


FLOODS: dict[str, Signals] = {
    "nobody knows them": [(f"noise-{n}", {"n": n}) for n in range(MANY)],
    "one name": [("noise", None)] * MANY,
    "polls": [("poll_now", {"n": n}) for n in range(MANY)],
    "unreadable stops": [("stop", 17)] * MANY,
    "plain stops": [("stop", None)] * MANY,
    "ends of runs": [("run_ended", {"run_id": n}) for n in range(MANY)],
    "ends of managers": [("manager_ended", None)] * MANY,
    "wakes": [("wake", None)] * MANY,
    "one answer": [("batch_ended", 3)] * MANY,
}
#: A stop among them, in its place, and its contents.
STOPS: list[tuple[str, object]] = [
    ("stop", {"requested_by": "ada"}),
    ("stop", {"force": True}),
    ("force_stop", None),
]


@pytest.mark.parametrize("flood", FLOODS)
@pytest.mark.parametrize("kind", [Inbox, ManagerInbox, GraphInbox])
def test_little_is_handed_on_and_it_says_the_same(kind: type[Inbox], flood: str) -> None:
    signals = list(FLOODS[flood])
    for n, stop in enumerate(STOPS):
        signals.insert((n + 1) * len(signals) // 4, stop)
    few = thinned(step(signals))
    assert len(few.jobs) <= (ANSWERED_MAX if flood == "one answer" else HEARD_MAX) + 10
    all_, some = heard(step(signals), kind()), heard(few, kind())
    assert some.stop == all_.stop
    assert some.stop is not None
    assert some.stop.force
    for name in ("changed", "poll_now", "woken", "leave", "moved", "answered"):
        assert getattr(some, name, None) == getattr(all_, name, None), name
    assert bool(getattr(some, "asked", 0)) == bool(getattr(all_, "asked", 0))
    if flood in ("nobody knows them", "one name"):
        assert some.told() == all_.told()
        assert f"{MANY} unknown signals ignored in all" in some.told()


def test_what_is_not_a_signal_stays_in_its_place_and_what_the_step_says_besides() -> None:
    few = thinned(step(FLOODS["nobody knows them"]))
    assert (few.run_id, few.is_replaying, few.history_length) == ("r", True, 7)
    assert [job.fire_timer.seq for job in few.jobs if job.HasField("fire_timer")] == [1, 2]
    assert few.jobs[0].HasField("fire_timer")
    assert few.jobs[1].signal_workflow.signal_name == "noise-0"


@pytest.mark.parametrize("kind", [Inbox, ManagerInbox, GraphInbox])
@pytest.mark.parametrize(
    "asks", ['"force": true', '"leave": true', '"leave": false', '"force":  true, "leave": true']
)
def test_of_stops_that_differ_few_are_handed_on_and_what_one_of_them_asks_for(
    kind: type[Inbox], asks: str
) -> None:
    rest = "" if '"leave": false' not in asks else ', "leave": true'
    said = [f'{{"request_id": "r{n}", "reason": "because {n}"{rest}}}' for n in range(MANY)]
    said[MANY // 2] = f'{{"request_id": "hidden", {asks}}}'
    signals: Signals = [("stop", json.loads(one)) for one in said]
    few = thinned(step(signals))
    assert len(few.jobs) <= HEARD_MAX + 10
    all_, some = heard(step(signals), kind()), heard(few, kind())
    assert (some.stop, some.changed, some.heard) == (all_.stop, all_.changed, all_.heard)
    assert set(some.notes) == set(all_.notes)
    assert getattr(some, "leave", None) == getattr(all_, "leave", None)


def test_spaces_make_no_stop_another_one() -> None:
    act = step([("stop", None)] * MANY)
    for n, job in enumerate(act.jobs):
        if job.HasField("signal_workflow"):
            job.signal_workflow.input.add(
                metadata={"encoding": b"json/plain"}, data=b'{"force":' + b" " * n + b"true}"
            )
    assert len(thinned(act).jobs) <= HEARD_MAX + 10


def test_of_answers_of_strangers_as_many_are_handed_on_as_are_remembered() -> None:
    answers = step([("batch_ended", n) for n in range(1, 5 * ANSWERED_MAX)])
    few = thinned(answers)
    assert len(few.jobs) <= ANSWERED_MAX + 10
    all_, some = heard(answers, GraphInbox()), heard(few, GraphInbox())
    assert isinstance(some, GraphInbox)
    assert isinstance(all_, GraphInbox)
    assert (some.answered, some.woken) == (all_.answered, True)


def test_a_step_with_few_signals_is_left_as_it_is() -> None:
    few = step([("noise", n) for n in range(FEW - 3)])
    assert thinned(few) is few


def test_answers_of_strangers_fill_no_state() -> None:
    strange: list[object] = [-1, 0, 10**30, True, "3", None, {}]
    inbox = heard(
        step([("batch_ended", n) for n in [*strange, *range(1, 3 * ANSWERED_MAX)]]), GraphInbox()
    )
    assert inbox.answered == list(range(1, ANSWERED_MAX + 1))
    assert inbox.woken, "the rows say the rest"


def test_workers_and_replayers_make_steps_small(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[int] = []

    class Instance:
        def __init__(self, det: Any) -> None: ...

        def activate(self, act: WorkflowActivation) -> None:
            given.append(len(act.jobs))

    monkeypatch.setattr(_workflow_instance, "_WorkflowInstanceImpl", Instance)
    runner: Any = plugin().workflow_runner
    runner.create_instance(None).activate(step(FLOODS["polls"]))
    assert given == [3]
