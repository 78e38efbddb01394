"""From an ended pod, or an ended Job without one, to the evidence that ``domain.task.read_end`` judges.

A container's exit alone does not tell who ended it: preemption, drain, eviction and a person's ``kubectl delete`` all
look like exit 137, 143 or whatever the crawler makes of SIGTERM, 0 included. Only the pod's condition
``DisruptionTarget``, its deletion stamp and its own ``reason`` tell, and only if they came before the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from crawler_lifecycle.domain.task import INIT_FAILED, POD_FAILED, START_FAILURES, End
from crawler_lifecycle.ports import TaskRef

from . import labels
from .facts import asked_by_us, deadline_of, deletion_asked, main_of, real, unborn, verdict
from .objects import Condition, Job, Pod, Terminated
from .summary import Summary, clean, read_summary

#: A pod that carries on for this long after it was marked for disruption was spared: the cluster forgets such marks.
STALE_AFTER = timedelta(minutes=2)
#: A node deletes the record of a pod that was deleted within this time after its end (volumes are unmounted first).
NODE_DELETES = timedelta(minutes=1)
#: Exit codes by which a runner says that it was told to stop.
_TOLD = (11, 13)
#: What a node says that has lost sight of a container: its exit code is then made up.
_FORGOTTEN = ("ContainerStatusUnknown", "Unknown")
_MOVED = {
    "PreemptionByScheduler": ("evicted", "displaced by a pod of higher priority"),
    "EvictionByEvictionAPI": ("evicted", "evicted through the API, as when its node is drained"),
    "DeletionByTaintManager": ("interrupted", "deleted because its node does not answer or got a taint"),
    "DeletionByDeviceTaintManager": ("interrupted", "deleted because a device of its node got a taint"),
    "DeletionByPodGC": ("interrupted", "deleted because its node is gone"),
}
#: The disruptions that end a pod's record without its node.
_GIVEN_UP = ("DeletionByTaintManager", "DeletionByPodGC")
#: A pod's own ``reason`` that tells of its node, also on clusters that set no condition.
_BY_NODE = {
    "Terminated": "its node was shut down",
    "Shutdown": "its node was shut down",
    "NodeShutdown": "its node was shut down",
    "NodeLost": "its node was lost",
    "Preempting": "displaced by a critical pod",
}
#: Reasons by which a node refuses a pod before anything of it ran; those with a resource's name begin with OutOf.
_REFUSALS = (
    "NodeAffinity",
    "NodeName",
    "NodePorts",
    "UnexpectedAdmissionError",
    "PodOSNotSupported",
    "TopologyAffinityError",
)


def end_of_pod(task: TaskRef, job: Job | None, pod: Pod) -> tuple[End, Summary]:
    """The evidence of an end, and what the crawler's last word says beside it."""
    main = main_of(pod)
    done = main.state.terminated if main is not None else None
    summary = read_summary(done.message if done is not None else None)
    code, signal = _exit(done, summary)
    own = real(done.finished_at) if done is not None else None
    by_itself = summary.runner and signal is None and code is not None and code not in _TOLD
    by_itself = by_itself and summary.finish_reason != "shutdown"
    moved = _disruption(task, job, pod, own, by_itself)
    reason = _reason(pod, job, done, code, own, moved)
    end = End(
        exit_code=code,
        signal=signal,
        reason=reason,
        message=moved[1] if moved is not None else _message(pod, summary, reason, job),
        finished_at=_finished(pod, own, job),
        finish_reason=summary.finish_reason,
        runner=summary.runner or had_runner(job, pod),
        disruption=moved[0] if moved is not None else None,
        memory_limit=memory_limit(pod),
        stopped=_stopped(task, pod, own, code, summary) or None,
        if_not_stopped=_also_deleted(task, job, pod, own, by_itself) if moved is None else None,
    )
    return end, summary


def end_of_job(job: Job, found: Condition) -> End:
    """The end of a Job that is over and has no pod any more: all that is left is the Job's own word."""
    words = clean(found.message)
    told = f"{found.reason}: {words}" if found.reason and words else found.reason or words or "no reason given"
    gone = f"The Job says {found.type} ({told}); its pod is gone"
    complete = found.type == "Complete"
    return End(
        exit_code=0 if complete else None,
        reason="Completed" if complete else found.reason,
        message=clean(found.message) if found.reason == "DeadlineExceeded" else gone,
        finished_at=real(job.status.completion_time if complete else None) or real(found.last_transition_time),
        runner=had_runner(job, None),
    )


def had_runner(job: Job | None, pod: Pod | None) -> bool:
    """Whether our runner was around the crawler. Only an explicit "false" on the pod, or else on the Job, denies it."""
    for holder in (pod, job):
        said = holder.metadata.annotations.get(labels.RUNNER) if holder is not None else None
        if said is not None:
            return said.strip().lower() != "false"
    return True


def memory_limit(pod: Pod) -> str | None:
    """The crawler's memory limit, as it was written."""
    found = next((c for c in pod.spec.containers if c.name == labels.CONTAINER), None)
    return found.memory_limit if found is not None else None


def moving(found: Condition, pod: Pod) -> tuple[str, str]:
    """Outcome and words of a condition ``DisruptionTarget``."""
    reason, detail = found.reason or "", clean(found.message)
    if reason == "TerminationByKubelet":
        own = clean(pod.status.message) or detail
        if pod.status.reason == "Evicted":
            return "evicted", "evicted, its node ran short" + (f": {own}" if own else "")
        shut = _BY_NODE.get(pod.status.reason or "", "ended by its node")
        return "interrupted", shut + (f": {own}" if own else "")
    if reason in _MOVED:
        kind, words = _MOVED[reason]
        return kind, f"{words} ({reason})"
    return "interrupted", f"disrupted ({reason or 'no reason given'})" + (f": {detail}" if detail else "")


def _exit(done: Terminated | None, summary: Summary) -> tuple[int | None, int | None]:
    """Exit code and signal. Kubernetes rarely names the signal: 128 + N is how a shell and a runtime tell it."""
    if done is None or (done.reason in _FORGOTTEN and done.exit_code in (137, 255)):
        return None, None
    code, signal = done.exit_code, done.signal or summary.signal
    if signal is None and 128 < code <= 128 + 64 and done.reason not in START_FAILURES:
        signal = code - 128
    if code == 137 and done.reason == "Error" and summary.finish_reason is not None and summary.exit is not None:
        # Killed in the instant between its last word and its exit: the word is the better evidence.
        return summary.exit, summary.signal
    return code, signal


def _finished(pod: Pod, own: datetime | None, job: Job | None) -> datetime | None:
    """The cluster's own time of the end; where no container has one, the last time of anything that belongs to it."""
    if own is not None:
        return own
    found = [pod.condition(kind) for kind in ("DisruptionTarget", "ContainersReady", "Ready")]
    times = [c.last_transition_time for c in found if c is not None]
    over = verdict(job)
    times += [pod.metadata.deletion_timestamp, over.last_transition_time if over is not None else None]
    return max((at for time in times if (at := real(time)) is not None), default=real(pod.status.start_time))


def _disruption(
    task: TaskRef, job: Job | None, pod: Pod, finished: datetime | None, by_itself: bool
) -> tuple[str, str] | None:
    """Outcome and words when the cluster or somebody else ended it; ``None`` when nobody did, or we asked.

    ``finished`` is the container's own time; ``by_itself``: its runner says that nobody told it to stop.
    """
    status, main = pod.status, main_of(pod)
    done = main.state.terminated if main is not None else None
    target = pod.condition("DisruptionTarget")
    if target is not None and target.true:
        if not _came_before(target.last_transition_time, finished, pod, by_itself):
            return None
        kind, told = moving(target, pod)
        # The cluster gave the pod up: that proves nothing about what its node does.
        unproved = done is None and target.reason in _GIVEN_UP and pod.spec.node_name
        return kind, f"{told}; whether it still runs on {pod.spec.node_name} nobody can say" if unproved else told
    if status.reason == "Evicted":
        short = clean(status.message)
        # Its own limit of local storage is the crawler's fault, and then no condition is set.
        return ("evicted", f"evicted: {short}") if short and "low on resource" in short else None
    if status.reason in _BY_NODE:
        words = clean(status.message)
        return "interrupted", _BY_NODE[status.reason] + (f": {words}" if words else "")
    if status.reason in _REFUSALS or (status.reason or "").startswith("OutOf"):
        words = clean(status.message) or ""
        return "interrupted", f"the node {pod.spec.node_name or ''} refused it, {status.reason}: {words}".rstrip(": ")
    if asked_by_us(task, pod, job):
        return None
    if _deleted_before(pod, finished, by_itself):
        return "interrupted", who_deleted(job)
    if done is not None and done.reason in _FORGOTTEN and done.exit_code in (137, 255):
        return "interrupted", "its node lost sight of the container and cannot say how it ended"
    return None


def _also_deleted(task: TaskRef, job: Job | None, pod: Pod, finished: datetime | None, by_itself: bool) -> str | None:
    """Who else may have deleted a pod whose end we asked for: whether our stop came in time is not known here."""
    if not task.stopping or pod.status.reason == "DeadlineExceeded" or deadline_of(job) is not None:
        return None
    return who_deleted(job) if _deleted_before(pod, finished, by_itself) else None


def _came_before(asked: datetime | None, finished: datetime | None, pod: Pod, by_itself: bool) -> bool:
    """Whether a mark for disruption has a part in the end: set before it, and not so long before that it was spared.

    Stamps have whole seconds. Within one the crawler's own word decides.
    """
    if asked is None or finished is None:
        return True
    if asked > finished or (asked == finished and by_itself):
        return False
    acted = pod.metadata.deletion_timestamp is not None or pod.status.reason is not None
    return acted or finished - asked <= STALE_AFTER


def _deleted_before(pod: Pod, finished: datetime | None, by_itself: bool) -> bool:
    """Whether the pod was deleted before the crawler in it ended.

    The stamp alone does not tell. It says when the grace is over, and the node's own delete at the end replaces it by
    one without grace, just like that of a pod which was over when somebody deleted it. Where the runner does not say
    that nobody told it to stop, a stamp soon after the end counts as the node's.
    """
    asked, grace = deletion_asked(pod), pod.metadata.deletion_grace_period_seconds or 0
    if asked is None:
        return False
    if finished is None or unborn(pod):
        return True
    if grace > 0:
        return asked < finished or (asked == finished and not by_itself)
    return not by_itself and asked - finished <= NODE_DELETES


def _stopped(task: TaskRef, pod: Pod, own: datetime | None, code: int | None, summary: Summary) -> bool:
    """Whether it ended as what is told to stop does, after a deletion that was ours.

    The node's clock need not agree with the one that our stop was recorded by.
    """
    if not task.stopping or own is None:
        return False
    # Only a runner can say that it ended by itself; the exit code alone may be the crawler's answer to SIGTERM.
    told = not summary.runner or summary.finish_reason == "shutdown" or code in (*_TOLD, 137, 143)
    return told and _deleted_before(pod, own, by_itself=False)


def who_deleted(job: Job | None) -> str:
    """Who deleted a pod whose deletion we did not ask for, as far as the Job tells."""
    if job is None:
        return "its Job was deleted by somebody else"
    if job.metadata.deletion_timestamp is not None:
        return "its Job is being deleted by somebody else"
    if job.spec.suspend:
        return "its Job was suspended by somebody else"
    return "its pod was deleted by somebody else"


def _reason(
    pod: Pod,
    job: Job | None,
    done: Terminated | None,
    code: int | None,
    finished: datetime | None,
    moved: tuple[str, str] | None,
) -> str | None:
    """Kubernetes' one word for the end, the most telling of the several there are."""
    said, own = done.reason if done is not None else None, pod.status.reason
    if said == "OOMKilled":
        return said
    deadline = deadline_of(job)
    passed = deadline.last_transition_time if deadline is not None else None
    if own == "DeadlineExceeded" or (deadline is not None and _came_before(passed, finished, pod, code == 0)):
        return "DeadlineExceeded"
    if _init_failure(pod) is not None and said in (None, "ContainerStatusUnknown"):
        return INIT_FAILED
    if own is not None and (moved is not None or pod.condition("DisruptionTarget") is None):
        return own
    if code == 0 and pod.status.phase == "Failed":
        return POD_FAILED
    return said or own or (pod.status.phase if unborn(pod) is False else "Deleted")


def _message(pod: Pod, summary: Summary, reason: str | None, job: Job | None) -> str | None:
    """The evidence in words where nothing disrupted it."""
    if reason == "DeadlineExceeded":
        deadline = deadline_of(job)
        return clean(deadline.message if deadline is not None else pod.status.message)
    if reason == INIT_FAILED:
        return _init_failure(pod)
    if reason == POD_FAILED:
        return "; ".join(_failed_beside(pod)) or clean(pod.status.message)
    if summary.runner:
        return summary.message or clean(pod.status.message)
    return clean(pod.status.message) or summary.message


def _init_failure(pod: Pod) -> str | None:
    """The init container that failed, in words."""
    for status in sorted(pod.status.init_container_statuses, key=lambda s: s.name):
        done = status.state.terminated
        if done is not None and done.exit_code != 0:
            words = clean(done.message)
            told = f"{done.reason or 'Error'}, exit {done.exit_code}"
            return f"init container {status.name} failed ({told})" + (f": {words}" if words else "")
    return None


def _failed_beside(pod: Pod) -> Iterator[str]:
    """The containers beside the crawler's that failed."""
    for status in sorted(pod.status.container_statuses, key=lambda s: s.name):
        done = status.state.terminated
        if status.name != labels.CONTAINER and done is not None and done.exit_code != 0:
            yield f"container {status.name} ended with exit {done.exit_code} ({done.reason or 'Error'})"
