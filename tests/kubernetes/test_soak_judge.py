"""The judge of the soak gets each false record once, and notices it. Without a cluster."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.ports.polls import CorrectionRow
from crawler_lifecycle.ports.runs import RunRow, TaskRow, TransitionRow
from tests.contracts.cluster.kube_harness import summary
from tools.soak.kubernetes.ends import Stops
from tools.soak.kubernetes.judge import Case, judge_memory, judge_run, judge_task
from tools.soak.kubernetes.plan import make_plan
from tools.soak.kubernetes.record import FINALIZER, SETTLED, PodStory, Story, Version

T0 = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)
FINISHED = summary("finished", 0)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def stamp(seconds: float) -> str:
    return at(seconds).strftime("%Y-%m-%dT%H:%M:%SZ")


def pod(
    code: int | None,
    message: str = "",
    *,
    end: float = 10,
    deleted: float | None = None,
    freed: float = 20,
) -> Any:
    """A pod that begins at 1 s, and ends, is deleted and released at these seconds."""
    names = {
        f"crawler-lifecycle/{key}": value
        for key, value in (("run", "1"), ("task", "0"), ("attempt", "1"))
    }
    meta = {
        "uid": "p",
        "labels": names | {"batch.kubernetes.io/controller-uid": "j"},
        "finalizers": [FINALIZER],
    }
    running = {"running": {"startedAt": stamp(1)}}

    def told(state: Any, phase: str, **more: Any) -> Any:
        status = {"phase": phase, "containerStatuses": [{"name": "crawler", "state": state}]}
        return {"metadata": meta | more, "status": status}

    story = PodStory("pods", "crawl-1-0-1-x", "p", [Version(1, at(0), told({}, "Pending"))])
    story.versions.append(Version(2, at(1), told(running, "Running")))
    mark = {} if deleted is None else {"deletionTimestamp": stamp(deleted)}
    if deleted is not None:
        story.versions.append(Version(3, at(deleted), told(running, "Running", **mark)))
    if code is not None:
        done = {"exitCode": code, "reason": "Error" if code else "Completed", "message": message}
        state = {"terminated": done | {"startedAt": stamp(1), "finishedAt": stamp(end)}}
        phase = "Failed" if code else "Succeeded"
        story.versions.append(Version(4, at(end), told(state, phase, **mark)))
        gone = {"finalizers": [], "labels": {**meta["labels"], SETTLED: "true"}}  # type: ignore[dict-item]
        story.versions.append(Version(5, at(freed), told(state, phase, **mark, **gone)))
    return story


def case(
    story: Any, status: str, outcome: str, code: int | None, *, commit: float = 12, **more: Any
) -> Case:
    run = RunRow(1, "u", "r", "books", "manual", RunStatus.FAILED, "completion", 1, T0, T0)
    row = TaskRow(
        1, 1, 1, 0, status, outcome=outcome, exit_code=code, cluster_uid="j", ended_at=at(10)
    )
    walk = ["QUEUED", "PENDING", "RUNNING", *([status] if status != "RUNNING" else [])]
    times = [at(0), at(1), at(2), at(commit)]
    pairs = zip(walk, walk[1:], times[1:], strict=False)
    moves = [
        TransitionRow(n, 1, 1, 1, a, b, None, when, None, "look", {})
        for n, (a, b, when) in enumerate(pairs)
    ]
    meta = {"metadata": {"labels": {"crawler-lifecycle/task-id": "1"}}, "status": {}, "spec": {}}
    job = Story("jobs", "crawl-1-0-1", "j", [Version(1, T0, meta)])
    kinds = more.pop("kinds", ())
    found = [
        CorrectionRow(n, 1, 1, 1, k, "RUNNING", None, status, None, "look", None, {}, T0)
        for n, k in enumerate(kinds)
    ]
    stops = more.pop("stops", Stops())
    return Case(run, row, job, [story], stops, moves, found)


def test_the_truth_is_believed() -> None:
    stopped = Stops(at(5), at(5))
    for true in (
        case(pod(0, FINISHED), "SUCCEEDED", "finished", 0),
        case(pod(1), "FAILED", "failed", 1),
        case(pod(143, deleted=9), "FAILED", "interrupted", 143, kinds=["killed"]),
        case(
            pod(11, summary("shutdown", 11), deleted=9), "CANCELLED", "cancelled", 11, stops=stopped
        ),
    ):
        assert list(judge_task(true)) == []


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        (case(pod(1), "SUCCEEDED", "finished", 0), "SUCCEEDED, and its pods ended with [1]"),
        (
            case(pod(0, FINISHED), "FAILED", "failed", 0),
            "what happened allows [('SUCCEEDED', 'finished')]",
        ),
        (case(pod(0), "SUCCEEDED", "finished", 0), "what happened allows [('FAILED', 'failed')]"),
        (case(pod(7), "FAILED", "failed", 1), "has exit 1, and its pods ended with [7]"),
        (case(pod(1, end=40, freed=60), "FAILED", "failed", 1, commit=12), "no correction says so"),
        (case(pod(1, end=14), "FAILED", "failed", 1, commit=16), "ended at 2026-01-05 12:00:10"),
        (case(pod(None), "RUNNING", "", None), "is RUNNING although everything has settled"),
        (
            case(pod(143, deleted=9), "FAILED", "interrupted", 143),
            "somebody took it away, and no correction",
        ),
        (case(pod(1), "CANCELLED", "cancelled", 1), "is CANCELLED / cancelled"),
        (
            case(pod(1), "CANCELLED", "cancelled", 1, stops=Stops(at(30), at(30))),
            "is CANCELLED / cancelled",
        ),
        (
            case(pod(1), "FAILED", "failed", 1, stops=Stops(at(3), at(3))),
            "what happened allows [('CANCELLED'",
        ),
        (case(pod(0, FINISHED), "LOST", "lost", None), "is LOST without a correction"),
        (case(pod(1, freed=11), "FAILED", "failed", 1), "before its end was on record"),
        (
            case(pod(1), "FAILED", "failed", 1, kinds=["vanished"]),
            "is FAILED with the corrections ['vanished']",
        ),
    ],
)
def test_a_lie_is_noticed(lie: Case, words: str) -> None:
    found = list(judge_task(lie))
    assert any(words in text for text in found), found


def test_an_end_that_the_node_tells_twice_may_have_either_time() -> None:
    twice = pod(1, end=5, freed=20)
    twice.versions[-1:-1] = [pod(1, end=10).versions[-2]]
    assert list(judge_task(case(twice, "FAILED", "failed", 1))) == []


@pytest.mark.parametrize(
    ("memory", "lie"),
    [
        (("64Mi", "128Mi", "224Mi"), False),
        (("64Mi", "64Mi"), True),
        (("64Mi", "128Mi", "256Mi"), True),
    ],
)
def test_memory_that_does_not_grow_as_the_policy_says_is_noticed(
    memory: tuple[str, ...], lie: bool
) -> None:
    tries = []
    for n, has in enumerate(memory, 1):
        one = case(pod(137), "FAILED", "killed by oom", 137)
        container = {"name": "crawler", "resources": {"limits": {"memory": has}}}
        made = {
            "metadata": {},
            "status": {},
            "spec": {"template": {"spec": {"containers": [container]}}},
        }
        row = replace(
            one.row,
            task_id=n,
            attempt=n,
            retry=n - 1,
            superseded_by=n + 1 if n < len(memory) else None,
        )
        tries.append(
            replace(one, row=row, job=Story("jobs", "crawl-1-0", "j", [Version(1, T0, made)]))
        )
    assert bool(list(judge_memory(tries))) is lie


def test_a_verdict_that_its_tasks_do_not_bear() -> None:
    one = case(pod(1), "FAILED", "failed", 1)
    completed = RunRow(1, "u", "r", "books", "manual", RunStatus.COMPLETED, "completion", 1, T0, T0)
    assert list(judge_run(completed, [one.row], False)) != []
    assert list(judge_run(one.run, [one.row], False)) == []


def test_a_seed_has_one_plan() -> None:
    assert make_plan(7, runs=20, seconds=60) == make_plan(7, runs=20, seconds=60)
    assert make_plan(7, runs=20, seconds=60) != make_plan(8, runs=20, seconds=60)
