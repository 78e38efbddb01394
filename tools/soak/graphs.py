"""``python -m tools.soak.graphs --graphs N --seed S [--mariadb]`` executes random graphs while the
components around them are killed at random.

Clients send graphs of functions, real crawls and managers, and cancel, stop, retry and append
steps. In the meantime, workers, the processes with user code, the Temporal server, the database
server, the gateway, the scheduler service and crawlers are killed, and workflows are terminated.
Other clients send texts with unusual characters, and schedules are triggered, backfilled and
deleted. The judges are the ledgers that functions and crawlers keep themselves, and the brute-force
model of a graph.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.graphs import PlatformUnavailable
from crawler_lifecycle.graphs.client import Gateway
from tests.e2e.harness import until
from tools.soak import graph_steps
from tools.soak.api_client import settled
from tools.soak.aside import CLASS as ASIDE
from tools.soak.aside import Aside
from tools.soak.graph_judge import check, lost, of_processes
from tools.soak.graph_plan import MODULE, STEPS_MAX, Command, GraphPlan, write_plans
from tools.soak.graph_records import Asked, GraphCase, read_case, read_ledger
from tools.soak.harness import SoakHarness
from tools.soak.journal import read_journals
from tools.soak.manager_judge import crawlers
from tools.soak.strikes import Striker, options, say, stack, verdict

#: The maximum number of parallel crawls.
SLOTS = 12
#: The seconds within which a graph must end, and after which a client without an answer gives up.
ENDS_S, ASKS_S = 1200.0, 300.0


class Storm:
    """Graphs on one stack, their clients, and the faults."""

    def __init__(
        self, harness: SoakHarness, striker: Striker, plans: Sequence[GraphPlan], at_once: int
    ) -> None:
        self.harness, self.striker, self.plans, self.at_once = harness, striker, plans, at_once
        self.ledger = striker.module.with_name(graph_steps.LEDGER.name)
        self.asked: list[Asked] = []
        self.wrong: list[str] = []
        self.ended = 0
        self._over, self._lock = threading.Event(), threading.Lock()

    def play(self) -> list[str]:
        """Execute everything, and return what was untrue."""
        self.striker.begin()
        aside = Aside(self.harness, MODULE, self.striker.seed)
        until(
            lambda: self.harness.query("SELECT plan FROM plan WHERE plan = ?", MODULE),
            "the module on record",
        )
        aside.begin()
        began, told = time.monotonic(), 0.0
        with ThreadPoolExecutor(self.at_once) as pool:
            clients = [pool.submit(self._client, plan) for plan in self.plans]
            try:
                while not all(client.done() for client in clients):
                    self.striker.turn(self.ended / len(self.plans))
                    if time.monotonic() - told > 10:
                        told = time.monotonic()
                        say(
                            f"{told - began:4.0f} s: {self.ended} of {len(self.plans)} graphs; "
                            f"{self.striker}"
                        )
                    time.sleep(0.3)
            finally:
                self._over.set()
                pool.shutdown(cancel_futures=True)
        for client in clients:
            client.result()
        say(f"all ended after {time.monotonic() - began:.0f} s; {self.striker}")
        aside.end()
        say(str(aside))
        self.harness.stack.supervisor.wait_healthy(timeout_s=120)
        self.wrong += [*self.striker.wrong, *settled(self.harness)]
        self.wrong += [f"the crawler {pid} executes" for pid in crawlers(self.harness.mark)]
        return [*self.wrong, *self._judged(), *aside.judge()]

    # --- clients ----------------------------------------------------------------------------------

    def _client(self, plan: GraphPlan) -> None:
        """Send a graph, send the commands of the plan, and wait until the graph has ended."""
        client = Gateway(str(self.harness.stack.addresses["gateway"]))
        self._until_told(
            plan, Command(0.0, "send"), lambda: client.send(plan.key, plan.spec, name=None, tags=[])
        )
        for command in plan.commands:
            self._over.wait(command.after)
            self._do(plan, client, command)
        ended = self._ends(plan, client)
        for command in plan.later if ended else ():
            self._over.wait(command.after)
            self._do(plan, client, command)
            self._ends(plan, client)
        with self._lock:
            self.ended += 1

    def _do(self, plan: GraphPlan, client: Gateway, command: Command) -> None:
        key, paths = plan.key, command.paths
        if command.what == "append":
            spec = type(plan.spec)(command.steps, plan.spec.options)
            self._until_told(plan, command, lambda: client.append(key, spec))
        elif command.what == "cancel":
            self._ask(plan, command, lambda: client.cancel(key, paths, "the storm"))
        elif command.what == "retry":
            self._ask(
                plan, command, lambda: client.retry(key, paths, cascade=True, fresh=command.fresh)
            )
        else:
            body = {"force": command.what == "force-stop"}
            self._ask(plan, command, lambda: client._call("POST", f"/v1/graphs/{key}/stop", body))

    def _until_told(self, plan: GraphPlan, command: Command, call: Callable[[], object]) -> None:
        """Repeat a request until it has an effect, because a graph that waits for steps would
        otherwise wait forever.
        """
        end = time.monotonic() + ASKS_S
        while not self._over.is_set() and (told := self._ask(plan, command, call)).answer != "ok":
            # An earlier try was executed, but its answer was lost.
            if "there is such a step" in told.detail:
                return
            if time.monotonic() > end:
                self._violate(f"{plan.key}: {command} was refused for {ASKS_S:g} s: {told.detail}")
                return
            self._over.wait(1.0)

    def _ask(self, plan: GraphPlan, command: Command, call: Callable[[], object]) -> Asked:
        sent = time.time()
        try:
            answer, detail = "ok", str(call())
        except (LifecycleError, KeyError) as error:
            answer, detail = "no", str(error)
        except PlatformUnavailable as error:
            answer, detail = "unknown", str(error)
        told = Asked(plan.key, command, sent, time.time(), answer, detail[:300])
        with self._lock:
            self.asked.append(told)
        return told

    def _ends(self, plan: GraphPlan, client: Gateway) -> bool:
        end = time.monotonic() + ENDS_S
        while time.monotonic() < end and not self._over.is_set():
            with suppress(TimeoutError, PlatformUnavailable):
                client.wait(plan.key, 20)
                return True
        row = self.harness.query(
            "SELECT state, waiting_for FROM graph WHERE graph_key = ?", plan.key
        )
        self._violate(f"{plan.key} has not ended within {ENDS_S:g} s: {row}")
        return False

    def _violate(self, text: str) -> None:
        say(f"WRONG: {text}")
        with self._lock:
            self.wrong.append(text)

    # --- the judgement ----------------------------------------------------------------------------

    def _judged(self) -> list[str]:
        client = Gateway(str(self.harness.stack.addresses["gateway"]))
        ledger, processes, strikes = (
            read_ledger(self.ledger),
            read_journals(self.harness.journals),
            self.striker.strikes,
        )
        found, cases = list[str](), list[GraphCase]()
        for plan in self.plans:
            asked = [one for one in self.asked if one.key == plan.key]
            executions = ledger.pop(plan.key, [])
            try:
                cases.append(
                    read_case(
                        self.harness,
                        plan,
                        client,
                        processes,
                        executions,
                        asked=asked,
                        strikes=strikes,
                    )
                )
            except KeyError:
                found.append(f"{plan.key} is not on record")
            else:
                found += check(cases[-1])
        found += of_processes(cases)
        found += [f"functions of a graph {key} were executed, and nobody sent it" for key in ledger]
        self._tell(cases)
        return found

    def _tell(self, cases: Sequence[GraphCase]) -> None:
        """Check that enough happened, because a storm in which nothing happened proves nothing."""
        states = Counter(case.graph["state"] for case in cases)
        steps = Counter(row["state"] for case in cases for row in case.rows.values())
        executed = [one for case in cases for one in case.executions]
        hows = Counter(one.how or "killed" for one in executed)
        again = len(executed) - sum(len(case.by_path) for case in cases)
        struck = Counter(what for case in cases for _, what in lost(case))
        answers = Counter(f"{one.command.what} {one.answer}" for one in self.asked)
        managers = [one for case in cases for one in case.managers.values()]
        crawls = sum(len(case.processes) for case in cases)
        of_managers = sum(len(one["processes"]) for one in managers)
        begun = sum(
            row["attempt"]
            for case in cases
            for row in case.rows.values()
            if row["kind"] == "function"
        )
        say(f"graphs: {dict(states)}; steps: {dict(steps)}")
        say(
            f"{len(executed)} executions ({dict(hows)}), {again} beyond the first of a step, "
            f"{struck.total()} lost to"
        )
        say(
            f"  strikes: {dict(struck)}; {begun - len(executed)} attempts began on record and were "
            "not called"
        )
        say(f"  {crawls} crawls and {len(managers)} managers with {of_managers} crawls executed")
        say(f"asked: {dict(sorted(answers.items()))}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.soak.graphs", description=__doc__)
    parser.add_argument("--graphs", type=int, default=200, help="default: 200")
    parser.add_argument(
        "--steps", type=int, default=STEPS_MAX, help=f"of a graph, at most (default: {STEPS_MAX})"
    )
    parser.add_argument(
        "--at-once", type=int, default=8, help="graphs that run at one time (default: 8)"
    )
    parser.add_argument("--plan", action="store_true", help="print the plan and do nothing")
    options(parser)
    chosen = parser.parse_args()
    plans = write_plans(chosen.seed, chosen.graphs, chosen.steps)
    say(
        f"seed {chosen.seed}: {len(plans)} graphs of "
        f"{sum(len(plan.spec.steps) for plan in plans)} steps"
    )
    for plan in plans:
        print(plan, flush=True)
    if chosen.plan:
        return 0
    source = Path(graph_steps.__file__).read_text() + ASIDE
    with stack(chosen, MODULE, source, SLOTS) as (harness, module):
        striker = Striker(harness, module, chosen.seed, chosen.pause, also=("gateway", "scheduler"))
        wrong = Storm(harness, striker, plans, chosen.at_once).play()
    return verdict(chosen.seed, wrong)


if __name__ == "__main__":
    sys.exit(main())
