"""Deployment happens at most once, whoever tries and whenever a process dies. Also: what the
crawler gets.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from crawler_lifecycle.domain.crawlers.arguments import Argument
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition, CrawlerKind
from crawler_lifecycle.domain.errors import ClusterUnavailable, DeploymentExpired
from crawler_lifecycle.domain.resources import Resources
from crawler_lifecycle.domain.task import Phase
from tests.clusters.local.local_fixture import RUN, SLEEP, Fixture, wait_until
from tests.support.run_refs import run_ref

#: In a process that deploys in parallel with others: see ``_meet``.
together: Barrier

ONCE = """
import os, time
with open(os.environ["CRAWL_FILES_DIR"] + "/starts", "a") as file:
    file.write("x")
time.sleep(300)
"""
ECHO = """
import json, os
with open(os.environ["CRAWL_FILES_DIR"] + "/seen.tmp", "w") as file:
    json.dump({"env": dict(os.environ), "cwd": os.getcwd(), "in": os.readlink("/proc/self/fd/0")}, file)
os.rename(os.environ["CRAWL_FILES_DIR"] + "/seen.tmp", os.environ["CRAWL_FILES_DIR"] + "/seen")
"""


def starts(fixture: Fixture, index: int = 0) -> int:
    """Return how often it was started, a moment after the first time."""
    path = fixture.folder(index) / "files/starts"
    wait_until(lambda: path.exists() and path.read_text())
    time.sleep(0.3)
    return len(path.read_text())


def seen_by_crawler(fixture: Fixture) -> dict[str, object]:
    fixture.until(Phase.ENDED)
    data: dict[str, object] = json.loads((fixture.folder() / "files/seen").read_text())
    return data


def _meet(barrier: Barrier) -> None:
    """Wait in a process of the pool until all of them can begin together."""
    global together
    together = barrier


def _deploy_elsewhere(folder: str) -> list[tuple[str, str | None]]:
    fixture = Fixture(Path(folder), slots=3)
    together.wait()
    return [(answer.state, answer.uid) for answer in fixture.deploy(ONCE, range(3))]


def test_four_processes_start_one_crawler_each_task(make_fixture: Callable[..., Fixture]) -> None:
    fixture = make_fixture(slots=3)
    context = multiprocessing.get_context("spawn")
    with context.Pool(4, initializer=_meet, initargs=(context.Barrier(4),)) as pool:
        job = pool.map_async(_deploy_elsewhere, [str(fixture.state.parent)] * 4, chunksize=1)
        answers = job.get(120)
        pool.close()
        pool.join()
    for index in range(3):
        column = [answer[index] for answer in answers]
        assert sorted(state for state, _ in column) == ["created"] + ["existing"] * 3
        assert len({uid for _, uid in column}) == 1
        assert starts(fixture, index) == 1


@pytest.mark.parametrize("upto", ["folder", "mark", "spec", "lock"])
def test_a_crash_between_two_steps_is_mended_by_the_retry(fixture: Fixture, upto: str) -> None:
    [first] = fixture.deploy(ONCE)
    starts(fixture)
    spec = (fixture.folder() / "spec.json").read_text()
    folder = fixture.folder(1)
    (folder / "files").mkdir(parents=True)
    if upto != "folder":
        (fixture.state / "live" / f"crawl-{run_ref(RUN)}-1-1").touch()
    if upto in ("spec", "lock"):
        (folder / "spec.json").write_text(
            spec.replace("/0/1", "/1/1").replace(str(first.uid), "theirs")
        )
    if upto == "lock":
        (folder / "lock").touch()
    assert fixture.poll(1).phase is Phase.ABSENT
    [answer] = fixture.deploy(ONCE, range(1, 2))
    assert answer.state == ("existing" if upto in ("spec", "lock") else "created")
    assert starts(fixture, 1) == 1
    assert fixture.poll(1).uid == answer.uid


def test_a_spec_of_garbage_without_a_supervisor_is_replaced(fixture: Fixture) -> None:
    fixture.own()
    (fixture.folder() / "files").mkdir(parents=True)
    (fixture.folder() / "spec.json").write_text('{"uid": "x", "argv"')
    seen = fixture.poll()
    assert seen.phase is Phase.ABSENT
    assert "spec.json is not JSON" in (seen.reason or "")
    assert fixture.deploy(ONCE)[0].state == "created"
    assert starts(fixture) == 1


def test_expiry_is_checked_before_each_creation(make_fixture: Callable[..., Fixture]) -> None:
    now = datetime.now(UTC)
    times = iter([now, now, now] + [now + timedelta(hours=1)] * 50)
    fixture = make_fixture(clock=lambda: next(times))
    with pytest.raises(DeploymentExpired):
        fixture.deploy(SLEEP, range(3))
    made = [index for index in range(3) if (fixture.folder(index) / "supervisor.json").exists()]
    assert made == [0]


def test_a_supervisor_that_starts_too_late_never_begins(fixture: Fixture) -> None:
    fixture.deploy(ONCE)
    starts(fixture)
    spec = (fixture.folder() / "spec.json").read_text()
    (fixture.folder(1) / "files").mkdir(parents=True)
    (fixture.folder(1) / "spec.json").write_text(spec.replace("/0/1", "/1/1"))
    root = str(Path(__file__).parents[3])
    code = (
        f"import sys; sys.path.insert(0, {root!r});"
        "from crawler_lifecycle.clusters.local.supervisor import main; main(sys.argv[1:])"
    )
    command = [sys.executable, "-I", "-S", "-c", code, str(fixture.folder(1)), str(time.time() - 1)]
    assert subprocess.run(command, check=False).returncode == 5
    assert fixture.poll(1).phase is Phase.ABSENT
    assert fixture.deploy(ONCE, range(1, 2))[0].state == "existing"
    assert starts(fixture, 1) == 1


@pytest.mark.parametrize(
    ("crawler", "words"),
    [
        (
            CrawlerDefinition("x", CrawlerKind.COMMAND, command=["no-such-program"]),
            "no-such-program",
        ),
        (
            CrawlerDefinition("x", CrawlerKind.COMMAND, command=["./missing"], project="."),
            "./missing",
        ),
        (
            CrawlerDefinition("x", CrawlerKind.COMMAND, command=["true"], project="no/such/folder"),
            "is not a folder",
        ),
        (CrawlerDefinition("x", project="no/such/folder"), "is not a folder"),
        (CrawlerDefinition("x"), "project: missing"),
        (
            CrawlerDefinition(
                "x", CrawlerKind.COMMAND, command=["true"], secrets={"KEY": "env:NOT_THERE"}
            ),
            "KEY",
        ),
        (
            CrawlerDefinition(
                "x", CrawlerKind.COMMAND, command=["true"], args={"a": Argument(required=True)}
            ),
            "args.a",
        ),
    ],
)
def test_what_can_never_work_is_refused(
    fixture: Fixture, crawler: CrawlerDefinition, words: str
) -> None:
    [answer] = fixture.cluster.deploy(fixture.deployment(), crawler)
    assert answer.state == "refused"
    assert words in (answer.reason or "")
    assert not fixture.folder().exists()


def test_what_cannot_be_executed_ends_as_such(fixture: Fixture, tmp_path: Path) -> None:
    """The interpreter disappears between deployment and start."""
    fixture.deploy(SLEEP)
    (fixture.folder(1) / "files").mkdir(parents=True)
    spec = json.loads((fixture.folder() / "spec.json").read_text())
    spec["argv"][0] = str(tmp_path / "gone")
    (fixture.folder(1) / "spec.json").write_text(json.dumps(spec).replace("/0/1", "/1/1"))
    fixture.deploy(SLEEP, range(1, 2))
    seen = fixture.until(Phase.ENDED, 1)
    assert (seen.end.reason, seen.end.exit_code) == ("ContainerCannotRun", None)
    assert "FileNotFoundError" in (seen.end.message or "")


def test_a_state_folder_that_disappeared_is_an_outage(fixture: Fixture) -> None:
    os.rename(fixture.state, fixture.state.with_name("elsewhere"))
    with pytest.raises(ClusterUnavailable):
        fixture.deploy(SLEEP)
    assert not fixture.state.exists()


def test_the_crawler_sees_the_contract_and_nothing_of_ours(
    make_fixture: Callable[..., Fixture], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {
        **os.environ,
        "LIFECYCLE_DATABASE__URL": "secret",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "API": "k3y",
    }
    fixture = make_fixture(
        environment=environment,
        task_environment=lambda deployment, task: {"CRAWL_TOKEN": f"t-{task.task_id}"},
    )
    project = tmp_path / "project"
    project.mkdir()
    crawler = replace(
        fixture.crawler(ECHO),
        project=str(project),
        args={"first": Argument(default="1"), "second": Argument()},
        settings={"A": "catalogue", "B": "catalogue"},
        env={"COLOUR": "blue"},
        secrets={"API_KEY": "env:API"},
        stop_signal="SIGTERM",
        resumable=True,
    )
    deployment = replace(
        fixture.deployment(run_timeout_s=3600),
        args={"second": "-x=\n'é"},
        settings={"B": "run"},
        resources=Resources(memory="512Mi"),
        resume=True,
    )
    assert fixture.cluster.deploy(deployment, crawler)[0].state == "created"
    data = seen_by_crawler(fixture)
    env = data["env"]
    assert isinstance(env, dict)
    assert not {"LIFECYCLE_DATABASE__URL", "AWS_SECRET_ACCESS_KEY", "API"} & set(env)
    assert (env["COLOUR"], env["API_KEY"], env["CRAWL_TOKEN"]) == ("blue", "k3y", "t-1000")
    assert json.loads(env["CRAWL_ARGS"]) == {"first": "1", "second": "-x=\n'é"}
    assert json.loads(env["CRAWL_SETTINGS"]) == {"A": "catalogue", "B": "run"}
    assert (env["CRAWL_RUN_ID"], env["CRAWL_TASK_ID"], env["CRAWL_TASK_INDEX"]) == (
        str(RUN),
        "1000",
        "0",
    )
    assert (env["CRAWL_ATTEMPT"], env["CRAWL_CRAWLER"], env["CRAWL_RESUME"]) == ("1", "demo", "1")
    assert env["CRAWL_MEMORY_LIMIT"] == str(512 * 2**20)
    assert datetime.fromisoformat(env["CRAWL_DEADLINE"]) > datetime.now(UTC)
    assert env["CRAWL_STATE_DIR"] == str(fixture.state / "state" / str(run_ref(RUN)) / "0")
    assert (data["cwd"], data["in"]) == (str(project), "/dev/null")
    on_disk = "".join(path.read_text() for path in fixture.folder().glob("*.json"))
    assert "k3y" not in on_disk
    assert "t-1000" not in on_disk


def test_a_crawler_behind_the_proxy_needs_no_crawlctl(make_fixture: Callable[..., Fixture]) -> None:
    leases = {"CRAWL_LEASES_URL": "http://127.0.0.1:1/", "CRAWL_LEASES_TOKEN": "t"}
    fixture = make_fixture(task_environment=lambda deployment, task: leases)
    bare = fixture.crawler(ECHO)
    words = ["crawlctl", "site", "proxy", "--"]
    unknown = replace(bare, command=[*words, "nothing-here"])
    (answer,) = fixture.cluster.deploy(fixture.deployment(), unknown)
    assert (answer.state, "'nothing-here' is not" in str(answer.reason)) == ("refused", True)
    (answer,) = fixture.cluster.deploy(fixture.deployment(), replace(bare, command=words))
    assert answer.reason == "command: no crawler is named after --; add its command"
    crawler = replace(bare, command=[*words, *bare.command])
    assert fixture.cluster.deploy(fixture.deployment(), crawler)[0].state == "created"
    env = seen_by_crawler(fixture)["env"]
    assert isinstance(env, dict)
    assert env["HTTPS_PROXY"] == env["http_proxy"] == env["HTTP_PROXY"]
    assert env["HTTP_PROXY"].startswith("http://crawler:")
