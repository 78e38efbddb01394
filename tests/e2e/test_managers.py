"""The commands of docs/first-manager.md on a complete stack, as written, with the results that the
page states.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from examples.managers import PAGES
from examples.story_checks import run_folder
from tests.e2e.harness import Harness, until
from tests.support import in_process
from tests.support.builds import ROOT

PAGE = ROOT / "docs" / "first-manager.md"
WALKS = list(dict.fromkeys(PAGES))


def commands_of(page: Path) -> list[str]:
    """Return the commands of the page."""
    part = page.read_text().partition("## Ten minutes")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```\n(.*?)^```$", part, re.S | re.M)
    text = "".join(blocks).replace("\\\n", " ")
    return [line for line in text.splitlines() if not line.startswith(". ")]


def play(harness: Harness, line: str) -> str:
    """Type one command as a user does. Return its output."""
    gateway = str(harness.stack.addresses["gateway"])
    here = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    env = {**os.environ, "LIFECYCLE_GATEWAY__URL": gateway, "NO_COLOR": "1", "PATH": here}
    line = line.replace("http://127.0.0.1:8500", gateway)
    if line.startswith("crawlctl ") and not set(line) & set("|&;<>$`*"):
        done = in_process.crawlctl(*shlex.split(line, comments=True)[1:], env=env, folder=ROOT)
    else:
        done = subprocess.run(
            ["bash", "-c", line], env=env, cwd=ROOT, capture_output=True, text=True, timeout=150
        )
    assert done.returncode == 0, (line, done.stdout, done.stderr)
    return done.stdout


def walked(harness: Harness, flow: str) -> list[int]:
    """Return what the crawlers of a flow wrote, in the order of their runs: how long each walk
    should be.
    """
    sql = "SELECT run_id FROM run_history WHERE parent = ? ORDER BY run_id"
    runs = [row[0] for row in harness.query(sql, f"manager/walks/{flow}")]
    files = (
        file
        for run in runs
        for file in run_folder(harness.folder, run).glob("*/*/files/summary.json")
    )
    ledger = [json.loads(file.read_text()) for file in files]
    return [summary["max_pages"] for summary in ledger if summary["finish_reason"] == "finished"]


def test_the_ten_minutes_of_the_page(harness: Harness) -> None:
    first = (harness.query("SELECT coalesce(max(manager_id), 0) FROM manager")[0])[0]
    assert first == 0, "the page counts from 1"
    until(
        lambda: "examples.managers:Walks" in play(harness, "crawlctl manager plan"),
        "the class on record",
    )
    assert len([play(harness, line) for line in commands_of(PAGE)]) > 15
    assert walked(harness, "monday") == WALKS, "each once, in the order of the class"
    assert sorted(walked(harness, "tuesday")) == sorted(set(walked(harness, "tuesday"))), (
        "nothing runs twice"
    )
    assert {seen["outcome"] for seen in harness.gateway.rows("/v1/managers")} <= {
        "finished",
        "cancelled",
    }
    jobs = harness.gateway.get("/v1/managers/2")["jobs"]
    assert (
        jobs["duplicates"],
        jobs["starting"] + jobs["started"] + jobs["queued"] + jobs["buffered"],
    ) == (2, 0)
    script = harness.gateway.get("/v1/managers/5")
    assert (script["flow_id"], script["status"], script["jobs"]["good"]) == (
        "friday",
        "COMPLETED",
        len(WALKS),
    )
