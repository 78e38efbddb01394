"""A release from an empty cluster on: first crawl, upgrade, back, again, removal, and taken over
again, under load.

The chart, the image, the values and the commands are those of the last landed build and of this
one, as their docs/deployment-kubernetes.md has them; ``release.py`` fills in what an installer has
to. As in ``test_service_pods.py`` database, Temporal and storage are processes of this machine, and
names and Services are served by the tests. There is one worker of most roles
(``deploy/helm/ci/small-values.yaml``), two for workflows, stops and the gateway.

What is true is read from the crawls' own site, from the cluster and from the database; the task
`test-chart` prints the seconds of each step.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Collection, Iterator
from datetime import UTC
from pathlib import Path

import pytest

from crawler_lifecycle.cli.problems import Exit
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.cluster.processes import ClusterFailed, until
from tests.kubernetes.real.installation import CRAWLS, PATIENCE_S, SERVICES
from tests.kubernetes.real.release import FORMER, NEXT, Journal, Load, Release
from tests.support import in_process
from tests.support.folders import reachable_folder
from tests.support.manifests import Document

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
#: "Chart from an empty test cluster to the first crawl in pods."
FIRST_CRAWL_S = 600.0
#: The longest time without a good response of the gateway while processes are replaced.
SILENCE_S = 10.0
POLICIES = (
    "nothing-unless-allowed",
    "crawls-to-the-internet",
    "crawls-to-name-service",
    "crawls-to-gateway",
)


@pytest.fixture
def release(real_cluster: Cluster) -> Iterator[Release]:
    with reachable_folder() as folder:
        made = Release(real_cluster, folder)
        try:
            made.start()
            yield made
        finally:
            made.end()


@pytest.fixture
def journal(release: Release) -> Iterator[Journal]:
    made = Journal(release.address)
    yield made
    made.close()


@pytest.fixture
def site(release: Release, tmp_path: Path) -> Iterator[str]:
    """The demonstration site for Scrapy."""
    command = [
        sys.executable,
        "-m",
        "examples.site",
        "--host",
        release.address,
        "--port",
        "0",
        "--services",
        "4",
    ]
    with (tmp_path / "site.log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    yield process.stdout.readline().strip()
    process.kill()
    process.wait()
    process.stdout.close()


class Manager:
    """A manager of single jobs, controlled by ``crawlctl``; its runs execute one after the other."""

    def __init__(self, load: Load, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LIFECYCLE_GATEWAY__TOKEN", load.release.tokens["operate"])
        self._load, self.jobs = load, 1
        lines = folder / "jobs.jsonl"
        lines.write_text(json.dumps({"site": load.journal.url, "number": "0"}) + "\n")
        words = (
            "manager",
            "start",
            "--crawler",
            "told",
            "--each",
            str(lines),
            "--max-running",
            "1",
            "--keep-open",
        )
        self.id = self._call(*words, "--flow", "one", "--request-id", "one", "-o", "name")

    def add(self, *more: str) -> None:
        words = (
            "-a",
            f"site={self._load.journal.url}",
            "-a",
            f"number={self.jobs}",
            "--request-id",
            f"job-{self.jobs}",
        )
        self._call("manager", "add", self.id, *words, *more)
        self.jobs += 1

    def end(self) -> None:
        self.add("--seal")
        self._call("manager", "wait", self.id, "--timeout", "10m")

    def _call(self, *words: str) -> str:
        gateway = f"http://{self._load.release.network.address('gateway', SERVICES)}:8500"
        end, code = time.monotonic() + PATIENCE_S, int(Exit.UNREACHABLE)
        while code == Exit.UNREACHABLE and time.monotonic() < end:
            done = in_process.crawlctl("--gateway", gateway, *words, env=os.environ, folder=Path())
            code = done.returncode
        assert code == 0, done.stderr
        return done.stdout.strip()


def test_from_an_empty_cluster_to_removal_while_crawls_go_on(
    release: Release, journal: Journal, site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert release.left_by_label() == set(), "an empty cluster"
    former = release.write(release.former, FORMER, "former.yaml")
    this = release.write(release.next, NEXT, "crawls.yaml")
    begun = time.monotonic()
    with release.step("install, the build that landed last"):
        release.install(release.former, former)
    with release.step("first crawl"):
        first = first_crawl(release, site)
    total = release.took["from an empty cluster to the first archive"] = time.monotonic() - begun
    assert total <= FIRST_CRAWL_S
    assert release.images() == {FORMER}

    load = Load(release, journal)
    manager = Manager(load, tmp_path, monkeypatch)
    spans = [load.long()]  # it outlives everything
    load.begin()
    try:
        with under_load(load, manager, spans, "upgrade to this build"):
            release.upgrade(release.next, this)
        assert release.images() == {NEXT}
        with under_load(load, manager, spans, "rollback"):
            back(release)
        assert release.images() == {FORMER}
        with under_load(load, manager, spans, "upgrade again"):
            release.upgrade(release.next, this)
        assert release.images() == {NEXT}
    finally:
        load.end()
    assert load.errors == []
    manager.end()
    closed(release, load, first, besides=spans)

    pod = executing(release, spans[0])
    with release.step("uninstall"):
        release.type(release.next, release.next.one_line("helm uninstall"))
        until(
            lambda: release.left() <= stays(release),
            "the end of the release",
            PATIENCE_S,
            pause_s=1,
        )
    assert release.left() == stays(release)
    heard = journal.asked[spans[0]]
    try:
        until(
            lambda: journal.asked[spans[0]] > heard + 3, "the crawl that was left open goes on", 300
        )
    except ClusterFailed as error:
        raise AssertionError(f"{error}\n{release.said(pod)}") from None
    assert executing(release, spans[0])["metadata"]["uid"] == pod["metadata"]["uid"]

    with release.step("install again"):
        release.upgrade(release.next, this)
    journal.held.clear()
    until(
        lambda: release.ended() >= set(spans), "the end of the run that was left open", PATIENCE_S
    )
    closed(release, load, first)
    [same] = release.objects(spans[0], "pods")
    assert same["metadata"]["uid"] == pod["metadata"]["uid"]
    prove(release, load, manager, first)
    print(json.dumps({name: round(seconds) for name, seconds in release.took.items()}))


def first_crawl(release: Release, site: str) -> int:
    """A Scrapy crawl, from the request to its archive."""
    with release.gateway() as gateway:
        run_id = int(gateway.start({"crawler": "shops", "args": {"site": site}}, "first")["run_id"])
        until(lambda: gateway.run(run_id)["exports"], "the archive of the first crawl", PATIENCE_S)
        run = gateway.run(run_id)
        assert (run["status"], run["outcome"], run["tasks"]) == (
            "COMPLETED",
            "finished",
            {"SUCCEEDED": 1},
        ), run
        names = zipfile.ZipFile(io.BytesIO(b"".join(gateway.archive(run_id, 1)))).namelist()
    assert "manifest.json" in names
    assert any(name.startswith("task-0/") for name in names), names
    return run_id


def back(release: Release) -> None:
    """Roll back as the page says; the last line is that of the chart's own notes."""
    release.type(release.next, release.next.one_line("helm rollback"))
    release.rolled_out()


@contextlib.contextmanager
def under_load(load: Load, manager: Manager, goes_on: Collection[int], name: str) -> Iterator[None]:
    """Execute a step while crawls begin and end; one continues throughout, and one is stopped in
    the middle.
    """
    release = load.release
    across, stopped = load.long(), load.long()
    before, since = len(load.accepted), time.monotonic()
    manager.add()
    middle = threading.Timer(15, load.stop, [stopped])
    middle.start()
    with release.step(name):
        yield
    middle.join()
    old = NEXT if name == "rollback" else FORMER
    until(
        lambda: not any(old in image for image in running(release)),
        "the end of the former processes",
        PATIENCE_S,
    )
    questions, failed, longest, slowest = load.silence(since)
    said = f"{questions} questions, {failed} failed, silent for {longest:.1f} s at most, slowest answer {slowest:.1f} s"
    print(f"{name}: {len(load.accepted) - before} runs accepted; gateway: {said}", flush=True)
    if longest > SILENCE_S:
        load.errors.append(f"{name}: {said}: {[one for one in load.asked if one[2]][:5]}")
    assert len(load.accepted) > before, "no run began meanwhile"
    with release.gateway() as gateway:
        for run_id in (across, *goes_on):
            executing(release, run_id)
            assert gateway.run(run_id)["tasks"] == {"RUNNING": 1}
        until(
            lambda: gateway.run(stopped)["status"] == "FAILED",
            "the end of the stopped run",
            PATIENCE_S,
        )
    load.journal.held.discard(across)


def executing(release: Release, run_id: int) -> Document:
    """Return the only pod of a run, which is executing."""
    [pod] = release.objects(run_id, "pods")
    assert pod["status"]["phase"] == "Running", release.said(pod)
    return pod


def running(release: Release) -> list[str]:
    """Return the images of all our pods that have not ended, including those that are terminating."""
    found = release.admin.get(f"/api/v1/namespaces/{SERVICES}/pods")["items"]
    there = [pod for pod in found if pod["status"]["phase"] in ("Pending", "Running")]
    return [pod["spec"]["containers"][0]["image"] for pod in there]


def stays(release: Release) -> set[tuple[str, str, str]]:
    """Check what remains: what the page says, what an administrator created, and what Kubernetes
    itself creates.
    """
    made = {("Secret", SERVICES, name) for name in release.made}
    made |= {("ServiceAccount", SERVICES, "default"), ("ConfigMap", SERVICES, "kube-root-ca.crt")}
    kept = {("Namespace", "", CRAWLS), *(("NetworkPolicy", CRAWLS, name) for name in POLICIES)}
    [pod] = [pod["metadata"]["name"] for pod in release.pods("db-upgrade")]
    migration = {
        ("ServiceAccount", SERVICES, "db-upgrade"),
        ("Job", SERVICES, "db-upgrade"),
        ("Pod", SERVICES, pod),
    }
    return made | kept | migration


def closed(release: Release, load: Load, first: int, besides: Collection[int] = ()) -> None:
    """Return when every other run has its verdict and its export."""
    runs = (
        {run_id for run_id, _ in load.accepted.values()} | {first} | set(release.runs_of_managers())
    )
    until(lambda: release.exported() >= runs - set(besides), "the exports of all runs", PATIENCE_S)


def prove(release: Release, load: Load, manager: Manager, first: int) -> None:
    """Check that nothing is lost or done twice, and that the status agrees with the pods."""
    journal, tasks = load.journal, dict(load.accepted.values())
    assert len(tasks) == len(load.accepted), "each request has a run of its own"
    jobs = release.runs_of_managers()
    assert len(jobs) == manager.jobs, "one run for each job of the manager"
    tasks |= dict.fromkeys(jobs, 1)
    rows = release.rows("run_id, status, outcome, attempt, ended_at", "run_history")
    assert {row[0] for row in rows} == {first, *tasks}
    for run_id, status, outcome, attempt, ended_at in rows:
        right = (
            ("FAILED", "cancelled", 1) if run_id in load.stopped else ("COMPLETED", "finished", 1)
        )
        assert (status, outcome, attempt) == right, run_id
        for who in ((run_id, n, 1) for n in range(tasks.get(run_id, 0))):
            assert journal.began[who] == 1, who
            assert (who in journal.ended) == (run_id not in load.stopped), who
            # Times of a node have whole seconds.
            assert ended_at.replace(tzinfo=UTC).timestamp() >= int(journal.ended.get(who, 0)), who
    assert sum(journal.began.values()) == sum(tasks.values()), "no task began that nobody asked for"
    exports = Counter(row[0] for row in release.rows("run_id", "export_record"))
    assert exports == Counter(dict.fromkeys((first, *tasks), 1))
    executed = release.rows("run_id, task_index, status, retry, superseded_by", "task_history")
    assert Counter(row[:2] for row in executed).most_common(1)[0][1] == 1
    for run_id, index, status, retry, superseded in executed:
        right = "CANCELLED" if run_id in load.stopped else "SUCCEEDED"
        assert (status, retry, superseded) == (right, 0, None), (run_id, index)
    for run_id, number in tasks.items():
        right = [] if run_id in load.stopped else [("Succeeded", 1)] * number
        until(
            lambda run_id=run_id, right=right: on_cluster(release, run_id) == right,
            f"{run_id}: {right}",
            300,
        )  # type: ignore[misc]
    assert release.audit()["findings"] == []
    told = f"{len(tasks) + 1} runs, {sum(tasks.values()) + 1} tasks, {len(load.stopped)} of them stopped"
    print(f"{told}; each executed once, with its status and its archive", flush=True)


def on_cluster(release: Release, run_id: int) -> list[tuple[str, int]]:
    """Return the phase of each pod of a run, and the number of succeeded pods by its Job, a moment
    later.
    """
    phases = [pod["status"]["phase"] for pod in release.objects(run_id, "pods")]
    counted = [job["status"].get("succeeded") for job in release.objects(run_id, "jobs")]
    return list(zip(phases, counted, strict=False)) if len(phases) == len(counted) else [("", -1)]
