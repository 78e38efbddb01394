"""Verbs that show and steer webhooks: list, describe, deliveries, pause, resume, test, delete."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from crawler_lifecycle.cli.client.gateway import Gateway
from crawler_lifecycle.cli.client.polling import Polling
from crawler_lifecycle.cli.named import By, Limit, Reason
from crawler_lifecycle.cli.output import Document, clean, emit_list, say_note
from crawler_lifecycle.cli.problems import Exit
from crawler_lifecycle.cli.session import current, user

from . import tables
from .put import KIND, Name

Status = Literal["delivered", "failed", "skipped"]
#: Seconds to wait for what becomes of a test.
WAIT_S = 15.0


def list_webhooks(*, limit: Limit = 50) -> int:
    """List webhooks, in the order in which they were made."""
    return KIND.list_all(limit)


def describe(name: Name, /) -> int:
    """Show everything about a webhook, and how it stands."""
    return KIND.describe(name)


def deliveries(
    name: Name,
    /,
    *,
    status: Annotated[Status | None, Parameter(help="only those that are this")] = None,
    limit: Limit = 50,
) -> int:
    """List what was told to a webhook, or tried to be, the latest event first."""
    session = current()
    with session.gateway() as gateway:
        rows = gateway.rows(f"{KIND.path(name)}/deliveries", limit=limit, status=status)
    emit_list(session, "deliveries", rows, tables.DELIVERIES, name="seq", empty="nothing was told yet")
    return Exit.DONE


def pause(name: Name, /, *, reason: Reason = None, by: By = None) -> int:
    """Have nothing told to a webhook until it is resumed."""
    return KIND.pause(name, reason, by)


def resume(
    name: Name,
    /,
    *,
    skip: Annotated[bool, Parameter(help="leave out all that happened until now")] = False,
    skip_event: Annotated[int | None, Parameter(help="leave out this event alone, which fails again and again")] = None,
) -> int:
    """Let a paused webhook go on, with what happened meanwhile; one that fails tries again at once."""
    return KIND.post(name, "resume", {"skip": skip, "skip_seq": skip_event})


def try_out(name: Name, /, *, by: By = None) -> int:
    """Tell a webhook of an event that is for it alone, and show what became of that (--timeout: how long to wait)."""
    session = current()
    with session.gateway() as gateway:
        asked = gateway.post(f"{KIND.path(name)}/test", {"requested_by": by or user()})
        say_note(session, asked)
        wait = 0.0 if asked.get("note") else session.timeout_s or WAIT_S
        found = _became(gateway, name, int(asked["seq"]), wait)
        if found is None:
            error = gateway.get(KIND.path(name))["error"]
            why = f" behind what fails: {error}" if error else ""
            said = f"event {asked['seq']} waits for its turn{why}; next: crawlctl webhook deliveries {name}"
            session.say(clean(said))
            return Exit.GAVE_UP_WAITING
    emit_list(session, "deliveries", [found], tables.DELIVERIES, name="seq", empty="")
    return Exit.DONE if found["status"] == "delivered" else Exit.ERROR


def _became(gateway: Gateway, name: str, seq: int, wait: float) -> Document | None:
    """The first try of an event, if it comes in time."""
    for page in Polling(timeout_s=wait).answers(lambda: gateway.rows(f"{KIND.path(name)}/deliveries", limit=20)):
        found = next((row for row in page if row["seq"] == seq), None)
        if found is not None:
            return found
    return None


def delete(name: Name, /) -> int:
    """Delete a webhook; its deliveries stay on record."""
    return KIND.delete(name)
