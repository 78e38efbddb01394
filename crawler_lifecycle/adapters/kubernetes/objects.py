"""The few fields of Kubernetes' objects that we read, decoded straight from the bytes; everything else is skipped.

Every field may be missing or null: an API server of another version, a controller that has not come round yet and a
person with an editor all leave fields out. A value of another *type* is no object of Kubernetes, and decoding fails.
Field names are Kubernetes' own in snake case; two are shortened (``created``, ``deleted``).
"""

from __future__ import annotations

from datetime import datetime

import msgspec


class Object(msgspec.Struct, rename="camel", frozen=True, kw_only=True, gc=False):
    """The way all structs are decoded."""


class Owner(Object):
    """An entry of ``metadata.ownerReferences``."""

    kind: str | None = None
    name: str | None = None
    uid: str | None = None
    controller: bool | None = None


class Meta(Object):
    """``metadata``."""

    name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    created: datetime | None = msgspec.field(default=None, name="creationTimestamp")
    deleted: datetime | None = msgspec.field(default=None, name="deletionTimestamp")
    """Of a pod: when its grace is over, not when it was asked for (that is ``deletion_grace_period_seconds`` before)."""
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    finalizers: list[str] | None = None
    owner_references: list[Owner] | None = None


class Condition(Object):
    """A condition of a Job or a pod. ``status`` is a text: ``True``, ``False`` or ``Unknown``."""

    type: str | None = None
    status: str | None = None
    reason: str | None = None
    message: str | None = None
    last_transition_time: datetime | None = None


# --- Jobs


class JobSpec(Object):
    """``spec`` of a Job."""

    suspend: bool | None = None
    active_deadline_seconds: int | None = None


class JobStatus(Object):
    """``status`` of a Job."""

    active: int | None = None
    ready: int | None = None
    terminating: int | None = None
    succeeded: int | None = None
    failed: int | None = None
    start_time: datetime | None = None
    completion_time: datetime | None = None
    conditions: list[Condition] | None = None


class Job(Object):
    """A ``batch/v1`` Job."""

    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: JobSpec | None = None
    status: JobStatus | None = None


# --- pods


class Waiting(Object):
    """``state.waiting`` of a container."""

    reason: str | None = None
    message: str | None = None


class Running(Object):
    """``state.running`` of a container."""

    started_at: datetime | None = None


class Terminated(Object):
    """``state.terminated`` of a container."""

    exit_code: int | None = None
    signal: int | None = None
    reason: str | None = None
    message: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None


class ContainerState(Object):
    """``state`` or ``lastState`` of a container: at most one of the three."""

    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class ContainerStatus(Object):
    """An entry of ``containerStatuses`` or ``initContainerStatuses``."""

    name: str | None = None
    restart_count: int | None = None
    state: ContainerState | None = None
    last_state: ContainerState | None = None


class ContainerResources(Object):
    """``resources`` of a container; quantities may also be plain numbers."""

    limits: dict[str, str | int | float] | None = None


class Container(Object):
    """An entry of ``spec.containers``."""

    name: str | None = None
    image: str | None = None
    resources: ContainerResources | None = None


class SchedulingGate(Object):
    """An entry of ``spec.schedulingGates``."""

    name: str | None = None


class PodSpec(Object):
    """``spec`` of a pod."""

    node_name: str | None = None
    termination_grace_period_seconds: int | None = None
    containers: list[Container] | None = None
    scheduling_gates: list[SchedulingGate] | None = None


class PodStatus(Object):
    """``status`` of a pod."""

    phase: str | None = None
    reason: str | None = None
    message: str | None = None
    start_time: datetime | None = None
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None


class Pod(Object):
    """A ``v1`` pod."""

    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: PodSpec | None = None
    status: PodStatus | None = None


# --- events


class Involved(Object):
    """``involvedObject`` of an event."""

    kind: str | None = None
    name: str | None = None
    uid: str | None = None


class Series(Object):
    """``series`` of an event that happened again."""

    count: int | None = None
    last_observed_time: datetime | None = None


class Event(Object):
    """A ``v1`` event. Which of its times are set depends on who wrote it."""

    metadata: Meta = msgspec.field(default_factory=Meta)
    involved_object: Involved | None = None
    type: str | None = None
    reason: str | None = None
    message: str | None = None
    count: int | None = None
    first_timestamp: datetime | None = None
    last_timestamp: datetime | None = None
    event_time: datetime | None = None
    series: Series | None = None


# --- lists


class ListMeta(Object):
    """``metadata`` of a list."""

    resource_version: str | None = None
    continue_: str | None = msgspec.field(default=None, name="continue")
    remaining_item_count: int | None = None


class JobList(Object):
    """One page of Jobs."""

    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    items: list[Job] | None = None


class PodList(Object):
    """One page of pods."""

    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    items: list[Pod] | None = None


class EventList(Object):
    """One page of events."""

    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    items: list[Event] | None = None
