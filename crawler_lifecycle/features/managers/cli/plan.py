"""``crawlctl manager plan``: shows the jobs that a class would schedule, and why other items would
wait or be left out.
"""

from __future__ import annotations

import json
from typing import Any

from crawler_lifecycle.cli.inputs import answer_of
from crawler_lifecycle.cli.output import clean, emit, emit_list, show_rows
from crawler_lifecycle.cli.problems import CommandFailed, Exit
from crawler_lifecycle.cli.session import current, load_settings, say
from crawler_lifecycle.domain.errors import InvalidRequest
from crawler_lifecycle.subjects import Column, at, plain, words

from .start import catalogue

#: Seconds after which a class is stopped, unless --timeout is given.
TIMEOUT_S = 300.0

COLUMNS = (
    Column("Number", "seq", right=True),
    Column("What", "what"),
    Column("Spider", "spider"),
    Column("Arguments", lambda row: plain(row.get("spider_args") or {})),
    Column("Why", "why"),
    Column("Position", "position", right=True, wide=True),
    Column("Tags", words("tags"), wide=True),
    Column("Settings", lambda row: plain(row.get("job_settings") or {}), wide=True),
)
USER_CODE = (
    Column("Plan", "plan"),
    Column("Name", "name"),
    Column("Served", lambda row: plain(bool(row.get("served") and not row.get("error")))),
    Column("Description", "description"),
    Column("Why not", "error"),
    Column("Seen", at("seen_at"), wide=True),
    Column("Pool", "queue", wide=True),
    Column("Code", "fingerprint", wide=True),
)


def plan(
    name: str | None = None,
    /,
    *argv: str,
    limit: int = 50,
) -> None:
    """Show the jobs that a class would schedule, in order, and why an item would wait or be left
    out.

    Nothing is started.

    The gateway's catalogue shows which jobs no crawler would accept. A separate process imports the
    module from this folder. Every job is treated as if it succeeded at once.

    Parameters
    ----------
    name
        class to try, as module:Class; without it, all classes are listed
    argv
        options of the class, given after --
    limit
        stop after this many scheduled jobs
    """
    if name is None:
        with current().gateway() as gateway:
            user_code = gateway.get("/v1/user-code").get("user_code", [])
            rows = [
                plan for plan in user_code if plan.get("kind") == "manager" or plan.get("error")
            ]
        empty = "no user-code worker has registered a class yet (LIFECYCLE_USER_CODE__MODULES)"
        emit_list("user_code", rows, USER_CODE, name="plan", empty=empty)
        return
    rows, end = _simulated(name, argv, limit)
    refused = _refused(rows)
    document = {"plan": name, "jobs": rows, "end": end}
    names = [row.get("seq") for row in rows if row.get("what") == "scheduled"]
    emit(document, names=names, rows=rows, table=lambda: show_rows(rows, COLUMNS, empty="no jobs"))
    if end.get("text") and not refused:
        say(clean(end["text"]))
    if end.get("error"):
        raise CommandFailed(
            Exit.ERROR,
            f"{name} cannot be used",
            clean(end["error"], lines=True),
            f"correct the class and try again: crawlctl manager plan {name}",
        )
    if refused:
        raise CommandFailed(
            Exit.ERROR,
            f"{len(refused)} of the jobs cannot be started",
            refused[0],
            "correct the class, or the entry in the catalogue (crawlctl crawler list)",
        )
    say(f"next: crawlctl manager start {name}" + (f" -- {' '.join(argv)}" if argv else ""))


def _refused(rows: list[dict[str, Any]]) -> list[str]:
    """Mark each job that no crawler in the catalogue accepts, and return the reasons."""
    jobs = [row for row in rows if row.get("spider")]
    if not jobs:
        return []
    from crawler_lifecycle.domain.crawlers.crawler import check_tasks

    try:
        with current().gateway() as gateway:
            crawlers = catalogue(gateway)
    except CommandFailed as failure:
        say(f"the catalogue was not checked: {failure.what}")
        return []
    cloud = load_settings().user_code.cloud()
    reasons: list[str] = []
    for row in jobs:
        try:
            crawler = cloud.crawler(row["spider"], row["project_id"], crawlers)
            check_tasks(crawler, row["spider_args"], row["job_settings"], None)
        except InvalidRequest as error:
            row["what"] = "refused"
            row["why"] = str(error)
            reasons.append(str(error))
    return reasons


def _simulated(name: str, argv: tuple[str, ...], limit: int) -> tuple[list[dict[str, Any]], Any]:
    """Run the class in a separate process. Return its jobs and its outcome."""
    options = [str(limit), name, *argv]
    answer, code = answer_of(
        "crawler_lifecycle.features.user_code.preview", options, current().timeout_s or TIMEOUT_S
    )
    try:
        found = json.loads(answer)
        return found["jobs"], found["end"]
    except ValueError:
        why = (
            f"its process was ended by signal {-code}"
            if code < 0
            else f"its process ended with exit code {code}"
        )
        raise CommandFailed(
            Exit.ERROR,
            f"{name} did not finish",
            why,
            "raise --timeout, or look for exit() and endless loops in the class",
        ) from None
