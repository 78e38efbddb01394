"""Columns of all tables: runs, tasks, timeline, corrections, crawlers, exports and deliveries."""

from __future__ import annotations

from crawler_lifecycle.cli.output import Column, Document, ago, as_json, clean, milliseconds, number, of, pace
from crawler_lifecycle.cli.states import TERMINAL, status_word

from .texts import arguments, exit_of, plain, took


def _amount(name: str, title: str | None = None, *, wide: bool = False) -> Column:
    return Column(title or name.upper(), lambda row: number(row.get(name)), right=True, wide=wide)


def _time(name: str, title: str, *, wide: bool = False) -> Column:
    return Column(title, lambda row: ago(row.get(name)), wide=wide)


def _evidence(row: Document) -> str:
    return as_json(row["evidence"], indent=None) if row.get("evidence") else "-"


RUNS = (
    Column("RUN", of("run_id"), right=True),
    Column("CRAWLER", of("crawler")),
    Column("TRIGGER", of("trigger"), wide=True),
    Column("STATUS", status_word),
    Column("OUTCOME", of("outcome")),
    Column("STAGE", of("stage")),
    _amount("pages"),
    Column("PER MIN", pace, right=True),
    _amount("items"),
    _amount("errors"),
    _time("verified_at", "VERIFIED"),
    Column("NEXT LOOK", lambda row: "-" if row.get("status") in TERMINAL else ago(row.get("next_look_at"))),
    _time("created_at", "CREATED"),
    Column("ATTEMPT", of("attempt"), right=True, wide=True),
    Column("TOOK", took, wide=True),
    Column("TAGS", lambda row: clean(" ".join(row.get("tags") or ())) or "-", wide=True),
    Column("BY", of("requested_by"), wide=True),
    Column("WORKFLOW", lambda row: clean(row.get("workflow_id") or row.get("owner_workflow_id")) or "-", wide=True),
    Column(
        "WHY", lambda row: clean(row.get("blocked") or row.get("cause") or row.get("waiting_for")) or "-", wide=True
    ),
)
TASKS = (
    Column("TASK", of("task_id"), right=True),
    Column("INDEX", of("task_index"), right=True),
    Column("ATTEMPT", of("attempt"), right=True),
    Column("STATUS", of("status")),
    Column("OUTCOME", of("outcome")),
    Column("EXIT", exit_of),
    _amount("pages"),
    Column("PER MIN", pace, right=True),
    _amount("items"),
    _amount("errors"),
    _time("started_at", "STARTED"),
    Column("TOOK", took),
    Column("WHY", lambda row: clean(row.get("cause") or row.get("reason")) or "-"),
    Column("NODE", of("node"), wide=True),
    Column("ON CLUSTER", of("cluster_name"), wide=True),
    _amount("peak_memory", "PEAK BYTES", wide=True),
    Column("RESUMED", lambda row: clean(row.get("resume_note")) or "-", wide=True),
    Column("ARGUMENTS", lambda row: plain(row.get("args") or {}) or "-", wide=True),
)
TIMELINE = (
    _time("at", "WHEN"),
    Column("KIND", of("kind")),
    Column("TASK", of("task_id"), right=True),
    Column("LAG", lambda row: milliseconds(row.get("lag_ms")), right=True),
    Column("WHAT", of("text")),
    Column("ATTEMPT", of("attempt"), right=True, wide=True),
    Column("FROM", of("from_status"), wide=True),
    Column("TO", of("to_status"), wide=True),
    Column("SOURCE", of("source"), wide=True),
    _time("cluster_time", "ON CLUSTER", wide=True),
    Column("EVIDENCE", _evidence, wide=True),
)
CORRECTIONS = (
    Column("RUN", of("run_id"), right=True),
    Column("TASK", of("task_id"), right=True),
    Column("KIND", of("kind")),
    Column("BELIEVED", of("believed")),
    Column("TRUTH", of("truth")),
    Column("WRONG FOR", lambda row: milliseconds(row.get("lag_ms")), right=True),
    Column("FOUND BY", of("found_by")),
    _time("created_at", "WHEN"),
    Column("ATTEMPT", of("attempt"), right=True, wide=True),
    Column("EVIDENCE", _evidence, wide=True),
)
CRAWLERS = (
    Column("CRAWLER", of("name")),
    Column("KIND", of("kind")),
    Column("ARGUMENTS", arguments),
    Column("RESUMABLE", lambda row: "yes" if row.get("resumable") else "no"),
    Column("IMAGE", of("image"), wide=True),
    Column("COMMAND", lambda row: plain(row.get("command") or []) or "-", wide=True),
)
FILES = (
    Column("NAME", of("name")),
    _amount("bytes"),
    Column("TASK", of("task_id"), right=True, wide=True),
)
EXPORTS = (
    Column("ATTEMPT", of("attempt"), right=True),
    Column("STATUS", of("status")),
    _amount("files"),
    _amount("bytes"),
    _time("at", "WHEN"),
    Column("URL", of("url")),
    Column("WHY", of("error")),
    Column("SHA256", of("sha256"), wide=True),
)
DELIVERIES = (
    Column("SEQ", of("seq"), right=True),
    Column("EVENT", of("type")),
    Column("ATTEMPT", of("attempt"), right=True),
    Column("TO", of("sink")),
    Column("STATUS", of("status")),
    _amount("tries"),
    _time("delivered_at", "DELIVERED"),
    Column("WHY", of("error")),
)
