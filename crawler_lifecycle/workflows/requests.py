"""Readers of inputs of workflows, payloads of updates, and results of activities.

The SDK applies type hints only if the number of payloads equals the number of parameters, and fails
the workflow task if a payload does not fit. External starters send one payload, a continued
workflow sends two, and anybody can send anything. So workflows accept any payloads, and these
functions read them.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadConverter
from temporalio.exceptions import ApplicationError

from crawler_lifecycle.domain.bounds import INPUT_VALUES_MAX, check_values, shown
from crawler_lifecycle.domain.errors import InvalidRequest, NotInThisState
from crawler_lifecycle.domain.run import RunRequest, in_our_words
from crawler_lifecycle.domain.unknown import advise, names_at
from crawler_lifecycle.domain.values import UndecodedPayload

A = TypeVar("A")
S = TypeVar("S")

#: Patch of 2026-11: earlier executions of a cron chain are replayed as they were.
NO_CRON = "no-cron"
#: The maximum number of errors that are reported.
ERRORS_MAX = 20


def _words(kind: type) -> tuple[str, str]:
    """Return the name of an input in error messages, and the fix if it is missing (``ASKED`` of
    its class).
    """
    ours = ("order", "only this service itself starts this workflow")
    return getattr(kind, "ASKED", ours)


def workflow_input(kind: type[A], value: object) -> A:
    """Read the input of the current workflow, which must not be an execution of a cron chain.

    Raises the errors of ``read_input``.
    """
    _refuse_cron(value)
    return read_input(kind, value)


def read_input(kind: type[A], value: object) -> A:
    """Read the input of a workflow.

    Raises a non-retryable ``ApplicationError`` of type ``InvalidRequest``, which names each field,
    its value and the fix.
    """
    if isinstance(value, UndecodedPayload):
        raise undecoded(_words(kind)[0], value)
    return value if isinstance(value, kind) else read_update(kind, value)


def _refuse_cron(value: object) -> None:
    """Refuse the execution of a cron chain, and end the chain.

    All executions of a chain have the same first execution, so all would claim the same row. The
    server begins a failed execution again at the next due time. So the chain continues as a new
    execution without cron, which fails.
    """
    info = workflow.info()
    if info.cron_schedule and workflow.patched(NO_CRON):
        cron = shown(info.cron_schedule)
        fix = "create a schedule instead: crawlctl schedule create NAME --crawler CRAWLER --cron …"
        workflow.continue_as_new(
            args=[f"cron_schedule: {cron} is not allowed; {fix} (docs/schedules.md)"]
        )
    if info.continued_run_id and isinstance(value, str):
        raise invalid(value)


def read_update(kind: type[A], value: object) -> A:
    """Read the payload of an update strictly.

    Raises ``ApplicationError`` like ``read_input``.
    """
    what, missing = _words(kind)
    if isinstance(value, UndecodedPayload):
        raise invalid(f"{what}: {value}")
    if value is None:
        raise invalid(f"{what}: missing; {missing}")
    if kind is RunRequest and isinstance(value, dict):
        value = in_our_words(value)
    adapter: TypeAdapter[A] = _adapter(kind)  # type: ignore[arg-type]
    try:
        found: A = _strictly(adapter, value)
    except ValidationError as error:
        raise invalid(in_words(error, adapter.json_schema())) from None
    except InvalidRequest as error:
        raise invalid(str(error)) from None
    return found


def invalid(text: str) -> ApplicationError:
    """Return the error for an input that can never be carried out."""
    return ApplicationError(text, type=InvalidRequest.code, non_retryable=True)


def read_carried(
    kind: TypeAdapter[S], new: S, value: object, surplus: Sequence[object]
) -> tuple[S, ApplicationError | None]:
    """Return the state from the previous execution, or ``new``, and the error if the input is
    invalid.

    In a continued workflow, the state is our own. If it cannot be read, this raises
    ``RuntimeError``, and the workflow task is retried until a build is deployed that can read it.
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
    if isinstance(value, UndecodedPayload):
        raise undecoded("the second payload", value)
    try:
        return new if value is None else kind.validate_python(value)
    except ValidationError as error:
        text = (
            f"the second payload: {in_words(error, {})}; leave it out: only a continued "
            "workflow has one"
        )
        raise invalid(text) from None


def refused(text: str) -> ApplicationError:
    """Return the error for a command that comes too late."""
    return ApplicationError(text, type=NotInThisState.code, non_retryable=True)


def undecoded(what: str, value: UndecodedPayload) -> Exception:
    """Return the error for a payload that cannot be read.

    If only the key is missing, it is a ``RuntimeError``, so that the workflow waits until a worker
    has the key.
    """
    text = f"{what}: {value}"
    return RuntimeError(text) if value.locked else invalid(text)


@functools.cache
def answer_type(method: Callable[..., Any]) -> Any:
    """Return the type of an activity's result, from its annotation."""
    return get_type_hints(method).get("return")


def read_answer(method: Callable[..., Any], payload: Payload, converter: PayloadConverter) -> Any:
    """Read the result of an activity.

    Raises any error of the decoder or the validation if the type is wrong. Converters check the
    expected type only for JSON, but not for bytes, empty payloads and protobuf messages, which the
    strict validation refuses. In the workflow's code, they would fail the workflow task forever.
    """
    expected = answer_type(method)
    if expected is type(None):
        return None
    return _adapter(expected).validate_python(
        converter.from_payload(payload, expected), strict=True
    )


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _strictly(adapter: TypeAdapter[A], value: object) -> A:
    """Read a value strictly, as the gateway reads a body: ``true`` and ``"5"`` are not numbers.

    Raises ``ValidationError``, or ``InvalidRequest`` for more values than an input may have,
    because a workflow that computes for seconds counts as stuck. The strict validation accepts
    times and enums as strings only from JSON.
    """
    try:
        text = json.dumps(value, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError):
        return adapter.validate_python(value)
    check_values("input", text, INPUT_VALUES_MAX)
    return adapter.validate_json(text, strict=True)


def in_words(error: ValidationError, schema: Mapping[str, Any]) -> str:
    """Return the first problems as ``field: value: message``, joined by semicolons.

    ``schema`` contains the known fields.
    """
    lines = []
    for item in error.errors(include_url=False, include_context=False)[:ERRORS_MAX]:
        field = ".".join(str(part) for part in item["loc"])
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "unexpected_keyword_argument":
            message = (
                f"unknown field; {advise(item['loc'][-1], names_at(schema, item['loc'][:-1]))}"
            )
        elif item["type"] == "value_error":
            lines.append(message)  # domain messages already name the field and the value
            continue
        lines.append(f"{field or 'request'}: {shown(item['input'])}: {message}")
    return "; ".join(lines)
