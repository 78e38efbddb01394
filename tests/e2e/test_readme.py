"""Every command block of the README and the quickstart works in a clean clone, in the given order."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import zipfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from crawler_lifecycle.cli.client.gateway import Gateway
from crawler_lifecycle.cli.stack import processes
from tests.e2e.harness import PATIENCE_S, processes_below, until

ROOT = Path(__file__).parents[2]
#: The command that occupies its terminal. The following ones are typed into another terminal.
STAYS = "make dev"
#: What a newcomer reads, one page after the other. A block that an earlier page has is typed only
#: once.
PAGES = ("README.md", "docs/README.md", "docs/quickstart.md")
#: Beginnings of commands that are not executed here, with what executes them instead, or why
#: nothing can.
NOT_HERE = {
    "git clone ": "this test has a clone, and no address is known yet",
    "make wheel": "tests/packaging/test_wheel.py builds it",
    "uvx --from dist/": "tests/packaging/test_wheel.py runs this command of the wheel, without uv and a package index",
}
#: Where the stack listens if the ports are free. Next to other stacks, it has other ports.
USUAL_GATEWAY = "http://127.0.0.1:8500"
SLOW_S = 600.0


def blocks() -> list[list[str]]:
    """Return the fenced blocks of the pages, each once, as lists of commands; a continued line is
    one command.
    """
    texts = "".join((ROOT / page).read_text() for page in PAGES)
    found = dict.fromkeys(re.findall(r"^```\w*\n(.*?)^```$", texts, re.S | re.M))
    return [text.replace("\\\n", " ").splitlines() for text in found]


def typed(commands: list[str]) -> list[str]:
    """Return these commands without those that are not executed here."""
    return [command for command in commands if not command.startswith(tuple(NOT_HERE))]


@dataclass
class Clone:
    """A newcomer's environment: the files of the repository, a shell, and nothing left from earlier
    work.
    """

    folder: Path
    env: dict[str, str]

    def type(self, commands: list[str], **more: str) -> None:
        """Type commands into one shell, one after the other. Each of them has to succeed."""
        done = subprocess.run(
            ["bash", "-euv", "-o", "pipefail"],
            input="\n".join(commands) + "\n",
            cwd=self.folder,
            env=self.env | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SLOW_S,
            check=False,
        )
        assert done.returncode == 0, (
            f"exit code {done.returncode} of the last of these commands:\n{done.stdout}"
        )

    @property
    def addresses(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / ".crawl" / "dev.json").read_text())
        return found


@pytest.fixture
def clone(tmp_path: Path) -> Iterator[Clone]:
    """The tracked files as they are now. Everything that runs in the clone is ended with the test."""
    folder = tmp_path / "clone"
    files = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for name in files.stdout.split("\0")[:-1]:
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    ours = ("LIFECYCLE_", "TEMPORAL_", "PYTHON", "VIRTUAL_ENV", "MAKE", "MFLAGS")
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    # `make test` puts the environment of this checkout first.
    env["PATH"] = os.pathsep.join(
        part for part in env["PATH"].split(os.pathsep) if part != str(ROOT / ".venv/bin")
    )
    yield Clone(folder, env | {"NO_COLOR": "1"})
    for pid in processes_below(folder):
        processes.end_process(pid, processes.start_time(pid), 0.0)


@pytest.mark.skipif(
    shutil.which("curl") is None, reason="curl is not installed; `make test-deps` installs it"
)
@pytest.mark.timeout(2 * SLOW_S)
def test_the_blocks_of_the_pages_work_in_their_order_on_a_clean_clone(clone: Clone) -> None:
    commands = [command for block in blocks() for command in typed(block)]
    (stays,) = [place for place, command in enumerate(commands) if command.startswith(STAYS)]
    clone.type(commands[:stays])
    dev = subprocess.Popen(
        commands[stays],
        shell=True,
        cwd=clone.folder,
        env=clone.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert dev.stdout is not None
    with dev, closing(dev.stdout) as said:
        shown = []
        for line in said:
            shown.append(line)
            if line.startswith("ready in"):
                break
        assert dev.poll() is None, "".join(shown)
        try:
            addresses = clone.addresses
            clone.type([at_home(line, addresses) for line in commands[stays + 1 :]])
            _check(clone, addresses["gateway"])
        finally:
            os.killpg(dev.pid, signal.SIGINT)
            last = said.read()
    assert "ended; " in last, last


def at_home(line: str, addresses: dict[str, Any]) -> str:
    """Return the command for this stack.

    Its ports differ from the usual ones if those are taken.
    """
    line = line.replace(USUAL_GATEWAY, addresses["gateway"])
    return re.sub(r"\btemporal workflow \w+", rf"\g<0> --address {addresses['temporal']}", line)


def _check(clone: Clone, address: str) -> None:
    """Check the results that the commands promise."""
    with Gateway(address, timeout_s=PATIENCE_S) as gateway:
        runs = gateway.runs(limit=5)
        again, ordered, stopped, services, _ = runs
        assert (services["crawler"], services["status"]) == ("services", "COMPLETED")
        # Stopped, and resumed with its second attempt.
        assert (stopped["crawler"], stopped["attempt"]) == ("operations", 2)
        until(
            lambda: gateway.run(int(str(ordered["run_id"])))["status"] == "COMPLETED",
            "the run by HTTP",
        )
        # Started by Temporal, forced to stop, and resumed by another workflow.
        run_id = int(str(again["run_id"]))
        until(lambda: gateway.run(run_id)["attempt"] == 2, "the attempt of my-crawl-again")
        assert gateway.run(run_id)["workflow_id"] == "my-crawl-again"
    (exported,) = clone.folder.glob("*.zip")
    assert zipfile.is_zipfile(exported)


def test_every_command_that_is_not_executed_is_on_a_page_and_has_a_reason() -> None:
    commands = [command for block in blocks() for command in block]
    for beginning, reason in NOT_HERE.items():
        assert [command for command in commands if command.startswith(beginning)], beginning
        for path in re.findall(r"\S+\.py|\.ci/\w+", reason):
            assert (ROOT / path).is_file(), path
    assert len(typed(commands)) > 20


def test_the_readme_comes_first_and_other_pages_repeat_its_start() -> None:
    """Other pages repeat the first minutes of the README word by word."""
    readme = (ROOT / "README.md").read_text()
    start = [block for block in blocks() if any("make dev" in command for command in block)]
    assert len(start) == 1
    for page in PAGES[1:]:
        text = (ROOT / page).read_text()
        first = re.findall(r"^```\n(.*?)^```$", text, re.S | re.M)[:2]
        assert [block for block in first if block not in readme] == [], page


@pytest.mark.parametrize("page", PAGES)
def test_no_page_needs_a_package_index_that_has_this_package(page: str) -> None:
    """The package is on no index, so no page may install it by its name."""
    text = (ROOT / page).read_text()
    assert (
        re.findall(
            r"(?:uvx|pipx run|pip install|uv pip install|uv tool install) +\S*crawler-lifecycle",
            text,
        )
        == []
    )
