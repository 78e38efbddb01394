"""Evidence for ``domain.task.read_end``, from an ended pod or from an ended Job without a pod.

A container's exit code does not show who ended the container. After a preemption, drain, eviction
or manual ``kubectl delete``, the exit code may be 137, 143, or the crawler's own exit code after
SIGTERM, even 0. ``outside_causes`` finds such causes.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.objects import (
    Condition,
    Job,
    Pod,
    TerminatedState,
)
from crawler_lifecycle.clusters.kubernetes.client.odd_values import known_time
from crawler_lifecycle.domain import bounds
from crawler_lifecycle.domain.clocks import may_be_before
from crawler_lifecycle.domain.task import INIT_FAILED, POD_FAILED, START_FAILURES, End, told_exit
from crawler_lifecycle.ports.runs import TaskRef

from .outside_causes import (
    PodEnd,
    also_deleted,
    deleted_before,
    disruption,
    given_up_after_end,
    lost_container,
)
from .predicates import (
    crawler_container,
    deadline_of,
    deleted_before_scheduling,
    sidecars,
    verdict,
)
from .termination_message import Summary, clean, read_summary

#: Exit codes with which a runner reports that it received a stop request.
_STOPPED = (11, 13)


def end_of_pod(task: TaskRef, job: Job | None, pod: Pod) -> tuple[End, Summary]:
    """Return the evidence of the pod's end, and the content of its termination message."""
    done = crawler_container(pod).state.terminated
    summary = read_summary(done.message if done is not None else None)
    code, signal = _exit(pod, done, summary)
    by_itself = _by_itself(code, signal, summary)
    at = known_time(done.finished_at) if done is not None else None
    last = PodEnd(task, job, pod, done, at, by_itself, by_itself and summary.told is False)
    moved = disruption(last)
    reason = _reason(last, code, moved)
    runner = summary.runner or had_runner(job, pod)
    told = summary.told is True
    own, verdict = told_exit(code, summary.exit, summary.own_exit, told) if runner else (code, None)
    end = End(
        exit_code=own,
        verdict=verdict,
        told=told,
        signal=signal,
        reason=reason,
        message=moved[1] if moved is not None else _message(pod, summary, reason, job),
        finished_at=_finished(pod, last.at, job),
        finish_reason=summary.finish_reason,
        runner=runner,
        disruption=moved[0] if moved is not None else None,
        memory_limit=memory_limit(pod),
        by_itself=last.by_itself,
        stopped=_stopped(last, code, summary),
        if_not_stopped=also_deleted(last) if moved is None else None,
    )
    return end, summary


def end_of_job(job: Job, found: Condition) -> End:
    """Return the end of a Job that has ended and has no pod: only the Job's own conditions are
    evidence.

    Another controller may run the pod on another cluster. Then the pod's summary is never on this
    cluster, and its absence proves nothing.
    """
    words = clean(found.message)
    why = (
        f"{found.reason}: {words}"
        if found.reason and words
        else found.reason or words or "no reason given"
    )
    there = job.other_controller
    gone = (
        f"The Job reports {found.type} ({why}); its pod is "
        f"{'with ' + there if there is not None else 'gone'}"
    )
    complete = found.type == "Complete"
    return End(
        exit_code=0 if complete else None,
        reason="Completed" if complete else found.reason,
        message=clean(found.message) if found.reason == "DeadlineExceeded" else gone,
        finished_at=known_time(job.status.completion_time if complete else None)
        or found.last_transition_time,
        runner=there is None and had_runner(job, None),
    )


def had_runner(job: Job | None, pod: Pod | None) -> bool:
    """Return whether our runner started the crawler: true unless the pod, or else the Job, has the
    annotation "false".
    """
    for holder in (pod, job):
        value = holder.metadata.annotations.get(labels.RUNNER) if holder is not None else None
        if value is not None:
            return value.strip().lower() != "false"
    return True


def memory_limit(pod: Pod) -> str | None:
    """Return the crawler's memory limit as a Kubernetes quantity, unchanged."""
    found = [container for container in pod.spec.containers if container.name == labels.CONTAINER]
    return found[0].memory_limit if found else None


def _exit(
    pod: Pod, done: TerminatedState | None, summary: Summary
) -> tuple[int | None, int | None]:
    """Return the exit code and signal.

    Kubernetes rarely names the signal: shells and runtimes report it as 128 + N.
    """
    if done is None and pod.status.phase == "Succeeded":
        return 0, None  # this phase means that every container ended with exit code 0
    if done is None or lost_container(done):
        return None, None
    code = bounds.exit_code(done.exit_code)
    signal = bounds.exit_signal(done.signal) or summary.signal
    if (
        signal is None
        and code is not None
        and 128 < code <= 128 + 64
        and done.reason not in START_FAILURES
    ):
        signal = code - 128 if code != summary.own_exit else None
    if (
        code == 137
        and done.reason == "Error"
        and summary.finish_reason is not None
        and summary.exit is not None
    ):
        # The runner was killed after it had written its summary and before it exited. The summary
        # is better evidence than the exit code.
        return summary.exit, summary.signal
    return code, signal


def _by_itself(code: int | None, signal: int | None, summary: Summary) -> bool:
    """Return whether the runner reports that the crawler ended on its own.

    After a stop request, this is true only if the crawler had finished.
    """
    if not summary.runner or signal is not None or code is None:
        return False
    if summary.told is False:
        return True
    if code in _STOPPED:
        return False
    if summary.told and not (summary.finish_reason == "finished" and code == 0):
        return False
    return summary.finish_reason != "shutdown"


def _finished(pod: Pod, own: datetime | None, job: Job | None) -> datetime | None:
    """Return the time of the end.

    If no container has an end time, return the latest time in the status of the pod and the Job.
    """
    if own is not None:
        return own
    found = [
        pod.condition("DisruptionTarget"),
        *(pod.denied(kind) for kind in ("ContainersReady", "Ready")),
    ]
    times = [c.last_transition_time for c in found if c is not None]
    over = verdict(job)
    times += [
        pod.metadata.deletion_timestamp,
        over.last_transition_time if over is not None else None,
    ]
    return max(
        (at for time in times if (at := known_time(time)) is not None),
        default=known_time(pod.status.start_time),
    )


def _stopped(last: PodEnd, code: int | None, summary: Summary) -> bool | None:
    """Return whether our stop ended the crawler; ``None`` when this is not known.

    The clock of the node may differ from the clock that recorded our stop.
    """
    if last.untold:
        return False
    if not last.task.stopping or last.at is None:
        return None
    # Only a runner can report that the crawler ended on its own. Without a runner, the exit code
    # may be the reaction to SIGTERM.
    may_be = (
        not summary.runner
        or summary.told
        or summary.finish_reason == "shutdown"
        or code in (*_STOPPED, 137, 143)
    )
    return (
        may_be and not last.by_itself and deleted_before(last.pod, last.at, by_itself=False)
    ) or None


def _reason(last: PodEnd, code: int | None, moved: tuple[str, str] | None) -> str | None:
    """Return the reason that Kubernetes gives for the end; if there are several, return the most
    informative one.
    """
    pod = last.pod
    done = last.done
    said = done.reason if done is not None else None
    own = pod.status.reason
    if said == "OOMKilled":
        return said
    if _deadline_ended_it(last):
        return "DeadlineExceeded"
    if said in (None, "ContainerStatusUnknown") and _init_failure(pod) is not None:
        return INIT_FAILED
    if own not in (None, "DeadlineExceeded") and (
        moved is not None or pod.condition("DisruptionTarget") is None
    ):
        return own
    if code == 0 and pod.status.phase == "Failed" and not given_up_after_end(pod, last.at):
        return POD_FAILED
    return (
        said or own or (pod.status.phase if deleted_before_scheduling(pod) is False else "Deleted")
    )


def _deadline_ended_it(last: PodEnd) -> bool:
    """Return whether the deadline of Job or pod ended the crawler, and not the crawler itself."""
    if last.by_itself:
        return False
    pod = last.pod
    at = last.at
    deadline = deadline_of(last.job)
    if pod.status.reason == "DeadlineExceeded":
        beside = [
            known_time(s.state.terminated.finished_at)
            for s in pod.status.container_statuses
            if s.state.terminated
        ]
        longest = max(
            (end - at for end in beside if end is not None and at is not None), default=timedelta()
        )
        # All containers that the deadline ends get the same grace period. If the crawler ended
        # earlier than one grace period before the last container, the deadline did not end it.
        return longest <= timedelta(seconds=(pod.spec.termination_grace_period_seconds or 0) + 1)
    if deadline is None:
        return False
    if at is None or deadline.last_transition_time is None:
        return True
    # A Job deletes its pods when its deadline passes. A pod that was not deleted had ended before
    # the deadline.
    return pod.metadata.deletion_timestamp is not None and may_be_before(
        deadline.last_transition_time, at
    )


def _message(pod: Pod, summary: Summary, reason: str | None, job: Job | None) -> str | None:
    """Return the evidence in words. Used when no disruption ended the pod."""
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
    """Describe the init container that failed.

    A sidecar is not such a container: it ends with the pod.
    """
    beside = sidecars(pod)
    for status in sorted(pod.status.init_container_statuses, key=lambda s: s.name):
        done = status.state.terminated
        if done is not None and done.exit_code != 0 and status.name not in beside:
            words = clean(done.message)
            why = f"{done.reason or 'Error'}, exit {done.exit_code}"
            return f"init container {status.name} failed ({why})" + (f": {words}" if words else "")
    return None


def _failed_beside(pod: Pod) -> Iterator[str]:
    """Yield a description of each failed container except the crawler's."""
    for status in sorted(pod.status.container_statuses, key=lambda s: s.name):
        done = status.state.terminated
        if status.name != labels.CONTAINER and done is not None and done.exit_code != 0:
            yield (
                f"container {status.name} ended with exit {done.exit_code} "
                f"({done.reason or 'Error'})"
            )
