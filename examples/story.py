"""``python -m examples.story`` executes real crawls on this machine with three failures, and proves
that no status is untrue.

It starts the embedded stack (the real Temporal server, SQLite or the database of ``--database``,
all services, and a website to crawl), runs crawls, stops one of them, kills a crawler without the
knowledge of the service, kills the worker, and then checks the database, processes, archives and
events at their sources. It exits with 0 only if every check passes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from crawler_lifecycle.cli.client.gateway import Gateway
from crawler_lifecycle.cli.output import milliseconds, moment, span
from crawler_lifecycle.cli.problems import CommandFailed
from crawler_lifecycle.cli.stack.layout import Layout
from crawler_lifecycle.cli.stack.stack import Stack
from crawler_lifecycle.cli.stack.supervise import PartFailed
from crawler_lifecycle.graphs import PlatformUnavailable
from crawler_lifecycle.graphs.asking import use
from crawler_lifecycle.graphs.client import Gateway as GraphGateway
from examples.graphs import titles
from examples.managers import PAGES as WALKS
from examples.story_checks import (
    CHECKS,
    Slots,
    Untrue,
    check_graph,
    check_manager,
    expect,
    run_folder,
    task_processes,
)
from examples.story_view import TERMINAL, View

#: Intervals that are minutes in production are seconds here: polls are 1 to 3 s apart.
POLL_MINUTES = [0.02, 0.03, 0.05]
SERVICES = 100
LETTERS = ("a-c", "d-i", "j-q", "r-z")
STORYTELLER = "the story"
PAUSE_S = 0.3
#: The number of pages of each task in the run of which one crawler is killed.
PAGES = 45
#: A time limit that no working step reaches, even on a machine that is busy with other work.
PATIENCE_S = 120.0

Run = dict[str, Any]


class Story:
    """The acts, in order.

    Each act waits for the effect that it has caused, and raises ``Untrue`` if the effect does not
    come.
    """

    def __init__(self, stack: Stack, gateway: Gateway, view: View) -> None:
        self.stack = stack
        self.gateway = gateway
        self.view = view
        self.ids: dict[str, int] = {}
        self.corrections: list[Run] = []
        self.manager_id: int | None = None
        use(GraphGateway(str(stack.addresses["gateway"])))
        self.graph = titles()
        self._key = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")

    # --- the acts ---------------------------------------------------------------------------------

    def act_runs(self) -> None:
        """Three ways to crawl, and a fourth run for the next act."""
        polls = ", ".join(f"{minutes * 60:g}" for minutes in POLL_MINUTES)
        self.view.say("polls", f"{polls} s after each other; in production 1, 2, 3, 5, 8, 15 min")
        tasks = [{"args": {"letters": letters, "max_pages": str(PAGES)}} for letters in LETTERS]
        self._start("single", "services", settings={"DOWNLOAD_DELAY": "0.12"})
        self._start("multi", "operations", tasks=tasks, max_parallel_tasks=3)
        self._start("api", "sitemap", trigger="api", args={"max_links": "4"})
        endless = [{"args": {"letters": letters}} for letters in LETTERS]
        # Few requests are in progress at once, because Scrapy waits for their answers before it
        # ends.
        slow = {"DOWNLOAD_DELAY": "0.2", "CONCURRENT_REQUESTS": "4"}
        self._start("stopped", "operations", tasks=endless, max_parallel_tasks=1, settings=slow)
        self._start_user_code()

    def act_stop(self) -> None:
        """A run is stopped through the gateway while one task executes and three tasks wait."""
        self._wait("a task that runs", lambda: self._run("stopped")["tasks"].get("RUNNING"))
        run_id = self.ids["stopped"]
        self.gateway.stop(run_id, reason="act 2", requested_by=STORYTELLER)
        self.view.say("stop", f"run {run_id} was asked to stop", "yellow")
        self._wait(
            "the end of the queued tasks",
            lambda: self._run("stopped")["tasks"].get("CANCELLED", 0) >= 3,
        )

    def act_chaos(self) -> None:
        """A crawler is killed without an event or a message, so that only the next poll can find
        out the truth.
        """
        run_id = self.ids["multi"]
        self._wait("a first item", lambda: self._found_something(run_id))
        # The site answers nobody in the meantime, so that a task that is recorded as executing
        # cannot end by itself before the kill.
        self.stack.supervisor.kill("site", signal.SIGSTOP)
        try:
            task = self._victim(datetime.now(UTC))
            group = task_processes(self._places(), run_id)[
                f"{task['task_index']}/{task['attempt']}"
            ][2]
            os.killpg(group, signal.SIGKILL)
        finally:
            self.stack.supervisor.kill("site", signal.SIGCONT)
        what = f"task {task['task_id']} of run {run_id}, process group {group}"
        self.view.say(
            "chaos",
            f"killed {what} behind the service's back; on record it is {task['status']}",
            "red",
        )
        self._wait("the correction", lambda: self._corrections_of(task))
        self.corrections = self._corrections_of(task)
        for found in self.corrections:
            text = (
                f"believed {found['believed']}, true was {found['truth']}, for "
                f"{milliseconds(found['lag_ms'])}"
            )
            self.view.say(
                "corrected", f"{found['kind']}: {text}, found by {found['found_by']}", "green"
            )
        expect(
            any(found["kind"] == "killed" for found in self.corrections),
            f"corrections: {self.corrections}",
        )

    def act_worker(self) -> None:
        """The worker is killed while runs continue, and another worker takes over."""
        self._wait(
            "a slot for the last task", lambda: not self._run("multi")["tasks"].get("QUEUED")
        )
        self._wait_between_polls()
        items = self._run("single")["items"] or 0
        pid = self.stack.supervisor.kill("worker")
        self.view.say(
            "worker",
            f"killed process {pid} while run {self.ids['single']} has {items} items",
            "red",
        )
        begun = time.monotonic()
        self.stack.supervisor.wait_healthy(["worker"])
        self.view.say(
            "worker",
            f"process {self.stack.supervisor.pids()['worker']} took over after "
            f"{span(time.monotonic() - begun)}",
        )

    def act_end(self) -> None:
        """Every run ends, and nothing is lost."""
        runs = {name: self._wait_for_end(name) for name in self.ids}
        self._wait_for_user_code()
        self._wait("the exports", lambda: all(self._run(name)["exports"] for name in self.ids))
        verdicts = {name: (run["status"], run["outcome"]) for name, run in runs.items()}
        cancelled = runs["stopped"]["tasks"]
        expect(
            verdicts["stopped"] == ("FAILED", "cancelled"),
            f"the stopped run is {verdicts['stopped']}",
        )
        expect(cancelled == {"CANCELLED": 4}, f"the stopped run has tasks {cancelled}")
        expect(
            verdicts["single"] == ("COMPLETED", "finished"),
            f"the single-process run is {verdicts['single']}",
        )
        expect(
            runs["single"]["items"] == SERVICES,
            f"{runs['single']['items']} items of {SERVICES} services",
        )
        expect(verdicts["api"] == ("COMPLETED", "finished"), f"the API's run is {verdicts['api']}")
        expect(
            verdicts["multi"] == ("COMPLETED", "partial"),
            f"the run that lost a task is {verdicts['multi']}",
        )
        expect(
            runs["multi"]["tasks"] == {"SUCCEEDED": 3, "FAILED": 1},
            f"its tasks are {runs['multi']['tasks']}",
        )

    def give_up(self) -> None:
        """Stop what the story itself has started but not finished. It does not touch other runs of
        this directory.
        """
        for run_id in self.ids.values():
            self.gateway.stop(
                run_id, force=True, reason="the story ends early", requested_by=STORYTELLER
            )
        if self.manager_id is not None:
            body = {"force": True, "requested_by": STORYTELLER}
            self.gateway.post(f"/v1/managers/{self.manager_id}/stop", body)
        if self.graph.status().state == "executing":
            self.graph.cancel_jobs()

    def verify(self) -> list[str]:
        """Check every run at every source, and return everything that is untrue."""
        failed: list[str] = []
        for name, run_id in self.ids.items():
            run = self._run(name)
            for title, check in CHECKS.items():
                try:
                    self.view.say(
                        "ok", f"run {run_id} {title}: {check(self._places(), run)}", "green"
                    )
                except (Untrue, OSError, KeyError, ValueError) as error:
                    failed.append(f"run {run_id} {title}: {error or type(error).__name__}")
                    self.view.say("FAILED", failed[-1], "bold red")
        return failed + self._verify_user_code()

    def summary(self) -> None:
        """Return what can be inspected."""
        runs = [self._run(name) for name in self.ids]
        completed = sum(run["status"] == "COMPLETED" for run in runs)
        items = sum(run["items"] or 0 for run in runs)
        lags = [found["lag_ms"] for found in self.corrections if found["lag_ms"] is not None]
        slowest = f", slowest {milliseconds(max(lags))}" if lags else ""
        say = self.view.plain
        say()
        say(
            f"{len(runs)} runs: {completed} completed, {len(runs) - completed} stopped on request "
            f"· {items:,} items · "
            f"{len(self.corrections)} corrected{slowest}"
        )
        for run in runs:
            for export in run["exports"]:
                say(f"archive   {export['url'] or export['status']}")
        say(f"events    {self.stack.addresses['events']}")
        say(f"state     {self.stack.state_dir}")

    # --- asking -----------------------------------------------------------------------------------

    def _start(self, name: str, crawler: str, **more: object) -> None:
        request: Run = {"crawler": crawler, "requested_by": STORYTELLER, "tags": ["story"], **more}
        request |= {"poll_minutes": POLL_MINUTES, "limits": {"start_check_s": 0.5}}
        started = self.gateway.start(request, f"story-{self._key}-{name}")
        self.ids[name] = started["run_id"]
        tasks = more.get("tasks")
        kind = f"{len(tasks)} tasks" if isinstance(tasks, list) else "single process"
        self.view.say(
            "start", f"run {started['run_id']}: {crawler}, {kind}, trigger {started['trigger']}"
        )

    def _start_user_code(self, site: str | None = None) -> None:
        """A manager and a graph, which both read the results of their crawls."""
        request: Run = {
            "plan": "examples.managers:Walks",
            "flow_id": f"story-{self._key}",
            "requested_by": STORYTELLER,
        }
        if site is not None:
            request["argv"] = ["--spider-args", json.dumps({"site": site})]
        self.manager_id = int(
            self.gateway.start(request, f"story-{self._key}-walks", "manager")["manager_id"]
        )
        text = (
            f"manager {self.manager_id}: {len(WALKS)} runs of plain, {len(set(WALKS))} of them "
            "different, 2 at a time"
        )
        self.view.say("manager", text)
        self.graph = titles(site=site).start()
        self.view.say(
            "graph", f"{self.graph.name}: one crawl for each page of a poll, their items merged"
        )

    def _wait_for_user_code(self) -> None:
        self._wait("the end of the manager", lambda: self._manager()["status"] in TERMINAL)
        self._wait(
            "the end of the graph",
            lambda: self.graph.status().state in ("completed", "discarded", "cancelled"),
        )

    def _verify_user_code(self) -> list[str]:
        user_code: dict[str, Callable[[], str]] = {
            f"manager {self.manager_id}": lambda: check_manager(self._places(), self._manager()),
            f"graph {self.graph.name}": lambda: check_graph(self._places(), self.graph),
        }
        failed: list[str] = []
        for name, check in user_code.items():
            try:
                self.view.say("ok", f"{name}: {check()}", "green")
            except (Untrue, OSError, KeyError, ValueError) as error:
                failed.append(f"{name}: {error or type(error).__name__}")
                self.view.say("FAILED", failed[-1], "bold red")
        return failed

    def _run(self, name: str) -> Run:
        return self.gateway.run(self.ids[name])

    def _manager(self) -> Run:
        assert self.manager_id is not None  # the first act starts this run
        return self.gateway.get(f"/v1/managers/{self.manager_id}")

    def _places(self) -> Slots:
        return Slots(self.stack.state_dir, self.stack.addresses)

    def _corrections_of(self, task: Mapping[str, Any]) -> list[Run]:
        rows = self.gateway.rows(f"/v1/runs/{task['run_id']}/corrections")
        return [row for row in rows if row["task_id"] == task["task_id"]]

    def _found_something(self, run_id: int) -> bool:
        """Return whether a crawler of this run has written an item."""
        files = run_folder(self.stack.state_dir, run_id).glob("*/*/files/items.jsonl")
        return any(file.stat().st_size for file in files)

    def _victim(self, since: datetime) -> Run:
        """Return a task of the multi-process run that executed after ``since`` and had found
        something.

        The poll before the last poll counts, because the findings of a poll are recorded when the
        next poll begins.
        """
        found: list[Run] = []
        polls: set[datetime] = set()

        def poll() -> bool:
            verified = moment(self._run("multi")["verified_at"])
            polls.update([verified] if verified is not None and verified > since else [])
            if len(polls) < 2:
                return False
            rows = self.gateway.tasks(self.ids["multi"])
            found[:] = [
                row
                for row in rows
                if row["status"] == "RUNNING" and 0 < (row["items"] or 0) < PAGES
            ]
            return bool(found)

        self._wait("a task with items", poll)
        return found[-1]

    def _wait_between_polls(self) -> None:
        """Wait for a moment without a poll in progress, for at most 3 s.

        A poll that dies with its worker is also retried, but only after its heartbeat has been
        missing for 20 s. This is right for a cluster, but too long for a story.
        """
        until = time.monotonic() + 3
        while time.monotonic() < until:
            runs = [run for run in self._show() if run["status"] not in TERMINAL]
            now = datetime.now(UTC)
            spans = [((moment(run["next_poll_at"]) or now) - now).total_seconds() for run in runs]
            if all(seconds > 0.5 for seconds in spans):
                return
            time.sleep(0.1)

    def _show(self) -> list[Run]:
        runs = [self._run(name) for name in self.ids]
        self.view.show(runs)
        return runs

    def _wait_for_end(self, name: str) -> Run:
        self._wait(
            f"the end of run {self.ids[name]}", lambda: self._run(name)["status"] in TERMINAL
        )
        return self._run(name)

    def _wait(
        self, what: str, condition: Callable[[], object], timeout_s: float = PATIENCE_S
    ) -> None:
        until = time.monotonic() + timeout_s
        while True:
            self._show()
            if condition():
                return
            if time.monotonic() > until:
                raise Untrue(f"{what} did not come within {timeout_s:g} s")
            time.sleep(PAUSE_S)


def tell(story: Story) -> list[str]:
    """Execute all acts and all checks, and return what failed."""
    failed: list[str] = []
    try:
        for act in (
            story.act_runs,
            story.act_stop,
            story.act_chaos,
            story.act_worker,
            story.act_end,
        ):
            act()
    except Untrue as error:
        failed.append(str(error))
        story.view.say("FAILED", str(error), "bold red")
    story.view.freeze()
    return failed + (story.verify() if not failed else [])


def offer_user_code() -> None:
    """Give workers the manager and the graph of the examples."""
    os.environ["LIFECYCLE_USER_CODE__MODULES"] = '["examples.managers", "examples.graphs"]'
    os.environ["LIFECYCLE_USER_CODE__FOLDER"] = str(Path(__file__).parents[1])


def main() -> int:
    """Execute the story, and return 0 if every check passed."""
    parser = argparse.ArgumentParser(prog="python -m examples.story", description=__doc__)
    parser.add_argument("--state-dir", type=Path, default=Path(".crawl"), help="default: .crawl")
    parser.add_argument(
        "--free-ports", action="store_true", help="take any free ports instead of the usual ones"
    )
    parser.add_argument("--database", metavar="URL", help="default: SQLite in the state directory")
    options = parser.parse_args()
    # There is room for all tasks at once, because the story is about truth, and not about waiting.
    os.environ.setdefault("LIFECYCLE_CLUSTER__SLOTS", "8")
    offer_user_code()
    signal.signal(signal.SIGTERM, _leave)
    begun = time.monotonic()
    with View() as view:
        stack = Stack(
            Layout(
                options.state_dir,
                services=SERVICES,
                only_free_ports=options.free_ports,
                database=options.database,
            ),
            say=lambda line: view.say("stack", line),
        )
        try:
            view.say(
                "stack",
                "starting Temporal, scheduler service, gateway, worker and a website of ours",
            )
            stack.start()
            view.say(
                "stack",
                f"ready after {span(time.monotonic() - begun)}: gateway "
                f"{stack.addresses['gateway']}",
            )
            failed = _over(stack, view)
        except (CommandFailed, PartFailed, PlatformUnavailable) as error:
            failed = [str(error)]
        except KeyboardInterrupt:
            view.plain("interrupted")
            return 130
        finally:
            view.freeze()
            stack.stop()
        for line in farewell(options.state_dir, failed, time.monotonic() - begun):
            view.plain(line)
    return 1 if failed else 0


def _over(stack: Stack, view: View) -> list[str]:
    """Execute the story on a started stack, and return what failed."""
    with Gateway(str(stack.addresses["gateway"]), timeout_s=60) as gateway:
        story = Story(stack, gateway, view)
        over = False
        try:
            failed = tell(story)
            over = not failed
        finally:
            view.freeze()
            if not over:
                with contextlib.suppress(CommandFailed, PlatformUnavailable):
                    story.give_up()
        if over:
            story.summary()
        return failed


def farewell(state_dir: Path, failed: list[str], seconds: float) -> list[str]:
    """Return the results, and commands that work as they are, here and in a second terminal."""
    ours = Path(sys.executable).parent / "crawlctl"
    known = shutil.which("crawlctl")
    program = "crawlctl"
    if known is None or Path(known).resolve() != ours.resolve():
        program = shlex.quote(
            str(ours.relative_to(Path.cwd()) if ours.is_relative_to(Path.cwd()) else ours)
        )
    elsewhere = state_dir != Path(".crawl")
    dev = f"{program} dev" + (f" --state-dir {shlex.quote(str(state_dir))}" if elsewhere else "")
    if failed:
        words = f"FAILED after {span(seconds)}: {'; '.join(failed)}"
        return [words, f"next      less {shlex.quote(f'{state_dir}/logs/worker.log')}"]
    lines = [
        f"here      {dev}",
        "          keeps this stack up, with everything that was recorded, until Ctrl-C",
    ]
    if elsewhere:
        lines.append("then      the commands that it names, in a second terminal")
    else:
        then = f"{program} list · {program} corrections · {program} start services --wait"
        lines.append(f"then      in a second terminal, in {Path.cwd()}: {then}")
    return [
        f"every check held, in {span(seconds)}",
        *lines,
        "web UI    the first address that it names",
    ]


def _leave(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
