"""Queues: what Kueue reports about Jobs that it holds or took back. Only a poll that finds a
suspended Job with a queue's label reads these reports: one list of Workloads, and the positions in
each queue.

The reports are optional. If they cannot be read, the poll still succeeds, but gives less detail.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.client.errors import ApiError, NotFound
from crawler_lifecycle.clusters.kubernetes.client.objects import (
    APIGroup,
    Condition,
    Job,
    PendingWorkloadsSummary,
    Workload,
    decode,
)
from crawler_lifecycle.clusters.kubernetes.client.odd_values import known_time
from crawler_lifecycle.domain.task import Observation, Phase

from .explanations import EVENTS_S
from .listing import IN_MAX, TaskObjects
from .outside_causes import who_suspended
from .pod_waits import TAKEN_UP, queue_words
from .predicates import clock
from .termination_message import clean

logger = logging.getLogger(__name__)

WORKLOADS = "kueue.x-k8s.io"
POSITIONS = "visibility.kueue.x-k8s.io"
#: Label of a Workload: the uid of its Job.
JOB_UID = "kueue.x-k8s.io/job-uid"
#: The maximum number of queues whose positions one poll reads.
QUEUES_MAX = 2
#: Seconds for which an API is not called again after a failure.
SILENT_S = 60.0
T = TypeVar("T")


class QueueReader:
    """A reader of Kueue's reports. Thread-safe."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._versions: dict[str, str | None] = {}
        """The version of each API group; ``None`` for a group that the cluster does not have."""
        self._silent_until: dict[str, float] = {}

    def explain(
        self, found: Sequence[TaskObjects], seen: list[Observation], now: datetime
    ) -> list[Observation]:
        """Return the observations, with the reasons why a queue holds or took back tasks.

        At most ``IN_MAX`` tasks get a reason: first those that were taken back, then those that
        have waited longest.
        """
        held = [
            (n, objects.job)
            for n, objects in enumerate(found)
            if objects.job and _held(objects.job, objects, seen[n])
        ]
        held.sort(
            key=lambda one: (seen[one[0]].phase is not Phase.ENDED, _since(one[1], now), one[0])
        )
        held = held[:IN_MAX]
        workloads = self._workloads([job.metadata.uid for _, job in held]) if held else None
        if workloads is None and (not held or self._versions.get(WORKLOADS, "") is not None):
            return seen
        places = self._places(
            {job.metadata.labels[labels.QUEUE] for n, job in held if seen[n].end is None}
        )
        for n, job in held:
            workload = (workloads or {}).get(job.metadata.uid)
            if seen[n].end is None:
                missing = (
                    "Kueue is not installed on this cluster"
                    if workloads is None
                    else _missing(job, now)
                )
                words = missing if workload is None else _why(workload, now)
                place = places.get(workload.metadata.name) if workload is not None else None
                waits = (
                    f"{queue_words(job)}, position {place}"
                    if place is not None
                    else queue_words(job)
                )
                seen[n] = replace(
                    seen[n], reason=": ".join(part for part in (waits, words) if part)
                )
            elif workload is not None:
                seen[n] = _taken_back(job, workload, seen[n])
        return seen

    def _workloads(self, uids: Sequence[str]) -> Mapping[str, Workload] | None:
        """Return the Workloads by the uid of their Job; ``None`` when they cannot be read."""
        found: dict[str, Workload] = {}

        def keep(one: Workload) -> None:
            for owner in one.metadata.owner_references:
                if (known := found.get(owner.uid)) is None or _current(one) > _current(known):
                    found[owner.uid] = one

        def listed(path: str) -> Mapping[str, Workload]:
            selector = f"{JOB_UID} in ({','.join(uids)})"
            self._api.listing(path, Workload, labels=selector, within_s=EVENTS_S, keep=keep)
            return found

        return self._read(WORKLOADS, "workloads", listed)

    def _places(self, queues: Collection[str]) -> Mapping[str, int]:
        """Return the positions of Workloads in their queues by name, starting at 1. Positions that
        cannot be read are left out.
        """

        def listed(path: str) -> PendingWorkloadsSummary:
            return decode(PendingWorkloadsSummary, self._api.get(path))

        places: dict[str, int] = {}
        for queue in sorted(queues)[:QUEUES_MAX]:
            summary = self._read(POSITIONS, f"localqueues/{queue}/pendingworkloads", listed)
            for item in summary.items if summary is not None else ():
                if item.position_in_local_queue is not None:
                    places[item.metadata.name] = item.position_in_local_queue + 1
        return places

    def _read(self, group: str, resource: str, read: Callable[[str], T]) -> T | None:
        """Call ``read`` with the resource's path, in the version that the server prefers. Return
        ``None`` if the call fails.
        """
        if time.monotonic() < self._silent_until.get(group, 0.0):
            return None
        known = self._versions.get(group)
        try:
            known = (
                known or decode(APIGroup, self._api.get(f"/apis/{group}")).preferred_version.version
            )
            answer = read(self._api.path(resource, group=f"/apis/{group}/{known}"))
            self._versions[group] = known
            return answer
        # If we have no version, the group is missing; otherwise, the version or an object is
        # missing.
        except NotFound:
            self._versions[group] = None if known is None else ""
        except ApiError as error:
            self._versions[group] = ""
            self._silent_until[group] = time.monotonic() + SILENT_S
            logger.info("%s cannot be read; the next try is in %g s: %s", group, SILENT_S, error)
        return None


def _held(job: Job, one: TaskObjects, seen: Observation) -> bool:
    """Return whether the task's own Job waits in a queue, or ended because its queue took it
    back.
    """
    if not one.has_job or not job.spec.suspend or queue_words(job) is None:
        return False
    if seen.phase is Phase.WAITING:
        return seen.reason == queue_words(job)
    return seen.end is not None and seen.end.message == who_suspended(job)


def _since(job: Job, now: datetime) -> datetime:
    return job.metadata.creation_timestamp or now


def _current(workload: Workload) -> tuple[bool, float, str]:
    """Return a sort key: Workloads that Kueue still handles rank above finished ones, and newer
    ones above older ones.
    """
    finished = workload.condition("Finished")
    created = workload.metadata.creation_timestamp
    return (
        finished is None or not finished.true,
        created.timestamp() if created else 0.0,
        workload.metadata.name,
    )


def _missing(job: Job, now: datetime) -> str | None:
    """Return a sentence about a Job for which Kueue has not created a Workload; ``None`` while
    Kueue may still create one.
    """
    if now - _since(job, now) <= TAKEN_UP:
        return None
    priority = job.metadata.labels.get(labels.QUEUE_PRIORITY)
    there = f", and that the WorkloadPriorityClass {priority} exists" if priority else ""
    return (
        f"Kueue has created no Workload for it: check that Kueue is running and manages Jobs{there}"
    )


def _why(workload: Workload, now: datetime) -> str:
    """Return why Kueue has not started the Job."""
    conditions = {
        kind: workload.condition(kind)
        for kind in ("Finished", "Admitted", "QuotaReserved", "Evicted")
    }
    finished, admitted, reserved, evicted = conditions.values()
    if finished is not None and finished.true:
        return f"Kueue counts it as finished and does not start it ({_said(finished)})"
    if workload.spec.active is False:
        return (
            f"its Workload {workload.metadata.name} is deactivated; it continues when its "
            "spec.active is true again"
        )
    if admitted is not None and admitted.true:
        return "it is admitted, and about to start"
    words: list[str | None] = []
    if reserved is not None and reserved.true:
        checks = [
            f"{check.name} ({check.state})"
            for check in workload.status.admission_checks
            if check.state != "Ready"
        ]
        words.append(
            clean(f"its quota is reserved, and admission checks are not ready: {', '.join(checks)}")
        )
    else:
        words.append(
            (clean(reserved.message) if reserved is not None else None)
            or "Kueue has not considered it yet"
        )
    if evicted is not None and evicted.true:
        words.append(f"it was taken back before ({_said(evicted)})")
    again = (
        known_time(workload.status.requeue_state.requeue_at)
        if workload.status.requeue_state is not None
        else None
    )
    if again is not None and again > now:
        words.append(f"it is queued again at {clock(again, now)}")
    return "; ".join(word for word in words if word)


def _taken_back(job: Job, workload: Workload, seen: Observation) -> Observation:
    """Return the observation of an end that a queue caused.

    A deactivation is a person's decision.
    """
    evicted = workload.condition("Evicted")
    if evicted is None or not evicted.true or seen.end is None:
        return seen
    outcome = "interrupted" if (evicted.reason or "").startswith("Deactivated") else "evicted"
    queue = job.metadata.labels[labels.QUEUE]
    words = f"taken back by its queue {queue} ({_said(evicted)})"
    return replace(seen, end=replace(seen.end, disruption=outcome, message=words))


def _said(condition: Condition) -> str:
    parts = (clean(condition.reason, 100), clean(condition.message))
    return ": ".join(part for part in parts if part) or "no reason given"
