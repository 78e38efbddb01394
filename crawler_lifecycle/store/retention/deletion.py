"""Deletion of the data of a run: the recorded request, the removal of strings, and the report.

The row of the run and the rows of its tasks are kept, but strings from people and crawlers are
removed from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Column, ColumnElement, FromClause, Update, delete, select, update

from crawler_lifecycle.domain.errors import NotInThisState
from crawler_lifecycle.domain.run import OUTCOMES
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports.runs import RunRow
from crawler_lifecycle.store.base.bulk import CHUNK, delete_rows
from crawler_lifecycle.store.base.rows import Row
from crawler_lifecycle.store.runs.moves import forget_staged
from crawler_lifecycle.store.runs.rows import run_row
from crawler_lifecycle.store.runs.unit import RunPart, check_run
from crawler_lifecycle.store.tables import metadata

from .file_retention import begin_removal
from .parts import feature_retentions, known_outcome

_WORDS: dict[str, Any] = dict.fromkeys(("cause", "reason", "resume_note", "error", "fields"))


_FEATURES = feature_retentions()
_T = metadata.tables
_run = _T["run_history"].c
_task = _T["task_history"]
_event = _T["outbox_event"]
#: The keys of large tables, which are changed in pages, each with the new values of the columns
#: that contain strings from people and crawlers.
_PAGED: Mapping[Column[Any], Mapping[str, Any]] = {
    _task.c.task_id: _WORDS | {"outcome": known_outcome(_task.c.outcome), "args": {}},
    _T["status_transition"].c.seq: {"evidence": {}},
    _T["correction"].c.id: {"evidence": {}},
    _event.c.seq: {"body": {"deleted": True}},
}
#: The new values for small tables; ``None`` if the rows are deleted. Exports keep their status, so
#: that none is retried.
_SMALL: Mapping[str, Mapping[str, Any] | None] = {
    "cancellation_log": {"reason": None},
    "export_record": {"url": None, "error": None},
    "run_tag": None,
    "audit_finding": None,
}


class DeletionStore(RunPart):
    """The deletion of runs, with its progress."""

    def ask_deletion(self, run_id: int, requested_by: str | None) -> tuple[RunRow, bool]:
        """Record the request to delete the data of a run.

        Returns the run, and whether this call recorded the request.

        From then on, writes to the run raise ``RunDeleted``. Raises ``RunNotFound``. Raises
        ``NotInThisState`` while the run is executing, or while its manager or graph still needs its
        data.
        """
        with self._unit(run_id, of_deleted=True) as unit:
            if unit.run["deleted_at"] is not None:
                return run_row(unit.run), False
            if not unit.status.terminal:
                raise NotInThisState(
                    f"Run {run_id} is {unit.status}; stop it first (crawlctl stop {run_id}), and "
                    "wait for its end"
                )
            for feature in _FEATURES:
                feature.check_deletion(unit)
            report = {"requested_by": requested_by, "gone": {}, "left": _theirs(unit.run)}
            unit.update_run(deleted_at=unit.now, deletion=report)
            begin_removal(unit)
            unit.changed = True
            return run_row(unit.run), True

    def open_deletions(self, older_than: datetime) -> list[RunRow]:
        """Return runs whose deletion was requested before ``older_than`` and is unfinished."""
        query = select(_T["run_history"]).where(
            _run.deletion_ended_at.is_(None), _run.deleted_at < older_than
        )
        return [run_row(row) for row in self._rows(query.order_by(_run.deleted_at).limit(100))]

    def delete_texts(self, run: RunRef, alive: Callable[[], None]) -> dict[str, int]:
        """Remove strings from people and crawlers from all rows about the run.

        Returns the number of rows of each large table.

        This uses many transactions. ``alive`` is called between transactions, and can raise an
        error to end the work. A second call does the same work again.
        """
        gone = {key.table.name: self._delete_pages(run, key, alive) for key in _PAGED}
        with self._unit(run.run_id, of_deleted=True) as unit:
            check_run(unit.run, run)
            forget_staged(unit)
            for name, words in _SMALL.items():
                mine = _T[name].c.run_id == run.run_id
                unit.conn.execute(
                    delete(_T[name]).where(mine) if words is None else _taken(_T[name], mine, words)
                )
            for feature in _FEATURES:
                feature.delete_texts(unit)
            unit.update_run(
                request=unit.run["request"] | {"args": {}, "settings": {}, "tags": [], "sites": []},
                outcome=unit.run["outcome"] if unit.run["outcome"] in OUTCOMES else None,
                **dict.fromkeys(
                    (
                        "cause",
                        "waiting_for",
                        "look_error",
                        "look_error_since",
                        "stop_reason",
                        "fields",
                    )
                ),
            )
        return gone

    def _delete_pages(self, run: RunRef, key: Column[Any], alive: Callable[[], None]) -> int:
        table = key.table
        after = 0
        count = 0
        page = select(key).where(table.c.run_id == run.run_id).order_by(key).limit(CHUNK)
        while True:
            with self._unit(run.run_id, of_deleted=True) as unit:
                check_run(unit.run, run)
                keys = list(unit.conn.execute(page.where(key > after)).scalars())
                if not keys:
                    return count
                unit.conn.execute(_taken(table, key.in_(keys), _PAGED[key]))
                if table is _task:
                    for name in ("task_log", "task_stats"):
                        delete_rows(unit.conn, _T[name].c.task_id, "PRIMARY", keys)
                if table is _event:
                    sent = _T["outbox_delivery"]
                    unit.conn.execute(_taken(sent, sent.c.seq.in_(keys), {"error": None}))
            after, count = keys[-1], count + len(keys)
            alive()

    def forget_former(self) -> None:
        """Remove former contents of all rows from the files of a SQLite database.

        Raises ``StoreUnavailable``.
        """
        self._db.empty_log()

    def note_deletion(
        self,
        run: RunRef,
        gone: Mapping[str, int | None],
        left: Mapping[str, str | None],
        *,
        ended: bool = False,
    ) -> None:
        """Update the report of the deletion.

        ``gone`` maps each location to the number of removed objects (``None`` for all). ``left``
        maps a location to the reason why data remains there (``None`` if no data remains).
        ``ended`` is true if the deletion has ended.
        """
        with self._unit(run.run_id, of_deleted=True) as unit:
            check_run(unit.run, run)
            report = unit.run["deletion"]
            most = {
                where: max(n or 0, report["gone"].get(where) or 0) or n for where, n in gone.items()
            }
            rest = {
                where: why for where, why in {**report["left"], **left}.items() if why is not None
            }
            new = {**report, "gone": {**report["gone"], **most}, "left": rest}
            unit.changed = ended and unit.run["deletion_ended_at"] is None
            unit.update_run(
                deletion=new, **({"deletion_ended_at": unit.now} if unit.changed else {})
            )


def _theirs(run: Row) -> dict[str, str]:
    """Return the owners that keep the arguments of the run (its manager or graph, and its
    schedule), with the reason.

    The arguments belong to these owners and not to the run, so the deletion of the run does not
    remove them.
    """
    begun_by = (run["parent"], run["schedule"] and f"schedule {run['schedule']}")
    return {
        who: "it keeps the definition of the run, with its arguments" for who in begun_by if who
    }


def _taken(table: FromClause, which: ColumnElement[bool], words: Mapping[str, Any]) -> Update:
    return update(table).where(which).values(**words)  # type: ignore[arg-type]
