"""A testbed for the workflow on a real API server: real activities, store, deployer, cluster,
observer, release.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from temporalio.client import Client

from crawler_lifecycle.activities.poll_step import Recorder
from crawler_lifecycle.background import Beside
from crawler_lifecycle.clock import utc_now
from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.cluster import KubernetesCluster
from crawler_lifecycle.clusters.kubernetes.jobs.deployer import KubernetesDeployer
from crawler_lifecycle.clusters.kubernetes.jobs.finalizers import Finalizers
from crawler_lifecycle.clusters.kubernetes.observer.observer import KubernetesObserver
from crawler_lifecycle.domain.audits.audit import AuditRules
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.domain.errors import (
    ClusterUnavailable,
    DeploymentRefused,
    SchedulerUnavailable,
)
from crawler_lifecycle.domain.pools import NO_POOLS, Pools
from crawler_lifecycle.domain.retries import Retries
from crawler_lifecycle.ports.runs import DeployedTask, Deployment, RunRow, TaskRow
from crawler_lifecycle.settings import ClusterSettings
from crawler_lifecycle.temporal.client import Workflows
from crawler_lifecycle.worker.finalizer_release import Releaser
from crawler_lifecycle.worker.recording import Recording
from crawler_lifecycle.worker.slot_calls import SlotCalls
from tests.kubernetes.cluster.admin import AdminError
from tests.kubernetes.cluster.cluster import Cluster
from tests.support.auditing import audit
from tests.support.testbed import NO_RETRIES, PATIENCE_S, WorkflowHarness, open_testbed

#: A run that is polled every three seconds unless something wakes it.
QUICK: dict[str, Any] = {
    "poll_minutes": [0.05],
    "limits": {"start_check_s": 0.5, "stop_grace_s": 5},
}
Json = dict[str, Any]


@dataclass
class KubeScheduler:
    """The scheduler service without HTTP."""

    deployer: KubernetesDeployer
    crawlers_: dict[str, CrawlerDefinition] = field(default_factory=dict)
    problem: str | None = None

    def deploy(self, deployment: Deployment) -> list[DeployedTask]:
        crawler = self.crawlers_.get(deployment.crawler)
        if crawler is None:
            raise DeploymentRefused(f"crawler: {deployment.crawler!r} is not in the catalogue")
        try:
            return self.deployer.deploy(deployment, crawler)
        except ClusterUnavailable as error:  # as after its way through HTTP
            raise SchedulerUnavailable(f"scheduler service answered 503: {error}") from error

    def crawlers(self) -> list[CrawlerDefinition]:
        return list(self.crawlers_.values())


@dataclass
class KubeTestbed:
    """The harness of one test: a testbed, and a namespace of a cluster."""

    testbed: WorkflowHarness
    cluster: Cluster
    namespace: str
    api: Api
    scheduler: KubeScheduler
    releaser: Releaser
    observer: KubernetesObserver | None = None

    def knows(self, crawler: CrawlerDefinition) -> None:
        """Add this crawler to the catalogue."""
        self.scheduler.crawlers_[crawler.name] = crawler
        self.testbed.scheduler.catalogue.crawlers[crawler.name] = crawler

    # --- the cluster as its administrator sees it

    def path(self, resource: str, name: str = "", group: str = "/api/v1") -> str:
        return f"{group}/namespaces/{self.namespace}/{resource}" + (f"/{name}" if name else "")

    def jobs(self) -> list[Json]:
        items: list[Json] = self.cluster.admin.get(self.path("jobs", group="/apis/batch/v1"))[
            "items"
        ]
        return items

    def pods(self) -> list[Json]:
        items: list[Json] = self.cluster.admin.get(self.path("pods"))["items"]
        return items

    def api_kept(self, run_id: int | None = None) -> list[str]:
        """Return the pods that our finalizer holds, of all runs or of one."""
        of = [pod["metadata"] for pod in self.pods() if run_id is None or _is_of(pod, run_id)]
        held = [meta for meta in of if labels.FINALIZER in meta.get("finalizers", [])]
        return [meta["name"] for meta in held]

    async def until_released(self, seconds: float = PATIENCE_S, *, audited: bool = False) -> None:
        """Wait until our finalizer holds no pod; with ``audited``, an audit polls each time, as it
        does in a service.

        An audit ends whatever executes again although its end is on record, such as a pod of kwok.
        """
        end = time.monotonic() + seconds
        while held := await asyncio.to_thread(self.api_kept):
            if time.monotonic() > end:
                pods = {pod["metadata"]["name"]: pod["status"] for pod in self.pods()}
                tried = self.tasks(superseded=True)
                rows = [
                    (row.task_index, row.attempt, str(row.status), row.exit_code) for row in tried
                ]
                raise AssertionError(
                    f"still held: {[(name, pods.get(name)) for name in held]}; {rows=}"
                )
            if audited:
                await audit(self.testbed)
            await asyncio.sleep(0.5)

    def delete_pod(self, name: str, **options: Any) -> None:
        try:
            self.cluster.admin.delete(self.path("pods", name), options)
        except AdminError as error:
            if error.status != 404:  # somebody else was faster
                raise

    def end_pod(self, name: str, code: int, message: str = "") -> None:
        """Let the pod end as a node would report it; kwok no longer changes it."""
        [status] = [pod["status"] for pod in self.pods() if pod["metadata"]["name"] == name]
        done = {"exitCode": code, "reason": "Error" if code else "Completed", "message": message}
        done |= {"finishedAt": utc_now().strftime("%Y-%m-%dT%H:%M:%SZ")}
        container = {
            **status["containerStatuses"][0],
            "ready": False,
            "state": {"terminated": done},
        }
        ended = {"phase": "Failed" if code else "Succeeded", "containerStatuses": [container]}
        self.cluster.admin.patch(
            self.path("pods", f"{name}/status"), {"status": ended}, "strategic-merge"
        )

    def make_account(self, name: str) -> None:
        """Create a service account in the namespace."""
        self.cluster.admin.ensure(self.path("serviceaccounts"), {"metadata": {"name": name}})

    def recreate(self, name: str) -> str:
        """Remove the Job and its pod, and create the same Job by hand. Returns its uid."""
        admin, path = self.cluster.admin, self.path("jobs", name, "/apis/batch/v1")
        job = admin.get(path)
        [pod] = [
            pod["metadata"]["name"]
            for pod in self.pods()
            if pod["metadata"]["labels"]["job-name"] == name
        ]
        admin.patch(self.path("pods", pod), {"metadata": {"finalizers": None}})
        admin.delete(path, {"propagationPolicy": "Background"})
        self.delete_pod(pod, gracePeriodSeconds=0)
        template = job["spec"]["template"]["metadata"]
        for labelled in (job["metadata"], template):
            labelled["labels"] = {
                key: text for key, text in labelled["labels"].items() if "controller-uid" not in key
            }
        spec = {
            key: value for key, value in job["spec"].items() if key not in ("selector", "suspend")
        }
        meta = {key: job["metadata"][key] for key in ("name", "labels", "annotations")}
        made = admin.post(
            self.path("jobs", group="/apis/batch/v1"), {"metadata": meta, "spec": spec}
        )
        return str(made["metadata"]["uid"])

    def start_pod(self, name: str) -> None:
        """Let the pod execute as a node would report it, on a node that nobody simulates."""
        [pod] = [pod for pod in self.pods() if pod["metadata"]["name"] == name]
        now = utc_now().strftime("%Y-%m-%dT%H:%M:%SZ")
        image = pod["spec"]["containers"][0]["image"]
        container = {
            "name": labels.CONTAINER,
            "image": image,
            "imageID": "",
            "restartCount": 0,
            "ready": True,
        }
        container |= {"state": {"running": {"startedAt": now}}}
        conditions = [
            {"type": kind, "status": "True", "lastTransitionTime": now}
            for kind in ("Ready", "ContainersReady")
        ]
        status = {
            "phase": "Running",
            "startTime": now,
            "conditions": conditions,
            "containerStatuses": [container],
        }
        self.cluster.admin.patch(
            self.path("pods", f"{name}/status"), {"status": status}, "strategic-merge"
        )

    # --- the database

    def run(self, run_id: int = 1) -> RunRow:
        row: RunRow | None = self.testbed.store.runs.get_run(run_id)
        assert row is not None
        return row

    def tasks(self, run_id: int = 1, *, superseded: bool = False) -> list[TaskRow]:
        rows: list[TaskRow] = self.testbed.store.tasks.list_tasks(run_id, superseded=superseded)
        return rows

    async def until_task(
        self, status: str, index: int = 0, seconds: float = 150, run_id: int = 1
    ) -> TaskRow:
        """Wait until the database has the task in this status."""

        def there() -> TaskRow | None:
            rows = (
                [t for t in self.tasks(run_id) if t.task_index == index]
                if self.testbed.store.runs.get_run(run_id)
                else []
            )
            return rows[0] if rows and rows[0].status == status else None

        found: TaskRow = await self.testbed.until(there, seconds)
        return found

    async def until_said(self, words: str, seconds: float = 150, run_id: int = 1) -> str:
        """Wait until the run or one of its tasks shows this message."""

        def said() -> str | None:
            row = self.testbed.store.runs.get_run(run_id)
            texts = (
                [row.waiting_for, row.look_error, *(t.reason for t in self.tasks(run_id))]
                if row
                else []
            )
            return next((text for text in texts if text and words in text), None)

        found: str = await self.testbed.until(said, seconds)
        return found


def _is_of(pod: Json, run_id: int) -> bool:
    return bool(pod["metadata"]["labels"].get(labels.RUN) == str(run_id))


@asynccontextmanager
async def open_kube_testbed(
    client: Client,
    folder: Path,
    cluster: Cluster,
    *,
    watched: bool,
    api: Api | None = None,
    audit: AuditRules | None = None,
    service_account: str = "default",
    pools: Pools = NO_POOLS,
    retries: Retries = NO_RETRIES,
    **more: Any,
) -> AsyncIterator[KubeTestbed]:
    """Open workers of all roles and the release of ended pods; with ``watched``, also an observer.

    ``audit`` has the grace periods of audits, if not the usual ones. ``more`` are settings of the
    cluster.
    """
    namespace = api.namespace if api is not None else cluster.namespace("life")
    own = api or Api(
        kubeconfig=cluster.kubeconfig, namespace=namespace, connect_timeout_s=10, read_timeout_s=10
    )
    settings = ClusterSettings(
        kind="kubernetes", namespace=namespace, service_account=service_account, **more
    )
    async with AsyncExitStack() as stack:
        stack.callback(own.close)
        testbed = await stack.enter_async_context(
            open_testbed(client, folder, workers=False, clock=utc_now, pools=pools, retries=retries)
        )
        kubernetes = KubernetesCluster(own)
        deployer = KubernetesDeployer(own, settings)
        stack.callback(deployer.close)
        scheduler = KubeScheduler(deployer)
        testbed.parts.cluster, testbed.parts.scheduler = kubernetes, scheduler
        testbed.parts.audit = audit or testbed.parts.audit
        releaser = Releaser(Finalizers(own), testbed.store.tasks, turn_s=0.5)
        beside = await stack.enter_async_context(Beside())
        beside.start(releaser.run())
        if pools.counted:
            beside.start(
                SlotCalls("pools", testbed.store.pools, Workflows(client).place_free).run()
            )
        observer = KubernetesObserver(own) if watched else None
        if observer is not None:
            recorder = Recorder(
                testbed.store.polls, testbed.store.retries, kubernetes, testbed.parts.policies
            )
            notify = Workflows(client).poll_recorded
            beside.start(Recording(observer, testbed.store.wake_ups, recorder, notify).run())
        await stack.enter_async_context(testbed.working())
        yield KubeTestbed(testbed, cluster, namespace, own, scheduler, releaser, observer)
