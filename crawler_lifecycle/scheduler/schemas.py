"""Request and response bodies of the scheduler service, and the conversion of a call into a
deployment.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, field_validator

from crawler_lifecycle.domain import bounds
from crawler_lifecycle.domain.audits.adoption import RECORD_MAX
from crawler_lifecycle.domain.code import VERSION_MAX, Code
from crawler_lifecycle.domain.crawlers.crawler import (
    CrawlerDefinition,
    args_of_tasks,
    effective_settings,
)
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.pools import DEFAULT
from crawler_lifecycle.domain.resources import Resources
from crawler_lifecycle.domain.run import Limits
from crawler_lifecycle.domain.run_ref import RunRef
from crawler_lifecycle.ports.runs import DeployedTask, Deployment, QueuedTask

#: The maximum number of tasks in a call.
TASKS_MAX = 500


Moment = Annotated[AwareDatetime, AfterValidator(bounds.storable)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class TaskCall(_Body):
    """One task to deploy. The task's arguments override the arguments of the call."""

    task_id: int = Field(ge=1, le=bounds.ID_MAX)
    index: int = Field(ge=0, le=bounds.INT_MAX)
    args: dict[str, str] = Field(default_factory=dict)
    attempt: int | None = Field(default=None, ge=1, le=bounds.INT_MAX)
    """The number of the try of this task, counted over all attempts of the run; null for the
    attempt of the call.
    """
    retry: int = Field(default=0, ge=0, le=bounds.INT_MAX)
    """The number of earlier retries by the retry policy. If this number is above 0, a resumable
    crawler continues.
    """
    memory: str | None = Field(default=None, max_length=20)
    avoid_node: str | None = Field(default=None, max_length=255)
    node_selector: dict[str, str] = Field(default_factory=dict, max_length=20)


class CodeCall(_Body):
    """The version of a deployed package."""

    digest: str = Field(pattern="^sha256:[0-9a-f]{64}$")
    version: str | None = Field(default=None, max_length=VERSION_MAX)


class OnetimeCall(_Body):
    """The body of ``POST /v1/deployments/onetime``.

    Each try (run_id, index, attempt of the task) starts at most once.
    """

    run_id: int = Field(ge=1, le=bounds.ID_MAX)
    run_uid: str = Field(pattern="^[0-9a-f]{32}$")
    attempt: int = Field(ge=1, le=bounds.INT_MAX)
    crawler: str
    tasks: list[TaskCall] = Field(min_length=1, max_length=TASKS_MAX)
    expires_at: Moment
    args: dict[str, str] = Field(default_factory=dict)
    settings: dict[str, str] = Field(default_factory=dict)
    resources: Resources = Field(default_factory=Resources)
    limits: Limits = Field(default_factory=Limits)
    priority: int = Field(default=3, ge=1, le=5)
    pool: str = Field(default=DEFAULT, min_length=1, max_length=63)
    queue: str | None = Field(default=None, min_length=1, max_length=253)
    resume: bool = False
    place: str | None = Field(default=None, max_length=200)
    record: dict[str, Any] = Field(default_factory=dict)
    """Facts about the run, stored unchanged with each task; at most 8 KiB as JSON."""
    code: CodeCall | None = None
    """The version that the tasks execute, for a crawler whose entry names a package. Each task
    fetches it from the gateway.
    """
    entry: dict[str, Any] | None = None
    """The crawler's entry, for a crawler that is not in the service's own catalogue. If that
    catalogue has it with a package, the entry fills in what it leaves out.
    """

    @field_validator("record")
    @classmethod
    def _small(cls, record: dict[str, Any]) -> dict[str, Any]:
        if len(json.dumps(record).encode()) > RECORD_MAX:
            raise ValueError(f"the JSON has more than {RECORD_MAX} bytes; leave record out")
        return record


class ScheduledCall(OnetimeCall):
    """The body of ``POST /v1/deployments/scheduled``, with the same fields and the time when the
    run was due.
    """

    due_at: Moment | None = None


class DeploymentAnswer(BaseModel):
    """One result for each task of the call.

    A ``deferred`` task can be sent again, and a ``refused`` task is final. Both have a reason.
    """

    tasks: list[DeployedTask]


class CrawlerList(BaseModel):
    """The crawlers that can be deployed (docs/crawlers.md)."""

    crawlers: list[dict[str, Any]]
    problem: str | None = None
    """The reason why the newest catalogue is not in use, so that these crawlers come from an older
    one.
    """


def merged(call: OnetimeCall, crawler: CrawlerDefinition) -> Deployment:
    """Return the deployment for a call. Values in the call override values in the catalogue.

    Raises ``InvalidRequest`` before anything is created. The message names the task with wrong
    arguments, or the setting that requests must not contain.
    """
    seen: set[int] = set()
    for n, task in enumerate(call.tasks):
        if task.index in seen:
            raise InvalidRequest(
                f"tasks[{n}].index: {task.index} appears twice; give every task its own index"
            )
        seen.add(task.index)
    complete = args_of_tasks(crawler, call.args, [task.args for task in call.tasks])
    tasks = [
        QueuedTask(
            **task.model_dump(exclude={"args", "attempt"}),
            args=args,
            attempt=task.attempt or call.attempt,
        )
        for task, args in zip(call.tasks, complete, strict=True)
    ]
    return Deployment(
        run=RunRef(call.run_id, call.run_uid),
        attempt=call.attempt,
        crawler=call.crawler,
        args=call.args,
        settings=effective_settings(crawler, call.settings),
        tasks=tasks,
        resources=call.resources.over(crawler.resources),
        limits=call.limits,
        expires_at=call.expires_at,
        scheduled=isinstance(call, ScheduledCall),
        due_at=call.due_at if isinstance(call, ScheduledCall) else None,
        priority=call.priority,
        pool=call.pool,
        queue=call.queue,
        resume=call.resume,
        place=call.place,
        record=call.record,
        code=_code(call, crawler),
    )


def _code(call: OnetimeCall, crawler: CrawlerDefinition) -> Code | None:
    """Return the code of a call. Raises ``InvalidRequest`` if it is missing."""
    if call.code is not None:
        return Code(call.code.digest, call.code.version)
    if crawler.package is None:
        return None
    raise InvalidRequest(
        f"code: missing; crawler {crawler.name!r} executes package {crawler.package!r}, so give "
        "the digest of a version"
    )
