"""Columns and lines of crawl managers, their jobs and plans."""

from __future__ import annotations

from typing import Any

from crawler_lifecycle.cli.output import Column, Document, ago, as_json, clean, number, of
from crawler_lifecycle.cli.runs.texts import plain
from crawler_lifecycle.cli.states import TERMINAL, status_word

#: States of jobs that wait for a slot.
WAITING = ("buffered", "delayed", "queued")
STATES = (*WAITING, "starting", "started", "ended", "skipped")


def jobs(row: Document) -> dict[str, int]:
    """The numbers of jobs; 0 for what the gateway does not tell."""
    found = row.get("jobs")
    return {name: value for name, value in found.items() if isinstance(value, int)} if isinstance(found, dict) else {}


def _job_count(*names: str) -> Any:
    return lambda row: f"{sum(jobs(row).get(name, 0) for name in names):,}"


def state_word(row: Document) -> str:
    """The status, or that it is paused."""
    return "paused" if row.get("paused") and row.get("status") not in (*TERMINAL, "STOPPING") else status_word(row)


def what(row: Document) -> str:
    """The crawler or class that it runs."""
    return clean(row.get("crawler") or row.get("plan")) or "-"


STATE = (
    Column("MANAGER", of("manager_id"), right=True),
    Column("NAME", of("name")),
    Column("FLOW", of("flow_id")),
    Column("STATUS", state_word),
    Column("OUTCOME", of("outcome")),
    Column("CAUSE", of("cause")),
)
MANAGERS = (
    Column("MANAGER", of("manager_id"), right=True),
    Column("NAME", of("name")),
    Column("FLOW", of("flow_id")),
    Column("RUNS", what),
    Column("STATUS", state_word),
    Column("OUTCOME", of("outcome")),
    Column("LIVE", lambda row: number(row.get("live")), right=True),
    Column("WAIT", _job_count(*WAITING), right=True),
    Column("GOOD", _job_count("good"), right=True),
    Column("BAD", _job_count("bad"), right=True),
    Column("SKIPPED", _job_count("skipped"), right=True),
    Column("CREATED", lambda row: ago(row.get("created_at"))),
    Column("CAP", of("cap"), right=True, wide=True),
    Column("ATTEMPT", of("attempt"), right=True, wide=True),
    Column("BY", of("requested_by"), wide=True),
    Column("TAGS", lambda row: clean(" ".join(row.get("tags") or ())) or "-", wide=True),
    Column("WHY", lambda row: clean(row.get("error") or row.get("cause") or row.get("waiting")) or "-", wide=True),
)
JOBS = (
    Column("JOB", of("item_id"), right=True),
    Column("NUMBER", of("seq"), right=True),
    Column("RETRY", of("retry"), right=True),
    Column("STATE", of("state")),
    Column("RUN", of("run_id"), right=True),
    Column("OUTCOME", of("outcome")),
    Column("SPIDER", lambda row: clean((row.get("job") or {}).get("spider")) or "-"),
    Column("ARGUMENTS", lambda row: plain((row.get("job") or {}).get("spider_args") or {}) or "-"),
    Column("POSITION", of("position"), right=True, wide=True),
    Column("TAGS", lambda row: clean(" ".join((row.get("job") or {}).get("tags") or ())) or "-", wide=True),
    Column("WHY", of("error")),
)
PLANS = (
    Column("PLAN", of("plan")),
    Column("NAME", of("name")),
    Column("SERVED", lambda row: "yes" if row.get("served") and not row.get("error") else "no"),
    Column("DESCRIPTION", of("description")),
    Column("WHY NOT", of("error")),
    Column("SEEN", lambda row: ago(row.get("seen_at")), wide=True),
    Column("POOL", of("queue"), wide=True),
    Column("CODE", of("fingerprint"), wide=True),
)


def line(row: Document) -> str:
    """A manager in one line, for who watches it."""
    counts = jobs(row)
    waits = sum(counts.get(name, 0) for name in WAITING)
    words = [f"manager {row.get('manager_id')} {state_word(row)}", f"{row.get('live') or 0} live", f"{waits} wait"]
    words += [f"{counts[name]} {name}" for name in ("good", "bad", "skipped") if counts.get(name)]
    said = row.get("error") or (row.get("cause") if row.get("status") in TERMINAL else row.get("waiting"))
    outcome = f" {clean(row.get('outcome'))}" if row.get("outcome") else ""
    return f"{words[0]}{outcome}, {', '.join(words[1:])}" + (f": {clean(said)}" if said else "")


def facts(row: Document) -> list[tuple[str, str]]:
    """Everything about a manager, name and value."""
    counts = jobs(row)
    states = [f"{name} {counts[name]:,}" for name in STATES if counts.get(name)]
    so_far = [f"{name} {counts[name]:,}" for name in counts if name not in STATES and counts[name]]
    cap = row.get("cap")
    lines: list[tuple[str, Any]] = [
        ("manager", row.get("manager_id")),
        ("name", row.get("name")),
        ("flow", row.get("flow_id")),
        ("runs", what(row)),
        ("options", plain(row.get("argv") or [])),
        ("status", f"{state_word(row)} {row.get('outcome') or ''}".strip()),
        ("cause", row.get("cause")),
        ("attempt", row.get("attempt")),
        ("window", f"{row.get('live') or 0} live" + (f" of at most {cap}" if cap else "")),
        ("jobs", ", ".join(states) or "none yet"),
        ("so far", ", ".join(so_far)),
        ("source", _source(row)),
        ("waiting", row.get("waiting")),
        ("error", row.get("error")),
        ("stop", _stop(row)),
        ("statistics", as_json(row["stats"], indent=None) if row.get("stats") else None),
        ("state", as_json(row["state"], indent=None) if row.get("state") else None),
        ("tags", " ".join(row.get("tags") or ())),
        ("asked by", row.get("requested_by")),
        ("parent", row.get("parent")),
        ("workflow", row.get("workflow_id")),
        ("created", ago(row.get("created_at"))),
        ("started", ago(row.get("started_at")) if row.get("started_at") else None),
        ("ended", ago(row.get("ended_at")) if row.get("ended_at") else None),
        ("pruned", f"jobs {ago(at)}: they are new again" if (at := row.get("jobs_pruned_at")) else None),
        ("checked", ago(row.get("updated_at"))),
    ]
    return [(name, clean(value)) for name, value in lines if value not in (None, "", [], {})]


def _source(row: Document) -> str | None:
    if row.get("crawler"):
        return "sealed, no more items come" if row.get("sealed") else "open, more items may come"
    if not row.get("position"):
        return None
    return f"{row['position']:,} read" + (", no more" if row.get("exhausted") else "")


def _stop(row: Document) -> str | None:
    stop = row.get("stop")
    if not isinstance(stop, dict):
        return None
    how = "by force" if stop.get("force") else "its runs are left" if row.get("leave") else "in order"
    by = f" by {stop['requested_by']}" if stop.get("requested_by") else ""
    return f"{how}{by}" + (f": {stop['reason']}" if stop.get("reason") else "")
