"""Details of tasks that objects do not contain: log tails, counters, memory, the crawler's statistics.

A log that cannot be read proves nothing. The API gives lines from the end (``tailLines``) and bytes from a beginning
(``limitBytes``), and never bytes from the end. So a number of lines is asked for, with a limit above which a log of
very long lines is cut. Memory comes from the metrics API (``metrics.k8s.io``), where a cluster has one.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple, TypeVar

from crawler_lifecycle.background import CHANCE
from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.client.errors import ApiError, NotFound
from crawler_lifecycle.clusters.kubernetes.client.objects import Pod
from crawler_lifecycle.clusters.kubernetes.client.odd_values import amount
from crawler_lifecycle.domain import bounds
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import LOG_TAIL_BYTES, Counters, log_tail
from crawler_lifecycle.ports.looks import Details
from crawler_lifecycle.ports.runs import TaskRef

from .listing import of_tasks, pods_of_tasks
from .predicates import began, crawler_container, deciding_pod, ended
from .termination_message import Progress, last_progress, read_summary, split_statistics

logger = logging.getLogger(__name__)

#: Logs that are read in parallel, for all looks together.
THREADS = 8
#: Seconds for the logs of one look. A node that does not answer costs that and no more.
LOOK_S = 5.0
#: Seconds for reading logs that are kept: a fixed part, and a part for each log. A stop waits for the log of its task.
KEPT_S, KEPT_EACH_S = 2.0, 0.05

#: Limits for reading counters: running pods of one look, lines and bytes of each log; and larger limits for a crawler
#: that prints so much that our runner's last line is not among them.
PODS_A_LOOK = 50
LOOK_LINES, LOOK_BYTES = 24, 4096
MORE_LINES, MORE_BYTES = 240, 32 * 1024
#: For the log that is kept.
KEPT_LINES, KEPT_BYTES = 200, 8 * LOG_TAIL_BYTES
#: When lines are so long that the limit cuts off their end, fewer lines are requested.
FEWER = (16, 4, 1)
#: The answers of a node, with status 200, in place of a log: it has removed the container, or does not find its file
#: (the errors of ``ReadLogs`` in kubelet's package ``cri-client/pkg/logs``, before it has read anything). Its file is
#: known by the pod's uid, the container and a number: a crawler's own error names another file.
_NO_LOG = re.compile(
    rb"(unable to retrieve container logs for [a-z-]+://[0-9a-f]+"
    rb"|failed to (try resolving symlinks in path|open log file|tail -?\d+ lines of log file|seek in log file)"
    rb' "/[^"\n]+_[0-9a-f-]{36}/[^"/\n]+/\d+\.log": [^\n]+)\s*'
)
#: The longest such sentence, in bytes. It contains the path once or twice: namespace, pod, its uid, and the container.
NO_LOG_MAX = 2000
#: Number of runs whose rotation position is remembered.
REMEMBERED = 4096

#: A cluster without this API, or that refuses us, is asked again after so many seconds.
ABSENT_S = 600.0

A = TypeVar("A")
B = TypeVar("B")


class Kept(NamedTuple):
    """The end of a log, and the statistics that stood there, if any did."""

    text: str
    statistics: Mapping[str, int | float] | None


class LogTails:
    """Reads logs in a few threads. Thread-safe."""

    def __init__(self, api: Api, threads: int = THREADS) -> None:
        self._api = api
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="pod-logs")
        self._lock = threading.Lock()
        self._next: OrderedDict[int, int] = OrderedDict()
        self._incident: str | None = None

    def progress(self, run_id: int, pods: Mapping[int, Pod]) -> dict[int, Progress]:
        """Return the crawlers' counters by task index, for the tasks of this turn whose log has them.

        ``pods``: the executing pods of the run. Takes ``LOOK_S`` seconds at most.
        """
        turn = self._rotate(run_id, list(pods))
        tails = self.all(self._counted, [pods[index] for index in turn], LOOK_S)
        found = {index: last_progress(tail) for index, tail in zip(turn, tails, strict=True) if tail}
        return {index: progress for index, progress in found.items() if progress is not None}

    def _rotate(self, run_id: int, indexes: Sequence[int]) -> list[int]:
        """The executing tasks of this turn; later turns read the others.

        A process that does not know the position of the rotation begins at a random task, so that none is left out for
        ever.
        """
        ordered = sorted(indexes)
        if len(ordered) <= PODS_A_LOOK:
            return ordered
        with self._lock:
            last = self._next.pop(run_id, CHANCE.choice(ordered))
            turn = in_turn(ordered, bisect_right(ordered, last), PODS_A_LOOK)
            self._next[run_id] = turn[-1]
            while len(self._next) > REMEMBERED:
                self._next.popitem(last=False)
        return turn

    def to_keep(self, pods: Sequence[Pod]) -> list[Kept | None]:
        """The last 16 KiB of each log, as text; ``None`` where there is none, or it could not be read."""
        return self.all(self._kept, pods, KEPT_S + KEPT_EACH_S * len(pods))

    def _counted(self, pod: Pod) -> bytes | None:
        """The last lines, including progress if it is near; ``None`` where none could be read."""
        tail = self._last(pod, LOOK_LINES, LOOK_BYTES)
        if tail is None or last_progress(tail) is not None or tail.count(b"\n") < LOOK_LINES:
            return tail
        return self._last(pod, MORE_LINES, MORE_BYTES)

    def _kept(self, pod: Pod) -> Kept | None:
        tail = self._last(pod, KEPT_LINES, KEPT_BYTES)
        if not tail:
            return None
        tail, statistics = split_statistics(tail)
        return Kept(log_tail(tail), statistics)

    def _last(self, pod: Pod, lines: int, limit: int) -> bytes | None:
        """The last lines. If they exceed the limit, fewer lines are read: the limit cuts off the newest."""
        tail = self._read(pod, lines, limit)
        for fewer in FEWER:
            if tail is None or len(tail) < limit:
                break
            tail = self._read(pod, fewer, limit)
        return tail

    def _read(self, pod: Pod, lines: int, limit: int) -> bytes | None:
        container = crawler_container(pod)
        if not began(container):
            return None  # it has printed nothing, and asking would be an error
        # A container that waits for its restart has no log of its own yet; the log before is the one that matters.
        previous = container.state.running is None and container.state.terminated is None
        return self.read(pod.metadata.name, lines, limit, previous=previous)

    def read(self, name: str, lines: int, limit: int, *, previous: bool = False) -> bytes | None:
        """The last lines of this pod's crawler, now or before its restart; ``None`` where none can be read."""
        query: dict[str, object] = {"container": labels.CONTAINER, "tailLines": lines, "limitBytes": limit}
        try:
            tail = self._api.read(self._api.pods_path(name, "log"), **query, previous=previous or None)
        except ApiError as error:
            kind = f"{type(error).__name__} {error.status}"
            if kind != self._incident:  # once, not for every pod: whole nodes go away at a time
                self._incident = kind
                logger.info("the log of pod %s is not read: %s", name, error)
            return None
        self._incident = None
        return None if is_no_log(tail) else tail

    def all(self, read: Callable[[A], B | None], wanted: Sequence[A], seconds: float) -> list[B | None]:
        """The results of these calls, in order; ``None`` for a call that did not end in time."""
        calls: list[Future[B | None]] = [self._threads.submit(read, one) for one in wanted]
        done, late = wait(calls, seconds)
        for call in late:
            call.cancel()
        return [call.result() if call in done else None for call in calls]


def in_turn(all_of_them: Sequence[A], begin: int, most: int) -> list[A]:
    """So many items from this position on, continuing at the beginning: every item has its turn."""
    return [*all_of_them[begin:], *all_of_them[:begin]][:most]


def is_no_log(answer: bytes) -> bool:
    """Return whether this is not a log, but the node's message that it has none."""
    return len(answer) < NO_LOG_MAX and _NO_LOG.fullmatch(answer) is not None


class DetailReader:
    """Reads the details of tasks. Thread-safe."""

    def __init__(self, api: Api, tails: LogTails) -> None:
        self._api = api
        self._tails = tails
        self._lock = threading.Lock()
        self._absent_until = 0.0
        """The time until which the metrics API is not asked (monotonic)."""

    def read(self, run: RunRef, tasks: Sequence[TaskRef]) -> list[Details]:
        """Log tail (at most 16 KiB), counters, memory (bytes), the crawler's own statistics.

        Tasks without any of these are left out.

        Raises ``ApiError`` when the pods cannot be listed.
        """
        if not tasks:
            return []
        pods = pods_of_tasks(self._api, run, tasks)
        found = [(task, pod) for task in tasks if (pod := deciding_pod(pods[task])) is not None]
        memory = self._memory(of_tasks(run.run_id, tasks), [pod.metadata.name for _, pod in found if not ended(pod)])
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

    def _memory(self, selector: str, pods: Collection[str]) -> dict[str, int]:
        """Bytes that running pods use, for the pods that the metrics API knows. Never an error: it is only for
        debugging.
        """
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


def _last_words(pod: Pod, tail: str | None) -> tuple[Counters, int | None]:
    """Counters and peak memory by the runner's summary, else by the newest progress in the log."""
    done = crawler_container(pod).state.terminated
    summary = read_summary(done.message if done is not None else None)
    said = last_progress(tail.encode()) if tail and summary.progress.counters == Counters() else None
    return (said or summary.progress).counters, summary.peak_memory


def _used(containers: list[dict[str, Any]]) -> int | None:
    """Bytes that the crawler's container uses."""
    told = next((one["usage"].get("memory") for one in containers if one["name"] == labels.CONTAINER), None)
    return None if told is None else to_bytes(told)


def to_bytes(quantity: str) -> int | None:
    """``64Mi`` in bytes; ``None`` for a text that is no quantity of Kubernetes."""
    value = amount(quantity)
    return int(value) if value is not None and 0 <= value <= bounds.COUNT_MAX else None
