"""The story of a run on its page: a sentence, what was recorded and what was true, and counters."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from fastapi.testclient import TestClient

from crawler_lifecycle.domain.audits.corrections import CorrectionKind
from crawler_lifecycle.domain.run import StopIntent
from crawler_lifecycle.domain.task import Counters as Counts
from crawler_lifecycle.gateway.runs.answers import RunDetail
from crawler_lifecycle.gateway.ui.runs.figures import counters_over_time
from crawler_lifecycle.gateway.ui.runs.story import NAMES, WIDTH, picture
from crawler_lifecycle.ports.polls import Correction, CorrectionRow, LiveCounters
from crawler_lifecycle.ports.runs import Event, TransitionRow
from tests.gateway.gateway_harness import Harness
from tests.gateway.ui.test_things import words

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def test_a_run_says_what_it_does_and_what_was_recorded(
    harness: Harness, browser: TestClient
) -> None:
    browser.post("/v1/runs", json={"crawler": "plain"})
    assert "plain run 1 waiting Reason Stop" in words(browser.get("/runs/1"))
    harness.claim(1)
    harness.clock.forward(5)
    harness.deploy(1)
    harness.clock.forward(60)
    [task] = harness.store.tasks.list_tasks(1)
    wrong = Correction(CorrectionKind.LATE, "PENDING", "LOST", task_id=task.task_id)
    harness.store.corrections.record_corrections(1, [wrong])
    titles = re.findall(r"<title>([^<]*)</title><rect", browser.get("/runs/1").text)
    assert "Run: recorded as INITIALIZING, from 12:00:00 to 12:01:05 UTC, 65 s" in titles
    assert "Task 0: recorded as PENDING, from 12:00:05 to 12:01:05 UTC, 60 s" in titles
    assert any(one.startswith("Task 0 was recorded as PENDING, but was LOST") for one in titles)


def change(
    status: str, at: float, true: float | None = None, task: int | None = None
) -> TransitionRow:
    when = NOON + timedelta(seconds=at)
    since = None if true is None else NOON + timedelta(seconds=true)
    return TransitionRow(1, 1, task, 1, None, status, since, when, None, "poll", {})


def drawn(
    changes: Sequence[TransitionRow], verified: float, corrections: Sequence[CorrectionRow] = ()
) -> Any:
    run = RunDetail.model_construct(ended_at=None, verified_at=NOON + timedelta(seconds=verified))
    return picture(run, changes, corrections, {7: 0})


def test_the_truth_began_before_its_record_and_ends_with_the_last_poll() -> None:
    changes = [
        change("INITIALIZING", 0),
        change("PENDING", 10, task=7),
        change("FAILED", 80, true=50, task=7),
    ]
    ended, corrected = NOON + timedelta(seconds=50), NOON + timedelta(seconds=80)
    late = ("late", "PENDING", None, "FAILED", ended, "poll", None, {}, corrected)
    found = drawn(changes, 100, [CorrectionRow(1, 1, 7, 1, *late)])
    scale = (WIDTH - NAMES) / 100
    of_task = {
        (one.kind, one.title.split(",")[0]): (one.x, one.x + one.width) for one in found.bands
    }
    assert of_task["pending", "Task 0: recorded as PENDING"] == (
        NAMES + 10 * scale,
        NAMES + 80 * scale,
    )
    assert of_task["pending", "Task 0: truly PENDING"] == (NAMES + 10 * scale, NAMES + 50 * scale)
    assert of_task["failed", "Task 0: truly FAILED"] == (NAMES + 50 * scale, WIDTH)
    assert of_task["wrong", "Task 0 was recorded as PENDING"] == (
        NAMES + 50 * scale,
        NAMES + 80 * scale,
    )
    assert found.wrong == 1


def test_nothing_leaves_the_picture_whatever_the_clocks_said() -> None:
    """A cluster's clock is an hour slow, then a day fast; everything happens at once; there are
    many tasks.
    """
    mixed = [
        change("INITIALIZING", 0),
        change("RUNNING", 1, -3600, 7),
        change("X", 2, 86400, 7),
    ]
    once = [change("INITIALIZING", 0), *(change("PENDING", 0, task=n) for n in range(199))]
    for changes in (mixed, once):
        found = drawn(changes, verified=3)
        for one in found.bands:
            assert NAMES <= one.x <= one.x + one.width <= WIDTH + 0.1
            assert one.width > 0
            assert one.y + one.height <= found.height
        assert len(found.lanes) <= 7
    assert drawn([change("RUNNING", 0, task=7)], verified=3) is None, (
        "a page of a resumed run's later entries"
    )


def test_counters_are_drawn_where_they_are_on_record(harness: Harness, browser: TestClient) -> None:
    browser.post("/v1/runs", json={"crawler": "plain"})
    harness.claim(1)
    harness.deploy(1)
    assert "Counters over time" not in browser.get("/runs/1").text, "nothing is known of any time"
    for pages in (10, 400):
        harness.clock.forward(60)
        counted = LiveCounters(harness.ref(1), 1, 0, Counts(pages=pages, items=pages // 10))
        assert harness.store.live_counters.record_counts(harness.ref(1), [counted]) == 1
        if pages == 10:
            harness.store.stops.record_stop(1, StopIntent(harness.clock()), None)
    page = browser.get("/runs/1").text.partition('id="run-counters"')[2].partition("</section>")[0]
    assert re.findall('points="([^"]*)"', page) == ["0.0,46.8 320.0,0.0", "0.0,46.8 320.0,0.0"]
    assert "pages, 400 at most" in page


def test_odd_counters_are_drawn_as_far_as_they_go() -> None:
    run = RunDetail.model_construct(
        attempt=2, ended_at=None, last_progress_at=None, pages=2000, items=None, errors=None
    )

    def event(n: int, attempt: int = 2, **body: Any) -> Event:
        return Event(n, 1, "u", attempt, "run.changed", body, NOON + timedelta(seconds=n), "runs/1")

    odd = [event(0, 1, pages=9), event(1, pages="x", items=True, errors=[1]), event(2)]
    odd.append(event(100, pages=500))
    found = counters_over_time(run, odd[::-1], NOON + timedelta(seconds=400))
    assert found == [("pages", 2000, "0.0,36.0 320.0,0.0")]
    assert counters_over_time(run, [event(1, pages="x")], NOON) == []
