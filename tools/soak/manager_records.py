"""Compares what the service reports about the managers of a plan with their runs and the journals
of their crawlers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from crawler_lifecycle.cli.problems import CommandFailed
from tests.e2e.harness import TERMINAL, moment
from tools.soak.checks import CLOCK_S
from tools.soak.harness import SoakHarness
from tools.soak.journal import Ask, Deeds, Process
from tools.soak.manager_judge import most_at_once
from tools.soak.plan import Plan, Step

#: The first number of their runs, which is above the numbers of other runs in a plan.
FIRST = 100_000
#: Requests that end a manager.
STOPS = ("stop", "leave")


def managers(harness: SoakHarness) -> dict[int, int]:
    """The managers of the plan that were created, with their number in the plan and their recorded
    number.
    """
    rows = harness.query("SELECT flow_id, manager_id FROM manager")
    return {int(flow.removeprefix("M")): manager_id for flow, manager_id in rows}


def runs_of_managers(harness: SoakHarness) -> dict[int, int]:
    """The runs of the managers, by a number for the judge."""
    found = harness.query("SELECT run_id FROM run_history WHERE request_id LIKE ?", "manager/%")
    return {FIRST + run_id: run_id for (run_id,) in found}


def asked_of_runs(harness: SoakHarness) -> list[Ask]:
    """The stops of managers as stops of their runs. Any of the runs may have received a stop, but
    none must have received one.
    """
    found, known = list[Ask](), harness.deeds.asks
    for number, manager_id in managers(harness).items():
        stops = [
            ask
            for ask in known
            if ask.manager == number and ask.way in STOPS and ask.answer != "no"
        ]
        runs = harness.query(
            "SELECT run_id, attempt FROM run_history WHERE request_id LIKE ?",
            f"manager/{manager_id}/%",
        )
        for run_id, attempt in runs if stops else []:
            # Its runs are stopped when its workflow reaches this step.
            more = {
                "kind": "stop",
                "manager": 0,
                "run": FIRST + run_id,
                "answer": "unknown",
                "answered": float("inf"),
            }
            for ask in stops:
                for kind in ("stop", "force_stop"):
                    key, force = (
                        f"manager/{manager_id}/{attempt}/{kind}",
                        any(one.force for one in stops),
                    )
                    found.append(replace(ask, **more, key=key, force=force))
    return [ask for ask in found if ask not in known]


def let_go_on(harness: SoakHarness) -> None:
    """Resume paused managers, because a plan may have resumed them while nobody could receive the
    request.
    """
    for (manager_id,) in harness.query(
        f"SELECT manager_id FROM manager WHERE paused AND status NOT IN {TERMINAL}"
    ):
        with suppress(CommandFailed):
            harness.gateway.post(f"/v1/managers/{manager_id}/resume")


def unsettled(harness: SoakHarness) -> list[str]:
    """Return the managers that have not ended."""
    rows = harness.query(
        f"SELECT flow_id, status, waiting_for, error FROM manager WHERE status NOT IN {TERMINAL}"
    )
    return [
        f"manager {flow} is {status}, waits for {waiting}, {error}"
        for flow, status, waiting, error in rows
    ]


def check_managers(
    harness: SoakHarness, plan: Plan, deeds: Deeds, processes: Sequence[Process]
) -> Iterator[str]:
    """Return every violation of a manager that has ended, as a sentence."""
    known = managers(harness)
    asked = {step.more["manager"]: step for step in plan.steps if step.kind == "manage"}
    for ask in deeds.asks:
        if ask.kind == "manage" and ask.answer == "ok" and ask.manager not in known:
            yield f"M{ask.manager} was accepted and is not on record: {ask}"
    for number in known.keys() - asked.keys():
        yield f"manager M{number} is on record, and nobody started it"
    for number in known.keys() & asked.keys():
        one = _Manager(harness, known[number], asked[number], deeds, processes)
        yield from (f"M{number} (manager {known[number]}): {text}" for text in one.violations())


class _Manager:
    """One manager, its jobs, its runs, and what it executed."""

    def __init__(
        self,
        harness: SoakHarness,
        manager_id: int,
        step: Step,
        deeds: Deeds,
        processes: Sequence[Process],
    ) -> None:
        ((self.status, self.outcome, self.cause, ended_at, self.good, self.bad),) = harness.query(
            "SELECT status, outcome, cause, ended_at, good, bad FROM manager WHERE manager_id = ?",
            manager_id,
        )
        self.ended_at = moment(ended_at).timestamp() if ended_at is not None else 0.0
        self.items = harness.query(
            "SELECT seq, retry, state, run_id, outcome FROM manager_item WHERE manager_id = ?",
            manager_id,
        )
        rows = harness.query(
            "SELECT run_id, request_id, status, outcome FROM run_history WHERE request_id LIKE ?",
            f"manager/{manager_id}/%",
        )
        self.runs = {
            run_id: (request_id, status, outcome) for run_id, request_id, status, outcome in rows
        }
        self.processes = [process for process in processes if process.run_id in self.runs]
        self.asks = [ask for ask in deeds.asks if ask.manager == step.more["manager"]]
        self.stops = [ask for ask in self.asks if ask.way in STOPS and ask.answer != "no"]
        self.jobs, self.cap = step.more["jobs"], step.more["cap"]

    def violations(self) -> Iterator[str]:
        if self.status not in TERMINAL:
            return  # reported as not settled
        yield from self._end()
        yield from self._jobs()
        if (most := most_at_once(self.processes)) > self.cap:
            yield f"{most} crawls of it executed at once, and its window is {self.cap}"
        if any(ask.way == "leave" for ask in self.stops):
            return  # its runs continue
        for process in self.processes:
            if process.last > self.ended_at + CLOCK_S:
                yield f"it had ended, and this executed: {process}"

    def _end(self) -> Iterator[str]:
        end = (self.status, self.outcome)
        right = {("COMPLETED", "finished")} | ({("FAILED", "cancelled")} if self.stops else set())
        if end not in right:
            yield f"it is {end}, expected {right}: {self.cause}"

    def _jobs(self) -> Iterator[str]:
        """Check that each job and each of its tries executed once, and that each end equals that of
        its run.
        """
        numbers = [(seq, retry) for seq, retry, *_ in self.items if seq is not None]
        requests = [request_id for request_id, *_ in self.runs.values()]
        if len(set(requests)) != len(requests) or len(self.runs) > len(numbers):
            yield f"{len(self.runs)} runs of {len(numbers)} tries: {sorted(requests)}"
        for seq, retry, state, run_id, outcome in self.items:
            if state != "ended" or run_id is None:
                continue
            of_run = self.runs.get(run_id)
            if of_run is None or of_run[2] != outcome:
                yield f"job {seq}.r{retry} ended {outcome}, and its run {run_id} is {of_run}"
        if (self.status, self.outcome) == ("COMPLETED", "finished"):
            yield from self._complete()

    def _complete(self) -> Iterator[str]:
        sealed = sum(ask.kind == "manage" and ask.answer == "ok" for ask in self.asks) > 1
        seqs = sorted({seq for seq, *_ in self.items if seq is not None})
        if sealed and seqs != list(range(1, len(self.jobs) + 1)):
            yield f"it finished with the jobs {seqs} of {len(self.jobs)}"
        for seq, retry, state, run_id, outcome in self.items:
            if state not in ("ended", "skipped"):
                yield f"it finished, and job {seq}.r{retry} (run {run_id}) is {state}, {outcome}"
        good = sum(of_run[1] == "COMPLETED" for of_run in self.runs.values())
        if (self.good, self.bad) != (good, len(self.runs) - good):
            yield (
                f"it counts {self.good} good and {self.bad} bad, its runs are {good} good of "
                f"{len(self.runs)}"
            )
