"""Logs on a real node: followed, after a stop, and by a reader without a position."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.cluster import KubernetesCluster
from crawler_lifecycle.clusters.kubernetes.files.logs import PodLogs
from crawler_lifecycle.clusters.kubernetes.jobs.deployer import KubernetesDeployer
from crawler_lifecycle.clusters.kubernetes.jobs.finalizers import Finalizers
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition, CrawlerKind
from crawler_lifecycle.domain.crawlers.pod import PodOptions
from crawler_lifecycle.domain.resources import Resources
from crawler_lifecycle.domain.run import Limits
from crawler_lifecycle.domain.task import Observation, Phase
from crawler_lifecycle.ports.polls import Details
from crawler_lifecycle.ports.runs import Deployment, QueuedTask, TaskRef
from crawler_lifecycle.settings import ClusterSettings
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.cluster.images import PYTHON
from tests.kubernetes.cluster.processes import until
from tests.support.run_refs import run_ref

#: Lines of all kinds: with a carriage return, without an end, empty, with bytes that are no text,
#: and longer than a node keeps in one piece.
PRINTS = """
import os, signal, sys, time
def line(data): os.write(1, data)
def stop(*_):
    line(b"last words\\n")
    os._exit(11)
signal.signal(signal.SIGTERM, stop)
for number in range(60):
    line(b"%04d a\\rb " % number + b"x" * (number * 7) + b"\\n")
    line(b"\\n\\xff\\xfe\\n")
    time.sleep(0.05)
line(b"y" * 40000 + b"\\n")
line(b'{"crawl_progress": {"pages": 60, "items": 2}}\\n')
if sys.argv[1:] == ["waits"]:
    while True: time.sleep(0.1)
line(b"no end of a line")
"""


class Pods:
    """Tasks of run 7 in a namespace of the real cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.namespace = cluster.namespace("logs")
        self.admin = cluster.admin
        self.api = Api(kubeconfig=cluster.kubeconfig, namespace=self.namespace)
        settings = ClusterSettings(
            kind="kubernetes", namespace=self.namespace, service_account="default"
        )
        self.deployer = KubernetesDeployer(self.api, settings)
        self.cluster = KubernetesCluster(self.api)

    def close(self) -> None:
        self.deployer.close()
        self.api.close()

    def deploy(self, *args: str) -> TaskRef:
        command = ["python3", "-c", PRINTS, *args]
        bare = PodOptions(runner=False)
        crawler = CrawlerDefinition(
            "demo", CrawlerKind.COMMAND, image=PYTHON, command=command, kubernetes=bare
        )
        expires = datetime.now(UTC) + timedelta(seconds=600)
        limits = Limits(stop_grace_s=5)
        deployment = Deployment(
            run_ref(7), 1, "demo", {}, {}, [QueuedTask(1, 0, {})], Resources(), limits, expires
        )
        [answer] = self.deployer.deploy(deployment, crawler)
        assert answer.state == "created", answer
        return TaskRef(1, 0, 1, answer.uid)

    def details(self, task: TaskRef) -> Details:
        """Return the details to store. A node that is slow to return the log is asked again."""
        end = time.monotonic() + 150
        while not (found := list(self.cluster.details(run_ref(7), [task]))):
            assert time.monotonic() < end, "the log could not be read within 150 s"
        return found[0]

    def until(
        self, task: TaskRef, right: Callable[[Observation], Any], seconds: float = 150
    ) -> Observation:
        end = time.monotonic() + seconds
        while not right(seen := self.cluster.poll(run_ref(7), [task]).observations[0]):
            assert time.monotonic() < end, f"it did not come within {seconds:g} s: {seen}"
            time.sleep(0.2)
        return seen


@pytest.fixture
def pods(real_cluster: Cluster) -> Iterator[Pods]:
    pods = Pods(real_cluster)
    yield pods
    pods.close()


def test_a_log_that_is_followed_is_given_once_and_whole(pods: Pods) -> None:
    task = pods.deploy()
    pods.until(task, lambda seen: seen.phase is not Phase.WAITING)
    logs, got, place = PodLogs(pods.api), b"", 0
    end = time.monotonic() + 150
    while True:
        part = logs.read(run_ref(7), task, place, 5000)
        assert part is not None
        got, place = got + part.data, part.next
        if part.ended:
            break
        assert time.monotonic() < end, "the end of the log did not come within 150 s"
    whole = PodLogs(pods.api).read(run_ref(7), task, None, 1_000_000)
    assert whole is not None
    assert whole.data == got
    assert whole.next == place == len(got)
    assert got.count(b"\n\xff\xfe\n") == 60
    assert got.rstrip(b"\n").endswith(b"no end of a line")
    again = PodLogs(pods.api)
    assert (
        b"".join(again.read(run_ref(7), task, at, 900).data for at in range(0, len(got), 900))
        == got
    )  # type: ignore[union-attr]


def test_counters_come_from_the_log_and_a_stop_leaves_the_rest(pods: Pods) -> None:
    task = pods.deploy("waits")
    seen = pods.until(task, lambda seen: seen.counters.pages == 60)
    assert seen.phase is Phase.EXECUTING
    before = pods.details(task)
    assert '{"crawl_progress": {"pages": 60, "items": 2}}\n' in (before.log_tail or "")
    pods.cluster.stop(run_ref(7), task)
    stopping = replace(task, stopping=True)
    ended = pods.until(stopping, lambda seen: seen.phase is Phase.ENDED)
    assert ended.end is not None
    assert ended.end.exit_code == 11
    # The node removes the container at once. Its message in place of the log is no log.
    after = list(pods.cluster.details(run_ref(7), [stopping]))
    assert all((details.log_tail or "").endswith("last words\n") for details in after)
    part = PodLogs(pods.api).read(run_ref(7), stopping, None, 1000)
    assert part is not None
    assert part.ended
    assert part.data.endswith(b"last words\n") or not part.data
    # Its phase follows the end of its container a moment later, and only then is it searched for
    # among the held pods.
    finalizers = Finalizers(pods.api)
    until(finalizers.kept, "the end is kept", 150)
    [kept] = finalizers.kept()
    assert kept.uid == task.uid
    finalizers.release(run_ref(7), [task])
    pods.until(stopping, lambda seen: seen.phase is Phase.GONE)
