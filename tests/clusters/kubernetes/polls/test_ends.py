"""What ended a pod, derived from its objects alone: each case has one Job, one pod, and the one end
that they prove.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.objects import Job, Pod, decode
from crawler_lifecycle.clusters.kubernetes.polls.explanations import job_is_wordless
from crawler_lifecycle.clusters.kubernetes.polls.predicates import TRACKING
from crawler_lifecycle.clusters.kubernetes.polls.reading import read_task
from crawler_lifecycle.domain.clocks import CLOCK_MARGIN_S
from crawler_lifecycle.domain.ends import Ends, reading
from crawler_lifecycle.domain.run import StopIntent
from crawler_lifecycle.domain.task import Ending, Observation, Phase, read_end
from crawler_lifecycle.ports.runs import TaskRef
from tests.support.examples import examples

T0 = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)
UID = "00000000-0000-4000-8000-000000000001"
GRACE = 70
Object = dict[str, Any]


def at(seconds: float) -> str:
    return (T0 + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def word(reason: str | None, code: int, told: bool | None = None) -> str:
    """A runner's summary; ``told`` says whether somebody had asked the crawler to stop."""
    said = {"runner": "1", "finish_reason": reason, "exit": code, "told_to_stop": told}
    return json.dumps({name: value for name, value in said.items() if value is not None})


def done(end: float, code: int, message: str | None = None, **more: Any) -> Object:
    """A container that ended, by its node's clock."""
    found = {
        "exitCode": code,
        "reason": "Completed" if code == 0 else "Error",
        "startedAt": at(0),
        "finishedAt": at(end),
    }
    return {"terminated": {**found, **({"message": message} if message else {}), **more}}


def mark(seconds: float, reason: str, status: str = "True") -> Object:
    return {
        "type": "DisruptionTarget",
        "status": status,
        "reason": reason,
        "lastTransitionTime": at(seconds),
    }


def deleted(asked: float, grace: int = GRACE) -> Object:
    """Return what the API server writes when a deletion is requested; without a grace period, when
    the node deletes.
    """
    return {"deletionTimestamp": at(asked + grace), "deletionGracePeriodSeconds": grace}


def condition(
    kind: str, seconds: float, reason: str = "CompletionsReached", status: str = "True"
) -> Object:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": "",
        "lastTransitionTime": at(seconds),
    }


def job(
    *conditions: Object, suspend: bool = False, runner: bool = True, gone: bool = False
) -> Object:
    meta: Object = {"name": "crawl-1-0-1", "uid": UID, "creationTimestamp": at(0)}
    meta["annotations"] = {} if runner else {labels.RUNNER: "false"}
    meta |= {"deletionTimestamp": at(1)} if gone else {}
    status = {"startTime": at(0), "conditions": list(conditions)}
    return {"kind": "Job", "metadata": meta, "spec": {"suspend": suspend}, "status": status}


def pod(
    state: Object | None = None,
    *conditions: Object,
    phase: str = "Failed",
    meta: Object | None = None,
    runner: bool = True,
    node: str | None = "n1",
    tracked: bool = True,
    spec: Object | None = None,
    **status: Any,
) -> Object:
    owner = {"kind": "Job", "name": "crawl-1-0-1", "uid": UID, "controller": True}
    head = {
        "name": "p",
        "uid": "p",
        "creationTimestamp": at(0),
        "ownerReferences": [owner],
        **(meta or {}),
    }
    head["annotations"] = {} if runner else {labels.RUNNER: "false"}
    head["finalizers"] = [labels.FINALIZER, *([TRACKING] if tracked else [])]
    told = {"phase": phase, "conditions": list(conditions), **status}
    if state is not None:
        told["containerStatuses"] = [{"name": labels.CONTAINER, "state": state}]
    place = {
        "terminationGracePeriodSeconds": GRACE,
        **({"nodeName": node} if node else {}),
        **(spec or {}),
    }
    return {"kind": "Pod", "metadata": head, "spec": place, "status": told}


def poll(
    job: Object | None, pod: Object | None, *, stopping: bool = False, now: float = 3600
) -> Observation:
    return read_task(
        TaskRef(1, 0, 1, UID, stopping),
        decode(Job, json.dumps(job).encode()) if job is not None else None,
        [decode(Pod, json.dumps(pod).encode())] if pod is not None else [],
        [],
        T0 + timedelta(seconds=now),
    )


def ending(job: Object | None, pod: Object | None, stop: float | None = None) -> Ending:
    seen = poll(job, pod, stopping=stop is not None)
    assert seen.end is not None, seen
    how = reading(Ends("browsertrix"))
    return read_end(
        seen.end, StopIntent(T0 + timedelta(seconds=stop)) if stop is not None else None, how
    )


def outcome(job: Object | None, pod: Object | None, stop: float | None = None) -> str:
    return ending(job, pod, stop).outcome


# --- conditions count by their status, and marks by what they explain


@pytest.mark.parametrize(
    ("told", "found"),
    [
        (pod(done(60, 143), mark(58, "PreemptionByScheduler"), meta=deleted(58)), "evicted"),
        (
            pod(done(60, 143), mark(58, "PreemptionByScheduler", "False"), meta=deleted(58)),
            "interrupted",
        ),
        (
            pod(done(60, 143), mark(58, "PreemptionByScheduler", "Unknown"), meta=deleted(58)),
            "interrupted",
        ),
        (
            pod(
                done(60, 1),
                mark(58, "EvictionByEvictionAPI", "False"),
                reason="Evicted",
                message="used too much",
            ),
            "full",
        ),
        (pod(done(400, 143), mark(10, "PreemptionByScheduler"), meta=deleted(390)), "interrupted"),
        (
            pod(done(400, 143), mark(10, "DeletionByTaintManager"), meta=deleted(400, 0)),
            "interrupted",
        ),
        (pod(done(75, 143), mark(10, "PreemptionByScheduler"), meta=deleted(75, 0)), "evicted"),
        (
            pod(done(900, 143), mark(10, "PreemptionByScheduler"), meta=deleted(900, 0)),
            "interrupted",
        ),
    ],
)
def test_a_mark_counts_by_its_status_and_explains_the_deletion_that_followed_it(
    told: Object, found: str
) -> None:
    assert outcome(job(), told) == found.replace("full", "diskusage_exceeded")


def test_a_stale_mark_is_not_told_of_a_pod_that_a_person_deletes() -> None:
    told = pod(
        {"running": {"startedAt": at(0)}},
        mark(10, "PreemptionByScheduler"),
        meta=deleted(390),
        phase="Running",
    )
    seen = poll(job(), told, now=395)
    assert (seen.phase, "deleted by somebody else" in (seen.reason or "")) == (
        Phase.EXECUTING,
        True,
    )


def test_a_later_mark_does_not_hide_who_deleted_the_pod_before_its_end() -> None:
    told = pod(done(100, 143), mark(300, "DeletionByTaintManager"), meta=deleted(90))
    assert "deleted by somebody else" in ending(job(), told).cause


def test_a_node_s_reason_that_came_with_a_late_mark_is_late_as_well() -> None:
    low = {"reason": "Evicted", "message": "The node was low on resource: memory."}
    late = pod(done(100, 1, word(None, 1)), mark(300, "TerminationByKubelet"), **low)
    assert outcome(job(), late) == "failed"
    assert outcome(job(), pod(done(100, 137), mark(99, "TerminationByKubelet"), **low)) == "evicted"


# --- the phase, where the containers' own words are gone


@pytest.mark.parametrize(
    ("runner", "found"), [(False, "SUCCEEDED finished"), (True, "FAILED failed")]
)
@pytest.mark.parametrize("counted", [True, False], ids=["counted", "not counted yet"])
def test_a_pod_that_succeeded_and_lost_its_statuses(
    runner: bool, found: str, counted: bool
) -> None:
    over = [condition("Complete", 70)] if counted else []
    read = ending(job(*over, runner=runner), pod(None, phase="Succeeded", runner=runner))
    assert f"{read.status} {read.outcome}" == found
    assert "without a summary (exit 0)" in read.cause or not runner


# --- refusals


REFUSALS = [
    *(
        "OutOfcpu",
        "OutOfmemory",
        "OutOfpods",
        "OutOfexample.com/gpu",
        "NodeAffinity",
        "NodeName",
        "NodePorts",
    ),
    *(
        "UnexpectedAdmissionError",
        "PodOSNotSupported",
        "TopologyAffinityError",
        "TaintToleration",
        "SysctlForbidden",
    ),
    *(
        "AppArmor",
        "InvalidNodeInfo",
        "PodFeatureUnsupported",
        "PodLevelResourcesNotSupported",
        "SMTAlignmentError",
    ),
    *(
        "UnexpectedPredicateFailureType",
        "PodOSSelectorNodeLabelDoesNotMatch",
        "InitContainerRestartPolicyForbidden",
    ),
    *("VolumeAttachmentLimitExceeded", "NotHeardOfYet"),
]

#: Known by the kubelet's messages, or by a pod that never began: nothing shows that a started node
#: uses them.
ONLY_BY_WORDS = ("PodLevelResourcesNotSupported", "VolumeAttachmentLimitExceeded", "NotHeardOfYet")


@pytest.mark.parametrize(
    "state", [None, {"waiting": {"reason": "ContainerCreating"}}], ids=["silent", "waiting"]
)
def test_what_a_node_refuses_never_ran_and_may_be_tried_again(state: Object | None) -> None:
    for reason in REFUSALS:
        read = ending(job(), pod(state, reason=reason, message="Pod was rejected: so it is"))
        assert (read.outcome, read.retryable) == ("interrupted", True), reason
        assert f"the node n1 refused it, {reason}: Pod was rejected: so it is" in read.cause


def test_a_node_that_was_started_again_refuses_by_its_reason_alone_what_it_had_executed() -> None:
    for reason in set(REFUSALS).difference(ONLY_BY_WORDS):
        assert (
            outcome(job(), pod(done(60, 18), reason=reason, message="Predicate failed"))
            == "interrupted"
        ), reason


def test_a_refusal_under_pressure_is_no_eviction_by_the_crawler_s_own_fault() -> None:
    told = {
        "reason": "Evicted",
        "message": "Pod was rejected: The node had condition: [DiskPressure]. ",
    }
    assert outcome(job(), pod(None, **told)) == "interrupted"
    assert (
        outcome(job(), pod(None, **told | {"message": "The node had condition: [DiskPressure]. "}))
        == "interrupted"
    )
    own = "Usage of EmptyDir volume files exceeds the limit 4Mi."
    assert outcome(job(), pod(None, reason="Evicted", message=own)) == "diskusage_exceeded"


def test_an_unknown_reason_of_a_pod_that_ran_leaves_the_end_to_its_exit_code() -> None:
    assert outcome(job(), pod(done(60, 18), reason="NotHeardOfYet")) == "banned"
    assert (
        outcome(job(), pod(done(60, 0, word("finished", 0)), reason="NotHeardOfYet")) == "finished"
    )


@pytest.mark.parametrize(
    "told", [done(60, 0), {"running": {"startedAt": at(0)}}], ids=["ended", "runs"]
)
@pytest.mark.parametrize("where", ["crawler", "init container", "sidecar, before"])
def test_an_unknown_reason_is_no_refusal_of_a_pod_any_container_of_which_began(
    where: str, told: Object
) -> None:
    more: Object = {"reason": "NotHeardOfYet", "message": "so it is"}
    if where == "crawler":
        read = ending(job(), pod(told, **more))
    else:
        states = (
            {"state": told}
            if where == "init container"
            else {"state": {"waiting": {}}, "lastState": told}
        )
        init = {"initContainers": [{"name": "mesh", "restartPolicy": "Always"}]}
        waits = {"waiting": {"reason": "PodInitializing"}}
        read = ending(
            job(), pod(waits, initContainerStatuses=[{"name": "mesh", **states}], spec=init, **more)
        )
    assert "refused" not in read.cause


def test_an_unknown_reason_of_a_pod_that_succeeded_is_no_refusal() -> None:
    assert (
        outcome(job(), pod(None, phase="Succeeded", runner=False, reason="NotHeardOfYet"))
        == "finished"
    )


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("Terminated", "its node was shut down"),
        ("Shutdown", "its node was shut down"),
        ("NodeShutdown", "its node was shut down"),
        ("NodeLost", "its node was lost"),
        ("Preempting", "displaced by a critical pod"),
    ],
)
def test_a_node_that_ended_a_pod_says_so_by_its_reason_alone(reason: str, words: str) -> None:
    """Older nodes do not set the condition."""
    read = ending(job(), pod(done(60, 18), reason=reason, message="so it is"))
    assert (read.outcome, f"{words}: so it is" in read.cause) == ("interrupted", True), read.cause


@pytest.mark.parametrize("reason", ["Terminated", "NodeAffinity"])
def test_a_node_s_reason_did_not_end_what_nobody_had_told_to_stop_or_what_ended_before_its_mark(
    reason: str,
) -> None:
    own = {"reason": reason, "message": "so it is"}
    assert outcome(job(), pod(done(60, 18, word(None, 18)), **own)) == "banned", "the runner's word"
    late = mark(300, "TerminationByKubelet")
    assert outcome(job(runner=False), pod(done(60, 18), late, runner=False, **own)) == "banned"


def test_a_sidecar_that_was_killed_with_the_pod_is_no_init_container_that_failed() -> None:
    beside = [{"name": "mesh", "state": done(60, 137)}]
    lost = {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}}
    spec = {"initContainers": [{"name": "mesh", "restartPolicy": "Always"}]}
    assert outcome(job(), pod(lost, initContainerStatuses=beside, spec=spec)) == "interrupted"
    waiting = {"waiting": {"reason": "PodInitializing"}}
    init = ending(
        job(),
        pod(waiting, initContainerStatuses=beside, spec={"initContainers": [{"name": "mesh"}]}),
    )
    assert "init container mesh failed" in init.cause


# --- the collector of pods


@pytest.mark.parametrize("runner", [True, False], ids=["runner", "no runner"])
@pytest.mark.parametrize("later", [0, 3, 45])
def test_the_collector_that_marks_a_pod_which_succeeded_did_not_end_it(
    runner: bool, later: int
) -> None:
    said = done(60, 0, word("finished", 0) if runner else None)
    gone = {"meta": deleted(60 + later, 0), "runner": runner}
    told = pod(said, mark(60 + later, "DeletionByPodGC"), phase="Succeeded", **gone)
    assert outcome(job(condition("Complete", 61), runner=runner), told) == "finished"


def test_the_collector_s_mark_on_a_pod_which_succeeded_and_lost_its_statuses_is_no_interruption() -> (
    None
):
    lost = pod(None, mark(64, "DeletionByPodGC"), phase="Succeeded", runner=False)
    assert outcome(job(condition("Complete", 61), runner=False), lost) == "finished"


def test_a_node_that_told_of_an_end_was_there_although_its_clock_dates_that_after_the_collector_s_mark() -> (
    None
):
    assert outcome(job(), pod(done(64, 18), mark(62, "DeletionByPodGC"))) == "banned"
    assert outcome(job(), pod(done(164, 18), mark(62, "DeletionByPodGC"))) == "interrupted"
    lost = {
        "terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown", "finishedAt": at(64)}
    }
    assert "its node is gone" in ending(job(), pod(lost, mark(62, "DeletionByPodGC"))).cause, (
        "it told of no end"
    )


def test_a_pod_without_a_runner_that_is_removed_after_the_job_counted_it_has_succeeded() -> None:
    told = pod(done(60, 0), phase="Succeeded", meta=deleted(100, 0), runner=False)
    met, complete = condition("SuccessCriteriaMet", 61), condition("Complete", 95)
    for counted in ([met, complete], [met], [condition("Complete", 62)]):
        assert outcome(job(*counted, runner=False), told) == "finished", "the first of both counts"
    assert outcome(job(complete, runner=False), told) == "interrupted", (
        "it came no earlier than the deletion"
    )
    lost = job(condition("Failed", 62, "BackoffLimitExceeded"), runner=False)
    assert outcome(lost, told) == "interrupted", "it counted no success"
    failed = {**told, "status": {**told["status"], "phase": "Failed"}}
    assert outcome(job(met, runner=False), failed) == "interrupted", (
        "it was another pod that the Job counted"
    )
    assert outcome(job(runner=False), told) == "interrupted", (
        "nothing tells it from a crawler that took SIGTERM for an end"
    )
    by_node = pod(done(60, 0), phase="Succeeded", meta=deleted(63, 0), runner=False)
    assert outcome(job(condition("Complete", 61), runner=False), by_node) == "interrupted"


@pytest.mark.parametrize("by", ["DeletionByPodGC", "DeletionByTaintManager"])
def test_a_crawler_that_ended_before_its_node_was_given_up_ended_well_although_its_pod_is_called_failed(
    by: str,
) -> None:
    told = pod(done(60, 0), mark(64, by), meta=deleted(64, 0), runner=False)
    read = ending(job(condition("SuccessCriteriaMet", 50), runner=False), told)
    assert read.outcome != "failed"
    for end, failed in ((60, False), (164, True)):
        finished = pod(done(end, 0, word("finished", 0, told=False)), mark(64, by))
        assert ("although its pod failed" in ending(job(), finished).cause) is failed
    lost = pod({"running": {"startedAt": at(0)}}, mark(64, by), meta=deleted(64, 0), runner=False)
    assert "it is unknown whether it is still running" in ending(job(runner=False), lost).cause


# --- containers that their node starts again (Kubernetes 1.34 on)


def _rule(action: str, operator: str, *values: int) -> Object:
    return {"action": action, "exitCodes": {"operator": operator, "values": list(values)}}


def _crawler(policy: str | None, *rules: Object) -> Object:
    found = {"restartPolicy": policy, "restartPolicyRules": list(rules)}
    return {"name": labels.CONTAINER, **{name: value for name, value in found.items() if value}}


_ALL = {
    "name": "mesh",
    "restartPolicy": "Never",
    "restartPolicyRules": [_rule("RestartAllContainers", "In", 88)],
}


@pytest.mark.parametrize(
    ("code", "crawler", "more", "again"),
    [
        (1, _crawler(None), {}, False),
        (1, _crawler("Never"), {"restartPolicy": "OnFailure"}, False),
        (1, _crawler("OnFailure"), {}, True),
        (0, _crawler("OnFailure"), {}, False),
        (0, _crawler("Always"), {}, True),
        (1, _crawler(None), {"restartPolicy": "OnFailure"}, True),
        (0, _crawler(None), {"restartPolicy": "OnFailure"}, False),
        (42, _crawler("Never", _rule("Restart", "In", 1, 42)), {}, True),
        (3, _crawler("Never", _rule("Restart", "In", 1, 42)), {}, False),
        (3, _crawler("Never", _rule("Restart", "NotIn", 0)), {}, True),
        (0, _crawler("Never", _rule("Restart", "NotIn", 0)), {}, False),
        (0, _crawler("Never", _rule("RestartAllContainers", "In", 0)), {}, True),
        (5, _crawler("Never", _rule("Unheard", "In", 5)), {}, False),
        (5, _crawler("Never", _rule("Restart", "Unheard", 5)), {}, False),
        (5, _crawler("OnFailure", {"action": "Restart"}), {}, True),
        (5, _crawler("Never", {"action": "Restart"}), {}, False),
    ],
)
def test_an_end_in_a_running_pod_is_one_only_where_nothing_starts_it_again(
    code: int, crawler: Object, more: Object, again: bool
) -> None:
    spec = {"restartPolicy": "Never", "containers": [{"name": "mesh"}, crawler], **more}
    beside = pod(done(60, code), phase="Running", spec=spec)
    seen = poll(job(), beside)
    assert (seen.phase is Phase.EXECUTING) is again
    assert (
        f"Its node is restarting it (0 times, last exit {code})" in (seen.reason or "")
    ) is again
    beside["status"]["phase"] = "Failed" if code else "Succeeded"
    assert poll(job(), beside).phase is Phase.ENDED, "a pod that is over starts nothing"
    beside = pod(done(60, code), phase="Running", spec=spec, meta=deleted(55))
    assert poll(job(), beside).phase is Phase.ENDED, "neither does one that is being deleted"


@pytest.mark.parametrize("where", ["containers", "initContainers"])
@pytest.mark.parametrize(("code", "again"), [(88, True), (0, False)])
def test_a_container_beside_the_crawler_may_have_all_of_them_started_again(
    where: str, code: int, again: bool
) -> None:
    status = "containerStatuses" if where == "containers" else "initContainerStatuses"
    told = pod(
        done(60, 0, word("finished", 0)),
        phase="Running",
        spec={where: [_ALL], "restartPolicy": "Never"},
    )
    told["status"].setdefault(status, []).append({"name": "mesh", "state": done(61, code)})
    assert (poll(job(), told).phase is Phase.EXECUTING) is again


def test_while_all_containers_start_again_no_end_is_the_last() -> None:
    going = {**condition("AllContainersRestarting", 61), "reason": "RestartAllContainersStarted"}
    assert poll(job(), pod(done(60, 137), going, phase="Running")).phase is Phase.EXECUTING
    over = {**going, "status": "False"}
    assert poll(job(), pod(done(60, 137), over, phase="Running")).phase is Phase.ENDED


# --- deadlines


def _deadline(seconds: float) -> Object:
    return condition("FailureTarget", seconds, "DeadlineExceeded")


def test_a_deadline_is_the_cause_only_where_it_came_first() -> None:
    over = job(_deadline(100))
    assert outcome(over, pod(done(103, 143), meta=deleted(103, 0))) == "timed_out"
    assert outcome(over, pod(done(97, 143), meta=deleted(100))) == "timed_out", (
        "a node whose clock is behind"
    )
    assert outcome(over, pod(done(97, 1, word(None, 1)), meta=deleted(100))) == "failed", (
        "the runner's word"
    )
    assert outcome(over, pod(done(97, 1))) == "failed", "nobody deleted it"
    assert outcome(over, pod(done(80, 1), meta=deleted(100, 0))) == "failed"
    earlier = ending(over, pod(done(103, 143), meta=deleted(60)))
    assert "deleted by somebody else" in earlier.cause


def test_the_pod_s_own_deadline_is_counted_by_the_clock_that_dates_the_end() -> None:
    told = {"reason": "DeadlineExceeded"}
    assert outcome(job(), pod(done(100, 143), **told)) == "timed_out"
    assert outcome(job(), pod(done(100, 1, word(None, 1)), **told)) == "failed"
    assert outcome(job(), pod(None, **told)) == "timed_out"
    for ended_before, found in ((GRACE, "timed_out"), (GRACE + 10, "failed")):
        beside = pod(done(200 - ended_before, 1), **told)
        beside["status"]["containerStatuses"].append(
            {"name": "mesh-proxy", "state": done(200, 143)}
        )
        assert outcome(job(), beside) == found, (
            "the deadline ended what was beside a crawler that had ended"
        )


@pytest.mark.parametrize("grace", [10**14, 2**63 - 1, 2**70, -5])
def test_a_grace_that_leaves_the_calendar_keeps_no_task_from_being_read(grace: int) -> None:
    """The API accepts any number, and the time of such a deletion overflows."""
    own = {"spec": {"terminationGracePeriodSeconds": grace}}
    gone = {"deletionTimestamp": "2262-04-11T23:47:16Z", "deletionGracePeriodSeconds": grace}
    marked = pod(done(900, 143), mark(10, "PreemptionByScheduler"), meta=deleted(900, 0), **own)
    assert outcome(job(), marked) == ("evicted" if grace > 0 else "interrupted")
    beside = pod(done(100, 1), reason="DeadlineExceeded", **own)
    beside["status"]["containerStatuses"].append({"name": "mesh-proxy", "state": done(110, 143)})
    assert outcome(job(), beside) == ("timed_out" if grace > 0 else "failed")
    assert outcome(job(), pod(done(100, 143), meta=gone, **own)) == "interrupted"
    assert outcome(job(), pod(done(100, 143), meta=gone, **own), stop=99) == "cancelled"
    seen = poll(job(), pod({"running": {"startedAt": at(0)}}, meta=gone, phase="Running", **own))
    assert seen.phase is Phase.EXECUTING
    assert "shutting down since an unknown time" in (seen.reason or "") or grace < 0


# --- a queue that takes its room back


NOWHERE: Object = {"phase": "Pending", "node": None, "meta": deleted(60, 0)}


@pytest.mark.parametrize(
    ("held", "told"),
    [
        (job(suspend=True), pod(None, tracked=False, **NOWHERE)),
        (job(suspend=True), pod(None, **NOWHERE)),
        (job(suspend=True), pod(None, tracked=False, **NOWHERE | {"phase": "Failed"})),
        (
            job(condition("Suspended", 61, "JobResumed", "False")),
            pod(None, tracked=False, **NOWHERE),
        ),
    ],
    ids=["suspended", "not untracked yet", "collected", "resumed"],
)
def test_a_job_that_is_suspended_before_its_pod_had_a_node_waits(
    held: Object, told: Object
) -> None:
    seen = poll(held, told)
    assert (seen.phase, seen.end) == (Phase.WAITING, None)
    assert seen == poll(held, None), "nothing of that pod counts"


@pytest.mark.parametrize(
    ("held", "told"),
    [
        (job(), pod(None, **NOWHERE)),
        (job(_deadline(60), suspend=True), pod(None, tracked=False, **NOWHERE)),
        (None, pod(None, tracked=False, **NOWHERE)),
        (
            job(suspend=True),
            pod(done(62, 11, word("shutdown", 11)), meta=deleted(60), tracked=False),
        ),
        (job(suspend=True), pod(None, tracked=False, phase="Failed", meta=deleted(60, 0))),
    ],
    ids=["a person", "its deadline", "no Job", "it ran", "it had a node"],
)
def test_a_pod_that_is_the_last_of_its_job_has_ended(held: Object | None, told: Object) -> None:
    assert poll(held, told).phase is Phase.ENDED


def test_of_a_suspended_job_that_is_deleted_nothing_had_run() -> None:
    """Its pod is no evidence of an end: a stop of ours would have come too late for it."""
    going = job(suspend=True, gone=True)
    assert poll(going, pod(None, tracked=False, **NOWHERE)) == poll(going, None)


# --- two clocks

APART = int(CLOCK_MARGIN_S)
told_to_stop = st.sampled_from(
    [(143, None), (137, None), (0, None), (11, word("shutdown", 11)), (13, word(None, 13))]
)
alone = st.sampled_from([(1, word(None, 1)), (0, word("finished", 0)), (18, word("failed", 18))])
shifts = st.integers(-APART, APART)


@given(
    told_to_stop,
    st.sampled_from(["PreemptionByScheduler", "EvictionByEvictionAPI", None]),
    shifts,
    st.booleans(),
)
@settings(max_examples=examples(200))
def test_an_end_that_somebody_asked_for_reads_alike_by_any_clock(
    how: tuple[int, str | None], reason: str | None, shift: int, kept: bool
) -> None:
    """The end is requested at 100 s, and follows a moment later by a node whose clock differs as
    much as allowed.
    """
    code, message = how
    runner = message is not None
    told = pod(
        done(100 + shift, code, message),
        *([mark(100, reason)] if reason else []),
        meta=deleted(100, GRACE if kept else 0),
        phase="Succeeded" if code == 0 else "Failed",
        runner=runner,
    )
    over = job(condition("Complete" if code == 0 else "Failed", 101), runner=runner)
    assert outcome(over, told) == ("evicted" if reason else "interrupted")
    if reason is None:
        assert outcome(over, told, stop=99.5) == "cancelled"


@given(
    alone,
    st.sampled_from(["PreemptionByScheduler", "deadline", "person", "stop"]),
    st.integers(0, 9),
    shifts,
)
@settings(max_examples=examples(200))
def test_an_end_that_the_runner_vouches_for_reads_alike_by_any_clock(
    how: tuple[int, str], later: str, gap: int, shift: int
) -> None:
    """The crawler ends at 100 s, and the request comes too late: clearly, or within the difference
    of the clocks.
    """
    code, message = how
    shift = min(shift, APART - gap - 1)
    mine = [_deadline(100 + gap)] if later == "deadline" else []
    marks = [mark(100 + gap, later)] if later.startswith("Pre") else []
    told = pod(
        done(100 + shift, code, message),
        *marks,
        meta=deleted(100 + gap, 0),
        phase="Succeeded" if code == 0 else "Failed",
    )
    expected = {1: "failed", 0: "finished", 18: "banned" if code == 18 else ""}[code]
    found = outcome(job(*mine), told, stop=100 + gap if later == "stop" else None)
    assert found == expected


@pytest.mark.parametrize(
    ("code", "reason", "found"),
    [(1, None, "failed"), (4, None, "failed"), (0, "finished", "finished")],
)
@pytest.mark.parametrize("cause", ["mark", "person", "deadline", "stop"])
def test_what_came_while_the_runner_uploaded_did_not_end_the_crawler(
    code: int, reason: str | None, found: str, cause: str
) -> None:
    """The container ends with its runner, long after the crawler, which nobody had asked to stop."""
    said = pod(
        done(100, code, word(reason, code, told=False)),
        *([mark(60, "EvictionByEvictionAPI")] if cause == "mark" else []),
        meta=deleted(60),
    )
    over = job(_deadline(60)) if cause == "deadline" else job()
    assert outcome(over, said, stop=60 if cause == "stop" else None) == found


@pytest.mark.parametrize("code", [1, 3, 4, 14, 17, 18])
def test_a_crawler_that_was_told_to_stop_did_not_end_by_itself_whatever_its_exit_code(
    code: int,
) -> None:
    said = pod(done(95, code, word(None, code, told=True)), meta=deleted(100))
    assert outcome(job(), said) == "interrupted"
    assert outcome(job(), said, stop=99) == "cancelled"
    assert outcome(job(), pod(done(95, code, word(None, code, told=True)))) != "interrupted", (
        "nobody is known to have"
    )


def test_the_events_of_a_job_that_a_queue_resumed_are_read() -> None:
    """Its condition "Suspended" remains, and is false."""
    resumed = decode(
        Job, json.dumps(job(condition("Suspended", 1, "JobResumed", "False"))).encode()
    )
    over = decode(Job, json.dumps(job(condition("Complete", 1))).encode())
    assert job_is_wordless(resumed, T0 + timedelta(seconds=60))
    assert not job_is_wordless(over, T0 + timedelta(seconds=60))
