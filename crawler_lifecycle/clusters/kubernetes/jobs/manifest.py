"""The manifest of one task's Job: plain data, the same for every try of a deployment
(docs/kubernetes.md).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from crawler_lifecycle.clusters.kubernetes import labels, rbac
from crawler_lifecycle.clusters.kubernetes.files import layout
from crawler_lifecycle.domain.code import Code
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition, CrawlerKind
from crawler_lifecycle.domain.crawlers.pod import ReservedNames
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.names import cluster_name
from crawler_lifecycle.ports.runs import Deployment, QueuedTask
from crawler_lifecycle.settings import ClusterSettings

from .container import (
    Part,
    TaskVariables,
    escaped,
    resources_beside,
    resources_of,
    scratch_of,
    shm_of,
    variables,
)

#: The maximum size of a manifest in bytes. A page of 500 Jobs, with the fields that the server
#: adds, must fit into the longest response that we read (``transport.ANSWER_MAX``: 131 KiB for each
#: Job). The same holds for pods, which repeat the template of their Job.
MANIFEST_MAX = 112 * 1024
#: Seconds by which the cluster's own limits exceed ours: they take effect only when none of our
#: services runs.
BACKSTOP_S = 3600
#: Seconds added to the Job's time limit, which includes the wait for capacity. Our own time limit
#: does not include this wait.
WAIT_S = 7 * 86_400
#: Seconds for which an ended Job waits for us to record its end. After that, it is kept for
#: ``job_ttl_s``.
UNSETTLED_S = 7 * 86_400

#: Annotation: the time when a scheduled run was due.
DUE_AT = f"{labels.DOMAIN}/due-at"
_MAIN_CONTAINER = "kubectl.kubernetes.io/default-container"
_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}\Z")


def job_for(
    deployment: Deployment,
    crawler: CrawlerDefinition,
    task: QueuedTask,
    settings: ClusterSettings,
    *,
    public: Mapping[str, str] = MappingProxyType({}),
    secret_names: Sequence[str] = (),
) -> Part:
    """Return the Job of one task.

    ``public`` are variables of this task in addition to the contract. The values of the variables
    ``secret_names`` come from the task's own Secret (``secret_for``). Raises ``InvalidRequest``,
    which names the field, the value and the fix.
    """
    # With an empty prefix, this check accepts every ``env:NAME``. ``variables`` refuses all of them
    # on Kubernetes.
    owned = ReservedNames(settings.volume_claim, frozenset(settings.pull_secrets), env_prefix="")
    owned.check(crawler.kubernetes, crawler.secrets)
    _check_account(crawler.kubernetes.service_account)
    identity = identity_of(deployment, crawler, task)
    options = crawler.kubernetes
    name = cluster_name(deployment.run_id, task.index, task.attempt)
    told = {} if options.runner else {labels.RUNNER: "false"}
    code = deployment.code or Code(None, crawler.version, crawler.commit)
    words = {labels.CODE: code.digest, labels.VERSION: code.version, labels.COMMIT: code.commit}
    told |= {label: word for label, word in words.items() if word}
    annotations = {labels.SPEC_HASH: spec_hash(deployment, crawler, task)}
    if deployment.record:
        annotations[labels.RECORD] = json.dumps(deployment.record, sort_keys=True)
    if deployment.due_at is not None:
        annotations[DUE_AT] = deployment.due_at.isoformat()
    queue = {} if (held_in := queue_of(deployment, crawler)) is None else {labels.QUEUE: held_in}
    if queue and deployment.priority in settings.queue_priority_classes:
        queue[labels.QUEUE_PRIORITY] = settings.queue_priority_classes[deployment.priority]
    template = {
        "metadata": {
            "labels": {**options.labels, **identity},
            "annotations": {**options.annotations, _MAIN_CONTAINER: labels.CONTAINER, **told},
            "finalizers": [labels.FINALIZER],
        },
        "spec": _pod(
            deployment, crawler, task, settings, TaskVariables(public, name, secret_names)
        ),
    }
    job: dict[str, Any] = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "labels": {**options.labels, **identity, **queue},
            "annotations": {**options.annotations, **annotations, **told},
        },
        "spec": {
            **_rules(deployment),
            **({"suspend": True} if queue else {}),
            "template": template,
        },
    }
    _check_text(job)
    return job


def _check_account(name: str | None) -> None:
    """Raise ``InvalidRequest`` for an account that belongs to our services: a cloud may give the
    pods of this account further credentials, in addition to the account's token.
    """
    if name in (*rbac.COMPONENTS, *rbac.RIGHTLESS):
        raise InvalidRequest(
            f"kubernetes.service_account: {name!r} is an account of this service; give one that "
            "was made for crawls"
        )


def queue_of(deployment: Deployment, crawler: CrawlerDefinition) -> str | None:
    """Return the queue (Kueue's LocalQueue) that holds the Jobs: the crawler's, else its pool's,
    else ``None``.
    """
    return crawler.kubernetes.queue or deployment.queue


def _rules(deployment: Deployment) -> Part:
    """Return the rules for the Job controller. It must never create a second pod.

    There is no ``podFailurePolicy``, because such a policy could make the Job replace a pod that
    the cluster removed, and the new pod would not be one of our attempts. ``podReplacementPolicy``
    keeps the Job open until the pod has really ended.
    """
    found: Part = {
        "completions": 1,
        "parallelism": 1,
        "backoffLimit": 0,
        "podReplacementPolicy": "Failed",
        "ttlSecondsAfterFinished": UNSETTLED_S,
    }
    longest_s = _longest(deployment)
    if longest_s is not None:
        wait_s = deployment.limits.start_timeout_s or WAIT_S
        found["activeDeadlineSeconds"] = math.ceil(longest_s + wait_s)
    return found


def secret_for(job_name: str, job_uid: str, values: Mapping[str, str]) -> Part:
    """Return the Secret with the variables that only this task may know.

    The cluster removes it with its Job.
    """
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job_name, "uid": job_uid}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": job_name,
            "labels": {labels.MANAGED_BY: labels.MANAGER},
            "ownerReferences": [{**owner, "controller": False, "blockOwnerDeletion": False}],
        },
        "immutable": True,
        "type": "Opaque",
        "stringData": dict(values),
    }


def spec_hash(deployment: Deployment, crawler: CrawlerDefinition, task: QueuedTask) -> str:
    """Return the hash of the request for the Job, excluding details that depend on this version or
    the catalogue.

    A second try must recognise the Job that the first try created. But the two tries may come from
    replicas of different versions, and the catalogue may change between them. So values that equal
    the catalogue's defaults are left out.
    """
    defaults = {name: argument.default for name, argument in crawler.args.items()}
    asked = {
        "run": str(deployment.run),
        "attempt": task.attempt,
        "index": task.index,
        "task": task.task_id,
        "crawler": deployment.crawler,
        "args": {k: v for k, v in task.args.items() if defaults.get(k) != v},
        "settings": {k: v for k, v in deployment.settings.items() if crawler.settings.get(k) != v},
        "scheduled": deployment.scheduled,
        "due_at": None if deployment.due_at is None else deployment.due_at.timestamp(),
    }
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:40]


def identity_of(
    deployment: Deployment, crawler: CrawlerDefinition, task: QueuedTask
) -> dict[str, str]:
    """Return the labels that identify both the Job and its pod."""
    return {
        labels.MANAGED_BY: labels.MANAGER,
        labels.RUN: str(deployment.run_id),
        labels.RUN_UID: deployment.run.uid,
        labels.ATTEMPT: str(task.attempt),
        labels.TASK: str(task.index),
        labels.TASK_ID: str(task.task_id),
        labels.CRAWLER: crawler.name,
        labels.TRIGGER: "scheduled" if deployment.scheduled else "onetime",
    }


def _pod(
    deployment: Deployment,
    crawler: CrawlerDefinition,
    task: QueuedTask,
    settings: ClusterSettings,
    given: TaskVariables,
) -> Part:
    """Return the pod's spec. The Pod Security level "restricted" accepts it."""
    options = crawler.kubernetes
    volumes, mounts = _volumes(deployment, crawler, task, settings)
    end_grace_s = layout.end_grace_s(uploads=bool(settings.files_url)) if options.runner else 0
    container: Part = {
        **_program(
            crawler, settings, options.project if deployment.code is None else crawler.project
        ),
        "env": variables(deployment, crawler, task, given, end_grace_s),
        "resources": resources_of(deployment, crawler, shared=settings.volume_claim is not None),
        "volumeMounts": mounts,
        "terminationMessagePath": layout.SUMMARY_FILE,
        # With a runner, a missing summary must stay visible, so the log must not replace it.
        "terminationMessagePolicy": "File" if options.runner else "FallbackToLogsOnError",
        "securityContext": _confined(),
    }
    ids = {"runAsUser": options.user, "runAsGroup": options.user, "fsGroup": options.user}
    pod: Part = {
        "restartPolicy": "Never",
        "serviceAccountName": options.service_account or settings.service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": max(
            1, math.ceil(deployment.limits.stop_grace_s) + end_grace_s
        ),
        "securityContext": {
            "runAsNonRoot": True,
            **(ids if options.run_as == "user" else {}),
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **({"initContainers": _sidecars(crawler)} if options.sidecars else {}),
        "containers": [container],
        "volumes": volumes,
        **_placement(deployment, crawler, task, settings),
    }
    longest_s = _longest(deployment)
    if longest_s is not None:
        pod["activeDeadlineSeconds"] = math.ceil(longest_s)
    return pod


def _confined() -> Part:
    """Return the security context of every container."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
    }


def _sidecars(crawler: CrawlerDefinition) -> list[Part]:
    """Return the sidecar containers of the crawler.

    The node starts them before the crawler and ends them after it.
    """
    options = crawler.kubernetes
    shared = [*_shm_mount(crawler), *(volume.mount() for volume in options.volumes)]
    found = []
    for n, sidecar in enumerate(options.sidecars):
        container: Part = {
            "name": sidecar.name,
            "image": _image(sidecar.image, f"kubernetes.sidecars[{n}].image"),
            "imagePullPolicy": options.pull_policy or _pull_policy(sidecar.image),
            "restartPolicy": "Always",
            "command": [escaped(word) for word in sidecar.command],
            "args": [escaped(word) for word in sidecar.args],
            "env": [
                {"name": k, "value": escaped(v)}
                for k, v in {"HOME": layout.TMP_MOUNT, **sidecar.env}.items()
            ],
            "resources": resources_beside(n, crawler),
            "volumeMounts": [
                {"name": f"{_TMP_VOLUME}-{n}", "mountPath": layout.TMP_MOUNT},
                *shared,
            ],
            "securityContext": _confined(),
        }
        found.append({key: value for key, value in container.items() if value != []})
    return found


def _program(crawler: CrawlerDefinition, settings: ClusterSettings, folder: str | None) -> Part:
    """Return the container's name, image, command and working folder. Raises ``InvalidRequest``.

    ``folder`` is the project's folder in the image or in the package.
    """
    image = crawler.image or settings.image
    if image is None:
        raise InvalidRequest(
            "image: missing; set it in the catalogue, or LIFECYCLE_CLUSTER__IMAGE for all crawlers"
        )
    found: Part = {
        "name": labels.CONTAINER,
        "image": _image(image),
        "imagePullPolicy": crawler.kubernetes.pull_policy or _pull_policy(image),
        "command": [escaped(word) for word in _command(crawler, folder or ".")],
    }
    return found | ({"workingDir": folder} if folder is not None and folder.startswith("/") else {})


def _longest(deployment: Deployment) -> float | None:
    """Return the seconds after which the cluster itself ends a pod; ``None`` when the run has no
    time limit.
    """
    limits = deployment.limits
    return (
        None
        if limits.run_timeout_s is None
        else limits.run_timeout_s + limits.stop_grace_s + BACKSTOP_S
    )


def _placement(
    deployment: Deployment, crawler: CrawlerDefinition, task: QueuedTask, settings: ClusterSettings
) -> Part:
    """Return the fields for node selection, priority and pull secrets, omitting fields without a
    value.
    """
    options = crawler.kubernetes
    general = (
        settings.scheduled_priority_class
        if deployment.scheduled
        else settings.onetime_priority_class
    )
    general = settings.priority_classes.get(deployment.priority, general)
    own = {"matchLabels": {labels.MANAGED_BY: labels.MANAGER, labels.CRAWLER: crawler.name}}
    pull_secrets = dict.fromkeys([*settings.pull_secrets, *options.pull_secrets])
    wanted: Part = {
        "priorityClassName": options.priority_class or general,
        "runtimeClassName": options.runtime_class,
        "nodeSelector": {**options.node_selector, **task.node_selector},
        "tolerations": [toleration.manifest() for toleration in options.tolerations],
        "imagePullSecrets": [{"name": name} for name in pull_secrets],
        "affinity": options.affinity
        if task.avoid_node is None
        else _avoiding(options.affinity, task.avoid_node),
        "topologySpreadConstraints": [
            {"labelSelector": own, **given} for given in options.topology_spread
        ],
        "dnsPolicy": options.dns_policy,
        "dnsConfig": options.dns_config,
    }
    return {key: value for key, value in wanted.items() if value}


def _avoiding(affinity: Mapping[str, Any], node: str) -> dict[str, Any]:
    """Return the affinity with a preference for nodes other than this node. This node is still used
    if no other node fits.
    """
    of_nodes = dict(affinity.get("nodeAffinity") or {})
    other = {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": [node]}]}
    wishes = "preferredDuringSchedulingIgnoredDuringExecution"
    of_nodes[wishes] = [*(of_nodes.get(wishes) or []), {"weight": 100, "preference": other}]
    return {**affinity, "nodeAffinity": of_nodes}


def _command(crawler: CrawlerDefinition, folder: str) -> list[str]:
    """Return the command of the container: our runner around the crawler, or the crawler alone."""
    options = crawler.kubernetes
    if not options.runner:
        if not folder.startswith("/") and folder != ".":
            raise InvalidRequest(
                f"kubernetes.project: {folder!r:.80} is a relative path, which needs our runner; "
                "give an absolute path "
                "in the image"
            )
        return list(crawler.command)
    runner = ["python3", "-I", "-S", layout.RUNNER]
    if crawler.kind is CrawlerKind.SCRAPY:
        return [*runner, "scrapy", f"--project={folder}", f"--spider={crawler.spider_name}"]
    return [*runner, "command", f"--project={folder}", "--", *crawler.command]


def _image(image: str, key: str = "image") -> str:
    digest = "@" not in image or _DIGEST.search(image)
    if not image or len(image) > 1024 or re.search(r"[\s\x00-\x1f]", image) or not digest:
        raise InvalidRequest(
            f"{key}: {image!r:.200} is not a valid image reference; give NAME:TAG, or NAME@sha256: "
            "and its 64 "
            "hexadecimal digits"
        )
    return image


def _pull_policy(image: str) -> str:
    """Return the default pull policy of Kubernetes: a node pulls a digest or tag once, but
    ``latest`` each time.
    """
    if "@" in image:
        return "IfNotPresent"
    _, colon, tag = image.rpartition("/")[2].partition(":")
    return "IfNotPresent" if colon and tag != "latest" else "Always"


def _volumes(
    deployment: Deployment, crawler: CrawlerDefinition, task: QueuedTask, settings: ClusterSettings
) -> tuple[list[Part], list[Part]]:
    """Return the pod's volumes and their mounts: files, state, /tmp, and the volumes from the
    catalogue.
    """
    scratch = scratch_of(crawler)
    if settings.volume_claim is not None:
        data: Part = {"persistentVolumeClaim": {"claimName": settings.volume_claim}}
        files = str(layout.files_path(deployment.run, task.index, task.attempt))
        state = str(layout.state_path(deployment.run, task.index))
    else:
        data = {"emptyDir": {"sizeLimit": scratch}}
        files = "files"
        state = "state"
    more = crawler.kubernetes.volumes
    shm = shm_of(crawler)
    in_memory: Part = {"name": _SHM_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": shm}}
    beside: list[Part] = [
        {"name": f"{_TMP_VOLUME}-{n}", "emptyDir": {"sizeLimit": scratch}}
        for n in range(len(crawler.kubernetes.sidecars))
    ]
    volumes: list[Part] = [
        {"name": layout.DATA_VOLUME, **data},
        {"name": _TMP_VOLUME, "emptyDir": {"sizeLimit": scratch}},
        *([in_memory] if shm else []),
        *beside,
        *({"name": volume.name, **volume.source()} for volume in more),
    ]
    mounts: list[Part] = [
        {"name": layout.DATA_VOLUME, "mountPath": layout.FILES_MOUNT, "subPath": files},
        {"name": layout.DATA_VOLUME, "mountPath": layout.STATE_MOUNT, "subPath": state},
        {"name": _TMP_VOLUME, "mountPath": layout.TMP_MOUNT},
        *_shm_mount(crawler),
        *(volume.mount() for volume in more),
    ]
    return volumes, mounts


def _shm_mount(crawler: CrawlerDefinition) -> list[Part]:
    return [{"name": _SHM_VOLUME, "mountPath": "/dev/shm"}] if crawler.kubernetes.shm else []  # noqa: S108


_TMP_VOLUME = "crawl-tmp"
_SHM_VOLUME = "crawl-shm"


def _check_text(job: Mapping[str, Any]) -> None:
    """Raise ``InvalidRequest`` if a string is not valid Unicode or the Job is too large."""
    try:
        size = _listed(job)
    except UnicodeEncodeError as error:
        around = error.object[max(0, error.start - 20) : error.end + 20]
        raise InvalidRequest(
            f"the Job contains an invalid character near {around!r}; remove it"
        ) from None
    if size > MANIFEST_MAX:
        largest = max(job["spec"]["template"]["spec"]["containers"][0]["env"], key=_listed)
        raise InvalidRequest(
            f"the Job has {size} bytes in a list of the cluster; at most {MANIFEST_MAX} are "
            "allowed. Its largest "
            f"variable is {largest['name']:.80} ({_listed(largest)} bytes). Put long arguments, "
            "settings, or 'env' and "
            "'kubernetes.annotations' of the catalogue into a file that the crawler fetches"
        )


def _listed(part: Mapping[str, Any]) -> int:
    """Return the number of bytes in the API server's JSON, where each ``<``, ``>`` and ``&`` takes
    six.
    """
    text = json.dumps(part, ensure_ascii=False)
    return len(text.encode()) + 5 * sum(map(text.count, "<>&"))
