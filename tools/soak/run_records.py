"""Everything that the service has recorded about one run, read from its database, its gateway and
Temporal.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.harness import TERMINAL, Row, moment
from tools.soak.harness import SoakHarness
from tools.soak.journal import clock

RUN = (
    "run_id, run_uid, request_id, status, stage, outcome, attempt, owner_workflow_id, stop_limit, "
    "items, ended_at, "
    "created_at"
)
TASK = (
    "task_id, task_index, attempt, superseded_by, status, outcome, cause, cluster_uid, exit_code, "
    "exit_signal, pages, "
    "items, started_at, ended_at, run_attempt, retry, retry_note, memory"
)
TRANSITION = (
    "seq, task_id, attempt, from_status, to_status, cluster_time, committed_at, lag_ms, source"
)
CORRECTION = (
    "id, task_id, attempt, kind, believed, truth, truth_since, believed_since, lag_ms, "
    "created_at, found_by"
)
CANCELLATION = "attempt, request_id, requested_at, acted_at"
EVENT = "seq, attempt, type, event_key"


@dataclass
class RunRecord:
    """One run.

    Times are seconds since the epoch, and commits are in the order in which they were made.
    """

    run: Row
    tasks: list[Row]
    transitions: list[Row]
    corrections: list[Row]
    cancellations: list[Row]
    events: list[Row]
    deliveries: list[Row]
    exports: list[Row]
    shown: Row = field(default_factory=dict)
    """What the gateway answers."""

    @property
    def run_id(self) -> int:
        return int(self.run["run_id"])

    @property
    def name(self) -> str:
        """Return the name of the run in ids of events."""
        return f"{self.run_id}-{self.run['run_uid']}"

    @property
    def ended(self) -> bool:
        return self.run["status"] in TERMINAL

    @property
    def current(self) -> list[Row]:
        return [task for task in self.tasks if task["superseded_by"] is None]

    def of_task(self, task_id: int | None) -> list[Row]:
        return [row for row in self.transitions if row["task_id"] == task_id]

    def ends(self) -> list[float]:
        """Return when each verdict of the run was committed."""
        return [row["committed_at"] for row in self.of_task(None) if row["to_status"] in TERMINAL]

    def eras(self) -> list[tuple[float, float]]:
        """Return the beginning of each life of the run, with the previous end (0: none)."""
        found, former = [(0.0, 0.0)], 0.0
        for row in self.of_task(None):
            if row["to_status"] in TERMINAL:
                former = row["committed_at"]
            elif row["from_status"] in TERMINAL:
                found.append((row["committed_at"], former))
        return found

    def __str__(self) -> str:
        run = self.run
        lines = [
            (
                f"run {run['run_id']}: {run['status']}/{run['outcome']}, attempt {run['attempt']}, "
                f"{run['stage']}"
            )
        ]
        for task in self.tasks:
            words = (
                task["task_id"],
                f"{task['task_index']}/{task['attempt']}",
                task["status"],
                task["outcome"],
            )
            lines.append(
                f"  task {' '.join(map(str, words))}: {task['cause']} (superseded by "
                f"{task['superseded_by']})"
            )
        for row in self.transitions:
            whose = f"task {row['task_id']}" if row["task_id"] else "the run"
            lines.append(
                f"  {stamp(row['committed_at'])} {whose}, attempt {row['attempt']}: "
                f"{row['from_status']} -> "
                f"{row['to_status']} by {row['source']}, cluster {stamp(row['cluster_time'])}, lag "
                f"{row['lag_ms']} ms"
            )
        for row in self.corrections:
            told = [
                f"{name}={row[name]}"
                for name in ("kind", "task_id", "believed", "truth", "lag_ms", "found_by")
            ]
            lines.append(f"  correction {stamp(row['created_at'])}: {' '.join(told)}")
        lines += [
            f"  cancellation {row['request_id']} attempt {row['attempt']}"
            for row in self.cancellations
        ]
        return "\n".join(lines)


def stamp(at: float | None) -> str:
    """Return a moment for people, or a dash if there is none."""
    return "-" if at is None else clock(at)


TIMES = (
    "cluster_time",
    "committed_at",
    "created_at",
    "ended_at",
    "started_at",
    "truth_since",
    "believed_since",
)


def _rows(harness: SoakHarness, columns: str, rest: str, *values: object) -> list[Row]:
    names = [name.strip().rpartition(".")[2] for name in columns.split(",")]
    found = [
        dict(zip(names, row, strict=True))
        for row in harness.query(f"SELECT {columns} {rest}", *values)
    ]
    for row in found:
        for name in TIMES:
            if row.get(name) is not None:
                row[name] = moment(row[name]).timestamp()
    return found


def read_record(harness: SoakHarness, run_id: int, *, shown: bool = True) -> RunRecord:
    """Return the run as it is recorded now."""
    of = "WHERE run_id = ?"
    (run,) = _rows(harness, RUN, f"FROM run_history {of}", run_id)
    return RunRecord(
        run=run,
        tasks=_rows(harness, TASK, f"FROM task_history {of} ORDER BY task_index, task_id", run_id),
        transitions=_rows(harness, TRANSITION, f"FROM status_transition {of} ORDER BY seq", run_id),
        corrections=_rows(harness, CORRECTION, f"FROM correction {of} ORDER BY id", run_id),
        cancellations=_rows(
            harness, CANCELLATION, f"FROM cancellation_log {of} ORDER BY id", run_id
        ),
        events=_rows(harness, EVENT, f"FROM outbox_event {of} ORDER BY seq", run_id),
        deliveries=_rows(
            harness,
            "e.event_key, d.sink, d.status, d.tries, d.error",
            "FROM outbox_delivery d JOIN outbox_event e ON e.seq = d.seq WHERE e.run_id = ?",
            run_id,
        ),
        exports=_rows(harness, "attempt, status, error", f"FROM export_record {of}", run_id),
        shown=harness.gateway.run(run_id) if shown else {},
    )


def told_events(file: Path) -> dict[str, list[str]]:
    """Return the content of the event file, by the id of the event."""
    found: dict[str, list[str]] = {}
    for line in file.read_text().splitlines() if file.exists() else []:
        try:
            event: dict[str, Any] = json.loads(line)
        except ValueError:  # A writer that was killed may have left half a line.
            continue
        found.setdefault(str(event["id"]), []).append(json.dumps(event["data"], sort_keys=True))
    return found
