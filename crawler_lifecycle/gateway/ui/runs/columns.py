"""The columns of runs, tasks and files in lists of the web UI."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlencode

from crawler_lifecycle.domain.names import graph_key_of, names_of_workflow
from crawler_lifecycle.domain.status_words import shown_word
from crawler_lifecycle.gateway.ui.parts.formats import number
from crawler_lifecycle.gateway.ui.parts.rendering import query
from crawler_lifecycle.subjects import (
    GRAPH,
    RUN,
    TERMINAL,
    At,
    CellLine,
    Column,
    Count,
    Document,
    Link,
    Note,
    Size,
    Subject,
    Took,
    Word,
    at,
    code_of_task,
    codes_of_run,
    count,
)


def crawler_link(name: str) -> Link:
    """Return a link to the page of a crawler."""
    return Link(name, f"/crawlers/{quote(name, safe='')}")


def parent_link(workflow_id: str | None) -> Link | None:
    """Return a link to the manager or graph with this workflow, or ``None`` for any other id."""
    manager = names_of_workflow(workflow_id or "")
    if manager is not None:
        name, flow_id = manager
        path = "/managers" + query({"name": name, "flow_id": flow_id})
        return Link(f"manager {name} of flow {flow_id}", path)
    key = graph_key_of(workflow_id or "")
    return None if key is None else Link(f"graph {key}", GRAPH.path(key))


def _status(row: Document) -> Any:
    live = row["status"] not in TERMINAL
    stop = row["stop"] if live else None
    asked = stop and f"{'force stop' if stop['force'] else 'stop'} requested"
    flags = [name for name in ("stale", "blocked") if row[name]]
    return CellLine(
        [Word(shown_word(row)), Note(asked, "flag"), *(Note(f, "flag bad") for f in flags)]
    )


def _tasks(row: Document) -> Any:
    counts = row["counts"]
    if row["status"] in TERMINAL and len(counts) == 1 and "LOST" not in counts:
        return Count(*counts.values())
    bad = ("FAILED", "LOST")
    return CellLine(
        [
            Note(f"{number(n)} {status.lower()}", "small bad" if status in bad else "small")
            for status, n in counts.items()
        ]
    )


def _errors(row: Document) -> Any:
    return Count(row["errors"], bad=bool(row["errors"]))


def _checked(row: Document) -> Any:
    if row["status"] in TERMINAL:
        return CellLine(["ended", At(row["ended_at"])])
    checked = At(row["verified_at"]) if row["verified_at"] else "not checked yet"
    due = "next check" if not row["stale"] else "next check was due"
    following = [Note(due), At(row["next_poll_at"])] if row["next_poll_at"] else []
    return CellLine([checked, *following])


TAGS = Column("Tags", lambda row: CellLine([Note(tag, "tag") for tag in row["tags"]]), leaves=2)
#: A run in the list of the web UI.
RUNS = replace(
    RUN,
    columns=(
        Column(
            "Run",
            lambda row: CellLine(
                [
                    Link(row["run_id"], RUN.path(row["run_id"])),
                    Note(f"×{row['attempt']}" if row["attempt"] > 1 else None),
                ]
            ),
        ),
        Column("Status", _status),
        Column(
            "Crawler",
            lambda row: CellLine(
                [crawler_link(row["crawler"]), *(Note(tag, "tag") for tag in row["tags"])]
            ),
        ),
        Column(
            "Outcome",
            lambda row: CellLine(
                [
                    row["outcome"],
                    *(Note(row[name], "why") for name in ("cause", "blocked", "waits")),
                ]
            ),
            fills=True,
        ),
        Column("Tasks", _tasks, leaves=4),
        Column("Pages", count("pages"), right=True, leaves=2),
        Column("Items", count("items"), right=True, leaves=1),
        Column("Errors", _errors, right=True, leaves=1),
        Column("Took", lambda row: Took(row["started_at"], row["ended_at"]), right=True, leaves=2),
        Column("Requested", at("created_at"), leaves=4),
        Column(
            "Started",
            lambda row: At(row["started_at"]) if row["started_at"] else "not started",
            leaves=2,
        ),
        Column("Checked", _checked),
        Column("Trigger", "trigger", leaves=4),
        Column("Code", codes_of_run, leaves=4),
    ),
    empty="There are no runs yet.",
)


def _task(row: Document) -> Any:
    more = [Note(f"id {row['task_id']}")]
    more += [Note(f"attempt {row['attempt']}")] if row["attempt"] > 1 else []
    more += [Note("replaced", "flag")] if row["superseded_by"] else []
    return CellLine([row["task_index"], *more])


def _why(row: Document) -> Any:
    note = row["retry_note"]
    why = [row["cause"], row["reason"], row["resume_note"], note and f"not tried again: {note}"]
    return CellLine([Note(reason, "why") for reason in why])


TASKS = Subject(
    "task",
    "task_id",
    columns=(
        Column("Task", _task),
        Column("Status", lambda row: CellLine([Word(row["status"]), row["outcome"]])),
        Column("Why", _why, fills=True),
        Column("Pages", count("pages"), right=True, leaves=2),
        Column("Items", count("items"), right=True, leaves=1),
        Column("Errors", _errors, right=True, leaves=1),
        Column("Started", at("started_at"), leaves=2),
        Column("Took", lambda row: Took(row["started_at"], row["ended_at"]), right=True, leaves=1),
        Column("Where", lambda row: CellLine([row["node"], Note(row["cluster_name"])]), leaves=4),
        Column(
            "Exit",
            lambda row: CellLine(
                [row["exit_code"], row["exit_signal"] and f"signal {row['exit_signal']}"]
            ),
            leaves=3,
        ),
        Column("Code", code_of_task, leaves=4),
        Column("Memory", lambda row: Size(row["peak_memory"]), right=True, leaves=3),
        Column(
            "Arguments",
            lambda row: CellLine([Note(f"{k}={v}", "code") for k, v in row["args"].items()]),
            leaves=4,
        ),
        Column(
            "Log",
            lambda row: Link("log", f"/runs/{row['run_id']}/log?task={row['task_id']}"),
        ),
    ),
    empty="No tasks here.",
)


def _uses(row: Document) -> Any:
    asked = urlencode({"name": row["name"]})
    items = Link("items", f"/runs/{row['run_id']}/items?{asked}") if row["items"] else None
    return CellLine([items, Link("download", f"/v1/runs/{row['run_id']}/file?{asked}")])


FILES = Subject(
    "file",
    "name",
    columns=(
        Column(
            "File",
            lambda row: Link(
                row["name"], f"/runs/{row['run_id']}/file?{urlencode({'name': row['name']})}"
            ),
            fills=True,
        ),
        Column("Size", lambda row: Size(row["bytes"]), right=True),
        Column("Links", _uses),
    ),
    empty="The run has no files.",
)
