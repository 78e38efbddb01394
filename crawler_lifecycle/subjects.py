"""Columns, facts and actions that people see for runs, managers, graphs, schedules, webhooks,
pools and sites.

A subject contains the columns of its list, the facts for its detail view, and its actions. Columns
and facts are functions that read the JSON document from the HTTP API and return a ``Cell``. The web
UI and ``crawlctl`` show the same cells, each in its own format. Every command imports this module,
so the module itself imports little.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from crawler_lifecycle.domain import plurals
from crawler_lifecycle.domain.code import DIGITS_SHOWN, short_digest
from crawler_lifecycle.domain.projects import DEFAULT
from crawler_lifecycle.domain.status_words import (
    STATE_WORDS,
    shown_status,
    shown_word,
    state_word,
    status_word,
)
from crawler_lifecycle.features.webhooks.domain.definition import fix
from crawler_lifecycle.runner.tree import ALGORITHM

Document = Mapping[str, Any]
"""One run, manager, graph, schedule or webhook, as the API returns it."""


@dataclass(frozen=True, slots=True)
class At:
    """A time, shown as its age.

    If ``exact`` is true, a terminal shows the time itself, because people copy this time into
    commands.
    """

    time: Any
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Took:
    """The duration between two times, or until now if there is no end."""

    begin: Any
    end: Any


@dataclass(frozen=True, slots=True)
class Lag:
    """A duration in milliseconds."""

    ms: Any


@dataclass(frozen=True, slots=True)
class Word:
    """A word for a state, shown in colour. The web UI shows the reasons in ``why`` below it."""

    text: Any
    bad: bool = False
    why: Sequence[Any] = ()


@dataclass(frozen=True, slots=True)
class Link:
    """Text that links to a page, such as ``/runs/7``."""

    text: Any
    path: str


@dataclass(frozen=True, slots=True)
class Count:
    """A quantity, shown with thousands separators. A plain ``int`` in a cell is an id."""

    number: Any
    bad: bool = False


@dataclass(frozen=True, slots=True)
class Size:
    """A number of bytes, shown in a suitable unit."""

    bytes: Any


@dataclass(frozen=True, slots=True)
class Note:
    """A part of a cell with a style: ``small``, ``tag``, ``why``, ``flag`` or ``flag bad``.

    In a sentence about waiting, times become ages.
    """

    text: Any
    style: str = "small"


@dataclass(frozen=True, slots=True)
class CellLine:
    """A cell with several parts. Empty parts are omitted."""

    parts: Sequence[Any]


@dataclass(frozen=True, slots=True)
class JsonDetails:
    """A document that is shown when a person opens it."""

    document: Any


Cell = (
    At
    | Took
    | Lag
    | Word
    | Link
    | Count
    | Size
    | Note
    | CellLine
    | JsonDetails
    | str
    | int
    | float
    | bool
    | Mapping[str, Any]
    | Sequence[Any]
    | None
)
Read = Callable[[Document], Cell]
#: Where a cell comes from: the name of a field, or a function of the row.
Source = str | Read
Facts = Sequence[tuple[str, Source]]


@dataclass(frozen=True, slots=True)
class Column:
    """A column in a table.

    If ``wide`` is true, ``crawlctl`` shows the column only with ``-o wide``. ``on`` limits the
    column to the web UI or to ``crawlctl``. If the web UI has too little room, it omits the columns
    with ``leaves`` 4 first, then 3, 2 and 1; those with 0 always stay. The column that ``fills``
    gets the room that the others do not need.
    """

    title: str
    source: Source
    right: bool = False
    wide: bool = False
    on: Sequence[str] = ("page", "terminal")
    leaves: int = 0
    fills: bool = False

    def cell(self, row: Document) -> Cell:
        """Return the cell of a row in this column."""
        return cell_of(row, self.source)


@dataclass(frozen=True, slots=True)
class Action:
    """An action on one object: ``POST`` to its address plus ``/path``.

    The action ``delete`` sends ``DELETE``.
    """

    name: str
    title: str
    """The label of the action's button."""
    done: str = ""
    """The web UI's message after success, with fields in braces; empty if the message depends on
    the response.
    """
    offered: Callable[[Document], bool] = lambda row: True
    asks: Sequence[str] = ()
    """Fields of the request body that a person may fill in."""
    body: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the request body with fixed values."""
    via: str | None = None
    """The path of the action, if the path differs from the name."""
    before: str = "Nothing changed: it was already in this state."
    """The message of the web UI if the action changed nothing."""

    @property
    def path(self) -> str:
        return self.via or self.name

    @property
    def danger(self) -> bool:
        """Return whether the action causes a loss of data, because it kills crawlers or deletes
        something.
        """
        return self.name in ("force", "delete")


@dataclass(frozen=True, slots=True)
class Subject:
    """A kind of object: its name, columns, facts and actions."""

    noun: str
    key: str
    """The field of the document that identifies the object in its path."""
    columns: Sequence[Column]
    """The columns of a list."""
    facts: Facts = ()
    actions: Sequence[Action] = ()
    empty: str = ""
    """The message of the web UI for an empty list."""

    @property
    def plural(self) -> str:
        return f"{self.noun[:-1]}ies" if self.noun.endswith("y") else f"{self.noun}s"

    def path(self, key: object, what: str = "") -> str:
        """Return the path of one object in the web UI; the API has the same path after ``/v1``.

        ``what``, such as ``/stop``, is appended to the path.
        """
        return f"/{self.plural}/{quote(str(key), safe='')}{what}"

    @property
    def state(self) -> list[Column]:
        """Return the columns that ``crawlctl`` shows after a command."""
        return [
            *(column for column in self.columns if column.title in _BRIEF),
            Column("Cause", "cause"),
        ]

    def action(self, name: str) -> Action:
        """Return the action with this name. Raises ``KeyError``."""
        return {action.name: action for action in self.actions}[name]

    def known(self, row: Document) -> list[tuple[str, Cell]]:
        """Return the facts about one object, omitting empty facts."""
        found = [(name, cell_of(row, source)) for name, source in self.facts]
        return [
            (name, cell) for name, cell in found if cell not in (None, "", [], (), {}, At(None))
        ]


#: The columns for a run, manager or graph that ``crawlctl`` shows after a command.
_BRIEF = (
    "Run",
    "Crawler",
    "Manager",
    "Graph",
    "Name",
    "Flow",
    "Status",
    "State",
    "Outcome",
    "Steps",
)

# --- cells ----------------------------------------------------------------------------------------


def cell_of(row: Document, source: Source) -> Cell:
    """Return the value of the field that ``source`` names, or what the function returns."""
    return row.get(source) if isinstance(source, str) else source(row)


def at(name: str) -> Read:
    """Return a reader of a field's time."""
    return lambda row: At(row.get(name))


def count(name: str) -> Read:
    """Return a reader of a field's quantity."""
    return lambda row: Count(row.get(name))


def first(*names: str) -> Read:
    """Return a reader of the first of these fields that is not empty."""
    return lambda row: next((row[name] for name in names if row.get(name)), None)


def _itself(plural: str, key: str) -> Read:
    return lambda row: (
        Link(row[key], f"/{plural}/{quote(str(row[key]), safe='')}") if row.get(key) else None
    )


def words(name: str) -> Read:
    """Return a reader that joins the members of a field's list with spaces."""
    return lambda row: " ".join(map(str, row.get(name) or ()))


#: The maximum number of rows that are counted for the total of a list.
TOTAL_MAX = 10_000


def total_words(total: int, exact: bool) -> str:
    """Return the number of rows in a list, as counted by the API."""
    if exact or not total:
        return f"{total:,}"
    return f"more than {total - 1:,}" if total > TOTAL_MAX else f"at least {total:,}"


def plain(value: Any) -> str:
    """Return a JSON value as text."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {plain(item)}" for key, item in value.items() if item is not None)
    if isinstance(value, list | tuple):
        return " ".join(plain(item) for item in value)
    return "" if value is None else str(value)


def _why(row: Document) -> list[Any]:
    names = (
        "blocked",
        "waiting",
        "error",
        "cause",
        "pause_reason",
        "trouble",
        "unreadable",
        "broken",
    )
    return [row[name] for name in names if row.get(name)]


def _wide(title: str, source: Source, *, right: bool = False, page: bool = False) -> Column:
    on = ("page", "terminal") if page else ("terminal",)
    return Column(title, source, right, wide=True, on=on, leaves=4)


def _drawn(title: str, source: Source, *, right: bool = False) -> Column:
    return Column(title, source, right, on=("terminal",))


def _page(title: str, source: Source, *, right: bool = False, leaves: int = 0) -> Column:
    return Column(title, source, right, on=("page",), leaves=leaves)


def _stop_of(row: Document) -> str | None:
    stop = row.get("stop")
    if not isinstance(stop, Mapping):
        return None
    how = (
        "by force" if stop.get("force") else "its runs continue" if row.get("leave") else "in order"
    )
    by = f" by {stop['requested_by']}" if stop.get("requested_by") else ""
    return f"{how}{by}" + (f": {stop['reason']}" if stop.get("reason") else "")


def project(row: Document) -> str | None:
    """Return the project of an object, unless it is the default project."""
    return None if row.get("project") == DEFAULT else row.get("project")


_ORIGIN: Facts = (
    ("project", project),
    ("tags", words("tags")),
    ("requested by", "requested_by"),
    ("parent", "parent"),
    ("workflow", "workflow_id"),
    ("created", at("created_at")),
    ("started", at("started_at")),
    ("ended", at("ended_at")),
)
_REASON = ("reason",)
_FORCE = {"force": True}
_RECORDED = "The stop is recorded."
_FORCED = "The forced stop is recorded."
_GOES_ON = "It continues."


def _is(name: str, *values: object) -> Callable[[Document], bool]:
    return lambda row: row.get(name) in values


# --- runs -----------------------------------------------------------------------------------------

TERMINAL = ("COMPLETED", "FAILED")
_FORCED_BEFORE = "This forced stop was already recorded."
_ATTEMPT = "Attempt {attempt} is accepted."
_AGAIN = {"rerun": True}


def was_stopped(row: Document) -> bool:
    """Return whether a run or manager FAILED because a person stopped it."""
    return status_word(row) == "stopped"


def deletion_words(deleted: Document) -> str:
    """Return a line about a deletion: who requested it and when, what was removed, and what was
    kept and why.
    """
    by = f" by {deleted['requested_by']}" if deleted.get("requested_by") else ""
    done = f"done {deleted['ended_at']}" if deleted.get("ended_at") else "not done yet"
    gone = [
        where if n is None else f"{n:,} {where}"
        for where, n in (deleted.get("gone") or {}).items()
        if n != 0
    ]
    left = [f"{where}: {why}" for where, why in (deleted.get("left") or {}).items()]
    words = f"requested {deleted.get('requested_at')}{by}, {done}"
    return (
        words
        + (f"; removed: {', '.join(gone)}" if gone else "")
        + (f"; kept: {'; '.join(left)}" if left else "")
    )


def _live(row: Document) -> bool:
    return row.get("status") not in TERMINAL


def pace(row: Document) -> str | None:
    """Return a run's or task's pages per minute, as reported by the gateway."""
    value = row.get("pages_per_minute")
    return f"{value:,.1f}" if isinstance(value, int | float) else None


def _among(name: str) -> Read:
    """Return a reader of a field's value with a link to all runs with the same value. The reader
    returns ``None`` if there is no value.
    """
    return lambda row: (
        Link(row[name], f"/runs?{name}={quote(str(row[name]), safe='')}") if row.get(name) else None
    )


def _digest_link(digest: str | None) -> Link | None:
    """Return a link to all runs that executed this code."""
    digits = (digest or "").removeprefix(ALGORITHM)
    return Link(short_digest(digest), f"/runs?code={digits}") if digits else None


def _code_parts(code: Document) -> list[Any]:
    commit = code.get("commit")
    return [
        code.get("version"),
        _digest_link(code.get("digest")),
        Note(f"commit {commit[:DIGITS_SHOWN]}") if commit else None,
        Note(code["note"]) if code.get("note") else None,
    ]


def code_of_task(row: Document) -> Cell:
    """Return the code of a task, with a link to all runs of the same code."""
    return CellLine(_code_parts(row["code"])) if row.get("code") else None


def codes_of_run(row: Document) -> Cell:
    """Return the codes of a run, with links to all runs of the same codes."""
    found = [part for code in row.get("codes") or () for part in _code_parts(code)]
    return CellLine(found) if found else None


RUN = Subject(
    "run",
    "run_id",
    columns=(
        # The web UI renders these columns in its own way, so that a list of runs fits on a phone.
        _drawn("Run", _itself("runs", "run_id"), right=True),
        _drawn("Crawler", "crawler"),
        _wide("Trigger", "trigger"),
        _drawn("Status", lambda row: Word(status_word(row), why=_why(row))),
        _drawn("Outcome", "outcome"),
        _wide("Ended by", "ended_by"),
        _wide("Stage", "stage"),
        _drawn("Pages", count("pages"), right=True),
        _drawn("Per min", pace, right=True),
        _drawn("Items", count("items"), right=True),
        _drawn("Errors", count("errors"), right=True),
        _drawn("Verified", at("verified_at")),
        _wide("Next poll", lambda row: At(row.get("next_poll_at")) if _live(row) else None),
        _drawn("Created", at("created_at")),
        _wide("Attempt", "attempt", right=True),
        _wide("Took", lambda row: Took(row.get("started_at"), row.get("ended_at"))),
        _wide("Tags", words("tags")),
        _wide("By", "requested_by"),
        _wide("Code", codes_of_run),
        _wide("Project", project),
        _wide("Workflow", first("workflow_id", "owner_workflow_id")),
        _drawn("Why", first("blocked", "cause", "waiting_for")),
    ),
    facts=(
        ("project", project),
        ("pool", lambda row: None if row.get("pool") == DEFAULT else _among("pool")(row)),
        ("flow", _among("flow_id")),
        ("code", codes_of_run),
        ("request id", "request_id"),
        ("uid", "run_uid"),
    ),
    actions=(
        Action("stop", "Stop", _RECORDED, _live, _REASON, before="This stop was already recorded."),
        Action(
            "force", "Force stop", _FORCED, _live, _REASON, _FORCE, "stop", before=_FORCED_BEFORE
        ),
        Action("poll", "Check now", "It is being checked.", _live),
        Action("resume", "Resume", _ATTEMPT, _is("status", "FAILED"), before=_ATTEMPT),
        Action(
            "rerun",
            "Run again",
            _ATTEMPT,
            _is("status", "COMPLETED"),
            (),
            _AGAIN,
            "resume",
            before=_ATTEMPT,
        ),
        Action(
            "delete",
            "Delete",
            "Its deletion is recorded.",
            before="Its deletion was already recorded.",
        ),
    ),
)

# --- managers -------------------------------------------------------------------------------------

#: States in which a manager's job is waiting for a slot.
WAITING = ("buffered", "delayed", "queued")
JOB_STATES = (*WAITING, "starting", "started", "ended", "skipped")


def jobs(row: Document) -> dict[str, int]:
    """Return the numbers of jobs by state and result, if the document contains these numbers."""
    found = row.get("jobs")
    return (
        {name: value for name, value in found.items() if isinstance(value, int)}
        if isinstance(found, dict)
        else {}
    )


def _jobs_in(*names: str) -> Read:
    return lambda row: Count(sum(jobs(row).get(name, 0) for name in names))


def _source(row: Document) -> str | None:
    if row.get("crawler"):
        return (
            "sealed, no more items will come" if row.get("sealed") else "open, more items may come"
        )
    if not row.get("position"):
        return None
    return f"{row['position']:,} read" + (", no more" if row.get("exhausted") else "")


def _jobs_said(row: Document, *, states: bool) -> str:
    said = {
        name: number
        for name, number in jobs(row).items()
        if number and (name in JOB_STATES) is states
    }
    names = [name for name in JOB_STATES if name in said] if states else list(said)
    return ", ".join(f"{name} {said[name]:,}" for name in names) or ("none yet" if states else "")


def _picks(row: Document) -> bool:
    return _live(row) and not row.get("paused")


_JOBS_PRUNED = "the records of its old jobs were removed, so it treats the same jobs as new"

MANAGER = Subject(
    "manager",
    "manager_id",
    columns=(
        Column("Manager", _itself("managers", "manager_id"), right=True),
        Column("Name", "name"),
        Column("Flow", _among("flow_id"), leaves=2),
        Column("Runs", first("crawler", "plan"), leaves=1),
        # The web UI has its own words, the same for runs and managers on each page.
        Column("Status", lambda row: Word(status_word(row), why=_why(row)), on=("terminal",)),
        Column(
            "Status", lambda row: Word(shown_word(row), why=_why(row)), on=("page",), fills=True
        ),
        Column("Outcome", "outcome", leaves=3),
        Column("Live", count("live"), right=True),
        _wide("Limit", "cap", right=True, page=True),
        Column("Waiting", _jobs_in(*WAITING), right=True, leaves=2),
        Column("Good", _jobs_in("good"), right=True, leaves=1),
        Column("Bad", _jobs_in("bad"), right=True),
        Column("Skipped", _jobs_in("skipped"), right=True, leaves=3),
        Column("Created", at("created_at"), leaves=2),
        _wide("Attempt", "attempt", right=True),
        _wide("By", "requested_by"),
        _wide("Project", project),
        _wide("Tags", words("tags")),
        _wide("Why", first("error", "cause", "waiting")),
    ),
    facts=(
        ("manager", "manager_id"),
        ("name", "name"),
        ("flow", "flow_id"),
        ("runs", first("crawler", "plan")),
        ("options", lambda row: plain(row.get("argv") or [])),
        ("status", lambda row: f"{status_word(row)} {row.get('outcome') or ''}".strip()),
        ("cause", "cause"),
        ("attempt", "attempt"),
        (
            "window",
            lambda row: (
                f"{row.get('live') or 0} live"
                + (f" of at most {row['cap']}" if row.get("cap") else "")
            ),
        ),
        ("jobs", lambda row: _jobs_said(row, states=True)),
        ("so far", lambda row: _jobs_said(row, states=False)),
        ("source", _source),
        ("waiting", "waiting"),
        ("error", "error"),
        ("stop", _stop_of),
        ("statistics", "stats"),
        ("state", "state"),
        *_ORIGIN,
        ("pruned", lambda row: row.get("jobs_pruned_at") and _JOBS_PRUNED),
        ("checked", at("updated_at")),
    ),
    actions=(
        Action("stop", "Stop", _RECORDED, _live, _REASON),
        Action(
            "leave",
            "Stop the manager, but let its runs continue",
            _RECORDED,
            _live,
            _REASON,
            {"leave": True},
            "stop",
        ),
        Action("force", "Force stop", _FORCED, _live, _REASON, _FORCE, "stop"),
        Action("pause", "Pause", "It starts no more jobs; its runs continue.", _picks),
        Action("resume", "Resume", _GOES_ON, lambda row: not _picks(row)),
        Action(
            "redo",
            "Resume, including the runs that the stop ended",
            _GOES_ON,
            was_stopped,
            body={"redo": True},
            via="resume",
        ),
        Action("limit", "Set", "The limit is {cap}.", _live, ("cap",)),
    ),
    empty="There are no managers. A manager starts one run after another, with a limit "
    "on parallel runs. Start it with crawlctl manager start, the API or a schedule.",
)
JOB = Subject(
    "job",
    "item_id",
    columns=(
        Column("Job", "item_id", right=True),
        Column("Number", "seq", right=True, leaves=4),
        Column("Retry", "retry", right=True, leaves=2),
        Column("State", lambda row: Word(row.get("state"), why=_why(row))),
        Column("Run", _itself("runs", "run_id"), right=True),
        Column("Outcome", "outcome", leaves=1),
        Column("Spider", lambda row: (row.get("job") or {}).get("spider"), leaves=2),
        Column(
            "Arguments",
            lambda row: plain((row.get("job") or {}).get("spider_args") or {}),
            fills=True,
        ),
        _wide("Position", "position", right=True),
        _wide("Tags", lambda row: words("tags")(row.get("job") or {})),
        _drawn("Why", first("error", "unreadable")),
    ),
    empty="The manager has no jobs yet. It reads them from its source, or they are added with "
    "crawlctl manager add or the API.",
)

# --- graphs ---------------------------------------------------------------------------------------


def steps(row: Document) -> str:
    """Return the number of a graph's steps in each state, such as ``2 running, 5 completed``."""
    found = row.get("counts") or {}
    return ", ".join(
        f"{found[state]:,} {word}" for state, word in STATE_WORDS.items() if found.get(state)
    )


def _graph_name(row: Document) -> Link | None:
    return (
        Link(row["name"], f"/graphs/{quote(str(row.get('id')), safe='')}")
        if row.get("name")
        else None
    )


def _open(row: Document) -> bool:
    return row.get("state") in ("draft", "executing")


GRAPH = Subject(
    "graph",
    "id",
    columns=(
        Column("Graph", _itself("graphs", "id")),
        Column("Name", _graph_name, leaves=1),
        Column("State", lambda row: Word(state_word(row.get("state")), why=_why(row)), fills=True),
        Column("Steps", steps),
        Column("Created", at("created_at"), leaves=2),
        _page(
            "Took",
            lambda row: Took(row.get("started_at"), row.get("ended_at")),
            right=True,
            leaves=1,
        ),
        _wide("Attempt", "attempt", right=True),
        _wide("By", "requested_by"),
        _wide("Project", project),
        _wide("Tags", words("tags")),
        _wide("Why", first("cause", "waiting")),
    ),
    facts=(
        ("graph", "id"),
        ("name", "name"),
        ("state", lambda row: state_word(row.get("state"))),
        ("cause", "cause"),
        ("waiting", "waiting"),
        ("steps", lambda row: f"{row.get('total') or 0:,}: {steps(row)}"),
        ("attempt", "attempt"),
        (
            "options",
            lambda row: plain(
                {name: value for name, value in (row.get("options") or {}).items() if value}
            ),
        ),
        ("stop", _stop_of),
        *_ORIGIN,
        ("pruned", at("pruned_at")),
    ),
    actions=(
        Action("cancel", "Cancel steps", offered=_open, asks=("reason", "names")),
        Action("retry", "Retry steps", asks=("names",)),
        Action("fresh", "Retry with new runs", asks=("names",), body={"fresh": True}, via="retry"),
        Action("stop", "Stop the graph", _RECORDED, _open, _REASON),
        Action("force", "Force stop the graph", _FORCED, _open, _REASON, _FORCE, "stop"),
    ),
    empty="There are no graphs. A graph consists of runs and functions that depend on each other. "
    "Start it with crawlctl graph start, the API or a schedule.",
)


def does(row: Document) -> str:
    """Return the function, crawler or class that a step executes."""
    job = row.get("job") or {}
    return str(job.get("call") or job.get("crawler") or job.get("plan") or job.get("name") or "")


STEP = Subject(
    "step",
    "path",
    columns=(
        Column(
            "Step", lambda row: Link(row["path"], row["href"]) if "href" in row else row["path"]
        ),
        Column("Kind", "kind", leaves=2),
        Column("Does", does, leaves=3),
        Column(
            "State",
            lambda row: Word(
                f"{state_word(row.get('state'))}{' (ending)' if row.get('ending') else ''}",
                why=[row.get("reason")],
            ),
            fills=True,
        ),
        _page("Outcome", "outcome", leaves=1),
        _page("Errors", lambda row: JsonDetails(row["errors"]) if row["errors"] else None),
        Column(
            "Tries",
            lambda row: f"{row.get('tries')}/{row.get('max_attempts')}",
            right=True,
            leaves=2,
        ),
        Column(
            "Run",
            lambda row: _itself("managers" if row.get("kind") == "manager" else "runs", "run_id")(
                row
            ),
            right=True,
        ),
        _wide("After", words("deps"), page=True),
        _page("Started", at("started_at"), leaves=3),
        _page("Took", lambda row: Took(row["started_at"], row["ended_at"]), right=True, leaves=1),
        _drawn("Why", "reason"),
    ),
    actions=[GRAPH.action(name) for name in ("retry", "fresh", "cancel")],
    empty="The graph has no steps. The steps of a draft are listed as soon as it starts, and those "
    "of a graph that ended long ago were removed.",
)

# --- schedules ------------------------------------------------------------------------------------

#: Decisions about due times that a person should review.
UNDONE = ("missed", "failed")


def _target(row: Document) -> tuple[str, dict[str, Any]]:
    kind = str(row.get("kind"))
    found = (row.get("definition") or {}).get(kind)
    return kind, dict(found) if isinstance(found, Mapping) else {}


def begins(row: Document) -> Cell:
    """Return the kind and name of the run, manager or graph that a schedule starts, with the
    crawler or user code.
    """
    kind, target = _target(row)
    name = str(target.get("crawler" if kind == "run" else "name") or "")
    said = f"{kind} {name or target.get('plan') or ''}".strip()
    path = (
        f"/crawlers/{quote(name, safe='')}"
        if kind == "run"
        else f"/{kind}s?name={quote(name, safe='')}"
    )
    return Link(said, path) if name else said


def due_times(row: Document) -> str:
    """Return the times at which a schedule is due, as text."""
    found = row.get("definition") or {}
    return (
        f"{found['cron']} {found.get('time_zone', 'UTC')}"
        if found.get("cron")
        else f"every {found.get('every_s')} s"
    )


def schedule_state(row: Document) -> str:
    """Return the state of a schedule: paused, ended, broken or active."""
    if row.get("paused"):
        return "paused"
    if row.get("ended_at"):
        return "ended"
    return "broken" if row.get("broken") else "active"


def _not_in_temporal(row: Document) -> list[str]:
    return ["it is not in Temporal yet"] if row.get("in_temporal") is False else []


def _began(row: Document) -> Cell:
    kind = row.get("kind")
    number = row.get("target_id")
    if number is None:
        return None
    # The key of a graph that was started for a due time looks like the id of a request.
    key = str(row.get("request_id")).replace("/", ".")
    return Link(f"{kind} {number}", GRAPH.path(key) if kind == "graph" else f"/{kind}s/{number}")


def _with(row: Document) -> str:
    kind, target = _target(row)
    steps = [str(step.get("path")) for step in target.pop("steps", ())]
    named = (
        f"{len(steps):,} {'step' if len(steps) == 1 else 'steps'}: "
        f"{', '.join(steps[:5])}{' …' if steps[5:] else ''}"
    )
    for name in ("crawler" if kind == "run" else "name", "options"):
        target.pop(name, None)
    return "; ".join(
        filter(None, (named if steps else "", plain({k: v for k, v in target.items() if v})))
    )


def _clock_changes(row: Document) -> str:
    return ", ".join(
        f"{change['day']} {change['local_time']} {change['effect']}"
        for change in row.get("clock_changes") or ()
    )


def _option(name: str) -> tuple[str, Source]:
    return name, lambda row: plain((row.get("definition") or {}).get(name))


DUE = (
    Column("Due", lambda row: At(row.get("due_at"), exact=True)),
    Column("Decision", lambda row: Word(row.get("decision"), bad=row.get("decision") in UNDONE)),
    Column("Late", lambda row: Lag(row.get("lateness_ms")), right=True, leaves=2),
    Column("Began", _began),
    Column("Status", lambda row: state_word(row.get("status")), on=("terminal",)),
    _page("Status", lambda row: shown_status(row.get("status"))),
    Column("Why", "reason", fills=True),
    Column("By", "asked_by", wide=True, leaves=3),
)


def _of_last(column: Column) -> Read:
    return lambda row: column.cell(row["last"]) if row.get("last") else None


SCHEDULE = Subject(
    "schedule",
    "name",
    columns=(
        Column("Schedule", _itself("schedules", "name")),
        Column("Begins", begins),
        Column("Due", due_times, leaves=2),
        Column(
            "State",
            lambda row: Word(
                schedule_state(row),
                why=[*_why(row), *_not_in_temporal(row)],
            ),
            fills=True,
        ),
        _page("Next", lambda row: None if row.get("paused") else At(row.get("next")), leaves=1),
        _page("Last", lambda row: At((row.get("last") or {}).get("due_at")), leaves=2),
        _page("Decision", _of_last(DUE[1]), leaves=2),
        _page("Late", _of_last(DUE[2]), right=True, leaves=4),
        _page("Began", _of_last(DUE[3]), leaves=3),
        _page("Status", lambda row: shown_status((row.get("last") or {}).get("status")), leaves=1),
        Column("Changed", at("updated_at"), on=("terminal",)),
        _wide("By", "requested_by"),
        _wide("Project", project),
        _wide("Why", first("pause_reason", "trouble")),
    ),
    facts=(
        ("schedule", "name"),
        ("begins", begins),
        ("with", _with),
        ("due", due_times),
        ("state", schedule_state),
        ("why", "pause_reason"),
        ("trouble", "trouble"),
        ("next", lambda row: None if row.get("paused") else ", ".join(row.get("next_due") or ())),
        ("clock change", _clock_changes),
        *map(
            _option,
            (
                "catch_up_s",
                "end_at",
                "excluded",
                "jitter_s",
                "offset_s",
                "overlap",
                "pause_after_failures",
            ),
        ),
        _option("start_at"),
        ("revision", "revision"),
        (
            "in Temporal",
            lambda row: (
                None if row.get("in_temporal") else "not yet; a worker with the role audit adds it"
            ),
        ),
        ("project", project),
        ("requested by", "requested_by"),
        ("created", at("created_at")),
    ),
    actions=(
        # The first one that is possible is what a schedule in this state needs.
        Action("resume", "Resume", _GOES_ON, _is("paused", True), before="It was not paused."),
        Action("trigger", "Run now"),
        Action(
            "pause",
            "Pause",
            "It is paused.",
            _is("paused", False),
            _REASON,
            before="It was already paused.",
        ),
        Action("backfill", "Backfill …", asks=("after", "until")),
        Action("delete", "Delete", "It is deleted. Everything that it started continues."),
    ),
    empty="There are no schedules yet.",
)

# --- webhooks -------------------------------------------------------------------------------------


def _definition(name: str, otherwise: str = "") -> Read:
    return lambda row: plain((row.get("definition") or {}).get(name)) or otherwise


def _listed(name: str, otherwise: str = "") -> Read:
    return lambda row: ", ".join((row.get("definition") or {}).get(name) or ()) or otherwise


_SKIP = "Resume and skip missed events"


def _webhook_why(row: Document) -> Any:
    return row.get("pause_reason") or (row.get("error") if row.get("state") == "failing" else None)


def _webhook_fix(row: Document) -> str | None:
    if row.get("state") == "active":
        return None
    return fix(
        str(row.get("name")), int(row.get("through_seq") or 0), fails=bool(row.get("failing_since"))
    )


WEBHOOK = Subject(
    "webhook",
    "name",
    columns=(
        Column("Webhook", _itself("webhooks", "name")),
        Column("Kind", _definition("kind", "webhook")),
        Column("State", lambda row: Word(row.get("state"), bad=row.get("state") != "active")),
        _page("Since", lambda row: At(row.get("paused_at") or row.get("failing_since")), leaves=1),
        Column("Address", _definition("url"), leaves=2),
        Column("Events", _listed("events", "everything"), leaves=3),
        Column("Delivered", at("delivered_at"), leaves=1),
        Column("Why", _webhook_why, fills=True),
        _wide("By", "requested_by"),
        _wide("Project", project),
    ),
    facts=(
        ("webhook", "name"),
        ("kind", _definition("kind", "webhook")),
        ("address", _definition("url")),
        ("events", _listed("events", "everything")),
        *(
            (name, _listed(name))
            for name in ("crawlers", "tags", "flows", "statuses", "outcomes", "ended_by", "secrets")
        ),
        ("state", "state"),
        ("failing since", at("failing_since")),
        ("last error", "error"),
        ("paused", "pause_reason"),
        ("next", _webhook_fix),
        (
            "delivered",
            lambda row: At(row["delivered_at"]) if row.get("delivered_at") else "nothing yet",
        ),
        ("up to event", "through_seq"),
        ("revision", "revision"),
        ("project", project),
        ("requested by", "requested_by"),
        ("created", at("created_at")),
    ),
    actions=(
        # The first one that is possible is what a webhook in this state needs.
        Action(
            "again",
            "Send again now",
            "The event is sent again now.",
            _is("state", "failing"),
            via="resume",
        ),
        Action("resume", "Resume", _GOES_ON, _is("state", "paused")),
        Action("test", "Test"),
        Action("pause", "Pause", "It is paused.", _is("state", "active", "failing"), _REASON),
        Action("skip", _SKIP, _GOES_ON, _is("state", "paused"), body={"skip": True}, via="resume"),
        Action("skip_one", "Skip it", _GOES_ON, lambda row: False, ("skip_seq",), via="resume"),
        Action("delete", "Delete", "It is deleted. The records of its deliveries are kept."),
    ),
    empty="There are no webhooks yet.",
)
DELIVERIES = (
    Column("Event", "seq", right=True),
    Column("Type", "type"),
    Column("About", "subject"),
    Column("Status", lambda row: Word(row.get("status"), bad=row.get("status") == "failed")),
    Column("Tries", "tries", right=True, leaves=2),
    Column("Happened", at("created_at"), leaves=3),
    Column("Delivered", at("delivered_at"), leaves=1),
    Column("Why", "error", fills=True),
)

# --- pools ----------------------------------------------------------------------------------------


_POOL_COLUMNS = (
    Column("Pool", lambda row: Link(row["name"], f"/runs?pool={quote(row['name'], safe='')}")),
    Column(
        "In use",
        lambda row: (
            f"{row.get('in_use')}" + ("" if row.get("max") is None else f" of {row['max']}")
        ),
        right=True,
    ),
    Column("Executing", count("executing"), right=True, leaves=1),
    Column("Waiting runs", count("waiting_runs"), right=True),
    Column("Waiting tasks", count("waiting_tasks"), right=True),
    Column("Oldest wait", lambda row: Took(row.get("oldest_wait_at"), None), leaves=2),
    Column("Weight", lambda row: f"{row.get('weight'):g}", right=True, leaves=3),
    Column("Reserved", count("reserved"), right=True, leaves=3),
    Column(
        "Last hour",
        lambda row: None if row.get("share") is None else f"{row['share']:.0%}",
        right=True,
        leaves=2,
    ),
    _wide("Queue", "queue", page=True),
    _wide("Origin", "origin", page=True),
    _wide("Changed by", "changed_by", page=True),
    Column("Problem", "problem", fills=True),
)
POOL = Subject(
    "pool",
    "name",
    columns=_POOL_COLUMNS,
    facts=[(column.title.lower(), column.source) for column in _POOL_COLUMNS],
)

# --- sites ----------------------------------------------------------------------------------------


def limit_words(row: Document) -> str:
    """Return the limits of a site as one sentence."""
    limits = row["limits"]
    given = [
        plurals.count(limits[name], name[:-1])
        for name in ("tasks", "connections")
        if name in limits
    ]
    texts = {"requests_per_s": "{:g} requests/s", "hours": "{}", "not": "not {}"}
    texts["crawl_delay"] = "{} the crawl delay"
    given += [text.format(limits[name]) for name, text in texts.items() if name in limits]
    if row.get("delay_s") is not None:
        given.append(f"limited by robots.txt: one request per {row['delay_s']:g} s")
    return ", ".join(given) or "none"


def robots_words(row: Document) -> str:
    """Return what a run got from the robots.txt of a host, as one sentence."""
    words = [f"{row['host']} {(row['sha256'] or 'no rules')[:8]}"]
    if row["crawl_delay"] is not None:
        words.append(f"crawl delay {row['crawl_delay']:g} s")
    words.append(f"{plurals.count(row['refused'], 'request')} refused")
    return ", ".join(words)


def _closed_by(row: Document) -> Cell:
    if row.get("closed_by"):
        return str(row["closed_by"])
    if row.get("closed_by_run") is None:
        return None
    run = row["closed_by_run"]
    return Link(f"{row.get('closed_status') or 'refusal'} to run {run}", f"/runs/{run}")


def _tdm(row: Document) -> Cell:
    if row["tdm_reserved"]:
        return str(row["tdm_policy"] or "reserved")
    return None if row["tdm_reserved"] is None else "not reserved"


def _limit(name: str) -> Read:
    return lambda row: row["limits"].get(name)


SITE = Subject(
    "site",
    "site",
    columns=(
        Column("Site", _itself("sites", "site")),
        Column("State", lambda row: Word(str(row["state"]).replace("_", " "))),
        Column("Opens", at("opens_at"), leaves=2),
        Column("Tasks", count("tasks"), right=True),
        Column("Waiting tasks", count("waiting_tasks"), right=True, leaves=1),
        Column("Last minute", count("last_minute"), right=True, leaves=1),
        Column("Limits", lambda row: limit_words(row), fills=True),
        Column("Closed by", _closed_by, leaves=3),
        _wide("Origin", "origin"),
        _wide("Changed by", "changed_by"),
    ),
    facts=(
        ("site", "site"),
        ("state", lambda row: str(row["state"]).replace("_", " ")),
        ("opens", at("opens_at")),
        ("closed by", _closed_by),
        ("most tasks", _limit("tasks")),
        ("requests/s", _limit("requests_per_s")),
        ("connections", _limit("connections")),
        ("rest", lambda row: f"{row['limits']['rest_s']:g} s"),
        ("hours", _limit("hours")),
        ("not", _limit("not")),
        ("crawl delay", _limit("crawl_delay")),
        (
            "robots.txt",
            lambda row: row.get("delay_s") and f"one request per {row['delay_s']:g} s",
        ),
        ("limits from", lambda row: row.get("origin") or "the default"),
        ("changed", at("changed_at")),
        ("changed by", "changed_by"),
        ("tasks", count("tasks")),
        ("tasks wait", count("waiting_tasks")),
        ("leases", count("lanes")),
        ("last minute", count("last_minute")),
        ("use", lambda row: None if row.get("use") is None else f"{row['use']:.0%}"),
        ("statuses", "statuses"),
    ),
    actions=(
        Action("close", "Close the site", "It is closed.", asks=("for_s", "reason")),
        Action(
            "open",
            "Open the site",
            "It is open.",
            _is("state", "closed", "probing"),
            before="It was not closed.",
        ),
        Action("delete", "Remove the limits", "Its limits are removed."),
    ),
    empty="No run has visited a site yet, and no site has limits.",
)

#: The robots.txt of an origin.
SITE_ROBOTS = Subject(
    "robots.txt",
    "origin",
    columns=(
        Column("Origin", "origin", fills=True),
        Column("Fetched", at("fetched_at")),
        Column("By run", lambda row: row["run_id"] and _itself("runs", "run_id")(row), right=True),
        Column("Status", lambda row: row["status"] or "no response", right=True),
        Column("SHA-256", lambda row: row["sha256"] and row["sha256"][:8]),
        Column("Crawl delay (s)", "crawl_delay", right=True),
        Column("TDM", _tdm, leaves=1),
    ),
)

#: A run whose tasks execute on a site, or that waits for it.
SITE_RUN = Subject(
    "run",
    "run_id",
    columns=(
        Column("Run", lambda row: Link(row["run_id"], f"/runs/{row['run_id']}"), right=True),
        Column("Crawler", "crawler", fills=True),
        Column("Tasks", count("tasks"), right=True),
        Column("Waiting tasks", count("waiting_tasks"), right=True),
        Column("Waiting since", at("waiting_since"), leaves=1),
    ),
)

# --- packages -------------------------------------------------------------------------------------


#: The columns of all versions of a package.
ENTRY_VERSIONS = (
    Column("Version", count("number"), right=True),
    Column("Current", lambda row: "yes" if row["current"] else ""),
    Column("Changed", at("changed_at")),
    Column("By", "changed_by"),
    Column("Note", "note", fills=True),
)
ENTRY = Subject(
    "crawler",
    "name",
    columns=(),
    facts=(
        ("crawler", "name"),
        ("version", count("number")),
        ("package", "package"),
        ("image", lambda row: row["document"].get("image")),
        ("changed", at("changed_at")),
        ("by", "changed_by"),
        ("project", project),
    ),
)
PACKAGE_VERSIONS = (
    Column("Version", "version"),
    Column("Current", lambda row: "yes" if row["current"] else ""),
    Column("Code", lambda row: short_digest(row["digest"])),
    Column("Commit", lambda row: (row["commit"] or "")[:12]),
    Column("Bytes", count("size"), right=True),
    Column("Files", count("files"), right=True),
    Column("Deployed", at("created_at")),
    Column("By", "created_by"),
    Column("Note", "note", fills=True),
)
PACKAGE = Subject(
    "package",
    "package",
    columns=(
        Column("Package", "package"),
        *(column for column in PACKAGE_VERSIONS if column.title != "Current"),
        _wide("Project", project),
    ),
    facts=(
        ("package", "package"),
        ("version", "version"),
        ("current", lambda row: "yes" if row["current"] else "no"),
        ("code", "digest"),
        ("commit", "commit"),
        ("bytes", count("size")),
        ("files", count("files")),
        ("spiders", lambda row: ", ".join(spider["name"] for spider in row["spiders"] or ())),
        ("deployed", at("created_at")),
        ("by", "created_by"),
        ("project", project),
    ),
    empty="There are no packages yet.",
)

CRAWLER_VERSION = Subject(
    "version",
    "version",
    columns=(
        Column("Version", "version"),
        Column("In use", lambda row: "yes" if row["current"] else ""),
        Column("Code", lambda row: _digest_link(row["digest"])),
        Column("Since", at("at")),
        Column("By", "by"),
        Column("Note", "note", fills=True),
    ),
    empty="This crawler has no versions: its entry is in the catalogue's file, and it executes no "
    "deployed package.",
)

CANARY = Subject(
    "canary",
    "canary_id",
    columns=(
        Column("Canary", "canary_id", right=True),
        Column("Package", "package"),
        Column("Crawler", "crawler"),
        Column("New", "new_version"),
        Column("Old", "old_version"),
        Column("State", lambda row: Word(row["state"], bad=row["state"] == "rejected")),
        Column("Share", lambda row: f"{row['share']:.0%}", right=True),
        Column("Given", count("given"), right=True),
        Column("Of", count("asked"), right=True),
        Column("Since", at("created_at")),
        Column("Result", "result", fills=True),
    ),
    facts=(
        ("canary", "canary_id"),
        ("package", "package"),
        ("crawler", "crawler"),
        ("new", "new_version"),
        ("old", "old_version"),
        ("state", "state"),
        ("since", at("created_at")),
        ("ended", at("ended_at")),
        ("by", "ended_by"),
        ("result", "result"),
    ),
)

# --- incidents ------------------------------------------------------------------------------------

INCIDENT = Subject(
    "incident",
    "incident_id",
    columns=(
        Column("Incident", "incident_id", right=True),
        Column("Kind", lambda row: Word(row.get("kind"), bad=row.get("level") == "bad")),
        Column("About", lambda row: Link(row["subject"], f"/{row['subject']}")),
        Column("Count", count("count"), right=True),
        Column("Since", at("opened_at")),
        Column("Muted until", at("muted_until"), leaves=1),
        Column("Taken by", "assignee"),
        Column("Cause", "cause"),
        _wide("State", "state"),
        _wide("Project", project),
    ),
    facts=(
        ("incident", "incident_id"),
        ("kind", "kind"),
        ("about", "subject"),
        ("project", project),
        ("state", "state"),
        ("cause", "cause"),
        ("fix", "fix"),
        ("count", count("count")),
        ("first run", "first_run_id"),
        ("last run", "last_run_id"),
        ("since", at("opened_at")),
        ("last", at("last_at")),
        ("closed", at("closed_at")),
        ("closed by", "closed_by"),
        ("reopened", lambda row: row.get("reopened") or None),
        ("muted until", at("muted_until")),
        ("taken by", "assignee"),
        ("comment", "comment"),
    ),
    actions=(
        Action(
            "mute", "Mute", "No messages are sent about it until then.", asks=("until", "for_s")
        ),
        Action("unmute", "Send messages again", "Messages about it are sent again.", via="mute"),
        Action("assign", "Assign", "The name is saved.", asks=("assignee",)),
        Action("mine", "Assign to me", "It is assigned to you.", via="assign"),
        Action("comment", "Comment", "The comment is saved.", asks=("comment",)),
        Action("close", "Close", "It is closed. It opens again if its cause occurs again."),
    ),
    empty="Nothing needs attention.",
)
#: The columns that only a list of closed incidents shows.
CLOSED = (Column("Closed", at("closed_at")), Column("Closed by", "closed_by"))

# --- the access log -------------------------------------------------------------------------------


def _about(row: Document) -> Cell:
    if not row.get("subject"):
        return None
    text = f"{row['kind']} {row['subject']}"
    return (
        text
        if row["kind"] in ("token", "package")
        else Link(text, f"/{row['kind']}s/{quote(str(row['subject']), safe='')}")
    )


ACCESS = (
    Column("When", lambda row: At(row.get("at"), exact=True)),
    Column(
        "Who",
        lambda row: (
            row.get("caller") or ("anybody" if row.get("caller_project") else "nobody known")
        ),
    ),
    Column(
        "Operation", lambda row: ": ".join(filter(None, (row.get("operation"), row.get("verb"))))
    ),
    Column("On", _about, fills=True),
    Column("Outcome", lambda row: Word(row.get("outcome"), bad=row.get("outcome") != "done")),
    Column("Requests", count("requests"), right=True, leaves=2),
    Column("From", "address", leaves=1),
    Column("Project", "project", wide=True, leaves=3),
    Column("Status", "status", right=True, wide=True, leaves=3),
    _wide("UID", "subject_uid"),
)
TOKENS = (
    *(Column(name.capitalize(), name) for name in ("name", "role", "project")),
    Column("State", lambda row: Word(row.get("state"), bad=row.get("state") != "valid")),
    Column("Expires", at("expires_at")),
    Column("Last used", at("used_at")),
    Column("Created", at("created_at")),
    Column("By", "created_by"),
)

SUBJECTS = {
    subject.noun: subject
    for subject in (RUN, MANAGER, GRAPH, SCHEDULE, WEBHOOK, POOL, SITE, INCIDENT)
}
