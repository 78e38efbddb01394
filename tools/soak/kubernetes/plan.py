"""The events of a soak: runs and faults, chosen by a seed. This module has no side effects."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.domain.resources import Resources
from tests.contracts.cluster.kube_harness import FINISHED, SHUTDOWN, scripted, summary

#: The memory of the first try, how it grows after an end for lack of memory, and the maximum.
MEMORY, FACTOR, MEMORY_CAP = "64Mi", 2, "224Mi"


def _crawler(
    name: str, *, cpu: str | None = None, limits: Mapping[str, float] | None = None, **script: str
) -> CrawlerDefinition:
    return replace(scripted(name, Resources(cpu, MEMORY), **script), limits=dict(limits or {}))


#: Crawlers that end by themselves if nothing ends them before.
_BY_ITSELF = [
    _crawler("finishes", run_for="4s", message=FINISHED),
    _crawler("finishes-late", run_for="15s", message=FINISHED),
    _crawler("finishes-at-once", run_for="200ms", message=FINISHED),
    _crawler("says-nothing", run_for="3s"),
    _crawler("full-enough", run_for="5s", message=summary("closespider_pagecount", 0)),
    _crawler("breaks", run_for="3s", exit_code="1", message=summary("failed", 1)),
    _crawler("breaks-silently", run_for="5s", exit_code="7"),
    _crawler("eats-memory", run_for="4s", exit_code="137", reason="OOMKilled"),
    _crawler("child-eats-memory", run_for="6s", exit_code="0", reason="OOMKilled"),
    _crawler("fills-the-disk", run_for="4s", exit_code="3", message=summary("failed", 3)),
    _crawler("is-banned", run_for="4s", exit_code="18", message=summary("banned", 18)),
    _crawler("times-itself", run_for="6s", exit_code="15", message=summary("time_limit", 15)),
    _crawler("is-terminated", run_for="5s", exit_code="143"),
]
#: Crawlers that execute until something ends them.
_ENDLESS = [
    _crawler("obeys", stop_code="11", stop_after="300ms", message=SHUTDOWN),
    _crawler("obeys-slowly", stop_code="11", stop_after="4s", message=SHUTDOWN),
    _crawler("is-killed", stop_code="137", stop_after="1s"),
    _crawler("leaves-with-0", stop_code="0", stop_after="500ms"),
    _crawler("finishes-when-told", stop_code="0", stop_after="700ms", message=FINISHED),
    _crawler("may-run-for-10-s", stop_code="11", message=SHUTDOWN, limits={"run_timeout_s": 10}),
]
#: Crawlers that never begin. None of them waits on its node, because a kubelet ends such a pod when
#: it is deleted, but kwok leaves it Pending.
_WAITING = [_crawler("wants-too-much", cpu="9000")]
CRAWLERS: dict[str, CrawlerDefinition] = {c.name: c for c in (*_BY_ITSELF, *_ENDLESS, *_WAITING)}

#: The faults of one run, by weight. Each is a method of ``troubles.Troubles``.
RUN_STEPS: dict[str, int] = {
    "delete_pod": 6,
    "delete_pod_at_once": 3,
    "evict": 4,
    "delete_job_foreground": 3,
    "delete_job_background": 3,
    "delete_job_orphan": 3,
    "suspend_and_resume": 4,
    "strip_pod": 2,
    "tear_away": 2,
    "node_says_killed_for_memory": 2,
    "node_evicts": 2,
    "node_says_exit": 3,
    "stop": 7,
    "force_stop": 4,
    "stop_twice": 2,
    "resume": 9,
    "add_tasks": 4,
    "terminate_workflow": 2,
    "poll_now": 3,
}
#: The faults of the whole installation, by weight.
CLUSTER_STEPS: dict[str, int] = {
    "restart_api": 4,
    "freeze_api": 2,
    "restart_etcd": 1,
    "restart_controllers": 2,
    "restart_scheduler": 1,
    "restart_kwok": 1,
    "take_rights": 3,
    "no_room_for_jobs": 2,
    "no_room_for_pods": 2,
    "delete_node": 2,
    "kill_worker": 3,
    "kill_observer": 2,
    "audit": 5,
}
#: Faults that make the API server unavailable for some seconds, and the time for each of them.
ONCE, ONCE_IN_S = ("restart_api", "restart_etcd", "freeze_api"), 25.0


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A run that is started ``at`` this many seconds after the beginning."""

    number: int
    at: float
    crawler: str
    tasks: int | None
    """``None``: a single-process run."""
    parallel: int | None

    def __str__(self) -> str:
        size = (
            "one task"
            if self.tasks is None
            else f"{self.tasks} tasks, {self.parallel or 'all'} at a time"
        )
        return f"{self.at:5.1f}  run {self.number}: {self.crawler}, {size}"

    @property
    def request(self) -> dict[str, Any]:
        """Return the request that its client sends."""
        return {
            "crawler": self.crawler,
            "request_id": f"soak-{self.number}",
            "tasks": None if self.tasks is None else [{}] * self.tasks,
            "max_parallel_tasks": self.parallel,
        }


@dataclass(frozen=True, slots=True)
class Step:
    """One event. ``kind`` is the name of a method of ``troubles.Troubles``."""

    number: int
    at: float
    kind: str
    run: int | None
    seconds: float
    """The duration of the fault, if it is reversible."""

    def __str__(self) -> str:
        on = f" on run {self.run}" if self.run is not None else ""
        return f"{self.at:5.1f}  step {self.number}: {self.kind}{on} ({self.seconds:.1f} s)"


@dataclass(frozen=True, slots=True)
class Plan:
    """One soak."""

    seed: int
    observed: bool
    runs: Sequence[PlannedRun]
    steps: Sequence[Step]

    def on(self, run: int) -> list[str]:
        """Return the planned events of a run and of the whole installation, in order."""
        mine = [r for r in self.runs if r.number == run]
        steps = [s for s in self.steps if s.run in (run, None)]
        return [str(one) for one in sorted([*mine, *steps], key=lambda one: one.at)]


def make_plan(
    seed: int,
    *,
    runs: int,
    seconds: float,
    steps: int | None = None,
    only: Sequence[str] | None = None,
) -> Plan:
    """Return a plan with ``runs`` runs within the first half of ``seconds``, and ``steps`` faults
    (default: twice as many).

    ``only`` contains the kinds of steps to choose from. Without it, all kinds are used.
    """
    rng = random.Random(seed)
    observed = rng.random() < 0.6
    planned = [_run(rng, number, seconds) for number in range(1, runs + 1)]
    kinds = {k: w for k, w in (RUN_STEPS | CLUSTER_STEPS).items() if only is None or k in only}
    of_run = {k: w for k, w in kinds.items() if k in RUN_STEPS}
    of_all = {k: w for k, w in kinds.items() if k in CLUSTER_STEPS}
    found: list[Step] = []
    for number in range(1, (2 * runs if steps is None else steps) + 1):
        everybody = of_all and (not of_run or rng.random() < 0.2)
        choice = of_all if everybody else of_run
        [kind] = rng.choices(list(choice), list(choice.values()))
        run = None if everybody else rng.choice(planned)
        if kind in ONCE and sum(step.kind in ONCE for step in found) >= seconds / ONCE_IN_S:
            continue  # Otherwise, there would only be restarts.
        begin = 1.0 if run is None else run.at + 0.2
        end = seconds if run is None else min(seconds, begin + rng.choice((4.0, 12.0, seconds)))
        at = rng.uniform(begin, max(begin, end))
        found.append(Step(number, at, kind, run.number if run else None, rng.uniform(0.3, 5.0)))
    return Plan(seed, observed, planned, sorted(found, key=lambda step: step.at))


def _run(rng: random.Random, number: int, seconds: float) -> PlannedRun:
    kind = rng.choices((_BY_ITSELF, _ENDLESS, _WAITING), (5, 5, 1))[0]
    crawler = rng.choice(kind).name
    tasks = None if rng.random() < 0.5 else rng.randint(2, 5)
    parallel = None if tasks is None or rng.random() < 0.5 else rng.randint(1, 3)
    return PlannedRun(number, rng.uniform(0.0, seconds * 0.6), crawler, tasks, parallel)
