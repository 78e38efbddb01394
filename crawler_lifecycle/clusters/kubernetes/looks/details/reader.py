"""Details of tasks: log tail, counters, memory, and at the end the crawler's own statistics."""

from __future__ import annotations

from collections.abc import Sequence

from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.client.objects import Pod
from crawler_lifecycle.clusters.kubernetes.looks.listing import of_tasks, pods_of_tasks
from crawler_lifecycle.clusters.kubernetes.looks.predicates import crawler_container, deciding_pod, ended
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import Counters
from crawler_lifecycle.ports.looks import Details
from crawler_lifecycle.ports.runs import TaskRef

from .log_tails import LogTails
from .memory import MemoryMetrics
from .progress import last_progress
from .termination_message import read_summary


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
