"""A list decodes less than a read of the single object.

Observations must not show the difference.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.objects import (
    Event,
    Job,
    Pod,
    decode,
    decode_page,
)
from crawler_lifecycle.clusters.kubernetes.polls.listing import (
    Listed,
    ListedJob,
    ListedPod,
    Sharing,
    key_of,
)
from crawler_lifecycle.clusters.kubernetes.polls.reading import read_task
from crawler_lifecycle.ports.runs import TaskRef
from tests.clusters.kubernetes.polls.test_reading import T0, Cluster, clusters, tasks
from tests.support.examples import examples
from tests.support.kubernetes_conditions import RECORDED, condition_of

OF_RUN = dict.fromkeys(labels.OF_RUN, "7")
known = st.fixed_dictionaries(
    {},
    optional={
        name: st.sampled_from(["7", "8", ""]) for name in (*labels.READ, "job-name", "any/other")
    },
)


def listed(kind: type[Listed], objects: list[dict[str, Any]], sharing: Sharing) -> list[Listed]:
    name = str(kind.__name__).removeprefix("Listed")
    page = {"kind": f"{name}List", "metadata": {"resourceVersion": "1"}, "items": objects}
    return list(map(sharing.keep, decode_page(kind, json.dumps(page).encode()).items))


def alike(
    job: dict[str, Any] | None,
    pods: list[dict[str, Any]],
    events: list[Event] | None,
    task: TaskRef,
) -> None:
    sharing = Sharing()
    jobs = listed(ListedJob, [job] if job is not None else [], sharing)
    quick = jobs[0] if jobs else None, listed(ListedPod, pods, sharing)
    plain = (
        decode(Job, json.dumps({**job, "kind": "Job"}).encode()) if job is not None else None,
        [decode(Pod, json.dumps({**one, "kind": "Pod"}).encode()) for one in pods],
    )
    for one, other in zip((quick[0], *quick[1]), (plain[0], *plain[1]), strict=True):
        if one is not None and other is not None:
            assert one.status == other.status
            assert one.metadata.labels.items() <= other.metadata.labels.items()
            assert key_of(one.metadata) == key_of(other.metadata)
    assert read_task(task, *quick, events, T0) == read_task(task, *plain, events, T0)


def test_every_recorded_condition_says_the_same_in_a_list() -> None:
    paths = sorted(RECORDED.glob("*.json"))
    assert len(paths) > 100
    for path in paths:
        said = json.loads(path.read_text())
        condition = condition_of(said)
        alike(said["objects"]["job"], said["objects"]["pods"], condition.events, condition.task)


@settings(max_examples=examples(100))
@given(tasks, clusters, st.lists(known, min_size=3, max_size=3))
def test_any_object_says_the_same_in_a_list(
    task: TaskRef, cluster: Cluster, given: list[dict[str, str]]
) -> None:
    job, pods, events = cluster
    for one, its in zip([*([job] if job is not None else []), *pods], given, strict=False):
        one["metadata"] = {**one["metadata"], "labels": its}
    alike(job, pods, [decode(Event, json.dumps(one).encode()) for one in events], task)


def test_what_two_pods_of_a_run_have_in_common_is_there_once() -> None:
    metas = [
        {"name": name, "uid": name, "labels": {**OF_RUN, labels.TASK: name}} for name in ("a", "b")
    ]
    conditions = [{"type": "Ready", "status": "True"}, {"type": "Unheard", "status": "True"}]
    pods = [{"metadata": meta, "status": {"conditions": conditions}} for meta in metas]
    first, second = listed(ListedPod, pods, Sharing())
    assert all(
        first.metadata.labels[name] is second.metadata.labels[name] for name in labels.OF_RUN
    )
    assert (first.metadata.labels[labels.TASK], second.metadata.labels[labels.TASK]) == ("a", "b")
    assert first.status.conditions[0].type is second.status.conditions[0].type
    assert [str(one.type) for one in first.status.conditions] == ["Ready", "Unheard"]


def test_a_pod_of_another_run_keeps_its_own_labels() -> None:
    metas = [
        {"name": number, "uid": number, "labels": {**OF_RUN, labels.RUN: number}}
        for number in ("7", "8")
    ]
    found = listed(ListedPod, [{"metadata": meta} for meta in metas], Sharing())
    assert [pod.metadata.labels[labels.RUN] for pod in found] == ["7", "8"]


@pytest.mark.parametrize("name", [labels.RUN, labels.MANAGED_BY, "any/other"])
def test_a_label_that_is_no_text_does_not_hide_its_object(name: str) -> None:
    pod = {"metadata": {"name": "a", "uid": "b", "labels": {labels.TASK: "1", name: 5}}}
    assert [one.metadata.uid for one in listed(ListedPod, [pod], Sharing())] == ["b"]
