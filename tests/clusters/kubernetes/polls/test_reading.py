"""Rules for reading a Job and its pods, whatever the API server shows."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from crawler_lifecycle.clusters.kubernetes import labels
from crawler_lifecycle.clusters.kubernetes.client.errors import ApiError
from crawler_lifecycle.clusters.kubernetes.client.objects import Event, Job, Pod, decode
from crawler_lifecycle.clusters.kubernetes.polls.reading import read_task
from crawler_lifecycle.clusters.kubernetes.polls.termination_message import read_summary
from crawler_lifecycle.domain.run import StopIntent
from crawler_lifecycle.domain.task import (
    Observation,
    Phase,
    TaskState,
    TaskStatus,
    read_end,
    reconcile,
    task_may_become,
)
from crawler_lifecycle.ports.runs import TaskRef
from tests.clusters.kubernetes.client.test_objects import ODD_NUMBERS, ODD_TIMES
from tests.support.examples import examples
from tests.support.kubernetes_conditions import RECORDED, condition_of

T0 = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)
OURS, OTHER = "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000077"

#: The clocks of two machines, and the time after which a pod that was marked for disruption was
#: spared.
MARGIN, SPARED = timedelta(seconds=10), timedelta(minutes=2)

# --- a cluster's vocabulary, with words that no cluster has yet

stamps = st.integers(0, 600).map(
    lambda s: (T0 + timedelta(seconds=s)).strftime("%Y-%m-%dT%H:%M:%SZ")
)
words = st.sampled_from(
    ["", "no words", "exceeded quota: q", "The node was low on resource: memory. ", "ünïcode\x00"]
)
truth = st.sampled_from(["True", "False", "Unknown", "Perhaps"])
WAITING = [
    "ContainerCreating",
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "CrashLoopBackOff",
    "Unheard",
]
ENDED = [
    "Completed",
    "Error",
    "OOMKilled",
    "StartError",
    "ContainerStatusUnknown",
    "Unknown",
    "Unheard",
]
POD_REASONS = [
    "Evicted",
    "DeadlineExceeded",
    "Terminated",
    "OutOfcpu",
    "NodeLost",
    "Preempting",
    "Unheard",
]
DISRUPTIONS = [
    "EvictionByEvictionAPI",
    "PreemptionByScheduler",
    "TerminationByKubelet",
    "DeletionByPodGC",
    "Unheard",
]
JOB_REASONS = [
    "DeadlineExceeded",
    "BackoffLimitExceeded",
    "PodFailurePolicy",
    "CompletionsReached",
    "Unheard",
]
SUMMARIES = [
    json.dumps({"runner": "1", "finish_reason": reason, "exit": exit})
    for reason, exit in (
        ("finished", 0),
        ("shutdown", 11),
        ("closespider_timeout", 0),
        (None, 1),
        ("finished", 1),
    )
]
messages = st.sampled_from(
    [*SUMMARIES, "", "a log\n{", '{"runner": 1}', "[]", "null", '{"crawl_progress": {"pages": 3}}']
)


def partly(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """An object in which any field may be missing or null."""
    return st.fixed_dictionaries(
        {}, optional={name: st.none() | value for name, value in fields.items()}
    )


def conditions(kinds: dict[str, list[str]]) -> st.SearchStrategy[list[dict[str, Any]]]:
    """At most one condition of a kind, as the API guarantees."""
    one = {
        kind: st.fixed_dictionaries(
            {"type": st.just(kind), "status": truth},
            optional={
                "reason": st.sampled_from(reasons),
                "message": words,
                "lastTransitionTime": st.none() | stamps,
            },
        )
        for kind, reasons in kinds.items()
    }
    return st.fixed_dictionaries({}, optional=one).map(lambda found: list(found.values()))


terminated = partly(
    reason=st.sampled_from(ENDED), message=messages, startedAt=stamps, finishedAt=stamps
).flatmap(
    lambda said: st.sampled_from([0, 1, 3, 4, 11, 13, 14, 17, 18, 128, 137, 143, 255]).map(
        lambda c: {**said, "exitCode": c}
    )
)
states = st.one_of(
    st.just({}),
    partly(reason=st.sampled_from(WAITING), message=words).map(lambda said: {"waiting": said}),
    partly(startedAt=stamps).map(lambda said: {"running": said}),
    terminated.map(lambda said: {"terminated": said}),
)
statuses = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from([labels.CONTAINER, "beside"])},
        optional={"state": st.none() | states, "lastState": states},
    ),
    max_size=2,
    unique_by=lambda status: status["name"],
)
pod_conditions = conditions(
    {
        "PodScheduled": ["Unschedulable", "SchedulerError", "SchedulingGated", "Unheard"],
        "Ready": ["PodFailed", "Unheard"],
        "ContainersReady": ["PodFailed"],
        "DisruptionTarget": DISRUPTIONS,
    }
)
pod_status = partly(
    phase=st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown", "Unheard"]),
    reason=st.sampled_from(POD_REASONS),
    message=words,
    conditions=pod_conditions,
    containerStatuses=statuses,
    initContainerStatuses=statuses,
)
runner_told = st.sampled_from([{}, {labels.RUNNER: "false"}, {labels.RUNNER: "true"}])


def meta(uid: str, name: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(
        lambda optional, told: {"name": name, "uid": uid, "annotations": told, **optional},
        partly(
            creationTimestamp=stamps,
            deletionTimestamp=stamps,
            deletionGracePeriodSeconds=st.integers(0, 60),
        ),
        runner_told,
    )


def pod(number: int) -> st.SearchStrategy[dict[str, Any]]:
    def made(
        head: dict[str, Any], owner: str, spec: dict[str, Any], status: dict[str, Any]
    ) -> dict[str, Any]:
        head = {
            **head,
            "ownerReferences": [
                {"kind": "Job", "name": "crawl-1-0-1", "uid": owner, "controller": True}
            ],
        }
        return {"kind": "Pod", "metadata": head, "spec": spec, "status": status}

    owner = st.sampled_from([OURS, OURS, OURS, OTHER])
    spec = partly(
        nodeName=st.sampled_from(["n1", "n2"]), schedulingGates=st.just([{"name": "gate"}])
    )
    return st.builds(
        made, meta(f"pod-{number}", f"crawl-1-0-1-pod{number}"), owner, spec, st.none() | pod_status
    )


job_status = partly(
    startTime=stamps,
    completionTime=stamps,
    active=st.integers(0, 1),
    failed=st.integers(0, 1),
    conditions=conditions(
        dict.fromkeys(("FailureTarget", "SuccessCriteriaMet", "Suspended"), JOB_REASONS)
    ),
)
#: The API server refuses a Job that is both.
verdicts = conditions({"Complete": JOB_REASONS}) | conditions({"Failed": JOB_REASONS})
jobs = st.builds(
    lambda head, spec, status, over: {
        "kind": "Job",
        "metadata": head,
        "spec": spec,
        "status": {
            **(status or {}),
            "conditions": [*((status or {}).get("conditions") or []), *over],
        },
    },
    st.sampled_from([OURS, OURS, OURS, OTHER]).flatmap(lambda uid: meta(uid, "crawl-1-0-1")),
    partly(suspend=st.booleans()),
    st.none() | job_status,
    verdicts,
)
events = st.lists(
    st.builds(
        lambda said, about, number: {
            "kind": "Event",
            "metadata": {"name": f"e{number}", "uid": f"e{number}"},
            "involvedObject": {"uid": about},
            **said,
        },
        partly(
            type=st.sampled_from(["Normal", "Warning"]),
            reason=st.sampled_from(["FailedCreate", "Failed", "FailedMount", "Unheard"]),
            message=words,
            lastTimestamp=stamps,
            eventTime=stamps,
        ),
        st.sampled_from([OURS, OTHER, "pod-1"]),
        st.integers(1, 9),
    ),
    max_size=3,
)
tasks = st.builds(
    TaskRef,
    task_id=st.just(1),
    index=st.just(0),
    attempt=st.integers(1, 2),
    uid=st.sampled_from([None, OURS]),
    stopping=st.booleans(),
)
moments = st.integers(0, 900).map(lambda s: T0 + timedelta(seconds=s))
clusters = st.tuples(
    st.none() | jobs,
    st.lists(st.integers(1, 3), max_size=2, unique=True).flatmap(
        lambda numbers: st.tuples(*(pod(number) for number in numbers)).map(list)
    ),
    events,
)
stops = st.none() | st.builds(StopIntent, moments, requested_by=st.none() | st.just("ada"))

Cluster = tuple[dict[str, Any] | None, list[dict[str, Any]], list[dict[str, Any]]]


def poll(task: TaskRef, cluster: Cluster, now: datetime) -> Observation:
    job, pods, events = cluster
    return read_task(
        task,
        decode(Job, json.dumps(job).encode()) if job is not None else None,
        [decode(Pod, json.dumps(one).encode()) for one in pods],
        [decode(Event, json.dumps(one).encode()) for one in events],
        now,
    )


def proved(cluster: Cluster, seen: Observation) -> bool:
    """Return whether one of our containers itself reports a good end."""
    assert seen.end is not None
    job, pods, _ = cluster
    for one in pods:
        if (one["status"] or {}).get("phase") == "Succeeded" and not seen.end.runner:
            return True
        for status in (one["status"] or {}).get("containerStatuses") or []:
            done = (status.get("state") or {}).get("terminated")
            if status["name"] == labels.CONTAINER and done:
                word = read_summary(done.get("message"))
                if done["exitCode"] in (0, 14, 15) or (word.runner and word.exit == 0):
                    return True
    over = (job or {}).get("status", {}).get("conditions", [])
    return not seen.end.runner and any(
        c["type"] == "Complete" and c["status"] == "True" for c in over
    )


def disturbed(task: TaskRef, cluster: Cluster) -> bool:
    """Return whether every end of our containers certainly came after somebody else's request, and
    soon after it.
    """
    job, pods, _ = cluster
    conditions = (job or {}).get("status", {}).get("conditions", [])
    deadline = any(
        c["status"] == "True" and c.get("reason") == "DeadlineExceeded" for c in conditions
    )
    found = []
    for one in pods:
        head, status = one["metadata"], one["status"] or {}
        for container in status.get("containerStatuses") or []:
            done = (container.get("state") or {}).get("terminated")
            if container["name"] != labels.CONTAINER or not done:
                continue
            end = done.get("finishedAt")
            over, grace = head.get("deletionTimestamp"), head.get("deletionGracePeriodSeconds")
            marks = [
                c
                for c in status.get("conditions") or []
                if c["type"] == "DisruptionTarget" and c["status"] == "True"
            ]
            if status.get("phase") == "Succeeded":
                marks = [m for m in marks if m.get("reason") != "DeletionByPodGC"]
            asked = _second(over) - timedelta(seconds=grace) if over and grace else None
            taken = over or status.get("reason")
            marked = taken and any(
                not (m.get("lastTransitionTime") and end)
                or (
                    MARGIN < _second(end) - _second(m["lastTransitionTime"]) <= SPARED
                    and (asked is None or asked - _second(m["lastTransitionTime"]) <= SPARED)
                )
                for m in marks
            )
            ours = task.stopping or deadline or status.get("reason") == "DeadlineExceeded" or marks
            cut = asked and end and not ours and asked + MARGIN < _second(end)
            found.append(bool(marked or cut))
    return bool(found) and all(found)


def said_finished(seen: Observation) -> bool:
    """Return whether the crawler itself reported that it had finished: then a request to end came
    too late.
    """
    return seen.end is not None and (seen.end.finish_reason, seen.end.exit_code) == ("finished", 0)


def _second(text: str) -> datetime:
    return datetime.fromisoformat(text)


def test_a_pod_that_somebody_deleted_before_it_had_a_node_and_that_was_stopped_later() -> None:
    """Only the stop, which the reading does not know, shows whose deletion it was."""
    stamp = "2026-01-05T12:00:00Z"
    meta = {"name": "p", "uid": "p", "deletionTimestamp": stamp, "deletionGracePeriodSeconds": 0}
    meta |= {"ownerReferences": [{"kind": "Job", "uid": OURS, "controller": True, "name": "j"}]}
    job = {
        "metadata": {"name": "j", "uid": OURS, "deletionTimestamp": stamp},
        "status": {},
        "spec": {},
    }
    cluster = _typed((job, [{"metadata": meta, "spec": {}, "status": {"phase": "Pending"}}], []))
    seen = poll(TaskRef(1, 0, 1, OURS, stopping=True), cluster, T0 + timedelta(seconds=50))
    assert seen.end is not None
    assert seen.end.disruption is None
    before, after = StopIntent(T0 - timedelta(seconds=1)), StopIntent(T0 + timedelta(seconds=40))
    assert read_end(seen.end, before).outcome == "cancelled"
    assert read_end(seen.end, after).outcome == "interrupted"


def _leaves(
    value: Any, way: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Return every number and every time in an object, with its path."""
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for step, one in inner:
        yield from _leaves(one, (*way, step))
    if isinstance(value, int | float) or (
        isinstance(value, str) and re.match(r"\d{4}-\d\d-\d\dT", value)
    ):
        yield way, value


def _odd_objects() -> Iterator[tuple[str, dict[str, Any], Any]]:
    """Return each number and each time of a recorded Job or pod, once, replaced by odd values."""
    seen: set[tuple[Any, ...]] = set()
    for path in sorted(RECORDED.glob("*.json")):
        said = json.loads(path.read_text())
        for way, value in _leaves(said["objects"]):
            field = tuple(step for step in way if isinstance(step, str))
            # The exit codes in a rule do matter.
            if field in seen or "restartPolicyRules" in field:
                continue
            seen.add(field)
            for odd in ODD_TIMES if isinstance(value, str) else ODD_NUMBERS:
                changed = copy.deepcopy(said)
                at = changed["objects"]
                for step in way[:-1]:
                    at = at[step]
                at[way[-1]] = odd
                yield f"{path.name} {way} {odd!r}", changed, said


def test_no_odd_number_or_time_keeps_a_task_from_being_read() -> None:
    played = 0
    for name, changed, said in _odd_objects():
        condition, usual = condition_of(changed), condition_of(said)
        for task in (condition.task, replace(condition.task, stopping=True)):
            seen = read_task(
                task, condition.job, condition.pods, condition.events, condition.now, condition.now
            )
            assert (seen.end is None) == (usual.seen().end is None), name
            for at in (
                seen.changed_at,
                seen.started_at,
                seen.end.finished_at if seen.end else None,
            ):
                assert at is None or at.year in range(1970, 2101), name
            if seen.end is not None:
                read_end(seen.end, condition.stop)
        played += 1
    assert played > 500


@given(tasks, clusters, moments, stops)
@settings(max_examples=examples(200))
def test_reading_has_an_answer_to_everything_and_calls_nothing_a_success_by_default(
    task: TaskRef, cluster: Cluster, now: datetime, stop: StopIntent | None
) -> None:
    seen = poll(task, cluster, now)
    assert (seen.phase is Phase.ENDED) == (seen.end is not None)
    if seen.phase in (Phase.WAITING, Phase.GONE):
        assert seen.reason
    for text in (seen.reason, seen.end.message if seen.end else None):
        assert text is None or (text.isprintable() and text == text.strip())
    assert poll(task, cluster, now) == seen
    if seen.end is not None and read_end(seen.end, stop).status is TaskStatus.SUCCEEDED:
        assert proved(cluster, seen)
        assert not disturbed(task, cluster) or said_finished(seen)


def _ended(
    code: int, word: str, end: int, head: dict[str, Any], told: dict[str, str], rest: dict[str, Any]
) -> Any:
    """A Job of ours and its pod, whose exit code says that the crawler ended well."""
    stamp = (T0 + timedelta(seconds=end)).strftime("%Y-%m-%dT%H:%M:%SZ")
    done = {"exitCode": code, "reason": "Completed", "message": word, "finishedAt": stamp}
    owner = {"kind": "Job", "name": "crawl-1-0-1", "uid": OURS, "controller": True}
    meta = {"name": "pod", "uid": "pod", "annotations": told, "ownerReferences": [owner], **head}
    containers = [{"name": labels.CONTAINER, "state": {"terminated": done}}]
    one = {
        "kind": "Pod",
        "metadata": meta,
        "spec": {"nodeName": "n1"},
        "status": {**rest, "containerStatuses": containers},
    }
    return {"kind": "Job", "metadata": {"name": "crawl-1-0-1", "uid": OURS}}, [one], []


seconds = st.integers(0, 40).map(
    lambda s: (T0 + timedelta(seconds=s)).strftime("%Y-%m-%dT%H:%M:%SZ")
)
well_ended = st.builds(
    _ended,
    st.sampled_from([0, 0, 0, 14]),
    st.sampled_from([SUMMARIES[0], SUMMARIES[2], ""]),
    st.integers(0, 40),
    st.just({})
    | st.builds(
        lambda at, g: {"deletionTimestamp": at, "deletionGracePeriodSeconds": g},
        seconds,
        st.integers(0, 9),
    ),
    runner_told,
    st.builds(
        lambda at, reason, marked, phase: {
            "phase": phase,
            "conditions": [
                {
                    "type": "DisruptionTarget",
                    "status": marked,
                    "reason": reason,
                    "lastTransitionTime": at,
                }
            ],
        },
        seconds,
        st.sampled_from(DISRUPTIONS),
        st.sampled_from(["True", "False"]),
        st.sampled_from(["Succeeded", "Failed", "Running"]),
    ),
)


@given(tasks, well_ended, stops)
@settings(max_examples=examples(300))
def test_exit_0_is_no_success_when_somebody_had_asked_for_the_end(
    task: TaskRef, cluster: Cluster, stop: StopIntent | None
) -> None:
    seen = poll(task, cluster, T0 + timedelta(seconds=60))
    assert seen.end is not None
    ending = read_end(seen.end, stop)
    if said_finished(seen):
        assert ending.status is TaskStatus.SUCCEEDED
    elif disturbed(task, cluster):
        assert ending.status is not TaskStatus.SUCCEEDED


@given(tasks, clusters, moments, st.randoms(use_true_random=False))
@settings(max_examples=examples(100))
def test_the_order_of_lists_is_of_no_consequence(
    task: TaskRef, cluster: Cluster, now: datetime, random: Any
) -> None:
    def shuffled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: shuffled(inner) for key, inner in value.items()}
        if isinstance(value, list):
            mixed = [shuffled(inner) for inner in value]
            random.shuffle(mixed)
            return mixed
        return value

    job, pods, events = cluster
    assert poll(task, (shuffled(job), shuffled(pods), shuffled(events)), now) == poll(
        task, cluster, now
    )


@given(tasks, st.lists(st.tuples(clusters, moments), max_size=6), stops)
@settings(max_examples=examples(60))
def test_statuses_go_forwards_only_whatever_polls_see(
    task: TaskRef, history: list[tuple[Cluster, datetime]], stop: StopIntent | None
) -> None:
    state = TaskState(1, 0, task.attempt, TaskStatus.QUEUED, T0, task.uid, ever_seen=True)
    for cluster, now in history:
        seen = poll(task, cluster, now)
        change = reconcile(state, seen, stop, due_at=now)
        if change is not None:
            assert task_may_become(state.status, change.after)
            state = TaskState(1, 0, task.attempt, change.after, now, task.uid, ever_seen=True)
            assert reconcile(state, seen, stop, due_at=now) is None


RECORDINGS = {path.stem: path.read_text() for path in sorted(RECORDED.glob("*.json"))}


@given(st.data())
@settings(max_examples=examples(200))
def test_a_real_object_that_lacks_something_is_read_or_refused_as_no_object(
    data: st.DataObject,
) -> None:
    said = json.loads(RECORDINGS[data.draw(st.sampled_from(sorted(RECORDINGS)))])
    for _ in range(data.draw(st.integers(1, 4))):
        _damage(said["objects"], data)
    objects = said["objects"]
    now = datetime.fromisoformat(said["now"])
    task = TaskRef(1, 0, 1, said["task"].get("uid"), said["task"].get("stopping", False))
    cluster = (objects.get("job"), objects.get("pods") or [], objects.get("events") or [])
    try:
        seen = poll(task, _typed(cluster), now)
    except ApiError:
        return  # not a valid response of an API server: the poll fails, and nothing changes
    if seen.end is not None:
        assert read_end(seen.end).cause


def _typed(cluster: Any) -> Cluster:
    job, pods, events = cluster
    return (
        {"kind": "Job", **job} if job else None,
        [{"kind": "Pod", **one} for one in pods if one],
        [{"kind": "Event", **one} for one in events if one],
    )


def _damage(value: Any, data: st.DataObject) -> None:
    """Remove, empty or replace one thing somewhere inside."""
    while True:
        keys = sorted(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = data.draw(st.sampled_from(keys))
        inner = value[key]
        if isinstance(inner, dict | list) and inner and data.draw(st.integers(0, 4)):
            value = inner
            continue
        kind = data.draw(st.sampled_from(["drop", "null", "unheard"]))
        if kind == "drop" and isinstance(value, dict):
            del value[key]
        elif kind == "unheard" and isinstance(inner, str) and "T" not in inner:
            value[key] = "Unheard"
        else:
            value[key] = None
        return
