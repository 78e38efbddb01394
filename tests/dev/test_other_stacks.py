"""Two stacks on one machine: each keeps its ports, and a command in one folder never reaches the
stack of another.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from crawler_lifecycle import dev_json
from crawler_lifecycle.cli.client.gateway import Gateway
from crawler_lifecycle.cli.problems import Exit
from crawler_lifecycle.cli.stack import layout, processes
from crawler_lifecycle.domain.names import STACK_HEADER
from tests.dev.dev_support import ANSWER_S, Dev, gone
from tests.support import in_process

SERVICES = ("gateway", "scheduler", "worker")
START_A_GRAPH = """
from crawler_lifecycle.graphs import Workflow, crawl
Workflow(id="g").add("a", crawl("services")).start()
"""


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[tuple[Dev, Dev]]:
    """Two folders whose last stacks used the same ports."""
    with ExitStack() as claims:
        ports = layout.Layout(tmp_path, only_free_ports=True).choose_ports(
            {}, lambda line: None, claims
        )
    before = layout.Layout(tmp_path, ports).addresses()
    stacks = tuple(Dev(tmp_path / name / ".crawl") for name in ("p", "q%25 ü"))
    for stack in stacks:
        stack.state_dir.mkdir(parents=True, mode=0o700)
        file = stack.state_dir / "dev.json"
        file.write_text(json.dumps(before))
        file.chmod(0o600)
    yield stacks  # type: ignore[misc]
    for stack in stacks:
        stack.close()


def crawlctl(stack: Dev, *words: str) -> subprocess.CompletedProcess[str]:
    """Call ``crawlctl`` in the folder of a stack, without naming its gateway."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("LIFECYCLE_")}
    return in_process.crawlctl(*words, env=env, folder=stack.state_dir.parent)


def test_two_that_begin_at_once_keep_their_ports_and_one_that_ended_is_not_taken_for_the_other(
    folders: tuple[Dev, Dev],
) -> None:
    first, second = folders
    for stack in folders:
        stack.launch()
    for stack in folders:
        stack.await_banner()
        assert {
            httpx.get(f"{stack.known[name]}/healthz").headers[STACK_HEADER] for name in SERVICES
        } == {stack.known["stack"]}
    ports = [{stack.known[name] for name in (*SERVICES, "temporal", "site")} for stack in folders]
    assert not ports[0] & ports[1]

    # The first ends. The second gets its ports.
    before = first.known
    for stack in folders:
        assert stack.end() == 0
        assert gone(before["processes"])
    shutil.copy(first.state_dir / "dev.json", second.state_dir / "dev.json")
    second.start()
    assert second.known["gateway"] == before["gateway"]
    with second.no_crawl_gets_on():
        assert crawlctl(second, "start", "services").returncode == 0
        for words in (
            ["stop", "1"],
            ["force-stop", "1", "--yes"],
            ["list"],
            ["logs", "1", "-f"],
            ["wait", "1"],
        ):
            refused = crawlctl(first, *words)
            assert refused.returncode == 4, (words, refused.stdout, refused.stderr)
            for folder in (first.state_dir, second.state_dir):
                assert str(folder) in refused.stderr
            assert "; start it: crawlctl dev --state-dir" in refused.stderr
        script = [sys.executable, "-c", START_A_GRAPH]
        refused = subprocess.run(
            script, cwd=first.state_dir.parent, capture_output=True, text=True, timeout=ANSWER_S
        )
        assert f"the stack of {first.state_dir} does not run" in refused.stderr
        with Gateway(second.known["gateway"]) as gateway:
            assert gateway.run(1)["stop"] is None
            assert gateway.rows("/v1/graphs") == []
        assert crawlctl(second, "stop", "1").returncode == 0
    # A named gateway takes precedence.
    assert crawlctl(first, "list", "--gateway", second.known["gateway"]).returncode == 0


def test_of_two_that_begin_at_once_in_one_folder_one_is_refused(tmp_path: Path) -> None:
    stacks = Dev(tmp_path / ".crawl"), Dev(tmp_path / ".crawl")
    try:
        for stack in stacks:
            stack.launch()
        processes_ = [stack.process for stack in stacks if stack.process is not None]
        while all(process.poll() is None for process in processes_):
            pass
        (refused,) = [process for process in processes_ if process.poll() is not None]
        assert refused.returncode == Exit.NOT_IN_THIS_STATE
        (winner,) = [stack for stack in stacks if stack.process is not refused]
        winner.await_banner()
        assert winner.known["pid"] == winner.process.pid  # type: ignore[union-attr]
    finally:
        for stack in stacks:
            stack.close()


def _answer(stack: str | None) -> httpx.Response:
    return httpx.Response(200, headers={} if stack is None else {STACK_HEADER: stack})


def test_a_copy_of_a_folder_is_another_stack(tmp_path: Path) -> None:
    original = dev_json.identity("a", tmp_path / "original")
    known = {"gateway": "http://127.0.0.1:1", "stack": original}
    dev_json.Stack(tmp_path / "original" / "dev.json", known).check(_answer(original))
    copy = dev_json.Stack(tmp_path / "copy" / "dev.json", known)
    with pytest.raises(dev_json.OtherStack, match=f"belongs to the stack of {tmp_path}/original"):
        copy.check(_answer(original))
    with pytest.raises(dev_json.OtherStack, match="belongs to another program"):
        copy.check(_answer(None))
    # The file of an older version names no stack, nor does its gateway.
    dev_json.Stack(copy.file, {}).check(_answer(None))


def test_a_port_is_claimed_once_and_only_while_nobody_listens() -> None:
    port = processes.free_port()
    with ExitStack() as claims, ExitStack() as others:
        assert processes.claim(port, claims)
        assert not processes.claim(port, others)
        claims.close()
        assert processes.claim(port, others)
