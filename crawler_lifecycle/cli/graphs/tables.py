"""Columns and lines of graphs and their steps."""

from __future__ import annotations

from typing import Any

from crawler_lifecycle.cli.output import Column, Document, ago, clean, number, of
from crawler_lifecycle.cli.runs.texts import plain

#: States of steps, in the order in which a line tells them.
STATES = (
    *("suspended", "scheduled", "available", "executing", "retryable"),
    *("completed", "cancelled", "discarded"),
)


def counts(row: Document) -> str:
    """Steps by state, in words."""
    found = row.get("counts") or {}
    return ", ".join(f"{found[state]:,} {state}" for state in STATES if found.get(state))


STATE = (
    Column("GRAPH", of("id")),
    Column("NAME", of("name")),
    Column("STATE", of("state")),
    Column("STEPS", lambda row: number(row.get("total")), right=True),
    Column("CAUSE", of("cause")),
)
GRAPHS = (
    Column("GRAPH", of("id")),
    Column("NAME", of("name")),
    Column("STATE", of("state")),
    Column("STEPS", counts),
    Column("CREATED", lambda row: ago(row.get("created_at"))),
    Column("ATTEMPT", of("attempt"), right=True, wide=True),
    Column("BY", of("requested_by"), wide=True),
    Column("TAGS", lambda row: clean(" ".join(row.get("tags") or ())) or "-", wide=True),
    Column("WHY", lambda row: clean(row.get("cause") or row.get("waiting")) or "-", wide=True),
)
STEPS = (
    Column("STEP", of("path")),
    Column("KIND", of("kind")),
    Column("DOES", lambda row: does(row) or "-"),
    Column("STATE", lambda row: clean(row.get("state")) + (" (ending)" if row.get("ending") else "")),
    Column("TRIES", lambda row: f"{row.get('tries')}/{row.get('max_attempts')}", right=True),
    Column("RUN", of("run_id"), right=True),
    Column("AFTER", lambda row: clean(" ".join(row.get("deps") or ())) or "-", wide=True),
    Column("WHY", of("reason")),
)


def does(row: Document) -> str:
    """What a step does: its function, crawler or class."""
    job = row.get("job") or {}
    return clean(job.get("call") or job.get("crawler") or job.get("plan") or job.get("name") or "")


def line(row: Document) -> str:
    """A graph in one line, for who watches it."""
    said = row.get("cause") or row.get("waiting")
    head = f"graph {row.get('id')} {row.get('state')}, {counts(row) or 'no steps'}"
    return clean(head + (f": {said}" if said else ""))


def facts(row: Document) -> list[tuple[str, str]]:
    """Everything about a graph, name and value."""
    stop = row.get("stop") or {}
    lines: list[tuple[str, Any]] = [
        ("graph", row.get("id")),
        ("name", row.get("name")),
        ("state", row.get("state")),
        ("cause", row.get("cause")),
        ("waiting", row.get("waiting")),
        ("steps", f"{row.get('total') or 0:,}: {counts(row)}"),
        ("attempt", row.get("attempt")),
        ("options", plain({name: one for name, one in (row.get("options") or {}).items() if one})),
        ("stop", f"{'by force' if stop.get('force') else 'in order'} {stop.get('reason') or ''}" if stop else None),
        ("tags", " ".join(row.get("tags") or ())),
        ("asked by", row.get("requested_by")),
        ("parent", row.get("parent")),
        ("workflow", row.get("workflow_id")),
        ("created", ago(row.get("created_at"))),
        ("started", ago(row.get("started_at")) if row.get("started_at") else None),
        ("ended", ago(row.get("ended_at")) if row.get("ended_at") else None),
        ("pruned", ago(row.get("pruned_at")) if row.get("pruned_at") else None),
    ]
    return [(name, clean(value)) for name, value in lines if value not in (None, "", [], {})]


def step_facts(row: Document) -> list[tuple[str, str]]:
    """Everything about a step, name and value."""
    errors = [f"attempt {one.get('attempt')}: {one.get('error')}" for one in row.get("errors") or ()]
    lines: list[tuple[str, Any]] = [
        ("step", row.get("path")),
        ("kind", row.get("kind")),
        ("does", does(row)),
        ("arguments", plain((row.get("job") or {}).get("args") or {})),
        ("after", " ".join(row.get("deps") or ())),
        ("state", f"{row.get('state')} {row.get('outcome') or ''}".strip()),
        ("unreadable", row.get("unreadable")),
        ("ending", "it may still run" if row.get("ending") else None),
        ("reason", row.get("reason")),
        ("tries", f"{row.get('tries')} of {row.get('max_attempts')}"),
        ("run", row.get("run_id")),
        ("not before", row.get("not_before")),
        ("started", ago(row.get("started_at")) if row.get("started_at") else None),
        ("ended", ago(row.get("ended_at")) if row.get("ended_at") else None),
        ("result", f"{row['result_bytes']:,} bytes" if row.get("result_bytes") is not None else None),
        *(("error", one) for one in errors),
    ]
    return [(name, clean(value)) for name, value in lines if value not in (None, "", [], {})]
