"""Columns and lines of webhooks and their deliveries."""

from __future__ import annotations

from typing import Any

from crawler_lifecycle.cli.output import Column, Document, ago, clean, of
from crawler_lifecycle.domain.webhooks.definition import cure


def url(row: Document) -> str:
    """Where it leads."""
    return clean((row.get("definition") or {}).get("url"))


def told(row: Document) -> str:
    """What it is told of."""
    found = row.get("definition") or {}
    return clean(", ".join(found.get("events") or ["everything"]))


def why(row: Document) -> str:
    """Why it is not well."""
    return clean(row.get("pause_reason") or (row.get("error") if row.get("state") == "failing" else "")) or "-"


def following(row: Document) -> str | None:
    """What helps one that is not told everything."""
    if row.get("state") == "active":
        return None
    return clean(cure(str(row.get("name")), int(row.get("through_seq") or 0), fails=bool(row.get("failing_since"))))


WEBHOOKS = (
    Column("WEBHOOK", of("name")),
    Column("STATE", of("state")),
    Column("ADDRESS", url),
    Column("TOLD OF", told),
    Column("DELIVERED", lambda row: ago(row.get("delivered_at"))),
    Column("WHY", why),
    Column("BY", of("requested_by"), wide=True),
)
DELIVERIES = (
    Column("EVENT", of("seq"), right=True),
    Column("TYPE", of("type")),
    Column("ABOUT", of("subject")),
    Column("STATUS", of("status")),
    Column("TRIES", of("tries"), right=True),
    Column("HAPPENED", lambda row: ago(row.get("created_at"))),
    Column("DELIVERED", lambda row: ago(row.get("delivered_at"))),
    Column("WHY", lambda row: clean(row.get("error")) or "-"),
)


def facts(row: Document) -> list[tuple[str, str]]:
    """Everything about a webhook, name and value."""
    found = dict(row.get("definition") or {})
    filters = ("crawlers", "tags", "flows", "statuses", "outcomes")
    lines: list[tuple[str, Any]] = [
        ("webhook", row.get("name")),
        ("address", url(row)),
        ("told of", told(row)),
        *((name, ", ".join(found.get(name) or ())) for name in filters),
        ("secrets", ", ".join(found.get("secrets") or ())),
        ("state", row.get("state")),
        ("fails since", ago(row.get("failing_since")) if row.get("failing_since") else None),
        ("last error", row.get("error")),
        ("paused", row.get("pause_reason")),
        ("next", following(row)),
        ("delivered", ago(row.get("delivered_at")) if row.get("delivered_at") else "nothing yet"),
        ("up to event", row.get("through_seq")),
        ("revision", row.get("revision")),
        ("asked by", row.get("requested_by")),
        ("created", ago(row.get("created_at"))),
    ]
    return [(name, clean(value)) for name, value in lines if value not in (None, "", [], {})]
