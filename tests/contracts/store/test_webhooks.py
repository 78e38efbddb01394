"""Webhooks: definitions, the events to deliver to each, and their deliveries."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import delete, update

from crawler_lifecycle.domain.errors import Fenced, InvalidRequest, NotInThisState, RunNotFound
from crawler_lifecycle.domain.names import EVENT_WEBHOOK_MISSED, EVENT_WEBHOOK_PAUSED, event_key
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.features.webhooks.domain.definition import WebhookSpec
from crawler_lifecycle.features.webhooks.ports import DeliveryAttempt, WebhookRow
from crawler_lifecycle.features.webhooks.store import webhook
from crawler_lifecycle.ports.runs import Fence
from crawler_lifecycle.store.base.outbox import outbox_counter, outbox_event
from crawler_lifecycle.store.store import Store
from tests.contracts.store.graphing import Graphed, step
from tests.contracts.store.harness import Clock, Harness
from tests.contracts.store.managing import Managed


def spec(**fields: Any) -> WebhookSpec:
    return WebhookSpec(
        **{"url": "https://hooks.example.com/x", "secrets": ["env:CRAWL_HOOK"], **fields}
    )


def made(store: Store, name: str = "shop", **fields: Any) -> WebhookRow:
    store.webhooks.put(name, spec(**fields).document(), "ann")
    return followed(store, name)


def followed(store: Store, name: str = "shop") -> WebhookRow:
    row = store.webhooks.follow_webhook(name, "f1")
    assert row is not None
    return row


def waiting(
    store: Store, row: WebhookRow, after: int | None = None, limit: int = 100, **fields: Any
) -> list[int]:
    after = row.through_seq if after is None else after
    found = store.webhooks.waiting_events(row.webhook_id, "f1", spec(**fields), after, limit)
    return [event.seq for event in found.events]


def told(store: Store, fence: Fence, times: int = 1) -> list[int]:
    return [
        store.events.append_event(fence, "run.changed", f"{fence}/{n}", {"n": n}).seq
        for n in range(times)
    ]


def test_ends_of_managers_and_graphs_are_told_like_those_of_runs(harness: Harness) -> None:
    store, row = harness.store, made(harness.store)
    manager = Managed.begun(harness)
    for _ in range(2):  # the second one is a repetition
        store.managers.end_manager(manager.fence, RunStatus.COMPLETED, "finished", "done")
    graph = Graphed.made(harness, [step("a")])
    graph.execute()
    graph.advance()
    store.graphs.end_graph(graph.fence, None)
    found = store.webhooks.waiting_events(row.webhook_id, "f1", spec(), row.through_seq, 100).events
    ends = [(event.type, event.subject) for event in found if event.type.endswith(".ended")]
    assert ends == [
        ("manager.ended", f"managers/{manager.id}"),
        ("graph.ended", f"graphs/{graph.row.key}"),
    ]
    chosen = spec(events=["manager.ended"], statuses=["COMPLETED"], outcomes=["finished"])
    told = store.webhooks.waiting_events(row.webhook_id, "f1", chosen, row.through_seq, 100).events
    assert [event.type for event in told] == ["manager.ended"]


def test_a_definition_is_kept_changed_deleted_and_there_again(store: Store, clock: Clock) -> None:
    w = store.webhooks
    row = made(store)
    assert (row.revision, row.requested_by, row.through_seq) == (1, "ann", 0)
    assert w.put("shop", row.definition, "bob")[1] is False, "the same again changes nothing"
    clock.forward(60)
    changed, fresh = w.put("shop", spec(events=["run.ended"]).document(), "bob")
    assert (changed.revision, changed.webhook_id, fresh) == (2, row.webhook_id, True)
    assert [one.name for one in w.page()] == ["shop"]
    assert w.delete("shop")
    assert not w.delete("shop")
    assert (w.page(), w.follow_webhook("shop", "f2")) == ([], None)
    Harness(store, clock).deployed()
    again = made(store)
    assert (again.webhook_id, again.revision) == (row.webhook_id, 3)
    assert again.webhook_uid != row.webhook_uid
    assert again.through_seq == store.events.last_event_seq(), "it is told what happens from now on"
    with pytest.raises(RunNotFound, match="crawlctl webhook list"):
        w.pause("other", "why not")


def test_events_come_in_pages_until_each_is_delivered(store: Store, clock: Clock) -> None:
    row = made(store, events=["run.changed"])
    fence = Harness(store, clock).deployed()
    told(store, fence, 5)
    types = {"events": ["run.changed"]}
    seqs = waiting(store, row, **types)
    assert len(seqs) >= 5
    assert waiting(store, row, limit=2, **types) == seqs[:2]
    page = store.webhooks.waiting_events(row.webhook_id, "f1", spec(**types), row.through_seq, 2)
    assert (page.until_seq, page.more) == (seqs[1], True)
    note, id = store.webhooks.note_tries, row.webhook_id
    after = note(
        id,
        "f1",
        [DeliveryAttempt(seqs[0]), DeliveryAttempt(seqs[1], "500"), DeliveryAttempt(seqs[2])],
        seqs[0],
        settled=False,
    )
    assert (after.through_seq, after.failing_since, after.error) == (seqs[0], clock.now, "500")
    assert waiting(store, after, **types) == [seqs[1], *seqs[3:]], "what is delivered comes no more"
    clock.forward(5)
    again = note(id, "f1", [DeliveryAttempt(seqs[1], "502")], seqs[0], settled=False)
    assert (again.failing_since, again.error) == (after.failing_since, "502"), (
        "since when it fails is kept"
    )
    done = note(
        id, "f1", [DeliveryAttempt(seq) for seq in (seqs[1], *seqs[3:])], seqs[-1], settled=True
    )
    assert (done.failing_since, waiting(store, done, **types)) == (None, [])
    lines = store.webhooks.list_webhook_deliveries(id)
    assert [line.seq for line in lines] == seqs[::-1]
    [second] = [line for line in lines if line.seq == seqs[1]]
    assert (second.status, second.tries, second.error) == ("delivered", 3, None)
    assert note(id, "f1", [], 1, settled=True).through_seq == seqs[-1], "it never goes back"
    quiet = store.webhooks.waiting_events(id, "f1", spec(events=["graph.ended"]), 0, 100)
    assert (quiet.events, quiet.until_seq) == ([], store.events.last_event_seq())


def test_filters_go_by_the_run(store: Store, clock: Clock) -> None:
    row = made(store)
    harness = Harness(store, clock)
    one = harness.deployed("r1", tags=["nightly", "eu"], flow_id="f")
    two = harness.deployed("r2", crawler="shops")
    mine = {fence.run_id: told(store, fence)[0] for fence in (one, two)}

    def of(**fields: Any) -> set[int]:
        return set(waiting(store, row, 0, **fields)) & set(mine.values())

    assert of() == set(mine.values())
    assert (
        of(tags=["nightly"]) == of(flows=["f"]) == of(crawlers=["services"]) == {mine[one.run_id]}
    )
    assert of(crawlers=["shops", "x"]) == {mine[two.run_id]}
    assert of(crawlers=["shops"], tags=["eu"]) == set()
    assert of(statuses=["PENDING"]) == set(), "an event that does not tell it does not fit"


def test_who_lost_it_writes_nothing_more(store: Store, clock: Clock) -> None:
    row = made(store)
    fence = Harness(store, clock).deployed()
    [seq] = told(store, fence)
    store.webhooks.follow_webhook("shop", "f2")
    for act in (
        lambda: waiting(store, row),
        lambda: store.webhooks.note_tries(
            row.webhook_id, "f1", [DeliveryAttempt(seq)], seq, settled=True
        ),
    ):
        with pytest.raises(Fenced):
            act()
    assert store.webhooks.list_webhook_deliveries(row.webhook_id) == []
    store.webhooks.delete("shop")
    with pytest.raises(Fenced):
        store.webhooks.note_tries(row.webhook_id, "f2", [DeliveryAttempt(seq)], seq, settled=True)


def test_a_pause_is_told_and_a_skip_leaves_out(store: Store, clock: Clock) -> None:
    row = made(store)
    fence = Harness(store, clock).deployed()
    told(store, fence, 3)
    store.webhooks.note_tries(row.webhook_id, "f1", [DeliveryAttempt(1, "down")], 0, settled=False)
    assert [one.state for one in store.webhooks.page()] == ["failing"]
    paused = store.webhooks.pause("shop", "nothing gets through")
    assert store.webhooks.waiting_events(row.webhook_id, "f1", spec(), 0, 100).paused
    [event] = [one for one in store.events.events_after(0) if one.type == EVENT_WEBHOOK_PAUSED]
    assert (event.subject, event.body["name"]) == (f"webhooks/{row.webhook_id}", "shop")
    assert (event.body["reason"], event.body["failing_since"]) == (
        "nothing gets through",
        clock.now.isoformat(),
    )
    assert store.webhooks.pause("shop", "again") == paused, "once"
    assert [one.state for one in store.webhooks.page()] == ["paused"]
    on = store.webhooks.pause("shop", None)
    assert (on.paused_at, on.failing_since, on.through_seq) == (None, None, 0)
    assert waiting(store, on), "what happened meanwhile is told"
    assert on.state == "active"
    skipped = store.webhooks.pause("shop", None, skip=True)
    with pytest.raises(Fenced):
        waiting(store, skipped)
    assert waiting(store, followed(store)) == []


def test_one_event_is_left_out_and_the_others_are_told(store: Store, clock: Clock) -> None:
    row = made(store)
    seqs = told(store, Harness(store, clock).deployed(), 3)
    note, id = store.webhooks.note_tries, row.webhook_id
    note(
        id,
        "f1",
        [*(DeliveryAttempt(n) for n in range(1, seqs[0])), DeliveryAttempt(seqs[0], "500")],
        seqs[0] - 1,
        settled=False,
    )
    store.webhooks.pause("shop", "not for a day")
    with pytest.raises(InvalidRequest, match="--status failed lists the events"):
        store.webhooks.pause("shop", None, skip_seq=seqs[1])
    assert store.webhooks.page()[0].state == "paused"
    on = store.webhooks.pause("shop", None, skip_seq=seqs[0])
    assert (on.state, on.through_seq) == ("active", seqs[0] - 1)
    with pytest.raises(Fenced):  # for the worker that is delivering
        note(id, "f1", [DeliveryAttempt(seqs[0], "500")], seqs[0] - 1, settled=False)
    assert waiting(store, followed(store))[:2] == seqs[1:]
    statuses = [one.status for one in store.webhooks.list_webhook_deliveries(id)]
    assert statuses == ["skipped", *["delivered"] * (seqs[0] - 1)]


def test_a_change_is_for_the_next_one_that_delivers(store: Store) -> None:
    row = made(store)
    store.webhooks.put("shop", spec(events=["run.ended"]).document(), "ann")
    with pytest.raises(Fenced):
        waiting(store, row)


def test_what_fails_now_and_then_is_well_as_long_as_it_goes_on(store: Store, clock: Clock) -> None:
    row = made(store)
    seqs = told(store, Harness(store, clock).deployed(), 3)
    note, id = store.webhooks.note_tries, row.webhook_id
    note(id, "f1", [DeliveryAttempt(seqs[0], "500")], seqs[0] - 1, settled=False)
    clock.forward(60)
    on = note(
        id,
        "f1",
        [DeliveryAttempt(seqs[0]), DeliveryAttempt(seqs[1], "500")],
        seqs[0],
        settled=False,
    )
    assert on.failing_since == clock.now, "another event fails than before"
    clock.forward(60)
    stuck = note(id, "f1", [DeliveryAttempt(seqs[1], "502")], seqs[0], settled=False)
    assert (stuck.failing_since, stuck.error) == (on.failing_since, "502")
    well = note(id, "f1", [DeliveryAttempt(seq) for seq in seqs[1:]], seqs[2], settled=True)
    assert (well.failing_since, well.error) == (None, None)


def test_what_was_removed_before_it_was_told_is_told_of(store: Store, clock: Clock) -> None:
    row = made(store, events=["run.ended"])
    seqs = told(store, Harness(store, clock).deployed(), 5)
    with store.webhooks._db.writing() as conn:
        conn.execute(delete(outbox_event).where(outbox_event.c.seq.in_(seqs[1:3])))
    store.webhooks.note_tries(row.webhook_id, "f1", [], seqs[0], settled=True)
    store.webhooks.note_tries(row.webhook_id, "f1", [], seqs[4], settled=True)
    [event] = [one for one in store.events.events_after(0) if one.type == EVENT_WEBHOOK_MISSED]
    assert (event.subject, event.body["events"]) == (f"webhooks/{row.webhook_id}", 2)
    assert (event.body["after_seq"], event.body["through_seq"]) == (seqs[0], seqs[4])
    assert waiting(store, row, seqs[4], events=["run.ended"]) == [event.seq], (
        "whatever its filters are"
    )
    store.webhooks.note_tries(
        row.webhook_id, "f1", [DeliveryAttempt(event.seq)], event.seq, settled=True
    )
    assert store.events.last_event_seq() == event.seq, "once"


def test_a_long_time_that_was_removed_is_passed_at_once(store: Store, clock: Clock) -> None:
    row = made(store)
    fence = Harness(store, clock).deployed()
    with store.webhooks._db.writing() as conn:
        conn.execute(update(outbox_counter).values(seq=10**6))
        conn.execute(delete(outbox_event))
    assert (
        store.webhooks.waiting_events(row.webhook_id, "f1", spec(), row.through_seq, 100).until_seq
        == 10**6
    )
    [seq] = told(store, fence)
    page = store.webhooks.waiting_events(row.webhook_id, "f1", spec(), row.through_seq, 100)
    assert ([event.seq for event in page.events], page.until_seq) == ([seq], seq)


def test_a_cursor_ahead_of_a_restored_database_goes_back(store: Store, clock: Clock) -> None:
    row = made(store)
    told(store, Harness(store, clock).deployed())
    newest = store.events.last_event_seq()
    with store.webhooks._db.writing() as conn:
        conn.execute(update(webhook).values(through_seq=newest + 1000))
    with pytest.raises(Fenced):
        waiting(store, row, newest + 1000)
    assert followed(store).through_seq == newest


def test_a_test_is_for_one_webhook_alone(store: Store) -> None:
    row, other = made(store, "shop", events=["run.ended"]), made(store, "other")
    event = store.webhooks.test_webhook("shop", "ann")
    assert waiting(store, row, events=["run.ended"]) == [event.seq]
    assert waiting(store, other) == []
    store.webhooks.test_webhook("other", "ann", seen=event.seq - 1)
    with pytest.raises(NotInThisState, match="tested it after"):
        store.webhooks.test_webhook("shop", "ann", seen=event.seq - 1)
    assert store.webhooks.test_webhook("shop", "ann", seen=event.seq).seq == event.seq + 2


def test_a_runs_own_deliveries_are_told_without_webhooks(store: Store, clock: Clock) -> None:
    row = made(store)
    fence = Harness(store, clock).deployed()
    key = event_key(fence.run, fence.attempt, "run.ended")
    event = store.events.append_event(fence, "run.ended", key, {})
    store.webhooks.note_tries(
        row.webhook_id, "f1", [DeliveryAttempt(event.seq)], event.seq, settled=True
    )
    lines = [
        line
        for line in store.events.deliveries(fence.run_id, keyed=True)
        if line["seq"] == event.seq
    ]
    assert [(line["status"], line["sink"]) for line in lines] == [("pending", None)], (
        "the bus has not got it yet"
    )
