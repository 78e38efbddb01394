"""Memory of running pods from the metrics API (``metrics.k8s.io``), where a cluster has one."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection

import msgspec

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.client.errors import ApiError, NotFound
from crawler_lifecycle.clusters.kubernetes.client.quantities import amount
from crawler_lifecycle.domain import bounds

logger = logging.getLogger(__name__)

#: A cluster that has no such API, or does not let us read it, is asked again after so many seconds.
ABSENT_S = 600.0


class _Meta(msgspec.Struct):
    name: str


class _Container(msgspec.Struct):
    name: str
    usage: dict[str, str] = {}


class _PodMetrics(msgspec.Struct):
    metadata: _Meta
    containers: list[_Container] = []


class _List(msgspec.Struct):
    items: list[_PodMetrics] = []


_LIST = msgspec.json.Decoder(_List)


class MemoryMetrics:
    """What running pods use. Never an error: it is debugging information. Thread-safe."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._lock = threading.Lock()
        self._absent_until = 0.0

    def of(self, selector: str, pods: Collection[str]) -> dict[str, int]:
        """Bytes by pod, of those that the metrics API knows."""
        with self._lock:
            if not pods or time.monotonic() < self._absent_until:
                return {}
        path = self._api.path("pods", group="/apis/metrics.k8s.io/v1beta1")
        try:
            listed = _LIST.decode(self._api.read(path, labelSelector=selector))
        except (ApiError, msgspec.MsgspecError) as error:
            level = logging.DEBUG if isinstance(error, NotFound) else logging.INFO
            logger.log(level, "memory of pods is not read for the next %g s: %s", ABSENT_S, error)
            with self._lock:
                self._absent_until = time.monotonic() + ABSENT_S
            return {}
        found = {}
        for pod in listed.items:
            used = [c.usage.get("memory") for c in pod.containers if c.name == labels.CONTAINER]
            size = to_bytes(used[0]) if used and used[0] else None
            if pod.metadata.name in pods and size is not None:
                found[pod.metadata.name] = size
        return found


def to_bytes(quantity: str) -> int | None:
    """``64Mi`` in bytes; ``None`` for what is no quantity of Kubernetes."""
    value = amount(quantity)
    return int(value) if value is not None and 0 <= value <= bounds.COUNT_MAX else None
