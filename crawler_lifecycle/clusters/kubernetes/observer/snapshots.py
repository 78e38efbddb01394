"""Snapshots: the few fields of a pod or Job by which a change is noticed.

What these words leave out changes nothing that a person or a look would be early for: counters, heartbeats, addresses,
and everything that follows after the pod's own end.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.objects import ContainerStatus, Job, ObjectMeta, Pod
from crawler_lifecycle.clusters.kubernetes.client.odd_values import known_time
from crawler_lifecycle.clusters.kubernetes.looks.predicates import (
    crawler_container,
    ended,
    executing,
    number,
    verdict,
)

from .changes import ENDING, OVER, PENDING, RUNNING, WAITING, Seen, seen

#: The ordinary way of a pod that starts.
_STARTING = frozenset({"ContainerCreating", "PodInitializing"})
#: These follow each other in turns while an image cannot be had: one state, not a change a minute.
_PULLING = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed"}
)


def run_of(metadata: ObjectMeta) -> int | None:
    """The run that an object belongs to; ``None`` when its label names none."""
    return number(metadata.labels.get(labels.RUN))


def pod_seen(pod: Pod) -> Seen | None:
    """Return where a pod stands; ``None`` for one that belongs to no run."""
    run_id = run_of(pod.metadata)
    if run_id is None:
        return None
    job = pod.metadata.controller_uid or ""
    if ended(pod):
        return seen(run_id, OVER, job=job)
    crawler = crawler_container(pod)
    stage, marks = PENDING, []
    if executing(pod):
        stage = RUNNING
    elif marks := sorted(set(_reasons(pod, crawler))):
        stage = WAITING
    return seen(run_id, stage, " ".join([*marks, *_troubles(pod, stage)]), job)


def since(pod: Pod) -> datetime | None:
    """Since when the crawler of a pod executes, by the clock of its node."""
    crawler = crawler_container(pod)
    running = crawler.state.running if crawler is not None else None
    return known_time(running.started_at) if running is not None else None


def job_seen(job: Job) -> Seen | None:
    """Return where a Job stands, as far as its pods do not say it; ``None`` for one that belongs to no run."""
    run_id = run_of(job.metadata)
    if run_id is None:
        return None
    deleting = "deleted" if job.metadata.deletion_timestamp else ""
    if verdict(job):
        return seen(run_id, OVER)
    if verdict(job, final=False):
        return seen(run_id, ENDING, deleting)
    if job.spec.suspend:
        return seen(run_id, WAITING, f"suspended {deleting}".rstrip())
    return seen(run_id, PENDING, deleting)


def _reasons(pod: Pod, crawler: ContainerStatus | None) -> Iterator[str]:
    """Yield why the crawler does not execute yet, where somebody has said so."""
    scheduled = pod.denied("PodScheduled")
    if scheduled is not None:
        yield scheduled.reason or "Unscheduled"
    statuses = [*pod.status.init_container_statuses, *([crawler] if crawler is not None else [])]
    for status in statuses:
        waiting, over = status.state.waiting, status.state.terminated
        if waiting is not None and waiting.reason and waiting.reason not in _STARTING:
            yield "image" if waiting.reason in _PULLING else waiting.reason
        if status is not crawler and over is not None and over.exit_code != 0:
            yield "init"


def _troubles(pod: Pod, stage: str) -> Iterator[str]:
    """Yield what happens to a pod from outside."""
    if pod.metadata.deletion_timestamp is not None:
        yield "deleted"
    if pod.condition("DisruptionTarget") is not None:
        yield "disrupted"
    if stage == RUNNING and pod.denied("Ready") is not None and pod.metadata.deletion_timestamp is None:
        yield "unready"  # nobody probes a crawler: its node does not answer
