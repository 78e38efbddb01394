"""Details of tasks: log tail, counters, memory, and at the end the crawler's own statistics.

Memory comes from the metrics API (``metrics.k8s.io``), where a cluster has one.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Collection, Sequence
from typing import Any

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.client.errors import ApiError, NotFound
from crawler_lifecycle.clusters.kubernetes.client.objects import Pod
from crawler_lifecycle.clusters.kubernetes.client.odd_values import amount
from crawler_lifecycle.clusters.kubernetes.looks.listing import of_tasks, pods_of_tasks
from crawler_lifecycle.clusters.kubernetes.looks.predicates import crawler_container, deciding_pod, ended
from crawler_lifecycle.domain import bounds
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import Counters
from crawler_lifecycle.ports.looks import Details
from crawler_lifecycle.ports.runs import TaskRef

from .log_tails import LogTails
from .termination_message import last_progress, read_summary

logger = logging.getLogger(__name__)

#: A cluster that has no such API, or does not let us read it, is asked again after so many seconds.
ABSENT_S = 600.0


class DetailReader:
    """Reads the details of tasks. Thread-safe."""

    def __init__(self, api: Api, tails: LogTails) -> None:
        self._api = api
        self._tails = tails
        self._memory = MemoryMetrics(api)

    def read(self, run: RunRef, tasks: Sequence[TaskRef]) -> list[Details]:
        """Log tail (at most 16 KiB), counters, memory (bytes), statistics of the crawler's own.

        Tasks of which nothing can be read are left out.

        Raises ``ApiError`` when the pods cannot be listed.
        """
        if not tasks:
            return []
        pods = pods_of_tasks(self._api, run, tasks)
        found = [(task, pod) for task in tasks if (pod := deciding_pod(pods[task])) is not None]
        memory = self._memory.of(of_tasks(run.run_id, tasks), [pod.metadata.name for _, pod in found if not ended(pod)])
        tails = self._tails.to_keep([pod for _, pod in found])
        told = []
        for (task, pod), kept in zip(found, tails, strict=True):
            tail, statistics = kept or (None, None)
            counters, peak = _last_words(pod, tail)
            peaks = [value for value in (peak, memory.get(pod.metadata.name)) if value is not None]
            # Without its log there is nothing here that an observation would not say, and one kept before stays.
            if tail is not None or peaks:
                told.append(Details(task.task_id, tail, counters, max(peaks, default=None), statistics))
        return told


def _last_words(pod: Pod, tail: str | None) -> tuple[Counters, int | None]:
    """Counters and peak memory by the runner's summary, else by the newest progress in the log."""
    main, peak = crawler_container(pod), None
    if main is not None and main.state.terminated is not None:
        summary = read_summary(main.state.terminated.message)
        if summary.counters != Counters():
            return summary.counters, summary.peak_memory
        peak = summary.peak_memory
    said = last_progress(tail.encode()) if tail else None
    return (said.counters if said else Counters()), peak


class MemoryMetrics:
    """The memory that running pods use. Never an error: it is debugging information. Thread-safe."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._lock = threading.Lock()
        self._absent_until = 0.0

    def of(self, selector: str, pods: Collection[str]) -> dict[str, int]:
        """Bytes by pod, of those that the metrics API knows."""
        with self._lock:
            if not pods or time.monotonic() < self._absent_until:
                return {}
        path = self._api.path("pods", group="/apis/metrics.k8s.io/v1beta1")
        try:
            listed = json.loads(self._api.read(path, labelSelector=selector))["items"]
            used = {pod["metadata"]["name"]: _used(pod["containers"]) for pod in listed}
        except (ApiError, LookupError, TypeError, AttributeError, ValueError) as error:
            level = logging.DEBUG if isinstance(error, NotFound) else logging.INFO
            logger.log(level, "memory of pods is not read for the next %g s: %s", ABSENT_S, error)
            with self._lock:
                self._absent_until = time.monotonic() + ABSENT_S
            return {}
        return {name: size for name, size in used.items() if name in pods and size is not None}


def _used(containers: list[dict[str, Any]]) -> int | None:
    """Bytes that the crawler's container uses."""
    told = next((one["usage"].get("memory") for one in containers if one["name"] == labels.CONTAINER), None)
    return None if told is None else to_bytes(told)


def to_bytes(quantity: str) -> int | None:
    """``64Mi`` in bytes; ``None`` for what is no quantity of Kubernetes."""
    value = amount(quantity)
    return int(value) if value is not None and 0 <= value <= bounds.COUNT_MAX else None
