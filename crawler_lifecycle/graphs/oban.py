"""Graphs under the names of Oban Pro: ``oban`` and ``oban_pro`` become
``crawler_lifecycle.graphs.oban``.

``Workflow`` has the parameter order and the defaults of Oban: a job is tried twenty times, and a
retry does not restart cancelled dependents. Everything else is the same as in
``crawler_lifecycle.graphs``. docs/graphs.md lists the names of Oban that are left out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from crawler_lifecycle.domain.bounds import refusal

from .job import Cancel, Job, Record, Snooze, current_job
from .jobs import NewJob, function, worker
from .workflow import Graph, Status
from .workflow import Workflow as _Workflow

#: The package and version whose names this module has. No public package contains the workflows of
#: Oban Pro.
FOLLOWS = "oban 0.7.0"
WorkflowStatus = Status
__all__ = [
    "Cancel",
    "Graph",
    "Job",
    "Record",
    "Snooze",
    "Workflow",
    "WorkflowStatus",
    "current_job",
    "enqueue_many",
    "job",
    "worker",
]
F = TypeVar("F", bound=Callable[..., Any])


class Workflow(_Workflow):
    """A graph with the parameters and defaults of Oban.

    >>> from crawler_lifecycle.graphs.oban import Record, Workflow, enqueue_many, worker
    >>> from crawler_lifecycle.graphs.testing import in_memory
    >>> @worker()
    ... class Fetch:
    ...     def process(self, job):
    ...         return Record(job.args["page"])
    >>> with in_memory():
    ...     workflow = Workflow(name="pages").add("one", Fetch.new({"page": 1}))
    ...     _ = enqueue_many(workflow.add("two", Fetch.new({"page": 2}), "one"))
    ...     print(workflow.wait().counts, workflow.all_recorded())
    {'completed': 2} {'one': 1, 'two': 2}
    """

    _defaults: ClassVar[Mapping[str, Any]] = {"max_attempts": 20, "backoff_s": 15.0}
    _cascade: ClassVar[bool] = False

    def __init__(
        self,
        id: str | None = None,
        name: str | None = None,
        check_deps: bool = True,
        ignore_cancelled: bool = False,
        ignore_discarded: bool = False,
        **more: Any,
    ) -> None:
        super().__init__(
            name,
            id=id,
            check_deps=check_deps,
            ignore_cancelled=ignore_cancelled,
            ignore_discarded=ignore_discarded,
            **more,
        )

    @staticmethod
    def apply_graft(job: Job, sub_workflow: _Workflow) -> Graft:
        """Return a graft, which ``enqueue_many`` attaches below the running job."""
        return Graft(job, sub_workflow)


def job(**options: Any) -> Callable[[F], F]:
    """Return a decorator that gives a function a method ``new``, which creates a job with its
    arguments.
    """

    def decorated(func: F) -> F:
        def new(*args: Any, **named: Any) -> NewJob:
            given = inspect.signature(func).bind(*args, **named).arguments
            return function(func, "plain", given, record=False).having(**options)

        func.new = new  # type: ignore[attr-defined]
        return func

    return decorated


@dataclass(frozen=True, slots=True)
class Graft:
    """A graph to attach below a running job."""

    job: Job
    sub: _Workflow

    def start(self) -> Any:
        """Attach the graph and return it."""
        return _Workflow.apply_graft(self.job, self.sub)


def enqueue_many(workflow: _Workflow | Graft) -> Any:
    """Start or attach a graph atomically, and return it. A graph with the same id is started only
    once.
    """
    if not isinstance(workflow, _Workflow | Graft):
        raise refusal(
            "workflow",
            workflow,
            "give a Workflow or the result of apply_graft; put a single job into a Workflow",
        )
    return workflow.start()
