"""The columns of tables for crawlers and for details of runs: tasks, timeline, corrections, files,
exports, deliveries.
"""

from __future__ import annotations

from crawler_lifecycle.subjects import (
    Column,
    Lag,
    Took,
    at,
    code_of_task,
    count,
    first,
    of,
    pace,
    plain,
)

from .texts import arguments, exit_of

TASKS = (
    Column("Task", of("task_id"), right=True),
    Column("Index", of("task_index"), right=True),
    Column("Attempt", of("attempt"), right=True),
    Column("Status", of("status")),
    Column("Outcome", of("outcome")),
    Column("Ended by", of("ended_by"), wide=True),
    Column("Exit", exit_of),
    Column("Pages", count("pages"), right=True),
    Column("Per min", pace, right=True),
    Column("Items", count("items"), right=True),
    Column("Errors", count("errors"), right=True),
    Column("Started", at("started_at")),
    Column("Took", lambda row: Took(row.get("started_at"), row.get("ended_at"))),
    Column("Why", first("cause", "reason")),
    Column("Node", of("node"), wide=True),
    Column("On cluster", of("cluster_name"), wide=True),
    Column("Code", code_of_task, wide=True),
    Column("Peak bytes", count("peak_memory"), right=True, wide=True),
    Column("Resumed", of("resume_note"), wide=True),
    Column("Not retried", of("retry_note"), wide=True),
    Column("Arguments", lambda row: plain(row.get("args") or {}), wide=True),
)
STATS = (
    Column("Field", of("name")),
    Column("Filled", count("filled"), right=True),
    Column("Coverage", lambda row: f"{row['coverage']:.1%}", right=True),
    Column("Different", count("distinct"), right=True),
    Column("Shortest", count("shortest"), right=True),
    Column("Longest", count("longest"), right=True),
)
TIMELINE = (
    Column("When", at("at")),
    Column("Kind", of("kind")),
    Column("Task", of("task_id"), right=True),
    Column("Lag", lambda row: Lag(row.get("lag_ms")), right=True),
    Column("What", of("text")),
    Column("Attempt", of("attempt"), right=True, wide=True),
    Column("From", of("from_status"), wide=True),
    Column("To", of("to_status"), wide=True),
    Column("Source", of("source"), wide=True),
    Column("On cluster", at("cluster_time"), wide=True),
    Column("Evidence", of("evidence"), wide=True),
)
QUOTAS = (
    Column("Quota", of("what")),
    Column("Of", lambda row: f"{row['kind']} {row['name']}"),
    Column("Used", count("used"), right=True),
    Column("Max", count("max"), right=True),
    Column("Next start", at("free_at")),
)
CORRECTIONS = (
    Column("Run", of("run_id"), right=True),
    Column("Task", of("task_id"), right=True),
    Column("Kind", of("kind")),
    Column("Believed", of("believed")),
    Column("Truth", of("truth")),
    Column("Wrong for", lambda row: Lag(row.get("lag_ms")), right=True),
    Column("Found by", of("found_by")),
    Column("When", at("created_at")),
    Column("Attempt", of("attempt"), right=True, wide=True),
    Column("Evidence", of("evidence"), wide=True),
)
CRAWLERS = (
    Column("Crawler", of("name")),
    Column("Kind", of("kind")),
    Column("Arguments", arguments),
    Column("Resumable", lambda row: plain(bool(row.get("resumable")))),
    Column("Image", of("image"), wide=True),
    Column("Command", lambda row: plain(row.get("command") or []), wide=True),
)
FILES = (
    Column("Name", of("name")),
    Column("Bytes", count("bytes"), right=True),
    Column("Task", of("task_id"), right=True, wide=True),
)
EXPORTS = (
    Column("Attempt", of("attempt"), right=True),
    Column("Status", of("status")),
    Column("Files", count("files"), right=True),
    Column("Bytes", count("bytes"), right=True),
    Column("When", at("at")),
    Column("URL", of("url")),
    Column("Why", of("error")),
    Column("SHA256", of("sha256"), wide=True),
)
DELIVERIES = (
    Column("Seq", of("seq"), right=True),
    Column("Event", of("type")),
    Column("Attempt", of("attempt"), right=True),
    Column("To", of("sink")),
    Column("Status", of("status")),
    Column("Tries", count("tries"), right=True),
    Column("Delivered", at("delivered_at")),
    Column("Why", of("error")),
)
