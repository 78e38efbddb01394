"""Judgements by an audit: each function compares a fact from the database, the cluster or Temporal
with facts from the other two. The function returns a finding, or ``None`` if the facts agree.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from crawler_lifecycle.domain.ended_by import EndedBy
from crawler_lifecycle.domain.names import graph_workflow_id
from crawler_lifecycle.domain.run import RunStatus, StopIntent
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import Observation, Phase, TaskStatus, read_end
from crawler_lifecycle.features.managers.domain.manager import JobState

from .audit import (
    TRIES_MAX,
    TRIES_WHEN_FORCED,
    AuditFinding,
    ClusterTask,
    EndedRun,
    FindingKind,
    LiveParent,
    LiveRun,
    OpenWorkflow,
    RecordedTask,
    StepWithoutRun,
    WorkflowState,
)

_UNKNOWN = (
    "not changed: the database has no row for it. The database was restored, created again, or is "
    "the wrong database. "
    "Adopt it (crawlctl audit --adopt) or end it (crawlctl audit --end-unknown)"
)
_ANOTHER = (
    "not changed: this object was not deployed for the task; delete it manually if it has no owner"
)
_FOREIGN = (
    "not changed: this task or workflow belongs to another run that had this number; "
    "end it with an audit (crawlctl audit --end-unknown)"
)
_PARENT = (
    "not changed: the database has no row for it. The database was restored, created again, or is "
    "the wrong database. "
    "End it with an audit (crawlctl audit --end-unknown), then start it again with the same id"
)
_REFUSED = (EndedBy.SERVICE, "deploy_failed")
_ENDS = frozenset(s.value for s in TaskStatus if s.terminal)
_OVER = frozenset(s.value for s in RunStatus if s.terminal)


def progress_mark(*facts: object) -> str:
    """Return a hash of facts that changes whenever progress is made."""
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:12]


def judge_live(
    run: LiveRun, workflow: WorkflowState, tasks: Mapping[str, int] | None = None
) -> AuditFinding | None:
    """Judge a run that has not ended and therefore needs an open workflow. ``workflow`` is the
    run's owner, or another workflow of the run that is open or was the last to close. ``tasks`` is
    the number of the run's tasks by status.
    """
    if workflow.open:
        return None
    evidence = {"status": run.status, "attempt": run.attempt}
    since = workflow.closed_at
    if run.owner_run_id is None:
        never = f"no workflow has ever claimed it{_why(workflow)}"
        detail = f"run {run.run_id} ({run.crawler}) is {run.status} and {never}"
        kind = FindingKind.NOT_STARTED
        since = _later(run.attempt_at or run.created_at, workflow)
    else:
        kind = FindingKind.NO_WORKFLOW
        but = f"but its workflow {run.owner_workflow_id!r} {_how(workflow)}"
        detail = f"run {run.run_id} ({run.crawler}) is {run.status}, {but}"
        evidence |= {"workflow": run.owner_workflow_id, "closed": workflow.how}
    stop = run.stop
    mark = progress_mark(
        sorted((tasks or {}).items()),
        stop.force if stop is not None and stop.limit is None else None,
    )
    tries = _tries(stop is not None and stop.force)
    return _of_run(
        run, kind, f"run/{run.run_id}/{mark}", detail, evidence, since=since, tries_max=tries
    )


def _tries(forced: bool) -> int:
    return TRIES_WHEN_FORCED if forced else TRIES_MAX


def _how(workflow: WorkflowState) -> str:
    end = f"was {workflow.how}" if workflow.how else "no longer exists in Temporal"
    return end + _why(workflow)


def _why(workflow: WorkflowState) -> str:
    return f": {workflow.why}" if workflow.why else ""


def _later(accepted: datetime, workflow: WorkflowState) -> datetime:
    """Return the time since which there has been no workflow: the time when the workflow closed or,
    if that is later, the time of the acceptance. A person who ended a workflow may soon start
    another one.
    """
    return max(accepted, workflow.closed_at or accepted)


def judge_counted(run: LiveRun) -> AuditFinding | None:
    """Judge a run that a manager or graph began, and that it should therefore have recorded."""
    job = run.uncounted
    if job is None:
        return None
    why = (
        f"has no such {job.kind}"
        if job.state is None
        else f"has the {job.kind} ({job.state}) without this run"
    )
    spared = (
        None if job.starting else f"not changed: Stop ends the run (crawlctl stop {run.run_id})"
    )
    if job.state == JobState.QUEUED:
        spared = (
            "not changed: a resume of the manager records it; Stop ends the run (crawlctl "
            f"stop {run.run_id})"
        )
    detail = (
        f"run {run.run_id} ({run.crawler}) is {run.status}, but {job.parent}, which began it, {why}"
    )
    evidence = {"parent": job.parent, job.kind: job.state, "status": run.status}
    return _of_run(
        run,
        FindingKind.NOT_COUNTED,
        f"run/{run.run_id}",
        detail,
        evidence,
        workflow_id=job.workflow_id,
        since=run.created_at,
        spared=spared,
    )


def judge_parent(parent: LiveParent, workflow: WorkflowState) -> AuditFinding | None:
    """Judge an open manager, graph, due time or webhook, which needs an open workflow."""
    if parent.unreadable is not None:
        return judge_unreadable(parent.what, parent.number, parent.unreadable)
    if workflow.open:
        return None
    name = f"{parent.what} {parent.number} ({parent.workflow_id})"
    evidence = {parent.what: parent.number, "status": parent.status, "attempt": parent.attempt}
    since = workflow.closed_at or parent.updated_at
    # A workflow that completed or closed before the row's last change did not belong to this
    # attempt.
    earlier = workflow.how in (None, "completed") or since < parent.updated_at
    if parent.owner_run_id is None and earlier:
        kind = FindingKind.NOT_STARTED
        since = _later(parent.updated_at, workflow)
        detail = f"{name} is {parent.status} and no workflow has ever claimed it"
    else:
        kind = FindingKind.NO_WORKFLOW
        detail = f"{name} is {parent.status}, but its workflow {_how(workflow)}"
        evidence["closed"] = workflow.how
    about = f"{parent.what}/{parent.number}/{parent.progress or parent.attempt}"
    tries = _tries(parent.forced)
    return _finding(
        kind, about, detail, evidence, workflow_id=parent.workflow_id, since=since, tries_max=tries
    )


def judge_unreadable(what: str, number: int, why: str) -> AuditFinding:
    """Return the finding about a row with an impossible value."""
    run_id = number if what == "run" else None
    return _finding(
        FindingKind.UNREADABLE, f"{what}/{number}", why, {"problem": why[:1000]}, run_id=run_id
    )


def judge_told(schedule_id: int, name: str, since: datetime, how: str) -> AuditFinding:
    """Return the finding about a schedule whose definition in Temporal differs from the database,
    or that still exists in Temporal after its deletion.
    """
    detail = (
        f"schedule {name!r} {how}, but Temporal was not notified; /readyz on the workers in "
        "the role audit shows why"
    )
    return _finding(
        FindingKind.NOT_TOLD, f"schedule/{schedule_id}", detail, {"schedule": name}, since=since
    )


def judge_unfired(schedule_id: int, name: str, due: Sequence[datetime]) -> AuditFinding:
    """Return the finding about the sorted due times of a schedule for which there is no firing and
    no workflow.
    """
    first = due[0].isoformat()
    last = f" to {due[-1].isoformat()}" if len(due) > 1 else ""
    detail = (
        f"schedule {name!r} was due {first}{last} ({len(due)} times), but Temporal did not fire"
    )
    about = f"schedule/{schedule_id}/{first}"
    evidence = {"schedule": name, "count": len(due)}
    return _finding(FindingKind.NOT_FIRED, about, detail, evidence, since=due[0])


def judge_step(step: StepWithoutRun) -> AuditFinding:
    """Return the finding about a step whose run or manager does not exist or belongs to another
    graph.
    """
    what = f"{'run' if step.kind == 'crawl' else 'manager'} {step.run_id}"
    why = (
        f"which belongs to {step.parent or 'no graph'}"
        if step.exists
        else "which is not in the database"
    )
    detail = f"step {step.path!r} of graph {step.key!r} is executing as {what}, {why}"
    about = f"graph/{step.graph_id}/{step.number}/{step.attempt}"
    evidence = {"graph": step.graph_id, "step": step.path, step.kind: step.run_id}
    return _finding(
        FindingKind.NO_RUN, about, detail, evidence, workflow_id=graph_workflow_id(step.key)
    )


def judge_parent_workflow(workflow: OpenWorkflow, known: bool) -> AuditFinding | None:
    """Judge an open workflow of a manager or a graph. ``known`` is true if the row that the
    workflow id names exists.
    """
    if known:
        return None
    what = workflow.workflow_id.partition("/")[0]
    detail = f"workflow {workflow.workflow_id!r} belongs to a {what} that is not in the database"
    return _of_workflow(workflow, FindingKind.NO_ROW, detail, spared=_PARENT, unknown=True)


def judge_task(seen: ClusterTask, recorded: RecordedTask | None) -> AuditFinding | None:
    """Compare a waiting or executing task on the cluster with its row. ``recorded`` is ``None`` if
    there is no row.

    An object that only has the same name is not our task, whatever the row contains: the object may
    belong to another installation. The object is reported, and only a person ends it.
    """
    does = "executes" if seen.executing else "waits on the cluster"
    name = f"task {seen.index} of run {seen.run_id}, attempt {seen.attempt},"
    subject = f"task/{seen.run_id}/{seen.index}/{seen.attempt}/{seen.uid or '-'}"[:180]
    evidence = {
        "executing": seen.executing,
        "uid": seen.uid,
        "node": seen.node,
        "started_at": seen.started_at.isoformat() if seen.started_at else None,
    }
    kind = FindingKind.ORPHAN
    task_id = seen.task_id
    spared = None
    if recorded is None:
        detail = f"{name} {does}, but the database has no such task"
        spared = _UNKNOWN
    elif not recorded.run.owns(seen.run_uid) and (seen.uid is None or seen.uid != recorded.uid):
        detail = recorded.run.foreign(f"{name} which {does}", seen.run_uid)
        spared = _FOREIGN
        evidence |= {"run_uid": seen.run_uid, "recorded_run_uid": recorded.run_uid}
    elif _is_another(seen, recorded):
        of = f"object {recorded.uid}" if recorded.uid is not None else "no object"
        detail = (
            f"{name} {does} as object {seen.uid}, but the row of its name ({recorded.status}) "
            f"belongs to {of}"
        )
        task_id = recorded.task_id
        spared = _ANOTHER
        evidence |= {
            "recorded": recorded.status,
            "run": recorded.run_status,
            "recorded_uid": recorded.uid,
        }
    else:
        ended = recorded.status in _ENDS
        if not ended and recorded.run_status not in _OVER:
            return None
        believed = (
            f"recorded as {recorded.status}" if ended else f"its run is {recorded.run_status}"
        )
        detail = f"{name} {does}, and {'it is ' if ended else ''}{believed}"
        kind = FindingKind.STILL_ALIVE
        task_id = recorded.task_id
        evidence |= {"recorded": recorded.status, "run": recorded.run_status}
    return _finding(
        kind,
        subject,
        detail,
        evidence,
        unknown=spared in (_UNKNOWN, _FOREIGN),
        run_id=seen.run_id,
        attempt=seen.attempt,
        task_id=task_id,
        spared=spared,
    )


def _is_another(seen: ClusterTask, recorded: RecordedTask) -> bool:
    """Return whether the object on the cluster is a different object from the one in the row. If
    the row has no uid, the object may have been deployed late and belong to the row, unless the
    deployment was refused or the object names another task.
    """
    if seen.uid is None or seen.stray or seen.uid == recorded.uid:
        return False
    numbered = seen.task_id is not None and seen.task_id != recorded.task_id
    return recorded.uid is not None or (recorded.ended_by, recorded.outcome) == _REFUSED or numbered


def judge_workflow(workflow: OpenWorkflow, row_uid: str | None) -> AuditFinding | None:
    """Judge an open workflow of a run. ``row_uid`` is the uid in the row with the workflow's run
    number, or ``None`` if there is no such row.
    """
    if workflow.run_id is None:
        detail = f"workflow {workflow.workflow_id!r} is open and has not recorded its run"
        return _of_workflow(workflow, FindingKind.UNRECORDED, detail, since=workflow.started_at)
    if row_uid is not None and row_uid == workflow.run_uid:
        return None
    detail = (
        f"workflow {workflow.workflow_id!r} belongs to run {workflow.run_id}, which is not in "
        "the database"
    )
    uids = {}
    spared = _UNKNOWN
    if row_uid is not None:
        run = RunRef(workflow.run_id, row_uid)
        detail = run.foreign(f"workflow {workflow.workflow_id!r}", workflow.run_uid)
        uids = {"run_uid": workflow.run_uid or "-", "recorded_run_uid": row_uid}
        spared = _FOREIGN
    return _of_workflow(workflow, FindingKind.NO_ROW, detail, uids, spared=spared, unknown=True)


def judge_deliveries(run: EndedRun) -> AuditFinding | None:
    """Judge an ended run without an open workflow: its deliveries must be complete."""
    delivered = {
        "the event run.ended": run.event_delivered,
        "pushes": run.pushes_delivered,
        "the supporting files": run.exported,
    }
    missing = [name for name, done in delivered.items() if not done]
    if not missing:
        return None
    detail = (
        f"run {run.run_id} ({run.crawler}) is {run.status}, but these are not delivered: "
        f"{', '.join(missing)}"
    )
    about = f"run/{run.run_id}/{run.attempt}"
    evidence = {"missing": missing, "status": run.status}
    return _of_run(run, FindingKind.UNDELIVERED, about, detail, evidence, since=run.ended_at)


def judge_end(
    recorded: RecordedTask, seen: Observation, stop: StopIntent | None
) -> AuditFinding | None:
    """Compare the recorded end of a task with the cluster's present report about the task. Only new
    evidence contradicts the record: an end on the cluster that was not found before, or a different
    exit code. A stop that was recorded after the end may lead to a different judgement of the same
    end, which is not a contradiction.
    """
    if seen.phase is not Phase.ENDED or seen.end is None or recorded.status not in _ENDS:
        return None
    if recorded.uid is not None and seen.uid is not None and seen.uid != recorded.uid:
        return None
    end = seen.end
    known = (recorded.exit_code, recorded.exit_signal)
    ending = read_end(end, stop)
    if known != (None, None):
        # Earlier builds recorded the runner's verdict instead of the crawler's own exit code.
        contradicts = known not in ((end.exit_code, end.signal), (end.verdict, end.signal))
    elif recorded.status == TaskStatus.LOST:
        contradicts = ending.status is not TaskStatus.LOST
    else:
        contradicts = (ending.status is TaskStatus.SUCCEEDED) != (
            recorded.status == TaskStatus.SUCCEEDED
        )
    if not contradicts:
        return None
    detail = (
        f"task {recorded.index} of run {recorded.run_id} is recorded as {recorded.status}, and the "
        "cluster reports now: "
        f"{ending.status} ({ending.cause})"
    )
    evidence = {
        "recorded": recorded.status,
        "truth": str(ending.status),
        "outcome": ending.outcome,
        "ended_by": ending.ended_by,
        "cause": ending.cause,
        "exit_code": end.exit_code,
        "signal": end.signal,
        "finished_at": end.finished_at.isoformat() if end.finished_at else None,
    }
    about = f"task/{recorded.task_id}/{ending.status}"
    return _finding(
        FindingKind.LATE_EVIDENCE,
        about,
        detail,
        evidence,
        since=end.finished_at,
        run_id=recorded.run_id,
        attempt=recorded.attempt,
        task_id=recorded.task_id,
    )


def _of_run(
    run: LiveRun | EndedRun,
    kind: FindingKind,
    about: str,
    detail: str,
    evidence: Mapping[str, object],
    **more: Any,
) -> AuditFinding:
    known = {"run_id": run.run_id, "attempt": run.attempt, "workflow_id": run.owner_workflow_id}
    return _finding(kind, about, detail, evidence, **{**known, **more})


def _of_workflow(
    workflow: OpenWorkflow,
    kind: FindingKind,
    detail: str,
    evidence: Mapping[str, object] | None = None,
    **more: Any,
) -> AuditFinding:
    known = {
        "workflow": workflow.workflow_id,
        "started_at": workflow.started_at.isoformat(),
        **(evidence or {}),
    }
    about = f"workflow/{workflow.first_run_id}"
    return _finding(
        kind, about, detail, known, workflow_id=workflow.workflow_id, run_id=workflow.run_id, **more
    )


def _finding(
    kind: FindingKind, about: str, detail: str, evidence: Mapping[str, object], **more: Any
) -> AuditFinding:
    """Return a finding about the object ``about``. ``more`` contains the other fields of the
    finding. Evidence that is ``None`` is left out.
    """
    known = {name: value for name, value in evidence.items() if value is not None}
    return AuditFinding(f"{kind}/{about}"[:200], kind, detail[:1000], evidence=known, **more)
