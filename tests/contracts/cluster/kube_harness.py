"""Kubernetes for the harness.

Subclasses decide where pods come from: kwok, or the fake server.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.cluster import KubernetesCluster
from crawler_lifecycle.clusters.kubernetes.files.layout import files_path
from crawler_lifecycle.clusters.kubernetes.files.sources import VolumeFiles
from crawler_lifecycle.clusters.kubernetes.jobs.deployer import KubernetesDeployer
from crawler_lifecycle.clusters.kubernetes.jobs.finalizers import Finalizers
from crawler_lifecycle.domain.crawlers.arguments import Argument
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition, CrawlerKind
from crawler_lifecycle.domain.resources import Resources
from crawler_lifecycle.domain.task import Phase
from crawler_lifecycle.ports.runs import DeployedTask, Deployment, TaskRef
from crawler_lifecycle.settings import ClusterSettings
from tests.contracts.cluster.cluster_harness import LONG, RUN, WAIT_S, Harness
from tests.support.run_refs import run_ref


class Both(KubernetesCluster):
    """Cluster and deployer in one object, as the harness needs them."""

    def __init__(self, api: Api, root: Path, settings: ClusterSettings) -> None:
        super().__init__(api)
        self.api = api
        self.root = root
        self._deployer = KubernetesDeployer(api, settings)

    def deploy(self, deployment: Deployment, crawler: CrawlerDefinition) -> list[DeployedTask]:
        for task in deployment.tasks:  # as the kubelet creates the sub-path when the pod starts
            if task.index == 0:
                (self.root / files_path(deployment.run, 0, task.attempt)).mkdir(
                    parents=True, exist_ok=True
                )
        return self._deployer.deploy(deployment, crawler)


def summary(reason: str, code: int, **more: Any) -> str:
    """A termination message of our runner."""
    return json.dumps(
        {"runner": "1", "finish_reason": reason, "exit": code, "pages": 3, "items": 2, **more}
    )


#: The runner's reports of a finished crawl, and of one that was told to exit.
FINISHED, SHUTDOWN = summary("finished", 0), summary("shutdown", 11)


def scripted(
    name: str = "books", resources: Resources | None = None, **script: str
) -> CrawlerDefinition:
    """A crawler that does what these variables tell kwok."""
    return CrawlerDefinition(
        name,
        CrawlerKind.COMMAND,
        image="crawl.test/crawler:1",
        command=["crawl"],
        env={f"KWOK_{key.upper()}": value for key, value in script.items()},
        resources=resources or Resources(),
        resumable=True,
    )


def crawler(seconds: float, **env: str) -> CrawlerDefinition:
    """A crawler whose pod kwok ends after this time, and at once when it is stopped."""
    ends = seconds < LONG
    script = {
        "KWOK_EXIT_CODE": "0",
        "KWOK_STOP_CODE": "11",
        "KWOK_MESSAGE": FINISHED if ends else SHUTDOWN,
        **({"KWOK_RUN_FOR": f"{int(seconds * 1000)}ms"} if ends else {}),
    }
    return CrawlerDefinition(
        "demo",
        CrawlerKind.COMMAND,
        image="crawl.test/crawler:1",
        command=["crawl"],
        args={"page": Argument()},
        env=script | env,
    )


class KubernetesHarness(Harness):
    """Jobs of a namespace with room for one pod."""

    cluster: Both
    saturated = r"quota is used up: exceeded quota: one-slot"
    #: SIGKILL follows SIGTERM after a second or two, and this crawler uses the time.
    killed = (11, None, "shutdown")
    counts_signals = False

    def __init__(self, api: Api, folder: Path) -> None:
        settings = ClusterSettings(
            kind="kubernetes", service_account="default", namespace=api.namespace
        )
        self.cluster = Both(api, folder, settings)
        self.files, self.numbers, self.keeper = VolumeFiles(folder), self.cluster, Finalizers(api)

    def now(self) -> datetime:
        return datetime.now(UTC)

    def crawler(self, seconds: float) -> CrawlerDefinition:
        return crawler(seconds)

    def settle(self) -> None:
        time.sleep(0.1)

    def finish(self, index: int = 0) -> None:
        """Let the node report that the container ended normally."""
        now = self.now().isoformat(timespec="seconds").replace("+00:00", "Z")
        ended = {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}
        terminated = {"terminated": {**ended, "message": summary("finished", 0)}, "running": None}
        state = {"name": labels.CONTAINER, "state": terminated}
        body = {"status": {"phase": "Succeeded", "containerStatuses": [state]}}
        api = self.cluster.api
        for pod in json.loads(api.get(api.pods_path(), labelSelector=f"{labels.TASK}={index}"))[
            "items"
        ]:
            api.patch(api.pods_path(pod["metadata"]["name"], "status"), body)

    def missed(self, uid: str) -> TaskRef:
        return replace(self.ref(), uid=uid, missed_at=self.now() - timedelta(seconds=31))

    def never_ran(self, index: int) -> None:
        """A deleted Job without a pod is gone for good, because nothing could have executed."""
        uid = self._uids[index]
        deadline = time.monotonic() + WAIT_S
        while True:
            ref = replace(self.ref(index), uid=uid, stopping=True)
            seen = self.cluster.poll(run_ref(RUN), [ref]).observations[0]
            if seen.phase is Phase.GONE:
                return
            if seen.phase is Phase.ENDED:  # its pod waited for a node and is held by our finalizer
                assert seen.end is not None
                assert (seen.end.exit_code, seen.end.signal, seen.started_at) == (None, None, None)
                return
            assert time.monotonic() < deadline, f"not within {WAIT_S:g} s: {seen}"
            self.settle()

    def deploy(
        self,
        seconds: float = LONG,
        tasks: int = 1,
        attempt: int = 1,
        record: Mapping[str, object] | None = None,
    ) -> list[DeployedTask]:
        whole = replace(self.deployment(tasks, attempt), record=record or {})
        answers = []
        for task in whole.tasks:  # the first one gets the slot
            answers += self.cluster.deploy(replace(whole, tasks=[task]), self.crawler(seconds))
            self._taken_up(task.index, attempt)
        self._uids = {answer.index: answer.uid for answer in answers}
        return answers

    def _taken_up(self, index: int, attempt: int) -> None:
        """Wait until the Job has its pod, or was told that it may not have one."""
        deadline = time.monotonic() + WAIT_S
        waits = ("Waiting for the Job controller", "Waiting for the Job's pod")
        while (seen := self.poll(index, attempt)).phase is Phase.WAITING and seen.reason in waits:
            assert time.monotonic() < deadline, f"not within {WAIT_S:g} s: {seen}"
            self.settle()

    def signals(self, index: int = 0) -> int:
        """Return whether a pod on a node was asked to end; only the crawler knows how often."""
        api = self.cluster.api
        pods = json.loads(
            api.get(api.pods_path(), labelSelector=f"crawler-lifecycle/task={index}")
        )["items"]
        return sum(
            "deletionTimestamp" in pod["metadata"] and bool(pod["spec"].get("nodeName"))
            for pod in pods
        )
