"""Operations with which tests change the cluster."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import Any

from tests.support.kube_api.controllers import Controllers, finished, key_of
from tests.support.kube_api.store import JOBS, PODS, Object, Store, stamp


class Driver:
    """Changes Jobs and pods. A Job is given by its name or its object, which also stands for its
    newest pod.
    """

    def __init__(self, store: Store, controllers: Controllers, namespace: str) -> None:
        self.store, self.controllers, self.namespace = store, controllers, namespace
        self.logs: dict[str, list[tuple[datetime, bytes]]] = {}
        """Lines by the uid of the pod."""

    # --- finding

    def job(self, job: str | Object) -> Object:
        """Return the present Job. Raises ``Problem`` (404)."""
        return self.store.get(JOBS, self._key(job))

    def pods(self, job: str | Object | None = None) -> list[Object]:
        """Return the pods of a Job (or all), oldest first."""
        found = self.store.find(PODS) if job is None else self.controllers.pods_of(self._uid(job))
        return sorted(found, key=lambda pod: int(pod["metadata"]["resourceVersion"]))

    def pod(self, job: str | Object) -> Object:
        """Return the newest pod of a Job."""
        born = self.store.born
        found = sorted(
            self.pods(job),
            key=lambda p: (p["metadata"]["creationTimestamp"], born[p["metadata"]["uid"]]),
        )
        assert found, (
            f"the Job {job if isinstance(job, str) else job['metadata']['name']} has no pod"
        )
        return found[-1]

    def _key(self, job: str | Object) -> tuple[str, str]:
        return (self.namespace, job) if isinstance(job, str) else key_of(job)

    def _uid(self, job: str | Object) -> str:
        return str((self.job(job) if isinstance(job, str) else job)["metadata"]["uid"])

    # --- the life of a pod

    def pod_scheduled(self, job: str | Object, node: str = "node-1") -> Object:
        """Give the pod a node; its containers are being created."""

        def schedule(pod: Object) -> None:
            pod["spec"] = {**pod["spec"], "nodeName": node}
            pod["status"] |= {"startTime": stamp(), "phase": "Pending"}
            pod["status"]["conditions"] = [_condition("PodScheduled", "True")]
            pod["status"]["containerStatuses"] = [
                _container(c, {"waiting": {"reason": "ContainerCreating"}})
                for c in pod["spec"]["containers"]
            ]

        return self.store.update(PODS, key_of(self.pod(job)), schedule)

    def pod_starts(self, job: str | Object, node: str = "node-1") -> Object:
        """Let every container of the pod run."""
        self.pod_scheduled(job, node)

        def start(pod: Object) -> None:
            pod["status"]["phase"] = "Running"
            pod["status"]["conditions"] = [
                _condition(k, "True") for k in ("PodScheduled", "Initialized", "Ready")
            ]
            pod["status"]["containerStatuses"] = [
                {
                    **_container(c, {"running": {"startedAt": stamp()}}),
                    "ready": True,
                    "started": True,
                }
                for c in pod["spec"]["containers"]
            ]

        pod = self.store.update(PODS, key_of(self.pod(job)), start)
        self._job_status(job, ready=1)
        return pod

    def pod_waits(
        self, job: str | Object, reason: str, message: str = "", node: str = "node-1"
    ) -> Object:
        """Keep the container from starting: ``ErrImagePull``, ``CreateContainerConfigError``, …"""
        self.pod_scheduled(job, node)

        def wait(pod: Object) -> None:
            for container in pod["status"]["containerStatuses"]:
                container["state"] = {"waiting": {"reason": reason, "message": message}}

        return self.store.update(PODS, key_of(self.pod(job)), wait)

    def pod_unschedulable(
        self, job: str | Object, message: str = "0/1 nodes are available: 1 Insufficient cpu."
    ) -> Object:
        """Report that no node accepts the pod."""
        told = {
            **_condition("PodScheduled", "False"),
            "reason": "Unschedulable",
            "message": message,
        }
        return self.change_pod(job, lambda pod: pod["status"].update(conditions=[told]))

    def pod_ends(
        self,
        job: str | Object,
        exit_code: int = 0,
        reason: str | None = None,
        message: str | None = None,
        *,
        signal: int | None = None,
    ) -> Object:
        """End every container of the pod like this; the Job counts it (unless ``counts_ends`` is
        off).
        """
        pod = self.pod(job)
        return self.controllers.end_pod(
            pod, exit_code, reason=reason, message=message, signal=signal
        )

    def pod_marked(self, job: str | Object, reason: str, message: str = "") -> Object:
        """Give the pod a ``DisruptionTarget`` with this reason."""
        target = {**_condition("DisruptionTarget", "True"), "reason": reason, "message": message}

        def mark(pod: Object) -> None:
            pod["status"]["conditions"] = [*pod["status"].get("conditions", []), target]

        return self.change_pod(job, mark)

    def pod_prints(self, job: str | Object, text: bytes) -> None:
        """Add lines to the pod's log."""
        lines = self.logs.setdefault(self.pod(job)["metadata"]["uid"], [])
        lines += [(datetime.now(UTC), line) for line in text.splitlines(keepends=True)]

    # --- what others do

    def change_pod(self, job: str | Object, change: Any) -> Object:
        """Change the newest pod in place."""
        return self.store.update(PODS, key_of(self.pod(job)), change)

    def change_job(self, job: str | Object, change: Any) -> Object:
        """Change the Job in place."""
        return self.store.update(JOBS, self._key(job), change)

    def job_fails(
        self, job: str | Object, reason: str = "DeadlineExceeded", message: str = ""
    ) -> Object:
        """Let the Job controller give up the Job, and remove its pods."""
        now = stamp()

        def fail(found: Object) -> None:
            found["status"]["conditions"] = [
                {
                    **_condition(kind, "True"),
                    "reason": reason,
                    "message": message,
                    "lastProbeTime": now,
                }
                for kind in ("FailureTarget", "Failed")
            ]
            found["status"].pop("active", None)

        failed = self.change_job(job, fail)
        for pod in self.pods(job):
            if not finished(pod):
                self.controllers.delete_pod(pod)
        return failed

    def delete_behind(self, job: str | Object, *, pods: bool = True) -> None:
        """Remove Job and pods without a trace, finalizers or not, as after a person's forced
        deletion.
        """
        found = self.job(job)
        gone = self.pods(found)
        self.store.remove(JOBS, key_of(found))
        for pod in gone if pods else []:
            if self.store.find(
                PODS, lambda p, uid=pod["metadata"]["uid"]: p["metadata"]["uid"] == uid
            ):
                self.store.remove(PODS, key_of(pod))

    def delete_pod_behind(self, job: str | Object) -> None:
        """Remove the newest pod without a trace."""
        self.store.remove(PODS, key_of(self.pod(job)))

    def recreate_behind(self, job: str | Object) -> Object:
        """Create another Job with the same name, the same labels and another uid."""
        found = self.job(job)
        self.delete_behind(found)
        again = {
            "metadata": copy.deepcopy(found["metadata"]),
            "spec": copy.deepcopy(found["spec"]),
            "status": {},
        }
        for name in ("uid", "resourceVersion", "creationTimestamp", "deletionTimestamp"):
            again["metadata"].pop(name, None)
        return self.store.create(JOBS, key_of(found), again)

    def node_lost(self, node: str = "node-1") -> None:
        """Let the node stop responding: its pods stay Running and not ready, and no kubelet ends
        them.
        """
        self.controllers.lose_node(node)

    def _job_status(self, job: str | Object, **status: Any) -> None:
        self.store.update(
            JOBS, self._key(job), lambda found: found.setdefault("status", {}).update(status)
        )


#: The image of every container that is executing or has ended.
IMAGE_ID = f"registry.example/shop@sha256:{'1a9e' * 16}"


def _condition(kind: str, status: str) -> dict[str, Any]:
    return {"type": kind, "status": status, "lastProbeTime": None, "lastTransitionTime": stamp()}


def _container(container: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    return {
        **{
            "name": container["name"],
            "image": container.get("image", ""),
            "imageID": "" if "waiting" in state else IMAGE_ID,
            "ready": False,
        },
        **{"started": False, "restartCount": 0, "lastState": {}, "state": state},
    }
