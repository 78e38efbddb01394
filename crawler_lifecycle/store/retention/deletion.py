"""Deletion of what a run brought: the request on record, the texts that go, and the report. A stub of the run stays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Column, ColumnElement, FromClause, Update, and_, case, delete, select, update

from crawler_lifecycle.domain.errors import NotInThisState
from crawler_lifecycle.domain.graph.spec import GraphState, StepKind
from crawler_lifecycle.domain.managers.manager import JobState
from crawler_lifecycle.domain.names import graph_key_of
from crawler_lifecycle.domain.run import OUTCOMES
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports.runs import RunRow
from crawler_lifecycle.store.base.bulk import CHUNK, delete_rows
from crawler_lifecycle.store.base.rows import Row
from crawler_lifecycle.store.graphs.tables import graph, graph_result, graph_step
from crawler_lifecycle.store.managers.tables import manager, manager_item
from crawler_lifecycle.store.runs.moves import forget_staged
from crawler_lifecycle.store.runs.rows import run_row
from crawler_lifecycle.store.runs.tables import OVER_RUNS
from crawler_lifecycle.store.runs.unit import RunPart, Unit, check_run
from crawler_lifecycle.store.tables import metadata

from .file_retention import begin_removal

_WORDS: dict[str, Any] = dict.fromkeys(("cause", "reason", "resume_note", "error", "fields"))


def _known(outcome: Column[Any]) -> Any:
    """The outcome, where it is a word of ours: a crawler may report any other."""
    return case((outcome.in_(OUTCOMES), outcome), else_=None)


_T, _run = metadata.tables, metadata.tables["run_history"].c
_task, _event = _T["task_history"], _T["outbox_event"]
#: Large tables, in the order of their keys, and what of their rows goes: words of persons and of crawlers.
_PAGED: Mapping[Column[Any], Mapping[str, Any]] = {
    _task.c.task_id: _WORDS | {"outcome": _known(_task.c.outcome), "args": {}},
    _T["status_transition"].c.seq: {"evidence": {}},
    _T["correction"].c.id: {"evidence": {}},
    _event.c.seq: {"body": {"deleted": True}},
}
#: The same of small ones; ``None``: the whole row. Exports keep their status: nothing is undelivered of the run.
_SMALL: Mapping[str, Mapping[str, Any] | None] = {
    "cancellation_log": {"reason": None},
    "export_record": {"url": None, "error": None},
    "manager_item": {"params": None, "error": None, "outcome": _known(manager_item.c.outcome)},
    "run_tag": None,
    "audit_finding": None,
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
            begin_removal(unit)
            unit.changed = True
            return run_row(unit.run), True

    def open_deletions(self, older_than: datetime, limit: int = 100) -> list[RunRow]:
        """Runs whose deletion was asked for before then and has not come to its end."""
        query = select(_T["run_history"]).where(_run.deletion_ended_at.is_(None), _run.deleted_at < older_than)
        return [run_row(row) for row in self._rows(query.order_by(_run.deleted_at).limit(limit))]

    def delete_texts(self, run: RunRef, alive: Callable[[], None]) -> dict[str, int]:
        """Take words of persons and crawlers out of all rows about the run; how many rows those are, by table.

        Many transactions; again: the same. ``alive`` is called between two of them, and may raise.
        """
        gone = {key.table.name: self._delete_pages(run, key, alive) for key in _PAGED}
        with self._unit(run.run_id, of_deleted=True) as unit:
            check_run(unit.run, run)
            forget_staged(unit)
            for name, words in _SMALL.items():
                mine = _T[name].c.run_id == run.run_id
                unit.conn.execute(delete(_T[name]).where(mine) if words is None else _taken(_T[name], mine, words))
            _delete_of_graph(unit)
            unit.update_run(
                request={**unit.run["request"], "args": {}, "settings": {}, "tags": []},
                outcome=unit.run["outcome"] if unit.run["outcome"] in OUTCOMES else None,
                **dict.fromkeys(("cause", "waiting_for", "look_error", "look_error_since", "stop_reason", "fields")),
            )
        return gone

    def _delete_pages(self, run: RunRef, key: Column[Any], alive: Callable[[], None]) -> int:
        table, after, count = key.table, 0, 0
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
            unit.changed = ended and unit.run["deletion_ended_at"] is None
            unit.update_run(deletion=new, **({"deletion_ended_at": unit.now} if unit.changed else {}))


def _theirs(run: Row) -> dict[str, str]:
    """Places where others keep words that the run was begun with: a person told these to them, and not the run."""
    begun_by = (run["parent"], run["schedule"] and f"schedule {run['schedule']}")
    return {who: "it keeps what it was told to run, with its arguments" for who in begun_by if who}


def _check_taken_in(unit: Unit) -> None:
    """Raise ``NotInThisState`` while a manager or a graph has not taken in the end of the run: it may go on with it."""
    i, m, g, run_id = manager_item.c, manager.c, graph.c, unit.run_id
    waits = select(i.manager_id).join_from(manager_item, manager, m.manager_id == i.manager_id)
    waits = waits.where(i.run_id == run_id, i.state != JobState.ENDED.value, m.status.not_in(OVER_RUNS)).limit(1)
    if (manager_id := unit.conn.execute(waits).scalar_one_or_none()) is not None:
        why = f"manager {manager_id} has not handled the end of run {run_id} yet"
        raise NotInThisState(f"{why}; ask again in a moment, or stop it (crawlctl manager stop {manager_id})")
    key = graph_key_of(unit.run["parent"] or "")
    open_one = select(g.graph_id).where(g.graph_key == key, g.state == GraphState.EXECUTING.value)
    if key and unit.conn.execute(open_one).scalar_one_or_none() is not None:
        why = f"graph {key} goes on, and takes what run {run_id} brought"
        raise NotInThisState(f"{why}; wait for its end, or stop it (crawlctl graph stop {key})")


def _taken(table: FromClause, which: ColumnElement[bool], words: Mapping[str, Any]) -> Update:
    return update(table).where(which).values(**words)  # type: ignore[arg-type]


def _delete_of_graph(unit: Unit) -> None:
    """Take the end of the run out of its graph, which makes a new run where the step is retried."""
    if (key := graph_key_of(unit.run["parent"] or "")) is None:
        return
    conn, s, text = unit.conn, graph_step.c, f"run {unit.run_id} was deleted"
    mine = select(s.graph_id, s.number).join_from(graph_step, graph, graph.c.graph_id == s.graph_id)
    mine = mine.where(graph.c.graph_key == key, s.run_id == unit.run_id, s.kind == StepKind.CRAWL.value)
    for graph_id, number in conn.execute(mine).all():
        delete_rows(conn, graph_result.c.number, "PRIMARY", [number], of={"graph_id": graph_id})
        this = and_(s.graph_id == graph_id, s.number == number)
        ended = {"outcome": _known(s.outcome), "reason": text, "errors": None, "result_bytes": None}
        conn.execute(_taken(graph_step, this, {**ended, "run_id": None, "run_attempt": 0}))
