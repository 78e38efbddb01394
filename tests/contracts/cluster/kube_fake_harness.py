"""Kubernetes on the fake API server: its only node has room for one pod, and this harness is its
kubelet.
"""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path
from typing import Any

from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.domain.names import cluster_name
from crawler_lifecycle.domain.task import Observation, Phase
from tests.contracts.cluster.cluster_harness import LONG, RUN
from tests.contracts.cluster.kube_harness import KubernetesHarness, summary
from tests.support.kube_api import Answer, FakeApiServer
from tests.support.kube_api.clients import patient

LINES = b'a line of log\n{"crawl_progress": {"pages": 3, "items": 2, "errors": 0}}\n'
WAITING_LINES = (
    b'{"crawl_progress": {"code_wait": "the gateway answers 503"}}\n'
    b"[runner] The task is waiting for its code: the gateway answers 503\n"
)
CODE_LINE = b'{"crawl_progress": {}}\n'
LAST_LINES = (
    b'{"crawl_stats": {"item_scraped_count": 2, "mine": 0.5}}\n'
    + LINES.splitlines(keepends=True)[1]
)


class FakeKubernetesHarness(KubernetesHarness):
    saturated = r"No node has capacity for it: 0/1 nodes are available"

    def __init__(self, folder: Path) -> None:
        self.server = FakeApiServer(folder)
        self.server.controllers.kubelet_stops = None
        self._seconds = LONG
        super().__init__(patient(self.server), folder)

    def close(self) -> None:
        self.cluster.api.close()
        self.server.close()

    def crawler(self, seconds: float) -> CrawlerDefinition:
        self._seconds = seconds
        return super().crawler(seconds)

    def deploy_without_code(self) -> None:
        self.deploy()
        self.until(Phase.EXECUTING)
        self.server.pod_prints(cluster_name(RUN, 0, 1), WAITING_LINES)

    def give_code(self) -> None:
        self.server.pod_prints(cluster_name(RUN, 0, 1), CODE_LINE)

    def break_it(self) -> None:
        self.server.faults.add("*", "", Answer(503, "etcdserver: request timed out"), times=None)

    def finish(self, index: int = 0) -> None:
        self.server.pod_prints(cluster_name(RUN, index, 1), LAST_LINES)
        pod = self.server.pod(cluster_name(RUN, index, 1))
        self.server.controllers.end_pod(pod, 0, message=summary("finished", 0))

    def settle(self) -> None:
        time.sleep(0.02)

    def poll(self, index: int = 0, attempt: int = 1) -> Observation:
        self._play()
        return super().poll(index, attempt)

    def until_nothing_lives(self) -> None:
        self._play()
        super().until_nothing_lives()

    def _play(self) -> None:
        """Do what the scheduler and the kubelet would have done by now."""
        jobs = {
            owner["uid"]: owner["name"]
            for pod in self.server.pods()
            for owner in pod["metadata"]["ownerReferences"]
        }
        for pod in self.server.pods():
            if pod["status"]["phase"] == "Running":
                self._go_on(pod)
        for uid, name in sorted(jobs.items(), key=lambda job: job[1]):
            waiting = [
                p for p in self.server.controllers.pods_of(uid) if p["status"]["phase"] == "Pending"
            ]
            if not waiting or "deletionTimestamp" in waiting[0]["metadata"]:
                continue
            if any(pod["status"]["phase"] == "Running" for pod in self.server.pods()):
                self.server.pod_unschedulable(name)
            else:
                self.server.pod_starts(name)
                self.server.pod_prints(name, LINES)

    def _go_on(self, pod: dict[str, Any]) -> None:
        if "deletionTimestamp" in pod["metadata"]:
            self.server.controllers.end_pod(pod, 11, message=summary("shutdown", 11))
            return
        began = datetime.fromisoformat(
            pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
        )
        # Timestamps have whole seconds.
        if (self.now() - began).total_seconds() >= max(self._seconds, 1.0):
            self.server.controllers.end_pod(pod, 0, message=summary("finished", 0))
