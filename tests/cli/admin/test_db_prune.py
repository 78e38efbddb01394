"""``crawlctl db prune`` first lists, then removes what nobody needs of old runs, and continues
where it was stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from crawler_lifecycle.cli.admin import db_prune
from crawler_lifecycle.cli.problems import Exit
from crawler_lifecycle.domain.errors import StoreUnavailable
from crawler_lifecycle.domain.retention import GOES, NEVER
from crawler_lifecycle.ports.polls import Details
from crawler_lifecycle.store.retention import pruning as adapter
from crawler_lifecycle.store.retention.pruning import Pruner
from crawler_lifecycle.store.store import Store, open_store
from tests.cli.cli_support import NOW, Crawlctl, Result
from tests.contracts.store.harness import Clock, Harness
from tests.support.databases import make_tables


class Fleet:
    """Runs in a database."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.store = store
        self.harness = Harness(store, clock)
        self.count = 0

    def run(self, *, days: float, tasks: int = 2, live: bool = False) -> int:
        """A run that ended this number of days ago, with logs and pushed events."""
        self.count += 1
        self.harness.clock.now = NOW - timedelta(days=days)
        fence = self.harness.deployed(f"r{self.count}", tasks)
        self.harness.execute(fence)
        rows = self.store.tasks.list_tasks(fence.run_id)
        self.store.polls.save_details(
            fence, [Details(task.task_id, "the end of a log") for task in rows]
        )
        if not live:
            self.harness.finish(fence, failed=[0])
        for event in self.store.events.events_after(0, 10_000, fence.run_id):
            self.store.events.record_delivery(event.seq, "pusher", None)
        self.harness.clock.now = NOW
        return fence.run_id

    def events(self, run_id: int) -> list[str]:
        return [event.type for event in self.store.events.events_after(0, 10_000, run_id)]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    url = make_tables(f"sqlite:///{tmp_path}/runs.db")
    clock = Clock()
    store = open_store(url, clock=clock)
    yield Fleet(store, clock)
    store.close()


@pytest.fixture
def prune(crawlctl: Crawlctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LIFECYCLE_DATABASE__URL", f"sqlite:///{tmp_path}/runs.db")
    monkeypatch.setattr(db_prune.time, "sleep", lambda _: None)

    def call(*words: str) -> Result:
        return crawlctl("db", "prune", *words)

    return call


def rows(result: Result, what: str) -> dict[str, int]:
    return {
        row["table"]: row["rows"]
        for row in result.json["tables"]
        if row["what"] == what and row["rows"]
    }


def test_without_yes_it_tells_and_changes_nothing(fleet: Fleet, prune: Any) -> None:
    old = fleet.run(days=100)
    before = fleet.events(old)
    done = prune()
    assert done.code == Exit.DONE
    assert fleet.events(old) == before
    assert fleet.store.runs.properties(old) == []
    named = {line.split()[0] for line in done.out.splitlines()[1:]}
    assert named == {*GOES, *NEVER}, "every table, and why"
    assert "rows would be removed; nothing was changed\nnext: crawlctl db prune --yes" in done.err


def test_how_it_looks(fleet: Fleet, prune: Any, snapshot: SnapshotAssertion) -> None:
    for days in (400, 100, 20):
        fleet.run(days=days)
    fleet.run(days=200, live=True)
    listed, done, again = prune(), prune("--yes"), prune()
    assert f"{listed.out}{listed.err}" == snapshot(name="listed")
    assert f"{done.out}{done.err}" == snapshot(name="done")
    assert f"{again.out}{again.err}" == snapshot(name="again")


def test_it_removes_what_it_told_and_nothing_else(fleet: Fleet, prune: Any) -> None:
    old, recent, live = fleet.run(days=91), fleet.run(days=89), fleet.run(days=300, live=True)
    kept = [fleet.events(run_id) for run_id in (recent, live)]
    told = prune("-o", "json")
    done = prune("--yes", "-o", "json")
    assert (told.json["changed"], done.json["changed"]) == (False, True)
    assert rows(told, "would go") == rows(done, "removed")
    assert rows(told, "stays") == rows(done, "stays")
    assert told.json["goes"] == done.json["removed"] == sum(rows(done, "removed").values())
    assert rows(done, "removed").keys() == {"outbox_event", "outbox_delivery", "task_log"}
    assert fleet.events(old) == ["run.ended"]
    assert [fleet.events(run_id) for run_id in (recent, live)] == kept
    again = prune("--yes", "-o", "json")
    assert (again.code, again.json["removed"]) == (Exit.DONE, 0)


def test_forms(fleet: Fleet, prune: Any) -> None:
    fleet.run(days=20)
    assert prune("-o", "name").out == ""
    assert prune("-o", "name", "--older-than", "7d").out.split() == [
        "outbox_event",
        "outbox_delivery",
        "task_log",
    ]
    assert "next: crawlctl db prune --older-than 10d --yes" in prune("--older-than", "10d").err
    assert prune("-o", "name", "--older-than", "30d", "--logs-older-than", "7d").out.split() == [
        "task_log"
    ]
    told = prune("--older-than", "30d", "--logs-older-than", "7d").err
    assert "next: crawlctl db prune --older-than 30d --logs-older-than 7d --yes" in told
    assert len(prune("-o", "jsonl").out.splitlines()) >= len(GOES) + len(NEVER)
    assert "next:" not in prune().err


def test_chunks_and_a_line_about_the_progress(
    fleet: Fleet, prune: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        fleet.run(days=100)
    monkeypatch.setattr(adapter, "CHUNK", 5)
    monkeypatch.setattr(db_prune, "PROGRESS_EVERY_S", 0.0)
    sizes: list[int] = []
    really = Pruner.remove

    def remove(self: Pruner, table: str, leaving: Any, before: Any) -> dict[str, int]:
        sizes.append(len(leaving))
        return really(self, table, leaving, before)

    monkeypatch.setattr(Pruner, "remove", remove)
    done = prune("--yes")
    assert max(sizes) == 5
    assert len(sizes) > 4
    assert " rows …" in done.err
    assert [fleet.events(run_id) for run_id in range(1, 5)] == [["run.ended"]] * 4


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("6d", "--older-than '6d' is too short"),
        ("6d23h", "audits, deliveries and readers of events still need more recent data"),
        ("0", "give at least 7d"),
        ("soon", "'soon' is not a duration"),
        ("9999999d", "--older-than '9999999d' is too long"),
    ],
)
def test_a_wrong_age(fleet: Fleet, prune: Any, text: str, said: str) -> None:
    old = fleet.run(days=100)
    done = prune("--older-than", text, "--yes")
    assert done.code == Exit.USAGE
    assert said in done.err
    assert "run.changed" in fleet.events(old)
    if text != "soon":
        assert said.replace("--older", "--logs-older") in prune("--logs-older-than", text).err


class TestTrouble:
    """The database does not always respond."""

    def test_a_chunk_is_tried_again(
        self, fleet: Fleet, prune: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        old, failures, pauses = fleet.run(days=100), [1, 2, 3], list[float]()
        really = Pruner.remove

        def remove(self: Pruner, *given: Any) -> dict[str, int]:
            if failures:
                failures.pop()
                raise StoreUnavailable("The database cannot be used now: (1213, 'Deadlock found')")
            return really(self, *given)

        monkeypatch.setattr(Pruner, "remove", remove)
        monkeypatch.setattr(db_prune.time, "sleep", pauses.append)
        assert prune("--yes").code == Exit.DONE
        assert pauses[:3] == [1.0, 2.0, 4.0]
        assert fleet.events(old) == ["run.ended"]

    def test_it_stays_away(self, fleet: Fleet, prune: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        old = fleet.run(days=100)
        really = Pruner.remove

        def remove(self: Pruner, table: str, *given: Any) -> dict[str, int]:
            if table != "outbox_event":
                raise StoreUnavailable("The database cannot be used now: gone")
            return really(self, table, *given)

        with monkeypatch.context() as patch:
            patch.setattr(Pruner, "remove", remove)
            done = prune("--yes")
        assert done.code == Exit.UNREACHABLE
        assert "the database cannot be used" in done.err
        assert "rows were already removed; repeat the command to continue" in done.err
        assert fleet.events(old) == ["run.ended"]
        assert rows(prune("--yes", "-o", "json"), "removed") == {"task_log": 2}

    def test_interrupted(self, fleet: Fleet, prune: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        fleet.run(days=100)

        def interrupted(_: float) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(db_prune.time, "sleep", interrupted)
            assert prune("--yes").code == Exit.INTERRUPTED
        assert rows(prune("--yes", "-o", "json"), "removed") == {"task_log": 2}, "the rest"

    @pytest.mark.parametrize(
        ("url", "code", "said"),
        [
            ("oracle://x", Exit.USAGE, "no usable database"),
            ("sqlite:////nowhere/at/all.db", Exit.NOT_IN_THIS_STATE, "run: crawlctl db upgrade"),
            ("mysql://u:secret@127.0.0.1:1/x", Exit.UNREACHABLE, "the database cannot be used"),
        ],
    )
    def test_no_database(self, prune: Any, url: str, code: int, said: str) -> None:
        done = prune("--yes", "--url", url)
        assert done.code == code
        assert said in done.err
        assert "secret" not in done.err
