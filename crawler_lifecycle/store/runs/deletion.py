"""Deletion of what a run brought: the request on record, the texts that go, and the report. A stub of the run stays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Column, case, delete, insert, select, update

from crawler_lifecycle.domain.errors import NotInThisState
from crawler_lifecycle.domain.graph.spec import GraphState, StepKind
from crawler_lifecycle.domain.managers.manager import JobState
from crawler_lifecycle.domain.names import PROPERTY_FILES_REMOVED, graph_key_of
from crawler_lifecycle.domain.run import OUTCOMES, RunStatus
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports.runs import RunRow
from crawler_lifecycle.store.audits.tables import audit_finding
from crawler_lifecycle.store.base.bulk import CHUNK, delete_rows
from crawler_lifecycle.store.base.outbox import outbox_delivery, outbox_event
from crawler_lifecycle.store.base.rows import Row
from crawler_lifecycle.store.graphs.tables import graph, graph_result, graph_step
from crawler_lifecycle.store.managers.tables import manager, manager_item

from .moves import forget_staged
from .rows import run_row
from .tables import (
    cancellation_log,
    correction,
    export_record,
    history_property,
    run_history,
    run_tag,
    status_transition,
    task_history,
    task_log,
    task_stats,
)
from .unit import RunPart, Unit, check_run

_OVER = [status.value for status in RunStatus if status.terminal]
#: Fields of a stored request that hold no words of a person; they decide whether a repeat is one.
_ASKED = ("args", "settings", "tags")


def _known(outcome: Column[Any]) -> Any:
    """The outcome, where it is a word of ours: a crawler may report any other."""
    return case((outcome.in_(OUTCOMES), outcome), else_=None)


#: What of a table's rows goes, by the key in whose order they are gone through.
_TEXTS: Mapping[Column[Any], Mapping[str, Any]] = {
    task_history.c.task_id: {
        **dict.fromkeys(("cause", "reason", "resume_note")),
        "outcome": _known(task_history.c.outcome),
        "args": {},
    },
    status_transition.c.seq: {"evidence": {}},
    correction.c.id: {"evidence": {}},
    outbox_event.c.seq: {},
}


class DeletionStore(RunPart):
    """Runs that are deleted, and how far that is."""

    def ask_deletion(self, run_id: int, requested_by: str | None) -> tuple[RunRow, bool]:
        """Put on record that what the run brought goes; the run, and whether this call did it.

        From now on nothing of it is read or written any more. Raises ``RunNotFound``, and ``NotInThisState`` for one
        that executes, or whose end its manager or its graph has still to take in.
        """
        with self._unit(run_id, of_deleted=True) as unit:
            if unit.run["deleted_at"] is not None:
                return run_row(unit.run), False
            if not unit.status.terminal:
                what = f"Run {run_id} is {unit.status}; stop it first (crawlctl stop {run_id}), and wait for its end"
                raise NotInThisState(what)
            _check_taken_in(unit)
            report = {"requested_by": requested_by, "gone": {}, "left": _theirs(unit.run)}
            unit.update_run(deleted_at=unit.now, deletion=report)
            p = history_property.c
            key = {"run_id": run_id, "attempt": unit.attempt, "name": PROPERTY_FILES_REMOVED}
            there = select(p.id).where(p.run_id == run_id, p.attempt == unit.attempt, p.name == PROPERTY_FILES_REMOVED)
            if unit.conn.execute(there).one_or_none() is None:  # as in file_retention.py, which can carry it on
                unit.conn.execute(insert(history_property).values(**key, value=f"begun {unit.now.isoformat()}"))
            unit.changed = True
            return run_row(unit.run), True

    def open_deletions(self, older_than: datetime, limit: int = 100) -> list[RunRow]:
        """Runs whose deletion was asked for before then and has not come to its end."""
        r = run_history.c
        query = select(run_history).where(r.deletion_ended_at.is_(None), r.deleted_at < older_than)
        return [run_row(row) for row in self._rows(query.order_by(r.deleted_at).limit(limit))]

    def delete_texts(self, run: RunRef, alive: Callable[[], None]) -> dict[str, int]:
        """Take words of persons and crawlers out of all rows about the run; how many rows those are, by table.

        Many transactions; again: the same. ``alive`` is called between two of them, and may raise.
        """
        gone = {key.table.name: self._delete_pages(run, key, alive) for key in _TEXTS}
        with self._unit(run.run_id, of_deleted=True) as unit:
            check_run(unit.run, run)
            _delete_beside(unit)
            _delete_of_parents(unit)
            stored = {**unit.run["request"], **{name: [] if name == "tags" else {} for name in _ASKED}}
            unit.update_run(
                request=stored,
                outcome=unit.run["outcome"] if unit.run["outcome"] in OUTCOMES else None,
                **dict.fromkeys(("cause", "waiting_for", "look_error", "look_error_since", "stop_reason")),
            )
        return gone

    def _delete_pages(self, run: RunRef, key: Column[Any], alive: Callable[[], None]) -> int:
        table, after, count = key.table, 0, 0
        while True:
            with self._unit(run.run_id, of_deleted=True) as unit:
                check_run(unit.run, run)
                page = select(key).where(table.c.run_id == run.run_id, key > after).order_by(key).limit(CHUNK)
                keys = list(unit.conn.execute(page).scalars())
                if not keys:
                    return count
                values = _TEXTS[key] or {"body": {"run_id": run.run_id, "run_uid": run.uid, "deleted": True}}
                unit.conn.execute(update(table).where(key.in_(keys)).values(**values))
                if table is task_history:
                    for log in (task_log, task_stats):
                        delete_rows(unit.conn, log.c.task_id, "PRIMARY", keys)
                if table is outbox_event:
                    of_page = outbox_delivery.c.seq.in_(keys)
                    unit.conn.execute(update(outbox_delivery).where(of_page).values(error=None))
            after, count = keys[-1], count + len(keys)
            alive()

    def note_deletion(
        self, run: RunRef, gone: Mapping[str, int | None], left: Mapping[str, str | None], *, ended: bool = False
    ) -> None:
        """Add to the report what is gone and how many (``None``: all there was), and what is left and why (``None``:
        no longer)."""
        with self._unit(run.run_id, of_deleted=True) as unit:
            check_run(unit.run, run)
            told = unit.run["deletion"]
            most = {where: max(n or 0, told["gone"].get(where) or 0) or n for where, n in gone.items()}
            rest = {where: why for where, why in {**told["left"], **left}.items() if why is not None}
            new = {**told, "gone": {**told["gone"], **most}, "left": rest}
            unit.update_run(deletion=new, **({"deletion_ended_at": unit.now} if ended else {}))


def _theirs(run: Row) -> dict[str, str]:
    """Places where others keep words that the run was begun with: a person told these to them, and not the run."""
    begun_by = (run["parent"], run["schedule"] and f"schedule {run['schedule']}")
    return {who: "it keeps what it was told to run, with its arguments" for who in begun_by if who}


def _check_taken_in(unit: Unit) -> None:
    """Raise ``NotInThisState`` while a manager or a graph has not taken in the end of the run: it may go on with it."""
    i, m, g, run_id = manager_item.c, manager.c, graph.c, unit.run_id
    waits = select(i.manager_id).join_from(manager_item, manager, m.manager_id == i.manager_id)
    waits = waits.where(i.run_id == run_id, i.state != JobState.ENDED.value, m.status.not_in(_OVER)).limit(1)
    if (manager_id := unit.conn.execute(waits).scalar_one_or_none()) is not None:
        why = f"manager {manager_id} has not handled the end of run {run_id} yet"
        raise NotInThisState(f"{why}; ask again in a moment, or stop it (crawlctl manager stop {manager_id})")
    key = graph_key_of(unit.run["parent"] or "")
    open_one = select(g.graph_id).where(g.graph_key == key, g.state == GraphState.EXECUTING.value)
    if key and (graph_id := unit.conn.execute(open_one).scalar_one_or_none()) is not None:
        why = f"graph {graph_id} goes on, and takes what run {run_id} brought"
        raise NotInThisState(f"{why}; wait for its end, or stop it (crawlctl graph stop {graph_id})")


def _delete_beside(unit: Unit) -> None:
    """The same of what is small, and of what looks and audits wrote."""
    conn, run_id, x, a = unit.conn, unit.run_id, export_record.c, audit_finding.c
    forget_staged(unit)
    conn.execute(update(cancellation_log).where(cancellation_log.c.run_id == run_id).values(reason=None))
    # Its status stays: nothing is undelivered of it.
    conn.execute(update(export_record).where(x.run_id == run_id).values(url=None, error=None))
    conn.execute(delete(run_tag).where(run_tag.c.run_id == run_id))
    conn.execute(delete(audit_finding).where(a.run_id == run_id))


def _delete_of_parents(unit: Unit) -> None:
    """The copy of its arguments in its manager, and of its end in its graph, which makes a new run where its step is
    retried. What both were told to do is theirs."""
    conn, run_id, i, s, g = unit.conn, unit.run_id, manager_item.c, graph_step.c, graph.c
    words = {"params": None, "error": None, "outcome": _known(i.outcome)}
    conn.execute(update(manager_item).where(i.run_id == run_id).values(**words))
    if (key := graph_key_of(unit.run["parent"] or "")) is None:
        return
    of_graph = select(s.graph_id, s.number).join_from(graph_step, graph, g.graph_id == s.graph_id)
    of_graph = of_graph.where(g.graph_key == key, s.run_id == run_id, s.kind == StepKind.CRAWL.value)
    for graph_id, number in conn.execute(of_graph).all():
        delete_rows(conn, graph_result.c.number, "PRIMARY", [number], of={"graph_id": graph_id})
        this = (s.graph_id == graph_id, s.number == number)
        forgotten = dict.fromkeys(("run_id", "errors", "result_bytes")) | {"run_attempt": 0}
        text = f"run {run_id} was deleted"
        conn.execute(update(graph_step).where(*this).values(**forgotten, outcome=_known(s.outcome), reason=text))
