"""Endings: the evidence of an ended pod, or of an ended Job without one, for ``domain.task.read_end``.

A container's exit code does not show who ended it: preemption, drain, eviction and a person's ``kubectl delete`` all
look like exit 137, 143 or the crawler's own exit code after SIGTERM, even 0. ``outside`` finds other causes.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.objects import Condition, Job, Pod, Terminated
from crawler_lifecycle.clusters.kubernetes.client.odd_values import known_time
from crawler_lifecycle.domain import bounds
from crawler_lifecycle.domain.clocks import may_be_before
from crawler_lifecycle.domain.task import INIT_FAILED, POD_FAILED, START_FAILURES, End, own_exit
from crawler_lifecycle.ports.runs import TaskRef

from .outside_causes import PodEnd, also_deleted, deleted_before, disruption, given_up_after_end, lost_container
from .predicates import (
    crawler_container,
    deadline_of,
    deleted_before_scheduling,
    ended_at,
    sidecars,
    verdict,
)
from .termination_message import Summary, clean, read_summary

#: Exit codes with which a runner says that it received a stop.
_TOLD = (11, 13)


def end_of_pod(task: TaskRef, job: Job | None, pod: Pod) -> tuple[End, Summary]:
    """The evidence of an end, and the crawler's last message."""
    done = crawler_container(pod).state.terminated
    summary = read_summary(done.message if done is not None else None)
    code, signal = _exit(pod, done, summary)
    by_itself = _by_itself(code, signal, summary)
    last = PodEnd(task, job, pod, done, ended_at(pod), by_itself, by_itself and summary.told is False)
    moved = disruption(last)
    reason = _reason(last, code, moved)
    end = End(
        exit_code=own_exit(code, summary.finish_reason, summary.own_exit),
        signal=signal,
        reason=reason,
        message=moved[1] if moved is not None else _message(pod, summary, reason, job),
        finished_at=_finished(pod, last.at, job),
        finish_reason=summary.finish_reason,
        runner=summary.runner or had_runner(job, pod),
        disruption=moved[0] if moved is not None else None,
        memory_limit=memory_limit(pod),
        by_itself=last.by_itself,
        stopped=_stopped(last, code, summary),
        if_not_stopped=also_deleted(last) if moved is None else None,
    )
    return end, summary


def end_of_job(job: Job, found: Condition) -> End:
    """The end of a Job that is over and has no pod any more: only the Job's own conditions are left.

    Under another controller a missing summary proves nothing: it never arrives here.
    """
    words = clean(found.message)
    told = f"{found.reason}: {words}" if found.reason and words else found.reason or words or "no reason given"
    there = job.other_controller
    gone = f"The Job says {found.type} ({told}); its pod is {'with ' + there if there is not None else 'gone'}"
    complete = found.type == "Complete"
    return End(
        exit_code=0 if complete else None,
        reason="Completed" if complete else found.reason,
        message=clean(found.message) if found.reason == "DeadlineExceeded" else gone,
        finished_at=known_time(job.status.completion_time if complete else None) or found.last_transition_time,
        runner=there is None and had_runner(job, None),
    )


def had_runner(job: Job | None, pod: Pod | None) -> bool:
    """Return whether our runner was around the crawler. Only a "false" on the pod, or else on the Job, denies it."""
    for holder in (pod, job):
        said = holder.metadata.annotations.get(labels.RUNNER) if holder is not None else None
        if said is not None:
            return said.strip().lower() != "false"
    return True


def memory_limit(pod: Pod) -> str | None:
    """The crawler's memory limit, as it was written."""
    found = next((c for c in pod.spec.containers if c.name == labels.CONTAINER), None)
    return found.memory_limit if found is not None else None


def _exit(pod: Pod, done: Terminated | None, summary: Summary) -> tuple[int | None, int | None]:
    """Exit code and signal. Kubernetes rarely names the signal: shells and runtimes report it as 128 + N."""
    if done is None and pod.status.phase == "Succeeded":
        return 0, None  # that phase is the cluster's word for the exit 0 of every container
    if done is None or lost_container(done):
        return None, None
    code, signal = bounds.exit_code(done.exit_code), bounds.exit_signal(done.signal) or summary.signal
    if signal is None and code is not None and 128 < code <= 128 + 64 and done.reason not in START_FAILURES:
        signal = code - 128
    if code == 137 and done.reason == "Error" and summary.finish_reason is not None and summary.exit is not None:
        # Killed in the instant between its last word and its exit: the word is the better evidence.
        return summary.exit, summary.signal
    return code, signal


def _by_itself(code: int | None, signal: int | None, summary: Summary) -> bool:
    """Return whether the runner says that the crawler ended by itself.

    After a stop this is so only if it had finished.
    """
    if not summary.runner or signal is not None or code is None or code in _TOLD:
        return False
    if summary.told and not (summary.finish_reason == "finished" and code == 0):
        return False
    return summary.finish_reason != "shutdown"


def _finished(pod: Pod, own: datetime | None, job: Job | None) -> datetime | None:
    """The cluster's own time of the end; where no container has one, the last time of anything that belongs to it."""
    if own is not None:
        return own
    found = [pod.condition("DisruptionTarget"), *(pod.denied(kind) for kind in ("ContainersReady", "Ready"))]
    times = [c.last_transition_time for c in found if c is not None]
    over = verdict(job)
    times += [pod.metadata.deletion_timestamp, over.last_transition_time if over is not None else None]
    return max(
        (at for time in times if (at := known_time(time)) is not None), default=known_time(pod.status.start_time)
    )


def _stopped(last: PodEnd, code: int | None, summary: Summary) -> bool | None:
    """Return whether the crawler ended as after our stop, after our deletion;

    ``None`` where that is not known. The node's clock may differ from the one that recorded our stop.
    """
    if last.untold:
        return False
    if not last.task.stopping or last.at is None:
        return None
    # Only a runner can say that the crawler ended by itself; the exit code alone may be its answer to SIGTERM.
    told = not summary.runner or summary.told or summary.finish_reason == "shutdown" or code in (*_TOLD, 137, 143)
    return (told and not last.by_itself and deleted_before(last.pod, last.at, by_itself=False)) or None


def _reason(last: PodEnd, code: int | None, moved: tuple[str, str] | None) -> str | None:
    """Kubernetes' word for the end, the most informative of several."""
    pod, done = last.pod, last.done
    said, own = done.reason if done is not None else None, pod.status.reason
    if said == "OOMKilled":
        return said
    if _deadline_ended_it(last):
        return "DeadlineExceeded"
    if _init_failure(pod) is not None and said in (None, "ContainerStatusUnknown"):
        return INIT_FAILED
    if own not in (None, "DeadlineExceeded") and (moved is not None or pod.condition("DisruptionTarget") is None):
        return own
    if code == 0 and pod.status.phase == "Failed" and not given_up_after_end(pod, last.at):
        return POD_FAILED
    return said or own or (pod.status.phase if deleted_before_scheduling(pod) is False else "Deleted")


def _deadline_ended_it(last: PodEnd) -> bool:
    """Return whether the deadline of Job or pod came before the end. A runner without a stop signal denies it."""
    pod, at, deadline = last.pod, last.at, deadline_of(last.job)
    if last.by_itself:
        return False
    if pod.status.reason == "DeadlineExceeded":
        beside = [
            known_time(s.state.terminated.finished_at) for s in pod.status.container_statuses if s.state.terminated
        ]
        longest = max((one - at for one in beside if one is not None and at is not None), default=timedelta())
        # A pod that the deadline ends gets one grace. A pod that ended earlier, by the same clock, was not ended by it.
        return longest <= timedelta(seconds=(pod.spec.termination_grace_period_seconds or 0) + 1)
    if deadline is None:
        return False
    if at is None or deadline.last_transition_time is None:
        return True
    # A Job ends its pods by deletion when it gives up: a pod that ended without one had ended before.
    return pod.metadata.deletion_timestamp is not None and may_be_before(deadline.last_transition_time, at)


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
    """The init container that failed, in words. A sidecar is ended with the pod, and keeps nothing from starting."""
    beside = sidecars(pod)
    for status in sorted(pod.status.init_container_statuses, key=lambda s: s.name):
        done = status.state.terminated
        if done is not None and done.exit_code != 0 and status.name not in beside:
            words = clean(done.message)
            told = f"{done.reason or 'Error'}, exit {done.exit_code}"
            return f"init container {status.name} failed ({told})" + (f": {words}" if words else "")
    return None


def _failed_beside(pod: Pod) -> Iterator[str]:
    """The failed containers other than the crawler's."""
    for status in sorted(pod.status.container_statuses, key=lambda s: s.name):
        done = status.state.terminated
        if status.name != labels.CONTAINER and done is not None and done.exit_code != 0:
            yield f"container {status.name} ended with exit {done.exit_code} ({done.reason or 'Error'})"
