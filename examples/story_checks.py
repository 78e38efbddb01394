"""Proofs that do not trust the service: the database, processes, archives and events are each read
at their source.
"""

from __future__ import annotations

import contextlib
import json
import os
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from crawler_lifecycle import sqlite_files
from crawler_lifecycle.cli.stack import processes
from crawler_lifecycle.graphs import Workflow
from examples.managers import PAGES

Run = Mapping[str, Any]

ALIVE = ("QUEUED", "PENDING", "RUNNING", "STOPPING")


class Untrue(Exception):
    """A check failed. The text contains the expected and the actual result."""


@dataclass(frozen=True)
class Slots:
    """The places where the stack keeps its data."""

    state_dir: Path
    addresses: Mapping[str, str | None]

    def path(self, name: str) -> Path:
        """Return the file of one of the addresses."""
        parts = urlsplit(str(self.addresses[name]))
        return Path(
            unquote(parts.path.removeprefix("/") if parts.scheme == "sqlite" else parts.path)
        )


def expect(condition: object, text: str) -> None:
    """Raise ``Untrue`` with this text unless ``condition`` holds."""
    if not condition:
        raise Untrue(text)


def query(places: Slots, sql: str, *values: object) -> list[tuple[Any, ...]]:
    """Return rows of the database, read by its own driver. A file is opened only for reading."""
    address = urlsplit(str(places.addresses["database"]))
    if address.scheme.startswith(("mysql", "mariadb")):
        return _query_mysql(address, sql, values)
    with contextlib.closing(sqlite_files.connect(places.path("database"), "ro")) as db:
        return db.execute(sql, values).fetchall()


def _query_mysql(
    address: SplitResult, sql: str, values: tuple[object, ...]
) -> list[tuple[Any, ...]]:
    # The driver is needed only with such a database.
    import pymysql

    connection = pymysql.connect(
        host=address.hostname or "127.0.0.1",
        port=address.port or 3306,
        user=unquote(address.username or "root"),
        password=unquote(address.password or ""),
        database=unquote(address.path.removeprefix("/")),
        charset="utf8mb4",
        connect_timeout=5,
        read_timeout=10,
    )
    with contextlib.closing(connection), connection.cursor() as cursor:
        cursor.execute(sql.replace("?", "%s"), values)
        return list(cursor.fetchall())


def run_folder(state_dir: Path, run_id: int) -> Path:
    """Return the folder of a run's tasks on the local cluster, whose name contains the uid of the
    run. If there is no such folder yet, return a path that does not exist.
    """
    tasks = state_dir / "cluster" / "tasks"
    return next(tasks.glob(f"{run_id}-*"), tasks / str(run_id))


def task_processes(places: Slots, run_id: int) -> dict[str, tuple[int, int, int]]:
    """Return the process id, start time and process group of every crawler of a run, by
    ``index/attempt``.
    """
    found = {}
    for file in run_folder(places.state_dir, run_id).glob("*/*/process.json"):
        known = json.loads(file.read_text())
        found["/".join(file.parts[-3:-1])] = (known["pid"], known["start"], known["group"])
    return found


def check_database(places: Slots, run: Run) -> str:
    """Check that the row equals the answer of the gateway, and that no task of the run is alive."""
    rows = query(
        places, "SELECT status, outcome, ended_at FROM run_history WHERE run_id = ?", run["run_id"]
    )
    expect(rows, f"run {run['run_id']} has no row")
    status, outcome, ended_at = rows[0]
    expect(
        (status, outcome) == (run["status"], run["outcome"]),
        f"row: {status}/{outcome}, gateway: {run['status']}",
    )
    expect(ended_at, "the row has no end")
    sql = (
        "SELECT status, COUNT(*) FROM task_history WHERE run_id = ? AND superseded_by IS NULL "
        "GROUP BY status"
    )
    counts = dict(query(places, sql, run["run_id"]))
    expect(not set(counts) & set(ALIVE), f"an ended run has tasks {counts}")
    return f"{status} ({outcome}), " + ", ".join(
        f"{n} {s.lower()}" for s, n in sorted(counts.items())
    )


def check_processes(places: Slots, run: Run) -> str:
    """Check that no process of the run exists, neither the recorded processes nor any process with
    the id of the run in its environment.
    """
    known = task_processes(places, run["run_id"])
    living = [name for name, (pid, start, _) in known.items() if processes.start_time(pid) == start]
    expect(not living, f"crawlers of tasks {', '.join(living)} still run")
    strays = [pid for pid in _pids() if _belongs(pid, places, run["run_id"])]
    expect(not strays, f"processes {strays} still work for run {run['run_id']}")
    return f"none of its {len(known)} crawler processes exists"


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _belongs(pid: int, places: Slots, run_id: int) -> bool:
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:  # The process has ended, or belongs to another user.
        return False
    here = os.fsencode(places.state_dir)
    return f"CRAWL_RUN_ID={run_id}".encode() in entries and any(here in entry for entry in entries)


def check_archive(places: Slots, run: Run) -> str:
    """Check that the zip of supporting files can be opened, that every byte of it is right, and
    that it contains the counted items.
    """
    (export,) = [e for e in run["exports"] if e["attempt"] == run["attempt"]]
    if export["status"] == "empty":
        expect(not run["items"], f"{run['items']} items, but no supporting files")
        return "no supporting files"
    expect(export["status"] == "exported", f"export: {export['status']}, {export.get('error')}")
    file = Path(unquote(urlsplit(export["url"]).path))
    with zipfile.ZipFile(file) as archive:
        expect(archive.testzip() is None, f"{file}: {archive.testzip()} is damaged")
        names = [name for name in archive.namelist() if name.endswith("items.jsonl")]
        lines = sum(len(archive.read(name).splitlines()) for name in names)
    expect(lines >= (run["items"] or 0), f"{file}: {lines} items, counted were {run['items']}")
    return f"{lines} items, {export['files']} files, {export['bytes']:,} bytes"


def told_events(places: Slots) -> list[dict[str, Any]]:
    """Return the content of the event file."""
    found = []
    for line in places.path("events").read_text().splitlines():
        with contextlib.suppress(ValueError):  # A writer that was killed may have left half a line.
            found.append(json.loads(line))
    return found


def check_events(places: Slots, run: Run) -> str:
    """Check that the event file reports the end of the run with the same verdict."""
    id = f"{run['run_id']}-{run['run_uid']}/{run['attempt']}/run.ended"
    told = [event["data"] for event in told_events(places) if event["id"] == id]
    expect(told, f"no event run.ended of run {run['run_id']}")
    expect(
        all(data["status"] == run["status"] for data in told), f"reported was {told[0]['status']}"
    )
    return f"run.ended reported: {told[0]['status']}"


CHECKS: dict[str, Callable[[Slots, Run], str]] = {
    "database": check_database,
    "processes": check_processes,
    "archive": check_archive,
    "events": check_events,
}


def check_manager(places: Slots, manager: Run) -> str:
    """Check what the crawlers of a manager wrote themselves: each crawl once, in the order of the
    class, two at a time.
    """
    expect(
        (manager["status"], manager["outcome"]) == ("COMPLETED", "finished"),
        f"it is {manager['cause']}",
    )
    name = f"manager/{manager['name']}/{manager['flow_id']}"
    runs = [
        row[0]
        for row in query(
            places, "SELECT run_id FROM run_history WHERE parent = ? ORDER BY run_id", name
        )
    ]
    ledger = [json.loads(text) for run in runs for text in _left(places, run, "summary.json")]
    walks = [summary["max_pages"] for summary in ledger]
    expect(
        walks == list(dict.fromkeys(PAGES)),
        f"the crawlers walked {walks}, the class declared {PAGES}",
    )
    steps = [(summary["started_at"], 1) for summary in ledger] + [
        (summary["finished_at"], -1) for summary in ledger
    ]
    live = list(accumulate(step for _, step in sorted(steps)))
    expect(max(live) <= 2, f"{max(live)} crawlers executed at once")
    items = sum(summary["items"] for summary in ledger)
    longest = max(item["words"] for run in runs for item in _items(places, run))
    found = {"items": items, "longest": longest}
    expect(
        manager["state"] == found, f"its hooks found {manager['state']}, the crawlers wrote {found}"
    )
    return (
        f"{len(walks)} runs in their order, at most {max(live)} at once, "
        f"{len(PAGES) - len(walks)} known ones left out"
    )


def check_graph(places: Slots, graph: Workflow) -> str:
    """Check that there is one crawl for each page that the first crawl found, and that the recorded
    result equals what these crawls wrote to their own files.
    """
    state = graph.status().state
    expect(state == "completed", f"it is {state}")
    sql = "SELECT run_id FROM run_history WHERE parent = ? ORDER BY run_id"
    poll, *others = [row[0] for row in query(places, sql, f"graph/{graph.id}")]
    pages = len(_items(places, poll))
    expect(len(others) == pages > 1, f"{len(others)} crawls for {pages} pages")
    written = {item["url"]: item["title"] for run in others for item in _items(places, run)}
    merged, published = graph.get_recorded("merge"), graph.get_recorded("publish")
    expect(merged == written, f"it merged {merged}, the crawlers wrote {written}")
    expect(published.splitlines() == sorted(set(written.values())), f"it published {published!r}")
    return f"{len(others)} crawls for {pages} items of the first, {len(written)} items merged"


def _items(places: Slots, run_id: int) -> list[Run]:
    """Return the items of a run as its crawler wrote them."""
    return [
        json.loads(line)
        for text in _left(places, run_id, "items.jsonl")
        for line in text.splitlines()
    ]


def _left(places: Slots, run_id: int, name: str) -> list[str]:
    """Return the files with this name that the tasks of a run wrote, from their folders, or from
    the archive if there are no folders.
    """
    folder = run_folder(places.state_dir, run_id)
    if folder.exists():
        return [file.read_text(encoding="utf-8") for file in folder.glob(f"*/*/files/{name}")]
    [(url,)] = query(places, "SELECT url FROM export_record WHERE run_id = ?", run_id)
    with zipfile.ZipFile(unquote(urlsplit(url).path)) as archive:
        return [
            archive.read(one).decode() for one in archive.namelist() if one.endswith(f"/{name}")
        ]
