"""Limits and order hold while worker, Temporal and database are killed, according to the crawlers'
own journal.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import pytest

from tests.e2e.harness import QUICK, Harness, until
from tests.support.mariadb import MariaDb, running_mariadb

# The `soak-pools` task is the long version; the store's contract tests limits and order,
# faults-short tests kills, and test_dev_on_kwok tests all three on a stack whose crawls are pods.
pytestmark = pytest.mark.slow

POOLS = {"narrow": {"max": 2}, "single": {"max": 1}, "wide": {"weight": 1}}
SLOTS, TASKS = 5, 6
_NAP = """
import json, os, time
args = json.loads(os.environ["CRAWL_ARGS"])
task = [os.environ["CRAWL_RUN_ID"], os.environ["CRAWL_TASK_INDEX"]]
def note(what):
    with open(args["journal"], "a") as file:
        file.write(json.dumps([args["pool"], what, time.time(), *task]) + "\\n")
note("begin")
time.sleep(0.8)
note("end")
"""


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDb]:
    """A server that loses no data when it is killed."""
    with running_mariadb("--innodb-flush-log-at-trx-commit=2") as server:
        yield server


@pytest.fixture(scope="module")
def pooled(server: MariaDb, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """A stack with three pools."""
    folder = tmp_path_factory.mktemp("pools")
    (folder / "nap.py").write_text(_NAP)
    args = {name: {"required": True} for name in ("journal", "pool")}
    entry = {
        "name": "nap",
        "kind": "command",
        "project": str(folder),
        "command": ["python", "nap.py"],
        "args": args,
    }
    (folder / "crawlers.yaml").write_text(json.dumps([entry | {"items": False}]))
    with pytest.MonkeyPatch.context() as patch, server.database() as url:
        patch.setenv("LIFECYCLE_POOLS", json.dumps(POOLS))
        patch.setenv("LIFECYCLE_CLUSTER__SLOTS", str(SLOTS))
        harness = Harness(folder / "state", database=url, crawlers=folder / "crawlers.yaml")
        try:
            harness.start()
            yield harness
        finally:
            harness.end()


def start(harness: Harness, journal: Path, pool: str, tasks: int, **more: object) -> int:
    args = {"journal": str(journal), "pool": pool}
    body = {"crawler": "nap", "args": args, "tasks": [{}] * tasks, "pool": pool, **QUICK, **more}
    return int(str(harness.gateway.start(body, f"{pool}-{time.monotonic_ns()}")["run_id"]))


def journal_of(file: Path) -> list[tuple[str, str, float, str, str]]:
    found = (
        [tuple(json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []
    )
    return sorted(found, key=lambda line: line[2])  # type: ignore[return-value]


def most_at_once(journal: list[tuple[str, str, float, str, str]], pool: str | None = None) -> int:
    """Return the maximum number of tasks of this pool that executed at the same time."""
    steps = [1 if what == "begin" else -1 for name, what, *_ in journal if pool in (None, name)]
    return max(accumulate(steps), default=0)


def test_caps_and_order_hold_while_everything_is_killed(
    pooled: Harness, server: MariaDb, tmp_path: Path
) -> None:
    file = tmp_path / "journal"
    first = start(pooled, file, "narrow", TASKS, priority=5)
    runs = [first, *(start(pooled, file, pool, TASKS) for pool in ("wide", "single", "wide"))]
    until(lambda: any(line[3] == str(first) for line in journal_of(file)), "the first run")
    runs.append(start(pooled, file, "narrow", TASKS, priority=1))
    for part in ("worker", "database", "temporal"):
        seen = len(journal_of(file))
        until(
            lambda seen=seen: len(journal_of(file)) >= seen + 4, f"work before the {part} is killed"
        )
        if part == "database":
            server.kill()
            server.restart()
        else:
            pooled.stack.supervisor.kill(part, signal.SIGKILL)
        pooled.stack.supervisor.wait_healthy()
    until(lambda: not pooled.open_runs(), "the end of all runs")
    journal = journal_of(file)
    assert {
        pool: most_at_once(journal, pool) <= one.get("max", SLOTS) for pool, one in POOLS.items()
    } == dict.fromkeys(POOLS, True)
    assert most_at_once(journal) <= SLOTS
    begun = [(run_id, index) for _, what, _, run_id, index in journal if what == "begin"]
    assert sorted(begun) == sorted(
        (str(run_id), str(n)) for run_id in runs for n in range(TASKS)
    ), "each of them once"
    assert {pooled.gateway.run(run_id)["status"] for run_id in runs} == {"COMPLETED"}
    order = [run_id for run_id, _ in begun]
    mine = [at for at, run_id in enumerate(order) if run_id == str(runs[-1])]
    assert order[mine[0] : mine[-1]].count(str(first)) <= TASKS // 2, (
        "who does not come while all is down is passed over"
    )


def test_what_is_urgent_gets_the_next_free_place(pooled: Harness, tmp_path: Path) -> None:
    file = tmp_path / "journal"
    start(pooled, file, "wide", 40, priority=5)
    until(lambda: len(journal_of(file)) >= 10, "a full cluster")
    accepted = time.time()
    urgent = str(start(pooled, file, "wide", 1, priority=1))
    until(lambda: any(line[3] == urgent for line in journal_of(file)), "the urgent task")
    journal = journal_of(file)
    mine = next(at for _, what, at, run_id, _ in journal if run_id == urgent and what == "begin")
    between = [at for _, what, at, run_id, _ in journal if what == "begin" and accepted < at < mine]
    assert len(between) <= 20, "without an order, the other thirty would come first"
