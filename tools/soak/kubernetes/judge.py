"""Judges whether the record is true, by comparing each row of the database with the histories of
its Job and its pods.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from crawler_lifecycle.domain.resources import parse_memory
from crawler_lifecycle.ports.polls import CorrectionRow
from crawler_lifecycle.ports.runs import RunRow, TaskRow, TransitionRow
from tools.soak.checks import growth, tries
from tools.soak.kubernetes.ends import SECOND, Stops, allowed, exit_of
from tools.soak.kubernetes.harness import Harness
from tools.soak.kubernetes.plan import CRAWLERS, FACTOR, MEMORY, MEMORY_CAP
from tools.soak.kubernetes.record import PodStory, Recorder, Story, is_over, moment, state

ENDS = ("SUCCEEDED", "FAILED", "CANCELLED", "LOST")
#: The clock of the recorder stamps its observations. Observations that are closer than this cannot
#: be ordered.
BLUR = timedelta(seconds=2)
#: Exit codes by which a crawler reports success.
DONE = (0,)
Violations = Iterator[str]


@dataclass
class Case:
    """The row of one task, and the truth about it."""

    run: RunRow
    row: TaskRow
    job: Story | None
    pods: list[PodStory]
    stops: Stops
    transitions: list[TransitionRow]
    corrections: list[CorrectionRow]

    @property
    def kinds(self) -> set[str]:
        return {str(c.kind) for c in self.corrections}

    @property
    def ended(self) -> TransitionRow | None:
        """Return when its end was committed."""
        return next((t for t in self.transitions if t.to_status in ENDS), None)

    @property
    def tells_of_two(self) -> bool:
        """Return whether the record states that its Job had several pods. A controller that loses
        an answer creates two.
        """
        said = [self.row.reason, self.row.cause, *(str(t.evidence) for t in self.transitions)]
        return "still_alive" in self.kinds or any(
            "nother pod of its Job" in (text or "") for text in said
        )

    def __str__(self) -> str:
        r = self.row
        return (
            f"task {r.task_id} (index {r.task_index}, attempt {r.attempt}, Job {r.cluster_uid}): "
            f"{r.status} / "
            f"{r.outcome}, exit {r.exit_code}, ended {r.ended_at}; cause: {r.cause}; corrections: "
            f"{sorted(self.kinds)}"
        )


def judge_task(case: Case) -> Violations:
    """Return everything that is wrong with one row."""
    for rule in _RULES:
        yield from rule(case)


def _has_ended(case: Case) -> Violations:
    if str(case.row.status) not in ENDS:
        yield f"is {case.row.status} although everything has settled"


def _is_in_order(case: Case) -> Violations:
    told = [t.to_status for t in case.transitions if t.from_status is not None]
    if len(told) != len(set(told)) or any(status in ENDS for status in told[:-1]):
        yield f"its statuses do not only go forwards: {told}"


def _end_is_true(case: Case) -> Violations:
    status, outcome = str(case.row.status), str(case.row.outcome)
    if status not in ENDS:
        return
    found = _possible(case)
    if (status, outcome) not in found:
        yield f"is {status} / {outcome}, and what happened allows {sorted(found) or 'nothing'}"


def _possible(case: Case) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    commit = case.ended
    asked = (
        {("CANCELLED", "cancelled"), ("CANCELLED", "cancel_timeout")}
        if case.stops.earliest is not None
        else set()
    )
    asked |= {("FAILED", limit) for limit in case.stops.limits}
    for pod in case.pods:
        found |= allowed(pod, case.stops, runner=True)
        gone = pod.removed
        # A pod that was deleted before it had a node is only a name.
        if gone is None and pod.over is None:
            unborn = "deletionTimestamp" in pod.last["metadata"] and pod.began is None
            found |= {("FAILED", "interrupted"), *asked} if unborn else set()
        elif pod.began is None:
            found |= {("FAILED", "interrupted"), *asked}
        if gone is not None and commit is not None and gone.seen_at <= commit.committed_at + BLUR:
            found |= _without_pod(case) | asked  # Somebody removed the evidence.
    if not case.pods:
        found |= _without_pod(case) | asked
    return found


def _without_pod(case: Case) -> set[tuple[str, str]]:
    """Return the possible ends if no pod is left, which follow from the Job alone."""
    found: set[tuple[str, str]] = set()
    if case.row.cluster_uid is None:  # The Job was never created on the cluster.
        refused = {("LOST", "lost"), ("FAILED", "deploy_failed")}
        return refused | {("CANCELLED", limit) for limit in case.stops.limits}
    if case.job is None:
        return {("LOST", "lost")}
    for _, job in case.job.there:
        conditions = {
            c["type"]: c for c in job["status"].get("conditions", []) if c["status"] == "True"
        }
        if {"Failed", "Complete"} & conditions.keys():
            found.add(("FAILED", "failed"))
    if case.job.removed is not None or "deletionTimestamp" in case.job.last["metadata"]:
        found.add(("LOST", "lost"))
    return found


def _success_is_an_exit_of_that_pod(case: Case) -> Violations:
    if str(case.row.status) != "SUCCEEDED":
        return
    codes = [exit_of(pod.done) for pod in case.pods]
    if not any(code in DONE for code in codes):
        yield f"is SUCCEEDED, and its pods ended with {codes}"


def _exit_is_true(case: Case) -> Violations:
    row = case.row
    # kwok reports an end again, with a later time or another code, if the API server restarts at
    # that moment.
    told = [state(version).get("terminated") for pod in case.pods for _, version in pod.there]
    codes = [*{exit_of(one) for one in told if one is not None}]
    if row.exit_code is not None and row.exit_code not in codes:
        yield f"has exit {row.exit_code}, and its pods ended with {codes}"
    if row.exit_code is not None and row.ended_at is not None:
        times = sorted({moment(one["finishedAt"]) for one in told if one is not None})
        if not any(abs(row.ended_at - at) <= SECOND for at in times):
            yield f"ended at {row.ended_at}, and its pods at {times}"
    if row.exit_code is None and str(row.status) == "SUCCEEDED":
        yield "is SUCCEEDED without an exit code"


def _object_is_its_own(case: Case) -> Violations:
    """Check that the Job of the row is the Job that was created for it, and that the row names the
    pod that executed.
    """
    row = case.row
    if row.cluster_uid is None:
        if began := [pod.name for pod in case.pods if pod.began is not None]:
            yield f"knows of no object, and {began} executed for it"
        return
    if case.job is not None and case.job.labels.get("crawler-lifecycle/task-id") != str(
        row.task_id
    ):
        yield f"is about the Job of task {case.job.labels.get('crawler-lifecycle/task-id')}"


def _ran_when_it_says(case: Case) -> Violations:
    for one in case.transitions:
        if one.to_status == "RUNNING":
            began = [_began_at(pod) for pod in case.pods]
            if not any(at is not None and at <= one.committed_at + SECOND for at in began):
                yield f"was RUNNING at {one.committed_at}, and its pods began at {began}"


def _ended_when_it_says(case: Case) -> Violations:
    """Check that no row is ended while its pod executes, unless the record states this."""
    if case.ended is None:
        return
    at = case.ended.committed_at
    for pod in case.pods:
        began, over = _began_at(pod), _over_at(pod)
        if began is None or began > at + BLUR or (over is not None and over <= at + BLUR):
            continue
        if not case.kinds & {"still_alive", "late_evidence"}:
            yield (
                f"ended at {at}, and {pod.name} executed from {began} to {over}; no correction "
                "says so"
            )


def _nothing_is_let_go_of_too_early(case: Case) -> Violations:
    for pod in case.pods:
        freed = pod.let_go()
        if freed is None or not freed[1]:
            continue
        if case.ended is None or case.ended.committed_at > freed[0].seen_at:
            yield (
                f"our finalizer left {pod.name} at {freed[0].seen_at}, before its end was on record"
            )


def _is_corrected(case: Case) -> Violations:
    """Check that each contradiction has its row, and that each row has its contradiction."""
    row, kinds = case.row, case.kinds
    status, outcome = str(row.status), str(row.outcome)
    if status == "LOST" and not kinds & {"vanished", "never_existed", "not_ours"}:
        yield f"is LOST without a correction; there are {sorted(kinds)}"
    if status != "LOST" and kinds & {"vanished", "never_existed", "not_ours"}:
        yield f"is {status} with the corrections {sorted(kinds)}"
    taken = [pod for pod in case.pods if pod.began is not None and _taken_away(pod)]
    all_taken = len(taken) == len(case.pods) > 0
    if (
        status == "FAILED"
        and outcome in ("interrupted", "evicted")
        and all_taken
        and "killed" not in kinds
    ):
        yield (
            f"is {outcome}: somebody took it away, and no correction says so; there are "
            f"{sorted(kinds)}"
        )
    if "killed" in kinds and status in ("SUCCEEDED", "CANCELLED", "LOST"):
        yield f"is {status} with a correction killed"
    if row.exit_code is None and status in ENDS and "late_evidence" not in kinds:
        done = [pod.done for pod in case.pods if pod.done is not None and pod.removed is None]
        codes = [exit_of(one) for one in done]
        if status == "LOST" and codes:
            yield f"is LOST, its pod is there with exit {codes}, and no correction says so"


def _taken_away(pod: PodStory) -> bool:
    """Return whether the pod was deleted before its end, and its only report is that it was told to
    end.
    """
    over = pod.over
    if over is None:
        return False
    marked = [
        v
        for v, o in pod.there
        if "deletionTimestamp" in o["metadata"] and v.revision < over.revision
    ]
    message = (pod.done or {}).get("message") or ""
    return bool(marked) and ("finish_reason" not in message or '"shutdown"' in message)


_RULES: Sequence[Callable[[Case], Violations]] = (
    _has_ended,
    _is_in_order,
    _end_is_true,
    _success_is_an_exit_of_that_pod,
    _exit_is_true,
    _object_is_its_own,
    _ran_when_it_says,
    _ended_when_it_says,
    _nothing_is_let_go_of_too_early,
    _is_corrected,
)


def _began_at(pod: PodStory) -> datetime | None:
    """Return a time by the node's clock, in whole seconds."""
    for _, told in pod.there:
        for one in state(told).values():
            if "startedAt" in one:
                return moment(one["startedAt"])
    return None


def _over_at(pod: PodStory) -> datetime | None:
    """Return when the cluster first reported that the pod had ended, or no longer had the pod."""
    if pod.done is not None:
        return moment(pod.done["finishedAt"])
    return pod.over.seen_at if pod.over is not None else None


def judge_run(run: RunRow, rows: Sequence[TaskRow], stopped: bool) -> Violations:
    """Return the verdict of the run from the outcomes of its tasks."""
    counted = [str(row.status) for row in rows if row.superseded_by is None]
    if str(run.status) not in ("COMPLETED", "FAILED"):
        yield (
            f"is {run.status} although everything has settled (stage {run.stage}, waits for "
            f"{run.waiting_for})"
        )
        return
    success = set(counted) == {"SUCCEEDED"}
    if (str(run.status) == "COMPLETED") != success:
        yield f"is {run.status} / {run.outcome}, and its tasks are {counted}"
    if run.outcome == "cancelled" and not stopped:
        yield "is cancelled, and nobody asked for that"
    told = [asdict(row) for row in rows]
    yield from tries(told, over=not stopped and run.outcome != "timed_out", hungry=True)
    indexes = [row.task_index for row in rows if row.superseded_by is None]
    if len(indexes) != len(set(indexes)):
        yield f"has two rows that count for one task: {sorted(indexes)}"


def judge_memory(cases: Sequence[Case]) -> Violations:
    """Check the real memory of each try, by its Job, after the end of the previous try."""
    told = [
        asdict(case.row) | {"memory": _memory_of(case.job)}
        for case in cases
        if case.job is not None
    ]
    yield from growth(told, parse_memory(MEMORY) or 0, FACTOR, parse_memory(MEMORY_CAP) or 0)


def _memory_of(job: Story) -> str | None:
    containers = job.first["spec"]["template"]["spec"]["containers"]
    [crawler] = [one for one in containers if one["name"] == "crawler"]
    found: str | None = crawler.get("resources", {}).get("limits", {}).get("memory")
    return found


def judge_pods(
    recorder: Recorder, corrected: Container[tuple[int, int]]
) -> Iterator[tuple[int, str]]:
    """Yield (run id, what is wrong) for pods of one task that executed at the same time, and for
    pods that still execute.
    """
    by_task: dict[tuple[int, int], list[PodStory]] = defaultdict(list)
    for pod in recorder.pods:
        if pod.began is not None:
            run, index, _ = pod.key
            by_task[run, index].append(pod)
            if pod.executes:
                yield run, f"{pod.name} executes still"
    for (run, index), pods in by_task.items():
        pods.sort(key=lambda pod: pod.began.revision if pod.began else 0)
        for one, other in pairwise(pods):
            assert other.began is not None
            both = one.over is None or one.over.revision > other.began.revision
            if both and (run, index) not in corrected:
                yield (
                    run,
                    f"{one.name} and {other.name} executed at one time for task {index}; nothing "
                    "says so",
                )


def cases(harness: Harness, run: RunRow, number: int) -> list[Case]:
    """Return the rows of a run, each with the truth about it."""
    store, recorder = harness.testbed.store, harness.recorder
    jobs, pods = {job.uid: job for job in recorder.jobs}, recorder.pods
    transitions, after = [], 0
    while page := store.runs.transitions(run.run_id, after):
        transitions += page
        after = page[-1].seq
    corrections = store.corrections.list_corrections(run.run_id)
    rows: list[TaskRow] = store.tasks.list_tasks(run.run_id, superseded=True)
    found = []
    for row in rows:
        key = (row.run_id, row.task_index, row.attempt)
        mine = [
            p for p in pods if (p.job_uid == row.cluster_uid if row.cluster_uid else p.key == key)
        ]
        found.append(
            Case(
                run,
                row,
                jobs.get(row.cluster_uid or ""),
                mine,
                stops_of(harness, run, number, row),
                [t for t in transitions if t.task_id == row.task_id],
                [c for c in corrections if c.task_id == row.task_id],
            )
        )
    return found


def stops_of(harness: Harness, run: RunRow, number: int, row: TaskRow) -> Stops:
    """Return the requests that the row could receive."""
    asked = [stop for stop in harness.runs[number].stops if stop.error is None]
    logged = [
        c
        for c in harness.testbed.store.runs.cancellations(run.run_id)
        if c["attempt"] >= row.run_attempt
    ]
    limits = frozenset({"timed_out"} if "run_timeout_s" in CRAWLERS[run.crawler].limits else ())
    if not logged:
        return Stops(limits=limits)
    recorded = min(c["requested_at"] for c in logged)
    earliest = max((s.before for s in asked if s.before <= recorded + SECOND), default=recorded)
    certain = recorded if run.attempt == row.run_attempt else None
    return Stops(min(earliest, recorded), certain, limits)


def evidence(pods: Sequence[PodStory], job: Story | None) -> Iterator[str]:
    """Return the histories as text."""
    if job is not None:
        yield (
            f"  Job {job.name} {job.uid}: revisions "
            f"{job.versions[0].revision}–{job.versions[-1].revision}"
        )
        for version, told in job.there:
            conditions = [
                f"{c['type']}={c['status']}" for c in told["status"].get("conditions", [])
            ]
            marks = "deleted " if "deletionTimestamp" in told["metadata"] else ""
            suspended = "suspended " if told["spec"].get("suspend") else ""
            status = {
                key: told["status"].get(key)
                for key in ("active", "ready", "failed", "succeeded", "terminating")
            }
            yield (
                f"    {version.revision} {version.seen_at:%H:%M:%S.%f} "
                f"{marks}{suspended}{conditions} {status}"
            )
        if job.removed is not None:
            yield f"    {job.removed.revision} {job.removed.seen_at:%H:%M:%S.%f} removed"
    for pod in pods:
        yield f"  pod {pod.name} {pod.uid} of Job {pod.job_uid}"
        for version, told in pod.there:
            meta, status = told["metadata"], told["status"]
            conditions = [
                f"{c['type']}={c['status']}({c.get('reason')} {c.get('lastTransitionTime')})"
                for c in status.get("conditions", [])
                if c["type"] == "DisruptionTarget" or (c["type"] == "Ready" and is_over(told))
            ]
            deleted = (
                f"deletion {meta.get('deletionTimestamp')} grace "
                f"{meta.get('deletionGracePeriodSeconds')}"
            )
            phase = f"{status.get('phase')} {status.get('reason') or ''}"
            yield (
                f"    {version.revision} {version.seen_at:%H:%M:%S.%f} {phase} "
                f"{state(told)} {conditions} {deleted if 'deletionTimestamp' in meta else ''} "
                f"finalizers {meta.get('finalizers', [])} {'settled' if _settled(meta) else ''}"
            )
        if pod.removed is not None:
            yield f"    {pod.removed.revision} {pod.removed.seen_at:%H:%M:%S.%f} removed"


def _settled(meta: dict[str, object]) -> bool:
    labels = meta.get("labels")
    return isinstance(labels, dict) and "crawler-lifecycle/settled" in labels
