"""Live counters of crawlers in pods: the last lines of their logs, some pods at a time, in turn.

A log costs the API server and the node of its pod a request each, so there are limits: so many logs in one turn, a few
at a time, a few kilobytes of each, and an end of the turn after which what has not come is left for the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.client.errors import ApiError
from crawler_lifecycle.clusters.kubernetes.client.objects import Pod
from crawler_lifecycle.clusters.kubernetes.looks.details.log_tails import LOOK_BYTES, LOOK_LINES
from crawler_lifecycle.clusters.kubernetes.looks.details.progress import last_progress
from crawler_lifecycle.clusters.kubernetes.looks.predicates import executing, number
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import Counters
from crawler_lifecycle.ports.looks import Counted

logger = logging.getLogger(__name__)

#: Logs of one turn, so many of them at the same time, and seconds for all of them.
PODS_A_TURN, THREADS, TURN_S = 200, 4, 3.0


@dataclass(frozen=True, slots=True)
class RunningPod:
    """As little of a pod as it takes to read its log and to know whose counters are in it."""

    name: str
    run: RunRef
    index: int
    attempt: int


def running(pod: Pod) -> RunningPod | None:
    """The pod, while a crawler of ours executes in it."""
    told = pod.metadata.labels
    run_id, uid = number(told.get(labels.RUN)), told.get(labels.RUN_UID)
    index, attempt = number(told.get(labels.TASK)), number(told.get(labels.ATTEMPT))
    main = pod.container(labels.CONTAINER)
    if run_id is None or not uid or index is None or attempt is None or not executing(pod):
        return None
    # One that is being started again has no log of its own yet.
    if main is None or main.state.running is None:
        return None
    return RunningPod(pod.metadata.name, RunRef(run_id, uid), index, attempt)


class Counting:
    """Reads in turn. ``counted`` is for one thread at a time."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="pod-counters")
        self._last = ""
        self._trouble: str | None = None

    def counted(self, pods: Mapping[str, RunningPod]) -> Sequence[Counted]:
        """Of the pods whose turn it is, by uid; those that say nothing, or not in time, are left out."""
        calls = [self._threads.submit(self._read, pod) for pod in self._turn(pods)]
        done, late = wait(calls, TURN_S)
        for call in late:
            call.cancel()
        return [one for call in calls if call in done and (one := call.result()) is not None]

    def _turn(self, pods: Mapping[str, RunningPod]) -> list[RunningPod]:
        uids = sorted(pods)
        if len(uids) > PODS_A_TURN:
            after = [uid for uid in uids if uid > self._last]
            uids = (after + uids)[:PODS_A_TURN]
            self._last = uids[-1]
        return [pods[uid] for uid in uids]

    def _read(self, pod: RunningPod) -> Counted | None:
        path = self._api.pods_path(pod.name, "log")
        try:
            tail = self._api.read(path, container=labels.CONTAINER, tailLines=LOOK_LINES, limitBytes=LOOK_BYTES)
        except ApiError as error:
            kind = f"{type(error).__name__} {error.status}"
            if kind != self._trouble:  # once, not for every pod: whole nodes go away at a time
                self._trouble = kind
                logger.info("the counters of pod %s are not read: %s", pod.name, error)
            return None
        self._trouble = None
        said = last_progress(tail)
        if said is None or said.counters == Counters():
            return None
        return Counted(pod.run, pod.attempt, pod.index, said.counters, said.at)
