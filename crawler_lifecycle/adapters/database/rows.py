"""Between rows and the values of the ports."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError

from crawler_lifecycle.domain.ledger import untrue_ms
from crawler_lifecycle.domain.names import request_fingerprint
from crawler_lifecycle.domain.run import RunRequest, RunStatus, StopIntent
from crawler_lifecycle.domain.task import LOG_TAIL_BYTES, Counters, Observation, TaskState, TaskStatus
from crawler_lifecycle.ports import CorrectionRow, Details, Event, Finding, RunHandle, RunRow, TaskRow, TransitionRow

from .columns import JsonText, json_text, storable

Row = Mapping[Any, Any]

_REQUEST = TypeAdapter(RunRequest)
_FINDING = TypeAdapter(Finding)
_DETAILS = TypeAdapter(Details)
_OBSERVATION = TypeAdapter(Observation)
_EVIDENCE_TEXT_MAX = 1000


# --- requests ---------------------------------------------------------------------------------------------------


def canonical(request: RunRequest) -> dict[str, Any]:
    """The request as JSON, the same for requests that mean the same (``6`` and ``6.0`` seconds)."""
    strict = _REQUEST.validate_python(_REQUEST.dump_python(request, mode="json"))
    return dict(_REQUEST.dump_python(strict, mode="json"))


def stored_request(request: RunRequest, request_id: str) -> dict[str, Any]:
    """What ``run_history.request`` keeps: all but the tasks, which have rows of their own."""
    return {**canonical(request), "tasks": None, "request_id": request_id}


def request_hash(request: RunRequest, task_args: Sequence[Mapping[str, str]] | None) -> str:
    """Fingerprint of everything asked for, however the tasks came and whatever id the request has."""
    content = {
        **canonical(request),
        "request_id": None,
        "tasks": None if task_args is None else list(map(dict, task_args)),
    }
    return request_fingerprint(json.dumps(content, sort_keys=True, ensure_ascii=True))


def load_request(stored: Mapping[str, Any]) -> RunRequest:
    """A stored request; fields that a newer build wrote are left aside, so that old workers go on beside new ones."""
    known = RunRequest.__dataclass_fields__
    return _REQUEST.validate_python({name: value for name, value in stored.items() if name in known})


def args_hash(task_args: Sequence[Mapping[str, str]]) -> str:
    """Fingerprint of the arguments of added tasks."""
    return request_fingerprint(json.dumps(list(map(dict, task_args)), sort_keys=True, ensure_ascii=True))


def tag_key(tag: str) -> str:
    """A tag as it is stored and looked up: MySQL ignores spaces at the end when it compares, SQLite does not."""
    return storable(tag).rstrip(" ")


def distinct_tags(tags: Sequence[str]) -> list[str]:
    """The tags of a run as they are stored, each once."""
    return sorted({tag_key(tag) for tag in tags})


# --- findings and evidence --------------------------------------------------------------------------------------


def dump_finding(finding: Finding) -> Any:
    return _FINDING.dump_python(finding, mode="json", exclude_defaults=True)


def load_finding(value: Any) -> Finding:
    return _FINDING.validate_python(value)


def dump_details(details: Details) -> Any:
    return _DETAILS.dump_python(details, mode="json")


def load_details(value: Any) -> Details:
    return _DETAILS.validate_python(value)


def compact(value: Any) -> Any:
    """JSON without what is empty, its texts cut."""
    if isinstance(value, dict):
        kept = {name: compact(item) for name, item in value.items()}
        return {name: item for name, item in kept.items() if item is not None and item != {}}
    return value[:_EVIDENCE_TEXT_MAX] if isinstance(value, str) else value


def evidence(observation: Observation) -> JsonText:
    """What was seen, without what was not, as JSON."""
    try:
        text = _OBSERVATION.serializer.to_json(observation, exclude_none=True).decode()
    except PydanticSerializationError:
        # Half a surrogate pair, which is no JSON either.
        text = ""
    if text and "{}" not in text and len(text) <= _EVIDENCE_TEXT_MAX:
        return JsonText(text)
    return JsonText(json_text(compact(_OBSERVATION.dump_python(observation, mode="json"))))


def lag_ms(now: datetime, cluster_time: datetime | None) -> int | None:
    """Milliseconds from the cluster's own time of a change to our commit; ``None`` when the cluster gave no time."""
    return untrue_ms(now, cluster_time)


def tail(text: str) -> str:
    """The last 16 KiB of a log, cut at a character."""
    return text.encode("utf-8", "replace")[-LOG_TAIL_BYTES:].decode("utf-8", "ignore")


# --- rows -------------------------------------------------------------------------------------------------------


def stop_of(run: Row) -> StopIntent | None:
    """The stop intent on record."""
    if run["stop_requested_at"] is None:
        return None
    return StopIntent(
        requested_at=run["stop_requested_at"],
        force=run["stop_force"],
        requested_by=run["stop_requested_by"],
        reason=run["stop_reason"],
        limit=run["stop_limit"],
        escalated=run["stop_escalated"],
    )


_RUN_FIELDS = tuple(name for name in RunRow.__dataclass_fields__ if name not in ("status", "stop"))
_TASK_FIELDS = tuple(name for name in TaskRow.__dataclass_fields__ if name != "status")


def run_row(run: Row) -> RunRow:
    return RunRow(status=RunStatus(run["status"]), stop=stop_of(run), **{name: run[name] for name in _RUN_FIELDS})


def run_handle(run: Row) -> RunHandle:
    return RunHandle(
        run_id=run["run_id"],
        attempt=run["attempt"],
        status=RunStatus(run["status"]),
        request=load_request(run["request"]),
        multi=run["multi"],
        resumed=run["claim_resumed"],
        rerun=run["claim_rerun"],
        stop=stop_of(run),
    )


def task_row(task: Row) -> TaskRow:
    return TaskRow(status=TaskStatus(task["status"]), **{name: task[name] for name in _TASK_FIELDS})


def counters_of(row: Row) -> Counters:
    return Counters(row["pages"], row["items"], row["errors"], row["bytes"])


def task_state(task: Row) -> TaskState:
    return TaskState(
        task_id=task["task_id"],
        index=task["task_index"],
        attempt=task["attempt"],
        status=TaskStatus(task["status"]),
        since=task["status_since"],
        uid=task["cluster_uid"],
        ever_seen=task["ever_seen"],
        counters=counters_of(task),
        offered_until=task["offered_until"],
    )


def transition_row(row: Row) -> TransitionRow:
    return TransitionRow(**row)


def correction_row(row: Row) -> CorrectionRow:
    return CorrectionRow(**row)


def event_row(row: Row) -> Event:
    return Event(
        seq=row["seq"],
        run_id=row["run_id"],
        attempt=row["attempt"],
        type=row["type"],
        body=row["body"],
        created_at=row["created_at"],
    )
