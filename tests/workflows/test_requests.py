"""Inputs of workflows: other spellings of ``run_id``, unknown fields, and inputs of absurd size."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from crawler_lifecycle.domain.bounds import INPUT_VALUES_MAX
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.run import AddTasks, RunRequest
from crawler_lifecycle.features.graphs.activities.graphs import crawl_request
from crawler_lifecycle.features.managers.domain.manager import AddJobs
from crawler_lifecycle.workflows.requests import ERRORS_MAX, read_input, read_update


@pytest.mark.parametrize("name", ["run_id", "RunID"])
@pytest.mark.parametrize("value", [31, "31", 31.0, "31.0"])
def test_a_run_is_resumed_by_its_number_as_the_specification_sends_it(
    name: str, value: object
) -> None:
    assert read_input(RunRequest, {name: value}) == RunRequest(run_id=31)
    assert read_input(RunRequest, {name: value, "rerun": True}).rerun


@pytest.mark.parametrize(
    "value", [0, "0", -1, "-1", 31.5, "31.5", " 31", "٣١", "3e1", 1e30, True, [31], "9" * 19, ""]
)
def test_what_is_no_number_of_a_run_is_refused(value: object) -> None:
    with pytest.raises(ApplicationError) as caught:
        read_input(RunRequest, {"RunID": value})
    assert caught.value.message.startswith("run_id: ")


@pytest.mark.parametrize("name", ["runId", "RunId", "run-id", "runid", "run_d"])
def test_another_spelling_gets_the_right_one(name: str) -> None:
    with pytest.raises(ApplicationError) as caught:
        read_input(RunRequest, {name: 31})
    assert caught.value.message == f"{name}: 31: unknown field; did you mean run_id?"


def test_two_spellings_at_once_are_refused() -> None:
    with pytest.raises(ApplicationError, match=r"RunID: 7: unknown field; did you mean run_id\?"):
        read_input(RunRequest, {"run_id": 31, "RunID": 7})


@pytest.mark.parametrize(
    ("kind", "value", "told"),
    [
        (
            RunRequest,
            {"crawler": "a", "limits": {"stopGraceS": 1}},
            "limits.stopGraceS: 1: unknown field; did you mean stop_grace_s",
        ),
        (
            RunRequest,
            {"crawler": "a", "tasks": [{"arg": {}}]},
            "tasks.0.arg: {}: unknown field; did you mean args",
        ),
        (AddTasks, {"task": [{}]}, "task: [{}]: unknown field; did you mean tasks"),
        (
            AddJobs,
            {"jobs": [{"spider": "a", "spiderArgs": {}}]},
            "jobs.0.spiderArgs: {}: unknown field; did you mean spider_args",
        ),
        (
            RunRequest,
            {"crawler": "a", "colour": 1},
            "colour: 1: unknown field; known: crawler, trigger, run_id",
        ),
    ],
)
def test_an_unknown_field_names_the_one_that_was_meant(kind: Any, value: object, told: str) -> None:
    with pytest.raises(ApplicationError) as caught:
        read_update(kind, value)
    assert told in caught.value.message


@pytest.mark.parametrize(
    "value",
    [
        {"crawler": "a", "tasks": [1] * 900_000},
        {"crawler": "a", "tasks": [1] * (INPUT_VALUES_MAX - 10)},
        {"crawler": "a", "args": {f"k{n}": 1 for n in range(100_000)}},
        {"crawler": "a"} | {f"k{n}": 1 for n in range(INPUT_VALUES_MAX - 10)},
    ],
)
def test_an_absurd_input_takes_no_seconds_of_a_worker(value: dict[str, Any]) -> None:
    """A workflow that computes for two seconds counts as stuck, and is retried for ever."""
    for read, error in (
        (lambda: read_input(RunRequest, value), ApplicationError),
        (lambda: crawl_request(value), InvalidRequest),
    ):
        began = time.process_time()
        with pytest.raises(error) as caught:
            read()
        assert time.process_time() - began < 1.5
        assert len(str(caught.value)) < 10_000
        assert str(caught.value).count("; ") < 2 * ERRORS_MAX


def test_the_largest_inputs_that_make_sense_are_read() -> None:
    tasks = [{"args": {f"k{n}": "v" * 6 for n in range(14)}} for _ in range(500)]
    assert len(json.dumps([task["args"] for task in tasks])) < 128 * 1024
    assert len(read_input(RunRequest, {"crawler": "a", "tasks": tasks}).tasks or ()) == 500
