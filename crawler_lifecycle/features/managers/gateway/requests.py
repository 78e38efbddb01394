"""Bodies of the requests that start or change crawl managers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import BaseModel, Field

from crawler_lifecycle.domain.bounds import DAY_S, refusal
from crawler_lifecycle.domain.code import VERSION_MAX
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.run import TAG_MAX, TAGS_MAX
from crawler_lifecycle.gateway.runs.requests import (
    Args,
    Person,
    RequestId,
    SignedBody,
    StopBody,
    StrictBody,
    Travels,
    texts,
)

from ..domain.jobs import laid_over, options_of
from ..domain.manager import (
    CAP_MAX,
    FLOW_ID_MAX,
    NAME_MAX,
    PAGE_BYTES,
    PAGE_ITEMS,
    Job,
    job_texts,
)

#: The maximum number of retries of a job that a request may ask for.
RETRIES_MAX = 1000
#: The maximum number of words in a command line, and of characters in a word.
ARGV_MAX = 100
WORD_MAX = 8192
FLOW_ID_PATTERN = r"^[!-.0-~]+$"
#: The maximum number of bytes of JSON in a start.
START_BYTES = 128 * 1024

Tag = Annotated[str, Field(min_length=1, max_length=TAG_MAX), Travels]
Tags = Annotated[list[Tag], Field(max_length=TAGS_MAX)]
NAME_PATTERN = rf"^[A-Za-z0-9][A-Za-z0-9_.-]{{0,{NAME_MAX - 1}}}$"
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
FlowId = Annotated[
    str,
    Field(
        max_length=FLOW_ID_MAX,
        pattern=FLOW_ID_PATTERN,
        description="ASCII without spaces and slashes",
    ),
]


class RunEachOptions(StrictBody):
    """Options of the built-in manager for the runs of its crawler."""

    args: Args = Field(default_factory=dict)
    settings: dict[str, str] = Field(default_factory=dict)
    max_running: int = Field(default=10, ge=1, le=CAP_MAX)
    max_per_key: dict[str, Annotated[int, Field(ge=1, le=CAP_MAX)]] = Field(
        default_factory=dict, max_length=1
    )
    retries: int = Field(default=0, ge=0, le=RETRIES_MAX)
    retry_delay_s: float = Field(default=0, ge=0, le=30 * DAY_S)
    pool: str | None = None
    version: str | None = Field(default=None, min_length=1, max_length=VERSION_MAX)


class StartManager(SignedBody):
    """Body of ``POST /v1/managers``: a class with its command line, or a crawler that runs once for
    each job.
    """

    plan: str | None = Field(default=None, min_length=1, max_length=200)
    argv: list[Annotated[str, Field(max_length=WORD_MAX)]] = Field(
        default_factory=list, max_length=ARGV_MAX
    )
    crawler: str | None = Field(default=None, min_length=1, max_length=NAME_MAX)
    options: RunEachOptions = Field(default_factory=RunEachOptions)
    name: Name | None = None
    flow_id: FlowId | None = None
    request_id: RequestId | None = None
    parent: Person | None = None
    project: str | None = None
    """Only a caller with access to all projects may name a project other than its own."""
    tags: Tags = Field(default_factory=list)

    def check(self) -> None:
        """Raise ``InvalidRequest`` for fields that cannot be combined, and for a body that is too
        large.
        """
        if (self.plan is None) == (self.crawler is None):
            raise InvalidRequest(
                "plan: give either plan (a class) or crawler (one run for each job), but not both"
            )
        if self.crawler is not None and self.argv:
            raise InvalidRequest("argv: not allowed with crawler; give options, or give a plan")
        if self.plan is not None and "options" in self.model_fields_set:
            raise InvalidRequest(
                "options: not allowed with plan; give argv, the words of its command line"
            )
        for n, tag in enumerate(self.tags):
            if tag.startswith(("NAME=", "FLOW_ID=")):
                raise refusal(f"tags[{n}]", tag, "give the fields name and flow_id instead")
        for n, word in enumerate(self.argv):
            if "\0" in word:
                raise refusal(
                    f"argv[{n}]", word, "remove the NUL character; a command line cannot contain it"
                )
        size = len(self.model_dump_json())
        if size > START_BYTES:
            raise InvalidRequest(
                f"body: {size} bytes are too many for a start; give at most {START_BYTES}"
            )

    def flow(self, of_program: str | None = None) -> str | None:
        """Return the flow id of the request: from ``flow_id``, from the option ``--flow-id``, or
        from ``of_program``, the flow id of the selected program. Raises ``InvalidRequest``."""
        found = options_of(self.argv).get("--flow-id", of_program)
        if found is None or found == self.flow_id:
            return self.flow_id
        if self.flow_id is not None:
            raise InvalidRequest(
                f"flow_id: {self.flow_id!r} and --flow-id {found!r} differ; give one of them"
            )
        if len(found) > FLOW_ID_MAX or not re.fullmatch(FLOW_ID_PATTERN, found):
            fix = f"give at most {FLOW_ID_MAX} ASCII characters without spaces and slashes"
            raise refusal("argv: --flow-id", found, fix)
        return found

    def command_line(self) -> list[str]:
        """Return the words of the command line of the class."""
        if self.crawler is None:
            return list(self.argv)
        options = self.options
        words = [
            self.crawler,
            "--max-running-jobs",
            str(options.max_running),
            "--retries",
            str(options.retries),
        ]
        if options.retry_delay_s:
            words += ["--retry-delay", f"{options.retry_delay_s:g}"]
        if options.pool is not None:
            words += ["--pool", options.pool]
        if options.version:
            words += ["--version", options.version]
        for name, most in options.max_per_key.items():
            words += ["--max-per-key", f"{name}={most}"]
        for option, given in (
            ("--spider-args", texts(options.args)),
            ("--job-settings", options.settings),
        ):
            if given:
                words += [option, json.dumps(given, sort_keys=True)]
        return words


class NewJob(StrictBody):
    """One job. The job's parameters replace the parameters with which the manager was started.

    Numbers, booleans, lists and objects become strings. ``null`` removes a name. The built-in
    manager accepts only arguments, settings, tags, a priority, a pool and a version.
    """

    spider: str | None = Field(default=None, min_length=1, max_length=255)
    spider_args: dict[str, Any] = Field(default_factory=dict)
    job_settings: dict[str, Any] = Field(default_factory=dict)
    tags: Tags = Field(default_factory=list)
    units: int | None = Field(default=None, ge=1, le=64)
    project_id: str | None = Field(default=None, min_length=1, max_length=63)
    priority: int | None = Field(default=None, ge=1, le=5)
    pool: str | None = None
    version: str | None = Field(default=None, max_length=VERSION_MAX)


class AddJobs(StrictBody):
    """Body of ``POST /v1/managers/{manager_id}/jobs``: a page of jobs. ``seal`` states that this is
    the last page.
    """

    jobs: list[NewJob] = Field(default_factory=list, max_length=PAGE_ITEMS, fail_fast=True)
    seal: bool = False
    request_id: RequestId | None = None

    def check(self) -> None:
        """Raise ``InvalidRequest`` for a page that is empty or too large."""
        if not self.jobs and not self.seal:
            raise InvalidRequest("jobs: empty; give jobs, or seal: true if no more jobs will come")
        size = len(self.model_dump_json(include={"jobs"}, exclude_defaults=True))
        if size > PAGE_BYTES:
            raise InvalidRequest(
                f"jobs: {size} bytes are too many for a page; give at most {PAGE_BYTES}"
            )


class StopManager(StopBody):
    """Body of ``POST /v1/managers/{manager_id}/stop``. All fields are optional."""

    leave: bool = False

    def check(self) -> None:
        """Raise ``InvalidRequest`` for fields that cannot be combined."""
        if self.force and self.leave:
            raise InvalidRequest(
                "leave: not allowed with force; give force to kill runs, or leave to keep them"
            )


class ResumeManager(StrictBody):
    """Body of ``POST /v1/managers/{manager_id}/resume``. All fields are optional."""

    redo: bool = Field(
        default=False, description="Also continue the runs that a stop of the manager ended"
    )


class SetLimit(StrictBody):
    """Body of ``POST /v1/managers/{manager_id}/limit``: the maximum number of live jobs. With 0,
    the class sets it.
    """

    cap: int = Field(ge=0, le=CAP_MAX)


class AddedJobs(BaseModel):
    """The result of adding a page of jobs."""

    manager_id: int
    jobs: int
    new: int
    """The number of added jobs. The others were left out, because the manager already has equal
    jobs.
    """
    sealed: bool
    note: str | None


def job_of(n: int, given: NewJob, base: Job, *, built_in: bool) -> Job:
    """Return the job ``given`` with the parameters of the manager, ``base``, as defaults. Raises
    ``InvalidRequest``, which names the field.
    """
    where = f"jobs[{n}]"
    if built_in and not (given.spider is None and given.units is None and given.project_id is None):
        fix = "give only spider_args, job_settings, tags, priority, pool and version"
        raise InvalidRequest(
            f"{where}: the built-in manager runs only the crawler {base.spider!r}; {fix}"
        )
    if not (given.spider or base.spider):
        raise InvalidRequest(f"{where}.spider: missing; name the spider of this job")
    own = Job(
        spider=given.spider or "",
        spider_args=job_texts(f"{where}.spider_args", given.spider_args, built_in),
        job_settings=job_texts(f"{where}.job_settings", given.job_settings, built_in),
        tags=list(given.tags),
        units=given.units,
        project_id=given.project_id,
        priority=given.priority,
        pool=given.pool,
        version=given.version,
    )
    rest = replace(
        base,
        spider_args=_left(base.spider_args, given.spider_args),
        job_settings=_left(base.job_settings, given.job_settings),
    )
    return laid_over(rest, own)


def _left(base: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, str]:
    """Return the strings, except those whose names ``null`` removes."""
    return {name: value for name, value in base.items() if given.get(name, "") is not None}
