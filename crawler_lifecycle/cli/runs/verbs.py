"""Verbs that show runs and crawlers, control a run, or wait for it."""

from __future__ import annotations

import uuid
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from crawler_lifecycle.cli import output
from crawler_lifecycle.cli.output import (
    emit,
    emit_list,
    say_note,
    say_total,
    show_facts,
    show_list,
    show_rows,
)
from crawler_lifecycle.cli.problems import Exit, WrongUsage
from crawler_lifecycle.cli.session import current, say, time_of
from crawler_lifecycle.cli.subjects import (
    By,
    End,
    Force,
    Goal,
    Limit,
    Project,
    Proof,
    Reason,
    Search,
    Sort,
    Yes,
)
from crawler_lifecycle.dev_json import user
from crawler_lifecycle.domain.ended_by import EndedBy
from crawler_lifecycle.subjects import POOL, plain

from . import tables
from .texts import RUN, RunId, argument_lines, facts, next_steps

RunIds = Annotated[int, Parameter(help="more runs")]
KIND = Literal[
    "killed",
    "vanished",
    "not_ours",
    "still_alive",
    "never_existed",
    "late",
    "late_evidence",
    "repair",
]  # domain/audits/corrections.py
Stage = Literal["initiation", "deployment", "reconciliation", "completion"]

#: The maximum number of tasks and corrections that ``describe`` reads, and of tasks that it shows.
TASKS_MAX = 500
CORRECTIONS_MAX = 50
TASKS_SHOWN = 20


def list_runs(
    *,
    status: list[str] | None = None,
    stage: Stage | None = None,
    crawler: str | None = None,
    trigger: str | None = None,
    outcome: str | None = None,
    ended_by: EndedBy | None = None,
    tag: list[str] | None = None,
    code: str | None = None,
    pool: str | None = None,
    flow: str | None = None,
    parent: str | None = None,
    since: str | None = None,
    until: str | None = None,
    attention: bool = False,
    search: Search = None,
    sort: Sort = None,
    project: Project = None,
    limit: Limit = 50,
    watch: Annotated[bool, Parameter(name=["--watch", "-w"])] = False,
) -> int:
    """List runs, newest first.

    Parameters
    ----------
    status
        INITIALIZING, PROCESSING, STOPPING, COMPLETED, FAILED or stopped
    stage
        only runs in this stage
    crawler
        only runs of this crawler
    trigger
        scheduled, manual or api
    outcome
        finished, cancelled, failed …
    ended_by
        who ended the run
    tag
        only runs with this tag; repeat it for several tags
    code
        only runs with a task of this code: the first 6 or more digits of its digest
    pool
        only runs of this pool
    flow
        only runs of this flow
    parent
        only runs that this workflow started
    since
        only runs created since a time, or in the last 24h, 7d …
    until
        only runs created before a time, or more than 24h, 7d … ago
    attention
        only runs that failed or found too few items, were not stopped, and were not followed by a
        good run
    watch
        show changes until Ctrl-C
    """
    now = output.now()
    filters = {
        "status": status,
        "stage": stage,
        "crawler": crawler,
        "trigger": trigger,
        "outcome": outcome,
        "ended_by": ended_by,
        "tag": tag,
        "code": code,
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


def get(run: int | None = None, /) -> int:
    """Describe a run, or list runs.

    Parameters
    ----------
    run
        the run's id; default: list runs
    """
    return list_runs() if run is None else describe(run)


def timeline(run: RunId, /, *, limit: Limit = 500) -> None:
    """List everything that happened to a run, oldest first, and how late each change was
    recorded.
    """
    empty = f"nothing happened in run {run} yet"
    show_list(RUN.path(run, "/timeline"), tables.TIMELINE, key="key", empty=empty, limit=limit)


def corrections(
    run: int | None = None,
    /,
    *,
    since: str | None = None,
    kind: KIND | None = None,
    limit: Limit = 200,
) -> None:
    """List corrections: recorded statuses that did not match reality, and for how long.

    A change that was only recorded late is not a correction.

    Parameters
    ----------
    run
        only corrections of this run
    since
        only corrections found in the last 24h, 7d …, or since a time
    kind
        only corrections of this kind
    """
    if run is not None and since is not None:
        raise WrongUsage(
            "--since cannot be used with a run",
            f"crawlctl corrections {run}, or crawlctl corrections --since {since}",
        )
    begin = None if since is None else time_of("--since", since, output.now())
    with current().gateway() as gateway:
        path = "/v1/corrections" if run is None else RUN.path(run, "/corrections")
        rows = gateway.rows(path, limit=limit, since=begin, kind=kind)
        summary = gateway.get("/v1/corrections/summary", since=begin) if run is None else None

    empty = (
        "no corrections"
        + (f" of kind {kind}" if kind else "")
        + (f" of run {run}" if run is not None else "")
    )
    empty += f" since {since}" if since else ""
    emit_list(
        "corrections", rows, tables.CORRECTIONS, name="id", empty=empty, beside={"summary": summary}
    )


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
    """List the pools: slots, use, waiting runs, and the share of each pool in the last hour."""
    show_list("/v1/pools", POOL.columns, key=POOL.key, empty="no pools")


def quotas(*, pool: str | None = None) -> None:
    """List the quotas that apply to your next start: how much of each is used, and when the next
    start is possible.

    Parameters
    ----------
    pool
        pool of the start; default: default
    """
    show_list("/v1/quotas", tables.QUOTAS, key="name", empty="no quota applies to you", pool=pool)


def crawlers() -> None:
    """List the crawlers in the catalogue."""
    empty = "the catalogue is empty (LIFECYCLE_CATALOGUE)"
    show_list("/v1/crawlers", tables.CRAWLERS, key="name", empty=empty)


def describe_crawler(name: str, /) -> None:
    """Show one crawler from the catalogue.

    Parameters
    ----------
    name
        the crawler's name
    """
    with current().gateway() as gateway:
        found = gateway.crawler(name)
    lines = [
        (key, plain(value))
        for key, value in found.items()
        if value not in (None, [], {}, "") and key != "args"
    ]
    lines[2:2] = argument_lines(found)
    emit(found, names=[name], table=lambda: show_facts(lines))
    say(f"next: crawlctl start {name} · crawlctl crawler check {name}")


# --- control --------------------------------------------------------------------------------------


def stop(
    run: RunId,
    /,
    *runs: RunIds,
    reason: Reason = None,
    force: Force = False,
    request_id: str | None = None,
    by: By = None,
    wait: Proof = False,
) -> int:
    """Ask runs to end gracefully. A run that has already ended does not change.

    Parameters
    ----------
    request_id
        the same id is recorded only once
    """
    body = {
        "force": force,
        "reason": reason,
        "request_id": request_id or str(uuid.uuid4()),
        "requested_by": by or user(),
    }
    return RUN.each((run, *runs), "stop", body, wait=wait, then="wait {} --for ended")


def force_stop(
    run: RunId,
    /,
    *runs: RunIds,
    reason: Reason = None,
    yes: Yes = False,
    by: By = None,
    wait: Proof = False,
) -> int:
    """End runs at once, and kill their crawlers, which get no time to save anything."""
    RUN.be_sure((run, *runs), "all tasks of run", yes=yes)
    return stop(run, *runs, reason=reason, force=True, by=by, wait=wait)


def resume(
    run: RunId,
    /,
    *,
    rerun: bool = False,
    version: str | None = None,
    by: By = None,
    wait: End = False,
    watch: bool = False,
) -> int:
    """Continue a run that has ended, as its next attempt.

    Only tasks that did not succeed are executed again.

    Parameters
    ----------
    rerun
        run a COMPLETED run again
    version
        version of the crawler's package, or newest; default: the code that the run had
    watch
        wait, and show a live view
    """
    with current().gateway() as gateway:
        answer = gateway.resume(run, rerun=rerun, requested_by=by or user(), version=version)
        if watch:
            from .watch import watch_run

            return watch_run(gateway, run, after=answer)
    if wait:
        return RUN.await_end(run, after=answer)
    RUN.show([answer])
    say(f"next: crawlctl wait {run} · crawlctl describe {run}")
    return Exit.DONE


def delete(run: RunId, /, *runs: RunIds, yes: Yes = False, by: By = None) -> int:
    """Delete the data of ended runs: files, archives, logs, arguments, histories.

    A short record of each run is kept.

    Needs the role admin. Repeat the command to see the progress. A live run must be stopped first.
    """
    RUN.be_sure((run, *runs), "all data of run", yes=yes, verb="delete")
    return RUN.each((run, *runs), "delete", {"requested_by": by or user()})


def poll(run: RunId, /) -> None:
    """Poll the tasks of a run on the cluster now, without waiting for the next due poll."""
    with current().gateway() as gateway:
        answer = gateway.post(RUN.path(run, "/poll"))
    RUN.show([answer])
    say(f"next: crawlctl describe {run}")


def wait(run: RunId, /, *, goal: Annotated[Goal, Parameter(name="--for")] = "completed") -> int:
    """Wait for a run until --timeout expires (exit code 7).

    With --for completed the exit code shows the outcome of the run: 0 completed, 5 failed, 6
    stopped. With --for ended, the exit code is 0 for any end. With --for started, it is 0 when the
    run has started, and 5 or 6 if the run ends without starting.

    Parameters
    ----------
    goal
        what to wait for
    """
    return RUN.await_end(run, goal)
