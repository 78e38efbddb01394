"""``crawlctl db prune`` removes only working state of runs that ended long ago."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crawler_lifecycle.activities.completion import CompletionActivities
from crawler_lifecycle.domain.audits.audit import AuditFinding, FindingKind
from crawler_lifecycle.domain.audits.corrections import CorrectionKind
from crawler_lifecycle.domain.errors import StoreUnavailable
from crawler_lifecycle.domain.names import (
    EVENT_CORRECTION_MADE,
    EVENT_RUN_ATTENTION,
    EVENT_RUN_CHANGED,
    EVENT_RUN_ENDED,
    event_key,
)
from crawler_lifecycle.domain.retention import GOES, NEVER, Stays, pruned_through
from crawler_lifecycle.domain.run import ExportResult, RunStatus
from crawler_lifecycle.domain.task import Phase, TaskStatus
from crawler_lifecycle.features.schedules.domain.definition import TargetKind
from crawler_lifecycle.features.schedules.ports import TargetRef
from crawler_lifecycle.features.webhooks.ports import DeliveryAttempt
from crawler_lifecycle.ports.polls import Correction, Details
from crawler_lifecycle.ports.runs import Fence, Owner
from crawler_lifecycle.store.retention import pruning as adapter
from crawler_lifecycle.store.retention.pruning import Pruner, open_pruner
from crawler_lifecycle.store.store import Store
from crawler_lifecycle.store.tables import metadata
from tests.contracts.store.harness import Clock, Harness, good_end, seen
from tests.support.examples import examples

#: Events that report a change, and are removed.
NEWS = (EVENT_RUN_CHANGED, EVENT_RUN_ATTENTION, EVENT_CORRECTION_MADE)
DAY = 86_400.0
AGE = timedelta(days=90)
RESULT = ExportResult("s3://archive/1/1/supporting-files.zip", 100, 2, "0" * 64, None)


def ended(
    harness: Harness,
    *,
    tasks: int | None = None,
    pushed: str = "delivered",
    name: str | None = None,
) -> Fence:
    """A run with everything that a run leaves, which has just ended."""
    fence = harness.executing(name or f"r{harness.clock.now.timestamp()}", tasks)
    harness.clock.forward(60)
    store = harness.store
    store.events.append_event(
        fence, "run.started", event_key(fence.run, fence.attempt, "run.started"), {}
    )
    store.polls.save_details(
        fence,
        [
            Details(task.task_id, "the end of a log", statistics={"a": 1})
            for task in store.tasks.list_tasks(fence.run_id)
        ],
    )
    harness.finish(fence, failed=[0])
    store.exports.record_export(fence, "exported", RESULT, None)
    killed = Correction(
        CorrectionKind.STILL_ALIVE,
        "FAILED",
        "RUNNING",
        store.tasks.list_tasks(fence.run_id)[0].task_id,
    )
    store.corrections.record_corrections(fence.run_id, [killed])
    for event in store.events.events_after(0, limit=10_000, run_id=fence.run_id):
        if event.attempt != fence.attempt:
            continue
        sink = "bus" if event.type == EVENT_RUN_ENDED else "pusher"
        if sink == "bus" or pushed:
            store.events.record_delivery(
                event.seq, sink, None if sink == "bus" or pushed == "delivered" else "no answer"
            )
    return fence


def _patiently(step: Callable[[], dict[str, int]]) -> dict[str, int]:
    """Repeat what another writer prevented, as the command does."""
    for _ in range(3):
        try:
            return step()
        except StoreUnavailable:
            continue
    return step()


def prune(pruner: Pruner, harness: Harness, age: timedelta = AGE) -> dict[str, int]:
    """Remove everything that may be removed, in chunks, as the command does. Return the number of
    rows by table.
    """
    before, removed = harness.clock.now - age, dict.fromkeys(GOES, 0)
    for table in pruner.tables:
        place = (0, 0)
        while True:
            chunk = pruner.poll(table, before, place)
            for touched, rows in _patiently(
                lambda: pruner.remove(table, chunk.goes, before)  # noqa: B023
            ).items():
                removed[touched] += rows
            if chunk.next is None:
                break
            place = chunk.next
    return removed


def told(pruner: Pruner, harness: Harness, table: str) -> tuple[int, dict[Stays, int]]:
    chunk = pruner.poll(table, harness.clock.now - AGE)
    return len(chunk.goes), dict(chunk.stays)


def everything(store: Store, *but: str) -> dict[str, list[Any]]:
    """Return all rows of all tables except these."""
    with store.database.reading() as conn:
        tables = [table for table in metadata.sorted_tables if table.name not in but]
        return {
            table.name: [tuple(row) for row in conn.execute(sa.select(table))] for table in tables
        }


def test_every_table_is_decided_about() -> None:
    assert GOES.keys() | NEVER.keys() == set(metadata.tables)
    assert not GOES.keys() & NEVER.keys()


def test_what_goes_and_what_stays(harness: Harness, store: Store, pruner: Pruner) -> None:
    old = ended(harness, tasks=3)
    harness.clock.forward(100 * DAY)
    recent = ended(harness)
    live = harness.executing("live", 2)
    before = everything(store, *GOES, "history_property")
    kept = [
        e
        for e in store.events.events_after(0, 10_000)
        if e.run_id != old.run_id or e.type not in NEWS
    ]
    logs = {task.task_id for task in store.tasks.list_tasks(recent.run_id)}
    goes, stays = told(pruner, harness, "outbox_event")
    assert goes > 4
    assert stays.keys() == {Stays.ONCE, Stays.RECENT, Stays.LIVE}
    assert goes + sum(stays.values()) == store.events.last_event_seq()
    removed = prune(pruner, harness)
    assert removed == {
        **dict.fromkeys(GOES, 0), "outbox_event": goes, "outbox_delivery": goes, "task_log": 3, "task_stats": 3,
    }  # fmt: skip
    assert store.events.events_after(0, 10_000) == kept
    assert everything(store, *GOES, "history_property") == before, "nothing else was touched"
    assert [store.tasks.log_tail(task.task_id) for task in store.tasks.list_tasks(old.run_id)] == [
        None
    ] * 3
    assert {task for task in logs if store.tasks.log_tail(task)} == logs
    [marked] = [
        run
        for run in (old, recent, live)
        if pruned_through(store.runs.properties(run.run_id)) is not None
    ]
    assert marked == old
    assert prune(pruner, harness) == dict.fromkeys(GOES, 0), "a second time there is nothing"


def test_nothing_of_the_ledger_is_in_any_statement(harness: Harness, pruner: Pruner) -> None:
    statements: list[str] = []
    sa.event.listen(pruner._db.engine, "before_cursor_execute", lambda *a: statements.append(a[2]))
    ended(harness, tasks=2)
    harness.clock.forward(100 * DAY)
    assert prune(pruner, harness)["outbox_event"]
    changing = [
        one
        for one in statements
        if not one.lstrip().upper().startswith(("SELECT", "BEGIN", "PRAGMA", "SET"))
    ]
    assert changing
    assert [
        one for one in changing if any(name in one for name in NEVER if name != "history_property")
    ] == []


def test_a_run_is_live_for_as_long_as_it_is(harness: Harness, pruner: Pruner) -> None:
    fence = harness.executing()
    harness.clock.forward(400 * DAY)
    assert prune(pruner, harness) == dict.fromkeys(GOES, 0)
    assert told(pruner, harness, "outbox_event")[1].keys() == {Stays.LIVE}
    harness.finish(fence)
    assert prune(pruner, harness) == dict.fromkeys(GOES, 0), "it ended just now"


def test_an_end_that_was_recorded_late_counts_from_its_record(
    harness: Harness, pruner: Pruner
) -> None:
    """Workers were down for half a year: the cluster dates the end of the run back then, but its
    events are new.
    """
    fence = harness.executing()
    long_ago = harness.clock.now
    harness.clock.forward(180 * DAY)
    [task] = harness.store.polls.found_state(fence).tasks
    harness.poll(
        fence, [seen(task, Phase.ENDED, harness.clock.now, uid=task.uid, end=good_end(long_ago))]
    )
    assert harness.end(fence).ended_at == long_ago
    assert prune(pruner, harness) == dict.fromkeys(GOES, 0)
    assert told(pruner, harness, "outbox_event")[1].keys() == {Stays.RECENT}


def test_a_push_that_could_be_made_again_stays(harness: Harness, pruner: Pruner) -> None:
    fence = ended(harness, pushed="failed")
    harness.clock.forward(100 * DAY)
    newest = harness.store.events.last_event(fence.run_id, EVENT_RUN_CHANGED)
    assert newest is not None
    removed = prune(pruner, harness)
    assert removed["outbox_event"] > 3
    assert removed["outbox_event"] == removed["outbox_delivery"], (
        "what was given up on record goes with its event"
    )
    assert told(pruner, harness, "outbox_event") == (0, {Stays.ONCE: 2, Stays.UNSENT: 1})
    assert harness.store.events.last_event(fence.run_id, EVENT_RUN_CHANGED) == newest
    harness.store.events.record_delivery(newest.seq, "pusher", None)
    assert prune(pruner, harness)["outbox_event"] == 1
    assert pruned_through(harness.store.runs.properties(fence.run_id)) == newest.seq


def test_what_was_never_pushed_goes(harness: Harness, pruner: Pruner) -> None:
    """Nobody is subscribed, so there is no delivery."""
    fence = ended(harness, pushed="")
    harness.clock.forward(100 * DAY)
    assert prune(pruner, harness)["outbox_event"] > 3
    assert [e.type for e in harness.store.events.events_after(0, run_id=fence.run_id)] == [
        "run.started",
        EVENT_RUN_ENDED,
    ]


def test_what_a_poll_staged_and_nobody_applied_goes_with_its_run(
    harness: Harness, store: Store, pruner: Pruner
) -> None:
    old, live = ended(harness, tasks=2), harness.deployed("live", 2)
    for fence in (old, live):
        tasks = store.tasks.list_tasks(fence.run_id)
        with store.database.writing() as conn:
            for task in tasks:
                key = {"run_id": fence.run_id, "task_id": task.task_id}
                row = {**key, "attempt": 1, "task_index": task.task_index}
                conn.execute(sa.insert(metadata.tables["task_observation"]).values(**row))
                finding = {**key, "believed": "RUNNING", "terminal": True, "evidence": {}}
                conn.execute(sa.insert(metadata.tables["task_finding"]).values(**finding))
    harness.clock.forward(100 * DAY)
    removed = prune(pruner, harness)
    assert (removed["task_observation"], removed["task_finding"]) == (2, 2)
    assert told(pruner, harness, "task_finding") == (0, {Stays.LIVE: 2})
    assert told(pruner, harness, "task_observation") == (0, {Stays.LIVE: 2})


def test_findings_that_were_closed_long_ago(harness: Harness, store: Store, pruner: Pruner) -> None:
    old, live = ended(harness), harness.deployed("live")
    found = [
        AuditFinding("task/old", FindingKind.STILL_ALIVE, "it executes", old.run_id),
        AuditFinding("task/live", FindingKind.STILL_ALIVE, "it executes", live.run_id),
        AuditFinding("orphan/1", FindingKind.ORPHAN, "it executes", None),
        AuditFinding("run/gone", FindingKind.NO_ROW, "no row", 10**9),
        AuditFinding("open", FindingKind.UNREADABLE, "a row", old.run_id),
    ]
    store.findings.note_findings(found)
    for one in found[:-1]:
        store.findings.note_repair(one.subject, "ended")
    assert prune(pruner, harness)["audit_finding"] == 0
    harness.clock.forward(100 * DAY)
    store.findings.note_findings([replace(found[2], subject="orphan/2")])
    store.findings.note_repair("orphan/2", "ended")
    assert told(pruner, harness, "audit_finding") == (
        3,
        {Stays.LIVE: 1, Stays.OPEN: 1, Stays.RECENT: 1},
    )
    chunk = pruner.poll("audit_finding", harness.clock.now - AGE)
    store.findings.note_findings([found[2]])  # an audit sees it again at this moment
    assert pruner.remove("audit_finding", chunk.goes, harness.clock.now - AGE) == {
        "audit_finding": 2
    }
    assert {one.subject for one in store.findings.audit_findings()} == {"open", "orphan/1"}


def test_a_finding_that_is_removed_while_it_is_noted_is_noted_anew(
    harness: Harness, store: Store, pruner: Pruner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row was removed between its reading and its update: this counts as the first sight, and
    nothing is lost.
    """
    one = AuditFinding("orphan/1", FindingKind.ORPHAN, "it executes", None)
    store.findings.note_findings([one])
    store.findings.note_repair(one.subject, "ended")
    harness.clock.forward(100 * DAY)
    findings = metadata.tables["audit_finding"]

    def gone_before(conn: Any, clause: Any, *_: Any) -> None:
        if getattr(clause, "is_update", False) and clause.table is findings and not done:
            done.append(True)
            conn.execute(sa.delete(findings))

    done: list[bool] = []
    sa.event.listen(store.database.engine, "before_execute", gone_before)
    try:
        assert store.findings.note_findings([one])[one.subject].first_seen == harness.clock.now
    finally:
        sa.event.remove(store.database.engine, "before_execute", gone_before)
    assert done
    assert [row.subject for row in store.findings.audit_findings()] == [one.subject]


# --- a run that was pruned ------------------------------------------------------------------------


class Sink:
    name = "bus"

    def __init__(self) -> None:
        self.sent: list[str] = []

    def send(self, event: Any) -> None:
        self.sent.append(event.type)


def test_everything_still_works_afterwards(harness: Harness, store: Store, pruner: Pruner) -> None:
    """Readers respond as before, the event can be sent again, and a resume executes what failed."""
    fence = ended(harness, tasks=3)
    harness.clock.forward(100 * DAY)
    run_id = fence.run_id

    def read() -> list[Any]:
        return [
            store.runs.get_run(run_id), store.tasks.list_tasks(run_id, superseded=True), store.runs.transitions(run_id),
            store.corrections.list_corrections(run_id), store.runs.cancellations(run_id),
            store.exports.list_exports(run_id), store.audits.ended_run(run_id),
            store.events.deliveries(run_id, keyed=True), store.tasks.count_tasks(run_id),
            store.deployment.ended_groups(run_id),
            store.file_retention.kept_runs([run_id]), store.runs.request_of(run_id), store.audits.open_runs(),
            store.events.find_event(event_key(fence.run, 1, EVENT_RUN_ENDED)), store.events.last_event_seq(),
        ]  # fmt: skip

    before = read()
    assert prune(pruner, harness)["outbox_event"]
    assert read() == before
    sink = Sink()
    done = CompletionActivities(
        store.completion,
        store.exports,
        store.deployment,
        store.runs,
        store.tasks,
        store.events,
        None,
        sink,
        None,
        None,
        [sink],
        store.sites.robots_of_run,
    )  # type: ignore[arg-type]
    assert done.initiate_export_signal(fence) > 0
    assert sink.sent == [EVENT_RUN_ENDED]
    assert done.resend_pushes(fence) == 0
    assert store.exports.begin_export(fence) == 0
    store.exports.record_export(fence, "exported", RESULT, None)
    again = harness.resume(fence)
    assert harness.status(again) is RunStatus.INITIALIZING
    assert harness.deploy(again) == [0], "what failed"
    harness.execute(again)
    store.polls.save_details(
        again, [Details(task.task_id, "a new log") for task in store.polls.found_state(again).tasks]
    )
    row = harness.finish(again)
    assert (row.status, row.attempt) == (RunStatus.COMPLETED, 2)
    assert set(harness.statuses(again).values()) == {TaskStatus.SUCCEEDED}
    kinds = {e.type for e in store.events.events_after(before[-1], 10_000, run_id)}
    assert kinds == {EVENT_RUN_CHANGED, EVENT_RUN_ENDED}
    assert prune(pruner, harness) == dict.fromkeys(GOES, 0), "it ended just now"
    harness.clock.forward(100 * DAY)
    assert prune(pruner, harness)["task_log"] == 1
    marks = [one["attempt"] for one in store.runs.properties(run_id) if one["name"] == "pruned"]
    assert marks == [1, 2]


# --- while everything goes on ---------------------------------------------------------------------


def test_a_run_that_is_resumed_in_this_moment_keeps_everything(
    harness: Harness, store: Store, pruner: Pruner
) -> None:
    fence = ended(harness, tasks=2)
    harness.clock.forward(100 * DAY)
    before = harness.clock.now - AGE
    chunks = {table: pruner.poll(table, before) for table in pruner.tables}
    harness.resume(fence)
    kept = everything(store)
    for table, chunk in chunks.items():
        assert chunk.goes or table not in ("outbox_event", "task_log")
        assert sum(pruner.remove(table, chunk.goes, before).values()) == 0
    assert everything(store) == kept


def test_two_at_once_and_everything_goes_on(
    harness: Harness, store: Store, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of three, two prunings, a resume and a new run in between: no error, and each row is
    removed once.
    """
    monkeypatch.setattr(adapter, "CHUNK", 3)
    runs = [ended(harness, tasks=2, name=f"old-{n}") for n in range(6)]
    harness.clock.forward(100 * DAY)
    before = harness.clock.now - AGE
    with closing(open_pruner(store_url, clock=harness.clock)) as one:
        monkeypatch.setattr(adapter, "CHUNK", 10_000)
        due = len(one.poll("outbox_event", before).goes)
        monkeypatch.setattr(adapter, "CHUNK", 3)
    removed: list[int] = []
    troubles: list[BaseException] = []

    def call() -> None:
        try:
            with closing(open_pruner(store_url, clock=harness.clock)) as one:
                removed.append(prune(one, harness)["outbox_event"])
        except BaseException as error:
            troubles.append(error)

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    resumed = harness.resume(runs[-1])
    live = harness.executing("live", 2)
    for seq in [event.seq for event in store.events.events_after(0, 10_000, live.run_id)]:
        store.events.record_delivery(seq, "pusher", None)
    harness.finish(live)
    for thread in threads:
        thread.join(60)
    assert troubles == []
    kept = [
        e
        for e in store.events.events_after(0, 10_000, runs[-1].run_id)
        if e.attempt == 1 and e.type in NEWS
    ]
    assert sum(removed) == due - len(kept)
    for fence in runs[:-1]:
        assert {e.type for e in store.events.events_after(0, 10_000, fence.run_id)} == {
            "run.started",
            EVENT_RUN_ENDED,
        }
        assert (
            len([one for one in store.runs.properties(fence.run_id) if one["name"] == "pruned"])
            == 1
        )
    harness.deploy(resumed)
    assert len(store.events.events_after(0, 10_000, live.run_id)) > 3


def test_it_waits_for_whoever_holds_the_run_and_not_for_others(
    harness: Harness, store: Store, store_url: str, pruner: Pruner
) -> None:
    """Writing a live run does not keep others from pruning old ones on MariaDB; SQLite has only one
    writer.
    """
    fence, live = ended(harness), harness.deployed("live")
    for n in range(200):  # MariaDB reads the whole of a table with a dozen rows, and waits for each
        store.events.append_event(live, "told", f"told-{n}", {})
    harness.clock.forward(100 * DAY)
    if store_url.startswith("sqlite"):
        assert prune(pruner, harness)["outbox_event"]
        return
    with store.runs._unit(live.run_id) as unit:
        unit.conn.execute(
            sa.text("SELECT seq FROM outbox_event WHERE run_id = :run FOR UPDATE"),
            {"run": live.run_id},
        )
        assert prune(pruner, harness)["outbox_event"]
    assert pruned_through(store.runs.properties(fence.run_id))


def test_a_chunk_is_all_or_nothing(harness: Harness, store: Store, pruner: Pruner) -> None:
    ended(harness)
    harness.clock.forward(100 * DAY)
    before = harness.clock.now - AGE
    chunk, kept = pruner.poll("outbox_event", before), everything(store)

    def fail(_conn: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("DELETE") and "outbox_event" in statement:
            raise sa.exc.OperationalError(statement, {}, Exception("the server went away"))

    sa.event.listen(pruner._db.engine, "before_cursor_execute", fail)
    with pytest.raises(StoreUnavailable):
        pruner.remove("outbox_event", chunk.goes, before)
    sa.event.remove(pruner._db.engine, "before_cursor_execute", fail)
    assert everything(store) == kept
    assert prune(pruner, harness)["outbox_event"] == len(chunk.goes)


# --- any history ----------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.integers(1, 3)),
        st.tuples(st.just("end"), st.sampled_from(["delivered", "failed", ""])),
        st.tuples(st.just("resume"), st.none()),
        st.tuples(st.just("wait"), st.sampled_from([1, 40, 89, 91])),
        st.tuples(st.just("prune"), st.none()),
    ),
    min_size=4,
    max_size=14,
)


@settings(max_examples=examples(8), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, size=st.sampled_from([1, 4, 500]))
def test_any_history(
    store: Store, pruner: Pruner, clock: Clock, steps: list[Any], size: int
) -> None:
    """The record is the same with and without pruning, and everything that was removed belongs to
    old runs.
    """
    harness, fences, over = Harness(store, clock), list[Fence](), set[int]()
    adapter.CHUNK = size
    try:
        for step, what in [*steps, ("prune", None)]:
            name = f"run-{store.events.last_event_seq()}-{clock.now.timestamp()}"
            live = [n for n, fence in enumerate(fences) if n not in over]
            if step == "begin":
                fences.append(harness.deployed(name, what))
            elif step == "end" and live:
                _end(harness, fences[live[0]], what)
                over.add(live[0])
            elif step == "resume" and over:
                n = min(over)
                failed = harness.row(fences[n]).status is RunStatus.FAILED
                if failed:
                    fences[n] = harness.resume(fences[n], Owner(name, name))
                    harness.deploy(fences[n])
                    over.discard(n)
            elif step == "wait":
                clock.forward(what * DAY)
            elif step == "prune":
                _check_prune(store, pruner, harness)
    finally:
        adapter.CHUNK = 500


def _end(harness: Harness, fence: Fence, pushed: str) -> None:
    harness.execute(fence)
    harness.finish(fence, failed=[0])
    for event in harness.store.events.events_after(0, 10_000, fence.run_id):
        if pushed:
            harness.store.events.record_delivery(
                event.seq, "pusher", None if pushed == "delivered" else "no answer"
            )


def _check_prune(store: Store, pruner: Pruner, harness: Harness) -> None:
    before = harness.clock.now - AGE
    record = everything(store, *GOES, "history_property")
    rows = {row.run_id: row for row in store.runs.list_runs(limit=500)}
    events = {event.seq: event for event in store.events.events_after(0, 10_000)}
    prune(pruner, harness)
    assert everything(store, *GOES, "history_property") == record
    left = {event.seq: event for event in store.events.events_after(0, 10_000)}
    assert left.items() <= events.items()
    for seq in events.keys() - left.keys():
        event, run = events[seq], rows[events[seq].run_id]
        assert event.type in NEWS
        assert run.status.terminal
        assert run.ended_at is not None
        assert max(run.ended_at, event.created_at) < before
        through = pruned_through(store.runs.properties(event.run_id))
        assert through is not None
        assert seq <= through
    assert sum(prune(pruner, harness).values()) == 0


def test_news_of_webhooks_go_by_their_own_age(
    harness: Harness, store: Store, pruner: Pruner
) -> None:
    """A webhook has no end; its deliveries are removed with the event, even if they never
    succeeded.
    """
    fence = ended(harness, pushed=None)
    hook, _ = store.webhooks.put(
        "shop", {"url": "https://a.example/", "secrets": ["env:CRAWL_HOOK"]}, None
    )
    store.webhooks.follow_webhook("shop", "f")
    test = store.webhooks.test_webhook("shop", "ann")
    changed = [e.seq for e in store.events.events_after(0, 1000, fence.run_id) if e.type in NEWS]
    tried = [DeliveryAttempt(seq, "the receiver returned 503") for seq in [*changed, test.seq]]
    store.webhooks.note_tries(hook.webhook_id, "f", tried, 0, settled=False)
    harness.clock.forward(100 * DAY)
    young = store.webhooks.test_webhook("shop", "ann")
    removed = prune(pruner, harness)
    assert (removed["outbox_event"], removed["outbox_delivery"]) == (len(tried), len(tried))
    assert store.webhooks.list_webhook_deliveries(hook.webhook_id) == []
    assert store.events.get_event(young.seq) == young


def test_old_due_times_go_and_what_they_began_is_found_again(
    harness: Harness, store: Store, pruner: Pruner
) -> None:
    s, definition = (
        store.schedules,
        {"run": {"crawler": "services"}, "every_s": 60, "overlap": "queue"},
    )
    row, _ = s.put("nightly", definition, "ann")
    start = harness.clock.now.replace(second=0, microsecond=0)
    fence = harness.executing("begun")
    for minute in (1, 2, 3):
        harness.clock.now = start + timedelta(minutes=minute)
        assert s.decide_due("nightly", harness.clock.now, row.revision) is not None
    lines = s.list_firings(row.schedule_id)[::-1]
    s.due_begun(lines[0].due_id, TargetRef(TargetKind.RUN, fence.run_id))
    harness.clock.forward(100 * DAY)
    s.note_due(row.schedule_id, start + timedelta(minutes=5))
    assert told(pruner, harness, "schedule_due") == (0, {Stays.LIVE: 3, Stays.RECENT: 2})
    harness.finish(fence)
    assert told(pruner, harness, "schedule_due") == (1, {Stays.LIVE: 2, Stays.RECENT: 2})
    harness.clock.forward(100 * DAY)
    assert prune(pruner, harness)["schedule_due"] == 3
    assert [line.due_at for line in s.list_firings(row.schedule_id)] == [
        line.due_at for line in reversed(lines[1:])
    ]
    assert [
        event.type for event in store.events.events_after(0, 1000) if "schedule" in event.type
    ] == []
    assert not s.note_due(row.schedule_id, start + timedelta(minutes=5)).missed, (
        "it is not noted anew"
    )
