"""The last released build and this one in one folder: upgraded, mixed, rolled back and upgraded
again, under load.

The other build comes from git, at the commit in a file, and is started by its own ``crawlctl dev``.
"""

from __future__ import annotations

import compileall
import json
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from crawler_lifecycle.cli.stack import processes
from crawler_lifecycle.store.migrations.schema_version import head_version, read_schema
from tests.dev.dev_support import Dev
from tests.e2e.harness import Harness, until
from tests.support import in_process
from tests.support.builds import LANDED, LANDED_NAMES, ROOT, checked_out

SETTINGS = {
    "LIFECYCLE_USER_CODE__MODULES": '["examples.graphs", "examples.managers"]',
    "LIFECYCLE_RETRIES": '{"max": 0}',
    "LIFECYCLE_CLUSTER__SLOTS": "64",
}
POLLS, SELDOM = (
    ("--poll-minutes", "0.02,0.03", "-o", "name"),
    ("--poll-minutes", "0.1,0.2", "-o", "name"),
)
#: Of each graph: one poll, and one crawl for each page.
PAGES = 2
CRAWLS = 1 + PAGES


@dataclass
class Load:
    """Runs, managers, graphs and schedules, and more of them in each phase."""

    folder: Path
    each: int
    runs: int
    schedules: int
    site: str
    gateway: str = ""
    endless: list[str] = field(default_factory=list)
    managers: list[str] = field(default_factory=list)
    graphs: list[str] = field(default_factory=list)
    short: list[str] = field(default_factory=list)
    phases: int = 0

    def call(self, *words: str, check: bool = True) -> str:
        """Return the output of ``crawlctl`` of this build."""
        done = in_process.crawlctl("--gateway", self.gateway, *words, env=os.environ, folder=Path())
        assert done.returncode == 0 or not check, done.stderr
        return done.stdout.strip()

    def pages(self, number: int) -> tuple[str, ...]:
        return "-a", f"max_pages={number}", "-a", f"site={self.site}"

    def begin(self) -> None:
        """Begin everything that stays open until the end.

        Slower machines have more open at once, so this is little.
        """
        jobs = self.folder / "jobs.jsonl"
        lines = [
            {"max_pages": "2", "site": self.site},
            {"max_pages": "3", "delay": "1", "site": self.site},
        ]
        jobs.write_text("".join(json.dumps(line) + "\n" for line in lines))
        manager = (
            "manager",
            "start",
            "--crawler",
            "plain",
            "--each",
            str(jobs),
            "--max-running",
            "1",
            "--keep-open",
        )
        schedule = ("--crawler", "plain", *self.pages(1), "--every-s", "50")
        for n in range(self.each):
            self.managers.append(self.call(*manager, "--flow", f"m{n}", "-o", "name"))
        for n in range(self.schedules):
            self.call("schedule", "create", f"s{n}", *schedule)
        for _ in range(self.runs):
            self.endless.append(self.call("start", "long", *SELDOM))

    def more(self) -> None:
        """Use everything: short runs to their ends, a stop, a resume, a job for each manager, and
        graphs that continue.
        """
        for n in range(self.each):
            self.short.append(self.call("start", "plain", *self.pages(3), *POLLS))
            self.call("manager", "add", self.managers[n], *self.pages(4 + self.phases))
        self.call("stop", self.endless[self.phases])
        for run in (*self.short[-self.each :], self.endless[self.phases]):
            self.call("wait", run, check=False)
        self.call("resume", self.endless[self.phases])
        for n in range(self.each):
            name = f"g{self.phases}-{n}"
            graph = (
                "examples.graphs:titles",
                "--id",
                name,
                "-o",
                "name",
                "--",
                str(PAGES),
                self.site,
            )
            self.call("graph", "start", *graph)
            self.graphs.append(name)
        self.phases += 1

    def end(self) -> None:
        """Let everything end."""
        for n in range(self.schedules):
            self.call("schedule", "pause", f"s{n}")
        for n in range(self.each):
            self.call("manager", "add", self.managers[n], *self.pages(1), "--seal")
        self.call("stop", *self.endless)
        for n in range(self.each):
            self.call("manager", "wait", self.managers[n])
        for graph in self.graphs:
            self.call("graph", "wait", graph)


@pytest.mark.parametrize(
    ("each", "runs", "schedules"),
    [(1, 4, 1), pytest.param(5, 50, 20, marks=[pytest.mark.slow, pytest.mark.timeout(2400)])],
)
def test_a_folder_of_the_last_landing_is_upgraded_rolled_back_and_upgraded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, each: int, runs: int, schedules: int
) -> None:
    endless = tmp_path / "endless.yaml"
    endless.write_text("- {name: long, kind: command, command: [sleep, '3600']}\n")
    for name, value in {**SETTINGS, "LIFECYCLE_EXTRA_CATALOGUE": str(endless)}.items():
        monkeypatch.setenv(name, value)
        monkeypatch.setenv(LANDED_NAMES.get(name, name), value)
    landed = checked_out(LANDED, tmp_path / "landed", "crawler_lifecycle", "examples", "workers")
    # Its processes begin at once, and each would otherwise compile what it imports.
    compileall.compile_dir(landed, quiet=2)
    state = tmp_path / "work" / "state"
    former = Dev(state, env={"PYTHONPATH": str(landed)})
    port = processes.free_port()
    load = Load(tmp_path, each, runs, schedules, f"http://127.0.0.1:{port}")
    url = f"sqlite:///{state / 'lifecycle.db'}"
    harness: Harness | None = None
    # The stack's own site ends with each stack, and so would the crawls.
    command = (
        sys.executable,
        "-m",
        "examples.site",
        "--port",
        str(port),
        "--services",
        "4",
        "--host",
        "127.0.0.1",
    )
    site = processes.spawn(command, env=os.environ, log=tmp_path / "site.log", cwd=ROOT)
    try:
        former.start()
        load.gateway = former.known["gateway"]
        load.begin()
        load.more()
        assert former.end(signal.SIGTERM) == 0

        harness = upgraded(state)
        load.gateway = str(harness.stack.addresses["gateway"])
        assert read_schema(url).version == head_version()
        # Both builds serve the same queues; meanwhile the old build's gateway and scheduler are
        # used.
        harness.deploy(landed, "other", renamed=LANDED_NAMES)
        for part in ("gateway", "scheduler"):
            harness.deploy(landed, part, renamed=LANDED_NAMES)
        load.more()
        harness.stack.stop()

        former.start()
        load.gateway = former.known["gateway"]
        load.more()
        assert former.end(signal.SIGTERM) == 0

        harness = upgraded(state)
        load.gateway = str(harness.stack.addresses["gateway"])
        load.more()
        load.end()
        prove(harness, load)
    finally:
        site.kill()
        site.wait()
        former.close()
        if harness is not None:
            harness.end()


def upgraded(state: Path) -> Harness:
    """Start this build's stack in the folder, like ``crawlctl dev`` does."""
    harness = Harness(state)
    harness.start()
    return harness


def prove(harness: Harness, load: Load) -> None:
    """Check that everything that began is on record with its outcome, once, whichever build did
    which part.
    """
    runs = [row[0] for row in harness.query("SELECT run_id FROM run_history ORDER BY run_id")]
    until(lambda: harness.closed(runs), "the end of all runs", 300)
    for run in load.short:
        harness.prove(int(run), "COMPLETED", "finished")
    for n, run in enumerate(load.endless):
        harness.prove(int(run), "FAILED", "cancelled", attempt=2 if n < load.phases else 1)
    crawls = "SELECT outcome FROM run_history WHERE parent = ?"
    for n in range(load.each):
        assert harness.query(crawls, f"manager/plain/m{n}") == [("finished",)] * (load.phases + 3)
    for graph in load.graphs:
        assert harness.query("SELECT state FROM graph WHERE graph_key = ?", graph) == [
            ("completed",)
        ]
        assert harness.query(crawls, f"graph/{graph}") == [("finished",)] * CRAWLS
        steps = "SELECT max(s.attempt) FROM graph_step s JOIN graph USING (graph_id) WHERE graph_key = ?"
        assert harness.query(steps, graph) == [(1,)]
    due = harness.query(
        "SELECT schedule_id, decision, target_id, count(*) FROM schedule_due GROUP BY 1, 2, 3"
    )
    started = [row for row in due if row[1] == "started"]
    assert {row[0] for row in started} == set(range(1, load.schedules + 1))
    assert len(started) == len({row[2] for row in started}), "each due time began a run of its own"
    begun = (
        len(load.short)
        + len(load.endless)
        + load.each * (load.phases + 3)
        + CRAWLS * len(load.graphs)
        + len(started)
    )
    assert len(runs) == begun
    refused = [
        file.name
        for file in (harness.stack.state_dir / "logs").iterdir()
        if "TMPRL1100" in file.read_text("utf-8", "replace")
    ]
    assert not refused, "each build replays what the other one did"
    assert json.loads(harness.crawlctl("audit", "-o", "json").stdout)["found"] == {}
