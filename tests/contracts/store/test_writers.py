"""Several writers, writers that have lost the run, and commits whose response was lost."""

from __future__ import annotations

import inspect
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from crawler_lifecycle.domain.audits.audit import ClusterTask
from crawler_lifecycle.domain.errors import (
    DuplicateRequest,
    Fenced,
    LifecycleError,
    NotInThisState,
    RunIsLive,
    RunNotFound,
    StoreUnavailable,
)
from crawler_lifecycle.domain.retries import NextTry
from crawler_lifecycle.domain.run import RunRequest, RunStatus, StopIntent, verdict
from crawler_lifecycle.domain.task import Phase
from crawler_lifecycle.ports.polls import Details, Poll
from crawler_lifecycle.ports.runs import DeployedTask, Fence, Owner
from crawler_lifecycle.store.store import Store
from tests.contracts.store.harness import OTHER, OWNER, START, Harness, closed, request, seen
from tests.support.store_ports import methods

Call = Callable[[Store, Fence], object]

FENCED: dict[str, Call] = {
    "add_tasks": lambda s, f: s.additions.add_tasks(f.run_id, "more", [{"a": "1"}], f),
    "offer_tasks": lambda s, f: s.deployment.offer_tasks(f, 10, None, START),
    "record_deployed": lambda s, f: s.deployment.record_deployed(
        f, "local", [], [DeployedTask(0, "created", "n", "u")], START
    ),
    "refuse_queued": lambda s, f: s.deployment.refuse_queued(f, "no"),
    "withdraw_offer": lambda s, f: s.deployment.withdraw_offer(f, [], START),
    "note_waiting": lambda s, f: s.deployment.note_waiting(f, "x"),
    "mark_started": lambda s, f: s.deployment.mark_started(f, START),
    "found_state": lambda s, f: s.polls.found_state(f),
    "record_poll": lambda s, f: s.polls.record_poll(f, Poll(START, 0.1, []), [], START),
    "record_at_once": lambda s, f: s.polls.record_at_once(
        f, Poll(START, 0.1, []), [], "wake", s.polls.found_state(f), None
    ),
    "record_poll_error": lambda s, f: s.polls.record_poll_error(f, "x"),
    "staged": lambda s, f: s.polls.staged(f),
    "save_details": lambda s, f: s.polls.save_details(f, [Details(1, "log")]),
    "apply_details": lambda s, f: s.polls.apply_details(f),
    "apply_findings": lambda s, f: s.polls.apply_findings(f, "look"),
    "record_stop": lambda s, f: s.stops.record_stop(f.run_id, StopIntent(START), "s", f),
    "cancel_queued": lambda s, f: s.stops.cancel_queued(f, START),
    "unstopped": lambda s, f: s.stops.unstopped(f, True),
    "mark_stopping": lambda s, f: s.stops.mark_stopping(f, [1]),
    "acted_on_stop": lambda s, f: s.stops.acted_on_stop(f, START),
    "end_run": lambda s, f: s.completion.end_run(f, lambda groups, stop: verdict(groups, stop)),
    "requeue_ended": lambda s, f: s.deployment.requeue_ended(f, True),
    "retry_ended": lambda s, f: s.retries.retry_ended(f, lambda end, used: NextTry(0), 3),
    "take_up": lambda s, f: s.retries.take_up(f, [ClusterTask(f.run_id, 0, 9, executing=True)]),
    "append_event": lambda s, f: s.events.append_event(f, "run.ended", "key", {}),
    "begin_export": lambda s, f: s.exports.begin_export(f),
    "record_export": lambda s, f: s.exports.record_export(f, "done", None, None),
}


#: An attempt that was resumed during its export may record the export's result.
FOR_PAST_ATTEMPTS = {"begin_export", "record_export"}


def everything(harness: Harness, fence: Fence) -> list[object]:
    s, run_id = harness.store, fence.run_id
    return [
        s.runs.get_run(run_id), s.tasks.list_tasks(run_id, superseded=True), s.runs.transitions(run_id),
        s.corrections.list_corrections(run_id), s.runs.cancellations(run_id), s.exports.list_exports(run_id),
        s.runs.properties(run_id), s.events.events_after(0),
    ]  # fmt: skip


def test_every_method_with_a_fence_is_tried() -> None:
    """Methods of managers and graphs take their own fence, which test_managers.py and
    test_graphs.py test.
    """
    fences = {
        name: inspect.signature(method).parameters.get("fence")
        for name, method in methods().items()
    }
    takes_fence = {
        name
        for name, fence in fences.items()
        if fence and not re.search("Manager|Graph", str(fence.annotation))
    }
    assert set(FENCED) == takes_fence


def test_a_writer_that_lost_the_run_is_refused(harness: Harness) -> None:
    fence = harness.run(tasks=2)
    before = everything(harness, fence)
    for name, write in FENCED.items():
        past = [] if name in FOR_PAST_ATTEMPTS else [replace(fence, attempt=0)]
        for wrong in (replace(fence, attempt=2), replace(fence, owner_run_id="chain-9"), *past):
            with pytest.raises(Fenced, match=f"Run {fence.run_id}"):
                write(harness.store, wrong)
        with pytest.raises(RunNotFound):
            write(harness.store, replace(fence, run_id=10**9))
        assert everything(harness, fence) == before, name


# --- races ----------------------------------------------------------------------------------------


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Make the calls at the same time. Return their results or our errors."""
    barrier = threading.Barrier(len(calls))

    def one(call: Callable[[], Any]) -> Any:
        barrier.wait()
        try:
            return call()
        except LifecycleError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(one, calls))


def test_twenty_creates_with_one_request_id(harness: Harness) -> None:
    handles = together(
        *[lambda: harness.store.initiation.create_run(request(50), "r1", OWNER)] * 20
    )
    assert [h for h in handles if h != handles[0]] == []
    assert len(harness.store.runs.list_runs()) == 1
    assert harness.store.tasks.count_tasks(handles[0].run_id).by_status == {"QUEUED": 50}


def test_twenty_owners_of_one_request_id(harness: Harness) -> None:
    owners = [Owner(f"w{n}", f"chain-{n}") for n in range(20)]
    answers = together(
        *[lambda o=o: harness.store.initiation.create_run(request(), "r1", o) for o in owners]
    )
    assert sum(isinstance(a, DuplicateRequest) for a in answers) == 19
    assert len(harness.store.runs.list_runs()) == 1


def test_reservations_and_a_creation_at_once(harness: Harness) -> None:
    reserve: Callable[[], Any] = lambda: harness.store.initiation.reserve_run(request(), "r1")  # noqa: E731
    answers = together(
        *[reserve] * 8, lambda: harness.store.initiation.create_run(request(), "r1", OWNER)
    )
    assert sum(new for _, new in answers[:8]) <= 1
    assert answers[8].run_id == answers[0][0].run_id


def test_two_claims_at_once(harness: Harness) -> None:
    fence = harness.deployed()
    owners = [Owner(f"w{n}", f"claim-{n}") for n in range(4)]

    def is_open(owner: Owner) -> bool:
        return owner != OWNER

    answers = together(
        *[
            lambda o=o: harness.store.initiation.claim_run(
                RunRequest(run_id=fence.run_id), o, is_open
            )
            for o in owners
        ]
    )
    assert sum(isinstance(a, RunIsLive) for a in answers) == 3
    [winner] = [a for a in answers if not isinstance(a, Exception)]
    assert (winner.attempt, harness.row(fence).attempt) == (2, 2)


@pytest.mark.parametrize("round_", range(2))
def test_a_stop_against_an_offer(harness: Harness, round_: int) -> None:
    fence = harness.run(tasks=10)
    (offered, stop), _ = together(
        lambda: harness.store.deployment.offer_tasks(fence, 10, None, harness.clock.now),
        lambda: harness.store.stops.record_stop(fence.run_id, harness.stop(), "s1"),
    )
    assert (len(offered), stop) in ((10, None), (0, harness.stop()))
    assert harness.store.deployment.offer_tasks(fence, 10, None, harness.clock.now)[0] == []


@pytest.mark.parametrize("round_", range(2))
def test_a_stop_against_the_end(harness: Harness, round_: int) -> None:
    fence = harness.executing()
    harness.see_ends(fence)
    ended, stopped = together(
        lambda: harness.end(fence),
        lambda: harness.store.stops.record_stop(fence.run_id, harness.stop(), "s1"),
    )
    assert ended.status is RunStatus.COMPLETED
    assert harness.row(fence) == ended
    assert (stopped.status is RunStatus.COMPLETED) == (
        harness.store.runs.cancellations(fence.run_id) == []
    )


def test_events_become_visible_in_their_order(harness: Harness) -> None:
    fences = [harness.run(f"r{n}") for n in range(8)]
    found: list[int] = []
    done = threading.Event()

    def read() -> None:
        last = 0
        while True:
            finished = done.is_set()
            for one in harness.store.events.events_after(last):
                found.append(one.seq)
                last = one.seq
            if finished:
                return

    reader = threading.Thread(target=read)
    reader.start()

    def write(fence: Fence) -> None:
        for n in range(15):
            harness.store.events.append_event(fence, "run.note", f"{fence.run_id}/{n}", {})

    together(*[lambda f=f: write(f) for f in fences])
    done.set()
    reader.join()
    assert found == [e.seq for e in harness.store.events.events_after(0, limit=10_000)]
    assert len(found) == 8 + 8 * 15


# --- commits whose answer is lost -----------------------------------------------------------------


@contextmanager
def lost_answer(store: Store, after: int = 0) -> Iterator[None]:
    """The commit after ``after`` others happens, but its caller gets a connection error."""
    engine = store.database.engine
    real = engine.dialect.do_commit
    answers = iter([True] * after + [False])

    def do_commit(connection: Any) -> None:
        real(connection)
        if not next(answers, True):
            raise engine.dialect.dbapi.OperationalError(2013, "Lost connection during query")  # type: ignore[union-attr]

    engine.dialect.do_commit = do_commit  # type: ignore[method-assign]
    try:
        yield
    finally:
        del engine.dialect.do_commit


@pytest.mark.parametrize("name", sorted(set(FENCED) - {"found_state", "staged", "unstopped"}))
def test_a_retry_after_a_lost_answer_changes_nothing_more(
    harness: Harness, store: Store, name: str
) -> None:
    fence = harness.run(tasks=2)
    if name in ("mark_stopping", "apply_findings", "apply_details", "end_run"):
        harness.deploy(fence)
    if name in ("apply_findings", "apply_details"):
        tasks = store.polls.found_state(fence).tasks
        harness.stage(fence, [seen(t, Phase.GONE, START) for t in tasks])
    if name == "end_run":
        tasks = store.polls.found_state(fence).tasks
        harness.poll(fence, [seen(t, Phase.GONE, START) for t in tasks])
    with lost_answer(store), pytest.raises(StoreUnavailable, match="Lost connection"):
        FENCED[name](store, fence)
    after = everything(harness, fence)
    FENCED[name](store, fence)
    again = everything(harness, fence)
    assert again == after


@pytest.mark.parametrize("what", ["reserve", "create", "claim", "take over"])
def test_a_retried_beginning(harness: Harness, store: Store, what: str) -> None:
    if what == "claim":
        harness.store.initiation.reserve_run(request(2), "r1")
    if what == "take over":
        harness.deployed(tasks=2)
    found = store.runs.find_run("r1")
    calls: dict[str, Callable[[], object]] = {
        "reserve": lambda: store.initiation.reserve_run(request(2), "r1"),
        "create": lambda: store.initiation.create_run(request(2), "r1", OWNER),
        "claim": lambda: store.initiation.claim_run(
            RunRequest(run_id=found and found.run_id), OWNER, closed
        ),
        "take over": lambda: store.initiation.claim_run(
            RunRequest(run_id=found and found.run_id), OTHER, closed
        ),
    }
    # The first transaction of a takeover only finds out whom to ask about.
    with lost_answer(store, after=int(what == "take over")), pytest.raises(StoreUnavailable):
        calls[what]()
    [row] = store.runs.list_runs()
    transitions = store.runs.transitions(row.run_id)
    calls[what]()
    assert store.runs.list_runs() == [row]
    assert store.runs.transitions(row.run_id) == transitions
    assert len(store.tasks.list_tasks(row.run_id)) == 2


def test_a_failure_in_the_middle_leaves_nothing(harness: Harness, store: Store) -> None:
    fence = harness.deployed(tasks=3)
    harness.stage(fence, [seen(t, Phase.GONE, START) for t in store.polls.found_state(fence).tasks])
    before = everything(harness, fence)

    def fail(_c: object, _cursor: object, statement: str, *_: object) -> None:
        if "outbox_counter" in statement:
            raise OperationalError(statement, None, Exception("disk full"))

    event.listen(store.database.engine, "before_cursor_execute", fail)
    with pytest.raises(StoreUnavailable, match="disk full"):
        store.polls.apply_findings(fence, "look")
    event.remove(store.database.engine, "before_cursor_execute", fail)
    assert everything(harness, fence) == before
    assert store.polls.apply_findings(fence, "look").by_status == {"LOST": 3}


def test_an_end_while_tasks_live_writes_nothing(harness: Harness) -> None:
    fence = harness.deployed()
    before = everything(harness, fence)
    with pytest.raises(NotInThisState):
        harness.end(fence)
    assert everything(harness, fence) == before


def test_the_stores_of_this_contract_are_isolated_as_those_of_the_product(store: Store) -> None:
    """An optimization of the tests once removed the isolation level: all tests here then tested
    another database than ours.
    """
    if store.database.engine.dialect.name != "sqlite":
        with store.database.writing() as conn:
            assert conn.get_isolation_level() == "READ COMMITTED"


def test_runs_side_by_side_do_not_wait_for_each_other_in_circles(harness: Harness) -> None:
    """The lives of several runs at once: no writer may lock rows of another run, or two of them
    deadlock.
    """
    # Ids that no earlier test had: a deleted row stays in a unique index until it is purged, and an
    # insert of its key also locks the gap next to it. In production, no id comes again.
    unique = uuid.uuid4().hex

    def life(n: int) -> RunStatus:
        fence = harness.executing(f"{unique}-{n}", 30, owner=Owner(f"w{n}", f"first-{n}"))
        if n % 3 == 0:
            harness.store.stops.record_stop(fence.run_id, harness.stop(), "s")
        harness.finish(fence, failed=[0, 7])
        second = harness.resume(fence, Owner(f"w{n}", f"second-{n}"))
        harness.deploy(second)
        return harness.finish(second).status

    for turn in range(2):
        lives = [lambda n=n: life(n) for n in range(turn * 8, turn * 8 + 8)]
        assert together(*lives) == [RunStatus.COMPLETED] * 8
