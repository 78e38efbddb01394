"""``crawlctl incidents`` and ``crawlctl incident``: problems that need attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from crawler_lifecycle.cli.output import build_table, clean, show_list
from crawler_lifecycle.cli.problems import Exit, WrongUsage
from crawler_lifecycle.cli.session import current, seconds, time_of
from crawler_lifecycle.cli.subjects import By, Entry, Kind, Limit, Project, watch_changes
from crawler_lifecycle.dev_json import user
from crawler_lifecycle.subjects import CLOSED, INCIDENT, Document

KIND = Kind(INCIDENT)
Id = Annotated[int, Parameter(help="the incident's number")]


def list_incidents(
    *,
    state: Literal["open", "closed", "all"] = "open",
    kind: str | None = None,
    subject: str | None = None,
    assignee: str | None = None,
    mine: bool = False,
    muted: bool = False,
    watch: bool = False,
    project: Project = None,
    limit: Limit = 50,
) -> int:
    """List the problems that need attention, newest first.

    Parameters
    ----------
    state
        open or closed incidents, or all
    kind
        only this kind, such as crawler_failing
    subject
        only about this subject, such as crawlers/shop
    assignee
        only incidents that this person takes care of
    mine
        only incidents that you take care of
    muted
        only muted incidents
    watch
        show changes until Ctrl-C
    """
    if mine and assignee is not None:
        raise WrongUsage("--mine: not allowed with --assignee", "give one of them")
    wanted: dict[str, Any] = {
        "state": state,
        "kind": kind,
        "subject": subject,
        "assignee": user() if mine else assignee,
        "muted": muted or None,
        "project": project,
    }
    if not watch:
        empty = "nothing needs attention" if state == "open" else "no incidents"
        columns = INCIDENT.columns if state == "open" else (*INCIDENT.columns, *CLOSED)
        show_list("/v1/incidents", columns, key="incident_id", empty=empty, limit=limit, **wanted)
        return Exit.DONE

    def lines(rows: Sequence[Document]) -> list[Entry]:
        texts = [f"incident {row['incident_id']} {row['kind']}: {row['cause']}" for row in rows]
        return [
            (row["incident_id"], clean(text), row) for row, text in zip(rows, texts, strict=True)
        ]

    with current().gateway() as gateway:
        watch_changes(
            lambda: gateway.rows("/v1/incidents", limit=limit, **wanted),
            lines,
            picture=lambda rows: build_table(rows, INCIDENT.columns),
            nothing="nothing needs attention",
        )
    return Exit.GAVE_UP_WAITING


def show(incident: Id, /) -> None:
    """Show everything about an incident."""
    KIND.describe(incident)


def mute(incident: Id, /, *, time: str = "1d", until: str | None = None) -> None:
    """Send no events about an incident for some time.

    Parameters
    ----------
    time
        for how long, such as 4h or 7d
    until
        until this time instead
    """
    body = {"for_s": seconds(time)} if until is None else {"until": time_of("--until", until)}
    KIND.post(incident, "mute", body)


def unmute(incident: Id, /) -> None:
    """Send events about an incident again."""
    KIND.post(incident, "mute", {})


def assign(incident: Id, name: str | None = None, /, *, nobody: bool = False) -> None:
    """Assign an incident to somebody.

    Parameters
    ----------
    name
        who; default: you
    nobody
        nobody takes care of it any longer
    """
    KIND.post(incident, "assign", {"assignee": None if nobody else name or user()})


def comment(incident: Id, text: str, /) -> None:
    """Record a comment about an incident. It replaces the previous comment.

    Parameters
    ----------
    text
        the comment; an empty one removes it
    """
    KIND.post(incident, "comment", {"comment": text or None})


def close(incident: Id, /, *, by: By = None) -> None:
    """Close an incident by hand. It opens again if its cause occurs again."""
    KIND.post(incident, "close", {"requested_by": by or user()})
