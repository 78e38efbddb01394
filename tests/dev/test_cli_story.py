"""The command line with the real stack: what a person does with a run, from its start to its
archive.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from crawler_lifecycle.cli.stack import processes
from crawler_lifecycle.cli.stack.supervise import ask
from tests.dev.dev_support import ANSWER_S, Dev, wait_until
from tests.support import in_process

CRAWLCTL = (sys.executable, "-m", "crawler_lifecycle.cli")
NEW, ROLES = ("gateway", "token", "new"), ("read", "operate")
POLL = ("--poll-minutes", "0.02")


@pytest.fixture(scope="module")
def ended(running: Dev) -> int:
    """A run with two tasks, the second of which was added while the first was executing, watched to
    its end.

    Its archive follows later.
    """
    with running.no_crawl_gets_on():
        started = running.crawlctl(
            "start", "services", "--tasks", "1", *POLL, "--tag", "story", "-o", "name"
        )
        run = started.stdout.strip()
        words = ("tasks", "add", run, "-a", f"site={running.known['site']}")
        first, second = (
            running.crawlctl(*words, "-o", "json"),
            running.crawlctl(*words, "-o", "json"),
        )
        assert json.loads(first.stdout)["tasks"] == json.loads(second.stdout)["tasks"]
        assert "1 of them were added earlier" in second.stderr
        process = subprocess.Popen(
            [*CRAWLCTL, "--gateway", running.known["gateway"], "watch", run, "--timeout", "100s"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        told = process.stdout.readline()
    # Not communicate(), which skips what readline() has fetched beyond its line.
    with process:
        told += process.stdout.read()
    assert process.returncode == 0
    lines = [line.split(" ", 1)[1] for line in told.splitlines()]
    assert "\x1b" not in told
    assert any(
        line.startswith(f"run {run} services COMPLETED completion finished") for line in lines
    ), lines
    assert any("(index 1) SUCCEEDED finished" in line for line in lines), lines
    wait_until(lambda: json.loads(running.crawlctl("export", run, "-o", "json").stdout)["exports"])
    return int(run)


def test_the_run_is_found_by_what_it_is(running: Dev, ended: int) -> None:
    filters = ("--tag", "story", "--stage", "completion", "--since", "1h", "--status", "completed")
    assert running.crawlctl("list", *filters, "-o", "name").stdout.split() == [str(ended)]
    assert running.crawlctl("list", "--tag", "story", "--until", "1h", "-o", "name").stdout == ""
    rows = [
        json.loads(line)
        for line in running.crawlctl("tasks", str(ended), "-o", "jsonl").stdout.splitlines()
    ]
    assert [(row["task_index"], row["status"]) for row in rows] == [
        (0, "SUCCEEDED"),
        (1, "SUCCEEDED"),
    ]
    assert "COMPLETED" in running.crawlctl("timeline", str(ended)).stdout


def test_its_log_can_be_read_and_followed_to_its_end(running: Dev, ended: int) -> None:
    kept = running.crawlctl("logs", str(ended), "--tail", "3").stdout
    followed = running.crawlctl("logs", str(ended), "-f", "--tail", "3").stdout
    assert "finish_reason" in kept
    assert kept.splitlines()[-1] == followed.splitlines()[-1]


def test_its_archive_is_fetched_whole(running: Dev, ended: int, tmp_path: Path) -> None:
    fetched = running.crawlctl("export", str(ended), "--download", str(tmp_path), "-o", "name")
    file = Path(fetched.stdout.strip())
    assert file.parent == tmp_path
    with zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
        assert archive.namelist()
    assert (
        running.crawlctl("export", str(ended), "--download", str(tmp_path), check=False).returncode
        == 4
    )


def test_a_finished_run_takes_no_tasks(running: Dev, ended: int) -> None:
    words = ("tasks", "add", str(ended), "-a", "site=http://127.0.0.1:1")
    assert running.crawlctl(*words, check=False).returncode == 4


def test_it_is_delivered_again(running: Dev, ended: int) -> None:
    before = json.loads(running.crawlctl("export", str(ended), "-o", "json").stdout)
    assert {one["status"] for one in before["exports"]} == {"exported"}
    assert running.crawlctl("export", str(ended), "--resend", "--only", "event").returncode == 0


def test_watching_ends_at_ctrl_c_and_the_run_goes_on(running: Dev) -> None:
    with running.no_crawl_gets_on():
        _ctrl_c(running)


def _ctrl_c(running: Dev) -> None:
    run = running.crawlctl("start", "operations", *POLL, "-o", "name").stdout.strip()
    command = [*CRAWLCTL, "--gateway", running.known["gateway"], "watch", run]

    # A shell starts background processes with SIGINT ignored, and children inherit this.
    def heed() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed
    ) as process:
        assert process.stdout is not None
        assert f"run {run} operations" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(ANSWER_S) == 130
    assert json.loads(running.crawlctl("get", run, "-o", "json").stdout)["status"] in (
        "INITIALIZING",
        "PROCESSING",
    )
    ended = running.crawlctl(
        "force-stop", run, "--yes", "--wait", "-o", "json", "--timeout", "100s"
    )
    assert json.loads(ended.stdout)["outcome"] in ("cancelled", "cancel_timeout")
    assert running.crawlctl("wait", run, check=False).returncode == 6


def test_nothing_is_bad_about_the_stack(running: Dev) -> None:
    words = ("doctor", "--timeout", "100s", "--state-dir", str(running.state_dir), "-o", "json")
    done = running.crawlctl(*words, check=False)
    document = json.loads(done.stdout)
    wrong = [(one["check"], one["text"]) for one in document["checks"] if one["level"] == "bad"]
    assert (done.returncode, wrong) == (0, [])
    texts = " ".join(one["text"] for one in document["checks"])
    assert "all 10 are registered" in texts
    assert texts.count("polling") == 9
    sources = {one["name"]: one["source"] for one in document["settings"]}
    assert sources["LIFECYCLE_DATABASE__URL"].endswith("dev.json")


def test_fix_registers_search_attributes(running: Dev) -> None:
    """The test uses its own namespace, because workers register the attributes in theirs when they
    start.
    """
    temporal = Path(sys.executable).parent / "temporal"
    address = ("--address", running.known["temporal"])
    create = [
        temporal,
        "operator",
        "namespace",
        "create",
        "--namespace",
        "fresh",
        "--retention",
        "72h",
        *address,
    ]
    subprocess.run(create, check=True, capture_output=True, timeout=ANSWER_S)
    env = {"TEMPORAL_ADDRESS": running.known["temporal"], "TEMPORAL_NAMESPACE": "fresh"}
    env |= {"LIFECYCLE_DATABASE__URL": running.known["database"]}

    def doctor(*words: str) -> dict[str, str]:
        given = ("doctor", "--timeout", "100s", "-o", "json", *words)
        done = in_process.crawlctl(*given, env=env, folder=running.state_dir.parent)
        checks = json.loads(done.stdout)["checks"]
        return {one["check"]: f"{one['level']}: {one['text']}" for one in checks}

    assert doctor()["search attrs"].startswith("bad: not registered: CrawlRunId")
    fixed = doctor("--fix")
    assert fixed["search attrs"].startswith("ok: all 10 are registered; registered CrawlCrawler")
    assert fixed["workers"].startswith("warn: no worker with the user-code role polls"), (
        "nobody works in that namespace"
    )
    assert doctor()["search attrs"] == "ok: all 10 are registered"

    # A killed worker stays on the server's list for minutes. Ten seconds are enough to detect it,
    # even before its first heartbeat.
    port = processes.free_port()
    env |= {
        "LIFECYCLE_WORKER__HEALTH_PORT": str(port),
        "LIFECYCLE_SCHEDULER__URL": running.known["scheduler"],
    }
    with subprocess.Popen(
        [*CRAWLCTL, "worker"], env=os.environ | env, cwd=running.state_dir.parent
    ) as worker:
        try:
            # A doctor takes more than a second of processor time, so none is called before it can
            # know.
            wait_until(lambda: ask(f"http://127.0.0.1:{port}/readyz")[0] == 200)
            wait_until(lambda: "polling" in doctor()["workers"])
        finally:
            worker.kill()
    killed, told = time.monotonic(), ""

    def lost() -> bool:
        nonlocal told
        told = doctor()["workers"] if time.monotonic() > killed + 9 else ""
        return told.startswith("bad: no worker with the user-code role polls")

    wait_until(lost)
    assert re.search(r": last seen (8|9|\d\d) s ago", told)


def test_a_token_lets_in_whom_it_was_made_for(running: Dev, tmp_path: Path) -> None:
    """A separate gateway next to the stack's, which requires tokens that `gateway token new` made."""
    known, port = running.known, processes.free_port()
    made = {
        role: json.loads(
            running.crawlctl(*NEW, "--name", role, "--role", role, "-o", "json").stdout
        )
        for role in ROLES
    }
    (tmp_path / "tokens.toml").write_text("".join(one["toml"] for one in made.values()))
    for role, one in made.items():
        (tmp_path / role).write_text(one["token"])
    own = {
        "TEMPORAL_ADDRESS": known["temporal"],
        "LIFECYCLE_DATABASE__URL": known["database"],
        "LIFECYCLE_SCHEDULER__URL": known["scheduler"],
        "LIFECYCLE_GATEWAY__CALLERS_FILE": str(tmp_path / "tokens.toml"),
        "LIFECYCLE_GATEWAY__PORT": str(port),
    }

    def crawlctl(*words: str) -> int:
        given = ("--gateway", f"http://127.0.0.1:{port}", *words)
        return in_process.crawlctl(*given, env=os.environ, folder=tmp_path).returncode

    with subprocess.Popen(
        [*CRAWLCTL, "gateway"], env=os.environ | own, stderr=subprocess.DEVNULL
    ) as gateway:
        try:
            wait_until(lambda: ask(f"http://127.0.0.1:{port}/readyz")[0] == 200)
            assert crawlctl("list") == 9
            assert crawlctl("list", "--token-file", "read") == 0
            assert crawlctl("start", "services", "--token-file", "read") == 9
            assert crawlctl("stop", "999999", "--token-file", "operate") == 3
        finally:
            gateway.terminate()
            assert gateway.wait(ANSWER_S) == 0


#: The crawler's behaviour -> the lines that fail. "silent" ends with exit 0, and removes its
#: summary.
DEVIATIONS = {
    "good": [],
    "deaf": ["stop", "finish reason", "resume", "continues"],
    "forgetful": ["continues"],
    "silent": ["end", "files"],
}


@pytest.mark.parametrize(
    "hows", [("good", "deaf"), pytest.param(("forgetful", "silent"), marks=pytest.mark.slow)]
)
def test_crawlers_are_checked_against_the_contract(
    running: Dev, tmp_path: Path, request: pytest.FixtureRequest, hows: tuple[str, ...]
) -> None:
    """Both at the same time, because each mostly waits for its counters. test_check covers
    everything that a check can find.
    """
    catalogue, project = running.state_dir / "crawlers.yaml", tmp_path
    shutil.copy(Path(__file__).with_name("contract_crawler.py"), project)
    entry = "- {{name: {0}, kind: command, project: {1}, command: [python, contract_crawler.py, {0}], {2}}}\n"
    grace = {"deaf": "limits: {stop_grace_s: 1}, "}
    entries = [entry.format(how, project, f"{grace.get(how, '')}resumable: true") for how in hows]
    before = catalogue.read_text()
    catalogue.write_text(before + "".join(entries))
    request.addfinalizer(lambda: catalogue.write_text(before))
    wait_until(lambda: set(hows) <= set(running.crawlers()))

    def check(how: str) -> subprocess.CompletedProcess[str]:
        return running.crawlctl("crawler", "check", how, "-o", "json", check=False)

    with ThreadPoolExecutor(len(hows)) as pool:
        answers = dict(zip(hows, pool.map(check, hows), strict=True))
    for how, done in answers.items():
        lines = json.loads(done.stdout)["checks"]
        failed = [line["check"] for line in lines if line["result"] == "FAILED"]
        assert (failed, done.returncode) == (DEVIATIONS[how], int(bool(failed))), "\n".join(
            line["text"] for line in lines
        )
    if "good" in answers:
        assert json.loads(answers["good"].stdout)["summary"] == {"ok": 9, "FAILED": 0, "skipped": 0}
    assert (
        running.crawlctl("list", "--tag", "check", "--status", "PROCESSING", "-o", "name").stdout
        == ""
    )
