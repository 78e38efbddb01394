"""Corrections: queries, and the insertion of corrections that were not found by polls.

``moves.py`` inserts the corrections that polls find. No statement deletes rows of ``correction`` or
``status_transition``. Only the deletion of a run's data updates them, to empty their evidence. A
test checks every statement of the store, and the database user needs no permission to delete these
rows (docs/security.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import func, insert, literal_column, select

from crawler_lifecycle.domain.audits.corrections import (
    SOURCES,
    CorrectionKind,
    untrue_ms,
    untrue_since,
)
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.run import RunStatus
from crawler_lifecycle.ports.polls import (
    Correction,
    CorrectionRow,
    CorrectionSummary,
    CorrectionTotal,
)
from crawler_lifecycle.store.base.bulk import rows_in
from crawler_lifecycle.store.base.rows import Row, made, seen, wanted
from crawler_lifecycle.store.columns import storable

from .rows import compact
from .tables import LIVE_RUNS, correction, status_transition, task_history
from .unit import RunPart, Unit

WORD_MAX = 20
"""The maximum number of characters in the columns ``believed`` and ``truth``."""


class CorrectionStore(RunPart):
    """Recorded statuses that turned out to be wrong."""

    def record_corrections(
        self, run_id: int, corrections: Sequence[Correction], found_by: str = "sweep"
    ) -> list[CorrectionRow]:
        """Append corrections of the run or of its tasks.

        Returns the new ones, as they were written.

        A correction with the same task, attempt, kind, believed status and true status is written
        only once. A correction of the current status of a live run also changes this status and
        records the transition, if the true status is a later live status. A terminal status never
        changes. One event ``run.changed`` reports all changes.

        ``found_by`` is one of ``domain.audits.corrections.SOURCES``. Raises ``RunNotFound``. Raises
        ``InvalidRequest`` for an unknown kind or source, for a word that is too long, and for a
        task or attempt that the run does not have.
        """
        for entry in corrections:
            _check(entry, found_by)
        with self._unit(run_id, of_deleted=True) as unit:
            tasks = _tasks(unit, corrections)
            known = _known(unit, corrections)
            written = []
            for entry in corrections:
                values = _values(unit, entry, tasks)
                key = tuple(values[name] for name in _KEY)
                if key in known:
                    continue
                known.add(key)
                row = {**values, "found_by": found_by}
                [row["id"]] = unit.conn.execute(
                    insert(correction).values(**row)
                ).inserted_primary_key  # type: ignore[misc]
                written.append(made(CorrectionRow, row))
                _move_run(unit, entry, found_by)
            unit.corrections += written
            unit.changed = unit.changed or bool(written)
            return written

    def list_corrections(
        self,
        run_id: int | None = None,
        after_id: int = 0,
        limit: int = 500,
        *,
        kind: str | None = None,
        before_id: int | None = None,
    ) -> list[CorrectionRow]:
        """Return corrections, oldest first.

        ``run_id`` and ``kind`` limit them to one run and one kind.

        If ``before_id`` is given, return the corrections before this id, newest first.
        """
        key = correction.c.id
        given = wanted((correction.c.run_id, run_id), (correction.c.kind, kind))
        query = select(correction).where(
            key > after_id, *given, *seen(correction, leads=run_id is None)
        )
        if before_id is not None:
            query = query.where(key < before_id)
        # MySQL may choose an index of the project that is not ordered by id, and then sort.
        other = ["summary_of_project"] + (["project_kind_id"] if kind is None else [])
        hint = f"IGNORE INDEX ({', '.join(f'ix_correction_{name}' for name in other)})"
        query = query.with_hint(correction, hint, "mysql")
        rows = self._rows(query.order_by(key if before_id is None else key.desc()).limit(limit))
        return [made(CorrectionRow, row) for row in rows]

    def correction_summary(self, since: datetime) -> CorrectionSummary:
        """Return the number of corrections of each kind in all runs since ``since``, and the
        longest time for which a status was wrong.
        """
        c = correction.c
        # With the plain column, SQLite would read the whole index of the kind instead of the part
        # since ``since``.
        kind = func.coalesce(c.kind, literal_column("''"))
        query = select(kind, func.count(), func.max(c.lag_ms)).where(
            c.created_at >= since, *seen(correction, leads=True)
        )
        with self._db.reading() as conn:
            rows = conn.execute(query.group_by(kind)).all()
        return CorrectionSummary(
            since, sorted((CorrectionTotal(*row) for row in rows), key=lambda total: total.kind)
        )


def _check(one: Correction, found_by: str) -> None:
    if found_by not in SOURCES:
        raise InvalidRequest(
            f"found_by: {found_by!r} is not allowed; give one of {', '.join(SOURCES)}"
        )
    if one.kind not in set(CorrectionKind):
        raise InvalidRequest(
            f"kind: {one.kind!r} is not allowed; give one of {', '.join(CorrectionKind)}"
        )
    for name in ("believed", "truth"):
        word = str(getattr(one, name))
        if not 0 < len(word) <= WORD_MAX:
            raise InvalidRequest(
                f"{name}: {word[:60]!r} is not allowed; give a word of 1 to {WORD_MAX} characters"
            )


def _tasks(unit: Unit, corrections: Sequence[Correction]) -> Mapping[int, Row]:
    """Return the tasks of the corrections, by id.

    Raises ``InvalidRequest`` for a task of another run.
    """
    t = task_history.c
    named = sorted(
        {correction.task_id for correction in corrections if correction.task_id is not None}
    )
    query = select(t.task_id, t.attempt, t.status, t.status_since).where(t.run_id == unit.run_id)
    found = {row["task_id"]: row for row in rows_in(unit.conn, query, t.task_id, named)}
    missing = [task_id for task_id in named if task_id not in found]
    if missing:
        raise InvalidRequest(
            f"task_id: {missing[0]} is not a task of run {unit.run_id}; see the list of its tasks"
        )
    return found


_KEY = ("task_id", "attempt", "kind", "believed", "truth")


def _known(unit: Unit, corrections: Sequence[Correction]) -> set[tuple[object, ...]]:
    c = correction.c
    kinds = sorted({str(correction.kind) for correction in corrections})
    rows = unit.conn.execute(
        select(*(c[name] for name in _KEY)).where(c.run_id == unit.run_id, c.kind.in_(kinds))
    )
    return {tuple(row) for row in rows}


def _values(unit: Unit, one: Correction, tasks: Mapping[int, Row]) -> dict[str, Any]:
    task = None if one.task_id is None else tasks[one.task_id]
    attempt = one.attempt or (unit.attempt if task is None else task["attempt"])
    if not 0 < attempt <= (unit.attempt if task is None else max(unit.attempt, task["attempt"])):
        raise InvalidRequest(
            f"attempt: {attempt} is not allowed; run {unit.run_id} has had the attempts 1 to "
            f"{unit.attempt}"
        )
    believed_since = one.believed_since or _on_record_since(unit, one, attempt, task)
    return {
        "run_id": unit.run_id,
        "project": unit.run["project"],
        "task_id": one.task_id,
        "attempt": attempt,
        "kind": str(one.kind),
        "believed": storable(str(one.believed)),
        "believed_since": believed_since,
        "truth": storable(str(one.truth)),
        "truth_since": one.truth_since,
        "lag_ms": untrue_ms(unit.dated, untrue_since(believed_since, one.truth_since)),
        "evidence": compact(dict(one.evidence)),
        "created_at": unit.dated,
    }


def _on_record_since(
    unit: Unit, one: Correction, attempt: int, task: Row | None
) -> datetime | None:
    """Return the time when the believed status was recorded; ``None`` if it was never recorded for
    this task or run.
    """
    if task is not None and task["status"] == one.believed:
        return task["status_since"]  # type: ignore[no-any-return]
    s = status_transition.c
    query = (
        select(s.committed_at)
        .where(s.run_id == unit.run_id, s.attempt == attempt, s.to_status == str(one.believed))
        .where(s.task_id.is_(None) if one.task_id is None else s.task_id == one.task_id)
        .order_by(s.seq.desc())
        .limit(1)
    )
    return unit.conn.execute(query).scalar_one_or_none()


def _move_run(unit: Unit, one: Correction, found_by: str) -> None:
    """Set a live run to the true status if the correction is about its current status and the true
    status is live.
    """
    of_the_run = one.task_id is None and one.attempt in (None, unit.attempt)
    if of_the_run and one.believed == unit.status and one.truth in LIVE_RUNS:
        unit.move_run(RunStatus(one.truth), found_by, dict(one.evidence), one.truth_since)
