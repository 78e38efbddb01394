"""Predicates of Jobs and pods: whose they are, how far they have come, who asked for their deletion."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.objects import Condition, ContainerStatus, Event, Job, Pod
from crawler_lifecycle.clusters.kubernetes.client.odd_values import GRACE_MAX_S, NO_TIME, known_time
from crawler_lifecycle.domain.clocks import may_be_before
from crawler_lifecycle.ports.runs import TaskRef

#: Labels that the Job controller puts on its pods. Unlike the owner's reference they outlive an orphaning delete.
CONTROLLER_UID, JOB_NAME = "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"
#: The Job controller's finalizer on pods that it has yet to count. A suspension takes it off before it deletes the pod.
TRACKING = "batch.kubernetes.io/job-tracking"
_NOTHING_SAID = ContainerStatus(name=labels.CONTAINER)
#: Warnings that nothing waits for.
_HARMLESS = ("MissingClusterDNS", "DNSConfigForming")


def owner_of(pod: Pod) -> str | None:
    """The uid of the Job that the pod belongs, or belonged, to."""
    return pod.metadata.controller_uid or pod.metadata.labels.get(CONTROLLER_UID)


def number(text: str | None) -> int | None:
    """The number that a label names; ``None`` for anything else, and for one that no row of a database could have."""
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 19 else None


def crawler_container(pod: Pod) -> ContainerStatus:
    """The node's words about the crawler's container; before it has said anything, a status without a state."""
    return pod.container(labels.CONTAINER) or _NOTHING_SAID


def sidecars(pod: Pod) -> set[str]:
    """The init containers that execute beside the crawler, and that the node ends after it."""
    return {one.name for one in pod.spec.init_containers if one.restart_policy == "Always"}


def ended_at(pod: Pod) -> datetime | None:
    """Return the time when the crawler in it ended, as far as its node knows; a placeholder is no time."""
    terminated = crawler_container(pod).state.terminated
    return known_time(terminated.finished_at) if terminated is not None else None


def ended(pod: Pod) -> bool:
    """Tell whether the crawler in it has ended, or can never begin.

    The container's own word is the first, unless its node starts it again; a pod in a final phase without one never ran
    it, or its node forgot it. A pod that was deleted before it had a node cannot get one any more (the API server
    refuses the binding).
    """
    if pod.status.phase in ("Succeeded", "Failed") or deleted_before_scheduling(pod):
        return True
    done = crawler_container(pod).state.terminated
    return done is not None and not _started_again(pod, done.exit_code)


def _started_again(pod: Pod, code: int) -> bool:
    """Tell whether its node restarts the crawler that ended with this code, alone or with all containers of the pod.

    As the kubelet decides it (``ContainerShouldRestart``, ``ShouldAllContainersRestart``). Ours are never started
    again; whoever changes pods at admission may have it otherwise. What is being deleted only ends.
    """
    if pod.metadata.deletion_timestamp is not None:
        return False
    if pod.condition("AllContainersRestarting") is not None:
        return True
    ends = {s.name: s.state.terminated for s in (*pod.status.container_statuses, *pod.status.init_container_statuses)}
    policy = pod.spec.restart_policy
    for one in (*pod.spec.containers, *pod.spec.init_containers):
        end = ends.get(one.name)
        action = one.action_after(end.exit_code) if end is not None else None
        if action == "RestartAllContainers" or (action == "Restart" and one.name == labels.CONTAINER):
            return True
        if one.name == labels.CONTAINER:
            policy = one.restart_policy or policy
    return policy == "Always" or (policy == "OnFailure" and code != 0)


def deleted_before_scheduling(pod: Pod) -> bool:
    """Tell whether it was deleted before it had a node."""
    return pod.metadata.deletion_timestamp is not None and not pod.spec.node_name and not pod.status.container_statuses


def suspended_before_scheduling(job: Job | None, pod: Pod) -> bool:
    """Tell whether the Job was suspended, as a queue does it, before this pod had a node: nothing ran; the Job goes on.

    A Job that was resumed since then has taken its own finalizer off the pod. One that is over, or being deleted, makes
    no other pod: then this one is its end.
    """
    if job is None or job.metadata.deletion_timestamp is not None or verdict(job, final=False) is not None:
        return False
    return deleted_before_scheduling(pod) and (bool(job.spec.suspend) or TRACKING not in pod.metadata.finalizers)


def never_began(pod: Pod) -> bool:
    """Tell whether no container of it ever executed, as far as its node knows."""
    return not any(map(began, (*pod.status.container_statuses, *pod.status.init_container_statuses)))


def sidecar_still_runs(pod: Pod) -> bool:
    """Tell whether a container beside the crawler still executes although the crawler has ended, and nobody ends it."""
    return ended(pod) and pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None


def executing(pod: Pod) -> bool:
    """Tell whether the crawler in it has begun and not ended."""
    return began(crawler_container(pod)) and not ended(pod)


def began(container: ContainerStatus) -> bool:
    """Tell whether the container ever ran, so that there may be a log."""
    return any(one.running or one.terminated for one in (container.state, container.last_state))


def deletion_asked(pod: Pod) -> datetime | None:
    """Return the time of the request to delete it: the stamp itself says when its grace is over. A placeholder where no
    clock can tell: the API server counts graces of centuries round the end of its numbers.
    """
    if pod.metadata.deletion_timestamp is None:
        return None
    over, grace_s = known_time(pod.metadata.deletion_timestamp), pod.metadata.deletion_grace_period_seconds or 0
    return over - timedelta(seconds=grace_s) if over is not None and grace_s < GRACE_MAX_S else NO_TIME


def deletion_is_dated(pod: Pod) -> bool:
    """Tell whether it is known when its deletion was asked for: a node's own delete at the end has no grace."""
    return known_time(deletion_asked(pod)) is not None and (pod.metadata.deletion_grace_period_seconds or 0) > 0


def kept_until(pod: Pod) -> datetime | None:
    """By when a pod ends whose grace was shortened, should its node have begun the pod's own: a kubelet keeps that one.

    ``None`` for any other pod. The first deletion is not on record any more, but it was no later than the last one.
    """
    asked, own_s = known_time(deletion_asked(pod)), pod.spec.termination_grace_period_seconds or 0
    if asked is None or not pod.spec.node_name or own_s <= (pod.metadata.deletion_grace_period_seconds or 0):
        return None
    return asked + timedelta(seconds=own_s)


def deciding_pod(pods: Iterable[Pod]) -> Pod | None:
    """The pod that tells the task's truth: one that executes before one that waits before one that ended, one that is
    not being deleted before one that is, and the newest of those."""

    def rank(pod: Pod) -> tuple[int, bool, float, str, str]:
        stage = 2 if executing(pod) else 0 if ended(pod) else 1
        created = pod.metadata.creation_timestamp
        age = created.timestamp() if created is not None else 0.0
        return stage, pod.metadata.deletion_timestamp is None, age, pod.metadata.name, pod.metadata.uid

    found = list(pods)
    return max(found, key=rank) if len(found) > 1 else found[0] if found else None


def verdict(job: Job | None, *, final: bool = True) -> Condition | None:
    """The condition by which the Job has ended, or (not ``final``) is bound to end once its pods have."""
    if job is None:
        return None
    for kind in ("Failed", "Complete") if final else ("Failed", "Complete", "FailureTarget", "SuccessCriteriaMet"):
        if (found := job.condition(kind)) is not None:
            return found
    return None


def deadline_of(job: Job | None) -> Condition | None:
    """The condition that says that the Job's own deadline passed: the earlier one, which comes before its pods end."""
    found = [job.condition(kind) for kind in ("FailureTarget", "Failed")] if job is not None else []
    return next((one for one in found if one is not None and one.reason == "DeadlineExceeded"), None)


def counted_at(job: Job | None) -> datetime | None:
    """Return the time when the Job counted its success, as far as its conditions tell."""
    found = [job.condition(kind) for kind in ("SuccessCriteriaMet", "Complete")] if job is not None else []
    return min((at for c in found if c is not None and (at := c.last_transition_time)), default=None)


def newest_warning(events: Sequence[Event], uid: str, *reasons: str) -> Event | None:
    """The newest warning about the object, of these reasons if any are given."""
    about = [e for e in events if e.involved_object.uid == uid and e.type == "Warning" and e.reason not in _HARMLESS]
    wanted = [e for e in about if not reasons or e.reason in reasons]

    def age(event: Event) -> tuple[float, str, str]:
        return (event.at.timestamp() if event.at else 0.0, event.message or "", event.metadata.name)

    return max(wanted, key=age, default=None)


def asked_by_us(task: TaskRef | None, pod: Pod, job: Job | None) -> bool:
    """Tell whether the pod's deletion is our own stop of this task, or the deadline of Job or pod, which is ours too.

    A deadline that passed while the pod was being deleted has not asked for that.
    """
    if (task is not None and task.stopping) or pod.status.reason == "DeadlineExceeded":
        return True
    deadline, asked = deadline_of(job), deletion_asked(pod)
    passed = deadline.last_transition_time if deadline is not None else None
    if deadline is None or passed is None or asked is None:
        return deadline is not None
    return may_be_before(passed, asked)


def clock(at: datetime, now: datetime) -> str:
    """A moment in words: the same sentence at every look."""
    known = known_time(at)
    if known is None:
        return "an unknown time"
    return known.strftime("%H:%M:%S UTC" if known.date() == now.date() else "%d %b %H:%M UTC")
