"""Looks: findings are staged first and applied later. Counters are written at once."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, func, insert, select

from crawler_lifecycle import redaction
from crawler_lifecycle.domain.audits.corrections import CorrectionKind
from crawler_lifecycle.domain.clocks import not_ahead
from crawler_lifecycle.domain.errors import Overtaken
from crawler_lifecycle.domain.last_words import error_of, short
from crawler_lifecycle.domain.stall import Reading, quiet_time
from crawler_lifecycle.domain.task import ALIVE, Counters, Observation, Phase, TaskStatus, tail
from crawler_lifecycle.ports.looks import Details, FoundState, Look, LookReport, TaskFinding
from crawler_lifecycle.ports.runs import Fence, TaskCounts
from crawler_lifecycle.store.base.bulk import CHUNK, chunks, delete_rows, insert_rows, rows_in
from crawler_lifecycle.store.base.rows import Row, made
from crawler_lifecycle.store.base.unit import stop_of
from crawler_lifecycle.store.columns import compressed, storable

from .live_counters import COUNTERS, count_sums, grown, moved
from .moves import Move, apply_staged, forget_staged, stage_moves, update_tasks
from .rows import counters_of, dump_details, dump_finding, evidence, load_details, load_finding, task_state
from .tables import task_history, task_log, task_observation, task_stats
from .unit import RunPart, Unit, check_fence, checked_counts, current_tasks, read_run

log = logging.getLogger(__name__)

_MS = timedelta(milliseconds=1)
_SEEN = (Phase.WAITING, Phase.EXECUTING, Phase.ENDED)
#: The columns of a staged row with data from a look.
_PARTS = ("finding", "details")
#: Columns of a task that a look may change while its status stays the same.
_OBSERVED = ("cluster_name", "cluster_uid", "node", "reason", "started_at", "ever_seen", "absent_since", "missed_at")
_OBSERVED_ALL = (*_OBSERVED, "last_progress_at", *COUNTERS, "peak_memory", "fields", "resumed", "resume_note")


class LookStore(RunPart):
    """The records of looks: their findings are staged, and then applied in one transaction."""

    def found_state(self, fence: Fence) -> FoundState:
        """Return the alive tasks of the run, and the other data with which a look is compared."""
        with self._db.reading() as conn:
            run = read_run(conn, fence.run_id, owned=True)
            check_fence(run, fence)
            tasks = [task_state(row) for row in _unsettled(conn, fence.run_id)]
            return made(FoundState, run, tasks=tasks, stop=stop_of(run), counters=counters_of(run))

    def record_look(
        self,
        fence: Fence,
        look: Look,
        findings: Sequence[TaskFinding],
        next_look_at: datetime | None,
        source: str,
        ordered_at: datetime | None = None,
    ) -> LookReport:
        """Stage the findings, and write ``verified_at``, ``next_look_at``, counters and ``last_progress_at``.

        ``next_look_at`` is ``None`` for an additional look: the time of the planned look stays. ``ordered_at`` is the
        time when this try of the look was ordered; one clock gives all these times. The findings replace earlier staged
        findings about the same tasks. After the end of the run nothing is written.

        Raises ``Fenced``. Raises ``Overtaken`` when a later ordered look is recorded: the worker of this one was frozen
        meanwhile.
        """
        with self._unit(fence) as unit:
            if unit.status.terminal:
                return _report(unit)
            _check_order(unit, ordered_at)
            tasks = {(row["task_index"], row["attempt"]): row for row in _unsettled(unit.conn, unit.run_id)}
            seen = [(tasks[key], o) for o in look.observations if (key := (o.index, o.attempt)) in tasks]
            staged = {f.change.task_id: {"finding": dump_finding(f)} for f in findings}
            forgotten: dict[int, dict[str, Any]] = {task["task_id"]: {"finding": None} for task, _ in seen}
            _stage(unit, forgotten | staged)
            # The time when a look last saw each task in its recorded status: the last look that found the task.
            now = unit.dated if findings else unit.now
            looked = _last_look(unit.run, now)
            last = {task["task_id"]: not_ahead(task["absent_since"], now) or looked for task in tasks.values()}
            moves = [_move(finding, last.get(finding.change.task_id)) for finding in findings]
            stage_moves(unit, {*forgotten, *staged}, moves)
            news = [row for task, o in seen if (row := _observed(task, o, unit)) is not None]
            update_tasks(unit, news, replace=_OBSERVED_ALL)
            sums = count_sums(unit)
            progress = moved(unit.run, sums)
            counted = any(sums.values())
            active = [o for _, o in seen if o.phase is Phase.EXECUTING]
            quiet_each = [o.quiet for o in active]
            silent = None if None in quiet_each else min((one for one in quiet_each if one is not None), default=None)
            readable = any(o.counters != Counters() for o in active) if counted else silent is not None
            quiet = quiet_time(
                _quiet(unit.run),
                unit.run["verified_at"],
                unit.run["next_look_at"],
                unit.run["look_error"] is not None,
                Reading(look.observed_at, readable, progress or _moved_between(unit.run), counted, silent),
            )
            unit.update_run(
                **sums,
                verified_at=look.observed_at,
                look_ordered_at=ordered_at or unit.run["look_ordered_at"],
                next_look_at=next_look_at or unit.run["next_look_at"],
                look_error=None,
                look_error_since=None,
                last_progress_at=look.observed_at if progress else unit.run["last_progress_at"],
                quiet_ms=quiet // _MS or None,
            )
            return _report(unit)

    def record_look_error(self, fence: Fence, error: str, ordered_at: datetime | None = None) -> None:
        """Record the error of the last look, and the time since which looks fail. A successful look removes both.

        Writes nothing when a later ordered look is recorded, or after the end of the run.
        """
        with self._unit(fence) as unit:
            if not unit.status.terminal and not _is_overtaken(unit, ordered_at):
                unit.update_run(look_error=error, look_error_since=unit.run["look_error_since"] or unit.now)

    def staged(self, fence: Fence, after_index: int = -1, limit: int = CHUNK) -> list[TaskFinding]:
        """Return staged findings of tasks with an index above ``after_index``, by index."""
        o = task_observation.c
        with self._db.reading() as conn:
            check_fence(read_run(conn, fence.run_id, owned=True), fence)
            rows = conn.execute(
                select(o.task_id, o.finding)
                .where(o.run_id == fence.run_id, o.task_index > after_index, o.finding.is_not(None))
                .order_by(o.task_index)
                .limit(limit)
            ).mappings()
            return [load_finding(row) for row in rows]

    def save_details(self, fence: Fence, details: Sequence[Details]) -> None:
        """Stage debugging information about tasks until ``apply_details``.

        A staged log stays when the new information has none, because a node removes the log with the container.
        Information about ended tasks is ignored: it comes late, and the information from the end is newer.
        """
        t = task_history.c
        with self._unit(fence) as unit:
            parts = {one.task_id: {"details": dump_details(one)} for one in map(_short, details)}
            query = select(t.task_id).where(t.run_id == unit.run_id, t.status.in_(ALIVE))
            alive = [row["task_id"] for row in rows_in(unit.conn, query, t.task_id, parts)]
            _stage(unit, {task_id: parts[task_id] for task_id in alive})

    def apply_details(self, fence: Fence) -> int:
        """Write staged findings and details into ``task_history``, ``task_log`` and ``task_stats``.

        Returns the number of tasks. A second call writes the same values again.
        """
        with self._unit(fence) as unit:
            total = 0
            for rows in _staged_rows(unit):
                details = [_detail(row) for row in rows]
                names = [name for name in details[0] if name not in ("task_id", "error", "compressed", "stats")]
                values = [{n: d[n] for n in ("task_id", "error", *names)} for d in details]
                update_tasks(unit, values, replace=("error",), fill=names)
                for table, name in ((task_log, "compressed"), (task_stats, "stats")):
                    new = [{"task_id": d["task_id"], name: d[name]} for d in details if d[name]]
                    if new:
                        delete_rows(unit.conn, table.c.task_id, "PRIMARY", [row["task_id"] for row in new])
                        unit.conn.execute(insert(table), new)
                total += len(rows)
            if total:  # the sums must include these counters now, or the next look takes them for progress
                unit.update_run(**count_sums(unit))
            return total

    def apply_findings(self, fence: Fence, source: str, observed_at: datetime | None = None) -> TaskCounts:
        """Apply the staged changes by compare-and-set, with transitions, corrections and one event ``run.changed``.

        With ``observed_at`` the changes are applied only if the look of that time is the last recorded one. Otherwise
        nothing is applied: the caller of the later look applies its findings. Returns the counts of tasks.
        """
        with self._unit(fence) as unit:
            if observed_at is not None and observed_at != unit.run["verified_at"]:
                log.warning(
                    "refused to apply the look of %s to run %s, attempt %s: the recorded look is of %s",
                    observed_at.isoformat(),
                    unit.run_id,
                    unit.attempt,
                    unit.run["verified_at"],
                )
                return unit.counts()
            apply_staged(
                unit,
                source,
                replace=("reason",),
                fill=("started_at", "deployed_at", "cluster_name", "cluster_uid", "node", "exit_code", "exit_signal"),
            )
            forget_staged(unit)
            return unit.counts()


def _check_order(unit: Unit, ordered_at: datetime | None) -> None:
    """Raise ``Overtaken`` when a later ordered look is recorded, because this look would undo newer findings."""
    if _is_overtaken(unit, ordered_at):
        text = (
            f"A look at run {unit.run_id}, attempt {unit.attempt}, that was ordered at {ordered_at} may no longer "
            f"write: a look that was ordered at {unit.run['look_ordered_at']} is recorded"
        )
        log.warning("refused a late write: %s", text)
        raise Overtaken(text)


def _is_overtaken(unit: Unit, ordered_at: datetime | None) -> bool:
    last = unit.run["look_ordered_at"]
    return ordered_at is not None and last is not None and ordered_at < last


def _report(unit: Unit) -> LookReport:
    o, counts = task_observation.c, checked_counts(unit.conn, unit.run)
    staged = select(func.count()).where(o.run_id == unit.run_id, o.finding.is_not(None))
    changed, quiet = unit.conn.execute(staged).scalar_one(), _quiet(unit.run)
    more = {"active": counts.active, "queued": counts.queued, "stop": unit.stop}
    return made(LookReport, unit.run, changed=changed, quiet=quiet, **more)


def _moved_between(run: Row) -> bool:
    """Return whether counters were written after the last recorded look, and showed progress."""
    progress, looked = run["last_progress_at"], run["verified_at"]
    return progress is not None and looked is not None and bool(progress > looked)


def _quiet(run: Row) -> timedelta:
    return (run["quiet_ms"] or 0) * _MS


def _unsettled(conn: Connection, run_id: int) -> Sequence[Row]:
    t = task_history.c
    query = current_tasks(run_id, task_history).where(t.status.in_(ALIVE)).order_by(t.task_index)
    return conn.execute(query).mappings().all()


def _stage(unit: Unit, parts: Mapping[int, Mapping[str, Any]]) -> None:
    """Replace the staged parts (a finding, details) of these tasks. A row without any part is deleted.

    The function reads, deletes and inserts, because an upsert is spelled differently on each database. PyMySQL does not
    know the new spelling of MySQL 8, and would send an upsert row by row.
    """
    o, t = task_observation.c, task_history.c
    rows = []
    for chunk in chunks(sorted(parts)):
        known = unit.conn.execute(
            select(t.task_id, t.task_index, o.task_id.label("earlier"), o.finding, o.details)
            .join_from(task_history, task_observation, t.task_id == o.task_id, isouter=True)
            .where(t.run_id == unit.run_id, t.task_id.in_(chunk))
        )
        replaced = []
        for old in known.mappings():
            part = parts[old["task_id"]]
            new = {name: _merged(old[name], part[name]) if name in part else old[name] for name in _PARTS}
            if old["earlier"] is not None:
                replaced.append(old["earlier"])
            if any(new.values()):
                rows.append((old["task_id"], unit.run_id, old["task_index"], unit.attempt, *new.values()))
        delete_rows(unit.conn, o.task_id, "PRIMARY", replaced)
    names = ("task_id", "run_id", "task_index", "attempt", "finding", "details")
    insert_rows(unit.conn, task_observation, names, rows)


def _merged(earlier: Any, later: Any) -> Any:
    """Return the later part. If it has no log or no statistics, it gets those of the earlier part."""
    if not isinstance(earlier, Mapping) or not isinstance(later, Mapping):
        return later
    kept = (name for name in ("log_tail", "statistics") if earlier.get(name) and not later.get(name))
    return {**later, **{name: earlier[name] for name in kept}}


def _staged_rows(unit: Unit) -> Iterable[Sequence[Row]]:
    """Return the staged rows of the run in chunks, so that memory never holds the log tails of many tasks."""
    o, last = task_observation.c, -1
    while True:
        query = select(task_observation).where(o.run_id == unit.run_id, o.task_index > last)
        rows = unit.conn.execute(query.order_by(o.task_index).limit(CHUNK)).mappings().all()
        if rows:
            yield rows
            last = rows[-1]["task_index"]
        if len(rows) < CHUNK:
            return


def _observed(task: Row, seen: Observation, unit: Unit) -> dict[str, Any] | None:
    """Return the columns of a task after this observation; ``None``: they are unchanged."""
    ours = task["cluster_uid"] is None or seen.uid is None or seen.uid == task["cluster_uid"]
    if seen.phase is Phase.ABSENT:
        return _missed(task, seen, unit)
    if seen.phase not in _SEEN or not ours:
        return None
    counted = {name: getattr(seen.counters, name) for name in COUNTERS}
    # Live counters may have been written during the look, so counters of an executing task must not decrease. The
    # counters of an ended task are final.
    later = grown if seen.phase is Phase.EXECUTING else _reported
    # Until a try says that it started from the beginning, its counters are those of the tries that it may continue.
    anew = seen.resumed is False and task["resumed"] is not False
    known = dict.fromkeys(COUNTERS) if anew else task
    new: dict[str, Any] = {name: later(known[name], value) for name, value in counted.items()}
    peaks = [peak for peak in (task["peak_memory"], seen.peak_memory) if peak is not None]
    new |= {
        "cluster_name": task["cluster_name"] or seen.name,
        "cluster_uid": task["cluster_uid"] or seen.uid,
        "node": seen.node or task["node"],
        # The reason of an end is written with the end. Until then the reason says why the task waits.
        "reason": task["reason"] if seen.phase is Phase.ENDED else seen.reason,
        "started_at": task["started_at"] or seen.started_at,
        "ever_seen": True,
        "absent_since": None,
        "missed_at": None,
        "last_progress_at": (seen.progress_at or unit.now) if moved(task, new) else task["last_progress_at"],
        "peak_memory": max(peaks, default=None),
        "fields": task["fields"] if seen.fields is None else asdict(seen.fields),
        "resumed": task["resumed"] if seen.resumed is None else seen.resumed,
        "resume_note": seen.resume_note or task["resume_note"],
    }
    return None if all(task[name] == value for name, value in new.items()) else {"task_id": task["task_id"], **new}


def _last_look(run: Row, now: datetime) -> datetime | None:
    """Return the time of the last recorded look. If its worker's clock was ahead: when Temporal ordered that look."""
    looked: datetime | None = run["verified_at"]
    return looked and (not_ahead(looked, now) or not_ahead(run["look_ordered_at"], now))


def _reported(known: Any, read: int | None) -> Any:
    return known if read is None else read


def _missed(task: Row, seen: Observation, unit: Unit) -> dict[str, Any] | None:
    """Return the columns of a deployed task that the look did not find: the times and the reason. ``None``: they are
    unchanged, or the task was never seen.
    """
    if not (task["ever_seen"] or task["cluster_uid"]):
        return None
    same = {name: task[name] for name in _OBSERVED_ALL}
    new = {**same, "reason": seen.reason or task["reason"]}
    if not_ahead(task["missed_at"], unit.now) is None:  # the proof that it is gone would wait for a time in the future
        since = (task["absent_since"] or _last_look(unit.run, unit.dated) or unit.dated) if task["ever_seen"] else None
        new |= {"absent_since": since, "missed_at": seen.observed_at}
    return None if new == same else {"task_id": task["task_id"], **new}


def _short(details: Details) -> Details:
    if details.log_tail is None:
        return details
    return replace(details, log_tail=storable(tail(details.log_tail)))


def _detail(row: Row) -> dict[str, Any]:
    """Return the columns of a task that its staged row proves. A column that it does not prove is ``None``."""
    finding = load_finding(row) if row["finding"] else None
    foreign = finding is not None and _foreign(finding)
    # Another object has the name of our task. Its node, counters, exit code and log say nothing about our task.
    seen = finding.observation if finding and not foreign else None
    details = load_details(row) if row["details"] and not foreign else None
    end = seen.end if seen else None
    # Live counters of an executing task may be newer than those of its look, which ``record_look`` has compared.
    counted = (details, seen) if finding is None or finding.change.after.terminal else ()
    counters = [source.counters for source in counted if source is not None]
    peaks = [source.peak_memory for source in (details, seen) if source is not None]
    return {
        "task_id": row["task_id"],
        "reason": (end.reason if end else None) or (seen.reason if seen else None),
        "exit_code": end.exit_code if end else None,
        "exit_signal": end.signal if end else None,
        "node": seen.node if seen else None,
        "started_at": seen.started_at if seen else None,
        "peak_memory": max((peak for peak in peaks if peak is not None), default=None),
        **{name: next((v for c in counters if (v := getattr(c, name)) is not None), None) for name in COUNTERS},
        "error": _error(finding, details) if finding and not foreign else None,
        "compressed": compressed(details.log_tail) if details and details.log_tail else None,
        "stats": details.statistics if details else None,
    }


def _error(finding: TaskFinding, details: Details | None) -> str | None:
    line = error_of(finding.change, finding.observation.end, details.log_tail if details else None)
    return None if line is None else short(redaction.current().text(line))


def _foreign(finding: TaskFinding) -> bool:
    return finding.change.correction == "not_ours"


def _move(finding: TaskFinding, vouched_at: datetime | None) -> Move:
    change, seen = finding.change, finding.observation
    ours = None if _foreign(finding) else seen
    end = ours.end if ours else None
    started = ours.started_at if ours else None
    if started is None and change.after is TaskStatus.RUNNING:
        started = change.cluster_time
    return Move(
        change.task_id,
        change.before,
        change.after,
        cluster_time=change.cluster_time,
        outcome=change.outcome,
        ended_by=change.ended_by,
        cause=change.cause,
        correction=change.correction,
        # A task that never existed was never seen, so its recorded status was untrue from the beginning.
        vouched_at=None if change.correction == CorrectionKind.NEVER_EXISTED else vouched_at,
        evidence=evidence(seen),
        values={
            "reason": end.reason if end else seen.reason,
            "started_at": started,
            "deployed_at": started if change.before is TaskStatus.QUEUED else None,
            "cluster_name": ours.name if ours else None,
            "cluster_uid": ours.uid if ours else None,
            "node": ours.node if ours else None,
            "exit_code": end.exit_code if end else None,
            "exit_signal": end.signal if end else None,
        },
    )
