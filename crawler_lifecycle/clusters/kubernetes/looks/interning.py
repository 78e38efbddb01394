"""Interning: equal parts of the objects of one reading are one object in memory.

The pods of a run differ by little more than their names: their labels, conditions and containers say the same thousands
of times. Kept as they are decoded, 10,000 Jobs and their pods take 59 MiB; with equal parts shared 26 MiB. Nothing here
changes what an object says, and nobody changes an object afterwards, so that nobody can tell the difference. What each
pod has for itself, as its owner, is left alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec.structs import force_setattr

from crawler_lifecycle.clusters.kubernetes.client.objects import Job, JobStatus, ObjectMeta, Pod, PodStatus

H = TypeVar("H", bound=Hashable)


class Interner:
    """What the objects of one reading have in common. Forget it with the reading; not thread-safe."""

    def __init__(self) -> None:
        known: dict[Any, Any] = {}
        # Bound once and called by ``map``: no Python is executed for the millions of strings of a large run.
        self._one = known.setdefault

    def job(self, job: Job) -> Job:
        """The same Job."""
        self._metadata(job.metadata)
        self._conditions(job.status)
        return job

    def pod(self, pod: Pod) -> Pod:
        """The same pod."""
        self._metadata(pod.metadata)
        self._conditions(pod.status)
        if pod.spec.containers:
            force_setattr(pod.spec, "containers", self._each(pod.spec.containers))
        return pod

    def _metadata(self, meta: ObjectMeta) -> None:
        if meta.labels:
            force_setattr(meta, "labels", self._strings(meta.labels))
        if meta.annotations:
            force_setattr(meta, "annotations", self._strings(meta.annotations))
        if meta.finalizers:
            force_setattr(meta, "finalizers", self._each(meta.finalizers))

    def _conditions(self, status: JobStatus | PodStatus) -> None:
        if status.conditions:
            force_setattr(status, "conditions", self._each(status.conditions))

    def _strings(self, of: Mapping[str, str]) -> Mapping[str, str]:
        return dict(zip(map(self._one, of, of), map(self._one, of.values(), of.values()), strict=True))

    def _each(self, parts: Sequence[H]) -> tuple[H, ...]:
        return tuple(map(self._one, parts, parts))
