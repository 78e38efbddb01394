"""The faults of runs and clusters, with one method for each kind of step in a plan.

A step that cannot be executed is reported.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from temporalio.client import WorkflowUpdateFailedError
from temporalio.service import RPCError

from tests.kubernetes.cluster.admin import AdminError
from tests.kubernetes.kube_testbed import QUICK
from tools.soak.kubernetes.harness import Harness, Json
from tools.soak.kubernetes.plan import Step
from tools.soak.kubernetes.record import is_over, state

#: The seconds for which a person's tool repeats a call while the API server is down, as ``kubectl``
#: in a loop would.
PATIENCE_S = 20


class Nothing(Exception):
    """There is no object for the step."""


class Troubles:
    """Executes the steps of a plan in a harness."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self._parts = asyncio.Lock()
        """Parts of the control plane are down one at a time."""
        self._rooms = asyncio.Lock()
        self._rights = asyncio.Lock()

    async def play(self, step: Step) -> None:
        """Execute a step, undo what must be undone, and record the result.

        Raises nothing for errors that a plan may cause.
        """
        rng = random.Random(f"{self.harness.plan.seed}/{step.number}")
        method: Callable[[Step, random.Random], Any] = getattr(self, f"_{step.kind}")
        try:
            said = await method(step, rng)
        except (Nothing, AdminError, OSError, RPCError, WorkflowUpdateFailedError) as error:
            said = f"not done: {type(error).__name__}: {str(error)[:200]}"
        self.harness.say(f"{step.kind}: {said or 'done'}", step.run)

    # --- choosing

    async def _pod(self, step: Step, rng: random.Random, *, running: bool = True) -> Json:
        pods = [p for p in await self._call(self.harness.pods) if _of(p, await self._run_id(step))]
        fit = [p for p in pods if not running or ("running" in state(p) and not is_over(p))]
        if not fit:
            raise Nothing("no such pod")
        return rng.choice(sorted(fit, key=lambda p: str(p["metadata"]["name"])))

    async def _job(self, step: Step, rng: random.Random) -> Json:
        jobs = [j for j in await self._call(self.harness.jobs) if _of(j, await self._run_id(step))]
        if not jobs:
            raise Nothing("no Job")
        return rng.choice(sorted(jobs, key=lambda j: str(j["metadata"]["name"])))

    async def _run_id(self, step: Step) -> int:
        assert step.run is not None
        row = await asyncio.to_thread(self.harness.row, step.run)
        if row is None:
            raise Nothing("the run has no row yet")
        return int(row.run_id)

    async def _call(self, act: Callable[..., Any], *args: Any) -> Any:
        """Send a request as administrator, and repeat it while nobody answers."""
        for _ in range(PATIENCE_S * 2):
            try:
                return await asyncio.to_thread(act, *args)
            except (OSError, AdminError) as error:
                if isinstance(error, AdminError) and error.status < 500 and error.status != 429:
                    raise
                await asyncio.sleep(0.5)
        raise Nothing("nobody answers")

    # --- a person with kubectl, or the node, and one task

    async def _delete_pod(self, step: Step, rng: random.Random, **options: Any) -> str:
        pod = await self._pod(step, rng)
        name = pod["metadata"]["name"]
        await self._call(
            self.harness.cluster.admin.delete, self.harness.path("pods", name), options
        )
        return f"{name} {options or ''}"

    async def _delete_pod_at_once(self, step: Step, rng: random.Random) -> str:
        return await self._delete_pod(step, rng, gracePeriodSeconds=0)

    async def _evict(self, step: Step, rng: random.Random) -> str:
        pod = await self._pod(step, rng)
        name = pod["metadata"]["name"]
        meta = {"name": name, "namespace": self.harness.namespace}
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta}
        await self._call(
            self.harness.cluster.admin.post, self.harness.path("pods", f"{name}/eviction"), body
        )
        return str(name)

    async def _delete_job(self, step: Step, rng: random.Random, policy: str) -> str:
        job = await self._job(step, rng)
        name = job["metadata"]["name"]
        await self._call(
            self.harness.cluster.admin.delete,
            self.harness.job_path(name),
            {"propagationPolicy": policy},
        )
        return f"{name}"

    async def _delete_job_foreground(self, step: Step, rng: random.Random) -> str:
        return await self._delete_job(step, rng, "Foreground")

    async def _delete_job_background(self, step: Step, rng: random.Random) -> str:
        return await self._delete_job(step, rng, "Background")

    async def _delete_job_orphan(self, step: Step, rng: random.Random) -> str:
        return await self._delete_job(step, rng, "Orphan")

    async def _suspend_and_resume(self, step: Step, rng: random.Random) -> str:
        job = await self._job(step, rng)
        path = self.harness.job_path(job["metadata"]["name"])
        await self._call(self.harness.cluster.admin.patch, path, {"spec": {"suspend": True}})
        await asyncio.sleep(step.seconds)
        await self._call(self.harness.cluster.admin.patch, path, {"spec": {"suspend": False}})
        return f"{job['metadata']['name']} for {step.seconds:.1f} s"

    async def _strip_pod(self, step: Step, rng: random.Random) -> str:
        """Remove the finalizers, as a person does who believes that they prevent the removal of
        pods.
        """
        pod = await self._pod(step, rng, running=rng.random() < 0.7)
        path = self.harness.path("pods", pod["metadata"]["name"])
        await self._call(self.harness.cluster.admin.patch, path, {"metadata": {"finalizers": None}})
        if rng.random() < 0.5:
            await self._call(self.harness.cluster.admin.delete, path, {"gracePeriodSeconds": 0})
        return str(pod["metadata"]["name"])

    async def _tear_away(self, step: Step, rng: random.Random) -> str:
        """Delete the Job and the pod at once, without permission."""
        pod = await self._pod(step, rng)
        name, admin = pod["metadata"]["name"], self.harness.cluster.admin
        path = self.harness.path("pods", name)
        await self._call(admin.patch, path, {"metadata": {"finalizers": None}})
        for job in await self._call(self.harness.jobs):
            if (
                job["metadata"]["uid"]
                == pod["metadata"]["labels"]["batch.kubernetes.io/controller-uid"]
            ):
                options = {"propagationPolicy": "Background"}
                await self._call(
                    admin.delete, self.harness.job_path(job["metadata"]["name"]), options
                )
        await self._call(admin.delete, path, {"gracePeriodSeconds": 0})
        return str(name)

    async def _says(self, pod: Json, done: Json, **status: Any) -> str:
        """Report an end, as the node does. Changes in the meantime are not overwritten."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        began = state(pod)["running"]["startedAt"]
        told = {"terminated": {"startedAt": began, "finishedAt": now, **done}, "running": None}
        container = {
            **pod["status"]["containerStatuses"][0],
            "ready": False,
            "started": False,
            "state": told,
        }
        ended = {
            "phase": "Failed" if done["exitCode"] else "Succeeded",
            "containerStatuses": [container],
            **status,
        }
        meta = {"resourceVersion": pod["metadata"]["resourceVersion"]}
        name = pod["metadata"]["name"]
        body = {"metadata": meta, "status": ended}
        path = self.harness.path("pods", f"{name}/status")
        await self._call(self.harness.cluster.admin.patch, path, body, "strategic-merge")
        return f"{name}: {done}"

    async def _node_says_killed_for_memory(self, step: Step, rng: random.Random) -> str:
        done = {"exitCode": rng.choice((137, 0)), "reason": "OOMKilled"}
        return await self._says(await self._pod(step, rng), done)

    async def _node_says_exit(self, step: Step, rng: random.Random) -> str:
        code = rng.choice((0, 1, 2, 3, 11, 13, 14, 15, 17, 18, 137, 139, 143))
        return await self._says(
            await self._pod(step, rng),
            {"exitCode": code, "reason": "Error" if code else "Completed"},
        )

    async def _node_evicts(self, step: Step, rng: random.Random) -> str:
        pod = await self._pod(step, rng)
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        mark = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "TerminationByKubelet",
            "lastTransitionTime": now,
        }
        done = {"exitCode": 137, "reason": "Error"}
        short = "The node was low on resource: memory."
        return await self._says(pod, done, reason="Evicted", message=short, conditions=[mark])

    # --- a person with our tools, and one run

    def _stop_request(self, step: Step, word: str = "") -> Json:
        return {"request_id": f"s{step.number}{word}", "requested_by": "ada"}

    async def _stop(self, step: Step, rng: random.Random) -> str:
        assert step.run is not None
        await self.harness.signal(step.run, "stop", self._stop_request(step))
        return "asked"

    async def _force_stop(self, step: Step, rng: random.Random) -> str:
        assert step.run is not None
        await self.harness.signal(step.run, "force_stop", self._stop_request(step), force=True)
        return "asked"

    async def _stop_twice(self, step: Step, rng: random.Random) -> str:
        assert step.run is not None
        await self.harness.signal(step.run, "stop", self._stop_request(step))
        await asyncio.sleep(step.seconds)
        await self.harness.signal(step.run, "force_stop", self._stop_request(step, "f"), force=True)
        return "asked"

    async def _poll_now(self, step: Step, rng: random.Random) -> str:
        assert step.run is not None
        await self.harness.signal(step.run, "poll_now")
        return "asked"

    async def _resume(self, step: Step, rng: random.Random) -> str:
        """Resume the run once it has ended, or sometimes too early, which is refused."""
        assert step.run is not None
        run_id, harness = await self._run_id(step), self.harness
        early = rng.random() < 0.15
        ended = early or await harness.until(lambda: _ended(harness, step.run), 25)
        if not ended:
            raise Nothing("it does not end")
        request = {"run_id": run_id, "rerun": rng.random() < 0.5, **QUICK}
        handle = await harness.testbed.start(request, id=f"soak/{step.run}/resume-{step.number}")
        result = asyncio.create_task(handle.result())
        try:
            taken = await harness.until(
                lambda: result.done() or harness.owner(step.run) == handle.id, 120
            )
            if result.done() and (refused := result.exception()) is not None:
                return f"refused: {refused.__cause__ or refused}"
        finally:
            result.cancel()
        return f"run {run_id}, {'early' if early else 'after its end'}{'' if taken else ', and nobody takes it up'}"

    async def _add_tasks(self, step: Step, rng: random.Random) -> str:
        assert step.run is not None
        handle = self.harness.testbed.client.get_workflow_handle(
            await asyncio.to_thread(self.harness.owner, step.run)
        )
        body = {"tasks": [{}] * rng.randint(1, 2), "request_id": f"a{step.number}"}
        await asyncio.wait_for(handle.execute_update("add_tasks", body), 120)
        return str(len(body["tasks"]))

    async def _terminate_workflow(self, step: Step, rng: random.Random) -> str:
        """Terminate the workflow in Temporal, after which nothing serves the run until an audit."""
        assert step.run is not None
        owner = await asyncio.to_thread(self.harness.owner, step.run)
        await self.harness.testbed.client.get_workflow_handle(owner).terminate("by hand")
        return owner

    # --- everybody

    async def _down(self, name: str, seconds: float) -> str:
        async with self._parts:
            await asyncio.to_thread(self.harness.cluster.kill, name)
            await asyncio.sleep(seconds)
            await asyncio.to_thread(self.harness.cluster.start_part, name)
        return f"for {seconds:.1f} s"

    async def _restart_api(self, step: Step, rng: random.Random) -> str:
        return await self._down("kube-apiserver", rng.choice((0.0, step.seconds)))

    async def _restart_etcd(self, step: Step, rng: random.Random) -> str:
        return await self._down("etcd", 0.0)

    async def _restart_controllers(self, step: Step, rng: random.Random) -> str:
        return await self._down("kube-controller-manager", step.seconds)

    async def _restart_scheduler(self, step: Step, rng: random.Random) -> str:
        return await self._down("kube-scheduler", step.seconds)

    async def _restart_kwok(self, step: Step, rng: random.Random) -> str:
        return await self._down("kwok", step.seconds)

    async def _freeze_api(self, step: Step, rng: random.Random) -> str:
        async with self._parts:
            self.harness.cluster.freeze("kube-apiserver")
            try:
                await asyncio.sleep(step.seconds)
            finally:
                self.harness.cluster.thaw("kube-apiserver")
        return f"for {step.seconds:.1f} s"

    async def _take_rights(self, step: Step, rng: random.Random) -> str:
        async with self._rights:
            await self._call(self.harness.rights.take)
            await asyncio.sleep(step.seconds)
            await self._call(self.harness.rights.give)
        return f"for {step.seconds:.1f} s"

    async def _no_room(self, what: str, seconds: float) -> str:
        async with self._rooms:
            admin, quotas = self.harness.cluster.admin, self.harness.path("resourcequotas")
            body = {"metadata": {"name": "none"}, "spec": {"hard": {what: "0"}}}
            await self._call(admin.ensure, quotas, body)
            await asyncio.sleep(seconds)
            await self._call(admin.delete, f"{quotas}/none", {})
        return f"{what} for {seconds:.1f} s"

    async def _no_room_for_jobs(self, step: Step, rng: random.Random) -> str:
        return await self._no_room("count/jobs.batch", step.seconds)

    async def _no_room_for_pods(self, step: Step, rng: random.Random) -> str:
        return await self._no_room("pods", step.seconds)

    async def _delete_node(self, step: Step, rng: random.Random) -> str:
        """Remove the machine of a node for good. The last node stays."""
        kwok = self.harness.cluster.kwok
        assert kwok is not None
        nodes = [
            n["metadata"]["name"]
            for n in (await self._call(self.harness.cluster.admin.get, "/api/v1/nodes"))["items"]
        ]
        if len(nodes) < 2:
            raise Nothing("it is the last one")
        name = rng.choice(sorted(nodes))
        await self._call(self.harness.cluster.admin.delete, f"/api/v1/nodes/{name}")
        return str(name)

    async def _killed(self, kind: str, seconds: float) -> str:
        part = self.harness.services.get(kind)
        if part is None:
            raise Nothing(f"there is no {kind}")
        if not part.alive():
            raise Nothing("it is down already")
        await asyncio.to_thread(part.kill)
        await asyncio.sleep(seconds)
        part.start()
        return f"for {seconds:.1f} s"

    async def _kill_worker(self, step: Step, rng: random.Random) -> str:
        return await self._killed("worker", rng.choice((0.0, step.seconds)))

    async def _kill_observer(self, step: Step, rng: random.Random) -> str:
        return await self._killed("observer", step.seconds)

    async def _audit(self, step: Step, rng: random.Random) -> str:
        report = await asyncio.wait_for(self.harness.audit(), 120)
        return f"found {report.found}, repaired {report.repaired}, troubles {report.troubles}"


def _of(item: Json, run_id: int) -> bool:
    return bool(item["metadata"].get("labels", {}).get("crawler-lifecycle/run") == str(run_id))


def _ended(harness: Harness, number: int | None) -> bool:
    row = harness.row(number or 0)
    return row is not None and str(row.status) in ("COMPLETED", "FAILED")
