"""Every command that the README tells a newcomer to type does what it says, in the order in which it is told."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.world import World, until

README = Path(__file__).parents[2] / "README.md"
CRAWLCTL = [sys.executable, "-m", "crawler_lifecycle.cli.main"]


def commands(program: str) -> list[list[str]]:
    """The command lines of the README's code blocks that begin with this program, without comments.

    ``RUN=$(program …)`` counts as the command in it.
    """
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", README.read_text(), re.S | re.M)
    text = "\n".join(text for language, text in blocks if not language).replace("\\\n", " ")
    lines = re.sub(r"^RUN=\$\((.*)\)", r"\1", text, flags=re.M).splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.startswith(f"{program} ")]


def crawlctl(world: World, words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run ``crawlctl`` as a user beside the stack would."""
    env = {**os.environ, "LIFECYCLE_GATEWAY__URL": str(world.stack.addresses["gateway"]), "NO_COLOR": "1"}
    return subprocess.run(
        [*CRAWLCTL, *words], env=env, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


def test_crawlctl_as_the_readme_shows_it(world: World, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    lines = commands("crawlctl")
    assert [words[1] for words in lines] == [
        *("crawler", "start", "start", "list", "describe", "logs", "stop", "resume", "pools", "export"),
        *("corrections", "audit", "doctor"),
    ]
    first = run_id = ""
    still = ExitStack()
    request.addfinalizer(still.close)
    for words in lines:
        if words[1:3] == ["start", "operations"]:  # it is looked at and stopped before it can end by itself
            still.enter_context(world.site_stands_still())
        ids = {} if words[1] == "start" else {"1": first, "$RUN": run_id}
        asked = [ids.get(word, word) for word in words[1:]]
        if words[1] == "doctor":  # a newcomer's stack is in the working directory, this one is not
            asked += ["--state-dir", str(world.folder), "--timeout", "100s"]
        if words[1] == "logs":
            until(lambda run=run_id: crawlctl(world, ["logs", run], tmp_path).stdout, "a line of the log")
        with ThreadPoolExecutor(1) as typing:
            answer = typing.submit(crawlctl, world, asked, tmp_path)
            if words[1] == "stop":
                # One that had nothing to wait for may have ended already.
                until(lambda run=int(run_id): not {"PENDING", "RUNNING"} & set(world.tasks(run)), "the stop signals")
                still.close()
            done = answer.result()
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        good_news = ("no corrections", "database, cluster and Temporal agree")
        assert done.stdout.strip() or any(news in done.stderr for news in good_news), words
        if words[1:3] == ["start", "services"]:
            first = str(world.query("SELECT max(run_id) FROM run_history")[0][0])
            until(lambda run=int(first): world.closed([run]), "its archive")  # completed it is before that
        if words[1] == "resume":  # what comes next is about the second attempt
            until(lambda run=int(run_id): world.gateway.run(run)["attempt"] == 2, "the second attempt")
        if words[1] == "export":
            assert zipfile.is_zipfile(next(tmp_path.glob("*.zip")))
        if words[1:3] == ["start", "operations"]:
            run_id = done.stdout.strip()
            assert run_id == str(world.query("SELECT max(run_id) FROM run_history")[0][0])
            until(lambda run=int(run_id): world.status(run) == "PROCESSING", "the run started")
        if words[1] == "describe":
            assert "operations" in done.stdout
            assert "PROCESSING" in done.stdout
    assert crawlctl(world, ["stop", run_id, "--wait"], tmp_path).returncode in (0, 4), "stopped now, or it had ended"
    assert world.status(int(run_id)) in ("FAILED", "COMPLETED")
    assert world.query("SELECT attempt FROM run_history WHERE run_id = ?", run_id) == [(2,)]


def test_temporal_as_the_readme_shows_it(world: World, request: pytest.FixtureRequest) -> None:
    lines = commands("temporal")
    assert [words[2] for words in lines] == ["start", "query", "signal", "signal", "list", "start"]
    run_id = 0
    still = ExitStack()
    request.addfinalizer(still.close)
    still.enter_context(world.site_stands_still())  # it is stopped before it can end by itself
    for words in lines:
        asked = [word.replace('"run_id": 7', f'"run_id": {run_id}') for word in words[1:]]
        if words[2] == "signal":  # nobody hears the first one before the second has come, and an ended run takes none
            world.freeze("worker")
            request.addfinalizer(lambda: world.thaw("worker"))
        elif words[2] == "list":
            world.thaw("worker")
        done = world.temporal(*asked)
        assert done.stdout.strip() or words[2] in ("signal", "list"), words  # by now the run may be none of those
        if words[2] == "start" and not run_id:
            run_id = int(until(lambda: world.run_of("my-crawl"), "the run is recorded"))
        if words[2] == "list":
            until(lambda run=run_id: world.status(run) == "FAILED", "the stop is carried out")
            world.cli_result("my-crawl")
            still.close()
    assert world.cli_result("my-crawl-again")["result"]["run_id"] == run_id
    assert world.query("SELECT attempt, outcome FROM run_history WHERE run_id = ?", run_id) == [(2, "finished")]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed; `make test-deps` installs it")
def test_curl_as_the_readme_shows_it(world: World) -> None:
    """The same key twice is one run; the list answers."""
    usual, own = "http://127.0.0.1:8500", str(world.stack.addresses["gateway"])
    start, listed = [[word.replace(usual, own) for word in words] for words in commands("curl")]
    answers = [json.loads(subprocess.run(start, capture_output=True, check=True).stdout) for _ in range(2)]
    assert answers[0]["run_id"] == answers[1]["run_id"]
    assert answers[0]["crawler"] == "services"
    until(lambda: world.status(answers[0]["run_id"]) in ("PROCESSING", "COMPLETED"), "the run started")
    assert "runs" in json.loads(subprocess.run(listed, capture_output=True, check=True).stdout)
    until(lambda: world.status(answers[0]["run_id"]) == "COMPLETED", "the run ended", 120)
