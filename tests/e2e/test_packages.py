"""Deployed packages executed by real processes: deploy, start, another version, resume, retry, and
code that cannot be fetched.
"""

from __future__ import annotations

import io
import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import crawler_lifecycle
from crawler_lifecycle.features.packages.adapters.packing import pack
from examples.story_checks import run_folder
from tests.e2e.harness import AUDITS, QUICK, Row, until
from tests.e2e.stopping import StopHarness

SHOP = Path(crawler_lifecycle.__file__).parent / "template" / "shop"
#: A Scrapy project, and a program that waits as long as it is told.
CRAWLERS: list[Row] = [
    {"name": "deployed", "kind": "scrapy", "spider": "shop", "package": "deployed"},
    {
        "name": "program",
        "kind": "command",
        "command": ["python", "-S", "program.py"],
        "package": "program",
        "resumable": True,
    },
]
CRAWLERS.append({**CRAWLERS[1], "name": "tried", "package": "tried"})
PROGRAM = """
import json, os, pathlib, time
files = pathlib.Path(os.environ["CRAWL_FILES_DIR"])
(files / "items.jl").write_text(json.dumps({{"version": {version!r}}}) + "\\n")
time.sleep({seconds})
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StopHarness]:
    folder = tmp_path_factory.mktemp("packages")
    (folder / "more.yaml").write_text(json.dumps(CRAWLERS))
    more = {"LIFECYCLE_EXTRA_CATALOGUE": str(folder / "more.yaml")}
    with StopHarness.up(folder / "state", examples=True, **more, **AUDITS) as harness:
        yield harness


def deploy(stack: StopHarness, package: str, version: str, folder: Path, **params: float) -> str:
    """Deploy a folder. Return its digest."""
    file = io.BytesIO()
    pack(folder, file)
    url = f"{stack.stack.addresses['gateway']}/v1/packages/{package}/versions/{version}"
    answer = httpx.put(url, content=file.getvalue(), params=params, timeout=30)
    assert answer.status_code in (200, 201), answer.text
    return str(answer.json()["digest"])


def deploy_program(stack: StopHarness, version: str, folder: Path, seconds: float = 0) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "program.py").write_text(PROGRAM.format(version=version, seconds=seconds))
    return deploy(stack, "program", version, folder)


def start(stack: StopHarness, crawler: str, key: str, **more: Any) -> int:
    return int(stack.gateway.start({"crawler": crawler, **QUICK, **more}, key)["run_id"])


def ended(stack: StopHarness, run_id: int) -> Row:
    until(lambda: stack.closed([run_id]), "the end of the run")
    return stack.gateway.run(run_id)


def codes(run: Row) -> list[tuple[str, str | None]]:
    return [(code["digest"], code["version"]) for code in run["codes"]]


def versions_written(stack: StopHarness, run_id: int) -> list[str]:
    files = run_folder(stack.folder, run_id).rglob("items.jl")
    return sorted(json.loads(file.read_text())["version"] for file in files)


def test_a_scrapy_project_of_200_files_executes_once_it_is_deployed(
    stack: StopHarness, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    shutil.copytree(SHOP, tmp_path / "shop")
    for n in range(195):
        (tmp_path / "shop" / "shop" / f"part{n}.py").write_text(f"VALUE = {n}\n" * 200)
    began = time.monotonic()
    digest = deploy(stack, "deployed", "v1", tmp_path / "shop")
    run_id = start(stack, "deployed", "scrapy")
    until(lambda: "Spider opened" in log(stack, run_id), "the first line of the spider")
    took = time.monotonic() - began
    run = ended(stack, run_id)
    assert (run["status"], run["items"]) == ("COMPLETED", 3), run["cause"]
    assert codes(run) == [(digest, "v1")]
    assert not [*run_folder(stack.folder, run_id).glob("*/*/code")]
    stack.prove(run_id, "COMPLETED", "finished")
    record_property("seconds from the deployment to the spider", took)


def log(stack: StopHarness, run_id: int) -> str:
    return "".join(file.read_text() for file in run_folder(stack.folder, run_id).glob("*/*/log"))


def test_a_resume_keeps_the_code_unless_it_names_a_version(
    stack: StopHarness, tmp_path: Path
) -> None:
    first = deploy_program(stack, "v1", tmp_path / "a", seconds=60)
    run_id = start(stack, "program", "resumed")
    until(lambda: versions_written(stack, run_id), "its item")
    second = deploy_program(stack, "v2", tmp_path / "b")
    for attempt, more, written in (
        (2, {}, ["v1", "v1"]),
        (3, {"version": "newest"}, ["v1", "v1", "v2"]),
    ):
        stack.gateway.stop(run_id)
        ended(stack, run_id)
        stack.gateway.resume(run_id, **more)
        until(lambda: versions_written(stack, run_id) == written, f"attempt {attempt}")  # noqa: B023
    run = ended(stack, run_id)
    assert run["status"] == "COMPLETED", run["cause"]
    assert set(codes(run)) == {(first, "v1"), (second, "v2")}
    assert (run["request"]["version"], run["request"]["code"]) == ("v2", second)
    named = start(stack, "program", "named", version="v2")
    assert codes(ended(stack, named)) == [(second, "v2")]
    again = start(stack, "program", "named", version="v2")
    assert again == named


def test_an_unknown_version_is_refused(stack: StopHarness, tmp_path: Path) -> None:
    deploy_program(stack, "v2", tmp_path / "b")
    for crawler, version, words in (
        ("program", "v9", "v2"),
        ("plain", "v9", "executes no deployed package"),
    ):
        body = {"crawler": crawler, "version": version}
        answer = httpx.post(f"{stack.stack.addresses['gateway']}/v1/runs", json=body, timeout=30)
        assert answer.status_code == 422, answer.text
        assert words in answer.json()["detail"]
    schedule = {"run": {"crawler": "program", "version": "v9"}, "every_s": 3600}
    url = f"{stack.stack.addresses['gateway']}/v1/schedules/program"
    assert httpx.put(url, json=schedule, timeout=30).status_code == 422
    manager = {"crawler": "program", "options": {"version": "v9"}}
    url = f"{stack.stack.addresses['gateway']}/v1/managers"
    assert httpx.post(url, json=manager, timeout=30).status_code == 422
    body = {"crawler": "program", "code": "sha256:" + "0" * 64}
    answer = httpx.post(f"{stack.stack.addresses['gateway']}/v1/runs", json=body, timeout=30)
    assert answer.status_code == 422


def test_managers_and_graphs_name_a_version(stack: StopHarness, tmp_path: Path) -> None:
    old = deploy_program(stack, "v0", tmp_path / "o")
    deploy_program(stack, "v2", tmp_path / "b")
    use = f"{stack.stack.addresses['gateway']}/v1/packages/program/use"
    assert httpx.post(use, json={"version": "v2"}, timeout=30).status_code == 200
    manager = stack.gateway.post(
        "/v1/managers", {"crawler": "program", "options": {"version": "v0"}}
    )
    jobs = {"jobs": [{"spider_args": {}}], "seal": True}
    stack.gateway.post(f"/v1/managers/{manager['manager_id']}/jobs", jobs)
    step = {"path": "a", "kind": "crawl", "job": {"crawler": "program", "version": "v0"}}
    stack.gateway.post("/v1/graphs", {"id": "versions", "steps": [step]})
    sql = "SELECT run_id FROM run_history WHERE crawler = 'program' AND parent LIKE ?"
    for parent in ("manager/%", "graph/%"):
        [(run_id,)] = until(lambda: stack.query(sql, parent), f"a run of {parent}")  # noqa: B023
        run = ended(stack, run_id)
        assert codes(run) == [(old, "v0")], run


def test_a_stop_ends_a_task_that_cannot_fetch_its_code(stack: StopHarness, tmp_path: Path) -> None:
    digest = deploy_program(stack, "v3", tmp_path / "c")
    (stack.folder / "code" / f"{digest.removeprefix('sha256:')}.zip").unlink()
    run_id = start(stack, "program", "away", version="v3")
    until(lambda: "waiting for its code" in log(stack, run_id), "the first failed try")
    stack.gateway.stop(run_id)
    stopped = time.monotonic()
    until(lambda: [*run_folder(stack.folder, run_id).glob("*/*/end.json")], "the end of the task")
    took = time.monotonic() - stopped
    assert ended(stack, run_id)["outcome"] == "cancelled"
    assert took < 2, took


def test_a_run_shows_why_it_waits_for_its_code_until_the_code_is_back(
    stack: StopHarness, tmp_path: Path
) -> None:
    digest = deploy_program(stack, "v5", tmp_path / "e", seconds=60)
    zipped = stack.folder / "code" / f"{digest.removeprefix('sha256:')}.zip"
    zipped.rename(tmp_path / "away")
    run_id = start(stack, "program", "back", version="v5")
    url = f"{stack.stack.addresses['gateway']}/v1/runs"
    waits = {"waits": "code"}
    until(lambda: httpx.get(url, params=waits).json()["runs"], "the run among those that wait")
    run = stack.gateway.run(run_id)
    assert run["waiting"].startswith("the code of task 0 has been missing for "), run
    assert "the gateway answers 503" in run["waiting"]
    assert run["waiting_since"] is not None
    (tmp_path / "away").rename(zipped)
    until(lambda: versions_written(stack, run_id), "its item")
    until(lambda: stack.gateway.run(run_id)["waiting"] is None, "the end of the wait", 40)
    assert httpx.get(url, params=waits).json()["runs"] == []
    stack.gateway.stop(run_id)
    ended(stack, run_id)


def test_code_that_was_changed_is_not_executed(stack: StopHarness, tmp_path: Path) -> None:
    digest = deploy_program(stack, "v4", tmp_path / "d")
    zipped = stack.folder / "code" / f"{digest.removeprefix('sha256:')}.zip"
    (tmp_path / "d" / "program.py").write_text("print('changed')")
    with zipped.open("wb") as file:
        pack(tmp_path / "d", file)
    run = ended(stack, start(stack, "program", "changed", version="v4"))
    assert run["status"] == "FAILED"
    assert "has the digest" in run["cause"]
    assert "print" not in log(stack, run["run_id"])


def test_a_canary_whose_items_lack_a_field_goes_back(stack: StopHarness, tmp_path: Path) -> None:
    folder = tmp_path / "tried"
    folder.mkdir()
    program = PROGRAM.replace('"version"', '"url": "/", "price"')
    (folder / "program.py").write_text(program.format(version="9.90", seconds=0))
    old = deploy(stack, "tried", "v1", folder)
    for n in range(3):
        assert codes(ended(stack, start(stack, "tried", f"old-{n}"))) == [(old, "v1")]
    (folder / "program.py").write_text(program.format(version="", seconds=0))
    new = deploy(stack, "tried", "v2", folder, canary=0.1, canary_runs=1)
    run_id = start(stack, "tried", "new")
    assert codes(ended(stack, run_id)) == [(new, "v2")]

    def canary() -> Row:
        answer = httpx.get(f"{stack.stack.addresses['gateway']}/v1/canaries", timeout=30)
        return dict(answer.json()["canaries"][0])

    until(lambda: canary()["state"] != "open", "the judgement", 40)
    assert canary()["result"] == (
        "tried v2 was rolled back to v1: tried: price: 0 % of 1 items have it, the usual share is "
        f"100 % (median of 3 runs), expected at least 70 % (run {run_id})"
    )
    assert codes(ended(stack, start(stack, "tried", "later"))) == [(old, "v1")]
    url = f"{stack.stack.addresses['gateway']}/v1/incidents"
    kinds = {"kind": "canary_rejected"}
    until(lambda: httpx.get(url, params=kinds).json()["incidents"], "the incident")
