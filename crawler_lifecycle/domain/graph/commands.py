"""Messages to a graph and its answers: orders, commands of people, its snapshot and its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from crawler_lifecycle.domain.bounds import LIMITS, check_number, check_request_id, check_text, refusal
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.managers.manager import NAME_MAX as MANAGER_NAME_MAX
from crawler_lifecycle.domain.names import REQUEST_ID_MAX, request_fingerprint
from crawler_lifecycle.domain.run import StopIntent

from .checks import check_step
from .engine import Graph
from .spec import GraphState, StepSpec, StepState

_STRICT = {"extra": "forbid", "allow_inf_nan": False}
#: The most steps that one command names, and that it appends.
NAMED_MAX, APPENDED_MAX = 1000, 500
#: Characters of who asks for something and why.
TEXT_MAX = 255


@dataclass(frozen=True, slots=True)
class GraphOrder:
    """The input of a graph's workflow: the key of its row. All other data is in the row."""

    __pydantic_config__: ClassVar = _STRICT

    graph_id: int

    def __post_init__(self) -> None:
        check_number("graph_id", self.graph_id, LIMITS["run_id"])


@dataclass(frozen=True, slots=True)
class GraphResult:
    """The result of a graph's workflow, which its parent gets too. A failed graph is a successful workflow."""

    graph_id: int
    key: str
    name: str | None
    attempt: int
    state: GraphState
    cause: str | None


@dataclass(frozen=True, slots=True)
class GraphSnapshot:
    """Answer of the query ``status``: the workflow's own knowledge. The steps are in the database."""

    graph_id: int
    key: str
    name: str | None
    attempt: int
    state: GraphState
    counts: Mapping[str, int] = field(default_factory=dict)
    """Steps by state, as they were last written."""
    calls: int = 0
    """Calls of functions that have not answered."""
    stop: StopIntent | None = None
    cause: str | None = None
    waiting: str | None = None
    """One sentence: what it waits for."""
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StepsCommand:
    """The fields of every command about steps."""

    request_id: str | None = None
    """Makes a repeat harmless; when missing, that of the update."""
    requested_by: str | None = None

    def __post_init__(self) -> None:
        check_request_id(self.request_id)
        check_text("requested_by", self.requested_by)

    def apply(self, graph: Graph) -> int:
        """Carry it out. Returns how many steps it changed. Raises ``InvalidRequest``."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class CancelSteps(StepsCommand):
    """Cancel steps, the steps in them and those that depend on them: the payload of the update ``cancel_steps``."""

    __pydantic_config__: ClassVar = _STRICT

    names: list[str] | None = None
    """Steps by their paths; ``None``: all."""
    reason: str | None = None

    def __post_init__(self) -> None:
        StepsCommand.__post_init__(self)
        _check_named(self.names)
        if self.reason is not None and len(self.reason) > TEXT_MAX:
            raise refusal("reason", self.reason, f"give at most {TEXT_MAX} characters")

    def apply(self, graph: Graph) -> int:
        why = f": {self.reason}" if self.reason else ""
        return graph.cancel(_numbers(graph, self.names), f"cancelled by {self.requested_by or 'somebody'}{why}")


@dataclass(frozen=True, slots=True)
class RetrySteps(StepsCommand):
    """Let steps begin again: the payload of the update ``retry_steps``."""

    __pydantic_config__: ClassVar = _STRICT

    names: list[str] | None = None
    """Steps by their paths; ``None``: all steps that were discarded or cancelled, or wait for their next try."""
    cascade: bool = True
    """True when dependents that were cancelled because of these steps begin again as well."""
    fresh: bool = False
    """True when crawls get a new run; otherwise the existing run is resumed."""

    def __post_init__(self) -> None:
        StepsCommand.__post_init__(self)
        _check_named(self.names)

    def apply(self, graph: Graph) -> int:
        return graph.retry(_numbers(graph, self.names), cascade=self.cascade, fresh=self.fresh)


@dataclass(frozen=True, slots=True)
class AppendSteps(StepsCommand):
    """Append steps: the payload of the update ``append_steps``."""

    __pydantic_config__: ClassVar = _STRICT

    steps: list[StepSpec] = field(default_factory=list)

    def __post_init__(self) -> None:
        StepsCommand.__post_init__(self)
        if not 0 < len(self.steps) <= APPENDED_MAX:
            raise InvalidRequest(f"steps: {len(self.steps)} are not allowed; append 1 to {APPENDED_MAX} at once")
        for step in self.steps:
            check_step(step)

    def apply(self, graph: Graph) -> int:
        return len(graph.add(self.steps))


def _check_named(names: list[str] | None) -> None:
    if names is not None and not 0 < len(names) <= NAMED_MAX:
        raise InvalidRequest(f"names: {len(names)} are not allowed; name 1 to {NAMED_MAX}, or none for all")


def _numbers(graph: Graph, names: list[str] | None) -> list[int] | None:
    return None if names is None else graph.numbers(names)


def cause_of(graph: Graph) -> str | None:
    """One sentence: why a graph that ended was discarded or cancelled; ``None`` for one that completed."""
    state = {GraphState.DISCARDED: StepState.DISCARDED, GraphState.CANCELLED: StepState.CANCELLED}.get(graph.state)
    steps = [step for step in graph.steps if step.state is state]
    if not steps:
        return None
    more = f", and {len(steps) - 1} more" if len(steps) > 1 else ""
    why = f": {steps[0].reason}" if steps[0].reason else ""
    return f"Step {steps[0].path!r} was {state}{why}{more}"


def step_request_id(key: str, path: str, attempt: int) -> str:
    """The request id of a crawl's run; every try to begin it has the same id."""
    whole = f"graph/{key}/{path}/{attempt}"
    if len(whole) <= REQUEST_ID_MAX and whole.isprintable():
        return whole
    return f"graph/{request_fingerprint(key)}/{request_fingerprint(path)}/{attempt}"


def step_manager(graph_uid: str, number: int, job: Mapping[str, Any]) -> tuple[str, str]:
    """Name and flow id of a step's manager, the same for every try to begin it: those of its job, or names of ours."""
    name = job.get("name") or job["plan"].rpartition(":")[2][-MANAGER_NAME_MAX:].lstrip("_.-")
    return name, job.get("flow_id") or f"{graph_uid}.{number}"


def step_of_request(key: str, request_id: str) -> tuple[str, int] | None:
    """The fingerprint of a step's path, and its attempt, out of such a request id; ``None`` for any other."""
    whole, _, attempt = request_id.rpartition("/")
    if not (attempt.isascii() and attempt.isdigit()):
        return None
    if whole.startswith(f"graph/{key}/"):
        return request_fingerprint(whole.removeprefix(f"graph/{key}/")), int(attempt)
    hashed = f"graph/{request_fingerprint(key)}/"
    return (whole.removeprefix(hashed), int(attempt)) if whole.startswith(hashed) else None
