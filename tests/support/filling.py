"""Years of runs in seconds: rows that a fleet would have left, made by the database itself.

For tests and benchmarks whose question is how the store behaves among many rows; the rows hang
together as far as the queries of the store can tell.
"""

from __future__ import annotations

from datetime import UTC, datetime

import sqlalchemy as sa

from crawler_lifecycle.features.managers.store.tables import manager
from crawler_lifecycle.store.engine import open_engine, parse_url

#: When the first of these runs was created; each later one came a minute after the one before.
FILLED_FROM = datetime(2025, 1, 1, tzinfo=UTC)
CRAWLERS = 50
POOLS = 20
WORKS = 997
"""After so many runs the same work is done again."""
FLOW_OF = 200
"""Every fourth run belongs to a flow, and a flow has so many consecutive runs at most."""
PARENT_OF = 10_000
"""Every fifth run has a parent, and a parent its runs among so many consecutive ones: more than a
page of them.
"""
NAMES = 10
"""Names of managers, and of graphs."""
RARE_TAG = "rare"
COMMON_TAG = "nightly"
RARE_CODE = "sha256:" + "1" * 64
COMMON_CODE = "sha256:" + "2" * 64

_DIGITS = " UNION ALL ".join(f"SELECT {n} AS d" for n in range(10))


def patient_engine(url: str | sa.URL) -> sa.Engine:
    """An engine for statements that take longer than any of the service may."""
    return open_engine(
        parse_url(url) if isinstance(url, str) else url, pool_size=5, answer_timeout_s=3600
    )


def _numbers(count: int) -> str:
    """A table ``n`` of the numbers from 0 below ``count``, on every database."""
    places = len(str(count - 1))
    value = " + ".join(f"d{p}.d * {10**p}" for p in range(places))
    tables = " CROSS JOIN ".join(f"({_DIGITS}) AS d{p}" for p in range(places))
    return f"(SELECT {value} AS n FROM {tables} WHERE {value} < {count})"


def _minute(connection: sa.Connection, minutes: str) -> str:
    """The time so many minutes after the first run."""
    start = FILLED_FROM.strftime("%Y-%m-%d %H:%M:%S")
    if connection.dialect.name == "sqlite":
        return f"strftime('%Y-%m-%d %H:%M:%S.000000', '{start}', ({minutes}) || ' minutes')"
    return f"TIMESTAMPADD(MINUTE, {minutes}, '{start}')"


def _name(connection: sa.Connection, prefix: str, number: str) -> str:
    return (
        f"'{prefix}' || ({number})"
        if connection.dialect.name == "sqlite"
        else f"CONCAT('{prefix}', {number})"
    )


def _insert(connection: sa.Connection, table: str, columns: dict[str, str], source: str) -> None:
    names = ", ".join(columns)
    values = ", ".join(columns.values())
    connection.execute(
        sa.text(f"INSERT INTO {table} ({names}) SELECT {values} FROM {source}".replace(":", r"\:"))
    )


def fill_line(connection: sa.Connection, runs: int) -> None:
    """Let so many of the filled runs wait for places of their pools."""
    connection.execute(
        sa.text(
            "INSERT INTO pool_ticket (run_id, pool, priority, since, waits_since, wanted) "
            f"SELECT run_id, pool, 1 + run_id % 5, created_at, created_at, 3 FROM run_history LIMIT {int(runs)}"
        )
    )


def fill_sites(connection: sa.Connection, runs: int) -> None:
    """Let so many of the filled runs belong to sites, and wait for slots of one closed site."""
    name = _name(connection, "site-", "n")
    columns = {
        "site": name,
        "limits": "'{\"tasks\": 2}'",
        "closed_until": "CASE WHEN n = 0 THEN 1e11 ELSE 0 END",
        "closures": "CASE WHEN n = 0 THEN 1 ELSE 0 END",
        "lane_wanted_until": "0.0",
        "has_tickets": "n < 10",
    }
    _insert(connection, "site", columns, f"{_numbers(2_000)} AS numbers")
    of_run = {"run_id": "run_id", "host": "'host'", "site": "'site-0'"}
    _insert(connection, "run_site", of_run, f"run_history LIMIT {int(runs)}")
    of_run = {"run_id": "run_id", "host": "'host'", "refused": "0"}
    _insert(connection, "run_robots", of_run, f"run_history LIMIT {int(runs)}")
    ticket = {"run_id": "run_id", "site": "'site-0'", "priority": "1 + run_id % 5"}
    ticket |= {"since": "created_at", "wanted": "3"}
    _insert(connection, "site_ticket", ticket, f"run_history LIMIT {int(runs)}")


def fill_runs(connection: sa.Connection, count: int) -> int:
    """Insert so many ended runs, one in a hundred FAILED; the id of the first one."""
    first = int(
        connection.execute(
            sa.text("SELECT COALESCE(MAX(run_id), 0) + 1 FROM run_history")
        ).scalar_one()
    )
    created = _minute(connection, "n")
    failed = "n % 100 = 7"
    unique = _name(connection, "filled-", "n")
    columns = {
        "run_id": f"n + {first}",
        "run_uid": unique,
        "request_id": unique,
        "request_hash": "'0'",
        "work_hash": _name(connection, "work-", f"n % {WORKS}"),
        "crawler": _name(connection, "crawler-", f"n % {CRAWLERS}"),
        "pool": _name(connection, "pool-", f"n % {POOLS}"),
        "caller": "CASE WHEN n % 2 = 0 THEN 'ci' END",
        "`trigger`": "CASE WHEN n % 1000 = 3 THEN 'manual' WHEN n % 3 = 0 THEN 'api' ELSE 'scheduled' END",
        "status": f"CASE WHEN {failed} THEN 'FAILED' ELSE 'COMPLETED' END",
        "stage": "'completion'",
        "outcome": f"CASE WHEN {failed} THEN 'memory_exceeded' ELSE 'finished' END",
        "cause": "'All 5 tasks succeeded'",
        "attempt": "1",
        "owner_workflow_id": unique,
        "owner_run_id": unique,
        "claim_resumed": "0",
        "claim_rerun": "0",
        "claim_repair": "0",
        "requeued_attempt": "1",
        "request": """'{"crawler":"x","args":{},"settings":{},"tags":["nightly"],"limits":{},"priority":3}'""",
        "multi": "1",
        "flow_id": f"CASE WHEN n % 4 = 0 THEN {_name(connection, 'flow-', f'n - n % {FLOW_OF}')} END",
        "parent": f"CASE WHEN n % 5 = 2 THEN {_name(connection, 'manager/', f'n - n % {PARENT_OF}')} END",
        "stop_force": "0",
        "stop_escalated": "0",
        "pages": "1000",
        "items": "n",
        "created_at": created,
        "updated_at": created,
        "started_at": created,
        "ended_at": created,
    }
    _insert(connection, "run_history", columns, f"{_numbers(count)} AS numbers")
    _insert(
        connection,
        "run_tag",
        {
            "tag": f"CASE WHEN n % 1000 = 9 THEN '{RARE_TAG}' ELSE '{COMMON_TAG}' END",
            "run_id": f"n + {first}",
        },
        f"{_numbers(count)} AS numbers WHERE n % 2 = 1",
    )
    _insert(
        connection,
        "run_code",
        {
            "code_digest": f"CASE WHEN n % 1000 = 9 THEN '{RARE_CODE}' ELSE '{COMMON_CODE}' END",
            "run_id": f"n + {first}",
        },
        f"{_numbers(count)} AS numbers",
    )
    return first


def fill_tasks(
    connection: sa.Connection, first_run: int, runs: int, each: int, status: str = "SUCCEEDED"
) -> None:
    """Insert so many tasks for each of ``runs`` runs from ``first_run`` on, all in one status."""
    ended = _minute(connection, "r.n") if status == "SUCCEEDED" else "NULL"
    columns = {
        "run_id": f"r.n + {first_run}",
        "attempt": "1",
        "run_attempt": "1",
        "task_index": "t.n",
        "status": f"'{status}'",
        "status_since": _minute(connection, "r.n"),
        "outcome": "'finished'" if status == "SUCCEEDED" else "NULL",
        "args": "'{}'",
        "cluster": "'local'",
        "pages": "10",
        "ever_seen": "1",
        "ended_at": ended,
    }
    _insert(
        connection,
        "task_history",
        columns,
        f"{_numbers(runs)} AS r CROSS JOIN {_numbers(each)} AS t",
    )


def fill_records(connection: sa.Connection, first_run: int, runs: int) -> None:
    """One row about each of these runs in every table that keeps what happened to runs."""
    numbers, run = f"{_numbers(runs)} AS numbers", {"run_id": f"n + {first_run}", "attempt": "1"}
    at = _minute(connection, "n")
    known = {"evidence": "'{}'", "lag_ms": "5"}
    moved = {
        "from_status": "'RUNNING'",
        "to_status": "'SUCCEEDED'",
        "committed_at": at,
        "source": "'look'",
    }
    _insert(connection, "status_transition", {**run, **moved, **known}, numbers)
    believed = {
        "kind": "'late'",
        "believed": "'RUNNING'",
        "truth": "'FAILED'",
        "found_by": "'look'",
        "created_at": at,
    }
    _insert(connection, "correction", {**run, **believed, **known}, numbers)
    _insert(
        connection, "history_property", {**run, "name": "'workflow_id'", "value": "'x'"}, numbers
    )
    asked = {"request_id": "'s'", "`force`": "0", "requested_at": at}
    _insert(connection, "cancellation_log", {**run, **asked}, numbers)
    _insert(connection, "export_record", {**run, "status": "'done'", "at": at}, numbers)
    added = {
        "request_key": "'k'",
        "args_hash": "'0'",
        "first_index": "1",
        "tasks": "1",
        "created_at": at,
    }
    _insert(connection, "task_addition", {"run_id": run["run_id"], **added}, numbers)
    task = {
        "task_id": "t.task_id",
        "run_id": "t.run_id",
        "attempt": "1",
        "task_index": "t.task_index",
    }
    _insert(
        connection, "task_observation", task, f"task_history AS t WHERE t.run_id >= {first_run}"
    )
    _insert(
        connection, "task_log", {"task_id": "t.task_id", "log_tail": "'x'"}, "task_history AS t"
    )
    _insert(
        connection,
        "task_stats",
        {"task_id": "t.task_id", "stats": "'{\"a\": 1}'"},
        "task_history AS t",
    )
    fill_events(connection, first_run, runs)


def fill_events(connection: sa.Connection, first_run: int, runs: int) -> None:
    """The event of the end of each of these runs, and its delivery."""
    numbers, last = (
        f"{_numbers(runs)} AS numbers",
        "(SELECT COALESCE(MAX(seq), 0) FROM outbox_event)",
    )
    first = int(connection.execute(sa.text(f"SELECT {last}")).scalar_one()) + 1
    columns = {
        "seq": f"n + {first}",
        "run_id": f"n + {first_run}",
        "subject": _name(connection, "runs/", f"n + {first_run}"),
        "subject_uid": "'filled'",
        "attempt": "1",
        "type": "'run.ended'",
        "event_key": _name(connection, "filled/", f"n + {first}"),
        "body": """'{"status":"COMPLETED","tasks":{"SUCCEEDED":5},"pages":1000,"items":1000}'""",
        "created_at": _minute(connection, "n"),
    }
    _insert(connection, "outbox_event", columns, numbers)
    sent = {"seq": f"n + {first}", "sink": "'events'", "status": "'delivered'", "tries": "1"}
    _insert(connection, "outbox_delivery", sent, numbers)
    connection.execute(
        sa.text("UPDATE outbox_counter SET seq = (SELECT MAX(seq) FROM outbox_event)")
    )


def fill_managers(connection: sa.Connection, count: int) -> None:
    """Insert so many managers that ended, one a minute."""
    needed = [column.name for column in manager.c if not column.nullable and not column.primary_key]
    unique, at = _name(connection, "f", "n"), _minute(connection, "n")
    columns = {
        **dict.fromkeys(needed, "0"),
        **dict.fromkeys(("attempt", "next_seq"), "1"),
        "name": _name(connection, "m", f"n % {NAMES}"),
        "status": "'COMPLETED'",
        **dict.fromkeys(("manager_uid", "flow_id"), unique),
        **dict.fromkeys(("options", "state", "stats"), "'{}'"),
        **dict.fromkeys(("former_owners", "tags", "flow_tags"), "'[]'"),
        **dict.fromkeys(("created_at", "updated_at", "ended_at"), at),
    }
    _insert(connection, "manager", columns, f"{_numbers(count)} AS numbers")


def fill_findings(connection: sa.Connection) -> None:
    """One finding about each run that there is, which is gone since that run ended."""
    columns = {
        "run_id": "run_id",
        "subject": _name(connection, "filled/", "run_id"),
        "kind": "'orphan'",
        "status": "'gone'",
        "detail": "'x'",
        "evidence": "'{}'",
        "tries": "0",
        **dict.fromkeys(("first_seen", "last_seen"), "ended_at"),
    }
    _insert(connection, "audit_finding", columns, "run_history")


def fill_access(connection: sa.Connection) -> None:
    """A row of the access log about each run that there is, by one of a few tokens."""
    columns = {
        "at": "created_at",
        "caller": _name(connection, "caller-", f"run_id % {NAMES}"),
        "operation": _name(connection, "operation-", f"run_id % {NAMES}"),
        "outcome": _name(connection, "outcome-", f"run_id % {NAMES}"),
        "subject": _name(connection, "", "run_id"),
        "kind": "'run'",
        "project": "project",
        "caller_project": "'*'",
        "requests": "1",
    }
    _insert(connection, "access_log", columns, "run_history")


def fill_graphs(connection: sa.Connection) -> None:
    """A graph that ended when it did for each run that there is, with a step for each task, and a
    draft of a page.
    """
    columns = {
        "graph_id": "run_id * 2",
        "graph_uid": "run_uid",
        "graph_key": _name(connection, "g", "run_id"),
        "name": _name(connection, "g", f"run_id % {NAMES}"),
        "fingerprint": "'0'",
        "pages": "1",
        "options": "'{}'",
        "state": "'completed'",
        **dict.fromkeys(("attempt", "next_batch"), "1"),
        **dict.fromkeys(("former_owners", "commands", "tags"), "'[]'"),
        **dict.fromkeys(("stop_force", "stop_escalated"), "0"),
        **dict.fromkeys(("created_at", "updated_at", "ended_at"), "ended_at"),
    }
    _insert(connection, "graph", columns, "run_history")
    draft = {
        "graph_id": "run_id * 2 + 1",
        "graph_key": _name(connection, "d", "run_id"),
        "state": "'draft'",
    }
    _insert(connection, "graph", columns | draft, "run_history")
    step = {"graph_id": "run_id * 2", "number": "task_index"}
    waiting = dict.fromkeys(
        ("attempt", "tries", "snoozed", "run_attempt", "begun_attempt", "ending"), "0"
    )
    named = {
        "path": "task_index",
        "path_hash": "task_index",
        "kind": "'function'",
        "job": "'{}'",
        "state": "'completed'",
    }
    _insert(connection, "graph_step", {**step, **named, **waiting}, "task_history")
    _insert(connection, "graph_result", {**step, "part": "0", "data": "'x'"}, "task_history")
    _insert(connection, "graph_log", {"graph_id": "graph_id", "log_tail": "'x'"}, "graph")
    _insert(
        connection,
        "graph_page",
        {"graph_id": "run_id * 2 + 1", "page": "0", "data": "'x'"},
        "run_history",
    )


def fill_blocks(connection: sa.Connection) -> None:
    """Insert blocks and figures of a hundred sites; some of them are old."""
    name = _name(connection, "site-", "n % 100")
    at = "CASE WHEN n < 10 THEN 1.0 ELSE 4e9 + n END"
    block = {"site": name, "at": at, "person": "'ann'", "closed_until": "4e9"}
    _insert(connection, "site_block", block, f"{_numbers(5_000)} AS numbers")
    minute = "CASE WHEN n < 10 THEN n ELSE 60000000 + n END"
    figures = {"site": name, "minute": minute, "requests": "1", "statuses": "'{}'"}
    _insert(connection, "site_minute", figures, f"{_numbers(5_000)} AS numbers")
    fetched = {"origin": _name(connection, "https://site-", "n"), "site": name}
    times = ("claimed_until", "fetched_at", "valid_until")
    fetched |= {"claimed_by": "'1.0.1'", **dict.fromkeys(times, at)}
    _insert(connection, "site_robots", fetched, f"{_numbers(5_000)} AS numbers")
    day = "CASE WHEN n < 10 THEN n ELSE 60000 + n END"
    proxies = {"site": name, "day": day, "proxies": "'{}'"}
    _insert(connection, "site_day", proxies, f"{_numbers(5_000)} AS numbers")
    at = "CASE WHEN run_id % 500 = 0 THEN 1.0 ELSE 4e9 END"
    report = {"run_id": "run_id", "task_index": "0", "marks": "'x'", "at": at}
    _insert(connection, "site_report", report, "run_history LIMIT 5000")


def fill_catalogue(connection: sa.Connection) -> None:
    """Insert 500 entries of 50 packages, with 50 versions of each entry."""
    changed = _minute(connection, "n")
    package = _name(connection, "package-", "n % 50")
    entry = {"name": _name(connection, "entry-", "n"), "number": "50", "changed_at": changed}
    entry["package"] = f"CASE WHEN n % 2 = 1 THEN {package} END"
    _insert(connection, "catalogue_entry", entry, f"{_numbers(500)} AS numbers")
    change = {"name": _name(connection, "entry-", "n % 500"), "number": "(n - n % 500) / 500 + 1"}
    change |= {"document": "'{}'", "changed_at": changed}
    _insert(connection, "catalogue_change", change, f"{_numbers(25_000)} AS numbers")
    deployed = {"name": _name(connection, "package-", "n"), "current": "'v5000'"}
    _insert(
        connection, "package", deployed | {"changed_at": changed}, f"{_numbers(500)} AS numbers"
    )
    version = {"package": _name(connection, "package-", "n % 500"), "spiders": "'[]'"}
    version |= {"version": _name(connection, "v", "n - n % 500"), "created_at": changed}
    version |= {"digest": _name(connection, "sha256:", "n"), "size": "1", "files": "1"}
    _insert(connection, "package_version", version, f"{_numbers(25_000)} AS numbers")


def fill_canaries(connection: sa.Connection) -> None:
    """Insert 5,000 canaries of 500 packages, the last of each package open or rejected."""
    last = "n >= 4500"
    state = f"CASE WHEN {last} AND n % 10 = 1 THEN 'open' WHEN n % 2 = 1 THEN 'rejected' ELSE 'accepted' END"
    row = {"canary_uid": _name(connection, "canary-", "n"), "state": state, "old_version": "'1'"}
    row |= {"package": _name(connection, "package-", "n % 500"), "new_version": "'2'"}
    row["holder"] = f"CASE WHEN {last} THEN {row['package']} END"
    row |= {"old_digest": f"'{RARE_CODE}'", "new_digest": f"'{COMMON_CODE}'", "share": "0.1"}
    row |= {"runs": "3", "judge": "'[]'", "asked": "9", "given": "1", "after_run_id": "7"}
    row["created_at"] = _minute(connection, "n")
    _insert(connection, "canary", row, f"{_numbers(5_000)} AS numbers")


def analyze(connection: sa.Connection, tables: list[str]) -> None:
    """Let the optimizer know what there is now."""
    if connection.dialect.name == "mysql":
        connection.execute(sa.text(f"ANALYZE TABLE {', '.join(tables)}")).all()
