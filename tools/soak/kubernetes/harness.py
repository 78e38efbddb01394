"""The environment of a soak: its own cluster, a namespace, our services as processes, and the
client that starts the runs.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from temporalio.client import Client, WorkflowHandle

from crawler_lifecycle.clock import utc_now
from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.audits.audit import AuditReport
from crawler_lifecycle.ports.runs import RunRow
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.cluster.processes import Part
from tests.kubernetes.kube_testbed import QUICK
from tests.kubernetes.test_troubled_cluster_kwok import Rights
from tests.support.databases import fresh_database
from tests.support.testbed import WorkflowHarness, open_testbed
from tools.soak.kubernetes.plan import Plan, PlannedRun
from tools.soak.kubernetes.record import Recorder
from tools.soak.kubernetes.services import Place

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """A requested stop, sent between these moments, and acknowledged unless ``error`` is set."""

    before: datetime
    after: datetime
    force: bool
    error: str | None = None


@dataclass
class LiveRun:
    """A run of the plan, as its client knows it."""

    planned: PlannedRun
    stops: list[Asked] = field(default_factory=list)


@dataclass
class Harness:
    """Everything that a soak needs."""

    plan: Plan
    cluster: Cluster
    namespace: str
    rights: Rights
    testbed: WorkflowHarness
    recorder: Recorder
    services: dict[str, Part]
    runs: dict[int, LiveRun] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    diary: list[str] = field(default_factory=list)
    """What was done, with what came of it."""
    audits: list[AuditReport] = field(default_factory=list)
    unborn: set[int] = field(default_factory=set)
    """Runs whose workflow was terminated before it could do anything."""

    def say(self, text: str, run: int | None = None) -> None:
        on = "" if run is None else f"run {run}: "
        self.diary.append(f"{utc_now():%H:%M:%S.%f} {on}{text}")

    def told(self, run: int) -> list[str]:
        """Return the lines of the diary about a run and about everything."""
        return [line for line in self.diary if f" run {run}: " in line or " run " not in line[:24]]

    # --- runs

    async def start(self, planned: PlannedRun) -> None:
        self.runs[planned.number] = LiveRun(planned)
        await self.testbed.start({**QUICK, **planned.request}, id=f"soak/{planned.number}")

    def row(self, number: int) -> RunRow | None:
        """Return the row of a planned run, once it exists."""
        found: RunRow | None = self.testbed.store.runs.find_run(f"soak-{number}")
        return found

    async def signal(self, number: int, name: str, *args: object, force: bool = False) -> None:
        """Send a signal to the newest workflow of the run. A stop is recorded."""
        run, before, error = self.runs[number], datetime.now(UTC), None
        try:
            handle = self.testbed.client.get_workflow_handle(
                await asyncio.to_thread(self.owner, number)
            )
            await handle.signal(name, *args)
        except Exception as problem:  # The workflow is closed, so there is nothing to stop.
            error = str(problem)
            raise
        finally:
            if name != "poll_now":
                run.stops.append(Asked(before, datetime.now(UTC), force, error))

    async def audit(self) -> AuditReport:
        client = self.testbed.client
        handle: WorkflowHandle[Any, AuditReport] = await client.start_workflow(
            names.AUDIT_WORKFLOW,
            {"repair": True},
            id=f"audit/{uuid.uuid4()}",
            task_queue=names.QUEUE_AUDIT,
            result_type=AuditReport,
        )
        self.testbed.handles.append(handle)
        report = await handle.result()
        self.audits.append(report)
        return report

    def owner(self, number: int | None) -> str:
        """Return the id of the workflow that works for a planned run: the workflow in the row, or
        the workflow that was started first.
        """
        row = self.row(number or 0)
        return (
            str(row.owner_workflow_id)
            if row is not None and row.owner_workflow_id
            else f"soak/{number}"
        )

    # --- the cluster as its administrator sees it

    def path(self, resource: str, name: str = "", group: str = "/api/v1") -> str:
        return f"{group}/namespaces/{self.namespace}/{resource}" + (f"/{name}" if name else "")

    def job_path(self, name: str = "") -> str:
        return self.path("jobs", name, "/apis/batch/v1")

    def pods(self) -> list[Json]:
        items: list[Json] = self.cluster.admin.get(self.path("pods"))["items"]
        return items

    def jobs(self) -> list[Json]:
        items: list[Json] = self.cluster.admin.get(self.job_path())["items"]
        return items

    async def until(self, condition: Any, seconds: float) -> bool:
        """Return whether the condition becomes true in time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if await asyncio.to_thread(condition):
                return True
            await asyncio.sleep(0.2)
        return False


def _may_know_where_it_is(cluster: Cluster, rights: Rights) -> None:
    """Let our account read which namespace and which cluster it uses, whatever other rights are
    removed.
    """
    name, group = rights.namespace, "rbac.authorization.k8s.io"
    rules = [{"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get"]}]
    roles = f"/apis/{group}/v1/clusterrole"
    cluster.admin.post(f"{roles}s", {"metadata": {"name": name}, "rules": rules})
    reference = {"apiGroup": group, "kind": "ClusterRole", "name": name}
    account = {"kind": "ServiceAccount", "name": "ours", "namespace": name}
    cluster.admin.post(
        f"{roles}bindings",
        {"metadata": {"name": name}, "roleRef": reference, "subjects": [account]},
    )


@asynccontextmanager
async def harness(
    client: Client, folder: Path, cluster: Cluster, plan: Plan
) -> AsyncIterator[Harness]:
    """Start the services and the recorder. No run has been started yet.

    ``cluster`` was started with ``record.flags``. At the end, the history of every workflow is
    replayed.
    """
    rights = Rights(cluster)
    _may_know_where_it_is(cluster, rights)
    namespace = rights.namespace
    account = f"system:serviceaccount:{namespace}:ours"
    async with AsyncExitStack() as stack:
        stack.callback(rights.api.close)
        url = stack.enter_context(fresh_database(folder))
        testbed = await stack.enter_async_context(
            open_testbed(client, folder, workers=False, clock=utc_now, database=url)
        )
        kubeconfig = cluster.places.folder / f"kubeconfig-{account.replace(':', '-')}-{namespace}"
        place = Place(client.service_client.config.target_host, url, str(kubeconfig), namespace)
        kinds = ["worker", *(["observer"] if plan.observed else [])]
        services = {kind: place.part(kind, folder) for kind in kinds}
        trail = folder / "audit.log"
        recorder = stack.enter_context(Recorder(cluster.plane._etcd, namespace, trail))
        for part in services.values():
            stack.callback(part.kill)
            part.start()
        yield Harness(plan, cluster, namespace, rights, testbed, recorder, services)
