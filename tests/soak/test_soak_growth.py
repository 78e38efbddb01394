"""The judge of the soak of growth reports what grew although pruning should have removed as much."""

from __future__ import annotations

from dataclasses import replace

import pytest

from crawler_lifecycle.domain.retention import GOES
from tools.soak.growth import GROWING, STEADY, Day, judge

EACH = 40
ROWS = dict.fromkeys(GOES, 0) | dict.fromkeys(GROWING, EACH)
LEVEL = Day(ROWS, ROWS, {name: 2 * rows for name, rows in ROWS.items()})
NOTHING = dict.fromkeys(GOES, 0)


def lived(later: Day = LEVEL) -> list[Day]:
    young = [replace(LEVEL, removed=NOTHING)] * 2
    return [*young, LEVEL, LEVEL, *[later] * STEADY]


def test_level_days_pass() -> None:
    assert judge(lived()) == []


@pytest.mark.parametrize(
    ("days", "said"),
    [
        (lived()[:STEADY], "days prove nothing"),
        (lived(replace(LEVEL, removed=NOTHING)), "all tables: "),
        (
            lived(replace(LEVEL, removed=ROWS | {"task_log": EACH // 4})),
            "task_log: 200 rows came in 5 days, and 80",
        ),
        (lived(replace(LEVEL, left=dict.fromkeys(GOES, 5 * EACH))), "rows were left after day"),
        (lived(replace(LEVEL, grown=ROWS | {"graph_step": 0}))[2:], "graph_step"),
        (
            [replace(one, grown=ROWS | {"schedule_due": 1}) for one in lived()],
            "schedule_due got 5 rows: the load",
        ),
    ],
)
def test_each_lie_is_named(days: list[Day], said: str) -> None:
    assert said in "\n".join(judge(days))
