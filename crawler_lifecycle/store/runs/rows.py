"""Conversion between rows of runs and tasks and the values of the ports."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError

from crawler_lifecycle.domain.coverage import Coverage
from crawler_lifecycle.domain.names import request_fingerprint
from crawler_lifecycle.domain.run import RunRequest, RunStatus, pages_per_minute
from crawler_lifecycle.domain.task import Counters, Observation, TaskState, TaskStatus
from crawler_lifecycle.ports.polls import Details, TaskFinding
from crawler_lifecycle.ports.runs import RunHandle, RunRow, TaskRow
from crawler_lifecycle.store.base.rows import Row, made, validated
from crawler_lifecycle.store.base.unit import stop_of
from crawler_lifecycle.store.columns import JsonText, json_text, storable

from .codes import code_of
from .tables import run_history, task_observation

T = TypeVar("T")

_REQUEST = TypeAdapter(RunRequest)
_FINDING = TypeAdapter(TaskFinding)
_DETAILS = TypeAdapter(Details)
_OBSERVATION = TypeAdapter(Observation)
_EVIDENCE_TEXT_MAX = 1000


#: The fields of requests that are stored only if they have a value.
NEWER_FIELDS = ("sites", "version", "code", "canary")


# --- requests -------------------------------------------------------------------------------------


def canonical(request: RunRequest) -> dict[str, Any]:
    """Return the request as JSON.

    Requests with the same meaning (such as ``6`` and ``6.0`` seconds) give the same JSON.
    """
    strict = _REQUEST.validate_python(_REQUEST.dump_python(request, mode="json"))
    found = dict(_REQUEST.dump_python(strict, mode="json"))
    # Builds before migrations 0012 and 0014 do not know these fields. A repeated request must have
    # the same hash.
    return {name: found[name] for name in found if found[name] or name not in NEWER_FIELDS}


def stored_request(request: RunRequest, request_id: str) -> dict[str, Any]:
    """Return the request in the form of ``run_history.request``, which omits the tasks because they
    have their own rows.
    """
    return {**canonical(request), "tasks": None, "request_id": request_id}


def request_hash(request: RunRequest, task_args: Sequence[Mapping[str, str]] | None) -> str:
    """Return the fingerprint of the request, including the arguments of its tasks, but not the
    request id.
    """
    content = {
        **canonical(request),
        "request_id": None,
        "tasks": None if task_args is None else list(map(dict, task_args)),
    }
    return request_fingerprint(json.dumps(content, sort_keys=True, ensure_ascii=True))


def work_hash(request: RunRequest, task_args: Sequence[Mapping[str, str]] | None) -> str:
    """Return the fingerprint of the work: the project, the crawler, the arguments, the settings,
    and the arguments of the tasks.
    """
    tasks = None if task_args is None else list(map(dict, task_args))
    content = [request.project, request.crawler, request.args, request.settings, tasks]
    return request_fingerprint(json.dumps(content, sort_keys=True, ensure_ascii=True))


def load_request(run: Row) -> RunRequest:
    """Return the stored request of a row with ``run_id`` and ``request``. Raises ``RowUnreadable``.

    Unknown fields, which a newer build wrote, are ignored so that old and new workers can run at
    the same time.
    """

    def read(stored: Mapping[str, Any]) -> RunRequest:
        kept = {
            name: value for name, value in stored.items() if name in RunRequest.__dataclass_fields__
        }
        # The validation is as strict as for HTTP requests.
        return _REQUEST.validate_json(json.dumps(kept), strict=True)

    return validated(read, run_history, run, "request", "request", "set the request that was sent")


def args_hash(task_args: Sequence[Mapping[str, str]]) -> str:
    """Return the fingerprint of the arguments of added tasks."""
    return request_fingerprint(
        json.dumps(list(map(dict, task_args)), sort_keys=True, ensure_ascii=True)
    )


def tag_key(tag: str) -> str:
    """Return a tag as it is stored and searched, without trailing spaces, which MySQL ignores and
    SQLite does not.
    """
    return storable(tag).rstrip(" ")


# --- findings and evidence ------------------------------------------------------------------------


def dump_finding(finding: TaskFinding) -> Any:
    # These are already recorded, and earlier builds do not know them.
    left_out = {"observation": {"blocked", "code_wait"}}
    return _FINDING.dump_python(finding, mode="json", exclude_defaults=True, exclude=left_out)


def load_finding(row: Row) -> TaskFinding:
    """Return the finding of a staged row with ``task_id`` and ``finding``.

    Raises ``RowUnreadable``.
    """
    return _staged(_FINDING, row, "finding")


def _staged(adapter: TypeAdapter[T], row: Row, column: str) -> T:
    fix = "delete this row: the next poll finds it again"
    return validated(adapter.validate_python, task_observation, row, column, column, fix)


def dump_details(details: Details) -> Any:
    return _DETAILS.dump_python(details, mode="json")


def load_details(row: Row) -> Details:
    """Return the details of a staged row with ``task_id`` and ``details``.

    Raises ``RowUnreadable``.
    """
    return _staged(_DETAILS, row, "details")


def compact(value: Any) -> Any:
    """Return the JSON value without empty fields and with shortened strings."""
    if isinstance(value, dict):
        kept = {name: compact(item) for name, item in value.items()}
        return {name: item for name, item in kept.items() if item is not None and item != {}}
    return value[:_EVIDENCE_TEXT_MAX] if isinstance(value, str) else value


def evidence(observation: Observation) -> JsonText:
    """Return the observation as JSON, omitting unknown values, and ``fields`` and ``code``, which
    are in the task's row.
    """
    observation = replace(observation, fields=None, code=None)
    try:
        text = _OBSERVATION.serializer.to_json(observation, exclude_none=True).decode()
    except PydanticSerializationError:
        # The observation contains a lone surrogate, which is invalid in JSON. The code below
        # replaces it.
        text = ""
    if text and "{}" not in text and len(text) <= _EVIDENCE_TEXT_MAX:
        return JsonText(text)
    return JsonText(json_text(compact(_OBSERVATION.dump_python(observation, mode="json"))))


# --- rows -----------------------------------------------------------------------------------------


def whole_run(run: Row) -> RunRow:
    """Return the run of a row. Raises ``RowUnreadable`` when its request is invalid."""
    load_request(run)
    return run_row(run)


def run_row(run: Row) -> RunRow:
    """Return the run of a row without checking its request."""
    # Counters of a later attempt include those of earlier attempts, whose durations are not
    # recorded.
    pace = _pace(run) if run["attempt"] == 1 else None
    fields = Coverage.of(run["fields"])
    return made(
        RunRow,
        run,
        status=RunStatus(run["status"]),
        stop=stop_of(run),
        pages_per_minute=pace,
        fields=fields,
    )


def _pace(row: Row) -> float | None:
    return pages_per_minute(
        row["pages"], row["started_at"], row["ended_at"] or row["last_progress_at"]
    )


def run_handle(run: Row) -> RunHandle:
    return made(
        RunHandle,
        run,
        status=RunStatus(run["status"]),
        request=load_request(run),
        resumed=run["claim_resumed"],
        rerun=run["claim_rerun"],
        repair=run["claim_repair"],
        stop=stop_of(run),
    )


def task_row(task: Row) -> TaskRow:
    """Return the task of a row."""
    pace = None if task["attempt"] > 1 and task["resumed"] is not False else _pace(task)
    return made(
        TaskRow,
        task,
        status=TaskStatus(task["status"]),
        pages_per_minute=pace,
        code=code_of(task),
    )


def counters_of(row: Row) -> Counters:
    return Counters(*(row[name] for name in ("pages", "items", "errors", "bytes")))


def task_state(task: Row) -> TaskState:
    """Return the recorded state of a task, which a poll compares with the cluster."""
    return made(
        TaskState,
        task,
        index=task["task_index"],
        status=TaskStatus(task["status"]),
        since=task["status_since"],
        uid=task["cluster_uid"],
        counters=counters_of(task),
        place=task["cluster_place"],
    )
