"""The plan of a soak, which determines each action and its time from a seed only.

A plan does not depend on what happens. It names runs in the order in which it starts them (``R1``,
``R2`` …), and moments by seconds since the beginning, so the same seed leads to the same plan on
any machine. Managers are named in the same way, by their own numbers (``M1``, ``M2`` …).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tools.soak.sites import SITES, random_change

#: The mean number of seconds between two steps. Bursts have shorter pauses.
PACE_S = 0.75
#: There are few managers, because each of them begins many runs.
MANAGERS_MAX = 4
#: The duration of a crawl that ends within a soak only by a stop or a signal.
ENDLESS = 3600.0
#: The memory of a run whose crawlers need memory, and the MiB that they may need. The first try is
#: enough for some crawlers, a later try for others, and no try for the rest.
HUNGRY: dict[str, Any] = {
    "resources": {"memory": "64Mi"},
    "retries": {
        "on": ["interrupted", "evicted", "lost", "oom"],
        "memory_factor": 2,
        "memory_cap": "224Mi",
    },
}
NEEDS = (10, 80, 80, 160, 260)
#: Exit codes that have a meaning for some program or for our runner. For these crawlers, each code
#: is a failure.
EXITS = (1, 3, 4, 11, 13, 14, 15, 17, 18, 77, 143)


@dataclass(frozen=True)
class Step:
    """One action.

    ``run`` is the number of a run of this plan, and ``more`` depends on the kind.
    """

    number: int
    at: float
    kind: str
    run: int | None = None
    more: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        words = [f"{self.number:4}", f"{self.at:7.2f} s", self.kind]
        if self.run is not None:
            words.append(f"R{self.run}")
        return " ".join(words + [f"{name}={value}" for name, value in self.more.items()])


@dataclass(frozen=True)
class Plan:
    seed: int
    minutes: float
    runs: int
    workers: int
    steps: Sequence[Step]

    def __str__(self) -> str:
        return "\n".join(
            [
                (
                    f"plan: seed {self.seed}, {self.minutes:g} min, at most {self.runs} runs, "
                    f"{self.workers} workers"
                ),
                *map(str, self.steps),
            ]
        )


def without_lost_disks(plan: Plan) -> Plan:
    """Return the plan without the steps that remove folders, because lost data can be reported in
    more than one way.
    """
    kept = []
    for step in plan.steps:
        more = dict(step.more)
        if step.kind == "kill":
            more["whom"] = more["whom"].removesuffix("+folder")
        if step.kind != "hide":
            kept.append(replace(step, more=more))
    return replace(plan, steps=kept)


class _Author:
    """Builds one step after the other at random."""

    def __init__(self, seed: int, minutes: float, runs: int) -> None:
        self.dice = random.Random(seed)
        self.end, self.most = minutes * 60, runs
        self.at, self.runs, self.managers = 0.0, 0, 0
        self.workers = ["worker", "worker-2"][: self.dice.choice((1, 2))]
        self.steps: list[Step] = []
        #: The time until which a component is down, so that outages do not overlap until the stack
        #: is never up.
        self.busy: dict[str, float] = {}

    def write(self) -> list[Step]:
        for _ in range(min(3, self.most)):
            self.start()
        kinds: list[tuple[int, Callable[[], None]]] = [
            (26, self.start),
            (8, self.add),
            (10, self.stop),
            (4, self.stop_unseen),
            (5, self.cancel),
            (7, self.terminate),
            (12, self.resume),
            (5, self.wake),
            (6, self.audit),
            (13, self.kill_task),
            (9, self.kill_part),
            (5, self.freeze),
            (2, self.lock),
            (2, self.hide),
            (8, self.burst),
            (4, self.manage),
            (6, self.steer),
            (9, self.change_site),
        ]
        weights, actions = [weight for weight, _ in kinds], [action for _, action in kinds]
        while self.at < self.end:
            self.at += min(self.dice.expovariate(1 / PACE_S), 4.0)
            self.dice.choices(actions, weights)[0]()
        self.steps.sort(key=lambda step: step.at)
        return [Step(n, s.at, s.kind, s.run, s.more) for n, s in enumerate(self.steps, 1)]

    def add_step(self, kind: str, run: int | None = None, after: float = 0.0, **more: Any) -> None:
        self.steps.append(Step(0, round(self.at + after, 2), kind, run, more))

    def some_run(self) -> int:
        """Return a run, in most cases one of the latest runs."""
        return max(1, self.runs - min(int(self.dice.expovariate(1 / 3.0)), self.runs - 1))

    # --- runs

    def seconds(self) -> float:
        if self.dice.random() < 0.12:
            return ENDLESS
        return round(
            self.dice.choice([0.0, self.dice.uniform(0.1, 3), self.dice.uniform(2, 15)]), 2
        )

    def how(self) -> str:
        kinds = ["finished"] * 9 + [
            "exit",
            "silent",
            "reason:closespider_itemcount",
            "signal",
            "lost",
        ]
        kind = self.dice.choice(kinds)
        if kind == "exit":
            return f"exit:{self.dice.choice(EXITS)}"
        if kind == "silent":
            return f"silent:{self.dice.choice((0, 0, 1))}"
        return f"signal:{self.dice.choice((9, 11, 15))}" if kind == "signal" else kind

    def args(self) -> dict[str, str]:
        args = {"seconds": str(self.seconds()), "how": self.how()}
        return args | ({"deaf": "1"} if self.dice.random() < 0.15 else {})

    def start(self) -> None:
        if self.runs >= self.most:
            return
        self.runs += 1
        request: dict[str, Any] = {"args": self.args()}
        if self.dice.random() < 0.5:
            request["tasks"] = [{"args": self.args()} for _ in range(self.dice.randint(1, 4))]
            if self.dice.random() < 0.6:
                request["max_parallel_tasks"] = self.dice.randint(1, 2)
        request["poll_minutes"] = self.dice.choice([[0.02, 0.03], [0.02, 0.03], [0.05], [0.4]])
        limits: dict[str, Any] = {
            "start_check_s": self.dice.choice([0.1, 0.3, 2]),
            "stop_grace_s": 3,
        }
        if self.dice.random() < 0.3:
            limits["force_stop_after_s"] = self.dice.choice([1, 6])
        if self.dice.random() < 0.08:
            limits["run_timeout_s"] = self.dice.choice([3, 8])
        if self.dice.random() < 0.2:
            request |= HUNGRY
            for args in (request["args"], *(task["args"] for task in request.get("tasks", []))):
                args["needs"] = str(self.dice.choice(NEEDS))
        if self.dice.random() < 0.35:
            self.visit(request)
        way = "temporal" if self.dice.random() < 0.2 else "gateway"
        self.add_step("start", self.runs, way=way, request={**request, "limits": limits})

    def visit(self, request: dict[str, Any]) -> None:
        """Let a run visit a site, or belong to another one too. Its crawls end by themselves."""
        site = self.dice.choice(SITES)
        request["sites"] = list(SITES) if self.dice.random() < 0.2 else [site]
        for args in (request["args"], *(task["args"] for task in request.get("tasks", []))):
            args["site"] = site
            args["seconds"] = str(min(float(args["seconds"]), 8.0))
            if self.dice.random() < 0.1:
                args["refused"] = "2"

    def change_site(self) -> None:
        self.add_step("site", **random_change(self.dice))

    def add(self) -> None:
        tasks = [{"args": self.args()} for _ in range(self.dice.randint(1, 3))]
        self.add_step("add", self.some_run(), tasks=tasks, twice=self.dice.random() < 0.3)

    def manage(self) -> None:
        """Start a manager with its own source, which has few jobs, each with a run that ends by
        itself.
        """
        if self.managers >= min(MANAGERS_MAX, self.most // 5):
            return
        self.managers += 1
        jobs = [self.args() | {"number": str(n)} for n in range(self.dice.randint(3, 8))]
        for job in jobs:
            job["seconds"] = str(min(float(job["seconds"]), 15.0))
        cap, retries = self.dice.randint(1, 3), self.dice.randint(0, 2)
        self.add_step("manage", manager=self.managers, jobs=jobs, cap=cap, retries=retries)

    def steer(self) -> None:
        """Stop, pause or resume a manager, or have its workflow terminated or reset.

        A paused manager is resumed by the plan or at its end.
        """
        if not self.managers:
            return
        what = self.dice.choice(["stop", "stop", "pause", "resume", "resume", "terminate", "reset"])
        how = self.dice.choice(["", "", "force", "leave"])
        body = {how: True} if what == "stop" and how else {}
        manager = self.dice.randint(1, self.managers)
        self.add_step("steer", manager=manager, what=what, body=body)
        if what == "pause":
            self.add_step(
                "steer", None, self.dice.uniform(1, 8), manager=manager, what="resume", body={}
            )

    # --- ends

    def stop(self) -> None:
        way = self.dice.choice(["gateway", "gateway", "signal"])
        times, force = self.dice.choice([1, 1, 2]), self.dice.random() < 0.3
        run = self.some_run()
        self.add_step("stop", run, way=way, force=force, times=times)
        if not force and self.dice.random() < 0.3:
            self.add_step("stop", run, self.dice.uniform(0, 3), way=way, force=True, times=1)

    def stop_unseen(self) -> None:
        """Send requests through the gateway while no worker is up."""
        if any(map(self.is_busy, self.workers)):
            return
        away = round(self.dice.uniform(1, 5), 2)
        for worker in self.workers:
            self.add_step("away", part=worker, seconds=away)
            self.busy[worker] = self.at + away + 4
        for _ in range(self.dice.randint(1, 2)):
            self.add_step(
                "stop", self.some_run(), 0.3, way="gateway", force=self.dice.random() < 0.3, times=1
            )

    def cancel(self) -> None:
        self.add_step("cancel", self.some_run())

    def terminate(self) -> None:
        run = self.some_run()
        self.add_step("terminate", run)
        if self.dice.random() < 0.5:
            self.add_step(
                "resume", run, self.dice.uniform(0.1, 4), way="gateway", times=1, rerun=False
            )

    def resume(self) -> None:
        way, times = (
            self.dice.choice(["gateway", "gateway", "temporal"]),
            self.dice.choice([1, 1, 2]),
        )
        self.add_step(
            "resume", self.some_run(), way=way, times=times, rerun=self.dice.random() < 0.15
        )

    def wake(self) -> None:
        self.add_step("wake", self.some_run(), times=self.dice.choice([1, 3, 20]))

    def audit(self) -> None:
        self.add_step("audit", repair=self.dice.random() < 0.7)

    # --- deaths

    def kill_task(self) -> None:
        everything = "supervisor+runner+crawler"
        whom = self.dice.choice(
            [
                "crawler",
                "runner",
                "supervisor",
                "runner+crawler",
                everything,
                f"{everything}+folder",
            ]
        )
        run = self.some_run() if self.dice.random() < 0.3 else None
        self.add_step("kill", run, whom=whom, pick=round(self.dice.random(), 3))

    def is_busy(self, part: str) -> bool:
        return self.at < self.busy.get(part, 0.0)

    def kill_part(self) -> None:
        part = self.dice.choice([*self.workers, "worker", "gateway", "scheduler", "temporal"])
        if not self.is_busy(part):
            self.add_step("kill part", part=part)
            self.busy[part] = self.at + 5

    def freeze(self) -> None:
        part = self.dice.choice([*self.workers, "worker", "gateway", "scheduler", "temporal"])
        if self.is_busy(part):
            return
        seconds = round(self.dice.choice([self.dice.uniform(0.5, 4), self.dice.uniform(8, 14)]), 2)
        self.add_step("freeze", part=part, seconds=seconds)
        self.busy[part] = self.at + seconds + 4

    def lock(self) -> None:
        """Lock the database, so that no other process can write to it."""
        if self.is_busy("database"):
            return
        seconds = round(self.dice.uniform(0.5, 9), 2)
        self.add_step("lock", part="database", seconds=seconds)
        self.busy["database"] = self.at + seconds + 4

    def hide(self) -> None:
        """Unmount the disk with the tasks for a while, so that the cluster cannot be read and
        reports this.
        """
        if self.is_busy("disk"):
            return
        seconds = round(self.dice.uniform(0.5, 6), 2)
        self.add_step("hide", part="disk", seconds=seconds)
        self.busy["disk"] = self.at + seconds + 6

    def burst(self) -> None:
        """Send several requests about one run at nearly the same moment."""
        run = self.some_run()
        for _ in range(self.dice.randint(2, 4)):
            after, what = self.dice.uniform(0, 0.6), self.dice.randrange(6)
            if what == 0:
                self.add_step(
                    "stop", run, after, way="gateway", force=self.dice.random() < 0.4, times=2
                )
            elif what == 1:
                self.add_step("cancel", run, after)
            elif what == 2:
                self.add_step("terminate", run, after)
            elif what == 3:
                self.add_step(
                    "resume", run, after, way="gateway", times=2, rerun=self.dice.random() < 0.3
                )
            elif what == 4:
                self.add_step("add", run, after, tasks=[{"args": self.args()}], twice=True)
            else:
                self.add_step(
                    "kill", run, after, whom=self.dice.choice(["crawler", "runner"]), pick=0.0
                )


def write_plan(seed: int, minutes: float, runs: int) -> Plan:
    """Return the plan of this seed."""
    author = _Author(seed, minutes, runs)
    return Plan(seed, minutes, runs, len(author.workers), author.write())
