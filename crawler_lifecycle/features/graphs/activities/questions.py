"""Builds the input of a function in a graph, and answers the function's questions about this
graph."""

from __future__ import annotations

import itertools
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from crawler_lifecycle.activities.run_files import FileQuestions, FileReading
from crawler_lifecycle.activities.shared import answered, retry_while_unavailable
from crawler_lifecycle.domain.errors import Fenced, InvalidRequest, TemporalUnavailable
from crawler_lifecycle.domain.names import graph_workflow_id
from crawler_lifecycle.domain.values import NoValue, unpacked
from crawler_lifecycle.ports.protocols import FunctionHost, WorkflowDirectory

from ..domain.checks import check_begin, shown
from ..domain.commands import CancelSteps, RetrySteps
from ..domain.engine import Graph
from ..domain.kinds import STEP_RULES
from ..domain.pages import decode_pages, fingerprint
from ..domain.rows import StepFacts, status_document
from ..domain.spec import GraphOptions, GraphSpec, StepState
from ..ports import GraphRow, StepRow, StepWork

if TYPE_CHECKING:
    from ..store.graphs import GraphStore

log = logging.getLogger(__name__)

#: A value together with its type (``FunctionCall.given``).
Frame = tuple[Mapping[str, Any], Iterable[bytes]]
_CONTEXT: Mapping[str, Any] = {"path": []}
_WAIT = (StepState.SUSPENDED, StepState.SCHEDULED, StepState.AVAILABLE, StepState.RETRYABLE)
#: The fields of a crawl step that a function gets to read the crawl's data.
CRAWL = ("path", "run_id", "state", "outcome")
#: Number of steps that one query reads.
PAGE = 200
#: The number of seconds for which a question waits while the database is unavailable. Without this
#: wait, the function would be executed again.
PATIENCE_S = 30.0


def unfit(work: StepWork) -> str | None:
    """Return why a step cannot be executed after a manual edit of its row, or ``None`` if it
    can.
    """
    job = {name: value for name, value in work.job.items() if name != "context" or not work.graft}
    try:
        check_begin(work.path, work.kind, job, work.timeout_s, work.backoff_s)
    except InvalidRequest as error:
        return f"{error}, in its row of graph_step, and then retry it"
    return None


@dataclass
class Around:
    """A cache of the contexts and dependencies that one call has read, by the path of their
    graph.
    """

    contexts: dict[str, list[bytes]] = field(default_factory=dict)
    deps: dict[str, Sequence[int]] = field(default_factory=dict)
    """Numbers of the steps that the graph depends on."""


def given_frames(
    graphs: GraphStore, graph_id: int, work: StepWork, around: Around
) -> Iterator[Frame]:
    """Yield the input of a function: first the contexts, then the results of its direct
    dependencies.

    A result is named by the path of its step within the level. An item of a fan-out gets the
    results of the fan-out's dependencies. All rows that were read are added to ``around``.
    """
    above = work.path.rpartition("/")[0]
    level = work.path.count("/")
    deps = work.deps
    item = bool(above) and work.job.get("style") == "item"
    if above not in around.contexts:
        around.contexts[above] = graphs.context(graph_id, work.number)
    yield from ((_CONTEXT, [data]) for data in around.contexts[above])
    if item:
        if above not in around.deps:
            around.deps[above] = _deps_of(graphs, graph_id, above)
        level, deps = level - 1, around.deps[above]
    for step, parts in values_of(graphs, graph_id, graphs.given(graph_id, deps) if deps else ()):
        yield {"path": step.path.split("/")[level:]}, parts


def _deps_of(graphs: GraphStore, graph_id: int, path: str) -> Sequence[int]:
    """Return the numbers of the steps that a nested graph depends on."""
    deps = [dep for row in graphs.list_steps(graph_id, limit=1, paths=[path]) for dep in row.deps]
    return (
        [row.number for row in graphs.list_steps(graph_id, limit=len(deps), paths=deps)]
        if deps
        else ()
    )


def explained(graphs: GraphStore, graph_id: int, rows: list[StepRow]) -> list[StepRow]:
    """Return these steps, with the reason why each waiting step waits.

    Reads all steps of the graph.
    """
    waits = {row.number for row in rows if row.state in _WAIT and not row.reason}
    graph = graphs.load(graph_id) if waits else None
    return [
        replace(row, reason=graph.waiting(row.number)) if graph and row.number in waits else row
        for row in rows
    ]


def values_of(
    graphs: GraphStore, graph_id: int, steps: Sequence[StepFacts]
) -> Iterator[tuple[StepFacts, Iterable[bytes]]]:
    """Yield the results of these steps in order, each as the parts of its JSON. The result of a
    graph is ``{}``, and the result of a step that completed without a result is ``null``. Steps
    that have not completed and have no result are left out.
    """
    results = graphs.results(graph_id, [step.number for step in steps if step.recorded])
    read = itertools.groupby(results, key=lambda part: part[0])
    for step in steps:
        if step.recorded:
            number, parts = next(read, (None, ()))
            yield step, _whole(step.path, (data for _, data in parts if number == step.number))
        elif step.instead is not None:
            yield step, [step.instead]


def _whole(path: str, parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the value that a step recorded.

    Raises ``NoValue`` with the step's name if parts of it are missing or damaged.
    """
    try:
        yield from unpacked(parts)
    except NoValue as error:
        raise NoValue(
            f"the result of step {shown(path)}: {error}; retry that step by its name"
        ) from None


@dataclass
class Questions(FileQuestions):
    """Answers questions from one running function."""

    graphs: GraphStore
    directory: WorkflowDirectory
    row: GraphRow
    work: StepWork
    host: FunctionHost
    cancelled: Callable[[], bool]
    """Returns whether the function must end."""
    reading: FileReading
    """Reads the files of crawls of this graph."""
    start: Callable[..., bool]
    """``GraphStarts.start``."""
    _request_id: str = ""
    """The id of the current question, which all tries to answer it share."""

    def answer(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Return the answer. Errors raised here are passed to the function that asks."""
        self._request_id = uuid.uuid4().hex
        return retry_while_unavailable(lambda: answered(self, name, arguments), PATIENCE_S)

    @property
    def _id(self) -> int:
        return self.row.graph_id

    def ask_status(self) -> object:
        return status_document(self.row.name, self.graphs.outline(self._id))

    def ask_jobs(self, paths: list[str] | None, after: int) -> object:
        if paths is None:
            rows = self.graphs.list_steps(self._id, int(after), PAGE)
            last = rows[-1].number if len(rows) == PAGE else None
        else:
            inside = [step for step in self._inside(paths) if step.number > after]
            rows = (
                self.graphs.list_steps(self._id, paths=[step.path for step in inside[:PAGE]])
                if inside
                else []
            )
            rows = explained(self.graphs, self._id, rows)
            last = inside[PAGE - 1].number if len(inside) > PAGE else None
        return {"jobs": rows, "after": last}

    def ask_recorded(self, paths: list[str] | None) -> object:
        given = values_of(self.graphs, self._id, self._inside(paths))
        return self.host.give(({"path": step.path.split("/")}, parts) for step, parts in given)

    def ask_context(self, path: str) -> object:
        number = next((row.number for row in self._named([path])), None) if path else None
        return self.host.give((_CONTEXT, [data]) for data in self.graphs.context(self._id, number))

    def ask_cancel(self, paths: list[str] | None, reason: str | None) -> object:
        return self._command(CancelSteps(requested_by=self._me, names=paths, reason=reason).apply)

    def ask_retry(self, paths: list[str] | None, cascade: bool, fresh: bool) -> object:
        return self._command(
            RetrySteps(requested_by=self._me, names=paths, cascade=cascade, fresh=fresh).apply
        )

    def ask_append(self, bytes: int) -> object:
        steps = self._spec(bytes).steps
        return self._command(lambda graph: len(graph.add(steps)))

    def ask_start(self, bytes: int, **asked: Any) -> object:
        return self.start(self._me, self.host.taken(bytes), **asked)

    def ask_graft(self, path: str, attempt: int, bytes: int) -> object:
        work = self.work
        if (path, attempt) != (work.path, work.attempt):
            raise Fenced(
                f"step {path!r:.200}: only the executing step may graft; it is {work.path!r}"
            )
        if not work.graft:
            raise InvalidRequest(f"step {path!r:.200} is not a graft; add it with add_graft")
        spec = self._spec(bytes)
        self.graphs.begin_graft(self._id, work.number, work.attempt, spec, fingerprint(spec))
        self._wake()
        return None

    def ask_cancelled(self, path: str, attempt: int) -> object:
        if path == self.work.path:
            return attempt != self.work.attempt or self.cancelled()
        return any(
            row.attempt != attempt or row.state != StepState.EXECUTING
            for row in self._named([path])
        )

    def ask_crawls(self, paths: list[str]) -> object:
        known = {row.path for row in self._named(paths)}
        inside = self._inside([path for path in paths if path in known][:1])
        crawls = [step.path for step in inside if STEP_RULES[step.kind].brings_items]
        rows = [
            row
            for begin in range(0, len(crawls), PAGE)
            for row in self._named(crawls[begin : begin + PAGE])
        ]
        return [{name: getattr(row, name) for name in CRAWL} for row in rows]

    # --- helpers of the answers

    @property
    def _me(self) -> str:
        return f"step {self.work.path}"[-255:]

    def _command(self, how: Callable[[Graph], int]) -> int:
        changed = self.graphs.command(self._id, self._request_id, how)
        self._wake()
        return changed

    def _wake(self) -> None:
        try:
            self.directory.wake(graph_workflow_id(self.row.key))
        except TemporalUnavailable as error:
            log.info(
                "graph %s was not woken and continues after this call: %s", self.row.key, error
            )

    def _spec(self, size: int) -> GraphSpec:
        return decode_pages(self.host.taken(size), GraphOptions())

    def _rows(self) -> Iterator[StepRow]:
        after: int | None = -1
        while after is not None:
            rows = self.graphs.list_steps(self._id, after)
            yield from rows
            after = rows[-1].number if rows else None

    def _named(self, paths: Sequence[str]) -> list[StepRow]:
        if not all(isinstance(path, str) for path in paths):
            raise InvalidRequest(f"paths: {paths!r:.100} is not allowed; give a list of strings")
        return (
            self.graphs.list_steps(self._id, limit=max(1, len(paths)), paths=paths) if paths else []
        )

    def _inside(self, paths: list[str] | None) -> list[StepFacts]:
        """Return these steps and all steps inside them; ``None`` means all steps."""
        rows = self._rows() if paths is None else self._named(paths)
        return self.graphs.given(self._id, [row.number for row in rows])
