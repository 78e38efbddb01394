"""Explanations from events and from the state of the namespace, where Jobs and pods do not say why.

All of it is read beside a look, within limits, and never makes a look fail.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
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

#: Seconds for which a Job may be without a pod, and a pod may be prepared, before its events are read.
JOB_S, POD_S = 2.0, 10.0
#: The most objects that are read one by one; for more, all events are read that may say why such an object waits.
ONE_BY_ONE = 4
_SELECTS = {
    "Job": "involvedObject.kind=Job,type=Warning,reason=FailedCreate",
    "Pod": "involvedObject.kind=Pod,type=Warning",
}
#: Seconds for them, of each kind.
EVENTS_S = 10.0


def job_is_wordless(job: Job, now: datetime) -> bool:
    """Return whether a Job without pods has waited long enough that its events should say why."""
    if job.spec.suspend or job.metadata.deletion_timestamp is not None or any(c.true for c in job.status.conditions):
        return False
    return _older(job.metadata.creation_timestamp, JOB_S, now)


def pod_is_wordless(pod: Pod, now: datetime) -> bool:
    """Return whether a pod has been in preparation on its node for long without a stated reason."""
    if ended(pod) or not pod.spec.node_name or not _older(pod.metadata.creation_timestamp, POD_S, now):
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
    """Events by the uid of their object, and the objects of which not all events were read."""

    about: Mapping[str, Sequence[Event]]
    unread: frozenset[str]

    def of(self, uids: Iterable[str]) -> Sequence[Event] | None:
        """Return the events about these objects; ``None`` when none was found and not all of their events were read."""
        asked = list(uids)
        found = [event for uid in asked for event in self.about.get(uid, ())]
        return found if found or self.unread.isdisjoint(asked) else None


def read_events(api: Api, of: Sequence[TaskObjects], now: datetime) -> Events:
    """All events about objects that wait without a stated reason, as far as ``EVENTS_S`` for each kind allow."""
    found: dict[str, list[Event]] = {}
    unread: set[str] = set()
    own = [one for one in of if one.has_job]
    wordless = {
        "Job": {one.job.metadata.uid for one in own if one.job and not one.pods and job_is_wordless(one.job, now)},
        "Pod": {pod.metadata.uid for one in own for pod in one.pods if pod_is_wordless(pod, now)},
    }
    for kind, selects in _SELECTS.items():
        uids = wordless[kind]
        selectors = [f"involvedObject.uid={uid}" for uid in sorted(uids)]

        def keep(event: Event, uids: Collection[str] = uids) -> None:
            if event.involved_object.uid in uids:
                found.setdefault(event.involved_object.uid or "", []).append(event)

        try:
            for selector in selectors if len(uids) <= ONE_BY_ONE else [selects]:
                api.listing(api.events_path(), Event, fields=selector, within_s=EVENTS_S, keep=keep)
        except ApiError as error:
            logger.info("why a %s waits is not read: %s", kind, error)
            unread |= uids
    return Events(found, frozenset(unread))


def with_namespace(
    namespace: CurrentNamespace, found: Sequence[TaskObjects], seen: list[Observation]
) -> list[Observation]:
    """The observations with the problem of the namespace, which is read only where a task disappears without our
    request.

    A list of a namespace that does not exist is empty and no error.
    """
    concerned = [place for place, (its, one) in enumerate(zip(found, seen, strict=True)) if _disappears(its, one)]
    words = _state(namespace) if concerned else None
    if words is None:
        return seen
    for place in concerned:
        one = seen[place]
        seen[place] = replace(one, reason="; ".join(part for part in (one.reason, words) if part))
    return seen


def _disappears(found: TaskObjects, seen: Observation) -> bool:
    if found.task.uid is None:
        return False
    if seen.phase in (Phase.ABSENT, Phase.GONE):
        return True
    return seen.phase is not Phase.ENDED and any(pod.metadata.deletion_timestamp is not None for pod in found.pods)


def _state(namespace: CurrentNamespace) -> str | None:
    """Return the problem of the namespace; ``None`` when there is none, or it is not known."""
    name = namespace.name
    try:
        found = namespace.found
    except ApiError as error:
        logger.info("the state of namespace %s is not read: %s", name, error)
        return None
    if found is None:
        return f"The namespace {name} does not exist any more"
    if not found.leaving:
        return None
    return (
        f"The namespace {name} is being deleted; its pods are held by our finalizer ({labels.FINALIZER}) until their "
        "ends are on record. If that does not happen, an administrator frees them: crawlctl cluster release"
    )


def _older(at: datetime | None, seconds: float, now: datetime) -> bool:
    return at is not None and (now - at).total_seconds() >= seconds
