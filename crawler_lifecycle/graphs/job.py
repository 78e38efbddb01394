"""``Job``: a step as the code sees it that it calls, and as a handle finds it; and what that code may answer."""

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

#: Seconds for which the answer of ``cancelled`` holds.
ASKED_S = 0.5
#: Bytes that ``Record`` takes when nothing is said.
RECORD_MAX = 64 * 1024 * 1024


@dataclass
class Job:
    """A step of a graph. What it says is of the moment when it was asked for.

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
    """The id of the graph; ``path``: the step's name after the names of the graphs that it is in."""
    path: str
    kind: str = "function"
    state: str = "executing"
    args: dict[str, Any] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    """``name``, ``workflow_id``, ``snoozed``, and what the job was given as ``meta``."""
    worker: str | None = None
    """``module:qualname`` of what is called; of a crawl its crawler, of a manager its class."""
    deps: Sequence[str] = ()
    """Names of steps of the same level."""
    attempt: int = 0
    max_attempts: int = 1
    errors: Sequence[Mapping[str, Any]] = ()
    """``attempt``, ``at``, ``error`` of each execution that failed; the last 20."""
    outcome: str | None = None
    reason: str | None = None
    """One sentence: who cancelled it and why, how it failed; of one that was asked for by name what it waits for."""
    ending: bool = False
    """Cancelled, and it is not proved yet that nothing of it runs."""
    run_id: int | None = None
    not_before: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    _asked: tuple[float, bool] = field(default=(0.0, False), repr=False, compare=False)

    @classmethod
    def of(cls, graph: str, found: Document) -> Job:
        """The job that this document of a step means (``Platform.jobs``)."""
        what = found.get("job") or {}
        meta = {**of_json(what.get("meta", {})), "name": found["path"].rpartition("/")[2], "workflow_id": graph}
        told = {name: found[name] for name in _AS_IT_IS if name in found}
        times: dict[str, Any] = {name: time_of(found.get(name)) for name in ("not_before", "started_at", "ended_at")}
        return cls(
            graph,
            args=of_json(what.get("args", {})),
            meta=meta | {"snoozed": found.get("snoozed", 0)},
            worker=what.get("call") or what.get("crawler") or what.get("plan"),
            deps=[dep.rpartition("/")[2] for dep in found.get("deps", ())],
            errors=[{**one, "at": time_of(one.get("at"))} for one in found.get("errors", ())],
            **told,
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
        """32 characters that are of this step alone, and the same however often it is executed. Give it to whatever
        must happen once."""
        return hashlib.sha256(self.id.encode()).hexdigest()[:32]

    def cancelled(self) -> bool:
        """Return whether this execution is to end, because the step was cancelled. Cheap enough for every turn of a
        loop."""
        asked_at, answer = self._asked
        now = time.monotonic()
        if not answer and (asked_at == 0.0 or now - asked_at >= ASKED_S):
            answer = current().cancelled(self.graph, self.path, self.attempt)
            self._asked = (now, answer)
        return answer

    def items(self, step: str | None = None, *, partial: bool = False, **which: Unpack[Which]) -> Items:
        """The items of a crawl of this graph, one after the other.

        ``step`` names it, beside this step or around it; the name of a graph means all crawls in it, in their order.
        Without it this step is meant.
        ``task``: only of the task with this index. ``offset``, ``limit``: so many are passed over, so many come then.
        ``fields``: only these of each item. A crawl that has not completed is refused unless ``partial`` is true: then
        its items count as far as they came. Raises ``InvalidRequest``.

        >>> from crawler_lifecycle.graphs import Workflow, crawl, current_job
        >>> from crawler_lifecycle.graphs.testing import in_memory
        >>> def dearest():
        ...     return max(item["price"] for item in current_job().items("shop", fields=["price"]))
        >>> with in_memory(crawls={"shop.com": {"outcome": "finished", "items": [{"price": 7}, {"price": 9}]}}):
        ...     workflow = Workflow().add("shop", crawl("shop.com")).add("report", dearest, "shop").start()
        ...     _ = workflow.wait()
        ...     print(workflow.get_recorded("report"))
        9
        """
        return Items(current(), self._runs(step, partial=partial), **which)

    def files(self, step: str | None = None, *, partial: bool = False) -> list[RunFile]:
        """The supporting files of a crawl of this graph; ``step`` and ``partial`` as for ``items``."""
        return [file for run_id in self._runs(step, partial=partial) for file in current().run_files(run_id)]

    def open(self, step: str | None, name: str, *, partial: bool = False) -> BinaryIO:
        """One of these files, to be read. Raises ``InvalidRequest`` where there is none of this name."""
        return open_file(current(), self._runs(step, partial=partial), name)

    def _runs(self, step: str | None, *, partial: bool) -> list[int]:
        """The runs of the crawls that a name means. Raises ``InvalidRequest``."""
        if step is not None and not isinstance(step, str):
            raise refusal("step", step, "give the name of a step")
        *above, own = self.path.split("/")
        paths = ["/".join([*above[:depth], step or own]) for depth in range(len(above), -1, -1)]
        found = current().crawls(self.graph, paths if step else [self.path])
        if not found:
            raise refusal("step", step or self.path, "name a step that crawls, or a graph with such steps")
        for one in found:
            if one["state"] != "completed" and not partial:
                how = f"{one['state']} ({one['outcome']})" if one["outcome"] else one["state"]
                raise refusal("step", one["path"], f"it is {how}; partial=True reads what there is")
        return [one["run_id"] for one in found if one["run_id"] is not None]


_AS_IT_IS = ("path", "kind", "state", "attempt", "max_attempts", "outcome", "reason", "ending", "run_id")
_current: list[Job] = []


def current_job() -> Job:
    """The job of the function that is executed. Raises ``RuntimeError`` anywhere else.

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
        raise RuntimeError("no step of a graph is executed here; ask in a function or a worker of a graph")
    return _current[-1]


def executing(job: Job | None) -> None:
    """Have ``current_job`` answer this one."""
    _current[:] = [job] if job else []


def time_of(value: Any) -> Any:
    """A time that a document tells, as text or as it is."""
    return datetime.fromisoformat(value) if isinstance(value, str) else value


# --- answers of a function or a worker --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cancel:
    """The step is cancelled; what depends on it is too, unless it ignores that.

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
    """For people: why."""


@dataclass(frozen=True, slots=True)
class Snooze:
    """The step is tried again after so many seconds, and this time does not count.

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
    """At most a year of them."""

    def __post_init__(self) -> None:
        if not 0 <= self.seconds <= YEAR_S:
            raise refusal("seconds", self.seconds, f"give 0 to {YEAR_S:g} seconds")


@dataclass(frozen=True, slots=True)
class Record:
    """A worker's result. (A function's result is recorded without it.)

    >>> from crawler_lifecycle.graphs import Record
    >>> Record({"items": 7}, limit=1_000_000)
    Record(value={'items': 7}, limit=1000000)
    """

    value: Any
    """A value that JSON can hold, and dates, times, decimals, UUIDs and bytes."""
    limit: int = RECORD_MAX
    """Most bytes of it; a larger one fails the try."""
