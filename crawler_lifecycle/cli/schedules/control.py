"""Verbs that show and steer schedules: list, describe, due, pause, resume, trigger, backfill, delete."""

from __future__ import annotations

import uuid
from typing import Annotated, Literal

from cyclopts import Parameter

from crawler_lifecycle.cli.named import By, Limit, Reason
from crawler_lifecycle.cli.output import Document, emit_list, now, say_note
from crawler_lifecycle.cli.problems import Exit
from crawler_lifecycle.cli.session import Session, current, time_of, user

from . import tables
from .put import KIND, Name

Decision = Literal["started", "queued", "skipped_overlap", "paused", "missed", "failed"]


def list_schedules(*, limit: Limit = 50) -> int:
    """List schedules, in the order in which they were made."""
    return KIND.list_all(limit)


def describe(name: Name, /) -> int:
    """Show everything about a schedule: its next due times, and days whose clock is set."""
    return KIND.describe(name)


def due(
    name: Name,
    /,
    *,
    decision: Annotated[Decision | None, Parameter(help="only those that came to this")] = None,
    limit: Limit = 50,
) -> int:
    """List due times, the latest first, each with what became of it."""
    session = current()
    with session.gateway() as gateway:
        rows = gateway.rows(f"{KIND.path(name)}/due", limit=limit, decision=decision)
    emit_list(session, "due", rows, tables.DUE, name="due_at", empty="nothing was due yet")
    return Exit.DONE


def pause(name: Name, /, *, reason: Reason = None, by: By = None) -> int:
    """Have due times begin nothing until it is resumed; each still has its line."""
    return KIND.pause(name, reason, by)


def resume(name: Name, /) -> int:
    """Let a paused schedule go on; what was due meanwhile begins by backfill alone."""
    return KIND.post(name, "resume")


def trigger(name: Name, /, *, by: By = None) -> int:
    """Have it be due now, also while it is paused; what overlaps waits."""
    session, path = current(), f"{KIND.path(name)}/trigger"
    with session.gateway() as gateway:
        _asked(session, gateway.post(path, {"requested_by": by or user()}, key=uuid.uuid4().hex))
    return Exit.DONE


def backfill(
    name: Name,
    /,
    *,
    after: Annotated[str, Parameter(help="due times behind this: a time, or 2h, 3d ago")],
    until: Annotated[str | None, Parameter(help="and up to this; default: now")] = None,
    by: By = None,
) -> int:
    """Have past due times begin that began nothing, one after the other."""
    session, present = current(), now()
    body = {"after": time_of("--after", after, present), "requested_by": by or user()}
    if until:
        body["until"] = time_of("--until", until, present)
    with session.gateway() as gateway:
        _asked(session, gateway.post(f"{KIND.path(name)}/backfill", body))
    return Exit.DONE


def delete(name: Name, /) -> int:
    """Delete a schedule; its due times stay on record, and what they began goes on."""
    return KIND.delete(name)


def _asked(session: Session, found: Document) -> None:
    say_note(session, found)
    emit_list(session, "due", found.get("due") or [], tables.DUE, name="due_at", empty="nothing was due in this time")
