"""``Job``, which is a step as its own code and handles see it, and the special return values of
that code.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, BinaryIO, Unpack

from crawler_lifecycle.domain.bounds import YEAR_S, refusal
from crawler_lifecycle.domain.run_data import Items, RunFile, Which, open_file
from crawler_lifecycle.domain.values import of_json

from .asking import current
from .platform import Document

#: The number of seconds for which ``cancelled`` repeats its last result.
ASKED_S = 0.5
#: Default limit of ``Record`` in bytes.
RECORD_MAX = 64 * 1024 * 1024


@dataclass
class Job:
    """A step of a graph, as of the time when it was read.

    >>> from crawler_lifecycle.graphs import Workflow, crawl
    >>> from crawler_lifecycle.graphs.testing import in_memory
    >>> with in_memory(crawls={"shop.com": "banned"}):
    ...     workflow = Workflow().add("shop", crawl("shop.com")).start()
    ...     _ = workflow.wait()
    ...     job = workflow.get_job("shop")
    >>> job.name, job.kind, job.state, job.outcome, job.attempt
    ('shop', 'crawl', 'discarded', 'banned', 1)
    """

    graph: str
    """The id of the graph."""
    path: str
    """The names of the sub-graphs around the step and its own name, such as ``walks/2``."""
    kind: str = "function"
    state: str = "executing"
    args: dict[str, Any] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    """``name``, ``workflow_id``, ``snoozed``, and the ``meta`` of the job."""
    worker: str | None = None
    """``module:qualname`` of the called code, or the crawler of a crawl, or the class of a
    manager.
    """
    deps: Sequence[str] = ()
    """Names of the steps on the same level that this step depends on."""
    attempt: int = 0
    max_attempts: int = 1
    errors: Sequence[Mapping[str, Any]] = ()
    """``attempt``, ``at`` and ``error`` of the last 20 executions that failed."""
    outcome: str | None = None
    reason: str | None = None
    """One sentence about who cancelled the step and why, how the step failed, or what it is waiting
    for.
    """
    ending: bool = False
    """True while the step is cancelled but may still be executing."""
    run_id: int | None = None
    not_before: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    _asked: tuple[float, bool] = field(default=(0.0, False), repr=False, compare=False)

    @classmethod
    def of(cls, graph: str, found: Document) -> Job:
        """Return the job for a document of a step (``Platform.jobs``)."""
        what = found.get("job") or {}
        meta = {
            **of_json(what.get("meta", {})),
            "name": found["path"].rpartition("/")[2],
            "workflow_id": graph,
        }
        same = {name: found[name] for name in _AS_IT_IS if name in found}
        times = {
            name: time_of(found.get(name)) for name in ("not_before", "started_at", "ended_at")
        }
        return cls(
            graph,
            args=of_json(what.get("args", {})),
            meta=meta | {"snoozed": found.get("snoozed", 0)},
            worker=what.get("call") or what.get("crawler") or what.get("plan"),
            deps=[dep.rpartition("/")[2] for dep in found.get("deps", ())],
            errors=[{**error, "at": time_of(error.get("at"))} for error in found.get("errors", ())],
            **same,
            **times,
        )

    @property
    def id(self) -> str:
        return f"{self.graph}/{self.path}"

    @property
    def name(self) -> str:
        return str(self.meta["name"])

    @property
    def key(self) -> str:
        """An id of 32 characters for this step, which is the same in each execution of the step.

        Use it as a key for work that must happen only once.
        """
        return hashlib.sha256(self.id.encode()).hexdigest()[:32]

    def cancelled(self) -> bool:
        """Return whether the step was cancelled, so that this execution must end.

        The call is cheap, because the platform is queried at most once every ``ASKED_S`` seconds.
        """
        asked_at, answer = self._asked
        now = time.monotonic()
        if not answer and (asked_at == 0.0 or now - asked_at >= ASKED_S):
            answer = current().cancelled(self.graph, self.path, self.attempt)
            self._asked = (now, answer)
        return answer

    def items(
        self, step: str | None = None, *, partial: bool = False, **which: Unpack[Which]
    ) -> Items:
        """Return the items of a crawl in this graph.

        - ``step`` is the name of the crawl, on the level of this step or above it. The default is
          this step. The name of a sub-graph means all crawls in it, in order.
        - If ``task`` is given, return only items of the task with this index.
        - Skip ``offset`` items, and return at most ``limit`` items.
        - If ``fields`` is given, return only these fields of each item.
        - If ``code`` is true, add the digest (``_code``) and the version (``_version``) of the code
          that made each item.
        - If ``partial`` is true, also read a crawl that has not completed, and return the items
          that the crawl has stored so far.

        Raises ``InvalidRequest``.

        >>> from crawler_lifecycle.graphs import Workflow, crawl, current_job
        >>> from crawler_lifecycle.graphs.testing import in_memory
        >>> def dearest():
        ...     return max(item["price"] for item in current_job().items("shop", fields=["price"]))
        >>> shop = {"outcome": "finished", "items": [{"price": 7}, {"price": 9}]}
        >>> workflow = Workflow().add("shop", crawl("shop.com")).add("report", dearest, "shop")
        >>> with in_memory(crawls={"shop.com": shop}):
        ...     _ = workflow.start().wait()
        ...     print(workflow.get_recorded("report"))
        9
        """
        return Items(current(), self._runs(step, partial=partial), **which)

    def files(self, step: str | None = None, *, partial: bool = False) -> list[RunFile]:
        """Return the supporting files of a crawl in this graph. ``step`` and ``partial`` have the
        same meaning as in ``items``.
        """
        return [
            file
            for run_id in self._runs(step, partial=partial)
            for file in current().run_files(run_id)
        ]

    def open(self, step: str | None, name: str, *, partial: bool = False) -> BinaryIO:
        """Open one of these files for reading.

        Raises ``InvalidRequest`` if no file has this name.
        """
        return open_file(current(), self._runs(step, partial=partial), name)

    def _runs(self, step: str | None, *, partial: bool) -> list[int]:
        """Return the runs of the crawls with this name. Raises ``InvalidRequest``."""
        if step is not None and not isinstance(step, str):
            raise refusal("step", step, "give the name of a step")
        *above, own = self.path.split("/")
        paths = ["/".join([*above[:depth], step or own]) for depth in range(len(above), -1, -1)]
        found = current().crawls(self.graph, paths if step else [self.path])
        if not found:
            raise refusal(
                "step", step or self.path, "name a step that crawls, or a graph with such steps"
            )
        for error in found:
            if error["state"] != "completed" and not partial:
                how = (
                    f"{error['state']} ({error['outcome']})" if error["outcome"] else error["state"]
                )
                raise refusal("step", error["path"], f"it is {how}; use partial=True to read it")
        return [error["run_id"] for error in found if error["run_id"] is not None]


_AS_IT_IS = (
    "path",
    "kind",
    "state",
    "attempt",
    "max_attempts",
    "outcome",
    "reason",
    "ending",
    "run_id",
)
_current: list[Job] = []


def current_job() -> Job:
    """Return the job of the function that is executing. Raises ``RuntimeError`` outside of a step.

    >>> from crawler_lifecycle.graphs import Workflow, current_job
    >>> from crawler_lifecycle.graphs.testing import in_memory
    >>> def send(text):
    ...     return f"{text}, once for {current_job().name}"
    >>> with in_memory():
    ...     workflow = Workflow().add("mail", send, args={"text": "hello"}).start()
    ...     _ = workflow.wait()
    ...     print(workflow.get_recorded("mail"))
    hello, once for mail
    """
    if not _current:
        raise RuntimeError(
            "no step of a graph is executing here; call current_job() in a function or worker of "
            "a graph"
        )
    return _current[-1]


def executing(job: Job | None) -> None:
    """Set the job that ``current_job`` returns."""
    _current[:] = [job] if job else []


def time_of(value: Any) -> Any:
    """Return a time in a document. A string is parsed as ISO 8601, and any other value is returned
    unchanged.
    """
    return datetime.fromisoformat(value) if isinstance(value, str) else value


# --- special return values of a function or a worker ----------------------------------------------


@dataclass(frozen=True, slots=True)
class Cancel:
    """A return value that cancels the step, and the steps that depend on it unless they ignore
    cancelled ones.

    >>> from crawler_lifecycle.graphs import Cancel, Workflow
    >>> from crawler_lifecycle.graphs.testing import in_memory
    >>> def check():
    ...     return Cancel("nothing is new")
    >>> with in_memory():
    ...     workflow = Workflow().add("check", check).start()
    ...     print(workflow.wait().state, workflow.get_job("check").reason)
    cancelled nothing is new
    """

    reason: str = "it returned Cancel"
    """The reason, for people."""


@dataclass(frozen=True, slots=True)
class Snooze:
    """A return value that executes the step again after some seconds. The current execution does
    not count as a try.

    >>> from crawler_lifecycle.graphs import Snooze, Workflow, current_job
    >>> from crawler_lifecycle.graphs.testing import in_memory
    >>> def check():
    ...     return Snooze(60) if current_job().attempt < 3 else "ready"
    >>> with in_memory():
    ...     status = Workflow().add("check", check).start().wait()
    >>> status.state, status.duration
    ('completed', datetime.timedelta(seconds=120))
    """

    seconds: float
    """The number of seconds to wait, at most a year."""

    def __post_init__(self) -> None:
        if not 0 <= self.seconds <= YEAR_S:
            raise refusal("seconds", self.seconds, f"give 0 to {YEAR_S:g} seconds")


@dataclass(frozen=True, slots=True)
class Record:
    """A return value that records a worker's result. A function needs no ``Record``, because its
    return value is recorded.

    >>> from crawler_lifecycle.graphs import Record
    >>> Record({"items": 7}, limit=1_000_000)
    Record(value={'items': 7}, limit=1000000)
    """

    value: Any
    """A JSON value; dates, times, decimals, UUIDs and bytes are allowed too."""
    limit: int = RECORD_MAX
    """The maximum size of the recorded value in bytes; if the value is larger, the try fails."""
