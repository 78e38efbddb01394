"""How the recorder of conditions changes a cluster: Jobs like ours, and ways to disturb them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from crawler_lifecycle.clusters.kubernetes import labels
from tests.kubernetes.cluster.admin import AdminError
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.cluster.images import PYTHON
from tests.kubernetes.cluster.kwok import FAKE

Json = dict[str, Any]
NAME = "crawl-1-0-1"
#: Where nobody listens, so that a pull fails at once without asking a name server.
NO_IMAGE = "127.0.0.1:9/crawlers:1"

SUMMARY = """
import json, os, signal, sys, time
def told(reason, exit, **more):
    said = {"runner": "1", "finish_reason": reason, "exit": exit, "pages": 12, "items": 10, "errors": 0, "bytes": 2048}
    said.update(more)
    open("/dev/termination-log", "w").write(json.dumps({k: v for k, v in said.items() if v is not None}))
    sys.exit(exit)
"""
EATS = "bytearray(300 << 20)"
#: A child process that the kernel kills for memory.
CHILD_EATS = f"import subprocess; subprocess.run([sys.executable, '-c', '{EATS}'])\n"
#: In short steps, because a signal just before a sleep waits for its end.
WAITS = "print('ready', flush=True)\nwhile True: time.sleep(0.1)\n"
SAYS_SHUTDOWN = "signal.signal(signal.SIGTERM, lambda *_: told('shutdown', {code}))\n" + WAITS


@dataclass
class Scene:
    """One Job in its own namespace, and what the recording adds to its objects."""

    cluster: Cluster
    namespace: str
    stop_at: datetime | None = None
    first_uid: str | None = None
    """The uid of the Job on record, where it is not that of the Job that is there."""
    extra: list[Callable[[], None]] = field(default_factory=list)
    """What has to be done after the recording."""

    # --- paths and reading

    @property
    def jobs(self) -> str:
        return f"/apis/batch/v1/namespaces/{self.namespace}/jobs"

    @property
    def pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    def objects(self) -> Json:
        """Return the Job, its pods and the warnings about both, as the API returns them."""
        admin = self.cluster.admin
        job = admin.find(f"{self.jobs}/{NAME}")
        pods = admin.get(self.pods)["items"]
        events = admin.get(f"/api/v1/namespaces/{self.namespace}/events")["items"]
        ours = [
            p
            for p in pods
            if p["metadata"].get("labels", {}).get("batch.kubernetes.io/job-name") == NAME
        ]
        return {"job": job, "pods": ours, "events": [e for e in events if _tells(e)]}

    def job(self) -> Json:
        return self.cluster.admin.get(f"{self.jobs}/{NAME}")

    def until(self, right: Callable[[Json], Any], what: str, seconds: float = 150) -> None:
        """Wait until the objects are ``right``.

        Raises ``TimeoutError`` with the actual objects.
        """
        end = time.monotonic() + seconds
        while True:
            objects = self.objects()
            try:
                if right(objects):
                    return
            except (LookupError, TypeError):
                pass
            if time.monotonic() > end:
                raise TimeoutError(f"{what}: {json.dumps(objects)[:3000]}")
            time.sleep(0.1)

    # --- doing

    def start(self, code: str = WAITS, **changes: Any) -> None:
        self.cluster.admin.post(self.jobs, job(SUMMARY + code, **changes))

    def running(self) -> None:
        self.until(lambda o: "running" in main(o)["state"], "running")

    def ready(self) -> None:
        """Wait until the crawler has its handlers and has lived for a second."""
        self.running()
        path = f"{self.pods}/{self.objects()['pods'][0]['metadata']['name']}/log"
        end = time.monotonic() + 150
        while "ready" not in self.cluster.admin.text(path):
            if time.monotonic() > end:
                raise TimeoutError("the crawler does not come to its wait")
            time.sleep(0.1)
        time.sleep(1.1)

    def ended(self) -> None:
        self.until(lambda o: "terminated" in main(o)["state"], "ended")
        self.until(
            lambda o: o["pods"][0]["status"]["phase"] in ("Failed", "Succeeded"), "a final phase"
        )

    def waits(self, *reasons: str, seconds: float = 150) -> None:
        """Return when it waits for one of these reasons, which a starved kubelet may report late."""

        def known(objects: Json) -> bool:
            waiting = main(objects)["state"]["waiting"]
            return waiting["reason"] in reasons and "timed out waiting for" not in waiting.get(
                "message", ""
            )

        self.until(known, f"waiting: {reasons}", seconds)

    def delete_job(self, policy: str = "Foreground") -> None:
        self.cluster.admin.delete(f"{self.jobs}/{NAME}", {"propagationPolicy": policy})

    def delete_pod(self, grace: int | None = None) -> None:
        options = {} if grace is None else {"gracePeriodSeconds": grace}
        for pod in self.objects()["pods"]:
            self.cluster.admin.delete(f"{self.pods}/{pod['metadata']['name']}", options)

    def evict(self) -> None:
        for pod in self.objects()["pods"]:
            name = pod["metadata"]["name"]
            body = {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": name, "namespace": self.namespace},
            }
            self.cluster.admin.post(f"{self.pods}/{name}/eviction", body)

    def stop(self) -> None:
        """Do to the cluster what our own stop does."""
        self.stop_at = datetime.now(UTC)
        self.delete_job()

    def release(self) -> None:
        """Remove our finalizer from every pod."""
        for pod in self.objects()["pods"]:
            try:
                self.cluster.admin.patch(
                    f"{self.pods}/{pod['metadata']['name']}", {"metadata": {"finalizers": None}}
                )
            except AdminError as error:
                if error.status != 404:
                    raise

    def finish(self) -> None:
        """Leave nothing behind."""
        for undo in reversed(self.extra):
            undo()
        try:
            self.cluster.admin.patch(f"{self.jobs}/{NAME}", {"metadata": {"finalizers": None}})
            self.delete_job("Background")
        except AdminError as error:
            if error.status != 404:
                raise
        self.release()
        for pod in self.objects()["pods"]:
            try:
                path = f"{self.pods}/{quote(pod['metadata']['name'])}"
                self.cluster.admin.delete(path, {"gracePeriodSeconds": 0})
            except AdminError as error:
                if error.status != 404:
                    raise


def _tells(event: Json) -> bool:
    """Return whether it is a warning."""
    return event.get("type") == "Warning"


def main(objects: Json) -> Json:
    """Return the status of the crawler's container in the first pod."""
    statuses = objects["pods"][0]["status"]["containerStatuses"]
    found: Json = next(s for s in statuses if s["name"] == labels.CONTAINER)
    return found


def job(
    code: str,
    *,
    grace: int = 3,
    memory: str = "128Mi",
    runner: bool = True,
    job_spec: Mapping[str, Any] | None = None,
    job_labels: Mapping[str, str] | None = None,
    job_finalizers: list[str] | None = None,
    pod_spec: Mapping[str, Any] | None = None,
    container: Mapping[str, Any] | None = None,
    annotations: Mapping[str, str] | None = None,
    kwok: bool = False,
) -> Json:
    """Return a Job that differs from ours in nothing that is read."""
    known = {
        labels.MANAGED_BY: labels.MANAGER,
        labels.RUN: "1",
        labels.ATTEMPT: "1",
        labels.TASK: "0",
    }
    told = dict(annotations or {}) | ({} if runner else {labels.RUNNER: "false"})
    crawler: Json = {
        "name": labels.CONTAINER,
        "image": PYTHON,
        "imagePullPolicy": "IfNotPresent",
        "args": ["-c", code],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": memory}},
        "terminationMessagePolicy": "File" if runner else "FallbackToLogsOnError",
    }
    crawler.update(container or {})
    pod: Json = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace,
        "containers": [crawler],
    }
    if kwok:
        pod["nodeSelector"] = dict(FAKE)
        pod["tolerations"] = [{"key": key, "operator": "Exists"} for key in FAKE]
    pod.update(pod_spec or {})
    pod["containers"] = [crawler, *pod.pop("beside", [])]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": NAME,
            "labels": {**known, **(job_labels or {})},
            "annotations": told,
            "finalizers": job_finalizers or [],
        },
        "spec": {
            "backoffLimit": 0,
            "podReplacementPolicy": "Failed",
            "template": {
                "metadata": {
                    "labels": known,
                    "annotations": told,
                    "finalizers": [labels.FINALIZER],
                },
                "spec": pod,
            },
            **(job_spec or {}),
        },
    }
