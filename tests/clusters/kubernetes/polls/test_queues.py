"""What Kueue reports about Jobs that it holds or has taken back, and that a poll works without it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.domain.task import Phase
from tests.clusters.kubernetes.polls.harness import Harness
from tests.support.kube_api.faults import Answer, Fault, Garbage, Reset

Json = dict[str, Any]
HELD = "Waiting in queue night"
FULL = "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor any, 50m more needed"
GROUPS = "/apis/(visibility.)?kueue.x-k8s.io"


def hold(harness: Harness, tasks: int = 1, **labelled: str) -> None:
    """Jobs that their queue holds."""
    harness.server.controllers.makes_pods = False
    harness.deploy(tasks, started=False)
    for index in range(tasks):
        harness.server.change_job(harness.name(index), lambda job: _suspend(job, labelled))


def _suspend(job: Json, labelled: Json) -> None:
    job["spec"]["suspend"] = True
    job["metadata"]["labels"] |= {labels.QUEUE: "night", **labelled}


def condition(kind: str, reason: str, message: str, *, true: bool = True) -> Json:
    return {
        "type": kind,
        "status": "True" if true else "False",
        "reason": reason,
        "message": message,
    }


PENDING = condition("QuotaReserved", "Pending", FULL, true=False)
RESERVED = condition("QuotaReserved", "QuotaReserved", "Quota reserved in ClusterQueue day")
PREEMPTED = condition("Evicted", "Preempted", "Preempted to accommodate a workload")


def workload(
    harness: Harness,
    *conditions: Json,
    name: str = "job-x",
    spec: Json | None = None,
    **status: Any,
) -> Json:
    uid = harness.server.job(harness.name())["metadata"]["uid"]
    meta = {"name": name, "uid": f"uid-of-{name}", "creationTimestamp": "2026-01-05T12:00:00Z"}
    owners = [{"uid": uid, "controller": True}]
    return {
        "metadata": meta | {"ownerReferences": owners},
        "spec": spec or {},
        "status": {"conditions": conditions} | status,
    }


def answers(
    harness: Harness, group: str, path: str, answer: Fault | Json, version: str = "v1beta2"
) -> None:
    """From now on, the API group exists and gives this response."""
    found = {"kind": "APIGroup", "name": group, "preferredVersion": {"version": version}}
    harness.server.faults.add(
        "GET", f"/apis/{group}$", Garbage(json.dumps(found).encode()), times=None
    )
    body = answer if isinstance(answer, Fault) else Garbage(json.dumps(answer).encode())
    harness.server.faults.add(
        "GET", f"/apis/{group}/{version}/namespaces/crawls/{path}", body, times=None
    )


def kueue(harness: Harness, *items: Json, **more: Any) -> None:
    listed = {"kind": "WorkloadList", "metadata": {"resourceVersion": "1"}, "items": items}
    answers(harness, "kueue.x-k8s.io", "workloads", listed, **more)


def visibility(harness: Harness, *names: str) -> None:
    items = [
        {"metadata": {"name": name}, "positionInLocalQueue": place}
        for place, name in enumerate(names)
    ]
    found = {"kind": "PendingWorkloadsSummary", "metadata": {}, "items": items}
    answers(harness, "visibility.kueue.x-k8s.io", "localqueues/night/pendingworkloads", found)


@pytest.mark.parametrize(
    ("conditions", "more", "said"),
    [
        ([], {}, ", position 2: Kueue has not considered it yet"),
        ([PENDING], {}, f", position 2: {FULL}"),
        (
            [PENDING, PREEMPTED],
            {},
            f", position 2: {FULL}; it was taken back before (Preempted: {PREEMPTED['message']})",
        ),
        (
            [condition("QuotaReserved", "Pending", "Exceeded the PodsReady timeout", true=False)],
            {"requeueState": {"count": 1, "requeueAt": "2090-01-05T12:00:00Z"}},
            ", position 2: Exceeded the PodsReady timeout; it is queued again at 05 Jan 12:00 UTC",
        ),
        (
            [PENDING],
            {"requeueState": {"requeueAt": "2020-01-05T12:00:00Z"}},
            f", position 2: {FULL}",
        ),
        (
            [RESERVED],
            {
                "admissionChecks": [
                    {"name": "nodes", "state": "Pending"},
                    {"name": "paid", "state": "Ready"},
                ]
            },
            ", position 2: its quota is reserved, and admission checks are not ready: nodes (Pending)",
        ),
        (
            [RESERVED, condition("Admitted", "Admitted", "")],
            {},
            ", position 2: it is admitted, and about to start",
        ),
        (
            [condition("Finished", "FailedToStart", "invalid podset infos")],
            {},
            ", position 2: Kueue counts it as finished and does not start it (FailedToStart: invalid podset infos)",
        ),
        (
            [PENDING, condition("Evicted", "Deactivated", "The workload is deactivated")],
            {"spec": {"active": False}},
            ", position 2: its Workload job-x is deactivated; it continues when its spec.active is true again",
        ),
    ],
)
def test_why_a_queue_holds_a_job(
    harness: Harness, conditions: list[Json], more: Json, said: str
) -> None:
    hold(harness)
    kueue(harness, workload(harness, *conditions, **more))
    visibility(harness, "another", "job-x")
    seen = harness.see()
    assert (seen.phase, seen.reason) == (Phase.WAITING, HELD + said)


def test_without_kueue_and_without_a_workload(harness: Harness) -> None:
    hold(harness, **{labels.QUEUE_PRIORITY: "urgent"})
    assert harness.see().reason == f"{HELD}: Kueue is not installed on this cluster"
    kueue(harness)
    assert harness.see().reason == HELD, "it may come yet"
    harness.later += harness.later.resolution * 61_000_000
    fix = "check that Kueue is running and manages Jobs, and that the WorkloadPriorityClass urgent exists"
    assert harness.see().reason == f"{HELD}: Kueue has created no Workload for it: {fix}"


def test_who_has_no_queue_asks_kueue_nothing(harness: Harness) -> None:
    harness.deploy(2)
    harness.server.change_job(
        harness.name(), lambda job: job["metadata"]["labels"].update({labels.QUEUE: "night"})
    )
    harness.server.change_job(harness.name(1), lambda job: job["spec"].update(suspend=True))
    harness.poll()
    assert harness.calls("GET", GROUPS) == 0


def test_one_poll_asks_once_whatever_waits(harness: Harness) -> None:
    hold(harness, 60)
    kueue(harness, workload(harness, PENDING))
    visibility(harness, "job-x")
    reasons = [seen.reason for seen in harness.poll().observations]
    assert (reasons[0], set(reasons[1:])) == (f"{HELD}, position 1: {FULL}", {HELD})
    assert harness.calls("GET", "/workloads") == 1
    [listed] = [one.target for one in harness.server.requests if "/workloads" in one.target]
    assert (listed.count("%2C") + 1, len(listed) < 4096) == (50, True)
    harness.poll()
    assert harness.calls("GET", GROUPS) == 2 + 2 + 2, "the versions are known then"


LONG = condition("QuotaReserved", "Pending", "no " * 350_000, true=False)
ODD = {
    "nothing is known": {"metadata": {"name": "w", "uid": "u"}},
    "null": {
        "metadata": {"name": "w", "uid": "u", "ownerReferences": None},
        "spec": None,
        "status": None,
    },
    "of nobody": {"metadata": {"name": "w", "uid": "u", "ownerReferences": [{"uid": "other"}]}},
    "odd values": {
        "metadata": {"name": "w", "uid": "u"},
        "spec": {"active": "yes"},
        "status": {"conditions": [{"type": 1}]},
    },
}


FAULTS = (Answer(403), Answer(500), Answer(404), Reset(), Garbage(b"{}"))
ANSWERS: dict[str, Fault | Json] = {
    **{
        name: {"kind": "WorkloadList", "metadata": {"resourceVersion": "1"}, "items": [one]}
        for name, one in ODD.items()
    },
    **{repr(fault): fault for fault in FAULTS},
    "another list": {"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": []},
    "no version": {"kind": "WorkloadList", "metadata": {}, "items": None},
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
@pytest.mark.parametrize("visible", [True, False])
def test_no_answer_of_kueue_hinders_a_poll(
    harness: Harness, answer: Fault | Json, visible: bool
) -> None:
    hold(harness)
    path = "workloads" if visible else "localqueues/night/pendingworkloads"
    answers(harness, "kueue.x-k8s.io" if visible else "visibility.kueue.x-k8s.io", path, answer)
    if not visible:
        kueue(harness, workload(harness, PENDING))
    for _ in range(2):
        seen = harness.see()
        assert (seen.phase, seen.reason) == (Phase.WAITING, HELD if visible else f"{HELD}: {FULL}")


@pytest.mark.parametrize("version", ["../../secrets", "v1/../..", 7, None, "V" * 1000])
def test_a_version_that_is_none_is_not_asked_for(harness: Harness, version: Any) -> None:
    hold(harness)
    answers(harness, "kueue.x-k8s.io", "workloads", {}, version=version)
    assert harness.see().reason == HELD
    assert harness.calls("GET", GROUPS) == 1


def test_an_api_that_fails_is_left_alone_for_a_while(harness: Harness) -> None:
    hold(harness)
    answers(harness, "kueue.x-k8s.io", "workloads", Answer(403))
    for _ in range(3):
        assert harness.see().reason == HELD
    assert harness.calls("GET", GROUPS) == 2


def test_a_version_that_goes_away_is_asked_for_again(harness: Harness) -> None:
    hold(harness)
    kueue(harness, workload(harness, PENDING), version="v1beta1")
    assert harness.see().reason == f"{HELD}: {FULL}"
    harness.server.faults.clear()
    answers(harness, "kueue.x-k8s.io", "workloads", Answer(404), version="v1beta1")
    assert harness.see().reason == HELD, "an upgrade of Kueue is no cluster without Kueue"
    harness.server.faults.clear()
    kueue(harness, workload(harness, PENDING), version="v1")
    assert harness.see().reason == f"{HELD}: {FULL}"


def test_of_two_workloads_the_one_that_kueue_handles_counts_and_a_long_word_is_cut(
    harness: Harness,
) -> None:
    hold(harness)
    old = workload(harness, condition("Finished", "OutOfSync", "replaced"), name="z")
    other = workload(harness, PENDING, name="a")
    newer = workload(harness, LONG, name="b")
    newer["metadata"]["creationTimestamp"] = "2026-01-06T12:00:00Z"
    kueue(harness, other, newer, old)
    reason = harness.see().reason or ""
    assert (reason.startswith(f"{HELD}: no no no"), len(reason) < 600) == (True, True)


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [("Preempted", "evicted"), ("PodsReadyTimeout", "evicted"), ("Deactivated", "interrupted")],
)
def test_what_a_queue_took_back_while_it_ran(harness: Harness, reason: str, outcome: str) -> None:
    harness.deploy()
    harness.server.controllers.counts_ends = False
    harness.server.change_job(harness.name(), lambda job: _suspend(job, {}))
    harness.server.controllers.end_pod(harness.server.pod(harness.name()), 143)
    harness.api.delete(
        harness.api.pods_path(harness.server.pod(harness.name())["metadata"]["name"]),
        {"gracePeriodSeconds": 0},
    )
    end = harness.see().end
    assert end is not None
    assert (end.disruption, end.message) == (
        "interrupted",
        "its Job was suspended by its queue night or somebody else",
    )
    kueue(harness, workload(harness, condition("Evicted", reason, "Why.", true=False)))
    assert harness.see().end == end, "it holds no longer"
    harness.server.faults.clear()
    kueue(harness, workload(harness, condition("Evicted", reason, "Why.")))
    end = harness.see().end
    assert end is not None
    assert (end.disruption, end.message) == (
        outcome,
        f"taken back by its queue night ({reason}: Why)",
    )
