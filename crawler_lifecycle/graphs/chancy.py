"""Graphs under the names of Chancy: ``chancy``, ``chancy.plugins.workflow`` and
``chancy.plugins.leadership`` become ``crawler_lifecycle.graphs.chancy``.

Some names exist and do nothing. A graph here needs no loop, so these have no effect:
``Leadership``, ``polling_interval``, ``max_workflows_per_run``, ``process_workflow``, ``run``,
``get_scope``, ``migrate_key``, ``migrate_package``, ``api_plugin``. The installation removes old
workflows, so ``pruning_rule`` and ``cleanup`` have no effect either. docs/graphs.md lists
the names that are left out.
"""

from __future__ import annotations

import warnings
from collections import abc
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from typing import Any, ClassVar, Self, TextIO, TypeVar

from crawler_lifecycle.domain.bounds import refusal
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.starts import derived_id
from crawler_lifecycle.features.graphs.domain.checks import check_cycle, shown
from crawler_lifecycle.features.graphs.domain.kinds import CONTAINING
from crawler_lifecycle.features.graphs.domain.spec import GraphSpec

from .asking import asked, current, use
from .job import time_of
from .jobs import NewJob, function, job_of
from .platform import Document, Platform
from .workflow import AnyOrder, new_id

#: The package and version whose names this module has.
FOLLOWS = "chancy 0.26.0"

F = TypeVar("F", bound=Callable[..., Any])


class Chancy:
    """A connection: ``async with Chancy(address, plugins=[…])`` uses the gateway with this address.

    Without an ``http://`` or ``https://`` address it uses the gateway that ``crawlctl`` would call.
    """

    def __init__(
        self, dsn: str | None = None, *, plugins: abc.Sequence[Any] = (), **_: Any
    ) -> None:
        self.dsn = dsn
        self.plugins = list(plugins)
        self._former: list[Platform | None] = []

    async def __aenter__(self) -> Self:
        if self.dsn is not None and self.dsn.startswith(("http://", "https://")):
            from .client import Gateway  # this loads an HTTP client

            self._former.append(use(Gateway(self.dsn)))
        elif self.dsn is not None:
            scheme = self.dsn.partition(":")[0]  # the rest may contain a password
            warnings.warn(
                f"Chancy({scheme}:…): not an address of a gateway; using the gateway of crawlctl",
                stacklevel=2,
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._former:
            use(self._former.pop())


class Leadership:
    """A plugin that does nothing; it exists so that users can name it in ``plugins``."""

    def __init__(self, **_: Any) -> None: ...


ImmediateLeadership = Leadership


# --- jobs -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Limit:
    """A limit of a job: ``Limit(Limit.Type.TIME, 60)``, in seconds."""

    class Type(Enum):
        TIME = "time"
        MEMORY = "memory"

    type_: Type
    value: int


@dataclass(frozen=True)
class Job:
    """The function of a step, with its options."""

    func: Callable[..., Any]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    queue: str = "default"
    priority: int = 0
    """Jobs with higher numbers are started first."""
    max_attempts: int = 1
    scheduled_at: datetime | None = None
    limits: abc.Sequence[Limit] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_func(cls, func: Callable[..., Any], **options: Any) -> Self:
        """Return the job of a function."""
        return cls(func, **options)

    def with_kwargs(self, **kwargs: Any) -> Self:
        """Return the same job with other arguments."""
        return replace(self, kwargs=kwargs)

    def __getattr__(self, name: str) -> Callable[[Any], Self]:
        """Return a method such as ``with_queue``, which returns the same job with a different value
        in this field.
        """
        if name.removeprefix("with_") in _JOB_FIELDS and name.startswith("with_"):
            return lambda value: replace(self, **{name.removeprefix("with_"): value})
        raise AttributeError(f"a Job has no attribute {name!r}")

    def new(self) -> NewJob:
        """Return the job in the form for a graph. As in Chancy, the function's return value is not
        recorded.
        """
        times = [limit.value for limit in self.limits if limit.type_ is Limit.Type.TIME]
        if len(times) != len(self.limits):
            raise refusal(
                "limits",
                self.limits,
                "give time limits only; LIFECYCLE_USER_CODE__MEMORY limits memory",
            )
        made = function(
            self.func,
            "plain",
            self.kwargs,
            record=False,
            **({"meta": dict(self.meta)} if self.meta else {}),
        )
        chosen = {
            "queue": self.queue,
            "max_attempts": self.max_attempts,
            "priority": min(9, max(0, 5 - self.priority)),
        }
        if self.scheduled_at is not None:
            chosen["not_before"] = self.scheduled_at
        if times:
            chosen["timeout_s"] = min(times)
        return made.having(**chosen)


_JOB_FIELDS = ("queue", "priority", "max_attempts", "scheduled_at", "limits", "meta")


def job(**options: Any) -> Callable[[F], F]:
    """Return a decorator that gives the function an attribute ``job``, so that it can be a step."""

    def decorated(func: F) -> F:
        func.job = Job(func, **options)  # type: ignore[attr-defined]
        return func

    return decorated


def _new_job(thing: Any) -> NewJob:
    found = thing if isinstance(thing, NewJob) else getattr(thing, "job", thing)
    return found.new() if isinstance(found, Job) else job_of(found)


# --- workflows ------------------------------------------------------------------------------------


class CircularDependencyError(InvalidRequest):
    """Raised for steps that wait for one another."""


class InvalidDependencyError(InvalidRequest):
    """Raised if a dependency does not exist."""


class EmptyWorkflowError(InvalidRequest):
    """Raised for a workflow without steps."""


class StepState(Enum):
    """States of a step."""

    PENDING = "pending"
    RUNNING = "running"
    RETRYING = "retrying"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class QueuedJob:
    """Holds the states of a step under Chancy's name."""

    State = StepState


#: Chancy's states of a step by our states. A step that was cancelled before it began has no state
#: in Chancy.
_STEP_STATES = {
    **dict.fromkeys(("suspended", "scheduled", "available"), StepState.PENDING),
    "executing": StepState.RUNNING,
    "retryable": StepState.RETRYING,
    "completed": StepState.SUCCEEDED,
    "discarded": StepState.FAILED,
}
_COLOURS = {
    "pending": "lightblue",
    "running": "yellow",
    "succeeded": "lightgreen",
    "failed": "lightpink",
}


@dataclass
class WorkflowStep:
    """A step: its job, and its state when the workflow was fetched."""

    job: Any
    step_id: str
    dependencies: list[str] = field(default_factory=list)
    state: StepState | None = StepState.PENDING
    job_id: str | None = None
    """``None`` until the step begins."""


@dataclass
class Workflow:
    """A graph of steps, built here or fetched from the gateway.

    >>> import asyncio
    >>> from crawler_lifecycle.graphs.chancy import Chancy, Workflow, WorkflowPlugin, job
    >>> from crawler_lifecycle.graphs.testing import in_memory
    >>> @job(max_attempts=3)
    ... def fetch(page):
    ...     print("page", page)
    >>> async def main():
    ...     workflow = Workflow("pages").add("one", fetch.job.with_kwargs(page=1))
    ...     workflow.add("two", fetch.job.with_kwargs(page=2), ["one"])
    ...     async with Chancy() as chancy:
    ...         id = await WorkflowPlugin.push(chancy, workflow)
    ...         return (await WorkflowPlugin.wait_for_workflow(chancy, id)).state
    >>> with in_memory():
    ...     asyncio.run(main())
    page 1
    page 2
    <State.COMPLETED: 'completed'>
    """

    class State(Enum):
        PENDING = "pending"
        RUNNING = "running"
        COMPLETED = "completed"
        FAILED = "failed"

    name: str
    steps: dict[str, WorkflowStep] = field(default_factory=dict)
    state: State = State.PENDING
    id: str = field(default_factory=lambda: derived_id() or new_id())
    created_at: datetime | None = None
    updated_at: datetime | None = None

    def add(self, step_id: Any, job: Any, dependencies: abc.Sequence[str] | None = None) -> Self:
        """Add a step, or replace the step with this id. ``step_id`` and ``job`` can be given in
        either order.
        """
        if not isinstance(step_id, str):
            step_id, job = job, step_id
        if not isinstance(step_id, str):
            raise refusal("step_id", step_id, "give a string")
        self.steps[step_id] = WorkflowStep(job, step_id, list(dependencies or []))
        return self

    def add_group(
        self, jobs: abc.Sequence[tuple[Any, Any]], dependencies: abc.Sequence[str] | None = None
    ) -> Self:
        """Add several steps with the same dependencies."""
        for step_id, new_job in jobs:
            self.add(step_id, new_job, dependencies)
        return self

    def __iadd__(self, step: WorkflowStep) -> Self:
        self.steps[step.step_id] = step
        return self

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[tuple[str, WorkflowStep]]:
        return iter(self.steps.items())

    def __getitem__(self, step_id: str) -> WorkflowStep:
        return self.steps[step_id]

    def __delitem__(self, step_id: str) -> None:
        del self.steps[step_id]

    def validate(self) -> None:
        """Raise ``EmptyWorkflowError``, ``InvalidDependencyError`` or ``CircularDependencyError``
        if the workflow cannot run.
        """
        if not self.steps:
            raise EmptyWorkflowError("steps: a workflow needs at least one step; add one")
        numbers = {step_id: number for number, step_id in enumerate(self.steps)}
        deps = []
        for step_id, step in self:
            if unknown := [dep for dep in step.dependencies if dep not in numbers]:
                text = f"step {shown(step_id)}: deps: there is no step {shown(unknown[0])}"
                raise InvalidDependencyError(f"{text}; add it, or leave out the dependency")
            deps.append([numbers[dep] for dep in step.dependencies])
        try:
            check_cycle(deps, list(self.steps).__getitem__)
        except InvalidRequest as error:
            raise CircularDependencyError(str(error)) from None

    @property
    def is_complete(self) -> bool:
        """Return whether the workflow is completed or failed."""
        return self.state in (Workflow.State.COMPLETED, Workflow.State.FAILED)

    @property
    def is_running(self) -> bool:
        return self.state is Workflow.State.RUNNING

    @property
    def steps_by_state(self) -> dict[StepState | None, list[WorkflowStep]]:
        """Return the steps by state, omitting states that no step has."""
        found: dict[StepState | None, list[WorkflowStep]] = {}
        for step in self.steps.values():
            found.setdefault(step.state, []).append(step)
        return found

    def spec(self, there: Collection[str] = ()) -> GraphSpec:
        """Return the graph to send, excluding the steps in ``there``, which the gateway already
        has. After a step has failed permanently, no other step starts. Raises ``InvalidRequest``.
        """
        found = AnyOrder(self.name, id=self.id, fail_fast=True, check_deps=not there)
        for step in (step for step in self.steps.values() if step.step_id not in there):
            found.add(step.step_id, _new_job(step.job), step.dependencies)
        return found.spec()


class Sequence:
    """Steps ``step_0``, ``step_1``, …, each of which waits for the previous step."""

    def __init__(self, name: str, jobs: abc.Sequence[Any] | None = None) -> None:
        self.name = name
        self.jobs = list(jobs or [])
        self.id = derived_id() or new_id()

    def add(self, job: Any) -> Self:
        """Append a step."""
        self.jobs.append(job)
        return self

    def push(self, chancy: Chancy) -> Any:
        """Start the sequence as a workflow and return its id."""
        workflow = Workflow(self.name, id=self.id)
        for n, new_job in enumerate(self.jobs):
            workflow.add(f"step_{n}", new_job, [f"step_{n - 1}"] if n else [])
        return WorkflowPlugin.push(chancy, workflow)


# --- the plugin -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """A rule for the removal of ended workflows. It has no effect, because the installation removes
    them.
    """

    text: str

    def __and__(self, other: Rule) -> Rule:
        return Rule(f"({self.text} AND {other.text})")

    def __or__(self, other: Rule) -> Rule:
        return Rule(f"({self.text} OR {other.text})")

    def to_sql(self) -> str:
        """Return the rule as an SQL condition."""
        return self.text


class Age(Rule):
    """The age of a workflow in seconds, to build a rule such as ``Age() > 3600``."""

    def __init__(self) -> None:
        super().__init__("age")

    def __gt__(self, seconds: float) -> Rule:
        return Rule(f"age > {seconds:g}")

    def __lt__(self, seconds: float) -> Rule:
        return Rule(f"age < {seconds:g}")


class WorkflowPlugin:
    """Starts and fetches workflows of a gateway.

    Methods that must be awaited in Chancy can also be called synchronously here.
    """

    class Rules:
        """The parts of a ``pruning_rule``."""

        Age: ClassVar[type[Age]] = Age

    def __init__(
        self,
        *,
        polling_interval: int = 30,
        max_workflows_per_run: int = 1000,
        pruning_rule: Rule | None = None,
        max_pending_workflows: int = 10_000,
    ) -> None:
        self.polling_interval = polling_interval
        self.max_workflows_per_run = max_workflows_per_run
        self.max_pending_workflows = max_pending_workflows
        self.pruning_rule = Age() > 86_400 if pruning_rule is None else pruning_rule

    @staticmethod
    @asked
    def push(chancy: Chancy, workflow: Workflow) -> str:
        """Start a workflow and return its id.

        If the gateway already has a workflow with this id, its missing steps are added; a job can
        only start a new workflow. Raises what ``validate`` raises, and ``InvalidRequest``.
        """
        workflow.validate()
        platform = current()
        if getattr(platform, "only_starts", False):
            platform.send(workflow.id, workflow.spec(), name=workflow.name, tags=())
            return workflow.id
        if platform.find(states=(), keys=[workflow.id], limit=1):
            more = workflow.spec({job["path"] for job in platform.jobs(workflow.id, None)})
            if more.steps:
                platform.append(workflow.id, more)
        else:
            platform.send(workflow.id, workflow.spec(), name=workflow.name, tags=())
        found = _fetched(workflow.id)
        workflow.state = found.state
        workflow.created_at = found.created_at
        workflow.updated_at = found.updated_at
        return workflow.id

    @classmethod
    def push_ex(cls, cursor: Any, chancy: Chancy, workflow: Workflow, worker: Any = None) -> Any:
        """Do the same as ``push``. The workflow starts at once, regardless of the transaction of
        ``cursor``.
        """
        if cursor is not None:
            warnings.warn(
                "push_ex: it is not part of your transaction; call push after the commit",
                stacklevel=2,
            )
        return cls.push(chancy, workflow)

    @staticmethod
    @asked
    def fetch_workflow(chancy: Chancy, id_: str) -> Workflow | None:
        """Return the ``Workflow`` in its current state, or ``None`` if it does not exist."""
        try:
            return _fetched(id_)
        except KeyError:
            return None

    @staticmethod
    @asked
    def fetch_workflows(
        chancy: Chancy,
        *,
        states: Collection[str] | None = None,
        ids: abc.Sequence[str] | None = None,
        limit: int = 100,
    ) -> list[Workflow]:
        """Return up to ``limit`` workflows in these states and with these ids, newest first."""
        wanted = {str(getattr(state, "value", state)) for state in states or Workflow.State}
        if ids is not None and not ids:
            return []
        ours = {word for state in wanted for word in _GRAPH_STATES[state]}
        rows = current().find(states=ours, keys=ids or (), limit=10 * limit)
        found = (one for row in rows if (one := _workflow(row)).state.value in wanted)
        return [row for _, row in zip(range(limit), found, strict=False)]

    @staticmethod
    @asked
    def wait_for_workflow(
        chancy: Chancy, workflow_id: str, *, interval: int = 1, timeout: float | None = None
    ) -> Workflow:
        """Wait until the ``Workflow`` has completed, failed or been cancelled, and return it.

        Raises ``KeyError`` if it does not exist, and ``TimeoutError`` after ``timeout`` seconds.
        """
        current().wait(workflow_id, timeout)
        return _fetched(workflow_id)

    @staticmethod
    def generate_dot(workflow: Workflow, output: TextIO) -> None:
        """Write a workflow to ``output`` in the DOT language of Graphviz."""
        name = _escaped(workflow.name)
        lines = []
        for step_id, step in workflow:
            state = step.state.value if step.state else "unstarted"
            text = _escaped(step_id)
            colour = _COLOURS.get(state, "lightgray")
            lines.append(f'"{text}" [label="{text}\\n({state})", fillcolor={colour}];')
        for step_id, step in workflow:
            lines += [f'"{_escaped(dep)}" -> "{_escaped(step_id)}";' for dep in step.dependencies]
        output.write(f'digraph "{name}" {{\n  rankdir=TB;\n')
        output.write('  node [shape=box, style="rounded,filled", fontname="Arial"];\n')
        output.writelines(f"  {line}\n" for line in lines)
        output.write(
            f'  labelloc="t";\n  label="Workflow: {name}\\nState: {workflow.state.value}";\n}}\n'
        )

    async def cleanup(self, chancy: Chancy) -> None:
        """Do nothing, because ``crawlctl db prune`` removes steps and results of old graphs."""

    async def process_workflow(self, *_: Any) -> None:
        """Do nothing, because a graph needs no loop and workers execute its steps."""

    run = process_workflow

    @staticmethod
    def get_scope(*_: Any) -> None:
        """Do nothing. There is no loop, ``crawlctl db upgrade`` creates tables, and the gateway has
        ``/v1/graphs``.
        """

    migrate_key = migrate_package = api_plugin = get_scope


#: Our possible states by Chancy's state of a workflow. A graph may still execute after one of its
#: steps has failed.
_GRAPH_STATES = {
    "pending": ("executing",),
    "running": ("executing",),
    "completed": ("completed",),
    "failed": ("executing", "cancelled", "discarded"),
}


def _fetched(workflow_id: str) -> Workflow:
    rows = current().find(states=(), keys=[workflow_id], limit=1)
    if not rows:
        raise KeyError(f"no workflow has the id {workflow_id!r}; push it first")
    return _workflow(rows[0])


def _workflow(row: Document) -> Workflow:
    """Return a graph as Chancy's users see it. Chancy has no sub-graphs, so a sub-graph becomes a
    step that depends on the steps in it. These steps also wait for the dependencies of the
    sub-graph.
    """
    found = Workflow(row["name"] or "", id=row["id"], state=_state(row))
    found.created_at = time_of(row["created_at"])
    found.updated_at = time_of(row["updated_at"])
    rows = {job["path"]: job for job in current().jobs(row["id"], None)}
    inside: dict[str, list[str]] = {path: [] for path in ("", *rows)}
    for path in rows:
        inside[path.rpartition("/")[0]].append(path)
    attached = {
        path: inside[path] for path, entry in rows.items() if entry["kind"] not in CONTAINING
    }
    awaited: dict[str, list[str]] = {"": []}  # the dependencies of the steps in each sub-graph
    for path, entry in rows.items():
        level, slash, _ = path.rpartition("/")
        named = [level + slash + dep.rpartition("/")[2] for dep in entry["deps"]]
        is_graph = entry["kind"] in CONTAINING
        deps = [
            dep for name in named if name in rows for dep in (name, *attached.get(name, ()))
        ] or awaited[level]
        awaited[path] = deps if is_graph else [path]
        deps = (is_graph and inside[path]) or deps
        state = entry["state"]
        begun = bool(entry["attempt"])
        theirs = _STEP_STATES.get(state, StepState.FAILED if begun else None)
        job_id = f"{row['id']}/{path}" if begun else None
        found.steps[path] = WorkflowStep(
            NewJob(entry["kind"], entry["job"]), path, list(deps), theirs, job_id
        )
    return found


def _state(row: Document) -> Workflow.State:
    if row["state"] == "completed":
        return Workflow.State.COMPLETED
    if row["state"] != "executing" or row["counts"].get("discarded"):
        return Workflow.State.FAILED
    return Workflow.State.RUNNING if row["started_at"] else Workflow.State.PENDING


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
