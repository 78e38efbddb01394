"""Graphs in memory for tests. These graphs use the real rules, call functions in this process, and
have a simulated clock.

    with in_memory(crawls={"shops": "failed"}):
        workflow = build().start()
        assert workflow.wait().state == "discarded"

Crawls and managers are not started, but end at once as ``crawls`` defines. Approvals are granted or
rejected as ``approvals`` defines. A graph is executed only during ``wait``.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from crawler_lifecycle.domain.errors import DuplicateRequest, Fenced
from crawler_lifecycle.domain.run_data import HeldFiles
from crawler_lifecycle.domain.values import decode, encode, of_json
from crawler_lifecycle.features.graphs.domain.checks import shown
from crawler_lifecycle.features.graphs.domain.commands import ApproveStep, CancelSteps, RetrySteps
from crawler_lifecycle.features.graphs.domain.engine import Graph, Step, StepEnd, after_failure
from crawler_lifecycle.features.graphs.domain.kinds import CONTAINING, STEP_RULES
from crawler_lifecycle.features.graphs.domain.pages import fingerprint
from crawler_lifecycle.features.graphs.domain.rows import StepFacts, status_document
from crawler_lifecycle.features.graphs.domain.spec import GraphSpec, StepSpec, StepState

from .asking import use
from .calling import Meant, NotCallable, execute
from .job import Cancel, Job, Record, Snooze
from .platform import Document, nested, with_above

#: The start of the simulated clock.
BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
#: The outcome of a successful crawl; every other outcome is a failure.
_GOOD = "finished"
#: The ends of runs by crawler or class, or a function that gets the step's job and returns the end.
#: An end is an outcome, or a dictionary with ``outcome``, ``pages``, ``items``, ``errors``,
#: ``archive`` and ``files``. A list has one end for each try. ``items`` is a number or a list of
#: items, and ``files`` maps names to bytes.
Ends = Mapping[str, Any] | Callable[[Mapping[str, Any]], Any]
#: The decisions, by the path of the approval: yes or no, or a dictionary with ``approved`` and
#: ``note``. All approvals that are not listed wait until their timeout.
Decisions = Mapping[str, bool | Mapping[str, Any]]


@dataclass
class _Row:
    """A step with the facts that people see."""

    step: Step
    spec: StepSpec
    errors: list[Document] = field(default_factory=list)
    started_at: datetime | None = None
    ended_at: datetime | None = None
    snoozed: int = 0
    result: bytes | None = None
    attached: str | None = None
    """The fingerprint of the graph that the step has attached."""

    @property
    def given(self) -> StepFacts:
        size = None if self.result is None else len(self.result)
        return StepFacts(
            self.number,
            self.path,
            self.kind,
            self.state,
            self.graft,
            self.attached is not None,
            size,
        )

    def value(self) -> Any:
        return decode((self.result if self.given.recorded else self.given.instead) or b"null")

    @property
    def job(self) -> Mapping[str, Any]:
        return self.spec.job

    def __getattr__(self, name: str) -> Any:
        return getattr(self.step, name)


class _Graph:
    """One graph: its engine and its rows."""

    def __init__(self, key: str, spec: GraphSpec, name: str | None, at: datetime) -> None:
        self.key = key
        self.name = name
        self.context = spec.context
        self.at = at
        self.fingerprint = fingerprint(spec)
        self.engine = Graph.of(spec)
        self.engine.key = key
        self.rows: list[_Row] = []
        self.take_added()

    def take_added(self) -> None:
        self.rows += [_Row(step, spec) for step, spec in self.engine.added]
        self.engine.added.clear()

    def row(self, path: str) -> _Row:
        return self.rows[self.engine.numbers([path])[0]]

    def inside(self, paths: Sequence[str] | None) -> list[_Row]:
        """Return the steps at and below these paths; unknown paths are ignored, and ``None`` means
        all steps.
        """
        above = None if paths is None else set(paths)
        return [
            row for row in self.rows if above is None or not above.isdisjoint(with_above(row.path))
        ]

    def state(self) -> str:
        return self.engine.state.value

    def document(self) -> Document:
        """Return the graph as a row of a list."""
        status = status_document(self.name, self.rows)
        own = {"id": self.key, "created_at": self.at, "updated_at": status["stopped_at"] or self.at}
        times = {"started_at": status["started_at"], "ended_at": status["stopped_at"]}
        return own | times | {name: status[name] for name in ("name", "state", "counts")}


class Memory(HeldFiles):
    """``Platform`` in memory.

    ``crawls`` defines how crawls and managers end (``Ends``), by default as ``finished``.

    ``approvals`` defines which approvals are granted and which are rejected (``Decisions``).
    """

    def __init__(self, crawls: Ends | None = None, approvals: Decisions | None = None) -> None:
        super().__init__()
        self.now = BEGINNING
        self.calls: list[str] = []
        """The paths of steps in the order of their execution."""
        self._crawls: Ends = crawls or {}
        self._approvals: Decisions = approvals or {}
        self._graphs: dict[str, _Graph] = {}
        self._begun = 0
        """The number of simulated runs so far."""

    # --- Platform ---------------------------------------------------------------------------------

    def send(self, key: str, spec: GraphSpec, *, name: str | None, tags: Sequence[str]) -> bool:
        known = self._graphs.get(key)
        if known is None:
            self._graphs[key] = _Graph(key, spec, name, self.now)
        elif known.fingerprint != fingerprint(spec):
            raise DuplicateRequest(
                f"id {key!r}: another graph has this id; give this graph a new one, or append "
                "to the other graph"
            )
        return known is None

    def status(self, key: str) -> Document | None:
        graph = self._graphs.get(key)
        return None if graph is None else status_document(graph.name, graph.rows)

    def find(self, *, states: Collection[str], keys: Collection[str], limit: int) -> list[Document]:
        chosen = [graph for key, graph in self._graphs.items() if not keys or key in keys]
        found = [graph for graph in chosen if not states or graph.state() in states]
        return [graph.document() for graph in reversed(found[-limit:])]

    def jobs(self, key: str, paths: Sequence[str] | None) -> list[Document]:
        graph = self._graphs.get(key)
        rows = graph.inside(paths) if graph else []
        return [
            _document(row) | {"reason": row.reason or graph.engine.waiting(row.number)}
            for row in rows
            if graph
        ]

    def recorded(self, key: str, paths: Sequence[str] | None) -> dict[str, Any]:
        rows = self._graphs[key].inside(paths) if key in self._graphs else []
        return {row.path: row.value() for row in rows if row.given.recorded or row.given.instead}

    def context(self, key: str, path: str) -> dict[str, Any] | None:
        graph = self._graphs.get(key)
        if graph is None:
            return None
        jobs = {row.path: row.job for row in graph.rows}
        levels = [
            graph.context,
            *(jobs.get(parent, {}).get("context", {}) for parent in with_above(path) if path),
        ]
        return of_json({name: value for level in levels for name, value in level.items()}) or None

    def cancel(self, key: str, paths: Sequence[str] | None, reason: str | None) -> int:
        named = None if paths is None else list(paths)
        return CancelSteps(requested_by="a test", names=named, reason=reason).apply(
            self._known(key).engine
        )

    def retry(self, key: str, paths: Sequence[str] | None, *, cascade: bool, fresh: bool) -> int:
        named = None if paths is None else list(paths)
        return RetrySteps(names=named, cascade=cascade, fresh=fresh).apply(self._known(key).engine)

    def append(self, key: str, spec: GraphSpec) -> int:
        graph = self._known(key)
        count = len(graph.engine.add(spec.steps))
        graph.take_added()
        return count

    def graft(self, key: str, path: str, attempt: int, spec: GraphSpec) -> None:
        graph = self._known(key)
        row = graph.row(path)
        if self.cancelled(key, path, attempt):
            raise Fenced(
                f"step {path!r}: attempt {attempt} is not executing; only the executing step "
                "may graft"
            )
        if row.attached == fingerprint(spec):
            return
        if row.attached is not None:
            raise DuplicateRequest(
                f"step {path!r}: it already attached another graph in this attempt; attach only one"
            )
        graph.engine.add(spec.steps, row.step.number)
        row.spec = StepSpec(
            path, row.kind, {**row.job, "context": spec.context}, row.spec.deps, graft=True
        )
        row.attached = fingerprint(spec)
        graph.take_added()

    def cancelled(self, key: str, path: str, attempt: int) -> bool:
        row = self._known(key).row(path)
        return (row.attempt, row.state) != (attempt, StepState.EXECUTING)

    def crawls(self, key: str, paths: Sequence[str]) -> list[Document]:
        graph = self._known(key)
        known = {row.path for row in graph.rows}
        rows = graph.inside([path for path in paths if path in known][:1])
        facts = ("path", "run_id", "state", "outcome")
        return [
            {name: getattr(row, name) for name in facts}
            for row in rows
            if STEP_RULES[row.kind].brings_items
        ]

    def wait(self, key: str, timeout_s: float | None) -> Document:
        graph = self._known(key)
        until = None if timeout_s is None else self.now + timedelta(seconds=timeout_s)
        while self.turn(key, until):
            pass
        if graph.state() == "executing":
            waiting = [
                row.path for row in graph.rows if row.kind not in CONTAINING and not row.state.final
            ]
            raise TimeoutError(
                f"graph {key!r} has not ended; these steps are waiting: {', '.join(waiting[:20])}"
            )
        return status_document(graph.name, graph.rows)

    # --- execution --------------------------------------------------------------------------------

    def _known(self, key: str) -> _Graph:
        if key not in self._graphs:
            raise KeyError(f"no graph has the id {key!r}; start it first")
        return self._graphs[key]

    def turn(self, key: str, until: datetime | None = None) -> bool:
        """Execute the next steps of a graph, or move the clock to the time at which they may start.
        Return whether either was done.

        The clock does not move beyond ``until``.
        """
        graph = self._known(key)
        picked = graph.engine.pick(self.now, batches=1, begin=1)
        for batch in picked.batches:
            for number in batch.steps:
                row = graph.rows[number]
                if row.state is StepState.AVAILABLE and row.batch == batch.number:
                    row.step.state = StepState.EXECUTING
                    row.step.attempt, row.step.tries = row.step.attempt + 1, row.step.tries + 1
                    self._end(graph, row, self._execute(graph, row))
            graph.engine.released([batch.number])
        for number in picked.begin:
            self._end(graph, graph.rows[number], self._run(graph.rows[number]))
        if self._decided(graph) or picked.batches or picked.begin:
            return True
        if picked.again_at is None or (until is not None and picked.again_at > until):
            return False
        self.now = picked.again_at
        return True

    def _decided(self, graph: _Graph) -> bool:
        """Record decisions for the waiting approvals, and return whether there were any."""
        rows = [
            row
            for row in graph.rows
            if row.path in self._approvals and row.state is StepState.EXECUTING
        ]
        for row in rows:
            self._began(row)
            said = self._approvals[row.path]
            fields: Mapping[str, Any] = {"approved": said} if isinstance(said, bool) else said
            ApproveStep(requested_by="a test", step=row.path, at=self.now, **fields).apply(
                graph.engine
            )
            row.result = encode(dict(graph.engine.records.pop(row.number)))
            row.ended_at = self.now
        return bool(rows)

    def _execute(self, graph: _Graph, row: _Row) -> StepEnd:
        step = row.step
        job = Job.of(graph.key, _document(row))
        self._began(row)
        try:
            found = execute(
                row.job["call"], row.job, job, lambda: self._given(graph, row), graft=step.graft
            )
            return self._judged(graph, row, found)
        except NotCallable as error:
            return self._failed(row, str(error), for_good=True)
        except (Exception, SystemExit) as error:
            traceback.print_exc()
            return self._failed(row, f"{type(error).__name__}: {error}")

    def _judged(self, graph: _Graph, row: _Row, returned: Meant) -> StepEnd:
        step = row.step
        if isinstance(returned, Cancel):
            return StepEnd(
                step.number, step.attempt, StepState.CANCELLED, "cancelled", returned.reason
            )
        if isinstance(returned, Snooze):
            row.snoozed += 1
            again = self.now + timedelta(seconds=returned.seconds)
            return StepEnd(step.number, step.attempt, StepState.SCHEDULED, not_before=again)
        if isinstance(returned, Record):
            row.result = encode(returned.value, "result", returned.limit)
        elif returned is not None:
            self.graft(
                graph.key, row.path, step.attempt, returned.part(f"graft of step {shown(row.path)}")
            )
        return StepEnd(step.number, step.attempt, StepState.COMPLETED)

    def _failed(
        self, row: _Row, error: str, *, outcome: str | None = None, for_good: bool = False
    ) -> StepEnd:
        step = row.step
        tries = row.spec.max_attempts if for_good else row.step.tries
        row.errors.append({"attempt": step.attempt, "at": self.now.isoformat(), "error": error})
        state, again = after_failure(tries, row.spec.max_attempts, row.spec.backoff_s, self.now)
        if state is StepState.DISCARDED:
            outcome = outcome or "failed"
        return StepEnd(
            step.number, step.attempt, state, outcome, error, again, run_attempt=step.attempt
        )

    def _run(self, row: _Row) -> StepEnd:
        self._began(row)
        self._begun += 1
        step = row.step
        what = row.job.get("crawler") or row.job["plan"]
        found = self._crawls(row.job) if callable(self._crawls) else self._crawls.get(what, _GOOD)
        if isinstance(found, list):
            found = found[min(step.tries, len(found)) - 1]
        end: dict[str, Any] = {"outcome": found} if isinstance(found, str) else dict(found)
        good = end["outcome"] == _GOOD
        step.run_id = self._begun
        items = end.get("items")
        self.leave(self._begun, items if isinstance(items, list) else None, end.pop("files", None))
        if isinstance(items, list):
            end["items"] = len(items)
        if STEP_RULES[row.kind].brings_items:
            counters = {"pages": 0, "items": 0, "errors": 0, "archive": None}
            run = {"run_id": self._begun, "status": "COMPLETED" if good else "FAILED"}
            row.result = encode({**run, **counters, **end})
        if not good:
            return self._failed(row, f"its run ended as {end['outcome']}", outcome=end["outcome"])
        return StepEnd(
            step.number, step.attempt, StepState.COMPLETED, _GOOD, run_attempt=step.attempt
        )

    def _began(self, row: _Row) -> None:
        self.calls.append(row.path)
        row.started_at, row.ended_at = row.started_at or self.now, None

    def _end(self, graph: _Graph, row: _Row, end: StepEnd) -> None:
        row.ended_at = self.now
        graph.engine.ended([end])

    def _given(self, graph: _Graph, row: _Row) -> dict[str, Any]:
        """Return the context of a cascade: the values of ``add_context``, and the results of its
        dependencies by name.
        """
        level = row.path.rpartition("/")[0]
        context = self.context(graph.key, level) or {}
        deps = row.spec.deps
        # An item gets the results that the item's group depends on.
        if level and row.job.get("style") == "item":
            level, deps = level.rpartition("/")[0], graph.row(level).spec.deps
        prefix = f"{level}/" if level else ""
        given = self.recorded(graph.key, [prefix + dep for dep in deps])
        return context | (nested(given, level) or {})


@contextmanager
def in_memory(crawls: Ends | None = None, approvals: Decisions | None = None) -> Iterator[Memory]:
    """Make every handle use a new ``Memory`` inside the ``with`` block."""
    memory = Memory(crawls, approvals)
    former = use(memory)
    try:
        yield memory
    finally:
        use(former)


def _document(row: _Row) -> Document:
    step = row.step
    same = ("path", "attempt", "max_attempts", "outcome", "reason", "ending", "run_id")
    times = {"not_before": step.not_before, "started_at": row.started_at, "ended_at": row.ended_at}
    return {
        **{name: getattr(step, name) for name in same},
        **{name: None if at is None else at.isoformat() for name, at in times.items()},
        "kind": step.kind.value,
        "state": step.state.value,
        "job": row.job,
        "deps": list(row.spec.deps),
        "errors": row.errors,
        "snoozed": row.snoozed,
    }
