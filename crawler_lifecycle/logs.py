"""Logging of our processes: one JSON object a line in services, coloured text on a terminal."""

from __future__ import annotations

import logging
import sys

import structlog


def configure(service: str, *, verbose: bool = False) -> None:
    """Send every log record of this process, the libraries' included, to standard error in one format."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.StackInfoRenderer(),
    ]
    tty = sys.stderr.isatty()
    render: list[structlog.typing.Processor] = (
        [structlog.dev.ConsoleRenderer()]
        if tty
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if verbose else logging.INFO)
    for chatty in ("httpx", "httpcore", "uvicorn.access", "alembic"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    structlog.contextvars.bind_contextvars(service=service)
