"""The crawler's container: its environment (the process contract in docs/contract.md), limits and
requests.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from crawler_lifecycle.clusters.kubernetes.files import layout
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.domain.crawlers.pod import secret_reference
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.resources import Resources, parse_cpu, parse_memory
from crawler_lifecycle.ports.runs import Deployment, QueuedTask
from crawler_lifecycle.process_contract import contract_of

_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]{0,1023}")

#: A part of a manifest, as plain data.
Part = dict[str, object]
STATS_FILE = f"{layout.TMP_MOUNT}/crawl-stats.json"


@dataclass(frozen=True, slots=True)
class TaskVariables:
    """The variables that one task gets in addition to the contract."""

    public: Mapping[str, str]
    secret: str
    """The name of the task's own Secret."""
    secret_names: Sequence[str]
    """The variables whose values come from this Secret."""


def variables(
    deployment: Deployment,
    crawler: CrawlerDefinition,
    task: QueuedTask,
    given: TaskVariables,
    end_grace_s: int,
) -> list[Part]:
    """Return the container's variables in the form that the API expects, each name once.

    The order of precedence is: the contract, the task's own variables, the catalogue. Raises
    ``InvalidRequest``.
    """
    # The image's home folder is read-only and belongs to another user.
    plain = {"HOME": layout.TMP_MOUNT, **crawler.env}
    fixed = {**given.public, **contract(deployment, crawler, task, end_grace_s)}
    found: dict[str, Part] = {name: {"value": escaped(value)} for name, value in plain.items()}
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
    """Return the variables that the process contract defines (docs/contract.md).

    Raises ``InvalidRequest`` for bad arguments.
    """
    run_timeout_s = deployment.limits.run_timeout_s
    found = contract_of(deployment, crawler, task) | {
        "CRAWL_FILES_DIR": layout.FILES_MOUNT,
        "CRAWL_STATE_DIR": layout.STATE_MOUNT,
        "CRAWL_STATS_FILE": STATS_FILE,
        "CRAWL_SUMMARY_FILE": layout.SUMMARY_FILE,
    }
    if crawler.kubernetes.runner:
        # The kubelet kills the runner and the crawler together. So the runner must end the crawler
        # earlier.
        found["CRAWL_END_GRACE_S"] = str(end_grace_s)
        if run_timeout_s is not None:
            # The start time is not known yet. The runner computes CRAWL_DEADLINE when it starts.
            found["CRAWL_RUN_TIMEOUT_S"] = f"{run_timeout_s:.15g}"
    memory = memory_limit(deployment, crawler)
    if memory is not None:
        found["CRAWL_MEMORY_LIMIT"] = str(memory)
    return found


def escaped(text: str) -> str:
    """Return the text with ``$$`` for each ``$``, because the kubelet replaces ``$(NAME)`` and
    reads ``$$`` as ``$``.
    """
    return text.replace("$", "$$")


def _reference(name: str, text: str) -> dict[str, str]:
    found = secret_reference(text)
    if found is None:
        raise InvalidRequest(
            f"secrets.{name!r:.80}: {text!r:.80} cannot be resolved here; on Kubernetes give "
            "'secret:NAME/KEY', "
            "a key of a Secret in the namespace of the crawls"
        )
    return {"name": found[0], "key": found[1]}


def _check(name: str, value: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"env.{name!r:.80}: Kubernetes does not allow this name; use letters, digits, '_', '-' "
            "and '.', and do not "
            "begin with a digit"
        )
    if "\0" in value:
        raise InvalidRequest(f"env.{name!r:.80}: the value contains a NUL character; remove it")


#: The resource requests of a container when neither the API request nor the catalogue sets them.
CPU_REQUEST = "50m"
MEMORY_REQUEST = "128Mi"
#: The reserved share of the CPU limit, and the smallest reservation in thousandths of a CPU. A
#: share is enough, because a crawler mostly waits for responses.
CPU_SHARE = 0.25
CPU_LEAST = 10
#: The smallest memory limit in bytes with which a container can start.
MEMORY_LEAST = 4 * 2**20
#: Bytes of disk reserved for the container's log, in addition to the pod's own folders.
LOGS = 256 * 2**20
_QUANTITY = re.compile(r"[0-9]{1,15}(\.[0-9]{1,9})?(Ki|Mi|Gi|Ti|Pi|Ei|k|M|G|T|P|E)?")


def limits_of(deployment: Deployment, crawler: CrawlerDefinition) -> Resources:
    """Return the task's limits: those in the request, and for all others those in the catalogue.

    If no memory limit is set, the reserved memory becomes the limit. Otherwise the namespace's
    ``LimitRange`` could set a lower one, and the cluster refuses a pod that reserves more than its
    limit.
    """
    return deployment.resources.over(crawler.resources).over(
        Resources(memory=crawler.kubernetes.requests.memory)
    )


def memory_limit(deployment: Deployment, crawler: CrawlerDefinition) -> int | None:
    """Return the memory limit in bytes.

    Raises ``InvalidRequest`` for a limit that is too small for a container.
    """
    given = deployment.resources.over(crawler.resources).memory is not None
    key = "resources.memory" if given else "kubernetes.requests.memory"
    return _memory(key, limits_of(deployment, crawler).memory)


def _memory(key: str, text: str | None) -> int | None:
    size = parse_memory(text)
    if size is not None and size < MEMORY_LEAST:
        raise InvalidRequest(f"{key}: {text!r:.80} is not allowed; give at least 4Mi")
    return size


def resources_of(deployment: Deployment, crawler: CrawlerDefinition, *, shared: bool) -> Part:
    """Return the limits and requests of the container.

    ``shared`` is true if files and state are on a volume outside the node.

    Requests are always set: otherwise Kubernetes uses the limits as requests, and few crawlers fit
    on an idle node. Memory is reserved in full, because a node cannot reclaim it, and evicts pods
    when it runs out.
    """
    asked = limits_of(deployment, crawler)
    wished = crawler.kubernetes.requests
    crawler.kubernetes.check_shm(asked.memory)  # a request may set a lower limit
    memory = memory_limit(deployment, crawler)
    found = _resources(asked, wished, memory, crawler, folders=1 if shared else 2)
    devices = {name: str(number) for name, number in crawler.kubernetes.extended_resources.items()}
    return {part: {**amounts, **devices} for part, amounts in found.items()}


def resources_beside(n: int, crawler: CrawlerDefinition) -> dict[str, dict[str, str]]:
    """Return the limits and requests of a sidecar, which has one folder of its own."""
    asked = crawler.kubernetes.sidecars[n].resources
    memory = _memory(f"kubernetes.sidecars[{n}].resources.memory", asked.memory)
    return _resources(asked, Resources(), memory, crawler, folders=1)


def _resources(
    asked: Resources,
    wished: Resources,
    memory: int | None,
    crawler: CrawlerDefinition,
    *,
    folders: int,
) -> dict[str, dict[str, str]]:
    cpu = _milli(asked.cpu)
    disk = (parse_memory(scratch_of(crawler)) or 0) * folders + LOGS
    limits = dict[str, str]()
    requests = {"cpu": CPU_REQUEST, "memory": MEMORY_REQUEST, "ephemeral-storage": "0"}
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
    """Return the size limit of each of the pod's own folders."""
    return _memory_text(crawler.kubernetes.scratch)


def shm_of(crawler: CrawlerDefinition) -> str | None:
    """Return the size of ``/dev/shm``; ``None`` means the node's default."""
    return crawler.kubernetes.shm and _memory_text(crawler.kubernetes.shm)


def _milli(text: str | None) -> int | None:
    """Return thousandths of a CPU, rounded up as in Kubernetes."""
    value = parse_cpu(text)
    return None if value is None else max(1, math.ceil(value * 1000 - 1e-6))


def _processors(milli: int) -> str:
    return f"{milli}m" if milli % 1000 else str(milli // 1000)


def _memory_text(text: str) -> str:
    """Return the size in the form that Kubernetes expects: the same text if Kubernetes accepts it,
    because people read this text; otherwise the number of bytes.
    """
    return text if _QUANTITY.fullmatch(text) else str(parse_memory(text))
