"""Bodies of the requests that start or change runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

from fastapi import Depends, Header
from pydantic import (
    AfterValidator,
    AliasChoices,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationInfo,
    model_validator,
)

from crawler_lifecycle.domain.bounds import INT_MAX, SAID_MAX, check_text, refusal
from crawler_lifecycle.domain.crawlers.arguments import Scalar, as_text
from crawler_lifecycle.domain.names import REQUEST_ID_MAX
from crawler_lifecycle.domain.resources import Resources
from crawler_lifecycle.domain.retries import Retries
from crawler_lifecycle.domain.run import (
    POLLS_MAX,
    SITES_MAX,
    TAGS_MAX,
    AddedTask,
    Limits,
    RunRequest,
    Trigger,
    in_our_words,
)
from crawler_lifecycle.web.problems import JsonBody, Problem

T = TypeVar("T")

#: The maximum number of tasks of one run that the gateway accepts. It stores them itself, so
#: Temporal does not receive them.
TASKS_MAX = 10_000


ID_PATTERN = r"^\S(.*\S)?$"


def _travels(value: str, info: ValidationInfo) -> str:
    check_text(info.field_name or "body", value)
    return value


Travels = AfterValidator(_travels)
"""Checks a string that is stored in Temporal and in the database. The field itself limits its
length.
"""
Person = Annotated[str, Field(min_length=1, max_length=SAID_MAX), Travels]
RequestId = Annotated[str, Field(max_length=REQUEST_ID_MAX, pattern=ID_PATTERN), Travels]


if TYPE_CHECKING:
    BodyOf = Annotated[T, JsonBody]
    OptionalBodyOf = Annotated[T, JsonBody]
else:

    class BodyOf:
        """``BodyOf[PutSite]`` is the type of a parameter that ``JsonBody`` reads."""

        optional = False

        def __class_getitem__(cls, kind: type) -> Any:
            return Annotated[kind, Depends(JsonBody(kind, optional=cls.optional))]

    class OptionalBodyOf(BodyOf):
        """``BodyOf`` for a body that may be empty."""

        optional = True


IdempotencyKey = Annotated[str | None, Header(alias="Idempotency-Key")]


class StrictBody(BaseModel):
    """A request body.

    Its lists have a ``max_length``, and validation of lists of objects ends at the first wrong
    object (``fail_fast``).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _scalar(value: object) -> Scalar:
    if isinstance(value, str | int | float):  # this includes bool, which is a subclass of int
        return value
    raise ValueError(
        "give a string; numbers, true and false are allowed only if the crawler declares that type"
    )


Args = dict[str, Annotated[Scalar, PlainValidator(_scalar, json_schema_input_type=Scalar)]]
"""The arguments in a request: strings, or JSON values of the declared type."""


def texts(args: Mapping[str, Scalar]) -> dict[str, str]:
    """Return the arguments as strings, in the form in which a process receives them."""
    return {name: as_text(value) for name, value in args.items()}


class NewTask(StrictBody):
    """One task of a run. Its arguments override those of the run."""

    args: Args = Field(default_factory=dict)


def _resumed(value: object) -> None:
    if value is not None:
        run_id = in_our_words({"run_id": value})["run_id"]
        place = run_id if type(run_id) is int else "RUN_ID"
        raise refusal("run_id", value, f"send POST /v1/runs/{place}/resume, which resumes a run")


class StartRun(StrictBody):
    """Body of ``POST /v1/runs``: a ``RunRequest`` without ``run_id`` and ``rerun``, but with a
    higher limit for tasks.
    """

    crawler: str
    trigger: Trigger = Trigger.MANUAL
    request_id: str | None = None
    args: Args = Field(default_factory=dict)
    settings: dict[str, str] = Field(default_factory=dict)
    tasks: list[NewTask] | None = Field(
        default=None, min_length=1, max_length=TASKS_MAX, fail_fast=True
    )
    max_parallel_tasks: int | None = None
    requested_by: str | None = None
    tags: list[str] = Field(default_factory=list, max_length=TAGS_MAX)
    sites: list[str] = Field(default_factory=list, max_length=SITES_MAX)
    flow_id: str | None = None
    parent: str | None = None
    due_at: AwareDatetime | None = None
    priority: int = 3
    pool: str | None = None
    resources: Resources = Field(default_factory=Resources)
    limits: Limits = Field(default_factory=Limits)
    retries: Retries | None = None
    poll_minutes: list[float] | None = Field(default=None, max_length=POLLS_MAX)
    version: str | None = None
    project: str | None = None
    """Only a caller with all projects may name a project other than its own."""
    run_id: Annotated[None, PlainValidator(_resumed, json_schema_input_type=None)] = Field(
        default=None,
        validation_alias=AliasChoices("run_id", "RunID"),
        description="never given: `POST /v1/runs/{run_id}/resume` resumes a run",
    )

    def request(self) -> RunRequest:
        """Return the request without its tasks and its project. Raises ``InvalidRequest``."""
        names = set(type(self).model_fields) - {"tasks", "request_id", "args", "project", "run_id"}
        return RunRequest(args=texts(self.args), **{name: getattr(self, name) for name in names})


class SignedBody(StrictBody):
    """A body that names the person or program that requests this."""

    requested_by: Person | None = None


class StopBody(SignedBody):
    """Body of a stop. All fields are optional."""

    force: bool = False
    reason: str | None = Field(default=None, max_length=2000)


class PauseBody(SignedBody):
    """Body of a pause. All fields are optional."""

    reason: Annotated[str, Field(min_length=1, max_length=2000)] | None = None

    def words(self) -> str:
        """Return the text that is stored as the reason: the person and the given reason."""
        by = f"by {self.requested_by}" if self.requested_by else "over HTTP"
        return f"paused {by}" + (f": {self.reason}" if self.reason else "")


class StopRun(StopBody):
    """Body of ``POST /v1/runs/{run_id}/stop``. All fields are optional."""

    request_id: RequestId | None = None


class ResumeRun(SignedBody):
    """Body of ``POST /v1/runs/{run_id}/resume``. All fields are optional."""

    rerun: bool = False
    poll_minutes: list[float] | None = Field(default=None, max_length=POLLS_MAX)
    version: str | None = None
    """By default, the run keeps the code that it had."""


class AddTasksBody(StrictBody):
    """Body of ``POST /v1/runs/{run_id}/tasks``: child tasks of a live run.

    A repeated ``request_id`` adds nothing.
    """

    tasks: list[NewTask] = Field(min_length=1, max_length=TASKS_MAX, fail_fast=True)
    request_id: RequestId | None = None


class ResendExport(StrictBody):
    """Body of ``POST /v1/runs/{run_id}/export``. All fields are optional."""

    attempt: int | None = Field(default=None, ge=1, le=INT_MAX)
    event: bool = True
    files: bool = True

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not (self.event or self.files):
            raise ValueError(
                "event: event and files are both false, so nothing would be sent; omit one of them"
            )
        return self


class AddedTasks(BaseModel):
    """The added tasks, in the order of the request."""

    run_id: int
    tasks: list[AddedTask]
    note: str | None


def same_id(given: str | None, key: str | None) -> str | None:
    """Return the id of a request, from its body or from the header ``Idempotency-Key``.

    If both are given, they must be equal. Raises ``Problem`` 422.
    """
    if key is None:
        return given
    # The draft standard writes the header as a quoted string, but most clients send it without
    # quotes.
    key = key[1:-1] if len(key) > 1 and key[0] == key[-1] == '"' else key
    if given not in (None, key):
        raise Problem(
            422,
            "invalid_request",
            "request_id: differs from the header Idempotency-Key; send one",
        )
    return key
