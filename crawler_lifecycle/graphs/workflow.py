"""``Workflow``, which builds a graph, and is a handle on a graph that is executing or has ended.

Methods that build return the workflow, so calls can be chained. Questions and commands must be
awaited in async code. Elsewhere they are ordinary calls (``asking.asked``).
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar, Self

from crawler_lifecycle.domain.bounds import refusal, travels
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.starts import derived_id
from crawler_lifecycle.domain.values import NoValue, to_json
from crawler_lifecycle.features.graphs.domain import render
from crawler_lifecycle.features.graphs.domain.checks import check, check_name, shown
from crawler_lifecycle.features.graphs.domain.kinds import CONTAINING, STEP_RULES
from crawler_lifecycle.features.graphs.domain.spec import (
    DEPTH_MAX,
    NAME_MAX,
    GraphOptions,
    GraphSpec,
    StepKind,
    StepSpec,
)

from .asking import asked, current
from .job import Job, time_of
from .jobs import NewJob, amount, function, job_of, step_options
from .platform import Document, nested

Names = str | Iterable[str] | None
#: The number of characters that are kept of a key that is too long for a step's name. A hash of the
#: whole key follows.
_KEPT = 60
#: The options of ``add_cascade`` with items that belong to the group. All other options belong to
#: its steps.
_OF_THE_GROUP = ("dependencies", "max_parallel", "ignore_cancelled", "ignore_discarded", "replace")


@dataclass(frozen=True, slots=True)
class Status:
    """The progress of a graph or sub-graph.

    >>> from statistics import mean
    >>> from crawler_lifecycle.graphs import Workflow
    >>> from crawler_lifecycle.graphs.testing import in_memory
    >>> with in_memory():
    ...     status = Workflow("prices").add("mean", mean, args={"data": [1, 3]}).start().wait()
    >>> status.name, status.state, status.total, status.counts
    ('prices', 'completed', 1, {'completed': 1})
    """

    id: str
    name: str | None
    state: str
    """``executing``, ``completed``, ``cancelled``, ``discarded``, or ``unknown`` if the graph does
    not exist.
    """
    total: int = 0
    """The number of jobs, including jobs of sub-graphs."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """The number of jobs in each state."""
    duration: timedelta | None = None
    """The time from the first start to the last end, or ``None`` before the graph has ended."""
    started_at: datetime | None = None
    stopped_at: datetime | None = None
    subs: Mapping[str, Status] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Graph:
    """The steps and dependencies of a workflow.

    >>> from crawler_lifecycle.graphs import Workflow, crawl
    >>> workflow = Workflow().add("shop", crawl("shop.com")).add("feed", crawl("feed"), "shop")
    >>> graph = workflow.to_graph()
    >>> graph.vertices, graph.edges
    ({'shop': 'shop.com', 'feed': 'feed'}, [('shop', 'feed')])
    """

    vertices: Mapping[str, str | Graph]
    """The worker, function or crawler of each step, or the ``Graph`` of a sub-graph, by name."""
    edges: Sequence[tuple[str, str]]
    """Pairs of a dependency and the step that depends on it."""


@dataclass(slots=True)
class _Step:
    """One step of one level. The path in its spec is only its name."""

    spec: StepSpec
    sub: Workflow | None = None


class Workflow:
    """A graph of steps, with methods that build it, start it, and query it.

    >>> from crawler_lifecycle.graphs import Workflow, crawl
    >>> from crawler_lifecycle.graphs.testing import in_memory
    >>> def report(context):
    ...     return f"{context['shop']['items']} items in {context['currency']}"
    >>> workflow = Workflow("prices").add_context({"currency": "EUR"})
    >>> workflow = workflow.add("shop", crawl("shop.com", args={"country": "de"}))
    >>> workflow = workflow.add_cascade("report", report, "shop")
    >>> with in_memory(crawls={"shop.com": {"outcome": "finished", "items": 7}}):
    ...     print(workflow.start().wait().state, workflow.get_recorded("report"))
    completed 7 items in EUR
    """

    #: Default options of a function's step.
    _defaults: ClassVar[Mapping[str, Any]] = {}
    #: Default of the option ``cascade`` of ``retry_jobs``.
    _cascade: ClassVar[bool] = True
    #: True if a step may be added before its dependencies, which must exist when the graph is sent.
    _any_order: ClassVar[bool] = False

    def __init__(
        self,
        name: str | None = None,
        *,
        id: str | None = None,
        check_deps: bool = True,
        ignore_cancelled: bool = False,
        ignore_discarded: bool = False,
        fail_fast: bool = False,
        max_parallel: int | None = None,
        pools: Mapping[str, Any] | None = None,
        tags: Sequence[str] = (),
    ) -> None:
        """Begin a graph.

        - ``name`` is a name for people.
        - ``id`` identifies the graph. A second start with the same id does nothing.
        - ``check_deps`` requires that each dependency exists when a step names it. If it is false,
          the dependency may be appended later.
        - ``ignore_cancelled`` and ``ignore_discarded`` make a cancelled or discarded dependency
          count as completed. A step can override this.
        - If ``fail_fast`` is true, no further step starts after a step was discarded.
        - ``max_parallel`` is the maximum number of steps that execute at once.
        - ``pools`` has the total amount of each resource.
        - ``tags`` are tags by which the graph can be found.
        """
        self.id = new_id() if id is None else id
        self._anonymous = id is None
        check_name(self.id, "id")
        self.name = name
        self.ignore_cancelled = ignore_cancelled
        self.ignore_discarded = ignore_discarded
        self.tags = list(tags)
        amounts = {pool: amount(pool, value) for pool, value in (pools or {}).items()}
        self._options = GraphOptions(check_deps, fail_fast, max_parallel, amounts)
        self._context: dict[str, Any] | None = None
        self._steps: dict[str, _Step] = {}
        self._level = ""

    # --- building ---------------------------------------------------------------------------------

    def add(
        self,
        name: str,
        job: Any,
        deps: Names = None,
        *,
        args: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Self:
        """Add a step. Raises ``InvalidRequest`` and ``NoValue``.

        - ``name`` must be unique on its level.
        - ``job`` is a function, a worker's ``.new(…)``, ``crawl(…)``, ``manager(…)`` or a
          ``Workflow``.
        - ``deps`` (or ``dependencies``) are the names of the steps that this step waits for.
        - ``args`` are the arguments of a function, by name.
        - ``options``: ``replace=True`` replaces the step with this name. Other options are
          ``ignore_cancelled``, ``ignore_discarded``, and the options of a job (``timeout_s``,
          ``max_attempts``, ``backoff_s``, ``priority``, ``not_before``, ``queue``, ``resources``).
        """
        if isinstance(job, Workflow):
            return self.add_workflow(name, job, deps, **options)
        return self._add(name, job, deps, options, args)

    def add_group(
        self, jobs: Iterable[tuple[str, Any]], deps: Names = None, *, dependencies: Names = None
    ) -> Self:
        """Add several steps with the same dependencies."""
        deps = _names(deps, dependencies)
        for name, job in jobs:
            self.add(name, job, deps)
        return self

    def add_workflow(self, name: str, sub: Workflow, deps: Names = None, **options: Any) -> Self:
        """Add a graph as one step. This step waits for ``deps``, and steps that depend on it wait
        for all steps of the added graph.
        """
        with _at(name):
            if not isinstance(sub, Workflow):
                raise refusal("sub", sub, "give a Workflow")
            sub._check_part()
        job = NewJob(StepKind.GRAPH, {"name": sub.name} if sub.name else {})
        return self._put(name, job, deps, options, sub)

    def add_many(
        self, name: str, jobs: Iterable[Any] | Mapping[str, Any], deps: Names = None, **options: Any
    ) -> Self:
        """Add jobs as a sub-graph.

        Jobs of a list are named by their index, and jobs of a dictionary by their keys. A character
        that a name cannot have, such as the ``/`` of a URL, becomes ``_``. ``max_parallel`` limits
        the jobs that execute at once.
        """
        named = jobs.items() if isinstance(jobs, Mapping) else enumerate(jobs)
        return self._group(name, named, deps, options)

    def add_cascade(self, name: str, what: Any, deps: Names = None, **options: Any) -> Self:
        """Add a function that gets a context: the values of ``add_context``, and the results of its
        dependencies by name.

        ``what`` can also be ``(items, function)``. Then the function is called once for each item
        of a list or dictionary, with the item and the context. Steps are named as by ``add_many``.
        Return values are recorded.
        """
        with _at(name):
            if not isinstance(what, tuple):
                return self._add(name, function(what, "cascade"), deps, options)
            items, called = what
            own = {option: options.pop(option) for option in _OF_THE_GROUP if option in options}
            first = function(called, "item").having(**options)
            named = items.items() if isinstance(items, Mapping) else enumerate(items)
            each = [
                (key, replace(first, job={**first.job, "item": to_json(item, f"item {key!r}")}))
                for key, item in named
            ]
        return self._group(name, each, deps, own)

    def add_graft(self, name: str, job: Any, deps: Names = None, **options: Any) -> Self:
        """Add a graft, which is a step that can attach a graph below itself while it is executing.

        ``job`` is a worker, or a function that gets the context of a cascade. The worker or
        function returns the graph or calls ``apply_graft``. Steps that depend on the graft also
        wait for the attached graph.
        """
        with _at(name):
            grafter = job_of(job, style="cascade")
        return self._add(name, grafter, deps, options, graft=True)

    def add_context(self, value: Mapping[str, Any]) -> Self:
        """Add values to the context of every cascade, even in sub-graphs. The new values replace
        values with the same names.
        """
        try:
            self._context = {**(self._context or {}), **to_json(dict(value), "context")}
        except NoValue as error:
            raise InvalidRequest(str(error)) from None
        return self

    def _add(
        self,
        name: str,
        what: Any,
        deps: Names,
        options: dict[str, Any],
        args: Mapping[str, Any] | None = None,
        *,
        graft: bool = False,
    ) -> Self:
        with _at(name):
            job = job_of(what, args)
        defaults = self._defaults if STEP_RULES[job.kind].called else {}
        return self._put(name, job, deps, {**defaults, **job.options, **options}, graft=graft)

    def _group(
        self, name: str, jobs: Iterable[tuple[Any, Any]], deps: Names, options: dict[str, Any]
    ) -> Self:
        sub = type(self)()
        sub.ignore_cancelled = self.ignore_cancelled
        sub.ignore_discarded = self.ignore_discarded
        for key, job in jobs:
            sub._add(sub.name_of(str(key), f"step {shown(name)}: key"), job, None, {})
        return self._put(name, NewJob(StepKind.GRAPH, {"fan_out": True}), deps, options, sub)

    def name_of(self, key: str, where: str) -> str:
        """Return the name of a new step for a key, which is the key without the characters that a
        name cannot have. Raises ``InvalidRequest``, whose message begins with ``where``, if a step
        has this name.
        """
        name = "".join(
            character if character.isprintable() and character != "/" else "_" for character in key
        )
        if name and not travels(name, NAME_MAX):
            name = f"{name[:_KEPT]}…{hashlib.sha256(key.encode(errors='replace')).hexdigest()[:16]}"
        if name in self._steps:
            raise refusal(where, key, f"another key has the step {shown(name)}; use different keys")
        return name

    def _put(
        self,
        name: str,
        job: NewJob,
        deps: Names,
        options: dict[str, Any],
        sub: Workflow | None = None,
        *,
        graft: bool = False,
    ) -> Self:
        with _at(name):
            replace = options.pop("replace", False)
            named = _names(deps, options.pop("dependencies", None))
            if name in self._steps and not replace:
                raise InvalidRequest(
                    "a step with this name exists; choose another name, or give replace=True"
                )
            if name in named:
                raise InvalidRequest("it depends on itself; remove this dependency")
            unknown = next((name for name in named if name not in self._steps), None)
            if unknown is not None and self._options.check_deps and not self._any_order:
                fix = "add it first, or build with Workflow(check_deps=False) and append it later"
                raise InvalidRequest(f"deps: there is no step {shown(unknown)}; {fix}")
            own = {"graft": graft, "max_parallel": options.pop("max_parallel", None)}
            for option in ("ignore_cancelled", "ignore_discarded"):
                given = options.pop(option, None)
                own[option] = getattr(self, option) if given is None else bool(given)
            if sub is not None:
                own["max_parallel"] = own["max_parallel"] or sub._options.max_parallel
            self._steps[name] = _Step(
                StepSpec(name, job.kind, job.job, named, **own, **step_options(options)), sub
            )
        return self

    # --- the graph that was built -----------------------------------------------------------------

    def spec(self) -> GraphSpec:
        """Return the whole graph in the form in which it is sent. Raises ``InvalidRequest`` with
        the step, the value and the fix.
        """
        found = GraphSpec(list(self._flat("", 1)), self._options, self._context or {})
        check(found)
        return found

    def part(self, where: str) -> GraphSpec:
        """Return the spec of a graph that becomes part of another graph.

        Raises ``InvalidRequest``, whose message begins with ``where``.
        """
        try:
            self._check_part()
            return self.spec()
        except InvalidRequest as error:
            raise InvalidRequest(f"{where}: {error}") from None

    def _check_part(self) -> None:
        if self._options.fail_fast or self._options.pools:
            raise InvalidRequest(
                "fail_fast and pools are for a whole graph; give them to the outermost Workflow"
            )

    def _flat(self, above: str, depth: int) -> Iterator[StepSpec]:
        if depth > DEPTH_MAX:
            raise InvalidRequest(
                f"step {shown(above[:-1])}: graphs may be {DEPTH_MAX} levels deep; does the graph "
                "contain itself?"
            )
        for name, step in self._steps.items():
            spec = step.spec
            sub = step.sub
            if sub is not None and sub._context is not None:
                spec = replace(spec, job={**spec.job, "context": sub._context})
            yield replace(spec, path=above + name)
            if sub is not None:
                yield from sub._flat(f"{above}{name}/", depth + 1)

    def __len__(self) -> int:
        return len(self._steps)

    def __bool__(self) -> bool:
        return True

    def to_graph(self) -> Any:
        """Return the ``Graph`` with names and dependencies. A sub-graph is a ``Graph`` too.

        A workflow without steps of its own is a handle. The graph of a handle is read from the
        platform, and the call must be awaited in async code. The same applies to ``to_dot`` and
        ``to_mermaid``.
        """
        return self._drawn(_graph)

    def to_dot(self) -> Any:
        """Return the graph as text in the DOT language of Graphviz."""
        return self._drawn(lambda steps: render.to_dot(steps, name=self.name))

    def to_mermaid(self) -> Any:
        """Return the graph as text for a Mermaid flowchart."""
        return self._drawn(render.to_mermaid)

    def _drawn(self, draw: Callable[[Sequence[StepSpec]], object]) -> Any:
        return (
            draw(self.spec().steps) if self._steps or self._anonymous else self._drawn_as_sent(draw)
        )

    @asked
    def _drawn_as_sent(self, draw: Callable[[Sequence[StepSpec]], object]) -> object:
        steps = []
        for job in current().jobs(self.id, self._chosen()):
            if job["path"] != self._level:
                path = job["path"].removeprefix(self._path(""))
                deps = tuple(dep.rpartition("/")[2] for dep in job["deps"])
                steps.append(StepSpec(path, StepKind(job["kind"]), job["job"], deps))
        return draw(steps)

    # --- asking -----------------------------------------------------------------------------------

    @classmethod
    def for_job(cls, job: Job) -> Self:
        """Return a handle on the graph of a job, or on the sub-graph that contains the job."""
        found = cls(id=job.graph)
        found._level = job.path.rpartition("/")[0]
        return found

    def sub(self, name: str) -> Self:
        """Return a handle on a sub-graph of this graph."""
        found = type(self)(id=self.id)
        found._level = self._path(name)
        return found

    @asked
    def start(self) -> Workflow:
        """Start this graph and return the workflow.

        If the same graph has already started, nothing changes.

        Without an id, a graph that a step or a hook starts gets an id here, which is the same in
        each execution of that code. Raises ``DuplicateRequest`` if another graph has this id.
        """
        spec = self.spec()
        if self._anonymous:
            self.id, self._anonymous = derived_id() or self.id, False
        current().send(self.id, spec, name=self.name, tags=self.tags)
        return self

    @asked
    def status(self) -> Status:
        """Return the progress. The state of an unknown graph is ``unknown``."""
        found = current().status(self.id)
        for name in self._level.split("/") if self._level else ():
            found = (found or {}).get("subs", {}).get(name)
        return Status(self.id, None, "unknown") if found is None else _status(self.id, found)

    @asked
    def get_job(self, name: str) -> Job | None:
        """Return the ``Job`` with this name, or ``None`` if there is none."""
        return self._job(self._path(name))

    @asked
    def all_jobs(self, *, names: Names = None, deps_of: Job | str | None = None) -> list[Job]:
        """Return jobs in the order in which they were added, including jobs of sub-graphs.

        - If ``names`` is given, return only these jobs. The name of a sub-graph means all jobs in
          it.
        - If ``deps_of`` is given, return only the dependencies of this job.
        """
        return self._jobs(self._chosen(names, deps_of))

    @asked
    def get_recorded(self, name: str) -> Any:
        """Return this step's result in the form that dependents get, or ``None`` if the step has no
        result. For a crawl, this is a dictionary about the end of its run. For a sub-graph, it is a
        dictionary of results by name, in the order of the steps. A step that completed without a
        result has ``None`` there.
        """
        path = self._path(name)
        return nested(current().recorded(self.id, [path]), path)

    @asked
    def all_recorded(
        self, *, names: Names = None, deps_of: Job | str | None = None
    ) -> dict[str, Any]:
        """Return a dictionary of results by name, in the order of the steps and in the form that
        dependents get.

        Results of sub-graphs are nested dictionaries.
        """
        paths = self._chosen(names, deps_of)
        return {} if paths == [] else nested(current().recorded(self.id, paths), self._level) or {}

    @asked
    def get_context(self) -> dict[str, Any] | None:
        """Return the values of ``add_context`` in this graph and those around it, or ``None``."""
        return current().context(self.id, self._level)

    @asked
    def wait(self, timeout: float | None = None) -> Status:
        """Wait until the whole graph has ended, and return its ``Status``.

        Raises ``KeyError`` for an unknown graph, and ``TimeoutError`` after ``timeout`` seconds.
        """
        return _status(self.id, current().wait(self.id, timeout))

    # --- commands ---------------------------------------------------------------------------------

    @asked
    def cancel_jobs(self, *, names: Names = None, reason: str | None = None) -> int:
        """Cancel jobs and the jobs that depend on them. Return how many of these jobs had not
        ended.

        An executing job is cancelled at once, and its code is asked to end.
        """
        paths = self._chosen(names)
        return current().cancel(self.id, paths, reason) if paths != [] else 0

    @asked
    def retry_jobs(
        self, *, names: Names = None, cascade: bool | None = None, fresh: bool = False
    ) -> int:
        """Start discarded, cancelled and waiting jobs again, and completed jobs if they are named.
        Return the number of restarted jobs.

        - If ``cascade`` is true, also restart jobs that were cancelled because of these jobs.
        - If ``fresh`` is true, a crawl gets a new run. Otherwise, the crawl's existing run is
          resumed.
        """
        with_dependents = self._cascade if cascade is None else cascade
        paths = self._chosen(names)
        return (
            current().retry(self.id, paths, cascade=with_dependents, fresh=fresh)
            if paths != []
            else 0
        )

    @asked
    def append(self, more: Workflow) -> int:
        """Add the steps of ``more`` to this graph, even after the end of this graph, and return the
        number of these steps. If they depend on steps in this graph, build ``more`` with
        ``check_deps=False``.
        """
        spec = more.part("append")
        if spec.context:
            raise InvalidRequest(
                "append: new steps get the context of the graph; leave out add_context"
            )
        return current().append(self.id, spec)

    @staticmethod
    @asked
    def apply_graft(job: Job, sub: Workflow) -> Workflow:
        """Attach a graph below the executing graft ``job``, and return ``sub``.

        An attempt may attach only one graph; attaching the same graph again changes nothing. Raises
        ``InvalidRequest``, ``DuplicateRequest`` for a second graph, and ``Fenced`` if the job is
        not executing.
        """
        if sub.id == job.graph:
            raise refusal("sub", sub.id, "give a new Workflow: the job belongs to this graph")
        spec = sub.part(f"graft of step {shown(job.path)}")
        current().graft(job.graph, job.path, job.attempt, spec)
        return sub

    # --- helpers ----------------------------------------------------------------------------------

    def _path(self, name: str) -> str:
        return f"{self._level}/{name}" if self._level else name

    def _chosen(self, names: Names = None, deps_of: Job | str | None = None) -> list[str] | None:
        """Return the paths of the selected jobs; ``None`` means all jobs of the whole graph."""
        if deps_of is None:
            if names is None:
                return [self._level] if self._level else None
            return [self._path(name) for name in _names(names, None)]
        path = self._path(deps_of) if isinstance(deps_of, str) else deps_of.path
        own = self._job(path)
        wanted = None if names is None else set(_names(names, None))
        level = path.rpartition("/")[0]
        deps = [name for name in (own.deps if own else ()) if wanted is None or name in wanted]
        return [f"{level}/{name}" if level else name for name in deps]

    def _jobs(self, paths: list[str] | None) -> list[Job]:
        if paths is not None and not paths:
            return []
        return [
            Job.of(self.id, job)
            for job in current().jobs(self.id, paths)
            if job["kind"] not in CONTAINING
        ]

    def _job(self, path: str) -> Job | None:
        return next((job for job in self._jobs([path]) if job.path == path), None)


class AnyOrder(Workflow):
    """A graph that allows steps before their dependencies, which must exist when it is sent."""

    _any_order = True


def new_id() -> str:
    """Return a new unique id. Later ids are greater (UUIDv7)."""
    number = (time.time_ns() // 1_000_000 << 80) | (uuid.uuid4().int & ((1 << 80) - 1))
    return str(uuid.UUID(int=number & ~(0xF << 76) | 0x7 << 76))


@contextmanager
def _at(name: str) -> Iterator[None]:
    """Put the name of the step into every ``InvalidRequest`` that is raised inside."""
    check_name(name, "step")
    try:
        yield
    except (ValueError, TypeError) as error:
        text = str(error)
        raise InvalidRequest(
            text if text.startswith("step ") else f"step {shown(name)}: {text}"
        ) from None


def _names(deps: Names, dependencies: Names) -> tuple[str, ...]:
    given = deps if dependencies is None else dependencies
    if deps and dependencies:
        raise InvalidRequest("deps and dependencies mean the same; give only one of them")
    if given is None:
        return ()
    if isinstance(given, str):
        return (given,)
    found = tuple(dict.fromkeys(given))
    if not all(isinstance(step, str) for step in found):
        raise refusal("deps", found, "give names of steps: a string, or a list of strings")
    return found


def _graph(steps: Iterable[StepSpec]) -> Graph:
    vertices: dict[str, dict[str, str | Graph]] = defaultdict(dict, {"": {}})
    edges: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for step in steps:
        level, _, name = step.path.rpartition("/")
        vertices[level][name] = render.label(step)
        edges[level] += ((dep, name) for dep in step.deps)
        if step.kind in CONTAINING:
            vertices[step.path] = {}
    for path in filter(None, vertices):
        level, _, name = path.rpartition("/")
        vertices[level][name] = Graph(vertices[path], edges[path])
    return Graph(vertices[""], edges[""])


def _status(key: str, found: Document) -> Status:
    started = time_of(found.get("started_at"))
    stopped = time_of(found.get("stopped_at"))
    subs = {name: _status(key, inner) for name, inner in found.get("subs", {}).items()}
    took = stopped - started if started and stopped else None
    name = found.get("name")
    state = found["state"]
    total = found["total"]
    counts = found["counts"]
    return Status(key, name, state, total, counts, took, started, stopped, subs)
