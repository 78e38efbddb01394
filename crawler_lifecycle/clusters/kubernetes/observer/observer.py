"""The observer of pods and Jobs, which uses two watches to report changes at once.

Each watch is a ``Reflector`` in its own thread. Both report to one ``Changes``, which decides which
runs need a poll. A report is not evidence: it leads to a poll, and only the poll decides. Several
observers may watch at the same time. Each observer costs the API server two watches, and two lists
every few minutes.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from crawler_lifecycle.background import Loop
from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.client.objects import Job, Pod
from crawler_lifecycle.clusters.kubernetes.polls.details import (
    POLL_BYTES,
    POLL_LINES,
    LogTails,
    in_turn,
)
from crawler_lifecycle.clusters.kubernetes.polls.termination_message import last_progress
from crawler_lifecycle.domain.task import Counters
from crawler_lifecycle.ports.cluster import Changed
from crawler_lifecycle.ports.polls import LiveCounters, ObserverHealth

from .changes import LONG_S, RUNNING, Changes, ObjectFacts, RunningPod, TaskKey
from .reflector import Pace, Reflector

#: Seconds between two checks for long waits.
CHECK_S = 0.25
#: Added to the start time of a pod in the first list. A poll after the sum has certainly seen the
#: start, even if the clocks differ.
SLACK = timedelta(seconds=60)
#: Seconds to wait until the threads have ended.
LEAVE_S = 4.0
#: The maximum number of logs in one turn, of parallel reads, and of seconds for the whole turn.
PODS_A_TURN = 200
THREADS = 4
TURN_S = 3.0


class KubernetesObserver:
    """The observer of the pods and Jobs in the namespace of ``api``.

    This class implements ``Observer``.
    """

    def __init__(self, api: Api, *, pace: Pace | None = None, long_s: float = LONG_S) -> None:
        self._api = api
        self._pace = pace or Pace()
        self._long_s = long_s
        self._session: _Session | None = None
        self._tails = LogTails(api, THREADS)
        self._last = ""
        """The uid of the last pod whose log was read."""

    def health(self) -> ObserverHealth:
        """Return the health. It is good while both watches are open and neither has been silent for
        too long.
        """
        session = self._session
        return (
            session.health()
            if session is not None
            else ObserverHealth(False, "the observer is not watching at the moment")
        )

    def counted(self) -> Sequence[LiveCounters]:
        """Return the counters in the last lines of the pods' logs (see the port).

        One turn reads at most ``PODS_A_TURN`` logs, and the next turn continues with the remaining
        ones. Each log costs the API server and the node one request. So a turn has a time limit,
        and leaves the remaining logs to later turns.
        """
        session = self._session
        pods = session.running() if session is not None else {}
        uids = sorted(pods)
        if len(uids) > PODS_A_TURN:
            uids = in_turn(uids, bisect_right(uids, self._last), PODS_A_TURN)
            self._last = uids[-1]
        turn = [pods[uid] for uid in uids]
        tails = self._tails.all(
            lambda pod: self._tails.read(pod.name, POLL_LINES, POLL_BYTES), turn, TURN_S
        )
        said = [(pod, last_progress(tail)) for pod, tail in zip(turn, tails, strict=True) if tail]
        return [
            LiveCounters(
                pod.run, pod.attempt, pod.index, progress.counters, progress.at, progress.blocked
            )
            for pod, progress in said
            if progress is not None and (progress.blocked or progress.counters != Counters())
        ]

    def watch(self, changed: Changed, over: threading.Event) -> None:
        """Watch until ``over`` is set; see the port."""
        session = self._session = _Session(self._api, changed, self._pace, self._long_s)
        try:
            session.run(over)
        finally:
            self._session = None


class _Session:
    """One session of watching, from its start to its end."""

    def __init__(self, api: Api, changed: Changed, pace: Pace, long_s: float) -> None:
        self._changes = Changes(long_s)
        self._changed = changed
        self._lock = threading.Lock()
        self._watched = 0
        self._running: dict[str, RunningPod] = {}
        self._first = True
        selector = f"{labels.ours()},{labels.RUN}"
        self._reflectors: tuple[Reflector[Any], ...] = (
            Reflector(api, Pod, api.pods_path(), selector, self._complete, self._one, pace),
            Reflector(api, Job, api.jobs_path(), selector, self._complete, self._one, pace),
        )

    def run(self, over: threading.Event) -> None:
        threads = [
            threading.Thread(
                target=reflector.run, args=(over,), name=f"observer-{what}", daemon=True
            )
            for what, reflector in zip(("pods", "jobs"), self._reflectors, strict=True)
        ]
        for thread in threads:
            thread.start()
        Loop("the check for long waits", CHECK_S, first_s=CHECK_S).run_in_thread(self._check, over)
        for reflector in self._reflectors:
            reflector.leave()
        until = time.monotonic() + LEAVE_S
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _check(self) -> None:
        self.report(lambda changes, now: changes.slow(now))
        with self._lock:
            self._watched = self._changes.watched

    def health(self) -> ObserverHealth:
        problem = next((r.problem for r in self._reflectors if r.problem is not None), None)
        return ObserverHealth(problem is None, problem, self._watched)

    def running(self) -> Mapping[str, RunningPod]:
        """Return the pods in which a crawler is executing, by uid."""
        with self._lock:
            return dict(self._running)

    def _complete(self, kind: type, kept: Sequence[ObjectFacts]) -> None:
        """Apply a complete list of the objects of this kind."""
        listed = {entry.uid: entry.seen for entry in kept if entry.seen is not None}
        old = None
        if kind is Pod:
            old, self._first = _steady(kept) if self._first else None, False
            with self._lock:
                self._running = {
                    entry.uid: entry.running for entry in kept if entry.running is not None
                }
        self.report(lambda changes, now: changes.listed(kind, listed, now), old)

    def _one(self, kind: type, one: ObjectFacts) -> None:
        """Apply one event: an object was added, changed or removed."""
        with self._lock:
            if one.running is not None:
                self._running[one.uid] = one.running
            else:
                self._running.pop(one.uid, None)
        self.report(lambda changes, now: changes.one(kind, one.uid, one.seen, now))

    def report(
        self,
        apply: Callable[[Changes, float], set[TaskKey]],
        old: Mapping[int, datetime] | None = None,
    ) -> None:
        """Apply the changes, and report the runs that need a poll, with their changed tasks.

        For some runs, ``old`` contains a time by which the change had certainly happened; for the
        remaining runs, this time is now.
        """
        with self._lock:
            changed = apply(self._changes, time.monotonic())
        runs: dict[int, set[tuple[int, int] | None]] = defaultdict(set)
        for run_id, task in changed:
            runs[run_id].add(task)
        now = datetime.now(UTC)
        for run_id, tasks in runs.items():
            known = frozenset(task for task in tasks if task is not None)
            at = min(now, old[run_id]) if old and run_id in old else now
            self._changed(run_id, at, known if len(known) == len(tasks) else None)


def _steady(pods: Iterable[ObjectFacts]) -> dict[int, datetime]:
    """Return, for each run whose pods are all executing, a time by which they had certainly all
    started.

    This saves a poll of each run when an observer begins, because the last recorded poll may
    already have seen this state.
    """
    found: dict[int, datetime | None] = {}
    for pod, at in ((pod.seen, pod.began) for pod in pods if pod.seen is not None):
        run_id, _ = pod.key
        known = found.get(run_id, at)
        steady = pod.stage == RUNNING and not pod.marks
        found[run_id] = max(known, at) if steady and known is not None and at is not None else None
    return {run_id: at + SLACK for run_id, at in found.items() if at is not None}
