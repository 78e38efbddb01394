"""The rounds that find incidents: crawlers, schedules, webhooks, graphs, managers, pools, polls,
parts and workers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from crawler_lifecycle.domain.errors import StoreUnavailable
from crawler_lifecycle.domain.incident import IncidentRow
from crawler_lifecycle.domain.pools import Pool, Pools
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.features import FEATURES, INCIDENT_KINDS
from crawler_lifecycle.features.incidents.domain.workers import SILENT_S
from crawler_lifecycle.features.incidents.gateway import rounds
from crawler_lifecycle.features.incidents.gateway.conditions import STUCK_FOR
from crawler_lifecycle.features.incidents.gateway.rounds import OFTEN, SELDOM, TURN, WHOLE, Rounds
from crawler_lifecycle.gateway import ui
from crawler_lifecycle.gateway.health import HealthPart
from crawler_lifecycle.store.notes import DEAD_AFTER, WORKER, Beats
from tests.gateway.gateway_harness import Harness


class Player:
    """Makes rounds, and reads their findings."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.rounds = Rounds(harness.gateway())

    def play(self, *parts: HealthPart, times: int = SELDOM) -> list[IncidentRow]:
        for _ in range(times):
            assert self.rounds.once(parts)
        return self.harness.store.incidents.open_incidents(100)

    def found(self, *parts: HealthPart, times: int = SELDOM) -> dict[str, str]:
        """Return the subject of each kind that is open."""
        return {row.kind: row.subject for row in self.play(*parts, times=times)}


@pytest.fixture
def player(harness: Harness) -> Player:
    return Player(harness)


def write(harness: Harness, statement: str, **values: object) -> None:
    with harness.store.database.writing() as conn:
        assert conn.execute(sa.text(statement), values).rowcount


def run_ends(harness: Harness, client: Any, status: RunStatus = RunStatus.FAILED) -> int:
    run_id = int(client.post("/v1/runs", json={"crawler": "plain"}).json()["run_id"])
    harness.claim(run_id)
    harness.end(run_id, status)
    return run_id


def test_a_crawler_that_fails_is_found_in_the_next_round_and_a_good_run_ends_it(
    player: Player, harness: Harness
) -> None:
    assert player.play() == []
    with harness.client() as client:
        for _ in range(3):
            harness.clock.forward(30)
            last = run_ends(harness, client)
        [row] = player.play(times=OFTEN)
        assert (row.kind, row.subject, row.count, row.last_run_id) == (
            *("crawler_failing", "crawlers/plain", 3, last),
        )
        harness.clock.forward(30)
        run_ends(harness, client, RunStatus.COMPLETED)
        assert player.play(times=OFTEN) == []


def test_runs_that_people_stopped_do_not_end_an_incident(
    player: Player, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crawler_lifecycle.features.incidents.gateway.conditions.RUNS", 2)
    with harness.client() as client:
        for _ in range(2):
            harness.clock.forward(30)
            run_ends(harness, client)
        [row] = player.play(times=OFTEN)
        for _ in range(4):
            harness.clock.forward(WHOLE.total_seconds())
            run_id = run_ends(harness, client)
            stop = "UPDATE run_history SET ended_by = 'person' WHERE run_id = :id"
            write(harness, stop, id=run_id)
            assert [still.incident_id for still in player.play()] == [row.incident_id]


def test_many_failures_of_one_cause_send_two_messages_while_they_last(
    player: Player, harness: Harness
) -> None:
    with harness.client() as client:
        for n in range(60):
            harness.clock.forward(1)
            run_ends(harness, client)
            if n % 3 == 0:
                player.play(times=OFTEN)
        [row] = player.play(times=OFTEN)
        harness.clock.forward(1)
        run_ends(harness, client, RunStatus.COMPLETED)
        player.play(times=OFTEN)
    assert row.count == 60
    found = harness.store.events.events_after(0, 10_000)
    told = [(one.type, one.body["count"]) for one in found if one.type.startswith("incident.")]
    assert told == [("incident.opened", 4), ("incident.grew", 40), ("incident.closed", 60)]


def test_a_schedule_that_paused_itself_and_one_that_a_person_paused(
    player: Player, harness: Harness
) -> None:
    body = {"run": {"crawler": "plain"}, "every_s": 3600}
    with harness.client() as client:
        for name in ("nightly", "manual"):
            assert client.put(f"/v1/schedules/{name}", json=body).status_code == 200
        client.post("/v1/schedules/manual/pause", json={"reason": "a migration"})
    harness.store.schedules.pause("nightly", "the last 3 targets failed (pause_after_failures)")
    [row] = player.play()
    assert (row.kind, row.subject) == ("schedule_paused", "schedules/nightly")
    assert row.fix == "crawlctl schedule resume nightly"
    harness.store.schedules.pause("nightly", None)
    assert player.play() == []


@pytest.mark.parametrize(
    ("decisions", "kinds"),
    [
        (["missed"], ["schedule_missed"]),
        (["failed", "missed", "begun"], ["schedule_missed"]),
        (["begun", "missed"], []),
        (["started", "missed"], ["schedule_missed"]),
        (["skipped_overlap"] * 2, []),
        (["skipped_overlap"] * 3, ["schedule_skipped"]),
        (["paused", "missed"], ["schedule_missed"]),
    ],
)
def test_firings_that_began_nothing(
    player: Player, harness: Harness, decisions: Sequence[str], kinds: Sequence[str]
) -> None:
    """``decisions`` has the newest first; ``begun`` says whether it has started its target."""
    with harness.client() as client:
        body = {"run": {"crawler": "plain"}, "every_s": 60}
        client.put("/v1/schedules/often", json=body)
        for n in range(len(decisions)):
            harness.clock.forward(60)
            client.post("/v1/schedules/often/trigger", headers={"Idempotency-Key": f"due-{n}"})
    with harness.store.database.writing() as conn:
        ids = conn.execute(sa.text("SELECT due_id FROM schedule_due ORDER BY due_at DESC"))
        for due_id, decision in zip(ids.scalars().all(), decisions, strict=True):
            change = sa.text(
                "UPDATE schedule_due SET decision = :it, reason = 'why', begun_at = :at "
                "WHERE due_id = :id"
            )
            begun = {"begun": f"{harness.clock.now:%Y-%m-%d %H:%M:%S.%f}"}
            values = {"it": decision.replace("begun", "started"), "at": begun.get(decision)}
            conn.execute(change, {**values, "id": due_id})
    assert [row.kind for row in player.play()] == kinds


def test_a_schedule_without_a_next_firing_and_one_that_temporal_does_not_take(
    player: Player, harness: Harness
) -> None:
    body = {"run": {"crawler": "plain"}, "every_s": 3600}
    with harness.client() as client:
        for name in ("never", "planned", "odd"):
            client.put(f"/v1/schedules/{name}", json=body)
    now = harness.clock.now
    write(
        harness,
        "UPDATE schedule SET ended_at = :now WHERE name <> 'odd'",
        now=f"{now:%Y-%m-%d %H:%M:%S.%f}",
    )
    write(harness, "UPDATE schedule SET trouble = 'no right' WHERE name = 'odd'")
    ended = json.dumps({**body, "end_at": now.isoformat()})
    write(harness, "UPDATE schedule SET definition = :it WHERE name = 'planned'", it=ended)
    assert player.found() == {
        "schedule_idle": "schedules/never",
        "schedule_unsynced": "schedules/odd",
    }


def test_webhooks_that_fail_for_a_minute_and_those_that_were_given_up(
    player: Player, harness: Harness
) -> None:
    body = {"url": "https://hooks.example.com/x", "secrets": ["env:CRAWL_HOOK"]}
    with harness.client() as client:
        for name in ("fresh", "ops", "lost", "off"):
            client.put(f"/v1/webhooks/{name}", json=body)
        client.post("/v1/webhooks/off/pause")
    for name, minutes in (("fresh", 0.5), ("ops", 2), ("lost", 1440)):
        since = harness.clock.now - timedelta(minutes=minutes)
        write(
            harness,
            "UPDATE webhook SET failing_since = :at, error = 'HTTP 503' WHERE name = :name",
            at=f"{since:%Y-%m-%d %H:%M:%S.%f}",
            name=name,
        )
    harness.store.webhooks.pause("lost", "no delivery for a day: HTTP 503")
    assert player.found() == {
        "webhook_failing": "webhooks/ops",
        "webhook_paused": "webhooks/lost",
    }


def test_graphs_and_managers_that_failed_until_a_later_one_is_good(
    player: Player, harness: Harness
) -> None:
    step = {"path": "one", "kind": "crawl", "job": {"crawler": "plain"}}
    with harness.client() as client:
        for key in ("walk-1", "walk-2"):
            client.post("/v1/graphs", json={"id": key, "name": "walk", "steps": [step]})
        for flow in ("f1", "f2"):
            body = {"crawler": "plain", "name": "feed", "flow_id": flow}
            client.post("/v1/managers", json=body)
    ended = f"{harness.clock.now:%Y-%m-%d %H:%M:%S.%f}"
    write(
        harness, "UPDATE graph SET state = 'discarded', ended_at = :at WHERE graph_id = 1", at=ended
    )
    write(
        harness,
        "UPDATE manager SET status = 'FAILED', ended_at = :at WHERE manager_id = 1",
        at=ended,
    )
    write(
        harness,
        "UPDATE manager SET status = 'PROCESSING', tries = 5, error = 'boom' WHERE manager_id = 2",
    )
    assert player.found() == {
        "graph_failed": "graphs/walk-1",
        "manager_failed": "managers/1",
        "manager_stuck": "managers/2",
    }
    rows = player.play()
    before = {row.incident_id for row in rows}
    causes = [row.cause for row in rows if row.kind == "manager_stuck"]
    assert causes == ["feed: boom"], "nobody knows managers by their numbers"
    harness.clock.forward(60)
    later = f"{harness.clock.now:%Y-%m-%d %H:%M:%S.%f}"
    failed = "UPDATE graph SET state = 'discarded', ended_at = :at WHERE graph_id = 2"
    write(harness, failed, at=later)
    rows = player.play()
    assert {row.incident_id for row in rows} == before, "one incident, about the newest graph"
    [graph] = [row for row in rows if row.kind == "graph_failed"]
    assert (graph.subject, graph.count) == ("graphs/walk-2", 2)
    write(harness, "UPDATE graph SET state = 'completed' WHERE graph_id = 2")
    write(
        harness,
        "UPDATE manager SET status = 'COMPLETED', ended_at = :at WHERE manager_id = 2",
        at=ended,
    )
    assert player.found() == {}


def test_what_other_graphs_and_managers_do_ends_no_incident(
    player: Player, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of their ends counts, and not how many others have ended since."""
    monkeypatch.setattr("crawler_lifecycle.store.base.owned.FAILED_MAX", 1)
    step = {"path": "one", "kind": "crawl", "job": {"crawler": "plain"}}
    names = ["walk", "walk", "other", "other", "last"]
    with harness.client() as client:
        for number, name in enumerate(names, 1):
            client.post("/v1/graphs", json={"id": f"g-{number}", "name": name, "steps": [step]})
            body = {"crawler": "plain", "name": name, "flow_id": f"f{number}"}
            client.post("/v1/managers", json=body)

    def end(number: int, *, good: bool) -> set[str]:
        harness.clock.forward(60)
        at = f"{harness.clock.now:%Y-%m-%d %H:%M:%S.%f}"
        for table, state in (
            ("graph", "completed" if good else "discarded"),
            ("manager", "COMPLETED" if good else "FAILED"),
        ):
            column = "state" if table == "graph" else "status"
            change = f"UPDATE {table} SET {column} = :it, ended_at = :at WHERE {table}_id = :id"
            write(harness, change, it=state, at=at, id=number)
        return {row.subject for row in player.play()}

    assert end(2, good=True) == set()
    walk = {"graphs/g-1", "managers/1"}
    assert end(1, good=False) == walk, "it ended after the newer one"
    for number in (4, 5):
        walk |= {f"graphs/g-{number}", f"managers/{number}"}
        assert end(number, good=False) == walk
    assert end(3, good=True) == walk - {"graphs/g-4", "managers/4"}
    assert end(1, good=True) == {"graphs/g-5", "managers/5"}


def test_many_later_graphs_do_not_hide_that_one_has_recovered(
    player: Player, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crawler_lifecycle.store.base.owned.SUCCESSES_MAX", 1)
    step = {"path": "one", "kind": "crawl", "job": {"crawler": "plain"}}

    def ends(key: str, state: str, name: str | None = None, project: str = "default") -> set[str]:
        body = {"id": key, "steps": [step]} | ({} if name is None else {"name": name})
        with harness.client() as client:
            client.post("/v1/graphs", json=body).raise_for_status()
        harness.clock.forward(60)
        change = (
            "UPDATE graph SET state = :state, ended_at = :at, project = :project "
            "WHERE graph_key = :key"
        )
        at = f"{harness.clock.now:%Y-%m-%d %H:%M:%S.%f}"
        write(harness, change, state=state, at=at, key=key, project=project)
        return {row.subject for row in player.play()}

    assert ends("daily_1%", "discarded") == {"graphs/daily_1%"}
    assert ends("daily_2%", "completed") == set()
    for number in range(3):
        assert ends(f"named-{number}", "completed", "other") == set()
        assert ends(f"other-{number}", "completed") == set()
    assert ends("daily-3", "completed", project="b") == set()
    assert ends("walk-1", "discarded", "walk", "b") == {"graphs/walk-1"}
    assert ends("walk-2", "completed", "walk") == {"graphs/walk-1"}, "it is of another project"
    assert ends("walk-3", "completed", "walk", "b") == set()
    for number in range(4, 7):
        assert ends(f"walk-{number}", "completed", "walk") == set()


@pytest.mark.parametrize("limited_by", ["LIFECYCLE_POOLS", "crawlctl pool set herd"])
def test_a_pool_in_which_a_run_waits_for_long(
    player: Player, harness: Harness, limited_by: str
) -> None:
    store = harness.store
    if limited_by == "LIFECYCLE_POOLS":
        store.pools._pools = Pools({"herd": Pool(max=1)}, slots=4)
    else:
        store.pools.set_pool("herd", Pool(max=1), None)
    with harness.client() as client:
        client.post("/v1/runs", json={"crawler": "plain"})
    at = f"{harness.clock.now - timedelta(minutes=11):%Y-%m-%d %H:%M:%S.%f}"
    write(
        harness,
        "INSERT INTO pool_ticket (run_id, pool, priority, since, waits_since, wanted) "
        "VALUES (1, 'herd', 3, :at, :at, 1)",
        at=at,
    )
    [row] = player.play()
    assert (row.kind, row.subject, row.project) == ("pool_full", "pools/herd", "*")
    assert "0 of 1 slots are in use, the most by nobody; 1 run wait" in row.cause
    assert f"raise its limit ({limited_by})" in str(row.fix)
    write(
        harness,
        "UPDATE task_history SET pool = 'herd', status = 'RUNNING' WHERE run_id = 1",
    )
    [row] = player.play()
    assert "1 of 1 slots are in use, the most by run 1 of plain (1)" in row.cause, (
        "it is that of this moment"
    )
    assert row.last_run_id == 1


def test_a_poll_that_is_overdue(player: Player, harness: Harness) -> None:
    with harness.client() as client:
        run_id = int(client.post("/v1/runs", json={"crawler": "plain"}).json()["run_id"])
    harness.claim(run_id)
    at = f"{harness.clock.now - timedelta(minutes=5):%Y-%m-%d %H:%M:%S.%f}"
    overdue = "UPDATE run_history SET next_look_at = :at, look_error = '403 Forbidden'"
    write(harness, overdue, at=at)
    [row] = player.play()
    assert (row.kind, row.last_run_id) == ("poll_overdue", run_id)
    assert row.cause.endswith("nothing is verified (403 Forbidden)")


def test_a_part_is_unwell_in_two_rounds_and_workflows_that_cannot_continue(
    player: Player, harness: Harness
) -> None:
    def part(name: str, level: Any = "bad") -> HealthPart:
        return HealthPart(name, level, f"{name} does not answer", "look", harness.clock.now)

    parts = [part("temporal"), part("polls"), part("stream", "warn")]
    assert player.found(*parts, times=OFTEN) == {}
    assert player.found(*parts, times=OFTEN) == {"part_unwell": "parts/temporal"}
    assert player.found(part("temporal", "ok"), times=OFTEN) == {}
    queues = [part(f"queue crawler-lifecycle-{name} (activities)") for name in ("main", "audit")]
    player.play(queues[0], times=OFTEN)
    [row] = player.play(queues[0], times=OFTEN)
    [same] = player.play(*queues, times=OFTEN)
    assert (row.subject, same.incident_id) == ("parts/task queues", row.incident_id)
    assert player.found(part("temporal", "ok"), times=OFTEN) == {}
    blocked = player.rounds._gateway.blocked
    blocked._known = {f"crawl/shop/{n}": "a bug" for n in range(3)}
    assert player.found(times=OFTEN) == {}
    player.harness.clock.forward(STUCK_FOR.total_seconds())
    [row] = player.play(times=OFTEN)
    assert (row.kind, row.count) == ("workflow_stuck", 3)
    other = Player(player.harness)
    player.harness.clock.forward(TURN.total_seconds() + 1)
    other.play(times=OFTEN)
    assert len(other.play(times=OFTEN)) == 1, "another gateway does not know how long it lasts"
    assert "cannot continue (a bug)" in row.cause


@pytest.mark.anyio
async def test_a_worker_that_leaves_no_notes_is_found_and_one_that_shuts_down_is_not(
    player: Player, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(
        "crawler_lifecycle.features.incidents.gateway.conditions.time.monotonic", lambda: now
    )
    store = harness.store
    beats = Beats(store.notes, ["cluster", "audit"])
    await beats._beat()
    store.notes.leave_note(
        WORKER,
        "host/2",
        json.dumps({"roles": "workflows", "began": 1.0, "at": 2.0}),
        harness.clock.now + DEAD_AFTER,
    )
    assert player.found(times=1) == {}
    now += SILENT_S + 1
    await beats._beat()
    [row] = player.play(times=1)
    assert (row.kind, row.subject) == ("worker_silent", "parts/host/2")
    assert "workflows" in row.cause
    beats.roles = ["workflows"]
    await beats._beat()
    assert player.found(times=1) == {}, "another one replaces it"
    assert [row["name"] for row in store.notes.live_notes(WORKER)] == [beats._name]
    # The last note is seen within a round, and the silence in a round that waited for the parts.
    assert 2 * rounds.EVERY_S + SILENT_S + rounds.PARTS_S < 10


def test_of_several_gateways_one_makes_the_rounds_and_another_continues(
    player: Player, harness: Harness
) -> None:
    other = Rounds(harness.gateway())
    player.play(times=OFTEN)
    assert not other.once(())
    harness.clock.forward(TURN.total_seconds() + 1)
    assert other.once(())
    assert not player.rounds.once(())
    assert player.rounds._seen.whole_at is None, "it begins anew"
    assert timedelta(seconds=15) > TURN


def test_what_cannot_be_read_now_closes_nothing(
    player: Player, harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.store.schedules.put("nightly", {"every_s": 60}, None)
    harness.store.schedules.pause("nightly", "(pause_after_failures)")
    assert player.found() == {"schedule_paused": "schedules/nightly"}

    def fail(*_: object) -> None:
        raise StoreUnavailable("not now")

    with monkeypatch.context() as patch:
        patch.setattr(type(harness.store.schedules), "every", fail)
        assert player.found() == {"schedule_paused": "schedules/nightly"}
        rows = {row.kind: row for row in player.play(times=SELDOM + OFTEN)}
        assert rows.keys() == {"schedule_paused", "part_unwell"}
        assert rows["part_unwell"].name == "the search for schedule problems"
        assert rows["part_unwell"].cause == "not now"
    assert player.found(times=SELDOM + OFTEN) == {"schedule_paused": "schedules/nightly"}


def test_every_ten_minutes_a_round_asks_for_everything(player: Player, harness: Harness) -> None:
    with harness.client() as client:
        for _ in range(3):
            run_ends(harness, client)
    assert player.found(times=1) == {"crawler_failing": "crawlers/plain"}
    write(harness, "UPDATE run_history SET status = 'COMPLETED'")
    assert player.found() == {"crawler_failing": "crawlers/plain"}
    harness.clock.forward(WHOLE.total_seconds())
    assert player.found(times=OFTEN) == {}


def test_every_noun_of_a_kind_has_its_source() -> None:
    nouns = {noun for feature in FEATURES for noun in feature.conditions}
    own = {"crawler", "part", "worker", "workflow"}
    assert nouns | own == {kind.partition("_")[0] for kind in INCIDENT_KINDS}
    rail = (Path(ui.__file__).parent / "templates" / "base.html").read_text()
    assert [noun for noun in nouns | own if f"rail.{noun}" not in rail] == []
    page = (Path(__file__).parents[3] / "docs" / "incidents.md").read_text()
    assert [kind for kind in INCIDENT_KINDS if f"`{kind}`" not in page] == []
    sources: list[Callable[[Any, datetime], Any]] = [
        feature.load(name) for feature in FEATURES for name in feature.conditions.values()
    ]
    assert all(callable(source) for source in sources)
