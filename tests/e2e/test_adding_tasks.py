"""Tasks added to a live run from outside: by Temporal's CLI, and by the crawler itself with its own token."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from crawler_lifecycle.cli.client.gateway import Gateway
from crawler_lifecycle.cli.stack.layout import Layout
from crawler_lifecycle.cli.stack.stack import Stack
from examples.story_checks import Places, query
from tests.e2e.world import ENDLESS, QUICK, TERMINAL, World, until

#: Finds two shelves, hands each to a task of its own, and is through; a shelf writes what it was given.
SHELVES = """
import json, os, urllib.request
args = json.loads(os.environ["CRAWL_ARGS"])
files = os.environ["CRAWL_FILES_DIR"]
if "shelf" in args:
    open(os.path.join(files, "shelf.txt"), "w").write(args["shelf"])
else:
    url = f"{os.environ['CRAWL_GATEWAY_URL']}/v1/runs/{os.environ['CRAWL_RUN_ID']}/tasks"
    head = {
        "Authorization": "Bearer " + os.environ["CRAWL_TOKEN"],
        "Content-Type": "application/json",
        "Idempotency-Key": "shelves",
    }
    body = json.dumps({"tasks": [{"args": {"shelf": n}} for n in ("7", "8")]}).encode()
    answer = json.load(urllib.request.urlopen(urllib.request.Request(url, body, head)))
    assert [task["index"] for task in answer["tasks"]] == [1, 2], answer
    # The token opens nothing else.
    try:
        urllib.request.urlopen(urllib.request.Request(url.replace("/tasks", "/stop"), b"{}", head))
    except urllib.error.HTTPError as error:
        assert error.code == 403, error
    else:
        raise SystemExit("the token stopped the run")
"""

CATALOGUE = """
- name: shelves
  kind: command
  project: .
  command: ["python", "shelves.py"]
  args:
    shelf: {required: false}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shelves.py").write_text(textwrap.dedent(SHELVES))
    (tmp_path / "crawlers.yaml").write_text(CATALOGUE)
    return tmp_path


@pytest.fixture
def own_stack(folder: Path) -> Iterator[Stack]:
    stack = Stack(Layout(folder / "state", only_free_ports=True, crawlers=folder / "crawlers.yaml"))
    stack.start()
    yield stack
    stack.stop(kill_crawls=True)


def test_a_crawler_adds_tasks_to_its_own_run(own_stack: Stack, folder: Path) -> None:
    with Gateway(str(own_stack.addresses["gateway"]), timeout_s=60) as gateway:
        run_id = int(str(gateway.start({"crawler": "shelves", **QUICK}, "k")["run_id"]))
        until(lambda: gateway.run(run_id)["status"] in TERMINAL, "the end of the run")
        ended = gateway.run(run_id)
    tasks = query(
        Places(folder / "state", own_stack.addresses),
        "SELECT task_index, status, args FROM task_history WHERE run_id = ? ORDER BY task_index",
        run_id,
    )
    assert [(index, status) for index, status, _ in tasks] == [(n, "SUCCEEDED") for n in range(3)]
    assert [json.loads(args) for _, _, args in tasks] == [{}, {"shelf": "7"}, {"shelf": "8"}]
    assert (ended["status"], ended["outcome"]) == ("COMPLETED", "finished")
    written = [path.read_text() for path in (folder / "state" / "cluster" / "tasks").rglob("shelf.txt")]
    assert sorted(written) == ["7", "8"]


def test_the_temporal_cli_adds_tasks(world: World) -> None:
    world.cli_start("cli/adding", {"crawler": "plain", "args": ENDLESS, **QUICK})
    run_id = until(lambda: world.run_of("cli/adding"), "the run")
    until(lambda: world.tasks(run_id).get("RUNNING"), "a task that runs")
    page = json.dumps({"tasks": [{"args": {"max_pages": "2", "delay": "0.01"}}], "request_id": "cli-more"})
    words = ["workflow", "update", "execute", "--workflow-id", "cli/adding", "--name", "add_tasks", "--input", page]
    for _ in range(2):
        answer = json.loads(world.temporal(*words).stdout)
        assert [task["index"] for task in answer["result"]["tasks"]] == [1]
    until(lambda: world.tasks(run_id) == {"RUNNING": 1, "SUCCEEDED": 1}, "the end of the added task")
    world.temporal("workflow", "signal", "--workflow-id", "cli/adding", "--name", "stop")
    result = world.cli_result("cli/adding")["result"]
    assert result["tasks"] == {"CANCELLED": 1, "SUCCEEDED": 1}
