"""The crawler's container: its environment (the process contract, docs/crawlers.md), limits and requests."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from crawler_lifecycle.clusters.kubernetes.files import layout
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.domain.crawlers.pod import secret_reference
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.run import Resources, parse_cpu, parse_memory
from crawler_lifecycle.ports.runs import Deployment, QueuedTask
from crawler_lifecycle.process_contract import contract_of

_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]{0,1023}")

STATS_FILE = f"{layout.TMP_MOUNT}/crawl-stats.json"


@dataclass(frozen=True, slots=True)
class Given:
    """The values that one task gets beside the contract."""

    public: Mapping[str, str]
    secret: str
    """The task's own Secret …"""
    secret_names: Sequence[str]
    """… and the variables that are derived from it."""


def variables(
    deployment: Deployment, crawler: CrawlerDefinition, task: QueuedTask, given: Given, end_grace_s: int
) -> list[dict[str, object]]:
    """Every variable once, as the API spells them. Of two of one name the contract's counts, then the task's own.

    Raises ``InvalidRequest``.
    """
    # The home folder of the image is read-only, and belongs to another user.
    plain = {"HOME": layout.TMP_MOUNT, **crawler.env}
    fixed = {**given.public, **contract(deployment, crawler, task, end_grace_s)}
    found: dict[str, dict[str, object]] = {name: {"value": escaped(value)} for name, value in plain.items()}
    for name, text in crawler.secrets.items():
        found[name] = {"valueFrom": {"secretKeyRef": _reference(name, text)}}
    for name in given.secret_names:
        found[name] = {"valueFrom": {"secretKeyRef": {"name": given.secret, "key": name}}}
    for name, value in fixed.items():
        found[name] = {"value": escaped(value)}
    for name in found:
        _check(name, fixed.get(name) or plain.get(name, ""))
    return [{"name": name, **entry} for name, entry in found.items()]


def contract(
    deployment: Deployment, crawler: CrawlerDefinition, task: QueuedTask, end_grace_s: int
) -> Mapping[str, str]:
    """The variables of the process contract (docs/crawlers.md). Raises ``InvalidRequest`` for wrong arguments."""
    run_timeout_s = deployment.limits.run_timeout_s
    found = contract_of(deployment, crawler, task) | {
        "CRAWL_FILES_DIR": layout.FILES_MOUNT,
        "CRAWL_STATE_DIR": layout.STATE_MOUNT,
        "CRAWL_STATS_FILE": STATS_FILE,
        "CRAWL_SUMMARY_FILE": layout.SUMMARY_FILE,
    }
    if crawler.kubernetes.runner:
        # The kubelet kills runner and crawler together, so the runner itself keeps the crawler's grace.
        found["CRAWL_END_GRACE_S"] = str(end_grace_s)
        if run_timeout_s is not None:
            # The start time is not known yet: the runner computes CRAWL_DEADLINE from it.
            found["CRAWL_RUN_TIMEOUT_S"] = f"{run_timeout_s:.15g}"
    memory = memory_limit(deployment, crawler)
    if memory is not None:
        found["CRAWL_MEMORY_LIMIT"] = str(memory)
    return found


def escaped(text: str) -> str:
    """``$(NAME)`` in a command or a value would be replaced by the kubelet; ``$$`` there means ``$``."""
    return text.replace("$", "$$")


def _reference(name: str, text: str) -> dict[str, str]:
    found = secret_reference(text)
    if found is None:
        raise InvalidRequest(
            f"secrets.{name!r:.80}: {text!r:.80} cannot be resolved here; on Kubernetes a secret is 'secret:NAME/KEY', "
            "a key of a Secret in the namespace of crawls"
        )
    return {"name": found[0], "key": found[1]}


def _check(name: str, value: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"env.{name!r:.80}: no name of a variable on Kubernetes; give letters, digits, '_', '-' and '.', and "
            "begin with none of the digits"
        )
    if "\0" in value:
        raise InvalidRequest(f"env.{name!r:.80}: holds a NUL character, which no process can receive; remove it")


#: Reserved when neither the request nor the catalogue says anything.
CPU_REQUEST, MEMORY_REQUEST = "50m", "128Mi"
#: A crawler waits for answers most of its time: a quarter of its processor limit is reserved, and so many thousandths.
CPU_SHARE, CPU_LEAST = 0.25, 10
#: Below this no container starts.
MEMORY_LEAST = 4 * 2**20
#: Capacity for the container's log beside the pod's own folders.
LOGS = 256 * 2**20
_QUANTITY = re.compile(r"[0-9]{1,15}(\.[0-9]{1,9})?(Ki|Mi|Gi|Ti|k|M|G|T)?")


def limits_of(deployment: Deployment, crawler: CrawlerDefinition) -> Resources:
    """Return the limits of the task: the request's over the catalogue's.

    A crawler without a memory limit gets its reservation as the limit: otherwise the namespace's ``LimitRange`` would
    set one, and a pod that reserves more than its limit is refused.
    """
    return deployment.resources.over(crawler.resources).over(Resources(memory=crawler.kubernetes.requests.memory))


def memory_limit(deployment: Deployment, crawler: CrawlerDefinition) -> int | None:
    """Bytes. Raises ``InvalidRequest`` for a limit that no container can have."""
    text = limits_of(deployment, crawler).memory
    size = parse_memory(text)
    if size is not None and size < MEMORY_LEAST:
        said = deployment.resources.over(crawler.resources).memory is not None
        key = "resources.memory" if said else "kubernetes.requests.memory"
        raise InvalidRequest(f"{key}: {text!r:.80} is not allowed; give at least 4Mi")
    return size


def resources_of(deployment: Deployment, crawler: CrawlerDefinition, *, shared: bool) -> dict[str, object]:
    """Limits and requests of the container; ``shared``: files and state lie on a volume that is not the node's.

    Both are always set, because a limit without a request becomes the request, and crawlers would fill an idle node.
    Memory is reserved in full: it cannot be taken back, and a node without free memory evicts pods.
    """
    asked, wished = limits_of(deployment, crawler), crawler.kubernetes.requests
    cpu, memory = _milli(asked.cpu), memory_limit(deployment, crawler)
    disk = (parse_memory(scratch_of(crawler)) or 0) * (1 if shared else 2) + LOGS
    limits, requests = dict[str, str](), {"cpu": CPU_REQUEST, "memory": MEMORY_REQUEST, "ephemeral-storage": "0"}
    least = _milli(wished.cpu) or (None if cpu is None else max(CPU_LEAST, round(cpu * CPU_SHARE)))
    if cpu is not None:
        limits["cpu"] = _processors(cpu)
    if least is not None:
        requests["cpu"] = _processors(least if cpu is None else min(least, cpu))
    if asked.memory is not None and memory is not None:
        limits["memory"] = requests["memory"] = _memory_text(asked.memory)
        if wished.memory is not None and (parse_memory(wished.memory) or 0) <= memory:
            requests["memory"] = _memory_text(wished.memory)
    return {"limits": {**limits, "ephemeral-storage": str(disk)}, "requests": requests}


def scratch_of(crawler: CrawlerDefinition) -> str:
    """The size limit of each of the pod's own folders."""
    return _memory_text(crawler.kubernetes.scratch)


def _milli(text: str | None) -> int | None:
    """Thousandths of a processor, rounded up as Kubernetes rounds."""
    value = parse_cpu(text)
    return None if value is None else max(1, math.ceil(value * 1000 - 1e-6))


def _processors(milli: int) -> str:
    return f"{milli}m" if milli % 1000 else str(milli // 1000)


def _memory_text(text: str) -> str:
    """Unchanged where Kubernetes reads it the same way, because people see this limit; else in bytes."""
    return text if _QUANTITY.fullmatch(text) else str(parse_memory(text))
