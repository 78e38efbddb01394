"""The differences between two snapshots of a pod or Job that are worth a look at its run.

Of each object a few words are kept and never the object: 10,000 pods take some megabytes. Told are starts, ends,
disappearances, deletions, and that something waits for a reason or for long; never counters, heartbeats, or what comes
of an end that was told. A pod speaks for its Job: a Job is heard only where no pod of it has ended.

Pure, and not thread-safe: the owner holds a lock. ``now`` is any clock in seconds that only goes forward.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Mapping
from typing import NamedTuple

#: What waits for longer than this without a reason is told: nobody made a pod of the Job, or nobody starts the pod.
LONG_S = 3.0

#: The words for where an object stands. ``OVER``: the crawler has ended, which is all there is to know of its pod;
#: ``ENDING``: a Job's end is decided and its pods are not gone yet.
PENDING, WAITING, RUNNING, ENDING, OVER = "pending", "waiting", "running", "ending", "over"


class Seen(NamedTuple):
    """One object as it was seen. Everything that looks may read differently is in ``stage`` or ``marks``."""

    run_id: int
    stage: str
    marks: str = ""
    """The facts to show a person soon: why it waits, that it is being deleted, that its node does not answer."""
    job: str = ""
    """The uid of the Job that a pod belongs to."""


def seen(run_id: int, stage: str, marks: str = "", job: str = "") -> Seen:
    """The same with the words kept once, however many objects show them."""
    return Seen(run_id, sys.intern(stage), sys.intern(marks), job)


class Changes:
    """Pods and Jobs by uid. Every method answers with the runs that should look now."""

    def __init__(self, long_s: float = LONG_S) -> None:
        self._long_s = long_s
        self._pods: dict[str, Seen] = {}
        self._jobs: dict[str, Seen] = {}
        self._owners: dict[str, set[str]] = {}
        """A Job's uid -> those of its pods that are known."""
        self._ended: set[str] = set()
        """Jobs of which a pod has ended."""
        self._slow: list[tuple[float, str]] = []
        """The objects that wait without a reason, and when that is long: a heap of times and uids."""

    @property
    def watched(self) -> int:
        """Tasks that are not over: a Job without a pod is one as well."""
        pods = sum(pod.stage != OVER for pod in self._pods.values())
        return pods + sum(job.stage != OVER and uid not in self._owners for uid, job in self._jobs.items())

    def __len__(self) -> int:
        return len(self._pods) + len(self._jobs)

    # --- complete lists

    def pods(self, listed: Mapping[str, Seen], now: float) -> set[int]:
        """All pods there are. What is remembered and not among them is gone."""
        runs = set()
        for uid in [uid for uid in self._pods if uid not in listed]:
            runs |= self.pod_gone(uid)
        for uid, pod in listed.items():
            runs |= self.pod(uid, pod, now)
        return runs

    def jobs(self, listed: Mapping[str, Seen], now: float) -> set[int]:
        """All Jobs there are. What is remembered and not among them is gone."""
        runs = set()
        for uid in [uid for uid in self._jobs if uid not in listed]:
            runs |= self.job_gone(uid)
        for uid, job in listed.items():
            runs |= self.job(uid, job, now)
        return runs

    # --- single objects

    def pod(self, uid: str, pod: Seen, now: float) -> set[int]:
        """A pod as it is now."""
        before = self._pods.get(uid)
        if before == pod:
            return set()
        owner = before.job if before is not None and before.job == pod.job else pod.job
        self._pods[uid] = pod._replace(job=owner)
        if owner:
            self._owners.setdefault(owner, set()).add(uid)
            if pod.stage in (ENDING, OVER):
                self._ended.add(owner)
        return self._told(uid, before, pod, now)

    def pod_gone(self, uid: str) -> set[int]:
        """A pod that is there no more."""
        pod = self._pods.pop(uid, None)
        if pod is None:
            return set()
        siblings = self._owners.get(pod.job, set())
        siblings.discard(uid)
        if not siblings:
            self._owners.pop(pod.job, None)
            if pod.job not in self._jobs:
                self._ended.discard(pod.job)
        return set() if pod.stage == OVER else {pod.run_id}

    def job(self, uid: str, job: Seen, now: float) -> set[int]:
        """A Job as it is now."""
        before = self._jobs.get(uid)
        if before == job:
            return set()
        self._jobs[uid] = job
        if uid in self._ended:
            return set()
        return self._told(uid, before, job, now)

    def job_gone(self, uid: str) -> set[int]:
        """A Job that is there no more. Pods that outlive it speak for themselves."""
        job = self._jobs.pop(uid, None)
        ended = uid in self._ended
        if uid not in self._owners:
            self._ended.discard(uid)
        return set() if job is None or job.stage == OVER or ended else {job.run_id}

    def slow(self, now: float) -> set[int]:
        """Return the runs of what has been waiting for long, each object told once."""
        runs = set()
        while self._slow and self._slow[0][0] <= now:
            _, uid = heapq.heappop(self._slow)
            found = self._pods.get(uid) or (None if uid in self._owners else self._jobs.get(uid))
            if found is not None and found.stage == PENDING:
                runs.add(found.run_id)
        return runs

    def _told(self, uid: str, before: Seen | None, after: Seen, now: float) -> set[int]:
        if before is not None and before.stage == OVER == after.stage:
            return set()
        if after.stage != PENDING or after.marks:
            return {after.run_id}
        if before is None or before.stage != PENDING or before.marks:
            heapq.heappush(self._slow, (now + self._long_s, uid))
        # A pod that began to execute does not wait again; a mark that went away is no news for which to look.
        return set() if before is None or before.stage in (PENDING, WAITING) else {after.run_id}
