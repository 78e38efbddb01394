"""Troubles of runs that no status tells: each is an event, once."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import select

from crawler_lifecycle.domain.audits.audit import LiveRun
from crawler_lifecycle.domain.names import EVENT_RUN_BLOCKED, EVENT_RUN_STALE, request_of_workflow
from crawler_lifecycle.store.base.outbox import outbox_event
from crawler_lifecycle.store.runs.tables import LIVE_RUNS, run_history
from crawler_lifecycle.store.runs.unit import RunPart, Unit


class TroubleStore(RunPart):
    """Troubles of runs that no status tells: each is told once, by the event ``run.stale`` or ``run.blocked``."""

    def note_stale(self, run: LiveRun) -> bool:
        """Tell that the look which was due at ``run.due_at`` is overdue; whether it is, and was not told before."""
        if run.due_at is None or not run.planned:
            return False
        with self._unit(run.run_id) as unit:
            still = not unit.status.terminal and unit.run["next_look_at"] == run.due_at and run.ref == unit.ref
            if not still:
                return False
            seen = unit.run["verified_at"]
            more = {"look_error": unit.run["look_error"], "verified_at": None if seen is None else seen.isoformat()}
            return _tell(unit, EVENT_RUN_STALE, {"due_at": run.due_at.isoformat()}, more)

    def note_blocked(self, workflow_id: str, run_id: int | None, why: str, since: datetime) -> bool:
        """Tell that the workflow of a live run cannot go on; whether that is one, and was not told before.

        Without ``run_id`` it is the run that the workflow's id names.
        """
        if run_id is None:
            # Whoever started it chose its id; one that has not claimed its run yet is known by ours alone.
            request_id, r = request_of_workflow(workflow_id), run_history.c
            mine = [(r.status.in_(LIVE_RUNS), r.owner_workflow_id == workflow_id), (r.request_id == request_id,)]
            found = [row["run_id"] for where in mine for row in self._rows(select(r.run_id).where(*where).limit(1))]
            if not found:
                return False
            run_id = int(found[0])
        with self._unit(run_id) as unit:
            if unit.status.terminal or unit.run["owner_workflow_id"] not in (None, workflow_id):
                return False
            return _tell(unit, EVENT_RUN_BLOCKED, {"since": since.isoformat()}, {"why": why})


def _tell(unit: Unit, type: str, once: Mapping[str, object], more: Mapping[str, object]) -> bool:
    """Append the event unless the newest of its type says the same; whether that was done."""
    e = outbox_event.c
    newest = select(e.attempt, e.body).where(e.run_id == unit.run_id, e.type == type).order_by(e.seq.desc()).limit(1)
    before = unit.conn.execute(newest).one_or_none()
    if before is not None and before.attempt == unit.attempt and once.items() <= before.body.items():
        return False
    names = ("attempt", "crawler", "trigger", "flow_id", "status", "stage")
    unit.append_event(type, None, {**{name: unit.run[name] for name in names}, **once, **more})
    return True
