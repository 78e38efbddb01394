"""Checks webhooks: which are paused, and to which nothing gets through."""

from __future__ import annotations

from collections.abc import Sequence

from crawler_lifecycle.cli.doctor.line import Line, counted
from crawler_lifecycle.cli.doctor.report import Context
from crawler_lifecycle.domain.webhooks.definition import WEBHOOKS_MAX, cure
from crawler_lifecycle.ports.store.webhooks import WebhookRow

from .of_database import asked


def check_webhooks(context: Context) -> Sequence[Line]:
    """Ask the database how they stand. No receiver is called."""
    return asked(context, "webhooks", lambda store: webhook_lines(store.webhooks.list_webhooks(0, WEBHOOKS_MAX)))


def webhook_lines(rows: Sequence[WebhookRow]) -> list[Line]:
    """A line for each that is told nothing now, and one for the rest."""
    lines = [line for row in rows if (line := _line(row)) is not None]
    return lines or [Line("webhooks", "ok", f"{counted(len(rows), 'webhook')}, none of them fails or is paused")]


def _line(row: WebhookRow) -> Line | None:
    if row.paused_at is not None:
        text = f"{row.name} is paused since {row.paused_at:%Y-%m-%d %H:%M} UTC: {row.pause_reason}"
    elif row.failing_since is not None:
        since = f"{row.failing_since:%Y-%m-%d %H:%M} UTC, and is paused a day later"
        text = f"{row.name} fails with event {row.through_seq + 1} since {since}: {row.error}"
    else:
        return None
    return Line("webhooks", "warn", text, cure(row.name, row.through_seq, fails=row.failing_since is not None))
