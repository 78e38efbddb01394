"""Objects of the API as small as they can be, for tests that are not about manifests."""

from __future__ import annotations

from typing import Any


def job(
    name: str, labels: dict[str, str] | None = None, *, finalizers: list[str] | None = None, grace_s: int = 3
) -> dict[str, Any]:
    """A Job of one pod that is never tried again; its pod has the same labels, and the finalizers."""
    pod = {
        **{"restartPolicy": "Never", "terminationGracePeriodSeconds": grace_s},
        "containers": [{"name": "crawler", "image": "crawl.test/app:1"}],
    }
    template = {"metadata": {"labels": dict(labels or {}), "finalizers": list(finalizers or [])}, "spec": pod}
    return {
        **{"apiVersion": "batch/v1", "kind": "Job"},
        "metadata": {"name": name, "labels": dict(labels or {})},
        "spec": {"backoffLimit": 0, "podReplacementPolicy": "Failed", "template": template},
    }
