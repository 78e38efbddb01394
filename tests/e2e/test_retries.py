"""What is ended from outside goes on, also while worker and Temporal are killed; the crawlers' own journal judges."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.e2e.world import QUICK, World, until

TASKS = 5
_STEPS = """
import json, os, pathlib, time
journal = pathlib.Path(json.loads(os.environ["CRAWL_ARGS"])["journal"])
state = pathlib.Path(os.environ["CRAWL_STATE_DIR"], "step")
step = int(state.read_text()) if state.exists() and os.environ["CRAWL_RESUME"] == "1" else 0
about = [int(os.environ["CRAWL_TASK_INDEX"]), int(os.environ["CRAWL_ATTEMPT"]), os.getpid()]
while not journal.with_suffix(".over").exists():
    with journal.open("a") as file:
        file.write(json.dumps([*about, step]) + "\\n")
    time.sleep(0.1)
    step += 1
    state.with_suffix(".new").write_text(str(step))
    state.with_suffix(".new").rename(state)
"""


class Step(NamedTuple):
    """One line of the journal."""

    index: int
    attempt: int
    pid: int
    step: int


@pytest.fixture
def retrying(tmp_path: Path) -> Iterator[World]:
    """A stack that tries again soon, and a crawler that goes on where it was."""
    (tmp_path / "steps.py").write_text(_STEPS)
    entry = {"name": "steps", "kind": "command", "project": str(tmp_path), "command": ["python", "steps.py"]}
    entry |= {"args": {"journal": {"required": True}}, "items": False, "resumable": True}
    (tmp_path / "crawlers.yaml").write_text(json.dumps([entry]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LIFECYCLE_RETRIES", json.dumps({"max": 5, "backoff_s": 0.2}))
        patch.setenv("LIFECYCLE_CLUSTER__SLOTS", "8")
        world = World(tmp_path / "state", crawlers=tmp_path / "crawlers.yaml")
        try:
            world.start()
            yield world
        finally:
            world.end()


def test_tasks_that_somebody_ends_go_on_where_they_were(retrying: World, tmp_path: Path) -> None:
    file, ended = tmp_path / "journal", Counter(dict.fromkeys(range(TASKS), 0))

    def steps(index: int) -> list[Step]:
        lines = file.read_text().splitlines() if file.exists() else []
        return [step for step in (Step(*json.loads(line)) for line in lines) if step.index == index]

    body = {"crawler": "steps", "args": {"journal": str(file)}, "tasks": [{}] * TASKS, **QUICK}
    run_id = int(str(retrying.gateway.start(body, f"steps-{time.monotonic_ns()}")["run_id"]))
    for part, victims in ((None, (0, 1)), ("worker", (1, 2)), ("temporal", (2, 3))):
        for victim in victims:
            until(lambda v=victim: len({s.step for s in steps(v)}) > 2 + ended[v], f"work of task {victim}")
            os.kill(steps(victim)[-1].pid, signal.SIGTERM)
            ended[victim] += 1
        if part is not None:
            retrying.stack.kill_part(part, signal.SIGKILL)
            retrying.stack.wait_healthy()
        for victim in victims:
            until(lambda v=victim: len({s.attempt for s in steps(v)}) > ended[v], f"the next try of task {victim}")
    (tmp_path / "journal.over").touch()
    until(lambda: not retrying.open_runs(), "the end of the run")
    assert retrying.gateway.run(run_id)["status"] == "COMPLETED"
    rows = retrying.gateway.tasks(run_id, limit=100, superseded="true")
    for index in range(TASKS):
        tries = sorted({step.attempt for step in steps(index)})
        assert tries == list(range(1, ended[index] + 2)), "each end has one next try"
        assert [row["attempt"] for row in rows if row["task_index"] == index] == tries
        assert len({step.pid for step in steps(index)}) == len(tries), "no try is executed twice"
        done = [step.step for step in steps(index)]
        assert done == sorted(done), "each try goes on from the saved state of the one before"
        assert len(done) - len(set(done)) <= ended[index], "only a step that was under way is done twice"
