"""Human-readable reasons why a task is not executing yet, and warnings about a task that is
executing.

A reason contains times, never durations, so that it is the same at each poll. It states either that
a problem will end on its own or what must be repaired. No problem in this module ends the task;
only ``start_timeout_s``, a stop or the Job's deadline does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.objects import ContainerStatus, Event, Job, Pod
from crawler_lifecycle.clusters.kubernetes.client.odd_values import known_time
from crawler_lifecycle.domain.waiting import NO_ROOM
from crawler_lifecycle.ports.runs import TaskRef

from .outside_causes import STALE_AFTER, disruption_mark, disruption_words, who_deleted
from .predicates import (
    asked_by_us,
    clock,
    crawler_container,
    deletion_asked,
    kept_until,
    newest_warning,
    sidecars,
)
from .termination_message import clean

#: Time after which we report that no controller handles a Job, or that no scheduler handles a pod.
TAKEN_UP = timedelta(seconds=60)
#: We report that a pod does not end when this much time has passed since the end of its grace
#: period.
OVERDUE = timedelta(seconds=30)

_PREPARING = (None, "", "ContainerCreating", "PodInitializing")
PULLS = (
    "ErrImagePull",
    "ImagePullBackOff",
    "ImageInspectError",
    "RegistryUnavailable",
    "SignatureValidationFailed",
)
_CANNOT = (
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "PreStartHookError",
)
_GOES_ON = "; it continues when this is repaired"
#: Part of the server's message when the server refuses to create a pod -> our sentence, and a
#: clause that states when the Job continues.
_REFUSALS = (
    ("exceeded quota", "The cluster's quota is used up", "; it continues when the quota allows it"),
    (r'service ?account "?([^" ]+)"? not found', "The service account {} is missing", _GOES_ON),
    ("violates PodSecurity", "The namespace's Pod Security level refuses the pod", _GOES_ON),
    ("being terminated", "The namespace is being deleted", ""),
    ("admission webhook", "An admission webhook refuses the pod", _GOES_ON),
    (
        r"(?:minimum|maximum) (?:cpu|memory|\S+) usage per",
        "A limit range refuses the pod",
        _GOES_ON,
    ),
)


# --- a Job without a pod


def job_words(job: Job, events: Sequence[Event] | None, now: datetime) -> str:
    """Return the reason why the Job has no pod yet.

    ``events`` is ``None`` when not all events could be read.
    """
    if job.other_controller is not None:
        return (
            f"{job.other_controller} runs it, not this cluster: its pod and its log cannot be "
            "read here"
        )
    if job.metadata.deletion_timestamp is not None:
        keeps = (
            f", finalizers: {', '.join(sorted(job.metadata.finalizers))}"
            if job.metadata.finalizers
            else ""
        )
        return (
            "The Job has been terminating since "
            f"{clock(job.metadata.deletion_timestamp, now)}{keeps}; it has no pod"
        )
    if job.spec.suspend:
        return queue_words(job) or "The Job is suspended; it continues when somebody resumes it"
    refused = newest_warning(events or (), job.metadata.uid, "FailedCreate")
    if refused is not None and not job.status.active:
        return _refusal(refused.message or "")
    if any(job.condition(kind) for kind in ("FailureTarget", "SuccessCriteriaMet")):
        return "The Job is ending; it has no pod any more"
    # For a Job that was held, the time counts from its resumption: its controller clears the start
    # time when it is suspended, and sets it again.
    began = job.status.start_time or job.metadata.creation_timestamp
    since = f" since {clock(began, now)}" if began is not None else ""
    late = began is not None and now - began > TAKEN_UP
    if job.status.start_time is None:
        if late and job.condition("Suspended") is None:
            return (
                f"No controller has handled the Job{since}: check that the cluster's controller "
                "manager is running"
            )
        return "Waiting for the Job controller"
    if late:
        why = (
            ", and no event gives a reason"
            if events is not None
            else "; not all events that explain this were read"
        )
        return f"The Job has no pod{since}{why}"
    return "Waiting for the Job's pod"


def queue_words(job: Job) -> str | None:
    """Return the sentence for a Job that its queue holds; ``None`` when it has no queue."""
    queue = job.metadata.labels.get(labels.QUEUE)
    return f"Waiting in queue {queue}" if queue else None


def _refusal(message: str) -> str:
    """Return a sentence about a pod that the server refuses to create: the server's message without
    the random name.
    """
    said = clean(message) or "the server gave no reason"
    said = re.sub(r"^Error creating: ", "", said)
    said = re.sub(r'^pods "[^"]*" is forbidden: ', "", said)
    said = re.sub(r'pods? "[^"]*"', "the pod", said)
    for pattern, words, fix in _REFUSALS:
        if (found := re.search(pattern, said)) is not None:
            return f"{words.format(*found.groups())}: {said}{fix}"
    return f"The pod cannot be created: {said}{_GOES_ON}"


# --- a pod that has not begun


def pod_words(
    task: TaskRef, job: Job | None, pod: Pod, events: Sequence[Event] | None, now: datetime
) -> str:
    """Return the reason why the pod is not executing the crawler yet."""
    leaving = _leaving(task, job, pod, now)
    if leaving is not None:
        return leaving
    if pod.status.phase == "Unknown":
        return _unknown(pod)
    gates = sorted(gate.name for gate in pod.spec.scheduling_gates)
    if gates:
        return f"Blocked by scheduling gates: {', '.join(gates)}"
    if not pod.spec.node_name:
        return _unscheduled(pod, now)
    beside = sidecars(pod)
    for status in sorted(pod.status.init_container_statuses, key=lambda s: s.name):
        if status.state.terminated is not None and status.state.terminated.exit_code != 0:
            done = status.state.terminated
            said = clean(done.message)
            return f"Init container {status.name} failed with exit {done.exit_code}" + (
                f": {said}" if said else ""
            )
        words = _container(pod, status, events)
        if words is not None:
            return f"Init container {status.name}: {words}"
        # ``started`` means ready only for a sidecar. For other init containers, kubelets set it as
        # soon as they run.
        if status.state.running is not None and not (status.started and status.name in beside):
            return f"Init container {status.name} is running"
    return _container(pod, crawler_container(pod), events) or _preparing(pod, events or ())


def _unscheduled(pod: Pod, now: datetime) -> str:
    found = pod.denied("PodScheduled")
    if found is None:
        created = pod.metadata.creation_timestamp
        if created is not None and now - created > TAKEN_UP:
            return (
                f"No scheduler has handled the pod since {clock(created, now)}: check that the "
                "scheduler is running"
            )
        return "Waiting for the scheduler"
    said = re.sub(r"\.? *(no new claims to deallocate, *)?preemption: .*", "", found.message or "")
    said = clean(said) or "no reason given"
    if found.reason == "Unschedulable":
        return f"{NO_ROOM}: {said}"
    if found.reason == "SchedulingGated":
        return f"Blocked by scheduling gates: {said}"
    return f"The scheduler finds no node for it ({found.reason or 'no reason given'}): {said}"


def _container(pod: Pod, status: ContainerStatus, events: Sequence[Event] | None) -> str | None:
    """Return the reason why a container is waiting; ``None`` when its node is only preparing it."""
    waiting = status.state.waiting
    if waiting is None or waiting.reason in _PREPARING:
        return None
    holders = (*pod.spec.containers, *pod.spec.init_containers)
    images = (holder.image for holder in holders if holder.name == status.name and holder.image)
    image = next(images, f"of {status.name}")
    said = clean(re.sub(r" \(pod: \"[^\"]*\", container: [^)]*\)$", "", waiting.message or ""))
    tail = f": {said}" if said else ""
    if waiting.reason == "InvalidImageName":
        return f"It cannot start: the image name {image} is not valid{tail}"
    if waiting.reason == "ErrImageNeverPull":
        return (
            f"It cannot start: the image {image} is not on node {pod.spec.node_name} and may "
            "not be pulled"
        )
    if waiting.reason in PULLS:
        return (
            f"The image {image} cannot be pulled: {_pull_error(pod, waiting.message, events)}; "
            "the node tries again"
        )
    if waiting.reason in _CANNOT:
        return f"The container cannot be started ({waiting.reason}){tail}{_GOES_ON}"
    return f"{waiting.reason}{tail}"


def _pull_error(pod: Pod, message: str | None, events: Sequence[Event] | None) -> str:
    """Return the image-pull error.

    The status alternates between two reasons, and both give the same result.
    """
    said = pull_words(message)
    if not said:
        event = newest_warning(events or (), pod.metadata.uid, "Failed")
        said = re.sub(
            r'^Failed to pull image "[^"]*": ',
            "",
            (event.message or "") if event is not None else "",
        )
    unknown = (
        "the node gives no reason"
        if events is not None
        else "not all events that explain this were read"
    )
    return clean(said) or unknown


def pull_words(message: str | None) -> str:
    """Return the cause from the message of a container without its image; empty when only an event
    contains it.
    """
    said = re.sub(r'^Back-off pulling image "[^"]*":? ?', "", message or "")
    return re.sub(
        r"^(ErrImagePull|ImageInspectError|RegistryUnavailable|SignatureValidationFailed): ",
        "",
        said,
    )


def _preparing(pod: Pod, events: Sequence[Event]) -> str:
    where = f"Node {pod.spec.node_name} is preparing the pod"
    if said := clean(pod.status.message):  # only a node provider sets this field
        return f"{where}: {clean(pod.status.reason)}: {said}"
    event = newest_warning(events, pod.metadata.uid)
    said = clean(event.message) if event is not None else None
    return f"{where}: {event.reason}: {said}" if event is not None and said else where


# --- a pod that executes


def warning_words(task: TaskRef, job: Job | None, pod: Pod, now: datetime) -> str | None:
    """Return a warning about an executing pod; ``None`` without a problem."""
    words = [_leaving(task, job, pod, now), _silent(pod, now), _marked(pod, now)]
    main = crawler_container(pod)
    if pod.status.phase == "Unknown":
        words.append(_unknown(pod))
    if job is None:
        words.append("Its Job is gone, but the pod still exists")
    if main.state.running is None:
        last = main.state.terminated or main.last_state.terminated
        code = f", last exit {last.exit_code}" if last is not None else ""
        words.append(f"Its node is restarting it ({main.restart_count or 0} times{code})")
    return "; ".join(word for word in words if word) or None


def _silent(pod: Pod, now: datetime) -> str | None:
    """Return a sentence if the node does not respond.

    The cluster then sets the pod to not ready, but leaves its containers ready; a node never
    reports this combination.
    """
    ready = pod.denied("Ready")
    lost = pod.status.reason == "NodeLost"
    if not lost and (ready is None or pod.condition("ContainersReady") is None):
        return None
    since = ready.last_transition_time if ready is not None else None
    when = f" since {clock(since, now)}" if since is not None else ""
    return f"Node {pod.spec.node_name} has not responded{when}; the crawl may still be running"


def _marked(pod: Pod, now: datetime) -> str | None:
    found = pod.condition("DisruptionTarget")
    if found is None or pod.metadata.deletion_timestamp is not None:
        return None
    since = found.last_transition_time
    if since is not None and now - since > STALE_AFTER:
        return None
    return f"The cluster is about to end it: {disruption_words(found, pod)[1]}"


def _leaving(task: TaskRef, job: Job | None, pod: Pod, now: datetime) -> str | None:
    over = pod.metadata.deletion_timestamp
    asked = deletion_asked(pod)
    if over is None or asked is None:
        return None
    who = _who(task, job, pod)
    cause = f": {who}" if who else ""
    kept = kept_until(pod)
    last = kept or known_time(over)
    if last is not None and now - last > OVERDUE:
        confirms = (
            f"node {pod.spec.node_name} does not confirm this"
            if pod.spec.node_name
            else "it still exists"
        )
        return f"The pod should have ended at {clock(last, now)}, but {confirms}{cause}"
    unless = ""
    if kept is not None:
        own = pod.spec.termination_grace_period_seconds
        unless = f", or by {clock(kept, now)} if its node had already begun its grace of {own} s"
    return (
        f"The pod has been shutting down since {clock(asked, now)}, by {clock(over, now)} at the "
        f"latest{unless}{cause}"
    )


def _who(task: TaskRef, job: Job | None, pod: Pod) -> str | None:
    """Describe who deleted the pod; return ``None`` if we did."""
    mark = disruption_mark(pod)
    if mark is not None:
        return disruption_words(mark, pod)[1]
    if task.stopping:
        return None
    return "its deadline passed" if asked_by_us(task, pod, job) else who_deleted(job, pod)


def _unknown(pod: Pod) -> str:
    said = clean(pod.status.message) or clean(pod.status.reason)
    return "The cluster does not know the state of the pod (phase Unknown)" + (
        f": {said}" if said else ""
    )
