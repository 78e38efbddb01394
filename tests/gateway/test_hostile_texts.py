"""Texts that Temporal, a database or a log would not accept unchanged: every entry point refuses
them, and names the field.

Accepted texts become search attributes, workflow ids and columns; Temporal ends a workflow for one
that is too long.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from crawler_lifecycle.domain import names
from crawler_lifecycle.domain.bounds import (
    TRAVEL_MAX,
    check_request_id,
    check_text,
    cut_to_travel,
    travels,
    words,
)
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.run import AddTasks, ChildTask, RunRequest
from crawler_lifecycle.features.graphs.activities.graphs import crawl_request
from crawler_lifecycle.features.graphs.domain.checks import check_key, check_step
from crawler_lifecycle.features.graphs.domain.commands import CancelSteps, RetrySteps
from crawler_lifecycle.features.graphs.domain.spec import StepKind, StepSpec
from crawler_lifecycle.features.graphs.gateway.commands import (
    CancelGraph,
    StartGraph,
    StopGraphBody,
)
from crawler_lifecycle.features.managers.domain.jobs import check_tag
from crawler_lifecycle.features.managers.domain.manager import AddJobs, Job
from crawler_lifecycle.features.managers.gateway.requests import AddJobs as AddJobsBody
from crawler_lifecycle.features.managers.gateway.requests import StartManager, StopManager
from crawler_lifecycle.features.schedules.activities.due import run_request
from crawler_lifecycle.features.schedules.domain.definition import ScheduleSpec
from crawler_lifecycle.features.schedules.gateway.commands import (
    AskSchedule,
    Backfill,
    PauseSchedule,
    PutSchedule,
)
from crawler_lifecycle.features.user_code.calls import check_job
from crawler_lifecycle.features.webhooks.domain.definition import WebhookSpec
from crawler_lifecycle.features.webhooks.gateway.commands import AskTest, PauseWebhook, PutWebhook
from crawler_lifecycle.gateway.runs.requests import AddTasksBody, ResumeRun, StartRun, StopRun
from crawler_lifecycle.web.problems import JsonBody, Problem
from crawler_lifecycle.workflows.requests import read_input

EMOJI = "\N{GRINNING FACE}"
#: The lower limits of Temporal for a search attribute, and for a workflow id, in bytes.
SEARCH_ATTRIBUTE, WORKFLOW_ID = 2_048, 1_000

HOSTILE = {
    "many emoji": EMOJI * 167,
    "emoji as long as a column": EMOJI * 200,
    "nothing": "",
    "too long": "x" * 256,
    "NUL": "a\0b",
    "half a character": "a\ud800",
    "the other half": "\udc00a",
    "a line": "a\nb",
    "escape": "\x1b[2J",
    "C1": "a\x85b",
    "line separator": "a\u2028b",
    "paragraph separator": "a\u2029b",
}
#: Unusual, but accepted everywhere: text in other languages.
ODD = [
    *("שלום\u200f", "مرحبا", "e\u0301", "👩\u200d🚀", "a\u00a0b", "\ufffe"),
    *(EMOJI * 120, "ü" * 120, "'; --", "%00", "\\u0000"),
]


def body(kind: type, **given: object) -> Callable[[str, str], object]:
    """Read a body as the gateway does, with a text in one of its fields."""

    def read(field: str, text: str) -> object:
        value: object = [text] if field == "tags" else text
        parsed: Any = JsonBody(kind).read(json.dumps({**given, field: value}).encode())
        return parsed.request() if isinstance(parsed, StartRun) else parsed

    return read


def made(kind: Callable[..., object], **given: object) -> Callable[[str, str], object]:
    return lambda field, text: kind(**given, **{field: [text] if field == "tags" else text})


def of_schedule(field: str, text: str) -> object:
    spec = ScheduleSpec(
        run={"crawler": "books", field: [text] if field == "tags" else text}, every_s=60
    )
    return run_request("nightly", WHEN, spec, "default")


def of_step(field: str, text: str) -> None:
    job = (
        {"crawler": "books"}
        if field == "path"
        else {"plan": "m:C", field: [text] if field == "tags" else text}
    )
    kind = StepKind.CRAWL if field == "path" else StepKind.MANAGER
    check_step(StepSpec(text if field == "path" else "a", kind, job))


def of_class(field: str, text: str) -> None:
    given: dict[str, Any] = {"spider": "books", field: [text] if field == "tags" else text}
    check_job(Job(**given))


WHEN = datetime(2026, 3, 1, tzinfo=UTC)
RUN = ("requested_by", "flow_id", "parent", "request_id", "tags")
BY = ("requested_by",)
STARTED = ("requested_by", "parent", "request_id", "tags")
HOOK = {"url": "https://hooks.example.com/", "secrets": ["env:A"]}
DOORS: dict[str, tuple[Callable[[str, str], object], tuple[str, ...]]] = {
    "a run by Temporal": (
        lambda f, t: read_input(RunRequest, {"crawler": "books", f: [t] if f == "tags" else t}),
        RUN,
    ),
    "a run by code": (made(RunRequest, crawler="books"), RUN),
    "a run by HTTP": (
        body(StartRun, crawler="books"),
        ("requested_by", "flow_id", "parent", "tags"),
    ),
    "a crawl of a graph": (
        lambda f, t: crawl_request({"crawler": "books", f: [t] if f == "tags" else t}),
        RUN,
    ),
    "a run of a schedule": (of_schedule, ("requested_by", "flow_id", "tags")),
    "tasks by Temporal": (made(AddTasks, tasks=[ChildTask()]), ("request_id",)),
    "tasks by HTTP": (body(AddTasksBody, tasks=[{}]), ("request_id",)),
    "a stop of a run": (body(StopRun), ("requested_by", "request_id")),
    "a resume": (body(ResumeRun), BY),
    "a manager": (body(StartManager, plan="m:C"), (*STARTED, "name", "flow_id")),
    "jobs by Temporal": (made(AddJobs, jobs=[Job("books")]), ("request_id",)),
    "jobs by HTTP": (body(AddJobsBody, jobs=[{"spider": "a"}]), ("request_id",)),
    "a stop of a manager": (body(StopManager), BY),
    "a job of a class": (of_class, ("spider", "tags")),
    "a tag of a class": (lambda field, text: check_tag(field, text), ("flow tag",)),
    "a graph": (body(StartGraph, steps=[]), (*STARTED, "name")),
    "a graph's id": (lambda field, text: check_key(text), ("id",)),
    "a step": (of_step, ("path", "plan", "tags")),
    "steps by Temporal": (made(CancelSteps), ("requested_by", "request_id")),
    "steps again": (made(RetrySteps), ("requested_by", "request_id")),
    "steps by HTTP": (body(CancelGraph), ("requested_by", "request_id")),
    "a stop of a graph": (body(StopGraphBody), BY),
    "a schedule": (body(PutSchedule, every_s=60), BY),
    "a pause": (body(PauseSchedule), BY),
    "a trigger": (body(AskSchedule), ("requested_by", "request_id")),
    "a backfill": (body(Backfill, after=WHEN.isoformat()), BY),
    "a webhook": (body(PutWebhook, **HOOK), BY),
    "a filter": (
        lambda field, text: WebhookSpec(**HOOK, **{field: [text]}),
        ("flows", "tags", "outcomes"),
    ),  # type: ignore[arg-type]
    "a webhook's pause": (body(PauseWebhook), BY),
    "a webhook's test": (body(AskTest), BY),
    "the store": (lambda field, text: check_request_id(text), ("request_id",)),
}


def test_every_api_refuses_every_hostile_text_and_names_the_field() -> None:
    wrong = []
    for api, (enter, fields) in DOORS.items():
        for field in fields:
            for what, text in HOSTILE.items():
                try:
                    enter(field, text)
                except (InvalidRequest, Problem, ApplicationError) as error:
                    told = error.detail if isinstance(error, Problem) else str(error)
                    half = "half" in what and ("Unicode" in told or "JSON" in told)
                    named = half or field in told or (field == "path" and "step" in told)
                    wrong += [] if named else [f"{api}: {field}: {what}: {told[:100]}"]
                else:
                    wrong.append(f"{api}: {field}: {what} was let in")
    assert not wrong, "\n".join(wrong)


#: Fields of plain ASCII, which accept no other languages.
ASCII = ("name", "flow_id")


def test_texts_of_people_are_let_in() -> None:
    for api, (enter, fields) in DOORS.items():
        for field in fields:
            if api == "a manager" and field in ASCII:
                continue
            for text in ODD:
                given = text[:100]
                try:
                    enter(field, given)
                except (InvalidRequest, Problem, ApplicationError) as error:
                    raise AssertionError(f"{api}: {field}: {given!r}: {error}") from error


@pytest.mark.parametrize("sign", ["x", "ü", "語", EMOJI, "\\", '"'])
def test_the_longest_that_is_let_in_fits_what_it_becomes(sign: str) -> None:
    longest = max(n for n in range(1, 300) if travels(sign * n))
    text = sign * longest
    check_text("flow_id", text)
    assert len(json.dumps(text)) <= TRAVEL_MAX < SEARCH_ATTRIBUTE
    assert len(text.encode()) <= WORKFLOW_ID
    key = sign * max(n for n in range(1, 201) if _is_key(sign * n))
    for one in (names.graph_workflow_id(key), names.graph_batch_workflow_id(key, 2**31)):
        assert len(one.encode()) <= WORKFLOW_ID
    assert travels(names.graph_workflow_id(key)), "it is the parent of the graph's runs"
    request_id = sign * max(n for n in range(1, 121) if travels(sign * n, names.REQUEST_ID_MAX))
    workflow_id = names.uid_workflow_id(
        names.attempt_workflow_id("c" * 63, request_id, 2**31), "u" * 32
    )
    assert len(workflow_id.encode()) <= WORKFLOW_ID


def _is_key(text: str) -> bool:
    try:
        check_key(text)
    except InvalidRequest:
        return False
    return True


@pytest.mark.parametrize("text", [*HOSTILE.values(), EMOJI * 4000, "x" * 100_000, "\0" * 1000])
def test_what_a_crawler_says_is_cut_and_not_refused(text: str) -> None:
    cut = cut_to_travel(text)
    assert text.startswith(cut)
    assert len(json.dumps(cut)) <= TRAVEL_MAX
    assert len(cut) <= 255
    assert cut == text or len(cut) >= 160, "no more is lost than must be"
    told = words(text, 255)
    assert told is None or (told.encode() and "\0" not in told)
