"""Pods that carry our finalizer, and removing it without any of our services.

Usually the worker takes the finalizer away once an end is committed. This is for an administrator when that will not
happen any more: the services are gone, the namespace shall go, or their right to patch pods went first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.client.errors import Conflict, NotFound
from crawler_lifecycle.clusters.kubernetes.client.objects import Pod
from crawler_lifecycle.clusters.kubernetes.looks.predicates import ended, ended_at, number, sidecar_still_runs


@dataclass(frozen=True, slots=True)
class HeldPod:
    """A pod with our finalizer."""

    name: str
    uid: str
    run_id: int | None
    task_index: int | None
    attempt: int | None
    phase: str
    node: str | None
    ended_at: datetime | None
    deleted_at: datetime | None
    """When its deletion was asked for (with the grace that it got)."""
    over: bool
    """Whether the crawler in it has ended."""
    outlived: bool
    """Whether a container beside the crawler runs on all the same."""

    @property
    def waits(self) -> bool:
        """Whether our finalizer is all that it waits for, or soon will be: it has ended, or is being deleted."""
        return self.over or self.deleted_at is not None

    def since(self) -> datetime | None:
        """Since when it waits, as far as the cluster tells."""
        return self.ended_at or self.deleted_at


def list_held(api: Api, *, run_id: int | None = None) -> list[HeldPod]:
    """Every pod of the namespace that has our finalizer, in the order of run, task and attempt.

    Without ``run_id`` no label is asked for: a pod whose labels somebody took away is held all the same. Raises
    ``ApiError``.
    """
    selector = None if run_id is None else labels.of_run(run_id, settled=None)
    found = [_held(pod) for pod in api.listing(api.pods_path(), Pod, labels=selector).items if _is_held(pod)]
    return sorted(found, key=lambda h: (h.run_id or 0, h.task_index or 0, h.attempt or 0, h.name))


def _is_held(pod: Pod) -> bool:
    return labels.FINALIZER in pod.metadata.finalizers


def _held(pod: Pod) -> HeldPod:
    meta = pod.metadata
    return HeldPod(
        name=meta.name,
        uid=meta.uid,
        run_id=number(meta.labels.get(labels.RUN)),
        task_index=number(meta.labels.get(labels.TASK)),
        attempt=number(meta.labels.get(labels.ATTEMPT)),
        phase=pod.status.phase or "Unknown",
        node=pod.spec.node_name,
        ended_at=ended_at(pod),
        deleted_at=meta.deletion_timestamp,
        over=ended(pod),
        outlived=sidecar_still_runs(pod),
    )


def remove_finalizer(api: Api, pod: HeldPod) -> bool:
    """Take our finalizer from this pod and leave those of others; whether it was still there. What outlived its crawler
    is ended.

    Another pod under the name is left alone. Raises ``ApiError``.
    """
    try:
        api.patch(api.pods_path(pod.name), removal_patch(pod.uid, end=pod.outlived), kind="strategic")
    except (NotFound, Conflict):
        return False
    return True


def removal_patch(uid: str, *, end: bool = False, **metadata: object) -> dict[str, object]:
    """The strategic patch by which our finalizer leaves the pod with this uid, and those of others stay.

    ``end``: and by which its node ends it, with its own grace. Unlike a deletion that leaves its record and log.
    """
    meta = {"uid": uid, "$deleteFromPrimitiveList/finalizers": [labels.FINALIZER], **metadata}
    return {"metadata": meta, **({"spec": {"activeDeadlineSeconds": 1}} if end else {})}


def waiting_longer_than(pods: Sequence[HeldPod], now: datetime, longer_than_s: float) -> list[HeldPod]:
    """Those that wait for longer than this: somebody should have let go of them."""
    return [
        pod
        for pod in pods
        if pod.waits and (since := pod.since()) is not None and (now - since).total_seconds() > longer_than_s
    ]
