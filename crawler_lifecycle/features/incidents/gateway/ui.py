"""The web pages of incidents: a list, and a page for each incident with its history and forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Literal

from fastapi import FastAPI, Request
from pydantic import AfterValidator, Field, StringConstraints
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from crawler_lifecycle.domain.bounds import storable
from crawler_lifecycle.domain.errors import LifecycleError
from crawler_lifecycle.domain.incident import IncidentRow
from crawler_lifecycle.features import INCIDENT_KINDS
from crawler_lifecycle.gateway.access.operations import caller_name, may, signed
from crawler_lifecycle.gateway.api.paging import one_of
from crawler_lifecycle.gateway.parts import Gateway
from crawler_lifecycle.gateway.pools import holders_of
from crawler_lifecycle.gateway.ui.parts.choosing import Chooser
from crawler_lifecycle.gateway.ui.parts.chosen import NUMBERED, ChosenForm, add_list
from crawler_lifecycle.gateway.ui.parts.forms import (
    ActionForm,
    form,
    placed,
    read,
    typed,
    validated,
)
from crawler_lifecycle.gateway.ui.parts.incidents import incident_line
from crawler_lifecycle.gateway.ui.parts.lists import (
    HeldFilters,
    RowPage,
    held_sorts,
    windowed,
)
from crawler_lifecycle.gateway.ui.parts.notes import Outcome, go_back
from crawler_lifecycle.gateway.ui.parts.rendering import answer
from crawler_lifecycle.store.store import Store
from crawler_lifecycle.subjects import INCIDENT, RUN, Column, Link, Subject, Word, at, count
from crawler_lifecycle.web.problems import Problem, of_error, refused

from ..domain.rules import RECOVERED
from ..store.tables import NAME_MAX, TEXT_MAX
from .commands import Assign, ClosedBy, Comment, IncidentCommands, Mute
from .routes import IncidentId

#: The maximum numbers of events, and of actions of people, in the history of an incident.
HISTORY_MAX = 50
_FIELDS = ("for_s", "until", "assignee", "comment")
#: What each list contains, as arguments of ``list_incidents``.
_LISTS: Mapping[str, Mapping[str, Any]] = {
    "open": {"state": "open", "muted": False},
    "muted": {"state": "open", "muted": True},
    "closed": {"state": "closed"},
}


#: The time from a browser's date picker has no offset.
_IN_UTC = AfterValidator(lambda time: time if time.tzinfo else time.replace(tzinfo=UTC))


class ListFilters(HeldFilters):
    """Filters in the address of the list.

    With ``all``, all matching incidents are listed and selected, up to the limit.
    """

    all: bool = False
    show: Literal["open", "muted", "closed"] = "open"
    kind: Annotated[str, one_of({kind: kind for kind in INCIDENT_KINDS})] | None = None
    assignee: str | None = None


class IncidentForm(ActionForm):
    """The form of an incident. The bodies of the API check the values."""

    subject: ClassVar[Subject] = INCIDENT
    for_s: float | None = None
    until: Annotated[datetime, _IN_UTC, AfterValidator(storable)] | None = None
    assignee: str | None = None
    comment: str | None = None


class IncidentsForm(ChosenForm, IncidentForm):
    """The form with actions on selected incidents."""

    acts = ("mute", "unmute", "mine", "close")
    apart = ("for_s",)
    incident: Annotated[
        list[Annotated[str, StringConstraints(pattern=NUMBERED)]], Field(default_factory=list)
    ]

    @classmethod
    def offered(cls, filters: ListFilters) -> Sequence[str]:
        """Return the actions; only a caller with a name can take incidents."""
        if filters.show == "closed":
            return ()
        return [name for name in cls.acts if name != "mine" or caller_name() is not None]


LISTED = replace(
    INCIDENT,
    columns=(
        Column("Incident", lambda row: Link(row["sentence"], INCIDENT.path(row["incident_id"]))),
        Column("Kind", lambda row: Word(row["kind"], bad=row["level"] == "bad"), leaves=4),
        Column("Count", count("count"), right=True),
        Column("Since", at("opened_at")),
        Column("Last", at("last_at"), leaves=3),
        Column(
            "Last run",
            lambda row: (
                row["last_run_id"] and Link(row["last_run_id"], RUN.path(row["last_run_id"]))
            ),
            leaves=3,
        ),
        Column("Muted until", at("muted_until"), leaves=2),
        Column("Taken by", "assignee", leaves=1),
        Column("Cause", "cause", fills=True),
        Column("Comment", "comment", leaves=2),
        Column("Closed", at("closed_at"), leaves=4),
        Column("Closed by", "closed_by", leaves=4),
    ),
)
CHOOSER = Chooser(
    LISTED,
    "/incidents",
    "Name, cause, run, comment",
    facets={"kind": "Kind", "assignee": "Taken by"},
    values={"kind": list(INCIDENT_KINDS)},
    sorts=held_sorts(LISTED.columns),
    presets={"Open": {}, "Muted": {"show": "muted"}, "Closed": {"show": "closed"}},
    typed=("assignee",),
    largest=("count", "since", "last", "last_run", "closed"),
    newest_first=True,
)


@dataclass(frozen=True, slots=True)
class HistoryLine:
    """Something that happened to an incident."""

    at: datetime
    words: str
    who: str | None = None


def add_incidents(app: FastAPI, gateway: Gateway) -> None:
    """Add the web pages of incidents."""
    store = gateway.store
    clock = gateway.clock
    commands = IncidentCommands(store.incidents, clock)

    def found(filters: ListFilters) -> RowPage:
        listed = partial(
            store.incidents.list_incidents,
            kind=filters.kind,
            assignee=filters.assignee,
            **_LISTS[filters.show],
        )
        page, token = filters.read("incident", listed, attrgetter("incident_id"))
        shown = [
            {**asdict(row), "attempt": row.attempt, "sentence": incident_line(row).sentence}
            for row in page
        ]
        return RowPage(shown, token)

    async def find(key: str) -> IncidentRow:
        return await run_in_threadpool(commands.find, int(key))

    async def do(key: str, asked: IncidentsForm) -> str:
        await run_in_threadpool(_carry_out, commands, int(key), asked)
        return asked.action.done

    among = windowed(CHOOSER, found)
    add_list(app, CHOOSER, ListFilters, IncidentsForm, among, clock, find, do, gateway.once)

    @app.get("/incidents/{incident_id}")
    def show_incident(incident_id: IncidentId, request: Request) -> Response:
        """Show one incident: its cause, its history, and what a person can do about it."""
        return shown(request, incident_id, {}, None)

    def shown(
        request: Request, incident_id: int, given: Mapping[str, str], problem: Problem | None
    ) -> Response:
        row = commands.find(incident_id)
        wrong = placed(problem, {name: name for name in _FIELDS}) if problem else None
        values: dict[str, Any] = {
            "given": {"comment": row.comment or "", "assignee": row.assignee or "", **given},
            "wrong": wrong,
            "status": problem.status if problem else 200,
        }
        is_pool = row.kind == "pool_full" and row.state == "open"
        values |= holders_of(store.pools, [row.name] if is_pool else [])
        return answer(
            request,
            "incident.html",
            one=incident_line(row),
            history=history(store, row),
            me=caller_name(),
            name_max=NAME_MAX,
            text_max=TEXT_MAX,
            now=clock(),
            **values,
        )

    @app.post("/incidents/{incident_id}")
    async def press_incident(incident_id: IncidentId, request: Request) -> Response:
        """Mute, assign, comment on or close an incident. A repeat changes nothing."""
        pairs = await form(request)
        given = typed(pairs, ("key", "do", *_FIELDS))

        try:
            asked = read(IncidentForm, pairs)
            await run_in_threadpool(_carry_out, commands, incident_id, asked)
        except (Problem, LifecycleError) as error:
            return await run_in_threadpool(shown, request, incident_id, given, of_error(error))
        done = Outcome(f"incident {incident_id}", None, True, asked.action.done)
        return go_back(request, asked.action.title, done, INCIDENT.path(incident_id))


def _carry_out(commands: IncidentCommands, incident_id: int, asked: IncidentForm) -> IncidentRow:
    """Carry out the action of the form. Return the changed incident."""
    match asked.do:
        case "mute" if asked.for_s is None and asked.until is None:
            raise refused("until", "missing; choose a duration, or give a time")
        case "mute":
            act = partial(
                commands.mute, body=validated(Mute, {"for_s": asked.for_s, "until": asked.until})
            )
        case "unmute":
            act = partial(commands.mute, body=Mute())
        case "mine":
            act = partial(commands.assign, body=Assign(assignee=caller_name()))
        case "assign":
            act = partial(commands.assign, body=validated(Assign, {"assignee": asked.assignee}))
        case "comment":
            act = partial(commands.comment, body=validated(Comment, {"comment": asked.comment}))
        case _:
            act = partial(commands.close, body=signed(ClosedBy()))
    return act(incident_id)


def history(store: Store, row: IncidentRow) -> list[HistoryLine]:
    """Return what happened to an incident, newest first.

    Only callers who may read the access log see what people did.
    """
    lines = [HistoryLine(row.opened_at, "The first occurrence")]
    for event in store.incidents.incident_events(row, HISTORY_MAX):
        lines.append(_of_event(event))
    if may("listAccess"):
        number = str(row.incident_id)
        for entry in store.access.list_access(
            HISTORY_MAX, kind="incident", subject=number, outcome="done"
        ):
            what = entry.verb or entry.operation.removesuffix("Incident").capitalize()
            lines.append(HistoryLine(entry.at, what, entry.caller or "an unnamed caller"))
    return sorted(lines, key=attrgetter("at"), reverse=True)


def _of_event(event: Mapping[str, Any]) -> HistoryLine:
    body = event["body"]
    by = body.get("closed_by")
    words = {
        "incident.opened": "Reported as opened",
        "incident.grew": f"Reported as increasingly frequent: {body.get('count')} times",
        "incident.closed": "Recovered" if by == RECOVERED else "Closed",
    }
    return HistoryLine(event["created_at"], words[event["type"]], None if by == RECOVERED else by)
