"""The observer's operations on a Kubernetes API: the real server with kwok, or the fake one."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.cluster import KubernetesCluster
from crawler_lifecycle.clusters.kubernetes.observer.observer import KubernetesObserver
from crawler_lifecycle.clusters.kubernetes.observer.reflector import Pace
from crawler_lifecycle.domain.names import cluster_name
from crawler_lifecycle.domain.task import Phase
from crawler_lifecycle.ports.cluster import Observer
from crawler_lifecycle.ports.runs import TaskRef
from tests.clusters.local.local_fixture import RUN
from tests.contracts.observer.observer_harness import Harness
from tests.support.kube_api import Answer, FakeApiServer
from tests.support.kube_api.clients import patient
from tests.support.kube_api.problems import Problem
from tests.support.run_refs import run_ref

#: As in production, except for the pauses after a failure.
PACE = Pace(first_s=0.2, most_s=1.0)


def job_of(run_id: int, index: int, annotations: dict[str, str], **spec: Any) -> dict[str, Any]:
    """Return a Job like ours, as far as an observer is concerned.

    ``pod`` in ``spec`` is merged into the pod's spec.
    """
    identity = {labels.MANAGED_BY: labels.MANAGER, labels.RUN: str(run_id), labels.TASK: str(index)}
    identity |= {
        labels.RUN_UID: run_ref(run_id).uid,
        labels.ATTEMPT: "1",
        labels.TASK_ID: str(1000 + index),
    }
    container = {
        "name": labels.CONTAINER,
        "image": "crawl.test/python:1",
        **spec.pop("container", {}),
    }
    pod = {"restartPolicy": "Never", "containers": [container], **spec.pop("pod", {})}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": cluster_name(run_id, index, 1), "labels": identity},
        "spec": {
            "backoffLimit": 0,
            "podReplacementPolicy": "Failed",
            **spec,
            "template": {
                "metadata": {
                    "labels": identity,
                    "annotations": annotations,
                    "finalizers": [labels.FINALIZER],
                },
                "spec": pod,
            },
        },
    }


class KubernetesHarness(Harness):
    """The cluster of the subclass gives ``start`` one slot."""

    def __init__(self, api: Api, blind: Callable[[], None], heal: Callable[[], None]) -> None:
        self.api = api
        self.cluster = KubernetesCluster(api)
        self._blind, self._heal = blind, heal
        self._uids: dict[int, str] = {}
        self._taken: set[int] = set()

    def observer(self) -> Observer:
        return KubernetesObserver(self.api, pace=PACE, long_s=1.0)

    def blind(self, observer: Observer) -> None:
        self._blind()

    def heal(self, observer: Observer) -> None:
        self._heal()

    def post(self, index: int, annotations: dict[str, str], **spec: Any) -> None:
        from crawler_lifecycle.clusters.kubernetes.client.objects import Job, decode

        body = job_of(RUN, index, annotations, **spec)
        self._uids[index] = decode(Job, self.api.post(self.api.jobs_path(), body)).metadata.uid

    def pods(self, index: int) -> list[str]:
        from crawler_lifecycle.clusters.kubernetes.client.objects import Pod

        selector = f"{labels.of_run(RUN, settled=None)},{labels.TASK}={index}"
        return [
            pod.metadata.name
            for pod in self.api.listing(self.api.pods_path(), Pod, labels=selector).items
        ]

    def finish(self, index: int = 0) -> None:
        """Let the node report that the container ended normally."""
        self._end(index, "Succeeded", 0, "Completed")

    def slay(self, index: int = 0) -> None:
        """Let the node report that the container was killed."""
        self._end(index, "Failed", 137, "Error")

    def _end(self, index: int, phase: str, exit_code: int, reason: str) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        ended = {"exitCode": exit_code, "reason": reason, "startedAt": now, "finishedAt": now}
        state = {"name": labels.CONTAINER, "state": {"terminated": ended, "running": None}}
        body = {"status": {"phase": phase, "containerStatuses": [state]}}
        for name in self.pods(index):
            self.api.patch(self.api.pods_path(name, "status"), body)

    def take_away(self, index: int = 0) -> None:
        """Remove it as an administrator does, whatever is still running."""
        self._taken.add(index)
        job = self.api.jobs_path(cluster_name(RUN, index, 1))
        self.api.delete(job, {"propagationPolicy": "Orphan"})
        for name in self.pods(index):
            self.api.delete(self.api.pods_path(name), {"gracePeriodSeconds": 0})
            self.api.patch(self.api.pods_path(name), {"metadata": {"finalizers": None}})

    def phase(self, index: int = 0) -> Phase:
        # While it is being stopped, a poll believes at once that it is gone.
        ref = TaskRef(1000 + index, index, 1, self._uids.get(index), stopping=index in self._taken)
        return self.cluster.poll(run_ref(RUN), [ref]).observations[0].phase

    def close(self) -> None:
        self.api.close()


class FakeApiHarness(KubernetesHarness):
    """On the fake API server; its scheduler has one slot, and a thread acts as kubelet."""

    def __init__(self, folder: Path) -> None:
        self.server = FakeApiServer(folder)
        super().__init__(patient(self.server), self._fall_ill, self.server.faults.clear)
        self._seconds: dict[int, float] = {}
        self._ends: dict[int, float] = {}
        self._over = threading.Event()
        self._kubelet = threading.Thread(target=self._work, name="fake-kubelet")
        self._kubelet.start()

    def _fall_ill(self) -> None:
        self.server.faults.add("*", "", Answer(503), times=None)
        self.server.drop_connections()

    def start(self, seconds: float = 3600, index: int = 0) -> None:
        self._seconds[index] = seconds
        self.post(index, {})

    def _work(self) -> None:
        """Do what a kubelet and a scheduler do, a hundred times a second."""
        while not self._over.wait(0.01):
            for index in sorted(self._seconds):
                try:
                    self._mind(index, cluster_name(RUN, index, 1))
                except (Problem, AssertionError):  # not created yet, or removed
                    self._ends.pop(index, None)

    def _mind(self, index: int, name: str) -> None:
        pod = self.server.pod(name)
        now = datetime.now(UTC).timestamp()
        if pod["status"]["phase"] in ("Succeeded", "Failed"):
            self._ends.pop(index, None)
        elif index in self._ends:
            if now >= self._ends[index]:
                self.server.pod_ends(name)
        elif self._ends:
            self.server.pod_unschedulable(name)
        else:
            self._ends[index] = now + self._seconds[index]
            self.server.pod_starts(name)

    def count(self, pages: int, index: int = 0) -> None:
        said = {"pages": pages, "updated_at": datetime.now(UTC).isoformat()}
        line = "half a line of its own " + json.dumps({"crawl_progress": said}) + "\n"
        self.server.pod_prints(cluster_name(RUN, index, 1), line.encode())

    def finish(self, index: int = 0) -> None:
        self.server.pod_ends(cluster_name(RUN, index, 1), 0)

    def slay(self, index: int = 0) -> None:
        self.server.pod_ends(cluster_name(RUN, index, 1), 137, "Error")

    def take_away(self, index: int = 0) -> None:
        self._taken.add(index)
        self.server.delete_behind(cluster_name(RUN, index, 1))

    def close(self) -> None:
        self._over.set()
        self._kubelet.join(60)
        super().close()
        self.server.close()
