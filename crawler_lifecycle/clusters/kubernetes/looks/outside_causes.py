"""Causes of an end outside of the crawler: the cluster, its node, a person. Pure; docs/kubernetes.md has the table.

The crawler's end is dated by its node, a deletion by the API server, a mark for disruption by whatever part of the
cluster set it. So within the margin of two clocks (``domain.clocks``) the stamps do not tell what came first. There the
runner's word decides, and where no runner speaks nothing is called a success.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from crawler_lifecycle.clusters.kubernetes.client.objects import Condition, Job, Pod, Terminated
from crawler_lifecycle.domain.clocks import CLOCK_MARGIN, may_be_before, surely_before
from crawler_lifecycle.ports.runs import TaskRef

from .predicates import (
    asked_by_us,
    counted_at,
    deleted_before_scheduling,
    deletion_asked,
    deletion_is_dated,
    never_began,
)
from .termination_message import clean

#: A pod that carries on for this long after it was marked for disruption was spared: the cluster forgets such marks.
STALE_AFTER = timedelta(minutes=2)
#: A node deletes the record of a pod that was deleted within this time after its end (volumes are unmounted first), as
#: the stamps of the two tell it.
NODE_DELETES = timedelta(minutes=1)
#: What a node says that has lost sight of a container: its exit code is then made up.
_FORGOTTEN = ("ContainerStatusUnknown", "Unknown")
_MOVED = {
    "PreemptionByScheduler": ("evicted", "displaced by a pod of higher priority"),
    "EvictionByEvictionAPI": ("evicted", "evicted through the API, as when its node is drained"),
    "DeletionByTaintManager": ("interrupted", "deleted because its node does not answer or got a taint"),
    "DeletionByDeviceTaintManager": ("interrupted", "deleted because a device of its node got a taint"),
    "DeletionByPodGC": ("interrupted", "deleted because its node is gone"),
}
_BY_KUBELET, _BY_PODGC = "TerminationByKubelet", "DeletionByPodGC"
#: The disruptions that end a pod's record without its node, however long that takes.
_GIVEN_UP = ("DeletionByTaintManager", _BY_PODGC)
#: A pod's own ``reason`` that tells of its node, also on clusters that set no condition.
_BY_NODE = {
    "Terminated": "its node was shut down",
    "Shutdown": "its node was shut down",
    "NodeShutdown": "its node was shut down",
    "NodeLost": "its node was lost",
    "Preempting": "displaced by a critical pod",
}
#: Reasons by which a node that was started again refuses a pod that it had executed; with OutOf… of every resource. Of
#: a pod that never began any reason is a refusal.
_REFUSALS = (
    "AppArmor",
    "InitContainerRestartPolicyForbidden",
    "InvalidNodeInfo",
    "NodeAffinity",
    "NodeName",
    "NodePorts",
    "PodFeatureUnsupported",
    "PodOSNotSupported",
    "PodOSSelectorNodeLabelDoesNotMatch",
    "SMTAlignmentError",
    "SysctlForbidden",
    "TaintToleration",
    "TopologyAffinityError",
    "UnexpectedAdmissionError",
    "UnexpectedPredicateFailureType",
)
#: How a kubelet begins whatever it says of a pod that it does not admit (1.28 on; before that, under pressure).
_REJECTED = ("Pod was rejected", "The node had condition")


@dataclass(frozen=True, slots=True)
class PodEnd:
    """The known facts about the end of a pod's crawler."""

    task: TaskRef
    job: Job | None
    pod: Pod
    done: Terminated | None
    at: datetime | None
    """The time of its end, by its node's clock."""
    by_itself: bool
    """Its runner's word is that it ended by itself, which decides within the margin of two clocks."""
    untold: bool = False
    """Its runner says that nobody had told it to stop: whatever came to its pod came later, by any clock."""


def disruption(last: PodEnd) -> tuple[str, str] | None:
    """Outcome and words when the cluster or somebody else ended it; ``None`` when nobody did, or we asked."""
    pod, job = last.pod, last.job
    if last.untold:
        return None
    mark = disruption_mark(pod)
    if mark is not None and _has_part(mark, last):
        kind, told = disruption_words(mark, pod)
        # The cluster gave the pod up: that proves nothing about what its node does.
        unproved = last.done is None and mark.reason in _GIVEN_UP and pod.spec.node_name
        return kind, f"{told}; whether it still runs on {pod.spec.node_name} nobody can say" if unproved else told
    # A kubelet sets its mark and its reason together: what came too late does so with both.
    if not last.by_itself and (mark is None or mark.reason != _BY_KUBELET):
        found = _by_its_node(pod)
        if found is not None:
            return found
    if pod.status.reason == "Evicted" or asked_by_us(last.task, pod, job):
        return None
    # Where the time of a deletion is lost, a mark that came after the end, or the Job's own count, explains it.
    explained = not deletion_is_dated(pod) and (mark is not None or _counted_before(job, pod))
    if deleted_before(pod, last.at, last.by_itself) and not explained:
        return "interrupted", who_deleted(job)
    if lost_container(last.done):
        return "interrupted", "its node lost sight of the container and cannot say how it ended"
    return None


def also_deleted(last: PodEnd) -> str | None:
    """Tell who else may have deleted a pod whose end we asked for: whether our stop came in time is not known here."""
    if not last.task.stopping or last.untold or asked_by_us(None, last.pod, last.job):
        return None
    return who_deleted(last.job) if deleted_before(last.pod, last.at, last.by_itself) else None


def deleted_before(pod: Pod, at: datetime | None, by_itself: bool) -> bool:
    """Tell whether the pod was deleted before the crawler in it ended (``at``).

    The stamp alone does not tell. It says when the grace is over, and the node's own delete at the end replaces it by
    one without grace, just like that of a pod which was over when somebody deleted it. Where the runner does not say
    that nobody told it to stop, a stamp soon after the end counts as the node's.
    """
    asked = deletion_asked(pod)
    if asked is None:
        return False
    if at is None or deleted_before_scheduling(pod):
        return True
    if deletion_is_dated(pod):
        return surely_before(asked, at) if by_itself else may_be_before(asked, at)
    return not by_itself and asked - at <= NODE_DELETES


def who_deleted(job: Job | None) -> str:
    """Tell who deleted a pod whose deletion we did not ask for, as far as the Job tells."""
    if job is None:
        return "its Job was deleted by somebody else"
    if job.metadata.deletion_timestamp is not None:
        return "its Job is being deleted by somebody else"
    if job.spec.suspend:
        return "its Job was suspended by somebody else"
    return "its pod was deleted by somebody else"


def disruption_mark(pod: Pod) -> Condition | None:
    """The mark for disruption, unless the pod was spared: it carried on, and was deleted later for another reason."""
    mark = pod.condition("DisruptionTarget")
    asked = deletion_asked(pod) if deletion_is_dated(pod) else None
    if mark is None or asked is None or mark.last_transition_time is None:
        return mark
    return None if asked - mark.last_transition_time > STALE_AFTER + CLOCK_MARGIN else mark


def disruption_words(mark: Condition, pod: Pod) -> tuple[str, str]:
    """Outcome and words of a condition ``DisruptionTarget``."""
    reason, detail = mark.reason or "", clean(mark.message)
    if reason == _BY_KUBELET:
        own = clean(pod.status.message) or detail
        if pod.status.reason == "Evicted":
            return "evicted", "evicted, its node ran short" + (f": {own}" if own else "")
        shut = _BY_NODE.get(pod.status.reason or "", "ended by its node")
        return "interrupted", shut + (f": {own}" if own else "")
    if reason in _MOVED:
        kind, words = _MOVED[reason]
        return kind, f"{words} ({reason})"
    return "interrupted", f"disrupted ({reason or 'no reason given'})" + (f": {detail}" if detail else "")


def given_up_after_end(pod: Pod, at: datetime | None) -> bool:
    """Tell whether the cluster gave the pod up only after its crawler had ended, and so wrote that the pod failed."""
    mark = pod.condition("DisruptionTarget")
    stamp = mark.last_transition_time if mark is not None and mark.reason in _GIVEN_UP else None
    return stamp is not None and at is not None and not surely_before(stamp, at)


def lost_container(done: Terminated | None) -> bool:
    """Tell whether the node lost sight of the container, so that its exit code is made up."""
    return done is not None and done.reason in _FORGOTTEN and done.exit_code in (137, 255)


def _has_part(mark: Condition, last: PodEnd) -> bool:
    """Tell whether a mark has a part in the end: set before it, and not so long before that the pod was spared."""
    stamp, at = mark.last_transition_time, last.at
    if mark.reason == _BY_PODGC and last.pod.status.phase == "Succeeded":
        return False  # it marks what has no end yet, and calls that failed
    if stamp is None or at is None:
        return True
    if mark.reason == _BY_KUBELET:  # the clock that dates the end as well, in whole seconds
        return stamp < at or (stamp == at and not last.by_itself)
    if mark.reason == _BY_PODGC and last.done is not None and not lost_container(last.done):
        return surely_before(stamp, at)  # a node that told of an end was there before it was gone
    before = surely_before(stamp, at) if last.by_itself else may_be_before(stamp, at)
    return before and not _spared(mark, stamp, last.pod, at)


def _spared(mark: Condition, stamp: datetime, pod: Pod, at: datetime) -> bool:
    """Tell whether it ended so long after the mark that the mark does not explain it."""
    if mark.reason in _GIVEN_UP or deletion_is_dated(pod):
        return False
    acted = pod.metadata.deletion_timestamp is not None or pod.status.reason is not None
    grace = timedelta(seconds=(pod.spec.termination_grace_period_seconds or 0) if acted else 0)
    return at - stamp > STALE_AFTER + CLOCK_MARGIN + grace


def _by_its_node(pod: Pod) -> tuple[str, str] | None:
    """Return what a pod's own reason says of its node: the end of the pod, or that the node did not take it."""
    reason, words = pod.status.reason, clean(pod.status.message) or ""
    if reason is None or reason == "DeadlineExceeded":
        return None
    if reason == "Evicted" and "low on resource" in words:
        return "evicted", f"evicted: {words}"
    if reason in _BY_NODE:
        return "interrupted", _BY_NODE[reason] + (f": {words}" if words else "")
    refused = words.startswith(_REJECTED) or reason in _REFUSALS or reason.startswith("OutOf")
    # An eviction without a mark is the crawler's fault: it used more local storage than it may.
    if refused or (reason != "Evicted" and pod.status.phase == "Failed" and never_began(pod)):
        return "interrupted", f"the node {pod.spec.node_name or ''} refused it, {reason}: {words}".rstrip(": ")
    return None


def _counted_before(job: Job | None, pod: Pod) -> bool:
    """Tell whether the Job had counted the pod as succeeded before it was deleted: that deletion ended nothing."""
    asked, at = deletion_asked(pod), counted_at(job)
    if pod.status.phase != "Succeeded" or asked is None or at is None:
        return False
    return surely_before(at, asked)
