"""Stops a manager in each possible way while its workers are killed. When the manager reports its
end, nothing of it may execute. The executing processes are counted from the kernel's list of
processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from crawler_lifecycle.cli.client.gateway import Document
from crawler_lifecycle.cli.problems import CommandFailed
from examples.story_checks import Untrue, check_processes
from tests.e2e.harness import TERMINAL, until
from tools.soak.harness import SoakHarness
from tools.soak.manager_judge import crawlers
from tools.soak.strikes import HEALED_S

LIVE = 6
CLASS = f"""

class Endless(GeneratorCrawlManager):
    name, spider, loop_mode, default_max_jobs, MAX_RETRIES = "endless", "soak", 5, {LIVE}, 9

    def set_parameters_gen(self):
        for number in range(100):
            yield {{"spider_args": {{"number": number, "seconds": 3600}}}}
"""
#: The seconds until a stop is proved, including everything that is killed in the meantime.
STOPPED_S = 180.0


def stops(harness: SoakHarness, plan: str) -> Iterator[str]:
    """Execute every way to stop a manager of this class, and return what was untrue."""
    ways: dict[str, Callable[[int, str], object]] = {
        "stop": lambda one, _: harness.gateway.post(f"/v1/managers/{one}/stop"),
        "force-stop": lambda one, _: harness.gateway.post(
            f"/v1/managers/{one}/stop", {"force": True}
        ),
        "signal": lambda _, id_: harness.temporal(
            "workflow", "signal", "--workflow-id", id_, "--name", "stop"
        ),
        "cancel": lambda _, id_: harness.temporal("workflow", "cancel", "--workflow-id", id_),
        "leave": lambda one, _: harness.gateway.post(f"/v1/managers/{one}/stop", {"leave": True}),
        "terminate": lambda one, id_: _terminate(harness, one, id_),
    }
    for way, stop in ways.items():
        body: Document = {"plan": plan, "flow_id": way.replace(" ", "-")}
        if way == "force-stop":  # Nothing else ends a process that ignores the signal.
            body["argv"] = ["--spider-args", '{"deaf": "1"}']
        one = harness.gateway.start(body, way, "manager")["manager_id"]
        until(lambda: len(crawlers(harness.mark)) == LIVE, f"{LIVE} crawlers of {way}")
        try:
            stop(one, f"manager/endless/{body['flow_id']}")
        except AssertionError as error:
            yield f"{way}: {error}"
            return
        for part in ("worker", "user-code"):
            with suppress(ProcessLookupError):
                harness.stack.supervisor.kill(part)
        began = time.monotonic()
        found = until(lambda one=one: _ended(harness, one), f"the end of {way}", STOPPED_S)  # type: ignore[misc]
        executing = len(crawlers(harness.mark))
        print(
            f"{way}: {found['status']} {found['outcome']} after {time.monotonic() - began:.0f} s, "
            f"{executing} execute"
        )
        yield from (
            f"{way}: {text}" for text in _untrue(harness, found, executing, leave=way == "leave")
        )
        harness.stack.supervisor.wait_healthy()


def _ended(harness: SoakHarness, one: int) -> Document | None:
    with suppress(CommandFailed):
        found = harness.gateway.get(f"/v1/managers/{one}")
        return found if found["status"] in TERMINAL else None
    return None


def _untrue(harness: SoakHarness, found: Document, executing: int, *, leave: bool) -> Iterator[str]:
    if (found["status"], found["outcome"]) != ("FAILED", "cancelled"):
        yield f"it is {found['status']} {found['outcome']}: {found['cause']}"
    runs = harness.gateway.runs(parent=found["workflow_id"])
    if executing != (LIVE if leave else 0):
        yield f"{executing} crawlers execute"
    if len(runs) != LIVE:
        yield f"{len(runs)} runs were begun"
    if leave:
        time.sleep(5)
        if (later := len(crawlers(harness.mark))) != LIVE:
            yield f"5 s later {later} crawlers execute"
        for run in runs:
            harness.gateway.stop(run["run_id"], force=True)
        until(lambda: not harness.open_runs(), "the end of what was left")
    for run in runs:
        try:
            check_processes(harness.places, run)
        except Untrue as error:
            yield f"run {run['run_id']}: {error}"
    # The end is recorded first, and its worker may have died before the next step.
    try:
        until(
            lambda: not harness.open_workflows([found["workflow_id"]]),
            "the end of its workflow",
            HEALED_S,
        )
    except AssertionError as error:
        yield str(error)


def _terminate(harness: SoakHarness, one: int, workflow_id: str) -> None:
    """Terminate the workflow without any notification.

    Another workflow takes over without an audit, and is stopped.
    """
    harness.temporal("workflow", "terminate", "--workflow-id", workflow_id)
    assert len(crawlers(harness.mark)) == LIVE, "its runs know nothing of it"
    until(lambda: bool(harness.open_workflows([workflow_id])), "another workflow of it", HEALED_S)
    harness.gateway.post(f"/v1/managers/{one}/stop")
