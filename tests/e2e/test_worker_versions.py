"""Worker versioning, by the commands of docs/deployment.md: runs move to the current build, and
back.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from crawler_lifecycle.compose import ROLES
from tests.e2e.deploys import served_by
from tests.e2e.harness import ENDLESS, QUICK, Harness, until
from tests.support.builds import ROOT

pytestmark = pytest.mark.slow

DOCS = ROOT / "docs" / "deployment.md"
A, B = "worker-a", "worker-b"


def documented(harness: Harness, verb: str, word: str, **names: str) -> Any:
    """Type the only command of the page that begins like this and contains this word, with its
    placeholders filled in.
    """
    begin = f"temporal worker deployment {verb} "
    lines = [
        line for line in DOCS.read_text().splitlines() if line.startswith(begin) and word in line
    ]
    assert len(lines) == 1, lines
    line = lines[0]
    for placeholder, name in names.items():
        assert placeholder in line
        line = line.replace(placeholder, name)
    return harness.temporal(*shlex.split(line)[1:]).stdout


@pytest.fixture
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """A new stack for each try, because Temporal remembers the versions and routes of every
    deployment.
    """
    harness = Harness(tmp_path_factory.mktemp("e2e-versions") / "state")
    try:
        harness.start()
        yield harness
    finally:
        harness.end()


def moved(harness: Harness, run_id: int, name: str) -> None:
    """Wait until this worker has executed a step of the run's workflow, and then until the next
    poll of the cluster.
    """
    workflow_id = harness.gateway.run(run_id)["workflow_id"]
    pid = harness.stack.supervisor.pids()[name]
    until(lambda: served_by(harness, workflow_id, pid), f"a step taken by {name}")
    seen = harness.gateway.run(run_id)["verified_at"]
    until(lambda: harness.gateway.run(run_id)["verified_at"] != seen, "the next poll")


def _workers(harness: Harness) -> list[tuple[str, str]]:
    """Return level and text of the doctor's findings about workers."""
    words = ("doctor", "--state-dir", str(harness.folder), "--timeout", "100s", "-o", "json")
    command = [sys.executable, "-m", "crawler_lifecycle.cli", *words]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    checks = json.loads(done.stdout)["checks"]
    return [(one["level"], one["text"]) for one in checks if one["check"] == "workers"]


def test_runs_move_with_the_current_build_and_back(ours: Harness) -> None:
    endless = {"crawler": "plain", "args": ENDLESS, **QUICK}
    first = ours.gateway.start(endless, "version-first")["run_id"]
    until(lambda: ours.tasks(first).get("RUNNING"), "a task that runs")

    # From workers without a version to the first one with a version: open runs continue there.
    ours.deploy(ROOT, A, LIFECYCLE_WORKER__BUILD_ID="a")
    documented(ours, "set-current-version", "--build-id NEW", NEW="a")
    ours.undeploy()
    moved(ours, first, A)
    second = ours.gateway.start(
        {**endless, "tasks": [{}] * 3, "max_parallel_tasks": 2}, "version-second"
    )["run_id"]
    until(lambda: ours.tasks(second).get("RUNNING") == 2, "two tasks that run")
    moved(ours, second, A)

    # The next build polls and gets nothing until it is current; then both runs continue there, and
    # new ones start there.
    ours.deploy(ROOT, B, LIFECYCLE_WORKER__BUILD_ID="b")
    time.sleep(3.0)
    ids = [ours.gateway.run(run_id)["workflow_id"] for run_id in (first, second)]
    assert not any(
        served_by(ours, workflow_id, ours.stack.supervisor.pids()[B]) for workflow_id in ids
    )
    documented(ours, "set-current-version", "--build-id NEW", NEW="b")
    for run_id in (first, second):
        moved(ours, run_id, B)
    third = ours.gateway.start(
        {"crawler": "plain", "args": {"max_pages": "4"}, **QUICK}, "version-third"
    )["run_id"]
    until(lambda: ours.closed([third]), "the end of a run on the new build")
    assert not served_by(
        ours, ours.gateway.run(third)["workflow_id"], ours.stack.supervisor.pids()[A]
    )

    # Roll back, and drain: the abandoned build has nothing left to do and exits normally.
    before = len(served_by(ours, ids[0], ours.stack.supervisor.pids()[A]))
    documented(ours, "set-current-version", "--build-id NEW", NEW="a")
    until(
        lambda: len(served_by(ours, ids[0], ours.stack.supervisor.pids()[A])) > before,
        "a step taken by the build of before",
    )
    assert "a" in documented(ours, "describe", "--name")
    ours.undeploy(B)
    ours.gateway.stop(second, requested_by="ada")
    until(lambda: ours.closed([second]), "the end of the stop")
    ours.prove(second, "FAILED", "cancelled")

    # And back to workers without a version. Before those are current, they do not help, and the
    # doctor says so.
    ours.deploy(ROOT)
    workers = _workers(ours)
    assert workers, "it polls the queues"
    assert all("of version crawler-lifecycle.a" not in text for level, text in workers), workers
    ours.undeploy(A)
    until(
        lambda: {level for level, _ in _workers(ours)} == {"bad"},
        "a doctor that sees that nobody gets work",
    )
    assert (
        "no worker of the current version (version crawler-lifecycle.a) polls"
        in _workers(ours)[0][1]
    )
    documented(ours, "set-current-version", "--unversioned")
    moved(ours, first, "worker")
    ours.gateway.stop(first, requested_by="ada")
    until(lambda: ours.closed([first]), "the end of the stop")
    ours.prove(first, "FAILED", "cancelled")
    ours.prove(third, "COMPLETED", "finished")


def test_each_role_may_be_a_deployment_of_its_own(ours: Harness) -> None:
    """As Temporal's worker controller starts them, one after the other."""
    names = {"worker-workflows": "crawls/workflows", "worker-others": "crawls/others"}
    others = sorted(set(ROLES) - {"workflows"})

    def roll(name: str, build: str) -> None:
        given = {"TEMPORAL_DEPLOYMENT_NAME": names[name], "TEMPORAL_WORKER_BUILD_ID": build}
        ours.deploy(ROOT, name, ["workflows"] if name == "worker-workflows" else others, **given)
        version = ("--deployment-name", names[name], "--build-id", build, "--yes")
        command = ("worker", "deployment", "set-current-version", *version)
        until(
            lambda: ours.temporal(*command, check=False).returncode == 0,
            f"{names[name]} known to the server",
        )

    roll("worker-workflows", "a")
    roll("worker-others", "a")
    ours.undeploy()
    short = {"crawler": "plain", "args": {"max_pages": "4"}, **QUICK}
    endless = ours.gateway.start({"crawler": "plain", "args": ENDLESS, **QUICK}, "roles-endless")[
        "run_id"
    ]
    until(lambda: ours.tasks(endless).get("RUNNING"), "a task that runs")
    for name in names:  # the build of the other one stays
        roll(name, "b")
        run_id = ours.gateway.start(short, f"roles-{name}")["run_id"]
        until(lambda run=run_id: ours.closed([run]), f"the end of a run beside a new {name}")  # type: ignore[misc]
        ours.prove(run_id, "COMPLETED", "finished")
    ours.gateway.stop(endless, requested_by="ada")
    until(lambda: ours.closed([endless]), "the end of the stop")
    ours.prove(endless, "FAILED", "cancelled")
