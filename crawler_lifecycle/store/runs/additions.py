"""The insertion of tasks, for a new run and for a live run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import func, insert, select

from crawler_lifecycle.domain.bounds import check_request_id
from crawler_lifecycle.domain.errors import DuplicateRequest, InvalidRequest, NotInThisState
from crawler_lifecycle.domain.names import TASKS_PER_RUN_MAX
from crawler_lifecycle.domain.projects import limited, only
from crawler_lifecycle.domain.run import AddedTask
from crawler_lifecycle.domain.task import TaskStatus
from crawler_lifecycle.ports.runs import Fence
from crawler_lifecycle.store.base.bulk import insert_mappings, insert_rows
from crawler_lifecycle.store.base.rows import Row

from .caps import join_caps
from .quotas import check_quotas
from .rows import args_hash, tag_key
from .search_documents import ARGS_MAX
from .tables import run_tag, task_addition, task_history
from .unit import BY_RUN, RunPart, Unit


def check_capacity(present: int, more: int) -> None:
    """Raise ``InvalidRequest`` if a run with ``present`` tasks cannot get ``more`` tasks."""
    if present + more > TASKS_PER_RUN_MAX:
        has = f", and this one has {present}" if present else ""
        raise InvalidRequest(
            f"tasks: {more} tasks are not allowed; a run has at most {TASKS_PER_RUN_MAX}{has}: "
            "start another run for the rest"
        )


def insert_tags(unit: Unit, tags: Sequence[str]) -> None:
    """Insert the tags of a new run, without duplicates."""
    distinct = sorted({tag_key(tag) for tag in tags})
    rows = [{"tag": tag} for tag in distinct]
    insert_mappings(unit.conn, run_tag, rows, run_id=unit.run_id, project=unit.run["project"])


def insert_tasks(unit: Unit, first_index: int, task_args: Sequence[Mapping[str, str]]) -> None:
    """Insert QUEUED tasks of the current attempt, with indexes from ``first_index``."""
    names = (
        "run_id",
        "attempt",
        "run_attempt",
        "status",
        "status_since",
        "ever_seen",
        "task_index",
        "args",
    )
    same = (
        unit.run_id,
        first_attempt(unit),
        unit.attempt,
        TaskStatus.QUEUED.value,
        unit.now,
        False,
    )
    rows = [(*same, first_index + n, dict(args)) for n, args in enumerate(task_args)]
    insert_rows(unit.conn, task_history, names, rows)


def first_attempt(unit: Unit) -> int:
    """Return the number of the first try of a task in this attempt of the run.

    This number is higher than all numbers of earlier attempts, because files of earlier attempts
    may be removed by number.
    """
    if unit.attempt == 1:
        return 1
    t = task_history.c
    former = select(func.max(t.attempt)).where(
        t.run_id == unit.run_id, t.run_attempt < unit.attempt
    )
    highest = unit.conn.execute(former.with_hint(*BY_RUN)).scalar_one()
    return max(unit.attempt, (highest or 0) + 1)


class AdditionStore(RunPart):
    """The addition of tasks to a live run."""

    def add_tasks(
        self,
        run_id: int,
        key: str,
        task_args: Sequence[Mapping[str, str]],
        fence: Fence | None = None,
    ) -> list[AddedTask]:
        """Append QUEUED tasks to a live run, once for each ``key``.

        The run becomes a multi-process run.

        A second call with the same key and arguments returns the same tasks, even after the end of
        the run. Raises ``RunNotFound``. Raises ``NotInThisState`` after a stop or the end,
        ``DuplicateRequest`` if the key was used with other arguments, ``InvalidRequest`` for no
        tasks or too many tasks, and ``QuotaReached``.
        """
        check_request_id(key)
        if not task_args:
            raise InvalidRequest("tasks: [] is not allowed; give at least one task")
        fingerprint = args_hash(task_args)
        with self._unit(fence or run_id) as unit:
            earlier = _addition(unit, key)
            if earlier is not None:
                _check_same(earlier, fingerprint)
                return _added(unit, earlier["first_index"], earlier["tasks"])
            _check_live(unit)
            first = _next_index(unit)
            check_capacity(first, len(task_args))
            # The token of a crawler has access to all projects, and is used for its own run. With a
            # fence, the caller is Temporal.
            with limited(only() if fence is not None else unit.run["project"]):
                check_quotas(
                    unit.conn, self._quotas, self._pools, unit.run, unit.now, len(task_args), first
                )
            insert_tasks(unit, first, task_args)
            join_caps(unit, task_args)
            unit.conn.execute(
                insert(task_addition).values(
                    run_id=run_id,
                    request_key=key,
                    args_hash=fingerprint,
                    first_index=first,
                    tasks=len(task_args),
                    created_at=unit.now,
                )
            )
            unit.update_run(multi=True)
            unit.reworded = unit.reworded or first < ARGS_MAX
            unit.changed = True
            return _added(unit, first, len(task_args))


def _addition(unit: Unit, key: str) -> Row | None:
    a = task_addition.c
    query = select(task_addition).where(a.run_id == unit.run_id, a.request_key == key)
    return unit.conn.execute(query).mappings().one_or_none()


def _check_same(earlier: Row, fingerprint: str) -> None:
    if earlier["args_hash"] != fingerprint:
        raise DuplicateRequest(
            f"request_id {earlier['request_key']!r} already added {earlier['tasks']} other tasks "
            "to run "
            f"{earlier['run_id']}; use a new request_id for other tasks"
        )


def _check_live(unit: Unit) -> None:
    if unit.status.terminal:
        raise NotInThisState(
            f"Run {unit.run_id} is {unit.status.value} and accepts no more tasks; resume it first, "
            "or start another run"
        )
    if unit.stop is not None:
        raise NotInThisState(
            f"Run {unit.run_id} was asked to stop and accepts no more tasks; wait for its end and "
            "resume it, "
            "or start another run"
        )


def _next_index(unit: Unit) -> int:
    t = task_history.c
    highest = unit.conn.execute(
        select(func.max(t.task_index)).where(t.run_id == unit.run_id)
    ).scalar_one()
    return 0 if highest is None else int(highest) + 1


def _added(unit: Unit, first: int, tasks: int) -> list[AddedTask]:
    """Return the added tasks.

    If an index has several rows because of a later resume, return the first row.
    """
    t = task_history.c
    rows = unit.conn.execute(
        select(func.min(t.task_id), t.task_index)
        .where(t.run_id == unit.run_id, t.task_index >= first, t.task_index < first + tasks)
        .with_hint(*BY_RUN)
        .group_by(t.task_index)
        .order_by(t.task_index)
    )
    return [AddedTask(task_id, index) for task_id, index in rows]
