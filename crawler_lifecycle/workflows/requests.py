"""Reads what outside starters and callers send, and what activities answer.

The SDK applies type hints only when as many payloads came as the workflow has parameters, and it fails the workflow
task where they do not fit. Outside starters send one payload, a continued run two, a stranger anything: all are read
here.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadConverter
from temporalio.exceptions import ApplicationError

from crawler_lifecycle.domain.errors import InvalidRequest, NotInThisState
from crawler_lifecycle.domain.graph.commands import GraphOrder
from crawler_lifecycle.domain.managers.manager import AddJobs, ManagerOrder
from crawler_lifecycle.domain.run import AddTasks, RunRequest
from crawler_lifecycle.domain.undecoded import Undecoded

A = TypeVar("A")
S = TypeVar("S")

#: What is read: how it is called, and what is said where nothing came.
_WORDS: dict[Any, tuple[str, str]] = {
    RunRequest: ("request", 'start the workflow with a RunRequest, for example {"crawler": "services"}'),
    ManagerOrder: ("order", 'start the workflow with the manager of a stored row, for example {"manager_id": 7}'),
    GraphOrder: ("order", 'start the workflow with the graph of a stored row, for example {"graph_id": 7}'),
    AddJobs: ("jobs", 'send some, for example {"jobs": [{"spider": "shops", "spider_args": {"shop": "7"}}]}'),
    AddTasks: ("tasks", 'send a page of tasks, for example {"tasks": [{"args": {"shelf": "7"}}]}'),
}
_OURS = ("order", "this workflow is started by others of ours")


def read_input(kind: type[A], value: object) -> A:
    """The input that a workflow was started with.

    Raises ``ApplicationError`` of type ``InvalidRequest``, not retryable, naming each field, its value and the cure.
    """
    if isinstance(value, Undecoded):
        raise undecoded(_WORDS.get(kind, _OURS)[0], value)
    return value if isinstance(value, kind) else read_update(kind, value)


def read_update(kind: type[A], value: object) -> A:
    """The payload of an update, read strictly. Raises ``ApplicationError`` as ``read_input`` does."""
    what, missing = _WORDS.get(kind, _OURS)
    if isinstance(value, Undecoded):
        raise invalid(f"{what}: {value}")
    if value is None:
        raise invalid(f"{what}: missing; {missing}")
    try:
        found: A = _strictly(_adapter(kind), value)  # type: ignore[arg-type]
    except ValidationError as error:
        raise invalid(in_words(error)) from None
    return found


def invalid(text: str) -> ApplicationError:
    """The error for an input that can never be carried out."""
    return ApplicationError(text, type=InvalidRequest.code, non_retryable=True)


def read_carried(
    kind: TypeAdapter[S], new: S, value: object, surplus: Sequence[object]
) -> tuple[S, ApplicationError | None]:
    """The state that a former execution carried here, or ``new``; and why the input cannot be carried out.

    Raises ``RuntimeError`` for a state of ours: a build that reads it can still come, and until then nothing fails.
    """
    try:
        return _carried(kind, new, value, surplus), None
    except ApplicationError as error:
        if workflow.info().continued_run_id:
            raise RuntimeError(error.message) from error
        return new, error


def _carried(kind: TypeAdapter[S], new: S, value: object, surplus: Sequence[object]) -> S:
    if surplus:
        raise invalid(f"input: {2 + len(surplus)} payloads are not allowed; give one")
    if isinstance(value, Undecoded):
        raise undecoded("the second payload", value)
    try:
        return new if value is None else kind.validate_python(value)
    except ValidationError as error:
        text = f"the second payload: {in_words(error)}; leave it out: only what continues has one"
        raise invalid(text) from None


def refused(text: str) -> ApplicationError:
    """The error for a command that comes too late."""
    return ApplicationError(text, type=NotInThisState.code, non_retryable=True)


def undecoded(what: str, value: Undecoded) -> Exception:
    """The error for a payload that cannot be read.

    One that a key would open is no failure of its sender: the workflow waits until a worker has that key.
    """
    text = f"{what}: {value}"
    return RuntimeError(text) if value.locked else invalid(text)


@functools.cache
def answer_type(method: Callable[..., Any]) -> Any:
    """The type of an activity's answer, by its annotation."""
    return get_type_hints(method).get("return")


def read_answer(method: Callable[..., Any], payload: Payload, converter: PayloadConverter) -> Any:
    """The answer of an activity. Raises whatever a decoder raises where the type is another one.

    Converters apply the expected type to JSON alone: bytes, nothing, and messages come out as they are. Only strict
    validation keeps those from the code that asked, where they would fail the workflow task for ever.
    """
    expected = answer_type(method)
    if expected is type(None):
        return None
    return _adapter(expected).validate_python(converter.from_payload(payload, expected), strict=True)


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _strictly(adapter: TypeAdapter[A], value: object) -> A:
    """The value as the gateway reads a body: ``true`` and ``"5"`` are no numbers. Raises ``ValidationError``.

    Only JSON can be read strictly and still have times and enums; a value that is none fits nothing that is asked for.
    """
    try:
        text = json.dumps(value, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError):
        return adapter.validate_python(value)
    return adapter.validate_json(text, strict=True)


def in_words(error: ValidationError) -> str:
    """Each problem as ``field: value: what is wrong``, joined by semicolons."""
    lines = []
    for item in error.errors(include_url=False, include_context=False):
        field = ".".join(str(part) for part in item["loc"])
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "unexpected_keyword_argument":
            message = "unknown field; remove it or correct its name"
        elif item["type"] == "value_error":
            lines.append(message)  # the domain's own texts name field and value already
            continue
        lines.append(f"{field or 'request'}: {str(item['input'])[:100]!r}: {message}")
    return "; ".join(lines)
