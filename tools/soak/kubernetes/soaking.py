"""One soak from its first run to its verdict."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError

from crawler_lifecycle.clusters.kubernetes.jobs.finalizers import list_held, remove_finalizer
from crawler_lifecycle.ports.runs import RunRow
from tests.kubernetes.cluster.cluster import Cluster
from tools.soak.kubernetes.harness import Harness, harness
from tools.soak.kubernetes.judge import (
    Case,
    cases,
    evidence,
    judge_memory,
    judge_pods,
    judge_run,
    judge_task,
)
from tools.soak.kubernetes.plan import CRAWLERS, Plan, PlannedRun, Step
from tools.soak.kubernetes.record import FINALIZER
from tools.soak.kubernetes.troubles import Troubles

#: The seconds after which everything that has not ended is a violation. Nothing that ends sooner
#: waits for this.
PATIENCE_S = 150.0


@dataclass
class Verdict:
    """The result of a soak."""

    plan: Plan
    violations: list[str] = field(default_factory=list)
    """Each with the run's plan, what was done, and the evidence."""
    counts: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        watched = "observed" if self.plan.observed else "unobserved"
        said = ", ".join(f"{n} {what}" for what, n in self.counts.items())
        return f"seed {self.plan.seed}, {watched}: {said}; {len(self.violations)} violations"


async def soak(client: Client, folder: Path, cluster: Cluster, plan: Plan) -> Verdict:
    """Execute a plan, wait until everything has ended, and judge.

    ``cluster`` was started with ``record.flags(folder)``.
    """
    verdict = Verdict(plan)
    async with harness(client, folder, cluster, plan) as here:
        troubles = Troubles(here)
        await asyncio.gather(*(_at(here, one, troubles) for one in [*plan.runs, *plan.steps]))
        here.say("the plan is over")
        await _settle(here, verdict)
        await asyncio.to_thread(_judge, here, verdict)
        (folder / "diary.txt").write_text("\n".join(here.diary))
    return verdict


async def _at(here: Harness, what: PlannedRun | Step, troubles: Troubles) -> None:
    await asyncio.sleep(max(0.0, here.began + what.at - time.monotonic()))
    if isinstance(what, Step):
        await troubles.play(what)
    else:
        await here.start(what)
        here.say("started", what.number)


# --- settling


async def _settle(here: Harness, verdict: Verdict) -> None:
    """Undo all faults, stop everything that does not end by itself, and wait until nothing happens
    any more.
    """
    for name, part in [*here.cluster.parts().items(), *here.services.items()]:
        assert part.alive(), f"the soak left {name} down"
    begin = time.monotonic()
    while time.monotonic() < begin + PATIENCE_S:
        live = [number for number in here.runs if not await _is_over(here, number)]
        if not live:
            break
        patient = time.monotonic() < begin + 15
        for number in live:
            by_itself = any(
                "RUN_FOR" in key for key in CRAWLERS[here.runs[number].planned.crawler].env
            )
            if not (patient and by_itself):
                await _stop(here, number)
        await asyncio.sleep(3 if patient else 6)
        if not patient:
            await here.audit()
    else:
        verdict.violations += [
            f"run {n}: it has not ended:\n" + "\n".join(here.told(n)) for n in live
        ]
    here.say("every run has ended")
    await here.until(lambda: not any(pod.executes for pod in here.recorder.pods), 30)
    await _audited(here, verdict)
    await _released(here, verdict)


async def _stop(here: Harness, number: int) -> None:
    row = await asyncio.to_thread(here.row, number)
    if row is None or row.stop is not None:
        return
    try:
        await here.signal(number, "stop", {"request_id": "end", "requested_by": "the soak"})
        here.say("stopped, because it does not end by itself", number)
    except RPCError as error:
        here.say(f"cannot be stopped: {error}", number)


async def _is_over(here: Harness, number: int) -> bool:
    row = await asyncio.to_thread(here.row, number)
    if row is not None:
        return str(row.status) in ("COMPLETED", "FAILED")
    found = await here.testbed.client.get_workflow_handle(f"soak/{number}").describe()
    # The process ended before it could write a row, so there never was a run.
    over = found.status is WorkflowExecutionStatus.TERMINATED
    if over:
        here.unborn.add(number)
    return over


async def _audited(here: Harness, verdict: Verdict) -> None:
    """Check that an audit repairs what it finds after everything has ended, and that the next audit
    finds nothing.
    """
    for _ in range(8):
        report = await here.audit()
        here.say(
            f"audit: found {report.found}, repaired {report.repaired}, troubles {report.troubles}"
        )
        for finding in report.findings:
            here.say(f"audit: {finding.kind} {finding.detail}; repaired: {finding.repaired}")
        if not report.found and not report.troubles:
            return
        await asyncio.sleep(4)
    verdict.violations.append(
        (
            f"an audit after all other audits finds {report.found}: {report.findings}, troubles "
            f"{report.troubles}\n"
        )
        + "\n".join(here.diary[-60:])
    )


async def _released(here: Harness, verdict: Verdict) -> None:
    """Check that there is a reason for each finalizer that stays longer, and that an
    administrator's ``release`` removes all of them.
    """
    await here.until(lambda: not _held(here), 15)
    for run_id, text in _held(here):
        verdict.violations.append(
            f"run id {run_id}: {text}\n" + "\n".join(here.recorder.trail(f"crawl-{run_id}-"))
        )
    for pod in await asyncio.to_thread(list_held, here.rights.api):
        await asyncio.to_thread(remove_finalizer, here.rights.api, pod)
    left = [
        p["metadata"]["name"]
        for p in here.pods()
        if FINALIZER in p["metadata"].get("finalizers", [])
    ]
    if left:
        verdict.violations.append(f"our finalizer holds {left} after release")


def _held(here: Harness) -> list[tuple[int, str]]:
    found = []
    for pod in here.recorder.pods:
        if pod.removed is not None or FINALIZER not in pod.last["metadata"].get("finalizers", []):
            continue
        run, _, _ = pod.key
        rows = here.testbed.store.tasks.recorded_tasks([pod.key])
        proved = not rows or rows[0].exit_code is not None or pod.done is None
        if proved:  # An end without evidence keeps its object, so that an audit can compare it.
            found.append((run, f"our finalizer holds {pod.name}, whose row is {rows}"))
    return found


# --- judging


def _judge(here: Harness, verdict: Verdict) -> None:
    rows: dict[int, tuple[int, RunRow, list[Case]]] = {}
    wrongs: dict[int, list[str]] = {}
    for number in here.runs:
        run = here.row(number)
        if run is None and number in here.unborn:
            continue
        if run is None:
            verdict.violations.append(
                f"planned run {number} has no row\n" + "\n".join(here.told(number))
            )
            continue
        mine = cases(here, run, number)
        rows[run.run_id] = number, run, mine
        stopped = any(case.stops.earliest is not None for case in mine)
        wrong = list(judge_run(run, [case.row for case in mine], stopped)) + list(
            judge_memory(mine)
        )
        for case in mine:
            wrong += [f"{case}\n  {text}" for text in judge_task(case)]
        wrongs[run.run_id] = wrong
    corrected = {
        (run, c.row.task_index)
        for run, (_, _, mine) in rows.items()
        for c in mine
        if c.tells_of_two
    }
    for run_id, text in judge_pods(here.recorder, corrected):
        wrongs[run_id].append(text)
    for run_id, texts in wrongs.items():
        if texts:
            number, run, mine = rows[run_id]
            verdict.violations.append(_violation(here, number, run, mine, "\n  ".join(texts)))
    ends = [str(c.row.status) for _, _, mine in rows.values() for c in mine]
    verdict.counts = {"runs": len(rows), "rows": len(ends), "pods": len(here.recorder.pods)}
    verdict.counts |= {status: ends.count(status) for status in sorted(set(ends))}
    verdict.counts["corrections"] = sum(
        len(c.corrections) for _, _, mine in rows.values() for c in mine
    )


def _violation(here: Harness, number: int, run: RunRow, mine: Sequence[Case], text: str) -> str:
    """Return everything that is known about the run."""
    lines = [
        (
            f"run {number} (run id {run.run_id}, {run.crawler}, attempt {run.attempt}, "
            f"{run.status} / "
            f"{run.outcome}):"
        )
    ]
    lines += [f"  {text}", " its plan:", *(f"  {line}" for line in here.plan.on(number))]
    lines += [" what was done:", *(f"  {line}" for line in here.told(number)), " its rows:"]
    for case in mine:
        lines.append(f"  {case}")
        for t in case.transitions:
            when = f"{t.committed_at:%H:%M:%S.%f} cluster {t.cluster_time}"
            lines.append(
                f"    {t.from_status} -> {t.to_status} at {when} by {t.source} {dict(t.evidence)}"
            )
        lines += [
            f"    correction {c.kind}: {c.believed} -> {c.truth}, {dict(c.evidence)}"
            for c in case.corrections
        ]
        lines += evidence(case.pods, case.job)
    lines += [
        f" cancellations: {here.testbed.store.runs.cancellations(run.run_id)}",
        " who asked the API server:",
    ]
    lines += [f"  {line}" for line in here.recorder.trail(f"crawl-{run.run_id}-")]
    return "\n".join(lines)
