"""Runs beside the runs before them, and a crawler that silently brings less."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.gateway.runs.recent import ComparedCounter, brought_less, compared
from crawler_lifecycle.ports.runs import RecentRun, RunRow
from tests.gateway.gateway_harness import Harness

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


def recent(items: int | None, status: str = "COMPLETED") -> RecentRun:
    return RecentRun(7, "plain", status, None, items, None, None, NOW, NOW, NOW, None, None)


def test_less_than_its_runs_before() -> None:
    for items, less in [
        ([100, 200, 190, 210], "run 7 brought 100 items, the 3 good runs before it 200 (median)"),
        ([140, 200, 190, 210], None),
        ([0, 1, 1, 1], "run 7 brought 0 items, the 3 good runs before it 1 (median)"),
        ([0, 0, 0, 0], None),
        ([100, 200, 200], None),
        ([], None),
        ([100, None, 200, 190, 210], "the 3 good runs"),
    ]:
        said = brought_less([recent(count) for count in items])
        assert (said is None) == (less is None), items
        assert less is None or less in str(said)


def test_runs_that_failed_or_go_on_say_nothing_about_items() -> None:
    others = [recent(0, "FAILED"), recent(3, "PROCESSING")]
    assert brought_less([*others, *(recent(n) for n in (200, 190, 210, 205))]) is None
    assert "run 7 brought 1 items" in str(
        brought_less([*others, *(recent(n) for n in (1, 190, *[0] * 2, 210, 205, 203))])
    )


def row(run_id: int, **fields: Any) -> RunRow:
    known = {
        "created_at": NOW,
        "updated_at": NOW,
        "status": RunStatus.COMPLETED,
        "stage": "completion",
        "attempt": 1,
    }
    return RunRow(
        run_id=run_id,
        run_uid="u",
        request_id="r",
        crawler="plain",
        trigger="api",
        **{**known, **fields},
    )


class Runs:
    def __init__(self, *rows: RunRow) -> None:
        self.rows = rows

    def list_runs(self, **wanted: Any) -> list[RunRow]:
        assert wanted == {
            "crawler": "plain",
            "status": ["COMPLETED"],
            "before_run_id": 9,
            "limit": 1,
        }
        return list(self.rows)


def test_counters_and_rates_beside_the_run_before() -> None:
    begun = NOW - timedelta(minutes=4)
    live = row(9, status=RunStatus.PROCESSING, started_at=begun, items=100, pages=None)
    before = row(
        5,
        started_at=begun - timedelta(days=1),
        ended_at=NOW - timedelta(days=1),
        items=400,
        pages=8,
        errors=0,
    )
    found = compared(Runs(before), live, NOW)  # type: ignore[arg-type]
    assert (found.run_id, found.duration_s, found.before_duration_s) == (5, 240.0, 240.0)
    assert found.counters == [
        ComparedCounter("pages", None, 8, None, 2.0),
        ComparedCounter("items", 100, 400, 25.0, 100.0),
        ComparedCounter("errors", None, 0, None, 0.0),
    ]
    alone = compared(Runs(), row(9), NOW)  # type: ignore[arg-type]
    assert (alone.run_id, alone.duration_s) == (None, None)
    assert alone.counters[1] == ComparedCounter("items", None, None, None, None)
    ahead = compared(Runs(), row(9, started_at=NOW + timedelta(seconds=5), items=3), NOW)  # type: ignore[arg-type]
    assert (ahead.duration_s, ahead.counters[1].per_minute) == (0.0, None)


def test_the_routes(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    with harness.client() as client:
        started = [
            client.post("/v1/runs", json={"crawler": "plain"}).json()["run_id"] for _ in range(3)
        ]
        asked: list[int] = []
        read = harness.store.runs.recent_runs
        monkeypatch.setattr(
            harness.store.runs, "recent_runs", lambda *what: asked.append(1) or read(*what)
        )
        for _ in range(3):
            answer = client.get("/v1/crawlers/runs").json()
        assert [
            (one["crawler"], [run["run_id"] for run in one["runs"]]) for one in answer["crawlers"]
        ] == [
            ("plain", started[::-1]),
            ("strict", []),
        ]
        assert (answer["left_out"], len(asked)) == (0, 1)
        assert client.get(f"/v1/runs/{started[0]}/comparison").json()["run_id"] is None
        assert client.get("/v1/runs/999999/comparison").json()["code"] == "run_not_found"
        listed = client.get("/v1/runs", params={"attention": "true"}).json()
        assert listed["runs"] == []
        wrong = client.get("/v1/runs", params={"attention": "true", "status": "STOPPING"})
        assert (wrong.status_code, "attention" in wrong.json()["detail"]) == (422, True)
