"""Reading what outside starters and callers send.

The SDK applies type hints only when as many payloads came as the workflow has parameters. Outside starters send one,
a continued run sends two, so the single one is read here, with the same strictness.
"""

from __future__ import annotations

from pydantic import TypeAdapter, ValidationError
from temporalio.exceptions import ApplicationError

from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.run import AddTasks, RunRequest

_REQUEST = TypeAdapter(RunRequest)
_TASKS = TypeAdapter(AddTasks)


def read_request(value: object) -> RunRequest:
    """The request that a workflow was started with.

    Raises ``ApplicationError`` of type ``InvalidRequest``, not retryable, naming each field, its value and the cure.
    """
    if value is None:
        text = 'request: missing; start the workflow with a RunRequest, for example {"crawler": "services"}'
        raise ApplicationError(text, type=InvalidRequest.code, non_retryable=True)
    if isinstance(value, RunRequest):
        return value
    try:
        return _REQUEST.validate_python(value)
    except ValidationError as error:
        raise ApplicationError(in_words(error), type=InvalidRequest.code, non_retryable=True) from None


def read_tasks(value: object) -> AddTasks:
    """The payload of the update ``add_tasks``. Raises ``ApplicationError`` as ``read_request`` does."""
    if value is None:
        text = 'tasks: missing; send a page of tasks, for example {"tasks": [{"args": {"shelf": "7"}}]}'
        raise ApplicationError(text, type=InvalidRequest.code, non_retryable=True)
    try:
        return _TASKS.validate_python(value)
    except ValidationError as error:
        raise ApplicationError(in_words(error), type=InvalidRequest.code, non_retryable=True) from None


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
