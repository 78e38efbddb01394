"""What Kueue says about Jobs that it holds or took back, as a poll tells it; and that a poll needs
none of it.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.domain.task import Phase
from tests.clusters.kubernetes.polls.world import World
from tests.support.kube_api.faults import Answer, Fault, Garbage, Reset

Json = dict[str, Any]
HELD = "Waits in queue night"
FULL = "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor any, 50m more needed"
GROUPS = "/apis/(visibility.)?kueue.x-k8s.io"


def hold(world: World, tasks: int = 1, **labelled: str) -> None:
    """Jobs that their queue holds."""
    world.server.controllers.makes_pods = False
    world.deploy(tasks, started=False)
    for index in range(tasks):
        world.server.change_job(world.name(index), lambda job: _suspend(job, labelled))


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
    world: World, *conditions: Json, name: str = "job-x", spec: Json | None = None, **status: Any
) -> Json:
    uid = world.server.job(world.name())["metadata"]["uid"]
    meta = {"name": name, "uid": f"uid-of-{name}", "creationTimestamp": "2026-01-05T12:00:00Z"}
    owners = [{"uid": uid, "controller": True}]
    return {
        "metadata": meta | {"ownerReferences": owners},
        "spec": spec or {},
        "status": {"conditions": conditions} | status,
    }


def answers(
    world: World, group: str, path: str, answer: Fault | Json, version: str = "v1beta2"
) -> None:
    """From now on the group is there and answers this."""
    found = {"kind": "APIGroup", "name": group, "preferredVersion": {"version": version}}
    world.server.faults.add(
        "GET", f"/apis/{group}$", Garbage(json.dumps(found).encode()), times=None
    )
    body = answer if isinstance(answer, Fault) else Garbage(json.dumps(answer).encode())
    world.server.faults.add(
        "GET", f"/apis/{group}/{version}/namespaces/crawls/{path}", body, times=None
    )


def kueue(world: World, *items: Json, **more: Any) -> None:
    listed = {"kind": "WorkloadList", "metadata": {"resourceVersion": "1"}, "items": items}
    answers(world, "kueue.x-k8s.io", "workloads", listed, **more)


def visibility(world: World, *names: str) -> None:
    items = [
        {"metadata": {"name": name}, "positionInLocalQueue": place}
        for place, name in enumerate(names)
    ]
    found = {"kind": "PendingWorkloadsSummary", "metadata": {}, "items": items}
    answers(world, "visibility.kueue.x-k8s.io", "localqueues/night/pendingworkloads", found)


@pytest.mark.parametrize(
    ("conditions", "more", "said"),
    [
        ([], {}, " as number 2: Kueue has not considered it yet"),
        ([PENDING], {}, f" as number 2: {FULL}"),
        (
            [PENDING, PREEMPTED],
            {},
            f" as number 2: {FULL}; it was taken back before (Preempted: {PREEMPTED['message']})",
        ),
        (
            [condition("QuotaReserved", "Pending", "Exceeded the PodsReady timeout", true=False)],
            {"requeueState": {"count": 1, "requeueAt": "2090-01-05T12:00:00Z"}},
            " as number 2: Exceeded the PodsReady timeout; it is queued again at 05 Jan 12:00 UTC",
        ),
        (
            [PENDING],
            {"requeueState": {"requeueAt": "2020-01-05T12:00:00Z"}},
            f" as number 2: {FULL}",
        ),
        (
            [RESERVED],
            {
                "admissionChecks": [
                    {"name": "nodes", "state": "Pending"},
                    {"name": "paid", "state": "Ready"},
                ]
            },
            " as number 2: its quota is reserved, and admission checks are not ready: nodes (Pending)",
        ),
        (
            [RESERVED, condition("Admitted", "Admitted", "")],
            {},
            " as number 2: it is admitted, and about to start",
        ),
        (
            [condition("Finished", "FailedToStart", "invalid podset infos")],
            {},
            " as number 2: Kueue counts it as finished and does not start it (FailedToStart: invalid podset infos)",
        ),
        (
            [PENDING, condition("Evicted", "Deactivated", "The workload is deactivated")],
            {"spec": {"active": False}},
            " as number 2: its Workload job-x is deactivated; it continues when its spec.active is true again",
        ),
    ],
)
def test_why_a_queue_holds_a_job(
    world: World, conditions: list[Json], more: Json, said: str
) -> None:
    hold(world)
    kueue(world, workload(world, *conditions, **more))
    visibility(world, "another", "job-x")
    seen = world.see()
    assert (seen.phase, seen.reason) == (Phase.WAITING, HELD + said)


def test_without_kueue_and_without_a_workload(world: World) -> None:
    hold(world, **{labels.QUEUE_PRIORITY: "urgent"})
    assert world.see().reason == f"{HELD}: no Kueue is on this cluster"
    kueue(world)
    assert world.see().reason == HELD, "it may come yet"
    world.later += world.later.resolution * 61_000_000
    fix = "check that Kueue runs and manages Jobs, and that the WorkloadPriorityClass urgent exists"
    assert world.see().reason == f"{HELD}: Kueue has made no Workload of it: {fix}"


def test_who_has_no_queue_asks_kueue_nothing(world: World) -> None:
    world.deploy(2)
    world.server.change_job(
        world.name(), lambda job: job["metadata"]["labels"].update({labels.QUEUE: "night"})
    )
    world.server.change_job(world.name(1), lambda job: job["spec"].update(suspend=True))
    world.poll()
    assert world.calls("GET", GROUPS) == 0


def test_one_poll_asks_once_whatever_waits(world: World) -> None:
    hold(world, 60)
    kueue(world, workload(world, PENDING))
    visibility(world, "job-x")
    reasons = [seen.reason for seen in world.poll().observations]
    assert (reasons[0], set(reasons[1:])) == (f"{HELD} as number 1: {FULL}", {HELD})
    assert world.calls("GET", "/workloads") == 1
    [listed] = [one.target for one in world.server.requests if "/workloads" in one.target]
    assert (listed.count("%2C") + 1, len(listed) < 4096) == (50, True)
    world.poll()
    assert world.calls("GET", GROUPS) == 2 + 2 + 2, "the versions are known then"


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
    world: World, answer: Fault | Json, visible: bool
) -> None:
    hold(world)
    path = "workloads" if visible else "localqueues/night/pendingworkloads"
    answers(world, "kueue.x-k8s.io" if visible else "visibility.kueue.x-k8s.io", path, answer)
    if not visible:
        kueue(world, workload(world, PENDING))
    for _ in range(2):
        seen = world.see()
        assert (seen.phase, seen.reason) == (Phase.WAITING, HELD if visible else f"{HELD}: {FULL}")


@pytest.mark.parametrize("version", ["../../secrets", "v1/../..", 7, None, "V" * 1000])
def test_a_version_that_is_none_is_not_asked_for(world: World, version: Any) -> None:
    hold(world)
    answers(world, "kueue.x-k8s.io", "workloads", {}, version=version)
    assert world.see().reason == HELD
    assert world.calls("GET", GROUPS) == 1


def test_an_api_that_fails_is_left_alone_for_a_while(world: World) -> None:
    hold(world)
    answers(world, "kueue.x-k8s.io", "workloads", Answer(403))
    for _ in range(3):
        assert world.see().reason == HELD
    assert world.calls("GET", GROUPS) == 2


def test_a_version_that_goes_away_is_asked_for_again(world: World) -> None:
    hold(world)
    kueue(world, workload(world, PENDING), version="v1beta1")
    assert world.see().reason == f"{HELD}: {FULL}"
    world.server.faults.clear()
    answers(world, "kueue.x-k8s.io", "workloads", Answer(404), version="v1beta1")
    assert world.see().reason == HELD, "an upgrade of Kueue is no cluster without Kueue"
    world.server.faults.clear()
    kueue(world, workload(world, PENDING), version="v1")
    assert world.see().reason == f"{HELD}: {FULL}"


def test_of_two_workloads_the_one_that_kueue_handles_counts_and_a_long_word_is_cut(
    world: World,
) -> None:
    hold(world)
    old = workload(world, condition("Finished", "OutOfSync", "replaced"), name="z")
    other = workload(world, PENDING, name="a")
    newer = workload(world, LONG, name="b")
    newer["metadata"]["creationTimestamp"] = "2026-01-06T12:00:00Z"
    kueue(world, other, newer, old)
    reason = world.see().reason or ""
    assert (reason.startswith(f"{HELD}: no no no"), len(reason) < 600) == (True, True)


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [("Preempted", "evicted"), ("PodsReadyTimeout", "evicted"), ("Deactivated", "interrupted")],
)
def test_what_a_queue_took_back_while_it_ran(world: World, reason: str, outcome: str) -> None:
    world.deploy()
    world.server.controllers.counts_ends = False
    world.server.change_job(world.name(), lambda job: _suspend(job, {}))
    world.server.controllers.end_pod(world.server.pod(world.name()), 143)
    world.api.delete(
        world.api.pods_path(world.server.pod(world.name())["metadata"]["name"]),
        {"gracePeriodSeconds": 0},
    )
    end = world.see().end
    assert end is not None
    assert (end.disruption, end.message) == (
        "interrupted",
        "its Job was suspended by its queue night or somebody else",
    )
    kueue(world, workload(world, condition("Evicted", reason, "Why.", true=False)))
    assert world.see().end == end, "it holds no longer"
    world.server.faults.clear()
    kueue(world, workload(world, condition("Evicted", reason, "Why.")))
    end = world.see().end
    assert end is not None
    assert (end.disruption, end.message) == (
        outcome,
        f"taken back by its queue night ({reason}: Why)",
    )
