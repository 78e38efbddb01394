"""Verbs that show runs and crawlers, control a run, or wait for it."""

from __future__ import annotations

import uuid
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from crawler_lifecycle.cli import output
from crawler_lifecycle.cli.output import emit, emit_list, say_note, say_total, show_facts, show_list, show_rows
from crawler_lifecycle.cli.problems import Exit, WrongUsage
from crawler_lifecycle.cli.session import current, say, time_of
from crawler_lifecycle.cli.subjects import By, End, Force, Goal, Limit, Project, Proof, Reason, Search, Sort, Yes
from crawler_lifecycle.dev_json import user
from crawler_lifecycle.domain.ended_by import EndedBy
from crawler_lifecycle.subjects import POOL, plain

from . import tables
from .texts import RUN, RunId, argument_lines, facts, next_steps

RunIds = Annotated[int, Parameter(help="more runs")]
KIND = Literal[
    "killed", "vanished", "not_ours", "still_alive", "never_existed", "late", "late_evidence", "repair"
]  # domain/audits/corrections.py
Stage = Literal["initiation", "deployment", "reconciliation", "completion"]

#: The most tasks and corrections that ``describe`` reads, and the most tasks that it shows.
TASKS_MAX, CORRECTIONS_MAX, TASKS_SHOWN = 500, 50, 20


def list_runs(
    *,
    status: Annotated[
        list[str] | None, Parameter(help="INITIALIZING, PROCESSING, STOPPING, COMPLETED or FAILED")
    ] = None,
    stage: Annotated[Stage | None, Parameter(help="only runs in this stage")] = None,
    crawler: Annotated[str | None, Parameter(help="only runs of this crawler")] = None,
    trigger: Annotated[str | None, Parameter(help="scheduled, manual or api")] = None,
    outcome: Annotated[str | None, Parameter(help="finished, cancelled, failed …")] = None,
    ended_by: Annotated[EndedBy | None, Parameter(help="who ended it")] = None,
    tag: Annotated[list[str] | None, Parameter(help="only runs with this tag; repeat it for several tags")] = None,
    pool: Annotated[str | None, Parameter(help="only runs of this pool")] = None,
    flow: Annotated[str | None, Parameter(help="only runs of this flow")] = None,
    parent: Annotated[str | None, Parameter(help="only runs that this workflow started")] = None,
    since: Annotated[str | None, Parameter(help="only runs created since a time, or in the last 24h, 7d …")] = None,
    until: Annotated[str | None, Parameter(help="only runs created before a time, or more than 24h, 7d … ago")] = None,
    attention: Annotated[
        bool,
        Parameter(help="only runs that failed or brought too little, were not stopped, and had no good one after them"),
    ] = False,
    search: Search = None,
    sort: Sort = None,
    project: Project = None,
    limit: Limit = 50,
    watch: Annotated[bool, Parameter(name=["--watch", "-w"], help="show changes until Ctrl-C")] = False,
) -> int:
    """List runs, newest first."""
    now = output.now()
    filters = {
        "status": [word.upper() for word in status or ()],
        "stage": stage,
        "crawler": crawler,
        "trigger": trigger,
        "outcome": outcome,
        "ended_by": ended_by,
        "tag": tag,
        "pool": pool,
        "flow_id": flow,
        "parent": parent,
        "search": search,
        "sort": sort,
        "project": project,
        "created_from": None if since is None else time_of("--since", since, now),
        "created_until": None if until is None else time_of("--until", until, now),
        "attention": "true" if attention else None,
    }
    with current().gateway() as gateway:
        if watch:
            if sort:
                raise WrongUsage("--sort cannot be used to watch a list", "leave out --watch")
            from .watch import watch_list

            return watch_list(gateway, filters, limit)
        beside: dict[str, Any] = {}
        rows = gateway.rows("/v1/runs", limit=limit, last=beside, **filters)
    empty = "no runs; next: crawlctl crawler list"
    overdue = {"overdue": beside.get("overdue")}
    emit_list("runs", rows, RUN.subject.columns, name="run_id", empty=empty, beside=overdue)
    say_total(beside, len(rows))
    say_note(beside)
    return Exit.DONE


def get(run: Annotated[int | None, Parameter(help="the run's id; default: list runs")] = None, /) -> int:
    """Describe a run, or list runs."""
    return list_runs() if run is None else describe(run)


def timeline(run: RunId, /, *, limit: Limit = 500) -> None:
    """List everything that happened to a run, the oldest first, and how late each change was recorded."""
    empty = f"nothing happened in run {run} yet"
    show_list(RUN.path(run, "/timeline"), tables.TIMELINE, key="key", empty=empty, limit=limit)


def corrections(
    run: Annotated[int | None, Parameter(help="only corrections of this run")] = None,
    /,
    *,
    since: Annotated[str | None, Parameter(help="only those found in the last 24h, 7d …, or since a time")] = None,
    kind: Annotated[KIND | None, Parameter(help="only corrections of this kind")] = None,
    limit: Limit = 200,
) -> None:
    """List corrections: recorded statuses that were untrue, and for how long. A late record is not a correction."""
    if run is not None and since is not None:
        cure = f"crawlctl corrections {run}, or crawlctl corrections --since {since}"
        raise WrongUsage("--since cannot be used with a run", cure)
    begin = None if since is None else time_of("--since", since, output.now())
    with current().gateway() as gateway:
        path = "/v1/corrections" if run is None else RUN.path(run, "/corrections")
        rows = gateway.rows(path, limit=limit, since=begin, kind=kind)
        summary = gateway.get("/v1/corrections/summary", since=begin) if run is None else None

    empty = "no corrections" + (f" of kind {kind}" if kind else "") + (f" of run {run}" if run is not None else "")
    empty += f" since {since}" if since else ""
    emit_list("corrections", rows, tables.CORRECTIONS, name="id", empty=empty, beside={"summary": summary})


def describe(run: RunId, /) -> int:
    """Show everything about a run on one screen."""
    with current().gateway() as gateway:
        found = gateway.run(run)
        rows = gateway.tasks(run, limit=TASKS_MAX)
        wrong = gateway.rows(RUN.path(run, "/corrections"), limit=CORRECTIONS_MAX)

    def table() -> None:
        show_facts(facts(found, rows, wrong))
        if len(rows) > 1 or any(row.get("cause") or row.get("reason") for row in rows):
            print()
            show_rows(rows[:TASKS_SHOWN], tables.TASKS, empty="")
            if len(rows) > TASKS_SHOWN:
                say(f"… the first {TASKS_SHOWN} tasks; all: crawlctl tasks {run}")
        if wrong:
            print()
            show_rows(wrong, tables.CORRECTIONS, empty="")

    emit({**found, "task_rows": rows, "corrections": wrong}, names=[run], table=table)
    say(f"next: {' · '.join(next_steps(found, rows))}")
    return Exit.DONE


def pools() -> None:
    """List the pools: how many places each has and uses, who waits, and its share of the last hour."""
    show_list("/v1/pools", POOL.columns, key=POOL.key, empty="no pools")


def quotas(*, pool: Annotated[str | None, Parameter(help="pool of the start; default: default")] = None) -> None:
    """List the quotas that hold for your next start: what is used, and when one is free."""
    show_list("/v1/quotas", tables.QUOTAS, key="name", empty="no quota holds for you", pool=pool)


def crawlers() -> None:
    """List the crawlers that can be run."""
    empty = "the catalogue is empty (LIFECYCLE_CRAWLERS)"
    show_list("/v1/crawlers", tables.CRAWLERS, key="name", empty=empty)


def describe_crawler(name: Annotated[str, Parameter(help="the crawler's name")], /) -> None:
    """Show one crawler of the catalogue."""
    with current().gateway() as gateway:
        found = gateway.crawler(name)
    lines = [(key, plain(value)) for key, value in found.items() if value not in (None, [], {}, "") and key != "args"]
    lines[2:2] = argument_lines(found)
    emit(found, names=[name], table=lambda: show_facts(lines))
    say(f"next: crawlctl start {name} · crawlctl crawler check {name}")


# --- control ---------------------------------------------------------------------------------------------------------


def stop(
    run: RunId,
    /,
    *runs: RunIds,
    reason: Reason = None,
    force: Force = False,
    request_id: Annotated[str | None, Parameter(help="the same id is only recorded once")] = None,
    by: By = None,
    wait: Proof = False,
) -> int:
    """Ask runs to end gracefully. A run that has already ended does not change."""
    body = {"force": force, "reason": reason, "request_id": request_id or str(uuid.uuid4())}
    body |= {"requested_by": by or user()}
    return RUN.each((run, *runs), "stop", body, wait=wait, then="wait {} --for ended")


def force_stop(
    run: RunId, /, *runs: RunIds, reason: Reason = None, yes: Yes = False, by: By = None, wait: Proof = False
) -> int:
    """End runs at once, and kill their crawlers, which get no time to save anything."""
    RUN.be_sure((run, *runs), "all tasks of run", yes=yes)
    return stop(run, *runs, reason=reason, force=True, by=by, wait=wait)


def resume(
    run: RunId,
    /,
    *,
    rerun: Annotated[bool, Parameter(help="run a COMPLETED run again")] = False,
    by: By = None,
    wait: End = False,
    watch: Annotated[bool, Parameter(help="wait, and show a live view")] = False,
) -> int:
    """Continue a run that has ended, as its next attempt. Only tasks that did not succeed are executed again."""
    with current().gateway() as gateway:
        answer = gateway.resume(run, rerun=rerun, requested_by=by or user())
        if watch:
            from .watch import watch_run

            return watch_run(gateway, run, after=answer)
        if wait:
            return RUN.await_end(gateway, run, after=answer)
    RUN.show([answer])
    say(f"next: crawlctl wait {run} · crawlctl describe {run}")
    return Exit.DONE


def delete(run: RunId, /, *runs: RunIds, yes: Yes = False, by: By = None) -> int:
    """Delete the data of ended runs: files, archives, logs, arguments, histories. A short record of each run stays.

    It needs the role admin. Repeat the command to see the progress. A live run must be stopped first.
    """
    RUN.be_sure((run, *runs), "all data of run", yes=yes, verb="delete")
    return RUN.each((run, *runs), "delete", {"requested_by": by or user()})


def look(run: RunId, /) -> None:
    """Check the tasks of a run on the cluster now, and not only at the next due look."""
    with current().gateway() as gateway:
        answer = gateway.post(RUN.path(run, "/look"))
    RUN.show([answer])
    say(f"next: crawlctl describe {run}")


def wait(
    run: RunId, /, *, goal: Annotated[Goal, Parameter(name="--for", help="what to wait for")] = "completed"
) -> int:
    """Wait for a run, at most for --timeout (exit code 7).

    With --for completed the exit code says how the run ended: 0 completed, 5 failed, 6 stopped. With --for ended it is
    0 for any end. With --for started it is 0 when the run has started, and 5 or 6 if it ends without a start.
    """
    with current().gateway() as gateway:
        return RUN.await_end(gateway, run, goal)
