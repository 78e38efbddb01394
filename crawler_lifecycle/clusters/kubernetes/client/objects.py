"""Jobs, pods and events, decoded from JSON, with only the fields that we use.

All other fields are ignored. An object without a name or uid, and a list without ``items``, are
refused. Other invalid values, such as ``null`` instead of a list, are clamped or dropped
(``odd_values``).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeAlias, TypeVar

import msgspec

from crawler_lifecycle.domain import bounds

from .errors import ApiRequest, Unreadable, unreadable
from .odd_values import Grace, Number, known_time, mended

Time = Annotated[datetime, msgspec.Meta(tz=True)]
Name = Annotated[str, msgspec.Meta(min_length=1)]
T = TypeVar("T")

_NO_STRINGS: Mapping[str, str] = MappingProxyType({})


class _Struct(msgspec.Struct, frozen=True, gc=False, rename="camel", kw_only=True):
    pass


class OwnerReference(_Struct, frozen=True):
    """The owner of an object."""

    uid: str
    controller: bool | None = None


class ObjectMeta(_Struct, frozen=True):
    """The metadata of an object: its identity, labels, owners and deletion."""

    name: Name
    uid: Name
    namespace: str | None = None
    creation_timestamp: Time | None = None
    deletion_timestamp: Time | None = None
    deletion_grace_period_seconds: Grace | None = None
    labels: Mapping[str, str] = _NO_STRINGS
    annotations: Mapping[str, str] = _NO_STRINGS
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()

    @property
    def controller_uid(self) -> str | None:
        """The uid of the object that controls this one."""
        for owner in self.owner_references:  # a plain loop: see ``_true_condition``
            if owner.controller:
                return owner.uid
        return None


class _Text(StrEnum):
    """A string type whose common values are interned when they are decoded.

    All others are plain strings.
    """

    @classmethod
    def _missing_(cls, value: object) -> _Text:
        other = str.__new__(cls, value)
        other._name_ = other._value_ = str(value)
        return other


#: The words in most conditions of Jobs and pods, which the objects of a long list share.
_WORDS = [
    "True",
    "False",
    "Unknown",
    "Complete",
    "Failed",
    "SuccessCriteriaMet",
    "Initialized",
    "PodReadyToStartContainers",
    "PodScheduled",
    "ContainersReady",
    "Ready",
    "DisruptionTarget",
]
if TYPE_CHECKING:
    Word: TypeAlias = str
else:
    Word = _Text("Word", [(word, word) for word in _WORDS])


class Condition(_Struct, frozen=True):
    """A condition of a Job or pod. ``status`` is the string "True", "False" or "Unknown"."""

    type: Word
    status: Word
    reason: str | None = None
    message: str | None = None
    last_transition_time_: Time | None = msgspec.field(name="lastTransitionTime", default=None)

    @property
    def last_transition_time(self) -> datetime | None:
        return known_time(self.last_transition_time_)

    @property
    def true(self) -> bool:
        return self.status == "True"


class JobSpec(_Struct, frozen=True):
    suspend: bool | None = None
    parallelism: Number | None = None
    managed_by: str | None = None


class JobStatus(_Struct, frozen=True):
    """The status of a Job.

    Its counters lag behind the pods, and the conditions that report its end come last.
    """

    start_time: Time | None = None
    completion_time: Time | None = None
    active: Number | None = None
    ready: Number | None = None
    succeeded: Number | None = None
    failed: Number | None = None
    terminating: Number | None = None
    conditions: tuple[Condition, ...] = ()


class Job(_Struct, frozen=True):
    """A batch/v1 Job."""

    metadata: ObjectMeta
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()

    @property
    def other_controller(self) -> str | None:
        """The controller of the Job, unless it is the cluster's own.

        Kueue, for example, may run the Job on a different cluster.
        """
        by = self.spec.managed_by
        return None if by == "kubernetes.io/job-controller" else by or None

    def condition(self, kind: str) -> Condition | None:
        """Return the condition of this type if it is true."""
        return _true_condition(self.status, kind)


def _true_condition(status: JobStatus | PodStatus, kind: str) -> Condition | None:
    # A poll of 10,000 tasks calls this method 90,000 times: a plain loop is faster than properties
    # and a generator.
    for condition in status.conditions:
        if condition.type == kind and condition.status == "True":
            return condition
    return None


class Waiting(_Struct, frozen=True):
    reason: str | None = None
    message: str | None = None


class Running(_Struct, frozen=True):
    started_at: Time | None = None


class TerminatedState(_Struct, frozen=True):
    """The end of a container, with its exit code."""

    exit_code: Number = bounds.ID_MAX
    """The exit code. If the server sends none, this is a value that no process can have."""
    signal: Number | None = None
    reason: str | None = None
    message: str | None = None
    started_at: Time | None = None
    finished_at: Time | None = None


class ContainerState(_Struct, frozen=True):
    """The state of a container.

    At most one field is set, and none before the kubelet has reported.
    """

    waiting: Waiting | None = None
    running: Running | None = None
    terminated: TerminatedState | None = None


class ContainerStatus(_Struct, frozen=True):
    name: str
    image_id: str | None = msgspec.field(default=None, name="imageID")
    started: bool | None = None
    restart_count: Number | None = None
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()


class ContainerLimits(_Struct, frozen=True):
    memory: str | int | float | None = None


class ResourceRequirements(_Struct, frozen=True):
    limits: ContainerLimits | None = None


class _ExitCodes(_Struct, frozen=True):
    operator: str | None = None
    values: tuple[Number, ...] | None = None


class RestartRule(_Struct, frozen=True):
    """A rule that the node applies when a container ends with certain exit codes (since Kubernetes
    1.34).
    """

    action: str | None = None
    exit_codes: _ExitCodes | None = None

    def fits(self, code: int) -> bool:
        """Return whether the rule applies to this exit code."""
        codes = self.exit_codes or _ExitCodes()
        return codes.operator == ("In" if code in (codes.values or ()) else "NotIn")


class Container(_Struct, frozen=True):
    name: str
    image: str | None = None
    restart_policy: str | None = None
    """The restart policy. ``Always`` makes an init container a sidecar, which runs in parallel with
    the others.
    """
    restart_policy_rules: tuple[RestartRule, ...] | None = None
    resources: ResourceRequirements | None = None

    def action_after(self, code: int) -> str | None:
        """Return the action of the first rule that applies to this exit code; ``None`` if no rule
        applies.
        """
        return next(
            (rule.action for rule in self.restart_policy_rules or () if rule.fits(code)), None
        )

    @property
    def memory_limit(self) -> str | None:
        """The memory limit as a Kubernetes quantity, unchanged."""
        limits = self.resources.limits if self.resources is not None else None
        return str(limits.memory) if limits is not None and limits.memory is not None else None


class SchedulingGate(_Struct, frozen=True):
    name: str


class PodSpec(_Struct, frozen=True):
    node_name: str | None = None
    restart_policy: str | None = None
    termination_grace_period_seconds: Grace | None = None
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    scheduling_gates: tuple[SchedulingGate, ...] = ()


class PodStatus(_Struct, frozen=True):
    phase: str | None = None
    reason: str | None = None
    message: str | None = None
    start_time: Time | None = None
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(_Struct, frozen=True):
    """A core/v1 pod."""

    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    def condition(self, kind: str) -> Condition | None:
        """Return the condition of this type if it is true."""
        return _true_condition(self.status, kind)

    def denied(self, kind: str) -> Condition | None:
        """Return the condition of this type if it is false or unknown."""
        return next((c for c in self.status.conditions if c.type == kind and not c.true), None)

    def container(self, name: str) -> ContainerStatus | None:
        """Return the kubelet's status of the container with this name."""
        for status in self.status.container_statuses:  # a plain loop: see ``_true_condition``
            if status.name == name:
                return status
        return None


class NamespaceStatus(_Struct, frozen=True):
    phase: str | None = None


class Namespace(_Struct, frozen=True):
    """A core/v1 namespace."""

    metadata: ObjectMeta
    status: NamespaceStatus = NamespaceStatus()

    @property
    def leaving(self) -> bool:
        """True when the namespace is being deleted."""
        return self.status.phase == "Terminating" or self.metadata.deletion_timestamp is not None


class AdmissionCheck(_Struct, frozen=True):
    name: str
    state: str | None = None


class RequeueState(_Struct, frozen=True):
    requeue_at: Time | None = None


class WorkloadSpec(_Struct, frozen=True):
    active: bool | None = None


class WorkloadStatus(_Struct, frozen=True):
    conditions: tuple[Condition, ...] = ()
    admission_checks: tuple[AdmissionCheck, ...] = ()
    requeue_state: RequeueState | None = None


class Workload(_Struct, frozen=True):
    """Kueue's view of a Job, with the fields that all versions of its API have."""

    metadata: ObjectMeta
    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()

    def condition(self, kind: str) -> Condition | None:
        """Return the condition of this type, whether it is true or not."""
        return next((c for c in self.status.conditions if c.type == kind), None)


class _PendingMeta(_Struct, frozen=True):
    name: Name


class _Pending(_Struct, frozen=True):
    metadata: _PendingMeta
    position_in_local_queue: Number | None = None


class PendingWorkloadsSummary(_Struct, frozen=True):
    """The Workloads that are waiting in a Kueue queue, in order."""

    items: Sequence[_Pending] = ()


class _GroupVersion(_Struct, frozen=True):
    version: Annotated[str, msgspec.Meta(pattern="^v[0-9a-z]+$")]


class APIGroup(_Struct, frozen=True):
    """An API group, with the version that the server prefers."""

    preferred_version: _GroupVersion


class InvolvedObject(_Struct, frozen=True):
    uid: str | None = None


class _Series(_Struct, frozen=True):
    count: Number | None = None
    last_observed_time: Time | None = None


class Event(_Struct, frozen=True):
    """A core/v1 event: a message from a component of the cluster about an object.

    The cluster keeps it for an hour, and merges repeated events.
    """

    metadata: ObjectMeta
    involved_object: InvolvedObject
    type: str | None = None
    reason: str | None = None
    message: str | None = None
    count_: Number | None = msgspec.field(name="count", default=None)
    event_time: Time | None = None
    first_timestamp: Time | None = None
    last_timestamp: Time | None = None
    series: _Series | None = None

    @property
    def at(self) -> datetime | None:
        """The time of the last occurrence. Senders use different fields for it."""
        latest = self.series.last_observed_time if self.series else None
        return latest or self.last_timestamp or self.event_time or self.first_timestamp

    @property
    def count(self) -> int:
        """The number of occurrences."""
        return max(1, self.count_ or 0, (self.series.count or 0) if self.series else 0)


class ListMeta(_Struct, frozen=True):
    resource_version: str | None = None
    continue_: str | None = msgspec.field(name="continue", default=None)
    remaining_item_count: Number | None = None


class ListPage(_Struct, Generic[T], frozen=True):
    """One page of a list.

    ``kind`` shows that the document is a list, because other documents may have status 200.
    """

    kind: str
    metadata: ListMeta
    items_: Sequence[T] | None = msgspec.field(name="items")

    @property
    def items(self) -> Sequence[T]:
        return self.items_ or ()


class NamedObject(_Struct, frozen=True):
    """An object of any kind, with only its metadata."""

    metadata: ObjectMeta


class _Kind(_Struct, frozen=True):
    kind: str


class _WatchMessage(_Struct, frozen=True):
    """One message of a watch. The caller decodes its object, because it knows the kind."""

    type: str
    object: msgspec.Raw


_DECODERS: dict[Any, msgspec.json.Decoder[Any]] = {}
_CREATION = threading.Lock()


def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Return the decoder for a type, which is created on first use.

    Only one is created at a time. Decoders share what msgspec knows about a class, and msgspec
    stores that before it is complete. A process crashed when two threads did this at once.
    """
    with _CREATION:
        if kind not in _DECODERS:
            _DECODERS[kind] = msgspec.json.Decoder(kind)
        return _DECODERS[kind]


_KINDS: dict[type, str] = {
    Job: "Job",
    Pod: "Pod",
    Event: "Event",
    Namespace: "Namespace",
    Workload: "Workload",
}
_RAW_PAGE = msgspec.json.Decoder(ListPage[msgspec.Raw])
_KIND = msgspec.json.Decoder(_Kind)
_TYPED = msgspec.json.Decoder(_WatchMessage)
_NO_OBJECT = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def decode(kind: type[T], data: bytes | msgspec.Raw) -> T:
    """Decode one object of ``kind``. Raises ``Unreadable``."""
    try:
        if kind in _KINDS and (found_kind := _KIND.decode(data).kind) != _KINDS[kind]:
            raise unreadable(None, f"it is a {found_kind[:60]}, not a {_KINDS[kind]}")
        found: T = _decoded(kind, data)
    except _NO_OBJECT as error:
        raise _not_decoded(kind.__name__, error, data) from error
    return found


def decode_page(kind: type[T], data: bytes, asked: ApiRequest | None = None) -> ListPage[T]:
    """Decode one page of a list of ``kind``. Raises ``Unreadable``."""
    try:
        try:
            page: ListPage[T] = _decoder(ListPage[kind]).decode(data)  # type: ignore[valid-type]
        # An object is invalid. Decode each object separately, and repair it.
        except msgspec.ValidationError:
            raw = _RAW_PAGE.decode(data)
            page = ListPage(
                kind=raw.kind,
                metadata=raw.metadata,
                items_=[_decoded(kind, item) for item in raw.items],
            )
    except _NO_OBJECT as error:
        raise _not_decoded(kind.__name__, error, data, asked) from error
    expected = f"{_KINDS.get(kind) or _KINDS.get(kind.__bases__[0], '')}List"
    if not page.kind.endswith(expected):
        raise unreadable(asked, f"it is a {page.kind[:60]}, not a {expected}")
    return page


def _decoded(kind: type[T], data: bytes | msgspec.Raw) -> T:
    try:
        found: T = _decoder(kind).decode(data)
    except msgspec.ValidationError:
        found = mended(kind, data)
    return found


def decode_event(line: bytes, asked: ApiRequest | None = None) -> tuple[str, msgspec.Raw]:
    """Return the type and the undecoded object from one line of a watch. Raises ``Unreadable``."""
    try:
        event = _TYPED.decode(line)
    except _NO_OBJECT as error:
        raise _not_decoded("an event of a watch", error, line, asked) from error
    return event.type, event.object


def decode_kind(data: bytes, asked: ApiRequest | None = None) -> str:
    """Return the kind of an object, and check that all its JSON is valid. Raises ``Unreadable``."""
    try:
        return _KIND.decode(data).kind
    except _NO_OBJECT as error:
        raise _not_decoded("an object", error, data, asked) from error


def _not_decoded(
    what: str, error: Exception, data: bytes | msgspec.Raw, asked: ApiRequest | None = None
) -> Unreadable:
    begins = bytes(memoryview(data)[:60]).decode(errors="replace")
    return unreadable(asked, f"{what}: {error} (it begins with {begins!r})")
