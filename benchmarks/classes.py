"""Waiting times of each class of work while another class gets twice the load that the machine can
handle: no class may starve.

The classes are stops, ends, starts, polls, exports and audits. Everything runs on the real stack
with real processes. The limits are those of docs/truth.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import count
from typing import Any

from benchmarks.sizes import size
from benchmarks.truth_faults import Benchmark, benchmark
from crawler_lifecycle.cli.admin.audit import _awaited
from crawler_lifecycle.domain.polling_schedule import STRETCH_MAX

#: The runs of one load: twice as many polls a second as two cores can do, or as many stops or ends
#: at once.
RUNS = size(80, 3)
POLLED_S = 1.2
#: Starts a second of runs that end at once, and their number. Two cores do about two a second.
STARTS_PER_S, STARTS = 5.0, size(300, 4)
MEASURED = size(5, 1)
#: Seconds between polls of runs whose polls are measured. An overloaded machine stretches them up
#: to ``STRETCH_MAX``.
WATCHED_S = 5.0
#: The maximum wait of each class in seconds, whatever else is requested.
BOUNDS_S = {
    "stop": 2.0,
    "end": 5.0,
    "start": 15.0,
    "poll": WATCHED_S * STRETCH_MAX,
    "export": 60.0,
    "audit": 60.0,
}
LANES = 4
REST: dict[str, Any] = {"poll_minutes": [600.0]}


class Classes:
    """One stack, and the longest wait of each class under the present load."""

    def __init__(self, harness: Benchmark) -> None:
        self.harness = harness
        self.worst = dict.fromkeys(BOUNDS_S, 0.0)

    def measure(self) -> None:
        """Request one of each class, several times."""
        watched = self.harness.start(MEASURED, poll_minutes=[WATCHED_S / 60])
        self.harness.executing(watched)
        for _ in range(MEASURED):
            run_id, other = self._started(), self._started()
            self._note("stop", self._stopped(other))
            self.harness.end(run_id)
            ended = self.harness.ended(run_id)
            self._note(
                "end",
                self._row(run_id, "status_transition", "committed_at", "to_status = 'SUCCEEDED'")
                - ended,
            )
            self._note(
                "export", self._row(run_id, "export_record", "at", "status = 'exported'") - ended
            )
            self._note("audit", self._audited())
            self._note("poll", max(self._overdue_s(one) for one in watched))

    def _note(self, what: str, seconds: float) -> None:
        self.worst[what] = max(self.worst[what], seconds)

    def _started(self) -> int:
        began = time.monotonic()
        (run_id,) = self.harness.start(1, **REST)
        self.harness.until(lambda: bool(self.harness._count([run_id], "status = 'PROCESSING'")))
        self._note("start", time.monotonic() - began)
        self.harness.ready([run_id])
        return run_id

    def _stopped(self, run_id: int) -> float:
        self.harness.gateway.stop(run_id, reason="benchmark")
        accepted = time.time()
        return max(0.0, self.harness.told(run_id) - accepted)

    def _row(self, run_id: int, table: str, column: str, which: str) -> float:
        """Return the time of a row about the run, as soon as there is one (epoch seconds)."""
        sql = f"SELECT {column} FROM {table} WHERE run_id = ? AND {which}"
        self.harness.until(lambda: bool(self.harness.query(sql, run_id)))
        return _epoch(self.harness.query(sql, run_id)[0][0])

    def _audited(self) -> float:
        began, gateway = time.monotonic(), self.harness.gateway
        answer = gateway.post("/v1/audit", {"repair": False})
        if not answer.get("report"):
            _awaited(gateway, str(answer["audit_id"]))
        return time.monotonic() - began

    def _overdue_s(self, run_id: int) -> float:
        """Return by how many seconds the next poll of the run is late now, by its interval without
        a stretch.
        """
        ((verified_at,),) = self.harness.query(
            "SELECT verified_at FROM run_history WHERE run_id = ?", run_id
        )
        return max(0.0, time.time() - _epoch(verified_at) - WATCHED_S)


def _epoch(text: object) -> float:
    return datetime.fromisoformat(str(text)).replace(tzinfo=UTC).timestamp()


@contextlib.contextmanager
def _again_and_again(
    ask: Callable[[int], object], every_s: float, lanes: int = 1
) -> Iterator[None]:
    """Call ``ask`` with 0, 1, 2, … this number of times, in each lane; refused calls are repeated."""
    over, numbers = threading.Event(), count()

    def lane() -> None:
        while not over.wait(every_s):
            with contextlib.suppress(Exception):
                ask(next(numbers))

    threads = [threading.Thread(target=lane, daemon=True) for _ in range(lanes)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


@contextlib.contextmanager
def nothing(harness: Benchmark) -> Iterator[None]:
    """No load."""
    yield


@contextlib.contextmanager
def polls(harness: Benchmark) -> Iterator[None]:
    """Execute runs with this short interval.

    All of them must begin first, in parallel with each other's polls.
    """
    began = time.monotonic()
    run_ids = harness.start(RUNS, poll_minutes=[POLLED_S / 60])
    harness.executing(run_ids)
    print(
        f"{RUNS} runs polled every {POLLED_S:g} s: all execute after "
        f"{time.monotonic() - began:.1f} s (target: <= 60)"
    )
    yield
    stretched = harness.query(
        "SELECT COUNT(*) FROM run_history WHERE ended_at IS NULL AND waiting_for LIKE 'polls %'"
    )
    print(
        f"    {stretched[0][0]} of them say that their intervals are stretched (at most "
        f"{STRETCH_MAX:g} times)"
    )


@contextlib.contextmanager
def starts(harness: Benchmark) -> Iterator[None]:
    """Start runs that end at once, each with an archive."""
    each_s = LANES / STARTS_PER_S
    stamp = time.time_ns()

    def ask(number: int) -> None:
        if number >= STARTS:
            return
        harness.gateway.start(
            {"crawler": "moment", "args": {"n": str(number)}}, f"{stamp}-{number}"
        )

    with _again_and_again(ask, each_s, LANES):
        yield


@contextlib.contextmanager
def ends(harness: Benchmark) -> Iterator[None]:
    """Let runs end now, all at once, each with an archive."""
    run_ids = harness.start(RUNS, **REST)
    harness.executing(run_ids)
    for run_id in run_ids:
        harness.end(run_id)
    yield


@contextlib.contextmanager
def stops(harness: Benchmark) -> Iterator[None]:
    """Stop runs now, all at once."""
    run_ids = iter(harness.start(RUNS, **REST))
    with _again_and_again(
        lambda _: harness.gateway.stop(next(run_ids), reason="benchmark"), 0.1, LANES
    ):
        yield


@contextlib.contextmanager
def audits(harness: Benchmark) -> Iterator[None]:
    """Request audits, one after the other in each lane."""
    with _again_and_again(
        lambda _: harness.gateway.post("/v1/audit", {"repair": False}), 0.0, LANES
    ):
        yield


def play() -> None:
    """Print the longest wait of each class under each load, and those that exceeded their bound."""
    print("bounds: " + ", ".join(f"{what} {bound:g} s" for what, bound in BOUNDS_S.items()))
    with benchmark() as harness:
        for load in (nothing, polls, starts, ends, stops, audits):
            found = Classes(harness)
            with load(harness):
                found.measure()
            harness.clear()
            waits = ", ".join(f"{what} {seconds:.1f}" for what, seconds in found.worst.items())
            missed = [what for what, seconds in found.worst.items() if seconds > BOUNDS_S[what]]
            verdict = f"MISSED: {', '.join(missed)}" if missed else "all within their bounds"
            print(
                f"beside {load.__name__}: {waits} s; {verdict}; load average "
                f"{os.getloadavg()[0]:.1f}",
                flush=True,
            )


async def main() -> None:
    """Play."""
    await asyncio.to_thread(play)
