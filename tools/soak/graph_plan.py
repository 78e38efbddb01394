"""Random graphs and the commands of their clients, derived only from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from crawler_lifecycle.domain.values import to_json
from crawler_lifecycle.features.graphs.domain.spec import (
    GraphOptions,
    GraphSpec,
    StepKind,
    StepSpec,
)
from tools.soak.graph_steps import some_value

#: The module with the functions that they call.
MODULE = "graph_steps"
STEPS_MAX, DEPTH_MAX, CRAWLS_MAX, MANAGERS_MAX = 300, 4, 8, 1
#: The number of steps of most graphs, and how many of ten graphs are larger.
USUAL, LARGE_IN_TEN = 60, 2


@dataclass(frozen=True)
class Command:
    """A command of a client: ``cancel``, ``retry``, ``append``, ``stop`` or ``force-stop``."""

    after: float
    """Seconds after the one before."""
    what: str
    paths: tuple[str, ...] | None = None
    """``None``: all."""
    fresh: bool = False
    steps: tuple[StepSpec, ...] = ()

    def __str__(self) -> str:
        of = "all" if self.paths is None else ", ".join(self.paths)
        more = f"{len(self.steps)} steps" if self.steps else of
        return f"{self.what} {more}{' fresh' if self.fresh else ''} after {self.after:.1f} s"

    def covers(self, path: str) -> bool:
        """Return whether the command is about this step, or about a graph that contains it."""
        return self.paths is None or any(f"{path}/".startswith(f"{one}/") for one in self.paths)


@dataclass(frozen=True)
class GraphPlan:
    """One graph, the commands while it executes, and the commands after its end."""

    key: str
    spec: GraphSpec
    commands: Sequence[Command] = ()
    later: Sequence[Command] = field(default=())

    def __str__(self) -> str:
        crawls, managers = (
            sum(s.kind is kind for s in self.spec.steps)
            for kind in (StepKind.CRAWL, StepKind.MANAGER)
        )
        asked = [*map(str, self.commands), *(f"{one} of its end" for one in self.later)]
        fails = " fails fast;" if self.spec.options.fail_fast else ""
        return (
            f"{self.key}: {len(self.spec.steps)} steps, {crawls} crawls, {managers} "
            f"managers;{fails} "
            f"{'; '.join(asked) or 'nothing asked'}"
        )


def write_plans(seed: int, graphs: int, steps: int = STEPS_MAX) -> list[GraphPlan]:
    """Yield the plans of this seed. ``steps`` is the maximum number of steps of one graph."""
    return [_Author(f"soak-{seed}-{n}", steps).write() for n in range(1, graphs + 1)]


class _Author:
    """Builds one random graph."""

    def __init__(self, key: str, steps: int) -> None:
        self.key, self.dice, self.most = key, random.Random(key), steps
        self.crawls = self.managers = 0
        pools = {"db": "2"} if self.often(2) else {}
        self.options = GraphOptions(
            check_deps=not self.often(2),
            fail_fast=self.often(1),
            max_parallel=self.dice.randint(3, 10) if self.often(1) else None,
            pools=pools,
        )

    def often(self, in_ten: float) -> bool:
        return self.dice.random() < in_ten / 10

    def write(self) -> GraphPlan:
        size = self.dice.randint(
            1, self.most if self.often(LARGE_IN_TEN) else min(USUAL, self.most)
        )
        steps = self.level("", size)
        late, appended = self.late(steps)
        spec = GraphSpec([*late, *steps], self.options, {"soak": self.key})
        commands = (
            [Command(round(self.dice.uniform(0.5, 4), 1), "append", steps=tuple(appended))]
            if appended
            else []
        )
        for _ in range(self.dice.choice([0, 0, 0, 1, 2, 3])):
            commands.append(
                self.command(spec, ["cancel"] * 5 + ["retry"] * 3 + ["stop", "force-stop"])
            )
        self.dice.shuffle(commands)
        later = [self.command(spec, ["retry"]) for _ in range(self.dice.choice([0, 0, 1, 1, 2]))]
        return GraphPlan(self.key, spec, commands, later)

    def command(self, spec: GraphSpec, kinds: list[str]) -> Command:
        what, after = self.dice.choice(kinds), round(self.dice.uniform(0.2, 6), 1)
        some = self.often(8.5) if what == "cancel" else self.often(3) and what == "retry"
        some_paths = tuple(
            self.dice.choice(spec.steps).path for _ in range(self.dice.randint(1, 3))
        )
        return Command(after, what, some_paths if some else None, what == "retry" and self.often(3))

    def late(self, steps: Sequence[StepSpec]) -> tuple[list[StepSpec], list[StepSpec]]:
        """Add steps that wait for steps which are appended later, and the commands that append
        them.
        """
        if self.options.check_deps:
            return [], []
        waiting = [self.step(f"w{n}", ("late0",)) for n in range(self.dice.randint(1, 3))]
        on = tuple(one.path for one in steps if "/" not in one.path and self.often(1))
        return waiting, [self.step("late0", on), self.step("late1", ("late0",))]

    # --- steps

    def level(self, above: str, size: int, depth: int = 0) -> list[StepSpec]:
        """Add this number of steps on one level with their content, where a graph counts before its
        content.
        """
        found: list[StepSpec] = []
        names: list[str] = []
        shape = self.dice.choice(["chain", "layers", "loose", "loose"])
        while len(found) < size:
            name = f"{'abcdef'[depth]}{len(names)}"
            left, deps = size - len(found) - 1, self.deps(names, shape)
            if left and depth < DEPTH_MAX and self.often(2.5):
                found += self.graph(above + name, deps, min(left, self.dice.randint(0, 40)), depth)
            else:
                found.append(self.step(above + name, deps))
            names.append(name)
        return found

    def deps(self, names: list[str], shape: str) -> tuple[str, ...]:
        if shape == "chain":
            return tuple(names[-1:])
        if shape == "layers":
            layer = len(names) // 5
            return tuple(name for name in names[max(0, layer - 1) * 5 : layer * 5] if self.often(6))
        return tuple(
            self.dice.sample(names, min(len(names), self.dice.choice([0, 0, 1, 1, 2, 3, 10])))
        )

    def graph(self, path: str, deps: tuple[str, ...], size: int, depth: int) -> list[StepSpec]:
        """Add a graph within the graph: a fan-out over items, or a separate level with a context."""
        most = self.dice.randint(1, 5) if self.often(3) else None
        ignores = {one: self.often(1) for one in ("ignore_cancelled", "ignore_discarded")}
        if self.often(3):
            group = StepSpec(
                path, StepKind.GRAPH, {"fan_out": True}, deps, max_parallel=most, **ignores
            )
            return [group, *(self.step(f"{path}/{n}", (), self.item()) for n in range(size))]
        job: dict[str, Any] = {"context": {"level": path}} if self.often(5) else {}
        return [StepSpec(path, StepKind.GRAPH, job, deps, max_parallel=most, **ignores)] + (
            self.level(f"{path}/", size, depth + 1) if size else []
        )

    def item(self) -> dict[str, Any]:
        return {"call": f"{MODULE}:item", "style": "item", "item": to_json(some_value(self.dice))}

    def step(self, path: str, deps: tuple[str, ...], job: dict[str, Any] | None = None) -> StepSpec:
        own = {one: self.often(1.2) for one in ("ignore_cancelled", "ignore_discarded")}
        own |= {
            "max_attempts": self.dice.choice([1, 2, 3, 3]),
            "backoff_s": round(self.dice.uniform(0.1, 1), 1),
        }
        own |= {"priority": self.dice.randrange(10)}
        if self.options.pools and self.often(3):
            own |= {"resources": ({"db": self.dice.choice(["1", "1/3", "2"])},)}
        if job is None and self.crawls < CRAWLS_MAX and self.often(0.8):
            self.crawls += 1
            return StepSpec(path, StepKind.CRAWL, self.crawl(), deps, **own)
        if job is None and self.managers < MANAGERS_MAX and self.often(0.3):
            self.managers += 1
            return StepSpec(path, StepKind.MANAGER, self.manager(), deps, **own)
        if job is None:
            style = self.dice.choice(["cascade"] * 4 + ["plain", "worker", "graft"])
            job = {"call": f"{MODULE}:{'Worker' if style == 'worker' else style}", "style": style}
            if style == "graft":
                return StepSpec(
                    path, StepKind.FUNCTION, {**job, "style": "cascade"}, deps, graft=True, **own
                )
            if style != "cascade":
                job["args"] = to_json({name: some_value(self.dice) for name in ("one", "two")})
        return StepSpec(
            path, StepKind.FUNCTION, job, deps, timeout_s=100 if self.often(0.8) else 60, **own
        )

    def manager(self) -> dict[str, Any]:
        argv = [
            "--jobs",
            str(self.dice.randint(0, 5)),
            "--seconds",
            str(round(self.dice.uniform(0, 3), 1)),
        ]
        return {"plan": f"{MODULE}:Stream", "options": {"argv": argv}}

    def crawl(self) -> dict[str, Any]:
        """Return a short crawl that succeeds in most cases."""
        how = self.dice.choice(
            ["finished"] * 8 + ["exit:1", "reason:closespider_itemcount", "silent:1"]
        )
        args = {
            "seconds": str(round(self.dice.choice([0, self.dice.uniform(0, 4)]), 1)),
            "how": how,
        }
        return {
            "crawler": "soak",
            "args": args,
            "poll_minutes": [0.02, 0.03],
            "limits": {"start_check_s": 0.3},
        }
