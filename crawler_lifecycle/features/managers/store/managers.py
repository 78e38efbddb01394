"""Writes managers: their rows from the reservation to the end, and commands from people."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select

from crawler_lifecycle.domain.errors import DuplicateRequest, InvalidRequest, NotInThisState
from crawler_lifecycle.domain.names import EVENT_MANAGER_CHANGED, EVENT_MANAGER_ENDED
from crawler_lifecycle.domain.projects import chosen
from crawler_lifecycle.domain.run import RunStatus, StopIntent
from crawler_lifecycle.ports.runs import Owner
from crawler_lifecycle.store.base.bulk import rows_in
from crawler_lifecycle.store.base.rows import check_free
from crawler_lifecycle.store.base.unit import NO_STOP, read_row
from crawler_lifecycle.store.runs.lists import live_runs
from crawler_lifecycle.store.runs.tables import LIVE_RUNS, run_history

from ..domain.manager import CAP_MAX, JobState
from ..ports import ManagerFence, ManagerRow, NewManager
from .decisions import ManagerDecisions, hooks_failed
from .items import ManagerItems, set_items
from .jobs import ManagerJobs
from .queries import BY_STATE, in_states
from .reads import ManagerReads
from .rows import job_key, manager_hash, manager_row
from .tables import MANAGER_COUNTERS, manager, manager_item
from .unit import ManagerUnit

_IS_OPEN = manager.c.status.in_(LIVE_RUNS)
_NO_STOP: Mapping[str, Any] = {**NO_STOP, "leave_runs": False}


class ManagerStore(ManagerDecisions, ManagerItems, ManagerReads, ManagerJobs):
    """Managers and their jobs: the queries for people, and the writes by workflows and workers.

    A method with a fence raises ``Fenced`` and writes nothing if the attempt, owner or generation
    differs.
    """

    def reserve_manager(self, new: NewManager) -> tuple[ManagerRow, bool]:
        """Insert the manager, or find the manager with this name and flow id.

        Returns the row and whether the manager is new.

        An ended manager gets the new class and options for its next attempt. Raises
        ``TooManyOpen``. Raises ``DuplicateRequest`` when the class or the options differ and the
        manager is live or may not be resumed (``fresh``).
        """

        def reserve(conn: Connection) -> tuple[ManagerRow, bool]:
            return self._found(conn, new) or (self._insert(conn, new), True)

        return self._db.inserting(f"manager {new.name!r} of {new.flow_id!r}", reserve)

    def _found(self, conn: Connection, new: NewManager) -> tuple[ManagerRow, bool] | None:
        m = manager.c
        # The first read takes no lock. On MySQL, a locking read of a missing key blocks inserts of
        # neighbouring keys.
        query = select(m.manager_id, m.project).where(m.name == new.name, m.flow_id == new.flow_id)
        found = conn.execute(query).one_or_none()
        if found is None:
            return None
        check_free(found.project, new.project, f"{new.flow_id!r} of manager {new.name!r}")
        manager_id = found.manager_id
        unit = ManagerUnit(conn, read_row(conn, manager, manager_id, lock="write"), self._clock())
        same = unit.row["request_hash"] == manager_hash(new)
        if not same and (new.fresh or not unit.status.terminal):
            raise DuplicateRequest(
                f"flow_id {new.flow_id!r} belongs to manager {manager_id} ({new.name}), which has "
                "another class or "
                "other options; stop it first, or use another flow_id"
            )
        if unit.status.terminal and not new.fresh:
            self._check_most(conn, manager, _IS_OPEN, unit.row["project"])
            # After a repeated start people may send more items.
            unit.set(**_asked(new), sealed=False)
            unit.write()
        return manager_row(unit.row), False

    def _insert(self, conn: Connection, new: NewManager) -> ManagerRow:
        self._check_most(conn, manager, _IS_OPEN, chosen(new.project))
        row = {**_new_row(new, self._clock()), "manager_uid": self.new_uid()}
        [manager_id] = conn.execute(insert(manager).values(**row)).inserted_primary_key  # type: ignore[misc]
        there = read_row(conn, manager, manager_id, lock="write")
        unit = ManagerUnit(conn, there, row["created_at"])
        unit.announce(EVENT_MANAGER_CHANGED)
        return manager_row(unit.row)

    def claim_manager(self, manager_id: int, owner: Owner) -> ManagerRow:
        """Make ``owner`` the owner of the manager. A second call changes nothing.

        If the manager had a different owner, its next attempt begins. After its end, this is a
        resume. A live manager is taken over only by an owner with the same workflow id, because its
        previous owner is then closed. A recorded stop is kept. Raises ``RunIsLive`` for another
        workflow id, ``Fenced`` for a previous owner whose manager was taken over, and
        ``RunNotFound``.
        """
        with self._unit(manager_id) as unit:
            ended = unit.status.terminal
            if unit.take(owner, over=ended):
                unit.set(is_over=False, error=None, tries=0)
                if ended:
                    again = dict.fromkeys(
                        (
                            "outcome",
                            "cause",
                            "started_at",
                            "ended_at",
                            "close_reason",
                            "waiting_for",
                        )
                    )
                    unit.set(
                        status=RunStatus.INITIALIZING.value,
                        paused=False,
                        hook_errors=0,
                        **again,
                        **_NO_STOP,
                    )
                    self._count_anew(unit)
            return manager_row(unit.row)

    def new_generation(
        self, fence: ManagerFence, fingerprint: str, read_from: int | None
    ) -> ManagerRow:
        """Increase the generation for a new process that runs the class, and record the fingerprint
        of the class. ``read_from`` is the position after which the source is read again, or
        ``None`` if the source is not read again. If new code reads the source from its beginning,
        items that were not started are deleted. ``fence.generation`` is not compared. Raises
        ``NotInThisState`` after the end.
        """
        with self._unit(
            fence.manager_id, ManagerFence(fence.manager_id, fence.attempt, fence.owner_run_id)
        ) as unit:
            _check_live(unit)
            changed = unit.row["fingerprint"] != fingerprint
            unit.set(generation=unit.row["generation"] + 1, fingerprint=fingerprint)
            if read_from == 0 and changed:
                self._drop_unstarted(unit)
            if read_from is not None:
                unit.set(
                    position=min(read_from, unit.row["position"]),
                    exhausted=False,
                    source_error=None,
                )
            unit.set(started_at=unit.row["started_at"] or unit.now)
            unit.move(RunStatus.PROCESSING)
            return manager_row(unit.row)

    def note_error(
        self, fence: ManagerFence, error: str | None, waiting_for: str | None = None
    ) -> None:
        """Record the error from the class, if any, and the reason why the manager is waiting."""
        with self._unit(fence.manager_id, fence) as unit:
            unit.set(error=error, waiting_for=waiting_for)

    def note_try(self, fence: ManagerFence, item_id: int | None = None) -> int:
        """Record a failed try of the hooks for this job or, if ``item_id`` is not given, a failed
        try of a cycle.

        Returns the number of successive failures.
        """
        with self._unit(fence.manager_id, fence) as unit:
            if item_id is not None:
                return hooks_failed(unit, [item_id])[item_id]
            unit.set(tries=unit.row["tries"] + 1)
            return int(unit.row["tries"])

    def steer_manager(
        self, manager_id: int, *, paused: bool | None = None, cap: int | None = None
    ) -> ManagerRow:
        """Pause or resume the manager, or set its cap. With 0, the cap of the class applies again.

        Raises ``RunNotFound``, ``InvalidRequest`` for an invalid cap, and ``NotInThisState`` after
        the end.
        """
        with self._unit(manager_id) as unit:
            _check_live(unit)
            if paused is not None:
                unit.set(paused=paused)
            if cap is not None:
                if not 0 <= cap <= CAP_MAX:
                    raise InvalidRequest(
                        f"cap: {cap} is not allowed; give a whole number from 0 (none) to {CAP_MAX}"
                    )
                unit.set(cap=cap or None)
            return manager_row(unit.row)

    def record_manager_stop(
        self, manager_id: int, intent: StopIntent, leave: bool = False
    ) -> ManagerRow:
        """Record a stop: the manager becomes STOPPING and starts no more jobs. After its end,
        nothing changes. If ``leave`` is true, its runs continue.
        """
        with self._unit(manager_id) as unit:
            if unit.status.terminal:
                return manager_row(unit.row)
            # The runs are stopped if at least one of several stops includes them.
            unit.set(leave_runs=leave if unit.stop is None else leave and unit.row["leave_runs"])
            unit.ask_to_stop(intent)
            unit.move(RunStatus.STOPPING)
            return manager_row(unit.row)

    def end_manager(
        self,
        fence: ManagerFence,
        status: RunStatus,
        outcome: str,
        cause: str,
        *,
        leave: bool = False,
    ) -> ManagerRow:
        """Record the terminal status with the event ``manager.ended``.

        A second call changes nothing.

        Picked jobs without a run wait again and keep their numbers. After the end, lists show a job
        as ended as soon as its run has ended, even if its hooks did not run. A resume runs these
        hooks. Raises ``NotInThisState`` while runs of the manager are live, unless ``leave`` or the
        stop allows them to continue.
        """
        if not status.terminal:
            raise InvalidRequest(f"status: {status} is not allowed; give COMPLETED or FAILED")
        with self._unit(fence.manager_id, fence) as unit:
            if unit.status.terminal:
                return manager_row(unit.row)
            left = leave or unit.row["leave_runs"]
            self._settle_starting(unit)
            if not left and (
                live := live_runs(unit.conn, unit.parent, f"manager/{unit.id}/%", limit=1)
            ):
                raise NotInThisState(
                    f"Manager {unit.manager_id} has runs that have not ended, such as {live[0]}"
                )
            unit.end(EVENT_MANAGER_ENDED, status=status.value, outcome=outcome, cause=cause)
            return manager_row(unit.row)

    @staticmethod
    def _count_anew(unit: ManagerUnit) -> None:
        """Recount the jobs of the manager if jobs were pruned. Pruning itself does not change the
        counters.
        """
        i = manager_item.c
        if unit.row["jobs_pruned_at"] is None:
            return
        query = (
            select(i.state, func.count()).where(i.manager_id == unit.manager_id).group_by(i.state)
        )
        rows = unit.conn.execute(query.with_hint(*BY_STATE))
        there: dict[str, int] = dict(rows.all())
        unit.set(**{f"jobs_{state}": there.get(state.value, 0) for state in JobState})

    @staticmethod
    def _drop_unstarted(unit: ManagerUnit) -> None:
        """Delete items from previous code that were not started.

        The source is read again and may yield them again.
        """
        i = manager_item.c
        for state in (JobState.BUFFERED, JobState.DELAYED):
            gone = delete(manager_item).where(i.manager_id == unit.manager_id, i.state == state)
            unit.count(**{f"jobs_{state}": -unit.conn.execute(gone).rowcount})

    @staticmethod
    def _settle_starting(unit: ManagerUnit) -> None:
        """Update the states of the picked jobs.

        A job whose run exists becomes STARTED. All other picked jobs wait again and keep their
        numbers.
        """
        r = run_history.c
        rows = in_states(unit.conn, unit.manager_id, [JobState.STARTING.value], 0, unit.live + 1)
        waits = {job_key(row): row["item_id"] for row in rows}
        there = rows_in(unit.conn, select(r.run_id, r.request_id), r.request_id, waits)
        for run in there:
            set_items(unit, [waits.pop(run["request_id"])], JobState.STARTED, run_id=run["run_id"])
        unit.moved(JobState.STARTING, JobState.STARTED, len(there))
        set_items(unit, list(waits.values()), JobState.QUEUED)
        unit.moved(JobState.STARTING, JobState.QUEUED, len(waits))


def _check_live(unit: ManagerUnit) -> None:
    if unit.status.terminal:
        raise NotInThisState(
            f"Manager {unit.manager_id} is {unit.status}; start it again with its flow id"
        )


def _asked(new: NewManager) -> dict[str, Any]:
    return {
        "plan": new.plan,
        "options": dict(new.options),
        "request_hash": manager_hash(new),
        "requested_by": new.requested_by,
        "parent": new.parent,
    }


def _new_row(new: NewManager, now: datetime) -> dict[str, Any]:
    return {
        **_asked(new),
        **_NO_STOP,
        **dict.fromkeys((f"jobs_{state}" for state in JobState), 0),
        **dict.fromkeys((*MANAGER_COUNTERS, "generation", "position", "tries", "hook_errors"), 0),
        **dict.fromkeys(("exhausted", "is_over", "sealed", "paused"), False),
        "name": new.name,
        "project": chosen(new.project),
        "flow_id": new.flow_id,
        "status": RunStatus.INITIALIZING.value,
        "attempt": 1,
        "former_owners": [],
        "next_seq": 1,
        "state": {},
        "stats": {},
        "tags": sorted(set(new.tags)),
        "flow_tags": [],
        "created_at": now,
        "updated_at": now,
    }
