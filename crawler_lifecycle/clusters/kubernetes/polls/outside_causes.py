"""Causes outside the crawler that end it: the cluster, the node or somebody else (listed in
docs/kubernetes-outcomes.md).

Three clocks are involved: the node's for the crawler's end, the API server's for a deletion, and
another cluster component's for a disruption mark. If two times differ by less than the margin
between two clocks (``domain.clocks``), they do not show which event came first. Then the runner's
summary decides, and an end without a summary is not a success. The functions do no I/O.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from signal import SIGTERM
from typing import NamedTuple, TypeGuard

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.objects import (
    Condition,
    Job,
    Pod,
    TerminatedState,
)
from crawler_lifecycle.domain.clocks import CLOCK_MARGIN, may_be_before, surely_before
from crawler_lifecycle.domain.task import START_FAILURES
from crawler_lifecycle.ports.runs import TaskRef

from .predicates import (
    asked_by_us,
    counted_at,
    deleted_before_scheduling,
    deletion_asked,
    deletion_is_dated,
    never_began,
    taken_back,
)
from .termination_message import clean, read_summary

#: A disruption mark is ignored if its pod still ran for this long after the mark, as the cluster
#: does.
STALE_AFTER = timedelta(minutes=2)
#: A deletion within this time after the end may be the node's own removal of the pod, once the
#: volumes are unmounted. The time includes the difference of the clocks.
NODE_DELETES = timedelta(minutes=1)
#: The reasons that a node gives for a container when it does not know how the container ended. The
#: exit code is then invented.
_FORGOTTEN = ("ContainerStatusUnknown", "Unknown")
#: All reasons that kubelets and their runtimes give for the end of a container. Any other reason,
#: and its exit code, come from a provider that acts as a node (a virtual kubelet).
_OF_KUBELETS = (
    *_FORGOTTEN,
    *START_FAILURES,
    "Completed",
    "Error",
    "OOMKilled",
    "seccomp killed",
    None,
    "",
)
_MOVED = {
    "PreemptionByScheduler": ("evicted", "displaced by a pod of higher priority"),
    "EvictionByEvictionAPI": ("evicted", "evicted through the API, as when its node is drained"),
    "DeletionByTaintManager": (
        "interrupted",
        "deleted because its node does not respond or got a taint",
    ),
    "DeletionByDeviceTaintManager": (
        "interrupted",
        "deleted because a device of its node got a taint",
    ),
    "DeletionByPodGC": ("interrupted", "deleted because its node is gone"),
}
_BY_KUBELET = "TerminationByKubelet"
_BY_PODGC = "DeletionByPodGC"
#: The disruptions in which the cluster gives up a pod without a response from its node. They may
#: take any amount of time.
_GIVEN_UP = ("DeletionByTaintManager", _BY_PODGC)
#: The values of a pod's ``reason`` that concern its node. Clusters that set no condition use these
#: values.
_BY_NODE = {
    "Terminated": "its node was shut down",
    "Shutdown": "its node was shut down",
    "NodeShutdown": "its node was shut down",
    "NodeLost": "its node was lost",
    "Preempting": "displaced by a critical pod",
}
#: Reasons with which a restarted node refuses a pod that it executed before the restart.
#: ``OutOf…``, with the name of any resource, is such a reason, too. For a pod that never began,
#: every reason is a refusal.
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
#: How a kubelet's message about a refused pod begins: since 1.28, and before that for a lack of
#: resources.
_REJECTED = ("Pod was rejected", "The node had condition")


class PodEnd(NamedTuple):
    """The facts that we have about the end of a pod's crawler."""

    task: TaskRef
    job: Job | None
    pod: Pod
    done: TerminatedState | None
    at: datetime | None
    """The time of the crawler's end, by its node's clock."""
    by_itself: bool
    """True if the runner reports that the crawler ended on its own. This decides when the times of
    two clocks are too close to compare.
    """
    untold: bool
    """True if the runner reports that it received no stop signal. Then all requests to end the pod
    came after the end.
    """


def disruption(last: PodEnd) -> tuple[str, str] | None:
    """Return the outcome and its cause when the cluster or another party ended the crawler.

    Return ``None`` when the crawler ended on its own, or when we requested that it end.
    """
    pod = last.pod
    job = last.job
    if last.untold:
        return None
    mark = disruption_mark(pod)
    if mark is not None and _has_part(mark, last):
        kind, words = disruption_words(mark, pod)
        # The cluster gave up the pod. This does not show what happened on its node.
        unproved = last.done is None and mark.reason in _GIVEN_UP and pod.spec.node_name
        return (
            kind,
            f"{words}; it is unknown whether it is still running on {pod.spec.node_name}"
            if unproved
            else words,
        )
    # A kubelet sets its mark and its reason together. If the mark came after the end, the reason
    # came after the end, too.
    if not last.by_itself and (mark is None or mark.reason != _BY_KUBELET):
        found = _by_its_node(pod)
        if found is not None:
            return found
    if pod.status.reason == "Evicted" or asked_by_us(last.task, pod, job):
        return None
    # If the time of the deletion is lost, a later mark or the Job's count shows that it came after
    # the end. Otherwise, the exit code of a program that did not handle SIGTERM shows that it came
    # before.
    terminated = last.done is not None and last.done.exit_code == 128 + SIGTERM
    if deleted_before(pod, last.at, last.by_itself) and (
        deletion_is_dated(pod) or terminated or (mark is None and not _counted_before(job, pod))
    ):
        return "interrupted", who_deleted(job, pod)
    if invented(last.done):
        words = clean(last.done.message) or "no message"
        return "lost", f"the provider of its node reports {last.done.reason or 'nothing'}: {words}"
    if lost_container(last.done):
        return (
            "interrupted",
            "its node lost the state of the container and does not know how it ended",
        )
    return None


def also_deleted(last: PodEnd) -> str | None:
    """Return a sentence if somebody else may have deleted a pod before we stopped it; else
    ``None``."""
    if not last.task.stopping or last.untold or asked_by_us(None, last.pod, last.job):
        return None
    return (
        who_deleted(last.job, last.pod)
        if deleted_before(last.pod, last.at, last.by_itself)
        else None
    )


def deleted_before(pod: Pod, at: datetime | None, by_itself: bool) -> bool:
    """Return whether the pod was deleted before the crawler in it ended (``at``).

    The deletion timestamp alone does not show this. At first, the timestamp is the end of the grace
    period. When the pod has ended, its node deletes it without a grace period, and the time of this
    second deletion replaces the timestamp. A pod that ended before it was deleted has such a
    timestamp, too. So a timestamp soon after the end counts as the node's deletion. Then the result
    is true, unless the crawler ended on its own.
    """
    asked = deletion_asked(pod)
    if asked is None:
        return False
    if at is None or deleted_before_scheduling(pod):
        return True
    if deletion_is_dated(pod):
        return surely_before(asked, at) if by_itself else may_be_before(asked, at)
    return not by_itself and asked - at <= NODE_DELETES


def who_deleted(job: Job | None, pod: Pod) -> str:
    """Describe who deleted a pod without our request, as far as the Job shows this."""
    if job is None:
        return "its Job was deleted by somebody else"
    # The Job may have been deleted, too, but only after the pod.
    if job.spec.suspend or taken_back(job, pod):
        return who_suspended(job)
    if job.metadata.deletion_timestamp is not None:
        return "its Job is being deleted by somebody else"
    return "its pod was deleted by somebody else"


def who_suspended(job: Job) -> str:
    """Describe who suspended the Job of a running pod, as far as the Job shows this."""
    queue = job.metadata.labels.get(labels.QUEUE)
    return f"its Job was suspended by {f'its queue {queue} or ' if queue else ''}somebody else"


def disruption_mark(pod: Pod) -> Condition | None:
    """Return the disruption mark; ``None`` when there is no mark, or when the pod was deleted much
    later than the mark was set.
    """
    mark = pod.condition("DisruptionTarget")
    if mark is None or mark.last_transition_time is None or not deletion_is_dated(pod):
        return mark
    asked = deletion_asked(pod)
    return (
        None
        if asked is not None and asked - mark.last_transition_time > STALE_AFTER + CLOCK_MARGIN
        else mark
    )


def disruption_words(mark: Condition, pod: Pod) -> tuple[str, str]:
    """Return the outcome and the cause that follow from a condition ``DisruptionTarget``."""
    reason = mark.reason or ""
    detail = clean(mark.message)
    if reason == _BY_KUBELET:
        own = clean(pod.status.message) or detail
        if pod.status.reason == "Evicted":
            return "evicted", "evicted, because its node lacked a resource" + (
                f": {own}" if own else ""
            )
        shut = _BY_NODE.get(pod.status.reason or "", "ended by its node")
        return "interrupted", shut + (f": {own}" if own else "")
    if reason in _MOVED:
        kind, words = _MOVED[reason]
        return kind, f"{words} ({reason})"
    return "interrupted", f"disrupted ({reason or 'no reason given'})" + (
        f": {detail}" if detail else ""
    )


def given_up_after_end(pod: Pod, at: datetime | None) -> bool:
    """Return whether the cluster gave up the pod and set it to failed only after its crawler had
    ended.
    """
    mark = pod.condition("DisruptionTarget")
    stamp = mark.last_transition_time if mark is not None and mark.reason in _GIVEN_UP else None
    return stamp is not None and at is not None and not surely_before(stamp, at)


def lost_container(done: TerminatedState | None) -> bool:
    """Return whether the node lost the state of the container, so that the exit code is
    invented.
    """
    return invented(done) or (
        done is not None and done.reason in _FORGOTTEN and done.exit_code in (137, 255)
    )


def invented(done: TerminatedState | None) -> TypeGuard[TerminatedState]:
    """Return whether only a provider reports that the container ended, and how it ended.

    A runner's summary is better proof. Processes end with exit codes from 0 to 255.
    """
    if done is None or read_summary(done.message).runner:
        return False
    return done.exit_code < 0 or (done.reason not in _OF_KUBELETS and done.exit_code != 0)


def _has_part(mark: Condition, last: PodEnd) -> bool:
    """Return whether the mark may have caused the end: the mark came before the end, but not so
    early that it is ignored.
    """
    stamp = mark.last_transition_time
    at = last.at
    if mark.reason == _BY_PODGC and last.pod.status.phase == "Succeeded":
        # The pod garbage collector marks a pod on a lost node, and would have set the pod to failed
        # if the pod had not ended.
        return False
    if stamp is None or at is None:
        return True
    if mark.reason == _BY_KUBELET:  # the same clock gives the time of the end, in whole seconds
        return stamp < at or (stamp == at and not last.by_itself)
    if mark.reason == _BY_PODGC and last.done is not None and not lost_container(last.done):
        return surely_before(stamp, at)  # the node reported the end, so it was working until then
    before = surely_before(stamp, at) if last.by_itself else may_be_before(stamp, at)
    return before and not _spared(mark, stamp, last.pod, at)


def _spared(mark: Condition, stamp: datetime, pod: Pod, at: datetime) -> bool:
    """Return whether the end came so long after the mark that the mark cannot have caused the
    end.
    """
    if mark.reason in _GIVEN_UP or deletion_is_dated(pod):
        return False
    acted = pod.metadata.deletion_timestamp is not None or pod.status.reason is not None
    grace = timedelta(seconds=(pod.spec.termination_grace_period_seconds or 0) if acted else 0)
    return at - stamp > STALE_AFTER + CLOCK_MARGIN + grace


def _by_its_node(pod: Pod) -> tuple[str, str] | None:
    """Return the outcome and its cause when the pod's ``reason`` shows that its node ended or
    refused it.
    """
    reason = pod.status.reason
    if reason is None or reason == "DeadlineExceeded":
        return None
    words = clean(pod.status.message) or ""
    if reason == "Evicted" and "low on resource" in words:
        return "evicted", f"evicted: {words}"
    if reason in _BY_NODE:
        return "interrupted", _BY_NODE[reason] + (f": {words}" if words else "")
    refused = words.startswith(_REJECTED) or reason in _REFUSALS or reason.startswith("OutOf")
    # An eviction without a mark is the crawler's fault: it used more local storage than its limit.
    if refused or (reason != "Evicted" and pod.status.phase == "Failed" and never_began(pod)):
        return (
            "interrupted",
            f"the node {pod.spec.node_name or ''} refused it, {reason}: {words}".rstrip(": "),
        )
    return None


def _counted_before(job: Job | None, pod: Pod) -> bool:
    """Return whether the Job had counted the pod as succeeded before the deletion, which then did
    not end the crawler.
    """
    asked = deletion_asked(pod)
    at = counted_at(job)
    if pod.status.phase != "Succeeded" or asked is None or at is None:
        return False
    return surely_before(at, asked)
