"""Bodies of requests that do something to runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Self

from fastapi import Header
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationInfo,
    model_validator,
)

from crawler_lifecycle.domain.bounds import INT_MAX, SAID_MAX, check_text
from crawler_lifecycle.domain.crawlers.arguments import Scalar, as_text
from crawler_lifecycle.domain.names import REQUEST_ID_MAX
from crawler_lifecycle.domain.run import AddedTask, Limits, Resources, RunRequest, Trigger
from crawler_lifecycle.web.problems import Problem

#: Tasks of one run that the gateway takes; it stores them, so that none of them has to travel through Temporal.
TASKS_MAX = 10_000


ID_PATTERN = r"^\S(.*\S)?$"


def _travels(value: str, info: ValidationInfo) -> str:
    check_text(info.field_name or "body", value)
    return value


Travels = AfterValidator(_travels)
"""A text of a body that goes to Temporal and into columns; its field says how many characters it has."""
Person = Annotated[str, Field(min_length=1, max_length=SAID_MAX), Travels]
RequestId = Annotated[str, Field(max_length=REQUEST_ID_MAX, pattern=ID_PATTERN), Travels]


IdempotencyKey = Annotated[str | None, Header()]


class StrictBody(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _scalar(value: object) -> Scalar:
    if isinstance(value, str | int | float):  # and bool, which is an int
        return value
    raise ValueError("give a text, or a number or true or false where the crawler declares that type")


Args = dict[str, Annotated[Scalar, PlainValidator(_scalar, json_schema_input_type=Scalar)]]
"""Arguments of a request: texts, or what JSON has for a declared type."""


def texts(args: Mapping[str, Scalar]) -> dict[str, str]:
    """The same as a process receives it."""
    return {name: as_text(value) for name, value in args.items()}


class NewTask(StrictBody):
    """One task of a run: its arguments, laid over those of the run."""

    args: Args = Field(default_factory=dict)


class StartRun(StrictBody):
    """Body of ``POST /v1/runs``: a ``RunRequest`` without ``run_id`` and ``rerun``, with room for more tasks."""

    crawler: str
    trigger: Trigger = Trigger.MANUAL
    request_id: str | None = None
    args: Args = Field(default_factory=dict)
    settings: dict[str, str] = Field(default_factory=dict)
    tasks: list[NewTask] | None = Field(default=None, min_length=1, max_length=TASKS_MAX)
    max_parallel_tasks: int | None = None
    requested_by: str | None = None
    tags: list[str] = Field(default_factory=list)
    flow_id: str | None = None
    parent: str | None = None
    due_at: AwareDatetime | None = None
    priority: int = 3
    resources: Resources = Field(default_factory=Resources)
    limits: Limits = Field(default_factory=Limits)
    poll_minutes: list[float] | None = None

    def request(self) -> RunRequest:
        """The request without its tasks. Raises ``InvalidRequest``."""
        names = set(type(self).model_fields) - {"tasks", "request_id", "args"}
        return RunRequest(args=texts(self.args), **{name: getattr(self, name) for name in names})


class StopBody(StrictBody):
    """Body of a stop; all of it may be left out."""

    force: bool = False
    reason: str | None = Field(default=None, max_length=2000)
    requested_by: Person | None = None


class PauseBody(StrictBody):
    """Body of a pause; all of it may be left out."""

    reason: Annotated[str, Field(min_length=1, max_length=2000)] | None = None
    requested_by: Person | None = None

    def words(self) -> str:
        """The reason as it is kept: who paused it, and why."""
        by = f"by {self.requested_by}" if self.requested_by else "over HTTP"
        return f"paused {by}" + (f": {self.reason}" if self.reason else "")


class StopRun(StopBody):
    """Body of ``POST /v1/runs/{run_id}/stop``; all of it may be left out."""

    request_id: RequestId | None = None


class ResumeRun(StrictBody):
    """Body of ``POST /v1/runs/{run_id}/resume``; all of it may be left out."""

    rerun: bool = False
    requested_by: Person | None = None
    poll_minutes: list[float] | None = None


class AddTasksBody(StrictBody):
    """Body of ``POST /v1/runs/{run_id}/tasks``: child tasks of a live run. ``request_id`` makes a repeat harmless."""

    tasks: list[NewTask] = Field(min_length=1, max_length=TASKS_MAX)
    request_id: RequestId | None = None


class ResendExport(StrictBody):
    """Body of ``POST /v1/runs/{run_id}/export``; all of it may be left out."""

    attempt: int | None = Field(default=None, ge=1, le=INT_MAX)
    event: bool = True
    files: bool = True

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not (self.event or self.files):
            raise ValueError("event and files are both false, so nothing would be sent; leave one of them out")
        return self


class AddedTasks(BaseModel):
    """The tasks that were added, in the order in which they were sent."""

    run_id: int
    tasks: list[AddedTask]
    note: str | None


def same_id(given: str | None, key: str | None) -> str | None:
    """The id of a request that may carry it in its body, in the header ``Idempotency-Key``, or in both."""
    if key is None:
        return given
    # The draft standard writes the header as a quoted string; most clients send it bare.
    key = key[1:-1] if len(key) > 1 and key[0] == key[-1] == '"' else key
    if given not in (None, key):
        raise Problem(422, "invalid_request", "request_id: differs from the header Idempotency-Key; send one")
    return key
