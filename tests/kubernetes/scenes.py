"""Every condition that the test cluster can produce, and how.

``record_conditions`` plays and records them.

The names are those of the files in ``recorded/``. A scene gets a Job of its own in a namespace of
its own and returns when the condition is there to be seen. Those in ``ALONE`` change the cluster
itself and are played one at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.cluster.kwok import FAKE
from tests.kubernetes.provoking import (
    CHILD_EATS,
    EATS,
    NAME,
    NO_IMAGE,
    SAYS_SHUTDOWN,
    WAITS,
    Scene,
    job,
    main,
)

Play = Callable[[Scene], None]
ABSURD = {"resources": {"requests": {"memory": "900Gi"}, "limits": {"memory": "900Gi"}}}


def _ends(code: str, **changes: Any) -> Play:
    def play(scene: Scene) -> None:
        scene.start(code, **changes)
        scene.ended()

    return play


def _waits(*reasons: str, **changes: Any) -> Play:
    def play(scene: Scene) -> None:
        scene.start(**changes)
        scene.waits(*reasons)

    return play


def _stopped(code: str, act: Callable[[Scene], None], **changes: Any) -> Play:
    """A crawler that executes, something that happens to it, and its end."""

    def play(scene: Scene) -> None:
        scene.start(code, **changes)
        scene.ready()
        act(scene)
        scene.ended()

    return play


def _no_pod(
    prepare: Callable[[Scene], None] | None = None, seconds: float = 60, **changes: Any
) -> Play:
    """A Job whose pod the API server refuses."""

    def play(scene: Scene) -> None:
        if prepare is not None:
            prepare(scene)
        scene.start(**changes)
        scene.until(
            lambda o: [e for e in o["events"] if e["reason"] == "FailedCreate"],
            "FailedCreate",
            seconds,
        )

    return play


def _quota(scene: Scene) -> None:
    scene.cluster.quota(scene.namespace, "crawls", {"pods": "0"})


def _limit_range(scene: Scene) -> None:
    limit = {"type": "Container", "max": {"memory": "64Mi"}}
    path = f"/api/v1/namespaces/{scene.namespace}/limitranges"
    scene.cluster.admin.post(path, {"metadata": {"name": "crawls"}, "spec": {"limits": [limit]}})


def _restricted(scene: Scene) -> None:
    level = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    scene.cluster.admin.patch(f"/api/v1/namespaces/{scene.namespace}", level)
    pod = {"metadata": {"name": "probe"}, "spec": job(WAITS)["spec"]["template"]["spec"]}
    scene.until(
        lambda _: scene.cluster.refuses(scene.pods, pod, "violates PodSecurity"),
        "the level in force",
    )


def _running(scene: Scene) -> None:
    scene.start()
    scene.running()


def _suspended(**changes: Any) -> Play:
    def play(scene: Scene) -> None:
        scene.start(job_spec={"suspend": True}, **changes)
        scene.until(lambda o: o["job"]["status"]["conditions"], "the condition Suspended")

    return play


def _suspended_later(scene: Scene) -> None:
    scene.cluster.admin.patch(f"{scene.jobs}/{NAME}", {"spec": {"suspend": True}})


def _unschedulable(scene: Scene) -> None:
    scene.start(container=ABSURD)
    scene.until(lambda o: _condition(o, "PodScheduled")["status"] == "False", "Unschedulable")


def _condition(objects: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = next(
        c for c in objects["pods"][0]["status"]["conditions"] if c["type"] == kind
    )
    return found


def _gated(scene: Scene) -> None:
    scene.start(pod_spec={"schedulingGates": [{"name": "example.com/budget"}]})
    scene.until(
        lambda o: _condition(o, "PodScheduled")["reason"] == "SchedulingGated", "SchedulingGated"
    )


def _unschedulable_deleted(scene: Scene) -> None:
    _unschedulable(scene)
    scene.delete_pod()
    scene.until(lambda o: o["pods"][0]["metadata"]["deletionTimestamp"], "the deletion")


def _suspended_before_node(scene: Scene) -> None:
    """Do what a queue does that reclaims capacity: the pod had no node yet."""
    scene.start(container=ABSURD, job_labels={"kueue.x-k8s.io/queue-name": "night"})
    scene.until(lambda o: _condition(o, "PodScheduled")["status"] == "False", "Unschedulable")
    _suspended_later(scene)
    scene.until(lambda o: o["pods"][0]["metadata"]["deletionTimestamp"], "the deletion")


def _resumed_before_node(scene: Scene) -> None:
    _suspended_before_node(scene)
    scene.cluster.admin.patch(f"{scene.jobs}/{NAME}", {"spec": {"suspend": False}})
    scene.until(lambda o: o["job"]["status"]["startTime"], "the resumption")


def _forbidden_sysctl(scene: Scene) -> None:
    scene.start(
        pod_spec={"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "65536"}]}}
    )
    scene.until(lambda o: o["pods"][0]["status"]["phase"] == "Failed", "the node's refusal")


def _outlived(scene: Scene) -> None:
    """A container next to the crawler that is not told that the crawler has ended."""
    proxy = job("import time; time.sleep(3600)")["spec"]["template"]["spec"]["containers"][0]
    scene.start("told('finished', 0)", pod_spec={"beside": [proxy | {"name": "mesh-proxy"}]})
    scene.until(
        lambda o: "terminated" in main(o)["state"] and o["pods"][0]["status"]["phase"] == "Running",
        "ended",
    )


def _preparing(scene: Scene) -> None:
    volumes = [{"name": "lists", "configMap": {"name": "block-lists"}}]
    mounts = {"volumeMounts": [{"name": "lists", "mountPath": "/lists"}]}
    scene.start(pod_spec={"volumes": volumes}, container=mounts)
    scene.until(lambda o: [e for e in o["events"] if e["reason"] == "FailedMount"], "FailedMount")


def _init(scene: Scene) -> None:
    init = job("import sys; print('no lists today'); sys.exit(5)")["spec"]["template"]["spec"][
        "containers"
    ][0]
    init |= {"name": "fetch-lists", "terminationMessagePolicy": "FallbackToLogsOnError"}
    scene.start(pod_spec={"initContainers": [init]})
    scene.until(lambda o: o["pods"][0]["status"]["phase"] == "Failed", "Failed")


def _refused(scene: Scene) -> None:
    node = scene.cluster.node_names[0]
    scene.start(pod_spec={"nodeName": node}, container={"resources": {"requests": {"cpu": "99"}}})
    scene.until(lambda o: o["pods"][0]["status"]["phase"] == "Failed", "the node's refusal")


def _beside(scene: Scene) -> None:
    shipper = job("import sys, time; time.sleep(1); sys.exit(1)")["spec"]["template"]["spec"][
        "containers"
    ][0]
    scene.start("sys.exit(0)", pod_spec={"beside": [shipper | {"name": "log-shipper"}]})
    scene.until(lambda o: o["pods"][0]["status"]["phase"] == "Failed", "Failed")


def _beside_finished(scene: Scene) -> None:
    shipper = job("import sys, time; time.sleep(1); sys.exit(1)")["spec"]["template"]["spec"][
        "containers"
    ][0]
    scene.start("told('finished', 0)", pod_spec={"beside": [shipper | {"name": "log-shipper"}]})
    scene.until(lambda o: o["pods"][0]["status"]["phase"] == "Failed", "Failed")


def _big_files(scene: Scene) -> None:
    volumes = [{"name": "files", "emptyDir": {"sizeLimit": "4Mi"}}]
    mounts = {"volumeMounts": [{"name": "files", "mountPath": "/files"}]}
    code = "open('/files/big', 'wb').write(bytes(32 << 20))\n" + WAITS
    scene.start(code, pod_spec={"volumes": volumes}, container=mounts)
    scene.until(lambda o: o["pods"][0]["status"].get("reason") == "Evicted", "Evicted", 150)


def _job_deadline(scene: Scene) -> None:
    scene.start("signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n" + WAITS)
    scene.ready()
    scene.cluster.admin.patch(f"{scene.jobs}/{NAME}", {"spec": {"activeDeadlineSeconds": 1}})
    scene.ended()


def _job_deadline_no_pod(scene: Scene) -> None:
    _quota(scene)
    scene.start(job_spec={"activeDeadlineSeconds": 3})
    scene.until(
        lambda o: [c for c in o["job"]["status"]["conditions"] if c["type"] == "Failed"],
        "Failed",
        150,
    )


def _pod_deadline(scene: Scene) -> None:
    # It counts from the kubelet's first poll of the pod, and the container must be executing by
    # then.
    scene.start(pod_spec={"activeDeadlineSeconds": 12})
    scene.until(
        lambda o: o["pods"][0]["status"].get("reason") == "DeadlineExceeded",
        "DeadlineExceeded",
        150,
    )


def _failed_no_pod(code: str, **changes: Any) -> Play:
    def play(scene: Scene) -> None:
        scene.start(code, **changes)
        scene.ended()
        ends = ("Failed", "Complete")
        scene.until(
            lambda o: [c for c in o["job"]["status"]["conditions"] if c["type"] in ends],
            "the Job's end",
        )
        scene.delete_pod()
        scene.release()
        scene.until(lambda o: not o["pods"], "no pod")

    return play


def _leaving(scene: Scene) -> None:
    code = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAITS
    scene.start(code, grace=30)
    scene.ready()


def _stopping_slowly(scene: Scene) -> None:
    _leaving(scene)
    scene.stop()
    scene.until(lambda o: o["pods"][0]["metadata"]["deletionTimestamp"], "the deletion")


def _forced_slowly(scene: Scene) -> None:
    """A forced stop after a plain one: the server shortens the grace period, and the node keeps the
    one with which it began.
    """
    _stopping_slowly(scene)
    admin, name = scene.cluster.admin, scene.objects()["pods"][0]["metadata"]["name"]
    scene.until(
        lambda _: admin.is_killing(scene.namespace, name), "the node's beginning to end the pod"
    )
    scene.delete_pod(grace=1)
    time.sleep(6)  # a node that used the shorter one would have ended it after 2


def _deleted_slowly(scene: Scene) -> None:
    _leaving(scene)
    scene.delete_pod()
    scene.until(lambda o: o["pods"][0]["metadata"]["deletionTimestamp"], "the deletion")


def _deleted_before_start(scene: Scene) -> None:
    scene.start(container={"image": NO_IMAGE})
    scene.waits("ErrImagePull", "ImagePullBackOff")
    scene.delete_pod()
    scene.until(lambda o: o["pods"][0]["status"]["phase"] == "Failed", "Failed")


def _orphaned(scene: Scene) -> None:
    _running(scene)
    scene.first_uid = scene.job()["metadata"]["uid"]
    scene.delete_job("Orphan")
    scene.until(lambda o: o["job"] is None and o["pods"], "an orphan")


def _recreated(scene: Scene) -> None:
    scene.start("sys.exit(0)")
    scene.ended()
    scene.first_uid = scene.job()["metadata"]["uid"]
    scene.delete_job("Background")
    scene.until(lambda o: o["pods"][0]["metadata"]["deletionTimestamp"], "the deletion")
    scene.release()
    scene.until(lambda o: o["job"] is None and not o["pods"], "nothing")
    _running(scene)


def _held_job(scene: Scene) -> None:
    """A Job without a pod that a person deleted, and that somebody else's finalizer keeps."""
    scene.start(job_finalizers=["example.com/audit"], grace=1)
    scene.ready()
    scene.first_uid = scene.job()["metadata"]["uid"]
    scene.delete_job()
    scene.ended()
    scene.release()
    scene.until(lambda o: not o["pods"], "no pod")


def _replaced(scene: Scene) -> None:
    """A Job that creates a second pod, unlike ours."""
    scene.start(job_spec={"backoffLimit": 1})
    scene.running()
    scene.delete_pod(1)
    scene.until(lambda o: len(o["pods"]) == 2, "two pods", 150)
    scene.until(lambda o: _running_pods(o) == 1, "the second one runs", 150)


def _running_pods(objects: Mapping[str, Any]) -> int:
    states = [s["state"] for p in objects["pods"] for s in p["status"].get("containerStatuses", [])]
    return sum("running" in state for state in states)


def _secret(name: str) -> dict[str, Any]:
    return {
        "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": name, "key": "token"}}}]
    }


SCENES: dict[str, Play] = {
    # how a crawler ends
    "finished": _ends("told('finished', 0)"),
    "closespider": _ends("told('closespider_itemcount', 0)"),
    "exit-0-silent": _ends("sys.exit(0)"),
    "exit-0-no-runner": _ends("sys.exit(0)", runner=False),
    "exit-1-log": _ends("sys.exit('Traceback: no such site')", runner=False),
    "exit-1-told": _ends("told(None, 1, message='ValueError: no start page')"),
    "exit-3": _ends("told(None, 3)"),
    "exit-4": _ends("told(None, 4, message='CRAWL_ARGS: not JSON')"),
    "exit-11-unasked": _ends("told('shutdown', 11, told_to_stop=True)"),
    "exit-14": _ends("sys.exit(14)", runner=False),
    "exit-17": _ends("sys.exit(17)", runner=False),
    "exit-18": _ends("told(None, 18, own_exit=18)"),
    "exit-137": _ends("sys.exit(137)"),
    "exit-143": _ends("sys.exit(143)"),
    "memusage": _ends("told('memusage_exceeded', 1)"),
    "oom": _ends(EATS, memory="64Mi"),
    "oom-child-exit-4": _ends(CHILD_EATS + "sys.exit(4)", memory="64Mi"),
    "oom-child-exit-0": _ends(CHILD_EATS + "sys.exit(0)", memory="64Mi"),
    "oom-child-finished": _ends(CHILD_EATS + "told('finished', 0)", memory="64Mi"),
    "start-error": _ends("", container={"command": ["/no/such/program"]}),
    "init-failed": _init,
    "beside-failed": _beside,
    "beside-failed-finished": _beside_finished,
    "local-storage": _big_files,
    "node-refused": _refused,
    "refused-sysctl": _forbidden_sysctl,
    "outlived": _outlived,
    "job-deadline": _job_deadline,
    "job-deadline-no-pod": _job_deadline_no_pod,
    "pod-deadline": _pod_deadline,
    "job-complete-no-pod": _failed_no_pod("told('finished', 0)"),
    "job-complete-no-pod-no-runner": _failed_no_pod("sys.exit(0)", runner=False),
    "job-failed-no-pod": _failed_no_pod("sys.exit(1)"),
    # stops and deletions
    "stop-handled": _stopped(SAYS_SHUTDOWN.format(code=11), Scene.stop),
    "stop-exit-0": _stopped(SAYS_SHUTDOWN.format(code=0), Scene.stop),
    "stop-ignored": _stopped(WAITS, Scene.stop, grace=2),
    "stop-slow": _stopping_slowly,
    "stop-slow-forced": _forced_slowly,
    "pod-deleted": _stopped(SAYS_SHUTDOWN.format(code=11), Scene.delete_pod),
    "pod-deleted-exit-0": _stopped(
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n" + WAITS,
        Scene.delete_pod,
        runner=False,
    ),
    "pod-deleted-slow": _deleted_slowly,
    "pod-deleted-before-node": _unschedulable_deleted,
    "pod-deleted-before-start": _deleted_before_start,
    "job-deleted": _stopped(SAYS_SHUTDOWN.format(code=11), Scene.delete_job),
    "job-suspended-running": _stopped(SAYS_SHUTDOWN.format(code=11), _suspended_later),
    "evicted-api": _stopped(SAYS_SHUTDOWN.format(code=11), Scene.evict),
    "evicted-api-exit-0": _stopped(
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n" + WAITS, Scene.evict, runner=False
    ),
    "job-orphaned": _orphaned,
    "job-recreated": _recreated,
    "job-held": _held_job,
    "two-pods": _replaced,
    # waiting
    "running": _running,
    "suspended": _suspended(),
    "suspended-before-node": _suspended_before_node,
    "resumed-before-node": _resumed_before_node,
    "suspended-queue": _suspended(job_labels={"kueue.x-k8s.io/queue-name": "night"}),
    "quota": _no_pod(_quota),
    "service-account": _no_pod(pod_spec={"serviceAccountName": "crawl"}),
    "limit-range": _no_pod(_limit_range),
    "pod-security": _no_pod(_restricted),
    "unschedulable": _unschedulable,
    "gated": _gated,
    "preparing": _preparing,
    "image-pull": _waits("ErrImagePull", container={"image": NO_IMAGE}),
    "image-back-off": _waits("ImagePullBackOff", container={"image": NO_IMAGE}),
    "image-never": _waits(
        "ErrImageNeverPull", container={"image": NO_IMAGE, "imagePullPolicy": "Never"}
    ),
    "image-name": _waits("InvalidImageName", container={"image": "crawl.test/UPPER:1"}),
    "secret-missing": _waits("CreateContainerConfigError", container=_secret("shop-token")),
    "root-image": _waits(
        "CreateContainerConfigError", pod_spec={"securityContext": {"runAsNonRoot": True}}
    ),
}


# --- one at a time: these change the cluster


def _no_controller(scene: Scene) -> None:
    scene.cluster.freeze("kube-controller-manager")
    scene.extra.append(lambda: scene.cluster.thaw("kube-controller-manager"))
    scene.start()


def _no_scheduler(scene: Scene) -> None:
    scene.cluster.freeze("kube-scheduler")
    scene.extra.append(lambda: scene.cluster.thaw("kube-scheduler"))
    scene.start()
    scene.until(lambda o: o["pods"], "a pod")


def _namespace_ending(scene: Scene) -> None:
    _running(scene)
    scene.cluster.admin.delete(f"/api/v1/namespaces/{scene.namespace}")
    scene.ended()


def _preempted(scene: Scene) -> None:
    admin, tolerations = scene.cluster.admin, [{"key": key, "operator": "Exists"} for key in FAKE]
    kind = {"metadata": {"name": "crawl-urgent"}, "value": 1000, "globalDefault": False}
    admin.ensure("/apis/scheduling.k8s.io/v1/priorityclasses", kind)
    wants = {"resources": {"requests": {"cpu": "20"}}}
    scene.start(kwok=True, container=wants)
    scene.running()
    box = {"name": "urgent", "image": "crawl.test/python:1", **wants}
    spec = {
        "priorityClassName": "crawl-urgent",
        "nodeSelector": FAKE,
        "tolerations": tolerations,
        "containers": [box],
    }
    admin.post(
        scene.pods,
        {"metadata": {"name": "urgent"}, "spec": spec | {"terminationGracePeriodSeconds": 0}},
    )
    scene.extra.append(
        lambda: admin.delete(f"{scene.pods}/urgent", {"gracePeriodSeconds": 0}) and None
    )
    scene.ended()


def _tainted(scene: Scene) -> None:
    scene.start(kwok=True)
    scene.running()
    node = f"/api/v1/nodes/{_kwok_node(scene.cluster)}"
    before = scene.cluster.admin.get(node)["spec"].get("taints", [])
    taint = {"key": "example.com/repair", "effect": "NoExecute", "value": "today"}
    scene.cluster.admin.patch(node, {"spec": {"taints": [*before, taint]}})
    scene.extra.append(
        lambda: scene.cluster.admin.patch(node, {"spec": {"taints": before}}) and None
    )
    scene.ended()


def _kwok_node(cluster: Cluster) -> str:
    assert cluster.kwok is not None
    return cluster.kwok.nodes[0]


def _impatient() -> list[dict[str, Any]]:
    """Return tolerations of a pod that its lost node keeps for two seconds."""
    keys = ("node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready")
    return [
        *({"key": key, "operator": "Exists"} for key in FAKE),
        *(
            {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 2}
            for key in keys
        ),
    ]


def _lose_node(scene: Scene) -> None:
    scene.cluster.kill("kwok")
    scene.extra.append(lambda: scene.cluster.start_part("kwok"))
    scene.until(lambda o: _condition(o, "Ready")["status"] == "False", "a silent node", 120)


def _node_silent(scene: Scene) -> None:
    scene.start(kwok=True)
    scene.running()
    _lose_node(scene)


def _node_lost(scene: Scene) -> None:
    scene.start(kwok=True, pod_spec={"tolerations": _impatient()})
    scene.running()
    _lose_node(scene)
    scene.until(lambda o: o["pods"][0]["metadata"]["deletionTimestamp"], "the taint manager", 150)


def _node_lost_back(scene: Scene) -> None:
    """The node is cut off for so long that its pod is deleted; then it returns, long after the end
    of the container.
    """
    tolerations = [t for t in _impatient() if t["key"] not in FAKE]
    scene.start(pod_spec={"tolerations": tolerations})
    scene.running()
    node = scene.cluster.node_names[0]
    scene.cluster.kill(node)
    scene.until(lambda o: o["pods"][0]["metadata"]["deletionTimestamp"], "the taint manager", 120)
    scene.cluster.start_part(node)
    scene.ended()


def _node_deleted(scene: Scene) -> None:
    scene.start(kwok=True)
    scene.running()
    name = _kwok_node(scene.cluster)
    scene.cluster.admin.delete(f"/api/v1/nodes/{name}")
    kwok = scene.cluster.kwok
    assert kwok is not None
    scene.extra.append(lambda: kwok.start(scene.cluster.admin, tainted=True))
    scene.extra.append(kwok.part.kill)
    scene.until(lambda o: o["pods"][0]["status"]["phase"] == "Failed", "the pod collector", 120)


ALONE: dict[str, Play] = {
    "no-controller": _no_controller,
    "no-scheduler": _no_scheduler,
    "namespace-ending": _namespace_ending,
    "preempted": _preempted,
    "tainted": _tainted,
    "node-silent": _node_silent,
    "node-lost": _node_lost,
    "node-deleted": _node_deleted,
    "node-lost-back": _node_lost_back,
}

#: Conditions that change into others by themselves, and are recorded at once.
PASSING = (
    "image-pull",
    "image-back-off",
    "preparing",
    "stop-slow",
    "stop-slow-forced",
    "pod-deleted-slow",
    "two-pods",
    "node-lost",
    "suspended-before-node",
    "resumed-before-node",
)

#: What the recording adds to the task in the database, and the seconds between the condition and
#: the poll.
TASK: Mapping[str, Mapping[str, Any]] = {
    "stop-handled": {"stopping": True},
    "stop-exit-0": {"stopping": True},
    "stop-ignored": {"stopping": True},
    "stop-slow": {"stopping": True},
    "stop-slow-forced": {"stopping": True},
}
LATER_S: Mapping[str, int] = {"no-controller": 90, "no-scheduler": 90, "job-held": 60}
