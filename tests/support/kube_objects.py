"""Minimal objects of the API, for tests that are not about manifests."""

from __future__ import annotations

from typing import Any


def job(
    name: str,
    labels: dict[str, str] | None = None,
    *,
    finalizers: list[str] | None = None,
    grace_s: int = 3,
) -> dict[str, Any]:
    """Return a Job with one pod that is never retried; its pod has the same labels and finalizers."""
    pod = {
        **{"restartPolicy": "Never", "terminationGracePeriodSeconds": grace_s},
        "containers": [{"name": "crawler", "image": "crawl.test/app:1"}],
    }
    template = {
        "metadata": {"labels": dict(labels or {}), "finalizers": list(finalizers or [])},
        "spec": pod,
    }
    return {
        **{"apiVersion": "batch/v1", "kind": "Job"},
        "metadata": {"name": name, "labels": dict(labels or {})},
        "spec": {"backoffLimit": 0, "podReplacementPolicy": "Failed", "template": template},
    }


_FILE = "/var/log/pods/crawls_crawl-7-0-1-8d6h7_2d778a3b-6693-47df-b127-f4c7474ffe7f/crawler/0.log"
#: What a real kubelet sends, with status 200, in place of a log that it does not find. The first
#: two were recorded.
NO_LOGS = tuple(
    said.encode()
    for said in (
        "unable to retrieve container logs for containerd://0d61d912e1fd3cca",
        f'failed to try resolving symlinks in path "{_FILE}": lstat {_FILE}: no such file or directory',
        f'failed to open log file "{_FILE}": open {_FILE}: no such file or directory',
        f'failed to tail 200 lines of log file "{_FILE}": read {_FILE}: input/output error',
        f'failed to seek in log file "{_FILE}": seek {_FILE}: invalid argument\n',
    )
)
