"""Facts about Jobs and pods: their owner, their progress, and who requested their deletion."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.objects import (
    Condition,
    ContainerStatus,
    Event,
    Job,
    Pod,
)
from crawler_lifecycle.clusters.kubernetes.client.odd_values import GRACE_MAX_S, NO_TIME, known_time
from crawler_lifecycle.domain.clocks import may_be_before
from crawler_lifecycle.ports.runs import TaskRef

#: Labels that the Job controller sets on its pods. Unlike the owner reference, these labels stay
#: when the Job is deleted without its pods.
CONTROLLER_UID = "batch.kubernetes.io/controller-uid"
JOB_NAME = "batch.kubernetes.io/job-name"
#: The Job controller's finalizer on pods that it has not counted yet. A suspension removes it and
#: then deletes the pod.
TRACKING = "batch.kubernetes.io/job-tracking"
_NOTHING_SAID = ContainerStatus(name=labels.CONTAINER)
#: Warnings that do not explain a wait.
_HARMLESS = ("MissingClusterDNS", "DNSConfigForming")


def owner_of(pod: Pod) -> str | None:
    """Return the uid of the pod's Job, even if the Job is gone."""
    return pod.metadata.controller_uid or pod.metadata.labels.get(CONTROLLER_UID)


def crawler_container(pod: Pod) -> ContainerStatus:
    """Return the status of the crawler's container, or an empty status until the node has reported
    one.
    """
    return pod.container(labels.CONTAINER) or _NOTHING_SAID


def sidecars(pod: Pod) -> set[str]:
    """Return the names of init containers that run in parallel with the crawler and that the node
    ends after it.
    """
    return {
        container.name
        for container in pod.spec.init_containers
        if container.restart_policy == "Always"
    }


def ended_at(pod: Pod) -> datetime | None:
    """Return the time when the crawler ended; ``None`` when its node does not know the time."""
    terminated = crawler_container(pod).state.terminated
    return known_time(terminated.finished_at) if terminated is not None else None


def ended(pod: Pod) -> bool:
    """Return whether the crawler in the pod has ended, or can never begin.

    The crawler has ended when the pod's phase is final, or when its container has ended and is not
    restarted. A pod that was deleted before it had a node never gets one, because the API server
    refuses the binding.
    """
    if pod.status.phase in ("Succeeded", "Failed") or deleted_before_scheduling(pod):
        return True
    done = crawler_container(pod).state.terminated
    return done is not None and not _started_again(pod, done.exit_code)


def _started_again(pod: Pod, code: int) -> bool:
    """Return whether the node restarts the crawler that ended with this code, alone or with the
    pod's other containers.

    The rules are the kubelet's (``ContainerShouldRestart``, ``ShouldAllContainersRestart``). Our
    pods request no restart, but an admission webhook may change this. A pod that is being deleted
    is not restarted.
    """
    if pod.metadata.deletion_timestamp is not None:
        return False
    if pod.condition("AllContainersRestarting") is not None:
        return True
    ends = {
        s.name: s.state.terminated
        for s in (*pod.status.container_statuses, *pod.status.init_container_statuses)
    }
    policy = pod.spec.restart_policy
    for container in (*pod.spec.containers, *pod.spec.init_containers):
        end = ends.get(container.name)
        action = container.action_after(end.exit_code) if end is not None else None
        if action == "RestartAllContainers" or (
            action == "Restart" and container.name == labels.CONTAINER
        ):
            return True
        if container.name == labels.CONTAINER:
            policy = container.restart_policy or policy
    return policy == "Always" or (policy == "OnFailure" and code != 0)


def deleted_before_scheduling(pod: Pod) -> bool:
    """Return whether the pod was deleted before it had a node."""
    return (
        pod.metadata.deletion_timestamp is not None
        and not pod.spec.node_name
        and not pod.status.container_statuses
    )


def taken_back(job: Job | None, pod: Pod) -> bool:
    """Return whether this pod was deleted because its Job was suspended, for example by a queue.

    After the Job is resumed, the Job keeps a condition about the suspension, and the pod no longer
    has the Job's finalizer. A Job that has ended or is being deleted creates no further pod. The
    task then ends with this pod.
    """
    if (
        pod.metadata.deletion_timestamp is None
        or job is None
        or job.metadata.deletion_timestamp is not None
    ):
        return False
    resumed = TRACKING not in pod.metadata.finalizers and any(
        c.type == "Suspended" for c in job.status.conditions
    )
    return (bool(job.spec.suspend) or resumed) and not job_is_over(job)


def may_execute_again(job: Job) -> bool:
    """Return whether a suspended Job may have a pod, or may get a pod when the Job is resumed."""
    if not (job.spec.suspend or any(c.type == "Suspended" for c in job.status.conditions)):
        return False
    no_more = job.spec.parallelism == 0 or job.metadata.deletion_timestamp is not None
    if no_more or job_is_over(job):
        return verdict(job) is None and bool(job.status.active or job.status.terminating)
    return True


def suspended_before_scheduling(job: Job | None, pod: Pod) -> bool:
    """Return whether the pod was taken back before it had a node.

    It never ran, and the Job continues later.

    A suspended Job that is being deleted had no other pod: this deletion, perhaps ours, ends the
    task.
    """
    if job is None or not deleted_before_scheduling(pod):
        return False
    return taken_back(job, pod) or (bool(job.spec.suspend) and not job_is_over(job))


def another_follows(job: Job | None, pod: Pod) -> bool:
    """Return whether the Job creates another pod, because the Job was resumed after this pod was
    taken back.
    """
    return job is not None and not job.spec.suspend and taken_back(job, pod) and ended(pod)


def never_began(pod: Pod) -> bool:
    """Return whether, according to the node, no container of the pod ever ran."""
    return not any(
        map(began, (*pod.status.container_statuses, *pod.status.init_container_statuses))
    )


def sidecar_still_runs(pod: Pod) -> bool:
    """Return whether the crawler has ended while another container of the pod is still running and
    is not being ended.
    """
    return ended(pod) and pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None


def executing(pod: Pod) -> bool:
    """Return whether the crawler has begun and has not ended."""
    return began(crawler_container(pod)) and not ended(pod)


def began(container: ContainerStatus) -> bool:
    """Return whether the container ever ran, so that a log may exist."""
    return any(
        state.running or state.terminated for state in (container.state, container.last_state)
    )


def deletion_asked(pod: Pod) -> datetime | None:
    """Return the time when the deletion was requested; ``None`` without a deletion.

    The deletion timestamp is the end of the grace period, so the grace period is subtracted. For an
    impossible time, return ``NO_TIME``: with a grace period of centuries, the API server's numbers
    overflow.
    """
    if pod.metadata.deletion_timestamp is None:
        return None
    over = known_time(pod.metadata.deletion_timestamp)
    grace_s = pod.metadata.deletion_grace_period_seconds or 0
    return (
        over - timedelta(seconds=grace_s) if over is not None and grace_s < GRACE_MAX_S else NO_TIME
    )


def deletion_is_dated(pod: Pod) -> bool:
    """Return whether the time of the deletion request is known.

    A node's own deletion at the end has no grace period.
    """
    return (
        known_time(deletion_asked(pod)) is not None
        and (pod.metadata.deletion_grace_period_seconds or 0) > 0
    )


def kept_until(pod: Pod) -> datetime | None:
    """Return the latest end of a pod whose grace period was shortened; ``None`` for any other pod.

    Its node may have begun the full grace period already, and a kubelet keeps the first one. The
    time of the first deletion is lost, but it was not later than the last one.
    """
    asked = known_time(deletion_asked(pod))
    own_s = pod.spec.termination_grace_period_seconds or 0
    if (
        asked is None
        or not pod.spec.node_name
        or own_s <= (pod.metadata.deletion_grace_period_seconds or 0)
    ):
        return None
    return asked + timedelta(seconds=own_s)


def deciding_pod(pods: Iterable[Pod]) -> Pod | None:
    """Return the pod that decides the task's state; ``None`` without pods.

    Executing pods come before waiting ones, and these before ended ones; then pods that are not
    being deleted; then the newest.
    """

    def rank(pod: Pod) -> tuple[int, bool, float, str, str]:
        stage = 2 if executing(pod) else 0 if ended(pod) else 1
        created = pod.metadata.creation_timestamp
        age = created.timestamp() if created is not None else 0.0
        return (
            stage,
            pod.metadata.deletion_timestamp is None,
            age,
            pod.metadata.name,
            pod.metadata.uid,
        )

    found = list(pods)
    return max(found, key=rank) if len(found) > 1 else found[0] if found else None


def verdict(job: Job | None) -> Condition | None:
    """Return the condition by which the Job has ended."""
    if job is None:
        return None
    return job.condition("Failed") or job.condition("Complete")


def job_is_over(job: Job) -> bool:
    """Return whether it is already decided how the Job ends, so that there is nothing to stop."""
    return any(map(job.condition, ("Failed", "Complete", "FailureTarget", "SuccessCriteriaMet")))


def deadline_of(job: Job | None) -> Condition | None:
    """Return the first condition which shows that the Job's own deadline passed.

    ``FailureTarget`` comes before its pods end.
    """
    for kind in ("FailureTarget", "Failed"):
        if (
            job is not None
            and (found := job.condition(kind)) is not None
            and found.reason == "DeadlineExceeded"
        ):
            return found
    return None


def counted_at(job: Job | None) -> datetime | None:
    """Return the time when the Job counted its success, if its conditions show it."""
    found = (
        [job.condition(kind) for kind in ("SuccessCriteriaMet", "Complete")]
        if job is not None
        else []
    )
    return min(
        (at for c in found if c is not None and (at := c.last_transition_time)), default=None
    )


def newest_warning(events: Sequence[Event], uid: str, *reasons: str) -> Event | None:
    """Return the newest warning event about the object; if reasons are given, the event must have
    one of them.
    """
    about = [
        e
        for e in events
        if e.involved_object.uid == uid and e.type == "Warning" and e.reason not in _HARMLESS
    ]
    wanted = [e for e in about if not reasons or e.reason in reasons]

    def age(event: Event) -> tuple[float, str, str]:
        return (event.at.timestamp() if event.at else 0.0, event.message or "", event.metadata.name)

    return max(wanted, key=age, default=None)


def asked_by_us(task: TaskRef | None, pod: Pod, job: Job | None) -> bool:
    """Return whether we deleted the pod: by a stop of this task, or by the deadline of Job or pod,
    which we set.

    A deadline that passed after the deletion did not cause it.
    """
    if (task is not None and task.stopping) or pod.status.reason == "DeadlineExceeded":
        return True
    deadline = deadline_of(job)
    if deadline is None:
        return False
    passed = deadline.last_transition_time
    asked = deletion_asked(pod)
    return passed is None or asked is None or may_be_before(passed, asked)


def clock(at: datetime, now: datetime) -> str:
    """Return the time as a string that is the same at each poll, with the date if it is not
    today's.
    """
    known = known_time(at)
    if known is None:
        return "an unknown time"
    return known.strftime("%H:%M:%S UTC" if known.date() == now.date() else "%d %b %H:%M UTC")
