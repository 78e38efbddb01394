"""What the rest of a cluster does by itself: Jobs get their pod, deletions cascade, ends are
counted.
"""

from __future__ import annotations

import string
from typing import Any

from crawler_lifecycle.background import CHANCE
from tests.support.kube_api.problems import Problem
from tests.support.kube_api.store import EVENTS, JOBS, PODS, Change, Key, Object, Store, stamp

TRACKING = "batch.kubernetes.io/job-tracking"
FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"


def default_job(job: Object) -> None:
    """Return what the API server adds to a new Job."""
    meta, spec = job["metadata"], job["spec"]
    identity = {
        "batch.kubernetes.io/controller-uid": meta["uid"],
        "batch.kubernetes.io/job-name": meta["name"],
    }
    legacy = {"controller-uid": meta["uid"], "job-name": meta["name"]}
    template = spec["template"]
    template.setdefault("metadata", {}).setdefault("labels", {}).update(identity | legacy)
    for name, value in {
        "parallelism": 1,
        "completions": 1,
        "backoffLimit": 6,
        "suspend": False,
    }.items():
        spec.setdefault(name, value)
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("podReplacementPolicy", "TerminatingOrFailed")
    spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": meta["uid"]}}
    pod = template["spec"]
    for name, value in {"terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst"}.items():
        pod.setdefault(name, value)
    meta.setdefault("generation", 1)
    job.setdefault("status", {})


def key_of(obj: Object) -> Key:
    return obj["metadata"].get("namespace", ""), obj["metadata"]["name"]


def finished(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


class Controllers:
    """The Job controller, the garbage collector and the kubelets. Each can be switched off."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.makes_pods = True
        """Whether a new Job gets its pod at once."""
        self.refuses_pods: str | None = None
        """Why no pod can be created (the text of the event); ``None``: they can."""
        self.counts_ends = True
        """Whether Jobs notice the ends of their pods."""
        self.kubelet_stops: int | None = 143
        """The exit code with which a running pod ends as soon as it is being deleted; ``None``: it
        does not.
        """
        self.lost_nodes: set[str] = set()
        """Kubelets of these nodes do nothing any more."""
        store.after_write.append(self._act)

    def _act(self, change: Change) -> None:
        if change.kind is JOBS:
            self._job(change)
        elif change.kind is PODS:
            self._pod(change)

    # --- Jobs

    def _job(self, change: Change) -> None:
        job = change.after
        if job is None:
            self._collect(change.last["metadata"]["uid"])
            return
        meta = job["metadata"]
        if "deletionTimestamp" in meta:
            self._deleting(job)
        elif (
            self.makes_pods
            and not job["spec"].get("suspend")
            and not job.get("status", {}).get("startTime")
        ):
            self.start_job(job)

    def start_job(self, job: Object) -> Object | None:
        """Do what the Job controller does first: create the pod, or an event that says why there is
        none.
        """
        key = key_of(job)
        if self.refuses_pods is not None:
            self.store.update(
                JOBS, key, lambda j: j.setdefault("status", {}).update(startTime=stamp())
            )
            text = f"Error creating: {self.refuses_pods}"
            self.event(job, "FailedCreate", text, source="job-controller")
            return None
        pod = self.make_pod(job)
        began = {"startTime": stamp(), "active": 1, "ready": 0, "terminating": 0}
        self.store.update(JOBS, key, lambda j: j.setdefault("status", {}).update(began))
        return pod

    def make_pod(self, job: Object) -> Object:
        """Create a pending pod of the Job."""
        meta, template = job["metadata"], job["spec"]["template"]
        name = meta["name"][:57] + "-" + "".join(CHANCE.choices(string.ascii_lowercase, k=5))
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"]}
        wanted = template.get("metadata", {})
        pod: dict[str, Any] = {
            "metadata": {
                "generateName": f"{meta['name']}-",
                "labels": dict(wanted.get("labels", {})),
                "annotations": dict(wanted.get("annotations", {})),
                "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
                "finalizers": [*wanted.get("finalizers", []), TRACKING],
            },
            "spec": template["spec"],
            "status": {"phase": "Pending", "qosClass": "Burstable"},
        }
        return self.store.create(PODS, (meta["namespace"], name), pod)

    def _deleting(self, job: Object) -> None:
        holds = job["metadata"].get("finalizers", [])
        uid = job["metadata"]["uid"]
        if ORPHAN in holds:
            for pod in self.pods_of(uid):
                self.store.update(PODS, key_of(pod), _disown)
            self._let_go(job, ORPHAN)
        elif FOREGROUND in holds:
            for pod in self.pods_of(uid):
                if "deletionTimestamp" not in pod["metadata"]:
                    self.delete_pod(pod)
            if not self.pods_of(uid):
                self._let_go(job, FOREGROUND)

    def _let_go(self, job: Object, finalizer: str) -> None:
        def drop(found: Object) -> None:
            left = [name for name in found["metadata"].get("finalizers", []) if name != finalizer]
            found["metadata"]["finalizers"] = left

        if any(
            found["metadata"]["uid"] == job["metadata"]["uid"] for found in self.store.find(JOBS)
        ):
            self.store.update(JOBS, key_of(job), drop)

    def _collect(self, uid: str) -> None:
        for pod in self.pods_of(uid):
            if "deletionTimestamp" not in pod["metadata"]:
                self.delete_pod(pod)

    def pods_of(self, uid: str) -> list[Object]:
        def owned(pod: Any) -> bool:
            return any(owner["uid"] == uid for owner in pod["metadata"].get("ownerReferences", []))

        return self.store.find(PODS, owned)

    # --- pods

    def delete_pod(self, pod: Object, grace_s: int | None = None) -> Object | None:
        """Begin the deletion of a pod, with its own grace period; one that is not running
        disappears at once.
        """
        if grace_s is None:
            grace_s = pod["spec"].get("terminationGracePeriodSeconds", 30)
        if finished(pod) or not pod["spec"].get("nodeName"):
            grace_s = 0
        try:
            return self.store.begin_deletion(PODS, key_of(pod), grace_s, None)
        except Problem:
            return None  # removed as a consequence of another deletion

    def _pod(self, change: Change) -> None:
        pod = change.after
        if pod is None:
            self._owner_again(change.last)
            return
        meta = pod["metadata"]
        if not finished(pod) and not pod["spec"].get("nodeName") and "deletionTimestamp" in meta:
            # The Job controller waits for a final phase, which the pod garbage collector writes
            # within 20 s.
            pod = self.store.update(PODS, key_of(pod), lambda p: p["status"].update(phase="Failed"))
        if finished(pod):
            self._count(pod)
            return
        heard = "deletionTimestamp" in meta and pod["spec"].get("nodeName") not in self.lost_nodes
        if heard and self.kubelet_stops is not None:
            self.end_pod(pod, self.kubelet_stops)

    def end_pod(
        self,
        pod: Object,
        exit_code: int,
        *,
        reason: str | None = None,
        message: str | None = None,
        signal: int | None = None,
    ) -> Object:
        """Report, as the kubelet, that every container ended like this."""
        now = stamp()
        ended = {
            **{
                "exitCode": exit_code,
                "reason": reason or ("Completed" if exit_code == 0 else "Error"),
            },
            **{"startedAt": pod["status"].get("startTime", now), "finishedAt": now},
            **({"message": message} if message is not None else {}),
            **({"signal": signal} if signal is not None else {}),
        }

        def report(found: Object) -> None:
            status = found["status"]
            status["phase"] = "Succeeded" if exit_code == 0 else "Failed"
            for container in status.get("containerStatuses", []):
                container.update(state={"terminated": dict(ended)}, ready=False, started=False)
            if "deletionTimestamp" in found["metadata"]:
                # The kubelet's report that nothing is running any more.
                found["metadata"]["deletionGracePeriodSeconds"] = 0

        return self.store.update(PODS, key_of(pod), report)

    def _count(self, pod: Object) -> None:
        """Count an end, as the Job controller, and release the pod."""
        if not self.counts_ends or TRACKING not in pod["metadata"].get("finalizers", []):
            return

        def drop(found: Object) -> None:
            found["metadata"]["finalizers"] = [
                n for n in found["metadata"]["finalizers"] if n != TRACKING
            ]

        self.store.update(PODS, key_of(pod), drop)
        owner = next(iter(pod["metadata"].get("ownerReferences", [])), None)
        job = next(
            (j for j in self.store.find(JOBS) if owner and j["metadata"]["uid"] == owner["uid"]),
            None,
        )
        if job is not None and "deletionTimestamp" not in job["metadata"] and finished(pod):
            self.store.update(
                JOBS, key_of(job), lambda j: _conclude(j, pod["status"]["phase"] == "Succeeded")
            )

    def _owner_again(self, pod: Object) -> None:
        for owner in pod["metadata"].get("ownerReferences", []):
            for job in self.store.find(JOBS):
                if (
                    job["metadata"]["uid"] == owner["uid"]
                    and "deletionTimestamp" in job["metadata"]
                ):
                    self._deleting(job)

    def event(
        self,
        obj: Object,
        reason: str,
        message: str,
        *,
        type: str = "Warning",
        source: str = "kubelet",
    ) -> Object:
        """Create an event that a part of the cluster reports about an object."""
        meta, now = obj["metadata"], stamp()
        involved = {
            name: meta[name]
            for name in ("name", "namespace", "uid", "resourceVersion")
            if name in meta
        }
        event = {
            "metadata": {},
            "involvedObject": {"kind": obj["kind"], "apiVersion": obj["apiVersion"], **involved},
            **{"reason": reason, "message": message, "type": type, "count": 1},
            **{"firstTimestamp": now, "lastTimestamp": now, "eventTime": None},
            **{
                "source": {"component": source},
                "reportingComponent": source,
                "reportingInstance": "",
            },
        }
        name = f"{meta['name'][:200]}.{CHANCE.getrandbits(64):016x}"
        return self.store.create(EVENTS, (meta.get("namespace", "default"), name), event)

    def lose_node(self, node: str) -> None:
        """Let the node stop responding: its pods stay Running, but not ready, and their kubelet
        does nothing.
        """
        self.lost_nodes.add(node)
        for pod in self.store.find(PODS, lambda p: p["spec"].get("nodeName") == node):
            self.store.update(PODS, key_of(pod), _unready)


def _disown(pod: Object) -> None:
    pod["metadata"].pop("ownerReferences", None)


def _unready(found: Object) -> None:
    kept = [c for c in found.setdefault("status", {}).get("conditions", []) if c["type"] != "Ready"]
    found["status"]["conditions"] = [
        *kept,
        {"type": "Ready", "status": "False", "lastTransitionTime": stamp()},
    ]


def _conclude(job: Object, succeeded: bool) -> None:
    status, now = job["status"], stamp()
    steps = ("SuccessCriteriaMet", "Complete") if succeeded else ("FailureTarget", "Failed")
    reason = "CompletionsReached" if succeeded else "BackoffLimitExceeded"
    text = (
        "Reached expected number of succeeded pods"
        if succeeded
        else "Job has reached the specified backoff limit"
    )
    status["conditions"] = [
        {
            **{"type": step, "status": "True", "reason": reason, "message": text},
            **{"lastProbeTime": now, "lastTransitionTime": now},
        }
        for step in steps
    ]
    status.update({"succeeded" if succeeded else "failed": 1, "ready": 0, "terminating": 0})
    status.pop("active", None)
    if succeeded:
        status["completionTime"] = now
