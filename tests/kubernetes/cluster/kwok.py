"""Nodes without machines: kwok plays the kubelet, and annotations of a pod say what becomes of it.

For states that are hard to provoke with real containers, and for many pods. What a pod does is read
from its annotations, or, where the manifest is not the test's to write, from variables of its first
container:

====================== ===================
=========================================================================== annotation variable
meaning (durations as Go spells them: ``200ms``, ``3s``) ====================== ===================
=========================================================================== crawl.test/run-for
KWOK_RUN_FOR ends by itself after so long; without it, it runs until it is stopped
crawl.test/exit-code KWOK_EXIT_CODE of that end; default 0 crawl.test/reason KWOK_REASON of that end
(``OOMKilled``); default Completed or Error crawl.test/message KWOK_MESSAGE termination message,
also of a stop crawl.test/stop-after KWOK_STOP_AFTER so long after it was deleted it ends; default 0
crawl.test/stop-code KWOK_STOP_CODE with this exit code; default 143 ======================
=================== ===========================================================================

Anything else a test can patch into the pod's status itself: kwok changes a pod only at the moments
above.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.kubernetes.cluster.admin import Admin
from tests.kubernetes.cluster.places import Slots
from tests.kubernetes.cluster.processes import Part, until

DOMAIN = "crawl.test"
#: Marks a node as kwok's; a real kubelet next to it is left alone.
FAKE = {"kwok.x-k8s.io/node": "fake"}

_HEAD = r"""
{{ $a := or .metadata.annotations dict }}
{{ $e := dict }}
{{ range (index .spec.containers 0).env }}{{ $_ := set $e .name (or .value "") }}{{ end }}
{{ $now := Now }}
"""

_RUNNING = r"""
phase: Running
startTime: {{ or .status.startTime $now | Quote }}
conditions:
{{ range (list "PodReadyToStartContainers" "Initialized" "Ready" "ContainersReady") }}
- {type: {{ . }}, status: "True", lastTransitionTime: {{ $now | Quote }}}
{{ end }}
{{ $host := or .spec.hostNetwork false }}
podIP: {{ PodIPWith .spec.nodeName $host .metadata.uid .metadata.name .metadata.namespace | Quote }}
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  imageID: "registry.example/shop@sha256:1a9e1a9e1a9e1a9e1a9e1a9e1a9e1a9e1a9e1a9e1a9e1a9e1a9e1a9e1a9e1a9e"
  containerID: {{ printf "kwok://%s" $.metadata.uid | Quote }}
  ready: true
  started: true
  restartCount: 0
  state: {running: {startedAt: {{ $now | Quote }}}}
{{ end }}
"""

_ENDED = r"""
{{ $code := int CODE }}
{{ $default := "Error" }}{{ if eq $code 0 }}{{ $default = "Completed" }}{{ end }}
{{ $reason := REASON }}
phase: {{ if eq $code 0 }}Succeeded{{ else }}Failed{{ end }}
conditions:
{{ range (list "Ready" "ContainersReady") }}
- {type: {{ . }}, status: "False", reason: PodCompleted, lastTransitionTime: {{ $now | Quote }}}
{{ end }}
containerStatuses:
{{ range $index, $item := .spec.containers }}
{{ $began := $now }}
{{ with $.status.containerStatuses }}
{{ with (index . $index).state.running }}{{ $began = .startedAt }}{{ end }}
{{ end }}
- name: {{ $item.name | Quote }}
  image: {{ $item.image | Quote }}
  imageID: "registry.example/shop@sha256:1a9e1a9e1a9e1a9e1a9e1a9e1a9e1a9e1a9e1a9e1a9e1a9e1a9e1a9e1a9e1a9e"
  containerID: {{ printf "kwok://%s" $.metadata.uid | Quote }}
  ready: false
  started: false
  restartCount: 0
  state:
    running: null
    terminated:
      exitCode: {{ $code }}
      reason: {{ $reason | Quote }}
      message: {{ or (index $a "crawl.test/message") (index $e "KWOK_MESSAGE") "" | Quote }}
      startedAt: {{ $began | Quote }}
      finishedAt: {{ $now | Quote }}
      containerID: {{ printf "kwok://%s" $.metadata.uid | Quote }}
{{ end }}
"""


def _ended(annotation: str, variable: str, default: str, *, by_itself: bool) -> str:
    code = f'(or (index $a "{DOMAIN}/{annotation}") (index $e "{variable}") "{default}")'
    own = f'(or (index $a "{DOMAIN}/reason") (index $e "KWOK_REASON") $default)'
    return _HEAD + _ENDED.replace("CODE", code).replace("REASON", own if by_itself else "$default")


def _said(annotation: str, variable: str) -> str:
    """Return a jq expression: the annotation, else the variable, else nothing."""
    variables = f'[.spec.containers[0].env[]? | select(.name == "{variable}") | .value][0]'
    return f'(.metadata.annotations["{DOMAIN}/{annotation}"] // {variables}) | select(. != null)'


def _is(key: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": "In", "values": list(values)}


def _there(key: str, *, is_: bool = True) -> dict[str, Any]:
    return {"key": key, "operator": "Exists" if is_ else "DoesNotExist"}


def _stage(
    name: str, when: list[dict[str, Any]], then: dict[str, Any], delay: str | None = None
) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "resourceRef": {"apiGroup": "v1", "kind": "Pod"},
        "selector": {"matchExpressions": when},
    }
    spec["next"] = then
    if delay:
        spec["delay"] = {"durationMilliseconds": 0, "durationFrom": {"expressionFrom": delay}}
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": name},
        "spec": spec,
    }


def pod_stages() -> list[dict[str, Any]]:
    """Return the stages of a pod on a kwok node."""
    deleted, kept = (
        _there(".metadata.deletionTimestamp"),
        _there(".metadata.deletionTimestamp", is_=False),
    )
    end = _ended("exit-code", "KWOK_EXIT_CODE", "0", by_itself=True)
    stop = _ended("stop-code", "KWOK_STOP_CODE", "143", by_itself=False)
    phase, run_for = ".status.phase", _said("run-for", "KWOK_RUN_FOR")
    return [
        _stage("pod-start", [kept, _is(phase, "Pending")], {"statusTemplate": _HEAD + _RUNNING}),
        _stage(
            "pod-end",
            [kept, _is(phase, "Running"), _there(run_for)],
            {"statusTemplate": end},
            run_for,
        ),
        _stage(
            "pod-stop",
            [deleted, _is(phase, "Running")],
            {"statusTemplate": stop},
            _said("stop-after", "KWOK_STOP_AFTER"),
        ),
        # Like a kubelet: a pod that never began gets a final phase before the last delete, which
        # ignores finalizers, and happens once.
        _stage(
            "pod-give-up", [deleted, _is(phase, "Pending")], {"statusTemplate": "phase: Failed\n"}
        ),
        _stage(
            "pod-delete",
            [
                deleted,
                _is(phase, "Succeeded", "Failed"),
                _there(".metadata.deletionGracePeriodSeconds | select(. != 0)"),
            ],
            {"delete": True},
        ),
    ]


_NODE_READY = r"""
{{ $now := Now }}
conditions:
{{ range NodeConditions }}
- lastHeartbeatTime: {{ $now | Quote }}
  lastTransitionTime: {{ $.metadata.creationTimestamp | Quote }}
  message: {{ .message | Quote }}
  reason: {{ .reason | Quote }}
  status: {{ .status | Quote }}
  type: {{ .type | Quote }}
{{ end }}
phase: Running
"""


def node_stages() -> list[dict[str, Any]]:
    """Return the stages of a node, which is Ready as long as kwok lives; its lease shows this to
    the node controller.
    """
    ready = '.status.conditions[]? | select(.type == "Ready") | .status'
    stage = _stage(
        "node-ready",
        [{"key": ready, "operator": "NotIn", "values": ["True"]}],
        {"statusTemplate": _NODE_READY},
    )
    stage["spec"]["resourceRef"]["kind"] = "Node"
    return [stage]


class Kwok:
    """``count`` nodes ``<cluster>-kwok<i>``, each with capacity for ``pods`` pods of any size up to
    32 processors.
    """

    def __init__(
        self, places: Slots, bin_: Path, kubeconfig: Path, count: int, *, pods: int = 2000
    ) -> None:
        self.nodes = [f"{places.name}-kwok{number}" for number in range(1, count + 1)]
        self._pods = pods
        config = places.folder / "stages.yaml"
        config.write_text(
            "\n---\n".join(json.dumps(stage, indent=1) for stage in (*node_stages(), *pod_stages()))
        )
        command = [str(bin_ / "kwok"), f"--kubeconfig={kubeconfig}", f"--config={config}"]
        selector = ",".join(f"{key}={value}" for key, value in FAKE.items())
        command += [
            f"--manage-nodes-with-annotation-selector={selector}",
            "--node-lease-duration-seconds=40",
        ]
        self.part = Part("kwok", command, places.folder / "kwok.log")

    def start(self, admin: Admin, *, tainted: bool = False) -> None:
        """Create the nodes and wait until each is ready.

        With ``tainted``, only pods that tolerate kwok's taint can use them.
        """
        self.part.start()
        for name in self.nodes:
            admin.ensure("/api/v1/nodes", self._node(name, tainted=tainted))
        until(lambda: self._ready(admin), f"{len(self.nodes)} ready kwok nodes", 150, [self.part])

    def start_again(self, admin: Admin) -> None:
        """Start it again.

        The leases of its predecessor, which had another identity, would delay it for 40 s.
        """
        for name in self.nodes:
            lease = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{name}"
            if admin.find(lease):
                admin.delete(lease)
        self.part.start()

    def _node(self, name: str, *, tainted: bool) -> dict[str, Any]:
        room = {"cpu": "32", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": str(self._pods)}
        labels = {
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
        }
        taints = [
            {"key": key, "value": value, "effect": "NoSchedule"} for key, value in FAKE.items()
        ]
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "annotations": FAKE, "labels": labels | FAKE},
            "spec": {"taints": taints} if tainted else {},
            "status": {"capacity": room, "allocatable": room},
        }

    def _ready(self, admin: Admin) -> bool:
        return set(self.nodes) <= ready_nodes(admin)


def ready_nodes(admin: Admin) -> set[str]:
    """Return the nodes that are ready and without the node controller's first taints."""
    found = set()
    for node in admin.get("/api/v1/nodes")["items"]:
        conditions = {c["type"]: c["status"] for c in node["status"].get("conditions", [])}
        not_ready = any(
            t["key"].startswith("node.kubernetes.io/") for t in node["spec"].get("taints", [])
        )
        if conditions.get("Ready") == "True" and not not_ready:
            found.add(node["metadata"]["name"])
    return found
