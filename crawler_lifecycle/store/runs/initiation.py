"""Initiation: the reservation of runs, and their claims by workflows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Connection, insert, select

from crawler_lifecycle.domain import projects
from crawler_lifecycle.domain.bounds import check_request_id, refusal
from crawler_lifecycle.domain.due_ids import schedule_of
from crawler_lifecycle.domain.errors import (
    AlreadyCompleted,
    DuplicateRequest,
    Fenced,
    InvalidRequest,
    NotInThisState,
    RunIsLive,
    StoreUnavailable,
)
from crawler_lifecycle.domain.names import PROPERTY_FORMER_OWNER
from crawler_lifecycle.domain.pools import DEFAULT
from crawler_lifecycle.domain.run import RunRequest, RunStatus, Stage
from crawler_lifecycle.features import FEATURES
from crawler_lifecycle.ports.runs import Owner, RunHandle, RunRow
from crawler_lifecycle.store.base.bulk import put_row
from crawler_lifecycle.store.base.pools import with_stored
from crawler_lifecycle.store.base.rows import Row, check_free
from crawler_lifecycle.store.base.unit import NO_STOP, stop_of

from .additions import check_capacity, insert_tags, insert_tasks
from .caps import join_caps
from .codes import record_code
from .moves import forget_staged
from .quotas import check_quotas
from .rows import request_hash, run_handle, run_row, stored_request, work_hash
from .search_documents import write_words
from .tables import history_property, run_history
from .unit import RunPart, Unit, check_kept, read_run

_CLAIM_ROUNDS = 10

T = TypeVar("T")
TaskArgs = Sequence[Mapping[str, str]]


def _owner_of(run: Row) -> Owner | None:
    if run["owner_run_id"] is None:
        return None
    return Owner(run["owner_workflow_id"], run["owner_run_id"])


def _check_new(request: RunRequest, request_id: str) -> None:
    if request.run_id is not None:
        raise InvalidRequest(
            f"run_id: {request.run_id} is not allowed for a new run; remove the field, or claim "
            "that run instead"
        )
    check_request_id(request_id)


def _check_same(run: Row, fingerprint: str) -> None:
    if run["request_hash"] != fingerprint:
        raise DuplicateRequest(
            f"request_id {run['request_id']!r} belongs to run {run['run_id']}, which has a "
            "different request; "
            "use a new request_id for a new run"
        )


def _task_args(request: RunRequest, task_args: TaskArgs | None) -> TaskArgs | None:
    """Return the arguments of the tasks; ``None`` for a single-process run.

    Raises ``InvalidRequest``.
    """
    if task_args is not None:
        if not task_args:
            raise InvalidRequest(
                "tasks: [] is not allowed; give at least one task, or remove the field"
            )
        check_capacity(0, len(task_args))
        return task_args
    return None if request.tasks is None else [task.args for task in request.tasks]


def _tried(conn: Connection, request: RunRequest) -> RunRequest:
    """Return the request, with the version that a canary of its package gives it."""
    if request.canary is None:
        return request
    version = request.version
    code = request.code
    for feature in FEATURES:
        if feature.choose:
            choose = feature.load(feature.choose)
            version, code = choose(conn, request.canary) or (version, code)
    return replace(request, canary=None, version=version, code=code)


class InitiationStore(RunPart):
    """The creation of runs by HTTP requests and workflows, and the claims of runs by workflows."""

    def reserve_run(
        self,
        request: RunRequest,
        request_id: str,
        task_args: TaskArgs | None = None,
        caller: str | None = None,
    ) -> tuple[RunRow, bool]:
        """Insert the run without an owner, and all its tasks (QUEUED).

        Returns the row, and whether it is new.

        ``task_args`` contains the arguments of each task. The default is ``request.tasks``, or one
        task without arguments. ``caller`` identifies the token that starts the run by project and
        name, as ``Caller.key`` does. A second call with the same ``request_id`` returns the stored
        row. Raises ``DuplicateRequest`` if the stored request differs, and ``QuotaReached``.
        """

        def found(unit: Unit, new: bool) -> tuple[RunRow, bool]:
            return run_row(unit.run), new

        return self._insert_or_find(request, request_id, task_args, found, caller=caller)

    def create_run(self, request: RunRequest, request_id: str, owner: Owner) -> RunHandle:
        """Reserve the run and claim it in one transaction.

        Raises ``DuplicateRequest`` if another workflow owns it.
        """

        def claim(unit: Unit, new: bool) -> RunHandle:
            holder = _owner_of(unit.run)
            if holder is None:
                unit.update_run(
                    owner_workflow_id=owner.workflow_id, owner_run_id=owner.first_run_id
                )
            elif holder != owner:
                raise DuplicateRequest(
                    f"request_id {request_id!r} belongs to run {unit.run_id} of workflow "
                    f"{holder.workflow_id!r}"
                )
            return run_handle(unit.run)

        return self._insert_or_find(request, request_id, None, claim, owner)

    def _insert_or_find(
        self,
        request: RunRequest,
        request_id: str,
        task_args: TaskArgs | None,
        then: Callable[[Unit, bool], T],
        owner: Owner | None = None,
        caller: str | None = None,
    ) -> T:
        """Find or insert the run with this request id, and return the result of calling ``then`` in
        the same transaction.
        """
        _check_new(request, request_id)
        projects.chosen(request.project)
        args = _task_args(request, task_args)
        fingerprint = request_hash(request, args)

        def write(conn: Connection) -> T:
            run = self._find_locked(conn, request_id, request.project)
            if run is not None:
                if owner is None or _owner_of(run) != owner:
                    _check_same(run, fingerprint)
                if owner is not None:
                    check_kept(run)
                return then(Unit(conn, run, self._clock()), False)
            wanted = _tried(conn, request)
            hashed = fingerprint if wanted is request else request_hash(wanted, args)
            unit = self._insert(conn, wanted, request_id, hashed, args, caller)
            answer = then(unit, True)
            unit.announce()
            return answer

        return self._db.inserting(f"run of request_id {request_id!r}", write)

    @staticmethod
    def _find_locked(conn: Connection, request_id: str, project: str) -> dict[Any, Any] | None:
        # The first read takes no lock, because on MySQL a locking read of a missing key blocks
        # inserts of neighbouring keys.
        r = run_history.c
        there = conn.execute(
            select(r.run_id, r.project).where(r.request_id == request_id)
        ).one_or_none()
        if there is None:
            return None
        check_free(there.project, project, f"request_id {request_id!r}")
        return read_run(conn, there.run_id, lock=True)

    def _insert(
        self,
        conn: Connection,
        request: RunRequest,
        request_id: str,
        fingerprint: str,
        args: TaskArgs | None,
        caller: str | None,
    ) -> Unit:
        with_stored(conn, self._pools).check(request.pool, request.project)
        now = self._clock()
        row = new_run(request, request_id, now)
        row |= {
            "run_uid": self.new_uid(),
            "request_hash": fingerprint,
            "multi": args is not None,
            "work_hash": work_hash(request, args),
            "schedule": schedule_of(request_id),
            "caller": caller,
        }
        own = [{}] if args is None else args
        check_quotas(conn, self._quotas, self._pools, row, now, len(own))
        conn.execute(insert(run_history).values(**row))
        inserted = self._find_locked(conn, request_id, request.project)
        assert inserted is not None, "it was inserted in this transaction"
        unit = Unit(conn, inserted, now)
        insert_tags(unit, request.tags)
        insert_tasks(unit, 0, own)
        join_caps(unit, own)
        write_words(conn, unit.run)
        record_code(unit, request)
        unit.note_transition(
            None, RunStatus.INITIALIZING, "deploy", {"tasks": len(own), "trigger": row["trigger"]}
        )
        return unit

    def claim_run(
        self,
        request: RunRequest,
        owner: Owner,
        former_is_open: Callable[[Owner], bool],
        *,
        repair: bool = False,
    ) -> RunHandle:
        """Make ``owner`` the owner of the run ``request.run_id``.

        A second claim by the same owner returns the same result.

        A reserved or resumed run without an owner keeps its attempt. Otherwise the next attempt
        begins. ``former_is_open`` returns whether the former owner is still open.
        ``former_is_open`` may call another system, so it is called between two transactions. If the
        run changes meanwhile, the second transaction decides again.

        If ``repair`` is true, the owner replaces a lost workflow. Tasks that ended under the lost
        workflow are not queued again, and a run that has ended meanwhile is not claimed
        (``NotInThisState``). Raises ``RunNotFound``, ``RunIsLive``, ``AlreadyCompleted``,
        ``InvalidRequest``, ``NotInThisState`` if the run's code was deleted, and ``Fenced`` for a
        former owner that has lost the run.
        """
        if request.run_id is None:
            raise InvalidRequest("run_id: it is missing; give the number of the run to claim")
        known_closed: tuple[int, Owner] | None = None
        for _ in range(_CLAIM_ROUNDS):
            with self._unit(request.run_id) as unit:
                former = self._claim(unit, request, owner, known_closed, repair)
                if former is None:
                    return run_handle(unit.run)
                attempt = unit.attempt
            if former_is_open(former):
                raise RunIsLive(
                    f"Run {request.run_id} is owned by workflow {former.workflow_id!r}, which is "
                    "still open; "
                    "stop it first, or wait for its end"
                )
            known_closed = (attempt, former)
        raise StoreUnavailable(
            f"Run {request.run_id} changed owners {_CLAIM_ROUNDS} times while it was claimed"
        )

    @staticmethod
    def _claim(
        unit: Unit,
        request: RunRequest,
        owner: Owner,
        known_closed: tuple[int, Owner] | None,
        repair: bool,
    ) -> Owner | None:
        """Claim the run.

        If the former owner must be checked first, return that owner and change nothing.
        """
        run = unit.run
        if request.crawler is not None and request.crawler != run["crawler"]:
            raise InvalidRequest(
                f"crawler: {request.crawler!r} is not allowed; run {unit.run_id} has crawler "
                f"{run['crawler']!r}, "
                "so remove the field or give this crawler"
            )
        if request.project not in (projects.DEFAULT, run["project"]):
            raise refusal(
                "project",
                request.project,
                f"run {unit.run_id} belongs to project {run['project']!r}, so remove the field or "
                "give this project",
            )
        former = _owner_of(run)
        if former == owner:
            return None
        _check_never_lost(unit, owner)
        if former is None:
            rerun = run["claim_rerun"] or (run["claim_resumed"] and request.rerun)
            unit.update_run(
                owner_workflow_id=owner.workflow_id,
                owner_run_id=owner.first_run_id,
                claim_rerun=rerun,
                **_renewed(run, request),
            )
            return None
        if repair and unit.status.terminal:
            raise NotInThisState(f"Run {unit.run_id} is {unit.status} now, so it needs no repair")
        _check_rerun(unit, request)
        if not unit.status.terminal and known_closed != (unit.attempt, former):
            return former
        _next_attempt(unit, request, owner.workflow_id, owner.first_run_id, repair=repair)
        return None

    def resume_run(
        self, request: RunRequest, workflow_id: str, attempt: int
    ) -> tuple[RunRow, bool]:
        """Record the next attempt of a run, which ``workflow_id`` will claim.

        Returns the row, and whether this call recorded the attempt.

        ``attempt`` is the attempt that the caller has read; its workflow must be closed. If the run
        has been resumed since then, nothing changes. Raises ``RunNotFound`` and
        ``AlreadyCompleted``. Raises ``NotInThisState`` if the run's code was deleted, and for a
        rerun if the run was resumed without rerun and is not claimed yet.
        """
        assert request.run_id is not None
        with self._unit(request.run_id) as unit:
            claimed = unit.run["owner_run_id"] is not None
            if unit.attempt == attempt and claimed:
                _check_rerun(unit, request)
                _next_attempt(unit, request, workflow_id, None)
                return run_row(unit.run), True
            if request.rerun and not claimed and not unit.run["claim_rerun"]:
                text = (
                    f"Run {unit.run_id} was just resumed without rerun; stop it first, or wait "
                    "for its end"
                )
                raise NotInThisState(text)
            return run_row(unit.run), False

    def set_property(self, run_id: int, attempt: int, name: str, value: str) -> None:
        """Write a property of an attempt. A later value with the same name replaces the earlier
        one.
        """
        with self._unit(run_id) as unit:
            key = {"run_id": run_id, "attempt": attempt, "name": name}
            put_row(unit.conn, history_property, key, {"value": value})


def _check_rerun(unit: Unit, request: RunRequest) -> None:
    if unit.status is RunStatus.COMPLETED and not request.rerun:
        raise AlreadyCompleted(
            f"Run {unit.run_id} is COMPLETED; only rerun: true executes it again"
        )


def _check_never_lost(unit: Unit, owner: Owner) -> None:
    """Raise ``Fenced`` if the workflow has already lost the run.

    The claim is then a late retry by a workflow that was considered dead. If the claim succeeded,
    the run would get a closed owner.
    """
    p = history_property.c
    query = select(p.attempt).where(
        p.run_id == unit.run_id, p.name == PROPERTY_FORMER_OWNER, p.value == owner.first_run_id
    )
    attempt = unit.conn.execute(query.limit(1)).scalar_one_or_none()
    if attempt is not None:
        text = (
            f"Run {unit.run_id} is at attempt {unit.attempt}; owner {owner.first_run_id} had "
            f"attempt {attempt} of it"
        )
        raise Fenced(f"{text} and may not claim it again")


def new_run(request: RunRequest, request_id: str, now: datetime) -> dict[str, Any]:
    return {
        "request_id": request_id,
        "project": request.project,
        "crawler": request.crawler,
        "pool": request.pool or DEFAULT,
        "trigger": request.trigger.value,
        "status": RunStatus.INITIALIZING.value,
        "stage": Stage.INITIATION.value,
        "attempt": 1,
        **NO_STOP,
        **dict.fromkeys(("claim_resumed", "claim_rerun", "claim_repair"), False),
        "requeued_attempt": 1,
        "request": stored_request(request, request_id),
        "requested_by": request.requested_by,
        "flow_id": request.flow_id,
        "parent": request.parent,
        "created_at": now,
        "updated_at": now,
    }


def _renewed(run: Row, request: RunRequest) -> dict[str, Any]:
    """Return the columns after a claim.

    The request can change ``requested_by``, ``poll_minutes`` and the version.
    """
    stored = dict(run["request"])
    if request.version is not None:
        stored |= {"version": request.version, "code": request.code}
    if request.requested_by is not None:
        stored["requested_by"] = request.requested_by
    if request.poll_minutes is not None:
        stored["poll_minutes"] = list(request.poll_minutes)
    return {"request": stored, "requested_by": stored["requested_by"]}


def _check_code(unit: Unit, request: Mapping[str, Any]) -> None:
    """Raise ``NotInThisState`` if an ended run cannot execute its code again."""
    for feature in FEATURES:
        if feature.check_resume:
            feature.load(feature.check_resume)(unit.conn, unit.run, request)


def _next_attempt(
    unit: Unit,
    request: RunRequest,
    workflow_id: str,
    first_run_id: str | None,
    *,
    repair: bool = False,
) -> None:
    """Begin the next attempt. The locked row makes this a compare-and-set on attempt and owner.

    If ``first_run_id`` is ``None``, the attempt is only accepted, and the workflow ``workflow_id``
    claims it later. From then on the run is live: a stop applies to this attempt, and the former
    owner can no longer write.
    """
    run = unit.run
    before = unit.status
    # Each former owner is recorded only once, because the same transaction increments the attempt.
    unit.conn.execute(
        insert(history_property).values(
            run_id=unit.run_id,
            attempt=unit.attempt,
            name=PROPERTY_FORMER_OWNER,
            value=run["owner_run_id"],
        )
    )
    values: dict[str, Any] = {
        **_renewed(run, request),
        "attempt": unit.attempt + 1,
        "attempt_at": unit.now,
        "owner_workflow_id": workflow_id,
        "owner_run_id": first_run_id,
        "claim_resumed": True,
        "claim_repair": repair,
        "stage": Stage.INITIATION.value,
        # From now on, another workflow orders the polls. The clock of that workflow's server may be
        # different.
        **dict.fromkeys(
            ("waiting_for", "look_error", "look_error_since", "look_ordered_at", "quiet_ms")
        ),
        # The stall rule starts counting now, because the run was not polled while it had no owner.
        "last_progress_at": unit.now if run["last_progress_at"] else None,
    }
    if before.terminal:
        _check_code(unit, values["request"])
        fresh = ("stop_acted_at", "outcome", "ended_by", "cause", "lacks", "fields", "ended_at")
        values |= {
            **NO_STOP,
            **dict.fromkeys(fresh),
            "claim_rerun": request.rerun,
        }
    elif repair:
        # The lost workflow's work continues. Tasks that ended under it must not be queued again.
        if run["requeued_attempt"] == unit.attempt:
            values["requeued_attempt"] = unit.attempt + 1
    else:
        # If the previous attempt was lost before it queued the ended tasks again, this attempt does
        # so.
        values["claim_rerun"] = run["claim_rerun"] and run["requeued_attempt"] != run["attempt"]
    stopped = stop_of(run) is not None and not before.terminal
    after = RunStatus.STOPPING if stopped else RunStatus.INITIALIZING
    unit.update_run(status=after.value, **values)
    if before is not after:
        source = "sweep" if repair else "resume"
        unit.note_transition(
            before.value, after, source, {"attempt": unit.attempt, "owner": workflow_id}
        )
    record_code(unit, request)
    # The first poll of this attempt repeats findings that the former owner staged but did not
    # apply.
    forget_staged(unit)
