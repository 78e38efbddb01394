"""What was ended from outside continues, also while worker and Temporal are killed, according to
the crawlers' own journal.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tests.e2e.harness import QUICK, Harness, until

TASKS = 5


class Step(NamedTuple):
    """One line of the journal."""

    index: int
    attempt: int
    pid: int
    step: int


def runner_of(pid: int) -> int:
    """Return the parent of a crawler. If it passes a signal on, somebody else ended the crawler."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_tasks_that_somebody_ends_go_on_where_they_were(harness: Harness, tmp_path: Path) -> None:
    file, ended = tmp_path / "journal", Counter(dict.fromkeys(range(TASKS), 0))

    def steps(index: int) -> list[Step]:
        lines = file.read_text().splitlines() if file.exists() else []
        return [step for step in (Step(*json.loads(line)) for line in lines) if step.index == index]

    body = {"crawler": "steps", "args": {"journal": str(file)}, "tasks": [{}] * TASKS, **QUICK}
    body["retries"] = {"max": 5, "backoff_s": 0.2}
    run_id = int(str(harness.gateway.start(body, f"steps-{time.monotonic_ns()}")["run_id"]))
    for part, victims in ((None, (0, 1)), ("worker", (1, 2)), ("temporal", (2, 3))):
        for victim in victims:
            until(
                lambda v=victim: len({s.step for s in steps(v)}) > 2 + ended[v],
                f"work of task {victim}",
            )
            os.kill(runner_of(steps(victim)[-1].pid), signal.SIGTERM)
            ended[victim] += 1
        if part is not None:
            harness.stack.supervisor.kill(part, signal.SIGKILL)
            harness.stack.supervisor.wait_healthy()
        for victim in victims:
            until(
                lambda v=victim: len({s.attempt for s in steps(v)}) > ended[v],
                f"the next try of task {victim}",
            )
    (tmp_path / "journal.over").touch()
    until(lambda: not harness.open_runs(), "the end of the run")
    assert harness.gateway.run(run_id)["status"] == "COMPLETED"
    rows = harness.gateway.tasks(run_id, limit=100, superseded="true")
    for index in range(TASKS):
        tries = sorted({step.attempt for step in steps(index)})
        recorded = [row for row in rows if row["task_index"] == index]
        assert tries == list(range(1, ended[index] + 2)), f"each end has one next try: {recorded}"
        assert [row["attempt"] for row in recorded] == tries
        assert len({step.pid for step in steps(index)}) == len(tries), "no try is executed twice"
        done = [step.step for step in steps(index)]
        assert done == sorted(done), "each try goes on from the saved state of the one before"
        assert len(done) - len(set(done)) <= ended[index], (
            "only a step that was under way is done twice"
        )
