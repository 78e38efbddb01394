"""Details about tasks that the objects do not contain: log tails, counters, memory, the crawler's
statistics.

A log that cannot be read proves nothing. The API can count lines from the end of a log
(``tailLines``) and limit the bytes (``limitBytes``), but it cannot count bytes from the end. So we
request a number of lines with a limit of bytes, which cuts a log with very long lines. Memory comes
from the metrics API (``metrics.k8s.io``), if the cluster has one.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple, TypeVar

from crawler_lifecycle.background import CHANCE
from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.client.errors import ApiError, NotFound
from crawler_lifecycle.clusters.kubernetes.client.objects import Pod
from crawler_lifecycle.clusters.kubernetes.client.odd_values import amount
from crawler_lifecycle.domain import bounds
from crawler_lifecycle.domain.last_words import kept_log
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import LOG_TAIL_BYTES, Counters, log_tail
from crawler_lifecycle.ports.polls import Details
from crawler_lifecycle.ports.runs import TaskRef

from .listing import of_tasks, pods_of_tasks
from .predicates import began, crawler_container, deciding_pod, ended
from .termination_message import Progress, last_progress, read_summary, split_statistics

logger = logging.getLogger(__name__)

#: The maximum number of logs that all polls together read in parallel.
THREADS = 8
#: The time limit for the logs of one poll in seconds, even if a node does not respond.
POLL_S = 5.0
#: Seconds for reading the logs that we store: a fixed time, plus a time for each log. A stop waits
#: for these logs.
KEPT_S = 2.0
KEPT_EACH_S = 0.05
#: The maximum number of logs, of at most 16 KiB each, that are held in memory at once for storing.
LOGS_A_TURN = 500

#: Limits for reading counters: pods per poll, and lines and bytes per log. The larger limits are
#: for a crawler that prints so much that the first part does not contain the last line that our
#: runner wrote.
PODS_A_POLL = 50
POLL_LINES = 24
POLL_BYTES = 4096
MORE_LINES = 240
MORE_BYTES = 32 * 1024
#: The maximum number of lines and bytes of the log tail that we store and search for the error of a
#: failed crawler.
KEPT = (200, 8 * LOG_TAIL_BYTES)
SEARCHED = (20_000, 4 * 1024 * 1024)
#: Smaller numbers of lines for further tries. Logs with long lines need these tries, because the
#: limit on bytes cuts off the newest lines.
FEWER = (2000, 16, 4, 1)
#: Error messages that a node returns with status 200 instead of a log, when it has removed the
#: container or cannot open the log file (errors of ``ReadLogs`` in the kubelet's package
#: ``cri-client/pkg/logs``). The path contains the pod's uid, the container and a number, so a
#: crawler's own error about another file does not match.
_NO_LOG = re.compile(
    rb"(unable to retrieve container logs for [a-z-]+://[0-9a-f]+"
    rb"|failed to (try resolving symlinks in path|open log file|tail -?\d+ lines of log file"
    rb"|seek in log file)"
    rb' "/[^"\n]+_[0-9a-f-]{36}/[^"/\n]+/\d+\.log": [^\n]+)\s*'
)
#: The maximum size of such a message in bytes. It contains the path once or twice: namespace, pod,
#: uid and container.
NO_LOG_MAX = 2000
#: The maximum number of runs for which the last task of a turn is remembered.
REMEMBERED = 4096

#: Seconds until the next call after the metrics API was missing or refused us.
ABSENT_S = 600.0

A = TypeVar("A")
B = TypeVar("B")


class LogEnd(NamedTuple):
    """The end of a log, and any crawler statistics in it."""

    text: str
    statistics: Mapping[str, int | float] | None


class LogTails:
    """A reader of logs, with a few threads. Thread-safe."""

    def __init__(self, api: Api, threads: int = THREADS) -> None:
        self._api = api
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="pod-logs")
        self._lock = threading.Lock()
        self._next: OrderedDict[int, int] = OrderedDict()
        self._incident: str | None = None

    def progress(self, run_id: int, pods: Mapping[int, Pod]) -> dict[int, Progress]:
        """Return the crawlers' counters by task index, for the tasks of this turn whose log
        contains them.

        ``pods`` are the executing pods of the run. This takes at most ``POLL_S`` seconds.
        """
        turn = self._rotate(run_id, list(pods))
        tails = self.all(self._counted, [pods[index] for index in turn], POLL_S)
        found = {
            index: last_progress(tail) for index, tail in zip(turn, tails, strict=True) if tail
        }
        return {index: progress for index, progress in found.items() if progress is not None}

    def _rotate(self, run_id: int, indexes: Sequence[int]) -> list[int]:
        """Return the executing tasks of this turn; later turns read the others.

        A process that does not know the last turn begins at a random task, so that each task has
        its turn.
        """
        ordered = sorted(indexes)
        if len(ordered) <= PODS_A_POLL:
            return ordered
        with self._lock:
            last = self._next.pop(run_id, CHANCE.choice(ordered))
            turn = in_turn(ordered, bisect_right(ordered, last), PODS_A_POLL)
            self._next[run_id] = turn[-1]
            while len(self._next) > REMEMBERED:
                self._next.popitem(last=False)
        return turn

    def to_keep(self, pods: Sequence[Pod]) -> list[LogEnd | None]:
        """Return the part of each log that is kept, as text of at most 16 KiB; ``None`` for a log
        that is missing or unreadable.

        The kept part is the end of the log and, for a failed crawler, the lines around the last
        error.
        """
        return self.all(self._kept, pods, KEPT_S + KEPT_EACH_S * len(pods))

    def _counted(self, pod: Pod) -> bytes | None:
        """Return the last lines of the log, and more lines if the first part contains no progress;
        ``None`` if the log is unreadable.
        """
        tail = self._last(pod, POLL_LINES, POLL_BYTES)
        if tail is None or last_progress(tail) is not None or tail.count(b"\n") < POLL_LINES:
            return tail
        return self._last(pod, MORE_LINES, MORE_BYTES)

    def _kept(self, pod: Pod) -> LogEnd | None:
        done = crawler_container(pod).state.terminated
        failed = done is not None and bool(done.exit_code)
        tail = self._last(pod, *(SEARCHED if failed else KEPT))
        if not tail:
            return None
        tail, statistics = split_statistics(tail)
        kept = kept_log(lambda at, most: tail[at : at + most], len(tail), failed=failed)
        return LogEnd(log_tail(kept), statistics)

    def _last(self, pod: Pod, lines: int, limit: int) -> bytes | None:
        """Return the last lines.

        If the response reaches the limit on bytes, request fewer lines, because the limit cuts off
        the newest lines.
        """
        tail = self._read(pod, lines, limit)
        for fewer in (number for number in FEWER if number < lines):
            if tail is None or len(tail) < limit:
                break
            tail = self._read(pod, fewer, limit)
        return tail

    def _read(self, pod: Pod, lines: int, limit: int) -> bytes | None:
        container = crawler_container(pod)
        if not began(container):
            return None  # the container has printed nothing, and the API would return an error
        # A container that waits for its restart has no new log yet, so read the log of its last
        # execution.
        previous = container.state.running is None and container.state.terminated is None
        return self.read(pod.metadata.name, lines, limit, previous=previous)

    def read(self, name: str, lines: int, limit: int, *, previous: bool = False) -> bytes | None:
        """Return the last lines of this pod's crawler; ``None`` if they cannot be read.

        If ``previous`` is true, return the lines from the execution before the restart.
        """
        query = {"container": labels.CONTAINER, "tailLines": lines, "limitBytes": limit}
        try:
            tail = self._api.read(
                self._api.pods_path(name, "log"), **query, previous=previous or None
            )
        except ApiError as error:
            kind = f"{type(error).__name__} {error.status}"
            # log this error once, not for every pod: whole nodes may fail
            if kind != self._incident:
                self._incident = kind
                logger.info("the log of pod %s cannot be read: %s", name, error)
            return None
        self._incident = None
        return None if is_no_log(tail) else tail

    def all(
        self, read: Callable[[A], B | None], wanted: Sequence[A], seconds: float
    ) -> list[B | None]:
        """Call ``read`` for each item in parallel, and return the results; ``None`` for a call that
        took too long.
        """
        calls: list[Future[B | None]] = [self._threads.submit(read, task) for task in wanted]
        done, late = wait(calls, seconds)
        for call in late:
            call.cancel()
        return [call.result() if call in done else None for call in calls]


def in_turn(all_of_them: Sequence[A], begin: int, most: int) -> list[A]:
    """Return ``most`` items, starting at this position.

    After the last item, continue with the first item.
    """
    return [*all_of_them[begin:], *all_of_them[:begin]][:most]


def is_no_log(answer: bytes) -> bool:
    """Return whether the response is not a log, but the node's message that it has no log."""
    return len(answer) < NO_LOG_MAX and _NO_LOG.fullmatch(answer) is not None


class DetailReader:
    """A reader of the details of tasks. Thread-safe."""

    def __init__(self, api: Api, tails: LogTails) -> None:
        self._api = api
        self._tails = tails
        self._lock = threading.Lock()
        self._absent_until = 0.0
        """The time until which we do not call the metrics API (monotonic)."""

    def read(self, run: RunRef, tasks: Sequence[TaskRef]) -> Iterator[Details]:
        """Yield the log tail (at most 16 KiB), counters, memory (bytes) and statistics of each
        task.

        Tasks for which neither a log nor a memory value is available are left out. The pods are
        listed only once for all tasks; their logs are read ``LOGS_A_TURN`` at a time. Raises
        ``ApiError`` when the pods cannot be listed.
        """
        if not tasks:
            return
        pods = pods_of_tasks(self._api, run, tasks)
        found = [(task, pod) for task in tasks if (pod := deciding_pod(pods[task])) is not None]
        memory = self._memory(
            of_tasks(run.run_id, tasks), [pod.metadata.name for _, pod in found if not ended(pod)]
        )
        for begin in range(0, len(found), LOGS_A_TURN):
            turn = found[begin : begin + LOGS_A_TURN]
            for (task, pod), kept in zip(
                turn, self._tails.to_keep([pod for _, pod in turn]), strict=True
            ):
                tail, statistics = kept or (None, None)
                counters, peak = _last_words(pod, tail)
                peaks = [
                    value for value in (peak, memory.get(pod.metadata.name)) if value is not None
                ]
                # Without a log and a memory value, we know no more than the observation contains,
                # and earlier details must stay.
                if tail is not None or peaks:
                    yield Details(
                        task.task_id, tail, counters, max(peaks, default=None), statistics
                    )

    def _memory(self, selector: str, pods: Collection[str]) -> dict[str, int]:
        """Return the memory in bytes that running pods use, if the metrics API reports it.

        A failure is only logged, because nothing depends on this number.
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
            logger.log(
                level,
                "the memory of pods cannot be read; the next try is in %g s: %s",
                ABSENT_S,
                error,
            )
            with self._lock:
                self._absent_until = time.monotonic() + ABSENT_S
            return {}
        return {name: size for name, size in used.items() if name in pods and size is not None}


def _last_words(pod: Pod, tail: str | None) -> tuple[Counters, int | None]:
    """Return counters and peak memory from the runner's summary, or else counters from the newest
    progress in the log.
    """
    done = crawler_container(pod).state.terminated
    summary = read_summary(done.message if done is not None else None)
    said = (
        last_progress(tail.encode()) if tail and summary.progress.counters == Counters() else None
    )
    return (said or summary.progress).counters, summary.peak_memory


def _used(containers: list[dict[str, Any]]) -> int | None:
    """Return the memory in bytes that the crawler's container uses; ``None`` if the value is
    missing.
    """
    used = next(
        (
            container["usage"].get("memory")
            for container in containers
            if container["name"] == labels.CONTAINER
        ),
        None,
    )
    return None if used is None else to_bytes(used)


def to_bytes(quantity: str) -> int | None:
    """Return a Kubernetes quantity such as ``64Mi`` in bytes; ``None`` for any other text."""
    value = amount(quantity)
    return int(value) if value is not None and 0 <= value <= bounds.COUNT_MAX else None
