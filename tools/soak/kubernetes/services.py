"""A worker or an observer of our service as a separate process, so that it can be killed: ``python
-m … FILE``.

Everything is real, including the interceptors of the workers, except that there is no HTTP between
the workflow and the scheduler service, which does not matter for what is proved here.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

from temporalio.client import Client
from temporalio.worker import Worker

from crawler_lifecycle.activities import meters
from crawler_lifecycle.activities.poll_step import Recorder
from crawler_lifecycle.activities.retries import Policies
from crawler_lifecycle.background import Beside
from crawler_lifecycle.clock import utc_now
from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.cluster import KubernetesCluster
from crawler_lifecycle.clusters.kubernetes.files.sources import task_files
from crawler_lifecycle.clusters.kubernetes.jobs.deployer import KubernetesDeployer
from crawler_lifecycle.clusters.kubernetes.jobs.finalizers import Finalizers
from crawler_lifecycle.clusters.kubernetes.observer.observer import KubernetesObserver
from crawler_lifecycle.compose import ROLES, Parts, activities_of, workflows_of
from crawler_lifecycle.domain.audits.audit import AuditRules
from crawler_lifecycle.domain.retries import Retries
from crawler_lifecycle.settings import ClusterSettings
from crawler_lifecycle.store.store import Store, open_store
from crawler_lifecycle.temporal.client import Workflows
from crawler_lifecycle.temporal.directory import TemporalDirectory
from crawler_lifecycle.temporal.interceptors import HeartbeatInterceptor
from crawler_lifecycle.temporal.plugin import plugin
from crawler_lifecycle.worker.finalizer_release import Releaser
from crawler_lifecycle.worker.recording import Recording
from crawler_lifecycle.workflows.policies import DEAD_S, POLICIES
from tests.kubernetes.cluster.processes import Part
from tests.kubernetes.kube_testbed import KubeScheduler
from tests.support.fakes.services import FakeCatalogue
from tests.support.testbed import Outside
from tools.soak.kubernetes.plan import CRAWLERS, FACTOR, MEMORY_CAP

ROOT = Path(__file__).parents[3]
THREADS = 8
#: The usual policy, with times that fit into a soak.
RETRIES = Retries(
    backoff_s=1,
    on=["interrupted", "evicted", "lost", "oom"],
    memory_factor=FACTOR,
    memory_cap=MEMORY_CAP,
)
#: Long enough for a process that is about to repair something, and short enough for a soak.
RULES = AuditRules(grace_s=2, orphan_grace_s=3, start_grace_s=2, record_grace_s=30, resend_s=1)


@dataclass(frozen=True)
class Place:
    """The addresses and folders that a service needs, which are passed to it as a file."""

    temporal: str
    database: str
    kubeconfig: str
    namespace: str
    service_account: str = "default"

    def part(self, kind: str, folder: Path) -> Part:
        """Create the process without starting it: ``worker`` or ``observer``."""
        told = folder / "place.json"
        told.write_text(json.dumps(asdict(self)))
        command = [sys.executable, "-m", __name__, str(told), kind]
        return Part(kind, command, folder / f"{kind}.log", {"PYTHONPATH": str(ROOT)})


async def worker(place: Place, client: Client, api: Api, store: Store, over: asyncio.Event) -> None:
    """Execute all roles, and release the finalizers of recorded ends."""
    cluster = KubernetesCluster(api)
    settings = ClusterSettings(
        kind="kubernetes", namespace=place.namespace, service_account=place.service_account
    )
    scheduler = KubeScheduler(KubernetesDeployer(api, settings), dict(CRAWLERS))
    outside, catalogue = Outside(), FakeCatalogue(CRAWLERS.values())
    directory = TemporalDirectory(asyncio.get_running_loop(), Workflows(client))
    files = task_files(None, None, None)
    parts = Parts(
        store, cluster, files, catalogue, scheduler, [outside], outside, outside, directory, RULES
    )
    parts.retries = RETRIES
    async with AsyncExitStack() as stack:
        for role, queue in ROLES.items():
            made = Worker(
                client,
                task_queue=queue,
                workflows=workflows_of(role),
                activities=activities_of(role, parts),
                activity_executor=stack.enter_context(ThreadPoolExecutor(THREADS)),
                max_concurrent_activities=THREADS,
                interceptors=[
                    HeartbeatInterceptor(
                        [name for name, policy in POLICIES.items() if policy.beaten]
                    )
                ],
                max_heartbeat_throttle_interval=timedelta(seconds=DEAD_S / 3),
            )
            await stack.enter_async_context(made)
        beside = await stack.enter_async_context(Beside())
        beside.start(Releaser(Finalizers(api), store.tasks, turn_s=0.5).run())
        await over.wait()


async def serve(place: Place, kind: str) -> None:
    """Execute until SIGTERM."""
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    client = await Client.connect(place.temporal, plugins=[plugin()])
    store = open_store(place.database, clock=utc_now, told=meters.committed)
    kubeconfig = Path(place.kubeconfig)
    api = Api(
        kubeconfig=kubeconfig, namespace=place.namespace, connect_timeout_s=2, read_timeout_s=5
    )
    if kind == "worker":
        await worker(place, client, api, store, over)
    else:
        async with Beside() as beside:
            policies = Policies(store.retries, FakeCatalogue(CRAWLERS.values()), RETRIES)
            recorder = Recorder(store.polls, store.retries, KubernetesCluster(api), policies)
            notify = Workflows(client).poll_recorded
            beside.start(Recording(KubernetesObserver(api), store.wake_ups, recorder, notify).run())
            await over.wait()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    asyncio.run(serve(Place(**json.loads(Path(sys.argv[1]).read_text())), sys.argv[2]))
