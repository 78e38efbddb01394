"""Two API servers that are asked the same: a real one, and the one that tests script faults
into.
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
    """One of the two, with a namespace that is this scenario's own."""

    api: Api
    fake: FakeApiServer | None = None
    cluster: Cluster | None = None

    def get(self, path: str, **query: object) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.json.decode(self.api.get(path, **query))
        return found

    def path(self, plural: str, name: str | None = None, group: str = "/api/v1") -> str:
        return f"{group}/namespaces/{self.api.namespace}/{plural}" + (f"/{name}" if name else "")

    def pod(self, job: str) -> dict[str, Any]:
        """The pod of a Job, once it is there."""

        def first() -> Any:
            found = self.get(
                self.api.pods_path(), labelSelector=f"batch.kubernetes.io/job-name={job}"
            )["items"]
            return found[0] if found else None

        found: dict[str, Any] = until(first)
        return found

    def running(self, job: str) -> dict[str, Any]:
        """The pod of a Job, once it runs."""
        if self.fake is not None:
            self.fake.pod_starts(job)

        def runs() -> Any:
            pod = self.pod(job)
            return pod if pod["status"]["phase"] == "Running" else None

        found: dict[str, Any] = until(runs)
        return found

    def gone(self, path: str) -> bool:
        """Whether the object goes within a moment."""
        return bool(
            until(lambda: self.outcome(lambda: self.api.get(path))[:2] == ("NotFound", 404))
        )

    def outcome(self, act: Callable[[], Any]) -> tuple[Any, ...]:
        """What the product sees of a gesture: the answer's kind, or the error's class, status,
        reasons and words.
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
        """Words without what differs from run to run."""
        words = _USER.sub('User "U"', _UID.sub("UID", words)).replace(
            self.api.namespace, "NAMESPACE"
        )
        return re.sub(r"-[a-z0-9]{5}(?=\b)", "-XXXXX", words)


def until(ask: Callable[[], Any], seconds: float = 150) -> Any:
    """What ``ask`` answers as soon as that is something."""
    end = time.monotonic() + seconds
    while not (found := ask()):
        assert time.monotonic() < end, f"it did not come within {seconds:g} s"
        time.sleep(0.05)
    return found
