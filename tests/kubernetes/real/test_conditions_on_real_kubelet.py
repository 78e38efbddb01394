"""Recorded conditions are the same when they are provoked again: neither the cluster nor the
reading has changed.

This is a sample; `python -m tests.kubernetes.record_conditions` plays all of them. Conditions that
another test of this folder produces and reads to the end are for `make test-all`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.record_conditions import AT_ONCE, played
from tests.kubernetes.scenes import SCENES
from tests.support.kubernetes_conditions import RECORDED, condition_of

SAMPLE = (
    "finished",
    "exit-0-silent",
    "exit-1-log",
    "oom",
    "oom-child-exit-0",
    "start-error",
    "init-failed",
    "beside-failed",
    "job-deadline",
    "pod-deadline",
    "job-complete-no-pod",
    "stop-handled",
    "stop-exit-0",
    "stop-ignored",
    "pod-deleted",
    "pod-deleted-exit-0",
    "pod-deleted-before-start",
    "job-deleted",
    "job-suspended-running",
    "evicted-api",
    "evicted-api-exit-0",
    "job-orphaned",
    "job-recreated",
    "quota",
    "service-account",
    "pod-security",
    "image-pull",
    "image-never",
    "image-name",
    "secret-missing",
)
#: In ``test_ends_on_real_kubelet``, the last one in ``test_retries_on_real_kubelet``.
ELSEWHERE = (
    "finished",
    "exit-1-log",
    "oom",
    "oom-child-exit-0",
    "job-deadline",
    "stop-handled",
    "stop-ignored",
    "pod-deleted",
    "image-pull",
    "evicted-api",
)


@pytest.fixture(scope="module")
def scenes(
    real_cluster: Cluster, request: pytest.FixtureRequest
) -> Iterator[Mapping[str, Future[dict[str, Any]]]]:
    """As many at once as two processors can handle; each test waits for its own."""
    wanted = [
        item.callspec.params["name"] for item in request.session.items if item.path == request.path
    ]  # type: ignore[attr-defined]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {name: pool.submit(played, real_cluster, name, SCENES[name]) for name in wanted}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in ELSEWHERE)) for name in SAMPLE]
)
def test_a_condition_that_is_provoked_again_reads_the_same(
    name: str, scenes: Mapping[str, Future[dict[str, Any]]]
) -> None:
    known = json.loads((RECORDED / f"{name}.json").read_text())
    assert condition_of({**known, **scenes[name].result()}).read() == known["expected"]
