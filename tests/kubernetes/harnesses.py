"""Two API servers that get the same requests: a real one, and the one into which tests script
faults.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from crawler_lifecycle.clusters.kubernetes.client.connection import Api
from crawler_lifecycle.clusters.kubernetes.client.errors import ApiError
from tests.kubernetes.cluster.cluster import Cluster
from tests.support.kube_api import FakeApiServer

_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_USER = re.compile(r'User "[^"]*"')


@dataclass
class Harness:
    """One of the two, with its own namespace for this scenario."""

    api: Api
    fake: FakeApiServer | None = None
    cluster: Cluster | None = None

    def get(self, path: str, **query: object) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.json.decode(self.api.get(path, **query))
        return found

    def path(self, plural: str, name: str | None = None, group: str = "/api/v1") -> str:
        return f"{group}/namespaces/{self.api.namespace}/{plural}" + (f"/{name}" if name else "")

    def pod(self, job: str) -> dict[str, Any]:
        """Return the pod of a Job, once it exists."""

        def first() -> Any:
            found = self.get(
                self.api.pods_path(), labelSelector=f"batch.kubernetes.io/job-name={job}"
            )["items"]
            return found[0] if found else None

        found: dict[str, Any] = until(first)
        return found

    def running(self, job: str) -> dict[str, Any]:
        """Return the pod of a Job, once it runs."""
        if self.fake is not None:
            self.fake.pod_starts(job)

        def runs() -> Any:
            pod = self.pod(job)
            return pod if pod["status"]["phase"] == "Running" else None

        found: dict[str, Any] = until(runs)
        return found

    def gone(self, path: str) -> bool:
        """Return whether the object disappears within a moment."""
        return bool(
            until(lambda: self.outcome(lambda: self.api.get(path))[:2] == ("NotFound", 404))
        )

    def outcome(self, act: Callable[[], Any]) -> tuple[Any, ...]:
        """Return what the product sees of an operation: the kind of the response, or class, status,
        reasons and message of the error.
        """
        try:
            answer = act()
        except ApiError as error:
            return (
                type(error).__name__,
                error.status,
                error.reason,
                error.causes,
                self.told(error.words),
            )
        return (
            "answer",
            msgspec.json.decode(answer).get("kind")
            if isinstance(answer, bytes)
            else type(answer).__name__,
        )

    def told(self, words: str) -> str:
        """Return a message without what differs from run to run."""
        words = _USER.sub('User "U"', _UID.sub("UID", words)).replace(
            self.api.namespace, "NAMESPACE"
        )
        return re.sub(r"-[a-z0-9]{5}(?=\b)", "-XXXXX", words)


def until(ask: Callable[[], Any], seconds: float = 150) -> Any:
    """Return the first result of ``ask`` that is not empty."""
    end = time.monotonic() + seconds
    while not (found := ask()):
        assert time.monotonic() < end, f"it did not come within {seconds:g} s"
        time.sleep(0.05)
    return found
