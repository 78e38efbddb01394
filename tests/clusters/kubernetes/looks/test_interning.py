"""Sharing changes what objects weigh, and nothing that they say."""

from __future__ import annotations

from crawler_lifecycle.clusters.kubernetes.looks.listing import Interner
from tests.support.kubernetes_conditions import RECORDED, load


def test_every_recorded_condition_says_the_same_when_its_parts_are_shared() -> None:
    interner = Interner()
    paths = sorted(RECORDED.glob("*.json"))
    assert len(paths) > 100
    for path in paths:
        plain, shared = load(path), load(path)
        job = interner.job(shared.job) if shared.job is not None else None
        pods = [interner.pod(pod) for pod in shared.pods]
        for one, other in zip((job, *pods), (plain.job, *plain.pods), strict=True):
            if one is None or other is None:
                assert one is other, path.name
                continue
            assert one.metadata.labels == other.metadata.labels, path.name
            assert one.metadata.annotations == other.metadata.annotations, path.name
            assert list(one.metadata.finalizers) == list(other.metadata.finalizers), path.name
            assert list(one.metadata.owner_references) == list(other.metadata.owner_references), path.name
            assert list(one.status.conditions) == list(other.status.conditions), path.name
        for pod, as_it_was in zip(pods, plain.pods, strict=True):
            assert list(pod.spec.containers) == list(as_it_was.spec.containers), path.name
        assert shared.read() == plain.read(), path.name


def test_what_two_pods_have_in_common_is_there_once() -> None:
    interner = Interner()
    first, second = (interner.pod(load(RECORDED / "closespider.json").pods[0]) for _ in range(2))
    for name in first.metadata.labels:
        assert first.metadata.labels[name] is second.metadata.labels[name]
    for one, other in zip(first.status.conditions, second.status.conditions, strict=True):
        assert one is other
    assert first.spec.containers[0] is second.spec.containers[0]
    assert first is not second
