"""Everything that is known about one graph of a storm: its plan, its rows, the answers of the
gateway, and what really executed.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crawler_lifecycle.domain.names import graph_workflow_id, manager_workflow_id
from crawler_lifecycle.features.graphs.domain.spec import StepKind, StepSpec, StepState
from crawler_lifecycle.graphs.client import Gateway
from tests.e2e.harness import Row, moment
from tools.soak.graph_plan import Command, GraphPlan
from tools.soak.graph_steps import digest, grafted
from tools.soak.harness import SoakHarness
from tools.soak.journal import Process, clock
from tools.soak.strikes import Strike

#: The seconds after a strike within which it can still cause the loss of calls: until a heartbeat
#: is missed, and the next worker begins.
AFTERMATH_S = 15.0
#: Faults that end calls whose processes are still alive. A database that is down for a moment does
#: not end a call.
_UNSEEN = ("plans frozen", "temporal killed")


@dataclass
class Execution:
    """One execution of a function, by its own report."""

    path: str
    attempt: int
    pid: int
    key: str
    begin: float
    given: Mapping[str, str]
    end: float | None = None
    how: str | None = None
    """``value``, ``raise``, ``snooze``, ``cancel``, ``asked``; ``None``: it was killed."""
    gave: str | None = None

    def __str__(self) -> str:
        until = f"{self.how} at {clock(self.end)}" if self.end else "no end"
        return (
            f"{self.path} attempt {self.attempt} in process {self.pid} from "
            f"{clock(self.begin)}: {until}"
        )


@dataclass(frozen=True)
class Asked:
    """A request of a client: when it was sent, when it was answered, and the answer."""

    key: str
    command: Command
    sent: float
    at: float
    answer: str
    """``ok``, ``no``; ``unknown``: nobody answered, and it may have happened."""
    detail: str = ""


@dataclass
class GraphCase:
    """One graph, with everything that is known about it."""

    plan: GraphPlan
    graph: Row
    rows: dict[str, Row]
    """Steps by path."""
    shown: Row
    recorded: Mapping[str, str]
    """Digests of results by path, as the gateway gives them."""
    executions: list[Execution]
    asked: list[Asked] = field(default_factory=list)
    strikes: Sequence[Strike] = ()
    runs: dict[int, Row] = field(default_factory=dict)
    processes: list[Process] = field(default_factory=list)
    managers: dict[int, Row] = field(default_factory=dict)
    """Managers that have the graph as their parent, with their ``runs`` and the ``processes`` of
    those.
    """
    events: list[tuple[str | None, int]] = field(default_factory=list)
    """Key and attempt of each ``graph.ended``."""

    def __post_init__(self) -> None:
        self.by_path: dict[str, list[Execution]] = {}
        for one in sorted(self.executions, key=lambda one: one.begin):
            self.by_path.setdefault(one.path, []).append(one)
        self.heard = [one for one in self.asked if one.answer != "no"]
        self.restarted = any(one.command.what == "retry" for one in self.heard)

    @functools.cached_property
    def specs(self) -> dict[str, StepSpec]:
        """Return every requested step by its path: sent, appended, or grafted according to the
        record.
        """
        more = [one for asked in self.heard for one in asked.command.steps]
        found = {one.path: one for one in (*self.plan.spec.steps, *more)}
        for path in list(found):
            found |= self._grafts(path, found[path])
        return found

    def _grafts(self, path: str, spec: StepSpec) -> dict[str, StepSpec]:
        workflow = grafted(self.plan.key, path) if spec.graft else None
        found = {f"{path}/{one.path}": one for one in (workflow.spec().steps if workflow else ())}
        for below, one in list(found.items()):
            found |= self._grafts(below, one)
        return found

    def children(self, path: str) -> list[str]:
        return [one for one in self.rows if one.rpartition("/")[0] == path]

    def leaves(self, path: str) -> list[str]:
        """Return the functions, crawls and managers in this step, or the step itself if it is one
        of them.
        """
        inside = [one for one in self.rows if one == path or one.startswith(f"{path}/")]
        return [one for one in inside if self.specs[one].kind is not StepKind.GRAPH]

    def deps(self, path: str) -> list[str]:
        level = path.rpartition("/")[0]
        return [f"{level}/{name}" if level else name for name in self.specs[path].deps]

    def above(self, path: str) -> Iterator[str]:
        """Return the graphs that contain a step, from the inside outwards."""
        while path := path.rpartition("/")[0]:
            yield path

    def stopped(self, path: str, since: float = 0.0) -> bool:
        """Return whether somebody requested an end of this step after a moment."""
        ends = [one for one in self.heard if one.command.what in ("cancel", "stop", "force-stop")]
        return any(one.command.covers(path) and one.at >= since for one in ends)

    def struck(self, one: Execution, until: float | None = None) -> Strike | None:
        """Return what may have ended this execution, or prevented the record of its end.

        ``until`` is the time at which the next execution began.
        """
        last = (one.end or until or self.graph["ended_at"] or float("inf")) + 1.0
        for strike in self.strikes:
            if one.pid in strike.hosts and strike.at <= last and one.begin <= strike.over:
                return strike
            unseen = strike.what in _UNSEEN or strike.whom == graph_workflow_id(self.plan.key)
            if unseen and strike.at <= last and one.begin <= strike.over + AFTERMATH_S:
                return strike
        return None

    def spans(self, path: str) -> list[tuple[float, float, str]]:
        """Return when this step executed, and which part of it. Executions whose end a strike hid
        are left out.
        """
        row = self.rows[path]
        crawls = [one for one in self.processes if one.run_id == row["run_id"]]
        if self.specs[path].kind is StepKind.MANAGER:
            crawls = self.managers.get(row["run_id"], {"processes": []})["processes"]
        if self.specs[path].kind is not StepKind.FUNCTION:
            return [(one.begin, one.last, str(one)) for one in crawls]
        of_it = self.by_path.get(path, [])
        return [
            (one.begin, one.end or one.begin, str(one)) for one in of_it if not self.struck(one)
        ]

    def completed(self, path: str) -> bool:
        return bool(self.rows[path]["state"] == StepState.COMPLETED)


def read_ledger(file: Path) -> dict[str, list[Execution]]:
    """Return the executions by graph."""
    found: dict[str, list[Execution]] = {}
    open_: dict[tuple[str, str, int, int], Execution] = {}
    for text in file.read_text().splitlines() if file.exists() else ():
        with suppress(ValueError):  # The process was killed in the middle of a line.
            line = json.loads(text)
            name = (line["graph"], line["path"], line["attempt"], line["pid"])
            if line["what"] == "begin":
                one = Execution(
                    line["path"],
                    line["attempt"],
                    line["pid"],
                    line["key"],
                    line["at"],
                    line["given"],
                )
                found.setdefault(line["graph"], []).append(one)
                open_[name] = one
            elif name in open_:
                one = open_.pop(name)
                one.end, one.how, one.gave = line["at"], line["how"], line.get("gave")
    return found


_GRAPH = ("graph_id", "graph_uid", "state", "attempt", "cause", "started_at", "ended_at")
_STEP = (
    "number",
    "path",
    "kind",
    "state",
    "attempt",
    "tries",
    "outcome",
    "reason",
    "run_id",
    "ending",
    "result_bytes",
)
_TIMES = ("started_at", "ended_at")
_RUN = ("run_id", "request_id", "attempt", "status", "outcome", "ended_at")
_MANAGER = ("manager_id", "name", "flow_id", "status", "outcome", "attempt")


def read_case(
    harness: SoakHarness,
    plan: GraphPlan,
    client: Gateway,
    processes: Sequence[Process],
    executions: list[Execution],
    **known: Any,
) -> GraphCase:
    """Return everything that the database and the gateway report about a graph.

    Raises ``KeyError`` if the graph does not exist.
    """
    graphs = _rows(harness, "graph", _GRAPH, "graph_key = ?", plan.key)
    if not graphs:
        raise KeyError(plan.key)
    graph = graphs[0]
    steps = _rows(harness, "graph_step", (*_STEP, *_TIMES), "graph_id = ?", graph["graph_id"])
    runs = _rows(harness, "run_history", _RUN, "parent = ?", f"graph/{plan.key}")
    subject = f"graphs/{graph['graph_id']}-%"
    events = _rows(
        harness,
        "outbox_event",
        ("event_key", "attempt", "type"),
        "subject_uid = ?",
        graph["graph_uid"],
    )
    ended = [(one["event_key"], one["attempt"]) for one in events if one["type"] == "graph.ended"]
    assert all(key is None or key.startswith(subject[:-1]) for key, _ in ended), ended
    shown = client.status(plan.key) or {}
    recorded = {path: digest(value) for path, value in client.recorded(plan.key, None).items()}
    rows = {one["path"]: one for one in sorted(steps, key=lambda one: int(one["number"]))}
    by_id = {one["run_id"]: one for one in runs}
    mine = [process for process in processes if process.run_id in by_id]
    managers = {
        one["manager_id"]: one
        for one in _rows(harness, "manager", _MANAGER, "parent = ?", f"graph/{plan.key}")
    }
    for one in managers.values():
        one["runs"] = _rows(
            harness,
            "run_history",
            _RUN,
            "parent = ?",
            manager_workflow_id(one["name"], one["flow_id"]),
        )
        its = {run["run_id"] for run in one["runs"]}
        one["processes"] = [process for process in processes if process.run_id in its]
    more: Row = {"runs": by_id, "events": ended, "processes": mine, "managers": managers, **known}
    return GraphCase(plan, graph, rows, shown, recorded, executions, **more)


def _rows(
    harness: SoakHarness, table: str, columns: Sequence[str], where: str, value: object
) -> list[Row]:
    found = harness.query(f"SELECT {', '.join(columns)} FROM {table} WHERE {where}", value)
    rows = [dict(zip(columns, row, strict=True)) for row in found]
    for row in rows:
        for name in row.keys() & set(_TIMES):
            row[name] = moment(row[name]).timestamp() if row[name] is not None else None
    return rows
