"""The SQL in docs/truth.md works on each database, and answers the question."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import sqlalchemy as sa

from crawler_lifecycle.domain.task import End, Phase
from crawler_lifecycle.store.store import Store
from tests.contracts.store.harness import Harness, seen

PAGE = (Path(__file__).parents[3] / "docs" / "truth.md").read_text()
[STATEMENT] = re.findall(r"```sql\n(.*?);\n```", PAGE, re.S)
KILLED = End(exit_code=137, signal=9, reason="Error")


def asked(store: Store, **given: object) -> list[dict[str, object]]:
    """Return the result of the page's statement, for the run, task and times of a test."""
    statement = STATEMENT
    for old, new in given.items():
        statement = re.sub(rf"\b{old} = \d+", f"{old} = {new}", statement) if old.endswith("_id") else re.sub(
            r"'2026-11-\d\d [0-9:]+'", f"'{new}'", statement
        )  # fmt: skip
    with store.database.engine.connect() as connection:
        return [dict(row) for row in connection.execute(sa.text(statement)).mappings()]


def test_they_say_what_happened(harness: Harness, store: Store) -> None:
    fence = harness.executing(tasks=1)
    [task] = store.polls.found_state(fence).tasks
    when = harness.clock.forward(40)
    found = harness.clock.forward(20)
    harness.poll(
        fence, [seen(task, Phase.ENDED, found, uid=task.uid, end=replace(KILLED, finished_at=when))]
    )
    between = f"{when + timedelta(seconds=10):%Y-%m-%d %H:%M:%S}"
    about = {"run_id": fence.run_id, "task_id": task.task_id, "at": between}
    assert asked(store, **about) == [{"to_status": "RUNNING"}]
