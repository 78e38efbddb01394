"""Explanations from events and from the namespace, for tasks whose Job and pod give no reason.

They are read during a poll, with limits on time and number. If the events or the namespace cannot
be read, the poll still succeeds.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.client.errors import ApiError
from crawler_lifecycle.clusters.kubernetes.client.objects import Event, Job, Pod
from crawler_lifecycle.domain.task import Observation, Phase

from .listing import TaskObjects
from .namespace_identity import CurrentNamespace
from .pod_waits import PULLS, pull_words
from .predicates import ended

logger = logging.getLogger(__name__)

#: Seconds for which a Job may have no pod, and for which a node may prepare a pod, before the
#: events about the Job or pod are read.
JOB_S = 2.0
POD_S = 10.0
#: The maximum number of objects whose events are read one by one. For more objects, one list of all
#: such events is read.
ONE_BY_ONE = 4
_SELECTS = {
    "Job": "involvedObject.kind=Job,type=Warning,reason=FailedCreate",
    "Pod": "involvedObject.kind=Pod,type=Warning",
}
#: The time limit for one list of events, in seconds.
EVENTS_S = 10.0


def job_is_wordless(job: Job, now: datetime) -> bool:
    """Return whether a Job has waited for a long time without a pod or a reason. If so, the events
    about the Job are read.
    """
    if (
        job.spec.suspend
        or job.metadata.deletion_timestamp is not None
        or any(c.true for c in job.status.conditions)
    ):
        return False
    return _older(job.metadata.creation_timestamp, JOB_S, now)


def pod_is_wordless(pod: Pod, now: datetime) -> bool:
    """Return whether a node has been preparing the pod for a long time without a reason. If so, the
    events about the pod are read.
    """
    if (
        ended(pod)
        or not pod.spec.node_name
        or not _older(pod.metadata.creation_timestamp, POD_S, now)
    ):
        return False
    main = pod.container(labels.CONTAINER)
    waiting = main.state.waiting if main is not None else None
    if main is not None and waiting is None:
        return False
    if waiting is None or waiting.reason in PULLS:
        return waiting is None or not pull_words(waiting.message)
    return waiting.reason in (None, "ContainerCreating", "PodInitializing") and not waiting.message


@dataclass(frozen=True, slots=True)
class Events:
    """The events by the uid of the object that they are about, and the uids of objects whose events
    could not all be read.
    """

    about: Mapping[str, Sequence[Event]]
    unread: frozenset[str]

    def of(self, task: TaskObjects) -> Sequence[Event] | None:
        """Return the events about the task's objects; ``None`` when no event was found but some
        events could not be read.
        """
        if not self.about and not self.unread:
            return ()
        asked = task.uids()
        found = [event for uid in asked for event in self.about.get(uid, ())]
        return found if found or self.unread.isdisjoint(asked) else None


def read_events(api: Api, of: Sequence[TaskObjects], now: datetime) -> Events:
    """Read the events about objects that are waiting without a stated reason.

    Each list may take ``EVENTS_S`` seconds.
    """
    found: dict[str, list[Event]] = {}
    unread: set[str] = set()
    own = [objects for objects in of if objects.has_job]
    wordless = {
        "Job": {
            objects.job.metadata.uid
            for objects in own
            if objects.job and not objects.pods and job_is_wordless(objects.job, now)
        },
        "Pod": {
            pod.metadata.uid for objects in own for pod in objects.pods if pod_is_wordless(pod, now)
        },
    }
    for kind, selects in _SELECTS.items():
        uids = wordless[kind]
        selectors = [f"involvedObject.uid={uid}" for uid in sorted(uids)]

        def keep(event: Event, uids: Collection[str] = uids) -> None:
            if event.involved_object.uid in uids:
                found.setdefault(event.involved_object.uid or "", []).append(event)

        try:
            for selector in selectors if len(uids) <= ONE_BY_ONE else [selects]:
                api.listing(
                    api.path("events"), Event, fields=selector, within_s=EVENTS_S, keep=keep
                )
        except ApiError as error:
            logger.info("the events of a waiting %s cannot be read: %s", kind, error)
            unread |= uids
    return Events(found, frozenset(unread))


def with_namespace(
    namespace: CurrentNamespace, found: Sequence[TaskObjects], seen: list[Observation]
) -> list[Observation]:
    """If the namespace has a problem, add it to the observations of tasks that disappear. Return
    all observations.

    The namespace is read only if a task disappears: a list of a namespace that does not exist is
    empty, not an error.
    """
    concerned = [
        number
        for number, (its, observation) in enumerate(zip(found, seen, strict=True))
        if _disappears(its, observation)
    ]
    words = _state(namespace) if concerned else None
    if words is None:
        return seen
    for number in concerned:
        one = seen[number]
        seen[number] = replace(one, reason="; ".join(part for part in (one.reason, words) if part))
    return seen


def _disappears(found: TaskObjects, seen: Observation) -> bool:
    if found.task.uid is None:
        return False
    if seen.phase in (Phase.ABSENT, Phase.GONE):
        return True
    return seen.phase is not Phase.ENDED and any(
        pod.metadata.deletion_timestamp is not None for pod in found.pods
    )


def _state(namespace: CurrentNamespace) -> str | None:
    """Return the problem with the namespace; ``None`` when there is no problem, or when the
    namespace cannot be read.
    """
    name = namespace.name
    try:
        found = namespace.found
    except ApiError as error:
        logger.info("the state of the namespace %s cannot be read: %s", name, error)
        return None
    if found is None:
        return f"The namespace {name} does not exist any more"
    if not found.leaving:
        return None
    return (
        f"The namespace {name} is being deleted; our finalizer ({labels.FINALIZER}) keeps its pods "
        "until their ends "
        "are recorded. If that does not happen, an administrator removes it with: crawlctl cluster "
        "release"
    )


def _older(at: datetime | None, seconds: float, now: datetime) -> bool:
    return at is not None and (now - at).total_seconds() >= seconds
