"""Causes of an end outside of the crawler: the cluster, its node, a person. Pure; docs/kubernetes.md has the table.

The node dates the crawler's end, the API server dates a deletion, and some part of the cluster dates a mark for
disruption. Within the margin of two clocks (``domain.clocks``) these times do not show what came first. There the
runner's summary decides, and without one nothing is called a success.
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

#: A pod that runs for this long after it was marked for disruption was spared: the cluster forgets such marks.
STALE_AFTER = timedelta(minutes=2)
#: A deletion within this time after the end may be the node's own removal of the record (it unmounts volumes first), by
#: the clocks of both.
NODE_DELETES = timedelta(minutes=1)
#: A node's reason for a container that it lost sight of: its exit code is then made up.
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
#: A pod's own ``reason`` that is about its node, also on clusters that set no condition.
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
#: The beginning of a kubelet's message about a pod that it does not admit (1.28 on; before that, under pressure).
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
    """True if its runner says that it ended by itself, which decides within the margin of two clocks."""
    untold: bool = False
    """True if its runner says that it got no stop signal: all requests to end the pod came later, by any clock."""


def disruption(last: PodEnd) -> tuple[str, str] | None:
    """Outcome and words when the cluster or somebody else ended it; ``None`` when nobody did, or we requested it."""
    pod, job = last.pod, last.job
    if last.untold:
        return None
    mark = disruption_mark(pod)
    if mark is not None and _has_part(mark, last):
        kind, told = disruption_words(mark, pod)
        # The cluster gave the pod up: this does not show what happened on its node.
        unproved = last.done is None and mark.reason in _GIVEN_UP and pod.spec.node_name
        return kind, f"{told}; whether it still runs on {pod.spec.node_name} nobody can say" if unproved else told
    # A kubelet sets its mark and its reason together: both come too late, or neither.
    if not last.by_itself and (mark is None or mark.reason != _BY_KUBELET):
        found = _by_its_node(pod)
        if found is not None:
            return found
    if pod.status.reason == "Evicted" or asked_by_us(last.task, pod, job):
        return None
    # If the time of a deletion is lost, a mark that came after the end, or the Job's own count, explains it.
    explained = not deletion_is_dated(pod) and (mark is not None or _counted_before(job, pod))
    if deleted_before(pod, last.at, last.by_itself) and not explained:
        return "interrupted", who_deleted(job)
    if lost_container(last.done):
        return "interrupted", "its node lost sight of the container and cannot say how it ended"
    return None


def also_deleted(last: PodEnd) -> str | None:
    """Return who else may have deleted a pod that we asked to end: it is not known here whether our stop came in
    time.
    """
    if not last.task.stopping or last.untold or asked_by_us(None, last.pod, last.job):
        return None
    return who_deleted(last.job) if deleted_before(last.pod, last.at, last.by_itself) else None


def deleted_before(pod: Pod, at: datetime | None, by_itself: bool) -> bool:
    """Return whether the pod was deleted before the crawler in it ended (``at``).

    The stamp alone does not tell. It says when the grace is over, and the node's own delete at the end replaces it by
    one without grace, as for a pod that had ended before somebody deleted it. Unless the runner says that it got no
    stop signal, a stamp soon after the end counts as the node's.
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
    """Return who deleted a pod without our request, as far as the Job shows it."""
    if job is None:
        return "its Job was deleted by somebody else"
    if job.metadata.deletion_timestamp is not None:
        return "its Job is being deleted by somebody else"
    if job.spec.suspend:
        return "its Job was suspended by somebody else"
    return "its pod was deleted by somebody else"


def disruption_mark(pod: Pod) -> Condition | None:
    """The mark for disruption, unless the pod was spared: it continued, and was deleted later for another reason."""
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
    """Return whether the cluster gave the pod up only after its crawler had ended, and so set the pod to failed."""
    mark = pod.condition("DisruptionTarget")
    stamp = mark.last_transition_time if mark is not None and mark.reason in _GIVEN_UP else None
    return stamp is not None and at is not None and not surely_before(stamp, at)


def lost_container(done: Terminated | None) -> bool:
    """Return whether the node lost sight of the container, so that its exit code is made up."""
    return done is not None and done.reason in _FORGOTTEN and done.exit_code in (137, 255)


def _has_part(mark: Condition, last: PodEnd) -> bool:
    """Return whether a mark contributed to the end: it was set before, but not so long before that the pod was
    spared.
    """
    stamp, at = mark.last_transition_time, last.at
    if mark.reason == _BY_PODGC and last.pod.status.phase == "Succeeded":
        return False  # it marks containers without a recorded end, and calls them failed
    if stamp is None or at is None:
        return True
    if mark.reason == _BY_KUBELET:  # the clock that dates the end as well, in whole seconds
        return stamp < at or (stamp == at and not last.by_itself)
    if mark.reason == _BY_PODGC and last.done is not None and not lost_container(last.done):
        return surely_before(stamp, at)  # a node that reported an end was alive until then
    before = surely_before(stamp, at) if last.by_itself else may_be_before(stamp, at)
    return before and not _spared(mark, stamp, last.pod, at)


def _spared(mark: Condition, stamp: datetime, pod: Pod, at: datetime) -> bool:
    """Return whether the end came so long after the mark that the mark does not explain it."""
    if mark.reason in _GIVEN_UP or deletion_is_dated(pod):
        return False
    acted = pod.metadata.deletion_timestamp is not None or pod.status.reason is not None
    grace = timedelta(seconds=(pod.spec.termination_grace_period_seconds or 0) if acted else 0)
    return at - stamp > STALE_AFTER + CLOCK_MARGIN + grace


def _by_its_node(pod: Pod) -> tuple[str, str] | None:
    """Return what a pod's own reason says about its node: the node ended the pod, or did not admit it."""
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
    """Return whether the Job had counted the pod as succeeded before it was deleted: that deletion ended nothing."""
    asked, at = deletion_asked(pod), counted_at(job)
    if pod.status.phase != "Succeeded" or asked is None or at is None:
        return False
    return surely_before(at, asked)
