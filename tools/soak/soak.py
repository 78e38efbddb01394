"""One soak: a stack, a plan, the time until everything has ended, and the comparison."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crawler_lifecycle.cli.problems import CommandFailed
from tests.e2e.harness import TERMINAL, Row
from tests.support.mariadb import MariaDb
from tools.soak.checks import Case, check
from tools.soak.deliveries import check_archive, check_events, check_findings, check_workflows
from tools.soak.harness import SoakHarness
from tools.soak.journal import Ask, Process, clock, read_journals
from tools.soak.listener import Listener
from tools.soak.manager_records import (
    FIRST,
    asked_of_runs,
    check_managers,
    let_go_on,
    runs_of_managers,
    unsettled,
)
from tools.soak.plan import ENDLESS, Plan, Step
from tools.soak.run_records import read_record
from tools.soak.sites import LAST, SITES, check_sites

ROOT = Path(__file__).resolve().parents[2]
#: The seconds within which everything that can end by itself has ended, and everything has been
#: delivered. This is far longer than needed: a worker that hangs is given up after three minutes.
SETTLE_S = 420.0
#: An audit repairs what an earlier audit also found, so it is requested again and again until
#: everything has ended.
AUDIT_EVERY_S = 5.0
#: The seconds within which a listener that was cut at the last moment has connected again and
#: received the rest.
LISTEN_S = 90.0
#: A crawler writes five beats a second, but a busy machine may not execute it for this many
#: seconds.
SILENT_S = 20.0


@dataclass
class Soak:
    """Everything about one soak.

    ``violations`` is empty if the service reported only the truth.
    """

    harness: SoakHarness
    plan: Plan
    say: Callable[[str], None] = print
    violations: list[str] = field(default_factory=list)
    told: set[tuple[int, str]] = field(default_factory=set)

    def run(self) -> list[str]:
        for n in range(2, self.plan.workers + 1):
            self.harness.deploy(ROOT, f"worker-{n}")
        with Listener(lambda: str(self.harness.stack.addresses["gateway"])) as listener:
            self._play()
            self._check_stream(listener)
        self.final_audit()
        for text in self.harness.deeds.complaints:
            self.violate(None, text)
        self.say(self.summary())
        return self.violations

    def _play(self) -> None:
        """Execute the plan, wait until everything has ended, and compare."""
        self.act()
        self.say(f"{clock(time.time())} the plan is carried out; {len(self.runs())} runs")
        self.repair()
        self.settle("what ends by itself", self._may_go_on)
        self.compare("while endless runs go on", self._may_go_on)
        self.stop_the_rest()
        self.settle("the rest", lambda run_id: False)
        self.compare("at the end", lambda run_id: False)

    def _check_stream(self, listener: Listener) -> None:
        """Check that a listener gets every event once, in order, however often the gateway is
        killed.
        """
        numbers = [
            row[0] for row in self.harness.query("SELECT seq FROM outbox_event ORDER BY seq")
        ]
        listener.caught_up(numbers[-1], LISTEN_S)
        heard = listener.numbers[: len(numbers)]
        if heard != numbers:
            missing, twice = sorted(set(numbers) - set(heard)), len(heard) - len(set(heard))
            self.violate(
                None,
                f"of {len(numbers)} events the stream left out {missing[:20]}, {twice} came twice",
            )
        self.say(
            f"{clock(time.time())} heard {len(heard)} events in {listener.connections} connections"
        )

    def summary(self) -> str:
        """Check that enough happened, because a soak in which nothing happened proves nothing."""
        harness, deeds = self.harness, self.harness.deeds

        def counted(values: Iterable[object]) -> str:
            return (
                ", ".join(
                    f"{number} {value}"
                    for value, number in sorted(Counter(map(str, values)).items())
                )
                or "none"
            )

        rows = harness.query("SELECT attempt, status, outcome FROM run_history")
        tasks = harness.query("SELECT status, outcome FROM task_history")
        kinds = harness.query("SELECT kind FROM correction")
        managers = harness.query("SELECT status, outcome FROM manager")
        findings = harness.query("SELECT kind FROM audit_finding")
        ran = len(read_journals(harness.journals))
        return "\n".join(
            [
                (
                    f"runs: {counted(f'{s}/{o}' for _, s, o in rows)}; attempts "
                    f"{sum(row[0] for row in rows)}"
                ),
                (
                    f"managers: {counted('/'.join(row) for row in managers)}; "
                    f"{len(runs_of_managers(harness))} runs of them"
                ),
                f"tasks: {counted('/'.join(row) for row in tasks)}",
                f"processes: {ran}; killed: {counted(kill.whom for kill in deeds.kills)}",
                f"asked: {counted(f'{ask.kind} {ask.answer}' for ask in deeds.asks)}",
                (
                    f"corrections: {counted(kind for (kind,) in kinds)}; findings: "
                    f"{counted(kind for (kind,) in findings)}"
                ),
            ]
        )

    # --- the plan ---------------------------------------------------------------------------------

    def act(self) -> None:
        """Execute every step at its time, each in its own thread, so that a step that hangs delays
        no other step.
        """
        began = time.monotonic()
        with ThreadPoolExecutor(48) as pool:
            for step in self.plan.steps:
                time.sleep(max(0.0, began + step.at - time.monotonic()))
                self.harness.deeds.note(step.number, str(step))
                pool.submit(self.harness.do, step)

    def runs(self) -> dict[int, int]:
        """Return the runs that were created, by their number in the plan."""
        numbers = [
            step.run for step in self.plan.steps if step.kind == "start" and step.run is not None
        ]
        own = {
            number: found
            for number in numbers
            if (found := self.harness.run_id(number)) is not None
        }
        return own | runs_of_managers(self.harness)

    def request(self, number: int) -> Row:
        """Return what was requested. A job of a manager is one task, without limits of its own."""
        if number >= FIRST:
            return {"limits": {}}
        return next(
            s.more["request"] for s in self.plan.steps if s.kind == "start" and s.run == number
        )

    # --- settling ---------------------------------------------------------------------------------

    def repair(self) -> None:
        for part in self.harness.stack.supervisor._kept.values():
            part.wanted = True
        self.harness.stack.supervisor.wait_healthy(timeout_s=120)
        for site in SITES:
            for what, body in LAST:
                more = {"site": site, "what": what, "body": body}
                self.harness.do(Step(0, 0.0, "site", None, more))
        let_go_on(self.harness)

    def settle(self, what: str, may_go_on: Callable[[int], bool]) -> None:
        """Wait until every run has ended, except runs that may continue. Audits execute in the
        meantime, as in production.
        """
        end, audited = time.monotonic() + SETTLE_S, 0.0
        while time.monotonic() < end:
            if time.monotonic() - audited >= AUDIT_EVERY_S:
                left, audited = self._audit(), time.monotonic()
                if left == 0 and not self._unsettled(may_go_on):
                    return
            time.sleep(0.5)
        for text in self._unsettled(may_go_on):
            self.violate(None, f"{what}: not settled within {SETTLE_S:g} s: {text}")

    def _audit(self) -> int | None:
        """Request an audit that repairs, and return how much it found, or ``None`` if it could not
        determine this.
        """
        try:
            answer = self.harness.gateway.post("/v1/audit", {"repair": True})
            report = answer.get("report") or self.harness.gateway.audit_report(
                str(answer["audit_id"])
            )
        except CommandFailed:
            return None
        if report is None or report["problems"]:
            return None
        return int(sum(report["found"].values()))

    def _unsettled(self, may_go_on: Callable[[int], bool]) -> list[str]:
        found = []
        columns = "run_id, status, stage, waiting_for, look_error"
        for run_id, status, stage, waiting_for, error in self.harness.query(
            f"SELECT {columns} FROM run_history"
        ):
            if status not in TERMINAL and not may_go_on(run_id):
                found.append(f"run {run_id} is {status}, {stage}, waits for {waiting_for}, {error}")
        sql = (
            "SELECT r.run_id, r.attempt FROM run_history r LEFT JOIN export_record x ON x.run_id = "
            "r.run_id "
            f"AND x.attempt = r.attempt WHERE r.status IN {TERMINAL} AND (x.status IS NULL OR "
            "x.status = 'failed')"
        )
        found += [
            f"run {run_id} has no export of attempt {attempt}"
            for run_id, attempt in self.harness.query(sql)
        ]
        open_ = self.harness.cli_list(
            "ExecutionStatus='Running' AND WorkflowType!='CrawlAuditWorkflow'"
        )
        found += unsettled(self.harness)
        live = set(self.harness.open_runs())
        for workflow_id in (row["execution"]["workflowId"] for row in open_):
            if self.harness.run_of(workflow_id) not in live:
                found.append(f"the workflow {workflow_id} is open")
        return found

    def _may_go_on(self, run_id: int) -> bool:
        """Return whether something of the run executes forever, and nobody requested its end."""
        beating = [
            p
            for p in read_journals(self.harness.journals, run_id)
            if time.time() - p.last < SILENT_S
        ]
        status = self.harness.status(run_id)
        return status == "PROCESSING" and any(float(p.args["seconds"]) >= ENDLESS for p in beating)

    def stop_the_rest(self) -> None:
        for run_id in self.harness.open_runs():
            number = next(number for number, known in self.runs().items() if known == run_id)
            self.harness.deeds.note(0, f"the soak stops run {run_id}")
            for _ in range(20):
                sent = time.time()
                body: Row = {
                    "request_id": f"soak-end-{run_id}",
                    "requested_by": "soak",
                    "force": True,
                }
                try:
                    answer, detail = self.harness._http("POST", f"/v1/runs/{run_id}/stop", body)
                except OSError as error:
                    answer, detail = "unknown", str(error)
                self._asked(number, sent, answer, detail, str(body["request_id"]))
                if answer == "ok":
                    break
                time.sleep(1)

    def _asked(self, number: int, sent: float, answer: str, detail: str, key: str) -> None:
        more: dict[str, Any] = {"force": True, "key": key, "way": "gateway"}
        self.harness.deeds.asked(Ask(0, number, "stop", sent, time.time(), answer, detail, **more))

    # --- the comparison ---------------------------------------------------------------------------

    def compare(self, when: str, may_go_on: Callable[[int], bool]) -> None:
        """Compare all evidence."""
        harness, runs = self.harness, self.runs()
        journals: dict[int, list[Process]] = {}
        for process in read_journals(harness.journals):
            journals.setdefault(process.run_id, []).append(process)
        self._starts(runs, journals)
        for ask in asked_of_runs(harness):
            harness.deeds.asked(ask)
        for text in check_managers(
            harness, self.plan, harness.deeds, [one for many in journals.values() for one in many]
        ):
            self.violate(None, f"{when}: {text}")
        for number, run_id in runs.items():
            for _ in range(3):
                processes = journals.get(run_id, [])
                case = Case(
                    number,
                    read_record(harness, run_id),
                    processes,
                    harness.deeds,
                    self.request(number),
                )
                found = self._check(case, may_go_on)
                if not found or case.record.ended:
                    break
                # The run continues, and its rows were read one after the other. A status that is
                # really untrue stays untrue.
                time.sleep(1)
                journals[run_id] = read_journals(harness.journals, run_id)
            new = [text for text in found if (number, text) not in self.told]
            self.told |= {(number, text) for text in new}
            if new:
                self.violate(case, *(f"{when}: {text}" for text in new))
        processes = [one for many in journals.values() for one in many]
        for text in check_sites(harness.query, harness.site_asks, processes):
            self.violate(None, f"{when}: {text}")
        for text in check_workflows(harness):
            self.violate(None, f"{when}: {text}")
        self.say(
            f"{clock(time.time())} compared {when}: {len(runs)} runs, {len(self.violations)} "
            "violations"
        )

    def _check(self, case: Case, may_go_on: Callable[[int], bool]) -> list[str]:
        found = [*check(case), *check_findings(self.harness, case)]
        if not case.record.ended:
            if not may_go_on(case.record.run_id):
                found.append(
                    f"the run is {case.record.run['status']} and nothing of it executes forever"
                )
            return found
        found += check_events(self.harness, case.record)
        # A crawler that began without its disk could not write its items anywhere.
        hidden = any(
            a - 1 < p.begin < b + 1 for a, b in self.harness.deeds.hidden for p in case.processes
        )
        taken = any(
            kill.whom in ("folder", "disk")
            for task in case.record.tasks
            for kill in case.kills(task)
        )
        if not hidden and not taken:
            found += check_archive(self.harness, case.record)
        return found

    def _starts(self, runs: dict[int, int], journals: dict[int, list[Process]]) -> None:
        for ask in self.harness.deeds.asks:
            if ask.kind == "start" and ask.answer == "ok" and ask.run not in runs:
                self.violate(None, f"R{ask.run} was accepted and is not on record: {ask}")
        for run_id in set(journals) - set(runs.values()):
            self.violate(
                None, f"run {run_id} executed, and nobody started it: {journals[run_id][0]}"
            )
        known = {row[0] for row in self.harness.query("SELECT run_id FROM run_history")}
        for run_id in known - set(runs.values()):
            self.violate(None, f"run {run_id} is on record, and nobody started it")

    def final_audit(self) -> None:
        """Check that another audit then finds nothing."""
        for _ in range(10):
            answer = self.harness.gateway.post("/v1/audit", {"repair": False})
            report = answer.get("report") or self.harness.gateway.audit_report(
                str(answer["audit_id"])
            )
            if report is not None:
                if report["found"] or report["problems"]:
                    self.violate(
                        None,
                        f"the audit at the end: {report['found']} {report['problems']} {report}",
                    )
                return
            time.sleep(1)
        self.violate(None, "the audit at the end does not come to an end")

    def violate(self, case: Case | None, *texts: str) -> None:
        """Write the violations to a file, with the steps that affected the run and the evidence."""
        if case is None:
            self.violations += texts
            for text in texts:
                self.say(f"VIOLATION: {text}")
            return
        head = f"R{case.number} (run {case.record.run_id})"
        lines = [f"VIOLATION: {head}: {text}" for text in texts]
        self.violations += [f"{head}: {text}" for text in texts]
        mine = self.harness.deeds.steps_of(case.number, case.record.run_id)
        notes = [
            (at, n, text) for at, n, text in self.harness.deeds.log if n in mine or _global(text)
        ]
        told = [(a.sent, a.step, f"  {a.kind} {a.answer} in {a.answered - a.sent:.2f} s: {a.detail}")
                for a in self.harness.deeds.asks if a.run == case.number]  # fmt: skip
        lines += ["steps:", *(f"  {clock(at)} {n}: {text}" for at, n, text in sorted(notes + told))]
        lines += [
            "journal:",
            *(f"  {process}" for process in case.processes),
            "record:",
            str(case.record),
            "",
        ]
        self.say("\n".join(lines))


def _global(text: str) -> bool:
    return any(
        word in text
        for word in ("part=", "kill -9 of worker", "kill -9 of temporal", "audit repair")
    )


def soak(
    folder: Path, plan: Plan, say: Callable[[str], None] = print, server: MariaDb | None = None
) -> list[str]:
    """Execute the plan on a stack below ``folder``, and return the violations."""
    with SoakHarness.up(folder, server) as harness:
        return Soak(harness, plan, say).run()
