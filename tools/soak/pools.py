"""``python -m tools.soak.pools --cluster local|kwok --minutes M --seed N`` tests pools while the
components around them are killed.

Four pools with a cap, weights and a reserve need more than all slots, by runs of priorities 1 to 5.
In two storms, the workers (two for each role), gateway, scheduler service, Temporal and MariaDB are
killed and frozen at random. The judge (``pool_judge.py``) reads journals that the crawlers keep, or
etcd's history of the pods.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from crawler_lifecycle.cli.cluster_access import ClusterAccess
from crawler_lifecycle.cli.machine import start_time
from tests.contracts.cluster.kube_harness import FINISHED
from tests.e2e.harness import QUICK, _states, until
from tests.kubernetes.cluster.cluster import Cluster
from tests.support.builds import ROOT
from tests.support.mariadb import running_mariadb
from tools.soak.api_client import ApiClient, open_tasks, settled
from tools.soak.harness import DURABLE, SoakHarness
from tools.soak.journal import read_journals
from tools.soak.kubernetes.record import Recorder, flags
from tools.soak.pool_judge import NORMAL, Case, Crawl, Fault, Order, Pool, figures, judge
from tools.soak.strikes import say, verdict

SLOTS = 8
POOLS = {
    "capped": Pool(max=2, weight=4),
    "heavy": Pool(weight=2),
    "light": Pool(),
    "kept": Pool(reserved=2),
}
#: The number of tasks that always wait in each pool, so that an outage does not empty the pool.
#: Tasks that wait at the end must end within the time for the end of all work.
WAITING = {"capped": 3, "heavy": 7, "light": 4, "kept": 2}
#: How long tasks take, and how often the pool with the reserve has no work.
SECONDS, RESTS_S = (8, 9, 10), 20.0
#: The pools of urgent runs, by the weights of the pools whose shares are counted.
URGENT_POOLS = ("capped", "kept", "light", "heavy", "heavy")
WORKERS = ("worker", "worker-2")
PARTS = ("worker", "gateway", "scheduler", "temporal", "database")
KINDS = [f"{part} {how}" for part in PARTS for how in ("killed", "frozen")]
#: From then on, all slots are in use, and the least urgent tasks do not begin only because the
#: machine is empty.
FULL_S = 15.0
#: The fractions of the whole time that end each part: no fault and no urgent run, the first storm,
#: urgent runs without a fault, and the second storm.
CALM, STORM, URGENT = 0.3, 0.55, 0.7
STRIKES_S, URGENT_S, FROZEN_S, AWAY_S = (5.0, 11.0), (5.0, 11.0), (4.0, 15.0), 5.0


@dataclass
class PoolHarness(SoakHarness):
    """A stack with these pools. With ``kubernetes``, crawls are pods of this cluster."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kubernetes is not None:
            entry = {"kind": "command", "command": ["nap"], "items": False}
            naps = {
                f"nap-{n}": {"KWOK_RUN_FOR": f"{n}s", "KWOK_MESSAGE": FINISHED} for n in SECONDS
            }
            self.crawlers.write_text(
                json.dumps([entry | {"name": name, "env": env} for name, env in naps.items()])
            )

    def body(self, seconds: int) -> dict[str, object]:
        if self.kubernetes is not None:
            return {"crawler": f"nap-{seconds}"}
        return {"crawler": "soak", "args": {"seconds": str(seconds)}}


class Load:
    """Starts runs so that each pool needs more slots than it can get."""

    def __init__(
        self, harness: PoolHarness, read: Callable[[], list[Crawl]], dice: random.Random
    ) -> None:
        self.orders: dict[int, Order] = {}
        self._harness, self._read, self._dice = harness, read, dice
        self._api = ApiClient(lambda: str(harness.stack.addresses["gateway"]))
        self._asks = ThreadPoolExecutor(16)
        self._coming: Counter[str] = Counter()
        self._lock, self._sent, self._urgent, self._idle = threading.Lock(), 0, 0.0, False
        self.refused: list[str] = []

    def turn(self, at: float, urgent: bool) -> None:
        """Start the runs that are missing now, and with ``urgent`` sometimes a run that goes before
        others.
        """
        if at > FULL_S and not self._idle:
            self._idle = True
            for pool, priority in (("heavy", 4), ("light", 5), ("heavy", 5)):
                self._order(pool, priority, 2)
        begun = Counter(run for run, _ in {(crawl.run, crawl.index) for crawl in self._read()})
        with self._lock:
            waiting = self._coming.copy()
            for one in self.orders.values():
                waiting[one.pool] += one.tasks - begun[one.run] if one.priority <= NORMAL else 0
        for pool, most in WAITING.items():
            if waiting[pool] < most and not (pool == "kept" and at % (2 * RESTS_S) > RESTS_S):
                self._order(pool, NORMAL, self._dice.randint(2, 4))
        if urgent and at >= self._urgent:
            self._urgent = at + self._dice.uniform(*URGENT_S)
            self._order(
                self._dice.choice(URGENT_POOLS), self._dice.choice((1, 2)), self._dice.randint(1, 2)
            )

    def end(self) -> None:
        """Wait until every requested run is accepted."""
        self._asks.shutdown()

    def _order(self, pool: str, priority: int, tasks: int) -> None:
        self._sent += 1
        body = self._harness.body(self._dice.choice(SECONDS)) | QUICK
        body |= {"tasks": [{}] * tasks, "pool": pool, "priority": priority}
        with self._lock:
            self._coming[pool] += tasks
        self._asks.submit(self._start, body, f"pools-{self._sent}", pool, priority, tasks)

    def _start(
        self, body: dict[str, object], key: str, pool: str, priority: int, tasks: int
    ) -> None:
        told = self._api.until_told("POST", "/v1/runs", body, key)
        with self._lock:
            self._coming[pool] -= tasks
            if told.ok:
                run = int(told.answer["run_id"])
                self.orders[run] = Order(run, pool, priority, tasks, told.at)
            else:
                self.refused.append(f"a start was refused: {told}")


class Strikes:
    """Kills and freezes components, each in its own thread: a component may be killed while another
    one starts again.
    """

    def __init__(self, harness: PoolHarness, dice: random.Random) -> None:
        self.faults: list[Fault] = []
        self.wrong: list[str] = []
        self._harness, self._dice = harness, dice
        self._left: list[str] = []
        self._next = 0.0
        self._threads: list[threading.Thread] = []
        self._busy: set[str] = set()

    def turn(self, at: float) -> None:
        """Strike when it is due: all kinds in a random order, then all of them again.

        A component that is down is not struck.
        """
        if at < self._next:
            return
        self._next = at + self._dice.uniform(*STRIKES_S)
        missing = sorted(set(KINDS) - {fault.what for fault in self.faults})
        self._left = self._left or self._dice.sample(missing or KINDS, len(missing or KINDS))
        what = self._left.pop()
        part, how = what.split()
        part = self._dice.choice(WORKERS) if part == "worker" else part
        if part not in self._busy:
            self._busy.add(part)
            thread = threading.Thread(
                target=self._strike, args=(what, part, how, self._dice.uniform(*FROZEN_S))
            )
            self._threads.append(thread)
            thread.start()

    def end(self) -> None:
        """Wait until everything is up again."""
        for thread in self._threads:
            thread.join()
        self._harness.stack.supervisor.wait_healthy()

    def _strike(self, what: str, part: str, how: str, seconds: float) -> None:
        at = time.time()
        try:
            with suppress(
                ProcessLookupError
            ):  # The component has just ended, so there was nothing to kill.
                did = (
                    self._freeze(part, seconds)
                    if how == "frozen"
                    else self._kill(part, min(seconds, AWAY_S))
                )
                if part != "database":
                    self._harness.stack.supervisor.wait_healthy([part])
                self.faults.append(Fault(what, at, time.time(), did))
                say(f"{what}: {did}; up again after {time.time() - at:.1f} s")
        except Exception as error:  # If strikes fail, a soak proves less than it reports.
            self.wrong.append(f"{what}: {type(error).__name__}: {error}")
        finally:
            self._busy.discard(part)

    def _pid(self, part: str) -> int:
        if part == "database":
            assert self._harness.server is not None
            return self._harness.server.process.pid
        pid = self._harness.stack.supervisor.pids().get(part)
        if pid is None:
            raise ProcessLookupError(part)
        return pid

    def _kill(self, part: str, seconds: float) -> str:
        pid, server = self._pid(part), self._harness.server
        began = start_time(pid)
        if part == "database" and server is not None:
            server.kill()
            time.sleep(seconds)
            server.restart()
        else:
            os.kill(pid, signal.SIGKILL)
        until(lambda: start_time(pid) != began, f"the death of {part}", 30)
        until(
            lambda: self._harness.stack.supervisor.pids().get(part, 0) != pid, f"another {part}", 60
        )
        return f"process {pid} of {part} died"

    def _freeze(self, part: str, seconds: float) -> str:
        pid = self._pid(part)
        os.kill(pid, signal.SIGSTOP)
        try:
            until(lambda: _states(pid) == {"T"}, f"a frozen {part}", 30)
            time.sleep(seconds)
        finally:
            os.kill(pid, signal.SIGCONT)
        return f"process {pid} of {part} stood still for {seconds:.1f} s"


def crawls_of(harness: PoolHarness, recorder: Recorder | None) -> list[Crawl]:
    """Return everything that has executed. A pod counts from its creation until etcd contains its
    end.
    """
    if recorder is None:
        return [
            Crawl(*p.name, p.begin, p.last if p.end else None)
            for p in read_journals(harness.journals)
        ]
    over = [(pod, pod.over) for pod in recorder.pods]
    return [
        Crawl(*pod.key, pod.versions[0].seen_at.timestamp(), end and end.seen_at.timestamp())
        for pod, end in over
    ]


def play(
    harness: PoolHarness, recorder: Recorder | None, seed: int, seconds: float
) -> Sequence[str]:
    """Execute the load and the storms, wait until everything has ended, and return what was untrue."""
    harness.deploy(ROOT, WORKERS[1])
    dice = random.Random(seed)
    load, strikes = (
        Load(harness, lambda: crawls_of(harness, recorder), dice),
        Strikes(harness, random.Random(seed)),
    )
    began, told = time.time(), 0.0
    while (at := time.time() - began) < seconds:
        done = at / seconds
        load.turn(at, urgent=done > CALM)
        if CALM < done < STORM or done > URGENT:
            strikes.turn(at)
        if at - told > 15:
            told = at
            say(
                f"{at:4.0f} s: {len(load.orders)} runs, {len(crawls_of(harness, recorder))} "
                "executions"
            )
        time.sleep(0.7)
    over = time.time()
    strikes.end()
    load.end()
    say("the faults are over")
    wrong = [*strikes.wrong, *load.refused, *settled(harness, in_line=open_tasks)]
    rows = harness.query("SELECT run_id, task_index, attempt, status FROM task_history")
    # The slots that a pool takes before other pools wait are part of its share and are balanced
    # later, so they count.
    calm, whole = (began, began + seconds * CALM), (began, over)
    crawls = crawls_of(harness, recorder)
    case = Case(POOLS, SLOTS, load.orders, crawls, strikes.faults, calm, whole, rows, KINDS)  # type: ignore[arg-type]
    (harness.folder / "case.txt").write_text(
        repr(case)
    )  # This is kept for people who search for the cause.
    say(figures(case))
    return [*wrong, *judge(case)]


@contextmanager
def place(cluster: str, folder: Path) -> Iterator[tuple[ClusterAccess | None, Recorder | None]]:
    """Return where crawls execute, and what watches them there."""
    if cluster == "local":
        yield None, None
        return
    with Cluster(kwok=2, extra=flags(folder)) as kwok:
        namespace = kwok.namespace("pools")
        kwok.admin.ensure(
            f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "crawl"}}
        )
        with Recorder(kwok.plane._etcd, namespace, folder / "audit.log") as recorder:
            yield ClusterAccess(kwok.kubeconfig, None, namespace, "crawl.test/crawlers:1"), recorder


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.soak.pools", description=__doc__)
    parser.add_argument(
        "--cluster", choices=("local", "kwok"), default="local", help="default: local"
    )
    parser.add_argument("--minutes", type=float, default=5.0, help="of load (default: 5)")
    parser.add_argument("--seed", type=int, default=1, help="default: 1")
    parser.add_argument(
        "--folder", type=Path, help="where the stack lives; kept (default: a temporary one)"
    )
    chosen = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    settings = {
        "LIFECYCLE_CLUSTER__SLOTS": str(SLOTS),
        "LIFECYCLE_POOLS": json.dumps({n: asdict(p) for n, p in POOLS.items()}),
    }
    with ExitStack() as undo:
        folder = (
            chosen.folder or Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
        ).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        access, recorder = undo.enter_context(place(chosen.cluster, folder))
        server = undo.enter_context(running_mariadb(DURABLE))
        harness = undo.enter_context(PoolHarness.up(folder / "state", server, access, **settings))
        wrong = play(harness, recorder, chosen.seed, chosen.minutes * 60)
    return verdict(chosen.seed, wrong)


if __name__ == "__main__":
    sys.exit(main())
