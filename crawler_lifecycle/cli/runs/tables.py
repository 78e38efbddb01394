"""The columns of tables for crawlers and for details of runs: tasks, timeline, corrections, files,
exports, deliveries.
"""

from crawler_lifecycle.subjects import (
    Column,
    Lag,
    Took,
    at,
    code_of_task,
    count,
    first,
    pace,
    plain,
)

from .texts import arguments, exit_of

TASKS = (
    Column("Task", "task_id", right=True),
    Column("Index", "task_index", right=True),
    Column("Attempt", "attempt", right=True),
    Column("Status", "status"),
    Column("Outcome", "outcome"),
    Column("Ended by", "ended_by", wide=True),
    Column("Exit", exit_of),
    Column("Pages", count("pages"), right=True),
    Column("Per min", pace, right=True),
    Column("Items", count("items"), right=True),
    Column("Errors", count("errors"), right=True),
    Column("Started", at("started_at")),
    Column("Took", lambda row: Took(row.get("started_at"), row.get("ended_at"))),
    Column("Why", first("cause", "reason")),
    Column("Node", "node", wide=True),
    Column("On cluster", "cluster_name", wide=True),
    Column("Code", code_of_task, wide=True),
    Column("Peak bytes", count("peak_memory"), right=True, wide=True),
    Column("Resumed", "resume_note", wide=True),
    Column("Not retried", "retry_note", wide=True),
    Column("Arguments", lambda row: plain(row.get("args") or {}), wide=True),
)
STATS = (
    Column("Field", "name"),
    Column("Filled", count("filled"), right=True),
    Column("Coverage", lambda row: f"{row['coverage']:.1%}", right=True),
    Column("Different", count("distinct"), right=True),
    Column("Shortest", count("shortest"), right=True),
    Column("Longest", count("longest"), right=True),
)
TIMELINE = (
    Column("When", at("at")),
    Column("Kind", "kind"),
    Column("Task", "task_id", right=True),
    Column("Lag", lambda row: Lag(row.get("lag_ms")), right=True),
    Column("What", "text"),
    Column("Attempt", "attempt", right=True, wide=True),
    Column("From", "from_status", wide=True),
    Column("To", "to_status", wide=True),
    Column("Source", "source", wide=True),
    Column("On cluster", at("cluster_time"), wide=True),
    Column("Evidence", "evidence", wide=True),
)
QUOTAS = (
    Column("Quota", "what"),
    Column("Of", lambda row: f"{row['kind']} {row['name']}"),
    Column("Used", count("used"), right=True),
    Column("Max", count("max"), right=True),
    Column("Next start", at("free_at")),
)
CORRECTIONS = (
    Column("Run", "run_id", right=True),
    Column("Task", "task_id", right=True),
    Column("Kind", "kind"),
    Column("Believed", "believed"),
    Column("Truth", "truth"),
    Column("Wrong for", lambda row: Lag(row.get("lag_ms")), right=True),
    Column("Found by", "found_by"),
    Column("When", at("created_at")),
    Column("Attempt", "attempt", right=True, wide=True),
    Column("Evidence", "evidence", wide=True),
)
CRAWLERS = (
    Column("Crawler", "name"),
    Column("Kind", "kind"),
    Column("Arguments", arguments),
    Column("Resumable", lambda row: plain(bool(row.get("resumable")))),
    Column("Image", "image", wide=True),
    Column("Command", lambda row: plain(row.get("command") or []), wide=True),
)
FILES = (
    Column("Name", "name"),
    Column("Bytes", count("bytes"), right=True),
    Column("Task", "task_id", right=True, wide=True),
)
EXPORTS = (
    Column("Attempt", "attempt", right=True),
    Column("Status", "status"),
    Column("Files", count("files"), right=True),
    Column("Bytes", count("bytes"), right=True),
    Column("When", at("at")),
    Column("URL", "url"),
    Column("Why", "error"),
    Column("SHA256", "sha256", wide=True),
)
DELIVERIES = (
    Column("Seq", "seq", right=True),
    Column("Event", "type"),
    Column("Attempt", "attempt", right=True),
    Column("To", "sink"),
    Column("Status", "status"),
    Column("Tries", count("tries"), right=True),
    Column("Delivered", at("delivered_at")),
    Column("Why", "error"),
)
