"""Entries that exist only in the database, executed by real processes: set, changed, resumed with
the run's version, rolled back, and deleted.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from examples.story_checks import run_folder
from tests.e2e.harness import AUDITS, QUICK, Row, until
from tests.e2e.stopping import StopHarness

PROGRAM = """
import json, os, pathlib, time
files = pathlib.Path(os.environ["CRAWL_FILES_DIR"])
(files / "items.jl").write_text(json.dumps({{"written": {text!r}}}) + "\\n")
time.sleep({seconds})
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StopHarness]:
    folder = tmp_path_factory.mktemp("catalogue")
    with StopHarness.up(folder / "state", examples=True, **AUDITS) as harness:
        yield harness


def call(stack: StopHarness, method: str, path: str, body: Any = None) -> Row:
    address = f"{stack.stack.addresses['gateway']}/v1/crawlers/{path}"
    answer = httpx.request(method, address, json=body, timeout=30)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def put(stack: StopHarness, text: str, seconds: float = 0) -> int:
    """Set the entry of a program that writes this. Return the number of its version."""
    program = PROGRAM.format(text=text, seconds=seconds)
    entry = {"kind": "command", "command": [sys.executable, "-S", "-c", program], "resumable": True}
    return int(call(stack, "PUT", "writer", {"entry": entry})["number"])


def start(stack: StopHarness, key: str, **more: Any) -> int:
    return int(stack.gateway.start({"crawler": "writer", **QUICK, **more}, key)["run_id"])


def written(stack: StopHarness, run_id: int) -> list[str]:
    files = run_folder(stack.folder, run_id).rglob("items.jl")
    return sorted(json.loads(file.read_text())["written"] for file in files)


def ended(stack: StopHarness, run_id: int) -> Row:
    until(lambda: stack.closed([run_id]), "the end of the run")
    run = stack.gateway.run(run_id)
    assert run["status"] == "COMPLETED", run["cause"]
    return run


def test_an_entry_of_the_database_executes_in_the_version_of_the_run(stack: StopHarness) -> None:
    assert put(stack, "first", seconds=60) == 1
    slow = start(stack, "slow")
    until(lambda: written(stack, slow) == ["first"], "its item")
    assert put(stack, "second") == 2
    second = start(stack, "second")
    assert ended(stack, second)["request"]["version"] == "2"
    assert written(stack, second) == ["second"]
    stack.gateway.stop(slow)
    until(lambda: stack.closed([slow]), "the end of the stopped run")
    call(stack, "DELETE", "writer")
    stack.gateway.resume(slow)
    until(lambda: written(stack, slow) == ["first", "first"], "the item after the resume")
    stack.gateway.stop(slow)
    until(lambda: stack.closed([slow]), "the end of the resumed run")
    assert put(stack, "third") == 3
    call(stack, "POST", "writer/use", {"number": 2})
    again = start(stack, "again")
    ended(stack, again)
    assert written(stack, again) == ["second"]
