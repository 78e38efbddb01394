"""The section ``kubernetes`` in a catalogue entry: options for the crawler's pods
(docs/crawlers.md).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from crawler_lifecycle.domain.bounds import STRICT
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.resources import Resources, parse_memory
from crawler_lifecycle.domain.variables import OF_CRAWLERS, OF_WEBHOOKS, check_variable

#: Patterns for object names and for keys in objects, as the Kubernetes API defines them (RFC 1123).
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_DNS_NAME = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
)
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_SECRET_KEY = re.compile(r"(?=.{1,253}\Z)[-._a-zA-Z0-9]+")

_OPERATORS = ("Equal", "Exists", "Lt", "Gt")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_PULL_POLICIES = ("Always", "IfNotPresent", "Never")
_DNS_POLICIES = ("ClusterFirst", "Default", "None")
_RUN_AS = ("user", "namespace")
#: Keys in the sections that we pass on in Kubernetes' own format, and the maximum size of each
#: section in bytes. The API server checks everything else.
_AFFINITY = ("nodeAffinity", "podAffinity", "podAntiAffinity")
_SPREAD = (
    "maxSkew",
    "topologyKey",
    "whenUnsatisfiable",
    "labelSelector",
    "matchLabelKeys",
    "minDomains",
    "nodeAffinityPolicy",
    "nodeTaintsPolicy",
)
_DNS_CONFIG = ("nameservers", "searches", "options")
_PASSED_ON_MAX = 16 * 1024
_VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]{0,1023}")
_SOURCES = ("claim", "secret", "config_map", "empty_dir")
#: Mount points that we and the system use. A volume at one of these mount points would hide the
#: crawler's files.
_TAKEN = ("/crawl", "/tmp", "/opt/crawl-runner", "/dev", "/proc", "/sys")  # noqa: S108
#: Prefixes and names of labels and annotations that are used by us, the Job controller and the
#: queue.
_RESERVED = (
    "crawler-lifecycle/",
    "batch.kubernetes.io/",
    "kueue.x-k8s.io/",
    "app.kubernetes.io/managed-by",
)
_RESERVED_PLAIN = ("job-name", "controller-uid")
_REFERENCE = "secret:"
#: The product's name, and a pattern for the names of protected objects: the objects of an
#: installation (deploy/), the Secrets for tasks (which have the names of the Jobs), and Secrets
#: that Kubernetes created for service accounts.
_PRODUCT = "crawler-lifecycle"
_OURS = re.compile(
    r"crawler-(lifecycle|catalogue)([-.].*)?|crawl-\d+-\d+-\d+|.*-token-[bcdfghjklmnpqrstvwxz2456789]{5}"
)


def is_label_value(text: str) -> bool:
    """Return whether the text is a valid label value: an empty string, or at most 63 characters of
    which the first and the last are letters or digits.
    """
    return not text or _LABEL_NAME.fullmatch(text) is not None


def is_qualified_name(text: str) -> bool:
    """Return whether the text is a valid name for a label or annotation: ``name`` or
    ``dns.name/name``.
    """
    prefix, slash, name = text.rpartition("/")
    return _LABEL_NAME.fullmatch(name) is not None and (
        not slash or _DNS_NAME.fullmatch(prefix) is not None
    )


def secret_reference(text: str) -> tuple[str, str] | None:
    """Return the name and the key in a reference ``secret:NAME/KEY``, or ``None`` for any other
    text.
    """
    name, slash, key = text.removeprefix(_REFERENCE).partition("/")
    fits = (
        text.startswith(_REFERENCE)
        and slash
        and _DNS_NAME.fullmatch(name)
        and _SECRET_KEY.fullmatch(key)
    )
    return (name, key) if fits else None


def _refuse(refused: object, key: str, value: object, why: str) -> None:
    """Raise ``InvalidRequest`` if ``refused`` is true."""
    if refused:
        raise InvalidRequest(f"{key}: {value!r:.80} {why}")


def _check_name(key: str, text: str) -> None:
    fix = "give a-z, 0-9, '-' and '.', at most 253 characters"
    _refuse(
        not _DNS_NAME.fullmatch(text),
        key,
        text,
        f"is not a valid name of a Kubernetes object; {fix}",
    )


def _check_foreign(key: str, name: str) -> None:
    whose = "belongs to this service, to a task or to a service account"
    _refuse(
        _OURS.fullmatch(name), key, name, f"{whose}; give an object that was made for this crawler"
    )


def check_secret(key: str, text: str) -> None:
    """Raise ``InvalidRequest`` if an entry in the catalogue's ``secrets`` refers to a protected
    Secret.
    """
    reference = secret_reference(text)
    if reference is not None:
        _check_foreign(key, reference[0])


def _check_one_of(key: str, text: str | None, known: Iterable[str]) -> None:
    refused = text is not None and text not in known
    _refuse(refused, key, text, f"is not allowed; give one of {', '.join(known)}")


def check_labels(key: str, labels: Mapping[str, str]) -> None:
    """Raise ``InvalidRequest`` unless the names and values are valid Kubernetes labels."""
    fix = (
        "give up to 63 letters, digits, '-', '_' and '.', that begin and end with a letter or digit"
    )
    for name, value in labels.items():
        _check_qualified(key, name)
        _refuse(
            not is_label_value(value),
            key,
            name,
            f"has {value!r:.80}, which is not a valid value of a label; {fix}",
        )


def _check_qualified(key: str, name: str) -> None:
    fix = "give NAME or DOMAIN/NAME; NAME has up to 63 characters"
    _refuse(not is_qualified_name(name), key, name, f"is not a valid name of a label; {fix}")


@dataclass(frozen=True, slots=True)
class Toleration:
    """One toleration, with the fields that Kubernetes defines."""

    __pydantic_config__: ClassVar = STRICT

    key: str | None = None
    operator: str = "Equal"
    value: str | None = None
    effect: str | None = None
    seconds: int | None = None
    """Seconds for which the pod stays on a node with a ``NoExecute`` taint, or ``None`` for no
    limit.
    """

    def __post_init__(self) -> None:
        _check_one_of("operator", self.operator, _OPERATORS)
        _check_one_of("effect", self.effect, _EFFECTS)
        if self.key is None and self.operator != "Exists":
            raise InvalidRequest(
                "key: missing; name the taint, or give 'operator: Exists' to tolerate all of them"
            )
        if self.key is not None:
            _check_qualified("key", self.key)
        wrong = self.value is not None and (
            self.operator == "Exists" or not is_label_value(self.value)
        )
        _refuse(wrong, "value", self.value, "is not allowed; leave it out, or give a taint's value")
        if self.seconds is not None and self.effect != "NoExecute":
            raise InvalidRequest("seconds: only allowed with 'effect: NoExecute'; leave it out")

    def manifest(self) -> dict[str, object]:
        """Return the toleration in the format of the Kubernetes API."""
        given = {
            "key": self.key,
            "operator": self.operator,
            "value": self.value,
            "effect": self.effect,
        }
        return {
            k: v for k, v in {**given, "tolerationSeconds": self.seconds}.items() if v is not None
        }


@dataclass(frozen=True, slots=True)
class PodVolume:
    """An additional volume for the pod, with exactly one source. Pod Security "restricted" allows
    all of these sources.
    """

    __pydantic_config__: ClassVar = STRICT

    name: str
    mount_path: str
    claim: str | None = None
    secret: str | None = None
    config_map: str | None = None
    empty_dir: str | None = None
    """The size limit of an empty folder, such as ``2Gi``."""
    sub_path: str | None = None
    read_only: bool = False

    def __post_init__(self) -> None:
        fix = "give at most 63 characters of a-z, 0-9 and '-', that do not begin with 'crawl-'"
        wrong = not _DNS_LABEL.fullmatch(self.name) or self.name.startswith("crawl-")
        _refuse(wrong, "name", self.name, f"is not allowed; {fix}")
        self._check_paths()
        given = [source for source in _SOURCES if getattr(self, source) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise InvalidRequest(
                f"claim: {found} given; a volume has exactly one of {', '.join(_SOURCES)}"
            )
        if self.empty_dir is not None:
            _check_size("empty_dir", self.empty_dir)
        else:
            _check_name(given[0], getattr(self, given[0]))
            _check_foreign(given[0], getattr(self, given[0]))

    def _check_paths(self) -> None:
        path = self.mount_path
        key = "mount_path"
        odd = any(part in ("", ".", "..") for part in path.split("/")[1:])
        wrong = not path.startswith("/") or ":" in path or path == "/" or odd
        _refuse(wrong, key, path, "is not allowed; give an absolute path without '..' and ':'")
        for taken in _TAKEN:
            within = path == taken or path.startswith(f"{taken}/")
            _refuse(
                within, key, path, f"is in {taken}, where volumes are not allowed; choose another"
            )
            _refuse(taken.startswith(f"{path}/"), key, path, f"would hide {taken}; choose another")
        sub = self.sub_path
        wrong = sub is not None and (not sub or sub.startswith("/") or ".." in sub.split("/"))
        _refuse(wrong, "sub_path", sub, "is not allowed; give a relative path without '..'")

    def source(self) -> dict[str, object]:
        """Return the volume's source in the format of the Kubernetes API."""
        if self.claim is not None:
            return {"persistentVolumeClaim": {"claimName": self.claim}}
        if self.secret is not None:
            return {"secret": {"secretName": self.secret}}
        if self.config_map is not None:
            return {"configMap": {"name": self.config_map}}
        return {"emptyDir": {"sizeLimit": self.empty_dir}}

    def mount(self) -> dict[str, object]:
        """Return the volume's mount in the format of the Kubernetes API."""
        only_read = self.read_only or self.secret is not None or self.config_map is not None
        found: dict[str, object] = {"name": self.name, "mountPath": self.mount_path}
        return (
            found
            | ({"subPath": self.sub_path} if self.sub_path else {})
            | ({"readOnly": True} if only_read else {})
        )


def _check_twice(key: str, part: str, seen: list[str]) -> None:
    twice = next((value for n, value in enumerate(seen) if value in seen[:n]), None)
    if twice is not None:
        raise InvalidRequest(
            f"kubernetes.{key}: the {part} {twice!r:.80} appears twice; change one"
        )


def _check_size(key: str, text: str) -> None:
    try:
        size = parse_memory(text) or 0
    except InvalidRequest:
        size = 0
    _refuse(
        not 1 <= size < 2**63, key, text, "is not allowed; give a quantity such as 512Mi or 2Gi"
    )


def _check_passed_on(key: str, given: Mapping[str, Any], known: Iterable[str]) -> None:
    for name in given:
        _check_one_of(key, name, known)
    size = len(json.dumps(given))
    _refuse(size > _PASSED_ON_MAX, key, size, f"bytes are too many; give at most {_PASSED_ON_MAX}")


@dataclass(frozen=True, slots=True)
class Sidecar:
    """A container that the node starts before the crawler and ends after it (a native sidecar)."""

    __pydantic_config__: ClassVar = STRICT

    name: str
    image: str
    command: list[str] = field(default_factory=list)
    args: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    resources: Resources = field(default_factory=Resources)

    def __post_init__(self) -> None:
        fix = "give at most 63 characters of a-z, 0-9 and '-', that do not begin with 'crawl'"
        wrong = not _DNS_LABEL.fullmatch(self.name) or self.name.startswith("crawl")
        _refuse(wrong, "name", self.name, f"is not allowed; {fix}")
        for name in self.env:
            fix = "give letters, digits, '_', '-' and '.', and do not begin with a digit"
            _refuse(
                not _VARIABLE.fullmatch(name),
                "env",
                name,
                f"is not a valid name of a variable; {fix}",
            )
        for key, texts in (
            ("command", self.command),
            ("args", self.args),
            ("env", self.env.values()),
        ):
            cut = next((text for text in texts if "\0" in text), None)
            _refuse(
                cut is not None,
                key,
                cut,
                "contains a NUL character, which no process can receive; remove it",
            )


@dataclass(frozen=True, slots=True)
class PodOptions:
    """The section ``kubernetes`` in a catalogue entry. We or the cluster choose the defaults for
    missing fields.
    """

    __pydantic_config__: ClassVar = STRICT

    node_selector: dict[str, str] = field(default_factory=dict)
    tolerations: list[Toleration] = field(default_factory=list)
    priority_class: str | None = None
    """The priority class for all of the crawler's runs. If it is ``None``, the classes in the
    settings for scheduled and one-time runs apply.
    """
    service_account: str | None = None
    """The service account for the crawler's pods, or ``None`` for the service account in the
    settings. The account's token is not mounted.
    """
    runtime_class: str | None = None
    pull_secrets: list[str] = field(default_factory=list)
    pull_policy: str | None = None
    queue: str | None = None
    """The Kueue queue (LocalQueue) for the crawler's Jobs."""
    volumes: list[PodVolume] = field(default_factory=list)
    runner: bool = True
    """True if the image contains our runner. Otherwise the command is started unchanged, and only
    its exit code shows its outcome.
    """
    project: str | None = None
    """The folder in the image in which the crawler starts. A relative path is relative to the
    image's working directory.
    """
    requests: Resources = field(default_factory=Resources)
    """Resources that the cluster reserves for the pod. By default they are derived from the limits.
    """
    scratch: str = "2Gi"
    """The size limit for each of the pod's own folders: /tmp and, if there is no shared volume, the
    folders for files and state.
    """
    shm: str | None = None
    """The size of ``/dev/shm``, which counts towards the memory limit. ``None`` means the node's
    default, usually 64Mi.
    """
    user: int = 1000
    run_as: str = "user"
    """If this is ``namespace``, the namespace chooses the user and the group from its own range
    (OpenShift). If it is ``user``, the key ``user`` sets the user.
    """
    sidecars: list[Sidecar] = field(default_factory=list)
    affinity: dict[str, Any] = field(default_factory=dict)
    topology_spread: list[dict[str, Any]] = field(default_factory=list)
    """Topology spread constraints. A constraint without a ``labelSelector`` counts the crawler's
    pods.
    """
    extended_resources: dict[str, int] = field(default_factory=dict)
    """Whole devices, such as ``nvidia.com/gpu``, whose requests and limits are equal."""
    dns_policy: str | None = None
    dns_config: dict[str, Any] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_labels("kubernetes.node_selector", self.node_selector)
        check_labels("kubernetes.labels", self.labels)
        for name in self.annotations:
            _check_qualified("kubernetes.annotations", name)
        for key, names in (("labels", self.labels), ("annotations", self.annotations)):
            for name in names:
                taken = name.startswith(_RESERVED) or name in _RESERVED_PLAIN
                _refuse(taken, f"kubernetes.{key}", name, "is reserved; choose a name of your own")
        for name, value in self.labels.items():
            posing = name.startswith("app.kubernetes.io/") and value == _PRODUCT
            why = f"has {_PRODUCT!r}, which marks our own pods; choose another"
            _refuse(posing, "kubernetes.labels", name, why)
        displaces = (self.priority_class or "").startswith(("system-", _PRODUCT))
        why = "is reserved, because crawls must not preempt such pods; name another class"
        _refuse(displaces, "kubernetes.priority_class", self.priority_class, why)
        for key in ("priority_class", "queue", "service_account", "runtime_class"):
            if getattr(self, key) is not None:
                _check_name(f"kubernetes.{key}", getattr(self, key))
        _check_foreign("kubernetes.service_account", self.service_account or "")
        long = self.queue is not None and not is_label_value(self.queue)
        _refuse(
            long, "kubernetes.queue", self.queue, "is too long for a label; at most 63 characters"
        )
        for name in self.pull_secrets:
            _check_name("kubernetes.pull_secrets", name)
            _check_foreign("kubernetes.pull_secrets", name)
        _check_one_of("kubernetes.pull_policy", self.pull_policy, _PULL_POLICIES)
        _check_size("kubernetes.scratch", self.scratch)
        if self.shm is not None:
            _check_size("kubernetes.shm", self.shm)
        above = "is not allowed; 0 is root; give a user id from 1 to 2147483647"
        _refuse(not 1 <= self.user < 2**31, "kubernetes.user", self.user, above)
        for key in ("name", "mount_path"):
            _check_twice("volumes", key, [getattr(volume, key) for volume in self.volumes])
        _check_twice("sidecars", "name", [sidecar.name for sidecar in self.sidecars])
        self._check_more()

    def _check_more(self) -> None:
        _check_one_of("kubernetes.run_as", self.run_as, _RUN_AS)
        both = self.run_as == "namespace" and self.user != 1000
        _refuse(
            both,
            "kubernetes.user",
            self.user,
            "has no effect with 'run_as: namespace'; remove one of them",
        )
        _check_one_of("kubernetes.dns_policy", self.dns_policy, _DNS_POLICIES)
        _check_passed_on("kubernetes.dns_config", self.dns_config, _DNS_CONFIG)
        _check_passed_on("kubernetes.affinity", self.affinity, _AFFINITY)
        for n, constraint in enumerate(self.topology_spread):
            _check_passed_on(f"kubernetes.topology_spread[{n}]", constraint, _SPREAD)
        for name, number in self.extended_resources.items():
            domain, slash, _ = name.rpartition("/")
            native = f".{domain}".endswith(".kubernetes.io") or domain.startswith("requests.")
            fix = "is not an extended resource; give DOMAIN/NAME, such as nvidia.com/gpu"
            _refuse(
                not is_qualified_name(name) or not slash or native,
                "kubernetes.extended_resources",
                name,
                fix,
            )
            fix = f"is not allowed for {name}; give a whole number from 1 to 2147483647"
            _refuse(not 1 <= number < 2**31, "kubernetes.extended_resources", number, fix)

    def check_shm(self, memory: str | None) -> None:
        """Raise ``InvalidRequest`` if ``/dev/shm`` is larger than the memory limit, which includes
        it.
        """
        above = memory is not None and (parse_memory(self.shm) or 0) > (parse_memory(memory) or 0)
        why = (
            f"is above resources.memory ({memory!r:.80}), of which it is a part; lower it, or "
            "raise the memory"
        )
        _refuse(above, "kubernetes.shm", self.shm, why)


@dataclass(frozen=True, slots=True)
class ReservedNames:
    """Names that the settings of an installation reserve. Catalogue entries may not use these
    names."""

    claim: str | None = None
    """The claim for the volume that all crawls share."""
    secrets: frozenset[str] = frozenset()
    """The Secrets with the logins for the installation's registries."""
    env_prefix: str = OF_CRAWLERS
    """The prefix of variables that ``secrets`` may name. Other variables of the scheduler service
    are not passed on.
    """
    webhooks_prefix: str = OF_WEBHOOKS
    """The prefix of variables that contain webhook secrets. Crawlers may not name these variables.
    """

    def check(self, options: PodOptions, secrets: Mapping[str, str]) -> None:
        """Raise ``InvalidRequest`` for a volume or reference that would give a crawler a reserved
        object.
        """
        for n, volume in enumerate(options.volumes):
            if volume.claim is not None and volume.claim == self.claim:
                raise InvalidRequest(
                    f"kubernetes.volumes[{n}].claim: {volume.claim!r:.80} is the volume that all "
                    "crawls share, with "
                    "files and state of every task; give a claim that was made for this crawler"
                )
            self._check_login(f"kubernetes.volumes[{n}].secret", volume.secret)
        for name, text in secrets.items():
            self._check_login(f"secrets.{name}", (secret_reference(text) or (None,))[0])
            check_variable(
                f"secrets.{name}",
                text,
                self.env_prefix,
                "LIFECYCLE_CLUSTER__ENV_PREFIX",
                self.webhooks_prefix,
            )

    def _check_login(self, key: str, name: str | None) -> None:
        if name in self.secrets:
            raise InvalidRequest(
                f"{key}: {name!r:.80} is a login of this service's registry "
                "(LIFECYCLE_CLUSTER__PULL_SECRETS); give a "
                "Secret that was made for this crawler"
            )
