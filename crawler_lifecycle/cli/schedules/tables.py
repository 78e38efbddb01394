"""Columns and lines of schedules and their due times."""

from __future__ import annotations

from typing import Any

from crawler_lifecycle.cli.output import Column, Document, ago, clean, milliseconds, of
from crawler_lifecycle.cli.runs.texts import plain


def begins(row: Document) -> str:
    """What it begins."""
    kind = str(row.get("kind"))
    target = (row.get("definition") or {}).get(kind) or {}
    return clean(f"{kind} {target.get('crawler') or target.get('name') or target.get('plan') or ''}".strip())


def times(row: Document) -> str:
    """When it is due."""
    found = row.get("definition") or {}
    if found.get("cron"):
        return clean(f"{found['cron']} {found.get('time_zone', 'UTC')}")
    return f"every {found.get('every_s')} s"


def state(row: Document) -> str:
    """How it stands, in a word."""
    return "paused" if row.get("paused") else "ended" if row.get("ended_at") else "active"


def target(row: Document) -> str:
    """What a due time began."""
    return "-" if row.get("target_id") is None else f"{row.get('kind')} {row['target_id']}"


SCHEDULES = (
    Column("SCHEDULE", of("name")),
    Column("BEGINS", begins),
    Column("DUE", times),
    Column("STATE", state),
    Column("CHANGED", lambda row: ago(row.get("updated_at"))),
    Column("BY", of("requested_by"), wide=True),
    Column("WHY", lambda row: clean(row.get("pause_reason") or row.get("trouble")) or "-", wide=True),
)
DUE = (
    Column("DUE", of("due_at")),
    Column("DECISION", of("decision")),
    Column("LATE", lambda row: milliseconds(row.get("lateness_ms")), right=True),
    Column("BEGAN", target),
    Column("STATUS", lambda row: clean(row.get("status")) or "-"),
    Column("WHY", lambda row: clean(row.get("reason")) or "-"),
    Column("BY", of("asked_by"), wide=True),
)


def facts(row: Document) -> list[tuple[str, str]]:
    """Everything about a schedule, name and value."""
    found = dict(row.get("definition") or {})
    odd = [f"{one['day']} {one['local_time']} {one['oddity']}" for one in row.get("odd_days") or ()]
    kind = str(row.get("kind"))
    lines: list[tuple[str, Any]] = [
        ("schedule", row.get("name")),
        ("begins", begins(row)),
        ("with", plain(found.pop(kind, {})) if kind == "run" else None),
        ("due", times(row)),
        ("state", state(row)),
        ("why", row.get("pause_reason")),
        ("trouble", row.get("trouble")),
        ("next", ", ".join(row.get("next_due") or ())),
        ("clock set", ", ".join(odd)),
        *((name, plain(found[name])) for name in sorted(set(found) - {"cron", "every_s", "time_zone", kind})),
        ("revision", row.get("revision")),
        ("in Temporal", None if row.get("in_temporal") else "not yet; a worker of the role audit tells it"),
        ("asked by", row.get("requested_by")),
        ("created", ago(row.get("created_at"))),
    ]
    return [(name, clean(value)) for name, value in lines if value not in (None, "", [], {})]
