"""What a manager's page shows of its progress: a sentence, the bar of its jobs, its pace and its
estimated end.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.features.managers.domain.manager import BUILT_IN
from crawler_lifecycle.features.managers.gateway.answers import Jobs, ManagerDetail
from crawler_lifecycle.features.managers.gateway.progress import (
    HOUR,
    LEAST,
    WIDTH,
    Pace,
    parts_of,
    sentence,
)

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
DONE, STOPPING, WORKS = RunStatus.COMPLETED, RunStatus.STOPPING, RunStatus.PROCESSING


def manager(
    *, live: int = 0, hours: float = 10, jobs: dict[str, int] | None = None, **more: Any
) -> ManagerDetail:
    counts = Jobs(**dict.fromkeys(Jobs.model_fields, 0) | (jobs or {}))
    begun = NOW - timedelta(hours=hours)
    known: dict[str, Any] = {
        "status": WORKS,
        "attempt": 1,
        "plan": "shop:All",
        "exhausted": True,
        "paused": False,
    }
    known |= {
        "outcome": None,
        "ended_at": None,
        "cap": None,
        "error": None,
        "sealed": False,
        "workflow_id": "w",
    }
    return ManagerDetail.model_construct(
        None,
        **known
        | {"manager_id": 7, "jobs": counts, "live": live, "created_at": begun, "started_at": begun}
        | more,
    )


def test_each_job_is_in_one_part_of_the_bar_and_a_rare_one_is_seen() -> None:
    parts = parts_of(
        manager(live=1, jobs={"queued": 5, "ended": 9_000, "good": 8_990, "bad": 40, "skipped": 1})
    )
    assert [(part.kind, part.jobs) for part in parts] == [
        *[("waiting", 5), ("running", 1), ("succeeded", 8_990)],
        # Of 40 failures, 30 are further ends of runs that a person resumed.
        *[("failed", 10), ("skipped", 1)],
    ]
    assert min(part.width for part in parts) >= LEAST
    assert [part.x for part in parts[1:]] == [part.x + part.width for part in parts[:-1]]
    assert parts[-1].x + parts[-1].width <= WIDTH
    assert parts[0].href == "/managers/7/jobs?state=buffered&state=delayed&state=queued"
    assert parts[3].href == "/runs?parent=w&status=FAILED"
    assert [(part.kind, part.jobs) for part in parts_of(manager(jobs={"ended": 3, "good": 1}))][
        1
    ] == ("ended", 2)
    assert parts_of(manager()) == []


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {"status": DONE, "jobs": {"ended": 1}},
            "It completed: 1 job ended, 0 jobs never started.",
        ),
        (
            {"status": RunStatus.FAILED, "outcome": "cancelled"},
            "It failed with cancelled: 0 jobs ended, 0 jobs never",
        ),
        (
            {"status": STOPPING, "live": 2, "paused": True},
            "It is being stopped: 2 jobs running, 0 jobs ended.",
        ),
        (
            {"paused": True, "jobs": {"delayed": 1}},
            "It is paused: 0 jobs running, 1 job waiting, 0 jobs ended.",
        ),
        (
            {"live": 1, "cap": 3},
            "It is working: 1 job running (at most 3), 0 jobs waiting, 0 jobs ended.",
        ),
        ({"started_at": None}, "It has not begun: 0 jobs running"),
        (
            {"live": 1200, "cap": 3000},
            "It is working: 1\u202f200 jobs running (at most 3\u202f000)",
        ),
    ],
)
def test_a_sentence_says_how_it_stands(more: dict[str, Any], said: str) -> None:
    assert sentence(manager(**more)).startswith(said)


def test_the_end_is_told_from_the_pace_of_the_last_hour() -> None:
    jobs = {"buffered": 15, "ended": 100}
    pace = Pace.of(manager(live=5, jobs=jobs), 10, NOW)
    assert (pace.last_hour, pace.overall, pace.left_s, pace.untold) == (
        10,
        10.0,
        2 * HOUR.total_seconds(),
        None,
    )
    begun_lately = Pace.of(manager(live=5, hours=0.5, jobs=jobs), 10, NOW)
    assert (begun_lately.overall, begun_lately.left_s) == (200.0, HOUR.total_seconds())
    resumed = manager(attempt=2, jobs=jobs, started_at=NOW)
    assert Pace.of(resumed, 10, NOW).overall == 10.0, "since its first start"
    assert Pace.of(manager(jobs={"ended": 9}), 9, NOW).left_s is None, "nothing is left"
    assert Pace.of(manager(live=1, hours=0), 0, NOW).overall is None


@pytest.mark.parametrize(
    ("more", "ended", "why"),
    [
        ({"status": STOPPING}, 9, "it is being stopped"),
        ({"paused": True, "error": "x"}, 9, "it is paused"),
        ({"error": "x", "exhausted": False}, 9, "its class has an error"),
        ({"exhausted": False}, 9, "more jobs may come"),
        ({"plan": BUILT_IN}, 9, "more jobs may come"),
        (
            {"plan": BUILT_IN, "sealed": True, "exhausted": False},
            4,
            "only 4 of its runs ended in the last hour",
        ),
        ({"status": DONE, "paused": True}, 0, None),
    ],
)
def test_why_nobody_can_tell_its_end(more: dict[str, Any], ended: int, why: str | None) -> None:
    pace = Pace.of(manager(live=1, **more), ended, NOW)
    assert pace.left_s is None
    assert pace.untold == (why and f"The time of its end is unknown: {why}.")
