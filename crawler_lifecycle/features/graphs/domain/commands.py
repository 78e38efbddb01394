"""Messages to and from a graph's workflow: its input, people's commands, its snapshot and its
result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

from crawler_lifecycle.domain.bounds import (
    LIMITS,
    STRICT,
    check_number,
    check_request_id,
    check_text,
    refusal,
)
from crawler_lifecycle.domain.errors import InvalidRequest, NotInThisState
from crawler_lifecycle.domain.names import GRAPH_WORKFLOW, REQUEST_ID_MAX, request_fingerprint
from crawler_lifecycle.domain.run import StopIntent
from crawler_lifecycle.features.managers.domain.manager import NAME_MAX as MANAGER_NAME_MAX

from .checks import check_step, shown
from .engine import Graph, StepEnd
from .spec import PATH_MAX, GraphState, StepKind, StepSpec, StepState

#: The maximum number of steps that one command may name, and the maximum that it may append.
NAMED_MAX = 1000
APPENDED_MAX = 500
#: The maximum number of characters in a command's reason.
TEXT_MAX = 255


@dataclass(frozen=True, slots=True)
class GraphOrder:
    """The input of a graph's workflow: the id of its row. All other data is in the row."""

    __pydantic_config__: ClassVar = STRICT
    WORKFLOW: ClassVar = GRAPH_WORKFLOW
    WAKES: ClassVar = True
    ASKED: ClassVar = (
        "order",
        'start the workflow with the graph of a stored row, for example {"graph_id": 7}',
    )

    graph_id: int

    def __post_init__(self) -> None:
        check_number("graph_id", self.graph_id, LIMITS["run_id"])


@dataclass(frozen=True, slots=True)
class GraphResult:
    """The result of a graph's workflow, which its parent also receives.

    The workflow succeeds even if the graph failed.
    """

    graph_id: int
    key: str
    name: str | None
    attempt: int
    state: GraphState
    cause: str | None


@dataclass(frozen=True, slots=True)
class GraphSnapshot(GraphResult):
    """The response to the query ``status``: the state of the workflow itself. The steps are in the
    database.
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    """The number of steps in each state, as last written."""
    calls: int = 0
    """The number of function calls that have not returned yet."""
    stop: StopIntent | None = None
    waiting: str | None = None
    """A sentence about what the graph is waiting for."""
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class StepsCommand:
    """The fields of every command about steps."""

    __pydantic_config__: ClassVar = STRICT

    request_id: str | None = None
    """A repeated command with the same id has no effect. The default is the id of the update.
    """
    requested_by: str | None = None

    def __post_init__(self) -> None:
        check_request_id(self.request_id)
        check_text("requested_by", self.requested_by)

    def apply(self, graph: Graph) -> int:
        """Carry out the command. Return the number of changed steps. Raises ``InvalidRequest``."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class CancelSteps(StepsCommand):
    """The payload of the update ``cancel_steps``, which cancels steps, the steps in them and their
    dependents.
    """

    names: list[str] | None = None
    """Paths of steps; ``None`` means all steps."""
    reason: str | None = None

    def __post_init__(self) -> None:
        StepsCommand.__post_init__(self)
        _check_named(self.names)
        if self.reason is not None and len(self.reason) > TEXT_MAX:
            raise refusal("reason", self.reason, f"give at most {TEXT_MAX} characters")

    def apply(self, graph: Graph) -> int:
        why = f": {self.reason}" if self.reason else ""
        return graph.cancel(
            _numbers(graph, self.names), f"cancelled by {self.requested_by or 'somebody'}{why}"
        )


@dataclass(frozen=True, slots=True)
class RetrySteps(StepsCommand):
    """The payload of the update ``retry_steps``: restart steps."""

    names: list[str] | None = None
    """Paths of steps; ``None`` means all steps that were discarded or cancelled, or are waiting for
    their next try.
    """
    cascade: bool = True
    """True to also restart the dependents that were cancelled because of these steps."""
    fresh: bool = False
    """True to give crawls a new run; otherwise the existing run is resumed."""

    def __post_init__(self) -> None:
        StepsCommand.__post_init__(self)
        _check_named(self.names)

    def apply(self, graph: Graph) -> int:
        return graph.retry(_numbers(graph, self.names), cascade=self.cascade, fresh=self.fresh)


@dataclass(frozen=True, slots=True)
class AppendSteps(StepsCommand):
    """The payload of the update ``append_steps``: append steps."""

    steps: list[StepSpec] = field(default_factory=list)

    def __post_init__(self) -> None:
        StepsCommand.__post_init__(self)
        if not 0 < len(self.steps) <= APPENDED_MAX:
            raise InvalidRequest(
                f"steps: {len(self.steps)} are not allowed; append 1 to {APPENDED_MAX} at once"
            )
        for step in self.steps:
            check_step(step)

    def apply(self, graph: Graph) -> int:
        return len(graph.add(self.steps))


@dataclass(frozen=True, slots=True)
class ApproveStep(StepsCommand):
    """The payload of the signal ``approve_step``: grant or reject an approval."""

    step: str = ""
    """The path of the step."""
    approved: bool = True
    note: str | None = None
    at: datetime | None = None
    """The time of the decision, which is set by the receiver of the command."""

    def __post_init__(self) -> None:
        StepsCommand.__post_init__(self)
        check_text("step", self.step, PATH_MAX, needed=True)
        check_text("note", self.note)

    def apply(self, graph: Graph) -> int:
        """End the step.

        A repeat of the same decision changes nothing. Raises ``NotInThisState`` if the step is not
        waiting for a decision.
        """
        [number] = graph.numbers([self.step])
        step = graph.steps[number]
        if step.kind is not StepKind.APPROVAL:
            raise refusal(
                "step",
                self.step,
                f"its kind is {step.kind}; name a step of kind {StepKind.APPROVAL}",
            )
        outcome = "approved" if self.approved else "rejected"
        if step.state.final and step.outcome == outcome:
            return 0
        if step.state is not StepState.EXECUTING:
            fix = (
                "retry the step to decide again"
                if step.state.final
                else "decide when it is waiting for an approval"
            )
            why = step.reason or graph.waiting(number) or "it has not begun"
            raise NotInThisState(f"step {shown(self.step)}: it is {step.state} ({why}); {fix}")
        state = StepState.COMPLETED if self.approved else StepState.DISCARDED
        by = self.requested_by or "somebody"
        at = None if self.at is None else self.at.isoformat()
        reason = f"{outcome} by {by}{f': {self.note}' if self.note else ''}"
        record = {"approved": self.approved, "by": by, "at": at, "note": self.note}
        graph.ended([StepEnd(number, step.attempt, state, outcome, reason, record=record)])
        return 1


StepCommand = CancelSteps | RetrySteps | AppendSteps | ApproveStep
#: The commands that a signal can carry, with the types of their payloads. All other commands are
#: updates, which are answered.
SIGNALLED: Mapping[str, type[ApproveStep]] = {"approve_step": ApproveStep}


def _check_named(names: list[str] | None) -> None:
    if names is not None and not 0 < len(names) <= NAMED_MAX:
        raise InvalidRequest(
            f"names: {len(names)} are not allowed; name 1 to {NAMED_MAX}, or none for all"
        )


def _numbers(graph: Graph, names: list[str] | None) -> list[int] | None:
    return None if names is None else graph.numbers(names)


def cause_of(graph: Graph) -> str | None:
    """Return a sentence that says why a graph was discarded or cancelled, or ``None`` if it
    completed.
    """
    state = {
        GraphState.DISCARDED: StepState.DISCARDED,
        GraphState.CANCELLED: StepState.CANCELLED,
    }.get(graph.state)
    steps = [step for step in graph.steps if step.state is state]
    if not steps:
        return None
    more = f", and {len(steps) - 1} more" if len(steps) > 1 else ""
    why = f": {steps[0].reason}" if steps[0].reason else ""
    return f"Step {steps[0].path!r} was {state}{why}{more}"


def step_request_id(key: str, path: str, attempt: int) -> str:
    """Return the request id of the run of a crawl step.

    Every try to begin the run uses the same id.
    """
    whole = f"graph/{key}/{path}/{attempt}"
    if len(whole) <= REQUEST_ID_MAX and whole.isprintable():
        return whole
    return f"graph/{request_fingerprint(key)}/{request_fingerprint(path)}/{attempt}"


def step_manager(graph_uid: str, number: int, job: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name and the flow id of a step's manager, which are the same for every try to
    begin the manager.

    Both values come from the step's job, or are derived from the class, the graph and the step's
    number.
    """
    name = job.get("name") or job["plan"].rpartition(":")[2][-MANAGER_NAME_MAX:].lstrip("_.-")
    return name, job.get("flow_id") or f"{graph_uid}.{number}"


def step_of_request(key: str, request_id: str) -> tuple[str, int] | None:
    """Return the fingerprint of a step's path, and its attempt, from a request id that
    ``step_request_id`` returned.

    Returns ``None`` if the request does not belong to a step of this graph.
    """
    whole, _, attempt = request_id.rpartition("/")
    if not (attempt.isascii() and attempt.isdigit()):
        return None
    if whole.startswith(f"graph/{key}/"):
        return request_fingerprint(whole.removeprefix(f"graph/{key}/")), int(attempt)
    hashed = f"graph/{request_fingerprint(key)}/"
    return (whole.removeprefix(hashed), int(attempt)) if whole.startswith(hashed) else None
