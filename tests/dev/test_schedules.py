"""A schedule on a complete stack, which is down at a due time: from the due time to run, verdict
and record.
"""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.dev.dev_support import Dev, wait_until

MINUTE = timedelta(minutes=1)


def told(dev: Dev, *words: str) -> Any:
    return json.loads(dev.crawlctl(*words, "-o", "json").stdout)


def lines(dev: Dev, name: str) -> dict[datetime, Any]:
    """Return the firings of a schedule by their due times; each has one."""
    found = told(dev, "schedule", "due", name, "--limit", "500")["due"]
    by_time = {datetime.fromisoformat(line["due_at"]): line for line in found}
    assert len(by_time) == len(found)
    return by_time


@pytest.mark.slow
def test_a_stack_that_is_down_over_a_due_time(dev: Dev) -> None:
    dev.start()
    every = ("--crawler", "services", "--every-s", "60")
    dev.crawlctl(
        "schedule", "create", "caught-up", *every, "--catch-up-s", "3600", "--overlap", "queue"
    )
    dev.crawlctl("schedule", "create", "left-out", *every, "--catch-up-s", "10")
    wait_until(
        lambda: any(line["status"] == "COMPLETED" for line in lines(dev, "caught-up").values())
    )
    first = min(lines(dev, "caught-up"))

    assert dev.end() == 0
    down = datetime.now(UTC).replace(second=0, microsecond=0) + MINUTE
    time.sleep((down - datetime.now(UTC)).total_seconds() + 15)
    dev.start()
    wait_until(lambda: (lines(dev, "caught-up").get(down) or {}).get("status") == "COMPLETED")
    line = lines(dev, "caught-up")[down]
    assert (line["decision"] in ("started", "queued"), line["lateness_ms"] >= 15_000) == (
        True,
        True,
    )
    run = told(dev, "describe", str(line["target_id"]))
    assert (run["request_id"], run["trigger"]) == (
        f"schedule/caught-up/{down:%Y-%m-%dT%H:%M:%SZ}",
        "scheduled",
    )
    wait_until(lambda: down in lines(dev, "left-out"))
    assert lines(dev, "left-out")[down]["decision"] == "missed"

    wanted = [first + n * MINUTE for n in range(int((down - first) / MINUTE) + 1)]
    for name in ("caught-up", "left-out"):
        assert [at for at in sorted(lines(dev, name)) if first <= at <= down] == wanted
    ids = [run["request_id"] for run in told(dev, "list", "--limit", "500")["runs"]]
    assert len(ids) == len(set(ids))
    assert dev.end() == 0
