"""Logging: one JSON object per line in services, and coloured text on a terminal.

One handler formats all lines, both ours and those from libraries. This handler adds the fields of
the run, removes secrets, escapes control characters and limits the length.
"""

from __future__ import annotations

import contextvars
import json
import logging
import os
import sys
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, TextIO

import structlog
from pydantic import BaseModel, SecretStr

from crawler_lifecycle import redaction
from crawler_lifecycle.domain.errors import LifecycleError

from .line_writer import LineWriter

if TYPE_CHECKING:
    from crawler_lifecycle.settings import Settings

#: The maximum number of characters of a message, of another field, and of a traceback.
EVENT_MAX = 8 * 1024
FIELD_MAX = 2 * 1024
EXCEPTION_MAX = 24 * 1024
#: The maximum number of seconds for which a process waits at its end until its last lines are
#: written.
FLUSH_S = 2.0
#: The first fields of a line, in this order. Other fields follow.
FIRST = (
    "timestamp",
    "level",
    "event",
    "service",
    "pid",
    "run_id",
    "manager_id",
    "attempt",
    "task_id",
    "activity",
    "try",
)
#: Libraries from which only warnings and errors are logged.
CHATTY = (
    "httpx",
    "httpcore",
    "uvicorn.access",
    "uvicorn.error",
    "alembic",
    "botocore",
    "boto3",
    "urllib3",
    "s3transfer",
)

#: Log fields that describe the workflow whose code is executing. The workflow's interceptor sets
#: these fields.
of_workflow: contextvars.ContextVar[Mapping[str, object]] = contextvars.ContextVar(
    "of_workflow", default=MappingProxyType({})
)

Event = structlog.typing.EventDict


# --- processors -----------------------------------------------------------------------------------


def _temporal(_: Any, __: str, event: Event) -> Event:
    """Convert the SDK's nested fields about the activity and workflow to flat fields like ours."""
    about = event.pop("temporal_activity", None)
    if isinstance(about, Mapping):
        names = {"activity_type": "activity", "attempt": "try"}
        for theirs in ("workflow_id", "workflow_run_id", "activity_type", "task_queue", "attempt"):
            event.setdefault(names.get(theirs, theirs), about.get(theirs))
    about = event.pop("temporal_workflow", None)
    if isinstance(about, Mapping):
        names = {"run_id": "workflow_run_id", "workflow_type": "workflow"}
        for theirs in ("workflow_id", "run_id", "workflow_type", "task_queue"):
            event.setdefault(names.get(theirs, theirs), about.get(theirs))
    event.pop("temporal_log", None)  # the message already contains these fields
    return event


def _workflow(_: Any, __: str, event: Event) -> Event:
    """Add the fields of the executing workflow."""
    for name, value in of_workflow.get().items():
        event.setdefault(name, value)
    return event


def _expected(_: Any, __: str, event: Event) -> Event:
    """Log a ``LifecycleError`` in one line. We raise this error on purpose, so a traceback would
    not help.
    """
    info = event.get("exc_info")
    error = info[1] if isinstance(info, tuple) else info
    if isinstance(error, LifecycleError):
        event.pop("exc_info")
        event["error"] = str(error)
        event["error_type"] = error.code
    return event


def _safe(_: Any, __: str, event: Event) -> Event:
    """Remove secrets, escape characters that control a terminal or end the line, limit lengths, and
    sort the fields.
    """
    redactor = redaction.current()
    found: Event = {}
    for name in (*FIRST, *(name for name in event if name not in FIRST)):
        if name not in event:
            continue
        limit = {"event": EVENT_MAX, "exception": EXCEPTION_MAX, "stack": EXCEPTION_MAX}.get(
            name, FIELD_MAX
        )
        kept = name if isinstance(name, str) else str(name)
        value = redactor.value(event[name], kept if kept not in FIRST else "", limit=limit)
        found[redaction.printable(kept)[:100]] = _escaped(
            value, lines=name in ("exception", "stack")
        )
    return found


def _escaped(value: object, *, lines: bool = False) -> object:
    if isinstance(value, str):
        return redaction.printable(value, lines=lines)
    if isinstance(value, dict):
        return {redaction.printable(str(name)): _escaped(member) for name, member in value.items()}
    return [_escaped(member) for member in value] if isinstance(value, list) else value


class _Handler(logging.Handler):
    """A handler that formats lines in the caller's thread, because it needs the caller's context.
    The handler never waits for the reader.
    """

    def __init__(self, stream: TextIO, *, pretty: bool = False) -> None:
        super().__init__()
        self.setFormatter(_formatter(pretty=pretty))
        self._lines = LineWriter(
            stream,
            lambda count: _line(
                f"{count} log lines were dropped because nobody read them", "warning"
            ),
        )

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.write(self.format(record) + "\n")
        except Exception:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Report in one line that a record cannot be formatted.

        The method of the base class would print the record's arguments, including secrets.
        """
        where = f"{record.pathname}:{record.lineno}"
        error = type(sys.exc_info()[1]).__name__
        self._lines.write(
            _line("a log record could not be written", "error", where=where, error_type=error)
        )

    def flush(self) -> None:
        self._lines.flush(FLUSH_S)


def _line(event: str, level: str, **more: str) -> str:
    stamp = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    return (
        json.dumps({"timestamp": stamp, "level": level, "event": event, **_process, **more}) + "\n"
    )


# --- entry points ---------------------------------------------------------------------------------


def configure(service: str, settings: Settings | None = None) -> None:
    """Send all log records of this process, including those of libraries, to standard error in one
    format.

    ``settings`` determine the level and the format. From then on, the secrets in ``settings`` are
    masked.
    """
    redaction.learn(redaction.secrets_of_environment(os.environ))
    level = "INFO"
    form = "auto"
    if settings is not None:
        redaction.learn(secrets_of(settings))
        level = settings.log.level
        form = settings.log.format
    pretty = sys.stderr.isatty() if form == "auto" else form == "pretty"
    root = logging.getLogger()
    root.handlers[:] = [_Handler(sys.stderr, pretty=pretty)]
    root.setLevel(level)
    for chatty in CHATTY:
        logging.getLogger(chatty).setLevel(max(logging.WARNING, root.level))
    logging.captureWarnings(True)
    sys.excepthook = _uncaught
    threading.excepthook = lambda args: _uncaught(args.exc_type, args.exc_value, args.exc_traceback)
    structlog.contextvars.clear_contextvars()
    _process.update(service=service, pid=os.getpid())
    if settings is not None:
        # This module is already loaded, because its caller has loaded the settings.
        from crawler_lifecycle.settings import unread_variables

        for name, fix in unread_variables(os.environ):
            logging.getLogger(__name__).warning("%s is set, but no setting reads it; %s", name, fix)


#: Fields that every line from this process contains. All threads share them, unlike context
#: variables.
_process: dict[str, object] = {}


def _formatter(*, pretty: bool) -> structlog.stdlib.ProcessorFormatter:
    before: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.ExtraAdder(),
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _temporal,
        _workflow,
    ]
    render: structlog.typing.Processor = structlog.processors.JSONRenderer()
    if pretty:
        plain = structlog.dev.plain_traceback
        render = structlog.dev.ConsoleRenderer(
            exception_formatter=plain, colors=sys.stderr.isatty()
        )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=before,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            lambda _, __, event: {**_process, **event},
            _expected,
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            _safe,
            render,
        ],
    )


def _uncaught(
    kind: type[BaseException], error: BaseException | None, trace: TracebackType | None
) -> None:
    """Log an error that ends a process or thread, in the same format as all other lines."""
    if error is None or issubclass(kind, KeyboardInterrupt | SystemExit):
        sys.__excepthook__(kind, error or kind(), trace)
        return
    logging.getLogger("uncaught").critical("%s", kind.__name__, exc_info=(kind, error, trace))


def secrets_of(settings: BaseModel) -> set[str]:
    """Return the secrets in a tree of settings: the fields that are declared secret, and the
    credentials in URLs.
    """
    found: set[str] = set()
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, SecretStr):
            found.add(value.get_secret_value())
        elif isinstance(value, BaseModel):
            found |= secrets_of(value)
        elif isinstance(value, str):
            found |= redaction.secrets_of_url(value)
    return found
