"""Judgements of an audit: each fact of database, cluster or Temporal alone, whether it agrees with the others."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from crawler_lifecycle.domain.managers.manager import JobState
from crawler_lifecycle.domain.names import graph_workflow_id
from crawler_lifecycle.domain.run import RunStatus, StopIntent
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.domain.task import Observation, Phase, TaskStatus, read_end

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
    "left alone: the database does not know it, so it was restored, made anew, or is the wrong one; "
    "an audit with adopt takes it up again (crawlctl audit --adopt), with end ends it (crawlctl audit --end-unknown)"
)
_ANOTHER = "left alone: it is not the object that was deployed for this task; end it by hand if nobody owns it"
_FOREIGN = (
    "left alone: it is of another run that had this number; an audit with end ends it (crawlctl audit --end-unknown)"
)
_PARENT = (
    "left alone: the database does not know it, so it was restored, made anew, or is the wrong one; "
    "an audit with end ends it (crawlctl audit --end-unknown), and a start under the same id begins it again"
)
_REFUSED = "deploy_failed"
_ENDS = frozenset(s.value for s in TaskStatus if s.terminal)
_OVER = frozenset(s.value for s in RunStatus if s.terminal)


def progress_mark(*facts: object) -> str:
    """A short word for facts that change when something goes on."""
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:12]


def judge_live(run: LiveRun, workflow: WorkflowState, tasks: Mapping[str, int] | None = None) -> AuditFinding | None:
    """A run that has not ended. ``workflow`` is its owner, or whichever other workflow of it is open or closed last;
    ``tasks`` are its tasks by status."""
    if workflow.open:
        return None
    evidence: dict[str, object] = {"status": run.status, "attempt": run.attempt}
    if run.owner_run_id is None:
        never = f"was never taken up by a workflow{_why(workflow)}"
        detail = f"run {run.run_id} ({run.crawler}) is {run.status} and {never}"
        since = _later(run.attempt_at or run.created_at, workflow)
        found = _of_run(FindingKind.NOT_STARTED, run, detail, evidence, since)
    else:
        how = f"was {workflow.how}" if workflow.how else "is no longer known to Temporal"
        detail = f"run {run.run_id} ({run.crawler}) is {run.status}, but its workflow {run.owner_workflow_id!r} {how}"
        evidence |= {"workflow": run.owner_workflow_id, "closed": workflow.how}
        found = _of_run(FindingKind.NO_WORKFLOW, run, f"{detail}{_why(workflow)}", evidence, workflow.closed_at)
    stop = run.stop
    mark = progress_mark(sorted((tasks or {}).items()), stop.force if stop is not None and stop.limit is None else None)
    forced = stop is not None and stop.force
    return replace(found, subject=f"{found.kind}/run/{run.run_id}/{mark}", tries_max=_tries(forced))


def _tries(forced: bool) -> int:
    return TRIES_WHEN_FORCED if forced else TRIES_MAX


def _why(workflow: WorkflowState) -> str:
    return f": {workflow.why}" if workflow.why else ""


def _later(accepted: datetime, workflow: WorkflowState) -> datetime:
    """Since when nobody carries it: whoever ended a workflow may be about to begin another one."""
    return max(accepted, workflow.closed_at or accepted)


def judge_counted(run: LiveRun) -> AuditFinding | None:
    """A run that a manager or a graph began: whether that knows of it."""
    job = run.uncounted
    if job is None:
        return None
    why = f"has no such {job.kind}" if job.state is None else f"has its {job.kind} as {job.state}, without this run"
    spared = None if job.starting else f"left alone: Stop ends the run (crawlctl stop {run.run_id})"
    if job.state == JobState.QUEUED:
        spared = f"left alone: a resume of the manager counts it; Stop ends the run (crawlctl stop {run.run_id})"
    return AuditFinding(
        f"{FindingKind.NOT_COUNTED}/run/{run.run_id}",
        FindingKind.NOT_COUNTED,
        f"run {run.run_id} ({run.crawler}) is {run.status}, and {job.parent}, which began it, {why}",
        run.run_id,
        run.attempt,
        workflow_id=job.workflow_id,
        evidence=_without_none({"parent": job.parent, job.kind: job.state, "status": run.status}),
        since=run.created_at,
        spared=spared,
    )


def judge_parent(parent: LiveParent, workflow: WorkflowState) -> AuditFinding | None:
    """A manager, a graph, a due time or a webhook that is to have a workflow, and that."""
    subject = f"{parent.what}/{parent.number}"
    if parent.unreadable is not None:
        return judge_unreadable(parent.what, parent.number, parent.unreadable)
    if workflow.open:
        return None
    name = f"{parent.what} {parent.number} ({parent.workflow_id})"
    evidence: dict[str, object] = {parent.what: parent.number, "status": parent.status, "attempt": parent.attempt}
    since = workflow.closed_at or parent.updated_at
    # One that came to its end, or that was of before, has not taken it up either.
    of_before = workflow.how in (None, "completed") or since < parent.updated_at
    if parent.owner_run_id is None and of_before:
        kind, since = FindingKind.NOT_STARTED, _later(parent.updated_at, workflow)
        detail = f"{name} is {parent.status} and was never taken up by a workflow"
    else:
        kind, how = FindingKind.NO_WORKFLOW, f"was {workflow.how}" if workflow.how else "is no longer known to Temporal"
        detail = f"{name} is {parent.status}, but its workflow {how}{_why(workflow)}"
        evidence |= _without_none({"closed": workflow.how})
    return AuditFinding(
        f"{kind}/{subject}/{parent.progress or parent.attempt}",
        kind,
        detail,
        workflow_id=parent.workflow_id,
        evidence=evidence,
        since=since,
        tries_max=_tries(parent.forced),
    )


def judge_unreadable(what: str, number: int, why: str) -> AuditFinding:
    """A row that holds what cannot be."""
    kind = FindingKind.UNREADABLE
    return AuditFinding(f"{kind}/{what}/{number}", kind, why[:1000], evidence={"problem": why[:1000]})


def judge_told(schedule_id: int, name: str, since: datetime, how: str) -> AuditFinding:
    """A schedule of which Temporal has another definition, or that is deleted and still there."""
    kind = FindingKind.NOT_TOLD
    detail = (
        f"schedule {name!r} {how}, and Temporal has not been told; /readyz of the workers of the role audit says why"
    )
    return AuditFinding(f"{kind}/schedule/{schedule_id}", kind, detail, evidence={"schedule": name}, since=since)


def judge_unfired(schedule_id: int, name: str, due: Sequence[datetime]) -> AuditFinding:
    """Due times of a schedule, in order, that have no line, and whose workflow comes no more."""
    kind, last = FindingKind.NOT_FIRED, f" to {due[-1].isoformat()}" if len(due) > 1 else ""
    detail = f"schedule {name!r} was due {due[0].isoformat()}{last} ({len(due)} times), and Temporal did not fire"
    subject = f"{kind}/schedule/{schedule_id}/{due[0].isoformat()}"
    return AuditFinding(subject, kind, detail, evidence={"schedule": name, "count": len(due)}, since=due[0])


def judge_step(step: StepWithoutRun) -> AuditFinding:
    """A step that executes as something that is not there, or not of its graph."""
    what = f"{'run' if step.kind == 'crawl' else 'manager'} {step.run_id}"
    why = f"which belongs to {step.parent or 'nobody'}" if step.exists else "which is not in the database"
    return AuditFinding(
        f"{FindingKind.NO_RUN}/graph/{step.graph_id}/{step.number}/{step.attempt}",
        FindingKind.NO_RUN,
        f"step {step.path!r} of graph {step.key!r} executes as {what}, {why}"[:1000],
        workflow_id=graph_workflow_id(step.key),
        evidence=_without_none({"graph": step.graph_id, "step": step.path, step.kind: step.run_id}),
    )


def judge_parent_workflow(workflow: OpenWorkflow, known: bool) -> AuditFinding | None:
    """An open workflow of a manager or a graph; ``known``: there is a row of the one that its id names."""
    if known:
        return None
    what = workflow.workflow_id.partition("/")[0]
    return AuditFinding(
        f"{FindingKind.NO_ROW}/workflow/{workflow.first_run_id}"[:200],
        FindingKind.NO_ROW,
        f"workflow {workflow.workflow_id!r} works for a {what} that is not in the database",
        workflow_id=workflow.workflow_id,
        evidence={"workflow": workflow.workflow_id, "started_at": workflow.started_at.isoformat()},
        spared=_PARENT,
        unknown=True,
    )


def judge_task(seen: ClusterTask, recorded: RecordedTask | None) -> AuditFinding | None:
    """A task that waits or executes on the cluster, and its row (``None``: there is none).

    Another object under a row's name is no task of ours, whatever the row says: it may be another installation's crawl.
    It is told, and nobody but a person ends it.
    """
    does = "executes" if seen.executing else "waits on the cluster"
    name = f"task {seen.index} of run {seen.run_id}, attempt {seen.attempt},"
    subject = f"task/{seen.run_id}/{seen.index}/{seen.attempt}/{seen.uid or '-'}"[:180]
    evidence: dict[str, object] = {
        "executing": seen.executing,
        "uid": seen.uid,
        "node": seen.node,
        "started_at": seen.started_at.isoformat() if seen.started_at else None,
    }
    spared = None
    if recorded is None:
        detail = f"{name} {does}, and the database knows no such task"
        kind, task_id, spared = FindingKind.ORPHAN, seen.task_id, _UNKNOWN
    elif not recorded.run.owns(seen.run_uid) and (seen.uid is None or seen.uid != recorded.uid):
        detail = recorded.run.foreign(f"{name} which {does}", seen.run_uid)
        kind, task_id, spared = FindingKind.ORPHAN, seen.task_id, _FOREIGN
        evidence |= {"run_uid": seen.run_uid, "recorded_run_uid": recorded.run_uid}
    elif _is_another(seen, recorded):
        of = f"object {recorded.uid}" if recorded.uid is not None else "no object"
        detail = f"{name} {does} as object {seen.uid}, and the row under its name ({recorded.status}) is of {of}"
        kind, task_id, spared = FindingKind.ORPHAN, recorded.task_id, _ANOTHER
        evidence |= {"recorded": recorded.status, "run": recorded.run_status, "recorded_uid": recorded.uid}
    else:
        ended = recorded.status in _ENDS
        if not ended and recorded.run_status not in _OVER:
            return None
        believed = f"recorded as {recorded.status}" if ended else f"its run is {recorded.run_status}"
        detail = f"{name} {does}, and {'it is ' if ended else ''}{believed}"
        kind, task_id = FindingKind.STILL_ALIVE, recorded.task_id
        evidence |= {"recorded": recorded.status, "run": recorded.run_status}
    return AuditFinding(
        f"{kind}/{subject}",
        kind,
        detail,
        seen.run_id,
        seen.attempt,
        task_id,
        evidence=_without_none(evidence),
        spared=spared,
        unknown=spared in (_UNKNOWN, _FOREIGN),
    )


def _is_another(seen: ClusterTask, recorded: RecordedTask) -> bool:
    """Tell whether what is seen is not the object that the row is about.

    A row without an object may be about one that was deployed late, unless that was refused, or carries another task's
    number.
    """
    if seen.uid is None or seen.stray or seen.uid == recorded.uid:
        return False
    numbered = seen.task_id is not None and seen.task_id != recorded.task_id
    return recorded.uid is not None or recorded.outcome == _REFUSED or numbered


def judge_workflow(workflow: OpenWorkflow, row_uid: str | None) -> AuditFinding | None:
    """An open workflow; ``row_uid`` is the uid of the run under the number it says it works for, if there is one."""
    more = {"workflow": workflow.workflow_id, "started_at": workflow.started_at.isoformat()}
    if workflow.run_id is None:
        detail = f"workflow {workflow.workflow_id!r} is open and has not recorded its run"
        return AuditFinding(
            f"{FindingKind.UNRECORDED}/workflow/{workflow.first_run_id}"[:200],
            FindingKind.UNRECORDED,
            detail,
            workflow_id=workflow.workflow_id,
            evidence=dict(more),
            since=workflow.started_at,
        )
    if row_uid is not None and row_uid == workflow.run_uid:
        return None
    detail = f"workflow {workflow.workflow_id!r} works for run {workflow.run_id}, which is not in the database"
    if row_uid is not None:
        run = RunRef(workflow.run_id, row_uid)
        detail = run.foreign(f"what workflow {workflow.workflow_id!r} works for", workflow.run_uid)
        more |= {"run_uid": workflow.run_uid or "-", "recorded_run_uid": row_uid}
    return AuditFinding(
        f"{FindingKind.NO_ROW}/workflow/{workflow.first_run_id}"[:200],
        FindingKind.NO_ROW,
        detail,
        run_id=workflow.run_id,
        workflow_id=workflow.workflow_id,
        evidence=dict(more),
        spared=_FOREIGN if row_uid is not None else _UNKNOWN,
        unknown=True,
    )


def judge_deliveries(run: EndedRun, busy: bool) -> AuditFinding | None:
    """A run that has ended; ``busy``: a workflow is still at its deliveries."""
    missing = [
        name
        for name, done in (
            ("the event run.ended", run.event_delivered),
            ("pushes", run.pushes_delivered),
            ("the supporting files", run.exported),
        )
        if not done
    ]
    if busy or not missing:
        return None
    detail = f"run {run.run_id} ({run.crawler}) is {run.status}, and not delivered: {', '.join(missing)}"
    return AuditFinding(
        f"{FindingKind.UNDELIVERED}/run/{run.run_id}/{run.attempt}",
        FindingKind.UNDELIVERED,
        detail,
        run.run_id,
        run.attempt,
        workflow_id=run.owner_workflow_id,
        evidence={"missing": missing, "status": run.status},
        since=run.ended_at,
    )


def judge_end(recorded: RecordedTask, seen: Observation, stop: StopIntent | None) -> AuditFinding | None:
    """The recorded end of a task beside what the cluster says about it now.

    Only evidence contradicts: an end on the cluster where none was found before, or another exit than was written down.
    A stop that was recorded later may judge the same end differently and is no contradiction.
    """
    if seen.phase is not Phase.ENDED or seen.end is None or recorded.status not in _ENDS:
        return None
    if recorded.uid is not None and seen.uid is not None and seen.uid != recorded.uid:
        return None
    end, known = seen.end, (recorded.exit_code, recorded.exit_signal)
    ending = read_end(end, stop)
    if known != (None, None):
        contradicts = known != (end.exit_code, end.signal)
    elif recorded.status == TaskStatus.LOST:
        contradicts = True
    else:
        contradicts = (ending.status is TaskStatus.SUCCEEDED) != (recorded.status == TaskStatus.SUCCEEDED)
    if not contradicts:
        return None
    detail = (
        f"task {recorded.index} of run {recorded.run_id} is recorded as {recorded.status}, and the cluster says now: "
        f"{ending.status} ({ending.cause})"
    )
    evidence: dict[str, object] = {
        "recorded": recorded.status,
        "truth": str(ending.status),
        "outcome": ending.outcome,
        "cause": ending.cause,
        "exit_code": end.exit_code,
        "signal": end.signal,
        "finished_at": end.finished_at.isoformat() if end.finished_at else None,
    }
    return AuditFinding(
        f"{FindingKind.LATE_EVIDENCE}/task/{recorded.task_id}/{ending.status}",
        FindingKind.LATE_EVIDENCE,
        detail,
        recorded.run_id,
        recorded.attempt,
        recorded.task_id,
        evidence=_without_none(evidence),
        since=end.finished_at,
    )


def _of_run(
    kind: FindingKind, run: LiveRun, detail: str, evidence: dict[str, object], since: datetime | None
) -> AuditFinding:
    subject = f"{kind}/run/{run.run_id}/{run.attempt}"
    return AuditFinding(
        subject,
        kind,
        detail,
        run.run_id,
        run.attempt,
        workflow_id=run.owner_workflow_id,
        evidence=_without_none(evidence),
        since=since,
    )


def _without_none(values: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}
