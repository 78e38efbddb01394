"""Environment of a crawler's container: the process contract (docs/crawlers.md), the catalogue's variables, secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from crawler_lifecycle.clusters.kubernetes.files import layout
from crawler_lifecycle.domain.crawlers.crawler import CrawlerDefinition
from crawler_lifecycle.domain.crawlers.pod import secret_reference
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.ports.runs import Deployment, QueuedTask
from crawler_lifecycle.process_contract import contract_of

from .quantities import memory_limit

#: Seconds that a pod and the runner can count.
SECONDS_MAX = 2**31
_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]{0,1023}")

STATS_FILE = f"{layout.TMP_MOUNT}/crawl-stats.json"


@dataclass(frozen=True, slots=True)
class Given:
    """What one task gets beside the contract."""

    public: Mapping[str, str]
    secret: str
    """The task's own Secret …"""
    secret_names: Sequence[str]
    """… and the variables that come from it."""


def variables(
    deployment: Deployment, crawler: CrawlerDefinition, task: QueuedTask, given: Given, end_grace_s: int
) -> list[dict[str, object]]:
    """Every variable once, as the API spells them. Of two of one name the contract's counts, then the task's own.

    Raises ``InvalidRequest``.
    """
    # The image's home is read-only, and belongs to somebody else.
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
    limits = deployment.limits
    if limits.stop_grace_s >= SECONDS_MAX:
        raise InvalidRequest(f"limits.stop_grace_s: {limits.stop_grace_s:g} is too much; give less than {SECONDS_MAX}")
    found = contract_of(deployment, crawler, task) | {
        "CRAWL_FILES_DIR": layout.FILES_MOUNT,
        "CRAWL_STATE_DIR": layout.STATE_MOUNT,
        "CRAWL_STATS_FILE": STATS_FILE,
        "CRAWL_SUMMARY_FILE": layout.SUMMARY_FILE,
    }
    if crawler.kubernetes.runner:
        # The kubelet kills runner and crawler together, so the runner itself keeps the crawler's grace.
        found["CRAWL_END_GRACE_S"] = str(end_grace_s)
        if limits.run_timeout_s is not None and limits.run_timeout_s < SECONDS_MAX:
            # When it starts nobody knows yet: the runner makes CRAWL_DEADLINE of it.
            found["CRAWL_RUN_TIMEOUT_S"] = f"{limits.run_timeout_s:.15g}"
    memory = memory_limit(deployment, crawler)
    if memory is not None:
        found["CRAWL_MEMORY_LIMIT"] = str(memory)
    return found


def escaped(text: str) -> str:
    """``$(NAME)`` in a command or a value would be replaced by the kubelet; ``$$`` stands for ``$`` there."""
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
