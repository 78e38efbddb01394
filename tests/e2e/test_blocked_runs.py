"""A bug in workflow code stops no crawl and fails no run: it is reported, and a build with the fix
lets the run continue.
"""

from __future__ import annotations

import os
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.story_checks import run_folder, task_processes
from tests.e2e.harness import ENDLESS, QUICK, Harness, until
from tests.support.builds import ROOT, Change, build

pytestmark = pytest.mark.slow

#: Far more than it takes; the actual time is printed, and stated in docs/deployment.md.
SHOWN_S = 150.0
#: The longer a step has failed, the longer the server waits before the next try.
NEXT_TRY_S = 300.0

BUG = Change(
    "workflows/lifecycle.py",
    '        led_by, source = gap(s), "wake" if s.inbox.poll_now else "poll"\n',
    '        raise RuntimeError("a bug in this build")\n',
)
#: One step fewer: right for new runs, wrong for those that have executed it.
MISFIT = Change(
    "workflows/lifecycle.py",
    "        await call(InitiationActivities.add_workflow_id, registration)\n",
    "",
)


@pytest.fixture
def ours(harness: Harness) -> Iterator[Harness]:
    """The stack, which has our own build again after each test."""
    yield harness
    harness.deploy(ROOT)


def blocked(harness: Harness, run_id: int) -> str | None:
    found: str | None = harness.gateway.run(run_id)["blocked"]
    return found


def blocked_by(harness: Harness, run_id: int, words: str) -> str | None:
    """Wait until this is reported: before, no worker may have taken the step, or Temporal may
    respond late.
    """
    text = blocked(harness, run_id)
    return text if text is not None and words in text else None


def gauge(harness: Harness) -> float:
    with urllib.request.urlopen(
        f"{harness.stack.addresses['gateway']}/metrics", timeout=30
    ) as answer:
        lines = answer.read().decode().splitlines()
    return float(
        next(line.split()[1] for line in lines if line.startswith("lifecycle_runs_blocked "))
    )


def listed(harness: Harness, run_id: int) -> str | None:
    return next(
        (row["blocked"] for row in harness.gateway.runs(limit=20) if row["run_id"] == run_id), None
    )


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("bug", BUG, "RuntimeError: a bug in this build; deploy a build that fixes this"),
        pytest.param(
            *("misfit", MISFIT, "this build cannot continue the work of an earlier build"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_blocked_run_is_told_and_goes_on_with_a_build_that_mends_it(
    ours: Harness, tmp_path: Path, capsys: Any, name: str, change: Change, words: str
) -> None:
    request = {"crawler": "plain", "args": ENDLESS, **QUICK}
    run_id = ours.gateway.start(request, f"blocked-{name}")["run_id"]
    until(lambda: ours.tasks(run_id).get("RUNNING"), "a task that runs")
    polled = ours.gateway.run(run_id)["verified_at"]
    until(lambda: ours.gateway.run(run_id)["verified_at"] != polled, "two polls")
    until(
        lambda: blocked(ours, run_id) is None and listed(ours, run_id) is None, "a run that goes on"
    )

    ours.deploy(build(tmp_path / "build", change))
    begun = time.monotonic()
    text = until(lambda: blocked_by(ours, run_id, words), "the run shown as blocked", SHOWN_S)
    shown = time.monotonic() - begun
    assert (
        "its crawl continues, but a stop has to wait: a forced one ends the crawl within a minute"
        in text
    )
    assert ours.tasks(run_id) == {"RUNNING": 1}
    until(lambda: gauge(ours) >= 1, "the figure", SHOWN_S)
    counted = time.monotonic() - begun
    until(lambda: words in str(listed(ours, run_id)), "it in the list")
    shown_to_people = ours.crawlctl("describe", str(run_id)).stdout.splitlines()
    assert words in next(line for line in shown_to_people if line.startswith("waiting"))
    with capsys.disabled():
        print(
            f"\nblocked by a {name}: told of the run after {shown:.0f} s, counted and listed after {counted:.0f} s"
        )
    # A stop is recorded and acknowledged whatever state the workflow is in, and carried out as soon
    # as possible.
    ours.gateway.stop(run_id, requested_by="ada")

    ours.deploy(ROOT)
    until(lambda: ours.closed([run_id]), "the end of the run", NEXT_TRY_S)
    ours.prove(run_id, "FAILED", "cancelled")
    until(lambda: gauge(ours) == 0, "the figure")
    assert blocked(ours, run_id) is None
    assert listed(ours, run_id) is None


def test_a_crawl_that_ends_while_its_run_is_blocked_is_found_by_the_next_build(
    ours: Harness, tmp_path: Path
) -> None:
    """Nobody does anything except the deployment."""
    request = {"crawler": "plain", "args": {"max_pages": "12", "delay": "0.3"}, **QUICK}
    bug = build(tmp_path / "build", BUG)
    with ours.site_stands_still():
        run_id = ours.gateway.start(request, "blocked-end")["run_id"]
        until(lambda: ours.tasks(run_id).get("RUNNING"), "a task that runs")
        until(lambda: ours.status(run_id) == "PROCESSING", "a run that has started")
        # From now on, the crawl itself is held: it waits a minute for the site, and a deployment
        # may take longer.
        [(_, _, crawl)] = task_processes(ours.places, run_id).values()
        os.killpg(crawl, signal.SIGSTOP)
    try:
        ours.deploy(bug)
    finally:
        os.killpg(crawl, signal.SIGCONT)
    ends = run_folder(ours.folder, run_id)
    until(lambda: list(ends.glob("*/*/end.json")), "the end of the crawl")
    until(
        lambda: blocked_by(ours, run_id, "a bug in this build"), "the run shown as blocked", SHOWN_S
    )
    assert ours.status(run_id) == "PROCESSING", "nobody polled"
    ours.deploy(ROOT)
    until(lambda: ours.closed([run_id]), "the end of the run", NEXT_TRY_S)
    ours.prove(run_id, "COMPLETED", "finished")


def test_without_a_worker_a_run_says_so(ours: Harness) -> None:
    """Its next step is not failing; nobody executes it, which needs another fix."""
    run_id = ours.gateway.start({"crawler": "plain", "args": ENDLESS, **QUICK}, "blocked-nobody")[
        "run_id"
    ]
    until(lambda: ours.tasks(run_id).get("RUNNING"), "a task that runs")
    ours.undeploy()
    # It may have been left during a poll that nobody continues: a signal always causes a next step.
    [(workflow_id,)] = ours.query(
        "SELECT owner_workflow_id FROM run_history WHERE run_id = ?", run_id
    )
    ours.temporal("workflow", "signal", "--workflow-id", workflow_id, "--name", "poll_now")
    words = "no worker has started its next step since"
    until(lambda: blocked_by(ours, run_id, words), "the run shown as blocked", SHOWN_S)
    ours.deploy(ROOT)
    until(lambda: blocked(ours, run_id) is None, "that it goes on")
    ours.gateway.stop(run_id, force=True)
    until(lambda: ours.closed([run_id]), "the end of the stop")
