"""Verbs that show: list, describe, tasks, timeline, corrections, logs, crawler list and describe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter

from crawler_lifecycle.cli.control import TERMINAL
from crawler_lifecycle.cli.output import (
    Column,
    Document,
    ago,
    clean,
    emit,
    milliseconds,
    moment,
    number,
    of,
    show_facts,
    show_rows,
    span,
)
from crawler_lifecycle.cli.problems import CommandFailed, Exit
from crawler_lifecycle.cli.session import Session, current

RunId = Annotated[int, Parameter(help="the run's id")]
Limit = Annotated[int, Parameter(help="at most so many")]

RUNS = (
    Column("RUN", of("run_id"), right=True),
    Column("CRAWLER", of("crawler")),
    Column("TRIGGER", of("trigger")),
    Column("STATUS", of("status")),
    Column("OUTCOME", of("outcome")),
    Column("STAGE", of("stage")),
    Column("PAGES", lambda row: number(row.get("pages")), right=True),
    Column("ITEMS", lambda row: number(row.get("items")), right=True),
    Column("ERRORS", lambda row: number(row.get("errors")), right=True),
    Column("VERIFIED", lambda row: ago(row.get("verified_at"))),
    Column("NEXT LOOK", lambda row: "-" if row.get("status") in TERMINAL else ago(row.get("next_look_at"))),
    Column("CREATED", lambda row: ago(row.get("created_at"))),
)
TASKS = (
    Column("TASK", of("task_id"), right=True),
    Column("INDEX", of("task_index"), right=True),
    Column("ATTEMPT", of("attempt"), right=True),
    Column("STATUS", of("status")),
    Column("OUTCOME", of("outcome")),
    Column("EXIT", lambda row: _exit(row)),
    Column("PAGES", lambda row: number(row.get("pages")), right=True),
    Column("ITEMS", lambda row: number(row.get("items")), right=True),
    Column("ERRORS", lambda row: number(row.get("errors")), right=True),
    Column("STARTED", lambda row: ago(row.get("started_at"))),
    Column("TOOK", lambda row: _took(row)),
    Column("WHY", lambda row: clean(row.get("cause") or row.get("reason")) or "-"),
)
TRANSITIONS = (
    Column("SEQ", of("seq"), right=True),
    Column("TASK", of("task_id"), right=True),
    Column("FROM", of("from_status")),
    Column("TO", of("to_status")),
    Column("WHEN", lambda row: ago(row.get("committed_at"))),
    Column("LAG", lambda row: milliseconds(row.get("lag_ms")), right=True),
    Column("SOURCE", of("source")),
)
CORRECTIONS = (
    Column("RUN", of("run_id"), right=True),
    Column("TASK", of("task_id"), right=True),
    Column("KIND", of("kind")),
    Column("BELIEVED", of("believed")),
    Column("TRUTH", of("truth")),
    Column("WRONG FOR", lambda row: milliseconds(row.get("lag_ms")), right=True),
    Column("FOUND BY", of("found_by")),
    Column("WHEN", lambda row: ago(row.get("created_at"))),
)
CRAWLERS = (
    Column("CRAWLER", of("name")),
    Column("KIND", of("kind")),
    Column("ARGUMENTS", lambda row: _arguments(row)),
    Column("RESUMABLE", lambda row: "yes" if row.get("resumable") else "no"),
)


def list_runs(
    *,
    status: Annotated[
        list[str] | None, Parameter(help="INITIALIZING, PROCESSING, STOPPING, COMPLETED or FAILED")
    ] = None,
    crawler: Annotated[str | None, Parameter(help="only runs of this crawler")] = None,
    trigger: Annotated[str | None, Parameter(help="scheduled, manual or api")] = None,
    outcome: Annotated[str | None, Parameter(help="finished, cancelled, failed …")] = None,
    limit: Limit = 50,
) -> int:
    """List runs, newest first."""
    session = current()
    wanted = [word.upper() for word in status or ()]
    with session.gateway() as gateway:
        rows = gateway.runs(limit=limit, status=wanted, crawler=crawler, trigger=trigger, outcome=outcome)
    return _show_list(session, "runs", rows, RUNS, "run_id", "no runs; next: crawlctl crawler list")


def tasks(run: RunId, /, *, limit: Limit = 500) -> int:
    """List the tasks of a run."""
    session = current()
    with session.gateway() as gateway:
        rows = gateway.tasks(run, limit=limit)
    return _show_list(session, "tasks", rows, TASKS, "task_id", f"run {run} has no tasks")


def timeline(run: RunId, /, *, limit: Limit = 500) -> int:
    """List every change of status of a run, oldest first, with how late it was recorded."""
    session = current()
    with session.gateway() as gateway:
        rows = gateway.timeline(run, limit=limit)
    return _show_list(session, "timeline", rows, TRANSITIONS, "seq", f"nothing happened in run {run} yet")


def corrections(
    run: Annotated[int | None, Parameter(help="only those of this run")] = None, /, *, limit: Limit = 200
) -> int:
    """List recorded statuses that turned out to be untrue, and for how long they were."""
    session = current()
    with session.gateway() as gateway:
        rows = gateway.corrections(run, limit=limit)
    return _show_list(session, "corrections", rows, CORRECTIONS, "id", "no recorded status was untrue")


def logs(
    run: RunId, /, *, task: Annotated[int | None, Parameter(help="task id; default: the main task")] = None
) -> int:
    """Show the kept end of the log of a task that has ended."""
    session = current()
    with session.gateway() as gateway:
        text = gateway.logs(run, task)
    if session.output in ("json", "yaml"):
        emit(session, {"run_id": run, "task_id": task, "log_tail": text}, names=[], table=lambda: None)
    elif text:
        print(clean(text, lines=True), end="" if text.endswith("\n") else "\n")
    else:
        session.say(f"no log is kept for it yet; next: crawlctl tasks {run}")
    return Exit.DONE


def describe(run: RunId, /) -> int:
    """Show everything about a run on one screen."""
    session = current()
    with session.gateway() as gateway:
        found = gateway.run(run)
        rows = gateway.tasks(run, limit=500)
        wrong = gateway.corrections(run, limit=50)

    def table() -> None:
        show_facts(session, _facts(found, rows, wrong))
        if len(rows) > 1 or any(row.get("cause") or row.get("reason") for row in rows):
            print()
            show_rows(session, rows[:20], TASKS, empty="")
            if len(rows) > 20:
                session.say(f"… the first 20 tasks; all: crawlctl tasks {run}")
        if wrong:
            print()
            show_rows(session, wrong, CORRECTIONS, empty="")

    emit(session, {**found, "task_rows": rows, "corrections": wrong}, names=[run], table=table)
    session.say(f"next: {' · '.join(_next(found))}")
    return Exit.DONE


def crawlers() -> int:
    """List the crawlers that can be run."""
    session = current()
    with session.gateway() as gateway:
        rows = gateway.crawlers()
    return _show_list(session, "crawlers", rows, CRAWLERS, "name", "the catalogue is empty (LIFECYCLE_CRAWLERS)")


def describe_crawler(name: Annotated[str, Parameter(help="the crawler's name")], /) -> int:
    """Show one crawler of the catalogue."""
    session = current()
    with session.gateway() as gateway:
        rows = gateway.crawlers()
    found = next((row for row in rows if row.get("name") == name), None)
    if found is None:
        raise CommandFailed(Exit.NOT_FOUND, f"there is no crawler {name!r}", None, "crawlctl crawler list")
    facts = [(key, _plain(value)) for key, value in found.items() if value not in (None, [], {}, "")]
    emit(session, found, names=[name], table=lambda: show_facts(session, facts))
    session.say(f"next: crawlctl start {name}")
    return Exit.DONE


# --- texts ---------------------------------------------------------------------------------------------------------


def _show_list(
    session: Session, key: str, rows: Sequence[Document], columns: Sequence[Column], name: str, empty: str
) -> int:
    emit(
        session,
        {key: list(rows)},
        names=[row.get(name) for row in rows],
        table=lambda: show_rows(session, rows, columns, empty=empty),
    )
    return Exit.DONE


def _facts(run: Document, rows: Sequence[Document], wrong: Sequence[Document]) -> list[tuple[str, str]]:
    """The lines of ``describe``; what does not apply is left out."""
    stop = run.get("stop") or {}
    ended = run.get("status") in TERMINAL
    outcome = f" ({clean(run['outcome'])})" if run.get("outcome") else ""
    verified = f"verified {ago(run.get('verified_at'))}" if run.get("verified_at") else "not verified yet"
    next_look = "" if ended or not run.get("next_look_at") else f", next look {ago(run['next_look_at'])}"
    facts = [
        ("run", f"{run.get('run_id')}, attempt {run.get('attempt')}, crawler {clean(run.get('crawler'))}"),
        ("status", f"{run.get('status')}{outcome}, stage {run.get('stage')}"),
        ("cause", clean(run.get("cause"))),
        ("truth", f"{verified}{next_look}"),
        ("look error", clean(run.get("look_error"))),
        ("waiting for", "" if ended else clean(run.get("waiting_for"))),
        ("tasks", _counts(run, rows)),
        ("counters", _counters(run)),
        ("stop", _stop(stop) if stop else ""),
        ("started", f"{ago(run.get('started_at'))}, trigger {run.get('trigger')}" if run.get("started_at") else ""),
        ("ended", f"{ago(run.get('ended_at'))}, took {_took(run)}" if run.get("ended_at") else ""),
        ("corrections", str(len(wrong)) if wrong else "none"),
    ]
    facts += [("export", _export(export)) for export in run.get("exports") or ()]
    facts += [
        ("request", clean(run.get("request_id"))),
        ("workflow", clean(run.get("owner_workflow_id") or run.get("workflow_id"))),
    ]
    return [(name, value) for name, value in facts if value]


def _counts(run: Document, rows: Sequence[Document]) -> str:
    known = run.get("tasks")
    counts = Counter(known if isinstance(known, dict) else [str(row.get("status")) for row in rows])
    return ", ".join(f"{status} {count}" for status, count in sorted(counts.items()) if count) or "none yet"


def _counters(run: Document) -> str:
    named = [f"{number(run[name])} {name}" for name in ("pages", "items", "errors") if run.get(name) is not None]
    return ", ".join(named)


def _stop(stop: Document) -> str:
    words = ["force-stop" if stop.get("force") else "stop", "asked for", ago(stop.get("requested_at"))]
    if stop.get("limit"):
        words = ["by the run's limit", clean(stop["limit"]) + ",", ago(stop.get("requested_at"))]
    if stop.get("requested_by"):
        words += ["by", clean(stop["requested_by"])]
    return " ".join(words) + (f": {clean(stop['reason'])}" if stop.get("reason") else "")


def _export(export: Document) -> str:
    if not export.get("url"):
        return f"{clean(export.get('status'))}" + (f", {clean(export['error'])}" if export.get("error") else "")
    size = f", {number(export.get('files'))} files, {number(export.get('bytes'))} bytes" if export.get("files") else ""
    return f"{clean(export.get('status'))} {clean(export['url'])}{size}"


def _next(run: Document) -> list[str]:
    run_id, status = run.get("run_id"), run.get("status")
    if status == "COMPLETED":
        return [f"crawlctl logs {run_id}", f"crawlctl resume {run_id} --rerun"]
    if status == "FAILED":
        return [f"crawlctl logs {run_id}", f"crawlctl resume {run_id}"]
    if status == "STOPPING":
        return [f"crawlctl wait {run_id} --for ended", f"crawlctl force-stop {run_id}"]
    return [f"crawlctl wait {run_id}", f"crawlctl look {run_id}", f"crawlctl stop {run_id}"]


def _exit(task: Document) -> str:
    if task.get("exit_signal"):
        return f"signal {task['exit_signal']}"
    return "-" if task.get("exit_code") is None else str(task["exit_code"])


def _took(row: Document) -> str:
    started, ended = moment(row.get("started_at")), moment(row.get("ended_at"))
    return span((ended - started).total_seconds()) if started and ended else "-"


def _arguments(crawler: Document) -> str:
    shown = []
    for name, spec in (crawler.get("args") or {}).items():
        required = isinstance(spec, dict) and spec.get("required") and spec.get("default") is None
        shown.append(f"{name}!" if required else name)
    return clean(", ".join(shown)) or "-"


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{clean(key)}: {_plain(item)}" for key, item in value.items() if item is not None)
    if isinstance(value, list):
        return " ".join(_plain(item) for item in value)
    return clean(value)
