"""Checks webhooks: which are paused, and to which nothing gets through."""

from __future__ import annotations

from collections.abc import Sequence

from crawler_lifecycle.cli.doctor.line import Line, counted
from crawler_lifecycle.cli.doctor.report import Context
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.domain.webhooks.addresses import WebhookRules
from crawler_lifecycle.domain.webhooks.definition import WEBHOOKS_MAX, WebhookSpec, cure
from crawler_lifecycle.ports.webhooks import WebhookRow

from .of_database import asked


def check_webhooks(context: Context) -> Sequence[Line]:
    """Ask the database how they stand. No receiver is called."""
    rules = context.known.webhooks.rules
    return asked(context, "webhooks", lambda store: webhook_lines(store.webhooks.list_webhooks(0, WEBHOOKS_MAX), rules))


def webhook_lines(rows: Sequence[WebhookRow], rules: WebhookRules) -> list[Line]:
    """A line for each that is told nothing now or may not be, and one for the rest."""
    lines = [line for row in rows for line in (_refused(row, rules), _line(row)) if line is not None]
    return lines or [Line("webhooks", "ok", f"{counted(len(rows), 'webhook')}, none of them fails or is paused")]


def _refused(row: WebhookRow, rules: WebhookRules) -> Line | None:
    try:
        rules.check(WebhookSpec.read(row.definition))
    except InvalidRequest as error:
        return Line("webhooks", "bad", f"{row.name} is told nothing: {error}", f"crawlctl webhook update {row.name}")
    return None


def _line(row: WebhookRow) -> Line | None:
    if row.paused_at is not None:
        text = f"{row.name} is paused since {row.paused_at:%Y-%m-%d %H:%M} UTC: {row.pause_reason}"
    elif row.failing_since is not None:
        since = f"{row.failing_since:%Y-%m-%d %H:%M} UTC, and is paused a day later"
        text = f"{row.name} fails with event {row.through_seq + 1} since {since}: {row.error}"
    else:
        return None
    return Line("webhooks", "warn", text, cure(row.name, row.through_seq, fails=row.failing_since is not None))
