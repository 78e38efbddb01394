"""SIGKILL for every part at every moment: the stack restarts it, and every run ends with a true
record.
"""

from __future__ import annotations

import itertools
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from crawler_lifecycle import sqlite_files
from crawler_lifecycle.cli.problems import CommandFailed
from crawler_lifecycle.cli.stack.supervise import ask
from examples.story_checks import run_folder
from tests.e2e.harness import ENDLESS, PARTS, QUICK, TERMINAL, Harness, moment, until

MOMENTS = ("accepted", "executing", "ending")
#: In every run of the tests; the others are for `make test-all`. ``test_retries``, whose crawlers
#: keep a journal, kills worker and Temporal during runs; ``test_stop_matrix_real`` kills all but
#: the scheduler service after a stop was acknowledged.
SAMPLE = {("scheduler", "accepted")}

NEVER = datetime(1970, 1, 1, tzinfo=UTC)

CASES = [
    pytest.param(part, when, marks=() if (part, when) in SAMPLE else pytest.mark.slow)
    for part, when in itertools.product(PARTS, MOMENTS)
]


@dataclass
class Drill:
    """Three runs at once during one kill: a short one, one in waves, and one that is stopped."""

    harness: Harness
    part: str
    when: str
    ids: dict[str, int] = field(default_factory=dict)
    stop_asked: bool = False
    stop_sent: bool = False
    killed_at: float = 0.0
    killed: datetime = NEVER
    seen: set[int] = field(default_factory=set)
    back_s: float | None = None
    seen_s: float | None = None
    ended_s: float | None = None

    def start(self) -> None:
        short = {"max_pages": "15", "delay": "0.1"}
        requests = {
            "short": {"crawler": "plain", "args": short},
            "waves": {
                "crawler": "plain",
                "args": short,
                "tasks": [{}] * 3,
                "max_parallel_tasks": 2,
            },
            "stopped": {
                "crawler": "plain",
                "args": ENDLESS,
                "tasks": [{}] * 3,
                "max_parallel_tasks": 2,
            },
        }
        for name, request in requests.items():
            key = f"{self.part}-{self.when}-{name}"
            self.ids[name] = self.harness.gateway.start({**request, **QUICK}, key)["run_id"]

    def reach(self) -> None:
        """Wait for the moment."""
        harness, ids = self.harness, self.ids
        if self.when == "executing":
            until(
                lambda: all(harness.tasks(i).get("RUNNING") for i in ids.values()), "tasks that run"
            )
        elif self.when == "ending":
            until(lambda: harness.tasks(ids["stopped"]).get("RUNNING") == 2, "tasks that run")
            until(
                lambda: (run_folder(harness.folder, ids["short"]) / "0/1/end.json").exists(),
                "the end of the short crawl",
            )
            self.stop()

    def stop(self) -> None:
        """Request the stop with one id, however often; if the gateway is down, try again."""
        self.stop_asked = True
        with suppress(CommandFailed):
            self.harness.gateway.stop(
                self.ids["stopped"], requested_by="ada", request_id=f"{self.part}-{self.when}"
            )
            self.stop_sent = True

    def kill(self) -> None:
        self.killed, self.killed_at = datetime.now(UTC), time.monotonic()
        self.harness.stack.supervisor.kill(self.part)

    def over(self) -> bool:
        """Watch the recovery.

        Return whether everything has ended; if the database cannot be read now, ask again.
        """
        with suppress(sqlite_files.driver.OperationalError):
            return self._watch()
        return False

    def _watch(self) -> bool:
        harness, passed = self.harness, time.monotonic() - self.killed_at
        if self.back_s is None and self._is_back():
            self.back_s = passed
        self.seen |= {i for i in self.ids.values() if self._is_seen(i)}
        if self.seen_s is None and len(self.seen) == len(self.ids):
            self.seen_s = passed
        # A stop that was not acknowledged may still be recorded and carried out: then no task runs
        # any more.
        due = (
            self.stop_asked
            or self.when == "executing"
            or harness.tasks(self.ids["stopped"]).get("RUNNING")
        )
        if due and not self.stop_sent:
            self.stop()
        if self.back_s is None or self.seen_s is None or not self.stop_sent:
            return False
        if any(harness.status(i) not in TERMINAL for i in self.ids.values()):
            return False
        self.ended_s = self.ended_s or passed
        return harness.closed(list(self.ids.values()))

    def _is_back(self) -> bool:
        pid = self.harness.stack.supervisor.pids().get(self.part)
        health = {
            "temporal": f"grpc://{self.harness.stack.addresses['temporal']}/default",
        }.get(self.part, f"{self.harness.stack.addresses[self.part]}/readyz")
        return pid is not None and ask(health)[0] == 200

    def _is_seen(self, run_id: int) -> bool:
        """Return whether the run was verified on the cluster, or judged, after the kill."""
        status, verified = self.harness.query(
            "SELECT status, verified_at FROM run_history WHERE run_id = ?", run_id
        )[0]
        return status in TERMINAL or (verified is not None and moment(verified) > self.killed)


@pytest.mark.parametrize(("part", "when"), CASES)
def test_a_death_changes_no_truth(harness: Harness, table: list[str], part: str, when: str) -> None:
    drill = Drill(harness, part, when)
    starts = harness.stack.supervisor.starts(part)
    with ExitStack() as still:
        if when == "executing":
            still.enter_context(harness.site_stands_still())
        drill.start()
        drill.reach()
        drill.kill()
    until(drill.over, f"the end of all runs after {part} was killed", 120)
    assert harness.stack.supervisor.starts(part) == starts + 1
    table.append(
        f"{part:10} {when:10} {drill.back_s:10.1f} {drill.seen_s:10.1f} {drill.ended_s:10.1f}"
    )
    print(table[-1])
    harness.prove(drill.ids["short"], "COMPLETED", "finished")
    harness.prove(drill.ids["waves"], "COMPLETED", "finished")
    harness.prove(drill.ids["stopped"], "FAILED", "cancelled")
    assert harness.tasks(drill.ids["stopped"]) == {"CANCELLED": 3}
    logged = harness.query(
        "SELECT request_id, acted_at IS NOT NULL FROM cancellation_log WHERE run_id = ?",
        drill.ids["stopped"],
    )
    assert logged == [(f"{part}-{when}", 1)]
