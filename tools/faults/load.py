"""The requests of people during the test run (runs, stops and resumes), each repeated until there
is an answer, and the sampler of the truth.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tools.faults.code_record import CodeWatch
from tools.faults.harness import Harness, RecordAway
from tools.faults.oracle import EVERY_S, INTERVAL_S, Age, Ask, Name, Seen
from tools.faults.parts import stat

Rows = list[tuple[Any, ...]]

#: The time for which a request without an answer is repeated.
ASKS_S = 120.0
#: The longest pause before a request without an answer is repeated.
GAP_S = 6.0
PACE_S = 2.0
#: Limits of a short test run, which a busy machine executes in parallel with much other work.
#: Everything that it begins must also end in time.
SHORT_PACE_S = 6.0
#: The numbers of tasks of the largest runs.
MOST = 4
#: The duration of a crawl that only a stop ends. All such crawls are stopped at the end.
ENDLESS = 3600.0
#: The longest crawl that ends by itself in a test run without long faults.
USUAL = 40.0
SCHEDULE, EVERY = "faults", 15
SCHEDULED = {
    "run": {"crawler": "soak", "poll_minutes": [0.1]},
    "every_s": EVERY,
    "overlap": "allow",
    "catch_up_s": 600,
}
TASKS = "SELECT run_id, task_index, attempt, status FROM task_history"
#: For our runs with executing tasks: the age of the oldest last poll, and the most seconds by which
#: a next poll exceeds the recorded interval.
_SINCE = "(UNIX_TIMESTAMP(UTC_TIMESTAMP(6)) - UNIX_TIMESTAMP(verified_at))"
AGE = (
    f"SELECT MAX({_SINCE}), MAX({_SINCE} - COALESCE(look_gap_ms / 1e3, {INTERVAL_S})) FROM "
    "run_history r "
    "WHERE request_id LIKE 'faults-%' AND status = 'PROCESSING' AND EXISTS (SELECT 1 FROM "
    "task_history t "
    "WHERE t.run_id = r.run_id AND t.status IN ('PENDING', 'RUNNING'))"
)


class Load:
    """Sends requests at random moments, by seed.

    A request that gets no answer for too long is recorded as unanswered.
    """

    def __init__(
        self, harness: Harness, seed: int, pace: float = 0.0, most: int = MOST, longest: float = 0.0
    ) -> None:
        self.harness, self.dice, self.most = harness, random.Random(f"load {seed}"), most
        self.longest = longest
        """Seconds of the longest crawls, so that some end late in a long fault. What still executes
        is stopped.
        """
        self.beside: Callable[[dict[str, str]], None] | None = None
        """Who is asked for each crawl of a start, too."""
        self.pace = pace or (SHORT_PACE_S if harness.dev else PACE_S)
        self.asks: list[Ask] = []
        self.runs: dict[int, bool] = {}
        """Runs that were answered for, and whether one of their tasks is endless."""
        self.wanted: dict[str, str] = {}
        self._stopped: list[int] = []
        self.schedule = (0.0, 0.0, 0.0)
        self._count, self._lock = 0, threading.Lock()
        self._pool = ThreadPoolExecutor(32)
        self._next = 0.0

    def turn(self) -> None:
        """Send a request when it is due."""
        if time.time() < self._next:
            return
        self._next = time.time() + self.dice.expovariate(1 / self.pace)
        if not self._count:
            self.ask("schedule", "on", f"/v1/schedules/{SCHEDULE}", SCHEDULED, method="PUT")
            url = f"http://127.0.0.1:{self.harness.port('proxy of webhook')}"
            hook = {"url": url, "secrets": ["env:CRAWL_HOOK"], "events": ["run.ended"]}
            self.ask("webhook", "hook", "/v1/webhooks/faults", hook, method="PUT")
        kinds = (self._start, self._stop, self._resume, self._manage, self._graph)
        self.dice.choices(kinds, (10, 4, 3, 0.6, 0.6))[0]()

    def finish(self) -> None:
        """Stop endless crawls. Returns when every request has been answered or given up."""
        self.ask("schedule", "off", f"/v1/schedules/{SCHEDULE}", None, method="DELETE")
        for run_id, endless in dict(self.runs).items():
            if endless:
                self.ask(
                    "stop",
                    f"last-{run_id}",
                    f"/v1/runs/{run_id}/stop",
                    {"reason": "the end"},
                    run_id=run_id,
                )
        self.answered()
        late = [run_id for run_id, endless in self.runs.items() if endless]
        # Starts that got no answer.
        unknown = "SELECT run_id FROM run_history WHERE request_id LIKE 'faults-%'"
        late += [run_id for (run_id,) in self.harness.record(unknown) if run_id not in self.runs]
        for run_id in late:  # A resume may have come at the same time as the stop.
            self.ask(
                "stop",
                f"late-{run_id}",
                f"/v1/runs/{run_id}/stop",
                {"reason": "the end"},
                run_id=run_id,
            )
        self.answered()

    def answered(self) -> None:
        """Wait until every request has been answered or given up."""
        self._pool.shutdown(wait=True)
        self._pool = ThreadPoolExecutor(32)

    def ask(
        self,
        kind: str,
        key: str,
        path: str,
        body: Any,
        *,
        dice: random.Random | None = None,
        **more: Any,
    ) -> None:
        """Send a request until somebody answers, to gateways that ``dice`` choose.

        ``about`` is recorded instead of a body that consists of bytes.
        """
        order = [(dice or self.dice).choice(self.harness.gateways) for _ in range(200)]
        self._pool.submit(self._until_told, order, kind, key, path, body, **more)

    def _until_told(
        self, order: list[str], kind: str, key: str, path: str, body: Any, *, run_id: int | None = None,
        endless: bool = False, method: str = "POST", site: str = "", then: Callable[[dict[str, Any]], None] | None = None,
        about: Any = None,
    ) -> None:  # fmt: skip
        sent, status = time.time(), None
        for tries, gateway in enumerate(order, 1):  # noqa: B007
            status, told = self.harness.ask(gateway, method, path, body, key)
            if (
                status is not None and status < 500 and status != 429
            ) or time.time() > sent + ASKS_S:
                break
            time.sleep(1.0)
        with self._lock:
            if kind == "start" and status is not None and status < 300:
                run_id = int(told["run_id"])
                self.runs[run_id] = endless
            known = body if about is None else about
            answered = time.time()
            self.asks.append(
                Ask(kind, key, sent, answered, status, run_id, site, known, tries, told)
            )
            if kind == "schedule" and self.asks[-1].accepted:
                on = (time.time(), 0.0, EVERY) if key == "on" else (self.schedule[0], sent, EVERY)
                self.schedule = on if on[0] else self.schedule
        if then and status is not None and status < 300:
            then(told)

    def _start(self) -> None:
        self._count += 1
        tasks = [{"args": self._args()} for _ in range(self.dice.choice((1, 1, 1, 2, self.most)))]
        endless = any(float(task["args"]["seconds"]) > USUAL for task in tasks)
        if self.beside:
            for task in tasks:
                self.beside(task["args"])
        body: dict[str, Any] = {"crawler": "soak", "tasks": tasks, "poll_minutes": [0.1]}
        body["limits"] = {"start_check_s": self.dice.choice([0.3, 2]), "stop_grace_s": 3}
        self.ask("start", f"faults-{self._count}", "/v1/runs", body, endless=endless)

    def _args(self) -> dict[str, str]:
        how = self.dice.choice(["finished"] * 9 + ["exit:1", "exit:4", "signal:11"])
        seconds = self.dice.choice(
            [self.dice.uniform(0.2, 3), self.dice.uniform(2, 15), self.dice.uniform(10, USUAL)]
        )
        if self.dice.random() < 0.06:
            seconds = ENDLESS
        elif self.longest and self.dice.random() < 0.7:
            seconds = self.dice.uniform(USUAL, self.longest)
        return {"seconds": str(round(seconds, 1)), "how": how}

    def _manage(self) -> None:
        """Start a manager with jobs of its own, each of which must succeed exactly once."""
        self._count += 1
        key, jobs = (
            f"manager-{self._count}",
            [f"m{self._count}-{n}" for n in range(self.dice.randint(2, 6))],
        )
        args = [
            {"seconds": str(round(self.dice.uniform(0.2, 6), 1)), "number": number}
            for number in jobs
        ]
        page = {"jobs": [{"spider_args": one} for one in args], "seal": True}
        body = {
            "crawler": "soak",
            "name": "faults",
            "flow_id": key,
            "options": {"max_running": 2, "retries": 2},
        }

        def began(told: dict[str, Any]) -> None:
            path = f"/v1/managers/{told['manager_id']}/jobs"
            self._until_told(
                [*self.harness.gateways] * 120, "jobs", f"{key}-jobs", path, page, then=wanted
            )

        def wanted(told: dict[str, Any]) -> None:
            self.wanted |= dict.fromkeys(jobs, "")

        self.ask("manager", key, "/v1/managers", body, then=began)

    def _graph(self) -> None:
        """Start a chain of crawls."""
        self._count += 1
        names = [f"g{self._count}-{n}" for n in range(self.dice.randint(2, 4))]
        steps: list[dict[str, Any]] = [
            {
                "path": name, "kind": "crawl", "deps": [before] if before else [],
                "job": {"crawler": "soak", "poll_minutes": [0.1], "args": {"number": name}},
            }
            for before, name in zip(["", *names], names, strict=False)
        ]  # fmt: skip

        def wanted(told: dict[str, Any]) -> None:
            self.wanted |= dict(zip(names, ["", *names], strict=False))

        self.ask("graph", f"graph-{self._count}", "/v1/graphs", {"steps": steps}, then=wanted)

    def _some(self) -> int | None:
        with self._lock:
            known = sorted(self.runs)
        return known[-1 - min(int(self.dice.expovariate(1 / 5)), len(known) - 1)] if known else None

    def _stop(self) -> None:
        if run_id := self._some():
            self._count += 1
            self._stopped.append(run_id)
            body = {"requested_by": "faults", "force": self.dice.random() < 0.25}
            self.ask("stop", f"stop-{self._count}", f"/v1/runs/{run_id}/stop", body, run_id=run_id)

    def _resume(self) -> None:
        if self._stopped:  # In most cases, this run had the time to end.
            run_id = self._stopped.pop(0)
            self._count += 1
            if self.dice.random() < 0.25 and not self.harness.dev:  # A deletion takes a minute.
                self.ask(
                    "delete",
                    f"delete-{self._count}",
                    f"/v1/runs/{run_id}",
                    None,
                    run_id=run_id,
                    method="DELETE",
                )
            else:
                self.ask(
                    "resume",
                    f"resume-{self._count}",
                    f"/v1/runs/{run_id}/resume",
                    {},
                    run_id=run_id,
                )


class Sampler(threading.Thread):
    """Sample, twice a second, what each process is, the recorded status of its task, and what the
    process is after that.

    Keeps what is untrue. A change during the reading does not count against the reader, and a
    sample represents the time since the previous sample. Therefore, neither slow reads nor a busy
    machine add or hide a second. A reader without an answer keeps the last status.
    """

    def __init__(self, record: Callable[[], Rows], journals: Path) -> None:
        super().__init__(name="sampler", daemon=True)
        self.record, self.journals = record, journals
        self.age: Callable[[], Rows] | None = None
        """Who says how old the oldest last poll is."""
        self.ages: list[Age] = []
        self.holders: Callable[[], Rows] | None = None
        """Who says how many tasks hold a slot of each site."""
        self.most_holders: Counter[str] = Counter()
        self.code: CodeWatch | None = None
        """Who watches canaries, current versions and stored code."""
        self.untrue: list[Seen] = []
        self.samples = self.unread = 0
        self.load = 0.0
        """The highest load average of the machine."""
        self._rows: Rows = []
        self._dead: set[str] = set()
        self._over = threading.Event()

    def run(self) -> None:
        due, last = time.monotonic(), time.time()
        while not self._over.wait(max(0.0, due - time.monotonic())):
            due, at = max(due + EVERY_S, time.monotonic()), time.time()
            before = self._now()
            self._rows = self._heard(self.record) or self._rows
            self.untrue += untrue(at, self._rows, before, self._now(), since(last, at))
            for oldest, overdue in self._heard(self.age) if self.age else []:
                self.ages += [Age(at, float(oldest), float(overdue))] if oldest is not None else []
            for site, tasks in self._heard(self.holders) if self.holders else []:
                self.most_holders[site] = max(self.most_holders[site], tasks)
            if self.code:
                self.code.turn(at, self._heard)
            last, self.load = at, max(self.load, os.getloadavg()[0])

    def _heard(self, ask: Callable[[], Rows]) -> Rows:
        self.samples += 1
        try:
            return ask()
        except RecordAway:  # Nobody can be read at this time.
            self.unread += 1
            return []

    def stop(self) -> None:
        self._over.set()
        self.join()

    def _now(self) -> dict[Name, str]:
        """Return what each task's process is now, by the names of the journals. If a task executed
        twice, the process that is alive counts.
        """
        found: dict[Name, str] = {}
        for journal in os.listdir(self.journals):
            run_id, index, attempt, pid, start = map(int, journal.removesuffix(".jsonl").split("-"))
            lives = journal not in self._dead and lives_now(pid, start)
            if not lives:
                self._dead.add(journal)
            if lives or (run_id, index, attempt) not in found:
                found[run_id, index, attempt] = "lives" if lives else "over"
        return found


def lives_now(pid: int, start: int) -> bool:
    found = stat(pid)
    return found is not None and found[2] == start and found[0] not in "ZX"


def since(last: float, at: float) -> float:
    """Return the time that a sample represents. Nothing is known about longer gaps."""
    return min(at - last, GAP_S)


def untrue(
    at: float, rows: Rows, before: dict[Name, str], now: dict[Name, str], seconds: float = EVERY_S
) -> list[Seen]:
    """Return the samples of this moment that are untrue both of the processes before the record was
    read and of the processes now.
    """
    found = []
    for run_id, index, attempt, status in rows:
        name = int(run_id), int(index), int(attempt)
        first, then = (
            Seen(at, name, str(status), known.get(name, "none"), seconds) for known in (before, now)
        )
        if first.untrue and then.untrue:
            found.append(then)
    return found
